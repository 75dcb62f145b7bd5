//! The Llama step: which launch runs at which layer, on which tensors.

use iron_ir::Scalar;
use iron_runtime::Tensor;
use iron_runtime::device::RecordedLaunch;

use super::arena::{ArenaPlan, Slot};
use super::llama::{Cache, Inputs, LayerWeights, Results, Weights};
use super::matrix::{Family, Recorder, arg, f32_arg, failed};
use crate::config::LlamaConfig;
use crate::model::ModelError;
use crate::rope::RopeLayout;

/// Positions that one split of the decode attention covers; the kernel's constant.
pub const SPLIT: usize = 256;

/// What a recorded step is good for. Everything that a launch bakes in and that differs between
/// steps is here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StepKey {
    /// Rows.
    pub rows: usize,
    /// Rows whose logits are wanted.
    pub outputs: usize,
    /// Splits of the attention over the longest context.
    pub splits: usize,
    /// Row of the block table where all rows are consecutive positions of one sequence and the
    /// tiled attention runs; `None` where each row attends for itself.
    pub prefill_slot: Option<u32>,
}

/// Activations of a step, as positions in the arena. Launch numbers are those of one layer; all
/// layers reuse the same tensors.
struct Slots {
    hidden: Slot,
    normed: Slot,
    query: Slot,
    key: Slot,
    value: Slot,
    partial: Slot,
    stats: Slot,
    attended: Slot,
    projected: Slot,
    gate: Slot,
    up: Slot,
    active: Slot,
    selected: Slot,
    logits: Slot,
}

/// Sizes of the activations of a step, in elements.
struct Sizes<'c> {
    config: &'c LlamaConfig,
    key: StepKey,
    element: u64,
}

impl Sizes<'_> {
    fn plan(&self) -> (ArenaPlan, Slots) {
        let rows = self.key.rows as u64;
        let config = self.config;
        let bytes = |columns: usize| rows * columns as u64 * self.element;
        let outputs = |columns: usize| self.key.outputs as u64 * columns as u64 * self.element;
        let splits = if self.key.prefill_slot.is_some() {
            0
        } else {
            self.key.splits as u64
        };
        let cells = rows * config.head_count as u64 * splits;
        let mut plan = ArenaPlan::default();
        // 0 norm, 1 projections, 2 rotation, 3 cache, 4 attention, 5 combination, 6 projection,
        // 7 norm, 8 gate and up, 9 activation, 10 down, 11 the next layer's norm,
        // 12 selection, 13 logits, 14 choice.
        let slots = Slots {
            hidden: plan.declare(bytes(config.hidden_size), 0, 14),
            normed: plan.declare(bytes(config.hidden_size), 0, 12),
            query: plan.declare(bytes(config.query_size()), 1, 5),
            key: plan.declare(bytes(config.kv_size()), 1, 3),
            value: plan.declare(bytes(config.kv_size()), 1, 3),
            partial: plan.declare(cells * config.head_dim as u64 * 4, 4, 5),
            stats: plan.declare(cells * 2 * 4, 4, 5),
            attended: plan.declare(bytes(config.query_size()), 4, 6),
            projected: plan.declare(bytes(config.hidden_size), 6, 11),
            gate: plan.declare(bytes(config.intermediate_size), 8, 9),
            up: plan.declare(bytes(config.intermediate_size), 8, 9),
            active: plan.declare(bytes(config.intermediate_size), 9, 10),
            selected: plan.declare(outputs(config.hidden_size), 12, 13),
            logits: plan.declare(outputs(config.vocab_size), 13, 14),
        };
        (plan, slots)
    }
}

/// Bytes of the arena that a step needs, known before it is recorded.
pub fn arena_bytes(config: &LlamaConfig, key: StepKey, dtype: Scalar) -> u64 {
    Sizes {
        config,
        key,
        element: u64::from(dtype.bytes()),
    }
    .plan()
    .0
    .place()
    .bytes
}

/// What a step is recorded over.
pub struct Graph<'m> {
    /// Config.
    pub config: &'m LlamaConfig,
    /// Weights.
    pub weights: &'m Weights,
    /// Keys and values.
    pub cache: &'m Cache,
    /// Token, position and sequence of each row, and the rows whose logits are wanted.
    pub inputs: &'m Inputs,
    /// Choices that come back.
    pub results: &'m Results,
    /// Bytes, at least [`arena_bytes`].
    pub arena: &'m Tensor,
    /// Type of activations and cache.
    pub dtype: Scalar,
}

/// The tensors of a recorded step that are read back.
pub struct StepTensors {
    /// `[outputs, vocab_size]`, in the activations' type.
    pub logits: Tensor,
}

impl Graph<'_> {
    /// Records every launch of a step.
    pub fn record(
        &self,
        recorder: &mut Recorder<'_>,
        key: StepKey,
    ) -> Result<(Vec<RecordedLaunch>, StepTensors), ModelError> {
        let config = self.config;
        let element = u64::from(self.dtype.bytes());
        let (plan, slots) = Sizes {
            config,
            key,
            element,
        }
        .plan();
        let layout = plan.place();
        let rows = key.rows as u64;
        let tensor = |slot: Slot, scalar: Scalar, shape: &[u64]| {
            let mut view = iron_ir::launch::AsTensorArg::tensor_arg(self.arena);
            view.scalar = scalar;
            view.shape = shape.to_vec();
            view.strides = iron_runtime::contiguous_strides(shape);
            view.offset = layout.offset(slot) / u64::from(scalar.bytes());
            failed(Tensor::from_view(self.arena.device(), view))
        };
        let [hidden_size, feed_forward, vocab] = [
            config.hidden_size as u64,
            config.intermediate_size as u64,
            config.vocab_size as u64,
        ];
        let [heads, kv_heads, head_dim] = [
            config.head_count as u64,
            config.kv_head_count as u64,
            config.head_dim as u64,
        ];
        let splits = key.splits as u64;
        let hidden = tensor(slots.hidden, self.dtype, &[rows, hidden_size])?;
        let normed = tensor(slots.normed, self.dtype, &[rows, hidden_size])?;
        let query = tensor(slots.query, self.dtype, &[rows, heads, head_dim])?;
        let new_key = tensor(slots.key, self.dtype, &[rows, kv_heads, head_dim])?;
        let new_value = tensor(slots.value, self.dtype, &[rows, kv_heads, head_dim])?;
        let attended = tensor(slots.attended, self.dtype, &[rows, heads, head_dim])?;
        let projected = tensor(slots.projected, self.dtype, &[rows, hidden_size])?;
        let gate = tensor(slots.gate, self.dtype, &[rows, feed_forward])?;
        let up = tensor(slots.up, self.dtype, &[rows, feed_forward])?;
        let active = tensor(slots.active, self.dtype, &[rows, feed_forward])?;
        let selected = tensor(
            slots.selected,
            self.dtype,
            &[key.outputs as u64, hidden_size],
        )?;
        let logits = tensor(slots.logits, self.dtype, &[key.outputs as u64, vocab])?;
        let matrix = |t: &Tensor| failed(t.reshape(&[rows, t.elements() / rows.max(1)]));
        let flat = |t: &Tensor| failed(t.reshape(&[t.elements()]));

        let tokens = failed(self.inputs.tokens.slice(0, 0..rows))?;
        let positions = failed(self.inputs.positions.slice(0, 0..rows))?;
        let sequences = failed(self.inputs.sequences.slice(0, 0..rows))?;
        let eps = f32_arg(config.rms_norm_eps);
        let scale = f32_arg(1.0 / (config.head_dim as f32).sqrt());
        let rope = match config.rope.layout {
            RopeLayout::HalfSplit => "rope_half",
            RopeLayout::Interleaved => "rope_interleaved",
        };
        let head_suffix = format!("-HEAD_DIM={head_dim}");

        recorder.gather(&self.weights.embedding, &tokens, &hidden)?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            let LayerWeights {
                attention_norm,
                feed_forward_norm,
                ..
            } = layer;
            if index == 0 {
                let arguments = vec![arg(&hidden), arg(attention_norm), arg(&normed), eps.clone()];
                recorder.launch(Family::Norm, "rms_norm", "", arguments)?;
            } else {
                self.add_norm(recorder, &projected, attention_norm, &hidden, &normed)?;
            }
            recorder.linear(&layer.query, &normed, &matrix(&query)?)?;
            recorder.linear(&layer.key, &normed, &matrix(&new_key)?)?;
            recorder.linear(&layer.value, &normed, &matrix(&new_value)?)?;
            for rotated in [&query, &new_key] {
                let frequencies = &self.weights.frequencies;
                let arguments = vec![arg(rotated), arg(&positions), arg(frequencies)];
                recorder.launch(Family::Rope, rope, "", arguments)?;
            }
            let (keys, values) = (&self.cache.keys[index], &self.cache.values[index]);
            let table = &self.cache.block_table;
            let arguments = vec![
                arg(&new_key),
                arg(&new_value),
                arg(&positions),
                arg(&sequences),
                arg(table),
                arg(keys),
                arg(values),
            ];
            recorder.launch(Family::Attention, "kv_append", "", arguments)?;
            match key.prefill_slot {
                Some(slot) => {
                    let slot = u64::from(slot);
                    let row = failed(table.slice(0, slot..slot + 1))?;
                    let pages = failed(row.reshape(&[row.elements()]))?;
                    let arguments = vec![
                        arg(&failed(query.transpose(0, 1))?),
                        arg(keys),
                        arg(values),
                        arg(&positions),
                        arg(&pages),
                        arg(&failed(attended.transpose(0, 1))?),
                        scale.clone(),
                    ];
                    recorder.launch(
                        Family::Attention,
                        "attention_prefill",
                        &format!("{head_suffix}-ROWS=16"),
                        arguments,
                    )?;
                }
                None => {
                    let cells = [rows, heads, splits, head_dim];
                    let partial = tensor(slots.partial, Scalar::F32, &cells)?;
                    let stats = tensor(slots.stats, Scalar::F32, &[rows, heads, splits, 2])?;
                    let arguments = vec![
                        arg(&query),
                        arg(keys),
                        arg(values),
                        arg(&positions),
                        arg(&sequences),
                        arg(table),
                        arg(&partial),
                        arg(&stats),
                        scale.clone(),
                    ];
                    recorder.launch(
                        Family::Attention,
                        "attention_decode",
                        &head_suffix,
                        arguments,
                    )?;
                    let arguments =
                        vec![arg(&partial), arg(&stats), arg(&positions), arg(&attended)];
                    recorder.launch(Family::Attention, "attention_combine", "", arguments)?;
                }
            }
            recorder.linear(&layer.attention_output, &matrix(&attended)?, &projected)?;
            self.add_norm(recorder, &projected, feed_forward_norm, &hidden, &normed)?;
            recorder.linear(&layer.gate, &normed, &gate)?;
            recorder.linear(&layer.up, &normed, &up)?;
            let arguments = vec![arg(&flat(&gate)?), arg(&flat(&up)?), arg(&flat(&active)?)];
            recorder.launch(Family::Elementwise, "silu_mul", "", arguments)?;
            recorder.linear(&layer.down, &active, &projected)?;
        }
        if key.outputs > 0 {
            self.add_norm(
                recorder,
                &projected,
                &self.weights.final_norm,
                &hidden,
                &normed,
            )?;
            let outputs = key.outputs as u64;
            let rows_of = failed(self.inputs.output_rows.slice(0, 0..outputs))?;
            let arguments = vec![arg(&normed), arg(&rows_of), arg(&selected)];
            recorder.launch(Family::Layout, "select_rows", "", arguments)?;
            recorder.linear(self.weights.output(), &selected, &logits)?;
            let tokens = failed(self.results.tokens.slice(0, 0..outputs))?;
            recorder.launch(
                Family::Reduce,
                "argmax_rows",
                "",
                vec![arg(&logits), arg(&tokens)],
            )?;
            let largest = failed(self.results.largest.slice(0, 0..outputs))?;
            recorder.launch(
                Family::Reduce,
                "max_rows",
                "",
                vec![arg(&logits), arg(&largest)],
            )?;
        }
        Ok((
            std::mem::take(&mut recorder.launches),
            StepTensors { logits },
        ))
    }

    /// `hidden += x`, then `normed = norm(hidden) * w`.
    fn add_norm(
        &self,
        recorder: &mut Recorder<'_>,
        x: &Tensor,
        w: &Tensor,
        hidden: &Tensor,
        normed: &Tensor,
    ) -> Result<(), ModelError> {
        let eps = f32_arg(self.config.rms_norm_eps);
        let arguments = vec![arg(x), arg(w), arg(hidden), arg(normed), eps];
        recorder.launch(Family::Norm, "add_rms_norm", "", arguments)
    }
}
