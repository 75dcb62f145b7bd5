//! HIP C++ for hipRTC and clang.
//!
//! Halves are clang's `_Float16`; bfloat16 is its bits, because hipRTC before ROCm 6 has no type
//! for it. Subgroups are waves of the profile's width; ballots have 64 bits at either.

mod fragments;

use iron_ir::kernel::Kernel;
use iron_ir::machine::{MachineOp, MachineStmt};
use iron_ir::op::{AtomicOp, BarrierMemory, BarrierScope, BuiltinOp, SubgroupOp, UnaryOp};
use iron_ir::types::{Scalar, Type};

use crate::c;
use crate::c::dialect::{ArrayDeclaration, Context, Dialect, MachineNames, Memory, Printed};
use crate::c::expr::{Expr, Level};
use crate::c::nvidia_amd as shared;
use crate::c::ops::Ops;
use crate::error::LowerError;
use crate::places::Places;
use crate::profile::Profile;
use fragments::Wave;

/// Flags of hipRTC (and of clang) beside the architecture.
pub const COMPILE_FLAGS: &[&str] = &["-std=c++17", "-O3", "-ffp-contract=off"];

/// The text of a kernel after the passes.
pub fn emit(kernel: &Kernel, profile: &Profile) -> Result<(String, Places), LowerError> {
    c::emit(kernel, profile, &Hip)
}

/// The name of the entry point in the text.
pub fn entry_point(kernel: &Kernel) -> String {
    c::entry_name(kernel, &Hip)
}

/// The language.
pub(crate) struct Hip;

/// Words of HIP and of its headers beside C++'s.
const RESERVED: &[&str] = &[
    "threadIdx",
    "blockIdx",
    "blockDim",
    "gridDim",
    "warpSize",
    "cooperative_groups",
    "half2",
    "surface",
    "texture",
    "ushort1",
    "bfloat16",
    "coordinates",
    "make_complex",
    "abort",
    "bool1",
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
    "device",
    "texture_object",
    "this_grid",
    "u8",
    "u16",
    "u32",
    "u64",
    "i8",
    "i16",
    "i32",
    "i64",
    "signbit",
    "byte",
    "ullong",
    "uchar1",
    "Coordinates",
    "ockl",
    "ocml",
];

/// An agent is a device.
const ARRIVALS_NOW: &str = "\
    \x20   return __hip_atomic_load(counter, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);";

/// Waves wait for their own stores alone and drop what only their own compute unit holds: each
/// has a fence on both sides of the barrier.
const DEVICE_BARRIER: &str = "\
// Waits for the workgroup and orders its memory on the whole device.
__device__ inline void barrier_device() {
    __threadfence();
    __syncthreads();
    __threadfence();
}";

/// As `__syncwarp` of HIP's own header.
const SUBGROUP_BARRIER: &str = "\
// A wave runs in lock step: only the compiler must keep the order of memory, in all lanes at once.
#ifndef IRON_SUBGROUP_BARRIER_BY_HOST
__device__ inline void subgroup_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, \"wavefront\");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"wavefront\");
}
#endif";

const BFLOAT: &str = "\
// The upper half of a float.
struct bfloat {
    unsigned short bits;
};

__device__ inline float bfloat_to_float(bfloat x) {
    return __uint_as_float((unsigned int)x.bits << 16);
}

// To nearest even; a NaN stays one.
__device__ inline bfloat float_to_bfloat(float x) {
    const unsigned int bits = __float_as_uint(x);
    const unsigned int rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return bfloat{(unsigned short)((isnan(x) ? bits | 0x00400000u : rounded) >> 16)};
}";

impl Dialect for Hip {
    fn reserved(&self) -> &'static [&'static str] {
        RESERVED
    }

    fn prologue(&self) -> &'static str {
        "#ifndef __HIPCC_RTC__\n#include <hip/hip_runtime.h>\n#endif\n"
    }

    fn helper_prefix(&self) -> &'static str {
        "__device__ inline "
    }

    fn scalar_type(&self, scalar: Scalar) -> &'static str {
        match scalar {
            Scalar::F16 => "_Float16",
            other => shared::scalar_type(other),
        }
    }

    fn declare_scalar(&self, ops: &mut Ops<'_>, scalar: Scalar) {
        if scalar == Scalar::BF16 {
            ops.helpers.require("bfloat", || BFLOAT.into());
        }
    }

    fn long_suffix(&self) -> &'static str {
        "ll"
    }

    fn vector_type(&self, ty: Type) -> String {
        // `half2` is a type of the vendor's header.
        shared::vector_type(ty, "f16x", "bf16x")
    }

    fn has_vector(&self, ty: Type) -> bool {
        shared::has_vector(ty)
    }

    fn vector_maker(&self, ty: Type) -> String {
        format!("make_{}", self.vector_type(ty))
    }

    fn has_vector_operators(&self) -> bool {
        true
    }

    fn float_bits(&self, bits: u32) -> Expr {
        shared::float_bits(bits)
    }

    fn double_bits(&self, bits: u64) -> Expr {
        shared::double_bits(bits)
    }

    fn half_bits(&self, bits: u16) -> Expr {
        Expr::primary(format!(
            "__builtin_bit_cast(_Float16, (unsigned short)0x{bits:04x})"
        ))
    }

    fn half_literal(&self, _bits: u16, decimal: &str) -> Expr {
        Expr::cast("_Float16", &Expr::literal(decimal))
    }

    fn bfloat_bits(&self, bits: u16) -> Expr {
        Expr::primary(format!("bfloat{{0x{bits:04x}}}"))
    }

    fn bfloat_literal(&self, bits: u16, _decimal: &str) -> Expr {
        self.bfloat_bits(bits)
    }

    fn bits_of_half(&self, ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr {
        self.declare_scalar(ops, scalar);
        let one = std::slice::from_ref(operand);
        if scalar == Scalar::F16 {
            return Expr::primary(format!(
                "__builtin_bit_cast(unsigned short, {})",
                operand.text
            ))
            .reading(one);
        }
        Expr::primary(format!("{}.bits", operand.at(Level::Primary))).reading(one)
    }

    fn half_of_bits(&self, ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr {
        self.declare_scalar(ops, scalar);
        let bits = match operand.level {
            Level::Primary => operand.text.clone(),
            _ if operand.text.starts_with("(unsigned short)") => operand.text.clone(),
            _ => Expr::cast("unsigned short", operand).text,
        };
        let text = match scalar {
            Scalar::F16 => format!("__builtin_bit_cast(_Float16, {bits})"),
            _ => format!("bfloat{{{bits}}}"),
        };
        Expr::primary(text).reading(std::slice::from_ref(operand))
    }

    fn half_to_float(&self, ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr {
        self.declare_scalar(ops, scalar);
        if scalar == Scalar::F16 {
            return Expr::cast("float", operand);
        }
        Expr::call("bfloat_to_float", std::slice::from_ref(operand))
    }

    fn float_to_half(&self, ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr {
        self.declare_scalar(ops, scalar);
        if scalar == Scalar::F16 {
            return Expr::cast("_Float16", operand);
        }
        Expr::call("float_to_bfloat", std::slice::from_ref(operand))
    }

    fn bit_cast(&self, from: Scalar, to: Scalar, operand: &Expr) -> Expr {
        shared::bit_cast(from, to, operand)
    }

    fn bit_cast_any(&self, ops: &mut Ops<'_>, to: &str, operand: &Expr) -> Expr {
        shared::bit_cast_any(ops, to, operand, "__builtin_memcpy")
    }

    fn float_function(&self, op: UnaryOp, scalar: Scalar, approximate: bool) -> Option<String> {
        shared::float_function(op, scalar, approximate)
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

    // The library's does not promise the order of zeros.
    fn ordered_minmax(&self, _is_max: bool, _scalar: Scalar) -> Option<String> {
        None
    }

    fn saturating(&self, _from: Scalar, _to: Scalar) -> Option<&'static str> {
        None
    }

    fn bit_function(&self, op: UnaryOp, wide: bool, operand: &Expr) -> Expr {
        shared::bit_function(op, wide, operand)
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
        Ok(match scope {
            BarrierScope::Subgroup => {
                (ops.helpers).require("subgroup_barrier", || SUBGROUP_BARRIER.into());
                "subgroup_barrier();".into()
            }
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
            BarrierScope::Launch => return Err("a barrier between launches".into()),
        })
    }

    fn shuffle(
        &self,
        op: SubgroupOp,
        _scalar: Scalar,
        value: &Expr,
        argument: &Expr,
        _present: Option<&Expr>,
    ) -> Expr {
        let name = match op {
            SubgroupOp::ShuffleXor => "__shfl_xor",
            SubgroupOp::ShuffleUp => "__shfl_up",
            SubgroupOp::ShuffleDown => "__shfl_down",
            _ => "__shfl",
        };
        let lane = match argument
            .text
            .bytes()
            .all(|b| b.is_ascii_digit() || b == b'u')
        {
            true => argument.clone(),
            false => Expr::cast("int", argument),
        };
        Expr::call(name, &[value.clone(), lane])
    }

    fn keeps_own_value(&self) -> bool {
        true
    }

    fn vote(&self, op: SubgroupOp, value: &Expr, _present: Option<&Expr>) -> Expr {
        let zero = Expr::primary("0");
        let one = std::slice::from_ref(value);
        match op {
            SubgroupOp::Any => Expr::infix("!=", Level::Equality, &Expr::call("__any", one), &zero),
            // Absent lanes are inactive and vote neither way.
            SubgroupOp::All => Expr::infix("!=", Level::Equality, &Expr::call("__all", one), &zero),
            _ => Expr::call("__ballot", one),
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

    fn machine(
        &self,
        ops: &mut Ops<'_>,
        stmt: &MachineStmt,
        names: &MachineNames<'_>,
    ) -> Result<String, String> {
        if stmt.op == MachineOp::IsAligned {
            return c::fragments::is_aligned(stmt, names);
        }
        let Some(lanes @ (32 | 64)) = names.lanes else {
            return Err(format!("`{}` of waves of another width", stmt.op.name()));
        };
        c::fragments::statement(self, &Wave { lanes }, &mut ops.helpers, stmt, names)
    }

    fn check_index_helper(&self) -> String {
        shared::check_index_helper()
    }

    fn shared_array(&self, _context: &Context<'_>, array: &ArrayDeclaration<'_>) -> String {
        let ArrayDeclaration {
            name,
            ty,
            len,
            align,
            ..
        } = array;
        let align = if *align > 0 {
            format!("__align__({align}) ")
        } else {
            String::new()
        };
        format!("__shared__ {align}{ty} {name}[{len}];")
    }

    fn signature(&self, context: &Context<'_>, _used: &[(BuiltinOp, u8)]) -> String {
        shared::signature(context)
    }
}
