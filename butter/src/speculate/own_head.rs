//! Proposals of a checkpoint's own multi-token head.

use std::collections::HashMap;

use super::{Entered, Propose, Text};
use crate::model::{HeadRow, HiddenFrom, Model, ModelError, RowOutput, RowResult, SequenceId};

/// The target's multi-token head as proposer. It runs over every row that enters the target, so
/// that its cache is whole, and then over what it proposed itself, for one token more each time.
#[derive(Default, Debug)]
pub struct OwnHead {
    /// By request, what its last rows gave.
    proposals: HashMap<u64, Vec<u32>>,
    has_failed: bool,
}

impl OwnHead {
    /// Runs the head behind rows of the target's last step; gives each its proposals.
    fn run(target: &mut dyn Model, entered: &[Entered<'_>]) -> Result<Vec<Vec<u32>>, ModelError> {
        let mut rows = Vec::new();
        for rows_of in entered {
            let last = rows_of.following.len();
            let row = |(i, &token): (usize, &u32)| HeadRow {
                sequence: rows_of.sequence,
                token,
                position: (rows_of.position + i) as u32,
                from: HiddenFrom::Model,
                output: match i + 1 == last && rows_of.count > 0 {
                    true => RowOutput::Greedy,
                    false => RowOutput::Nothing,
                },
            };
            rows.extend(rows_of.following.iter().enumerate().map(row));
        }
        let mut lists = vec![Vec::new(); entered.len()];
        let wants = |i: &usize| entered[*i].count > 0 && !entered[*i].following.is_empty();
        let mut active: Vec<usize> = (0..entered.len()).filter(wants).collect();
        loop {
            let results = target.head_step(&rows)?;
            let mut next = Vec::new();
            rows.clear();
            for (&i, result) in active.iter().zip(results) {
                // A row that gives no choice proposes nothing more.
                let RowResult::Token(token) = result else {
                    continue;
                };
                lists[i].push(token);
                if lists[i].len() < entered[i].count {
                    next.push(i);
                    rows.push(row_behind(&entered[i], lists[i].len(), token));
                }
            }
            if next.is_empty() {
                return Ok(lists);
            }
            active = next;
        }
    }
}

/// The row that a head's own `proposed`-th token makes.
fn row_behind(entered: &Entered<'_>, proposed: usize, token: u32) -> HeadRow {
    let sequence: SequenceId = entered.sequence;
    HeadRow {
        sequence,
        token,
        position: (entered.position + entered.following.len() - 1 + proposed) as u32,
        from: HiddenFrom::Head,
        output: RowOutput::Greedy,
    }
}

impl Propose for OwnHead {
    fn propose_all(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>> {
        let mut of = |text: &Text<'_>| {
            let mut proposals = self.proposals.remove(&text.request).unwrap_or_default();
            proposals.truncate(text.count);
            proposals
        };
        texts.iter().map(&mut of).collect()
    }

    fn entered(&mut self, target: &mut dyn Model, entered: &[Entered<'_>]) {
        for rows in entered {
            self.proposals.remove(&rows.request);
        }
        match Self::run(target, entered) {
            Ok(lists) => {
                let pairs = entered.iter().map(|rows| rows.request).zip(lists);
                self.proposals.extend(pairs);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    tracing::warn!(%error, "the multi-token head failed; nothing is proposed");
                }
            }
        }
    }

    fn forget(&mut self, request: u64) {
        self.proposals.remove(&request);
    }
}
