//! A Llama on a device: [`LlamaModel`] implements [`Model`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Device, Graph as Recording, Tensor};

use super::matrix::{Matrix, Recorder, failed, upload_vector};
use super::pages::PageTable;
use super::step::{Graph, SPLIT, StepKey, StepTensors, arena_bytes};
use crate::catalogue;
use crate::checkpoint::Checkpoint;
use crate::config::LlamaConfig;
use crate::model::{Model, ModelError, RowOutput, RowResult, SequenceId, StepRow};
use crate::weights::LlamaWeights;

/// Positions of a cache block.
const BLOCK_SIZE: usize = 32;
/// Rows of one sequence from which the tiled attention is taken.
const PREFILL_ROWS: usize = 16;
/// Recorded steps that are kept; the oldest goes first.
const MAX_STEPS: usize = 64;

/// How a model is set up on a device.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Type of activations and cache: `f32`, `f16` or `bf16`.
    pub dtype: Scalar,
    /// Sequences that may be open at once.
    pub max_sequences: usize,
    /// Most rows of one step.
    pub max_step_rows: usize,
    /// Positions of the cache over all sequences; at most the context of each.
    pub cache_positions: usize,
}

/// Weights on the device.
pub struct Weights {
    /// `[vocab, hidden]`.
    pub embedding: Matrix,
    /// Blocks in order.
    pub layers: Vec<LayerWeights>,
    /// `[hidden]`.
    pub final_norm: Tensor,
    /// `[vocab, hidden]`; `None` where the embedding serves.
    output: Option<Matrix>,
    /// Radians a position, one a rotated pair.
    pub frequencies: Tensor,
}

impl Weights {
    /// The vocabulary projection.
    pub fn output(&self) -> &Matrix {
        self.output.as_ref().unwrap_or(&self.embedding)
    }
}

/// Weights of one block on the device.
pub struct LayerWeights {
    /// `[hidden]`.
    pub attention_norm: Tensor,
    /// `[heads * head_dim, hidden]`.
    pub query: Matrix,
    /// `[kv_heads * head_dim, hidden]`.
    pub key: Matrix,
    /// `[kv_heads * head_dim, hidden]`.
    pub value: Matrix,
    /// `[hidden, heads * head_dim]`.
    pub attention_output: Matrix,
    /// `[hidden]`.
    pub feed_forward_norm: Tensor,
    /// `[intermediate, hidden]`.
    pub gate: Matrix,
    /// `[intermediate, hidden]`.
    pub up: Matrix,
    /// `[hidden, intermediate]`.
    pub down: Matrix,
}

/// Keys and values of all sequences.
pub struct Cache {
    /// One a layer: `[blocks, kv_heads, block_size, head_dim]`.
    pub keys: Vec<Tensor>,
    /// As `keys`.
    pub values: Vec<Tensor>,
    /// `[sequences, blocks a sequence]`.
    pub block_table: Tensor,
}

/// What the host writes before a step; one upload.
pub struct Inputs {
    all: Tensor,
    /// `[max_step_rows]`.
    pub tokens: Tensor,
    /// `[max_step_rows]`.
    pub positions: Tensor,
    /// `[max_step_rows]`: rows of the block table.
    pub sequences: Tensor,
    /// `[max_step_rows]`: rows whose logits are wanted.
    pub output_rows: Tensor,
}

/// What the host reads after a step.
pub struct Results {
    all: Tensor,
    /// `[max_step_rows]`: index of the largest logit.
    pub tokens: Tensor,
    /// `[max_step_rows]`: the largest logit, NaN where there is one.
    pub largest: Tensor,
}

struct RecordedStep {
    recording: Box<dyn Recording>,
    tensors: StepTensors,
}

/// A Llama on a device.
pub struct LlamaModel {
    device: Arc<dyn Device>,
    config: LlamaConfig,
    options: EngineOptions,
    weights: Weights,
    cache: Cache,
    inputs: Inputs,
    results: Results,
    arena: Option<Tensor>,
    pages: PageTable,
    steps: HashMap<StepKey, RecordedStep>,
    step_order: Vec<StepKey>,
}

impl LlamaModel {
    /// Uploads a checkpoint and reserves the cache.
    pub fn load(
        device: Arc<dyn Device>,
        checkpoint: &Checkpoint,
        options: EngineOptions,
    ) -> Result<LlamaModel, ModelError> {
        iron_corpus::link();
        let config = checkpoint.config.clone();
        let weights = upload(&device, &config, &checkpoint.weights, options.dtype)?;
        let rows = options.max_step_rows as u64;
        let blocks_a_sequence = config.context_length.div_ceil(BLOCK_SIZE);
        let blocks = options.cache_positions.div_ceil(BLOCK_SIZE).max(1);
        let shape = [
            blocks as u64,
            config.kv_head_count as u64,
            BLOCK_SIZE as u64,
            config.head_dim as u64,
        ];
        let layers = 0..config.layer_count;
        let empty = |_| failed(Tensor::empty(&device, options.dtype, &shape));
        let table_shape = [options.max_sequences as u64, blocks_a_sequence as u64];
        let cache = Cache {
            keys: layers.clone().map(empty).collect::<Result<_, _>>()?,
            values: layers.map(empty).collect::<Result<_, _>>()?,
            block_table: failed(Tensor::zeros(&device, Scalar::U32, &table_shape))?,
        };
        let all = failed(Tensor::zeros(&device, Scalar::U32, &[4 * rows]))?;
        let part = |i: u64| failed(all.slice(0, i * rows..(i + 1) * rows));
        let inputs = Inputs {
            tokens: part(0)?,
            positions: part(1)?,
            sequences: part(2)?,
            output_rows: part(3)?,
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
        let pages = PageTable::new(blocks, BLOCK_SIZE, options.max_sequences, blocks_a_sequence);
        Ok(LlamaModel {
            device,
            config,
            options,
            weights,
            cache,
            inputs,
            results,
            arena: None,
            pages,
            steps: HashMap::new(),
            step_order: Vec::new(),
        })
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
            splits: if prefill_slot.is_some() {
                1
            } else {
                longest.div_ceil(SPLIT).next_power_of_two()
            },
            prefill_slot,
        })
    }

    /// The recorded step of a key. A larger arena drops every recording, whose addresses it
    /// would leave behind.
    fn recorded(&mut self, key: StepKey) -> Result<(), ModelError> {
        if self.steps.contains_key(&key) {
            return Ok(());
        }
        let needed = arena_bytes(&self.config, key, self.options.dtype);
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
        let graph = Graph {
            config: &self.config,
            weights: &self.weights,
            cache: &self.cache,
            inputs: &self.inputs,
            results: &self.results,
            arena,
            dtype: self.options.dtype,
        };
        // One thread an output keeps a CPU core's chain of sums in registers; a GPU needs the
        // threads of a subgroup side by side to read rows in whole cache lines.
        let lanes = if self.device.backend() == iron_runtime::Backend::Cpu {
            1
        } else {
            32
        };
        let mut recorder = Recorder::new(&self.device, self.options.dtype, lanes);
        let (launches, tensors) = graph.record(&mut recorder, key)?;
        let recording = failed(self.device.record(&launches))?;
        if self.step_order.len() >= MAX_STEPS {
            let oldest = self.step_order.remove(0);
            self.steps.remove(&oldest);
        }
        self.steps.insert(key, RecordedStep { recording, tensors });
        self.step_order.push(key);
        Ok(())
    }

    fn write_inputs(&self, rows: &[StepRow]) -> Result<(), ModelError> {
        let max = self.options.max_step_rows;
        let mut words = vec![0u32; 4 * max];
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
            failed(self.steps[&key].tensors.logits.to_f32())?
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

fn upload(
    device: &Arc<dyn Device>,
    config: &LlamaConfig,
    weights: &LlamaWeights,
    dtype: Scalar,
) -> Result<Weights, ModelError> {
    let matrix = |tensor: &catalogue::Tensor| Matrix::upload(device, tensor, dtype);
    let vector = |tensor: &catalogue::Tensor| upload_vector(device, tensor, dtype);
    let layer = |layer: &crate::weights::LlamaLayer| -> Result<LayerWeights, ModelError> {
        Ok(LayerWeights {
            attention_norm: vector(&layer.attention_norm)?,
            query: matrix(&layer.query)?,
            key: matrix(&layer.key)?,
            value: matrix(&layer.value)?,
            attention_output: matrix(&layer.attention_output)?,
            feed_forward_norm: vector(&layer.feed_forward_norm)?,
            gate: matrix(&layer.gate)?,
            up: matrix(&layer.up)?,
            down: matrix(&layer.down)?,
        })
    };
    let frequencies = config.rope.inverse_frequencies();
    let shape = [frequencies.len() as u64];
    Ok(Weights {
        embedding: matrix(&weights.embedding)?,
        layers: weights.layers.iter().map(layer).collect::<Result<_, _>>()?,
        final_norm: vector(&weights.final_norm)?,
        output: if config.tied_embeddings {
            None
        } else {
            Some(matrix(&weights.output)?)
        },
        frequencies: failed(Tensor::from_f32(device, Scalar::F32, &shape, &frequencies))?,
    })
}

impl Model for LlamaModel {
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
        let slot = u64::from(sequence.slot);
        let mut bytes: Vec<u8> = sequence
            .blocks
            .iter()
            .flat_map(|b| b.to_le_bytes())
            .collect();
        let table = &self.cache.block_table;
        bytes.resize(table.shape()[1] as usize * 4, 0);
        let row =
            failed(table.slice(0, slot..slot + 1)).and_then(|row| failed(row.write_bytes(&bytes)));
        if let Err(error) = row {
            self.pages.close(id);
            return Err(error);
        }
        Ok(id)
    }

    fn truncate_sequence(&mut self, sequence: SequenceId, length: usize) -> Result<(), ModelError> {
        let state = self.pages.get_mut(sequence)?;
        state.length = state.length.min(length);
        Ok(())
    }

    fn close_sequence(&mut self, sequence: SequenceId) {
        self.pages.close(sequence);
    }

    fn step(&mut self, rows: &[StepRow]) -> Result<Vec<RowResult>, ModelError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let lengths = self.check(rows)?;
        let key = self.key_of(rows)?;
        self.recorded(key)?;
        self.write_inputs(rows)?;
        failed(self.steps[&key].recording.replay())?;
        failed(self.device.synchronize())?;
        let results = self.read_results(rows, key)?;
        for (id, length) in lengths {
            self.pages.get_mut(id)?.length = length;
        }
        Ok(results)
    }
}
