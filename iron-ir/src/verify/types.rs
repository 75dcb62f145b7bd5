//! The type rule of every operation.

use super::broadcasts;
use crate::entity::Value;
use crate::fold::mask;
use crate::kernel::{Kernel, ParamKind};
use crate::op::{BinaryOp, GroupOp, Op, ReduceOp, SubgroupOp, TileSpace, TileStmt, UnaryOp};
use crate::types::{Class, Scalar, Type};

/// Checks the type of a value against its operation and operands; memory accesses are checked
/// where their statement stands.
pub(super) fn check(kernel: &Kernel, value: Value) -> Result<(), String> {
    let data = &kernel.values[value];
    let ty = data.ty;
    let of = |v: Value| kernel.ty(v);
    let is = |expected: Type, what: &str| {
        if ty == expected {
            Ok(())
        } else {
            Err(format!("{value}: {what} is {expected}, not {ty}"))
        }
    };
    let same = |a: Value, b: Value, what: &str| {
        if of(a) == of(b) {
            Ok(())
        } else {
            Err(format!(
                "{value}: operands of `{what}` are {} and {}",
                of(a),
                of(b)
            ))
        }
    };
    let lane_ok = |v: Value, lane: u8| {
        let found = of(v);
        if found.is_vector() && lane < found.lanes {
            Ok(())
        } else {
            Err(format!("{value}: lane {lane} of {found}"))
        }
    };
    match &data.op {
        Op::Const(c) => {
            is(c.scalar.x(1), "the constant")?;
            if c.bits & !mask(c.scalar) != 0 {
                return Err(format!(
                    "{value}: constant {:#x} does not fit {}",
                    c.bits, c.scalar
                ));
            }
            Ok(())
        }
        Op::Scalar(param) => match kernel.params.get(*param).map(|p| &p.kind) {
            Some(ParamKind::Scalar(s)) => is(s.x(1), "the parameter"),
            Some(ParamKind::Tensor(_)) | None => {
                Err(format!("{value} reads what is no scalar parameter"))
            }
        },
        Op::Dim(dim) => {
            if kernel.dims.get(*dim).is_none() {
                return Err(format!("{value} reads a dimension of another kernel"));
            }
            is(Type::U32, "a dimension")
        }
        Op::Stride(param, axis) => match kernel.params.get(*param).map(|p| &p.kind) {
            Some(ParamKind::Tensor(t)) if usize::from(*axis) < t.shape.len() => {
                is(Type::U64, "a stride")
            }
            _ => Err(format!(
                "{value} reads the stride of an axis that is not there"
            )),
        },
        Op::Builtin(op, axis) => {
            if *axis > 2 {
                return Err(format!("{value}: axis {axis} of {}", op.name()));
            }
            is(Type::U32, op.name())
        }
        Op::Unary(op, a) => {
            let from = of(*a);
            let class = from.scalar.class();
            let (allowed, result) = match op {
                UnaryOp::Neg | UnaryOp::Abs => (
                    matches!(class, Class::Signed | Class::Unsigned | Class::Float),
                    from,
                ),
                UnaryOp::Not => (
                    matches!(class, Class::Bool | Class::Signed | Class::Unsigned),
                    from,
                ),
                UnaryOp::Sqrt
                | UnaryOp::Rsqrt
                | UnaryOp::Exp
                | UnaryOp::Exp2
                | UnaryOp::Log
                | UnaryOp::Log2
                | UnaryOp::Sin
                | UnaryOp::Cos
                | UnaryOp::Tanh
                | UnaryOp::Erf
                | UnaryOp::Floor
                | UnaryOp::Ceil
                | UnaryOp::Trunc
                | UnaryOp::RoundEven => (class == Class::Float, from),
                UnaryOp::IsNan | UnaryOp::IsFinite => {
                    (class == Class::Float, from.with_scalar(Scalar::Bool))
                }
                UnaryOp::CountOnes | UnaryOp::LeadingZeros | UnaryOp::TrailingZeros => {
                    (from.scalar.is_int(), from.with_scalar(Scalar::U32))
                }
                UnaryOp::ReverseBits => (from.scalar.is_int(), from),
            };
            if !allowed {
                return Err(format!("{value}: no `{}` of {from}", op.name()));
            }
            is(result, op.name())
        }
        Op::Binary(op, a, b) => {
            same(*a, *b, op.name())?;
            let from = of(*a);
            if !binary_allowed(*op, from.scalar) {
                return Err(format!("{value}: no `{}` of {from}", op.name()));
            }
            is(from, op.name())
        }
        Op::Compare(op, a, b) => {
            same(*a, *b, op.name())?;
            let from = of(*a);
            let ordered = !matches!(op, crate::op::CompareOp::Eq | crate::op::CompareOp::Ne);
            if from.scalar.class() == Class::Packed || (ordered && from.scalar == Scalar::Bool) {
                return Err(format!("{value}: no `{}` of {from}", op.name()));
            }
            is(from.with_scalar(Scalar::Bool), op.name())
        }
        Op::Select(c, a, b) => {
            same(*a, *b, "select")?;
            let condition = of(*c);
            if condition.scalar != Scalar::Bool
                || !(condition.lanes == 1 || condition.lanes == ty.lanes)
            {
                return Err(format!(
                    "{value}: condition of a select of {ty} is {condition}"
                ));
            }
            is(of(*a), "select")
        }
        Op::Fma(a, b, c) => {
            same(*a, *b, "fma")?;
            same(*a, *c, "fma")?;
            if !of(*a).scalar.is_float() {
                return Err(format!("{value}: no `fma` of {}", of(*a)));
            }
            is(of(*a), "fma")
        }
        Op::Convert(a) => convert(value, of(*a), ty),
        Op::Bitcast(a) => {
            let from = of(*a);
            if from.bytes() != ty.bytes()
                || (from.scalar == Scalar::Bool) != (ty.scalar == Scalar::Bool)
            {
                return Err(format!("{value}: no bit cast of {from} to {ty}"));
            }
            Ok(())
        }
        Op::Splat(a) => {
            if of(*a).is_vector() || !ty.is_vector() {
                return Err(format!("{value}: splat of {} to {ty}", of(*a)));
            }
            is(of(*a).scalar.x(ty.lanes), "splat")
        }
        Op::Vector(parts) => {
            if !ty.is_vector()
                || parts.len() != usize::from(ty.lanes)
                || parts.iter().any(|v| of(*v) != ty.scalar.x(1))
            {
                return Err(format!(
                    "{value}: {ty} of {} parts that are not all {}",
                    parts.len(),
                    ty.scalar
                ));
            }
            Ok(())
        }
        Op::Extract(a, lane) => {
            lane_ok(*a, *lane)?;
            is(of(*a).scalar.x(1), "a lane")
        }
        Op::Insert(a, lane, b) => {
            lane_ok(*a, *lane)?;
            if of(*b) != of(*a).scalar.x(1) {
                return Err(format!("{value}: {} into a lane of {}", of(*b), of(*a)));
            }
            is(of(*a), "insert")
        }
        Op::Get(local) => match kernel.locals.get(*local) {
            Some(data) => is(data.ty, "the variable"),
            None => Err(format!("{value} reads a variable of another kernel")),
        },
        Op::Load { .. } | Op::Result => Ok(()),
    }
}

fn binary_allowed(op: BinaryOp, scalar: Scalar) -> bool {
    let class = scalar.class();
    let int = matches!(class, Class::Signed | Class::Unsigned);
    let float = class == Class::Float;
    match op {
        BinaryOp::Add
        | BinaryOp::Sub
        | BinaryOp::Mul
        | BinaryOp::Div
        | BinaryOp::Min
        | BinaryOp::Max => int || float,
        BinaryOp::Rem | BinaryOp::Shl | BinaryOp::Shr | BinaryOp::MulHigh => int,
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => int || class == Class::Bool,
        BinaryOp::Dot4 => matches!(scalar, Scalar::I32 | Scalar::U32),
        BinaryOp::Dot4Mixed => scalar == Scalar::I32,
        BinaryOp::MinNan | BinaryOp::MaxNan | BinaryOp::Pow => float,
    }
}

fn convert(value: Value, from: Type, to: Type) -> Result<(), String> {
    let number = |t: Type| {
        matches!(
            t.scalar.class(),
            Class::Signed | Class::Unsigned | Class::Float
        )
    };
    let fp8 = |t: Type| matches!(t.scalar, Scalar::F8E4M3 | Scalar::F8E5M2);
    let lanes_agree = match from.scalar {
        Scalar::F4E2M1x2 => to.lanes == from.lanes.saturating_mul(2),
        Scalar::Int4x8 => from.lanes == 1 && to.lanes == 8,
        _ => from.lanes == to.lanes,
    };
    let allowed = match from.scalar {
        Scalar::F8E4M3 | Scalar::F8E5M2 | Scalar::E8M0 | Scalar::F4E2M1x2 => to.scalar.is_float(),
        Scalar::Int4x8 => number(to),
        Scalar::Bool => number(to),
        _ => number(to) || (fp8(to) && from.scalar.is_float()),
    };
    if allowed && lanes_agree {
        Ok(())
    } else {
        Err(format!("{value}: no conversion of {from} to {to}"))
    }
}

fn reducible(op: ReduceOp, ty: Type) -> bool {
    let class = ty.scalar.class();
    let int = ty.scalar.is_int();
    let fits = match op {
        ReduceOp::Sum | ReduceOp::Product | ReduceOp::Min | ReduceOp::Max => {
            int || class == Class::Float
        }
        ReduceOp::MinNan | ReduceOp::MaxNan => class == Class::Float,
        ReduceOp::And | ReduceOp::Or => int || class == Class::Bool,
    };
    fits && !ty.is_vector()
}

/// Checks a subgroup exchange.
pub(super) fn subgroup(
    kernel: &Kernel,
    result: Value,
    op: SubgroupOp,
    reduce: Option<ReduceOp>,
    value: Value,
    argument: Option<Value>,
) -> Result<(), String> {
    let name = op.name();
    let (ty, out) = (kernel.ty(value), kernel.ty(result));
    let moves = |wants: bool| {
        if argument.is_some() != wants {
            return Err(format!("subgroup `{name}`: wrong number of operands"));
        }
        if let Some(a) = argument
            && kernel.ty(a) != Type::U32
        {
            return Err(format!(
                "subgroup `{name}`: the lane is {}, not u32",
                kernel.ty(a)
            ));
        }
        if ty != out || ty.is_vector() || ty.scalar.class() == Class::Packed {
            return Err(format!(
                "subgroup `{name}` of {ty} to {out}; it moves one scalar"
            ));
        }
        Ok(())
    };
    if reduce.is_some() != (op == SubgroupOp::Reduce) {
        return Err(format!(
            "subgroup `{name}`: an operator belongs to `reduce` alone"
        ));
    }
    match op {
        SubgroupOp::Shuffle
        | SubgroupOp::ShuffleXor
        | SubgroupOp::ShuffleUp
        | SubgroupOp::ShuffleDown
        | SubgroupOp::Broadcast => moves(true),
        SubgroupOp::Reduce => {
            moves(false)?;
            if reduce.is_some_and(|r| reducible(r, ty)) {
                Ok(())
            } else {
                Err(format!("subgroup `reduce` of {ty} has no such operator"))
            }
        }
        SubgroupOp::Ballot | SubgroupOp::Any | SubgroupOp::All => {
            let expected = if op == SubgroupOp::Ballot {
                Type::U64
            } else {
                Type::BOOL
            };
            if ty == Type::BOOL && out == expected && argument.is_none() {
                Ok(())
            } else {
                Err(format!("subgroup `{name}` of {ty} to {out}"))
            }
        }
    }
}

/// Checks a workgroup collective.
pub(super) fn group(
    kernel: &Kernel,
    result: Value,
    op: GroupOp,
    reduce: Option<ReduceOp>,
    value: Value,
    argument: Option<Value>,
) -> Result<(), String> {
    let name = op.name();
    let (ty, out) = (kernel.ty(value), kernel.ty(result));
    if ty != out || ty.is_vector() || ty.scalar.class() == Class::Packed {
        return Err(format!(
            "collective `{name}` of {ty} to {out}; it takes one scalar"
        ));
    }
    let broadcast = op == GroupOp::Broadcast;
    if broadcast != argument.is_some() || broadcast == reduce.is_some() {
        return Err(format!("collective `{name}`: wrong operands"));
    }
    if argument.is_some_and(|a| kernel.ty(a) != Type::U32) {
        return Err(format!("collective `{name}`: the thread index is no u32"));
    }
    if reduce.is_some_and(|r| !reducible(r, ty)) {
        return Err(format!("collective `{name}` of {ty} has no such operator"));
    }
    Ok(())
}

/// Checks a matrix product of 32 threads.
pub(super) fn mma(
    kernel: &Kernel,
    result: Value,
    a: [Value; 2],
    b: Value,
    sum: Value,
) -> Result<(), String> {
    let factor = kernel.ty(b);
    let is_half = matches!(factor.scalar, Scalar::F16 | Scalar::BF16) && factor.lanes == 4;
    let found = [a[0], a[1]].map(|v| kernel.ty(v));
    if !is_half || found != [factor; 2] {
        return Err(format!(
            "the factors of `mma_16x8x16` are {}, {} and {factor}; each is four lanes of one of f16 and bf16",
            found[0], found[1]
        ));
    }
    let (sum, result) = (kernel.ty(sum), kernel.ty(result));
    if sum != Scalar::F32.x(4) || result != sum {
        return Err(format!("the sum of `mma_16x8x16` is {sum}, not f32x4"));
    }
    let threads = kernel.contract.threads();
    if !threads.is_multiple_of(32) {
        return Err(format!(
            "`mma_16x8x16` in a workgroup of {threads} threads; it takes a multiple of 32"
        ));
    }
    Ok(())
}

/// Checks shapes, spaces and element types of a tile statement.
pub(super) fn tile(kernel: &Kernel, stmt: &TileStmt) -> Result<(), String> {
    let show = |t| {
        let d = &kernel.tiles[t];
        format!("`{}` ({} × {} of {})", d.name, d.rows, d.columns, d.scalar)
    };
    let shape = |t: crate::entity::Tile| (kernel.tiles[t].rows, kernel.tiles[t].columns);
    let register = |t: crate::entity::Tile| kernel.tiles[t].space == TileSpace::Register;
    match stmt {
        TileStmt::Fill { .. } => Ok(()),
        TileStmt::Load {
            tile,
            source: param,
            ..
        }
        | TileStmt::Store {
            tile,
            target: param,
            ..
        } => {
            let Some(tensor) = kernel.tensor(*param) else {
                return Ok(());
            };
            let (inner, outer) = (kernel.tiles[*tile].scalar, tensor.scalar);
            if inner == outer || (inner.is_float() && outer.is_float()) {
                Ok(())
            } else {
                Err(format!("tile {} and a tensor of {outer}", show(*tile)))
            }
        }
        TileStmt::Copy { to, from } => {
            let (a, b) = (kernel.tiles[*to].scalar, kernel.tiles[*from].scalar);
            if shape(*to) == shape(*from) && (a == b || (a.is_float() && b.is_float())) {
                Ok(())
            } else {
                Err(format!("copy of tile {} to {}", show(*from), show(*to)))
            }
        }
        TileStmt::Matmul {
            accumulator,
            a,
            b,
            transpose_a,
            transpose_b,
        } => {
            let flip = |(r, c): (u32, u32), yes: bool| if yes { (c, r) } else { (r, c) };
            let (m, k) = flip(shape(*a), *transpose_a);
            let (k2, n) = flip(shape(*b), *transpose_b);
            let floats = [*a, *b].iter().all(|t| kernel.tiles[*t].scalar.is_float());
            if k != k2 || shape(*accumulator) != (m, n) || !floats {
                return Err(format!(
                    "matmul of {} and {} into {}",
                    show(*a),
                    show(*b),
                    show(*accumulator)
                ));
            }
            if register(*a)
                || register(*b)
                || !register(*accumulator)
                || kernel.tiles[*accumulator].scalar != Scalar::F32
            {
                return Err("matmul takes two shared tiles and a register tile of f32".into());
            }
            Ok(())
        }
        TileStmt::Map { to, from, .. } => match from.iter().find(|f| !broadcasts(kernel, **f, *to))
        {
            Some(bad) => Err(format!("map of tile {} to {}", show(*bad), show(*to))),
            None => Ok(()),
        },
        TileStmt::ReduceRows { to, from, op } | TileStmt::ReduceColumns { to, from, op } => {
            let rows = matches!(stmt, TileStmt::ReduceRows { .. });
            let expected = if rows {
                (shape(*from).0, 1)
            } else {
                (1, shape(*from).1)
            };
            let scalars = kernel.tiles[*to].scalar == kernel.tiles[*from].scalar;
            if shape(*to) != expected
                || !scalars
                || !register(*to)
                || !register(*from)
                || to == from
            {
                return Err(format!(
                    "reduction of register tile {} to {}",
                    show(*from),
                    show(*to)
                ));
            }
            if reducible(*op, kernel.tiles[*to].scalar.x(1)) {
                Ok(())
            } else {
                Err(format!(
                    "no `{}` of {}",
                    op.name(),
                    kernel.tiles[*to].scalar
                ))
            }
        }
    }
}
