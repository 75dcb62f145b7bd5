//! What the engine asks of a model's execution, whichever backend runs it.
//!
//! A step is batched from the first day: rows with their sequences and
//! positions. One sequence is a batch of one, a prompt is many rows of one
//! sequence, decoding is one row a sequence.

use std::fmt;

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

use crate::sampler::Draw;

/// A sequence that a [`Model`] holds state for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SequenceId(pub u32);

/// One row of a step: a token that enters a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepRow {
    /// The sequence.
    pub sequence: SequenceId,
    /// The token, below the vocabulary's size.
    pub token: u32,
    /// Its position: the rows of a sequence continue it without a gap.
    pub position: u32,
    /// What is wanted of this row.
    pub output: RowOutput,
}

/// What a row of a step gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowOutput {
    /// Nothing: a prompt's row before the last.
    Nothing,
    /// All logits, for choosing on the host.
    Logits,
    /// The largest logit's token, chosen where the logits are.
    Greedy,
    /// A token drawn by the row's [`Draw`], where the logits are if the device can: of
    /// [`Model::step_drawing`] alone.
    Drawn,
}

/// The result of a row that wanted one.
#[derive(Clone, PartialEq, Debug)]
pub enum RowResult {
    /// For [`RowOutput::Logits`]: one logit a token.
    Logits(Vec<f32>),
    /// For [`RowOutput::Greedy`] and [`RowOutput::Drawn`]: the token.
    Token(u32),
    /// This row alone failed (its logits are not finite, an index left its
    /// bounds); the other rows of the step are good.
    Failed(String),
}

/// One row of a step of a model's multi-token head: what the model computed at a position, and the
/// token that follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadRow {
    /// The sequence, in which the head keeps its own cache.
    pub sequence: SequenceId,
    /// The token that follows the position.
    pub token: u32,
    /// The position, below what the sequence reserves.
    pub position: u32,
    /// Where what was computed comes from; the same for all rows of a step.
    pub from: HiddenFrom,
    /// What is wanted of the row: of the token after the next.
    pub output: RowOutput,
}

/// What a row of a multi-token head goes on from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HiddenFrom {
    /// The row of the model's last step at the same position.
    Model = 0,
    /// The row of the head's last step at the position before.
    Head = 1,
}

impl HeadRow {
    /// The row as one of the model's.
    pub fn as_step_row(&self) -> StepRow {
        StepRow {
            sequence: self.sequence,
            token: self.token,
            position: self.position,
            output: self.output,
        }
    }
}

/// A loaded model that can run steps.
pub trait Model {
    /// Number of logits a row.
    fn vocab_size(&self) -> usize;

    /// Longest sequence.
    fn context_length(&self) -> usize;

    /// Most rows of one step.
    fn max_step_rows(&self) -> usize;

    /// Opens an empty sequence with room for `capacity` positions. All its
    /// memory is reserved now, so that no later step fails for want of it.
    fn open_sequence(&mut self, capacity: usize) -> Result<SequenceId, ModelError>;

    /// Forgets the positions from `length` on, and as many before them as the model cannot give
    /// back: a window's cache has lost what it moved past, and a recurrent state has no
    /// positions. Returns the length that is left, from which the sequence goes on.
    fn truncate_sequence(
        &mut self,
        sequence: SequenceId,
        length: usize,
    ) -> Result<usize, ModelError>;

    /// The length that [`truncate_sequence`](Self::truncate_sequence) would leave; nothing changes.
    fn reusable_length(&self, sequence: SequenceId, length: usize) -> usize {
        let _ = sequence;
        length
    }

    /// Changes the positions reserved for a sequence, which keeps what it holds. On an error
    /// nothing has changed.
    fn resize_sequence(&mut self, sequence: SequenceId, capacity: usize) -> Result<(), ModelError> {
        Err(ModelError::Device(format!(
            "{sequence} cannot be resized to {capacity} positions: this model has no such operation"
        )))
    }

    /// What all sequences together may reserve.
    fn capacity(&self) -> ModelCapacity {
        ModelCapacity {
            sequences: 1,
            positions: self.context_length(),
            block: 1,
            recurrent: false,
            prompts: 1,
        }
    }

    /// Releases a sequence. A sequence that is not open is left alone.
    fn close_sequence(&mut self, sequence: SequenceId);

    /// Runs all rows and returns one result for each row whose output is not
    /// [`RowOutput::Nothing`], in the rows' order.
    ///
    /// On an error no sequence has changed: state moves for all rows or for none.
    fn step(&mut self, rows: &[StepRow]) -> Result<Vec<RowResult>, ModelError>;

    /// As [`Self::step`], with rows that want [`RowOutput::Drawn`], by one of `draws` each, in
    /// order. Whoever draws, the tokens are those of [`Draw::choose`].
    fn step_drawing(
        &mut self,
        rows: &[StepRow],
        draws: &[Draw],
    ) -> Result<Vec<RowResult>, ModelError> {
        draw_on_host(self, rows, draws)
    }

    /// Runs the model's multi-token head on all rows and returns one result for each row whose
    /// output is not [`RowOutput::Nothing`], in the rows' order. No sequence moves: the head's
    /// cache takes what stands at the rows' positions in place of what stood there.
    fn head_step(&mut self, rows: &[HeadRow]) -> Result<Vec<RowResult>, ModelError> {
        let _ = rows;
        Err(ModelError::NoHead)
    }

    /// Runs up to `steps` steps, at least one, of greedy rows of a sequence each, in which each
    /// row's choice is its next token; gives the rows' results step by step. How many steps ran
    /// is their number: a model may run fewer than asked. A row whose result is
    /// [`RowResult::Failed`] has run up to that step, and what follows for it means nothing.
    fn advance(
        &mut self,
        rows: &[StepRow],
        steps: usize,
    ) -> Result<Vec<Vec<RowResult>>, ModelError> {
        let _ = steps;
        Ok(vec![self.step(rows)?])
    }
}

/// [`Model::step_drawing`] by a step that gives logits; rows draw side by side, since a
/// vocabulary's worth of logits takes a core a while.
pub fn draw_on_host<M: Model + ?Sized>(
    model: &mut M,
    rows: &[StepRow],
    draws: &[Draw],
) -> Result<Vec<RowResult>, ModelError> {
    let wanted = rows.iter().filter(|row| row.output != RowOutput::Nothing);
    let is_drawn: Vec<bool> = wanted.map(|row| row.output == RowOutput::Drawn).collect();
    let drawn = is_drawn.iter().filter(|drawn| **drawn).count();
    if drawn != draws.len() {
        return Err(ModelError::Draws {
            rows: drawn,
            draws: draws.len(),
        });
    }
    let with_logits = |row: &StepRow| StepRow {
        output: match row.output {
            RowOutput::Drawn => RowOutput::Logits,
            output => output,
        },
        ..*row
    };
    let rows: Vec<StepRow> = rows.iter().map(with_logits).collect();
    let results = model.step(&rows)?;
    let mut draws = draws.iter();
    let draw_of = |drawn: &bool| drawn.then(|| draws.next()).flatten();
    let draw_of: Vec<Option<&Draw>> = is_drawn.iter().map(draw_of).collect();
    let choose = |(result, draw): (RowResult, Option<&Draw>)| match (result, draw) {
        (RowResult::Logits(logits), Some(draw)) => match draw.choose(&logits) {
            Ok(token) => RowResult::Token(token),
            Err(error) => RowResult::Failed(error.to_string()),
        },
        (result, _) => result,
    };
    Ok(results.into_par_iter().zip(draw_of).map(choose).collect())
}

/// What a model reserved for its sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelCapacity {
    /// Sequences that may be open at once.
    pub sequences: usize,
    /// Positions over all open sequences, in whole blocks.
    pub positions: usize,
    /// Positions of a block; a sequence reserves whole ones.
    pub block: usize,
    /// Whether a layer keeps a state without positions, so that a sequence can hardly be cut.
    pub recurrent: bool,
    /// Prompts of which one step computes so many together; 1 where each is computed by itself.
    pub prompts: usize,
}

/// A model could not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModelError {
    /// The backend cannot run models on this machine or in this build.
    #[error("backend {backend} cannot run: {reason}")]
    BackendUnavailable {
        /// The backend's name.
        backend: String,
        /// What was looked for, and what to do.
        reason: String,
    },
    /// The sequence is not open.
    #[error("{0} is not open")]
    UnknownSequence(SequenceId),
    /// A row does not continue its sequence.
    #[error("{sequence} has {length} positions, a row names position {position}")]
    Position {
        /// The sequence.
        sequence: SequenceId,
        /// Its length.
        length: usize,
        /// The row's position.
        position: u32,
    },
    /// A sequence would outgrow what was reserved for it.
    #[error("{sequence} needs {needed} positions, {capacity} are reserved")]
    Capacity {
        /// The sequence.
        sequence: SequenceId,
        /// Positions needed.
        needed: usize,
        /// Positions reserved.
        capacity: usize,
    },
    /// Activations of 8 bits were asked for, and nothing would read them.
    #[error(
        "no product of this model takes activations of 8 bits (`--activations q8`) on `{backend}`: \
         weights of the types Q4_0, Q4_1 and Q8_0 do, on `cpu`; take `exact` for others"
    )]
    NoRoundedProducts {
        /// The backend's name.
        backend: String,
    },
    /// A cache of 8-bit floats was asked for, and a layer has no kernel for it.
    #[error(
        "the attention of {family} keeps latents, which have no cache of 8-bit floats \
         (`--kv-cache-dtype fp8`); take `auto`"
    )]
    NoPackedLatents {
        /// The model's family.
        family: String,
    },
    /// Rows that draw a token, and another number of draws.
    #[error("{rows} rows draw a token, and there are {draws} draws")]
    Draws {
        /// Rows.
        rows: usize,
        /// Draws.
        draws: usize,
    },
    /// A multi-token head was asked for and is not there.
    #[error("this checkpoint has no multi-token head that is loaded (`--mtp`)")]
    NoHead,
    /// A token past the vocabulary.
    #[error("token {token} is past the vocabulary of {vocab_size}")]
    Token {
        /// The token.
        token: u32,
        /// Number of tokens.
        vocab_size: usize,
    },
    /// More rows than one step takes.
    #[error("a step of {rows} rows, at most {max} fit")]
    Rows {
        /// Rows given.
        rows: usize,
        /// Most that fit.
        max: usize,
    },
    /// The device or its driver failed.
    #[error("{0}")]
    Device(String),
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}", self.0)
    }
}
