//! Feed-forward blocks on a device.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Device, Tensor};

use super::matrix::{Family, Matrix};
use super::plan::{Activation, Planner};
use crate::config;
use crate::model::ModelError;
use crate::weights::GatedWeights;

/// `down(activation(gate(x)) * up(x))`.
pub struct GatedBlock {
    activation: config::Activation,
    gate: Matrix,
    up: Matrix,
    /// The rows of the two, where they are dense.
    gate_up: Option<Tensor>,
    /// The projection out of the block.
    pub down: Matrix,
}

impl GatedBlock {
    /// Uploads the weights.
    pub fn load(
        device: &Arc<dyn Device>,
        activation: config::Activation,
        weights: &GatedWeights,
        dtype: Scalar,
    ) -> Result<Self, ModelError> {
        let projections = [&weights.gate, &weights.up];
        let ([gate, up], gate_up) = Matrix::upload_stacked(device, projections, dtype)?;
        Ok(Self {
            activation,
            gate,
            up,
            gate_up,
            down: Matrix::upload(device, &weights.down, dtype)?,
        })
    }

    /// Gate and up projection one after the other, where both are dense and the activation is
    /// that of the fused kernels.
    pub fn stacked(&self) -> Option<&Tensor> {
        let has_kernel = self.activation == config::Activation::Silu;
        self.gate_up.as_ref().filter(|_| has_kernel)
    }

    /// Records the block on rows `x`; gives its output, `[rows, hidden]`.
    pub fn record(&self, planner: &mut Planner, x: &Activation) -> Activation {
        let gate = planner.projected(&self.gate, x);
        let up = planner.projected(&self.up, x);
        let active = planner.activated(self.activation, &gate, &up);
        planner.projected(&self.down, &active)
    }
}

impl Planner {
    /// `activation(gate) * up`, element by element.
    pub fn activated(
        &mut self,
        activation: config::Activation,
        gate: &Activation,
        up: &Activation,
    ) -> Activation {
        let kernel = match activation {
            config::Activation::Silu => "silu_mul",
            config::Activation::GeluTanh => "gelu_tanh_mul",
        };
        let active = self.activation(gate.shape());
        let operands = [gate.flat().into(), up.flat().into(), active.flat().into()];
        self.launch(Family::Elementwise, kernel, "", operands);
        active
    }
}
