//! Scalar arithmetic on bits, zero-extended to 64: the evaluator of `iron-ir` on registers.

use iron_ir::fold;
use iron_ir::op::{BinaryOp, CompareOp, ReduceOp, UnaryOp};
use iron_ir::{Class, Const, Scalar, Type};

fn of(scalar: Scalar, bits: u64) -> Const {
    Const { scalar, bits }
}

/// A binary operation; `None` where the type has no arithmetic.
pub(super) fn binary(op: BinaryOp, scalar: Scalar, a: u64, b: u64) -> Option<u64> {
    (scalar.class() != Class::Packed).then(|| fold::binary(op, of(scalar, a), of(scalar, b)).bits)
}

/// A unary operation; `None` where the type has no arithmetic.
pub(super) fn unary(op: UnaryOp, scalar: Scalar, a: u64) -> Option<u64> {
    (scalar.class() != Class::Packed).then(|| fold::unary(op, of(scalar, a)).bits)
}

/// A comparison; `None` where the type has none.
pub(super) fn compare(op: CompareOp, scalar: Scalar, a: u64, b: u64) -> Option<bool> {
    (scalar.class() != Class::Packed).then(|| fold::compare(op, of(scalar, a), of(scalar, b)))
}

/// `a * b + c`, rounded once.
pub(super) fn fma(scalar: Scalar, a: u64, b: u64, c: u64) -> Option<u64> {
    scalar
        .is_float()
        .then(|| fold::fma(of(scalar, a), of(scalar, b), of(scalar, c)).bits)
}

/// A numeric conversion of one element.
pub(super) fn convert(from: Scalar, to: Scalar, a: u64) -> Option<u64> {
    let whole = |s| !matches!(s, Scalar::F4E2M1x2 | Scalar::Int4x8);
    (whole(from) && whole(to)).then(|| fold::convert(of(from, a), to).bits)
}

/// A conversion of a whole value, lanes in and out.
pub(super) fn convert_lanes(from: Type, to: Type, input: &[u64]) -> Option<Vec<u64>> {
    let out: Vec<u64> = input
        .iter()
        .flat_map(|&a| fold::unpack(of(from.scalar, a), to.scalar))
        .map(|c| c.bits)
        .collect();
    (out.len() == usize::from(to.lanes)).then_some(out)
}

/// The adjacent-pair tree over `values`.
pub(super) fn tree(op: ReduceOp, scalar: Scalar, values: &[u64]) -> Option<u64> {
    let elements: Vec<Const> = values.iter().map(|&x| of(scalar, x)).collect();
    Some(fold::tree_reduce(op, &elements)?.bits)
}
