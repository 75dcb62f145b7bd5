//! Mixtures of experts on a device.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Device, Tensor};

use super::feed_forward::GatedBlock;
use super::matrix::{Family, Matrix, failed, upload_dense};
use super::plan::{Activation, Planner};
use crate::config::Mixture;
use crate::model::ModelError;
use crate::weights::{MixtureWeights, WeightMatrix};

/// A router, the experts, and the one that every row shares.
pub struct MixtureBlock {
    config: Mixture,
    router: Matrix,
    /// `[experts]`: added to scores for the choice alone.
    score_bias: Tensor,
    /// `[experts, intermediate, hidden]`.
    gate: Tensor,
    /// As `gate`.
    up: Tensor,
    /// `[experts, hidden, intermediate]`.
    down: Tensor,
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
        let activation = config.activation;
        Ok(Self {
            router: Matrix::upload(device, &weights.router, dtype)?,
            score_bias: failed(Tensor::zeros(device, Scalar::F32, &[experts]))?,
            gate: stacked(&weights.gate)?,
            up: stacked(&weights.up)?,
            down: stacked(&weights.down)?,
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
        let logits = planner.projected(&self.router, x);
        let ids = planner.activation_of(Scalar::U32, &[rows, chosen]);
        let weights = planner.activation_of(Scalar::F32, &[rows, chosen]);
        let operands = [
            (&logits).into(),
            (&self.score_bias).into(),
            (&ids).into(),
            (&weights).into(),
            0u32.into(),
            u32::from(self.config.renormalise).into(),
            1.0f32.into(),
            1u32.into(),
            1u32.into(),
        ];
        planner.launch(Family::Moe, "route", "", operands);

        let one_input = x.reshape(&[rows, 1, hidden]);
        let gate = planner.expert_products(&self.gate, &one_input, &ids);
        let up = planner.expert_products(&self.up, &one_input, &ids);
        let active = planner.activated(self.config.activation, &gate, &up);
        let down = planner.expert_products(&self.down, &active, &ids);
        let routed = planner.activation(&[rows, hidden]);
        let operands = [(&down).into(), (&weights).into(), (&routed).into()];
        planner.launch(Family::Moe, "weighted_sum", "", operands);

        let Some(shared) = &self.shared else {
            return routed;
        };
        let shared = shared.record(planner, x);
        let sum = planner.activation(&[rows, hidden]);
        match &self.shared_gate {
            Some(gate) => {
                let gate = planner.projected(gate, x);
                let operands = [
                    (&routed).into(),
                    (&shared).into(),
                    (&gate).into(),
                    (&sum).into(),
                ];
                planner.launch(Family::Moe, "add_gated", "", operands);
            }
            None => {
                let operands = [
                    routed.flat().into(),
                    shared.flat().into(),
                    sum.flat().into(),
                ];
                planner.launch(Family::Elementwise, "add", "", operands);
            }
        }
        sum
    }
}

impl Planner {
    /// The products of `x` `[rows, 1 or chosen, inner]` with each row's experts,
    /// `[rows, chosen, outputs]`.
    fn expert_products(&mut self, w: &Tensor, x: &Activation, ids: &Activation) -> Activation {
        let [rows, chosen] = [ids.shape()[0], ids.shape()[1]];
        let y = self.activation(&[rows, chosen, w.shape()[1]]);
        let lanes = format!("-LANES={}", self.route.lanes());
        let operands = [x.into(), w.into(), ids.into(), (&y).into()];
        self.launch(Family::Moe, "expert_matvec", &lanes, operands);
        y
    }
}
