//! Layers of plain attention and a gated feed-forward in few launches: five kernels and the
//! attention for rows that decode, as many for rows that share a reading of the weights, stacked
//! projections for prompts.
//!
//! The results are those of [`super::step`]'s own layers to the bit, where both sum products by
//! as many threads: the kernels keep every rounding. Rows that share a reading sum in another
//! order, the same for any number of rows.

use iron_corpus::decode::OUTPUTS;
use iron_corpus::matmul::{SKINNY_COLUMNS, parts_of, skinny_rows};
use iron_corpus::products_ahead::ahead_instance;
use iron_ir::Scalar;
use iron_runtime::Tensor;

use super::attention::{AttentionBlock, Stacked};
use super::matrix::{Family, Matrix};
use super::plan::{Activation, Planner};
use super::step::{Graph, StepContext};

/// The tensors of a layer that fused kernels record.
pub struct FusedLayer<'a> {
    /// `[hidden]`.
    pub mixer_norm: &'a Tensor,
    /// The attention.
    pub attention: &'a AttentionBlock,
    /// Its projections, stacked.
    pub stacked: Stacked<'a>,
    /// `[hidden, query_size]`.
    pub output: &'a Tensor,
    /// `[hidden]`.
    pub feed_forward_norm: &'a Tensor,
    /// `[2 * intermediate, hidden]`.
    pub gate_up: &'a Tensor,
    /// `[hidden, intermediate]`.
    pub down: &'a Tensor,
}

impl FusedLayer<'_> {
    /// Whether the sizes are those of the kernels.
    pub fn has_kernels(&self) -> bool {
        let products = [self.stacked.weights, self.output, self.gate_up, self.down];
        products.into_iter().all(is_product)
    }
}

/// Whether the fused kernels multiply by these weights, `[outputs, inputs]`.
fn is_product(w: &Tensor) -> bool {
    let (outputs, inputs) = (w.shape()[0], w.shape()[1]);
    outputs.is_multiple_of(u64::from(OUTPUTS)) && inputs.is_multiple_of(8)
}

impl Graph {
    /// All layers for rows that decode; `hidden` is the residual stream.
    pub fn fused_layers(&self, planner: &mut Planner, step: &StepContext<'_>, hidden: &Activation) {
        for layer in self.layers.iter().filter_map(|layer| layer.fused()) {
            let weights = layer.stacked.weights;
            let eps = self.config.norm_eps;
            let projected = planner.normed_product(hidden, layer.mixer_norm, weights, eps);
            let (attention, splits) = (layer.attention, step.key.splits);
            let joins = attention.joins_in_product(planner.route, splits, layer.output);
            let splits = match joins {
                true => attention.record_splits(planner, step, &projected, &layer.stacked),
                false => None,
            };
            match splits {
                Some([partial, stats]) => {
                    let splits = [&partial, &stats];
                    attention.joined_product(planner, step, splits, layer.output, hidden);
                }
                None => {
                    let x = attention.record_stacked(planner, step, &projected, &layer.stacked);
                    planner.product_add(layer.output, &x, hidden);
                }
            }
            let norm = layer.feed_forward_norm;
            let active = planner.normed_gated_product(hidden, norm, layer.gate_up, eps);
            planner.product_add(layer.down, &active, hidden);
        }
    }

    /// All layers for rows that decode and share a reading of the weights. Gives the rows after
    /// the last norm.
    pub fn shared_layers(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        hidden: &Activation,
    ) -> Activation {
        let mut parts = None;
        let eps = self.config.norm_eps;
        for layer in self.layers.iter().filter_map(|layer| layer.fused()) {
            let x = planner.parts_joined(parts.as_ref(), hidden, layer.mixer_norm, eps);
            let projected = planner.dense_product(layer.stacked.weights, &x);
            let attended =
                layer
                    .attention
                    .record_stacked(planner, step, &projected, &layer.stacked);
            let output = planner.product_parts(layer.output, &attended);
            let x = planner.parts_joined(Some(&output), hidden, layer.feed_forward_norm, eps);
            let active = planner.gated_product(layer.gate_up, &x);
            parts = Some(planner.product_parts(layer.down, &active));
        }
        planner.parts_joined(parts.as_ref(), hidden, &self.final_norm, eps)
    }

    /// All layers for a prompt's rows. Gives the last block's output, which has not joined
    /// `hidden`.
    pub fn stacked_layers(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        hidden: &Activation,
    ) -> Option<Activation> {
        let mut pending = None;
        for layer in self.layers.iter().filter_map(|layer| layer.fused()) {
            let x = self.joined(planner, pending.as_ref(), hidden, layer.mixer_norm);
            let projected = planner.dense_product(layer.stacked.weights, &x);
            let attended =
                layer
                    .attention
                    .record_stacked(planner, step, &projected, &layer.stacked);
            let y = planner.dense_product(layer.output, &attended);
            let x = self.joined(planner, Some(&y), hidden, layer.feed_forward_norm);
            let active = planner.gated(layer.gate_up, &x);
            pending = Some(planner.dense_product(layer.down, &active));
        }
        pending
    }

    /// `norm(hidden) · wᵀ` as a new activation, if there is a kernel for it.
    pub fn fused_product(
        &self,
        planner: &mut Planner,
        hidden: &Activation,
        norm: &Tensor,
        w: &Tensor,
    ) -> Option<Activation> {
        if !is_product(w) {
            return None;
        }
        Some(planner.normed_product(hidden, norm, w, self.config.norm_eps))
    }
}

impl Planner {
    fn dense_product(&mut self, w: &Tensor, x: &Activation) -> Activation {
        self.projected(&Matrix::Dense(w.clone()), x)
    }

    /// `silu(gate) * up` of the two halves of `x · wᵀ`.
    fn gated(&mut self, w: &Tensor, x: &Activation) -> Activation {
        let gate_up = self.dense_product(w, x);
        let active = self.activation(&[x.shape()[0], w.shape()[0] / 2]);
        let operands = [(&gate_up).into(), (&active).into()];
        self.launch(Family::Decode, "silu_mul_rows", "", operands);
        active
    }

    /// As [`Self::gated`], of few rows.
    fn gated_product(&mut self, w: &Tensor, x: &Activation) -> Activation {
        let (rows, inner) = (x.shape()[0], w.shape()[0] / 2);
        // Short rows are products of few steps: one after the other they take longer than twice
        // as many workgroups do side by side, and another launch.
        let is_short = w.shape()[1] <= 1024;
        if is_short || !inner.is_multiple_of(u64::from(SKINNY_COLUMNS)) {
            return self.gated(w, x);
        }
        let active = self.activation(&[rows, inner]);
        let operands = [x.into(), w.into(), (&active).into()];
        let suffix = format!("-ROWS={}", skinny_rows(rows));
        self.launch(Family::Matmul, "gated_skinny", &suffix, operands);
        active
    }

    /// `x · wᵀ` of few rows in parts of the inner dimension, `[parts, rows, outputs]`.
    fn product_parts(&mut self, w: &Tensor, x: &Activation) -> Activation {
        let (rows, [outputs, inner]) = (x.shape()[0], [0, 1].map(|axis| w.shape()[axis]));
        let parts = self.activation_of(Scalar::F32, &[parts_of(outputs, inner), rows, outputs]);
        let operands = [x.into(), w.into(), (&parts).into()];
        let suffix = format!("-ROWS={}", skinny_rows(rows));
        self.launch(Family::Matmul, "linear_parts", &suffix, operands);
        parts
    }

    /// `hidden +=` the sum of `parts`, if there are some, then `norm(hidden) * w`.
    fn parts_joined(
        &mut self,
        parts: Option<&Activation>,
        hidden: &Activation,
        w: &Tensor,
        eps: f32,
    ) -> Activation {
        let Some(parts) = parts else {
            return self.normed(hidden, w, eps);
        };
        let normed = self.activation(hidden.shape());
        let operands = [
            parts.into(),
            w.into(),
            hidden.into(),
            (&normed).into(),
            eps.into(),
        ];
        self.launch(Family::Norm, "join_rms_norm", "", operands);
        normed
    }

    /// `norm(hidden) · wᵀ`.
    fn normed_product(
        &mut self,
        hidden: &Activation,
        norm: &Tensor,
        w: &Tensor,
        eps: f32,
    ) -> Activation {
        let y = self.activation(&[hidden.shape()[0], w.shape()[0]]);
        let operands = [
            hidden.into(),
            norm.into(),
            w.into(),
            (&y).into(),
            eps.into(),
        ];
        if let (Some(suffix), 4096) = (self.ahead(w, true), w.shape()[1]) {
            let kernel = "norm_product_ahead";
            self.launch(Family::ProductsAhead, kernel, suffix, operands);
            return y;
        }
        let suffix = self.normed_lanes(w);
        self.launch(Family::Decode, "norm_product", &suffix, operands);
        y
    }

    /// `silu(gate) * up` of the two halves of `norm(hidden) · wᵀ`.
    fn normed_gated_product(
        &mut self,
        hidden: &Activation,
        norm: &Tensor,
        w: &Tensor,
        eps: f32,
    ) -> Activation {
        let y = self.activation(&[hidden.shape()[0], w.shape()[0] / 2]);
        let operands = [
            hidden.into(),
            norm.into(),
            w.into(),
            (&y).into(),
            eps.into(),
        ];
        if let (Some(suffix), 4096) = (self.ahead(w, false), w.shape()[1]) {
            let kernel = "norm_gated_product_ahead";
            self.launch(Family::ProductsAhead, kernel, suffix, operands);
            return y;
        }
        let suffix = self.normed_lanes(w);
        self.launch(Family::Decode, "norm_gated_product", &suffix, operands);
        y
    }

    /// `hidden += x · wᵀ`.
    fn product_add(&mut self, w: &Tensor, x: &Activation, hidden: &Activation) {
        let operands = [x.into(), w.into(), hidden.into()];
        if let Some(suffix) = self.ahead(w, false) {
            let kernel = "product_add_ahead";
            self.launch(Family::ProductsAhead, kernel, suffix, operands);
            return;
        }
        let suffix = self.early_lanes(w.shape()[1]);
        self.launch(Family::Decode, "product_add", &suffix, operands);
    }

    /// The instance of products that copy these weights ahead, with room for the attention that
    /// follows or without.
    fn ahead(&self, w: &Tensor, leaves_room: bool) -> Option<&'static str> {
        let [outputs, inner] = [0, 1].map(|axis| w.shape()[axis]);
        let is_of_route = self.has_ahead && self.route.dense_lanes(inner) == 256;
        ahead_instance(self.dtype, outputs, inner, leaves_room).filter(|_| is_of_route)
    }

    /// The instance of a product of normalised rows. Rows that the threads' early vectors hold are
    /// taken whole: short ones with so many outputs side by side that all workgroups run at once,
    /// long ones by workgroups that take tile after tile.
    fn normed_lanes(&self, w: &Tensor) -> String {
        let [outputs, inner] = [0, 1].map(|axis| w.shape()[axis]);
        let lanes = self.early_lanes(inner);
        match inner {
            0..=1024 if outputs.is_multiple_of(8) => format!("{lanes}-SIDE=8-WHOLE=true"),
            3072..=4096 if lanes.contains("=256") => format!("{lanes}-SIDE=2-WHOLE=true"),
            _ => format!("{lanes}-SIDE=4-WHOLE=false"),
        }
    }

    /// The instance of a fused product of rows of `inner` elements: threads that share an output,
    /// and how many vectors each loads before it waits.
    fn early_lanes(&self, inner: u64) -> String {
        match self.route.dense_lanes(inner) {
            256 => "-LANES=256-EARLY=2".to_owned(),
            lanes => format!("-LANES={lanes}-EARLY=1"),
        }
    }
}
