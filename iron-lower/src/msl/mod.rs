//! Metal Shading Language.
//!
//! Tensors are buffers in slot order, then the parameter block in `constant` memory (where it
//! holds more than addresses), then the error word. Apple's compiler exists on macOS only; on
//! other machines the text is checked by clang over a header that stands for Metal's.

mod fragments;

use iron_ir::kernel::{Access, Kernel};
use iron_ir::layout::{BlockLayout, FieldKind};
use iron_ir::machine::{MachineOp, MachineStmt};
use iron_ir::op::{AtomicOp, BarrierMemory, BarrierScope, BuiltinOp, SubgroupOp, UnaryOp};
use iron_ir::types::{Scalar, Type};

use crate::c;
use crate::c::dialect::{ArrayDeclaration, Context, Dialect, MachineNames, Memory, Printed};
use crate::c::expr::{Expr, Level};
use crate::c::ops::Ops;
use crate::error::LowerError;
use crate::places::Places;
use crate::profile::{Profile, has_block_buffer};
use fragments::SimdGroup;

/// The text of a kernel after the passes.
pub fn emit(kernel: &Kernel, profile: &Profile) -> Result<(String, Places), LowerError> {
    c::emit(kernel, profile, &Msl)
}

/// The name of the entry point in the text.
pub fn entry_point(kernel: &Kernel) -> String {
    c::entry_name(kernel, &Msl)
}

/// The language.
pub(crate) struct Msl;

/// Words of Metal beside C++'s.
const RESERVED: &[&str] = &[
    "kernel",
    "device",
    "thread",
    "threadgroup",
    "constant",
    "vertex",
    "fragment",
    "metal",
    "sampler",
    "texture",
    "array",
    "array_ref",
    "vec",
    "matrix",
    "visible",
    "stitchable",
    "mesh",
    "object",
    "intersection",
    "ray_data",
    "patch",
    "depth",
    "color",
    "buffer",
    "attribute",
    "stage_in",
    "position",
    "access",
    "coord",
    "filter",
    "address",
    "level",
    "bias",
    "gradient2d",
    "imageblock",
    "imageblock_data",
    "raytracing",
    "simdgroup",
    "quadgroup",
    "imageblocks",
    "as_type",
    "mad24",
    "mul24",
    "mulhi",
    "madhi",
    "addsat",
    "subsat",
    "hadd",
    "rhadd",
    "absdiff",
    "extract_bits",
    "insert_bits",
    "reverse_bits",
    "fast",
    "precise",
    "tensor",
    "numeric_limits",
    "command_buffer",
    "render_command",
    "compute_command",
    "is_same",
    "enable_if",
    "function",
    "min3",
    "max3",
    "median3",
    "fmin3",
    "fmax3",
    "fmedian3",
    "distance",
    "faceforward",
    "reflect",
    "refract",
    "length_squared",
    "distance_squared",
    "unpack",
    "pack",
    "discard_fragment",
    "dfdx",
    "dfdy",
    "fwidth",
    "ldexp",
    "frexp",
    "signbit",
    "MAXFLOAT",
    "HUGE_VALH",
    "MAXHALF",
    "M_PI_H",
    "HALF_MAX",
    "uniform",
    "ptr",
    "program",
    "grid",
    "dextents",
    "extents",
    "cooperative_tensor",
    "interpolate",
    "prefetch",
    "logging",
    "os_log",
];

impl Dialect for Msl {
    fn reserved(&self) -> &'static [&'static str] {
        RESERVED
    }

    fn prologue(&self) -> &'static str {
        "#include <metal_stdlib>\n\n\
         // Every operation rounds by itself; a fused multiply-add is written as one.\n\
         #pragma METAL fp math_mode(safe)\n\
         #pragma METAL fp contract(off)\n\n\
         using namespace metal;\n"
    }

    fn helper_prefix(&self) -> &'static str {
        "inline "
    }

    fn scalar_type(&self, scalar: Scalar) -> &'static str {
        match scalar {
            Scalar::Bool => "bool",
            Scalar::I8 => "char",
            Scalar::I16 => "short",
            Scalar::I32 => "int",
            Scalar::I64 => "long",
            Scalar::U8 | Scalar::F8E4M3 | Scalar::F8E5M2 | Scalar::E8M0 | Scalar::F4E2M1x2 => {
                "uchar"
            }
            Scalar::U16 => "ushort",
            Scalar::U32 | Scalar::Int4x8 => "uint",
            Scalar::U64 => "ulong",
            Scalar::F16 => "half",
            Scalar::BF16 => "bfloat",
            Scalar::F32 => "float",
            // Refused by the profile before it comes here.
            Scalar::F64 => "double",
        }
    }

    fn long_suffix(&self) -> &'static str {
        "l"
    }

    fn cast(&self, ty: &str, operand: &Expr) -> Expr {
        Expr::call(ty, std::slice::from_ref(operand))
    }

    fn vector_type(&self, ty: Type) -> String {
        format!("{}{}", self.scalar_type(ty.scalar), ty.lanes)
    }

    fn has_vector(&self, ty: Type) -> bool {
        matches!(ty.lanes, 2 | 4)
    }

    fn vector_maker(&self, ty: Type) -> String {
        self.vector_type(ty)
    }

    fn has_vector_operators(&self) -> bool {
        true
    }

    fn has_vector_functions(&self) -> bool {
        true
    }

    fn float_bits(&self, bits: u32) -> Expr {
        Expr::primary(format!("as_type<float>(0x{bits:08x}u)"))
    }

    fn double_bits(&self, bits: u64) -> Expr {
        Expr::primary(format!("as_type<double>(0x{bits:016x}ul)"))
    }

    fn half_bits(&self, bits: u16) -> Expr {
        Expr::primary(format!("as_type<half>(ushort(0x{bits:04x}))"))
    }

    fn half_literal(&self, _bits: u16, decimal: &str) -> Expr {
        Expr::primary(format!("half({decimal})"))
    }

    fn bfloat_bits(&self, bits: u16) -> Expr {
        Expr::primary(format!("as_type<bfloat>(ushort(0x{bits:04x}))"))
    }

    fn bfloat_literal(&self, _bits: u16, decimal: &str) -> Expr {
        Expr::primary(format!("bfloat({decimal})"))
    }

    fn bits_of_half(&self, _ops: &mut Ops<'_>, _scalar: Scalar, operand: &Expr) -> Expr {
        Expr::call("as_type<ushort>", std::slice::from_ref(operand))
    }

    fn half_of_bits(&self, _ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr {
        // The argument must have 16 bits, and an expression of ushorts is an int.
        let bits = if operand.level == Level::Primary {
            operand.clone()
        } else {
            self.cast("ushort", operand)
        };
        Expr::call(&format!("as_type<{}>", self.scalar_type(scalar)), &[bits])
    }

    fn half_to_float(&self, _ops: &mut Ops<'_>, _scalar: Scalar, operand: &Expr) -> Expr {
        self.cast("float", operand)
    }

    fn float_to_half(&self, _ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr {
        self.cast(self.scalar_type(scalar), operand)
    }

    fn bit_cast(&self, _from: Scalar, to: Scalar, operand: &Expr) -> Expr {
        let name = format!("as_type<{}>", self.scalar_type(to));
        Expr::call(&name, std::slice::from_ref(operand))
    }

    fn bit_cast_any(&self, ops: &mut Ops<'_>, to: &str, operand: &Expr) -> Expr {
        // `as_type` takes the language's types; a struct of words is not one.
        ops.helpers.require("bit_cast", || {
            "template <typename To, typename From>\n\
             inline To bit_cast(From from) {\n    \
             static_assert(sizeof(To) == sizeof(From), \"sizes differ\");\n    \
             return *reinterpret_cast<thread To*>(&from);\n}"
                .into()
        });
        Expr::call(&format!("bit_cast<{to}>"), std::slice::from_ref(operand))
    }

    fn float_function(&self, op: UnaryOp, scalar: Scalar, approximate: bool) -> Option<String> {
        if scalar == Scalar::F64 {
            return None;
        }
        let exact = |name: &str| Some(format!("precise::{name}"));
        let loose = |name: &str| {
            Some(format!(
                "{}::{name}",
                if approximate { "fast" } else { "precise" }
            ))
        };
        match op {
            UnaryOp::Abs => Some("fabs".into()),
            UnaryOp::Sqrt => exact("sqrt"),
            UnaryOp::Rsqrt => loose("rsqrt"),
            UnaryOp::Exp => loose("exp"),
            UnaryOp::Exp2 => loose("exp2"),
            UnaryOp::Log => loose("log"),
            UnaryOp::Log2 => loose("log2"),
            UnaryOp::Sin => loose("sin"),
            UnaryOp::Cos => loose("cos"),
            UnaryOp::Tanh => exact("tanh"),
            UnaryOp::Floor => Some("floor".into()),
            UnaryOp::Ceil => Some("ceil".into()),
            UnaryOp::Trunc => Some("trunc".into()),
            UnaryOp::RoundEven => Some("rint".into()),
            UnaryOp::Erf
            | UnaryOp::Neg
            | UnaryOp::Not
            | UnaryOp::IsNan
            | UnaryOp::IsFinite
            | UnaryOp::CountOnes
            | UnaryOp::LeadingZeros
            | UnaryOp::TrailingZeros
            | UnaryOp::ReverseBits => None,
        }
    }

    fn pow(&self, _scalar: Scalar, approximate: bool) -> String {
        if approximate {
            "fast::pow".into()
        } else {
            "precise::pow".into()
        }
    }

    fn fma(&self, _scalar: Scalar) -> String {
        "fma".into()
    }

    // The language does not promise the order of zeros.
    fn ordered_minmax(&self, _is_max: bool, _scalar: Scalar) -> Option<String> {
        None
    }

    fn saturating(&self, _from: Scalar, _to: Scalar) -> Option<&'static str> {
        None
    }

    fn bit_function(&self, op: UnaryOp, _wide: bool, operand: &Expr) -> Expr {
        let one = std::slice::from_ref(operand);
        let count = |name| self.cast("uint", &Expr::call(name, one));
        match op {
            UnaryOp::CountOnes => count("popcount"),
            UnaryOp::LeadingZeros => count("clz"),
            UnaryOp::TrailingZeros => count("ctz"),
            _ => Expr::call("reverse_bits", one),
        }
    }

    fn mul_high(&self, _scalar: Scalar) -> &'static str {
        "mulhi"
    }

    fn pointer(&self, memory: Memory, ty: &str) -> String {
        match memory {
            Memory::Global(Access::Read) => format!("device const {ty}*"),
            _ => format!("{} {ty}*", space(memory)),
        }
    }

    fn builtin(&self, context: &Context<'_>, op: BuiltinOp, axis: u8) -> Expr {
        let member = ["x", "y", "z"]
            .get(usize::from(axis))
            .copied()
            .unwrap_or("z");
        let number = |n: u32| Expr::primary(format!("{n}u"));
        let vector = |name: &str| Expr::primary(format!("{name}.{member}"));
        match op {
            BuiltinOp::GroupId => vector("group_id"),
            BuiltinOp::GroupCount => vector("group_count"),
            BuiltinOp::LocalId if context.group_size(axis) == 1 => number(0),
            BuiltinOp::LocalId => vector("local_id"),
            BuiltinOp::GroupSize => number(context.group_size(axis)),
            BuiltinOp::GlobalId => vector("global_id"),
            BuiltinOp::LocalIndex => Expr::primary("local_index"),
            BuiltinOp::GroupThreads => number(context.kernel.contract.threads()),
            BuiltinOp::SubgroupId => Expr::primary("subgroup_id"),
            BuiltinOp::SubgroupCount => Expr::primary("subgroup_count"),
            BuiltinOp::SubgroupLane => Expr::primary("subgroup_lane"),
            BuiltinOp::SubgroupSize => Expr::primary("subgroup_size"),
        }
    }

    fn barrier(
        &self,
        _ops: &mut Ops<'_>,
        _context: &Context<'_>,
        scope: BarrierScope,
        memory: BarrierMemory,
    ) -> Result<String, String> {
        let flags = match memory {
            BarrierMemory::Shared => "mem_flags::mem_threadgroup",
            BarrierMemory::SharedAndGlobal => "mem_flags::mem_device | mem_flags::mem_threadgroup",
            BarrierMemory::Device => return Err("a barrier of the device's memory".into()),
        };
        match scope {
            BarrierScope::Subgroup => Ok(format!("simdgroup_barrier({flags});")),
            BarrierScope::Workgroup => Ok(format!("threadgroup_barrier({flags});")),
            BarrierScope::Grid => Err("a barrier over the grid".into()),
            BarrierScope::Launch => Err("a barrier between launches".into()),
        }
    }

    fn shuffle(
        &self,
        op: SubgroupOp,
        scalar: Scalar,
        value: &Expr,
        argument: &Expr,
        _present: Option<&Expr>,
    ) -> Expr {
        let name = match op {
            SubgroupOp::ShuffleXor => "simd_shuffle_xor",
            SubgroupOp::ShuffleUp => "simd_shuffle_up",
            SubgroupOp::ShuffleDown => "simd_shuffle_down",
            _ => "simd_shuffle",
        };
        let lane = self.cast("ushort", argument);
        if scalar.bytes() < 8 {
            return Expr::call(name, &[value.clone(), lane]);
        }
        // 64-bit values travel as two words.
        let words = Expr::call("as_type<uint2>", std::slice::from_ref(value));
        let moved = Expr::call(name, &[words, lane]);
        Expr::call(&format!("as_type<{}>", self.scalar_type(scalar)), &[moved])
    }

    fn keeps_own_value(&self) -> bool {
        false
    }

    fn vote(&self, op: SubgroupOp, value: &Expr, _present: Option<&Expr>) -> Expr {
        let one = std::slice::from_ref(value);
        match op {
            SubgroupOp::Any => Expr::call("simd_any", one),
            SubgroupOp::All => Expr::call("simd_all", one),
            _ => {
                let vote = Expr::call("simd_ballot", one);
                Expr::call("ulong", &[Expr::call("simd_vote::vote_t", &[vote])])
            }
        }
    }

    fn atomic(
        &self,
        ops: &mut Ops<'_>,
        op: AtomicOp,
        scalar: Scalar,
        memory: Memory,
        cell: &Expr,
        value: Option<&Expr>,
        compare: Option<&Expr>,
    ) -> Printed {
        let kind = match (scalar, memory) {
            (Scalar::I32, _) => "atomic_int",
            (Scalar::U32, _) => "atomic_uint",
            // Metal's atomic floats live in device memory only.
            (Scalar::F32, Memory::Global(_)) => "atomic_float",
            (Scalar::F32, _) => "atomic_uint",
            _ => return Err(format!("an atomic of {scalar}")),
        };
        let space = space(memory);
        let is_bits = scalar == Scalar::F32 && kind == "atomic_uint";
        let address = Expr::primary(format!(
            "reinterpret_cast<{space} {kind}*>({})",
            Expr::prefix('&', cell).text
        ))
        .reading(std::slice::from_ref(cell));
        let relaxed = Expr::primary("memory_order_relaxed");
        let value = value.map(|v| match is_bits {
            true if op != AtomicOp::Add => Expr::call("as_type<uint>", std::slice::from_ref(v)),
            _ => v.clone(),
        });
        let name = match op {
            AtomicOp::Add if is_bits => {
                ops.helpers.require(&format!("atomic_add_float {space}"), || {
                    format!(
                        "inline float atomic_add_float({space} atomic_uint* cell, float value) {{\n    \
                         uint old = atomic_load_explicit(cell, memory_order_relaxed);\n    \
                         while (!atomic_compare_exchange_weak_explicit(\n        \
                         cell, &old, as_type<uint>(as_type<float>(old) + value),\n        \
                         memory_order_relaxed, memory_order_relaxed)) {{\n    }}\n    \
                         return as_type<float>(old);\n}}"
                    )
                });
                let value = value.ok_or("an atomic sum of nothing")?;
                return Ok(Expr::call("atomic_add_float", &[address, value]));
            }
            AtomicOp::CompareExchange => {
                let ty = self.scalar_type(scalar);
                ops.helpers.require(&format!("atomic_compare_exchange {space} {kind}"), || {
                    format!(
                        "// The old value; the weak form may fail without cause.\n\
                         inline {ty} atomic_compare_exchange({space} {kind}* cell, {ty} compare, {ty} value) {{\n    \
                         {ty} old = compare;\n    \
                         while (!atomic_compare_exchange_weak_explicit(\n        \
                         cell, &old, value, memory_order_relaxed, memory_order_relaxed)) {{\n        \
                         if (old != compare) return old;\n    }}\n    \
                         return compare;\n}}"
                    )
                });
                let (Some(value), Some(compare)) = (value, compare) else {
                    return Err("a compare-exchange without operands".into());
                };
                return Ok(Expr::call(
                    "atomic_compare_exchange",
                    &[address, compare.clone(), value],
                ));
            }
            AtomicOp::Add => "atomic_fetch_add_explicit",
            AtomicOp::Min => "atomic_fetch_min_explicit",
            AtomicOp::Max => "atomic_fetch_max_explicit",
            AtomicOp::And => "atomic_fetch_and_explicit",
            AtomicOp::Or => "atomic_fetch_or_explicit",
            AtomicOp::Xor => "atomic_fetch_xor_explicit",
            AtomicOp::Exchange => "atomic_exchange_explicit",
            AtomicOp::Load => "atomic_load_explicit",
            AtomicOp::Store => "atomic_store_explicit",
        };
        if scalar == Scalar::F32
            && !matches!(
                op,
                AtomicOp::Add | AtomicOp::Exchange | AtomicOp::Load | AtomicOp::Store
            )
        {
            return Err(format!("an atomic `{}` of f32", op.name()));
        }
        let mut arguments = vec![address];
        arguments.extend(value);
        arguments.push(relaxed);
        let call = Expr::call(name, &arguments);
        Ok(if is_bits && op != AtomicOp::Store {
            Expr::call("as_type<float>", &[call])
        } else {
            call
        })
    }

    fn machine(
        &self,
        ops: &mut Ops<'_>,
        stmt: &MachineStmt,
        names: &MachineNames<'_>,
    ) -> Result<String, String> {
        match stmt.op {
            MachineOp::IsAligned => c::fragments::is_aligned(stmt, names),
            _ => c::fragments::statement(self, &SimdGroup, &mut ops.helpers, stmt, names),
        }
    }

    fn fragment_array(&self, declaration: &ArrayDeclaration<'_>) -> Option<String> {
        Some(fragments::array(declaration))
    }

    fn check_index_helper(&self) -> String {
        "// The index, or 0 after noting the line in the launch's error word.\n\
         inline uint check_index(device atomic_uint* error_word, uint index, uint bound, uint code) {\n    \
         if (index < bound) return index;\n    \
         uint expected = 0u;\n    \
         while (!atomic_compare_exchange_weak_explicit(\n        \
         error_word, &expected, code, memory_order_relaxed, memory_order_relaxed)) {\n        \
         if (expected != 0u) break;\n    }\n    \
         return 0u;\n}"
            .into()
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
            format!("alignas({align}) ")
        } else {
            String::new()
        };
        // C++ wants the alignment before every other specifier.
        format!("{align}threadgroup {ty} {name}[{len}];")
    }

    fn entry_types(&self, context: &Context<'_>) -> String {
        if !has_block_buffer(context.kernel) {
            return String::new();
        }
        let layout = BlockLayout::of(context.kernel);
        let addresses = layout.fields.iter().filter(|f| is_address(f.kind)).count();
        let mut text = String::from("struct Parameters {\n");
        if addresses > 0 {
            text.push_str(&format!(
                "    ulong addresses[{addresses}]; // of buffers, bound below\n"
            ));
        }
        for (field, name) in layout.fields.iter().zip(context.field_names) {
            if !is_address(field.kind) {
                text.push_str(&format!("    {} {name};\n", self.scalar_type(field.scalar)));
            }
        }
        text.push_str("};\n\n");
        text
    }

    fn entry_builtins(
        &self,
        context: &Context<'_>,
        asked: &[(BuiltinOp, u8)],
    ) -> Vec<(BuiltinOp, u8)> {
        let mut used: Vec<(BuiltinOp, u8)> = Vec::new();
        let mut add = |op| {
            if !used.iter().any(|(known, _)| *known == op) {
                used.push((op, 0));
            }
        };
        for &(op, axis) in asked {
            match op {
                BuiltinOp::GroupSize | BuiltinOp::GroupThreads => {}
                BuiltinOp::LocalId if context.group_size(axis) == 1 => {}
                op => add(op),
            }
        }
        let mut exchanges = false;
        context.kernel.body.walk(&mut |stmt, _| {
            exchanges |= matches!(stmt, iron_ir::Stmt::Subgroup { .. });
        });
        if exchanges {
            add(BuiltinOp::SubgroupLane);
            add(BuiltinOp::SubgroupSize);
            if context.has_partial_subgroup() {
                add(BuiltinOp::SubgroupId);
            }
        }
        used
    }

    fn signature(&self, context: &Context<'_>, used: &[(BuiltinOp, u8)]) -> String {
        let kernel = context.kernel;
        let layout = BlockLayout::of(kernel);
        let mut parameters = Vec::new();
        let mut slot = 0u32;
        for field in &layout.fields {
            if let FieldKind::Address(param) = field.kind
                && let Some(tensor) = kernel.tensor(param)
            {
                let ty = self.scalar_type(context.profile.legal.memory_scalar(tensor.scalar));
                let pointer = self.pointer(Memory::Global(tensor.access), ty);
                let name = &context.param_names[iron_ir::Handle::index(param)];
                parameters.push(format!("{pointer} {name} [[buffer({slot})]]"));
                slot += 1;
            }
        }
        if has_block_buffer(kernel) {
            parameters.push(format!(
                "constant Parameters& parameters [[buffer({slot})]]"
            ));
            slot += 1;
        }
        if kernel.checks_indices() {
            parameters.push(format!("device atomic_uint* error_word [[buffer({slot})]]"));
        }
        for (op, _) in used {
            let (ty, name, attribute) = match op {
                BuiltinOp::GroupId => ("uint3", "group_id", "threadgroup_position_in_grid"),
                BuiltinOp::GroupCount => ("uint3", "group_count", "threadgroups_per_grid"),
                BuiltinOp::LocalId => ("uint3", "local_id", "thread_position_in_threadgroup"),
                BuiltinOp::GlobalId => ("uint3", "global_id", "thread_position_in_grid"),
                BuiltinOp::LocalIndex => ("uint", "local_index", "thread_index_in_threadgroup"),
                BuiltinOp::SubgroupId => ("uint", "subgroup_id", "simdgroup_index_in_threadgroup"),
                BuiltinOp::SubgroupCount => {
                    ("uint", "subgroup_count", "simdgroups_per_threadgroup")
                }
                BuiltinOp::SubgroupLane => ("uint", "subgroup_lane", "thread_index_in_simdgroup"),
                BuiltinOp::SubgroupSize => ("uint", "subgroup_size", "threads_per_simdgroup"),
                BuiltinOp::GroupSize | BuiltinOp::GroupThreads => continue,
            };
            parameters.push(format!("{ty} {name} [[{attribute}]]"));
        }
        format!(
            "[[max_total_threads_per_threadgroup({})]]\nkernel void {}(\n    {}\n)",
            kernel.contract.threads(),
            context.entry,
            parameters.join(",\n    ")
        )
    }

    fn block_field(&self, name: &str) -> String {
        format!("parameters.{name}")
    }
}

fn space(memory: Memory) -> &'static str {
    match memory {
        Memory::Global(_) => "device",
        Memory::Shared => "threadgroup",
        Memory::Private => "thread",
    }
}

fn is_address(kind: FieldKind) -> bool {
    match kind {
        FieldKind::Address(_) | FieldKind::ErrorWord => true,
        FieldKind::Stride(..)
        | FieldKind::Dim(_)
        | FieldKind::Scalar(_)
        | FieldKind::Aligned
        | FieldKind::TensorMap(..) => false,
    }
}
