//! Attention on a device: projections, norms and rotation of heads, the cache, the output.

use std::sync::Arc;

use iron_corpus::attention::{least_positions, most_splits_of};
use iron_corpus::decode::JOINED;
use iron_corpus::grouped_attention::{group_of, group_with_heads};
use iron_corpus::matrix_attention::{has_heads_matrix, has_matrix};
use iron_ir::Scalar;
use iron_runtime::{Backend, Device, Tensor};

use super::latent::upload_frequencies;
use super::matrix::{Family, Matrix, failed, upload_vector};
use super::plan::{Activation, Operand, Planner};
use super::route::Route;
use super::state::{BLOCK_SIZE, CacheShape, CacheType};
use super::step::{HeldState, StepContext, StepTiles};
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
    /// The rows of the three, where they are dense, and some of them as long as a head, which
    /// stand where a kernel takes norm weights that it does not read.
    query_key_value: Option<(Tensor, Tensor)>,
    /// The output projection.
    pub output: Matrix,
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
    /// Of keys and values, where they are 8-bit floats: `[blocks, kv_heads, block_size]`.
    scales: Option<[Tensor; 2]>,
    /// Query heads that share a reading of the cache, on a GPU that has the kernel.
    group: Option<u32>,
    /// The same where that kernel makes the heads of new rows too.
    group_with_heads: Option<u32>,
    /// Whether there is a kernel that attends by matrix units, and one that makes the heads of new
    /// rows too.
    has_matrix: [bool; 2],
}

/// The tensors of [`AttentionBlock::record_stacked`].
pub struct Stacked<'a> {
    /// `[query_size + 2 * kv_size, hidden]`: rows of queries, keys, values.
    pub weights: &'a Tensor,
    frequencies: &'a Tensor,
    unread_norm: &'a Tensor,
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
        let projections = [&weights.query, &weights.key, &weights.value];
        let (query, key, value, whole) = if projections.iter().all(|w| w.rows() > 0) {
            let ([q, k, v], whole) = Matrix::upload_stacked(device, projections, dtype)?;
            (q, Some(k), Some(v), whole)
        } else {
            let [q, k, v] = projections;
            (matrix(q)?, present(k)?, present(v)?, None)
        };
        let shape = [blocks, config.kv_head_count, BLOCK_SIZE, config.head_dim];
        let shape = shape.map(|extent| extent as u64);
        let pair = |scalar: Scalar, shape: &[u64]| {
            let one = || failed(Tensor::empty(device, scalar, shape));
            Ok::<_, ModelError>([one()?, one()?])
        };
        let ([keys, values], scales) = match (owner, cache.kind) {
            (Some(owner), _) => (
                [owner.keys.clone(), owner.values.clone()],
                owner.scales.clone(),
            ),
            (None, CacheType::Activations) => (pair(dtype, &shape)?, None),
            (None, CacheType::F8E4M3) => (
                pair(Scalar::F8E4M3, &shape)?,
                Some(pair(Scalar::E8M0, &shape[..3])?),
            ),
        };
        let ones = vec![1.0; config.head_dim];
        let ones = || Tensor::from_f32(device, dtype, &[config.head_dim as u64], &ones);
        let shared_by = (config.head_count / config.kv_head_count) as u32;
        let (head_dim, block_size) = (config.head_dim as u32, BLOCK_SIZE as u32);
        let group = match device.backend() {
            Backend::Cpu => None,
            _ => group_of(dtype, head_dim, block_size, shared_by),
        };
        // It needs more shared memory than some other devices have.
        let group_with_heads = match device.backend() {
            Backend::Cuda => group_with_heads(dtype, head_dim, block_size, shared_by),
            _ => None,
        };
        // Of a cache of the activations' type.
        let has_matrix = match device.backend() {
            Backend::Cuda if keys.scalar() == dtype => [has_matrix, has_heads_matrix]
                .map(|has| has(dtype, head_dim, block_size, shared_by)),
            _ => [false; 2],
        };
        Ok(Self {
            group,
            group_with_heads,
            has_matrix,
            query,
            key,
            value,
            query_key_value: match whole {
                Some(whole) => {
                    let unread = failed(whole.with_strides(&[config.head_dim as u64], &[1]))?;
                    Some((whole, unread))
                }
                None => None,
            },
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
            scales,
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
        let table = self.table(step);
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
                self.append(planner, step, [&key, &value], table);
            }
            None => self.rotate(planner, step, [&query]),
        }
        let mut attended = self.attend(planner, step, &query);
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

    /// What [`Self::record_stacked`] takes, of a layer that it computes: dense projections, heads
    /// rotated in half-split form, no biases and no gate, a cache of the activations' type.
    pub fn stacked(&self) -> Option<Stacked<'_>> {
        let rope = self.config.rope.as_ref()?;
        let pairs = rope.rotary_dim / 2;
        let has_kernel = matches!(self.config.head_dim, 64 | 128 | 256)
            && rope.layout == RopeLayout::HalfSplit
            && pairs.is_multiple_of(8);
        let is_plain = self.scales.is_none()
            && self.gate.is_none()
            && self.biases.is_none()
            && self.output_bias.is_none()
            && !self.config.norm_over_heads
            && self.value_norm.is_none()
            && self.query_norm.is_some() == self.key_norm.is_some();
        let (weights, unread_norm) = self.query_key_value.as_ref()?;
        let frequencies = self.frequencies.as_ref()?;
        (has_kernel && is_plain).then_some(Stacked {
            weights,
            frequencies,
            unread_norm,
        })
    }

    /// Records what lies between the projections: `projected` holds a row's queries, keys and
    /// values. Gives what the output projection takes.
    pub fn record_stacked(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        projected: &Activation,
        stacked: &Stacked<'_>,
    ) -> Activation {
        let rows = projected.shape()[0];
        let (heads, head_dim) = (self.config.head_count as u64, self.config.head_dim as u64);
        if self.attends_by_matrix(planner) && self.has_matrix[1] && step.key.is_apart {
            let attended = planner.activation(&[rows, heads, head_dim]);
            let mut operands = self.new_heads(step, projected, stacked).to_vec();
            operands.extend([
                (&self.sinks).into(),
                (&self.keys).into(),
                (&self.values).into(),
            ]);
            let kernel = "attention_of_heads_matrix";
            let further = [
                self.magnitude().into(),
                step.norm_eps.into(),
                u32::from(self.query_norm.is_some()).into(),
            ];
            self.attend_by_matrix(planner, step, kernel, operands, &further, &attended);
            return attended.rows_of(self.config.query_size() as u64);
        }
        if let Some([partial, stats]) = self.record_splits(planner, step, projected, stacked) {
            let attended = planner.activation(&[rows, heads, head_dim]);
            self.combine(planner, step, [&partial, &stats], None, &attended);
            return attended.rows_of(self.config.query_size() as u64);
        }
        let query = planner.activation(&[rows, heads, head_dim]);
        let mut operands = self.new_heads(step, projected, stacked).to_vec();
        operands.extend([
            (&query).into(),
            (&self.keys).into(),
            (&self.values).into(),
            self.magnitude().into(),
            step.norm_eps.into(),
            u32::from(self.query_norm.is_some()).into(),
        ]);
        let suffix = format!("-HEAD_DIM={head_dim}");
        planner.launch(Family::Heads, "heads_to_cache", &suffix, operands);
        self.attend(planner, step, &query)
    }

    /// As [`Self::record_stacked`], but gives the outputs of the splits of the attention and their
    /// statistics, where there is a kernel for that: of rows that are each of a sequence of its
    /// own.
    pub fn record_splits(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        projected: &Activation,
        stacked: &Stacked<'_>,
    ) -> Option<[Activation; 2]> {
        let group = self.group_with_heads.filter(|_| step.key.is_apart)?;
        let [partial, stats] = self.split_outputs(planner, step, projected.shape()[0]);
        let mut operands = self.new_heads(step, projected, stacked).to_vec();
        operands.extend([
            (&self.keys).into(),
            (&self.values).into(),
            (&partial).into(),
            (&stats).into(),
            self.config.scale.into(),
            self.window().into(),
            self.config.soft_cap.unwrap_or(0.0).into(),
            self.magnitude().into(),
            step.norm_eps.into(),
            u32::from(self.query_norm.is_some()).into(),
        ]);
        let suffix = format!("-HEAD_DIM={}-GROUP={group}", self.config.head_dim);
        let kernel = "attention_of_heads";
        planner.launch(Family::GroupedAttention, kernel, &suffix, operands);
        Some([partial, stats])
    }

    /// What makes the heads of new rows of their projections.
    fn new_heads(
        &self,
        step: &StepContext<'_>,
        projected: &Activation,
        stacked: &Stacked<'_>,
    ) -> [Operand; 7] {
        [
            projected.into(),
            self.query_norm
                .as_ref()
                .unwrap_or(stacked.unread_norm)
                .into(),
            self.key_norm.as_ref().unwrap_or(stacked.unread_norm).into(),
            (&step.positions).into(),
            stacked.frequencies.into(),
            (&step.sequences).into(),
            self.table(step).into(),
        ]
    }

    fn magnitude(&self) -> f32 {
        let rope = self.config.rope.as_ref();
        rope.map_or(1.0, |rope| rope.magnitude())
    }

    /// Whether [`Self::joined_product`] has a kernel for the splits of a step and these
    /// weights, which sums in the order of the route's products.
    pub fn joins_in_product(&self, route: Route, splits: usize, w: &Tensor) -> bool {
        let [outputs, inner] = [0, 1].map(|axis| w.shape()[axis]);
        // Every workgroup joins the splits again: more of them than run at once lose by it.
        let most_outputs = 1024;
        self.group_with_heads.is_some()
            && splits <= JOINED as usize
            && outputs <= most_outputs
            && route.dense_lanes(inner) == 256
            && inner <= 8 * 256
    }

    /// `hidden += attended · wᵀ` of the splits of the attention.
    pub fn joined_product(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        [partial, stats]: [&Activation; 2],
        w: &Tensor,
        hidden: &Activation,
    ) {
        let operands = [
            partial.into(),
            stats.into(),
            (&step.positions).into(),
            (&self.sinks).into(),
            w.into(),
            hidden.into(),
            self.window().into(),
        ];
        let head_dim = self.config.head_dim;
        let suffix = format!("-HEAD_DIM={head_dim}-LANES=256-EARLY=1");
        planner.launch(Family::Decode, "split_product_add", &suffix, operands);
    }

    /// The block table of all sequences.
    fn table<'s>(&self, step: &'s StepContext<'_>) -> &'s Tensor {
        match self.config.window {
            Some(_) => &step.tables.window,
            None => &step.tables.full,
        }
    }

    /// Attention of `query`, `[rows, heads, head_dim]`, over the cache, as `[rows, query_size]`.
    fn attend(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        query: &Activation,
    ) -> Activation {
        let attended = planner.activation(query.shape());
        let by_rows = self.config.attends_by_rows();
        match step.tiles.as_ref().filter(|_| !by_rows) {
            Some(tiles) => self.prefill(planner, step, query, tiles, &attended),
            None => self.decode(planner, step, query, self.table(step), &attended),
        }
        attended.rows_of(self.config.query_size() as u64)
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

    /// Writes the keys and values of new rows.
    fn append(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        new: [&Activation; 2],
        table: &Tensor,
    ) {
        let places = || {
            [
                (&step.positions).into(),
                (&step.sequences).into(),
                table.into(),
            ]
        };
        let caches = [&self.keys, &self.values];
        let Some(scales) = &self.scales else {
            let mut operands: Vec<Operand> = new.map(Operand::from).into();
            operands.extend(places());
            operands.extend(caches.map(Operand::from));
            return planner.launch(Family::Attention, "kv_append", "", operands);
        };
        for ((new, cache), scales) in new.into_iter().zip(caches).zip(scales) {
            let mut operands: Vec<Operand> = vec![new.into()];
            operands.extend(places());
            operands.extend([cache.into(), scales.into()]);
            planner.launch(Family::F8Cache, "append_f8", "", operands);
        }
    }

    /// Keys, values, and the scales of both if they have some.
    fn cache(&self) -> impl Iterator<Item = Operand> {
        let scales = self.scales.iter().flatten();
        let tensors = [&self.keys, &self.values].into_iter().chain(scales);
        tensors.map(Operand::from)
    }

    /// The cache as the tiles of prompts take it, in the activations' type, and its blocks.
    fn prompt_cache(&self, planner: &mut Planner, step: &StepContext<'_>) -> [Operand; 3] {
        let (Some(scales), Some(unpacked)) = (&self.scales, &step.unpacked) else {
            let table = self.table(step).into();
            return [(&self.keys).into(), (&self.values).into(), table];
        };
        let (from, in_order) = match self.config.window {
            Some(_) => (&unpacked.window, &step.tables.ring_in_order),
            None => (&unpacked.full, &step.tables.in_order),
        };
        let mut shape = self.keys.shape().to_vec();
        shape[0] = from.elements();
        let [keys, values] = [(&self.keys, 0), (&self.values, 1)].map(|(cache, place)| {
            let y = planner.activation(&shape);
            let operands = [
                cache.into(),
                (&scales[place]).into(),
                (&step.positions).into(),
                from.into(),
                (&y).into(),
            ];
            planner.launch(Family::F8Cache, "unpack_f8", "", operands);
            y
        });
        [keys.into(), values.into(), in_order.into()]
    }

    /// The rows of each sequence are consecutive positions, and attend by tiles.
    fn prefill(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        query: &Activation,
        tiles: &[StepTiles; 2],
        attended: &Activation,
    ) {
        let [keys, values, table] = self.prompt_cache(planner, step);
        let tiles = match (planner.attends_by_large_tiles, self.config.head_dim) {
            (true, 64 | 128 | 256) => &tiles[1],
            _ => &tiles[0],
        };
        // The tiles of one sequence lie as its rows do; those of several are whole.
        let shape = query.shape();
        let whole = tiles.rows.shape()[0] * tiles.size;
        let placed = match &tiles.places {
            Some(_) => planner.activation(&[whole, shape[1], shape[2]]),
            None => attended.clone(),
        };
        let operands = [
            query.transposed().into(),
            keys,
            values,
            (&step.positions).into(),
            (&step.sequences).into(),
            (&tiles.rows).into(),
            table,
            (&self.sinks).into(),
            placed.transposed().into(),
            self.config.scale.into(),
            self.window().into(),
            self.config.soft_cap.unwrap_or(0.0).into(),
        ];
        let suffix = format!("-HEAD_DIM={}-ROWS={}", self.config.head_dim, tiles.size);
        planner.launch(Family::Attention, "attention_prefill", &suffix, operands);
        if let Some(places) = &tiles.places {
            let width = self.config.query_size() as u64;
            let [from, to] = [&placed, attended].map(|x| x.rows_of(width));
            let operands = [from.into(), places.into(), to.into()];
            planner.launch(Family::Layout, "select_rows", "", operands);
        }
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
        let [rows, head_dim] = [0, 2].map(|axis| query.shape()[axis]);
        if self.attends_by_matrix(planner) {
            let operands = vec![
                query.into(),
                (&self.keys).into(),
                (&self.values).into(),
                (&step.positions).into(),
                (&step.sequences).into(),
                table.into(),
                (&self.sinks).into(),
            ];
            let kernel = "attention_decode_matrix";
            return self.attend_by_matrix(planner, step, kernel, operands, &[], attended);
        }
        let [partial, stats] = self.split_outputs(planner, step, rows);
        let mut operands = vec![query.into()];
        operands.extend(self.cache());
        operands.extend([
            (&step.positions).into(),
            (&step.sequences).into(),
            table.into(),
            (&partial).into(),
            (&stats).into(),
            self.config.scale.into(),
            self.window().into(),
            self.config.soft_cap.unwrap_or(0.0).into(),
        ]);
        let (family, kernel, suffix) = match (&self.scales, self.group) {
            (Some(_), _) => (
                Family::F8Cache,
                "attention_decode_f8",
                format!("-HEAD_DIM={head_dim}"),
            ),
            (None, Some(group)) => (
                Family::GroupedAttention,
                "attention_decode_grouped",
                format!("-HEAD_DIM={head_dim}-GROUP={group}"),
            ),
            (None, None) => (
                Family::Attention,
                "attention_decode",
                format!("-HEAD_DIM={head_dim}"),
            ),
        };
        planner.launch(family, kernel, &suffix, operands);
        self.combine(planner, step, [&partial, &stats], None, attended);
    }

    /// Whether rows that attend for themselves take the kernels by matrix units. One route takes
    /// one kind for all of its rows, whose order of sums is its own.
    fn attends_by_matrix(&self, planner: &Planner) -> bool {
        let is_faster = self.config.head_dim > 128 || planner.route.shares_weights(planner.dtype);
        self.has_matrix[0] && is_faster
    }

    /// Positions of a split where a row sees up to 4,096. Many rows fill a device with fewer,
    /// longer splits.
    fn least(&self, planner: &Planner) -> u32 {
        let least = least_positions(self.config.head_dim as u32);
        match self.attends_by_matrix(planner) && planner.route.shares_weights(planner.dtype) {
            true => 2 * least,
            false => least,
        }
    }

    /// Records a kernel of `matrix_attention`, which takes `operands`, what all of them take, and
    /// `further` ones, and joins its splits if there are several.
    fn attend_by_matrix(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        kernel: &str,
        mut operands: Vec<Operand>,
        further: &[Operand],
        attended: &Activation,
    ) {
        let [partial, stats] = self.split_outputs(planner, step, attended.shape()[0]);
        let least = self.least(planner);
        operands.extend([
            (&partial).into(),
            (&stats).into(),
            attended.into(),
            self.config.scale.into(),
            self.window().into(),
            self.config.soft_cap.unwrap_or(0.0).into(),
            least.into(),
        ]);
        operands.extend_from_slice(further);
        let suffix = format!("-HEAD_DIM={}", self.config.head_dim);
        planner.launch(Family::MatrixAttention, kernel, &suffix, operands);
        if partial.shape()[2] == 1 {
            return;
        }
        let parts = [&partial, &stats];
        let least = planner.route.shares_weights(planner.dtype).then_some(least);
        self.combine(planner, step, parts, least, attended);
    }

    /// What the splits of rows that attend for themselves give: outputs, and scores' extremes and
    /// sums.
    fn split_outputs(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        rows: u64,
    ) -> [Activation; 2] {
        let (heads, head_dim) = (self.config.head_count as u64, self.config.head_dim as u64);
        // No more than a row of the step has: the rest would be workgroups without work.
        let seen = u32::try_from(step.key.reach)
            .unwrap_or(u32::MAX)
            .min(self.window());
        let splits = u64::from(most_splits_of(seen, self.least(planner)));
        [head_dim, 2].map(|size| planner.activation_of(Scalar::F32, &[rows, heads, splits, size]))
    }

    /// Joins the splits; those of many rows, of `least` positions, by a kernel for many.
    fn combine(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        [partial, stats]: [&Activation; 2],
        least: Option<u32>,
        attended: &Activation,
    ) {
        let mut operands: Vec<Operand> = vec![
            partial.into(),
            stats.into(),
            (&step.positions).into(),
            (&self.sinks).into(),
            attended.into(),
            self.window().into(),
        ];
        operands.extend(least.map(Operand::from));
        let (family, kernel) = match least {
            Some(_) => (Family::AttentionJoin, "attention_join"),
            None => (Family::Attention, "attention_combine"),
        };
        planner.launch(family, kernel, "", operands);
    }

    /// The cache; none where it is another layer's.
    pub fn held_state(&self) -> Option<HeldState<'_>> {
        let own = self.config.shares_cache_of.is_none();
        own.then_some(HeldState::Cache {
            tensors: [&self.keys, &self.values]
                .into_iter()
                .chain(self.scales.iter().flatten())
                .collect(),
            windowed: self.config.window.is_some(),
        })
    }

    /// Bytes of the cache; none where it is another layer's.
    pub fn cache_bytes(&self) -> u64 {
        if self.config.shares_cache_of.is_some() {
            return 0;
        }
        let bytes = |tensor: &Tensor| tensor.elements() * u64::from(tensor.scalar().bytes());
        let scales = self.scales.iter().flatten();
        [&self.keys, &self.values]
            .into_iter()
            .chain(scales)
            .map(bytes)
            .sum()
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
