//! Loads and stores.
//!
//! Through device addresses a vector is one access with its whole alignment, in the widest
//! integer form where 8 narrow lanes fit it. Storage buffers, shared and private arrays are
//! accessed element by element.

use iron_ir::entity::Value;
use iron_ir::kernel::Access;
use iron_ir::layout::FieldKind;
use iron_ir::op::Place;
use iron_ir::types::{Scalar, Type};
use rspirv::dr::Operand;
use rspirv::spirv::{MemoryAccess, Op as Spv, StorageClass, Word};

use super::fragments::WIDE;
use super::{Emitter, Parts, n_parts, part_lanes};
use crate::error::LowerError;

/// A place with its index computed.
pub(super) struct Target {
    pub class: StorageClass,
    /// Address of the first element, or the variable.
    pub base: Word,
    /// Index of the first element in the variable; absent for addresses.
    pub index: Option<Word>,
    /// What the cells are kept as.
    pub cell: Scalar,
    /// Other invocations may see the cells.
    pub is_visible: bool,
    index_is_wide: bool,
}

impl Emitter<'_> {
    pub(super) fn load(
        &mut self,
        place: Place,
        indices: &[Value],
        ty: Type,
    ) -> Result<Parts, LowerError> {
        let target = self.target(place, indices)?;
        if let Some(pointer) = self.wide_pointer(place, &target) {
            let cell = self.part_type(WIDE);
            let mut operands = vec![Operand::IdRef(pointer)];
            operands.extend(self.access(&target, None));
            let loaded = self.b.op_with(Spv::Load, cell, operands);
            return self.bitcast(Parts::one(loaded), WIDE, ty);
        }
        if target.class == StorageClass::PhysicalStorageBuffer {
            if let Some(word_ty) = word_form(ty) {
                let loaded = self.load_address(&target, word_ty, 0)?;
                return self.bitcast(Parts::one(loaded), word_ty, ty);
            }
            let mut ids = Vec::new();
            for part in 0..n_parts(ty) {
                let offset = part as u32 * part_lanes(ty) * ty.scalar.bytes();
                ids.push(self.load_address(&target, narrow(ty), offset)?);
            }
            return Ok(Parts::from_slice(&ids));
        }
        let mut scalars = Vec::new();
        for lane in 0..u32::from(ty.lanes) {
            let pointer = self.cell_pointer(&target, lane)?;
            scalars.push(self.load_cell(&target, pointer, ty.scalar));
        }
        Ok(self.gather(ty, &scalars))
    }

    pub(super) fn store(
        &mut self,
        place: Place,
        indices: &[Value],
        value: Value,
    ) -> Result<(), LowerError> {
        let ty = self.kernel.ty(value);
        let parts = self.value(value)?;
        let target = self.target(place, indices)?;
        if let Some(pointer) = self.wide_pointer(place, &target) {
            let words = self.bitcast(parts, ty, WIDE)?;
            let mut operands = vec![Operand::IdRef(pointer), Operand::IdRef(words.ids[0])];
            operands.extend(self.access(&target, None));
            self.b.effect(Spv::Store, operands);
            return Ok(());
        }
        if target.class == StorageClass::PhysicalStorageBuffer {
            if let Some(word_ty) = word_form(ty) {
                let words = self.bitcast(parts, ty, word_ty)?;
                return self.store_address(&target, words.ids[0], word_ty, 0);
            }
            for (part, &id) in parts.ids().iter().enumerate() {
                let offset = part as u32 * part_lanes(ty) * ty.scalar.bytes();
                self.store_address(&target, id, narrow(ty), offset)?;
            }
            return Ok(());
        }
        for (lane, scalar) in self.scatter(ty, parts).into_iter().enumerate() {
            let pointer = self.cell_pointer(&target, lane as u32)?;
            self.store_cell(&target, pointer, scalar, ty.scalar);
        }
        Ok(())
    }

    /// The pointer to a cell of 16 bytes, of arrays that consist of such.
    fn wide_pointer(&mut self, place: Place, target: &Target) -> Option<Word> {
        let Place::Array(array) = place else {
            return None;
        };
        let index = target.index?;
        if !self.interface.wide_arrays.contains(&array) {
            return None;
        }
        let index = self.wide_index(index, self.kernel.arrays[array].scalar);
        let cell = self.part_type(WIDE);
        let pointer = self.b.type_pointer(target.class, cell);
        Some(self.b.op(Spv::AccessChain, pointer, &[target.base, index]))
    }

    /// Computes a place's address or index.
    pub(super) fn target(&mut self, place: Place, indices: &[Value]) -> Result<Target, LowerError> {
        let [index] = *indices else {
            return self.not_legalised(format!("an access with {} indices", indices.len()));
        };
        let wide = self.kernel.ty(index).scalar.bytes() == 8;
        let index = self.single(index)?;
        match place {
            Place::Tensor(param) => {
                let name = &self.kernel.params[param].name;
                self.not_legalised(format!("an unflattened access to tensor `{name}`"))
            }
            Place::Array(array) => {
                let data = &self.kernel.arrays[array];
                let Some(&base) = self.interface.arrays.get(&array) else {
                    return self.not_legalised(format!("an undeclared array `{}`", data.name));
                };
                let shared = data.space == iron_ir::kernel::Space::Shared;
                Ok(Target {
                    class: if shared {
                        StorageClass::Workgroup
                    } else {
                        StorageClass::Function
                    },
                    base,
                    index: Some(index),
                    cell: self.cell_scalar(place, data.scalar),
                    is_visible: shared,
                    index_is_wide: wide,
                })
            }
            Place::Flat(param) => {
                let Some(tensor) = self.kernel.tensor(param) else {
                    let name = &self.kernel.params[param].name;
                    return self.not_legalised(format!("an access to the scalar `{name}`"));
                };
                let is_visible = tensor.access == Access::ReadWrite;
                let u64_type = self.b.type_int(64);
                let index = if wide {
                    index
                } else {
                    self.b.op(Spv::UConvert, u64_type, &[index])
                };
                if let Some(&base) = self.interface.buffers.get(&param) {
                    let origin = self.interface.origins[&param];
                    let index = self.b.op(Spv::IAdd, u64_type, &[origin, index]);
                    return Ok(Target {
                        class: StorageClass::StorageBuffer,
                        base,
                        index: Some(index),
                        cell: self.cell_scalar(place, tensor.scalar),
                        is_visible,
                        index_is_wide: true,
                    });
                }
                let Some(&base) = self.interface.fields.get(&FieldKind::Address(param)) else {
                    let name = &self.kernel.params[param].name;
                    return self.not_legalised(format!("an undeclared tensor `{name}`"));
                };
                let shift = u64::from(tensor.scalar.bytes().trailing_zeros());
                let bytes = if shift == 0 {
                    index
                } else {
                    let shift = self.int(Scalar::U64, shift);
                    self.b.op(Spv::ShiftLeftLogical, u64_type, &[index, shift])
                };
                Ok(Target {
                    class: StorageClass::PhysicalStorageBuffer,
                    base: self.b.op(Spv::IAdd, u64_type, &[base, bytes]),
                    index: None,
                    cell: tensor.scalar,
                    is_visible,
                    index_is_wide: true,
                })
            }
        }
    }

    /// A pointer of a type at a byte offset from an address.
    pub(super) fn address_pointer(&mut self, target: &Target, pointee: Word, offset: u32) -> Word {
        let u64_type = self.b.type_int(64);
        let address = if offset == 0 {
            target.base
        } else {
            let offset = self.int(Scalar::U64, u64::from(offset));
            self.b.op(Spv::IAdd, u64_type, &[target.base, offset])
        };
        let pointer = self.b.type_pointer(target.class, pointee);
        self.b.op(Spv::ConvertUToPtr, pointer, &[address])
    }

    fn load_address(&mut self, target: &Target, ty: Type, offset: u32) -> Result<Word, LowerError> {
        let scalar = self.memory_type(ty.scalar, target.class);
        let memory = self.b.type_vector(scalar, part_lanes(ty));
        let pointer = self.address_pointer(target, memory, offset);
        let mut operands = vec![Operand::IdRef(pointer)];
        operands.extend(self.access(target, Some(ty)));
        let id = self.b.op_with(Spv::Load, memory, operands);
        if ty.scalar == Scalar::Bool {
            let zero = self.int_lanes(ty.with_scalar(Scalar::U8), 0);
            let bool_type = self.part_type(ty);
            return Ok(self.b.op(Spv::INotEqual, bool_type, &[id, zero]));
        }
        Ok(id)
    }

    fn store_address(
        &mut self,
        target: &Target,
        id: Word,
        ty: Type,
        offset: u32,
    ) -> Result<(), LowerError> {
        let scalar = self.memory_type(ty.scalar, target.class);
        let memory = self.b.type_vector(scalar, part_lanes(ty));
        let id = if ty.scalar == Scalar::Bool {
            self.bool_to_int(id, ty, Scalar::U8)
        } else {
            id
        };
        let pointer = self.address_pointer(target, memory, offset);
        let mut operands = vec![Operand::IdRef(pointer), Operand::IdRef(id)];
        operands.extend(self.access(target, Some(ty)));
        self.b.effect(Spv::Store, operands);
        Ok(())
    }

    /// Memory operands: alignment of addresses, and visibility under the Vulkan memory model.
    fn access(&self, target: &Target, ty: Option<Type>) -> Vec<Operand> {
        let mut mask = MemoryAccess::NONE;
        let mut literals = Vec::new();
        if let Some(ty) = ty {
            mask |= MemoryAccess::ALIGNED;
            literals.push(Operand::LiteralBit32(ty.bytes()));
        }
        if target.is_visible && self.options.device_addresses {
            mask |= MemoryAccess::NON_PRIVATE_POINTER;
        }
        if mask == MemoryAccess::NONE {
            return Vec::new();
        }
        let mut operands = vec![Operand::MemoryAccess(mask)];
        operands.append(&mut literals);
        operands
    }

    /// The pointer to one element of a variable.
    pub(super) fn cell_pointer(&mut self, target: &Target, lane: u32) -> Result<Word, LowerError> {
        let Some(first) = target.index else {
            return self.not_legalised("an element of an address");
        };
        let index = if lane == 0 {
            first
        } else {
            let scalar = if target.index_is_wide {
                Scalar::U64
            } else {
                Scalar::U32
            };
            let (ty, lane) = (self.scalar_type(scalar), self.int(scalar, u64::from(lane)));
            self.b.op(Spv::IAdd, ty, &[first, lane])
        };
        let element = self.memory_type(target.cell, target.class);
        let pointer = self.b.type_pointer(target.class, element);
        if target.class == StorageClass::StorageBuffer {
            let zero = self.b.constant_u32(0);
            Ok(self
                .b
                .op(Spv::AccessChain, pointer, &[target.base, zero, index]))
        } else {
            Ok(self.b.op(Spv::AccessChain, pointer, &[target.base, index]))
        }
    }

    fn load_cell(&mut self, target: &Target, pointer: Word, scalar: Scalar) -> Word {
        let memory = self.memory_type(target.cell, target.class);
        let mut operands = vec![Operand::IdRef(pointer)];
        operands.extend(self.access(target, None));
        let id = self.b.op_with(Spv::Load, memory, operands);
        self.read_as(id, memory, scalar)
    }

    fn store_cell(&mut self, target: &Target, pointer: Word, id: Word, scalar: Scalar) {
        let memory = self.memory_type(target.cell, target.class);
        let id = self.stored_as(id, scalar, memory);
        let mut operands = vec![Operand::IdRef(pointer), Operand::IdRef(id)];
        operands.extend(self.access(target, None));
        self.b.effect(Spv::Store, operands);
    }

    /// A scalar read from a cell of another type of the same size.
    pub(super) fn read_as(&mut self, id: Word, memory: Word, scalar: Scalar) -> Word {
        let ty = self.scalar_type(scalar);
        if ty == memory {
            return id;
        }
        if scalar == Scalar::Bool {
            let zero = self.int(Scalar::U8, 0);
            return self.b.op(Spv::INotEqual, ty, &[id, zero]);
        }
        if memory == self.b.type_bool() {
            return self.bool_to_int(id, Scalar::U8.x(1), Scalar::U8);
        }
        self.b.op(Spv::Bitcast, ty, &[id])
    }

    /// A scalar as a cell of another type of the same size.
    pub(super) fn stored_as(&mut self, id: Word, scalar: Scalar, memory: Word) -> Word {
        let ty = self.scalar_type(scalar);
        if ty == memory {
            return id;
        }
        if scalar == Scalar::Bool {
            return self.bool_to_int(id, Scalar::Bool.x(1), Scalar::U8);
        }
        if memory == self.b.type_bool() {
            let zero = self.int(Scalar::U8, 0);
            return self.b.op(Spv::INotEqual, memory, &[id, zero]);
        }
        self.b.op(Spv::Bitcast, memory, &[id])
    }

    /// 0 or 1 in the lanes of a part.
    pub(super) fn bool_to_int(&mut self, id: Word, ty: Type, scalar: Scalar) -> Word {
        let int = ty.with_scalar(scalar);
        let (one, zero) = (self.int_lanes(int, 1), self.int_lanes(int, 0));
        let int_type = self.part_type(int);
        self.b.op(Spv::Select, int_type, &[id, one, zero])
    }

    /// A value from its scalars.
    pub(super) fn gather(&mut self, ty: Type, scalars: &[Word]) -> Parts {
        if let [scalar] = scalars {
            return Parts::one(*scalar);
        }
        let part = self.part_type(ty);
        let ids: Vec<Word> = scalars
            .chunks(part_lanes(ty) as usize)
            .map(|lanes| self.b.op(Spv::CompositeConstruct, part, lanes))
            .collect();
        Parts::from_slice(&ids)
    }

    /// The scalars of a value.
    pub(super) fn scatter(&mut self, ty: Type, parts: Parts) -> Vec<Word> {
        if ty.lanes == 1 {
            return vec![parts.ids[0]];
        }
        let scalar = self.scalar_type(ty.scalar);
        let mut all = Vec::new();
        for &id in parts.ids() {
            for lane in 0..part_lanes(ty) {
                all.push(self.b.extract(scalar, id, lane));
            }
        }
        all
    }
}

/// The form of one access for narrow vectors: 32-bit words of the same size.
fn word_form(ty: Type) -> Option<Type> {
    if ty.scalar == Scalar::Bool || ty.lanes < 2 || ty.bytes() < 4 {
        return None;
    }
    match ty.scalar.bytes() {
        1 | 2 => Some(Scalar::U32.x((ty.bytes() / 4) as u8)),
        _ => None,
    }
}

/// The type of one part.
fn narrow(ty: Type) -> Type {
    Type {
        scalar: ty.scalar,
        lanes: ty.lanes.min(4),
    }
}
