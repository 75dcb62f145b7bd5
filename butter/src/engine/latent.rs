//! Attention over latents on a device, its key and value projections absorbed: queries meet the
//! latents themselves, and outputs leave as sums of them.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Device, Tensor};

use super::matrix::{Family, Matrix, failed, upload_dense, upload_vector};
use super::plan::{Activation, Planner};
use super::state::{BLOCK_SIZE, CacheShape};
use super::step::{HeldState, StepContext};
use crate::config::LatentAttention;
use crate::gguf::DequantiseError;
use crate::model::ModelError;
use crate::rope::Rope;
use crate::weights::{LatentWeights, WeightMatrix};

/// Epsilon of the norms over latents, whatever the model's; the reference's constant.
const LATENT_EPS: f32 = 1e-6;

/// One layer: weights, and the latents and rotated keys of all sequences.
pub struct LatentBlock {
    config: LatentAttention,
    query_down: Option<(Matrix, Tensor)>,
    query: Matrix,
    query_rotated: Matrix,
    latent: Matrix,
    latent_norm: Tensor,
    key_rotated: Matrix,
    /// `[heads, latent_size, key_dim]`.
    key: Tensor,
    /// `[heads, value_dim, latent_size]`.
    value: Tensor,
    output: Matrix,
    /// `[step_rows, heads]`: each row's heads in order, as the products of experts ask for them.
    heads: Tensor,
    /// `[heads]`, minus infinity.
    sinks: Tensor,
    /// Radians a position, one a rotated pair.
    frequencies: Tensor,
    /// `[blocks, 1, block_size, latent_size]`.
    latents: Tensor,
    /// `[blocks, 1, block_size, rotary_dim]`.
    keys: Tensor,
}

impl LatentBlock {
    /// Uploads the weights and reserves the cache.
    pub fn load(
        device: &Arc<dyn Device>,
        config: &LatentAttention,
        weights: &LatentWeights,
        dtype: Scalar,
        cache: &CacheShape,
    ) -> Result<Self, ModelError> {
        let matrix = |matrix: &WeightMatrix| Matrix::upload(device, matrix, dtype);
        let heads = config.head_count as u64;
        let latent = config.latent_size as u64;
        let ids = (0..cache.step_rows).flat_map(|_| 0..config.head_count as u32);
        let ids: Vec<u32> = ids.collect();
        let ids_shape = [cache.step_rows as u64, heads];
        let key = transposed(&weights.key, config)
            .map_err(|error| ModelError::Device(error.to_string()))?;
        let key_shape = [heads, latent, config.key_dim as u64];
        let value_shape = [heads, config.value_dim as u64, latent];
        let pages = |size: usize| {
            let shape = [cache.blocks, 1, BLOCK_SIZE, size].map(|extent| extent as u64);
            failed(Tensor::empty(device, dtype, &shape))
        };
        let no_sinks = vec![f32::NEG_INFINITY; config.head_count];
        Ok(Self {
            query_down: match &weights.query_down {
                Some((down, norm)) => Some((matrix(down)?, upload_vector(device, norm, dtype)?)),
                None => None,
            },
            query: matrix(&weights.query)?,
            query_rotated: matrix(&weights.query_rotated)?,
            latent: matrix(&weights.latent)?,
            latent_norm: upload_vector(device, &weights.latent_norm, dtype)?,
            key_rotated: matrix(&weights.key_rotated)?,
            key: failed(Tensor::from_f32(device, dtype, &key_shape, &key))?,
            value: upload_dense(device, &weights.value, dtype, &value_shape)?,
            output: matrix(&weights.output)?,
            heads: failed(Tensor::from_slice(device, Scalar::U32, &ids_shape, &ids))?,
            sinks: failed(Tensor::from_f32(device, Scalar::F32, &[heads], &no_sinks))?,
            frequencies: upload_frequencies(device, &config.rope, cache)?,
            latents: pages(config.latent_size)?,
            keys: pages(config.rotary_dim)?,
            config: config.clone(),
        })
    }

    /// Records the layer on normalised rows `x`; gives its output, `[rows, hidden]`.
    pub fn record(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        x: &Activation,
    ) -> Result<Activation, ModelError> {
        let config = &self.config;
        let (rows, heads) = (x.shape()[0], config.head_count as u64);
        let (latent_size, rotary) = (config.latent_size as u64, config.rotary_dim as u64);
        let ids = failed(self.heads.slice(0, 0..rows))?;

        let low = match &self.query_down {
            Some((down, norm)) => {
                let low = planner.projected(down, x);
                planner.normed(&low, norm, LATENT_EPS)
            }
            None => x.clone(),
        };
        let query = planner.projected(&self.query, &low);
        let query = query.split_last(config.key_dim as u64);
        let query = planner.expert_products(&self.key, &query, (&ids).into(), [rows, heads]);
        let rotated = planner.projected(&self.query_rotated, &low);
        let rotated = rotated.split_last(rotary);
        let latent = planner.projected(&self.latent, x);
        let latent = planner.normed(&latent, &self.latent_norm, LATENT_EPS);
        let latent = latent.split_last(latent_size);
        let key = planner.projected(&self.key_rotated, x).split_last(rotary);
        planner.rotate(
            &config.rope,
            &self.frequencies,
            &step.positions,
            [&rotated, &key],
        );

        let operands = [
            (&latent).into(),
            (&key).into(),
            (&step.positions).into(),
            (&step.sequences).into(),
            (&step.tables.full).into(),
            (&self.latents).into(),
            (&self.keys).into(),
        ];
        planner.launch(Family::Attention, "kv_append", "", operands);

        let splits = step.key.splits as u64;
        let partial = planner.activation_of(Scalar::F32, &[rows, heads, splits, latent_size]);
        let stats = planner.activation_of(Scalar::F32, &[rows, heads, splits, 2]);
        let pages = |cache: &Tensor, size: u64| {
            failed(cache.reshape(&[cache.shape()[0], BLOCK_SIZE as u64, size]))
        };
        let operands = [
            (&query).into(),
            (&rotated).into(),
            (&pages(&self.latents, latent_size)?).into(),
            (&pages(&self.keys, rotary)?).into(),
            (&step.positions).into(),
            (&step.sequences).into(),
            (&step.tables.full).into(),
            (&partial).into(),
            (&stats).into(),
            config.scale.into(),
        ];
        planner.launch(Family::Latent, "latent_decode", "", operands);
        let attended = planner.activation(&[rows, heads, latent_size]);
        let operands = [
            (&partial).into(),
            (&stats).into(),
            (&step.positions).into(),
            (&self.sinks).into(),
            (&attended).into(),
            u32::MAX.into(),
        ];
        planner.launch(Family::Attention, "attention_combine", "", operands);
        let value = planner.expert_products(&self.value, &attended, (&ids).into(), [rows, heads]);
        let value = value.reshape(&[rows, heads * config.value_dim as u64]);
        Ok(planner.projected(&self.output, &value))
    }

    /// The cache.
    pub fn held_state(&self) -> HeldState<'_> {
        HeldState::Cache {
            tensors: vec![&self.latents, &self.keys],
            windowed: false,
        }
    }

    /// Bytes of the cache.
    pub fn cache_bytes(&self) -> u64 {
        let bytes = u64::from(self.keys.scalar().bytes());
        (self.latents.elements() + self.keys.elements()) * bytes
    }
}

/// Key projections `[heads, key_dim, latent]` as `[heads, latent, key_dim]`.
fn transposed(key: &WeightMatrix, config: &LatentAttention) -> Result<Vec<f32>, DequantiseError> {
    let (rows, columns) = (config.key_dim, config.latent_size);
    let values = key.to_f32()?;
    let mut turned = Vec::with_capacity(values.len());
    for head in values.chunks_exact((rows * columns).max(1)) {
        for column in 0..columns {
            turned.extend((0..rows).map(|row| head[row * columns + column]));
        }
    }
    Ok(turned)
}

/// The angles of a recipe for sequences as long as the cache.
pub fn upload_frequencies(
    device: &Arc<dyn Device>,
    rope: &Rope,
    cache: &CacheShape,
) -> Result<Tensor, ModelError> {
    let values = rope.inverse_frequencies(cache.longest_sequence);
    let shape = [values.len() as u64];
    failed(Tensor::from_f32(device, Scalar::F32, &shape, &values))
}
