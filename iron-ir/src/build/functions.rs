//! Free functions of the language.

use crate::build::binding::Shape;
use crate::build::error::BuildFault;
use crate::build::tree;
use crate::build::value::{RangeVal, Val};
use crate::entity::Value;
use crate::kernel::Space;
use crate::op::{
    BarrierMemory, BarrierScope, BinaryOp, BuiltinOp, GroupOp, Op, ReduceOp, Stmt, SubgroupOp,
    TileSpace, UnaryOp,
};
use crate::types::{Scalar, Type};

use super::interpreter::{Builder, Eval};

/// Where a collective works.
#[derive(Clone, Copy)]
enum Group {
    Workgroup,
    Subgroup,
}

impl Builder {
    pub(super) fn intrinsic(
        &mut self,
        name: &str,
        types: &[tree::Ty],
        arguments: &[tree::Expr],
        whole: &tree::Expr,
    ) -> Eval<Val> {
        if let Some(op) = builtin(name) {
            let axis = match arguments {
                [] => 0,
                [axis] => self.axis(axis)?,
                _ => return self.fail(BuildFault::Malformed),
            };
            self.locate(&whole.at);
            return Ok(Val::Scalar(self.push(Op::Builtin(op, axis), Type::U32)));
        }
        if let Some((scope, memory)) = barrier(name) {
            self.stmt(Stmt::Barrier(scope, memory));
            return Ok(Val::unit());
        }
        if let Some(rest) = name.strip_prefix("workgroup_") {
            return self.collective(Group::Workgroup, rest, arguments, whole);
        }
        if let Some(rest) = name.strip_prefix("subgroup_") {
            return self.collective(Group::Subgroup, rest, arguments, whole);
        }
        match (name, arguments) {
            ("strided", [end]) => {
                let end = self.scalar_beside(end, Type::U32)?;
                self.locate(&whole.at);
                let start = self.push(Op::Builtin(BuiltinOp::LocalIndex, 0), Type::U32);
                let step = self.push(Op::Builtin(BuiltinOp::GroupThreads, 0), Type::U32);
                Ok(self.thread_range(start, end, step))
            }
            ("grid_strided", [end]) => {
                let end = self.scalar_beside(end, Type::U32)?;
                self.locate(&whole.at);
                let start = self.push(Op::Builtin(BuiltinOp::GlobalId, 0), Type::U32);
                let groups = self.push(Op::Builtin(BuiltinOp::GroupCount, 0), Type::U32);
                let size = self.push(Op::Builtin(BuiltinOp::GroupSize, 0), Type::U32);
                let step = self.binary(BinaryOp::Mul, groups, size)?;
                Ok(self.thread_range(start, end, step))
            }
            ("unroll", [range]) => match self.rvalue(range)?.target() {
                Val::Range(range) => Ok(Val::Range(Box::new(RangeVal {
                    unroll: true,
                    ..*range
                }))),
                other => self.wrong_kind("`unroll`", "a range", &other),
            },
            ("index_in", [index, bound]) => {
                let index = self.scalar_beside(index, Type::U32)?;
                let bound = self.scalar_beside(bound, Type::U32)?;
                self.locate(&whole.at);
                Ok(Val::Scalar(self.check_index(index, bound)))
            }
            ("shared" | "private" | "ahead", [len]) => {
                let [ty] = types else {
                    return self.fail(BuildFault::Malformed);
                };
                let ty = self.value_type(ty)?;
                let len = self.scalar_beside(len, Type::U32)?;
                self.locate(&whole.at);
                let len = self.known_count(len, "the length of this array")?;
                let space = match name {
                    "shared" => Space::Shared,
                    "ahead" => Space::Ahead,
                    _ => Space::Private,
                };
                self.new_array(vec![len], &Shape::Value(ty), "", space, true)
                    .map(Val::Array)
            }
            ("shared_tile", [rows, columns]) => self
                .new_tile(types, rows, columns, TileSpace::Shared)
                .map(Val::Tile),
            ("reg_tile", [rows, columns, value]) => {
                let tile = self.new_tile(types, rows, columns, TileSpace::Register)?;
                let scalar = self.kernel.tiles[tile].scalar;
                let value = self.scalar_beside(value, scalar.x(1))?;
                self.locate(&whole.at);
                self.fill_tile(tile, value)?;
                Ok(Val::Tile(tile))
            }
            ("matmul" | "matmul_nt" | "matmul_tn", [accumulator, a, b]) => {
                self.matmul(name, accumulator, a, b, whole)
            }
            ("rsqrt" | "erf", [x]) => {
                let x = self.scalar(x)?;
                self.locate(&whole.at);
                let op = if name == "rsqrt" {
                    UnaryOp::Rsqrt
                } else {
                    UnaryOp::Erf
                };
                self.unary(op, x).map(Val::Scalar)
            }
            ("fma", [a, b, c]) => {
                let (a, b, c) = (self.scalar(a)?, self.scalar(b)?, self.scalar(c)?);
                self.locate(&whole.at);
                self.fma(a, b, c).map(Val::Scalar)
            }
            ("mma_16x8x16", [low, high, b, sum]) => {
                let a = [self.scalar(low)?, self.scalar(high)?];
                let (b, sum) = (self.scalar(b)?, self.scalar(sum)?);
                self.locate(&whole.at);
                let result = self.result(Scalar::F32.x(4));
                self.stmt(Stmt::Mma { result, a, b, sum });
                Ok(Val::Scalar(result))
            }
            ("select", [condition, a, b]) => {
                let condition = self.scalar(condition)?;
                let (a, b) = (self.rvalue(a)?, self.rvalue(b)?);
                self.locate(&whole.at);
                self.select_val(condition, a, b)
            }
            ("splat2" | "splat4" | "splat8", [x]) => {
                let lanes = name.as_bytes()[5] - b'0';
                let x = self.scalar(x)?;
                Ok(Val::Scalar(self.splat(x, lanes)))
            }
            ("vec2" | "vec4" | "vec8", parts) => {
                let parts = parts
                    .iter()
                    .map(|part| self.scalar(part))
                    .collect::<Eval<Vec<_>>>()?;
                self.locate(&whole.at);
                self.vector(parts).map(Val::Scalar)
            }
            _ => self.fail(BuildFault::Malformed),
        }
    }

    fn axis(&mut self, axis: &tree::Expr) -> Eval<u8> {
        let axis = self.index_value(axis)?;
        match self.known_int(axis) {
            Some(axis @ 0..=2) => Ok(axis as u8),
            Some(found) => self.fail(BuildFault::OutOfRange {
                what: "the axis".into(),
                found,
                allowed: "0 to 2".into(),
            }),
            None => self.fail(BuildFault::NotConstant {
                what: "the axis".into(),
            }),
        }
    }

    /// `select` of numbers, tuples and structs, field by field.
    fn select_val(&mut self, condition: Value, a: Val, b: Val) -> Eval<Val> {
        match (a.target(), b.target()) {
            (Val::Tuple(x), Val::Tuple(y)) => {
                let items = x
                    .into_iter()
                    .zip(y)
                    .map(|(x, y)| self.select_val(condition, x, y))
                    .collect::<Eval<_>>()?;
                Ok(Val::Tuple(items))
            }
            (Val::Struct(name, x), Val::Struct(_, y)) => {
                let fields = x
                    .into_iter()
                    .zip(y)
                    .map(|((key, x), (_, y))| Ok((key, self.select_val(condition, x, y)?)))
                    .collect::<Eval<_>>()?;
                Ok(Val::Struct(name, fields))
            }
            (a, b) => {
                let (a, b) = (self.as_scalar(a)?, self.as_scalar(b)?);
                self.select(condition, a, b).map(Val::Scalar)
            }
        }
    }

    fn collective(
        &mut self,
        group: Group,
        name: &str,
        arguments: &[tree::Expr],
        whole: &tree::Expr,
    ) -> Eval<Val> {
        let Some((value, rest)) = arguments.split_first() else {
            return self.fail(BuildFault::Malformed);
        };
        let value = self.scalar(value)?;
        let argument = match rest {
            [] => None,
            [argument] => Some(self.scalar_beside(argument, Type::U32)?),
            _ => return self.fail(BuildFault::Malformed),
        };
        self.locate(&whole.at);
        let ty = self.ty(value);
        let reduce = match name {
            "sum" | "scan_sum" | "scan_sum_exclusive" => Some(ReduceOp::Sum),
            "product" => Some(ReduceOp::Product),
            "min" => Some(ReduceOp::Min),
            "max" => Some(ReduceOp::Max),
            "min_nan" => Some(ReduceOp::MinNan),
            "max_nan" => Some(ReduceOp::MaxNan),
            "any" => Some(ReduceOp::Or),
            "all" => Some(ReduceOp::And),
            _ => None,
        };
        match group {
            Group::Workgroup => {
                let op = match name {
                    "broadcast" => GroupOp::Broadcast,
                    "scan_sum" => GroupOp::ScanInclusive,
                    "scan_sum_exclusive" => GroupOp::ScanExclusive,
                    _ if reduce.is_some() => GroupOp::Reduce,
                    _ => return self.fail(BuildFault::Malformed),
                };
                let result = self.result(ty);
                self.stmt(Stmt::Group {
                    result,
                    op,
                    reduce,
                    value,
                    argument,
                });
                Ok(Val::Scalar(result))
            }
            Group::Subgroup => {
                let (op, reduce, result_ty) = match name {
                    "any" => (SubgroupOp::Any, None, Type::BOOL),
                    "all" => (SubgroupOp::All, None, Type::BOOL),
                    "ballot" => (SubgroupOp::Ballot, None, Type::U64),
                    "broadcast" => (SubgroupOp::Broadcast, None, ty),
                    "shuffle" => (SubgroupOp::Shuffle, None, ty),
                    "shuffle_xor" => (SubgroupOp::ShuffleXor, None, ty),
                    "shuffle_up" => (SubgroupOp::ShuffleUp, None, ty),
                    "shuffle_down" => (SubgroupOp::ShuffleDown, None, ty),
                    _ if reduce.is_some() => (SubgroupOp::Reduce, reduce, ty),
                    _ => return self.fail(BuildFault::Malformed),
                };
                let result = self.result(result_ty);
                self.stmt(Stmt::Subgroup {
                    result,
                    op,
                    reduce,
                    value,
                    argument,
                });
                Ok(Val::Scalar(result))
            }
        }
    }
}

fn builtin(name: &str) -> Option<BuiltinOp> {
    BuiltinOp::from_name(name)
}

fn barrier(name: &str) -> Option<(BarrierScope, BarrierMemory)> {
    Some(match name {
        "barrier" => (BarrierScope::Workgroup, BarrierMemory::Shared),
        "barrier_global" => (BarrierScope::Workgroup, BarrierMemory::SharedAndGlobal),
        "barrier_device" => (BarrierScope::Workgroup, BarrierMemory::Device),
        "subgroup_barrier" => (BarrierScope::Subgroup, BarrierMemory::Shared),
        "grid_barrier" => (BarrierScope::Grid, BarrierMemory::SharedAndGlobal),
        "launch_barrier" => (BarrierScope::Launch, BarrierMemory::SharedAndGlobal),
        _ => return None,
    })
}
