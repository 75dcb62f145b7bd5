//! Attention on a device: projections, norms and rotation of heads, the cache, the output.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Device, Tensor};

use super::matrix::{Family, Matrix, failed, upload_vector};
use super::plan::{Activation, Planner};
use super::state::{BLOCK_SIZE, CacheShape};
use super::step::{HeldState, StepContext};
use crate::config::Attention;
use crate::model::ModelError;
use crate::rope::RopeLayout;
use crate::weights::{AttentionWeights, WeightMatrix, WeightVector};

/// One attention layer: weights, and the keys and values of all sequences.
pub struct AttentionBlock {
    config: Attention,
    query: Matrix,
    key: Matrix,
    value: Matrix,
    output: Matrix,
    gate: Option<Matrix>,
    query_norm: Option<Tensor>,
    key_norm: Option<Tensor>,
    biases: Option<[Tensor; 3]>,
    output_bias: Option<Tensor>,
    /// `[heads]`, minus infinity where there are none.
    sinks: Tensor,
    /// Radians a position, one a rotated pair.
    frequencies: Option<Tensor>,
    /// `[blocks, kv_heads, block_size, head_dim]`.
    keys: Tensor,
    /// As `keys`.
    values: Tensor,
}

impl AttentionBlock {
    /// Uploads the weights and reserves the cache.
    pub fn load(
        device: &Arc<dyn Device>,
        config: &Attention,
        weights: &AttentionWeights,
        dtype: Scalar,
        cache: &CacheShape,
    ) -> Result<Self, ModelError> {
        let matrix = |matrix: &WeightMatrix| Matrix::upload(device, matrix, dtype);
        let vector = |vector: &WeightVector| upload_vector(device, vector, dtype);
        let sinks = match &weights.sinks {
            Some(sinks) => upload_vector(device, sinks, Scalar::F32)?,
            None => {
                let none = vec![f32::NEG_INFINITY; config.head_count];
                let shape = [config.head_count as u64];
                failed(Tensor::from_f32(device, Scalar::F32, &shape, &none))?
            }
        };
        let frequencies = match &config.rope {
            Some(rope) => {
                let values = rope.inverse_frequencies(cache.longest_sequence);
                let shape = [values.len() as u64];
                let tensor = Tensor::from_f32(device, Scalar::F32, &shape, &values);
                Some(failed(tensor)?)
            }
            None => None,
        };
        let blocks = match config.window {
            Some(_) => cache.window_blocks(),
            None => cache.blocks,
        };
        let shape = [blocks, config.kv_head_count, BLOCK_SIZE, config.head_dim];
        let shape = shape.map(|extent| extent as u64);
        Ok(Self {
            query: matrix(&weights.query)?,
            key: matrix(&weights.key)?,
            value: matrix(&weights.value)?,
            output: matrix(&weights.output)?,
            gate: weights.gate.as_ref().map(matrix).transpose()?,
            query_norm: weights.query_norm.as_ref().map(vector).transpose()?,
            key_norm: weights.key_norm.as_ref().map(vector).transpose()?,
            biases: match &weights.biases {
                Some([q, k, v]) => Some([vector(q)?, vector(k)?, vector(v)?]),
                None => None,
            },
            output_bias: weights.output_bias.as_ref().map(vector).transpose()?,
            sinks,
            frequencies,
            keys: failed(Tensor::empty(device, dtype, &shape))?,
            values: failed(Tensor::empty(device, dtype, &shape))?,
            config: config.clone(),
        })
    }

    /// Records the layer on normalised rows `x`; gives its output, `[rows, hidden]`.
    pub fn record(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        x: &Activation,
    ) -> Activation {
        let [mut query, mut key, mut value] =
            [&self.query, &self.key, &self.value].map(|w| planner.projected(w, x));
        if let Some(biases) = &self.biases {
            for (projected, bias) in [&mut query, &mut key, &mut value].into_iter().zip(biases) {
                *projected = planner.biased(projected, bias);
            }
        }
        let head_dim = self.config.head_dim as u64;
        for (heads, norm) in [(&mut query, &self.query_norm), (&mut key, &self.key_norm)] {
            if let Some(norm) = norm {
                let shape = heads.shape().to_vec();
                let normed = planner.normed(&heads.rows_of(head_dim), norm, step.norm_eps);
                *heads = normed.reshape(&shape);
            }
        }
        let [query, key, value] = [query, key, value].map(|x| x.split_last(head_dim));
        self.rotate(planner, step, [&query, &key]);

        let (table, slot_table) = match self.config.window {
            Some(_) => (&step.tables.window, &step.window_slot),
            None => (&step.tables.full, &step.full_slot),
        };
        let operands = [
            (&key).into(),
            (&value).into(),
            (&step.positions).into(),
            (&step.sequences).into(),
            table.into(),
            (&self.keys).into(),
            (&self.values).into(),
        ];
        planner.launch(Family::Attention, "kv_append", "", operands);
        let attended = planner.activation(query.shape());
        match slot_table {
            Some(pages) => self.prefill(planner, step, &query, pages, &attended),
            None => self.decode(planner, step, &query, table, &attended),
        }
        let mut attended = attended.rows_of(self.config.query_size() as u64);
        if let Some(gate) = &self.gate {
            let gate = planner.projected(gate, x);
            let gated = planner.activation(attended.shape());
            let operands = [
                attended.flat().into(),
                gate.flat().into(),
                gated.flat().into(),
            ];
            planner.launch(Family::Elementwise, "sigmoid_mul", "", operands);
            attended = gated;
        }
        let output = planner.projected(&self.output, &attended);
        match &self.output_bias {
            Some(bias) => planner.biased(&output, bias),
            None => output,
        }
    }

    fn rotate(&self, planner: &mut Planner, step: &StepContext<'_>, rotated: [&Activation; 2]) {
        let (Some(rope), Some(frequencies)) = (&self.config.rope, &self.frequencies) else {
            return;
        };
        let kernel = match rope.layout {
            RopeLayout::HalfSplit => "rope_half",
            RopeLayout::Interleaved => "rope_interleaved",
        };
        for heads in rotated {
            let operands = [
                heads.into(),
                (&step.positions).into(),
                frequencies.into(),
                rope.magnitude().into(),
            ];
            planner.launch(Family::Rope, kernel, "", operands);
        }
    }

    fn window(&self) -> u32 {
        self.config.window.map_or(u32::MAX, |window| window as u32)
    }

    /// All rows are consecutive positions of one sequence, whose blocks are `pages`.
    fn prefill(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        query: &Activation,
        pages: &Tensor,
        attended: &Activation,
    ) {
        let operands = [
            query.transposed().into(),
            (&self.keys).into(),
            (&self.values).into(),
            (&step.positions).into(),
            pages.into(),
            (&self.sinks).into(),
            attended.transposed().into(),
            self.config.scale.into(),
            self.window().into(),
            self.config.soft_cap.unwrap_or(0.0).into(),
        ];
        let suffix = format!("-HEAD_DIM={}-ROWS=16", self.config.head_dim);
        planner.launch(Family::Attention, "attention_prefill", &suffix, operands);
    }

    /// Each row attends for itself.
    fn decode(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        query: &Activation,
        table: &Tensor,
        attended: &Activation,
    ) {
        let [rows, heads, head_dim] = [0, 1, 2].map(|axis| query.shape()[axis]);
        let splits = step.key.splits as u64;
        let partial = planner.activation_of(Scalar::F32, &[rows, heads, splits, head_dim]);
        let stats = planner.activation_of(Scalar::F32, &[rows, heads, splits, 2]);
        let operands = [
            query.into(),
            (&self.keys).into(),
            (&self.values).into(),
            (&step.positions).into(),
            (&step.sequences).into(),
            table.into(),
            (&partial).into(),
            (&stats).into(),
            self.config.scale.into(),
            self.window().into(),
            self.config.soft_cap.unwrap_or(0.0).into(),
        ];
        let suffix = format!("-HEAD_DIM={head_dim}");
        planner.launch(Family::Attention, "attention_decode", &suffix, operands);
        let operands = [
            (&partial).into(),
            (&stats).into(),
            (&step.positions).into(),
            (&self.sinks).into(),
            attended.into(),
            self.window().into(),
        ];
        planner.launch(Family::Attention, "attention_combine", "", operands);
    }

    /// The cache.
    pub fn held_state(&self) -> HeldState<'_> {
        HeldState::Cache {
            tensors: [&self.keys, &self.values],
            windowed: self.config.window.is_some(),
        }
    }

    /// Bytes of the cache.
    pub fn cache_bytes(&self) -> u64 {
        let bytes = u64::from(self.keys.scalar().bytes());
        2 * self.keys.elements() * bytes
    }
}
