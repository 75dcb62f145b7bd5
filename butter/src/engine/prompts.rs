//! Parts of a step: which of its rows run together, how prompts are padded, and what is recorded
//! for them.
//!
//! Prompts of several sequences share a step, so that its weights are read once for all of them.
//! Products take all rows at once; attention and recurrent layers go by tables of where each
//! sequence's rows lie. Each row is summed by itself, in an order that its own sequence decides, so
//! its bits are those of a step of its own.
//!
//! What is recorded depends on the padded number of rows and, where there are several prompts, on
//! their number up to a power of two. Tiles, segments and outputs that are fewer than the recording
//! has are empty.

use super::draws::class_of;
use super::exchange::SegmentPlace;
use super::model::DeviceModel;
use super::rows::{groups_of, padded_class, reach_of, segments_of, splits_of};
use super::state::{BLOCK_SIZE, CacheType};
use super::step::StepKey;
use crate::model::{ModelError, RowOutput, StepRow};
use crate::sampler::Draw;

/// Rows that run in one recorded step.
pub(super) struct StepPart {
    /// What is recorded for it.
    pub key: StepKey,
    /// Its rows, and padding behind them: rows of the last one's sequence.
    pub rows: Vec<StepRow>,
    /// Rows that are no padding.
    pub real: usize,
    /// The places of those among the rows of the whole step.
    pub places: Vec<usize>,
}

impl StepPart {
    /// The rows that are no padding.
    pub fn real_rows(&self) -> &[StepRow] {
        &self.rows[..self.real]
    }
}

impl DeviceModel {
    /// Gathered rows in the parts that they run in.
    pub(super) fn parts_of(&self, gathered: &[StepRow]) -> Result<Vec<StepPart>, ModelError> {
        let groups = groups_of(gathered, self.most_prompts()).into_iter();
        let part = |(prompts, mut places): (usize, Vec<usize>)| {
            if prompts > 1 {
                self.put_roomiest_last(gathered, &mut places)?;
            }
            let mut rows: Vec<StepRow> = places.iter().map(|&i| gathered[i]).collect();
            let real = rows.len();
            if prompts > 0 {
                self.pad(&mut rows)?;
            }
            Ok(StepPart {
                key: self.key_of_padded(&rows, real, prompts),
                rows,
                real,
                places,
            })
        };
        groups.map(part).collect()
    }

    /// Prompts that may share a step. Where the cache is packed, a step unpacks one sequence.
    pub(super) fn most_prompts(&self) -> usize {
        match self.cache.kind {
            CacheType::Activations if self.shares_prompts => self.options.max_sequences.max(1),
            _ => 1,
        }
    }

    /// Moves the rows of the sequence that has most room behind them to the end, where padding
    /// comes.
    fn put_roomiest_last(
        &self,
        gathered: &[StepRow],
        places: &mut Vec<usize>,
    ) -> Result<(), ModelError> {
        let rows: Vec<StepRow> = places.iter().map(|&i| gathered[i]).collect();
        let mut roomiest = (0, 0..0);
        for (_, range) in segments_of(&rows) {
            let room = self.room_behind(&rows[range.end - 1])?;
            if room >= roomiest.0 {
                roomiest = (room, range);
            }
        }
        let last: Vec<usize> = places.drain(roomiest.1).collect();
        places.extend(last);
        Ok(())
    }

    /// Positions that a row's sequence has reserved behind it, in whole blocks.
    fn room_behind(&self, row: &StepRow) -> Result<usize, ModelError> {
        let positions = self.pages.get(row.sequence)?.blocks.len() * BLOCK_SIZE;
        Ok(positions.saturating_sub(row.position as usize + 1))
    }

    /// Puts rows behind those of prompts that fill their class up, where the last sequence has
    /// reserved room for them: they stand behind its end, like rows that a verification rejects.
    fn pad(&self, rows: &mut Vec<StepRow>) -> Result<(), ModelError> {
        let (true, Some(&last)) = (self.is_padding, rows.last()) else {
            return Ok(());
        };
        let class = padded_class(rows.len()).min(self.options.max_step_rows);
        let missing = class.saturating_sub(rows.len());
        if missing <= self.room_behind(&last)? {
            let more = (1..=missing as u32).map(|i| StepRow {
                token: 0,
                position: last.position + i,
                output: RowOutput::Nothing,
                ..last
            });
            rows.extend(more);
        }
        Ok(())
    }

    /// The key of rows of which none is padding.
    pub(super) fn key_of(&self, rows: &[StepRow], is_prompt: bool) -> StepKey {
        self.key_of_padded(rows, rows.len(), usize::from(is_prompt))
    }

    /// The key of rows of which the first `real` are no padding.
    fn key_of_padded(&self, rows: &[StepRow], real: usize, prompts: usize) -> StepKey {
        let longest = rows.iter().map(|r| r.position as usize + 1).max();
        let longest = longest.unwrap_or(1);
        let outputs = rows.iter().filter(|r| r.output != RowOutput::Nothing);
        let outputs = outputs.count();
        let class = prompts.next_power_of_two();
        let is_prompt = prompts > 0;
        let segments = match prompts {
            0 | 1 => segments_of(&rows[..real]).len() + usize::from(real < rows.len()),
            // One for padding.
            _ => class + 1,
        };
        let by_tiles = is_prompt && !self.config.attends_by_rows();
        StepKey {
            rows: rows.len(),
            outputs: match prompts {
                0 | 1 => outputs,
                _ if outputs == 0 => 0,
                _ => class,
            },
            splits: if by_tiles { 1 } else { splits_of(longest) },
            reach: reach_of(if by_tiles { 1 } else { longest }),
            prompts: if is_prompt { class } else { 0 },
            segments: if self.is_recurrent() { segments } else { 0 },
            is_apart: segments_of(rows).len() == rows.len(),
            advances: false,
            pages: self.unpacked_pages(is_prompt, longest),
            draws: None,
            head: None,
        }
    }

    /// The class of pages of a sequence of `length` positions that a prompt's attention unpacks.
    pub(super) fn unpacked_pages(&self, is_prompt: bool, length: usize) -> usize {
        if !is_prompt || self.cache.kind == CacheType::Activations {
            return 0;
        }
        let pages = length.div_ceil(BLOCK_SIZE).next_power_of_two();
        pages.min(self.cache.blocks_a_sequence)
    }

    /// Records a part where it is not, and writes what it reads; `draws` are those of its rows that
    /// want a result.
    pub(super) fn begin_part(
        &mut self,
        part: &mut StepPart,
        mut draws: Vec<Option<&Draw>>,
    ) -> Result<(), ModelError> {
        if draws.iter().any(Option::is_some) {
            part.key.draws = class_of(draws.iter().copied().flatten());
        }
        self.recorded(part.key)?;
        self.write_part(part)?;
        if let (Some(class), Some(inputs)) = (part.key.draws, &self.draws) {
            draws.resize(part.key.outputs, None);
            inputs.write(&draws, class)?;
        }
        Ok(())
    }

    /// Writes rows of which none is padding.
    pub(super) fn write_inputs(&self, rows: &[StepRow], is_prompt: bool) -> Result<(), ModelError> {
        self.write_part(&StepPart {
            key: self.key_of(rows, is_prompt),
            rows: rows.to_vec(),
            real: rows.len(),
            places: Vec::new(),
        })
    }

    /// Writes a part's rows, and where they and their states lie.
    pub(super) fn write_part(&self, part: &StepPart) -> Result<(), ModelError> {
        let rows = &part.rows;
        let slot = |row: &StepRow| Ok(self.pages.get(row.sequence)?.slot);
        let slots = rows.iter().map(slot);
        let slots = slots.collect::<Result<Vec<_>, ModelError>>()?;
        if part.key.pages > 0 {
            let sequence = self.pages.get(rows[0].sequence)?;
            self.tables.choose(sequence.slot, &sequence.blocks)?;
        }
        let mut segments = Vec::new();
        if self.is_recurrent() {
            for (id, range) in segments_of(part.real_rows()) {
                let (from, to) = self.pages.get(id)?.state_slots(self.zero_slot);
                let end = range.end;
                segments.push(SegmentPlace { end, from, to });
            }
            // Padding, and segments without rows, leave a state that nobody reads.
            let unread = SegmentPlace {
                end: rows.len(),
                from: self.zero_slot,
                to: self.zero_slot + 1,
            };
            let count = part.key.segments.max(segments.len());
            segments.resize(count, unread);
        }
        let exchange = self.exchange(rows.len());
        exchange.write(rows, &slots, &segments, part.key.is_prompt())
    }
}
