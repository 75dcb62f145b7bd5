//! Running tests: every case in every layout on every backend.

use std::collections::{BTreeSet, HashMap};
use std::io::BufRead;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use iron_ir::registry::{InstanceEntry, KernelEntry};
use iron_ir::testing::{Case, Cases, Role, Subject, TestEntry, compare, seed_of, tests};
use iron_runtime::{Backend, Device, DeviceError, Pipeline, RecordedLaunch, open};

use crate::command::{Ending, TestOptions};
use crate::contracts;
use crate::layouts::{Placed, Variant, place};
use crate::report::{BackendLine, CaseErrors, NotRun, Outcome, Run, Summary, print_json};
use crate::select::{Selected, explain_empty, full_name, registry_hash, select};
use crate::workers::{self, Workers};

/// Backends where none is named: those of a machine without a GPU.
const DEFAULT_BACKENDS: [Backend; 3] = [Backend::Host, Backend::Reference, Backend::Cpu];

/// Workgroups of a production launch that a slow backend runs.
const SAMPLED_GROUPS: u64 = 8;

/// `test`. Processes of `program` run the tests where there is one, and this process otherwise.
pub(crate) fn test(options: &TestOptions, program: Option<&Path>) -> Ending {
    let started = Instant::now();
    let (selected, orphans) = select(tests(), &options.selection);
    let mut backends = options.selection.backend.clone();
    if backends.is_empty() {
        backends.extend(DEFAULT_BACKENDS);
    }
    let json = options.selection.json;
    let mut run = Run {
        registry: registry_hash(),
        seed: options.seed,
        backends: Vec::new(),
        outcomes: Vec::new(),
        summary: Summary::default(),
    };
    let jobs = options
        .jobs
        .or_else(|| std::thread::available_parallelism().ok());
    let jobs = jobs.map_or(1, usize::from).min(selected.len());
    // A test alone has a process too: a launch may end it.
    let in_this = options.jobs.is_some_and(|jobs| jobs.get() == 1);
    let workers = program.filter(|_| !in_this).map(|program| Workers {
        program,
        jobs,
        options,
    });
    let mut subjects = Subjects::default();
    let mut cases_seen = 0;
    for backend in backends {
        let device = match opened(backend, &mut run.backends, json) {
            Some(device) => device,
            None => continue,
        };
        let mut runner = Runner {
            device,
            options,
            pipelines: HashMap::new(),
        };
        runner.prepare(&selected, &mut subjects);
        let mut note = |outcome: Outcome| {
            cases_seen += outcome.passed
                + outcome.failed()
                + outcome.skipped.len()
                + outcome.unsupported.len();
            if !json {
                outcome.print(options.seed);
            }
            run.outcomes.push(outcome);
        };
        match &workers {
            Some(workers) => workers.run(backend, &selected, &mut note),
            None => {
                for item in &selected {
                    let run = || runner.run(item, &mut subjects);
                    note(workers::watched(&item.name, backend, run));
                }
            }
        }
        for orphan in &orphans {
            let mut outcome = Outcome::new(orphan.name, "", "", backend);
            outcome.fail("", "", options.seed, orphan.message.clone());
            if !json {
                outcome.print(options.seed);
            }
            run.outcomes.push(outcome);
        }
    }
    run.summary = Summary::of(&run.outcomes, &run.backends);
    let present = run.backends.iter().any(|b| b.missing.is_none());
    let nothing = selected.is_empty() || (present && cases_seen == 0);
    if json {
        print_json(&run);
    } else {
        run.print_summary(started.elapsed());
    }
    if nothing {
        let names = tests().iter().map(|t| t.name.to_owned()).collect();
        eprintln!("{}", explain_empty("test", &options.selection, names));
    }
    run.summary.ending(nothing)
}

/// A process of [`Workers`]: reads numbers of tests in the selection, a line each, and answers each
/// with its outcome.
pub(crate) fn worker(options: &TestOptions) -> Ending {
    let [backend] = options.selection.backend[..] else {
        eprintln!("a worker has one backend");
        return Ending::Usage;
    };
    let (selected, _) = select(tests(), &options.selection);
    let device = match open(backend) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("{error}");
            return Ending::BackendMissing;
        }
    };
    let mut runner = Runner {
        device,
        options,
        pipelines: HashMap::new(),
    };
    let mut subjects = Subjects::default();
    for line in std::io::stdin().lock().lines() {
        let number = line.ok().and_then(|line| line.trim().parse::<usize>().ok());
        let Some(item) = number.and_then(|number| selected.get(number)) else {
            eprintln!("a worker reads numbers of tests, below {}", selected.len());
            return Ending::Usage;
        };
        workers::answer(&runner.run(item, &mut subjects));
    }
    Ending::Passed
}

/// Opens a backend and notes it.
pub(crate) fn opened(
    backend: Backend,
    lines: &mut Vec<BackendLine>,
    json: bool,
) -> Option<Arc<dyn Device>> {
    let mut line = BackendLine {
        backend: backend.name(),
        label: None,
        device: None,
        driver: None,
        missing: None,
    };
    let device = match open(backend) {
        Ok(device) => {
            line.label = Some(backend.label());
            line.device = Some(device.name());
            line.driver = Some(device.driver());
            if !json {
                println!(
                    "{backend}: {} ({})",
                    device.name(),
                    device.driver(),
                    backend = backend.name()
                );
            }
            Some(device)
        }
        Err(error) => {
            line.missing = Some(error.to_string());
            None
        }
    };
    lines.push(line);
    device
}

/// Instances built once for all tests and backends.
#[derive(Default)]
pub(crate) struct Subjects(HashMap<(usize, &'static str), Result<Subject, String>>);

impl Subjects {
    /// The built instance, or why it does not build.
    pub fn get(
        &mut self,
        kernel: &'static KernelEntry,
        instance: &'static InstanceEntry,
    ) -> Result<Subject, String> {
        let key = (std::ptr::from_ref(kernel) as usize, instance.name);
        let build = || match catch_unwind(|| Subject::new(instance)) {
            Ok(Ok(subject)) => Ok(subject),
            Ok(Err(error)) => Err(format!("the kernel does not build: {error}")),
            Err(payload) => Err(format!(
                "building the kernel panicked: {}",
                panic_text(&*payload)
            )),
        };
        self.0.entry(key).or_insert_with(build).clone()
    }
}

/// The text of a panic.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".into())
}

struct Runner<'a> {
    device: Arc<dyn Device>,
    options: &'a TestOptions,
    pipelines: HashMap<PipelineKey, Result<Arc<dyn Pipeline>, Refusal>>,
}

/// A kernel's address in the registry, and its instance.
type PipelineKey = (usize, &'static str);

/// Why a kernel has no pipeline.
#[derive(Clone)]
pub(crate) enum Refusal {
    Unsupported(String),
    Failed(String),
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Refusal {
        match error {
            DeviceError::Unsupported { reason, .. } => Refusal::Unsupported(reason),
            other => Refusal::Failed(other.to_string()),
        }
    }
}

impl Runner<'_> {
    /// Lets the device compile everything at once. Each item reports its own failure later.
    fn prepare(&self, selected: &[Selected<TestEntry>], subjects: &mut Subjects) {
        let subjects: Vec<_> = selected
            .iter()
            .filter_map(|item| subjects.get(item.kernel, item.instance).ok())
            .collect();
        let kernels: Vec<_> = subjects.iter().map(|subject| &*subject.kernel).collect();
        let _ = catch_unwind(AssertUnwindSafe(|| self.device.prepare(&kernels)));
    }

    fn run(&mut self, item: &Selected<TestEntry>, subjects: &mut Subjects) -> Outcome {
        let started = Instant::now();
        let kernel_name = full_name(item.kernel.name, item.instance.name);
        let backend = self.device.backend();
        let mut outcome = Outcome::new(&item.name, &kernel_name, item.instance.name, backend);
        let seed = seed_of(self.options.seed, item.entry.name);
        match subjects.get(item.kernel, item.instance) {
            Err(message) => outcome.fail("", "", seed, message),
            Ok(subject) => self.run_cases(item, &subject, seed, &mut outcome),
        }
        outcome.milliseconds = started.elapsed().as_secs_f64() * 1e3;
        outcome
    }

    fn run_cases(
        &mut self,
        item: &Selected<TestEntry>,
        subject: &Subject,
        seed: u64,
        outcome: &mut Outcome,
    ) {
        let build = item.entry.build;
        let list = match catch_unwind(AssertUnwindSafe(|| Cases::list(subject, build))) {
            Ok(list) => list,
            Err(payload) => {
                let text = panic_text(&*payload);
                return outcome.fail("", "", seed, format!("the test panicked: {text}"));
            }
        };
        if list.is_empty() {
            return outcome.fail("", "", seed, "the test has no cases".into());
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = list.iter().find(|case| !names.insert(&case.name)) {
            let message = format!("two cases of the test are named {:?}", twice.name);
            return outcome.fail("", "", seed, message);
        }
        let pipeline = self.pipeline(item, subject);
        let mut contract_checked = false;
        for (index, listed) in list.iter().enumerate() {
            if !item.takes(&listed.name) {
                continue;
            }
            let not_run = |reason: &str| NotRun {
                case: listed.name.clone(),
                reason: reason.to_owned(),
            };
            let pipeline = match &pipeline {
                Ok(pipeline) => pipeline,
                Err(Refusal::Unsupported(reason)) => {
                    outcome.unsupported.push(not_run(reason));
                    continue;
                }
                Err(Refusal::Failed(message)) => {
                    return outcome.fail("", "", seed, message.clone());
                }
            };
            if let (Backend::Host, Err(reason)) = (self.device.backend(), &listed.host) {
                outcome.unsupported.push(not_run(reason));
                continue;
            }
            if listed.production && self.options.small {
                outcome.skipped.push(not_run("production size"));
                continue;
            }
            if listed.production && self.is_slow() && !listed.sampled {
                outcome
                    .skipped
                    .push(not_run("its workgroups cannot be sampled"));
                continue;
            }
            let computed = catch_unwind(AssertUnwindSafe(|| {
                Cases::compute(subject, build, seed, index)
            }));
            let case = match computed {
                Ok(Some(case)) => case,
                Ok(None) => {
                    outcome.fail(
                        &listed.name,
                        "",
                        seed,
                        "the case is not always there".into(),
                    );
                    continue;
                }
                Err(payload) => {
                    let text = panic_text(&*payload);
                    outcome.fail(
                        &listed.name,
                        "",
                        listed.seed,
                        format!("the oracle panicked: {text}"),
                    );
                    continue;
                }
            };
            if let Some(problem) = &case.problem {
                outcome.fail(
                    &case.name,
                    "",
                    case.seed,
                    format!("the test is wrong: {problem}"),
                );
                continue;
            }
            let failures = outcome.failures.len();
            for variant in Variant::of(&subject.kernel, &case) {
                if let Err(message) = self.run_variant(pipeline, subject, &case, variant, outcome) {
                    outcome.fail(&case.name, variant.name(), case.seed, message);
                }
            }
            if !contract_checked && !case.production && contracts::is_suitable(&case) {
                contract_checked = true;
                for message in contracts::check(&self.device, pipeline, &subject.kernel, &case) {
                    outcome.fail(&case.name, "contract", case.seed, message);
                }
            }
            if outcome.failures.len() == failures {
                outcome.passed += 1;
            }
        }
    }

    fn pipeline(
        &mut self,
        item: &Selected<TestEntry>,
        subject: &Subject,
    ) -> Result<Arc<dyn Pipeline>, Refusal> {
        let key = (std::ptr::from_ref(item.kernel) as usize, item.instance.name);
        let device = &self.device;
        self.pipelines
            .entry(key)
            .or_insert_with(|| compile(device, subject))
            .clone()
    }

    fn is_slow(&self) -> bool {
        matches!(
            self.device.backend().label(),
            "host" | "reference" | "emulated"
        )
    }

    fn run_variant(
        &self,
        pipeline: &Arc<dyn Pipeline>,
        subject: &Subject,
        case: &Case,
        variant: Variant,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        let kernel = &subject.kernel;
        let placed = place(&self.device, kernel, case, variant);
        let (arguments, placed) = placed.map_err(|e| e.to_string())?;
        let launch = RecordedLaunch::new(pipeline.clone(), arguments).map_err(|e| e.to_string())?;
        let sampled = case.production && self.is_slow();
        let submitted = if sampled {
            let groups = sample(launch.checked.grid, case.seed);
            self.device.submit_groups(&launch, &groups)
        } else {
            self.device.submit(std::slice::from_ref(&launch))
        };
        submitted.map_err(|e| e.to_string())?;
        self.device.synchronize().map_err(|e| e.to_string())?;
        outcome.launches += 1;
        let mut wrong = Vec::new();
        for tensor in &placed {
            let errors = &mut outcome.errors;
            match judge(&*self.device, case, tensor, variant, sampled, errors) {
                Ok(()) => {}
                Err(message) => wrong.push(message),
            }
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(wrong.join("; "))
        }
    }
}

/// Reads a tensor back and compares it with the oracle; the errors are noted.
pub(crate) fn judge(
    device: &dyn Device,
    case: &Case,
    tensor: &Placed,
    variant: Variant,
    sampled: bool,
    errors: &mut Vec<CaseErrors>,
) -> Result<(), String> {
    let got = tensor.read_back(device)?;
    if tensor.role == Role::Input {
        return Ok(());
    }
    let Some(expectation) = case.expected.get(&tensor.name) else {
        return Err(format!(
            "the test expects nothing of `{}`: call `.expect` for each output",
            tensor.name
        ));
    };
    let bound = case.bound_for(&tensor.name);
    let report = compare(
        tensor.scalar,
        &got,
        &tensor.initial,
        expectation,
        &bound,
        sampled,
    );
    errors.push(CaseErrors {
        case: case.name.clone(),
        variant: variant.name().to_owned(),
        output: tensor.name.clone(),
        compared: report.compared,
        max_absolute: report.max_absolute,
        max_relative: report.max_relative,
        max_ulps: report.max_ulps,
        cosine: report.cosine,
        norm_drift: report.norm_drift,
        nans: report.nans,
        infinities: report.infinities,
    });
    if sampled && report.compared == 0 && !got.is_empty() && tensor.role == Role::Output {
        return Err(format!(
            "the sampled workgroups wrote nothing of `{}`",
            tensor.name
        ));
    }
    let Some(first) = &report.first else {
        return Ok(());
    };
    Err(format!(
        "`{}` {}: {}: got {:?} ({:#x}), expected {:?}, bound {:e} ({bound}); {} of {} elements \
         wrong, max absolute {:e}, relative {:e}, {:.1} ULP, cosine {:.9}, norm drift {:e}, {} NaN, {} infinite",
        tensor.name,
        element_name(first.index, &tensor.shape),
        first.reason,
        first.got,
        first.got_bits,
        first.expected,
        first.bound,
        report.failures,
        report.compared,
        report.max_absolute,
        report.max_relative,
        report.max_ulps,
        report.cosine,
        report.norm_drift,
        report.nans,
        report.infinities
    ))
}

/// Compiles an instance; a panic of a pass or a lowering is a failure of that kernel alone.
pub(crate) fn compile(
    device: &Arc<dyn Device>,
    subject: &Subject,
) -> Result<Arc<dyn Pipeline>, Refusal> {
    match catch_unwind(AssertUnwindSafe(|| device.pipeline(&subject.kernel))) {
        Ok(pipeline) => pipeline.map_err(Refusal::from),
        Err(payload) => Err(Refusal::Failed(format!(
            "compiling panicked: {}",
            panic_text(&*payload)
        ))),
    }
}

/// `element 17 at [0, 17]`.
fn element_name(index: usize, shape: &[u64]) -> String {
    let mut rest = index as u64;
    let mut parts = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        let extent = shape[axis].max(1);
        parts[axis] = rest % extent;
        rest /= extent;
    }
    format!("element {index} at {parts:?}")
}

/// The first, the last, and seeded workgroups between them.
pub(crate) fn sample(grid: [u32; 3], seed: u64) -> Vec<u64> {
    let all: u64 = grid.iter().map(|&n| u64::from(n)).product();
    if all <= SAMPLED_GROUPS {
        return (0..all).collect();
    }
    let mut groups = vec![0, all - 1];
    let mut draw = 0;
    while (groups.len() as u64) < SAMPLED_GROUPS {
        draw += 1;
        let group = seed_of(seed, &format!("group {draw}")) % all;
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups.sort_unstable();
    groups
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn samples_hold_both_ends() {
        let groups = sample([1000, 7, 2], 5);
        assert_eq!(groups.len(), 8);
        assert_eq!((groups[0], groups[7]), (0, 13_999));
        assert_eq!(sample([3, 1, 1], 5), [0, 1, 2]);
        assert_eq!(element_name(17, &[2, 10]), "element 17 at [1, 7]");
    }
}
