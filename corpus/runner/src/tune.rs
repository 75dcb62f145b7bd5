//! Tuning: of the instances of a kernel that do the same for the same arguments, the fastest on a
//! device, by measurement, kept in a table under all that the choice depends on.
//!
//! Instances are candidates for the same choice where a bench gives them the same element types,
//! shapes and values. Each is measured on its own copies of the arguments; a candidate whose outputs
//! are not the first one's, to the rounding of their type, ends the choice as a failure.

use std::path::Path;
use std::sync::Arc;

use iron_ir::Scalar;
use iron_ir::testing::{BenchEntry, benches, ulp_of, value_of};
use iron_runtime::tuning::{Choice, Table, Timing, identity};
use iron_runtime::{Backend, Device};
use serde::Serialize;

use crate::bench::{Measured, Output, Subjected, subjected};
use crate::command::{BenchOptions, Ending, Selection, TuneOptions};
use crate::report::{BackendLine, print_json};
use crate::select::{Selected, explain_empty, select};
use crate::test::{Refusal, Subjects, opened};

/// A later candidate is chosen where it takes less than this share of the first one's time: less is
/// what two runs of the same kernel differ by.
const WORTH: f64 = 0.98;
/// A candidate that takes this many times the best one's time in one launch is measured no further.
const HOPELESS: f64 = 4.0;

#[derive(Default, Serialize)]
struct Run {
    backends: Vec<BackendLine>,
    choices: Vec<Choice>,
    failures: Vec<String>,
    unsupported: Vec<String>,
}

/// `tune`.
pub(crate) fn tune(options: &TuneOptions) -> Ending {
    let selection = &options.bench.selection;
    let (selected, orphans) = select(benches(), selection);
    let backend = match selection.backend[..] {
        [] => Backend::Cpu,
        [backend] => backend,
        _ => {
            eprintln!("tune: a table is of one device: name one backend");
            return Ending::Usage;
        }
    };
    let mut run = Run::default();
    run.failures
        .extend(orphans.iter().map(|o| format!("{}: {}", o.name, o.message)));
    let Some(device) = opened(backend, &mut run.backends, selection.json) else {
        for line in run.backends.iter().filter_map(|b| b.missing.as_ref()) {
            eprintln!("missing backend {}: {line}", backend.name());
        }
        return Ending::BackendMissing;
    };
    // Before the work: a table of another device is no place for the result.
    let before = match options.table.as_deref().map(|path| read(path, &*device)) {
        Some(Ok(table)) => Some(table),
        Some(Err(message)) => {
            eprintln!("tune: {message}");
            return Ending::Usage;
        }
        None => None,
    };
    for family in families(&selected) {
        choose(&device, &options.bench, &family, &mut run);
        // After each, so that one which is cut off loses little.
        if let (Some(path), Some(table)) = (&options.table, &before)
            && let Err(message) = write(path, &table.clone().with(&run.choices))
        {
            run.failures.push(message);
        }
    }
    report(selection.json, &run);
    if !run.failures.is_empty() {
        return Ending::Failed;
    }
    if run.choices.is_empty() {
        let all = select(benches(), &Selection::of(None, None)).0;
        let names = families(&all)
            .iter()
            .map(|f| f[0].entry.name.to_owned())
            .collect();
        let what = "bench with several instances of the same element types";
        eprintln!("{}", explain_empty(what, selection, names));
        return Ending::NothingSelected;
    }
    Ending::Passed
}

fn report(json: bool, run: &Run) {
    if json {
        return print_json(run);
    }
    for line in &run.failures {
        println!("FAIL {line}");
    }
    for line in &run.unsupported {
        println!("unsupported {line}");
    }
    println!(
        "{} choices, {} failed, {} unsupported",
        run.choices.len(),
        run.failures.len(),
        run.unsupported.len()
    );
}

/// Instances of one bench with the same element types, where there are several.
fn families<'a>(selected: &'a [Selected<BenchEntry>]) -> Vec<Vec<&'a Selected<BenchEntry>>> {
    let mut families: Vec<Vec<&'a Selected<BenchEntry>>> = Vec::new();
    for item in selected {
        let same = |family: &&mut Vec<&'a Selected<BenchEntry>>| {
            std::ptr::eq(family[0].entry, item.entry)
                && family[0].instance.types == item.instance.types
        };
        match families.iter_mut().find(same) {
            Some(family) => family.push(item),
            None => families.push(vec![item]),
        }
    }
    families.retain(|family| family.len() > 1);
    families
}

/// Measures each case that several instances of a family have in common.
fn choose(
    device: &Arc<dyn Device>,
    options: &BenchOptions,
    family: &[&Selected<BenchEntry>],
    run: &mut Run,
) {
    let mut subjects = Subjects::default();
    let mut candidates = Vec::new();
    for item in family {
        match subjected(device, options, item, &mut subjects) {
            Ok(subject) => candidates.push(subject),
            Err(Refusal::Unsupported(reason)) => run.unsupported.push(reason),
            Err(Refusal::Failed(message)) => return run.failures.push(message),
        }
    }
    let identity = match identity(family[0].kernel, family[0].instance.types) {
        Ok(identity) => identity,
        Err(error) => return run.failures.push(format!("{}: {error}", family[0].name)),
    };
    let mut names: Vec<String> = Vec::new();
    for name in candidates.iter().flat_map(|c| c.case_names()) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    for name in names {
        let mut measured = Vec::new();
        let mut least = f64::INFINITY;
        // What is listed first is often what runs anywhere: last, so that it ends soon.
        for candidate in candidates.iter().rev().filter(|c| c.item.takes(&name)) {
            match candidate.measure(device, options, &name, HOPELESS * least) {
                Ok(found) => measured.extend(found.map(|found| {
                    least = least.min(found.measurement.median_microseconds);
                    (candidate, found)
                })),
                Err(message) => return run.failures.push(message),
            }
        }
        measured.reverse();
        // Another const parameter may make other tensors of a case with the same name.
        while let Some((first, _)) = measured.first() {
            let (first, shapes) = (*first, measured[0].1.measurement.shapes.clone());
            let alike = |found: &Measured| found.measurement.shapes == shapes;
            let (same, others) = measured.into_iter().partition(|(_, found)| alike(found));
            measured = others;
            let same: Vec<(&Subjected<'_>, Measured)> = same;
            if same.len() < 2 {
                continue;
            }
            let place = format!("{}/{name}", first.item.entry.name);
            match choice(&identity, &name, &same) {
                Ok(choice) => {
                    if !options.selection.json {
                        print(&choice);
                    }
                    run.choices.push(choice);
                }
                Err(message) => run.failures.push(format!("{place}: {message}")),
            }
        }
    }
}

/// The fastest of candidates that agree.
fn choice(
    identity: &str,
    case: &str,
    measured: &[(&Subjected<'_>, Measured)],
) -> Result<Choice, String> {
    let (first, reference) = &measured[0];
    for (candidate, found) in &measured[1..] {
        if let Some(problem) = disagreement(&reference.outputs, &found.outputs) {
            let [one, other] = [first, candidate].map(|c| c.item.instance.name);
            return Err(format!(
                "`{other}` and `{one}` are no candidates for the same choice: {problem}"
            ));
        }
    }
    let median = |at: usize| measured[at].1.measurement.median_microseconds;
    let least = (0..measured.len()).min_by(|&a, &b| median(a).total_cmp(&median(b)));
    let least = least
        .filter(|&at| median(at) < WORTH * median(0))
        .unwrap_or(0);
    let chosen = measured[least].0.item;
    let named = |(name, scalar): &(&str, Scalar)| ((*name).to_owned(), scalar.name().to_owned());
    let timings = measured.iter().map(|(candidate, found)| Timing {
        instance: candidate.item.instance.name.to_owned(),
        median_microseconds: rounded(found.measurement.median_microseconds),
        quartiles_microseconds: found.measurement.quartiles_microseconds.map(rounded),
    });
    Ok(Choice {
        kernel: chosen.kernel.name.to_owned(),
        identity: identity.to_owned(),
        types: chosen.instance.types.iter().map(named).collect(),
        case: case.to_owned(),
        shapes: reference.measurement.shapes.clone(),
        instance: chosen.instance.name.to_owned(),
        consts: chosen
            .instance
            .consts
            .iter()
            .map(|&(name, value)| (name.to_owned(), value))
            .collect(),
        candidates: timings.collect(),
    })
}

/// To the nanosecond, which is more than a clock tells.
fn rounded(microseconds: f64) -> f64 {
    (microseconds * 1e3).round() / 1e3
}

/// Why two candidates' outputs are not the same result, if they are not. Candidates may sum in
/// other orders: as vectors they lie within a few roundings of their type of each other.
fn disagreement(reference: &[Output], found: &[Output]) -> Option<String> {
    for (expected, got) in reference.iter().zip(found) {
        let name = &expected.name;
        if !expected.scalar.is_float() {
            if expected.bits != got.bits {
                return Some(format!("`{name}` differs"));
            }
            continue;
        }
        let (mut distance, mut norm) = (0.0, 0.0);
        for (&a, &b) in expected.bits.iter().zip(&got.bits) {
            if a == b {
                norm += square(expected.scalar, a);
                continue;
            }
            let [a, b] = [a, b].map(|bits| value_of(expected.scalar, bits));
            if !(a - b).is_finite() {
                return Some(format!("`{name}` has {b} where the other has {a}"));
            }
            distance += (a - b) * (a - b);
            norm += a * a;
        }
        // A 16-bit type rounds once at the end; sums in 32 bits round at each step.
        let roundings = if expected.scalar.bytes() >= 4 {
            64.0
        } else {
            2.0
        };
        let bound = roundings * ulp_of(expected.scalar, 1.0);
        let relative = (distance / norm).sqrt();
        if distance > 0.0 && (relative > bound || relative.is_nan()) {
            return Some(format!(
                "`{name}` lies {relative:.1e} away, of its own length, where {bound:.1e} is rounding"
            ));
        }
    }
    None
}

/// The square of a value, 0 where it is none (both candidates have the same bits there).
fn square(scalar: Scalar, bits: u64) -> f64 {
    let value = value_of(scalar, bits);
    if value.is_finite() {
        value * value
    } else {
        0.0
    }
}

/// The table of a file for this device; an empty one where there is no file.
fn read(path: &Path, device: &dyn Device) -> Result<Table, String> {
    let wrong = |problem: String| format!("{}: {problem}", path.display());
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(wrong("is no file".to_owned()));
    }
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // Found out now, not after the measurements.
            let own = Table::of(device);
            write(path, &own)?;
            return Ok(own);
        }
        Err(error) => return Err(wrong(error.to_string())),
    };
    let table: Table = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("is no table of choices: {error}")))?;
    if let Some((what, [of_table, of_device])) = table.difference(device) {
        return Err(wrong(format!(
            "holds choices for the {what} {of_table:?}, this one is {of_device:?}; name another file"
        )));
    }
    Ok(table)
}

fn write(path: &Path, table: &Table) -> Result<(), String> {
    let wrong = |problem: String| format!("{}: cannot be written: {problem}", path.display());
    let mut text = serde_json::to_string_pretty(table).map_err(|e| wrong(e.to_string()))?;
    text.push('\n');
    std::fs::write(path, text).map_err(|e| wrong(e.to_string()))
}

fn print(choice: &Choice) {
    let all = choice.candidates.iter().map(|timing| {
        let mark = if timing.instance == choice.instance {
            "*"
        } else {
            ""
        };
        format!(
            "{mark}{} {:.2}",
            timing.instance, timing.median_microseconds
        )
    });
    let all: Vec<String> = all.collect();
    println!("{} {}: {} µs", choice.kernel, choice.case, all.join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use iron_ir::testing::round_to;

    fn outputs(scalar: Scalar, values: &[f64]) -> Vec<Output> {
        vec![Output {
            name: "y".to_owned(),
            scalar,
            bits: values.iter().map(|&v| round_to(scalar, v)).collect(),
        }]
    }

    #[test]
    fn candidates_agree_to_the_rounding_of_their_type() {
        let values: Vec<f64> = (0..1000).map(|i| f64::from(i) - 500.25).collect();
        for (scalar, near, far) in [
            (Scalar::F32, 1e-7, 1e-4),
            (Scalar::BF16, 4e-3, 4e-2),
            (Scalar::F16, 5e-4, 5e-3),
        ] {
            let moved = |by: f64| {
                let turned = |(i, v): (usize, &f64)| v * (1.0 + if i % 2 == 0 { by } else { -by });
                outputs(
                    scalar,
                    &values.iter().enumerate().map(turned).collect::<Vec<_>>(),
                )
            };
            let own = outputs(scalar, &values);
            assert_eq!(disagreement(&own, &own), None);
            assert_eq!(disagreement(&own, &moved(near)), None, "{scalar:?}");
            assert!(disagreement(&own, &moved(far)).is_some(), "{scalar:?}");
        }
        let own = outputs(Scalar::F32, &[1.0, 2.0]);
        let nan = outputs(Scalar::F32, &[1.0, f64::NAN]);
        assert!(disagreement(&own, &nan).is_some());
        assert!(disagreement(&nan, &own).is_some());
        let zeros = outputs(Scalar::F32, &[0.0, 0.0]);
        assert!(disagreement(&zeros, &own).is_some());
        let ids = |values: &[f64]| outputs(Scalar::U32, values);
        assert!(disagreement(&ids(&[1.0, 2.0]), &ids(&[1.0, 3.0])).is_some());
    }
}
