//! Layers of plain attention and a gated feed-forward in few launches: five kernels and the
//! attention for rows that decode, stacked projections for prompts.
//!
//! The results are those of [`super::step`]'s own layers to the bit, where both sum products by
//! as many threads: the kernels keep every rounding.

use iron_corpus::decode::OUTPUTS;
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
            let projected = planner.activation(&[hidden.shape()[0], weights.shape()[0]]);
            let eps = self.config.norm_eps;
            planner.normed_product(
                "norm_product",
                hidden,
                layer.mixer_norm,
                weights,
                &projected,
                eps,
            );
            let attended =
                layer
                    .attention
                    .record_stacked(planner, step, &projected, &layer.stacked);
            planner.product_add(layer.output, &attended, hidden);
            let inner = layer.gate_up.shape()[0] / 2;
            let active = planner.activation(&[hidden.shape()[0], inner]);
            planner.normed_product(
                "norm_gated_product",
                hidden,
                layer.feed_forward_norm,
                layer.gate_up,
                &active,
                eps,
            );
            planner.product_add(layer.down, &active, hidden);
        }
    }

    /// All layers for many rows, a prompt's or those that decode together. Gives the last block's output, which has not joined
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
            let gate_up = planner.dense_product(layer.gate_up, &x);
            let active = planner.activation(&[x.shape()[0], layer.gate_up.shape()[0] / 2]);
            let operands = [(&gate_up).into(), (&active).into()];
            planner.launch(Family::Decode, "silu_mul_rows", "", operands);
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
        let y = planner.activation(&[hidden.shape()[0], w.shape()[0]]);
        planner.normed_product("norm_product", hidden, norm, w, &y, self.config.norm_eps);
        Some(y)
    }
}

impl Planner {
    fn dense_product(&mut self, w: &Tensor, x: &Activation) -> Activation {
        self.projected(&Matrix::Dense(w.clone()), x)
    }

    fn normed_product(
        &mut self,
        kernel: &str,
        hidden: &Activation,
        norm: &Tensor,
        w: &Tensor,
        y: &Activation,
        eps: f32,
    ) {
        let operands = [hidden.into(), norm.into(), w.into(), y.into(), eps.into()];
        let suffix = self.early_lanes(w.shape()[1]);
        self.launch(Family::Decode, kernel, &suffix, operands);
    }

    /// `hidden += x · wᵀ`.
    fn product_add(&mut self, w: &Tensor, x: &Activation, hidden: &Activation) {
        let operands = [x.into(), w.into(), hidden.into()];
        let suffix = self.early_lanes(w.shape()[1]);
        self.launch(Family::Decode, "product_add", &suffix, operands);
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
