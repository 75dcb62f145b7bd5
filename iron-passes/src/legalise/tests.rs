//! What legalised statements give is what the specification's evaluator gives for the statement as
//! it was written; and each rewrite happens where the target asks for it, and only there.

use iron_ir::parse::parse;
use iron_ir::print::print;
use iron_ir::verify::verify;
use iron_ir::{Const, Handle, Kernel, Op, Scalar, Stmt, fold};

use super::legalise_arithmetic;
use crate::Legal;

/// A kernel of one thread that stores `%out`, a `u32` made of two `f32` and two `i32`.
fn kernel(body: &str) -> Kernel {
    let text = format!(
        "kernel @k grid(1, 1, 1) workgroup(1, 1, 1) {{
  dim #n
  param @o: tensor<u32, [#n], read_write, align 1>
  param @f: f32
  param @g: f32
  param @s: i32
  param @t: i32
{body}
  store @o[0u32] = %out
}}
"
    );
    let kernel = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    verify(&kernel).unwrap_or_else(|e| panic!("{e}\n{text}"));
    kernel
}

/// What a kernel without branches stores last.
fn stored(kernel: &Kernel, inputs: &[Const; 4]) -> u64 {
    let mut values = std::collections::HashMap::new();
    let mut last = None;
    for (stmt, _) in &kernel.body.0 {
        match stmt {
            Stmt::Let(value) => {
                let data = &kernel.values[*value];
                let of = |v| match &kernel.values[v].op {
                    Op::Const(c) => *c,
                    // The tensor is parameter 0.
                    Op::Scalar(param) => inputs[param.index() - 1],
                    _ => values[&v],
                };
                let args: Vec<Const> = iron_ir::kernel::operands(&data.op)
                    .into_iter()
                    .map(of)
                    .collect();
                let result = fold::eval(&data.op, data.ty.scalar, &args)
                    .unwrap_or_else(|| panic!("not evaluated: {:?}\n{}", data.op, print(kernel)));
                values.insert(*value, result);
                last = Some(result);
            }
            Stmt::Store { .. } => {}
            other => panic!("a statement of another kind: {other:?}"),
        }
    }
    last.map_or(0, |c| c.bits)
}

/// Compares a body before and after, on every pair of the inputs.
fn keeps(body: &str, floats: &[f32], integers: &[i32]) {
    let legals = [
        Legal::PORTABLE,
        Legal {
            has_f16_memory: false,
            ..Legal::PORTABLE
        },
    ];
    let before = kernel(body);
    for legal in &legals {
        let mut after = before.clone();
        legalise_arithmetic(&mut after, legal).expect(body);
        let check = |f: f32, g: f32, s: i32, t: i32| {
            let int = |v: i32| Const::u32(v as u32).bitcast(Scalar::I32);
            let inputs = [Const::f32(f), Const::f32(g), int(s), int(t)];
            let (want, got) = (stored(&before, &inputs), stored(&after, &inputs));
            assert_eq!(
                got,
                want,
                "{body}\nof {f:e} ({:#x}), {g:e}, {s}, {t}\n{}",
                f.to_bits(),
                print(&after)
            );
        };
        for (i, &f) in floats.iter().enumerate() {
            check(f, floats[(i * 7 + 3) % floats.len()], 0, 0);
        }
        for &s in integers {
            for &t in integers {
                check(1.0, 1.0, s, t);
            }
        }
    }
}

/// Ends, ties and neighbours of the small formats and of the integers, and what lies between.
fn floats() -> Vec<f32> {
    let mut floats: Vec<f32> = vec![
        0.0,
        0.5,
        1.5,
        2.5,
        127.0,
        127.5,
        128.0,
        129.0,
        255.5,
        256.0,
        32767.5,
        32768.0,
        65504.0,
        65519.0,
        65520.0,
        65536.0,
        2147483520.0,
        2147483648.0,
        4294967040.0,
        4294967296.0,
        1e10,
        448.0,
        464.0,
        465.0,
        480.0,
        57344.0,
        61440.0,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    // Around the ties of 7, 10, 3 and 2 bits of mantissa, and at every power of two that matters.
    for exponent in (-26..=17).map(|e| 2f32.powi(e).to_bits()) {
        for tie in [0x8000u32, 0x1000, 0x8_0000, 0x10_0000] {
            for odd in [0, 2 * tie] {
                for step in [-1i32, 0, 1] {
                    let bits = (exponent | odd | tie).wrapping_add_signed(step);
                    floats.push(f32::from_bits(bits));
                }
            }
        }
    }
    let negative: Vec<f32> = floats.iter().map(|f| -f).collect();
    floats.extend(negative);
    floats
}

/// An `f32` as `%out`: its bits, and one number for every NaN.
const FLOAT_OUT: &str = "  %nan: bool = is_nan %back
  %bits: u32 = bitcast %back
  %out: u32 = select %nan, 1u32, %bits";

const INTEGERS: [&str; 8] = ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"];

#[test]
fn conversions_of_floats_keep_their_value() {
    for to in INTEGERS {
        let low = match to {
            "u32" => "  %out: u32 = convert @f".to_string(),
            to => format!("  %r: {to} = convert @f\n  %out: u32 = convert %r"),
        };
        keeps(&low, &floats(), &[]);
    }
    for to in ["i64", "u64"] {
        let high = format!(
            "  %r: {to} = convert @f\n  %h: {to} = shr %r, 32{to}\n  %out: u32 = convert %h"
        );
        keeps(&high, &floats(), &[]);
    }
    for format in ["f16", "bf16", "f8e4m3", "f8e5m2"] {
        let body = format!("  %r: {format} = convert @f\n  %back: f32 = convert %r\n{FLOAT_OUT}");
        keeps(&body, &floats(), &[]);
    }
}

#[test]
fn arithmetic_of_halves_and_the_four_extrema_keep_their_value() {
    for half in ["f16", "bf16"] {
        for op in ["add", "sub", "mul", "div", "min", "max_nan"] {
            let body = format!(
                "  %a: {half} = convert @f\n  %b: {half} = convert @g\n  %r: {half} = {op} %a, %b
  %back: f32 = convert %r\n{FLOAT_OUT}"
            );
            keeps(&body, &floats(), &[]);
        }
    }
    for op in ["min", "max", "min_nan", "max_nan"] {
        let body = format!("  %back: f32 = {op} @f, @g\n{FLOAT_OUT}");
        let ends = [0.0, -0.0, 1.0, f32::NAN, f32::INFINITY, -2.0, -0.0];
        keeps(&body, &ends, &[]);
    }
}

/// K07, K08, K10: total division and counts of shifts.
#[test]
fn integer_operations_keep_their_value() {
    let mut integers = vec![
        i32::MIN,
        i32::MIN + 1,
        i32::MAX,
        127,
        128,
        255,
        256,
        32768,
        65535,
    ];
    integers.extend(-9..=9);
    integers.extend([15, 16, 31, 32, 33, 63, 64, 65, -128, -32768]);
    for ty in INTEGERS {
        for op in ["div", "rem", "shl", "shr", "min", "max"] {
            let body = match ty {
                "i32" => format!("  %r: i32 = {op} @s, @t\n  %out: u32 = convert %r"),
                "u32" => format!(
                    "  %a: u32 = convert @s\n  %b: u32 = convert @t\n  %out: u32 = {op} %a, %b"
                ),
                ty => format!(
                    "  %a: {ty} = convert @s\n  %b: {ty} = convert @t\n  %r: {ty} = {op} %a, %b
  %out: u32 = convert %r"
                ),
            };
            keeps(&body, &[], &integers);
        }
    }
}

/// The statements of a body after the pass.
fn after(body: &str, legal: &Legal, edit: impl Fn(String) -> String) -> String {
    let text = edit(print(&kernel(body)));
    let mut kernel = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    legalise_arithmetic(&mut kernel, legal).expect(body);
    print(&kernel)
}

#[test]
fn conversions_are_clamped_where_the_target_does_not_saturate_itself() {
    let body = "  %r: i8 = convert @f\n  %out: u32 = convert %r";
    let native = Legal {
        native_saturating_convert: true,
        ..Legal::PORTABLE
    };
    let clamps = |legal: &Legal| after(body, legal, |text| text).contains("select");
    assert!(clamps(&Legal::PORTABLE));
    assert!(!clamps(&native));
}

#[test]
fn a_divisor_is_guarded_unless_a_fact_keeps_it_from_zero() {
    let body = "  %u: u32 = convert @s\n  %out: u32 = div %u, #n";
    let guarded = |fact: &str| {
        let text = after(body, &Legal::PORTABLE, |text| {
            text.replacen(
                "workgroup(1, 1, 1)",
                &format!("workgroup(1, 1, 1) {fact}"),
                1,
            )
        });
        text.contains("select")
    };
    assert!(guarded(""));
    for fact in [
        "#n >= 0", "#n == 0", "#n > -1", "#n < 9", "#n <= 9", "#n != 3",
    ] {
        assert!(guarded(&format!("requires({fact})")), "{fact}");
    }
    for fact in ["#n > 0", "#n >= 1", "#n == 4"] {
        assert!(!guarded(&format!("requires({fact})")), "{fact}");
    }
}

#[test]
fn narrow_values_are_exchanged_as_u32() {
    for (ty, bytes) in [("u8", 1), ("f16", 2), ("i16", 2)] {
        let body = format!(
            "  %r: {ty} = convert @s\n  %e: {ty} = subgroup shuffle %r, 0u32\n  %out: u32 = convert %e"
        );
        let text = after(&body, &Legal::PORTABLE, |text| text);
        let mut exchanges = text.lines().filter(|l| l.contains("subgroup shuffle"));
        let line = exchanges.next().unwrap_or_default();
        assert!(line.contains(": u32 = subgroup"), "{bytes} bytes: {text}");
    }
}
