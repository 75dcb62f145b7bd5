//! Storage types: packed formats, half types that the target lacks, and `bool` in memory.
//!
//! Afterwards every value, variable and array of such a type holds the unsigned integer of its
//! width ([`Legal::value_scalar`]), loads and stores move that integer, and the conversions that
//! are left with `f16` or `bf16` on one side have `f32` on the other.

use iron_ir::entity::Value;
use iron_ir::op::{BinaryOp, CompareOp};
use iron_ir::{Kernel, Op, Scalar, Stmt, Type};

use super::formats::{self, Format};
use crate::rewrite::{Builder, rewrite};
use crate::{Legal, Regroup};

/// What a vector of eight lanes of 16 bits is moved as.
const WORDS: Type = Scalar::U32.x(4);

pub(super) fn storage(kernel: &mut Kernel, legal: &Legal) {
    rewrite(kernel, &mut |b, stmt| match stmt {
        Stmt::Let(value) => {
            let ty = b.ty(value);
            let new = match b.kernel.values[value].op.clone() {
                Op::Convert(source) => match convert(b, legal, source, ty) {
                    Some(new) => new,
                    None => return Some(stmt),
                },
                Op::Bitcast(source) => {
                    // One that changes nothing but the type's name stays until the names are gone:
                    // what is computed from it must see a float.
                    let from = b.ty(source);
                    let is_native = match legal.native_regroup {
                        Regroup::No => false,
                        Regroup::Words => {
                            from == WORDS && ty.lanes == 8 || ty == WORDS && from.lanes == 8
                        }
                        Regroup::All => true,
                    };
                    if from.lanes == ty.lanes || is_native {
                        return Some(stmt);
                    }
                    regroup(b, source, ty)
                }
                Op::Load { place, indices } if ty.scalar == Scalar::Bool => {
                    let byte = b.load(place, indices, ty.with_scalar(Scalar::U8));
                    b.compare_int(CompareOp::Ne, byte, 0)
                }
                _ => return Some(stmt),
            };
            b.replace(value, new);
            None
        }
        Stmt::Store {
            place,
            indices,
            value,
        } if b.ty(value).scalar == Scalar::Bool => {
            let byte = b.convert(value, Scalar::U8);
            b.store(place, indices, byte);
            None
        }
        other => Some(other),
    });
    for (_, data) in kernel.values.iter_mut() {
        let storage = legal.value_scalar(data.ty.scalar);
        if let Op::Const(c) = &mut data.op {
            c.scalar = storage;
        }
        data.ty.scalar = storage;
    }
    for (_, local) in kernel.locals.iter_mut() {
        local.ty.scalar = legal.value_scalar(local.ty.scalar);
    }
    for (_, array) in kernel.arrays.iter_mut() {
        array.scalar = legal.memory_scalar(array.scalar);
    }
}

/// The value that replaces a conversion, or `None` where it may stay.
fn convert(b: &mut Builder<'_>, legal: &Legal, source: Value, to: Type) -> Option<Value> {
    let from = b.ty(source);
    let small =
        |s: Scalar| matches!(s, Scalar::F16 | Scalar::BF16) || s.class() == iron_ir::Class::Packed;
    if !small(from.scalar) && !small(to.scalar) {
        return None;
    }
    let native = |s: Scalar| small(s) && legal.value_scalar(s) == s;
    if native(from.scalar) && to.scalar == Scalar::F32
        || native(to.scalar) && from.scalar == Scalar::F32
    {
        return None;
    }
    let wide = if from.scalar == Scalar::Int4x8 {
        let numbers = unpack_int4(b, source);
        if small(to.scalar) {
            b.convert(numbers, Scalar::F32)
        } else {
            numbers
        }
    } else {
        decode(b, legal, source)
    };
    if small(to.scalar) {
        // `f32` holds every value of a small type; anything wider is cut to an odd `f32`, which
        // rounds again to what one rounding would give.
        let wide = match b.ty(wide).scalar {
            Scalar::F64 | Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::U64 => {
                formats::to_f32_odd(b, wide)
            }
            _ => b.convert(wide, Scalar::F32),
        };
        return Some(encode(b, legal, wide, to.scalar));
    }
    Some(b.convert(wide, to.scalar))
}

/// The same bits in another number of lanes, the first lane lowest.
fn regroup(b: &mut Builder<'_>, source: Value, to: Type) -> Value {
    let from = b.ty(source);
    let (narrow, wide) = (
        to.scalar.unsigned_of_width(),
        from.scalar.unsigned_of_width(),
    );
    let bits = b.bitcast(source, wide);
    let mut lanes = Vec::new();
    if to.lanes > from.lanes {
        let each = to.lanes / from.lanes;
        for lane in 0..to.lanes {
            let whole = b.extract(bits, lane / each);
            let down = u32::from(lane % each) * narrow.bits();
            let part = b.with_int(BinaryOp::Shr, whole, i128::from(down));
            let part = b.convert(part, narrow);
            lanes.push(b.bitcast(part, to.scalar));
        }
    } else {
        let each = from.lanes / to.lanes;
        for lane in 0..to.lanes {
            let mut sum = None;
            for part in 0..each {
                let piece = b.extract(bits, lane * each + part);
                let piece = b.convert(piece, narrow);
                let up = u32::from(part) * wide.bits();
                let piece = b.with_int(BinaryOp::Shl, piece, i128::from(up));
                sum = Some(match sum {
                    None => piece,
                    Some(sum) => b.or(sum, piece),
                });
            }
            if let Some(sum) = sum {
                lanes.push(b.bitcast(sum, to.scalar));
            }
        }
    }
    match lanes.as_slice() {
        [one] => *one,
        _ => b.value(Op::Vector(lanes), to),
    }
}

/// `f32` of a value of a small type; other values as they are.
fn decode(b: &mut Builder<'_>, legal: &Legal, source: Value) -> Value {
    let from = b.ty(source);
    if from.scalar == Scalar::F4E2M1x2 {
        let bits = raw(b, source);
        return unpack_e2m1(b, bits);
    }
    match from.scalar {
        Scalar::F16 | Scalar::BF16 if legal.value_scalar(from.scalar) == from.scalar => {
            b.convert(source, Scalar::F32)
        }
        Scalar::BF16 => {
            let bits = raw(b, source);
            formats::decode_bf16(b, bits)
        }
        Scalar::E8M0 => {
            let bits = raw(b, source);
            formats::decode_e8m0(b, bits)
        }
        scalar => match Format::of(scalar) {
            Some(format) => {
                let bits = raw(b, source);
                formats::decode(b, bits, format)
            }
            None => source,
        },
    }
}

/// A small type's value of an `f32`.
fn encode(b: &mut Builder<'_>, legal: &Legal, wide: Value, to: Scalar) -> Value {
    if legal.value_scalar(to) == to {
        return b.convert(wide, to);
    }
    let bits = match (to, Format::of(to)) {
        (Scalar::BF16, _) => formats::encode_bf16(b, wide),
        (_, Some(format)) => formats::encode(b, wide, format),
        // The verifier admits no conversion to the other packed types.
        (_, None) => b.bitcast(wide, Scalar::U32),
    };
    let narrow = b.convert(bits, to.unsigned_of_width());
    b.bitcast(narrow, to)
}

/// The bits of a small value, zero-extended to `u32` lanes.
fn raw(b: &mut Builder<'_>, source: Value) -> Value {
    let scalar = b.ty(source).scalar;
    let bits = b.bitcast(source, scalar.unsigned_of_width());
    b.convert(bits, Scalar::U32)
}

/// Twice as many lanes of `f32`, the low nibble of each byte first.
fn unpack_e2m1(b: &mut Builder<'_>, bytes: Value) -> Value {
    let lanes = b.ty(bytes).lanes;
    let mut nibbles = Vec::new();
    for lane in 0..lanes {
        let byte = b.extract(bytes, lane);
        nibbles.push(b.with_int(BinaryOp::And, byte, 15));
        nibbles.push(b.with_int(BinaryOp::Shr, byte, 4));
    }
    let ty = Scalar::U32.x(lanes * 2);
    let nibbles = b.value(Op::Vector(nibbles), ty);
    formats::decode_e2m1(b, nibbles)
}

/// Eight integers with the sign of their fourth bit, the low nibble first.
fn unpack_int4(b: &mut Builder<'_>, source: Value) -> Value {
    let bits = b.bitcast(source, Scalar::I32);
    let lanes = (0..8)
        .map(|lane| {
            let up = b.with_int(BinaryOp::Shl, bits, i128::from(28 - 4 * lane));
            b.with_int(BinaryOp::Shr, up, 28)
        })
        .collect();
    b.value(Op::Vector(lanes), Scalar::I32.x(8))
}
