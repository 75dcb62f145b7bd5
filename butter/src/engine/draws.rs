//! Tokens that are drawn where the logits are: what the host writes before a step, and the
//! launches.

use std::sync::Arc;

use iron_corpus::sampling::{
    ABOVE, BELOW, FREQUENCY, IS_DRAWN, IS_SEEN, LEAST_WEIGHT, PRESENCE, RANDOM, SCALE, SETTINGS,
    TOP_K, TOP_P, TYPICAL_P,
};
use iron_ir::Scalar;
use iron_ir::launch::AsTensorArg;
use iron_runtime::{Device, Tensor};

use super::matrix::{Family, failed};
use super::plan::{Activation, Planner};
use crate::model::ModelError;
use crate::sampler::Draw;

/// Numbers of changed logits that steps are recorded for; with more, the host draws.
const CLASSES: [usize; 4] = [0, 1 << 10, 1 << 13, 1 << 16];

/// What the host writes before a step that draws.
pub struct DrawInputs {
    /// `[max_step_rows, SETTINGS]`.
    settings: Tensor,
    /// Rows, tokens, biases and counts of changed logits, each as long as the class.
    changes: Tensor,
}

/// The same, as a step's launches take it.
pub struct StepDraws {
    /// `[outputs, SETTINGS]`.
    settings: Tensor,
    /// Rows, tokens, biases, counts; none where no logit changes.
    changes: Option<[Tensor; 4]>,
}

/// The class of steps whose draws change so many logits, if there is one.
pub fn class_of<'d>(draws: impl IntoIterator<Item = &'d Draw>) -> Option<usize> {
    let changes: usize = draws.into_iter().map(|draw| draw.changed.len()).sum();
    CLASSES.into_iter().find(|class| changes <= *class)
}

impl DrawInputs {
    /// Buffers for steps of up to `rows` rows.
    pub fn new(device: &Arc<dyn Device>, rows: usize) -> Result<Self, ModelError> {
        let words = |shape: &[u64]| failed(Tensor::zeros(device, Scalar::U32, shape));
        let most = CLASSES[CLASSES.len() - 1] as u64;
        Ok(Self {
            settings: words(&[rows as u64, u64::from(SETTINGS)])?,
            changes: words(&[4 * most])?,
        })
    }

    /// The classes whose steps have different kernels.
    pub const fn kinds() -> [usize; 2] {
        [CLASSES[0], CLASSES[1]]
    }

    /// What a step of a class with `outputs` outputs takes.
    pub fn of_step(&self, outputs: usize, class: usize) -> Result<StepDraws, ModelError> {
        let settings = failed(self.settings.slice(0, 0..outputs as u64))?;
        if class == 0 {
            let changes = None;
            return Ok(StepDraws { settings, changes });
        }
        let n = class as u64;
        let part = |i: u64| failed(self.changes.slice(0, i * n..(i + 1) * n));
        let mut bias = part(2)?.tensor_arg();
        bias.scalar = Scalar::F32;
        let bias = failed(Tensor::from_view(self.changes.device(), bias))?;
        let changes = Some([part(0)?, part(1)?, bias, part(3)?]);
        Ok(StepDraws { settings, changes })
    }

    /// Writes the draws of a step's outputs; `None` where another choice is wanted.
    pub fn write(&self, draws: &[Option<&Draw>], class: usize) -> Result<(), ModelError> {
        let columns = SETTINGS as usize;
        let mut settings = vec![0u32; draws.len() * columns];
        // Rows that there are not: what no change is written for.
        let mut changes = vec![u32::MAX; 4 * class];
        let mut written = 0;
        for (row, draw) in draws.iter().enumerate() {
            let Some(draw) = draw else {
                continue;
            };
            // A part of 2^32, at least 1, less 1.
            let part = |part: u64| (part - 1) as u32;
            for (column, value) in [
                (IS_DRAWN, 1),
                (SCALE, draw.scale.to_bits()),
                (LEAST_WEIGHT, draw.min_weight),
                (TOP_K, draw.top_k),
                (TOP_P, part(draw.top_p)),
                (TYPICAL_P, part(draw.typical_p)),
                (RANDOM, draw.random),
                (ABOVE, draw.above.to_bits()),
                (BELOW, draw.below.to_bits()),
                (FREQUENCY, draw.frequency.to_bits()),
                (PRESENCE, draw.presence.to_bits()),
            ] {
                settings[row * columns + column as usize] = value;
            }
            for change in &draw.changed {
                let seen = if change.is_seen { IS_SEEN } else { 0 };
                changes[written] = row as u32;
                changes[class + written] = change.token;
                changes[2 * class + written] = change.bias.to_bits();
                changes[3 * class + written] = seen | change.count.min(IS_SEEN - 1);
                written += 1;
            }
        }
        let write = |to: &Tensor, words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            failed(to.write_bytes(&bytes))
        };
        write(
            &failed(self.settings.slice(0, 0..draws.len() as u64))?,
            &settings,
        )?;
        if class > 0 {
            let used = failed(self.changes.slice(0, 0..4 * class as u64))?;
            write(&used, &changes)?;
        }
        Ok(())
    }
}

impl Planner {
    /// Draws the tokens of rows of logits whose settings ask for it; the others stay.
    pub fn drawn(&mut self, draws: &StepDraws, logits: &Activation, tokens: &Tensor) {
        let mut row = logits.clone();
        if draws.changes.is_some() || self.dtype != Scalar::F32 {
            row = self.activation_of(Scalar::F32, logits.shape());
            let operands = [logits.into(), (&row).into()];
            self.launch(Family::Sampling, "widen_logits", "", operands);
        }
        if let Some([row_of, token, bias, counts]) = &draws.changes {
            let operands = [
                row_of.into(),
                token.into(),
                bias.into(),
                counts.into(),
                (&draws.settings).into(),
                (&row).into(),
            ];
            self.launch_instance(Family::Sampling, "change_logits", "", operands);
        }
        let operands = [(&row).into(), (&draws.settings).into(), tokens.into()];
        self.launch_instance(Family::Sampling, "draw_rows", "", operands);
    }
}
