//! Arithmetic on `f16` and `bf16` becomes `f32` arithmetic whose result is rounded once.
//!
//! Sign operations and comparisons need no rounding but go the same way; a target with native
//! `f16` arithmetic keeps the operations that round once from the exact result there too.

use iron_ir::op::{BinaryOp, UnaryOp};
use iron_ir::{Kernel, Op, Scalar, Stmt, Type};

use crate::Legal;
use crate::rewrite::{Builder, rewrite};

pub(super) fn half(kernel: &mut Kernel, legal: &Legal) {
    rewrite(kernel, &mut |b, stmt| {
        let Stmt::Let(value) = stmt else {
            return Some(stmt);
        };
        let ty = b.ty(value);
        let op = b.kernel.values[value].op.clone();
        let native = |ty: Type| ty.scalar == Scalar::F16 && legal.has_f16_arith;
        let narrow = |ty: Type| matches!(ty.scalar, Scalar::F16 | Scalar::BF16);
        let wide = |b: &mut Builder<'_>, v| b.convert(v, Scalar::F32);
        let new = match op {
            Op::Unary(op, a) if narrow(b.ty(a)) => {
                if native(ty) && matches!(op, UnaryOp::Neg | UnaryOp::Abs) {
                    return Some(stmt);
                }
                let a = wide(b, a);
                b.unary(op, a)
            }
            Op::Binary(op, x, y) if narrow(ty) => {
                let kept = match op {
                    BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul => true,
                    BinaryOp::Min | BinaryOp::Max | BinaryOp::MinNan | BinaryOp::MaxNan => {
                        legal.native_ordered_minmax
                    }
                    _ => false,
                };
                if native(ty) && kept {
                    return Some(stmt);
                }
                let (x, y) = (wide(b, x), wide(b, y));
                b.binary(op, x, y)
            }
            Op::Compare(op, x, y) if narrow(b.ty(x)) && !native(b.ty(x)) => {
                let (x, y) = (wide(b, x), wide(b, y));
                b.compare(op, x, y)
            }
            Op::Fma(x, y, z) if narrow(ty) => {
                let (x, y, z) = (wide(b, x), wide(b, y), wide(b, z));
                b.fma(x, y, z)
            }
            _ => return Some(stmt),
        };
        let new = b.convert(new, ty.scalar);
        b.replace(value, new);
        None
    });
}
