//! Who proposes tokens for the requests that decode, and when.
//!
//! A request's step holds its known token and behind it the tokens proposed, `verify_rows` rows at
//! most; each row's choice is made exactly as plain decoding makes it, in order, until one is not
//! the next row's token. What is proposed is certain, not drawn, so that this is the rule of
//! Leviathan et al. ("Fast Inference from Transformers via Speculative Decoding"): a proposal is
//! accepted with the target's probability of it. And because the choice is plain decoding's, of
//! the same logits with the same random number, greedy and sampled answers keep their tokens,
//! log-probabilities, grammars and stops; a proposer decides only how many steps they take.

use std::collections::HashMap;
use std::sync::Arc;

use super::lease::{Lease, LeaseCounters};
use crate::model::{Model, ModelError, RowOutput, RowResult, StepRow};
use crate::speculate::{MOST_ROWS, Propose, Text, VERIFY_ROWS};

/// How the requests of a scheduler speculate.
pub struct Speculator {
    /// Who proposes.
    pub proposer: Box<dyn Propose>,
    /// Rows of one verification, of [`VERIFY_ROWS`]; others are taken for the nearest.
    pub verify_rows: usize,
    /// Requests that may decode in a step that speculates; where more do, rows of other requests
    /// fill the step and nobody speculates.
    pub max_running: usize,
}

impl Speculator {
    /// Proposals of a verification.
    pub(super) fn proposal_count(&self) -> usize {
        self.verify_rows
            .clamp(*VERIFY_ROWS.start(), *VERIFY_ROWS.end())
            - 1
    }
}

/// A smaller model with the same vocabulary, which decodes ahead for all requests in common steps.
pub struct DraftModels {
    model: Box<dyn Model>,
    held: HashMap<u64, Draft>,
    /// Rows of prompts that it takes in a turn beside its own decoding.
    budget: usize,
    leases: Arc<LeaseCounters>,
}

/// What a draft model holds for a request.
enum Draft {
    /// A sequence of these tokens.
    Open(Lease, Vec<u32>),
    /// It has failed or there was no room: this request has no draft.
    Refused,
}

impl DraftModels {
    /// A model as proposer; its sequences are counted by `leases`. `budget` are the prompt rows
    /// of a turn: a request whose text has not entered decodes alone until it has.
    pub fn new(model: Box<dyn Model>, budget: usize, leases: Arc<LeaseCounters>) -> Self {
        Self {
            model,
            held: HashMap::new(),
            budget: budget.max(1),
            leases,
        }
    }

    /// Opens a sequence for a text, or cuts the one that it has to what the two have in common.
    fn follow(&mut self, text: &Text<'_>) -> Result<(), ModelError> {
        let model = self.model.as_mut();
        match self.held.get_mut(&text.request) {
            Some(Draft::Refused) => {}
            Some(Draft::Open(lease, entered)) => {
                let pairs = entered.iter().zip(text.tokens);
                // The last token enters again: its row is the one that proposes.
                let most = text.tokens.len().saturating_sub(1);
                let common = pairs.take_while(|(a, b)| a == b).count().min(most);
                if common < entered.len() {
                    let left = model.truncate_sequence(lease.sequence(), common)?;
                    entered.truncate(left);
                }
            }
            None => {
                let positions = text.positions.min(model.context_length());
                let block = model.capacity().block;
                let lease = Lease::take(model, positions, block, &self.leases)?;
                self.held
                    .insert(text.request, Draft::Open(lease, Vec::new()));
            }
        }
        Ok(())
    }

    /// The rows that enter a text's missing tokens, at most `most`; the last of all gives a token.
    fn rows(&self, request: u64, tokens: &[u32], most: usize) -> Vec<StepRow> {
        let Some(Draft::Open(lease, entered)) = self.held.get(&request) else {
            return Vec::new();
        };
        let end = tokens.len().min(entered.len() + most);
        if end > self.model.context_length() {
            return Vec::new();
        }
        let row = |position: usize| StepRow {
            sequence: lease.sequence(),
            token: tokens[position],
            position: position as u32,
            output: match position + 1 == tokens.len() {
                true => RowOutput::Greedy,
                false => RowOutput::Nothing,
            },
        };
        (entered.len()..end).map(row).collect()
    }

    /// A step of rows of several requests, after which each holds the tokens that entered.
    fn step(&mut self, parts: &[(u64, Vec<StepRow>)]) -> Result<Vec<RowResult>, ModelError> {
        let rows: Vec<StepRow> = parts.iter().flat_map(|(_, rows)| rows.clone()).collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let results = self.model.step(&rows)?;
        for (request, rows) in parts {
            if let Some(Draft::Open(_, entered)) = self.held.get_mut(request) {
                entered.extend(rows.iter().map(|row| row.token));
            }
        }
        Ok(results)
    }

    /// Takes the draft away from requests; the others go on.
    fn refuse(&mut self, requests: impl IntoIterator<Item = u64>, error: &ModelError) {
        tracing::warn!(%error, "the draft model failed; its requests go on without");
        for request in requests {
            self.forget(request);
            self.held.insert(request, Draft::Refused);
        }
    }

    /// Enters the texts' tokens up to the budget; which of them are there but for a few rows.
    fn catch_up(&mut self, texts: &[Text<'_>]) -> Vec<bool> {
        let mut budget = self.budget;
        let most = self.model.max_step_rows().max(1);
        let ready = MOST_ROWS.min(most);
        let mut is_ready = Vec::with_capacity(texts.len());
        for text in texts {
            if text.count == 0 {
                is_ready.push(false);
                continue;
            }
            if let Err(error) = self.follow(text) {
                self.refuse([text.request], &error);
            }
            loop {
                let missing = match self.held.get(&text.request) {
                    Some(Draft::Open(_, entered)) => text.tokens.len() - entered.len(),
                    _ => usize::MAX,
                };
                let rows = (missing - 1).min(most).min(budget);
                if missing <= ready || missing == usize::MAX || rows == 0 {
                    is_ready.push(missing <= ready);
                    break;
                }
                let rows = self.rows(text.request, text.tokens, rows);
                if rows.is_empty() {
                    is_ready.push(false);
                    break;
                }
                budget -= rows.len();
                if let Err(error) = self.step(&[(text.request, rows)]) {
                    self.refuse([text.request], &error);
                }
            }
        }
        is_ready
    }
}

impl Propose for DraftModels {
    fn propose_all(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>> {
        let is_ready = self.catch_up(texts);
        let mut lists: Vec<Vec<u32>> = texts.iter().map(|text| text.tokens.to_vec()).collect();
        let most = self.model.max_step_rows().max(1);
        let vocab_size = self.model.vocab_size();
        let ready = (0..texts.len()).filter(|&i| is_ready[i]);
        let mut active: Vec<usize> = ready.collect();
        loop {
            active.retain(|&i| lists[i].len() < texts[i].tokens.len() + texts[i].count);
            // Rows of as many as one step takes; the others come in the next.
            let mut next = Vec::new();
            let mut waiting = active.as_slice();
            while !waiting.is_empty() {
                let (mut parts, mut count, mut taken) = (Vec::new(), 0, 0);
                for &i in waiting {
                    let rows = self.rows(texts[i].request, &lists[i], MOST_ROWS);
                    if !parts.is_empty() && count + rows.len() > most {
                        break;
                    }
                    count += rows.len();
                    taken += 1;
                    if !rows.is_empty() {
                        parts.push((i, (texts[i].request, rows)));
                    }
                }
                waiting = &waiting[taken..];
                let (places, parts): (Vec<usize>, Vec<_>) = parts.into_iter().unzip();
                match self.step(&parts) {
                    Ok(results) => {
                        for (i, result) in places.into_iter().zip(results) {
                            // A row that gives no choice proposes nothing.
                            if let RowResult::Token(token) = result
                                && (token as usize) < vocab_size
                            {
                                lists[i].push(token);
                                next.push(i);
                            }
                        }
                    }
                    Err(error) => {
                        self.refuse(parts.into_iter().map(|(request, _)| request), &error)
                    }
                }
            }
            if next.is_empty() {
                break;
            }
            active = next;
        }
        let pairs = lists.into_iter().zip(texts);
        pairs
            .map(|(mut list, text)| list.split_off(text.tokens.len()))
            .collect()
    }

    fn forget(&mut self, request: u64) {
        if let Some(Draft::Open(lease, _)) = self.held.remove(&request) {
            lease.release(self.model.as_mut());
        }
    }
}

impl Drop for DraftModels {
    fn drop(&mut self) {
        for (_, draft) in self.held.drain() {
            if let Draft::Open(lease, _) = draft {
                lease.release(self.model.as_mut());
            }
        }
    }
}
