//! Rows of a step: in runs of one sequence, in the steps that they run in, in tiles, and what their
//! lengths ask of attention.

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

/// Gathered rows in the steps that they run in, and how many prompts each holds: runs of
/// [`PROMPT_ROWS`] rows of one sequence are prompts, up to `most` of which share a step if none
/// wants more than one result; all other rows share one. What a row gives does not depend on what
/// else its step holds.
pub(super) fn groups_of(rows: &[StepRow], most: usize) -> Vec<(usize, Vec<usize>)> {
    let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut open = None;
    let mut others = Vec::new();
    for (_, range) in segments_of(rows) {
        if range.len() < PROMPT_ROWS {
            others.extend(range);
            continue;
        }
        let wanted = rows[range.clone()].iter();
        let wanted = wanted.filter(|row| row.output != RowOutput::Nothing);
        let shares = wanted.count() <= 1 && most > 1;
        match open.filter(|&i: &usize| shares && groups[i].0 < most) {
            Some(i) => {
                groups[i].0 += 1;
                groups[i].1.extend(range);
            }
            None => {
                if shares {
                    open = Some(groups.len());
                }
                groups.push((1, range.collect()));
            }
        }
    }
    if !others.is_empty() {
        groups.push((0, others));
    }
    groups
}

/// Rows that a prompt's, or the prompts' of a step, are padded to, so that steps of many lengths
/// share a recording.
pub(super) fn padded_class(rows: usize) -> usize {
    let unit = match rows {
        0..128 => PROMPT_ROWS,
        128..512 => 4 * PROMPT_ROWS,
        _ => 8 * PROMPT_ROWS,
    };
    rows.next_multiple_of(unit)
}

/// Sizes of the tiles of the prompts' attention.
pub(super) const TILES: [usize; 2] = [PROMPT_ROWS, 128];

/// Tiles of `size` rows that a step of `rows` rows has at most, of `prompts` prompts or, where
/// there are several, of one more.
pub(super) fn most_tiles(rows: usize, prompts: usize, size: usize) -> usize {
    rows.div_ceil(size) + if prompts > 1 { prompts } else { 0 }
}

/// The tiles of prompts' rows: the first row and one past the last of each, and the place of each
/// row where tiles are whole.
pub(super) fn tiles_of(rows: &[StepRow], size: usize) -> (Vec<[u32; 2]>, Vec<u32>) {
    let mut tiles = Vec::new();
    let mut places = vec![0; rows.len()];
    for (_, range) in segments_of(rows) {
        for first in range.clone().step_by(size) {
            let end = range.end.min(first + size);
            let whole = (tiles.len() * size) as u32;
            for (place, at) in places[first..end].iter_mut().zip(whole..) {
                *place = at;
            }
            tiles.push([first as u32, end as u32]);
        }
    }
    (tiles, places)
}
