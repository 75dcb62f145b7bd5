//! The scheduler over a model without a device: nothing lost, nothing mixed, nothing kept.

mod support {
    pub mod mock;
}

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use butter::scheduler::{
    Choice, Choose, DraftModels, Event, Failure, Job, PrefixReuse, Receipt, Scheduler,
    SchedulerMetrics, SchedulerOptions, Speculator,
};
use butter::speculate::{NGram, Propose};
use proptest::prelude::*;
use support::mock::{MockControl, MockModel};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Greedy on the device, or the largest logit here.
struct Greedy {
    logits: bool,
}

impl Choose for Greedy {
    fn wants_logits(&self) -> bool {
        self.logits
    }

    fn choose(&mut self, logits: Vec<f32>) -> Result<Choice, Failure> {
        let token =
            butter::sampler::argmax(&logits).map_err(|error| Failure::Row(error.to_string()))?;
        Ok(Choice::token(token as u32))
    }
}

struct Client {
    events: UnboundedReceiver<(usize, Event)>,
    enough: Arc<AtomicBool>,
    tokens: Vec<u32>,
    end: Option<Result<(bool, Receipt), Failure>>,
}

impl Client {
    /// Takes what has come.
    fn read(&mut self) {
        while let Ok((_, event)) = self.events.try_recv() {
            assert!(self.end.is_none(), "an event behind the end");
            match event {
                Event::Token(choice) => self.tokens.push(choice.token),
                Event::Finished { stopped, receipt } => self.end = Some(Ok((stopped, receipt))),
                Event::Failed { failure, .. } => self.end = Some(Err(failure)),
            }
        }
    }

    fn receipt(&self) -> Receipt {
        self.end.clone().expect("ended").expect("answered").1
    }
}

fn job(prompt: &[u32], max_tokens: usize) -> (Job, Client) {
    let (sender, events) = unbounded_channel();
    let enough = Arc::new(AtomicBool::new(false));
    let job = Job {
        prompt: prompt.to_vec(),
        max_tokens,
        stop_tokens: vec![256],
        chooser: Box::new(Greedy { logits: false }),
        salt: 0,
        deadline: None,
        index: 0,
        events: sender,
        enough: enough.clone(),
    };
    let client = Client {
        events,
        enough,
        tokens: Vec::new(),
        end: None,
    };
    (job, client)
}

fn options() -> SchedulerOptions {
    SchedulerOptions {
        max_running: 8,
        chunk: 16,
        prefill_budget: 16,
        max_positions: 512,
        reuse: PrefixReuse::Exact,
        preempt_after: None,
        max_preemptions: 2,
    }
}

struct Bench {
    scheduler: Scheduler,
    metrics: Arc<SchedulerMetrics>,
    control: Arc<MockControl>,
    /// Of the draft model, if one proposes.
    draft: Arc<MockControl>,
    now: Instant,
}

impl Bench {
    fn new(options: SchedulerOptions, change: impl FnOnce(&mut MockModel)) -> Bench {
        let control = Arc::new(MockControl::default());
        let mut model = MockModel::new(control.clone());
        change(&mut model);
        let metrics = Arc::new(SchedulerMetrics::default());
        let scheduler = Scheduler::new(Box::new(model), options, metrics.clone()).expect("starts");
        Bench {
            scheduler,
            metrics,
            control,
            draft: Arc::default(),
            now: Instant::now(),
        }
    }

    /// Lets requests speculate on n-grams, or on a draft model which `change` sets up.
    fn speculate(
        &mut self,
        (verify_rows, max_running): (usize, usize),
        draft: Option<&dyn Fn(&mut MockModel)>,
    ) {
        let proposer: Box<dyn Propose> = match draft {
            Some(change) => {
                let mut model = MockModel::new(self.draft.clone());
                change(&mut model);
                let leases = self.metrics.draft_leases.clone();
                Box::new(DraftModels::new(Box::new(model), 16, leases))
            }
            None => Box::new(NGram {
                longest: 3,
                shortest: 1,
            }),
        };
        let speculator = Speculator {
            proposer,
            verify_rows,
            max_running,
        };
        self.scheduler.speculate(speculator).expect("starts");
    }

    /// Proposals, and how many of them were accepted.
    fn speculated(&self) -> (u64, u64) {
        let metrics = &self.metrics;
        (
            metrics.proposed.load(Relaxed),
            metrics.accepted.load(Relaxed),
        )
    }

    fn submit(&mut self, prompt: &[u32], max_tokens: usize) -> Client {
        let (job, client) = job(prompt, max_tokens);
        self.scheduler.submit(job, self.now);
        client
    }

    /// One turn, 10 ms later.
    fn turn(&mut self) {
        self.now += Duration::from_millis(10);
        let now = self.now;
        let _ = self.scheduler.turn(|| now);
    }

    fn run(&mut self, clients: &mut [Client]) {
        let mut turns = 0;
        while self.scheduler.has_work() {
            self.turn();
            turns += 1;
            assert!(turns < 20_000, "it does not end");
        }
        for client in clients {
            client.read();
        }
    }

    /// Nothing is held but kept prefixes, and those go on demand.
    fn check_empty(&mut self) {
        let leases = &self.metrics.leases;
        assert_eq!(leases.out(), self.metrics.kept.load(Relaxed));
        self.scheduler.drop_prefixes();
        assert_eq!(leases.out(), 0);
        assert_eq!(leases.positions.load(Relaxed), 0);
        assert_eq!(leases.leaked.load(Relaxed), 0);
        assert_eq!(self.control.open.load(SeqCst), 0);
        let drafts = &self.metrics.draft_leases;
        assert_eq!((drafts.out(), drafts.leaked.load(Relaxed)), (0, 0));
        assert_eq!(self.draft.open.load(SeqCst), 0);
        assert_eq!(self.metrics.queued.load(Relaxed), 0);
        assert_eq!(self.metrics.running.load(Relaxed), 0);
    }
}

fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32)
        .map(|i| (i * 31 + seed * 7) % 90)
        .collect()
}

/// What the mock answers to a prompt that it has alone.
fn lonely(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..max_tokens {
        tokens.push(MockModel::following(&tokens));
    }
    tokens.split_off(prompt.len())
}

// E23, E30: 40 requests on 8 sequences.
#[test]
fn each_request_gets_its_own_answer_in_any_company() {
    let mut bench = Bench::new(options(), |_| ());
    let wanted: Vec<(Vec<u32>, usize)> = (0..40)
        .map(|i| {
            (
                prompt(i, 1 + (i as usize * 13) % 100),
                1 + (i as usize * 7) % 50,
            )
        })
        .collect();
    let mut clients: Vec<Client> = wanted.iter().map(|(p, n)| bench.submit(p, *n)).collect();
    bench.run(&mut clients);
    for (client, (prompt, tokens)) in clients.iter().zip(&wanted) {
        assert_eq!(client.tokens, lonely(prompt, *tokens));
        let receipt = client.receipt();
        assert_eq!(receipt.generated_tokens, *tokens);
        assert_eq!(receipt.prompt_tokens, prompt.len());
    }
    assert!(
        bench.control.widest.load(SeqCst) >= 8,
        "rows decode together"
    );
    assert_eq!(bench.metrics.completed.load(Relaxed), 40);
    bench.check_empty();
}

#[test]
fn a_long_prompt_does_not_hold_up_those_that_decode() {
    let mut bench = Bench::new(options(), |_| ());
    let mut short = bench.submit(&prompt(1, 4), 60);
    bench.turn();
    let _long = bench.submit(&prompt(2, 400), 4);
    for turn in 1..=25 {
        bench.turn();
        short.read();
        assert_eq!(short.tokens.len(), 1 + turn, "a token a turn");
    }
    // The other way round: a short prompt does not wait for the end of a long one.
    let mut late = bench.submit(&prompt(3, 5), 4);
    let mut long = bench.submit(&prompt(4, 400), 4);
    for _ in 0..4 {
        bench.turn();
    }
    late.read();
    long.read();
    assert!(!late.tokens.is_empty() && long.tokens.is_empty());
    bench.run(&mut []);
    bench.check_empty();
}

// E05, E06: gone while it waits, in the middle of its prompt, before and after its first token,
// and at its last step.
#[test]
fn a_client_that_goes_frees_everything_within_a_turn() {
    for turns in 0..30 {
        let mut bench = Bench::new(options(), |model| model.capacity.sequences = 2);
        let mut company = bench.submit(&prompt(1, 40), 30);
        let running = bench.submit(&prompt(2, 70), 20);
        let waiting = bench.submit(&prompt(3, 10), 20);
        for _ in 0..turns {
            bench.turn();
        }
        drop(running);
        drop(waiting);
        bench.turn();
        let left = u64::from(bench.scheduler.has_work());
        assert_eq!(bench.metrics.running.load(Relaxed), left, "after {turns}");
        assert_eq!(bench.metrics.queued.load(Relaxed), 0, "after {turns}");
        bench.run(std::slice::from_mut(&mut company));
        assert_eq!(company.tokens, lonely(&prompt(1, 40), 30));
        bench.check_empty();
    }
}

#[test]
fn a_reader_that_has_enough_ends_its_request_well() {
    let mut bench = Bench::new(options(), |_| ());
    let mut client = bench.submit(&prompt(1, 4), 400);
    for _ in 0..5 {
        bench.turn();
    }
    client.enough.store(true, Relaxed);
    bench.run(std::slice::from_mut(&mut client));
    assert!(client.tokens.len() <= 6);
    assert!(matches!(client.end, Some(Ok((true, _)))));
    assert_eq!(bench.metrics.cancelled.load(Relaxed), 0);
    bench.check_empty();
}

#[test]
fn a_deadline_ends_a_request_wherever_it_is() {
    let mut bench = Bench::new(options(), |model| model.capacity.sequences = 1);
    let mut clients = Vec::new();
    for (i, milliseconds) in [(1, 100), (2, 105), (3, 10_000)] {
        let (mut job, client) = job(&prompt(i, 20), 100);
        job.deadline = Some(bench.now + Duration::from_millis(milliseconds));
        bench.scheduler.submit(job, bench.now);
        clients.push(client);
    }
    bench.run(&mut clients);
    assert!(matches!(clients[0].end, Some(Err(Failure::Deadline(n))) if n > 0));
    assert_eq!(clients[1].end, Some(Err(Failure::Deadline(0))), "it waited");
    assert_eq!(clients[2].tokens, lonely(&prompt(3, 20), 100));
    bench.check_empty();
}

// E29: a row without usable logits; a row that fails its step.
#[test]
fn a_request_at_fault_fails_alone() {
    let mut bench = Bench::new(options(), |_| ());
    bench.control.poison_token.store(200, SeqCst);
    bench.control.faulty_token.store(201, SeqCst);
    let mut clients: Vec<Client> = (0..6)
        .map(|i| {
            let mut prompt = prompt(i, 20);
            match i {
                2 => *prompt.last_mut().expect("not empty") = 200,
                4 => *prompt.last_mut().expect("not empty") = 201,
                _ => {}
            }
            bench.submit(&prompt, 20)
        })
        .collect();
    bench.run(&mut clients);
    for (i, client) in clients.iter().enumerate() {
        match i {
            2 => assert!(matches!(client.end, Some(Err(Failure::Row(_))))),
            4 => assert!(matches!(client.end, Some(Err(Failure::Device(_))))),
            i => assert_eq!(client.tokens, lonely(&prompt(i as u32, 20), 20)),
        }
    }
    bench.check_empty();

    // In the middle of a batch of rows that decode: the rest goes on with the same answers.
    let mut clients: Vec<Client> = (0..4).map(|i| bench.submit(&prompt(i, 3), 40)).collect();
    for _ in 0..8 {
        bench.turn();
    }
    let fault = lonely(&prompt(1, 3), 40)[7];
    bench.control.faulty_token.store(u64::from(fault), SeqCst);
    bench.run(&mut clients);
    for (i, client) in clients.iter().enumerate() {
        let whole = lonely(&prompt(i as u32, 3), 40);
        match &client.end {
            Some(Ok(_)) => assert_eq!(client.tokens, whole),
            _ => {
                let last = client.tokens.last().expect("some tokens");
                assert_eq!(
                    (*last, &client.tokens[..]),
                    (fault, &whole[..client.tokens.len()])
                );
            }
        }
    }
    assert!(clients[1].end.as_ref().is_some_and(Result::is_err));
    assert!(
        clients
            .iter()
            .any(|client| client.end.as_ref().is_some_and(Result::is_ok))
    );
    bench.check_empty();
}

#[test]
fn every_number_of_rows_is_tried_before_anybody_waits() {
    let bench = Bench::new(options(), |_| {});
    // A chunk of a prompt, then decodes of 8 sequences, of 7, …, of 1.
    assert_eq!(bench.control.steps.load(SeqCst), 1 + 8);
    assert_eq!(bench.control.open.load(SeqCst), 0);
}

// E07: reuse only to where every kind of state is, and the same answer as a cold start.
#[test]
fn a_common_beginning_is_computed_once() {
    for (recurrent, reuse, expected) in [
        (false, PrefixReuse::Exact, 96),
        (false, PrefixReuse::Any, 100),
        (false, PrefixReuse::Off, 0),
        (true, PrefixReuse::Exact, 0),
        (true, PrefixReuse::Any, 0),
    ] {
        let mut bench = Bench::new(SchedulerOptions { reuse, ..options() }, |model| {
            model.capacity.recurrent = recurrent;
        });
        let shared = prompt(1, 100);
        let first = [&shared[..], &prompt(5, 20)].concat();
        let second = [&shared[..], &[91, 92, 93]].concat();
        for (prompt, reused) in [(&first, 0), (&second, expected)] {
            let mut client = bench.submit(prompt, 30);
            bench.run(std::slice::from_mut(&mut client));
            assert_eq!(client.tokens, lonely(prompt, 30));
            assert_eq!(
                client.receipt().reused_tokens,
                reused,
                "{recurrent} {reuse:?}"
            );
        }
        // A talk goes on: the last answer's last token never entered.
        let third = [&second[..], &lonely(&second, 30), &[88, 87]].concat();
        let mut client = bench.submit(&third, 9);
        bench.run(std::slice::from_mut(&mut client));
        assert_eq!(client.tokens, lonely(&third, 9));
        let reused = match reuse {
            PrefixReuse::Off => 0,
            PrefixReuse::Any => 132,
            PrefixReuse::Exact if recurrent => 0,
            PrefixReuse::Exact => 96,
        };
        assert_eq!(
            client.receipt().reused_tokens,
            reused,
            "{recurrent} {reuse:?}"
        );
        // Another tenant sees nothing of it.
        let (mut job, mut client) = job(&third, 9);
        job.salt = 1;
        bench.scheduler.submit(job, bench.now);
        bench.run(std::slice::from_mut(&mut client));
        assert_eq!(
            (client.receipt().reused_tokens, client.tokens.len()),
            (0, 9)
        );
        bench.check_empty();
    }
}

#[test]
fn preempted_requests_end_as_if_undisturbed() {
    for evicted in [false, true] {
        let mut preempting = options();
        preempting.preempt_after = Some(Duration::from_millis(50));
        let mut bench = Bench::new(preempting, |model| {
            model.capacity.sequences = if evicted { 2 } else { 8 };
            model.rows = 16;
            model.capacity.positions = 640;
        });
        let lengths = [200, 220, 180, 90, 40, 10];
        let mut clients: Vec<Client> = lengths
            .iter()
            .enumerate()
            .map(|(i, &n)| bench.submit(&prompt(i as u32, 30 + i), n))
            .collect();
        bench.run(&mut clients);
        for (i, (client, &n)) in clients.iter().zip(&lengths).enumerate() {
            assert_eq!(client.tokens, lonely(&prompt(i as u32, 30 + i), n));
            assert!(client.receipt().preemptions <= 2);
        }
        assert!(bench.metrics.preemptions.load(Relaxed) > 0);
        bench.check_empty();
    }
}

// E26, E43
#[test]
fn what_can_never_fit_is_refused_and_what_is_admitted_ends() {
    let mut bench = Bench::new(options(), |model| model.capacity.positions = 256);
    let mut clients = vec![
        bench.submit(&prompt(1, 250), 7),
        bench.submit(&prompt(1, 250), 8),
        bench.submit(&[], 8),
        bench.submit(&prompt(2, 1), 256),
    ];
    bench.run(&mut clients);
    assert_eq!(clients[0].tokens.len(), 7);
    for refused in [&clients[1], &clients[2]] {
        assert!(matches!(
            refused.end,
            Some(Err(Failure::TooLong { limit: 256, .. }))
        ));
    }
    assert_eq!(clients[3].tokens.len(), 256);
    bench.check_empty();
}

#[test]
fn a_request_that_waits_for_room_is_passed_by_a_few_and_no_more() {
    let mut bench = Bench::new(options(), |model| model.capacity.positions = 256);
    let mut first = bench.submit(&prompt(1, 10), 100);
    let mut large = bench.submit(&prompt(2, 100), 150);
    let mut small: Vec<Client> = (0..60).map(|i| bench.submit(&prompt(i, 10), 20)).collect();
    bench.run(&mut small);
    first.read();
    large.read();
    assert_eq!(large.tokens, lonely(&prompt(2, 100), 150));
    let queue = |client: &Client| client.receipt().queue_seconds;
    let later = small
        .iter()
        .filter(|client| queue(client) > queue(&large))
        .count();
    assert!(later >= 50, "{later} of 60 were admitted behind it");
    bench.check_empty();
}

// Prompts of up to 15 rows, and what is left of longer ones, enter with the rows that decode.
#[test]
fn short_prompts_share_a_step() {
    let mut bench = Bench::new(options(), |_| ());
    let mut long = bench.submit(&prompt(9, 19), 20);
    bench.turn();
    // Three tokens of the long one are left, and 29 more fit the step; who is left has its own.
    let lengths = [2, 7, 15, 4, 6];
    let mut clients: Vec<Client> = lengths
        .iter()
        .enumerate()
        .map(|(i, &length)| bench.submit(&prompt(i as u32, length), 5))
        .collect();
    let before = bench.control.steps.load(SeqCst);
    bench.turn();
    assert_eq!(bench.control.steps.load(SeqCst) - before, 2);
    let begun = |client: &mut Client| {
        client.read();
        client.tokens.len()
    };
    let found: Vec<usize> = clients.iter_mut().map(begun).collect();
    assert_eq!((begun(&mut long), &found[..]), (1, &[1, 1, 1, 1, 1][..]));
    bench.run(&mut clients);
    for (i, (client, length)) in clients.iter().zip(lengths).enumerate() {
        assert_eq!(client.tokens, lonely(&prompt(i as u32, length), 5));
        assert_eq!(client.receipt().prefill_steps, 1);
    }
    long.read();
    assert_eq!(long.tokens, lonely(&prompt(9, 19), 20));
    assert_eq!(long.receipt().prefill_steps, 2);
    bench.check_empty();
}

// A step has the chunks of as many prompts as the budget and the model take, each at the same cuts
// as alone; a prompt of few rows has other kernels, and its own step.
#[test]
fn prompts_share_a_step_up_to_the_budget() {
    let mut chosen = options();
    chosen.prefill_budget = 64;
    let mut bench = Bench::new(chosen, |model| {
        model.rows = 64;
        model.capacity.prompts = 3;
    });
    let lengths = [40, 16, 70, 33, 20];
    let mut clients: Vec<Client> = lengths
        .iter()
        .enumerate()
        .map(|(i, &length)| bench.submit(&prompt(i as u32, length), 3))
        .collect();
    let before = bench.control.steps.load(SeqCst);
    bench.turn();
    // 16 rows of each of the first three, and of the fourth.
    assert_eq!(bench.control.steps.load(SeqCst) - before, 2);
    bench.run(&mut clients);
    for (i, (client, length)) in clients.iter().zip(lengths).enumerate() {
        assert_eq!(client.tokens, lonely(&prompt(i as u32, length), 3));
        assert_eq!(client.receipt().prefill_steps, length.div_ceil(16));
    }
    bench.check_empty();
}

// A step of several prompts that fails shows which of them is at fault.
#[test]
fn a_prompt_at_fault_fails_alone_among_prompts() {
    let mut chosen = options();
    chosen.prefill_budget = 64;
    let mut bench = Bench::new(chosen, |model| {
        model.rows = 64;
        model.capacity.prompts = 4;
    });
    bench.control.faulty_token.store(7, SeqCst);
    let mut prompts: Vec<Vec<u32>> = (0..4).map(|_| vec![9; 32]).collect();
    prompts[2][20] = 7;
    let mut clients: Vec<Client> = prompts.iter().map(|p| bench.submit(p, 4)).collect();
    bench.run(&mut clients);
    for (i, (client, prompt)) in clients.iter().zip(&prompts).enumerate() {
        match &client.end {
            Some(Err(Failure::Device(_))) => assert_eq!(i, 2),
            Some(Ok(_)) => assert_eq!((i != 2, &client.tokens), (true, &lonely(prompt, 4))),
            other => panic!("{i}: {other:?}"),
        }
    }
    bench.check_empty();
}

#[test]
fn short_prompts_without_end_hold_up_no_long_one() {
    let mut bench = Bench::new(options(), |_| ());
    let mut long = bench.submit(&prompt(1, 320), 1);
    let mut short = Vec::new();
    for i in 0..25 {
        short.push(bench.submit(&prompt(i, 9), 1));
        short.push(bench.submit(&prompt(i, 15), 2));
        bench.turn();
    }
    // A chunk of 16 a turn, whatever comes beside it.
    long.read();
    assert_eq!(long.tokens, lonely(&prompt(1, 320), 1));
    bench.run(&mut short);
    assert!(
        short
            .iter()
            .all(|client| client.end.as_ref().is_some_and(Result::is_ok))
    );
    bench.check_empty();
}

// Fewer steps where the draft is right, one token a turn where many decode, and the answers of
// plain decoding either way.
#[test]
fn speculation_saves_steps_and_changes_nothing_else() {
    for recurrent in [false, true] {
        for (wrong_every, most_steps) in [(0, 30), (3, 90)] {
            let mut bench = Bench::new(options(), |model| model.capacity.recurrent = recurrent);
            bench.speculate((5, 3), Some(&|model| model.wrong_every = wrong_every));
            let before = bench.control.steps.load(SeqCst);
            let mut clients: Vec<Client> =
                (0..3).map(|i| bench.submit(&prompt(i, 40), 100)).collect();
            bench.run(&mut clients);
            let steps = bench.control.steps.load(SeqCst) - before;
            assert!(
                steps < most_steps + 9,
                "{steps} steps, {recurrent} {wrong_every}"
            );
            let (mut proposed, mut accepted) = (0, 0);
            for (i, client) in clients.iter().enumerate() {
                assert_eq!(client.tokens, lonely(&prompt(i as u32, 40), 100));
                proposed += client.receipt().proposed_tokens as u64;
                accepted += client.receipt().accepted_tokens as u64;
            }
            assert_eq!((proposed, accepted), bench.speculated());
            assert_eq!(accepted == proposed, wrong_every == 0);
            // A stop token ends an answer in the midst of what was proposed.
            let (mut job, mut client) = job(&prompt(7, 9), 50);
            let whole = lonely(&prompt(7, 9), 50);
            let stop = whole[13];
            job.stop_tokens = vec![stop];
            bench.scheduler.submit(job, bench.now);
            bench.run(std::slice::from_mut(&mut client));
            let end = whole.iter().position(|&token| token == stop);
            assert_eq!(client.tokens, whole[..end.expect("there")]);
            // Above the limit nobody speculates.
            let counts = bench.speculated();
            let mut clients: Vec<Client> = (0..4).map(|i| bench.submit(&[i], 20)).collect();
            for _ in 0..10 {
                bench.turn();
            }
            assert_eq!(bench.speculated(), counts);
            bench.run(&mut clients);
            bench.check_empty();
        }
    }
}

// A draft that fails, has no room or too short a context takes nobody's answer.
#[test]
fn a_draft_in_trouble_costs_its_proposals_alone() {
    type Change = fn(&mut MockModel);
    let troubles: [(&str, Change); 4] = [
        ("fails", |model| model.control.broken.store(true, SeqCst)),
        ("short", |model| model.context = 60),
        ("another vocabulary", |model| model.vocab = 1000),
        ("NaN", |model| model.control.poison_token.store(40, SeqCst)),
    ];
    for (name, change) in troubles {
        let mut bench = Bench::new(options(), |_| ());
        bench.speculate((10, 8), Some(&change));
        let mut clients: Vec<Client> = (0..5).map(|i| bench.submit(&prompt(i, 50), 60)).collect();
        bench.run(&mut clients);
        for (i, client) in clients.iter().enumerate() {
            assert_eq!(client.tokens, lonely(&prompt(i as u32, 50), 60), "{name}");
        }
        bench.check_empty();
    }
}

#[derive(Clone, Debug)]
enum Act {
    Submit {
        seed: u32,
        length: usize,
        tokens: usize,
    },
    Turn(usize),
    Drop(usize),
    Break(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0u32..4, 1usize..120, 1usize..60)
            .prop_map(|(seed, length, tokens)| Act::Submit { seed, length, tokens }),
        4 => (1usize..12).prop_map(Act::Turn),
        2 => (0usize..20).prop_map(Act::Drop),
        1 => (1usize..3).prop_map(Act::Break),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // Arrivals, departures and failures at every point; the mock panics at any misuse.
    #[test]
    fn whatever_happens_answers_are_right_and_everything_comes_back(
        acts in prop::collection::vec(act(), 1..60),
        sequences in 1usize..6,
        positions in 8usize..40,
        recurrent: bool,
        any: bool,
        preempt: bool,
        proposer in 0usize..3,
        verify_rows in 2usize..=10,
        on_host: bool,
        prompts in 1usize..4,
    ) {
        let mut chosen = options();
        chosen.reuse = if any { PrefixReuse::Any } else { PrefixReuse::Exact };
        chosen.preempt_after = preempt.then_some(Duration::from_millis(30));
        chosen.prefill_budget = 24 * prompts;
        let mut bench = Bench::new(chosen, |model| {
            model.capacity.prompts = prompts;
            model.capacity.sequences = sequences;
            model.capacity.positions = positions * 16;
            model.capacity.recurrent = recurrent;
        });
        match proposer {
            0 => {}
            1 => bench.speculate((verify_rows, 3), None),
            _ => bench.speculate((verify_rows, 3), Some(&|model| {
                model.wrong_every = 5;
                model.capacity.recurrent = !recurrent;
                model.context = 100;
            })),
        }
        let mut clients: Vec<(Client, Vec<u32>, usize)> = Vec::new();
        for act in acts {
            match act {
                Act::Submit { seed, length, tokens } => {
                    let prompt = prompt(seed, length);
                    let (mut job, client) = job(&prompt, tokens);
                    job.chooser = Box::new(Greedy { logits: on_host });
                    bench.scheduler.submit(job, bench.now);
                    clients.push((client, prompt, tokens));
                }
                Act::Turn(turns) => (0..turns).for_each(|_| bench.turn()),
                Act::Drop(index) => {
                    if index < clients.len() {
                        clients.remove(index);
                    }
                }
                Act::Break(turns) => {
                    let broken = if turns == 2 { &bench.draft } else { &bench.control };
                    let broken = broken.clone();
                    broken.broken.store(true, SeqCst);
                    (0..turns).for_each(|_| bench.turn());
                    broken.broken.store(false, SeqCst);
                }
            }
        }
        bench.run(&mut []);
        for (client, prompt, tokens) in &mut clients {
            client.read();
            let whole = lonely(prompt, *tokens);
            match client.end.as_ref().expect("every request ends") {
                Ok((stopped, _)) => {
                    prop_assert!(!stopped);
                    prop_assert_eq!(&client.tokens, &whole);
                }
                Err(Failure::Device(_)) => {
                    prop_assert_eq!(&client.tokens[..], &whole[..client.tokens.len()]);
                }
                Err(Failure::TooLong { limit, .. }) => {
                    prop_assert!(prompt.len() + *tokens - 1 > *limit);
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
        bench.check_empty();
    }
}
