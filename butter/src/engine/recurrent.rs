//! Layers with a state on a device: gated delta nets, Mamba-2 blocks, gated convolutions.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Backend, Device, Tensor};

use super::matrix::{Family, Matrix, failed, upload_dense, upload_vector};
use super::plan::{Activation, Planner};
use super::route::has_large_tiles;
use super::state::CacheShape;
use super::step::{HeldState, Segments, StepContext};
use crate::config::{GatedDelta, Mamba2, ShortConvolution};
use crate::model::ModelError;
use crate::weights::{
    GatedDeltaWeights, Mamba2Weights, ShortConvolutionWeights, WeightMatrix, WeightVector,
};

/// Added to the square of a head's length before the root; the reference's constant.
const HEAD_EPS: f32 = 1e-6;

/// A short convolution and the rows before a step that it still sees.
struct Convolution {
    /// `[channels, width]`.
    weights: Tensor,
    /// `[channels]`, zeros where there is none.
    bias: Tensor,
    /// `[slots, width - 1, channels]`.
    history: Tensor,
}

impl Convolution {
    fn load(
        device: &Arc<dyn Device>,
        weights: &WeightMatrix,
        bias: Option<&WeightVector>,
        [channels, width]: [usize; 2],
        dtype: Scalar,
        cache: &CacheShape,
    ) -> Result<Self, ModelError> {
        let (channels, width) = (channels as u64, width as u64);
        let shape = [cache.state_slots() as u64, width - 1, channels];
        Ok(Self {
            weights: upload_dense(device, weights, dtype, &[channels, width])?,
            bias: match bias {
                Some(bias) => upload_vector(device, bias, dtype)?,
                None => failed(Tensor::zeros(device, dtype, &[channels]))?,
            },
            history: failed(Tensor::zeros(device, dtype, &shape))?,
        })
    }

    /// The convolution of rows `x`, with SiLU where `activated`.
    fn record(
        &self,
        planner: &mut Planner,
        segments: &Segments,
        x: &Activation,
        activated: bool,
    ) -> Activation {
        let y = planner.activation(x.shape());
        let operands = [
            x.into(),
            (&self.weights).into(),
            (&self.bias).into(),
            (&self.history).into(),
            (&segments.of).into(),
            (&segments.starts).into(),
            (&segments.from).into(),
            (&y).into(),
            u32::from(activated).into(),
        ];
        planner.launch(Family::Recurrent, "causal_conv", "", operands);
        let operands = [
            x.into(),
            (&segments.starts).into(),
            (&segments.from).into(),
            (&segments.to).into(),
            (&self.history).into(),
        ];
        planner.launch(Family::Recurrent, "conv_history", "", operands);
        y
    }
}

/// What a recurrent layer keeps of every sequence, and the convolution before it.
struct RecurrentState {
    convolution: Convolution,
    /// `[slots, ..]`, f32.
    states: Tensor,
}

impl RecurrentState {
    /// Uploads the convolution and reserves states of `shape` each.
    fn load(
        device: &Arc<dyn Device>,
        (weights, bias): (&WeightMatrix, Option<&WeightVector>),
        size: [usize; 2],
        shape: [usize; 3],
        dtype: Scalar,
        cache: &CacheShape,
    ) -> Result<Self, ModelError> {
        let [heads, rows, columns] = shape;
        let shape = [cache.state_slots(), heads, rows, columns].map(|extent| extent as u64);
        Ok(Self {
            convolution: Convolution::load(device, weights, bias, size, dtype, cache)?,
            states: failed(Tensor::zeros(device, Scalar::F32, &shape))?,
        })
    }

    fn held(&self) -> [HeldState<'_>; 2] {
        [&self.states, &self.convolution.history].map(HeldState::Slots)
    }

    fn bytes(&self) -> u64 {
        bytes_of(&self.states) + bytes_of(&self.convolution.history)
    }
}

fn bytes_of(tensor: &Tensor) -> u64 {
    tensor.elements() * u64::from(tensor.scalar().bytes())
}

fn segments_of<'s>(step: &'s StepContext<'_>) -> Result<&'s Segments, ModelError> {
    let missing = || ModelError::Device("a step of a recurrent model has no segments".to_owned());
    step.segments.as_ref().ok_or_else(missing)
}

/// Rows of a chunk of a prompt, of at least [`super::route::PROMPT_ROWS`] rows: as many as suit
/// matrix units, or fit everywhere. `None` where there is no such kernel, and on a processor, where
/// chunks gain little and rows one after the other do not depend on how a prompt is cut.
fn chunk_rows(device: &dyn Device, dtype: Scalar, config: &GatedDelta) -> Option<u64> {
    match config.key_head_dim {
        _ if device.backend() == Backend::Cpu || !config.value_head_dim.is_multiple_of(8) => None,
        128 if has_large_tiles(device, dtype) => Some(64),
        32 | 128 => Some(16),
        _ => None,
    }
}

/// What the gated delta rule takes of the rows of a step.
struct DeltaRows {
    /// `[rows, key_heads, key_head_dim]`, normalised and scaled.
    query: Activation,
    /// As `query`, normalised.
    key: Activation,
    /// `[rows, value_heads, value_head_dim]`.
    value: Activation,
    /// `[rows, value_heads]`, f32.
    decay: Activation,
    /// As `decay`.
    strength: Activation,
}

/// A gated delta net: weights, and the states of all sequences.
pub struct GatedDeltaBlock {
    config: GatedDelta,
    query_key_value: Matrix,
    gate: Matrix,
    beta: Matrix,
    alpha: Matrix,
    decay_log: Tensor,
    step_bias: Tensor,
    norm: Tensor,
    output: Matrix,
    /// `[slots, value_heads, value_head_dim, key_head_dim]`.
    state: RecurrentState,
    /// Threads that share a row of a state.
    lanes: u32,
    /// Rows of a chunk of a prompt; `None` where rows go one after the other.
    chunk: Option<u64>,
}

impl GatedDeltaBlock {
    /// Uploads the weights and reserves the states.
    pub fn load(
        device: &Arc<dyn Device>,
        config: &GatedDelta,
        weights: &GatedDeltaWeights,
        dtype: Scalar,
        cache: &CacheShape,
    ) -> Result<Self, ModelError> {
        let matrix = |matrix: &WeightMatrix| Matrix::upload(device, matrix, dtype);
        let size = [config.conv_channels(), config.conv_width];
        let shape = [
            config.value_head_count,
            config.value_head_dim,
            config.key_head_dim,
        ];
        let conv = (&weights.conv, None);
        let lanes = match (device.backend(), config.key_head_dim) {
            (Backend::Cpu, _) => 1,
            (_, 128) => 4,
            _ => 1,
        };
        Ok(Self {
            lanes,
            chunk: chunk_rows(&**device, dtype, config),
            query_key_value: matrix(&weights.query_key_value)?,
            gate: matrix(&weights.gate)?,
            beta: matrix(&weights.beta)?,
            alpha: matrix(&weights.alpha)?,
            decay_log: upload_vector(device, &weights.decay_log, Scalar::F32)?,
            step_bias: upload_vector(device, &weights.step_bias, Scalar::F32)?,
            norm: upload_vector(device, &weights.norm, dtype)?,
            output: matrix(&weights.output)?,
            state: RecurrentState::load(device, conv, size, shape, dtype, cache)?,
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
        let segments = segments_of(step)?;
        let config = &self.config;
        let rows = x.shape()[0];
        let key_dim = config.key_head_dim as u64;
        let (key_size, value_size) = (config.key_size() as u64, config.value_size() as u64);
        let value_heads = config.value_head_count as u64;

        let mixed = planner.projected(&self.query_key_value, x);
        let gate = planner.projected(&self.gate, x);
        let beta = planner.projected(&self.beta, x);
        let alpha = planner.projected(&self.alpha, x);
        let mixed = self
            .state
            .convolution
            .record(planner, segments, &mixed, true);
        let query_scale = 1.0 / (config.key_head_dim as f32).sqrt();
        let [query, key] = [(0, query_scale), (key_size, 1.0)].map(|(start, factor)| {
            let heads = mixed.columns(start, key_size).split_last(key_dim);
            let scaled = planner.activation(heads.shape());
            let operands = [
                (&heads).into(),
                (&scaled).into(),
                HEAD_EPS.into(),
                factor.into(),
            ];
            planner.launch(Family::Recurrent, "normalise_heads", "", operands);
            scaled
        });
        let value = mixed.columns(2 * key_size, value_size);
        let value = value.split_last(config.value_head_dim as u64);
        let [decay, strength] =
            [0, 1].map(|_| planner.activation_of(Scalar::F32, &[rows, value_heads]));
        let operands = [
            (&alpha).into(),
            (&beta).into(),
            (&self.decay_log).into(),
            (&self.step_bias).into(),
            (&decay).into(),
            (&strength).into(),
        ];
        planner.launch(Family::Recurrent, "delta_gates", "", operands);

        let rows = DeltaRows {
            query,
            key,
            value,
            decay,
            strength,
        };
        let read = match self.chunk.filter(|_| step.key.is_prompt()) {
            Some(chunk) => self.by_chunks(planner, segments, &rows, chunk),
            None => self.row_by_row(planner, segments, &rows),
        };
        let heads = read.rows_of(config.value_head_dim as u64);
        let normed = planner.normed(&heads, &self.norm, step.norm_eps);
        let gated = planner.activated(crate::config::Activation::Silu, &gate, &normed);
        Ok(planner.projected(&self.output, &gated))
    }

    /// The rule row after row; gives what the rows read of the state.
    fn row_by_row(
        &self,
        planner: &mut Planner,
        segments: &Segments,
        rows: &DeltaRows,
    ) -> Activation {
        let read = planner.activation(rows.value.shape());
        let operands = [
            (&rows.query).into(),
            (&rows.key).into(),
            (&rows.value).into(),
            (&rows.decay).into(),
            (&rows.strength).into(),
            (&segments.starts).into(),
            (&segments.from).into(),
            (&segments.to).into(),
            (&self.state.states).into(),
            (&read).into(),
        ];
        let key_dim = self.config.key_head_dim;
        let suffix = format!("-KEY_DIM={key_dim}-LANES={}", self.lanes);
        planner.launch(Family::Recurrent, "gated_delta", &suffix, operands);
        read
    }

    /// The same by chunks of `chunk` rows; see the corpus's `delta` module.
    fn by_chunks(
        &self,
        planner: &mut Planner,
        segments: &Segments,
        rows: &DeltaRows,
        chunk: u64,
    ) -> Activation {
        let config = &self.config;
        let [key_heads, value_heads, value_dim] = [
            config.key_head_count,
            config.value_head_count,
            config.value_head_dim,
        ]
        .map(|extent| extent as u64);
        let chunks = rows.value.shape()[0] / chunk + segments.from.elements();
        let [query, key, value] = [&rows.query, &rows.key, &rows.value].map(Activation::transposed);
        let suffix = format!("-CHUNK={chunk}");

        let of_heads = [chunks, key_heads, chunk, chunk];
        let [of_keys, of_queries] = [0, 1].map(|_| planner.activation_of(Scalar::F32, &of_heads));
        let operands = [
            (&query).into(),
            (&key).into(),
            (&segments.starts).into(),
            (&of_keys).into(),
            (&of_queries).into(),
        ];
        planner.launch(Family::Delta, "delta_products", &suffix, operands);

        let of_heads = [chunks, value_heads, chunk, chunk];
        let [inverse, weights] = [0, 1].map(|_| planner.activation(&of_heads));
        let kept = planner.activation_of(Scalar::F32, &[chunks, value_heads, 2, chunk]);
        let operands = [
            (&of_keys).into(),
            (&of_queries).into(),
            (&rows.decay).into(),
            (&rows.strength).into(),
            (&segments.starts).into(),
            (&inverse).into(),
            (&weights).into(),
            (&kept).into(),
        ];
        planner.launch(Family::Delta, "delta_inverse", &suffix, operands);

        let by_chunk = planner.activation(&[chunks, value_heads, value_dim, chunk]);
        let operands = [
            (&query).into(),
            (&key).into(),
            (&value).into(),
            (&inverse).into(),
            (&weights).into(),
            (&kept).into(),
            (&segments.starts).into(),
            (&segments.from).into(),
            (&segments.to).into(),
            (&self.state.states).into(),
            (&by_chunk).into(),
        ];
        let instance = format!("-KEY_DIM={}{suffix}", config.key_head_dim);
        planner.launch(Family::Delta, "delta_chunks", &instance, operands);

        let read = planner.activation(rows.value.shape());
        let operands = [
            (&by_chunk).into(),
            (&segments.starts).into(),
            (&read).into(),
        ];
        planner.launch(Family::Delta, "delta_rows", &suffix, operands);
        read
    }

    /// The states and the convolution's history.
    pub fn held_state(&self) -> [HeldState<'_>; 2] {
        self.state.held()
    }

    /// Bytes of the states and of the convolution's history.
    pub fn state_bytes(&self) -> u64 {
        self.state.bytes()
    }
}

/// A Mamba-2 block: weights, and the states of all sequences.
pub struct Mamba2Block {
    config: Mamba2,
    gate: Matrix,
    input: Matrix,
    step: Matrix,
    decay_log: Tensor,
    skip: Tensor,
    step_bias: Tensor,
    /// One a group of the output.
    norms: Vec<Tensor>,
    output: Matrix,
    /// `[slots, heads, head_dim, state_size]`.
    state: RecurrentState,
    /// Whether prompts go by chunks.
    by_chunks: bool,
}

/// What a state-space model takes of the rows of a step.
struct ScanRows {
    /// `[rows, heads, head_dim]`.
    input: Activation,
    /// What is written, `[rows, groups, state_size]`.
    write: Activation,
    /// What reads, as `write`.
    read: Activation,
    /// `[rows, heads]`.
    time: Activation,
}

/// Rows of a chunk of a state-space model's prompt.
const SCAN_ROWS: u64 = 16;

impl Mamba2Block {
    /// Uploads the weights and reserves the states.
    pub fn load(
        device: &Arc<dyn Device>,
        config: &Mamba2,
        weights: &Mamba2Weights,
        dtype: Scalar,
        cache: &CacheShape,
    ) -> Result<Self, ModelError> {
        let matrix = |matrix: &WeightMatrix| Matrix::upload(device, matrix, dtype);
        let number = |vector: &WeightVector| upload_vector(device, vector, Scalar::F32);
        let size = [config.conv_channels(), config.conv_width];
        let shape = [config.head_count, config.head_dim, config.state_size];
        let conv = (&weights.conv, weights.conv_bias.as_ref());
        Ok(Self {
            gate: matrix(&weights.gate)?,
            input: matrix(&weights.input)?,
            step: matrix(&weights.step)?,
            decay_log: number(&weights.decay_log)?,
            skip: number(&weights.skip)?,
            step_bias: number(&weights.step_bias)?,
            norms: match (&weights.norm, config.norm_groups) {
                (Some(norm), Some(groups)) => {
                    let norm = upload_vector(device, norm, dtype)?;
                    let size = norm.elements() / groups as u64;
                    let part = |group: u64| failed(norm.slice(0, group * size..(group + 1) * size));
                    (0..groups as u64).map(part).collect::<Result<_, _>>()?
                }
                _ => Vec::new(),
            },
            output: matrix(&weights.output)?,
            state: RecurrentState::load(device, conv, size, shape, dtype, cache)?,
            // As for a gated delta net; states of 256 elements leave no room for their tiles.
            by_chunks: device.backend() != Backend::Cpu
                && config.head_dim.is_multiple_of(8)
                && matches!(config.state_size, 16 | 32 | 64 | 128),
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
        let segments = segments_of(step)?;
        let config = &self.config;
        let (inner, state) = (config.inner_size() as u64, config.state_size as u64);
        let projections = config.group_count as u64 * state;

        let gate = planner.projected(&self.gate, x);
        let mixed = planner.projected(&self.input, x);
        let time = planner.projected(&self.step, x);
        let mixed = self
            .state
            .convolution
            .record(planner, segments, &mixed, true);
        let input = mixed.columns(0, inner).split_last(config.head_dim as u64);
        let write = mixed.columns(inner, projections).split_last(state);
        let read = mixed.columns(inner + projections, projections);
        let read = read.split_last(state);
        let rows = ScanRows {
            input,
            write,
            read,
            time,
        };
        let y = match self.by_chunks && step.key.is_prompt() {
            true => self.scanned_by_chunks(planner, segments, &rows),
            false => self.scanned(planner, segments, &rows),
        };
        let gated = planner.activated(crate::config::Activation::Silu, &gate, &y.rows_of(inner));
        let normed = match self.norms.as_slice() {
            [] => gated,
            [norm] => planner.normed(&gated, norm, step.norm_eps),
            norms => {
                let normed = planner.activation(gated.shape());
                let size = inner / norms.len() as u64;
                for (group, norm) in norms.iter().enumerate() {
                    let part = |x: &Activation| x.columns(group as u64 * size, size);
                    let operands = [
                        part(&gated).into(),
                        norm.into(),
                        part(&normed).into(),
                        step.norm_eps.into(),
                    ];
                    planner.launch(Family::Norm, "rms_norm", "", operands);
                }
                normed
            }
        };
        Ok(planner.projected(&self.output, &normed))
    }

    /// The model row after row.
    fn scanned(&self, planner: &mut Planner, segments: &Segments, rows: &ScanRows) -> Activation {
        let y = planner.activation(rows.input.shape());
        let operands = [
            (&rows.input).into(),
            (&rows.write).into(),
            (&rows.read).into(),
            (&rows.time).into(),
            (&self.decay_log).into(),
            (&self.skip).into(),
            (&self.step_bias).into(),
            (&segments.starts).into(),
            (&segments.from).into(),
            (&segments.to).into(),
            (&self.state.states).into(),
            (&y).into(),
            self.config.time_step_limits.0.into(),
            self.config.time_step_limits.1.into(),
        ];
        let suffix = format!("-STATE={}", self.config.state_size);
        planner.launch(Family::Recurrent, "state_space", &suffix, operands);
        y
    }

    /// The same by chunks; see the corpus's `scan` module.
    fn scanned_by_chunks(
        &self,
        planner: &mut Planner,
        segments: &Segments,
        rows: &ScanRows,
    ) -> Activation {
        let config = &self.config;
        let [heads, groups, head_dim] =
            [config.head_count, config.group_count, config.head_dim].map(|n| n as u64);
        let chunks = rows.input.shape()[0] / SCAN_ROWS + segments.from.elements();
        let [input, write, read] =
            [&rows.input, &rows.write, &rows.read].map(Activation::transposed);
        let suffix = format!("-CHUNK={SCAN_ROWS}");

        let square = [chunks, groups, SCAN_ROWS, SCAN_ROWS];
        let [unread, products] = [0, 1].map(|_| planner.activation_of(Scalar::F32, &square));
        let operands = [
            (&read).into(),
            (&write).into(),
            (&segments.starts).into(),
            unread.into(),
            (&products).into(),
        ];
        planner.launch(Family::Delta, "delta_products", &suffix, operands);

        let weights = planner.activation(&[chunks, heads, SCAN_ROWS, SCAN_ROWS]);
        let kept = planner.activation_of(Scalar::F32, &[chunks, heads, 2, SCAN_ROWS]);
        let operands = [
            (&products).into(),
            (&rows.time).into(),
            (&self.decay_log).into(),
            (&self.skip).into(),
            (&self.step_bias).into(),
            (&segments.starts).into(),
            (&weights).into(),
            (&kept).into(),
            config.time_step_limits.0.into(),
            config.time_step_limits.1.into(),
        ];
        planner.launch(Family::Scan, "scan_weights", &suffix, operands);

        let by_chunk = planner.activation(&[chunks, heads, head_dim, SCAN_ROWS]);
        let operands = [
            (&input).into(),
            (&write).into(),
            (&read).into(),
            (&weights).into(),
            (&kept).into(),
            (&segments.starts).into(),
            (&segments.from).into(),
            (&segments.to).into(),
            (&self.state.states).into(),
            (&by_chunk).into(),
        ];
        let instance = format!("-STATE={}{suffix}", config.state_size);
        planner.launch(Family::Scan, "scan_chunks", &instance, operands);

        let y = planner.activation(rows.input.shape());
        let operands = [(&by_chunk).into(), (&segments.starts).into(), (&y).into()];
        planner.launch(Family::Delta, "delta_rows", &suffix, operands);
        y
    }

    /// The states and the convolution's history.
    pub fn held_state(&self) -> [HeldState<'_>; 2] {
        self.state.held()
    }

    /// Bytes of the states and of the convolution's history.
    pub fn state_bytes(&self) -> u64 {
        self.state.bytes()
    }
}

/// A gated convolution: weights, and the rows that it still sees of all sequences.
pub struct ShortConvolutionBlock {
    before: Matrix,
    after: Matrix,
    input: Matrix,
    output: Matrix,
    convolution: Convolution,
}

impl ShortConvolutionBlock {
    /// Uploads the weights and reserves the histories.
    pub fn load(
        device: &Arc<dyn Device>,
        config: &ShortConvolution,
        weights: &ShortConvolutionWeights,
        dtype: Scalar,
        cache: &CacheShape,
    ) -> Result<Self, ModelError> {
        let matrix = |matrix: &WeightMatrix| Matrix::upload(device, matrix, dtype);
        let size = [config.channels, config.width];
        Ok(Self {
            before: matrix(&weights.before)?,
            after: matrix(&weights.after)?,
            input: matrix(&weights.input)?,
            output: matrix(&weights.output)?,
            convolution: Convolution::load(device, &weights.conv, None, size, dtype, cache)?,
        })
    }

    /// Records the layer on normalised rows `x`; gives its output, `[rows, hidden]`.
    pub fn record(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        x: &Activation,
    ) -> Result<Activation, ModelError> {
        let segments = segments_of(step)?;
        let [before, after, input] =
            [&self.before, &self.after, &self.input].map(|w| planner.projected(w, x));
        let gated = planner.multiplied(&before, &input);
        let mixed = self.convolution.record(planner, segments, &gated, false);
        let gated = planner.multiplied(&after, &mixed);
        Ok(planner.projected(&self.output, &gated))
    }

    /// The convolution's history.
    pub fn held_state(&self) -> HeldState<'_> {
        HeldState::Slots(&self.convolution.history)
    }

    /// Bytes of the convolution's history.
    pub fn state_bytes(&self) -> u64 {
        bytes_of(&self.convolution.history)
    }
}
