//! The transcendental functions on every backend: the greatest distance from the exact result, in
//! units in the last place, beside the bound of `semantics/functions.txt`.
//!
//! `f16` and `bf16` are measured at all of their values, `f32` at every exponent and sign with
//! [`MANTISSAS`] mantissas each. `IRON_FUNCTION_MANTISSAS=65536` measures 33 million of them a
//! function, some minutes on two cores without the reference.

use std::collections::BTreeMap;

use iron_ir::Scalar;
use iron_ir::testing::value_of;
use iron_tests::backends::{Target, targets_with_host};
use iron_tests::batch::{Form, run_batch};
use iron_tests::oracle;
use iron_tests::prepare::prepare;
use iron_tests::rows::{Expected, Operation, Row, bounds, is_subnormal, show};

/// Mantissas of every exponent and sign in a run without a number of its own.
const MANTISSAS: u64 = 128;
/// Operands of one launch.
const CHUNK: usize = 1 << 16;
/// Wrong results that are shown.
const SHOWN: usize = 60;

fn mantissas() -> u64 {
    match std::env::var("IRON_FUNCTION_MANTISSAS") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("IRON_FUNCTION_MANTISSAS is `{text}`, no number")),
        Err(_) => MANTISSAS,
    }
}

/// A mantissa from a counter; the first ones of an exponent are its ends.
fn spread(counter: u64, mantissas: u64) -> u64 {
    match counter % mantissas {
        0 => 0,
        1 => 0x7f_ffff,
        2 => 1,
        _ => (counter.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 41) & 0x7f_ffff,
    }
}

/// `f32` operands of every exponent and sign.
fn singles(mantissas: u64) -> impl Iterator<Item = Vec<u64>> {
    (0..512u64).flat_map(move |high| {
        (0..mantissas).map(move |i| vec![high << 23 | spread(high * mantissas + i, mantissas)])
    })
}

/// Pairs for `pow`: positive bases of every exponent, powers that keep the result near the range
/// of `f32`, and some that do not.
fn powers(mantissas: u64) -> impl Iterator<Item = Vec<u64>> {
    let each = (mantissas * 3 / 8).max(1);
    (1..255u64).flat_map(move |high| {
        (0..each).map(move |i| {
            let mantissa = spread(high * 131 + i + 3, 128);
            let base = f32::from_bits((high << 23 | mantissa) as u32);
            let range = 126.0 / base.log2().abs().max(1e-3);
            let power = range * (i as f32 / (each as f32 / 2.0) - 1.0);
            [base, power].map(|x| u64::from(x.to_bits())).to_vec()
        })
    })
}

/// A function's exact result.
fn exact(name: &str, operands: &[f64]) -> Option<f64> {
    match oracle::function(name) {
        Some(function) => Some(function(operands[0])),
        None if name == "pow" => Some(operands[0].powf(operands[1])),
        None => None,
    }
}

/// The greatest distance on one backend.
struct Measure<'t> {
    target: &'t Target,
    name: &'static str,
    scalar: Scalar,
    bound: f64,
    worst: f64,
    measured: usize,
    /// Results of a device that turns subnormals into zero, and right by that.
    excepted: usize,
}

impl Measure<'_> {
    fn run(&mut self, operands: impl Iterator<Item = Vec<u64>>, wrong: &mut Vec<String>) {
        let operation =
            Operation::named(self.name).unwrap_or_else(|| panic!("`{}` is no function", self.name));
        let mut rows = Vec::with_capacity(CHUNK);
        let mut operands = operands.peekable();
        while let Some(next) = operands.next() {
            let numbers: Vec<f64> = next.iter().map(|&b| value_of(self.scalar, b)).collect();
            let number = exact(self.name, &numbers).unwrap_or(f64::NAN);
            rows.push(Row {
                operation,
                from: self.scalar,
                to: self.scalar,
                operands: next,
                expected: Expected::Within(number, self.bound),
                source: String::new(),
            });
            if rows.len() == CHUNK || operands.peek().is_none() {
                self.chunk(&rows, wrong);
                rows.clear();
            }
        }
    }

    fn chunk(&mut self, rows: &[Row], wrong: &mut Vec<String>) {
        let refs: Vec<&Row> = rows.iter().collect();
        let answers = match run_batch(self.target, &refs, Form::Loaded) {
            Ok(answers) => answers,
            Err(error) => {
                let place = self.target.name();
                wrong.push(format!("{} {} on {place}: {error}", self.name, self.scalar));
                return;
            }
        };
        for (row, found) in rows.iter().zip(&answers) {
            let Expected::Within(number, _) = row.expected else {
                continue;
            };
            let distance = oracle::distance(self.scalar, found[0], number);
            if distance > self.bound && self.target.flushes_subnormals && self.flushed(row, found) {
                self.excepted += 1;
                continue;
            }
            self.measured += 1;
            self.worst = self.worst.max(distance);
            if distance > self.bound && wrong.len() < SHOWN {
                wrong.push(format!(
                    "{} on {}: got {}, exact {number:e}, {distance:.2} ULP, the bound is {}",
                    row.describe(),
                    self.target.name(),
                    show(self.scalar, found[0]),
                    self.bound
                ));
            }
        }
    }
}

impl Measure<'_> {
    /// Whether a result is within the bound where subnormal operands, the result or both become
    /// zero.
    fn flushed(&self, row: &Row, found: &[u64]) -> bool {
        let zero = |scalar, bits| match is_subnormal(scalar, bits) {
            true => value_of(scalar, bits).signum() * 0.0,
            false => value_of(scalar, bits),
        };
        let operands: Vec<f64> = row.operands.iter().map(|&b| zero(self.scalar, b)).collect();
        let whole: Vec<f64> = row
            .operands
            .iter()
            .map(|&b| value_of(self.scalar, b))
            .collect();
        let tiny = |x: f64| match x.abs() < f64::from(f32::MIN_POSITIVE) {
            true => x.signum() * 0.0,
            false => x,
        };
        let results = [&operands, &whole].map(|o| exact(self.name, o).unwrap_or(f64::NAN));
        let results = [results[0], tiny(results[0]), tiny(results[1])];
        let distance = |x| oracle::distance(self.scalar, found[0], x);
        results.into_iter().any(|x| distance(x) <= self.bound)
    }
}

#[test]
fn functions_keep_their_bounds_at_every_exponent() {
    let mantissas = mantissas();
    let targets = targets_with_host();
    let mut wrong = Vec::new();
    let mut table = BTreeMap::<(&str, &str), Vec<String>>::new();
    let mut measured = 0;
    for target in &targets {
        let mut excepted = Vec::new();
        prepare(target, |t| {
            for (name, _) in bounds(t.name()) {
                for scalar in [Scalar::F32, Scalar::F16, Scalar::BF16] {
                    one_row(t, name, scalar);
                }
            }
        });
        for (name, bound) in bounds(target.name()) {
            for scalar in [Scalar::F32, Scalar::F16, Scalar::BF16] {
                let bound = if scalar == Scalar::F32 { bound } else { 1.0 };
                let mut measure = Measure {
                    target,
                    name,
                    scalar,
                    bound,
                    worst: 0.0,
                    measured: 0,
                    excepted: 0,
                };
                match (name, scalar) {
                    ("pow", Scalar::F32) => measure.run(powers(mantissas), &mut wrong),
                    // Halves are the rounded `f32` function; their pairs are too many for all.
                    ("pow", _) => continue,
                    (_, Scalar::F32) => measure.run(singles(mantissas), &mut wrong),
                    _ => measure.run((0..0x1_0000).map(|bits| vec![bits]), &mut wrong),
                }
                measured += measure.measured;
                if measure.excepted > 0 {
                    excepted.push(format!("{name} {scalar} {}", measure.excepted));
                }
                let line = table.entry((name, scalar.name())).or_default();
                line.push(format!("{:>9.2} of {bound}", measure.worst));
            }
        }
        if !excepted.is_empty() {
            println!(
                "on {}, excepted by the device's fault, subnormals become zero: {}",
                target.name(),
                excepted.join(", ")
            );
        }
    }
    let names: Vec<String> = targets
        .iter()
        .map(|t| format!("{:>16}", t.name()))
        .collect();
    println!("greatest distance in ULP     {}", names.join(" "));
    for ((name, scalar), worst) in &table {
        let worst: Vec<String> = worst.iter().map(|w| format!("{w:>16}")).collect();
        println!("{name:<20} {scalar:<8} {}", worst.join(" "));
    }
    println!("{measured} results measured, {mantissas} mantissas of every exponent and sign");
    assert!(measured > 0, "nothing was measured");
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Runs the kernel that a function is measured by, for one row.
fn one_row(target: &Target, name: &'static str, scalar: Scalar) {
    let Some(operation) = Operation::named(name) else {
        return;
    };
    let row = Row {
        operation,
        from: scalar,
        to: scalar,
        operands: vec![0; operation.operands],
        expected: Expected::Nan,
        source: String::new(),
    };
    // Only that the kernel is met matters.
    let _ = run_batch(target, &[&row], Form::Loaded);
}

/// The crate doc of `iron-ir` states the same bounds.
#[test]
fn the_specification_states_the_bounds_that_are_measured() {
    let doc = include_str!("../../iron-ir/src/lib.rs");
    let on = |backend: &str| bounds(backend).into_iter().map(|(_, bound)| bound);
    let own = on("cuda").zip(on("vulkan"));
    for ((name, bound), (on_cuda, on_vulkan)) in bounds("reference").into_iter().zip(own) {
        let line = format!("//! | `{name}` | {bound} | {on_cuda} | {on_vulkan} |");
        assert!(
            doc.contains(&line),
            "iron-ir/src/lib.rs lacks the row `{line}`"
        );
    }
}
