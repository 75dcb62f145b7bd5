//! What CUDA C++ and HIP C++ share: types, builtins, intrinsics and the entry point.

use iron_ir::entity::Param;
use iron_ir::kernel::{Access, Kernel, ParamKind};
use iron_ir::layout::{BlockLayout, FieldKind};
use iron_ir::op::{AtomicOp, BarrierMemory, BarrierScope, BuiltinOp, Op, Place, Stmt, UnaryOp};
use iron_ir::types::{Scalar, Type};

use super::dialect::{Context, Memory, Printed};
use super::expr::{Expr, Level};
use super::ops::Ops;

/// Scalar types but for halves.
pub(crate) fn scalar_type(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::Bool => "bool",
        Scalar::I8 => "signed char",
        Scalar::I16 => "short",
        Scalar::I32 => "int",
        Scalar::I64 => "long long",
        Scalar::U8 | Scalar::F8E4M3 | Scalar::F8E5M2 | Scalar::E8M0 | Scalar::F4E2M1x2 => {
            "unsigned char"
        }
        Scalar::U16 => "unsigned short",
        Scalar::U32 | Scalar::Int4x8 => "unsigned int",
        Scalar::U64 => "unsigned long long",
        Scalar::F16 => "half",
        Scalar::BF16 => "bfloat",
        Scalar::F32 => "float",
        Scalar::F64 => "double",
    }
}

/// Stems of the vendors' vector types, and of ours in the same style.
pub(crate) fn vector_type(ty: Type, half: &str, bfloat: &str) -> String {
    let stem = match ty.scalar {
        Scalar::Bool => "bool",
        Scalar::I8 => "char",
        Scalar::I16 => "short",
        Scalar::I32 => "int",
        Scalar::I64 => "longlong",
        Scalar::U8 | Scalar::F8E4M3 | Scalar::F8E5M2 | Scalar::E8M0 | Scalar::F4E2M1x2 => "uchar",
        Scalar::U16 => "ushort",
        Scalar::U32 | Scalar::Int4x8 => "uint",
        Scalar::U64 => "ulonglong",
        Scalar::F16 => half,
        Scalar::BF16 => bfloat,
        Scalar::F32 => "float",
        Scalar::F64 => "double",
    };
    format!("{stem}{}", ty.lanes)
}

/// Vectors of at most 16 bytes and four lanes of built-in scalars.
pub(crate) fn has_vector(ty: Type) -> bool {
    matches!(ty.lanes, 2 | 4)
        && ty.bytes() <= 16
        && !matches!(ty.scalar, Scalar::Bool | Scalar::F16 | Scalar::BF16)
}

pub(crate) fn float_bits(bits: u32) -> Expr {
    Expr::primary(format!("__uint_as_float(0x{bits:08x}u)"))
}

pub(crate) fn double_bits(bits: u64) -> Expr {
    Expr::primary(format!("__longlong_as_double(0x{bits:016x}ull)"))
}

/// Bit casts between floats and integers of 4 and 8 bytes.
pub(crate) fn bit_cast(from: Scalar, to: Scalar, operand: &Expr) -> Expr {
    let one = std::slice::from_ref(operand);
    match (from, to) {
        (Scalar::F32, Scalar::I32) => Expr::call("__float_as_int", one),
        (Scalar::F32, Scalar::F32) | (Scalar::F64, Scalar::F64) => operand.clone(),
        (Scalar::F32, _) => Expr::call("__float_as_uint", one),
        (Scalar::I32, _) => Expr::call("__int_as_float", one),
        (Scalar::F64, Scalar::I64) => Expr::call("__double_as_longlong", one),
        (Scalar::F64, _) => Expr::cast(
            "unsigned long long",
            &Expr::call("__double_as_longlong", one),
        ),
        (Scalar::I64, _) => Expr::call("__longlong_as_double", one),
        (Scalar::U64, _) => Expr::call("__longlong_as_double", &[Expr::cast("long long", operand)]),
        _ => Expr::call("__uint_as_float", one),
    }
}

/// Copies the bytes; both vendors' compilers turn it into moves.
pub(crate) fn bit_cast_any(ops: &mut Ops<'_>, to: &str, operand: &Expr, copy: &str) -> Expr {
    ops.helpers.require("bit_cast", || {
        format!(
            "template <typename To, typename From>\n\
             __device__ inline To bit_cast(const From& from) {{\n    \
             static_assert(sizeof(To) == sizeof(From), \"sizes differ\");\n    \
             To to;\n    {copy}(&to, &from, sizeof(To));\n    return to;\n}}"
        )
    });
    Expr::call(&format!("bit_cast<{to}>"), std::slice::from_ref(operand))
}

/// The mathematics library's name, with `f` for `f32`; the fast intrinsic where allowed.
pub(crate) fn float_function(op: UnaryOp, scalar: Scalar, approximate: bool) -> Option<String> {
    let fast = approximate && scalar == Scalar::F32;
    let name = match op {
        UnaryOp::Abs => "fabs",
        UnaryOp::Sqrt => "sqrt",
        UnaryOp::Rsqrt => "rsqrt",
        UnaryOp::Exp if fast => return Some("__expf".into()),
        UnaryOp::Exp => "exp",
        UnaryOp::Exp2 => "exp2",
        UnaryOp::Log if fast => return Some("__logf".into()),
        UnaryOp::Log => "log",
        UnaryOp::Log2 if fast => return Some("__log2f".into()),
        UnaryOp::Log2 => "log2",
        UnaryOp::Sin if fast => return Some("__sinf".into()),
        UnaryOp::Sin => "sin",
        UnaryOp::Cos if fast => return Some("__cosf".into()),
        UnaryOp::Cos => "cos",
        UnaryOp::Tanh => "tanh",
        UnaryOp::Erf => "erf",
        UnaryOp::Floor => "floor",
        UnaryOp::Ceil => "ceil",
        UnaryOp::Trunc => "trunc",
        UnaryOp::RoundEven => "rint",
        UnaryOp::Neg
        | UnaryOp::Not
        | UnaryOp::IsNan
        | UnaryOp::IsFinite
        | UnaryOp::CountOnes
        | UnaryOp::LeadingZeros
        | UnaryOp::TrailingZeros
        | UnaryOp::ReverseBits => return None,
    };
    Some(suffixed(name, scalar))
}

/// A mathematics function of the scalar's width.
pub(crate) fn suffixed(name: &str, scalar: Scalar) -> String {
    if scalar == Scalar::F64 {
        name.to_owned()
    } else {
        format!("{name}f")
    }
}

pub(crate) fn bit_function(op: UnaryOp, wide: bool, operand: &Expr) -> Expr {
    let one = std::slice::from_ref(operand);
    let (count, leading, reverse) = if wide {
        ("__popcll", "__clzll", "__brevll")
    } else {
        ("__popc", "__clz", "__brev")
    };
    let signed = if wide { "long long" } else { "int" };
    match op {
        UnaryOp::CountOnes => Expr::cast("unsigned int", &Expr::call(count, one)),
        UnaryOp::LeadingZeros => Expr::cast(
            "unsigned int",
            &Expr::call(leading, &[Expr::cast(signed, operand)]),
        ),
        UnaryOp::TrailingZeros => {
            let reversed = Expr::cast(signed, &Expr::call(reverse, one));
            Expr::cast("unsigned int", &Expr::call(leading, &[reversed]))
        }
        _ => Expr::call(reverse, one),
    }
}

pub(crate) fn mul_high(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::I32 => "__mulhi",
        Scalar::I64 => "__mul64hi",
        Scalar::U64 => "__umul64hi",
        _ => "__umulhi",
    }
}

pub(crate) fn pointer(memory: Memory, ty: &str) -> String {
    match memory {
        Memory::Global(Access::Read) => format!("const {ty}*"),
        Memory::Global(Access::ReadWrite) | Memory::Shared | Memory::Private => format!("{ty}*"),
    }
}

/// Places by `blockIdx`, `threadIdx` and what the contract fixes.
pub(crate) fn builtin(context: &Context<'_>, op: BuiltinOp, axis: u8) -> Expr {
    let member = ["x", "y", "z"]
        .get(usize::from(axis))
        .copied()
        .unwrap_or("z");
    let number = |n: u32| Expr::primary(format!("{n}u"));
    let [x, y, z] = context.kernel.contract.workgroup;
    let threads = x * y * z;
    let lanes = context.subgroup_size();
    let thread = |axis: u8| {
        if context.group_size(axis) == 1 {
            number(0)
        } else {
            Expr::primary(format!(
                "threadIdx.{}",
                ["x", "y", "z"][usize::from(axis.min(2))]
            ))
        }
    };
    match op {
        BuiltinOp::GroupId => Expr::primary(format!("blockIdx.{member}")),
        BuiltinOp::GroupCount => Expr::primary(format!("gridDim.{member}")),
        BuiltinOp::LocalId => thread(axis),
        BuiltinOp::GroupSize => number(context.group_size(axis)),
        BuiltinOp::GlobalId => {
            let group = Expr::primary(format!("blockIdx.{member}"));
            match context.group_size(axis) {
                1 => group,
                size => {
                    let first = Expr::infix("*", Level::Multiplicative, &group, &number(size));
                    Expr::infix("+", Level::Additive, &first, &thread(axis))
                }
            }
        }
        BuiltinOp::LocalIndex => linear(context, &thread),
        BuiltinOp::GroupThreads => number(threads),
        BuiltinOp::SubgroupId => {
            let index = linear(context, &thread);
            Expr::infix("/", Level::Multiplicative, &index, &number(lanes))
        }
        BuiltinOp::SubgroupCount => number(threads.div_ceil(lanes)),
        BuiltinOp::SubgroupLane => {
            let index = linear(context, &thread);
            Expr::infix("%", Level::Multiplicative, &index, &number(lanes))
        }
        BuiltinOp::SubgroupSize => number(lanes),
    }
}

/// `(z * height + y) * width + x`, without the axes of one thread.
fn linear(context: &Context<'_>, thread: &dyn Fn(u8) -> Expr) -> Expr {
    let mut result: Option<Expr> = None;
    for axis in (0..3u8).rev() {
        let size = context.group_size(axis);
        if size == 1 {
            continue;
        }
        result = Some(match result {
            None => thread(axis),
            Some(outer) => {
                let width = Expr::primary(format!("{size}u"));
                let scaled = Expr::infix("*", Level::Multiplicative, &outer, &width);
                Expr::infix("+", Level::Additive, &scaled, &thread(axis))
            }
        });
    }
    result.unwrap_or_else(|| Expr::primary("0u"))
}

/// Read-modify-write functions, which take a pointer and return the old value. Signed 64-bit
/// cells go through the unsigned function where the operation is the same.
pub(crate) fn atomic(
    op: AtomicOp,
    scalar: Scalar,
    cell: &Expr,
    value: Option<&Expr>,
    compare: Option<&Expr>,
) -> Printed {
    let ty = scalar_type(scalar);
    if !matches!(
        scalar,
        Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::U64 | Scalar::F32
    ) {
        return Err(format!("an atomic of {scalar}"));
    }
    let address = Expr::prefix('&', cell);
    let name = match op {
        AtomicOp::Load => {
            let volatile = format!("*const_cast<const volatile {ty}*>({})", address.text);
            return Ok(Expr::new(volatile, Level::Unary).reading(std::slice::from_ref(cell)));
        }
        AtomicOp::Store => {
            let Some(value) = value else {
                return Err("an atomic store of nothing".into());
            };
            let text = format!(
                "*const_cast<volatile {ty}*>({}) = {}",
                address.text, value.text
            );
            return Ok(Expr::new(text, Level::Conditional));
        }
        AtomicOp::Add => "atomicAdd",
        AtomicOp::Min => "atomicMin",
        AtomicOp::Max => "atomicMax",
        AtomicOp::And => "atomicAnd",
        AtomicOp::Or => "atomicOr",
        AtomicOp::Xor => "atomicXor",
        AtomicOp::Exchange => "atomicExch",
        AtomicOp::CompareExchange => "atomicCAS",
    };
    if scalar == Scalar::F32 && !matches!(op, AtomicOp::Add | AtomicOp::Exchange) {
        return Err(format!("an atomic `{}` of f32", op.name()));
    }
    let is_unsigned = scalar == Scalar::I64 && !matches!(op, AtomicOp::Min | AtomicOp::Max);
    let unsigned = scalar_type(Scalar::U64);
    let operand = |e: &Expr| {
        if is_unsigned {
            Expr::cast(unsigned, e)
        } else {
            e.clone()
        }
    };
    let address = if is_unsigned {
        Expr::primary(format!("reinterpret_cast<{unsigned}*>({})", address.text))
    } else {
        address
    };
    let mut arguments = vec![address];
    arguments.extend(compare.map(operand));
    arguments.extend(value.map(operand));
    let call = Expr::call(name, &arguments);
    Ok(if is_unsigned {
        Expr::cast(ty, &call)
    } else {
        call
    })
}

/// The first failure's code stays in the error word.
pub(crate) fn check_index_helper() -> String {
    "// The index, or 0 after noting the line in the launch's error word.\n\
     __device__ inline unsigned int check_index(\n    \
     unsigned int* error_word, unsigned int index, unsigned int bound, unsigned int code\n) {\n    \
     if (index < bound) return index;\n    \
     atomicCAS(error_word, 0u, code);\n    \
     return 0u;\n}"
        .into()
}

/// `extern "C" __global__ void __launch_bounds__(256) name(…)`, one parameter a field of the
/// block, in its order, so that the block's bytes are the argument list's.
pub(crate) fn signature(context: &Context<'_>) -> String {
    let kernel = context.kernel;
    let layout = BlockLayout::of(kernel);
    // `__restrict__` lets a compiler carry a value over a barrier, behind which another thread has
    // changed it.
    let shares_writes = exchanges_through_tensors(kernel);
    // In a dependent launch even what it only reads may change until the launch before is done,
    // and a compiler takes loads of a `const` and `__restrict__` pointer before any barrier. What
    // the author reads before the barrier does not change.
    let changes = |param| kernel.contract.dependent && !is_read_early(kernel, param);
    let aliased = |param| {
        changes(param)
            || kernel.tensor(param).is_some_and(|t| {
                !t.may_alias.is_empty() || (shares_writes && t.access == Access::ReadWrite)
            })
            || kernel.params.values().any(|data| match &data.kind {
                ParamKind::Tensor(t) => t.may_alias.contains(&param),
                ParamKind::Scalar(_) => false,
            })
    };
    let parameters: Vec<String> = layout
        .fields
        .iter()
        .zip(context.field_names)
        .map(|(field, name)| match field.kind {
            FieldKind::Address(param) => match kernel.tensor(param) {
                Some(tensor) => {
                    let scalar = context.profile.legal.memory_scalar(tensor.scalar);
                    let ty = context.spelled(scalar);
                    let pointer = pointer(Memory::Global(tensor.access), ty);
                    let restrict = if aliased(param) { "" } else { " __restrict__" };
                    format!("{pointer}{restrict} {name}")
                }
                None => format!("const void* {name}"),
            },
            FieldKind::ErrorWord => format!("unsigned int* {name}"),
            FieldKind::TensorMap(..) => format!("const __grid_constant__ tensor_map {name}"),
            FieldKind::Stride(..)
            | FieldKind::Dim(_)
            | FieldKind::Scalar(_)
            | FieldKind::Aligned => {
                format!("{} {name}", scalar_type(field.scalar))
            }
        })
        .collect();
    let threads = kernel.contract.threads();
    // A division of registers between roles needs the number of workgroups that share them.
    let divides = kernel
        .body
        .0
        .iter()
        .any(|(stmt, _)| matches!(stmt, iron_ir::Stmt::Roles { .. }));
    // HIP's second number counts waves of an execution unit, which nobody tuned.
    let sharing = match kernel.contract.resident {
        _ if divides => ", 1".to_owned(),
        count if count > 0 && context.profile.target == crate::Target::Cuda => format!(", {count}"),
        _ => String::new(),
    };
    let head = format!(
        "extern \"C\" __global__ void __launch_bounds__({threads}{sharing}) {}(",
        context.entry
    );
    let line = format!("{head}{})", parameters.join(", "));
    if line.len() <= 98 {
        return line;
    }
    format!("{head}\n    {}\n)", parameters.join(",\n    "))
}

/// Whether a tensor is read before the kernel's barrier between launches, so that nothing writes
/// it meanwhile.
fn is_read_early(kernel: &Kernel, param: Param) -> bool {
    let is_barrier = |stmt: &Stmt| matches!(stmt, Stmt::Barrier(BarrierScope::Launch, _));
    let statements = &kernel.body.0;
    let Some(end) = statements.iter().position(|(stmt, _)| is_barrier(stmt)) else {
        return false;
    };
    let mut found = false;
    let mut visit = |stmt: &Stmt| {
        if let Stmt::Let(value) = stmt
            && let Op::Load { place, .. } = &kernel.values[*value].op
            && let Place::Flat(from) | Place::Tensor(from) = place
        {
            found |= *from == param;
        }
    };
    for (stmt, _) in &statements[..end] {
        visit(stmt);
        for block in stmt.blocks() {
            block.walk(&mut |stmt, _| visit(stmt));
        }
    }
    found
}

/// Whether a thread may read what another wrote to a tensor in the same launch.
fn exchanges_through_tensors(kernel: &Kernel) -> bool {
    let mut found = false;
    kernel.body.walk(&mut |stmt, _| {
        found |= matches!(
            stmt,
            Stmt::Barrier(_, BarrierMemory::SharedAndGlobal | BarrierMemory::Device)
                | Stmt::Barrier(BarrierScope::Grid, _)
        );
    });
    found
}

/// A barrier over the grid by a counter that needs no reset: the arrivals of all workgroups at one
/// barrier add up to its highest bit, which turns. Needs all workgroups resident. `load` is the
/// target's function `arrivals_now`, a load that orders what follows it.
pub(crate) fn grid_barrier_helper(load: &str) -> String {
    format!(
        "// Arrivals at grid barriers of every launch so far.\n\
         __device__ unsigned int grid_arrivals;\n\n\
         #ifndef IRON_ARRIVALS_BY_HOST\n\
         __device__ inline unsigned int arrivals_now(const unsigned int* counter) {{\n\
         {load}\n\
         }}\n\
         #endif\n\n\
         __device__ inline void grid_barrier() {{\n    \
         __syncthreads();\n    \
         if (threadIdx.x == 0u && threadIdx.y == 0u && threadIdx.z == 0u) {{\n        \
         const unsigned int others = gridDim.x * gridDim.y * gridDim.z - 1u;\n        \
         const bool first = blockIdx.x == 0u && blockIdx.y == 0u && blockIdx.z == 0u;\n        \
         __threadfence();\n        \
         const unsigned int before = atomicAdd(&grid_arrivals, first ? 0x80000000u - others : 1u);\n        \
         while (((before ^ arrivals_now(&grid_arrivals)) & 0x80000000u) == 0u) {{\n        \
         }}\n        \
         __threadfence();\n    \
         }}\n    \
         __syncthreads();\n\
         }}"
    )
}
