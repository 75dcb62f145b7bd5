//! Mixtures of experts on a device.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Device, Tensor};

use super::feed_forward::GatedBlock;
use super::matrix::{Family, Matrix, failed, upload_dense, upload_vector};
use super::plan::{Activation, Operand, Planner};
use crate::config::{Mixture, Scoring};
use crate::model::ModelError;
use crate::weights::{MixtureWeights, WeightMatrix};

/// A router, the experts, and the one that every row shares.
pub struct MixtureBlock {
    config: Mixture,
    router: Matrix,
    /// `[experts]`.
    router_bias: Option<Tensor>,
    /// `[experts]`: added to scores for the choice alone.
    score_bias: Tensor,
    /// `[experts, intermediate, hidden]`; `None` where experts have no gate.
    gate: Option<Tensor>,
    /// As `gate`.
    up: Tensor,
    /// `[experts, hidden, intermediate]`.
    down: Tensor,
    /// Of gate, up and down, `[experts, outputs]` each.
    biases: Option<[Tensor; 3]>,
    shared: Option<GatedBlock>,
    shared_gate: Option<Matrix>,
}

impl MixtureBlock {
    /// Uploads the weights.
    pub fn load(
        device: &Arc<dyn Device>,
        config: &Mixture,
        weights: &MixtureWeights,
        dtype: Scalar,
    ) -> Result<Self, ModelError> {
        let experts = config.expert_count as u64;
        let stacked = |matrix: &WeightMatrix| {
            let rows = matrix.rows() as u64 / experts;
            let shape = [experts, rows, matrix.columns() as u64];
            upload_dense(device, matrix, dtype, &shape)
        };
        let bias = |matrix: &WeightMatrix| {
            let elements = (matrix.rows() * matrix.columns()) as u64;
            let shape = [experts, elements / experts.max(1)];
            upload_dense(device, matrix, dtype, &shape)
        };
        let activation = config.activation;
        Ok(Self {
            router: Matrix::upload(device, &weights.router, dtype)?,
            router_bias: match &weights.router_bias {
                Some(bias) => Some(upload_vector(device, bias, dtype)?),
                None => None,
            },
            score_bias: match &weights.score_bias {
                Some(bias) => upload_vector(device, bias, Scalar::F32)?,
                None => failed(Tensor::zeros(device, Scalar::F32, &[experts]))?,
            },
            gate: config.gated.then(|| stacked(&weights.gate)).transpose()?,
            up: stacked(&weights.up)?,
            down: stacked(&weights.down)?,
            biases: match &weights.biases {
                Some([gate, up, down]) => Some([bias(gate)?, bias(up)?, bias(down)?]),
                None => None,
            },
            shared: match &weights.shared {
                Some(shared) => Some(GatedBlock::load(device, activation, shared, dtype)?),
                None => None,
            },
            shared_gate: match &weights.shared_gate {
                Some(gate) => Some(Matrix::upload(device, gate, dtype)?),
                None => None,
            },
            config: config.clone(),
        })
    }

    /// Records the block on rows `x`; gives its output, `[rows, hidden]`.
    pub fn record(&self, planner: &mut Planner, x: &Activation) -> Activation {
        let [rows, hidden] = [x.shape()[0], x.shape()[1]];
        let chosen = self.config.experts_per_token as u64;
        let mut logits = planner.projected(&self.router, x);
        if let Some(bias) = &self.router_bias {
            logits = planner.biased(&logits, bias);
        }
        let ids = planner.activation_of(Scalar::U32, &[rows, chosen]);
        let weights = planner.activation_of(Scalar::F32, &[rows, chosen]);
        let operands = [
            (&logits).into(),
            (&self.score_bias).into(),
            (&ids).into(),
            (&weights).into(),
            u32::from(self.config.scoring == Scoring::Sigmoid).into(),
            u32::from(self.config.renormalise).into(),
            self.config.scale.into(),
            (self.config.groups.0 as u32).into(),
            (self.config.groups.1 as u32).into(),
        ];
        planner.launch(Family::Moe, "route", "", operands);

        let one_input = x.reshape(&[rows, 1, hidden]);
        let gate = self.gate.as_ref();
        let gate = gate.map(|gate| self.product(planner, gate, &one_input, &ids, 0));
        let up = self.product(planner, &self.up, &one_input, &ids, 1);
        let active = match gate {
            Some(gate) => planner.activated(self.config.activation, &gate, &up),
            None => planner.activated_alone(self.config.activation, &up),
        };
        let down = self.product(planner, &self.down, &active, &ids, 2);
        let routed = planner.activation(&[rows, hidden]);
        let operands = [(&down).into(), (&weights).into(), (&routed).into()];
        planner.launch(Family::Moe, "weighted_sum", "", operands);

        let Some(shared) = &self.shared else {
            return routed;
        };
        let shared = shared.record(planner, x);
        let Some(gate) = &self.shared_gate else {
            return planner.added(&routed, &shared);
        };
        let gate = planner.projected(gate, x);
        let sum = planner.activation(&[rows, hidden]);
        let operands = [
            (&routed).into(),
            (&shared).into(),
            (&gate).into(),
            (&sum).into(),
        ];
        planner.launch(Family::Moe, "add_gated", "", operands);
        sum
    }
}

impl MixtureBlock {
    /// The products of `x` with each row's experts `ids`, and the bias at `place` if there are
    /// biases.
    fn product(
        &self,
        planner: &mut Planner,
        w: &Tensor,
        x: &Activation,
        ids: &Activation,
        place: usize,
    ) -> Activation {
        let y = planner.expert_products(w, x, ids.into(), [ids.shape()[0], ids.shape()[1]]);
        let Some(biases) = &self.biases else {
            return y;
        };
        let biased = planner.activation(y.shape());
        let operands = [
            (&y).into(),
            (&biases[place]).into(),
            ids.into(),
            (&biased).into(),
        ];
        planner.launch(Family::Moe, "add_expert_bias", "", operands);
        biased
    }
}

impl Planner {
    /// The products of `x` `[rows, 1 or chosen, inner]` with the experts `ids` of each row,
    /// `[rows, chosen, outputs]`.
    pub fn expert_products(
        &mut self,
        w: &Tensor,
        x: &Activation,
        ids: Operand,
        [rows, chosen]: [u64; 2],
    ) -> Activation {
        let y = self.activation(&[rows, chosen, w.shape()[1]]);
        let lanes = format!("-LANES={}", self.route.lanes());
        let operands = [x.into(), w.into(), ids, (&y).into()];
        self.launch(Family::Moe, "expert_matvec", &lanes, operands);
        y
    }
}
