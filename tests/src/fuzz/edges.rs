//! Values at which operations of a type change their behaviour.

use iron_ir::Scalar;
use iron_ir::testing::round_to;

/// Edge values of a type, plain ones first. `tame` ones are no subnormal `f32` and become none
/// in a step.
pub fn edges(scalar: Scalar, tame: bool) -> Vec<u64> {
    if scalar == Scalar::Bool {
        return vec![0, 1];
    }
    let mask = u64::MAX >> (64 - scalar.bits());
    if scalar.is_int() {
        let top = 1u64 << (scalar.bits() - 1);
        let width = u64::from(scalar.bits());
        let values = [
            1,
            0,
            2,
            3,
            7,
            5,
            mask,
            mask - 1,
            top,
            top - 1,
            top + 1,
            width,
            width - 1,
            width + 1,
            mask - 2,
            0x5555_5555_5555_5555,
        ];
        return values.into_iter().map(|bits| bits & mask).collect();
    }
    if !scalar.is_float() {
        return (0..16)
            .map(|i| (i * 0x1111_1111_1111_1111) & mask)
            .collect();
    }
    let plain = [
        1.0,
        2.0,
        0.5,
        3.0,
        -1.0,
        0.1,
        -7.5,
        100.0,
        1.0 / 3.0,
        1000.5,
        f64::INFINITY,
        -f64::INFINITY,
        f64::NAN,
    ];
    let wild = [
        0.0,
        -0.0,
        1e-45,
        1e-38,
        -1e-40,
        6e-8,
        3.4e38,
        65504.0,
        -2147483648.0,
        9.3e18,
    ];
    plain
        .iter()
        .chain(if tame { &[][..] } else { &wild[..] })
        .map(|&x| round_to(scalar, x))
        .collect()
}
