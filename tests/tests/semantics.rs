//! The specification, row by row, on every backend: see `semantics/README.md`.
//!
//! The rows are in the binary, so it can be copied to another machine and run there:
//! `IRON_TEST_BACKENDS=cuda,vulkan ./semantics-<hash>`.

use half::{bf16, f16};
use iron_ir::Scalar;
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::testing::{round_to, value_of};
use iron_runtime::{DeviceError, Tensor, launch_kernel};
use iron_tests::backends::{Target, targets, targets_with_host};
use iron_tests::batch::{Form, Tally, grouped, run_by_macro, run_many};
use iron_tests::flush::{self, Flush};
use iron_tests::prepare::prepare;
use iron_tests::rows::{Expected, Operation, Row, is_nan, parse, show};
use iron_tests::{by_macro, grid, together};

const FILES: [(&str, &str); 7] = [
    ("integers.txt", include_str!("../semantics/integers.txt")),
    ("floats.txt", include_str!("../semantics/floats.txt")),
    (
        "conversions.txt",
        include_str!("../semantics/conversions.txt"),
    ),
    (
        "every_integer.txt",
        include_str!("../semantics/data/every_integer.txt"),
    ),
    (
        "every_float.txt",
        include_str!("../semantics/data/every_float.txt"),
    ),
    (
        "every_conversion.txt",
        include_str!("../semantics/data/every_conversion.txt"),
    ),
    (
        "every_function.txt",
        include_str!("../semantics/data/every_function.txt"),
    ),
];

fn written() -> Vec<Row> {
    FILES
        .iter()
        .flat_map(|(file, text)| parse(file, text).unwrap_or_else(|error| panic!("{error}")))
        .collect()
}

/// The forms that a backend runs; the author's Rust is compiled once, without the constants.
fn forms_on(target: &Target, row: &Row) -> Vec<Form> {
    if target.is_host() {
        vec![Form::Loaded]
    } else {
        Form::of(row)
    }
}

#[test]
fn every_written_row_holds_on_every_backend() {
    let rows = written();
    assert!(rows.len() >= 4000, "only {} rows were read", rows.len());
    let mut all = Tally::default();
    for target in targets_with_host() {
        let run = |target: &Target, tally: &mut Tally| {
            for group in grouped(&rows) {
                for form in forms_on(target, group[0]) {
                    tally.run(target, &group, form);
                }
            }
        };
        prepare(&target, |t| run(t, &mut Tally::default()));
        let mut tally = Tally::default();
        run(&target, &mut tally);
        tally.print(&format!("{} rows on {}", rows.len(), target.name()));
        all.add(tally);
    }
    all.assert();
}

/// Collectives, subgroup operations and atomics.
#[test]
fn every_row_of_threads_together_holds_on_every_backend() {
    let rows = together::parse(include_str!("../semantics/data/together.txt"))
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(rows.len() >= 1000, "only {} rows were read", rows.len());
    let mut all = Tally::default();
    for target in targets() {
        prepare(&target, |t| drop(together::run(t, &rows)));
        let tally = together::run(&target, &rows);
        tally.print(&format!(
            "{} rows of threads on {}",
            rows.len(),
            target.name()
        ));
        all.add(tally);
    }
    all.assert();
}

/// K07, K08, K10: every pair of edge values of every integer type.
#[test]
fn every_pair_of_integer_edges_holds_on_every_backend() {
    edges_hold(&grid::integers());
}

/// K11: every pair of edge values of every float type.
#[test]
fn every_pair_of_float_edges_holds_on_every_backend() {
    edges_hold(&grid::floats());
}

fn edges_hold(rows: &[Row]) {
    let mut all = Tally::default();
    for target in targets_with_host() {
        let run = |target: &Target, tally: &mut Tally| {
            for group in grouped(rows) {
                let forms = [Form::Loaded, Form::Vector];
                let count = if target.is_host() { 1 } else { 2 };
                for form in forms.into_iter().take(count) {
                    tally.run(target, &group, form);
                }
            }
        };
        prepare(&target, |t| run(t, &mut Tally::default()));
        let mut tally = Tally::default();
        run(&target, &mut tally);
        tally.print(&format!(
            "{} generated rows on {}",
            rows.len(),
            target.name()
        ));
        all.add(tally);
    }
    all.assert();
}

/// The rows through the macro: the IR that the kernel language makes of each operation, where the
/// backend is not `host`, and what Rust itself refuses there.
#[test]
fn the_kernel_language_gives_every_row_its_answer() {
    let rows = written();
    let mut wrong = Vec::new();
    let (mut right, mut refused) = (0, 0);
    let interesting = ["reference", "host"];
    for target in targets_with_host() {
        if !interesting.contains(&target.name()) {
            continue;
        }
        for group in grouped(&rows) {
            if by_macro::choice(group[0]).is_none() {
                continue;
            }
            let (faults, defined): (Vec<&Row>, Vec<&Row>) = group
                .into_iter()
                .partition(|row| target.is_host() && by_macro::faults_in_rust(row));
            for row in faults {
                match run_by_macro(&target, &[row]) {
                    Err(DeviceError::Fault { .. }) => refused += 1,
                    other => wrong.push(format!("{}: no fault but {other:?}", row.describe())),
                }
            }
            if defined.is_empty() {
                continue;
            }
            match run_by_macro(&target, &defined) {
                Ok(answers) => {
                    for (row, found) in defined.iter().zip(&answers) {
                        if row.accepts(found) {
                            right += 1;
                        } else {
                            wrong.push(format!(
                                "{} on {}: got {}, expected {}",
                                row.describe(),
                                target.name(),
                                show(row.to, found[0]),
                                row.describe_expected()
                            ));
                        }
                    }
                }
                Err(error) => {
                    wrong.push(format!(
                        "{} on {}: {error}",
                        defined[0].describe(),
                        target.name()
                    ));
                }
            }
        }
    }
    println!("{right} rows right through the macro, {refused} refused by Rust on host");
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(60)].join("\n")
    );
}

/// The evaluator that folds constants gives the same answers.
#[test]
fn every_row_holds_in_the_constant_folder() {
    let mut rows = written();
    rows.extend(grid::integers());
    rows.extend(grid::floats());
    let mut wrong = Vec::new();
    let mut right = 0;
    for row in &rows {
        let found = flush::answer(row, Flush::Kept);
        if row.accepts(&found) {
            right += 1;
        } else {
            let found: Vec<_> = found.iter().map(|&bits| show(row.to, bits)).collect();
            wrong.push(format!(
                "{}: got {}, expected {}",
                row.describe(),
                found.join(" "),
                row.describe_expected()
            ));
        }
    }
    println!("{right} rows right in the folder");
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(60)].join("\n")
    );
}

/// One conversion over many operands, with the answers by other code.
fn converts(
    target: &Target,
    from: Scalar,
    to: Scalar,
    operands: &[u64],
    answer: &dyn Fn(u64) -> Option<Vec<u64>>,
) -> Tally {
    let like = Row {
        operation: Operation::named("convert").expect("`convert` is a name"),
        from,
        to,
        operands: vec![operands[0]],
        expected: Expected::Nan,
        source: "exhaustive".into(),
    };
    let mut tally = Tally::default();
    let found = match run_many(target, &like, operands) {
        Ok(found) => found,
        Err(DeviceError::Unsupported { reason, .. }) => {
            *tally.unsupported.entry(reason).or_default() += operands.len();
            return tally;
        }
        Err(error) => {
            tally
                .wrong
                .push(format!("{from} to {to} on {}: {error}", target.name()));
            return tally;
        }
    };
    for (&operand, found) in operands.iter().zip(found.chunks_exact(like.lanes())) {
        let expected = answer(operand);
        let right = match &expected {
            Some(bits) => bits
                .iter()
                .zip(found)
                .all(|(&a, &b)| iron_tests::batch::same(to, a, b)),
            None => found.iter().all(|&bits| is_nan(to, bits)),
        };
        let row = || Row {
            operands: vec![operand],
            expected: expected.clone().map_or(Expected::Nan, Expected::Bits),
            ..like.clone()
        };
        let excuse = || flush::explains(&row(), found).filter(|_| target.flushes_subnormals);
        if right {
            tally.right += 1;
        } else if let Some(flush) = excuse() {
            tally.except(&like, flush, 1);
        } else {
            tally.wrong.push(format!(
                "{} on {}: got {}, expected {}",
                row().describe(),
                target.name(),
                show(to, found[0]),
                row().describe_expected()
            ));
        }
    }
    tally
}

/// K15: `f32` to the 16-bit floats, every upper half with the low halves around ties.
#[test]
fn f32_rounds_to_the_16_bit_floats() {
    const LOW: [u64; 8] = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1000, 0xf000];
    let operands: Vec<u64> = (0..0x1_0000u64)
        .flat_map(|high| LOW.map(|low| high << 16 | low))
        .collect();
    let mut all = Tally::default();
    for target in targets_with_host() {
        let mut tally = Tally::default();
        for (to, round) in [
            (
                Scalar::F16,
                (|x| f16::from_f32(x).to_bits()) as fn(f32) -> u16,
            ),
            (Scalar::BF16, |x| bf16::from_f32(x).to_bits()),
        ] {
            tally.add(converts(&target, Scalar::F32, to, &operands, &|bits| {
                let x = f32::from_bits(bits as u32);
                (!x.is_nan()).then(|| vec![u64::from(round(x))])
            }));
        }
        tally.print(&format!("f32 to 16 bits on {}", target.name()));
        all.add(tally);
    }
    all.assert();
}

/// Every value of every type of 16 bits or fewer, to every type that it converts to.
#[test]
fn narrow_types_convert_exhaustively() {
    use Scalar::{BF16, E8M0, F4E2M1x2, F8E4M3, F8E5M2, F16, F32};
    let pairs: Vec<(Scalar, Scalar)> = [F16, BF16]
        .into_iter()
        .flat_map(|from| {
            let halves = [F16, BF16, F32, F8E4M3, F8E5M2];
            let integers = grid::INTEGERS;
            let to = halves
                .into_iter()
                .chain(integers)
                .filter(move |to| *to != from);
            to.map(move |to| (from, to))
        })
        .chain(
            [F8E4M3, F8E5M2, E8M0, F4E2M1x2]
                .into_iter()
                .flat_map(|from| [F32, F16, BF16].into_iter().map(move |to| (from, to))),
        )
        .collect();
    let mut all = Tally::default();
    for target in targets_with_host() {
        prepare(&target, |t| {
            for &(from, to) in &pairs {
                converts(t, from, to, &[0], &|_| None);
            }
        });
        let mut tally = Tally::default();
        for &(from, to) in &pairs {
            let operands: Vec<u64> = (0..1u64 << from.bits()).collect();
            tally.add(converts(&target, from, to, &operands, &|bits| {
                narrow_answer(from, to, bits)
            }));
        }
        tally.print(&format!(
            "{} exhaustive conversions on {}",
            pairs.len(),
            target.name()
        ));
        all.add(tally);
    }
    all.assert();
}

/// The answer by the `half` crate and by tables, `None` for NaN.
fn narrow_answer(from: Scalar, to: Scalar, bits: u64) -> Option<Vec<u64>> {
    const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let numbers: Vec<f64> = match from {
        Scalar::F16 => vec![f16::from_bits(bits as u16).to_f64()],
        Scalar::BF16 => vec![bf16::from_bits(bits as u16).to_f64()],
        Scalar::E8M0 if bits == 255 => vec![f64::NAN],
        Scalar::E8M0 => vec![2f64.powi(bits as i32 - 127)],
        Scalar::F4E2M1x2 => [bits & 15, bits >> 4]
            .map(|n| {
                if n < 8 {
                    E2M1[n as usize]
                } else {
                    -E2M1[n as usize - 8]
                }
            })
            .to_vec(),
        _ => vec![value_of(from, bits)],
    };
    if numbers[0].is_nan() && !to.is_int() {
        return None;
    }
    let rounded = |x: f64| match to {
        Scalar::F32 => u64::from((x as f32).to_bits()),
        // Every source here is exact in f32, so `from_f32` rounds once.
        Scalar::F16 => u64::from(f16::from_f32(x as f32).to_bits()),
        Scalar::BF16 => u64::from(bf16::from_f32(x as f32).to_bits()),
        _ => round_to(to, x),
    };
    Some(numbers.into_iter().map(rounded).collect())
}

/// K06: the offset of `x[row, column]` with the stride of the view, which passes 2^31 and 2^32,
/// as the addressing computes it. One row makes a view whose stride may be anything.
#[test]
fn strides_are_64_bit() {
    const TEXT: &str = "kernel @probe grid(1, 1, 1) workgroup(1, 1, 1) {
  dim #rows
  dim #columns
  dim #n
  param @x: tensor<f32, [#rows, #columns], read, align 1>
  param @at: tensor<u32, [#n], read, align 1>
  param @y: tensor<u64, [#n], read_write, align 1>

  for %i: u32 in 0u32 .. #n {
    %row: u32 = load @at[%i]
    %wide: u64 = convert %row
    %start: u64 = mul %wide, stride(@x, 0)
    %byte: u64 = mul %start, 4u64
    store @y[%i] = %byte
  }
}
";
    let kernel = iron_ir::parse::parse(TEXT).expect("the probe parses");
    let rows = [1u32, 2, 3, 65_536, 0x7fff_ffff];
    let strides = [0x2000_0000u64, 0x4000_0001, 0x1_0000_0000, 0x2_0000_0003];
    for target in targets() {
        let device = &target.device;
        for stride in strides {
            let run = || -> Result<Vec<u8>, DeviceError> {
                let x = Tensor::zeros(device, Scalar::F32, &[1, 4])?
                    .with_strides(&[1, 4], &[stride, 1])?;
                let at = Tensor::from_slice(device, Scalar::U32, &[5], &rows)?;
                let y = Tensor::zeros(device, Scalar::U64, &[5])?;
                let arguments = [&x, &at, &y]
                    .map(|t| Argument::Tensor(t.tensor_arg()))
                    .to_vec();
                launch_kernel(device, &kernel, arguments)?;
                device.synchronize()?;
                y.to_bytes()
            };
            let bytes = run().unwrap_or_else(|error| panic!("on {}: {error}", target.name()));
            for (row, bytes) in rows.iter().zip(bytes.chunks_exact(8)) {
                let found = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                let expected = u64::from(*row).wrapping_mul(stride).wrapping_mul(4);
                assert_eq!(
                    found,
                    expected,
                    "row {row} × stride {stride:#x} on {}",
                    target.name()
                );
            }
        }
    }
}
