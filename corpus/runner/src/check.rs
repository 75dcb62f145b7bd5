//! `check`: every case of every test on the reference, which checks each rule of the specification,
//! at one or several subgroup widths.
//!
//! The rules are those of [`Rule`]. A launch ends at its first fault; a fault that several cases,
//! instances or widths meet is one report. Outputs are undefined before a launch, so that a kernel
//! that reads its own output before it wrote it has a fault. Cases of production size run sampled
//! workgroups, at the first width. A kernel that neither asks for its place in a subgroup nor
//! exchanges within one is the same at every width, and runs at the first.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use iron_ir::kernel::Kernel;
use iron_ir::op::{BarrierScope, BuiltinOp};
use iron_ir::registry::{KernelEntry, kernels};
use iron_ir::testing::{Case, Cases, Role, Subject, TestEntry, seed_of, tests};
use iron_ir::verify::{Fault, Location, VerifyError, verify};
use iron_ir::{Op, Stmt};
use iron_runtime::reference::{ReferenceDevice, ReferenceOptions, Related, Report, Rule};
use iron_runtime::{Device, RecordedLaunch};
use serde::Serialize;

use crate::command::{CheckOptions, Ending, Selection};
use crate::layouts::{Placed, Variant, place};
use crate::report::print_json;
use crate::select::{Selected, explain_empty, registry_hash, select};
use crate::test::{Subjects, judge, panic_text, sample};

/// What to check, and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// Only tests and kernels whose name contains this, as the command line's `--filter`.
    pub filter: Option<String>,
    /// Only instances with this element type.
    pub dtype: Option<String>,
    /// Subgroup widths: powers of two from 4 to 64.
    pub widths: Vec<u32>,
    /// Floats that stop being finite are faults.
    pub finite: bool,
    /// Statements that one workgroup may execute before it counts as endless.
    pub max_steps: u64,
    /// Seed of the inputs.
    pub seed: u64,
    /// Leaves out cases of production size.
    pub small: bool,
    /// Threads that check; one for each processor where absent. The report is the same.
    pub jobs: Option<NonZeroUsize>,
}

impl Default for Request {
    fn default() -> Self {
        Request {
            filter: None,
            dtype: None,
            widths: vec![32],
            finite: false,
            max_steps: DEFAULT_STEPS,
            seed: 1,
            small: false,
            jobs: None,
        }
    }
}

/// Enough for the corpus' largest cases many times over, and seconds of an endless loop.
pub(crate) const DEFAULT_STEPS: u64 = 1 << 22;

/// A place in a file.
#[derive(Serialize, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// As rustc names it.
    pub file: String,
    /// From 1; 0 where unknown.
    pub line: u32,
    /// From 1.
    pub column: u16,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl From<&Location> for Place {
    fn from(location: &Location) -> Place {
        Place {
            file: location.file.to_string(),
            line: location.line,
            column: location.column,
        }
    }
}

/// One fault, whatever the number of cases that meet it.
#[derive(Serialize, Clone, Debug)]
pub struct Found {
    /// Name of the rule: [`Rule::name`].
    pub rule: &'static str,
    /// Kernel, without its instance.
    pub kernel: String,
    /// Where.
    pub at: Place,
    /// The other place, and what is there.
    pub related: Option<(&'static str, Place)>,
    /// Workgroup along x, y, z, in the first case that met it.
    pub workgroup: Option<[u32; 3]>,
    /// Linear thread index, in that case.
    pub thread: Option<u32>,
    /// What happened, with the values of that case.
    pub message: String,
    /// What to do.
    pub help: &'static str,
    /// The first case, as `test[instance]/case`; empty for a kernel that does not build.
    pub case: String,
    /// The layout of its tensors.
    pub variant: &'static str,
    /// Instances that have it.
    pub instances: Vec<String>,
    /// Subgroup widths at which it was met.
    pub widths: Vec<u32>,
    /// Launches that met it.
    pub times: usize,
}

/// A whole run.
#[derive(Serialize, Clone, Debug)]
pub struct Checked {
    /// Hash of every registered kernel, test and bench.
    pub registry: String,
    /// Seed of the inputs.
    pub seed: u64,
    /// Subgroup widths.
    pub widths: Vec<u32>,
    /// Whether floats had to stay finite.
    pub finite: bool,
    /// Step budget of a workgroup.
    pub max_steps: u64,
    /// Instances of kernels that ran.
    pub instances: usize,
    /// Those of them that know no subgroup, are the same at every width, and ran at the first.
    pub same_at_every_width: usize,
    /// Cases that ran.
    pub cases: usize,
    /// Launches made.
    pub launches: usize,
    /// Kernels that have no test: they were built and verified, and did not run.
    pub untested: Vec<String>,
    /// Cases that did not run, and why.
    pub skipped: Vec<String>,
    /// Tests that are wrong themselves.
    pub problems: Vec<String>,
    /// Faults, in the order of kernels.
    pub faults: Vec<Found>,
}

/// `check`.
pub(crate) fn command(options: &CheckOptions) -> Ending {
    let started = Instant::now();
    let request = Request {
        filter: options.filter.clone(),
        dtype: options.dtype.clone(),
        widths: options.subgroup_width.clone(),
        finite: options.finite,
        max_steps: options.max_steps,
        seed: options.seed,
        small: options.small,
        jobs: options.jobs,
    };
    let checked = check(&request);
    if options.json {
        print_json(&checked);
    } else {
        checked.print();
        println!("{:.1} s", started.elapsed().as_secs_f64());
    }
    if checked.is_empty() {
        let selection = Selection::of(request.filter, request.dtype);
        let names = tests().iter().map(|t| t.name.to_owned()).collect();
        eprintln!("{}", explain_empty("test", &selection, names));
        return Ending::NothingSelected;
    }
    if checked.faults.is_empty() && checked.problems.is_empty() {
        Ending::Passed
    } else {
        Ending::Failed
    }
}

/// Checks the kernels of this binary; see the module doc.
pub fn check(request: &Request) -> Checked {
    let selection = Selection::of(request.filter.clone(), request.dtype.clone());
    let (selected, orphans) = select(tests(), &selection);
    let mut checker = Checker::new(request);
    checker.checked.registry = registry_hash();
    for orphan in orphans {
        let problem = format!("{}: {}", orphan.name, orphan.message);
        checker.checked.problems.push(problem);
    }
    for part in check_all(request, &selected) {
        checker.checked.take(part);
    }
    let mut subjects = Subjects::default();
    let tested: Vec<_> = tests().iter().map(|t| t.kernel).collect();
    for entry in kernels() {
        let wanted = request
            .filter
            .as_deref()
            .is_none_or(|f| entry.name.contains(f));
        if wanted && !tested.contains(&entry.name) {
            checker.build_only(entry, &mut subjects);
        }
    }
    let order = |f: &Found| (f.kernel.clone(), f.at.clone(), f.rule);
    checker.checked.faults.sort_by_key(order);
    checker.checked
}

/// What each test found, in the order of the selection.
fn check_all(request: &Request, selected: &[Selected<TestEntry>]) -> Vec<Checked> {
    let jobs = request
        .jobs
        .or_else(|| std::thread::available_parallelism().ok());
    let jobs = jobs.map_or(1, usize::from).min(selected.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut checker = Checker::new(request);
        let mut subjects = Subjects::default();
        let mut parts = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = selected.get(index) else {
                return parts;
            };
            checker.run(item, &mut subjects);
            let part = std::mem::replace(&mut checker.checked, Checked::of(request));
            parts.push((index, part));
        }
    };
    let mut parts: Vec<(usize, Checked)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        let parts = ended.map(|parts| parts.unwrap_or_else(|panic| resume_unwind(panic)));
        parts.flatten().collect()
    });
    parts.sort_by_key(|(index, _)| *index);
    parts.into_iter().map(|(_, part)| part).collect()
}

fn device(request: &Request, width: u32) -> (u32, Arc<ReferenceDevice>) {
    let options = ReferenceOptions {
        subgroup_size: width,
        step_budget: request.max_steps,
        finite: request.finite,
        ..ReferenceOptions::default()
    };
    (width, Arc::new(ReferenceDevice::with_options(options)))
}

struct Checker<'a> {
    request: &'a Request,
    devices: Vec<(u32, Arc<ReferenceDevice>)>,
    checked: Checked,
}

/// One launch to make.
struct Launch<'a> {
    item: &'a Selected<TestEntry>,
    subject: &'a Subject,
    case: &'a Case,
    variant: Variant,
    width: u32,
}

impl Checker<'_> {
    fn new(request: &Request) -> Checker<'_> {
        let devices = request.widths.iter().map(|&width| device(request, width));
        Checker {
            request,
            devices: devices.collect(),
            checked: Checked::of(request),
        }
    }

    fn run(&mut self, item: &Selected<TestEntry>, subjects: &mut Subjects) {
        let Some(subject) = self.built(item.kernel, item.instance.name, subjects) else {
            return;
        };
        let build = item.entry.build;
        let seed = seed_of(self.request.seed, item.entry.name);
        let list = match catch_unwind(AssertUnwindSafe(|| Cases::list(&subject, build))) {
            Ok(list) => list,
            Err(payload) => return self.problem(item, "", panic_text(&*payload)),
        };
        self.checked.instances += 1;
        self.checked.same_at_every_width += usize::from(!knows_subgroups(&subject.kernel));
        for (index, listed) in list.iter().enumerate() {
            if !item.takes(&listed.name) {
                continue;
            }
            if listed.production && (self.request.small || !listed.sampled) {
                let why = if listed.sampled {
                    "production size"
                } else {
                    "its workgroups cannot be sampled"
                };
                let skipped = format!("{}/{}: {why}", item.name, listed.name);
                self.checked.skipped.push(skipped);
                continue;
            }
            let computed = catch_unwind(AssertUnwindSafe(|| {
                Cases::compute(&subject, build, seed, index)
            }));
            match computed {
                Ok(Some(case)) => match &case.problem {
                    Some(problem) => self.problem(item, &case.name, problem.clone()),
                    None => {
                        self.checked.cases += 1;
                        if !self.run_case(item, &subject, &case) {
                            return;
                        }
                    }
                },
                Ok(None) => self.problem(item, &listed.name, "it is not always there".into()),
                Err(payload) => self.problem(item, &listed.name, panic_text(&*payload)),
            }
        }
    }

    fn problem(&mut self, item: &Selected<TestEntry>, case: &str, what: String) {
        let problem = format!("{}/{case}: {what}", item.name);
        self.checked.problems.push(problem);
    }

    /// Every width and layout of a case; false where the instance is not worth another case.
    fn run_case(&mut self, item: &Selected<TestEntry>, subject: &Subject, case: &Case) -> bool {
        let same_at_every_width = case.production || !knows_subgroups(&subject.kernel);
        let devices = self.devices.clone();
        let devices = match &devices[..] {
            [first, ..] if same_at_every_width => std::slice::from_ref(first),
            all => all,
        };
        for (width, device) in devices {
            for variant in Variant::of(&subject.kernel, case) {
                if !matches!(variant, Variant::Contiguous | Variant::InPlace) {
                    continue;
                }
                let launch = Launch {
                    item,
                    subject,
                    case,
                    variant,
                    width: *width,
                };
                self.checked.launches += 1;
                for report in self.launch(&launch, device) {
                    let is_endless = report.rule == Rule::Endless;
                    self.add(report, &launch);
                    if is_endless {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// The faults of one launch.
    fn launch(&mut self, launch: &Launch<'_>, reference: &Arc<ReferenceDevice>) -> Vec<Report> {
        let kernel = &launch.subject.kernel;
        let device: Arc<dyn Device> = reference.clone();
        let whole = |rule: Rule, message: String| {
            let entry = launch.item.kernel;
            vec![whole_kernel(rule, entry, kernel, message)]
        };
        let placed = place(&device, kernel, launch.case, launch.variant);
        let (arguments, placed) = match placed {
            Ok(placed) => placed,
            Err(error) => return whole(Rule::Malformed, error.to_string()),
        };
        if let Err(error) = undefine_outputs(reference, &placed) {
            return whole(Rule::Malformed, error);
        }
        let pipeline = match device.pipeline(kernel) {
            Ok(pipeline) => pipeline,
            Err(error) => return whole(Rule::Malformed, error.to_string()),
        };
        let recorded = match RecordedLaunch::new(pipeline, arguments) {
            Ok(recorded) => recorded,
            Err(error) => return whole(Rule::Contract, error.to_string()),
        };
        let result = if launch.case.production {
            let groups = sample(recorded.checked.grid, launch.case.seed);
            device.submit_groups(&recorded, &groups)
        } else {
            device.submit(std::slice::from_ref(&recorded))
        };
        // A failed index check is a report too.
        let result = result.and_then(|()| device.synchronize());
        let reports = reference.take_reports();
        match result {
            _ if !reports.is_empty() => reports,
            Err(error) => whole(Rule::Malformed, error.to_string()),
            Ok(()) => {
                let wrong = placed.iter().filter_map(|tensor| {
                    let (case, variant) = (launch.case, launch.variant);
                    let mut errors = Vec::new();
                    judge(
                        &*device,
                        case,
                        tensor,
                        variant,
                        case.production,
                        &mut errors,
                    )
                    .err()
                });
                let wrong: Vec<_> = wrong.collect();
                if wrong.is_empty() {
                    Vec::new()
                } else {
                    whole(Rule::WrongResult, wrong.join("; "))
                }
            }
        }
    }

    /// The kernel, or its faults noted.
    fn built(
        &mut self,
        entry: &'static KernelEntry,
        instance: &str,
        subjects: &mut Subjects,
    ) -> Option<Subject> {
        let instance = entry.instances.iter().find(|i| i.name == instance)?;
        let reports = match subjects.get(entry, instance) {
            Ok(subject) => match verify(&subject.kernel) {
                Ok(()) => return Some(subject),
                Err(errors) => errors.0.iter().map(refused).collect(),
            },
            Err(message) => vec![Report {
                rule: Rule::Malformed,
                kernel: entry.name.to_owned(),
                at: entry_place(entry),
                related: None,
                workgroup: None,
                thread: None,
                message,
            }],
        };
        for report in reports {
            self.add_found(&report, entry.name, instance.name, None);
        }
        None
    }

    fn build_only(&mut self, entry: &'static KernelEntry, subjects: &mut Subjects) {
        self.checked.untested.push(entry.name.to_owned());
        for instance in entry.instances {
            self.built(entry, instance.name, subjects);
        }
    }

    fn add(&mut self, report: Report, launch: &Launch<'_>) {
        let (kernel, instance) = (launch.item.kernel.name, launch.item.instance.name);
        self.add_found(&report, kernel, instance, Some(launch));
    }

    fn add_found(
        &mut self,
        report: &Report,
        kernel: &str,
        instance: &str,
        launch: Option<&Launch<'_>>,
    ) {
        let related = report.related.as_ref();
        self.checked.add(Found {
            rule: report.rule.name(),
            kernel: kernel.to_owned(),
            at: Place::from(&report.at),
            related: related.map(|r| (r.what, Place::from(&r.at))),
            workgroup: report.workgroup,
            thread: report.thread,
            message: report.message.clone(),
            help: report.rule.help(),
            case: launch.map_or_else(String::new, |l| format!("{}/{}", l.item.name, l.case.name)),
            variant: launch.map_or("", |l| l.variant.name()),
            instances: vec![instance.to_owned()],
            widths: launch.map(|l| l.width).into_iter().collect(),
            times: 1,
        });
    }
}

impl Checked {
    /// Nothing so far.
    fn of(request: &Request) -> Checked {
        Checked {
            registry: String::new(),
            seed: request.seed,
            widths: request.widths.clone(),
            finite: request.finite,
            max_steps: request.max_steps,
            instances: 0,
            same_at_every_width: 0,
            cases: 0,
            launches: 0,
            untested: Vec::new(),
            skipped: Vec::new(),
            problems: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Adds what another test found.
    fn take(&mut self, part: Checked) {
        self.instances += part.instances;
        self.same_at_every_width += part.same_at_every_width;
        self.cases += part.cases;
        self.launches += part.launches;
        self.skipped.extend(part.skipped);
        self.problems.extend(part.problems);
        for found in part.faults {
            self.add(found);
        }
    }

    /// Adds a fault, or to the one that it is.
    fn add(&mut self, new: Found) {
        let Some(known) = self.faults.iter_mut().find(|known| known.is_same(&new)) else {
            self.faults.push(new);
            return;
        };
        known.times += new.times;
        for instance in new.instances {
            if !known.instances.contains(&instance) {
                known.instances.push(instance);
            }
        }
        for width in new.widths {
            if !known.widths.contains(&width) {
                known.widths.push(width);
            }
        }
    }

    /// Nothing was selected.
    pub fn is_empty(&self) -> bool {
        self.instances == 0 && self.untested.is_empty() && self.faults.is_empty()
    }

    fn print(&self) {
        for fault in &self.faults {
            println!("{}: {}: kernel `{}`", fault.at, fault.rule, fault.kernel);
            println!("    {}", fault.message);
            if let Some((what, at)) = &fault.related {
                println!("    {at}: {what}");
            }
            let circumstances = fault.circumstances();
            if !circumstances.is_empty() {
                println!("    {circumstances}");
            }
            println!("    help: {}", fault.help);
        }
        for problem in &self.problems {
            println!("the test is wrong: {problem}");
        }
        for skipped in &self.skipped {
            println!("skipped {skipped}");
        }
        if !self.untested.is_empty() {
            println!(
                "without a test, only verified: {}",
                self.untested.join(", ")
            );
        }
        println!(
            "{} faults; {} instances ({} know no subgroup and ran at one width), {} cases, {} launches \
             at subgroup widths {}; registry {}, seed {}",
            self.faults.len(),
            self.instances,
            self.same_at_every_width,
            self.cases,
            self.launches,
            list(&self.widths),
            self.registry,
            self.seed
        );
    }
}

impl Found {
    /// One rule broken at the same places of one kernel. Which of two accesses comes second is the
    /// interpreter's choice.
    fn is_same(&self, other: &Found) -> bool {
        let place = |found: &Found| found.related.as_ref().map(|(_, at)| at.clone());
        let (here, there) = (place(self), place(other));
        let same_places = (&self.at, &here) == (&other.at, &there)
            || (Some(&self.at), here.as_ref()) == (there.as_ref(), Some(&other.at));
        self.kernel == other.kernel && self.rule == other.rule && same_places
    }

    /// Who met it: thread, case, widths, instances.
    fn circumstances(&self) -> String {
        let mut parts = Vec::new();
        if let Some([x, y, z]) = self.workgroup {
            parts.push(format!("workgroup {x}, {y}, {z}"));
        }
        parts.extend(self.thread.map(|t| format!("thread {t}")));
        if !self.case.is_empty() {
            parts.push(format!("case {} ({})", self.case, self.variant));
            parts.push(format!("subgroups of {}", list(&self.widths)));
        }
        let named: Vec<_> = self
            .instances
            .iter()
            .filter(|i| !i.is_empty())
            .cloned()
            .collect();
        if !named.is_empty() {
            parts.push(format!("instances {}", named.join(", ")));
        }
        parts.join("; ")
    }
}

fn list(widths: &[u32]) -> String {
    let all: Vec<_> = widths.iter().map(u32::to_string).collect();
    all.join(", ")
}

fn entry_place(entry: &KernelEntry) -> Location {
    Location {
        file: entry.file.into(),
        line: entry.line,
        column: 1,
    }
}

/// A fault that no single statement has.
fn whole_kernel(rule: Rule, entry: &KernelEntry, kernel: &Kernel, message: String) -> Report {
    Report {
        rule,
        kernel: kernel.full_name(),
        at: entry_place(entry),
        related: None,
        workgroup: None,
        thread: None,
        message,
    }
}

/// What the verifier says, as a report.
fn refused(error: &VerifyError) -> Report {
    let (rule, what) = match error.fault {
        Fault::Divergent { .. } => (Rule::Divergence, "what diverges"),
        Fault::DivergentGrid { .. } => (Rule::GridBarrier, "what diverges"),
        Fault::NotUniform { .. } => (Rule::NotUniform, ""),
        Fault::ReadOnly { .. } => (Rule::ReadOnly, "its declaration"),
        _ => (Rule::Malformed, ""),
    };
    Report {
        rule,
        kernel: error.kernel.clone(),
        at: error.location.clone(),
        related: error.related.as_ref().map(|(_, at)| Related {
            what,
            at: at.clone(),
        }),
        workgroup: None,
        thread: None,
        message: error.fault.to_string(),
    }
}

/// Outputs hold nothing before the launch.
fn undefine_outputs(device: &ReferenceDevice, placed: &[Placed]) -> Result<(), String> {
    for tensor in placed.iter().filter(|t| t.role == Role::Output) {
        for (at, bytes) in tensor.own_ranges() {
            let undefined = device.undefine(&*tensor.view.buffer, at, bytes);
            undefined.map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

/// Whether anything in the kernel can depend on the width of a subgroup.
fn knows_subgroups(kernel: &Kernel) -> bool {
    let asks = kernel.values.values().any(|value| {
        matches!(
            value.op,
            Op::Builtin(
                BuiltinOp::SubgroupId
                    | BuiltinOp::SubgroupCount
                    | BuiltinOp::SubgroupLane
                    | BuiltinOp::SubgroupSize,
                _
            )
        )
    });
    let mut exchanges = false;
    kernel.body.walk(&mut |stmt, _| {
        exchanges |= matches!(
            stmt,
            Stmt::Subgroup { .. } | Stmt::Barrier(BarrierScope::Subgroup, _)
        );
    });
    asks || exchanges
}
