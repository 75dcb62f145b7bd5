//! A model on a device: [`DeviceModel`] implements [`Model`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Device, Graph as Recording, Tensor};

use super::matrix::failed;
use super::pages::{Forgetting, PageTable};
use super::plan::{Activation, PlacedStep, Planner, ProductInputs};
use super::state::{BLOCK_SIZE, BlockTables, CacheShape};
use super::step::{Graph, Inputs, Results, SPLIT, Segments, StepContext, StepKey};
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::model::{Model, ModelError, RowOutput, RowResult, SequenceId, StepRow};

/// Rows of one sequence from which the tiled attention is taken.
const PREFILL_ROWS: usize = 16;
/// Recorded steps that are kept; the oldest goes first.
const MAX_STEPS: usize = 64;

/// How a model is set up on a device.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Type of activations and cache: `f32`, `f16` or `bf16`.
    pub dtype: Scalar,
    /// What products with packed weights read; other than `Exact` on the CPU alone.
    pub product_inputs: ProductInputs,
    /// Sequences that may be open at once.
    pub max_sequences: usize,
    /// Most rows of one step.
    pub max_step_rows: usize,
    /// Positions of the cache over all sequences; at most the context of each.
    pub cache_positions: usize,
}

struct RecordedStep {
    recording: Box<dyn Recording>,
    /// `[outputs, vocab_size]`, in the activations' type.
    logits: Option<Tensor>,
}

/// A model on a device, of any family.
pub struct DeviceModel {
    device: Arc<dyn Device>,
    config: ModelConfig,
    options: EngineOptions,
    graph: Graph,
    forgetting: Forgetting,
    zero_slot: u32,
    tables: BlockTables,
    inputs: Inputs,
    results: Results,
    arena: Option<Tensor>,
    pages: PageTable,
    steps: HashMap<StepKey, RecordedStep>,
    step_order: Vec<StepKey>,
}

impl DeviceModel {
    /// Uploads a checkpoint and reserves the state of all sequences.
    pub fn load(
        device: Arc<dyn Device>,
        checkpoint: &Checkpoint,
        options: EngineOptions,
    ) -> Result<DeviceModel, ModelError> {
        iron_corpus::link();
        let config = checkpoint.config.clone();
        let (sequences, step_rows) = (options.max_sequences, options.max_step_rows);
        let cache = CacheShape::new(&config, options.cache_positions, sequences, step_rows);
        let graph = Graph::load(&device, &config, &checkpoint.weights, options.dtype, &cache)?;
        let rows = step_rows as u64;
        let all = failed(Tensor::zeros(&device, Scalar::U32, &[8 * rows + 1]))?;
        let part = |i: u64| failed(all.slice(0, i * rows..(i + 1) * rows));
        let inputs = Inputs {
            tokens: part(0)?,
            positions: part(1)?,
            sequences: part(2)?,
            output_rows: part(3)?,
            segment_of: part(4)?,
            state_from: part(5)?,
            state_to: part(6)?,
            segment_starts: failed(all.slice(0, 7 * rows..8 * rows + 1))?,
            all,
        };
        let all = failed(Tensor::zeros(&device, Scalar::U32, &[2 * rows]))?;
        let mut largest =
            iron_ir::launch::AsTensorArg::tensor_arg(&failed(all.slice(0, rows..2 * rows))?);
        largest.scalar = Scalar::F32;
        let results = Results {
            tokens: failed(all.slice(0, 0..rows))?,
            largest: failed(Tensor::from_view(&device, largest))?,
            all,
        };
        let mut model = DeviceModel {
            tables: BlockTables::new(&device, &cache)?,
            pages: PageTable::new(cache.blocks, BLOCK_SIZE, sequences, cache.blocks_a_sequence),
            forgetting: Forgetting {
                ring: config
                    .widest_window()
                    .filter(|_| cache.ring_blocks < cache.blocks_a_sequence)
                    .map(|window| (window, cache.ring_blocks * BLOCK_SIZE)),
                recurrent: config.is_recurrent(),
            },
            zero_slot: cache.zero_slot(),
            device,
            config,
            options,
            graph,
            inputs,
            results,
            arena: None,
            steps: HashMap::new(),
            step_order: Vec::new(),
        };
        model.compile(step_rows)?;
        Ok(model)
    }

    /// Records a step of each kind: a shape that no kernel has is an error now, and no request
    /// waits for a compiler.
    fn compile(&mut self, step_rows: usize) -> Result<(), ModelError> {
        // The larger arena first: a larger one would drop the step recorded before.
        for (rows, prefill_slot) in [(PREFILL_ROWS.min(step_rows), Some(0)), (1, None)] {
            self.recorded(StepKey {
                rows,
                outputs: 1,
                splits: 1,
                prefill_slot,
                segments: usize::from(self.forgetting.recurrent),
            })?;
        }
        Ok(())
    }

    /// The step of a key, and its logits.
    fn planned(&self, key: StepKey) -> Result<(PlacedStep, Option<Activation>), ModelError> {
        // One thread an output keeps a CPU core's chain of sums in registers; a GPU needs the
        // threads of a subgroup side by side to read rows in whole cache lines.
        let lanes = if self.device.backend() == iron_runtime::Backend::Cpu {
            1
        } else {
            32
        };
        let product_inputs = self.options.product_inputs;
        let mut planner = Planner::new(self.options.dtype, lanes, product_inputs);
        let context = self.context_of(key)?;
        let logits = self
            .graph
            .plan(&mut planner, &context, &self.inputs, &self.results)?;
        if product_inputs == ProductInputs::Q8 && !planner.has_rounded() {
            return Err(ModelError::NoRoundedProducts {
                backend: self.device.backend().name().to_owned(),
            });
        }
        Ok((planner.place(), logits))
    }

    /// Bytes that the key-value caches of all layers take, and their recurrent states.
    pub fn state_bytes(&self) -> (u64, u64) {
        self.graph.state_bytes()
    }

    /// Checks a step against the open sequences; gives the length of each after it.
    fn check(&self, rows: &[StepRow]) -> Result<BTreeMap<SequenceId, usize>, ModelError> {
        if rows.len() > self.options.max_step_rows {
            let max = self.options.max_step_rows;
            return Err(ModelError::Rows {
                rows: rows.len(),
                max,
            });
        }
        let mut lengths = BTreeMap::new();
        for row in rows {
            let sequence = self.pages.get(row.sequence)?;
            let length = lengths.entry(row.sequence).or_insert(sequence.length);
            if row.token as usize >= self.config.vocab_size {
                let vocab_size = self.config.vocab_size;
                return Err(ModelError::Token {
                    token: row.token,
                    vocab_size,
                });
            }
            if row.position as usize != *length {
                let (sequence, length, position) = (row.sequence, *length, row.position);
                return Err(ModelError::Position {
                    sequence,
                    length,
                    position,
                });
            }
            *length += 1;
            if *length > sequence.capacity {
                let (needed, capacity) = (*length, sequence.capacity);
                return Err(ModelError::Capacity {
                    sequence: row.sequence,
                    needed,
                    capacity,
                });
            }
        }
        Ok(lengths)
    }

    fn key_of(&self, rows: &[StepRow]) -> Result<StepKey, ModelError> {
        let longest = rows
            .iter()
            .map(|r| r.position as usize + 1)
            .max()
            .unwrap_or(1);
        let one_sequence = rows.iter().all(|r| r.sequence == rows[0].sequence);
        let prefill_slot = if one_sequence && rows.len() >= PREFILL_ROWS {
            Some(self.pages.get(rows[0].sequence)?.slot)
        } else {
            None
        };
        Ok(StepKey {
            rows: rows.len(),
            outputs: rows
                .iter()
                .filter(|r| r.output != RowOutput::Nothing)
                .count(),
            // Powers of two, so that a growing context meets few keys.
            splits: if prefill_slot.is_some() && !self.config.attends_by_rows() {
                1
            } else {
                longest.div_ceil(SPLIT).next_power_of_two()
            },
            prefill_slot,
            segments: if self.forgetting.recurrent {
                segments_of(rows).len()
            } else {
                0
            },
        })
    }

    fn context_of(&self, key: StepKey) -> Result<StepContext<'_>, ModelError> {
        let rows = key.rows as u64;
        let [full_slot, window_slot] = match key.prefill_slot {
            Some(slot) => self.tables.rows(slot)?.map(Some),
            None => [None, None],
        };
        let part = |tensor: &Tensor, length: u64| failed(tensor.slice(0, 0..length));
        let n = key.segments as u64;
        let segments = match n {
            0 => None,
            n => Some(Segments {
                of: part(&self.inputs.segment_of, rows)?,
                starts: part(&self.inputs.segment_starts, n + 1)?,
                from: part(&self.inputs.state_from, n)?,
                to: part(&self.inputs.state_to, n)?,
            }),
        };
        Ok(StepContext {
            key,
            segments,
            positions: failed(self.inputs.positions.slice(0, 0..rows))?,
            sequences: failed(self.inputs.sequences.slice(0, 0..rows))?,
            tables: &self.tables,
            full_slot,
            window_slot,
            norm_eps: self.config.norm_eps,
        })
    }

    /// Runs all rows without moving any sequence's state; [`Prepared::commit`] moves it.
    pub fn prepare(&mut self, rows: &[StepRow]) -> Result<Prepared<'_>, ModelError> {
        let mut lengths = BTreeMap::new();
        let mut results = Vec::new();
        if !rows.is_empty() {
            lengths = self.check(rows)?;
            let (gathered, order) = gathered(rows);
            let key = self.key_of(&gathered)?;
            self.recorded(key)?;
            self.write_inputs(&gathered)?;
            for (id, length) in &lengths {
                self.pages.get_mut(*id)?.begin(*length);
            }
            failed(self.steps[&key].recording.replay())?;
            failed(self.device.synchronize())?;
            let found = self.read_results(&gathered, key)?;
            let wanted = order
                .into_iter()
                .filter(|&i| rows[i].output != RowOutput::Nothing);
            let mut placed: Vec<(usize, RowResult)> = wanted.zip(found).collect();
            placed.sort_by_key(|(i, _)| *i);
            results = placed.into_iter().map(|(_, result)| result).collect();
        }
        Ok(Prepared {
            pages: &mut self.pages,
            lengths,
            results,
        })
    }

    /// The recorded step of a key. A larger arena drops every recording, whose addresses it
    /// would leave behind.
    fn recorded(&mut self, key: StepKey) -> Result<(), ModelError> {
        if self.steps.contains_key(&key) {
            return Ok(());
        }
        let (placed, logits) = self.planned(key)?;
        let needed = placed.arena_bytes();
        if self.arena.as_ref().is_none_or(|a| a.elements() < needed) {
            failed(self.device.synchronize())?;
            self.steps.clear();
            self.step_order.clear();
            self.arena = None;
            self.arena = Some(failed(Tensor::empty(&self.device, Scalar::U8, &[needed]))?);
        }
        let Some(arena) = &self.arena else {
            return Err(ModelError::Device("the activation arena is missing".into()));
        };
        let launches = placed.record(&self.device, arena)?;
        let logits = logits
            .map(|logits| placed.tensor(arena, &logits))
            .transpose()?;
        let recording = failed(self.device.record(&launches))?;
        if self.step_order.len() >= MAX_STEPS {
            let oldest = self.step_order.remove(0);
            self.steps.remove(&oldest);
        }
        self.steps.insert(key, RecordedStep { recording, logits });
        self.step_order.push(key);
        Ok(())
    }

    fn write_inputs(&self, rows: &[StepRow]) -> Result<(), ModelError> {
        let max = self.options.max_step_rows;
        let mut words = vec![0u32; 8 * max + 1];
        let mut output = 0;
        for (i, row) in rows.iter().enumerate() {
            words[i] = row.token;
            words[max + i] = row.position;
            words[2 * max + i] = self.pages.get(row.sequence)?.slot;
            if row.output != RowOutput::Nothing {
                words[3 * max + output] = i as u32;
                output += 1;
            }
        }
        if self.forgetting.recurrent {
            for (segment, (id, range)) in segments_of(rows).into_iter().enumerate() {
                let (from, to) = self.pages.get(id)?.state_slots(self.zero_slot);
                words[4 * max + range.start..4 * max + range.end].fill(segment as u32);
                words[5 * max + segment] = from;
                words[6 * max + segment] = to;
                words[7 * max + segment + 1] = range.end as u32;
            }
        }
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        failed(self.inputs.all.write_bytes(&bytes))
    }

    fn read_results(&self, rows: &[StepRow], key: StepKey) -> Result<Vec<RowResult>, ModelError> {
        let wanted: Vec<_> = rows
            .iter()
            .filter(|r| r.output != RowOutput::Nothing)
            .collect();
        let max = self.options.max_step_rows;
        let bytes = failed(self.results.all.to_bytes())?;
        let word = |i: usize| {
            u32::from_le_bytes([
                bytes[4 * i],
                bytes[4 * i + 1],
                bytes[4 * i + 2],
                bytes[4 * i + 3],
            ])
        };
        let logits = if wanted.iter().any(|r| r.output == RowOutput::Logits) {
            match &self.steps[&key].logits {
                Some(logits) => failed(logits.to_f32())?,
                None => Vec::new(),
            }
        } else {
            Vec::new()
        };
        let vocab = self.config.vocab_size;
        let result = |(i, row): (usize, &&StepRow)| {
            let largest = f32::from_bits(word(max + i));
            if !largest.is_finite() {
                return RowResult::Failed(format!("the largest logit is {largest}"));
            }
            match row.output {
                RowOutput::Logits => RowResult::Logits(logits[i * vocab..(i + 1) * vocab].to_vec()),
                RowOutput::Greedy | RowOutput::Nothing => RowResult::Token(word(i)),
            }
        };
        Ok(wanted.iter().enumerate().map(result).collect())
    }
}

impl Model for DeviceModel {
    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn context_length(&self) -> usize {
        self.config.context_length
    }

    fn max_step_rows(&self) -> usize {
        self.options.max_step_rows
    }

    fn open_sequence(&mut self, capacity: usize) -> Result<SequenceId, ModelError> {
        let id = self.pages.open(capacity)?;
        let sequence = self.pages.get(id)?;
        let row = self.tables.assign(sequence.slot, &sequence.blocks);
        if let Err(error) = row {
            self.pages.close(id);
            return Err(error);
        }
        Ok(id)
    }

    fn truncate_sequence(
        &mut self,
        sequence: SequenceId,
        length: usize,
    ) -> Result<usize, ModelError> {
        let layers = self.forgetting;
        Ok(self.pages.get_mut(sequence)?.truncate(length, layers))
    }

    fn close_sequence(&mut self, sequence: SequenceId) {
        self.pages.close(sequence);
    }

    fn step(&mut self, rows: &[StepRow]) -> Result<Vec<RowResult>, ModelError> {
        Ok(self.prepare(rows)?.commit())
    }
}

/// A step that has run and has not joined its sequences. Dropping it abandons it: every
/// sequence is as it was.
#[must_use = "a step that is not committed leaves no trace"]
pub struct Prepared<'m> {
    pages: &'m mut PageTable,
    lengths: BTreeMap<SequenceId, usize>,
    results: Vec<RowResult>,
}

impl Prepared<'_> {
    /// One result for each row that wanted one, in the rows' order.
    pub fn results(&self) -> &[RowResult] {
        &self.results
    }

    /// Moves the state of every sequence of the step, together.
    pub fn commit(self) -> Vec<RowResult> {
        for (id, length) in self.lengths {
            if let Ok(sequence) = self.pages.get_mut(id) {
                sequence.commit(length);
            }
        }
        self.results
    }
}

/// The rows with those of each sequence side by side, sequences in the order of their first row,
/// and the place of each in `rows`.
fn gathered(rows: &[StepRow]) -> (Vec<StepRow>, Vec<usize>) {
    let mut first: HashMap<SequenceId, usize> = HashMap::new();
    for (i, row) in rows.iter().enumerate() {
        first.entry(row.sequence).or_insert(i);
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&i| (first[&rows[i].sequence], i));
    (order.iter().map(|&i| rows[i]).collect(), order)
}

/// The runs of rows of one sequence, of rows that [`gathered`] gave.
fn segments_of(rows: &[StepRow]) -> Vec<(SequenceId, std::ops::Range<usize>)> {
    let mut segments: Vec<(SequenceId, std::ops::Range<usize>)> = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        match segments.last_mut() {
            Some((id, range)) if *id == row.sequence => range.end = i + 1,
            _ => segments.push((row.sequence, i..i + 1)),
        }
    }
    segments
}
