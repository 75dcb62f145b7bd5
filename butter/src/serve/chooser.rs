//! How the tokens of one answer are chosen: grammar, then sampler, then log-probabilities.

use super::grammar::Mask;
use crate::model::RowOutput;
use crate::sampler::{Draw, Sampler, TokenHistory, token_logprobs};
use crate::scheduler::{Choice, Choose, Failure};

/// Chooses the tokens of one answer.
pub struct Chooser {
    sampler: Sampler,
    history: TokenHistory,
    mask: Option<Mask>,
    /// Likeliest tokens to list beside each; `None`: no log-probabilities.
    top: Option<usize>,
}

impl Chooser {
    /// A chooser for the answer to a prompt.
    pub fn new(sampler: Sampler, prompt: &[u32], mask: Option<Mask>, top: Option<usize>) -> Self {
        Self {
            sampler,
            history: TokenHistory::new(prompt),
            mask,
            top,
        }
    }
}

impl Choose for Chooser {
    fn wants_logits(&self) -> bool {
        self.mask.is_some() || self.top.is_some()
    }

    fn wants_draw(&self) -> bool {
        self.sampler.row_output() != RowOutput::Greedy && !self.wants_logits()
    }

    fn draw(&self) -> Option<Draw> {
        self.wants_draw().then(|| self.sampler.draw(&self.history))
    }

    fn take(&mut self, token: u32) {
        self.history.push(token);
    }

    fn choose(&mut self, mut logits: Vec<f32>) -> Result<Choice, Failure> {
        let model = self.top.map(|_| logits.clone());
        if let Some(mask) = &mut self.mask {
            mask.apply(&mut logits).map_err(Failure::Grammar)?;
        }
        let token = self
            .sampler
            .choose(&logits, &self.history)
            .map_err(|error| Failure::Row(error.to_string()))?;
        let mut choice = Choice::token(token);
        if let (Some(top), Some(logits)) = (self.top, model) {
            let found = token_logprobs(&logits, token, top)
                .map_err(|error| Failure::Row(error.to_string()))?;
            choice.logprob = Some(found.logprob);
            choice.top = found.top;
        }
        if let Some(mask) = &mut self.mask {
            choice.last = mask.take(token).map_err(Failure::Grammar)?;
        }
        self.history.push(token);
        Ok(choice)
    }
}
