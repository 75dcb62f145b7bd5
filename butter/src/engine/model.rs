//! A model on a device: [`DeviceModel`] implements [`Model`].

mod poison;

pub use poison::StateUsage;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use iron_corpus::attention::most_splits;
use iron_ir::Scalar;
use iron_runtime::{Device, Graph as Recording, RecordedLaunch, Tensor};

use super::exchange::{Exchange, SegmentPlace};
use super::matrix::failed;
use super::pages::{Forgetting, PageTable};
use super::plan::{Activation, PlacedStep, Planner, ProductInputs};
use super::route::{PROMPT_ROWS, Route, has_tiles};
use super::state::{BLOCK_SIZE, BlockTables, CacheShape};
use super::step::{Graph, Segments, StepContext, StepKey};
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::model::{Model, ModelCapacity, ModelError, RowOutput, RowResult, SequenceId, StepRow};
use crate::weights::ModelWeights;

/// Rows of a step whose inputs go up in a small buffer: what decodes.
const SMALL_ROWS: usize = 64;
/// Recorded steps that are kept; the oldest goes first. More than a server of 64 sequences meets
/// while their contexts are of a few lengths.
const MAX_STEPS: usize = 256;

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

pub(super) struct RecordedStep {
    pub(super) recording: Box<dyn Recording>,
    pub(super) launches: Vec<RecordedLaunch>,
    /// `[outputs, vocab_size]`, in the activations' type.
    logits: Option<Tensor>,
}

/// A model on a device, of any family.
pub struct DeviceModel {
    pub(super) device: Arc<dyn Device>,
    config: ModelConfig,
    options: EngineOptions,
    graph: Graph,
    forgetting: Forgetting,
    cache: CacheShape,
    zero_slot: u32,
    tables: BlockTables,
    /// For steps of few rows, and for all.
    exchanges: [Exchange; 2],
    route: Route,
    arena: Option<Tensor>,
    pub(super) pages: PageTable,
    pub(super) steps: HashMap<StepKey, RecordedStep>,
    step_order: Vec<StepKey>,
}

impl DeviceModel {
    /// Uploads a checkpoint and reserves the state of all sequences.
    pub fn load(
        device: Arc<dyn Device>,
        checkpoint: &Checkpoint,
        options: EngineOptions,
    ) -> Result<DeviceModel, ModelError> {
        Self::of_weights(device, &checkpoint.config, &checkpoint.weights, options)
    }

    /// As [`Self::load`], of weights that are at hand.
    pub fn of_weights(
        device: Arc<dyn Device>,
        config: &ModelConfig,
        weights: &ModelWeights,
        options: EngineOptions,
    ) -> Result<DeviceModel, ModelError> {
        iron_corpus::link();
        let config = config.clone();
        let (sequences, step_rows) = (options.max_sequences, options.max_step_rows);
        let cache = CacheShape::new(&config, options.cache_positions, sequences, step_rows);
        let graph = Graph::load(&device, &config, weights, options.dtype, &cache)?;
        let mut model = DeviceModel {
            tables: BlockTables::new(&device, &cache)?,
            pages: PageTable::new(
                cache.blocks,
                BLOCK_SIZE,
                sequences,
                cache.blocks_a_sequence,
                cache.snapshots,
            ),
            forgetting: Forgetting {
                ring: config
                    .widest_window()
                    .filter(|_| cache.ring_blocks < cache.blocks_a_sequence)
                    .map(|window| (window, cache.ring_blocks * BLOCK_SIZE)),
                recurrent: config.is_recurrent(),
            },
            zero_slot: cache.zero_slot(),
            cache,
            config,
            options,
            graph,
            exchanges: [
                Exchange::new(&device, step_rows.min(SMALL_ROWS))?,
                Exchange::new(&device, step_rows)?,
            ],
            route: Route::of(&*device),
            device,
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
        let prompt_rows = PROMPT_ROWS.min(step_rows);
        let prompt = (prompt_rows, prompt_rows == PROMPT_ROWS);
        let decoding: &[usize] = match self.route.shares_weights(self.options.dtype) {
            // One of each instance of the products of few rows.
            true => &[64, 32, 16, 1],
            false => &[1],
        };
        let decoding = decoding.iter().filter(|&&rows| rows <= step_rows);
        // The larger arena first: a larger one would drop the steps recorded before.
        for (rows, is_prompt) in [prompt].into_iter().chain(decoding.map(|&n| (n, false))) {
            // Of several splits, so that what joins them is compiled too.
            let reach = 512;
            self.recorded(StepKey {
                rows,
                outputs: 1,
                splits: if is_prompt { 1 } else { splits_of(reach) },
                reach,
                is_prompt,
                segments: usize::from(self.forgetting.recurrent),
                is_apart: !is_prompt,
                advances: false,
            })?;
        }
        Ok(())
    }

    /// Whether a layer keeps a state that has no positions.
    pub(super) fn is_recurrent(&self) -> bool {
        self.forgetting.recurrent
    }

    /// Where it runs.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The route that steps take.
    pub fn route(&self) -> Route {
        self.route
    }

    /// Takes another route from the next step on, and compiles its kernels.
    pub fn set_route(&mut self, route: Route) -> Result<(), ModelError> {
        if route == self.route {
            return Ok(());
        }
        failed(self.device.synchronize())?;
        self.steps.clear();
        self.step_order.clear();
        self.route = route;
        self.compile(self.options.max_step_rows)
    }

    pub(super) fn exchange(&self, rows: usize) -> &Exchange {
        &self.exchanges[usize::from(rows > self.exchanges[0].max)]
    }

    /// The step of a key, and its logits.
    fn planned(&self, key: StepKey) -> Result<(PlacedStep, Option<Activation>), ModelError> {
        let product_inputs = self.options.product_inputs;
        let mut planner = Planner::new(self.options.dtype, self.route, product_inputs);
        planner.is_tiled = key.is_prompt && has_tiles(&*self.device, self.options.dtype);
        planner.is_shared = !key.is_prompt && self.route.shares_weights(self.options.dtype);
        let context = self.context_of(key)?;
        let Exchange {
            inputs, results, ..
        } = self.exchange(key.rows);
        let logits = self.graph.plan(&mut planner, &context, inputs, results)?;
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
    pub(super) fn check(
        &self,
        rows: &[StepRow],
    ) -> Result<BTreeMap<SequenceId, usize>, ModelError> {
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

    /// The key of rows that [`groups_of`] put together.
    pub(super) fn key_of(&self, rows: &[StepRow], is_prompt: bool) -> StepKey {
        let longest = rows.iter().map(|r| r.position as usize + 1).max();
        StepKey {
            rows: rows.len(),
            outputs: rows
                .iter()
                .filter(|r| r.output != RowOutput::Nothing)
                .count(),
            splits: match is_prompt && !self.config.attends_by_rows() {
                true => 1,
                false => splits_of(longest.unwrap_or(1)),
            },
            reach: reach_of(longest.unwrap_or(1)),
            is_prompt,
            segments: if self.forgetting.recurrent {
                segments_of(rows).len()
            } else {
                0
            },
            is_apart: segments_of(rows).len() == rows.len(),
            advances: false,
        }
    }

    fn context_of(&self, key: StepKey) -> Result<StepContext<'_>, ModelError> {
        let rows = key.rows as u64;
        let inputs = &self.exchange(key.rows).inputs;
        let part = |tensor: &Tensor, length: u64| failed(tensor.slice(0, 0..length));
        let n = key.segments as u64;
        let segments = match n {
            0 => None,
            n => Some(Segments {
                of: part(&inputs.segment_of, rows)?,
                starts: part(&inputs.segment_starts, n + 1)?,
                from: part(&inputs.state_from, n)?,
                to: part(&inputs.state_to, n)?,
            }),
        };
        Ok(StepContext {
            key,
            segments,
            positions: failed(inputs.positions.slice(0, 0..rows))?,
            sequences: failed(inputs.sequences.slice(0, 0..rows))?,
            tables: &self.tables,
            norm_eps: self.config.norm_eps,
        })
    }

    /// Runs all rows without moving any sequence's state; [`Prepared::commit`] moves it.
    pub fn prepare(&mut self, rows: &[StepRow]) -> Result<Prepared<'_>, ModelError> {
        let mut lengths = BTreeMap::new();
        let mut results = Vec::new();
        if !rows.is_empty() {
            lengths = self.check(rows)?;
            if self.forgetting.recurrent {
                for id in lengths.keys() {
                    self.pages.reserve_state(*id)?;
                }
            }
            let (gathered, order) = gathered(rows);
            let mut found = Vec::new();
            let mut begun = false;
            for (is_prompt, places) in groups_of(&gathered) {
                let part: Vec<StepRow> = places.iter().map(|&i| gathered[i]).collect();
                let key = self.key_of(&part, is_prompt);
                self.recorded(key)?;
                self.write_inputs(&part, is_prompt)?;
                if !std::mem::replace(&mut begun, true) {
                    for (id, length) in &lengths {
                        self.pages.get_mut(*id)?.begin(*length);
                    }
                }
                let step = &self.steps[&key];
                failed(step.recording.replay())?;
                failed(self.device.synchronize())?;
                let vocab = self.config.vocab_size;
                let exchange = self.exchange(key.rows);
                let results = exchange.read(&part, step.logits.as_ref(), vocab)?;
                let wanted = places.iter().map(|&i| order[i]);
                let wanted = wanted.filter(|&i| rows[i].output != RowOutput::Nothing);
                found.extend(wanted.zip(results));
            }
            found.sort_by_key(|(i, _)| *i);
            results = found.into_iter().map(|(_, result)| result).collect();
        }
        Ok(Prepared {
            pages: &mut self.pages,
            lengths,
            results,
        })
    }

    /// The recorded step of a key. A larger arena drops every recording, whose addresses it
    /// would leave behind.
    pub(super) fn recorded(&mut self, key: StepKey) -> Result<(), ModelError> {
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
        let step = RecordedStep {
            recording,
            launches,
            logits,
        };
        self.steps.insert(key, step);
        self.step_order.push(key);
        Ok(())
    }

    pub(super) fn write_inputs(&self, rows: &[StepRow], is_prompt: bool) -> Result<(), ModelError> {
        let slot = |row: &StepRow| Ok(self.pages.get(row.sequence)?.slot);
        let slots = rows
            .iter()
            .map(slot)
            .collect::<Result<Vec<_>, ModelError>>()?;
        if is_prompt {
            let sequence = self.pages.get(rows[0].sequence)?;
            self.tables.choose(sequence.slot, &sequence.blocks)?;
        }
        let mut segments = Vec::new();
        if self.forgetting.recurrent {
            for (id, range) in segments_of(rows) {
                let (from, to) = self.pages.get(id)?.state_slots(self.zero_slot);
                let end = range.end;
                segments.push(SegmentPlace { end, from, to });
            }
        }
        self.exchange(rows.len()).write(rows, &slots, &segments)
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

    fn reusable_length(&self, sequence: SequenceId, length: usize) -> usize {
        let held = self.pages.get(sequence);
        held.map_or(0, |held| held.clone().truncate(length, self.forgetting))
    }

    fn resize_sequence(&mut self, sequence: SequenceId, capacity: usize) -> Result<(), ModelError> {
        let before = self.pages.get(sequence)?.capacity;
        self.pages.resize(sequence, capacity)?;
        let resized = self.pages.get(sequence)?;
        let written = self.tables.assign(resized.slot, &resized.blocks);
        if written.is_err() {
            self.pages.resize(sequence, before)?;
        }
        written
    }

    fn capacity(&self) -> ModelCapacity {
        ModelCapacity {
            sequences: self.options.max_sequences,
            positions: self.pages.positions(),
            block: BLOCK_SIZE,
            recurrent: self.forgetting.recurrent,
        }
    }

    fn close_sequence(&mut self, sequence: SequenceId) {
        self.pages.close(sequence);
    }

    fn step(&mut self, rows: &[StepRow]) -> Result<Vec<RowResult>, ModelError> {
        Ok(self.prepare(rows)?.commit())
    }

    fn advance(
        &mut self,
        rows: &[StepRow],
        steps: usize,
    ) -> Result<Vec<Vec<RowResult>>, ModelError> {
        self.advance_on_device(rows, steps)
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

/// Splits of the attention for rows of up to `longest` positions and heads of any size: a power
/// of two, so that a growing context meets few keys.
pub(super) fn splits_of(longest: usize) -> usize {
    let most = most_splits(longest.try_into().unwrap_or(u32::MAX), u32::MAX);
    most.next_power_of_two() as usize
}

/// [`StepKey::reach`] of rows of up to `longest` positions.
pub(super) fn reach_of(longest: usize) -> usize {
    longest.next_power_of_two().max(64)
}

/// Gathered rows in the steps that they run in, and whether each is a prompt's: a run of
/// [`PROMPT_ROWS`] rows of one sequence has a step of its own, so that its results do not depend
/// on what else runs; all others share one.
fn groups_of(rows: &[StepRow]) -> Vec<(bool, Vec<usize>)> {
    let mut groups = Vec::new();
    let mut others = Vec::new();
    for (_, range) in segments_of(rows) {
        if range.len() >= PROMPT_ROWS {
            groups.push((true, range.collect()));
        } else {
            others.extend(range);
        }
    }
    if !others.is_empty() {
        groups.push((false, others));
    }
    groups
}
