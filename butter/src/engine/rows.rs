//! Rows of a step: in runs of one sequence, in the steps that they run in, and what their lengths ask
//! of attention.

use std::collections::HashMap;

use iron_corpus::attention::most_splits;

use super::route::PROMPT_ROWS;
use crate::model::{ModelError, RowOutput, SequenceId, StepRow};
use crate::sampler::Draw;

/// The rows with those of each sequence side by side, sequences in the order of their first row,
/// and the place of each in `rows`.
pub(super) fn gathered(rows: &[StepRow]) -> (Vec<StepRow>, Vec<usize>) {
    let mut first: HashMap<SequenceId, usize> = HashMap::new();
    for (i, row) in rows.iter().enumerate() {
        first.entry(row.sequence).or_insert(i);
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&i| (first[&rows[i].sequence], i));
    (order.iter().map(|&i| rows[i]).collect(), order)
}

/// The runs of rows of one sequence, of rows that [`gathered`] gave.
pub(super) fn segments_of(rows: &[StepRow]) -> Vec<(SequenceId, std::ops::Range<usize>)> {
    let mut segments: Vec<(SequenceId, std::ops::Range<usize>)> = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        match segments.last_mut() {
            Some((id, range)) if *id == row.sequence => range.end = i + 1,
            _ => segments.push((row.sequence, i..i + 1)),
        }
    }
    segments
}

/// The draw of each row, where it wants one.
pub(super) fn draws_of<'d>(
    rows: &[StepRow],
    draws: &'d [Draw],
) -> Result<Vec<Option<&'d Draw>>, ModelError> {
    let wanted = |row: &&StepRow| row.output == RowOutput::Drawn;
    let drawn = rows.iter().filter(wanted).count();
    if drawn != draws.len() {
        return Err(ModelError::Draws {
            rows: drawn,
            draws: draws.len(),
        });
    }
    let mut draws = draws.iter();
    let of = |row: &StepRow| match row.output {
        RowOutput::Drawn => draws.next(),
        RowOutput::Nothing | RowOutput::Logits | RowOutput::Greedy => None,
    };
    Ok(rows.iter().map(of).collect())
}

/// Splits of the attention for rows of up to `longest` positions and heads of any size: a power
/// of two, so that a growing context meets few keys.
pub(super) fn splits_of(longest: usize) -> usize {
    let most = most_splits(longest.try_into().unwrap_or(u32::MAX), u32::MAX);
    most.next_power_of_two() as usize
}

/// [`StepKey::reach`](super::step::StepKey::reach) of rows of up to `longest` positions.
pub(super) fn reach_of(longest: usize) -> usize {
    longest.next_power_of_two().max(64)
}

/// Gathered rows in the steps that they run in, and whether each is a prompt's: a run of
/// [`PROMPT_ROWS`] rows of one sequence has a step of its own, so that its results do not depend
/// on what else runs; all others share one.
pub(super) fn groups_of(rows: &[StepRow]) -> Vec<(bool, Vec<usize>)> {
    let mut groups = Vec::new();
    let mut others = Vec::new();
    for (_, range) in segments_of(rows) {
        if range.len() >= PROMPT_ROWS {
            groups.push((true, range.collect()));
        } else {
            others.extend(range);
        }
    }
    if !others.is_empty() {
        groups.push((false, others));
    }
    groups
}
