//! A model that needs no weights and no device: its answers show which tokens it saw.
//!
//! The next token is a hash of everything that the sequence holds, so that a sequence that was
//! mixed up with another, cut wrongly or resumed at the wrong place gives another answer.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use butter::model::{Model, ModelCapacity, ModelError, RowOutput, RowResult, SequenceId, StepRow};

/// What a test sees of a mock and does to it while it runs.
#[derive(Default, Debug)]
pub struct MockControl {
    /// Sequences that are open.
    pub open: AtomicUsize,
    pub steps: AtomicU64,
    /// Most rows of a step since the start.
    pub widest: AtomicUsize,
    /// Time that each step takes, in microseconds.
    pub step_microseconds: AtomicU64,
    /// Every step fails while it is set.
    pub broken: AtomicBool,
    /// Rows with this token fail their step, if it is not 0.
    pub faulty_token: AtomicU64,
    /// Rows with this token have logits that are not finite, if it is not 0.
    pub poison_token: AtomicU64,
}

pub struct MockModel {
    pub control: Arc<MockControl>,
    pub vocab: usize,
    pub context: usize,
    pub rows: usize,
    pub capacity: ModelCapacity,
    /// Next tokens by position, where a test wants a text; afterwards `end`.
    pub script: Option<Vec<u32>>,
    /// One of so many tokens is another than [`MockModel::following`] says; 0: none.
    pub wrong_every: u32,
    /// Prompts end here, so that a script begins with the answer.
    pub end: u32,
    sequences: BTreeMap<SequenceId, Held>,
    next: u32,
}

#[derive(Clone, Default)]
struct Held {
    tokens: Vec<u32>,
    reserved: usize,
    /// Length before the last step, for a recurrent model.
    previous: Option<usize>,
}

impl MockModel {
    pub fn new(control: Arc<MockControl>) -> MockModel {
        MockModel {
            control,
            vocab: 259,
            context: 512,
            rows: 32,
            capacity: ModelCapacity {
                sequences: 8,
                positions: 2048,
                block: 16,
                recurrent: false,
                prompts: 1,
            },
            script: None,
            wrong_every: 0,
            end: 256,
            sequences: BTreeMap::new(),
            next: 0,
        }
    }

    /// The token that follows a sequence: printable ASCII, now and then the end.
    pub fn following(tokens: &[u32]) -> u32 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for &token in tokens {
            hash = (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3);
            hash ^= hash >> 29;
        }
        33 + (hash % 94) as u32
    }

    fn blocks(&self, capacity: usize) -> usize {
        capacity.div_ceil(self.capacity.block) * self.capacity.block
    }

    fn reserved(&self) -> usize {
        self.sequences.values().map(|held| held.reserved).sum()
    }

    fn held(&mut self, id: SequenceId) -> Result<&mut Held, ModelError> {
        self.sequences
            .get_mut(&id)
            .ok_or(ModelError::UnknownSequence(id))
    }
}

impl Model for MockModel {
    fn vocab_size(&self) -> usize {
        self.vocab
    }

    fn context_length(&self) -> usize {
        self.context
    }

    fn max_step_rows(&self) -> usize {
        self.rows
    }

    fn capacity(&self) -> ModelCapacity {
        self.capacity
    }

    fn open_sequence(&mut self, capacity: usize) -> Result<SequenceId, ModelError> {
        let reserved = self.blocks(capacity);
        assert!(capacity <= self.context, "longer than the context");
        assert!(
            self.reserved() + reserved <= self.capacity.positions
                && self.sequences.len() < self.capacity.sequences,
            "more is opened than the model has room for"
        );
        let id = SequenceId(self.next);
        self.next += 1;
        let held = Held {
            reserved,
            ..Held::default()
        };
        self.sequences.insert(id, held);
        self.control.open.store(self.sequences.len(), SeqCst);
        Ok(id)
    }

    fn resize_sequence(&mut self, id: SequenceId, capacity: usize) -> Result<(), ModelError> {
        let (reserved, all) = (self.blocks(capacity), self.reserved());
        let limit = self.capacity.positions;
        let held = self.held(id)?;
        assert!(held.tokens.len() <= capacity, "cut by resizing");
        assert!(
            all - held.reserved + reserved <= limit,
            "resized past the room"
        );
        held.reserved = reserved;
        Ok(())
    }

    fn reusable_length(&self, id: SequenceId, length: usize) -> usize {
        let Some(held) = self.sequences.get(&id) else {
            return 0;
        };
        if length >= held.tokens.len() || !self.capacity.recurrent {
            return length.min(held.tokens.len());
        }
        held.previous
            .filter(|&before| before <= length)
            .unwrap_or(0)
    }

    fn truncate_sequence(&mut self, id: SequenceId, length: usize) -> Result<usize, ModelError> {
        let kept = self.reusable_length(id, length);
        let held = self.held(id)?;
        held.tokens.truncate(kept);
        held.previous = None;
        Ok(kept)
    }

    fn close_sequence(&mut self, id: SequenceId) {
        assert!(self.sequences.remove(&id).is_some(), "closed twice");
        self.control.open.store(self.sequences.len(), SeqCst);
    }

    fn step(&mut self, rows: &[StepRow]) -> Result<Vec<RowResult>, ModelError> {
        let control = self.control.clone();
        assert!(
            !rows.is_empty() && rows.len() <= self.rows,
            "{}",
            rows.len()
        );
        control.steps.fetch_add(1, SeqCst);
        control.widest.fetch_max(rows.len(), SeqCst);
        let pause = control.step_microseconds.load(SeqCst);
        if pause > 0 {
            std::thread::sleep(Duration::from_micros(pause));
        }
        let faulty = control.faulty_token.load(SeqCst);
        let at_fault = |row: &StepRow| faulty != 0 && u64::from(row.token) == faulty;
        if control.broken.load(SeqCst) || rows.iter().any(at_fault) {
            return Err(ModelError::Device("the mock was told to fail".to_owned()));
        }
        let poison = control.poison_token.load(SeqCst);
        let before: BTreeMap<SequenceId, usize> = self
            .sequences
            .iter()
            .map(|(id, held)| (*id, held.tokens.len()))
            .collect();
        let mut results = Vec::new();
        for row in rows {
            let (vocab, end, wrong_every) = (self.vocab, self.end, self.wrong_every);
            let script = self.script.clone();
            let held = self.held(row.sequence)?;
            assert_eq!(held.tokens.len(), row.position as usize, "no gap");
            assert!(held.tokens.len() < held.reserved, "past what is reserved");
            held.tokens.push(row.token);
            held.previous = Some(before[&row.sequence]);
            let next = match &script {
                Some(script) => script.get(row.position as usize).copied().unwrap_or(end),
                None => {
                    let next = MockModel::following(&held.tokens);
                    let is_wrong =
                        wrong_every > 0 && (next + row.position).is_multiple_of(wrong_every);
                    next + u32::from(is_wrong)
                }
            };
            let poisoned = poison != 0 && u64::from(row.token) == poison;
            match row.output {
                RowOutput::Nothing => {}
                _ if poisoned => results.push(RowResult::Failed("the logit is NaN".to_owned())),
                RowOutput::Greedy => results.push(RowResult::Token(next)),
                RowOutput::Drawn => unreachable!("the default of `step_drawing` asks for logits"),
                RowOutput::Logits => {
                    let mut logits: Vec<f32> = (0..vocab)
                        .map(|token| ((token as u32 * 7 + next) % 11) as f32 * 0.1)
                        .collect();
                    logits[next as usize] = 4.0;
                    results.push(RowResult::Logits(logits));
                }
            }
        }
        Ok(results)
    }
}
