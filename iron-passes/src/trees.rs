//! The adjacent-pair tree, as statements: what collectives and tile reductions are made of.

use iron_ir::entity::Value;
use iron_ir::fold::{reduce_absent, reduce_binary, reduce_identity};
use iron_ir::op::{ReduceOp, SubgroupOp};
use iron_ir::{Op, Stmt, Type};

use crate::Legal;
use crate::rewrite::Builder;

/// `a ∘ b`.
pub(crate) fn combine(b: &mut Builder<'_>, op: ReduceOp, left: Value, right: Value) -> Value {
    b.binary(reduce_binary(op), left, right)
}

/// The identity in every lane of the type.
pub(crate) fn identity(b: &mut Builder<'_>, op: ReduceOp, ty: Type) -> Value {
    b.splat_const(ty, reduce_identity(op, ty.scalar))
}

/// What stands for an absent element beside others, in every lane of the type.
pub(crate) fn absent(b: &mut Builder<'_>, op: ReduceOp, ty: Type) -> Value {
    b.splat_const(ty, reduce_absent(op, ty.scalar))
}

/// The tree over values at hand; an element without a partner stays as it is.
pub(crate) fn tree(b: &mut Builder<'_>, op: ReduceOp, mut elements: Vec<Value>) -> Value {
    while elements.len() > 1 {
        let mut next = Vec::with_capacity(elements.len().div_ceil(2));
        for pair in elements.chunks(2) {
            next.push(match *pair {
                [left, right] => combine(b, op, left, right),
                [left] => left,
                _ => continue,
            });
        }
        elements = next;
    }
    elements[0]
}

/// The tree over `width` lanes (a power of two) that lie `stride` lanes apart, by exchanging at
/// distance 1, 2, 4, …: every lane gets the result, because each operator is commutative to the
/// last bit.
pub(crate) fn butterfly(
    b: &mut Builder<'_>,
    op: ReduceOp,
    mut value: Value,
    width: u32,
    stride: u32,
) -> Value {
    let mut distance = 1;
    while distance < width {
        let other = shuffle_xor(b, value, distance * stride);
        value = combine(b, op, value, other);
        distance *= 2;
    }
    b.named(value, "partial")
}

/// The value of the lane at `own ^ distance`.
pub(crate) fn shuffle_xor(b: &mut Builder<'_>, value: Value, distance: u32) -> Value {
    let argument = b.u32(distance);
    shuffle(b, SubgroupOp::ShuffleXor, value, argument)
}

/// A shuffle.
pub(crate) fn shuffle(b: &mut Builder<'_>, op: SubgroupOp, value: Value, argument: Value) -> Value {
    let ty = b.ty(value);
    let result = b.kernel.add_value(Op::Result, ty, b.span);
    b.push(Stmt::Subgroup {
        result,
        op,
        reduce: None,
        value,
        argument: Some(argument),
    });
    result
}

/// How many consecutive threads of a workgroup can exchange by shuffles, as the first stage of
/// a tree over all: the subgroup, or the whole workgroup where it is smaller.
pub(crate) fn shuffle_width(legal: &Legal, threads: u32) -> Option<u32> {
    let size = legal.subgroup_size.filter(|_| legal.linear_subgroups)?;
    if !size.is_power_of_two() {
        None
    } else if threads.is_multiple_of(size) {
        Some(size)
    } else {
        (threads < size && threads.is_power_of_two()).then_some(threads)
    }
}
