//! Steps of requests that decode: rows of all of them, with what is proposed to each.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};

use super::core::{End, Scheduler, output_at};
use super::request::{Choice, Failure, Request};
use crate::model::{ModelError, RowOutput, RowResult, StepRow};
use crate::speculate::{Entered, MOST_ROWS, Text};

/// Rows of a step that all requests share where fewer decode.
const COMMON_ROWS: usize = 64;

/// The rows of a request in a step.
pub(super) struct Group {
    /// Its place among those that run.
    index: usize,
    /// Tokens that are known, then those that are proposed.
    rows: Vec<StepRow>,
    /// How many of the rows are proposals.
    proposed: usize,
}

/// What came of a group's rows.
struct Verified {
    /// The tokens that its rows gave, up to the first that is not the next row's; the last may
    /// have failed.
    choices: Vec<Result<Choice, Failure>>,
    /// Rows whose tokens stand.
    kept: usize,
    /// Proposals that were shown to the model.
    proposed: usize,
}

/// What the model gave for a group's rows.
pub(super) type Given = Result<Vec<RowResult>, ModelError>;

/// How a request stands after its rows.
enum Settled {
    /// It ended.
    Ended(End),
    /// So many of the rows stand.
    GoesOn { kept: usize },
}

impl Group {
    /// Rows without proposals, of the request at a place among those that run.
    pub(super) fn known(index: usize, rows: Vec<StepRow>) -> Group {
        Group {
            index,
            rows,
            proposed: 0,
        }
    }

    /// Its request's place among those that run.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// The rows that hold no proposal.
    fn known_rows(&self) -> &[StepRow] {
        &self.rows[..self.rows.len() - self.proposed]
    }
}

impl Scheduler {
    /// One step for every request that decodes, and for short pieces of prompts beside them. Whose
    /// prompt it took a piece of is noted in `prefilled`.
    pub(super) fn decode(
        &mut self,
        now: &impl Fn() -> Instant,
        prefilled: &mut Vec<u64>,
    ) -> Result<(), ModelError> {
        let groups = self.groups();
        if groups.is_empty() {
            return Ok(());
        }
        for group in &groups {
            let request = &mut self.running[group.index];
            if request.is_prefilling() {
                request.receipt.prefill_steps += 1;
                prefilled.push(request.id);
            }
        }
        let begun = now();
        let step = self.step_groups(&groups);
        let at = now();
        self.metrics
            .decode_step
            .observe(at.saturating_duration_since(begun));
        self.take_step(&groups, step, at)
    }

    /// Each request of a step takes what its rows gave; whether the device answered.
    pub(super) fn take_step(
        &mut self,
        groups: &[Group],
        (outcome, is_common, results): (Result<(), ModelError>, bool, Vec<Given>),
        at: Instant,
    ) -> Result<(), ModelError> {
        let verified = self.verify(groups, results);
        let mut ended = Vec::new();
        let mut entered = Vec::new();
        for (group, verified) in groups.iter().zip(verified) {
            match self.settle(group, verified, at) {
                Settled::Ended(end) => ended.push((group.index, end)),
                Settled::GoesOn { kept } => entered.push((group, kept)),
            }
        }
        if is_common {
            self.report(&entered);
        }
        self.end_all(ended, at);
        outcome
    }

    /// Tells the proposer which rows of the last step stand: of each group how many.
    fn report(&mut self, rows: &[(&Group, usize)]) {
        let Some(speculator) = &mut self.speculator else {
            return;
        };
        let most = speculator.proposal_count();
        let entered = |&(group, kept): &(&Group, usize)| {
            let request: &Request = &self.running[group.index];
            let first = group.rows.first()?;
            let position = first.position as usize;
            let known = request.tokens.len();
            let end = (position + kept + 1).min(known);
            Some(Entered {
                request: request.id,
                sequence: first.sequence,
                position,
                following: request.tokens.get(position + 1..end)?,
                // What follows the last row is known; proposals come behind it.
                count: match known == position + kept + 1 {
                    true => most.min(left(request)),
                    false => 0,
                },
            })
        };
        let entered: Vec<Entered<'_>> = rows.iter().filter_map(entered).collect();
        speculator.proposer.entered(self.model.as_mut(), &entered);
    }

    /// The rows of the next step: what each request that decodes knows and has not entered,
    /// pieces of prompts that are as short, and proposals where few enough decode.
    fn groups(&mut self) -> Vec<Group> {
        let decoding = self
            .running
            .iter()
            .filter(|request| !request.is_prefilling());
        let decoding = decoding.count();
        // A row for each comes first; who is behind, or has a piece or proposals, takes what is
        // left.
        let most = self.model.max_step_rows();
        let mut room = most.min(decoding.max(COMMON_ROWS)).saturating_sub(decoding);
        let mut groups = Vec::with_capacity(decoding);
        for (index, request) in self.running.iter().enumerate() {
            if request.is_prefilling() {
                let rows = self.chunk_rows(request);
                if (1..=MOST_ROWS.min(room)).contains(&rows.len()) {
                    room -= rows.len();
                    groups.push(Group::known(index, rows));
                }
                continue;
            }
            let missing = request.tokens.len() - request.computed;
            let more = (missing.min(MOST_ROWS) - 1).min(room);
            room -= more;
            groups.push(Group::known(index, known_rows(request, 1 + more)));
        }
        let vocab_size = self.model.vocab_size();
        let Some(speculator) = &mut self.speculator else {
            return groups;
        };
        if decoding > speculator.max_running {
            return groups;
        }
        let most = speculator.proposal_count();
        let mut texts = Vec::new();
        for group in &groups {
            let request = &self.running[group.index];
            let is_whole = request.computed + group.rows.len() == request.tokens.len();
            let count = most
                .min(MOST_ROWS - group.rows.len())
                .min(left(request))
                .min(room);
            let count = match is_whole && !request.is_prefilling() {
                true => count,
                false => 0,
            };
            room -= count;
            texts.push(Text {
                request: request.id,
                tokens: &request.tokens,
                count,
                positions: request.positions(),
            });
        }
        let proposals = speculator.proposer.propose_all(&texts);
        let counts: Vec<usize> = texts.iter().map(|text| text.count).collect();
        for ((group, count), tokens) in groups.iter_mut().zip(counts).zip(proposals) {
            let Some(&last) = group.rows.last() else {
                continue;
            };
            // What no vocabulary has cannot be the target's choice.
            let known = tokens.into_iter().take(count);
            let known = known.take_while(|&token| (token as usize) < vocab_size);
            let row = |(i, token)| StepRow {
                token,
                position: last.position + 1 + i,
                ..last
            };
            let before = group.rows.len();
            group.rows.extend((0..).zip(known).map(row));
            group.proposed = group.rows.len() - before;
            if group.proposed > 0 {
                // What a row draws depends on the rows before it: the host draws one by one.
                for row in group.rows.iter_mut() {
                    if row.output == RowOutput::Drawn {
                        row.output = RowOutput::Logits;
                    }
                }
            }
        }
        groups
    }

    /// Runs all groups in one step, each by itself where that fails: whether the device answered,
    /// whether it was one step, and the results of each group.
    pub(super) fn step_groups(
        &mut self,
        groups: &[Group],
    ) -> (Result<(), ModelError>, bool, Vec<Given>) {
        let all: Vec<StepRow> = groups.iter().flat_map(|group| group.rows.clone()).collect();
        let error = match self.step(&all) {
            Ok(given) => {
                let mut given = given.into_iter();
                let mut of = |group: &Group| {
                    let count = group.rows.iter().filter(|row| wants_result(row)).count();
                    Ok(given.by_ref().take(count).collect())
                };
                return (Ok(()), true, groups.iter().map(&mut of).collect());
            }
            // There is nothing to tell apart.
            Err(error) if groups.len() == 1 && groups[0].proposed == 0 => {
                return (Err(error.clone()), false, vec![Err(error)]);
            }
            Err(error) => error,
        };
        // No sequence has changed: alone, each request shows whether it is the one at fault, and
        // without what was proposed to it, whether that is.
        let results: Vec<_> = groups
            .iter()
            .map(|group| self.step(group.known_rows()))
            .collect();
        let outcome = match results.iter().any(Result::is_ok) {
            true => Ok(()),
            false => Err(error),
        };
        (outcome, false, results)
    }

    /// Chooses from the results of all groups: from logits side by side, since a vocabulary's
    /// worth of them takes a core a while.
    fn verify(
        &mut self,
        groups: &[Group],
        results: Vec<Given>,
    ) -> Vec<Result<Verified, ModelError>> {
        type Work<'a> = (
            &'a mut Request,
            &'a Group,
            Result<Vec<RowResult>, ModelError>,
        );
        let mut requests = self.running.iter_mut().enumerate();
        let mut work: Vec<Work<'_>> = groups
            .iter()
            .zip(results)
            .filter_map(|(group, result)| {
                let (_, request) = requests.find(|(index, _)| *index == group.index)?;
                Some((request, group, result))
            })
            .collect();
        let one = |(request, group, result): &mut Work<'_>| {
            let results = std::mem::replace(result, Ok(Vec::new()))?;
            Ok(verified(request, group, results))
        };
        let with_logits = |(_, _, result): &&Work<'_>| matches!(result, Ok(results) if matches!(results.first(), Some(RowResult::Logits(_))));
        if work.iter().filter(with_logits).count() > 1 {
            work.par_iter_mut().map(one).collect()
        } else {
            work.iter_mut().map(one).collect()
        }
    }

    /// A request takes the tokens of its rows, and its sequence gives back the rows that do not
    /// stand; how the request ended, if it did.
    fn settle(
        &mut self,
        group: &Group,
        verified: Result<Verified, ModelError>,
        at: Instant,
    ) -> Settled {
        let failed =
            |error: ModelError| Settled::Ended(End::Failed(Failure::Device(error.to_string())));
        let verified = match verified {
            Ok(verified) => verified,
            Err(error) => return failed(error),
        };
        let known = group.known_rows().len();
        let request = &mut self.running[group.index];
        request.computed += verified.kept;
        if verified.proposed > 0 {
            let accepted = verified.kept - known;
            request.receipt.proposed_tokens += verified.proposed;
            request.receipt.accepted_tokens += accepted;
            let metrics = &self.metrics;
            metrics.verifications.fetch_add(1, Relaxed);
            metrics
                .proposed
                .fetch_add(verified.proposed as u64, Relaxed);
            metrics.accepted.fetch_add(accepted as u64, Relaxed);
        }
        if verified.kept < known + verified.proposed {
            // A state without positions goes back further: those tokens enter again.
            let sequence = group.rows[0].sequence;
            let left = self.model.truncate_sequence(sequence, request.computed);
            match left {
                Ok(left) => self.running[group.index].computed = left,
                Err(error) => return failed(error),
            }
        }
        let choices = verified.choices.into_iter();
        let mut ends = choices.filter_map(|choice| self.take(group.index, choice, at));
        match ends.next() {
            Some(end) => Settled::Ended(end),
            None => Settled::GoesOn {
                kept: verified.kept,
            },
        }
    }
}

/// The choices of a request's rows, in order, up to the first that is not the next row's token.
fn verified(request: &mut Request, group: &Group, results: Vec<RowResult>) -> Verified {
    let known = group.known_rows().len();
    // A step that was tried again holds no proposals.
    let wanted = group.rows.iter().filter(|row| wants_result(row)).count();
    let proposed = match results.len() == wanted {
        true => group.proposed,
        false => 0,
    };
    let is_missing = results.is_empty() && group.rows.iter().any(wants_result);
    let nothing = || Failure::Row("the step gave no result for this row".to_owned());
    let mut verified = Verified {
        choices: is_missing.then(|| Err(nothing())).into_iter().collect(),
        kept: known,
        proposed,
    };
    for (i, result) in results.into_iter().enumerate() {
        let choice = chosen(request, result);
        let goes_on = match &choice {
            Ok(choice) if i < proposed && !choice.last => {
                let ends = request.job.stop_tokens.contains(&choice.token);
                !ends && group.rows[known + i].token == choice.token
            }
            _ => false,
        };
        verified.choices.push(choice);
        if !goes_on {
            break;
        }
        verified.kept += 1;
    }
    verified
}

fn wants_result(row: &StepRow) -> bool {
    row.output != RowOutput::Nothing
}

fn chosen(request: &mut Request, result: RowResult) -> Result<Choice, Failure> {
    match result {
        RowResult::Token(token) => {
            request.job.chooser.take(token);
            Ok(Choice::token(token))
        }
        RowResult::Logits(logits) => request.job.chooser.choose(logits),
        RowResult::Failed(message) => Err(Failure::Row(message)),
    }
}

/// Tokens of the answer that may follow the next.
fn left(request: &Request) -> usize {
    let chosen = request.answer().len() + 1;
    request.job.max_tokens.saturating_sub(chosen)
}

/// The next `count` rows of a request that decodes.
fn known_rows(request: &Request, count: usize) -> Vec<StepRow> {
    let Some(lease) = &request.lease else {
        return Vec::new();
    };
    let row = |position: usize| StepRow {
        sequence: lease.sequence(),
        token: request.tokens[position],
        position: position as u32,
        output: output_at(request, position),
    };
    let first = request.computed;
    (first..first + count).map(row).collect()
}
