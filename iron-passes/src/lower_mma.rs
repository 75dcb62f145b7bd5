//! Matrix products of 32 threads, where the target has no unit for them: the threads write their
//! elements to shared memory, and each adds the products of its four sums in order.
//!
//! In scratch memory the 32 have 16 rows of `a` and 8 columns of `b`, 16 elements each. Both
//! barriers stand at every product: one before the elements of the last are overwritten, one
//! before they are read. Loops around a product are not unrolled.

use std::collections::HashMap;

use iron_ir::entity::{Array, Local, Value};
use iron_ir::kernel::Space;
use iron_ir::op::{BinaryOp, BuiltinOp, Unroll};
use iron_ir::{Block, Kernel, Op, Place, Scalar, Stmt, Type};

use crate::rewrite::{Builder, rewrite};
use crate::{Legal, PassError};

/// Threads that multiply together.
const THREADS: u32 = 32;
/// Elements of a row of `a` and of a column of `b`.
const DEPTH: u32 = 16;
/// Rows of `a`.
const ROWS: u32 = 16;
/// Columns of `b`.
const COLUMNS: u32 = 8;

/// See the module doc.
pub fn lower_mma(kernel: &mut Kernel, legal: &Legal) -> Result<(), PassError> {
    if legal.has_mma || !multiplies(&kernel.body) {
        return Ok(());
    }
    // A product is too much code to be copied out.
    kernel.body.walk_mut(&mut |stmt, _| {
        if let Stmt::For { unroll, body, .. } = stmt
            && multiplies(body)
        {
            *unroll = Unroll::Never;
        }
    });
    let units = kernel.contract.threads().div_ceil(THREADS);
    let mut scratch: HashMap<Scalar, [Array; 2]> = HashMap::new();
    let mut sums: Option<[Local; 4]> = None;
    rewrite(kernel, &mut |b, stmt| match stmt {
        Stmt::Mma {
            result,
            a,
            b: right,
            sum,
        } => {
            let scalar = b.ty(right).scalar;
            let arrays = *scratch.entry(scalar).or_insert_with(|| {
                [("rows", ROWS), ("columns", COLUMNS)].map(|(what, count)| {
                    let name = format!("mma_{what}_{scalar}");
                    b.array(&name, scalar, units * count * DEPTH, Space::Shared)
                })
            });
            let sums = *sums.get_or_insert_with(|| {
                [0, 1, 2, 3].map(|i| b.local(&format!("mma_sum_{i}"), Type::F32))
            });
            let product = product(b, arrays, sums, a, right, sum);
            b.replace(result, product);
            None
        }
        other => Some(other),
    });
    Ok(())
}

fn multiplies(block: &Block) -> bool {
    let mut found = false;
    block.walk(&mut |stmt, _| found |= matches!(stmt, Stmt::Mma { .. }));
    found
}

fn product(
    b: &mut Builder<'_>,
    [rows, columns]: [Array; 2],
    sums: [Local; 4],
    a: [Value; 2],
    right: Value,
    sum: Value,
) -> Value {
    let thread = b.builtin(BuiltinOp::LocalIndex, 0);
    let unit = b.with_int(BinaryOp::Shr, thread, THREADS.trailing_zeros().into());
    let lane = b.with_int(BinaryOp::And, thread, i128::from(THREADS) - 1);
    let row = b.with_int(BinaryOp::Shr, lane, 2);
    let quarter = b.with_int(BinaryOp::And, lane, 3);
    // The place of element `4 * quarter` of line `line` of the unit's `count`.
    let place = |b: &mut Builder<'_>, count: u32, line: Value, quarter: Value| {
        let first = b.with_int(BinaryOp::Mul, unit, count.into());
        let line = b.add(first, line);
        let start = b.with_int(BinaryOp::Mul, line, DEPTH.into());
        let within = b.with_int(BinaryOp::Mul, quarter, 4);
        b.add(start, within)
    };
    let upper = b.with_int(BinaryOp::Add, row, 8);
    b.workgroup_barrier();
    for (line, value) in [(row, a[0]), (upper, a[1])] {
        let at = place(b, ROWS, line, quarter);
        b.store(Place::Array(rows), vec![at], value);
    }
    let at = place(b, COLUMNS, row, quarter);
    b.store(Place::Array(columns), vec![at], right);
    for (i, local) in (0..).zip(sums) {
        let own = b.extract(sum, i);
        b.push(Stmt::Set(local, own));
    }
    b.workgroup_barrier();
    let ty = b.ty(right);
    let left = b.with_int(BinaryOp::Mul, quarter, 2);
    let next = b.with_int(BinaryOp::Add, left, 1);
    let (zero, end, one) = (b.u32(0), b.u32(DEPTH / 4), b.u32(1));
    b.for_range("quarter", zero, end, one, Unroll::Never, |b, quarter| {
        let four = |b: &mut Builder<'_>, array: Array, count: u32, line: Value| {
            let at = place(b, count, line, quarter);
            let loaded = b.load(Place::Array(array), vec![at], ty);
            [0, 1, 2, 3].map(|i| {
                let element = b.extract(loaded, i);
                b.convert(element, Scalar::F32)
            })
        };
        let lines = [row, upper].map(|line| four(b, rows, ROWS, line));
        let pair = [left, next].map(|line| four(b, columns, COLUMNS, line));
        for (i, local) in sums.into_iter().enumerate() {
            let mut total = b.get(local);
            for (x, y) in lines[i / 2].into_iter().zip(pair[i % 2]) {
                total = b.value(Op::Fma(x, y, total), Type::F32);
            }
            b.push(Stmt::Set(local, total));
        }
    });
    let lanes = sums.map(|local| b.get(local)).to_vec();
    b.value(Op::Vector(lanes), Scalar::F32.x(4))
}

#[cfg(test)]
mod tests {
    use iron_ir::parse::parse;
    use iron_ir::verify::verify_lowered;

    use super::*;

    const PRODUCT: &str = "kernel @k grid(1, 1, 1) workgroup(64, 1, 1) {
  param @x: tensor<bf16, [1024], read, align 4>
  param @y: tensor<f32, [256], read_write, align 4>
  %i: u32 = local_index
  %at: u32 = mul %i, 4u32
  %x: bf16x4 = load @x[%at]
  %zero: f32x4 = splat 0.0f32
  %sum: f32x4 = mma %x, %x, %x, %zero
  store @y[%at] = %sum
}
";

    #[test]
    fn a_target_without_the_unit_multiplies_through_shared_memory() {
        let mut kernel = parse(PRODUCT).expect("parses");
        lower_mma(&mut kernel, &Legal::PORTABLE).expect("lowers");
        let bytes: Vec<_> = kernel.arrays.values().map(|a| a.len * 2).collect();
        assert_eq!(bytes, [2 * 16 * 16 * 2, 2 * 16 * 8 * 2]);
        let mut left = 0;
        kernel
            .body
            .walk(&mut |stmt, _| left += usize::from(matches!(stmt, Stmt::Mma { .. })));
        assert_eq!(left, 0);
        verify_lowered(&kernel).expect("verifies");
    }

    #[test]
    fn a_target_with_the_unit_keeps_the_product() {
        let legal = Legal {
            has_mma: true,
            ..Legal::PORTABLE
        };
        let mut kernel = parse(PRODUCT).expect("parses");
        lower_mma(&mut kernel, &legal).expect("nothing to do");
        assert!(kernel.arrays.is_empty());
    }
}
