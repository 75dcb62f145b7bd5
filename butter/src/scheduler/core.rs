//! The scheduler's decisions, one turn at a time, without a thread or a clock of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::decode::Group;
use super::lease::{Lease, whole_blocks};
use super::metrics::SchedulerMetrics;
use super::prefix::{Parked, PrefixCache, PrefixReuse, Wanted};
use super::request::{Choice, Event, Failure, Job, Request};
use super::speculator::Speculator;
use crate::model::{Model, ModelCapacity, ModelError, RowOutput, RowResult, StepRow};
use crate::sampler::Draw;
use crate::speculate::MOST_ROWS;

/// Later requests that may pass one whose room is not there yet.
const MOST_BYPASSES: usize = 8;
/// How long steps of fewer rows than the most are tried out at the start.
const MOST_WARM_UP: Duration = Duration::from_secs(2);
/// Tokens that a request gets each time before it may be preempted.
const LEAST_SLICE: usize = 32;

/// How requests share the model.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerOptions {
    /// Requests that hold a sequence at once; at most the model's sequences and step rows.
    pub max_running: usize,
    /// Rows of a prefill chunk. Chunks end at its multiples, so the same prompt is computed in
    /// the same chunks whatever else runs.
    pub chunk: usize,
    /// Prompt rows a turn beside the rows that decode, over all requests. Prompts that the model
    /// computes together share a step, as far as it has rows.
    pub prefill_budget: usize,
    /// Longest request, in positions; at most the model's context.
    pub max_positions: usize,
    /// Which starts of a prompt may come from a kept sequence.
    pub reuse: PrefixReuse,
    /// How long a request waits before another one gives up its sequence for it; `None`: never.
    pub preempt_after: Option<Duration>,
    /// How often a request may be preempted.
    pub max_preemptions: usize,
}

/// Requests that wait and run, and the model that they share.
pub struct Scheduler {
    pub(super) model: Box<dyn Model>,
    pub(super) options: SchedulerOptions,
    capacity: ModelCapacity,
    queue: VecDeque<Request>,
    pub(super) running: Vec<Request>,
    prefixes: PrefixCache,
    pub(super) speculator: Option<Speculator>,
    pub(super) metrics: Arc<SchedulerMetrics>,
    next_id: u64,
}

impl Scheduler {
    /// A scheduler that owns a model. Its first step is a full one, so that no request waits for
    /// a compiler or finds that the largest step has no room.
    pub fn new(
        mut model: Box<dyn Model>,
        mut options: SchedulerOptions,
        metrics: Arc<SchedulerMetrics>,
    ) -> Result<Scheduler, ModelError> {
        let capacity = model.capacity();
        let rows = model.max_step_rows().max(1);
        options.max_running = options.max_running.clamp(1, capacity.sequences.min(rows));
        options.chunk = options.chunk.clamp(1, rows);
        options.prefill_budget = options.prefill_budget.max(options.chunk);
        let longest = model.context_length().min(capacity.positions);
        options.max_positions = options.max_positions.clamp(1, longest);
        warm_up(model.as_mut(), options)?;
        Ok(Scheduler {
            model,
            options,
            capacity,
            queue: VecDeque::new(),
            running: Vec::new(),
            prefixes: PrefixCache::default(),
            speculator: None,
            metrics,
            next_id: 0,
        })
    }

    /// Lets requests that decode speculate from now on; tries verifications of each size first, so
    /// that no request waits for a compiler.
    pub fn speculate(&mut self, speculator: Speculator) -> Result<(), ModelError> {
        let most = 1 + speculator.proposal_count();
        let most = most
            .min(self.options.max_positions)
            .min(self.model.max_step_rows());
        warm_up_verifications(self.model.as_mut(), most)?;
        self.speculator = Some(speculator);
        Ok(())
    }

    /// The options as the model allows them.
    pub fn options(&self) -> SchedulerOptions {
        self.options
    }

    /// Whether a request waits or runs.
    pub fn has_work(&self) -> bool {
        !(self.queue.is_empty() && self.running.is_empty())
    }

    /// Takes a request into the queue; one that can never run fails at once.
    pub fn submit(&mut self, job: Job, now: Instant) {
        self.metrics.submitted.fetch_add(1, Relaxed);
        let request = Request::new(job, self.next_id, now);
        self.next_id += 1;
        let (needed, limit) = (request.positions(), self.options.max_positions);
        if needed > limit || request.job.prompt.is_empty() {
            self.fail(request, Failure::TooLong { needed, limit }, now);
        } else {
            self.queue.push_back(request);
        }
        self.publish();
    }

    /// One turn: who is gone leaves, who has room enters, one step for all rows that decode, and
    /// prompt rows up to the budget. Whether a step failed on the device.
    pub fn turn(&mut self, now: impl Fn() -> Instant) -> Result<(), ModelError> {
        let begun = now();
        self.sweep(begun);
        self.admit(now());
        let mut served = Vec::new();
        let mut outcome = self.decode(&now, &mut served);
        let prefilled = self.prefill(&now, served);
        if outcome.is_ok() {
            outcome = prefilled;
        }
        self.publish();
        let taken = now().saturating_duration_since(begun);
        self.metrics.turn.observe(taken);
        outcome
    }

    /// Ends every request.
    pub fn stop(&mut self, now: Instant) {
        for request in self.queue.drain(..).collect::<Vec<_>>() {
            self.fail(request, Failure::Shutdown, now);
        }
        for request in std::mem::take(&mut self.running) {
            self.fail(request, Failure::Shutdown, now);
        }
        self.drop_prefixes();
    }

    /// Gives every kept sequence back.
    pub fn drop_prefixes(&mut self) {
        self.prefixes.clear(self.model.as_mut());
        self.publish();
    }

    /// Whether the device answers: a step of one row in a sequence of its own.
    pub fn probe(&mut self) -> Result<(), ModelError> {
        if self.running.is_empty() {
            self.prefixes.clear(self.model.as_mut());
        }
        let sequence = self.model.open_sequence(1)?;
        let row = StepRow {
            sequence,
            token: 0,
            position: 0,
            output: RowOutput::Greedy,
        };
        let result = self.model.step(&[row]);
        self.model.close_sequence(sequence);
        result.map(|_| ())
    }

    fn publish(&self) {
        let metrics = &self.metrics;
        metrics.queued.store(self.queue.len() as u64, Relaxed);
        metrics.running.store(self.running.len() as u64, Relaxed);
        metrics.kept.store(self.prefixes.len() as u64, Relaxed);
    }

    /// Removes requests whose client is gone or whose time is over.
    fn sweep(&mut self, now: Instant) {
        let leaves = |request: &Request| {
            request.is_enough() || request.is_abandoned() || request.is_late(now)
        };
        let mut leaving = Vec::new();
        for index in (0..self.queue.len()).rev() {
            if leaves(&self.queue[index]) {
                leaving.extend(self.queue.remove(index));
            }
        }
        for index in (0..self.running.len()).rev() {
            if leaves(&self.running[index]) {
                leaving.push(self.running.remove(index));
            }
        }
        for request in leaving {
            if request.is_enough() {
                self.metrics.completed.fetch_add(1, Relaxed);
                let receipt = request.receipt(now);
                let stopped = true;
                request.send(Event::Finished { stopped, receipt });
                self.retire(request);
            } else if request.is_abandoned() {
                self.metrics.cancelled.fetch_add(1, Relaxed);
                self.retire(request);
            } else {
                let chosen = request.answer().len();
                self.fail(request, Failure::Deadline(chosen), now);
            }
        }
    }

    /// Gives sequences to requests that wait, in order; one whose room is not there yet may be
    /// passed a few times by smaller ones.
    fn admit(&mut self, now: Instant) {
        let mut place = 0;
        while place < self.queue.len() {
            let positions = self.queue[place].positions();
            if !self.make_room(positions, now, place) {
                if self.running.len() >= self.options.max_running {
                    return;
                }
                self.queue[place].bypassed += 1;
                if self.queue[place].bypassed > MOST_BYPASSES {
                    return;
                }
                place += 1;
                continue;
            }
            let Some(request) = self.queue.remove(place) else {
                return;
            };
            self.start(request, now);
        }
    }

    /// Whether a request of so many positions fits now, after kept sequences and at last a
    /// running request have given theirs up.
    fn make_room(&mut self, positions: usize, now: Instant, place: usize) -> bool {
        let block = self.capacity.block;
        let needed = whole_blocks(positions, block);
        let available = self.capacity.positions / block.max(1) * block.max(1);
        let held: usize = self.running.iter().map(reserved).sum();
        if self.running.len() < self.options.max_running && held + needed <= available {
            return true;
        }
        let patience = self.options.preempt_after;
        let waited = now.saturating_duration_since(self.queue[place].waiting_since);
        if place > 0 || patience.is_none_or(|patience| waited < patience) {
            return false;
        }
        // The one that has had most since it was admitted, if that is enough to make room.
        let most = self.options.max_preemptions;
        let victim = (0..self.running.len())
            .filter(|&i| {
                let request = &self.running[i];
                request.receipt.preemptions < most
                    && request.since_admission >= LEAST_SLICE
                    && held - reserved(request) + needed <= available
            })
            .max_by_key(|&i| self.running[i].since_admission);
        match victim {
            Some(victim) => {
                self.preempt(victim, now);
                true
            }
            None => false,
        }
    }

    /// Sends a running request back to the queue's end. Its sequence is kept as long as nobody
    /// needs the room; afterwards its tokens are computed again, each as it was the first time.
    fn preempt(&mut self, index: usize, now: Instant) {
        let mut request = self.running.remove(index);
        request.receipt.preemptions += 1;
        request.since_admission = 0;
        request.waiting_since = now;
        request.bypassed = 0;
        self.metrics.preemptions.fetch_add(1, Relaxed);
        self.forget(&request);
        if let Some(lease) = request.lease.take() {
            let owner = Some(request.id);
            self.park(lease, &request, owner);
        }
        request.computed = 0;
        self.queue.push_back(request);
    }

    /// Admits a request: a kept sequence that begins as it does, or a fresh one.
    fn start(&mut self, mut request: Request, now: Instant) {
        let positions = request.positions();
        let wanted = Wanted {
            tokens: &request.tokens,
            salt: request.job.salt,
            request: request.id,
            reuse: self.options.reuse,
            chunk: self.options.chunk,
        };
        let mut found = self.prefixes.take(wanted, self.model.as_mut());
        if let Some((lease, _)) = &mut found {
            self.evict_for(positions, lease.positions());
            if lease.resize(self.model.as_mut(), positions).is_err()
                && let Some((lease, _)) = found.take()
            {
                lease.release(self.model.as_mut());
            }
        }
        let (lease, held) = match found {
            Some((lease, held)) => (lease, held),
            None => {
                self.evict_for(positions, 0);
                let block = self.capacity.block;
                let leases = &self.metrics.leases;
                match Lease::take(self.model.as_mut(), positions, block, leases) {
                    Ok(lease) => (lease, 0),
                    Err(error) => {
                        self.fail(request, Failure::Device(error.to_string()), now);
                        return;
                    }
                }
            }
        };
        request.lease = Some(lease);
        request.computed = held;
        if request.admitted.is_none() {
            let reused = held.min(request.job.prompt.len());
            request.receipt.reused_tokens = reused;
            request.admitted = Some(now);
            let waited = now.saturating_duration_since(request.submitted);
            self.metrics.queue_time.observe(waited);
            let prompt = request.job.prompt.len() as u64;
            self.metrics.prompt_tokens.fetch_add(prompt, Relaxed);
            self.metrics.reused_tokens.fetch_add(reused as u64, Relaxed);
        }
        self.running.push(request);
    }

    /// Evicts kept sequences until `positions` fit beside what runs; `own` of them are there.
    fn evict_for(&mut self, positions: usize, own: usize) {
        let block = self.capacity.block;
        let needed = whole_blocks(positions, block);
        loop {
            let sequences = self.running.len() + self.prefixes.len() + 1;
            let held: usize = self.running.iter().map(reserved).sum();
            let positions = held + self.prefixes.positions() + needed.max(own);
            let fits = sequences <= self.capacity.sequences && positions <= self.capacity.positions;
            if fits || !self.prefixes.evict(self.model.as_mut()) {
                return;
            }
        }
    }

    /// Prompt rows up to the budget, a chunk a request, in the order in which they wait, as many
    /// requests' in a step as the model takes.
    /// Who was `served` beside those that decode has had its share; what they took is none of this
    /// budget, so that short prompts, however many come, hold up no long one.
    fn prefill(
        &mut self,
        now: &impl Fn() -> Instant,
        mut served: Vec<u64>,
    ) -> Result<(), ModelError> {
        let mut budget = self.options.prefill_budget;
        let mut outcome = Ok(());
        loop {
            let groups = self.prompts(&mut budget, &mut served);
            if groups.is_empty() {
                break;
            }
            for group in &groups {
                self.running[group.index()].receipt.prefill_steps += 1;
            }
            let begun = now();
            let step = self.step_groups(&groups);
            let at = now();
            let taken = at.saturating_duration_since(begun);
            self.metrics.prefill_step.observe(taken);
            let failed = self.take_step(&groups, step, at);
            if outcome.is_ok() {
                outcome = failed;
            }
        }
        // Who was served goes behind the others.
        let waits = |request: &Request| !served.contains(&request.id);
        self.running.sort_by_key(|request| !waits(request));
        outcome
    }

    /// The next prompts' rows of one step, within the budget. Those of few rows have other kernels,
    /// and a step by themselves.
    fn prompts(&self, budget: &mut usize, served: &mut Vec<u64>) -> Vec<Group> {
        let most = self.capacity.prompts.max(1);
        let mut room = self.model.max_step_rows();
        let mut groups = Vec::new();
        let mut are_short = false;
        for (index, request) in self.running.iter().enumerate() {
            if !request.is_prefilling() || served.contains(&request.id) {
                continue;
            }
            let rows = self.chunk_rows(request);
            let is_short = rows.len() <= MOST_ROWS;
            let fits = rows.len() <= (*budget).min(room);
            let shares = groups.is_empty() || (groups.len() < most && !is_short && !are_short);
            if rows.is_empty() || !fits || !shares {
                break;
            }
            are_short = is_short;
            *budget -= rows.len();
            room -= rows.len();
            served.push(request.id);
            groups.push(Group::known(index, rows));
        }
        groups
    }

    /// The next rows of a prompt: up to the next multiple of the chunk.
    pub(super) fn chunk_rows(&self, request: &Request) -> Vec<StepRow> {
        let start = request.computed;
        let end = (start / self.options.chunk + 1) * self.options.chunk;
        let end = end.min(request.job.prompt.len());
        let Some(lease) = &request.lease else {
            return Vec::new();
        };
        let row = |position: usize| StepRow {
            sequence: lease.sequence(),
            token: request.tokens[position],
            position: position as u32,
            output: output_at(request, position),
        };
        (start..end).map(row).collect()
    }

    pub(super) fn step(&mut self, rows: &[StepRow]) -> Result<Vec<RowResult>, ModelError> {
        self.metrics.steps.fetch_add(1, Relaxed);
        self.metrics.rows.fetch_add(rows.len() as u64, Relaxed);
        let draws: Vec<Draw> = rows
            .iter()
            .filter(|row| row.output == RowOutput::Drawn)
            .filter_map(|row| {
                let owns = |request: &&Request| {
                    let lease = request.lease.as_ref();
                    lease.is_some_and(|lease| lease.sequence() == row.sequence)
                };
                self.running.iter().find(owns)?.job.chooser.draw()
            })
            .collect();
        let result = self.model.step_drawing(rows, &draws);
        if result.is_err() {
            self.metrics.failed_steps.fetch_add(1, Relaxed);
        }
        result
    }

    /// A request takes its next token: how it ended, if it did.
    pub(super) fn take(
        &mut self,
        index: usize,
        choice: Result<Choice, Failure>,
        now: Instant,
    ) -> Option<End> {
        let request = &mut self.running[index];
        let choice = match choice {
            Ok(choice) => choice,
            Err(failure) => return Some(End::Failed(failure)),
        };
        self.metrics.generated_tokens.fetch_add(1, Relaxed);
        match request.last_token {
            Some(last) => {
                let pause = now.saturating_duration_since(last);
                self.metrics.between_tokens.observe(pause);
            }
            None => {
                let waited = now.saturating_duration_since(request.submitted);
                self.metrics.first_token.observe(waited);
                request.first_token = Some(now);
            }
        }
        request.last_token = Some(now);
        request.since_admission += 1;
        if request.job.stop_tokens.contains(&choice.token) {
            return Some(End::Stopped);
        }
        request.tokens.push(choice.token);
        let complete = choice.last;
        request.send(Event::Token(choice));
        if complete {
            Some(End::Stopped)
        } else if request.answer().len() >= request.job.max_tokens {
            Some(End::Length)
        } else {
            None
        }
    }

    /// Takes ended requests out, the last in the list first, so that places stay true.
    pub(super) fn end_all(&mut self, mut ended: Vec<(usize, End)>, now: Instant) {
        ended.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
        for (index, end) in ended {
            let request = self.running.remove(index);
            let stopped = match end {
                End::Failed(failure) => {
                    self.fail(request, failure, now);
                    continue;
                }
                End::Stopped => true,
                End::Length => false,
            };
            self.metrics.completed.fetch_add(1, Relaxed);
            let receipt = request.receipt(now);
            request.send(Event::Finished { stopped, receipt });
            self.retire(request);
        }
    }

    fn fail(&mut self, mut request: Request, failure: Failure, now: Instant) {
        self.metrics.failed.fetch_add(1, Relaxed);
        let device = matches!(failure, Failure::Device(_));
        let receipt = request.receipt(now);
        request.send(Event::Failed { failure, receipt });
        if device && let Some(lease) = request.lease.take() {
            // Why the step failed is unknown: its state is not reused.
            lease.release(self.model.as_mut());
        }
        self.retire(request);
    }

    /// What is proposed to a request comes from nothing that is kept any longer.
    fn forget(&mut self, request: &Request) {
        if let Some(speculator) = &mut self.speculator {
            speculator.proposer.forget(request.id);
        }
    }

    /// Keeps the sequence of a request that has ended, or gives it back.
    fn retire(&mut self, mut request: Request) {
        self.forget(&request);
        let Some(lease) = request.lease.take() else {
            return;
        };
        if self.options.reuse == PrefixReuse::Off || request.computed == 0 {
            lease.release(self.model.as_mut());
        } else {
            self.park(lease, &request, None);
        }
    }

    /// Keeps a sequence, without the positions that it does not use.
    fn park(&mut self, mut lease: Lease, request: &Request, owner: Option<u64>) {
        let held = request.computed;
        if lease.resize(self.model.as_mut(), held).is_err() {
            lease.release(self.model.as_mut());
            return;
        }
        let chunk = self.options.chunk;
        self.prefixes.park(Parked {
            lease,
            tokens: request.tokens[..held].to_vec(),
            aligned: held.min(request.job.prompt.len()) / chunk * chunk,
            salt: request.job.salt,
            owner,
        });
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop(Instant::now());
    }
}

/// How a request ended.
pub(super) enum End {
    Stopped,
    Length,
    Failed(Failure),
}

fn reserved(request: &Request) -> usize {
    request.lease.as_ref().map_or(0, Lease::positions)
}

/// What is wanted of a position: nothing, unless it is the last whose token is known.
pub(super) fn output_at(request: &Request, position: usize) -> RowOutput {
    if position + 1 < request.tokens.len() {
        RowOutput::Nothing
    } else if request.job.chooser.wants_logits() {
        RowOutput::Logits
    } else if request.job.chooser.wants_draw() {
        RowOutput::Drawn
    } else {
        RowOutput::Greedy
    }
}

/// Runs the largest steps once, a full prefill chunk and a decode of every sequence with logits,
/// and then decodes of fewer sequences: a model may prepare for each number of rows, and that is
/// not to happen while somebody waits.
fn warm_up(model: &mut dyn Model, options: SchedulerOptions) -> Result<(), ModelError> {
    let row = |sequence, position: usize, output| StepRow {
        sequence,
        token: 0,
        position: position as u32,
        output,
    };
    let chunk = options.chunk.min(options.max_positions);
    let sequence = model.open_sequence(chunk)?;
    let output = |i: usize| {
        if i + 1 == chunk {
            RowOutput::Logits
        } else {
            RowOutput::Nothing
        }
    };
    let rows: Vec<StepRow> = (0..chunk).map(|i| row(sequence, i, output(i))).collect();
    let result = model.step(&rows);
    model.close_sequence(sequence);
    result?;
    let mut open = Vec::new();
    let mut result = Ok(Vec::new());
    for _ in 0..options.max_running {
        match model.open_sequence(1) {
            Ok(sequence) => open.push(sequence),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    if result.is_ok() {
        let rows: Vec<StepRow> = open.iter().map(|&s| row(s, 0, RowOutput::Logits)).collect();
        result = model.step(&rows);
    }
    let begun = Instant::now();
    for count in (1..open.len()).rev() {
        if result.is_err() || begun.elapsed() > MOST_WARM_UP {
            break;
        }
        let cut = open[..count].iter();
        result = cut
            .map(|&sequence| model.truncate_sequence(sequence, 0))
            .collect::<Result<Vec<_>, _>>()
            .map(|_| Vec::new());
        if result.is_ok() {
            let rows = open[..count].iter();
            let rows: Vec<StepRow> = rows.map(|&s| row(s, 0, RowOutput::Greedy)).collect();
            result = model.step(&rows);
        }
    }
    for sequence in open {
        model.close_sequence(sequence);
    }
    result?;
    warm_up_prompts(model, options)
}

/// Runs steps of several prompts, of one, two, four … and of ever fewer rows, as far as the time and
/// the model's room for that go.
fn warm_up_prompts(model: &mut dyn Model, options: SchedulerOptions) -> Result<(), ModelError> {
    let capacity = model.capacity();
    let most = capacity.prompts.min(options.max_running);
    let begun = Instant::now();
    let mut rows = options.prefill_budget.min(model.max_step_rows());
    while most > 1 && rows > MOST_ROWS {
        let counts = (0..).map(|i| 1 << i);
        for count in counts.take_while(|count| *count <= most && rows / count > MOST_ROWS) {
            if begun.elapsed() > MOST_WARM_UP {
                return Ok(());
            }
            let length = (rows / count).min(options.chunk).min(options.max_positions);
            if count * whole_blocks(length, capacity.block) > capacity.positions {
                continue;
            }
            let open = (0..count).map_while(|_| model.open_sequence(length).ok());
            let open: Vec<_> = open.collect();
            let row = |sequence, position: usize| StepRow {
                sequence,
                token: 0,
                position: position as u32,
                output: match position + 1 == length {
                    true => RowOutput::Greedy,
                    false => RowOutput::Nothing,
                },
            };
            let of = |&sequence: &_| (0..length).map(move |position| row(sequence, position));
            let result = match open.len() == count {
                true => model.step(&open.iter().flat_map(of).collect::<Vec<_>>()),
                false => Ok(Vec::new()),
            };
            for sequence in open {
                model.close_sequence(sequence);
            }
            result?;
        }
        rows /= 2;
    }
    Ok(())
}

/// Runs verifications of 2 to `most` rows of one sequence, as far as the time for that goes.
fn warm_up_verifications(model: &mut dyn Model, most: usize) -> Result<(), ModelError> {
    let sequence = model.open_sequence(most)?;
    let begun = Instant::now();
    let mut result = Ok(());
    for count in (2..=most).rev() {
        if result.is_err() || begun.elapsed() > MOST_WARM_UP {
            break;
        }
        let row = |position: usize| StepRow {
            sequence,
            token: 0,
            position: position as u32,
            output: RowOutput::Greedy,
        };
        let rows: Vec<StepRow> = (0..count).map(row).collect();
        result = model.step(&rows).map(|_| ());
        if result.is_ok() {
            result = model.truncate_sequence(sequence, 0).map(|_| ());
        }
    }
    model.close_sequence(sequence);
    result
}
