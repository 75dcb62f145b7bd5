//! Attention on a device: projections, norms and rotation of heads, the cache, the output.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Device, Tensor};

use super::latent::upload_frequencies;
use super::matrix::{Family, Matrix, failed, upload_vector};
use super::plan::{Activation, Planner};
use super::state::{BLOCK_SIZE, CacheShape};
use super::step::StepContext;
use crate::config::Attention;
use crate::model::ModelError;
use crate::rope::{Rope, RopeLayout};
use crate::weights::{AttentionWeights, WeightMatrix, WeightVector};

/// One attention layer: weights, and the keys and values of all sequences.
pub struct AttentionBlock {
    config: Attention,
    query: Matrix,
    /// `None` where another layer's keys and values are read.
    key: Option<Matrix>,
    /// `None` where values are the key projection's output.
    value: Option<Matrix>,
    output: Matrix,
    gate: Option<Matrix>,
    query_norm: Option<Tensor>,
    key_norm: Option<Tensor>,
    /// Ones, where values are normalised.
    value_norm: Option<Tensor>,
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
    /// Uploads the weights and reserves the cache, or takes that of the layer `owner`.
    pub fn load(
        device: &Arc<dyn Device>,
        config: &Attention,
        weights: &AttentionWeights,
        dtype: Scalar,
        cache: &CacheShape,
        owner: Option<&Self>,
    ) -> Result<Self, ModelError> {
        let matrix = |matrix: &WeightMatrix| Matrix::upload(device, matrix, dtype);
        let present = |weights: &WeightMatrix| match weights.rows() {
            0 => Ok(None),
            _ => matrix(weights).map(Some),
        };
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
            Some(rope) => Some(upload_frequencies(device, rope, cache)?),
            None => None,
        };
        let blocks = match config.window {
            Some(_) => cache.window_blocks(),
            None => cache.blocks,
        };
        let shape = [blocks, config.kv_head_count, BLOCK_SIZE, config.head_dim];
        let shape = shape.map(|extent| extent as u64);
        let (keys, values) = match owner {
            Some(owner) => (owner.keys.clone(), owner.values.clone()),
            None => (
                failed(Tensor::empty(device, dtype, &shape))?,
                failed(Tensor::empty(device, dtype, &shape))?,
            ),
        };
        let ones = vec![1.0; config.head_dim];
        let ones = || Tensor::from_f32(device, dtype, &[config.head_dim as u64], &ones);
        Ok(Self {
            query: matrix(&weights.query)?,
            key: present(&weights.key)?,
            value: present(&weights.value)?,
            output: matrix(&weights.output)?,
            gate: weights.gate.as_ref().map(matrix).transpose()?,
            query_norm: weights.query_norm.as_ref().map(vector).transpose()?,
            key_norm: weights.key_norm.as_ref().map(vector).transpose()?,
            value_norm: config.value_norm.then(ones).map(failed).transpose()?,
            biases: match &weights.biases {
                Some([q, k, v]) => Some([vector(q)?, vector(k)?, vector(v)?]),
                None => None,
            },
            output_bias: weights.output_bias.as_ref().map(vector).transpose()?,
            sinks,
            frequencies,
            keys,
            values,
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
        let (table, slot_table) = match self.config.window {
            Some(_) => (&step.tables.window, &step.window_slot),
            None => (&step.tables.full, &step.full_slot),
        };
        // All products of `x` first: those that follow one another share its rounding.
        let query = planner.projected(&self.query, x);
        let [key, value] =
            [&self.key, &self.value].map(|w| w.as_ref().map(|w| planner.projected(w, x)));
        let query = self.biased(planner, query, 0);
        let query = self.normed_heads(planner, step, query, self.query_norm.as_ref());
        match key {
            Some(key) => {
                let key = self.biased(planner, key, 1);
                let value = match value {
                    Some(value) => self.biased(planner, value, 2),
                    None => key.clone(),
                };
                let key = self.normed_heads(planner, step, key, self.key_norm.as_ref());
                let value = self.normed_heads(planner, step, value, self.value_norm.as_ref());
                self.rotate(planner, step, [&query, &key]);
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
            }
            None => self.rotate(planner, step, [&query]),
        }
        let attended = planner.activation(query.shape());
        match slot_table {
            Some(pages) if !self.config.attends_by_rows() => {
                self.prefill(planner, step, &query, pages, &attended);
            }
            _ => self.decode(planner, step, &query, table, &attended),
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

    /// A projection with its bias, by its place among them, if there are any.
    fn biased(&self, planner: &mut Planner, projected: Activation, place: usize) -> Activation {
        match &self.biases {
            Some(biases) => planner.biased(&projected, &biases[place]),
            None => projected,
        }
    }

    /// A projection cut into heads, `[rows, heads, head_dim]`, each normalised if there is a norm,
    /// or all together if that is as wide.
    fn normed_heads(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        projected: Activation,
        norm: Option<&Tensor>,
    ) -> Activation {
        let shape = projected.shape().to_vec();
        let normed = match norm {
            Some(norm) => {
                let parts = projected.rows_of(norm.elements());
                planner.normed(&parts, norm, step.norm_eps).reshape(&shape)
            }
            None => projected,
        };
        normed.split_last(self.config.head_dim as u64)
    }

    fn rotate<const N: usize>(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        rotated: [&Activation; N],
    ) {
        if let (Some(rope), Some(frequencies)) = (&self.config.rope, &self.frequencies) {
            planner.rotate(rope, frequencies, &step.positions, rotated);
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

    /// Bytes of the cache; none where it is another layer's.
    pub fn cache_bytes(&self) -> u64 {
        if self.config.shares_cache_of.is_some() {
            return 0;
        }
        let bytes = u64::from(self.keys.scalar().bytes());
        2 * self.keys.elements() * bytes
    }
}

impl Planner {
    /// Rotates heads `[rows, heads, size]` in place by their rows' positions.
    pub fn rotate<const N: usize>(
        &mut self,
        rope: &Rope,
        frequencies: &Tensor,
        positions: &Tensor,
        rotated: [&Activation; N],
    ) {
        let kernel = match rope.layout {
            RopeLayout::HalfSplit => "rope_half",
            RopeLayout::Interleaved => "rope_interleaved",
        };
        for heads in rotated {
            let operands = [
                heads.into(),
                positions.into(),
                frequencies.into(),
                rope.magnitude().into(),
            ];
            self.launch(Family::Rope, kernel, "", operands);
        }
    }
}
