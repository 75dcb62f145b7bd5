//! Feed-forward blocks on a device.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Device, Tensor};

use super::matrix::{Family, Matrix};
use super::plan::{Activation, Planner};
use crate::config;
use crate::model::ModelError;
use crate::weights::GatedWeights;

/// `down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))` without a gate.
pub struct GatedBlock {
    activation: config::Activation,
    gate: Option<Matrix>,
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
        let (gate, up, gate_up) = match weights.gate.rows() {
            0 => (None, Matrix::upload(device, &weights.up, dtype)?, None),
            _ => {
                let projections = [&weights.gate, &weights.up];
                let ([gate, up], both) = Matrix::upload_stacked(device, projections, dtype)?;
                (Some(gate), up, both)
            }
        };
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
        let gate = self.gate.as_ref().map(|gate| planner.projected(gate, x));
        let up = planner.projected(&self.up, x);
        let active = match gate {
            Some(gate) => planner.activated(self.activation, &gate, &up),
            None => planner.activated_alone(self.activation, &up),
        };
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
        let active = self.activation(gate.shape());
        let mut operands = vec![gate.flat().into(), up.flat().into(), active.flat().into()];
        let kernel = match activation {
            config::Activation::Silu => "silu_mul",
            config::Activation::GeluTanh => "gelu_tanh_mul",
            config::Activation::ReluSquared => {
                operands[0] = self.activated_alone(activation, gate).flat().into();
                "multiply"
            }
            config::Activation::ClampedSwiGlu { limit, alpha } => {
                operands.extend([limit.into(), alpha.into()]);
                "clamped_swiglu"
            }
        };
        self.launch(Family::Elementwise, kernel, "", operands);
        active
    }

    /// `activation(x)`, element by element, of the activations that need no gate.
    pub fn activated_alone(
        &mut self,
        activation: config::Activation,
        x: &Activation,
    ) -> Activation {
        debug_assert!(activation.stands_alone());
        let kernel = match activation {
            config::Activation::GeluTanh => "gelu_tanh",
            _ => "relu_squared",
        };
        let active = self.activation(x.shape());
        let operands = [x.flat().into(), active.flat().into()];
        self.launch(Family::Elementwise, kernel, "", operands);
        active
    }

    /// `a * b`, element by element.
    pub fn multiplied(&mut self, a: &Activation, b: &Activation) -> Activation {
        let product = self.activation(a.shape());
        let operands = [a.flat().into(), b.flat().into(), product.flat().into()];
        self.launch(Family::Elementwise, "multiply", "", operands);
        product
    }

    /// `a + b`, element by element.
    pub fn added(&mut self, a: &Activation, b: &Activation) -> Activation {
        let sum = self.activation(a.shape());
        let operands = [a.flat().into(), b.flat().into(), sum.flat().into()];
        self.launch(Family::Elementwise, "add", "", operands);
        sum
    }
}
