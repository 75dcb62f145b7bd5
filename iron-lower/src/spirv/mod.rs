//! SPIR-V for Vulkan compute: one module a kernel, with one entry point.
//!
//! **Tensors** are reached by 64-bit device addresses from the parameter block (SPIR-V 1.6,
//! `PhysicalStorageBuffer64`, the Vulkan memory model), or, in the descriptor profile, are
//! storage buffers of set 0 whose binding is the tensor's slot (SPIR-V 1.3, logical addressing,
//! the GLSL450 memory model).
//!
//! **The parameter block** ([`BlockLayout`]) is the push constant range where it fits. A larger
//! one is reached through one 64-bit address in the push constants; in the descriptor profile it
//! is the uniform buffer that [`bindings`] names. There, an address field holds the byte offset of
//! the view from the start of the bound range, so that a view may begin at any element.
//!
//! **The error word** of [`Stmt::CheckIndex`](iron_ir::Stmt::CheckIndex) takes the
//! [`error_code`](crate::error_code) of the first check that fails.
//!
//! **The loop word** takes 1 where a kernel reached the driver's limit of loop turns, on drivers
//! that have one ([`SpirvOptions::loop_turns`]): the results of that launch are wrong.
//!
//! **Numbers.** Float arithmetic is decorated `NoContraction` unless the contract permits
//! contraction. Vulkan itself promises 2.5 ULP for division and leaves the rounding of `fma` to
//! the driver; [`SpirvOptions::fused_multiply_add`] says whether the driver's is known to round
//! once, and an exact expansion is emitted where it is not. Signedness is a matter of
//! operations: every integer type is declared unsigned.
//!
//! Vectors of 8 lanes are two vectors of 4 (`Parts`).

mod control;
mod exchange;
mod formula;
mod fragments;
mod hidden;
mod integer;
mod interface;
mod math;
mod memory;
mod module;
mod text;
mod value;

#[cfg(test)]
mod sketch;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use iron_ir::Handle;
use iron_ir::entity::{Local, Value};
use iron_ir::kernel::{Kernel, Span};
use iron_ir::layout::BlockLayout;
use iron_ir::op::{Const, Op};
use iron_ir::types::{Scalar, Type};
use rspirv::spirv::Op as Spv;
use rspirv::spirv::{AddressingModel, Capability, ExecutionMode, MemoryModel, Word};

use crate::error::LowerError;
use crate::profile::{Profile, SpirvOptions};

pub use interface::{Bindings, bindings};
pub use text::disassemble;

use interface::Interface;
use module::ModuleBuilder;

/// Lowers a kernel that went through the passes to a SPIR-V module.
pub fn emit(kernel: &Kernel, profile: &Profile) -> Result<Vec<u32>, LowerError> {
    let Some(options) = profile.spirv else {
        return Err(LowerError::Codegen {
            kernel: kernel.full_name(),
            profile: profile.name.to_string(),
            message: format!("profile `{}` has no SPIR-V options", profile.name),
        });
    };
    let mut emitter = Emitter::new(kernel, profile, options);
    emitter.function()?;
    Ok(emitter.finish())
}

/// The ids of a value: one, or two of four lanes each for 8 lanes.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Parts {
    ids: [Word; 2],
    n: usize,
}

impl Parts {
    fn one(id: Word) -> Parts {
        Parts { ids: [id, 0], n: 1 }
    }

    fn two(low: Word, high: Word) -> Parts {
        Parts {
            ids: [low, high],
            n: 2,
        }
    }

    fn from_slice(ids: &[Word]) -> Parts {
        match *ids {
            [low, high, ..] => Parts::two(low, high),
            [id] => Parts::one(id),
            [] => Parts { ids: [0; 2], n: 0 },
        }
    }

    fn ids(&self) -> &[Word] {
        &self.ids[..self.n]
    }
}

/// State of one lowering.
struct Emitter<'k> {
    b: ModuleBuilder,
    kernel: &'k Kernel,
    profile: &'k Profile,
    options: SpirvOptions,
    /// Ids of the values defined so far.
    values: Vec<Option<Parts>>,
    /// What bit casts were made of, by their first id.
    casts: HashMap<Word, (Parts, Type)>,
    /// Function variables of each local.
    locals: Vec<Option<Parts>>,
    interface: Interface,
    /// Merge block and continue target of each enclosing loop.
    loops: Vec<(Word, Word)>,
    /// Names the loops of the function in order.
    n_loops: u32,
    /// `OpString` of each source file.
    files: Vec<Word>,
    /// Turns of all loops so far, where they are counted.
    turns: Option<Word>,
    /// The line last marked in this block.
    marked: Option<Span>,
    /// Statement at hand, for messages.
    span: Span,
    entry: Word,
}

impl<'k> Emitter<'k> {
    fn new(kernel: &'k Kernel, profile: &'k Profile, options: SpirvOptions) -> Emitter<'k> {
        let version = if options.device_addresses {
            (1, 6)
        } else {
            (1, 3)
        };
        let mut b = ModuleBuilder::new(version);
        b.capability(Capability::Shader);
        let entry = b.id();
        Emitter {
            b,
            kernel,
            profile,
            options,
            values: vec![None; kernel.values.len()],
            casts: HashMap::new(),
            locals: vec![None; kernel.locals.len()],
            interface: Interface::default(),
            loops: Vec::new(),
            n_loops: 0,
            files: Vec::new(),
            turns: None,
            marked: None,
            span: Span::default(),
            entry,
        }
    }

    fn function(&mut self) -> Result<(), LowerError> {
        let kernel = self.kernel;
        for line in text::contract_header(kernel, self.profile.name) {
            self.b.processed(&line);
        }
        self.files = kernel.files.iter().map(|f| self.b.source_file(f)).collect();
        let name = kernel.entry_point();
        self.b.name(self.entry, &name);
        let size = if self.is_flattened() {
            [kernel.contract.threads(), 1, 1]
        } else {
            kernel.contract.workgroup
        };
        self.b
            .execution_mode(self.entry, ExecutionMode::LocalSize, &size);
        self.float_controls();
        self.declare_interface()?;
        let label = self.b.id();
        self.b.begin_block(label);
        self.load_interface()?;
        self.start_counting();
        self.block(&kernel.body)?;
        self.end_invocation()
    }

    fn finish(self) -> Vec<u32> {
        let (addressing, memory) = if self.options.device_addresses {
            (
                AddressingModel::PhysicalStorageBuffer64,
                MemoryModel::Vulkan,
            )
        } else {
            (AddressingModel::Logical, MemoryModel::GLSL450)
        };
        self.b
            .finish(self.entry, &self.kernel.entry_point(), addressing, memory)
    }

    /// Execution modes that make the driver keep what the specification keeps.
    fn float_controls(&mut self) {
        let widths = self.float_widths();
        let controls = [
            (
                self.options.signed_zero_inf_nan,
                Capability::SignedZeroInfNanPreserve,
                ExecutionMode::SignedZeroInfNanPreserve,
            ),
            (
                self.options.denorm_preserve,
                Capability::DenormPreserve,
                ExecutionMode::DenormPreserve,
            ),
            (
                self.options.round_to_even,
                Capability::RoundingModeRTE,
                ExecutionMode::RoundingModeRTE,
            ),
        ];
        for (allowed, capability, mode) in controls {
            for width in [16, 32, 64] {
                if widths & allowed & width != 0 {
                    self.b.capability(capability);
                    self.b.extension("SPV_KHR_float_controls", (1, 4));
                    self.b.execution_mode(self.entry, mode, &[width]);
                }
            }
        }
    }

    /// Widths of the floats that the kernel computes with, or-ed.
    fn float_widths(&self) -> u32 {
        let values = self.kernel.values.values().map(|v| v.ty.scalar);
        let locals = self.kernel.locals.values().map(|l| l.ty.scalar);
        values.chain(locals).fold(0, |all, scalar| match scalar {
            Scalar::F16 | Scalar::F32 | Scalar::F64 => all | scalar.bits(),
            _ => all,
        })
    }

    fn line(&self) -> u32 {
        self.span.line
    }

    /// The passes should have rewritten this.
    fn not_legalised<T>(&self, what: impl Into<String>) -> Result<T, LowerError> {
        Err(LowerError::NotLegalised {
            kernel: self.kernel.full_name(),
            profile: self.profile.name.to_string(),
            what: what.into(),
            line: self.line(),
        })
    }

    /// The ids of a value.
    fn value(&mut self, value: Value) -> Result<Parts, LowerError> {
        if let Some(parts) = self.values[value.index()] {
            return Ok(parts);
        }
        match self.kernel.values[value].op {
            Op::Const(constant) => Ok(Parts::one(self.constant(constant))),
            _ => self.not_legalised(format!("a use of {value} before its definition")),
        }
    }

    /// The one id of a scalar or of a vector of at most four lanes.
    fn single(&mut self, value: Value) -> Result<Word, LowerError> {
        let parts = self.value(value)?;
        match parts.n {
            1 => Ok(parts.ids[0]),
            _ => self.not_legalised(format!("an 8-lane value {value} where one word is needed")),
        }
    }

    fn define(&mut self, value: Value, parts: Parts) {
        if let Some(name) = &self.kernel.values[value].name {
            match parts.ids() {
                [id] => self.b.name(*id, name),
                ids => {
                    for (half, id) in ids.iter().enumerate() {
                        self.b.name(*id, &format!("{name}_{half}"));
                    }
                }
            }
        }
        self.values[value.index()] = Some(parts);
    }

    /// A scalar constant; packed types are their bits.
    fn constant(&mut self, constant: Const) -> Word {
        if constant.scalar == Scalar::Bool {
            return self.b.constant_bool(constant.bits & 1 != 0);
        }
        let ty = self.scalar_type(constant.scalar);
        let bits = constant.scalar.bits();
        let exponent = match constant.scalar {
            Scalar::F16 => 0x7C00,
            Scalar::F32 => 0x7F80_0000,
            Scalar::F64 => 0x7FF0_0000_0000_0000,
            _ => u64::MAX,
        };
        if constant.bits & exponent == exponent && !self.options.device_addresses {
            // naga refuses literals of infinity and NaN.
            let int = self.int(constant.scalar.unsigned_of_width(), constant.bits);
            return self.b.op(Spv::Bitcast, ty, &[int]);
        }
        self.b.constant(ty, constant.bits, bits)
    }

    /// A constant in every lane of a part.
    fn constant_lanes(&mut self, ty: Type, bits: u64) -> Word {
        let scalar = self.constant(Const {
            scalar: ty.scalar,
            bits,
        });
        let finite = match ty.scalar {
            Scalar::F32 => f32::from_bits(bits as u32).is_finite(),
            _ => true,
        };
        if finite || self.options.device_addresses || ty.lanes == 1 {
            return self.splat_constant(ty, scalar);
        }
        let part = self.part_type(ty);
        self.b.op(
            Spv::CompositeConstruct,
            part,
            &vec![scalar; part_lanes(ty) as usize],
        )
    }

    /// An integer constant of a scalar type's width.
    fn int(&mut self, scalar: Scalar, value: u64) -> Word {
        let bits = scalar.bits();
        let ty = self.b.type_int(bits);
        let mask = if bits == 64 {
            u64::MAX
        } else {
            (1 << bits) - 1
        };
        self.b.constant(ty, value & mask, bits)
    }

    /// The SPIR-V type of a scalar value.
    fn scalar_type(&mut self, scalar: Scalar) -> Word {
        match scalar {
            Scalar::Bool => self.b.type_bool(),
            Scalar::F16 | Scalar::F32 | Scalar::F64 => self.b.type_float(scalar.bits()),
            Scalar::I8
            | Scalar::I16
            | Scalar::I32
            | Scalar::I64
            | Scalar::U8
            | Scalar::U16
            | Scalar::U32
            | Scalar::U64
            | Scalar::BF16
            | Scalar::F8E4M3
            | Scalar::F8E5M2
            | Scalar::E8M0
            | Scalar::F4E2M1x2
            | Scalar::Int4x8 => self.b.type_int(scalar.bits()),
        }
    }

    /// The SPIR-V type of each part of a value.
    fn part_type(&mut self, ty: Type) -> Word {
        let scalar = self.scalar_type(ty.scalar);
        self.b.type_vector(scalar, part_lanes(ty))
    }

    /// A scalar constant in every lane of a part.
    fn splat_constant(&mut self, ty: Type, scalar: Word) -> Word {
        let lanes = part_lanes(ty);
        if lanes == 1 {
            return scalar;
        }
        let vector = self.part_type(ty);
        self.b.constant_vector(vector, vec![scalar; lanes as usize])
    }

    /// An integer constant in every lane of a part of `ty`'s shape.
    fn int_lanes(&mut self, ty: Type, value: u64) -> Word {
        let scalar = self.int(ty.scalar, value);
        self.splat_constant(ty, scalar)
    }

    /// A float constant in every lane of a part.
    fn float_lanes(&mut self, ty: Type, value: f64) -> Word {
        let bits = match ty.scalar {
            Scalar::F16 => u64::from(half::f16::from_f64(value).to_bits()),
            Scalar::F64 => value.to_bits(),
            _ => u64::from((value as f32).to_bits()),
        };
        self.constant_lanes(ty, bits)
    }

    fn local(&mut self, local: Local) -> Parts {
        if let Some(parts) = self.locals[local.index()] {
            return parts;
        }
        let data = &self.kernel.locals[local];
        let ty = self.part_type(data.ty);
        let n = n_parts(data.ty);
        let variables: Vec<Word> = (0..n).map(|_| self.b.function_variable(ty)).collect();
        for (half, &id) in variables.iter().enumerate() {
            let name = if n == 1 {
                data.name.to_string()
            } else {
                format!("{}_{half}", data.name)
            };
            self.b.name(id, &name);
        }
        let parts = Parts::from_slice(&variables);
        self.locals[local.index()] = Some(parts);
        parts
    }
}

/// Lanes of each part of a value.
fn part_lanes(ty: Type) -> u32 {
    u32::from(ty.lanes.min(4))
}

/// Number of parts of a value.
fn n_parts(ty: Type) -> usize {
    if ty.lanes == 8 { 2 } else { 1 }
}

/// Where the parameter block of a kernel lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockPlace {
    /// In the push constants.
    PushConstants,
    /// In a buffer whose 64-bit address is the only push constant.
    Address,
    /// In a uniform buffer at a binding of set 0.
    Uniform(u32),
}

/// Where the block lies, for a kernel and options.
pub fn block_place(kernel: &Kernel, options: &SpirvOptions) -> BlockPlace {
    if block_bytes(kernel, options) <= options.push_constant_bytes {
        return BlockPlace::PushConstants;
    }
    if options.device_addresses {
        return BlockPlace::Address;
    }
    let tensors = kernel.tensor_slots().count() as u32;
    let words = u32::from(kernel.checks_indices()) + u32::from(counts_turns(kernel, options));
    BlockPlace::Uniform(tensors + words)
}

/// Bytes of the block, with the address of the loop word where the kernel counts its turns.
pub fn block_bytes(kernel: &Kernel, options: &SpirvOptions) -> u32 {
    let by_address = options.device_addresses && counts_turns(kernel, options);
    BlockLayout::of(kernel).bytes + if by_address { 8 } else { 0 }
}

/// Whether the kernel may reach the driver's limit of loop turns, and so counts them: its loop
/// word becomes 1 where it did. With device addresses the word's address follows the block.
pub fn counts_turns(kernel: &Kernel, options: &SpirvOptions) -> bool {
    options
        .loop_turns
        .is_some_and(|limit| control::most_turns(kernel, &kernel.body) >= u64::from(limit))
}
