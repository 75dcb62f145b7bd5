//! The numeric table of the crate doc.

use super::float::{decode, encode_f32, encode_int};
use super::*;

const INTS: [Scalar; 8] = [
    Scalar::I8,
    Scalar::I16,
    Scalar::I32,
    Scalar::I64,
    Scalar::U8,
    Scalar::U16,
    Scalar::U32,
    Scalar::U64,
];

/// K07: division truncates, and quotient and remainder belong together, at every width.
#[test]
fn division_and_remainder_agree() {
    for scalar in INTS {
        let (low, high) = range(scalar);
        for a in (-7..=7).chain([low, low + 1, high, high - 1]) {
            for b in (-3..=3).chain([low, high]) {
                let (a, b) = (Const::int(scalar, a), Const::int(scalar, b));
                let (q, r) = (binary(BinaryOp::Div, a, b), binary(BinaryOp::Rem, a, b));
                let back = binary(BinaryOp::Add, binary(BinaryOp::Mul, q, b), r);
                assert_eq!(back, a, "{scalar}: {} / {}", a.as_int(), b.as_int());
            }
        }
    }
    let i32 = |v| Const::int(Scalar::I32, v);
    assert_eq!(binary(BinaryOp::Div, i32(-7), i32(2)), i32(-3));
    assert_eq!(binary(BinaryOp::Rem, i32(-7), i32(2)), i32(-1));
    assert_eq!(binary(BinaryOp::Rem, i32(7), i32(-2)), i32(1));
}

/// K08: every edge has the documented answer and none traps.
#[test]
fn integer_edges() {
    for scalar in INTS {
        let (low, high) = range(scalar);
        let int = |v| Const::int(scalar, v);
        assert_eq!(binary(BinaryOp::Div, int(5), int(0)), int(-1));
        assert_eq!(binary(BinaryOp::Rem, int(5), int(0)), int(5));
        assert_eq!(binary(BinaryOp::Add, int(high), int(1)), int(low));
        if scalar.is_signed() {
            assert_eq!(binary(BinaryOp::Div, int(low), int(-1)), int(low));
            assert_eq!(binary(BinaryOp::Rem, int(low), int(-1)), int(0));
            assert_eq!(unary(UnaryOp::Abs, int(low)), int(low));
            assert_eq!(unary(UnaryOp::Neg, int(low)), int(low));
            assert_eq!(binary(BinaryOp::MulHigh, int(-1), int(-1)), int(0));
            assert_eq!(
                binary(BinaryOp::MulHigh, int(low), int(low)),
                int((high + 1) / 2)
            );
        } else {
            assert_eq!(
                binary(BinaryOp::MulHigh, int(high), int(high)),
                int(high - 1)
            );
        }
        assert_eq!(
            unary(UnaryOp::LeadingZeros, int(0)),
            Const::u32(scalar.bits())
        );
        assert_eq!(
            unary(UnaryOp::TrailingZeros, int(0)),
            Const::u32(scalar.bits())
        );
        assert_eq!(
            unary(UnaryOp::CountOnes, int(-1)),
            Const::u32(scalar.bits())
        );
        assert_eq!(
            unary(UnaryOp::ReverseBits, int(1)),
            int(1 << (scalar.bits() - 1))
        );
    }
}

/// K10: shift counts are taken modulo the width.
#[test]
fn shifts_wrap_their_count() {
    for scalar in INTS {
        let width = u64::from(scalar.bits());
        for count in [0, 1, 7, 8, 15, 16, 31, 32, 33, 63, 64, u64::from(u32::MAX)] {
            let count = Const {
                scalar,
                bits: count & mask(scalar),
            };
            let reduced = Const {
                scalar,
                bits: count.bits % width,
            };
            for op in [BinaryOp::Shl, BinaryOp::Shr] {
                let x = Const::int(scalar, -0x35);
                assert_eq!(binary(op, x, count), binary(op, x, reduced));
            }
        }
        let one = Const::int(scalar, 1);
        let top = Const::int(scalar, i128::from(width) - 1);
        assert_eq!(
            binary(BinaryOp::Shl, one, top),
            Const::int(scalar, 1 << (width - 1))
        );
    }
    let minus = Const::int(Scalar::I32, -8);
    assert_eq!(
        binary(BinaryOp::Shr, minus, Const::int(Scalar::I32, 1)).as_int(),
        -4
    );
}

/// K11: NaN and signed zeros in the four extrema, in both orders, at every float type.
#[test]
fn extrema_order_zeros_and_name_their_nan_rule() {
    for scalar in [Scalar::F16, Scalar::BF16, Scalar::F32, Scalar::F64] {
        let float = |v| Const::float(scalar, v);
        let (nan, six) = (float(f64::NAN), float(6.0));
        for (a, b) in [(nan, six), (six, nan)] {
            assert_eq!(binary(BinaryOp::Min, a, b), six);
            assert_eq!(binary(BinaryOp::Max, a, b), six);
            assert!(decode(binary(BinaryOp::MinNan, a, b)).is_nan());
            assert!(decode(binary(BinaryOp::MaxNan, a, b)).is_nan());
        }
        assert!(decode(binary(BinaryOp::Min, nan, nan)).is_nan());
        let (minus, plus) = (float(-0.0), float(0.0));
        for (a, b) in [(minus, plus), (plus, minus)] {
            for op in [BinaryOp::Min, BinaryOp::MinNan] {
                assert_eq!(binary(op, a, b), minus);
            }
            for op in [BinaryOp::Max, BinaryOp::MaxNan] {
                assert_eq!(binary(op, a, b), plus);
            }
        }
        assert!(!compare(CompareOp::Eq, nan, nan) && compare(CompareOp::Ne, nan, nan));
        assert!(!compare(CompareOp::Lt, nan, six) && !compare(CompareOp::Ge, nan, six));
    }
}

/// K15: every 16-bit pattern survives the way up and down, and 2^19 `f32` patterns around every
/// rounding point of bf16 round to nearest even.
#[test]
fn half_formats_round_to_nearest_even() {
    for scalar in [Scalar::F16, Scalar::BF16] {
        for bits in 0..=0xffffu64 {
            let x = Const { scalar, bits };
            let back = convert(convert(x, Scalar::F32), scalar);
            if decode(x).is_nan() {
                assert!(decode(back).is_nan(), "{scalar} {bits:#x}");
            } else {
                assert_eq!(back, x, "{scalar} {bits:#x}");
            }
        }
    }
    for upper in 0..=0xffffu32 {
        for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff, 0x4000] {
            let value = f32::from_bits(upper << 16 | low);
            let got = encode_f32(Scalar::BF16, value).bits as u32;
            if value.is_nan() {
                assert!(f32::from_bits(got << 16).is_nan(), "{upper:#x} {low:#x}");
                continue;
            }
            let up = low > 0x8000 || (low == 0x8000 && upper & 1 == 1);
            assert_eq!(got, upper + u32::from(up), "{upper:#x} {low:#x}");
            assert_eq!(half::bf16::from_f32(value).to_bits(), got as u16);
            let f16 = encode_f32(Scalar::F16, value).bits as u16;
            assert_eq!(f16, half::f16::from_f32(value).to_bits(), "f16 {value:e}");
        }
    }
}

/// K15: integers are rounded once, not by way of `f32`.
#[test]
fn integers_round_once() {
    // 2^24 + 2^16 + 1 lies just above a tie of bf16; rounding to f32 first lands on the tie.
    let value = (1i128 << 24) + (1 << 16) + 1;
    assert_eq!(
        decode(encode_int(Scalar::BF16, value)),
        f64::from((1 << 24) + (1 << 17))
    );
    assert_eq!(
        decode(encode_int(Scalar::BF16, value - 1)),
        f64::from(1 << 24)
    );
    assert_eq!(
        decode(encode_int(Scalar::BF16, -value)),
        -f64::from((1 << 24) + (1 << 17))
    );
    // The same at 2^63, where f64 too is inexact.
    let value = (1i128 << 63) + (1 << 55) + 1;
    assert_eq!(
        decode(encode_int(Scalar::BF16, value)),
        2f64.powi(63) + 2f64.powi(56)
    );
    assert_eq!(decode(encode_int(Scalar::F16, 65519)), 65504.0);
    assert_eq!(decode(encode_int(Scalar::F16, 65520)), f64::INFINITY);
}

/// K17: literals keep their bits.
#[test]
fn float_constants_keep_their_bits() {
    for value in [f32::INFINITY, -0.0, 1e-45, 16_777_217.0, f32::MAX, 0.1] {
        assert_eq!(Const::f32(value).as_f64(), f64::from(value));
        assert_eq!(
            Const::float(Scalar::F32, f64::from(value)),
            Const::f32(value)
        );
    }
}

/// Float to integer truncates and saturates; NaN gives 0.
#[test]
fn float_to_integer_saturates() {
    for scalar in INTS {
        let (low, high) = range(scalar);
        let to = |v: f64| convert(Const::f64(v), scalar).as_int();
        assert_eq!(to(f64::NAN), 0);
        assert_eq!(to(f64::INFINITY), high);
        assert_eq!(to(f64::NEG_INFINITY), low);
        assert_eq!(to(1e30), high);
        assert_eq!(to(-1e30), low);
        assert_eq!(to(2.99), 2);
        assert_eq!(to(-0.99), 0);
    }
    assert_eq!(convert(Const::f32(-2.99), Scalar::I8).as_int(), -2);
}

/// K40: all 256 codes of both FP8 formats both ways, and the edges of the range.
#[test]
fn fp8_codes_and_edges() {
    for scalar in [Scalar::F8E4M3, Scalar::F8E5M2] {
        let code = |bits: u64| Const { scalar, bits };
        for bits in 0..256 {
            let number = convert(code(bits), Scalar::F32);
            let back = convert(number, scalar);
            if decode(number).is_nan() {
                assert!(decode(back).is_nan());
            } else {
                assert_eq!(back, code(bits), "{scalar} {bits:#x}");
            }
        }
        // Ties between neighbours go to the even code, above and below them to the nearer.
        for bits in 0..0x7bu64 {
            let (low, high) = (decode(code(bits)), decode(code(bits + 1)));
            let tie = (low + high) / 2.0;
            let even = code(bits + (bits & 1));
            assert_eq!(
                convert(Const::f64(tie), scalar),
                even,
                "{scalar} tie above {bits:#x}"
            );
            assert_eq!(convert(Const::f64(tie.next_up()), scalar), code(bits + 1));
            assert_eq!(convert(Const::f64(tie.next_down()), scalar), code(bits));
            assert_eq!(convert(Const::f64(-tie), scalar).bits, even.bits | 0x80);
        }
    }
    let e4m3 = |v: f32| convert(Const::f32(v), Scalar::F8E4M3).bits;
    assert_eq!(e4m3(448.0), 0x7e);
    assert_eq!(e4m3(449.0), 0x7e);
    assert_eq!(e4m3(464.0), 0x7e);
    assert_eq!(e4m3(465.0), 0x7f);
    assert_eq!(e4m3(1e6), 0x7f);
    assert_eq!(e4m3(-1e6), 0xff);
    assert_eq!(e4m3(0.0), 0);
    assert!(decode(convert(Const::f32(f32::NAN), Scalar::F8E4M3)).is_nan());
    let e5m2 = |v: f32| convert(Const::f32(v), Scalar::F8E5M2).bits;
    assert_eq!(e5m2(57344.0), 0x7b);
    assert_eq!(e5m2(61439.0), 0x7b);
    assert_eq!(e5m2(61440.0), 0x7c);
    assert_eq!(
        decode(Const {
            scalar: Scalar::E8M0,
            bits: 127
        }),
        1.0
    );
    assert!(
        decode(Const {
            scalar: Scalar::E8M0,
            bits: 255
        })
        .is_nan()
    );
}

#[test]
fn packed_nibbles() {
    let byte = Const {
        scalar: Scalar::F4E2M1x2,
        bits: 0xf1,
    };
    assert_eq!(
        unpack(byte, Scalar::F32),
        [Const::f32(0.5), Const::f32(-6.0)]
    );
    let word = Const {
        scalar: Scalar::Int4x8,
        bits: 0x8765_43f0,
    };
    let numbers: Vec<_> = unpack(word, Scalar::I32)
        .iter()
        .map(|c| c.as_int())
        .collect();
    assert_eq!(numbers, [0, -1, 3, 4, 5, 6, 7, -8]);
}

#[test]
fn half_arithmetic_is_single_arithmetic_rounded_once() {
    let f16 = |v: f32| encode_f32(Scalar::F16, v);
    // 2048 + 1 ties in f16 and stays.
    assert_eq!(binary(BinaryOp::Add, f16(2048.0), f16(1.0)), f16(2048.0));
    assert_eq!(
        binary(BinaryOp::Mul, f16(300.0), f16(300.0)),
        f16(f32::INFINITY)
    );
    assert_eq!(fma(f16(300.0), f16(300.0), f16(-65504.0)), f16(24496.0));
}

#[test]
fn trees_pair_neighbours_and_leave_single_ones() {
    let f = |v: &[f32]| v.iter().map(|x| Const::f32(*x)).collect::<Vec<_>>();
    // (1e8 + 1) + (-1e8 + 1) loses both ones, left to right would keep one.
    let sum = tree_reduce(ReduceOp::Sum, &f(&[1e8, 1.0, -1e8, 1.0])).unwrap();
    assert_eq!(sum, Const::f32(0.0));
    let min = tree_reduce(ReduceOp::Min, &f(&[f32::NAN, 6.0, 8.0])).unwrap();
    assert_eq!(min, Const::f32(6.0));
    // K11: an absent element changes nothing, so all of NaN are NaN and -0 stays -0.
    for op in [ReduceOp::Min, ReduceOp::Max] {
        let none = tree_reduce(op, &f(&[f32::NAN; 3])).unwrap();
        assert!(f32::from_bits(none.bits as u32).is_nan());
    }
    let zero = tree_reduce(ReduceOp::Sum, &f(&[-0.0; 3])).unwrap();
    assert_eq!(zero, Const::f32(-0.0));
    let ints: Vec<_> = (1..=11).map(Const::u32).collect();
    let scan: Vec<_> = tree_scan(ReduceOp::Sum, &ints, false)
        .iter()
        .map(|c| c.as_int())
        .collect();
    assert_eq!(scan, [1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 66]);
    let scan = tree_scan(ReduceOp::Sum, &ints, true);
    assert_eq!((scan[0].as_int(), scan[10].as_int()), (0, 55));
}

#[test]
fn the_error_function() {
    // Reference values to 17 digits.
    for (x, y) in [
        (0.1, 0.112_462_916_018_284_89),
        (0.5, 0.520_499_877_813_046_5),
        (1.0, 0.842_700_792_949_714_9),
        (1.9, 0.992_790_429_235_257_5),
        (2.1, 0.997_020_533_343_667),
        (3.0, 0.999_977_909_503_001_4),
    ] {
        assert!((super::special::erf(x) - y).abs() < 1e-14, "erf({x})");
        assert!((super::special::erf(-x) + y).abs() < 1e-14, "erf(-{x})");
    }
    assert!(super::special::erf(-0.0).is_sign_negative());
}
