//! Measuring benches: median and spread of device time, with the conditions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use iron_ir::testing::{BenchEntry, Benches, Case, Role, benches, seed_of};
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
/// Least time between two looks at the clock.
const LEAST_MICROSECONDS: f64 = 20_000.0;

/// One measurement.
#[derive(Serialize)]
struct Measurement {
    bench: String,
    case: String,
    kernel: String,
    backend: &'static str,
    label: &'static str,
    device: String,
    driver: String,
    artifact: String,
    dtypes: Vec<&'static str>,
    shapes: Vec<Vec<u64>>,
    grid: [u32; 3],
    warm_up: u32,
    repetitions: u32,
    /// Copies of the arguments that launches take in turn.
    copies: u64,
    method: &'static str,
    median_microseconds: f64,
    least_microseconds: f64,
    greatest_microseconds: f64,
    /// Half of the launches lie between these.
    quartiles_microseconds: [f64; 2],
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
    let place_name = format!("{} on {}", item.name, device.backend().name());
    let subject = match subjects.get(item.kernel, item.instance) {
        Ok(subject) => subject,
        Err(message) => return run.failures.push(format!("{place_name}: {message}")),
    };
    let pipeline = match compile(device, &subject) {
        Ok(pipeline) => pipeline,
        Err(Refusal::Unsupported(reason)) => {
            return run.unsupported.push(format!("{place_name}: {reason}"));
        }
        Err(Refusal::Failed(message)) => {
            return run.failures.push(format!("{place_name}: {message}"));
        }
    };
    let seed = seed_of(options.seed, item.entry.name);
    let compute = |selected| {
        let build = item.entry.build;
        let all = catch_unwind(AssertUnwindSafe(|| {
            Benches::compute(&subject, build, seed, selected)
        }));
        all.map_err(|payload| {
            format!(
                "{place_name}: the bench panicked: {}",
                panic_text(&*payload)
            )
        })
    };
    let names: Vec<String> = match compute(None) {
        Ok(all) => all.into_iter().map(|(case, ..)| case.name).collect(),
        Err(message) => return run.failures.push(message),
    };
    for (index, name) in names.iter().enumerate().filter(|(_, n)| item.takes(n)) {
        let measured = compute(Some(index)).and_then(|all| {
            let Some((case, bytes, flops)) = all.into_iter().nth(index) else {
                return Err(format!("{place_name}: bench {name} is not always there"));
            };
            measure(device, options, item, &pipeline, &case, (bytes, flops))
                .map_err(|message| format!("{place_name}, {name}: {message}"))
        });
        match measured {
            Ok(measurement) => {
                if !options.selection.json {
                    print(&measurement);
                }
                run.measurements.push(measurement);
            }
            Err(message) => run.failures.push(message),
        }
    }
}

fn measure(
    device: &Arc<dyn Device>,
    options: &BenchOptions,
    item: &Selected<BenchEntry>,
    pipeline: &Arc<dyn Pipeline>,
    case: &Case,
    (bytes, flops): (u64, u64),
) -> Result<Measurement, String> {
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
    let mut launches = Vec::new();
    for _ in 1..copies {
        let arguments = copy(device, &arguments, &placed).map_err(|e| text(&e))?;
        let launch = RecordedLaunch::new(pipeline.clone(), arguments);
        launches.push(launch.map_err(|e| text(&e))?);
    }
    let launch = RecordedLaunch::new(pipeline.clone(), arguments).map_err(|e| text(&e))?;
    launches.insert(0, launch);
    let repetitions = options.repetitions.max(1);
    let (mut micros, method) = if options.rotate == 0 {
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
    Ok(Measurement {
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
        fingerprint: fingerprint(device, &placed)?,
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
    for _ in 0..options.warm_up {
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

fn fingerprint(device: &Arc<dyn Device>, placed: &[Placed]) -> Result<String, String> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for tensor in placed {
        let bits = tensor.read_back(&**device)?;
        if tensor.role == Role::Input {
            continue;
        }
        for byte in bits.iter().flat_map(|b| b.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(format!("{hash:016x}"))
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
