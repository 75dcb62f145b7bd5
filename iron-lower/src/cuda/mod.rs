//! CUDA C++ for NVRTC and nvcc.
//!
//! The text needs no header and no include path, so NVRTC takes a fifth of a second a kernel
//! where the toolkit's half-precision headers alone take two. Halves are structs of their bits;
//! their conversions are one PTX instruction each.

mod fragments;
mod machine;

use iron_ir::kernel::Kernel;
use iron_ir::machine::MachineStmt;
use iron_ir::op::{AtomicOp, BarrierMemory, BarrierScope, BuiltinOp, Stmt, SubgroupOp, UnaryOp};
use iron_ir::types::{Scalar, Type};

use crate::c;
use crate::c::analysis::SWIZZLE_BYTES;
use crate::c::dialect::{ArrayDeclaration, Context, Dialect, MachineNames, Memory, Printed, Role};
use crate::c::expr::{Expr, Level};
use crate::c::nvidia_amd as shared;
use crate::c::ops::Ops;
use crate::error::LowerError;
use crate::places::Places;
use crate::profile::Profile;
use fragments::Warp;

/// Flags of NVRTC (and of nvcc) beside the architecture. A fused multiply-add stands in the
/// text where the kernel has one, so the compiler must not make others.
pub const COMPILE_FLAGS: &[&str] = &["--std=c++17", "--fmad=false", "-default-device"];

/// Static shared memory that every launch may have; more is dynamic, and opted into.
const STATIC_SHARED_BYTES: u64 = 48 << 10;

/// The text of a kernel after the passes.
pub fn emit(kernel: &Kernel, profile: &Profile) -> Result<(String, Places), LowerError> {
    c::emit(kernel, profile, &Cuda)
}

/// The name of the entry point in the text.
pub fn entry_point(kernel: &Kernel) -> String {
    c::entry_name(kernel, &Cuda)
}

/// Bytes of dynamic shared memory that a launch of the kernel (after the passes) must give.
pub fn dynamic_shared_bytes(kernel: &Kernel) -> u32 {
    let bytes = kernel.shared_bytes();
    if bytes > STATIC_SHARED_BYTES || machine::is_used(kernel) {
        u32::try_from(bytes).unwrap_or(u32::MAX)
    } else {
        0
    }
}

/// The language.
pub(crate) struct Cuda;

/// Words of CUDA beside C++'s; its builtin functions begin with `__` or are in the common list.
const RESERVED: &[&str] = &[
    "threadIdx",
    "blockIdx",
    "blockDim",
    "gridDim",
    "warpSize",
    "cooperative_groups",
    "nvcuda",
    "wmma",
    "surface",
    "texture",
    "half2",
    "nv_bfloat16",
    "tex1D",
    "tex2D",
    "tex3D",
    "ldg",
    "assert",
    "trap",
    "brkpt",
    "prof_trigger",
    "cospi",
    "erfcinv",
    "erfinv",
    "normcdf",
    "rcbrt",
    "rhypot",
    "rnorm",
    "norm3d",
    "norm4d",
    "sincospi",
    "ullmin",
    "ullmax",
    "umin",
    "umax",
    "llmin",
    "llmax",
    "getpid",
    "signbit",
    "byte",
];

/// PTX: `ex2.approx`, 2 units in the last place; subnormal results become zero.
const FAST_EXP2: &str = "\
__device__ inline float fast_exp2(float x) {
#ifndef IRON_EXP2_BY_HOST
    float result;
    asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(result) : \"f\"(x));
    return result;
#else
    return exp2f(x);
#endif
}";

const HALF: &str = "\
// IEEE half by its bits: the toolkit's header would cost seconds of compile time.
#ifndef IRON_HALF_BY_HOST
struct half {
    unsigned short bits;
};

__device__ inline float half_to_float(half x) {
    float result;
    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(result) : \"h\"(x.bits));
    return result;
}

__device__ inline half float_to_half(float x) {
    half result;
    asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(result.bits) : \"f\"(x));
    return result;
}
#endif";

const BFLOAT: &str = "\
#ifndef IRON_HALF_BY_HOST
// The upper half of a float.
struct bfloat {
    unsigned short bits;
};

__device__ inline float bfloat_to_float(bfloat x) {
    return __uint_as_float((unsigned int)x.bits << 16);
}

// To nearest even; a NaN stays one.
__device__ inline bfloat float_to_bfloat(float x) {
    bfloat result;
    asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(result.bits) : \"f\"(x));
    return result;
}
#endif";

impl Dialect for Cuda {
    fn reserved(&self) -> &'static [&'static str] {
        RESERVED
    }

    fn prologue(&self) -> &'static str {
        ""
    }

    fn helper_prefix(&self) -> &'static str {
        "__device__ inline "
    }

    fn scalar_type(&self, scalar: Scalar) -> &'static str {
        shared::scalar_type(scalar)
    }

    fn declare_scalar(&self, ops: &mut Ops<'_>, scalar: Scalar) {
        match scalar {
            Scalar::F16 => ops.helpers.require("half", || HALF.into()),
            Scalar::BF16 => ops.helpers.require("bfloat", || BFLOAT.into()),
            _ => {}
        }
    }

    fn long_suffix(&self) -> &'static str {
        "ll"
    }

    fn vector_type(&self, ty: Type) -> String {
        shared::vector_type(ty, "half", "bfloat")
    }

    fn has_vector(&self, ty: Type) -> bool {
        shared::has_vector(ty)
    }

    fn vector_maker(&self, ty: Type) -> String {
        format!("make_{}", self.vector_type(ty))
    }

    fn has_vector_operators(&self) -> bool {
        false
    }

    fn float_bits(&self, bits: u32) -> Expr {
        shared::float_bits(bits)
    }

    fn double_bits(&self, bits: u64) -> Expr {
        shared::double_bits(bits)
    }

    fn half_bits(&self, bits: u16) -> Expr {
        Expr::primary(format!("half{{0x{bits:04x}}}"))
    }

    fn half_literal(&self, bits: u16, _decimal: &str) -> Expr {
        self.half_bits(bits)
    }

    fn bfloat_bits(&self, bits: u16) -> Expr {
        Expr::primary(format!("bfloat{{0x{bits:04x}}}"))
    }

    fn bfloat_literal(&self, bits: u16, _decimal: &str) -> Expr {
        self.bfloat_bits(bits)
    }

    fn bits_of_half(&self, ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr {
        self.declare_scalar(ops, scalar);
        let text = operand.at(crate::c::expr::Level::Primary);
        Expr::primary(format!("{text}.bits")).reading(std::slice::from_ref(operand))
    }

    fn half_of_bits(&self, ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr {
        self.declare_scalar(ops, scalar);
        let ty = self.scalar_type(scalar);
        // Braces refuse what may narrow, and an expression of 16-bit operands is an int.
        let bits = match operand.level {
            crate::c::expr::Level::Primary => operand.text.clone(),
            _ if operand.text.starts_with("(unsigned short)") => operand.text.clone(),
            _ => Expr::cast("unsigned short", operand).text,
        };
        Expr::primary(format!("{ty}{{{bits}}}")).reading(std::slice::from_ref(operand))
    }

    fn half_to_float(&self, ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr {
        self.declare_scalar(ops, scalar);
        let name = if scalar == Scalar::F16 {
            "half_to_float"
        } else {
            "bfloat_to_float"
        };
        Expr::call(name, std::slice::from_ref(operand))
    }

    fn float_to_half(&self, ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr {
        self.declare_scalar(ops, scalar);
        let name = if scalar == Scalar::F16 {
            "float_to_half"
        } else {
            "float_to_bfloat"
        };
        Expr::call(name, std::slice::from_ref(operand))
    }

    fn bit_cast(&self, from: Scalar, to: Scalar, operand: &Expr) -> Expr {
        shared::bit_cast(from, to, operand)
    }

    fn bit_cast_any(&self, ops: &mut Ops<'_>, to: &str, operand: &Expr) -> Expr {
        shared::bit_cast_any(ops, to, operand, "memcpy")
    }

    fn float_function(&self, op: UnaryOp, scalar: Scalar, approximate: bool) -> Option<String> {
        shared::float_function(op, scalar, approximate)
    }

    fn fast_exp2(&self) -> Option<&'static str> {
        Some(FAST_EXP2)
    }

    fn pow(&self, scalar: Scalar, approximate: bool) -> String {
        if approximate && scalar == Scalar::F32 {
            return "__powf".into();
        }
        shared::suffixed("pow", scalar)
    }

    fn fma(&self, scalar: Scalar) -> String {
        shared::suffixed("fma", scalar)
    }

    // PTX: `min` and `max` return the number beside a NaN, and +0 is above -0.
    fn ordered_minmax(&self, is_max: bool, scalar: Scalar) -> Option<String> {
        Some(shared::suffixed(
            if is_max { "fmax" } else { "fmin" },
            scalar,
        ))
    }

    // PTX: conversions to integers of 32 bits clamp, and a NaN gives 0.
    fn saturating(&self, from: Scalar, to: Scalar) -> Option<&'static str> {
        match (from, to) {
            (Scalar::F32, Scalar::I32) => Some("__float2int_rz"),
            (Scalar::F32, Scalar::U32) => Some("__float2uint_rz"),
            _ => None,
        }
    }

    fn bit_function(&self, op: UnaryOp, wide: bool, operand: &Expr) -> Expr {
        shared::bit_function(op, wide, operand)
    }

    fn dot4(&self) -> Option<&'static str> {
        Some("__dp4a")
    }

    fn mma(&self, ops: &mut Ops<'_>, scalar: Scalar, operands: &[Expr]) -> Printed {
        let ty = match scalar {
            Scalar::F16 => "f16",
            _ => "bf16",
        };
        let name = format!("mma_16x8x16_{ty}");
        ops.helpers.require(&name, || mma_helper(&name, ty));
        let (factors, sum) = operands.split_at(operands.len().min(3));
        let mut arguments: Vec<Expr> = factors
            .iter()
            .map(|factor| Expr::primary(format!("{}.words", factor.at(Level::Primary))))
            .collect();
        arguments.extend(sum.iter().cloned());
        Ok(Expr::call(&name, &arguments))
    }

    fn mul_high(&self, scalar: Scalar) -> &'static str {
        shared::mul_high(scalar)
    }

    fn pointer(&self, memory: Memory, ty: &str) -> String {
        shared::pointer(memory, ty)
    }

    fn builtin(&self, context: &Context<'_>, op: BuiltinOp, axis: u8) -> Expr {
        shared::builtin(context, op, axis)
    }

    fn barrier(
        &self,
        ops: &mut Ops<'_>,
        _context: &Context<'_>,
        scope: BarrierScope,
        memory: BarrierMemory,
    ) -> Result<String, String> {
        // Both functions order shared and global memory among the threads that they join.
        Ok(match scope {
            BarrierScope::Subgroup => "__syncwarp();".into(),
            BarrierScope::Workgroup if memory == BarrierMemory::Device => {
                ops.helpers
                    .require("barrier_device", || DEVICE_BARRIER.into());
                "barrier_device();".into()
            }
            BarrierScope::Workgroup => "__syncthreads();".into(),
            BarrierScope::Grid => {
                ops.helpers
                    .require("grid_barrier", || shared::grid_barrier_helper(ARRIVALS_NOW));
                "grid_barrier();".into()
            }
            BarrierScope::Launch => LAUNCH_BARRIER.into(),
        })
    }

    fn shuffle(
        &self,
        op: SubgroupOp,
        _scalar: Scalar,
        value: &Expr,
        argument: &Expr,
        present: Option<&Expr>,
    ) -> Expr {
        let name = match op {
            SubgroupOp::ShuffleXor => "__shfl_xor_sync",
            SubgroupOp::ShuffleUp => "__shfl_up_sync",
            SubgroupOp::ShuffleDown => "__shfl_down_sync",
            _ => "__shfl_sync",
        };
        Expr::call(name, &[mask(present), value.clone(), argument.clone()])
    }

    fn keeps_own_value(&self) -> bool {
        true
    }

    fn vote(&self, op: SubgroupOp, value: &Expr, present: Option<&Expr>) -> Expr {
        let arguments = [mask(present), value.clone()];
        match op {
            SubgroupOp::Any => truth(&Expr::call("__any_sync", &arguments)),
            SubgroupOp::All => truth(&Expr::call("__all_sync", &arguments)),
            _ => Expr::cast(
                "unsigned long long",
                &Expr::call("__ballot_sync", &arguments),
            ),
        }
    }

    fn atomic(
        &self,
        _ops: &mut Ops<'_>,
        op: AtomicOp,
        scalar: Scalar,
        _memory: Memory,
        cell: &Expr,
        value: Option<&Expr>,
        compare: Option<&Expr>,
    ) -> Printed {
        shared::atomic(op, scalar, cell, value, compare)
    }

    fn check_index_helper(&self) -> String {
        shared::check_index_helper()
    }

    fn shared_array(&self, context: &Context<'_>, array: &ArrayDeclaration<'_>) -> String {
        let ArrayDeclaration {
            name,
            ty,
            len,
            align,
            offset,
        } = array;
        if dynamic_shared_bytes(context.kernel) > 0 {
            return format!(
                "{ty}* const {name} = reinterpret_cast<{ty}*>(shared_memory + {offset});"
            );
        }
        let align = if *align > 0 {
            format!("__align__({align}) ")
        } else {
            String::new()
        };
        format!("__shared__ {align}{ty} {name}[{len}];")
    }

    fn entry_statements(&self, context: &Context<'_>) -> Vec<String> {
        let mut lines = Vec::new();
        if dynamic_shared_bytes(context.kernel) > 0 {
            let align = if machine::is_used(context.kernel) {
                SWIZZLE_BYTES
            } else {
                16
            };
            lines.push(format!(
                "extern __shared__ __align__({align}) unsigned char shared_memory[];"
            ));
        }
        if context.kernel.contract.dependent {
            lines.push("// The next launch may begin.".into());
            lines.push("asm volatile(\"griddepcontrol.launch_dependents;\");".into());
            if !has_launch_barrier(context.kernel) {
                lines.push(LAUNCH_BARRIER.into());
            }
        }
        lines
    }

    fn machine(
        &self,
        ops: &mut Ops<'_>,
        stmt: &MachineStmt,
        names: &MachineNames<'_>,
    ) -> Result<String, String> {
        match stmt.op.is_of_fragments() {
            true => c::fragments::statement(self, &Warp, &mut ops.helpers, stmt, names),
            false => machine::statement(&mut ops.helpers, stmt, names),
        }
    }

    fn role_barrier(&self, ops: &mut Ops<'_>, role: Role) -> Result<String, String> {
        Ok(machine::role_barrier(
            &mut ops.helpers,
            role.number,
            role.threads,
        ))
    }

    fn signature(&self, context: &Context<'_>, _used: &[(BuiltinOp, u8)]) -> String {
        shared::signature(context)
    }
}

/// The matrix product of a warp (PTX ISA 7.0, sm_80: `mma.m16n8k16`). The instruction wants of a
/// thread columns `2 t`, `2 t + 1`, `2 t + 8` and `2 t + 9`, but which 16 columns of `a` meet
/// which rows of `b` is all the same.
fn mma_helper(name: &str, ty: &str) -> String {
    format!(
        "// Adds 16 by 16 elements times 16 by 8, spread over a warp.\n\
         #ifndef IRON_MMA_BY_HOST\n\
         __device__ inline float4 {name}(uint2 low, uint2 high, uint2 b, float4 sum) {{\n    \
         asm volatile(\n        \
         \"mma.sync.aligned.m16n8k16.row.col.f32.{ty}.{ty}.f32 \"\n        \
         \"{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};\"\n        \
         : \"+f\"(sum.x), \"+f\"(sum.y), \"+f\"(sum.z), \"+f\"(sum.w)\n        \
         : \"r\"(low.x), \"r\"(high.x), \"r\"(low.y), \"r\"(high.y), \"r\"(b.x), \"r\"(b.y)\n    \
         );\n    return sum;\n}}\n#endif"
    )
}

/// PTX ISA 6.0: what stands behind an acquiring load sees what was written before the stores that
/// it saw.
const ARRIVALS_NOW: &str = "    unsigned int now;
    asm volatile(\"ld.acquire.gpu.u32 %0, [%1];\" : \"=r\"(now) : \"l\"(counter) : \"memory\");
    return now;";

/// PTX ISA 6.0: a fence between a barrier and a thread's atomic releases what the workgroup wrote
/// before the barrier; one between the atomic and a barrier acquires for the workgroup. Any thread
/// may be the one, so all have the fence.
const DEVICE_BARRIER: &str = "\
// Waits for the workgroup and orders its memory on the whole device.
__device__ inline void barrier_device() {
    __syncthreads();
#ifndef IRON_FENCE_BY_HOST
    asm volatile(\"fence.acq_rel.gpu;\" ::: \"memory\");
#endif
    __syncthreads();
}";

/// Waits until the launches before are done and their writes are visible.
const LAUNCH_BARRIER: &str = "asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");";

fn has_launch_barrier(kernel: &Kernel) -> bool {
    let mut found = false;
    kernel
        .body
        .walk(&mut |stmt, _| found |= matches!(stmt, Stmt::Barrier(BarrierScope::Launch, _)));
    found
}

/// The lanes that take part.
fn mask(present: Option<&Expr>) -> Expr {
    match present {
        None => Expr::primary("0xffffffffu"),
        Some(lanes) => Expr::primary(format!("0xffffffffu >> (32u - {})", lanes.text)),
    }
}

fn truth(vote: &Expr) -> Expr {
    Expr::infix(
        "!=",
        crate::c::expr::Level::Equality,
        vote,
        &Expr::primary("0"),
    )
}
