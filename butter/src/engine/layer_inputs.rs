//! Inputs from the token itself that each layer has beside the residual stream (Gemma 4): a row
//! of a table and a projection of the embedding, together, cut into one part a layer.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Device, Tensor};

use super::matrix::{Family, Matrix, upload_vector};
use super::plan::{Activation, Planner};
use crate::config::{Activation as Gate, PerLayerInputs};
use crate::model::ModelError;
use crate::weights::{LayerInputWeights, PerLayerInputWeights};

/// What makes the inputs of all layers.
pub struct InputsBlock {
    size: u64,
    embedding: Matrix,
    projection: Matrix,
    norm: Tensor,
}

impl InputsBlock {
    /// Uploads the weights.
    pub fn load(
        device: &Arc<dyn Device>,
        config: &PerLayerInputs,
        weights: &PerLayerInputWeights,
        dtype: Scalar,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            size: config.size as u64,
            embedding: Matrix::upload(device, &weights.embedding, dtype)?,
            projection: Matrix::upload(device, &weights.projection, dtype)?,
            norm: upload_vector(device, &weights.norm, dtype)?,
        })
    }

    /// Records the inputs of all layers, `[rows, layers * size]`, from tokens and their scaled
    /// embeddings.
    pub fn record(
        &self,
        planner: &mut Planner,
        tokens: &Tensor,
        hidden: &Activation,
        eps: f32,
    ) -> Activation {
        let [rows, hidden_size] = [hidden.shape()[0], hidden.shape()[1]];
        let table = planner.activation(&[rows, self.projection.outputs()]);
        planner.gather(&self.embedding, tokens, &table);
        let table = planner.scaled(table, (self.size as f32).sqrt());
        let projected = planner.projected(&self.projection, hidden);
        let projected = planner.scaled(projected, (hidden_size as f32).sqrt().recip());
        let normed = planner.normed(&projected.rows_of(self.size), &self.norm, eps);
        let sum = planner.added(&normed.rows_of(table.shape()[1]), &table);
        planner.scaled(sum, std::f32::consts::FRAC_1_SQRT_2)
    }
}

/// What one layer does with its input.
pub struct LayerInputBlock {
    gate: Matrix,
    output: Matrix,
    norm: Tensor,
}

impl LayerInputBlock {
    /// Uploads the weights.
    pub fn load(
        device: &Arc<dyn Device>,
        weights: &LayerInputWeights,
        dtype: Scalar,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            gate: Matrix::upload(device, &weights.gate, dtype)?,
            output: Matrix::upload(device, &weights.output, dtype)?,
            norm: upload_vector(device, &weights.norm, dtype)?,
        })
    }

    /// Records what joins the residual stream `hidden` in layer `index`.
    pub fn record(
        &self,
        planner: &mut Planner,
        inputs: &Activation,
        index: usize,
        hidden: &Activation,
        eps: f32,
    ) -> Activation {
        let gate = planner.projected(&self.gate, hidden);
        let size = gate.shape()[1];
        let own = planner.activation(gate.shape());
        let operands = [
            inputs.columns(index as u64 * size, size).into(),
            (&own).into(),
        ];
        planner.launch(Family::Layout, "copy_strided", "", operands);
        let active = planner.activated(Gate::GeluTanh, &gate, &own);
        let y = planner.projected(&self.output, &active);
        planner.normed(&y, &self.norm, eps)
    }
}
