//! The scheduler over the engine, on a tiny checkpoint of each kind of graph: a request's tokens
//! and log-probabilities have the same bits in company, after a preemption and behind a reused
//! prefix as alone from a cold start, greedy and sampled.
//!
//! `IRON_TEST_BACKENDS` names the backends (`cpu` where it is not set).

mod support;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use butter::checkpoint::Checkpoint;
use butter::engine::{CacheType, DeviceModel, EngineOptions, ProductInputs};
use butter::model::{Model, ModelCapacity, ModelError, RowResult, SequenceId, StepRow};
use butter::sampler::{Sampler, SamplingParameters};
use butter::scheduler::{
    DraftModels, Event, Job, PrefixReuse, Receipt, Scheduler, SchedulerMetrics, SchedulerOptions,
    Speculator,
};
use butter::serve::chooser::Chooser;
use butter::speculate::{NGram, Propose};
use iron_runtime::Backend;
use support::data;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const VOCABULARY: usize = 512;
const CHUNK: usize = 32;

/// A request: prompt, length of the answer, temperature.
type Wanted = (Vec<u32>, usize, f64);
/// Tokens with their log-probabilities, which a choice on the device has not.
type Answer = Vec<(u32, Option<f64>)>;

struct Bench {
    scheduler: Scheduler,
    metrics: Arc<SchedulerMetrics>,
    now: Instant,
}

/// A model all of whose state that no sequence holds is poison before each step.
struct Poisoned(DeviceModel);

impl Model for Poisoned {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.0.context_length()
    }

    fn max_step_rows(&self) -> usize {
        self.0.max_step_rows()
    }

    fn open_sequence(&mut self, capacity: usize) -> Result<SequenceId, ModelError> {
        self.0.open_sequence(capacity)
    }

    fn truncate_sequence(&mut self, id: SequenceId, length: usize) -> Result<usize, ModelError> {
        self.0.truncate_sequence(id, length)
    }

    fn reusable_length(&self, id: SequenceId, length: usize) -> usize {
        self.0.reusable_length(id, length)
    }

    fn resize_sequence(&mut self, id: SequenceId, capacity: usize) -> Result<(), ModelError> {
        self.0.resize_sequence(id, capacity)
    }

    fn capacity(&self) -> ModelCapacity {
        self.0.capacity()
    }

    fn close_sequence(&mut self, id: SequenceId) {
        self.0.close_sequence(id);
    }

    fn step(&mut self, rows: &[StepRow]) -> Result<Vec<RowResult>, ModelError> {
        self.0.poison_unused_state()?;
        self.0.step(rows)
    }
}

fn load(family: &str, backend: Backend, sequences: usize) -> DeviceModel {
    let path = data(&format!("models/{family}/bf16"));
    let checkpoint = Checkpoint::open(&path).expect("the checkpoint loads");
    let options = EngineOptions {
        dtype: iron_ir::Scalar::F32,
        product_inputs: ProductInputs::Exact,
        max_sequences: sequences,
        max_step_rows: 2 * CHUNK,
        cache_positions: sequences * 192,
        cache: CacheType::Activations,
    };
    let device = iron_runtime::open(backend).expect("opened before");
    let mut model = DeviceModel::load(device, &checkpoint, options).expect("the model loads");
    model.set_sharing_of_prompts(true);
    model
}

/// A scheduler of `running` requests; `spare` sequences more may be kept.
fn bench(
    family: &str,
    backend: Backend,
    (running, spare): (usize, usize),
    reuse: PrefixReuse,
) -> Bench {
    let model = load(family, backend, running + spare);
    bench_of(Box::new(model), running, reuse)
}

fn bench_of(model: Box<dyn Model>, running: usize, reuse: PrefixReuse) -> Bench {
    let metrics = Arc::new(SchedulerMetrics::default());
    let options = SchedulerOptions {
        max_running: running,
        chunk: CHUNK,
        prefill_budget: 2 * CHUNK,
        max_positions: 192,
        reuse,
        preempt_after: (running > 1).then_some(Duration::from_millis(200)),
        max_preemptions: 2,
    };
    let scheduler = Scheduler::new(model, options, metrics.clone()).expect("starts");
    Bench {
        scheduler,
        metrics,
        now: Instant::now(),
    }
}

impl Bench {
    fn submit(&mut self, wanted: &Wanted) -> UnboundedReceiver<(usize, Event)> {
        let (prompt, max_tokens, temperature) = wanted;
        let parameters = SamplingParameters {
            temperature: *temperature,
            seed: prompt.len() as u64,
            repetition_penalty: if *temperature > 0.0 { 1.1 } else { 1.0 },
            ..SamplingParameters::default()
        };
        let sampler = Sampler::new(parameters, VOCABULARY).expect("in range");
        // Half of the greedy ones are chosen on the device.
        let on_device = *temperature == 0.0 && prompt.len() % 4 == 3;
        let top = (!on_device).then_some(0);
        let (events, receiver) = unbounded_channel();
        let job = Job {
            prompt: prompt.clone(),
            max_tokens: *max_tokens,
            stop_tokens: Vec::new(),
            chooser: Box::new(Chooser::new(sampler, prompt, None, top)),
            salt: 0,
            deadline: None,
            index: 0,
            events,
            enough: Arc::default(),
        };
        self.scheduler.submit(job, self.now);
        receiver
    }

    fn run(&mut self) {
        while self.scheduler.has_work() {
            self.now += Duration::from_millis(10);
            let now = self.now;
            self.scheduler.turn(|| now).expect("a turn");
        }
    }

    /// The answers of requests that run together.
    fn together(&mut self, wanted: &[Wanted]) -> Vec<(Answer, Receipt)> {
        let receivers: Vec<_> = wanted.iter().map(|wanted| self.submit(wanted)).collect();
        self.run();
        receivers.into_iter().map(read).collect()
    }
}

fn read(mut events: UnboundedReceiver<(usize, Event)>) -> (Answer, Receipt) {
    let mut answer = Vec::new();
    while let Ok((_, event)) = events.try_recv() {
        match event {
            Event::Token(choice) => answer.push((choice.token, choice.logprob)),
            Event::Finished { receipt, .. } => return (answer, receipt),
            Event::Failed { failure, .. } => panic!("{failure}"),
        }
    }
    panic!("no end");
}

fn prompt(seed: u32, length: usize) -> Vec<u32> {
    let token = |i: u32| (i * 97 + seed * 131 + i * i * 7) % VOCABULARY as u32;
    (0..length as u32).map(token).collect()
}

fn on_backends(check: impl Fn(Backend)) {
    let names = std::env::var("IRON_TEST_BACKENDS").unwrap_or_else(|_| "cpu".to_owned());
    for name in names.split(',') {
        let backend = Backend::from_name(name.trim()).expect("a backend's name");
        match iron_runtime::open(backend) {
            Ok(_) => check(backend),
            Err(error) => {
                let line = format!("SKIPPED backend {name}: {error}\n");
                let written = std::io::stderr().write_all(line.as_bytes());
                written.expect("standard error takes a line");
            }
        }
    }
}

// E23, E30, E06
fn company_and_preemption_change_no_bit(family: &str) {
    on_backends(|backend| {
        let wanted: Vec<Wanted> = (0..10)
            .map(|i| {
                let temperature = if i % 2 == 0 { 0.0 } else { 0.9 };
                let length = 1 + (i as usize * 37) % 100;
                let tokens = if i < 3 { 60 } else { 4 + i as usize * 2 };
                (prompt(i, length), tokens, temperature)
            })
            .collect();
        let mut alone = bench(family, backend, (1, 0), PrefixReuse::Off);
        let expected: Vec<Answer> = wanted
            .iter()
            .map(|wanted| alone.together(std::slice::from_ref(wanted)).remove(0).0)
            .collect();
        let chosen_on_device = expected.iter().filter(|answer| answer[0].1.is_none());
        assert_eq!(chosen_on_device.count(), 2);
        // Who is preempted finds its state again, or has to compute it again.
        for spare in [3, 0] {
            let mut company = bench(family, backend, (3, spare), PrefixReuse::Exact);
            let found = company.together(&wanted);
            for (i, (answer, _)) in found.iter().enumerate() {
                let which = format!("{family} on {backend:?}: request {i}, {spare} spare");
                assert_eq!(answer, &expected[i], "{which}");
            }
            let preempted = |is_greedy: bool| {
                let pairs = found.iter().zip(&wanted);
                let pairs = pairs.filter(|(_, wanted)| (wanted.2 == 0.0) == is_greedy);
                pairs
                    .filter(|((_, receipt), _)| receipt.preemptions > 0)
                    .count()
            };
            assert!(preempted(true) > 0, "no greedy one was preempted");
            assert!(preempted(false) > 0, "no sampled one was preempted");
            assert_eq!(company.metrics.leases.leaked.load(Relaxed), 0);
            company.scheduler.drop_prefixes();
            assert_eq!(company.metrics.leases.out(), 0);
        }
    });
}

// E11, E23: whoever proposes and whoever runs beside it, a request's tokens and log-probabilities
// are those that it has alone without proposals; what was rejected is poison.
fn speculation_changes_no_bit(family: &str) {
    on_backends(|backend| {
        let wanted: Vec<Wanted> = (0..6)
            .map(|i| {
                let temperature = if i % 2 == 0 { 0.0 } else { 0.9 };
                let length = 3 + (i as usize * 37) % 60;
                (prompt(i, length), 50 - i as usize * 6, temperature)
            })
            .collect();
        let mut alone = bench(family, backend, (1, 0), PrefixReuse::Off);
        let expected: Vec<Answer> = wanted
            .iter()
            .map(|wanted| alone.together(std::slice::from_ref(wanted)).remove(0).0)
            .collect();
        for (draft, verify_rows) in [(Some(family), 4), (Some("qwen3_draft"), 3), (None, 10)] {
            let model = Poisoned(load(family, backend, 3));
            let mut company = bench_of(Box::new(model), 3, PrefixReuse::Exact);
            let leases = company.metrics.draft_leases.clone();
            let proposer: Box<dyn Propose> = match draft {
                Some(draft) => {
                    let draft = Poisoned(load(draft, backend, 3));
                    Box::new(DraftModels::new(Box::new(draft), CHUNK, leases.clone()))
                }
                None => Box::new(NGram {
                    longest: 2,
                    shortest: 1,
                }),
            };
            let speculator = Speculator {
                proposer,
                verify_rows,
                max_running: 3,
            };
            company.scheduler.speculate(speculator).expect("starts");
            let found = company.together(&wanted);
            for (i, (answer, _)) in found.iter().enumerate() {
                let which = format!("{family} by {draft:?} on {backend:?}: request {i}");
                assert_eq!(answer, &expected[i], "{which}");
            }
            for (i, (_, receipt)) in found.iter().enumerate() {
                let (proposed, accepted) = (receipt.proposed_tokens, receipt.accepted_tokens);
                let which = format!("{family} by {draft:?}: {accepted} of {proposed} in {i}");
                assert!(proposed > 0 || draft.is_none(), "{which}");
                // A model that proposes to itself is right about what is greedy, and no draw is.
                let is_right = draft == Some(family) && i % 2 == 0;
                assert!(
                    (accepted == proposed) == is_right || draft.is_none(),
                    "{which}"
                );
            }
            company.scheduler.drop_prefixes();
            assert_eq!((company.metrics.leases.out(), leases.out()), (0, 0));
        }
    });
}

// E07
fn a_reused_prefix_gives_the_logits_of_a_cold_start(family: &str) {
    on_backends(|backend| {
        let shared = prompt(1, 100);
        let first = ([&shared[..], &prompt(2, 11)].concat(), 9, 0.0);
        let mut cold = bench(family, backend, (1, 0), PrefixReuse::Off);
        let answer = cold.together(std::slice::from_ref(&first)).remove(0).0;
        let tokens: Vec<u32> = answer.iter().map(|(token, _)| *token).collect();
        let other = ([&shared[..], &prompt(3, 20)].concat(), 9, 0.0);
        let talk = ([&first.0[..], &tokens, &prompt(4, 6)].concat(), 9, 0.0);
        let cases = [
            (PrefixReuse::Exact, &other, 96, 0.0),
            (PrefixReuse::Exact, &talk, 96, 0.0),
            // The last token of an answer never enters: 111 + 8.
            (PrefixReuse::Any, &talk, 119, 2e-3),
        ];
        for (reuse, second, reused, bound) in cases {
            let expected = cold.together(std::slice::from_ref(second)).remove(0).0;
            let mut warm = bench(family, backend, (2, 0), reuse);
            warm.together(std::slice::from_ref(&first));
            let (found, receipt) = warm.together(std::slice::from_ref(second)).remove(0);
            assert_eq!(receipt.reused_tokens, reused, "{family} {reuse:?}");
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.0, expected.0, "{family} {reuse:?}");
                let [found, expected] = [found, expected].map(|(_, l)| l.expect("asked for"));
                let difference = (found - expected).abs();
                assert!(difference <= bound, "{family} {reuse:?}: {difference}");
            }
            // The prompt's steps fall with what is reused.
            let steps = (second.0.len().div_ceil(CHUNK) - reused / CHUNK).max(1);
            assert_eq!(receipt.prefill_steps, steps, "{family} {reuse:?}");
        }
    });
}

macro_rules! families {
    ($($family:ident,)*) => {
        $(mod $family {
            #[test]
            fn company_and_preemption_change_no_bit() {
                super::company_and_preemption_change_no_bit(stringify!($family));
            }

            #[test]
            fn speculation_changes_no_bit() {
                super::speculation_changes_no_bit(stringify!($family));
            }

            #[test]
            fn a_reused_prefix_gives_the_logits_of_a_cold_start() {
                super::a_reused_prefix_gives_the_logits_of_a_cold_start(stringify!($family));
            }
        })*
    };
}

families! {
    llama,
    gemma3,
    qwen3_moe,
    qwen3_next,
    granitemoehybrid,
}
