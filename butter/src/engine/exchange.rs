//! What goes between host and device each step: tokens and places in, chosen tokens out.

use std::sync::Arc;

use half::{bf16, f16};
use iron_ir::Scalar;
use iron_ir::launch::AsTensorArg;
use iron_runtime::{Device, Tensor};
use rayon::iter::ParallelIterator;
use rayon::slice::ParallelSlice;

use super::matrix::failed;
use super::route::PROMPT_ROWS;
use super::rows::{TILES, most_tiles, tiles_of};
use crate::model::{ModelError, RowOutput, RowResult, StepRow};

/// Steps of rows that advance by themselves, before the host reads their tokens.
pub const MOST_STEPS: usize = 256;

/// What the host writes before a step; one upload.
pub struct Inputs {
    /// The whole buffer.
    pub all: Tensor,
    /// `[max_step_rows]`.
    pub tokens: Tensor,
    /// `[max_step_rows]`.
    pub positions: Tensor,
    /// `[max_step_rows]`: rows of the block tables.
    pub sequences: Tensor,
    /// `[max_step_rows]`: rows whose logits are wanted.
    pub output_rows: Tensor,
    /// `[max_step_rows]`: the segment of each row.
    pub segment_of: Tensor,
    /// `[max_step_rows + 1]`: the first row of each segment, and one past the last.
    pub segment_starts: Tensor,
    /// `[max_step_rows]`: the slot of state that each segment continues.
    pub state_from: Tensor,
    /// `[max_step_rows]`: the slot that it leaves its own in.
    pub state_to: Tensor,
    /// `[max_step_rows]`: steps that the row has advanced by itself.
    pub step: Tensor,
    /// For each of [`TILES`], `[tiles, 2]`: the rows of each tile of prompts.
    pub tile_rows: [Tensor; 2],
    /// For each of them, `[max_step_rows]`: the place of each row where tiles are whole.
    pub tile_places: [Tensor; 2],
}

/// What the host reads after a step.
pub struct Results {
    /// The whole buffer.
    pub all: Tensor,
    /// `[max_step_rows]`: index of the largest logit.
    pub tokens: Tensor,
    /// `[max_step_rows]`: the largest logit, NaN where there is one.
    pub largest: Tensor,
    /// `[steps, max_step_rows]`: the tokens of rows that advance by themselves.
    pub history: Tensor,
    /// `[steps, max_step_rows]`: their logits.
    pub largest_history: Tensor,
}

/// Both, for steps of up to so many rows.
pub struct Exchange {
    /// Most rows.
    pub max: usize,
    /// What the host writes.
    pub inputs: Inputs,
    /// What the host reads.
    pub results: Results,
}

/// A row's place in the recurrent layers' states.
#[derive(Clone, Copy, Debug)]
pub struct SegmentPlace {
    /// One past its last row.
    pub end: usize,
    /// The slot that it continues.
    pub from: u32,
    /// The slot that it leaves its state in.
    pub to: u32,
}

impl Exchange {
    /// Buffers for `max` rows.
    pub fn new(device: &Arc<dyn Device>, max: usize) -> Result<Self, ModelError> {
        let rows = max as u64;
        let tiles = TILES.map(|size| tiles_in(max, size) as u64);
        let words = 11 * rows + 1 + 2 * (tiles[0] + tiles[1]);
        let all = failed(Tensor::zeros(device, Scalar::U32, &[words]))?;
        let part = |i: u64| failed(all.slice(0, i * rows..(i + 1) * rows));
        let pairs = |first: u64, count: u64| {
            let pairs = failed(all.slice(0, first..first + 2 * count))?;
            failed(pairs.reshape(&[count, 2]))
        };
        let behind = 11 * rows + 1;
        let inputs = Inputs {
            tokens: part(0)?,
            positions: part(1)?,
            sequences: part(2)?,
            output_rows: part(3)?,
            segment_of: part(4)?,
            state_from: part(5)?,
            state_to: part(6)?,
            step: part(7)?,
            tile_places: [part(8)?, part(9)?],
            segment_starts: failed(all.slice(0, 10 * rows..behind))?,
            tile_rows: [
                pairs(behind, tiles[0])?,
                pairs(behind + 2 * tiles[0], tiles[1])?,
            ],
            all,
        };
        let floats = |tensor: &Tensor| {
            let mut view = tensor.tensor_arg();
            view.scalar = Scalar::F32;
            failed(Tensor::from_view(device, view))
        };
        let all = failed(Tensor::zeros(device, Scalar::U32, &[2 * rows]))?;
        let histories = failed(Tensor::zeros(
            device,
            Scalar::U32,
            &[2, MOST_STEPS as u64, rows],
        ))?;
        let history = |i: u64| {
            let one = failed(histories.slice(0, i..i + 1))?;
            failed(one.reshape(&[MOST_STEPS as u64, rows]))
        };
        let results = Results {
            tokens: failed(all.slice(0, 0..rows))?,
            largest: floats(&failed(all.slice(0, rows..2 * rows))?)?,
            history: history(0)?,
            largest_history: floats(&history(1)?)?,
            all,
        };
        Ok(Self {
            max,
            inputs,
            results,
        })
    }

    /// Writes a step's rows, one upload. `slot` is a row's row of the block tables; `segments`
    /// are the runs of rows of one sequence, where a layer asks; `is_prompt` says whether rows
    /// attend by tiles.
    pub fn write(
        &self,
        rows: &[StepRow],
        slots: &[u32],
        segments: &[SegmentPlace],
        is_prompt: bool,
    ) -> Result<(), ModelError> {
        let max = self.max;
        let mut words = vec![0u32; self.inputs.all.elements() as usize];
        let mut output = 0;
        for (i, (row, slot)) in rows.iter().zip(slots).enumerate() {
            words[i] = row.token;
            words[max + i] = row.position;
            words[2 * max + i] = *slot;
            if row.output != RowOutput::Nothing {
                words[3 * max + output] = i as u32;
                output += 1;
            }
        }
        let mut first = 0;
        for (i, segment) in segments.iter().enumerate() {
            words[4 * max + first..4 * max + segment.end].fill(i as u32);
            words[5 * max + i] = segment.from;
            words[6 * max + i] = segment.to;
            words[10 * max + i + 1] = segment.end as u32;
            first = segment.end;
        }
        let mut at = 11 * max + 1;
        for (i, size) in TILES.into_iter().enumerate().filter(|_| is_prompt) {
            let (tiles, places) = tiles_of(rows, size);
            words[(8 + i) * max..][..places.len()].copy_from_slice(&places);
            words[at..][..2 * tiles.len()].copy_from_slice(tiles.as_flattened());
            at += 2 * tiles_in(max, size);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        failed(self.inputs.all.write_bytes(&bytes))
    }

    /// The results of the rows that wanted one. `logits` are those of all of them, `vocab` a row.
    pub fn read(
        &self,
        rows: &[StepRow],
        logits: Option<&Tensor>,
        vocab: usize,
    ) -> Result<Vec<RowResult>, ModelError> {
        let wanted: Vec<_> = rows
            .iter()
            .filter(|r| r.output != RowOutput::Nothing)
            .collect();
        let words = failed(self.results.all.to_bytes())?;
        let word = |i: usize| word_of(&words, i);
        // Runs of rows that want logits come over in one piece each.
        let mut found: Vec<RowResult> = Vec::with_capacity(wanted.len());
        for run in wanted.chunk_by(|a, b| a.output == b.output) {
            let first = found.len();
            let mut values = match logits {
                Some(logits) if run[0].output == RowOutput::Logits => {
                    let rows = first as u64..(first + run.len()) as u64;
                    rows_of(&failed(logits.slice(0, rows))?, vocab)?
                }
                _ => Vec::new(),
            };
            for k in 0..run.len() {
                let i = first + k;
                let chosen = greedy(word(i), f32::from_bits(word(self.max + i)));
                found.push(match (chosen, values.get_mut(k)) {
                    (RowResult::Token(_), Some(values)) => {
                        RowResult::Logits(std::mem::take(values))
                    }
                    (chosen, _) => chosen,
                });
            }
        }
        Ok(found)
    }

    /// The choices of `rows` rows over `steps` steps that advanced by themselves, step by step.
    pub fn read_history(
        &self,
        rows: usize,
        steps: usize,
    ) -> Result<Vec<Vec<RowResult>>, ModelError> {
        let read = |tensor: &Tensor| {
            let used = failed(tensor.slice(0, 0..steps as u64))?;
            failed(used.to_bytes())
        };
        let tokens = read(&self.results.history)?;
        let largest = read(&self.results.largest_history)?;
        let result =
            |at: usize| greedy(word_of(&tokens, at), f32::from_bits(word_of(&largest, at)));
        let step = |step: usize| (0..rows).map(|row| result(step * self.max + row)).collect();
        Ok((0..steps).map(step).collect())
    }
}

/// Tiles of `size` rows that a step of up to `max` rows can have, whatever its prompts.
fn tiles_in(max: usize, size: usize) -> usize {
    // The class of the prompts is less than twice their number.
    most_tiles(max, (2 * max / PROMPT_ROWS).max(2), size)
}

/// The rows of logits, each as `f32`, side by side: 64 of a large vocabulary are ten million.
fn rows_of(logits: &Tensor, vocab: usize) -> Result<Vec<Vec<f32>>, ModelError> {
    let bytes = failed(logits.to_bytes())?;
    let scalar = logits.scalar();
    let size = scalar.bytes() as usize;
    let decode = |row: &[u8]| -> Vec<f32> {
        let pairs = || row.as_chunks::<2>().0.iter();
        match scalar {
            Scalar::F16 => pairs().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
            Scalar::BF16 => pairs().map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
            _ => row
                .as_chunks::<4>()
                .0
                .iter()
                .map(|&b| f32::from_le_bytes(b))
                .collect(),
        }
    };
    Ok(bytes.par_chunks_exact(vocab * size).map(decode).collect())
}

fn word_of(bytes: &[u8], i: usize) -> u32 {
    let at = 4 * i;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The choice, if the largest logit is a number.
fn greedy(token: u32, largest: f32) -> RowResult {
    if token == u32::MAX && largest.is_finite() {
        RowResult::Failed("no logit is finite after biases and penalties".to_owned())
    } else if largest.is_finite() {
        RowResult::Token(token)
    } else {
        RowResult::Failed(format!("the largest logit is {largest}"))
    }
}
