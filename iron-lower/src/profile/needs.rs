//! The features that a kernel needs, found in its declaration and body.

use iron_ir::contract::Feature;
use iron_ir::kernel::{Kernel, ParamKind, Span};
use iron_ir::op::{AtomicOp, BarrierMemory, BarrierScope, BuiltinOp, Op, Stmt};
use iron_ir::types::Scalar;

/// A feature and the first place that needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// Feature.
    pub feature: Feature,
    /// Where.
    pub span: Span,
}

/// Features needed, each once, in the order of [`Feature::ALL`].
pub fn needs(kernel: &Kernel) -> Vec<Need> {
    let mut found: Vec<Need> = Vec::new();
    let mut add = |feature, span| {
        if !found.iter().any(|n| n.feature == feature) {
            found.push(Need { feature, span });
        }
    };
    for data in kernel.params.values() {
        if let ParamKind::Tensor(tensor) = &data.kind {
            if let Some(feature) = of_memory(tensor.scalar) {
                add(feature, data.span);
            }
            if tensor.scalar == Scalar::F64 {
                add(Feature::F64, data.span);
            }
        }
    }
    for data in kernel.arrays.values() {
        if let Some(feature) = of_memory(data.scalar) {
            add(feature, data.span);
        }
        if data.scalar == Scalar::F64 {
            add(Feature::F64, data.span);
        }
    }
    kernel.body.walk(&mut |stmt, span| {
        for value in stmt.defines().into_iter().chain(stmt.uses()) {
            if kernel.ty(value).scalar == Scalar::F64 {
                add(Feature::F64, span);
            }
        }
        match stmt {
            Stmt::Let(value) => {
                if matches!(kernel.values[*value].op, Op::Builtin(op, _) if asks_subgroup(op)) {
                    add(Feature::Subgroups, span);
                }
            }
            Stmt::Atomic { result, op, .. } => {
                let scalar = kernel.ty(*result).scalar;
                if scalar.bytes() == 8 {
                    add(Feature::Atomic64, span);
                }
                if scalar == Scalar::F32 && *op == AtomicOp::Add {
                    add(Feature::AtomicF32Add, span);
                }
            }
            Stmt::Barrier(BarrierScope::Grid, _) => add(Feature::GridBarrier, span),
            Stmt::Barrier(_, BarrierMemory::Device) => add(Feature::DeviceBarrier, span),
            Stmt::Barrier(BarrierScope::Subgroup, _) | Stmt::Subgroup { .. } => {
                add(Feature::Subgroups, span);
            }
            Stmt::Set(..)
            | Stmt::Store { .. }
            | Stmt::Barrier(BarrierScope::Workgroup | BarrierScope::Launch, _)
            | Stmt::Group { .. }
            | Stmt::Mma { .. }
            | Stmt::Machine(_)
            | Stmt::Roles { .. }
            | Stmt::CheckIndex { .. }
            | Stmt::If { .. }
            | Stmt::For { .. }
            | Stmt::Loop { .. }
            | Stmt::Break
            | Stmt::Continue
            | Stmt::Return
            | Stmt::Tile(_) => {}
        }
    });
    if kernel.contract.cooperative {
        add(Feature::GridBarrier, Span::default());
    }
    found.sort_by_key(|n| n.feature);
    found
}

fn asks_subgroup(op: BuiltinOp) -> bool {
    match op {
        BuiltinOp::SubgroupId
        | BuiltinOp::SubgroupCount
        | BuiltinOp::SubgroupLane
        | BuiltinOp::SubgroupSize => true,
        BuiltinOp::GroupId
        | BuiltinOp::GroupCount
        | BuiltinOp::LocalId
        | BuiltinOp::GroupSize
        | BuiltinOp::GlobalId
        | BuiltinOp::LocalIndex
        | BuiltinOp::GroupThreads => false,
    }
}

/// The feature that elements of this type in memory need. `bf16` and packed types are legal
/// everywhere that integers of their width are.
fn of_memory(scalar: Scalar) -> Option<Feature> {
    match scalar {
        Scalar::F16 => Some(Feature::F16),
        Scalar::BF16 => Some(Feature::BF16),
        Scalar::Bool | Scalar::I8 | Scalar::U8 => Some(Feature::Storage8),
        Scalar::F8E4M3 | Scalar::F8E5M2 | Scalar::E8M0 | Scalar::F4E2M1x2 => {
            Some(Feature::Storage8)
        }
        Scalar::I16 | Scalar::U16 => Some(Feature::Storage16),
        Scalar::I64 | Scalar::U64 => Some(Feature::Int64),
        Scalar::I32 | Scalar::U32 | Scalar::F32 | Scalar::F64 | Scalar::Int4x8 => None,
    }
}
