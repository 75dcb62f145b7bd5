//! Exchanges of narrow values go through `u32`: not every target shuffles 8 and 16 bits or
//! `bool`.

use iron_ir::op::{CompareOp, SubgroupOp};
use iron_ir::{Kernel, Op, Scalar, Stmt};

use crate::rewrite::rewrite;

pub(super) fn exchange(kernel: &mut Kernel) {
    rewrite(kernel, &mut |b, stmt| match stmt {
        Stmt::Subgroup {
            result,
            op,
            reduce,
            value,
            argument,
        } if moves(op) && b.ty(value).scalar.bytes() < 4 => {
            let ty = b.ty(value);
            let wide = match ty.scalar {
                Scalar::Bool => b.convert(value, Scalar::U32),
                scalar => {
                    let bits = b.bitcast(value, scalar.unsigned_of_width());
                    b.convert(bits, Scalar::U32)
                }
            };
            let moved = b
                .kernel
                .add_value(Op::Result, ty.with_scalar(Scalar::U32), b.span);
            b.push(Stmt::Subgroup {
                result: moved,
                op,
                reduce,
                value: wide,
                argument,
            });
            let new = match ty.scalar {
                Scalar::Bool => b.compare_int(CompareOp::Ne, moved, 0),
                scalar => {
                    let bits = b.convert(moved, scalar.unsigned_of_width());
                    b.bitcast(bits, scalar)
                }
            };
            b.replace(result, new);
            None
        }
        other => Some(other),
    });
}

fn moves(op: SubgroupOp) -> bool {
    match op {
        SubgroupOp::Shuffle
        | SubgroupOp::ShuffleXor
        | SubgroupOp::ShuffleUp
        | SubgroupOp::ShuffleDown
        | SubgroupOp::Broadcast => true,
        SubgroupOp::Ballot | SubgroupOp::Any | SubgroupOp::All | SubgroupOp::Reduce => false,
    }
}
