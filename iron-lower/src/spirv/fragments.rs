//! Fragments as cooperative matrices of subgroup scope (`SPV_KHR_cooperative_matrix`; `bf16` by
//! `SPV_KHR_bfloat16`).
//!
//! A fragment of sums is a function variable of its own. Shared tiles that threads access 16 bytes
//! at a time and no other way are arrays of four words, whatever their elements are: a matrix is
//! read from memory of any type.

use std::collections::HashSet;

use iron_ir::entity::Array;
use iron_ir::kernel::Kernel;
use iron_ir::layout::FieldKind;
use iron_ir::machine::{FRAGMENT, MachineOp, MachineStmt};
use iron_ir::op::{Op, Place, Stmt};
use iron_ir::types::Scalar;
use iron_ir::{Handle, Type};
use rspirv::dr::Operand;
use rspirv::spirv::{
    Capability, CooperativeMatrixLayout, CooperativeMatrixUse, MemoryAccess, Op as Spv, Scope,
    StorageClass, Word,
};

use super::{Emitter, Parts};
use crate::error::LowerError;

/// Bytes of a cell of a wide array.
pub(super) const WIDE_BYTES: u32 = 16;

/// A cell of a wide array.
pub(super) const WIDE: Type = Scalar::U32.x(4);

/// The shared arrays that products read and threads access 16 bytes at a time.
pub(super) fn wide_arrays(kernel: &Kernel) -> HashSet<Array> {
    let mut read = HashSet::new();
    let mut other = HashSet::new();
    let mut note = |place: Place, ty: Type| {
        if let Place::Array(array) = place
            && ty.bytes() != WIDE_BYTES
        {
            other.insert(array);
        }
    };
    kernel.body.walk(&mut |stmt, _| match stmt {
        Stmt::Let(value) => {
            if let Op::Load { place, .. } = kernel.values[*value].op {
                note(place, kernel.ty(*value));
            }
        }
        Stmt::Store { place, value, .. } => note(*place, kernel.ty(*value)),
        Stmt::Atomic { place, .. } => note(*place, Type::U32),
        Stmt::Machine(machine) if machine.op == MachineOp::FragmentProduct => {
            read.extend(machine.arrays.iter().skip(1));
        }
        _ => {}
    });
    read.retain(|array| {
        let data = &kernel.arrays[*array];
        let bytes = data.len * data.scalar.bytes();
        !other.contains(array) && bytes.is_multiple_of(WIDE_BYTES)
    });
    read
}

/// A fragment's part in a product.
#[derive(Clone, Copy)]
enum Use {
    A,
    B,
    Sum,
}

impl Emitter<'_> {
    /// Declares the fragments of an array.
    pub(super) fn declare_fragments(&mut self, array: Array) {
        let data = &self.kernel.arrays[array];
        let lanes = self.profile.legal.subgroup_size.unwrap_or(32);
        let own = (FRAGMENT * FRAGMENT / lanes).max(1);
        let ty = self.fragment_type(Scalar::F32, Use::Sum);
        let variables: Vec<Word> = (0..data.len / own)
            .map(|n| {
                let variable = self.b.function_variable(ty);
                self.b.name(variable, &format!("{}_{n}", data.name));
                variable
            })
            .collect();
        self.interface.fragments.insert(array, variables);
    }

    fn fragment_type(&mut self, scalar: Scalar, part: Use) -> Word {
        self.b.capability(Capability::CooperativeMatrixKHR);
        self.b.extension("SPV_KHR_cooperative_matrix", NEVER_CORE);
        let component = match scalar {
            Scalar::BF16 => {
                self.b.capability(Capability::BFloat16CooperativeMatrixKHR);
                self.b.type_bfloat()
            }
            other => self.b.type_float(other.bits()),
        };
        let scope = self.b.constant_u32(Scope::Subgroup as u32);
        let side = self.b.constant_u32(FRAGMENT);
        let part = match part {
            Use::A => CooperativeMatrixUse::MatrixAKHR,
            Use::B => CooperativeMatrixUse::MatrixBKHR,
            Use::Sum => CooperativeMatrixUse::MatrixAccumulatorKHR,
        };
        let part = self.b.constant_u32(part as u32);
        self.b.type_cooperative_matrix(component, scope, side, part)
    }

    /// A machine operation; those of other machines are refused.
    pub(super) fn machine(&mut self, stmt: &MachineStmt) -> Result<(), LowerError> {
        let number = |n: usize| stmt.numbers.get(n).copied().unwrap_or(0);
        match stmt.op {
            MachineOp::IsAligned => self.is_aligned(stmt),
            MachineOp::FragmentFill => {
                let ty = self.fragment_type(Scalar::F32, Use::Sum);
                let float = self.b.type_float(32);
                let value = self.b.constant(float, u64::from(number(1)), 32);
                let value = self.b.constant_vector(ty, vec![value]);
                for variable in self.fragments(stmt)? {
                    self.b.effect(
                        Spv::Store,
                        vec![Operand::IdRef(variable), Operand::IdRef(value)],
                    );
                }
                Ok(())
            }
            MachineOp::FragmentProduct => self.fragment_product(stmt),
            MachineOp::FragmentStore | MachineOp::FragmentLoad => {
                let variables = self.fragments(stmt)?;
                let (Some(&variable), [_, memory], [at]) = (
                    variables.get(number(0) as usize),
                    &stmt.arrays[..],
                    &stmt.operands[..],
                ) else {
                    return self.not_legalised("a fragment without its parts");
                };
                let at = self.single(*at)?;
                let (pointer, pitch) = self.line_pointer(*memory, at, number(1))?;
                let ty = self.fragment_type(Scalar::F32, Use::Sum);
                if stmt.op == MachineOp::FragmentLoad {
                    let id = self.load_fragment(ty, pointer, pitch, true);
                    let operands = vec![Operand::IdRef(variable), Operand::IdRef(id)];
                    self.b.effect(Spv::Store, operands);
                    return Ok(());
                }
                let id = self.b.op(Spv::Load, ty, &[variable]);
                let mut operands = vec![Operand::IdRef(pointer), Operand::IdRef(id)];
                operands.extend(self.lines(pitch, true));
                self.b.effect(Spv::CooperativeMatrixStoreKHR, operands);
                Ok(())
            }
            other => self.not_legalised(format!("the machine operation `{}`", other.name())),
        }
    }

    fn fragments(&mut self, stmt: &MachineStmt) -> Result<Vec<Word>, LowerError> {
        let variables = (stmt.arrays.first()).and_then(|a| self.interface.fragments.get(a));
        match variables {
            Some(variables) => Ok(variables.clone()),
            None => self.not_legalised("fragments of an undeclared array"),
        }
    }

    fn is_aligned(&mut self, stmt: &MachineStmt) -> Result<(), LowerError> {
        let word = self.interface.fields.get(&FieldKind::Aligned).copied();
        let (Some(result), Some(param), Some(word)) = (stmt.result, stmt.source, word) else {
            return self.not_legalised("an alignment that nobody asked for");
        };
        let (u32_type, bool_type) = (self.b.type_int(32), self.b.type_bool());
        let mask = self.b.constant_u32(1 << param.index());
        let zero = self.b.constant_u32(0);
        let bit = self.b.op(Spv::BitwiseAnd, u32_type, &[word, mask]);
        let id = self.b.op(Spv::INotEqual, bool_type, &[bit, zero]);
        self.define(result, Parts::one(id));
        Ok(())
    }

    fn fragment_product(&mut self, stmt: &MachineStmt) -> Result<(), LowerError> {
        let sums = self.fragments(stmt)?;
        let ([_, a, b], [a_at, b_at]) = (&stmt.arrays[..], &stmt.operands[..]) else {
            return self.not_legalised("a product of fragments without its parts");
        };
        let [
            rows,
            columns,
            is_bf16,
            a_pitch,
            a_skip,
            a_by_k,
            b_pitch,
            b_skip,
            b_by_k,
        ] = stmt.numbers[..]
        else {
            return self.not_legalised("a product of fragments without its numbers");
        };
        let scalar = match is_bf16 {
            1 => Scalar::BF16,
            _ => Scalar::F16,
        };
        let (a_at, b_at) = (self.single(*a_at)?, self.single(*b_at)?);
        // Lines of memory are rows of the matrix: of a where they run along `k`.
        let left = (0..rows).map(|i| {
            let ty = self.fragment_type(scalar, Use::A);
            self.operand(*a, ty, (a_at, i * a_skip), a_pitch, a_by_k == 1)
        });
        let left = left.collect::<Result<Vec<Word>, LowerError>>()?;
        let ty = self.fragment_type(Scalar::F32, Use::Sum);
        for j in 0..columns {
            let right_type = self.fragment_type(scalar, Use::B);
            let right = self.operand(*b, right_type, (b_at, j * b_skip), b_pitch, b_by_k == 0)?;
            for (i, left) in left.iter().enumerate() {
                let Some(&variable) = sums.get(i * columns as usize + j as usize) else {
                    return self.not_legalised("a product past the fragments");
                };
                let sum = self.b.op(Spv::Load, ty, &[variable]);
                let operands = [*left, right, sum];
                let sum = self.b.op(Spv::CooperativeMatrixMulAddKHR, ty, &operands);
                let operands = vec![Operand::IdRef(variable), Operand::IdRef(sum)];
                self.b.effect(Spv::Store, operands);
            }
        }
        Ok(())
    }

    /// Reads an operand's fragment that begins `skip` elements behind `at`.
    fn operand(
        &mut self,
        array: Array,
        ty: Word,
        (at, skip): (Word, u32),
        pitch: u32,
        by_rows: bool,
    ) -> Result<Word, LowerError> {
        let at = match skip {
            0 => at,
            skip => {
                let (u32_type, skip) = (self.b.type_int(32), self.b.constant_u32(skip));
                self.b.op(Spv::IAdd, u32_type, &[at, skip])
            }
        };
        let (pointer, pitch) = self.line_pointer(array, at, pitch)?;
        Ok(self.load_fragment(ty, pointer, pitch, by_rows))
    }

    /// The pointer to an element of a shared array, and lines' distance, in the array's cells.
    fn line_pointer(
        &mut self,
        array: Array,
        at: Word,
        pitch: u32,
    ) -> Result<(Word, u32), LowerError> {
        let Some(&base) = self.interface.arrays.get(&array) else {
            return self.not_legalised("a fragment of an undeclared array");
        };
        let scalar = self.kernel.arrays[array].scalar;
        let is_wide = self.interface.wide_arrays.contains(&array);
        let (at, pitch, element) = if is_wide {
            let each = WIDE_BYTES / scalar.bytes();
            (
                self.wide_index(at, scalar),
                pitch / each,
                self.part_type(WIDE),
            )
        } else {
            let cell = self.cell_scalar(Place::Array(array), scalar);
            let element = self.memory_type(cell, StorageClass::Workgroup);
            (at, pitch, element)
        };
        let pointer = self.b.type_pointer(StorageClass::Workgroup, element);
        Ok((self.b.op(Spv::AccessChain, pointer, &[base, at]), pitch))
    }

    /// The cell of a wide array that holds an element.
    pub(super) fn wide_index(&mut self, at: Word, scalar: Scalar) -> Word {
        let shift = (WIDE_BYTES / scalar.bytes()).trailing_zeros();
        let (u32_type, shift) = (self.b.type_int(32), self.b.constant_u32(shift));
        self.b.op(Spv::ShiftRightLogical, u32_type, &[at, shift])
    }

    fn load_fragment(&mut self, ty: Word, pointer: Word, pitch: u32, by_rows: bool) -> Word {
        let mut operands = vec![Operand::IdRef(pointer)];
        operands.extend(self.lines(pitch, by_rows));
        self.b.op_with(Spv::CooperativeMatrixLoadKHR, ty, operands)
    }

    /// Layout, distance of lines, and visibility under the Vulkan memory model.
    fn lines(&mut self, pitch: u32, by_rows: bool) -> Vec<Operand> {
        let layout = match by_rows {
            true => CooperativeMatrixLayout::RowMajorKHR,
            false => CooperativeMatrixLayout::ColumnMajorKHR,
        };
        let layout = self.b.constant_u32(layout as u32);
        let pitch = self.b.constant_u32(pitch);
        let mut operands = vec![Operand::IdRef(layout), Operand::IdRef(pitch)];
        if self.options.device_addresses {
            operands.push(Operand::MemoryAccess(MemoryAccess::NON_PRIVATE_POINTER));
        }
        operands
    }
}

/// No version of SPIR-V contains the extension.
const NEVER_CORE: (u8, u8) = (u8::MAX, 0);
