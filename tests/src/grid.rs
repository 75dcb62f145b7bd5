//! Generated rows: every pair of edge values, with answers by plain Rust.
//!
//! Nothing here calls the evaluator of `iron-ir`. Integers are computed in `i128` and cut,
//! `f32` and `f64` by the machine, `f16` and `bf16` by the `half` crate.

use half::{bf16, f16};
use iron_ir::Scalar;

use crate::rows::{Expected, Operation, Row, is_nan};

/// The integer types.
pub const INTEGERS: [Scalar; 8] = [
    Scalar::I8,
    Scalar::I16,
    Scalar::I32,
    Scalar::I64,
    Scalar::U8,
    Scalar::U16,
    Scalar::U32,
    Scalar::U64,
];

/// The float types.
pub const FLOATS: [Scalar; 4] = [Scalar::F32, Scalar::F16, Scalar::BF16, Scalar::F64];

fn row(name: &str, from: Scalar, to: Scalar, operands: Vec<u64>, expected: Expected) -> Row {
    let operation = Operation::named(name).unwrap_or_else(|| panic!("no operation `{name}`"));
    Row {
        operation,
        from,
        to,
        operands,
        expected,
        source: "grid".into(),
    }
}

fn width_mask(scalar: Scalar) -> u64 {
    u64::MAX >> (64 - scalar.bits())
}

/// The number that the bits of an integer type are.
fn number(scalar: Scalar, bits: u64) -> i128 {
    let wide = i128::from(bits);
    let sign = 1i128 << (scalar.bits() - 1);
    if scalar.is_signed() && wide & sign != 0 {
        wide - 2 * sign
    } else {
        wide
    }
}

/// Edge values of an integer type.
fn integer_edges(scalar: Scalar) -> Vec<u64> {
    let w = i128::from(scalar.bits());
    let top = 1i128 << (w - 1);
    let mut edges: Vec<u64> = [
        0,
        1,
        2,
        3,
        5,
        7,
        -1,
        -2,
        -3,
        -7,
        w - 1,
        w,
        w + 1,
        top,
        top - 1,
        top + 1,
        top - 2,
        1 << (w / 2),
        (1 << (w / 2)) - 1,
        top / 3,
        -(top / 3),
    ]
    .into_iter()
    .map(|x| x as u64 & width_mask(scalar))
    .collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// Every integer operation over edge values.
pub fn integers() -> Vec<Row> {
    let mut rows = Vec::new();
    for scalar in INTEGERS {
        let edges = integer_edges(scalar);
        let w = scalar.bits();
        let cut = |x: i128| x as u64 & width_mask(scalar);
        for &a in &edges {
            let x = number(scalar, a);
            let mut add = |name: &str, to, bits: u64| {
                rows.push(row(name, scalar, to, vec![a], Expected::Bits(vec![bits])));
            };
            add("neg", scalar, cut(-x));
            add("not", scalar, cut(-x - 1));
            add("abs", scalar, cut(if x < 0 { -x } else { x }));
            let ones = (0..w).filter(|i| a >> i & 1 == 1).count() as u64;
            add("count_ones", Scalar::U32, ones);
            let highest = (0..w).rev().find(|i| a >> i & 1 == 1);
            add(
                "leading_zeros",
                Scalar::U32,
                highest.map_or(u64::from(w), |i| u64::from(w - 1 - i)),
            );
            let lowest = (0..w).find(|i| a >> i & 1 == 1);
            add(
                "trailing_zeros",
                Scalar::U32,
                u64::from(lowest.unwrap_or(w)),
            );
            let reversed = (0..w).fold(0, |sum, i| sum | (a >> i & 1) << (w - 1 - i));
            add("reverse_bits", scalar, reversed);
            for to in INTEGERS {
                if to != scalar {
                    add("convert", to, x as u64 & width_mask(to));
                }
            }
            for to in FLOATS {
                let bits = match to {
                    Scalar::F32 => u64::from((x as f32).to_bits()),
                    Scalar::F64 => (x as f64).to_bits(),
                    _ => nearest_half(to, x),
                };
                add("convert", to, bits);
            }
            for &b in &edges {
                integer_pair(&mut rows, scalar, a, b);
            }
        }
        // K07: the table of small quotients.
        if scalar.is_signed() {
            for x in -7i128..=7 {
                for y in [-3i128, -1, 1, 3] {
                    integer_pair(&mut rows, scalar, cut(x), cut(y));
                }
            }
        }
    }
    rows
}

fn integer_pair(rows: &mut Vec<Row>, scalar: Scalar, a: u64, b: u64) {
    let (x, y) = (number(scalar, a), number(scalar, b));
    let w = scalar.bits();
    let cut = |x: i128| x as u64 & width_mask(scalar);
    let mut add = |name: &str, to, bits: u64| {
        rows.push(row(
            name,
            scalar,
            to,
            vec![a, b],
            Expected::Bits(vec![bits]),
        ));
    };
    add("add", scalar, cut(x + y));
    add("sub", scalar, cut(x - y));
    let product = cut((a as u128 * b as u128) as i128);
    add("mul", scalar, product);
    add(
        "div",
        scalar,
        if y == 0 {
            width_mask(scalar)
        } else {
            cut(x / y)
        },
    );
    add("rem", scalar, if y == 0 { a } else { cut(x % y) });
    add("div_rem", scalar, a);
    add("and", scalar, a & b);
    add("or", scalar, a | b);
    add("xor", scalar, a ^ b);
    let count = b % u64::from(w);
    add("shl", scalar, cut(((a as u128) << count) as i128));
    add("shr", scalar, cut(x.div_euclid(1 << count)));
    add("min", scalar, if x < y { a } else { b });
    add("max", scalar, if x > y { a } else { b });
    let upper = if scalar.is_signed() {
        cut((x * y).div_euclid(1 << w))
    } else {
        ((a as u128 * b as u128) >> w) as u64
    };
    add("mul_high", scalar, upper);
    let dot = |signed: [bool; 2]| {
        let bytes = [a, b].map(|word| (word as u32).to_le_bytes());
        let number = |byte: u8, signed| match signed {
            true => i128::from(byte as i8),
            false => i128::from(byte),
        };
        let products =
            (0..4).map(|j| number(bytes[0][j], signed[0]) * number(bytes[1][j], signed[1]));
        cut(products.sum())
    };
    if matches!(scalar, Scalar::I32 | Scalar::U32) {
        add("dot4", scalar, dot([scalar.is_signed(); 2]));
    }
    if scalar == Scalar::I32 {
        add("dot4_mixed", scalar, dot([false, true]));
    }
    for (name, holds) in [
        ("eq", x == y),
        ("ne", x != y),
        ("lt", x < y),
        ("le", x <= y),
        ("gt", x > y),
        ("ge", x >= y),
    ] {
        add(name, Scalar::Bool, u64::from(holds));
    }
}

/// The `f16` or `bf16` nearest to an integer, found by trying every candidate near it; ties go
/// to the even one.
fn nearest_half(to: Scalar, x: i128) -> u64 {
    const UNIT: i32 = 26;
    let (sign, infinity) = match to {
        Scalar::F16 => (0x8000u64, 0x7c00u64),
        _ => (0x8000, 0x7f80),
    };
    if x == 0 {
        return 0;
    }
    // Whole numbers of a unit that every candidate near a whole number is a multiple of.
    let units = |bits: u64| -> i128 {
        if bits == infinity {
            return if to == Scalar::F16 {
                65536 << UNIT
            } else {
                i128::MAX
            };
        }
        let value = match to {
            Scalar::F16 => f16::from_bits(bits as u16).to_f64(),
            _ => bf16::from_bits(bits as u16).to_f64(),
        };
        (value * 2f64.powi(UNIT)) as i128
    };
    let wanted = x.abs() << UNIT;
    let (mut low, mut high) = (0u64, infinity);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if units(middle) <= wanted {
            low = middle
        } else {
            high = middle
        }
    }
    let (below, above) = (wanted - units(low), units(high).saturating_sub(wanted));
    let nearest = match below.cmp(&above) {
        std::cmp::Ordering::Less => low,
        std::cmp::Ordering::Greater => high,
        std::cmp::Ordering::Equal if low % 2 == 0 => low,
        std::cmp::Ordering::Equal => high,
    };
    let nearest = if wanted >= units(infinity) {
        infinity
    } else {
        nearest
    };
    nearest | if x < 0 { sign } else { 0 }
}

/// Edge values of a float type.
pub fn float_edges(scalar: Scalar) -> Vec<u64> {
    let numbers = [
        0.0,
        1.0,
        2.0,
        0.5,
        3.0,
        1.0 / 3.0,
        0.1,
        1.5,
        7.5,
        100.0,
        2048.0,
        65504.0,
        16_777_216.0,
        1e10,
        1e38,
        1e-10,
        1e-38,
    ];
    let (special, sign): (&[u64], u64) = match scalar {
        Scalar::F16 => (
            &[1, 2, 0x3ff, 0x400, 0x3bff, 0x3c01, 0x7bff, 0x7c00, 0x7e00],
            1 << 15,
        ),
        Scalar::BF16 => (
            &[1, 2, 0x7f, 0x80, 0x3f7f, 0x3f81, 0x7f7f, 0x7f80, 0x7fc0],
            1 << 15,
        ),
        Scalar::F32 => (
            &[
                1,
                2,
                0x7f_ffff,
                0x80_0000,
                0x3f7f_ffff,
                0x3f80_0001,
                0x7f7f_ffff,
                0x7f80_0000,
                0x7fc0_0000,
            ],
            1 << 31,
        ),
        _ => (
            &[
                1,
                0xf_ffff_ffff_ffff,
                1 << 52,
                0x7fef_ffff_ffff_ffff,
                0x7ff << 52,
                0xfff << 51,
            ],
            1 << 63,
        ),
    };
    let mut edges: Vec<u64> = numbers
        .iter()
        .map(|&x: &f64| match scalar {
            Scalar::F16 => u64::from(f16::from_f64(x).to_bits()),
            Scalar::BF16 => u64::from(bf16::from_f64(x).to_bits()),
            Scalar::F32 => u64::from((x as f32).to_bits()),
            _ => x.to_bits(),
        })
        .chain(special.iter().copied())
        .flat_map(|bits| [bits, bits | sign])
        .collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// A number of a float type as `f64`, exactly.
fn widen(scalar: Scalar, bits: u64) -> f64 {
    match scalar {
        Scalar::F16 => f16::from_bits(bits as u16).to_f64(),
        Scalar::BF16 => bf16::from_bits(bits as u16).to_f64(),
        Scalar::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

/// The answer of an operation whose `f32` (or `f64`) answer is given: rounded once more to the
/// half types.
fn narrowed(scalar: Scalar, single: f32, double: f64) -> Expected {
    let bits = match scalar {
        Scalar::F16 => u64::from(f16::from_f32(single).to_bits()),
        Scalar::BF16 => u64::from(bf16::from_f32(single).to_bits()),
        Scalar::F32 => u64::from(single.to_bits()),
        _ => double.to_bits(),
    };
    if is_nan(scalar, bits) {
        Expected::QuietNan
    } else {
        Expected::Bits(vec![bits])
    }
}

/// The basic float operations over edge values.
pub fn floats() -> Vec<Row> {
    let mut rows = Vec::new();
    for scalar in FLOATS {
        let edges = float_edges(scalar);
        for &a in &edges {
            float_one(&mut rows, scalar, a);
            for &b in &edges {
                float_pair(&mut rows, scalar, a, b);
            }
        }
        let few: Vec<u64> = edges.iter().copied().step_by(5).collect();
        for &a in &few {
            for &b in &few {
                for &c in &few {
                    let (x, y, z) = (widen(scalar, a), widen(scalar, b), widen(scalar, c));
                    let (p, q, r) = (x as f32, y as f32, z as f32);
                    let fused = narrowed(scalar, p.mul_add(q, r), x.mul_add(y, z));
                    rows.push(row("fma", scalar, scalar, vec![a, b, c], fused));
                    let product = match narrowed(scalar, p * q, x * y) {
                        Expected::Bits(bits) => widen(scalar, bits[0]),
                        _ => f64::NAN,
                    };
                    let sum = narrowed(scalar, product as f32 + r, product + z);
                    rows.push(row("mul_add", scalar, scalar, vec![a, b, c], sum));
                }
            }
        }
    }
    rows
}

fn float_one(rows: &mut Vec<Row>, scalar: Scalar, a: u64) {
    let x = widen(scalar, a);
    let single = x as f32;
    let mut add = |name: &str, to, expected| {
        rows.push(row(name, scalar, to, vec![a], expected));
    };
    let nan_or = |bits: u64| {
        if x.is_nan() {
            Expected::Nan
        } else {
            Expected::Bits(vec![bits])
        }
    };
    let sign = 1 << (scalar.bits() - 1);
    add("neg", scalar, nan_or(a ^ sign));
    add("abs", scalar, nan_or(a & !sign));
    let truth = |holds: bool| Expected::Bits(vec![u64::from(holds)]);
    add("is_nan", Scalar::Bool, truth(x.is_nan()));
    add("is_finite", Scalar::Bool, truth(x.is_finite()));
    add("sqrt", scalar, narrowed(scalar, single.sqrt(), x.sqrt()));
    let whole = |f: fn(f64) -> f64| match narrowed(scalar, f(x) as f32, f(x)) {
        Expected::QuietNan => Expected::Nan,
        other => other,
    };
    add("floor", scalar, whole(f64::floor));
    add("ceil", scalar, whole(f64::ceil));
    add("trunc", scalar, whole(f64::trunc));
    add("round_even", scalar, whole(f64::round_ties_even));
    for to in INTEGERS {
        // Rust's casts saturate and take NaN to 0, as the specification does.
        let bits = match to {
            Scalar::I8 => x as i8 as u64,
            Scalar::I16 => x as i16 as u64,
            Scalar::I32 => x as i32 as u64,
            Scalar::I64 => x as i64 as u64,
            Scalar::U8 => x as u8 as u64,
            Scalar::U16 => x as u16 as u64,
            Scalar::U32 => x as u32 as u64,
            _ => x as u64,
        };
        add("convert", to, Expected::Bits(vec![bits & width_mask(to)]));
    }
}

fn float_pair(rows: &mut Vec<Row>, scalar: Scalar, a: u64, b: u64) {
    let (x, y) = (widen(scalar, a), widen(scalar, b));
    let (p, q) = (x as f32, y as f32);
    let mut add = |name: &str, to, expected| {
        rows.push(row(name, scalar, to, vec![a, b], expected));
    };
    add("add", scalar, narrowed(scalar, p + q, x + y));
    add("sub", scalar, narrowed(scalar, p - q, x - y));
    add("mul", scalar, narrowed(scalar, p * q, x * y));
    add("div", scalar, narrowed(scalar, p / q, x / y));
    // A key that orders all numbers, and -0 before +0.
    let key = |bits: u64, x: f64| (x, bits >> (scalar.bits() - 1) == 0);
    let less = key(a, x) < key(b, y);
    for (name, smaller, passes_nan) in [
        ("min", true, false),
        ("max", false, false),
        ("min_nan", true, true),
        ("max_nan", false, true),
    ] {
        let expected = match (x.is_nan(), y.is_nan()) {
            (true, true) => Expected::Nan,
            (true, false) | (false, true) if passes_nan => Expected::Nan,
            (true, false) => Expected::Bits(vec![b]),
            (false, true) => Expected::Bits(vec![a]),
            (false, false) => Expected::Bits(vec![if less == smaller { a } else { b }]),
        };
        add(name, scalar, expected);
    }
    for (name, holds) in [
        ("eq", x == y),
        ("ne", x != y),
        ("lt", x < y),
        ("le", x <= y),
        ("gt", x > y),
        ("ge", x >= y),
    ] {
        add(name, Scalar::Bool, Expected::Bits(vec![u64::from(holds)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_round_to_the_nearest_half() {
        assert_eq!(nearest_half(Scalar::F16, 2049), 0x6800);
        assert_eq!(nearest_half(Scalar::F16, 2051), 0x6802);
        assert_eq!(nearest_half(Scalar::F16, 65519), 0x7bff);
        assert_eq!(nearest_half(Scalar::F16, -65520), 0xfc00);
        assert_eq!(nearest_half(Scalar::BF16, 257), 0x4380);
        assert_eq!(nearest_half(Scalar::BF16, 0x0101_0001), 0x4b81);
        assert_eq!(nearest_half(Scalar::BF16, 0), 0);
    }
}
