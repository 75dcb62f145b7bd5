//! Feed-forward blocks on a device.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::Device;

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
    down: Matrix,
}

impl GatedBlock {
    /// Uploads the weights.
    pub fn load(
        device: &Arc<dyn Device>,
        activation: config::Activation,
        weights: &GatedWeights,
        dtype: Scalar,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            activation,
            gate: Matrix::upload(device, &weights.gate, dtype)?,
            up: Matrix::upload(device, &weights.up, dtype)?,
            down: Matrix::upload(device, &weights.down, dtype)?,
        })
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
