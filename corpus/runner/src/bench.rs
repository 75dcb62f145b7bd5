//! Measuring benches: median and spread of device time, with the conditions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use iron_ir::Scalar;
use iron_ir::testing::{BenchEntry, Benches, Case, Role, Subject, benches, seed_of};
use iron_runtime::{Backend, Device, DeviceError, Pipeline, RecordedLaunch};
use serde::Serialize;

use crate::command::{BenchOptions, Ending};
use crate::layouts::{Placed, Variant, copy, place};
use crate::report::{BackendLine, print_json};
use crate::select::{Selected, explain_empty, full_name, registry_hash, select};
use crate::test::{Refusal, Subjects, compile, opened, panic_text};

/// Most copies of the arguments.
const MOST_COPIES: u64 = 64;
/// Least launches of a recorded chain.
const CHAIN: usize = 32;
/// Least time of the replays before the clock starts: a GPU raises its clocks under load, where no
/// CUDA context holds them up.
const WARM_UP: Duration = Duration::from_millis(400);
/// Least time between two looks at the clock.
const LEAST_MICROSECONDS: f64 = 20_000.0;

/// One measurement.
#[derive(Serialize)]
pub(crate) struct Measurement {
    bench: String,
    case: String,
    kernel: String,
    backend: &'static str,
    label: &'static str,
    device: String,
    driver: String,
    artifact: String,
    dtypes: Vec<&'static str>,
    pub shapes: Vec<Vec<u64>>,
    grid: [u32; 3],
    warm_up: u32,
    repetitions: u32,
    /// Copies of the arguments that launches take in turn.
    copies: u64,
    method: &'static str,
    pub median_microseconds: f64,
    least_microseconds: f64,
    greatest_microseconds: f64,
    /// Half of the launches lie between these.
    pub quartiles_microseconds: [f64; 2],
    gigabytes_per_second: Option<f64>,
    gigaflops_per_second: Option<f64>,
    /// Hash of the outputs after the last launch.
    fingerprint: String,
}

#[derive(Serialize)]
struct BenchRun {
    registry: String,
    seed: u64,
    backends: Vec<BackendLine>,
    measurements: Vec<Measurement>,
    failures: Vec<String>,
    unsupported: Vec<String>,
}

/// `bench`.
pub(crate) fn bench(options: &BenchOptions) -> Ending {
    let (selected, orphans) = select(benches(), &options.selection);
    let mut backends = options.selection.backend.clone();
    if backends.is_empty() {
        backends.push(Backend::Cpu);
    }
    let json = options.selection.json;
    let mut run = BenchRun {
        registry: registry_hash(),
        seed: options.seed,
        backends: Vec::new(),
        measurements: Vec::new(),
        failures: orphans
            .iter()
            .map(|o| format!("{}: {}", o.name, o.message))
            .collect(),
        unsupported: Vec::new(),
    };
    let mut subjects = Subjects::default();
    for backend in backends {
        let Some(device) = opened(backend, &mut run.backends, json) else {
            continue;
        };
        for item in &selected {
            measure_all(&device, options, item, &mut subjects, &mut run);
        }
    }
    if json {
        print_json(&run);
    } else {
        for line in &run.failures {
            println!("FAIL {line}");
        }
        for line in &run.unsupported {
            println!("unsupported {line}");
        }
        for line in run.backends.iter().filter_map(|b| b.missing.as_ref()) {
            println!("missing {line}");
        }
        println!(
            "{} measured, {} failed, {} unsupported; registry {}",
            run.measurements.len(),
            run.failures.len(),
            run.unsupported.len(),
            run.registry
        );
    }
    if !run.failures.is_empty() {
        return Ending::Failed;
    }
    let missing = run.backends.iter().any(|b| b.missing.is_some());
    if selected.is_empty()
        || (!missing && run.measurements.is_empty() && run.unsupported.is_empty())
    {
        let names = benches().iter().map(|b| b.name.to_owned()).collect();
        eprintln!("{}", explain_empty("bench", &options.selection, names));
        return Ending::NothingSelected;
    }
    if missing {
        Ending::BackendMissing
    } else {
        Ending::Passed
    }
}

fn measure_all(
    device: &Arc<dyn Device>,
    options: &BenchOptions,
    item: &Selected<BenchEntry>,
    subjects: &mut Subjects,
    run: &mut BenchRun,
) {
    let subject = match subjected(device, options, item, subjects) {
        Ok(subject) => subject,
        Err(Refusal::Unsupported(reason)) => return run.unsupported.push(reason),
        Err(Refusal::Failed(message)) => return run.failures.push(message),
    };
    for name in subject.case_names().iter().filter(|name| item.takes(name)) {
        match subject.measure(device, options, name, f64::INFINITY) {
            Ok(Some(measured)) => {
                if !options.selection.json {
                    print(&measured.measurement);
                }
                run.measurements.push(measured.measurement);
            }
            Ok(None) => {}
            Err(message) => run.failures.push(message),
        }
    }
}

/// A bench over one instance of its kernel, compiled.
pub(crate) struct Subjected<'a> {
    pub item: &'a Selected<BenchEntry>,
    pub subject: Subject,
    pipeline: Arc<dyn Pipeline>,
    place: String,
    cases: Vec<String>,
}

/// One measurement, and what the last launch wrote.
pub(crate) struct Measured {
    pub measurement: Measurement,
    pub outputs: Vec<Output>,
}

/// What a launch wrote into a tensor.
pub(crate) struct Output {
    pub name: String,
    pub scalar: Scalar,
    /// Of each element, in row-major order.
    pub bits: Vec<u64>,
}

/// Builds and compiles what a bench measures.
pub(crate) fn subjected<'a>(
    device: &Arc<dyn Device>,
    options: &BenchOptions,
    item: &'a Selected<BenchEntry>,
    subjects: &mut Subjects,
) -> Result<Subjected<'a>, Refusal> {
    let place = format!("{} on {}", item.name, device.backend().name());
    let failed = |message: String| Refusal::Failed(format!("{place}: {message}"));
    let subject = subjects.get(item.kernel, item.instance).map_err(failed)?;
    let pipeline = compile(device, &subject).map_err(|refusal| match refusal {
        Refusal::Unsupported(reason) => Refusal::Unsupported(format!("{place}: {reason}")),
        Refusal::Failed(message) => failed(message),
    })?;
    let mut subjected = Subjected {
        item,
        subject,
        pipeline,
        place,
        cases: Vec::new(),
    };
    let all = subjected.compute(options, None).map_err(Refusal::Failed)?;
    subjected.cases = all.into_iter().map(|(case, ..)| case.name).collect();
    Ok(subjected)
}

impl Subjected<'_> {
    /// Its cases' names, in order.
    pub fn case_names(&self) -> &[String] {
        &self.cases
    }

    /// Measures the case of that name, if it has one; once alone where a launch takes more than
    /// `most` microseconds.
    pub fn measure(
        &self,
        device: &Arc<dyn Device>,
        options: &BenchOptions,
        name: &str,
        most: f64,
    ) -> Result<Option<Measured>, String> {
        let Some(index) = self.cases.iter().position(|case| case == name) else {
            return Ok(None);
        };
        let Some((case, bytes, flops)) = self.compute(options, Some(index))?.into_iter().nth(index)
        else {
            return Err(format!("{}: bench {name} is not always there", self.place));
        };
        let measured = measure(
            device,
            options,
            self.item,
            &self.pipeline,
            &case,
            (bytes, flops),
            most,
        );
        let measured = measured.map_err(|message| format!("{}, {name}: {message}", self.place))?;
        Ok(Some(measured))
    }

    /// The bench's cases; the values of `selected` alone.
    fn compute(
        &self,
        options: &BenchOptions,
        selected: Option<usize>,
    ) -> Result<Vec<(Case, u64, u64)>, String> {
        let seed = seed_of(options.seed, self.item.entry.name);
        let build = self.item.entry.build;
        let all = catch_unwind(AssertUnwindSafe(|| {
            Benches::compute(&self.subject, build, seed, selected)
        }));
        all.map_err(|payload| {
            let text = panic_text(&*payload);
            format!("{}: the bench panicked: {text}", self.place)
        })
    }
}

fn measure(
    device: &Arc<dyn Device>,
    options: &BenchOptions,
    item: &Selected<BenchEntry>,
    pipeline: &Arc<dyn Pipeline>,
    case: &Case,
    (bytes, flops): (u64, u64),
    most: f64,
) -> Result<Measured, String> {
    if let Some(problem) = &case.problem {
        return Err(format!("the bench is wrong: {problem}"));
    }
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let copies = match options.rotate {
        0 => 1,
        rotate => rotate.div_ceil(bytes.max(1)).clamp(1, MOST_COPIES),
    };
    let (arguments, placed) =
        place(device, pipeline.kernel(), case, Variant::Contiguous).map_err(|e| text(&e))?;
    let launch = RecordedLaunch::new(pipeline.clone(), arguments.clone());
    let launch = launch.map_err(|e| text(&e))?;
    let probes = if most.is_finite() {
        let probes = device.time(&[launch.clone(), launch.clone()]);
        probes.map_err(|e| text(&e))?
    } else {
        Vec::new()
    };
    let probe = probes.last().map(|t| t.as_secs_f64() * 1e6);
    let probe = probe.filter(|&probe| probe > most);
    let copies = if probe.is_some() { 1 } else { copies };
    let mut launches = vec![launch];
    for _ in 1..copies {
        let arguments = copy(device, &arguments, &placed).map_err(|e| text(&e))?;
        let launch = RecordedLaunch::new(pipeline.clone(), arguments);
        launches.push(launch.map_err(|e| text(&e))?);
    }
    let repetitions = match probe {
        Some(_) => 1,
        None => options.repetitions.max(1),
    };
    let (mut micros, method) = if let Some(probe) = probe {
        (vec![probe], "one launch")
    } else if options.rotate == 0 {
        let repeat = |count: u32| vec![launches[0].clone(); count as usize];
        let warmed = device.time(&repeat(options.warm_up));
        warmed.map_err(|e| text(&e))?;
        let times = device.time(&repeat(repetitions)).map_err(|e| text(&e))?;
        let micros: Vec<f64> = times.iter().map(|t| t.as_secs_f64() * 1e6).collect();
        (micros, "one launch at a time")
    } else {
        (
            replays(device, &launches, options).map_err(|e| text(&e))?,
            "recorded chain",
        )
    };
    device.synchronize().map_err(|e| text(&e))?;
    micros.sort_by(f64::total_cmp);
    let at = |share: f64| micros[((micros.len() - 1) as f64 * share).round() as usize];
    let median = at(0.5);
    // Bytes per microsecond are megabytes per second.
    let rate = |amount: u64| (amount > 0 && median > 0.0).then(|| amount as f64 / median / 1e3);
    let outputs = outputs(device, &placed)?;
    let measurement = Measurement {
        bench: item.name.clone(),
        case: case.name.clone(),
        kernel: full_name(item.kernel.name, item.instance.name),
        backend: device.backend().name(),
        label: device.backend().label(),
        device: device.name(),
        driver: device.driver(),
        artifact: pipeline.artifact().to_owned(),
        dtypes: case.params.iter().map(|p| p.scalar.name()).collect(),
        shapes: case.params.iter().map(|p| p.shape.clone()).collect(),
        grid: launches[0].checked.grid,
        warm_up: options.warm_up,
        copies,
        method,
        repetitions,
        median_microseconds: median,
        least_microseconds: at(0.0),
        greatest_microseconds: at(1.0),
        quartiles_microseconds: [at(0.25), at(0.75)],
        gigabytes_per_second: rate(bytes),
        gigaflops_per_second: rate(flops),
        fingerprint: fingerprint(&outputs),
    };
    Ok(Measured {
        measurement,
        outputs,
    })
}

/// Microseconds of a launch in a chain of at least [`CHAIN`] launches which is recorded once (a
/// CUDA graph, a command buffer) and replayed; the launches take the copies in turn, so that none
/// finds its inputs in a cache. The gap between kernels is in it, as in an engine.
fn replays(
    device: &Arc<dyn Device>,
    copies: &[RecordedLaunch],
    options: &BenchOptions,
) -> Result<Vec<f64>, DeviceError> {
    let chain: Vec<_> = copies
        .iter()
        .cycle()
        .take(CHAIN.max(copies.len()))
        .cloned()
        .collect();
    let graph = device.record(&chain)?;
    let replay = |times: u32| -> Result<f64, DeviceError> {
        let start = Instant::now();
        for _ in 0..times {
            graph.replay()?;
        }
        device.synchronize()?;
        let launches = f64::from(times) * chain.len() as f64;
        Ok(start.elapsed().as_secs_f64() * 1e6 / launches)
    };
    let begun = Instant::now();
    for _ in 0..options.warm_up {
        replay(1)?;
    }
    while begun.elapsed() < WARM_UP {
        replay(1)?;
    }
    // Enough replays behind one wait that the wait itself is lost in them.
    let once = replay(1)? * chain.len() as f64;
    let times = (LEAST_MICROSECONDS / once.max(1.0))
        .ceil()
        .clamp(1.0, 200.0) as u32;
    (0..options.repetitions.max(1))
        .map(|_| replay(times))
        .collect()
}

fn outputs(device: &Arc<dyn Device>, placed: &[Placed]) -> Result<Vec<Output>, String> {
    let mut outputs = Vec::new();
    for tensor in placed {
        // Inputs too: one that changed is an error.
        let bits = tensor.read_back(&**device)?;
        if tensor.role != Role::Input {
            outputs.push(Output {
                name: tensor.name.clone(),
                scalar: tensor.scalar,
                bits,
            });
        }
    }
    Ok(outputs)
}

fn fingerprint(outputs: &[Output]) -> String {
    let words = outputs.iter().flat_map(|output| &output.bits);
    let hash = words
        .flat_map(|word| word.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{hash:016x}")
}

fn print(m: &Measurement) {
    let mut line = format!(
        "{} {} on {} ({}): {:.2} µs median, {:.2} to {:.2} middle half, {:.2} to {:.2} all, {} runs after {}",
        m.bench,
        m.case,
        m.backend,
        m.label,
        m.median_microseconds,
        m.quartiles_microseconds[0],
        m.quartiles_microseconds[1],
        m.least_microseconds,
        m.greatest_microseconds,
        m.repetitions,
        m.warm_up
    );
    if let Some(rate) = m.gigabytes_per_second {
        line += &format!(", {rate:.2} GB/s");
    }
    if let Some(rate) = m.gigaflops_per_second {
        line += &format!(", {rate:.2} GFLOP/s");
    }
    println!("{line}, output {}", m.fingerprint);
}
