//! What the outside hands to the entry point: the parameter block, tensors, builtins, and the
//! arrays in shared and private memory.

use std::collections::{BTreeMap, HashMap, HashSet};

use iron_ir::Handle;
use iron_ir::entity::{Array, Param, Value};
use iron_ir::kernel::{Access, Kernel, Space, operands};
use iron_ir::layout::{BlockLayout, Field, FieldKind};
use iron_ir::machine::MachineOp;
use iron_ir::op::{BuiltinOp, Op, Place, Stmt};
use iron_ir::types::Scalar;
use rspirv::dr::Operand;
use rspirv::spirv::Op as Spv;
use rspirv::spirv::{BuiltIn, Capability, Decoration, MemoryAccess, StorageClass, Word};

use super::fragments::{self, WIDE, WIDE_BYTES};
use super::{BlockPlace, Emitter, Parts, block_place, counts_turns};
use crate::error::LowerError;
use crate::profile::SpirvOptions;

/// Bindings of set 0 in the descriptor profile.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bindings {
    /// Storage buffers: the tensors in slot order. Binding = index.
    pub tensors: Vec<Param>,
    /// Storage buffer of the error word, where the body checks indices.
    pub error_word: Option<u32>,
    /// Storage buffer of the loop word, where the kernel counts its loop turns.
    pub loop_word: Option<u32>,
    /// Uniform buffer of the parameter block, where it does not fit the push constants.
    pub block: Option<u32>,
}

/// The bindings of a kernel in the descriptor profile.
pub fn bindings(kernel: &Kernel, options: &SpirvOptions) -> Bindings {
    let tensors: Vec<Param> = kernel.tensor_slots().map(|(_, p)| p).collect();
    let error_word = kernel.checks_indices().then_some(tensors.len() as u32);
    let counts = counts_turns(kernel, options);
    let loop_word = counts.then_some(tensors.len() as u32 + u32::from(error_word.is_some()));
    let block = match block_place(kernel, options) {
        BlockPlace::Uniform(binding) => Some(binding),
        BlockPlace::PushConstants | BlockPlace::Address => None,
    };
    Bindings {
        tensors,
        error_word,
        loop_word,
        block,
    }
}

/// Ids of the interface.
#[derive(Default)]
pub(super) struct Interface {
    /// Variable and structure of the push constants (or the uniform block).
    pub block: Option<BlockVariable>,
    /// Loaded fields of the block.
    pub fields: HashMap<FieldKind, Word>,
    /// Storage buffer of each tensor, in the descriptor profile.
    pub buffers: HashMap<Param, Word>,
    /// First element of the view in its buffer, in the descriptor profile.
    pub origins: HashMap<Param, Word>,
    /// Storage buffer of the error word, in the descriptor profile.
    pub error_buffer: Option<Word>,
    /// Storage buffer of the loop word, in the descriptor profile.
    pub loop_buffer: Option<Word>,
    /// Address of the loop word, where turns are counted.
    pub loop_word: Option<Word>,
    /// Input variables.
    pub builtins: BTreeMap<u32, Word>,
    /// Loaded builtins by operator and axis.
    pub places: HashMap<(BuiltinOp, u8), Word>,
    /// Variable of each array.
    pub arrays: HashMap<Array, Word>,
    /// Variables of each array of fragments.
    pub fragments: HashMap<Array, Vec<Word>>,
    /// Shared arrays of cells of 16 bytes.
    pub wide_arrays: HashSet<Array>,
    /// Arrays and tensors with atomics on floats, whose cells are kept as integers.
    pub integer_cells: HashSet<Place>,
    /// Tensors that the body accesses.
    pub used_tensors: HashSet<Param>,
    used_fields: HashSet<FieldKind>,
    used_builtins: HashSet<(BuiltinOp, u8)>,
    used_arrays: HashSet<Array>,
}

/// The parameter block's variable.
pub(super) struct BlockVariable {
    /// The block, or what holds its address.
    variable: Word,
    structure: Word,
    /// Storage class of the block itself.
    class: StorageClass,
    /// Position of each field among the structure's members.
    members: Vec<Field>,
    /// The address of the loop word is one more member, the last.
    has_loop_word: bool,
}

impl Emitter<'_> {
    /// Declares what the body uses, and nothing else.
    pub(super) fn declare_interface(&mut self) -> Result<(), LowerError> {
        self.find_uses();
        self.declare_block();
        if self.options.device_addresses {
            self.b
                .capability(Capability::PhysicalStorageBufferAddresses);
            self.b.capability(Capability::VulkanMemoryModel);
        } else {
            self.declare_buffers();
        }
        self.declare_builtins();
        self.declare_arrays();
        Ok(())
    }

    fn find_uses(&mut self) {
        let kernel = self.kernel;
        let mut values: HashSet<Value> = HashSet::new();
        let mut places: Vec<Place> = Vec::new();
        let mut atomics: HashSet<Place> = HashSet::new();
        let (mut checks, mut aligned) = (false, false);
        let mut lane_bounds = false;
        kernel.body.walk(&mut |stmt, _| {
            values.extend(stmt.uses());
            match stmt {
                Stmt::Let(value) => {
                    values.insert(*value);
                    let op = &kernel.values[*value].op;
                    values.extend(operands(op));
                    if let Op::Load { place, .. } = op {
                        places.push(*place);
                    }
                }
                Stmt::Store { place, .. } => places.push(*place),
                Stmt::Atomic { place, result, .. } => {
                    places.push(*place);
                    if kernel.ty(*result).scalar.is_float() {
                        atomics.insert(*place);
                    }
                }
                Stmt::CheckIndex { .. } => checks = true,
                Stmt::Machine(machine) => {
                    places.extend(machine.arrays.iter().copied().map(Place::Array));
                    aligned |= machine.op == MachineOp::IsAligned;
                }
                Stmt::Subgroup { op, .. } => lane_bounds |= super::exchange::asks_lane(*op),
                Stmt::Set(..)
                | Stmt::Barrier(..)
                | Stmt::Group { .. }
                | Stmt::Mma { .. }
                | Stmt::If { .. }
                | Stmt::For { .. }
                | Stmt::Loop { .. }
                | Stmt::Break
                | Stmt::Continue
                | Stmt::Return
                | Stmt::Roles { .. }
                | Stmt::Tile(_) => {}
            }
        });
        let partial = self.has_partial_subgroup();
        let hides = self.hides_operands();
        let uses = &mut self.interface;
        if hides {
            uses.used_builtins.insert((BuiltinOp::LocalIndex, 0));
        }
        for value in values {
            match kernel.values[value].op {
                Op::Scalar(param) => {
                    uses.used_fields.insert(FieldKind::Scalar(param));
                }
                Op::Dim(dim) => {
                    uses.used_fields.insert(FieldKind::Dim(dim));
                }
                Op::Stride(param, axis) => {
                    uses.used_fields.insert(FieldKind::Stride(param, axis));
                }
                Op::Builtin(op, axis) => {
                    uses.used_builtins.insert((op, axis));
                }
                _ => {}
            }
        }
        if lane_bounds {
            uses.used_builtins.insert((BuiltinOp::SubgroupLane, 0));
            uses.used_builtins.insert((BuiltinOp::SubgroupSize, 0));
            if partial {
                uses.used_builtins.insert((BuiltinOp::SubgroupId, 0));
            }
        }
        for place in places {
            match place {
                Place::Flat(param) | Place::Tensor(param) => {
                    uses.used_tensors.insert(param);
                    uses.used_fields.insert(FieldKind::Address(param));
                }
                Place::Array(array) => {
                    uses.used_arrays.insert(array);
                }
            }
        }
        if aligned {
            uses.used_fields.insert(FieldKind::Aligned);
        }
        if checks && self.options.device_addresses {
            uses.used_fields.insert(FieldKind::ErrorWord);
        }
        uses.integer_cells = atomics;
        uses.wide_arrays = fragments::wide_arrays(kernel);
    }

    fn declare_block(&mut self) {
        let layout = BlockLayout::of(self.kernel);
        let members: Vec<Field> = layout
            .fields
            .iter()
            .filter(|f| self.interface.used_fields.contains(&f.kind))
            .cloned()
            .collect();
        let has_loop_word =
            self.options.device_addresses && counts_turns(self.kernel, &self.options);
        if members.is_empty() && !has_loop_word {
            return;
        }
        let mut typed: Vec<(Word, u32, String)> = members
            .iter()
            .map(|f| (self.scalar_type(f.scalar), f.offset, f.name.clone()))
            .collect();
        if has_loop_word {
            typed.push((self.b.type_int(64), layout.bytes, "loop_word".to_string()));
        }
        let name = format!("{}_parameters", self.kernel.name);
        let structure = self.b.type_block(&name, &typed);
        let (class, variable) = match block_place(self.kernel, &self.options) {
            BlockPlace::PushConstants => {
                let class = StorageClass::PushConstant;
                (class, self.b.global_variable(structure, class))
            }
            BlockPlace::Uniform(binding) => {
                let class = StorageClass::Uniform;
                let variable = self.b.global_variable(structure, class);
                self.bind(variable, binding);
                (class, variable)
            }
            BlockPlace::Address => {
                let u64_type = self.b.type_int(64);
                let holder = [(u64_type, 0, "parameters".to_string())];
                let holder = self.b.type_block("parameters_address", &holder);
                let variable = self.b.global_variable(holder, StorageClass::PushConstant);
                (StorageClass::PhysicalStorageBuffer, variable)
            }
        };
        self.b.name(variable, "parameters");
        self.interface.block = Some(BlockVariable {
            variable,
            structure,
            class,
            members,
            has_loop_word,
        });
    }

    fn bind(&mut self, variable: Word, binding: u32) {
        let set = Operand::LiteralBit32(0);
        self.b.decorate(variable, Decoration::DescriptorSet, &[set]);
        let binding = Operand::LiteralBit32(binding);
        self.b.decorate(variable, Decoration::Binding, &[binding]);
    }

    fn declare_buffers(&mut self) {
        let bindings = bindings(self.kernel, &self.options);
        for (binding, &param) in bindings.tensors.iter().enumerate() {
            if !self.interface.used_tensors.contains(&param) {
                continue;
            }
            let Some(tensor) = self.kernel.tensor(param) else {
                continue;
            };
            let cell = self.cell_scalar(Place::Flat(param), tensor.scalar);
            let element = self.memory_type(cell, StorageClass::StorageBuffer);
            let name = self.kernel.params[param].name.to_string();
            let structure =
                self.b
                    .type_runtime_block(&format!("{name}_buffer"), element, cell.bytes());
            let variable = self
                .b
                .global_variable(structure, StorageClass::StorageBuffer);
            self.b.name(variable, &name);
            self.bind(variable, binding as u32);
            if tensor.access == Access::Read {
                self.b.decorate(variable, Decoration::NonWritable, &[]);
            }
            let aliased = !tensor.may_alias.is_empty()
                || bindings.tensors.iter().any(|&other| {
                    self.kernel
                        .tensor(other)
                        .is_some_and(|t| t.may_alias.contains(&param))
                });
            if aliased {
                self.b.decorate(variable, Decoration::Aliased, &[]);
            }
            self.interface.buffers.insert(param, variable);
        }
        self.interface.error_buffer = bindings
            .error_word
            .map(|binding| self.declare_word("error_word", binding));
        self.interface.loop_buffer = bindings
            .loop_word
            .map(|binding| self.declare_word("loop_word", binding));
    }

    fn declare_word(&mut self, name: &str, binding: u32) -> Word {
        let u32_type = self.b.type_int(32);
        let structure = self
            .b
            .type_runtime_block(&format!("{name}_buffer"), u32_type, 4);
        let variable = self
            .b
            .global_variable(structure, StorageClass::StorageBuffer);
        self.b.name(variable, name);
        self.bind(variable, binding);
        variable
    }

    fn declare_builtins(&mut self) {
        let flat = self.is_flattened();
        let mut wanted: Vec<BuiltIn> = self
            .interface
            .used_builtins
            .iter()
            .flat_map(|&(op, _)| match op {
                BuiltinOp::LocalId if flat => vec![BuiltIn::LocalInvocationIndex],
                BuiltinOp::GlobalId if flat => {
                    vec![BuiltIn::LocalInvocationIndex, BuiltIn::WorkgroupId]
                }
                _ => input_of(op).into_iter().collect(),
            })
            .collect();
        wanted.sort_by_key(|&b| b as u32);
        wanted.dedup();
        for builtin in wanted {
            let u32_type = self.b.type_int(32);
            let (ty, name, subgroup) = match builtin {
                BuiltIn::WorkgroupId => (self.b.type_vector(u32_type, 3), "workgroup_id", false),
                BuiltIn::NumWorkgroups => (self.b.type_vector(u32_type, 3), "workgroups", false),
                BuiltIn::LocalInvocationId => (self.b.type_vector(u32_type, 3), "local_id", false),
                BuiltIn::GlobalInvocationId => {
                    (self.b.type_vector(u32_type, 3), "global_id", false)
                }
                BuiltIn::LocalInvocationIndex => (u32_type, "local_index", false),
                BuiltIn::SubgroupId => (u32_type, "subgroup_id", true),
                BuiltIn::NumSubgroups => (u32_type, "subgroups", true),
                BuiltIn::SubgroupLocalInvocationId => (u32_type, "subgroup_lane", true),
                _ => (u32_type, "subgroup_size", true),
            };
            if subgroup {
                self.b.capability(Capability::GroupNonUniform);
            }
            let variable = self.b.builtin_variable(ty, builtin);
            self.b.name(variable, &format!("in_{name}"));
            self.interface.builtins.insert(builtin as u32, variable);
        }
    }

    fn declare_arrays(&mut self) {
        let sums = crate::fragments::sums(self.kernel);
        for (array, data) in self.kernel.arrays.iter() {
            if !self.interface.used_arrays.contains(&array) {
                continue;
            }
            if sums.contains(&array) {
                self.declare_fragments(array);
                continue;
            }
            if self.interface.wide_arrays.contains(&array) {
                let cell = self.part_type(WIDE);
                let cells = data.len * data.scalar.bytes() / WIDE_BYTES;
                let ty = self.b.type_array(cell, cells.max(1));
                let variable = self.b.global_variable(ty, StorageClass::Workgroup);
                self.b.name(variable, &data.name);
                self.interface.arrays.insert(array, variable);
                continue;
            }
            let cell = self.cell_scalar(Place::Array(array), data.scalar);
            let element = self.memory_type(cell, StorageClass::Workgroup);
            let ty = self.b.type_array(element, data.len.max(1));
            let variable = match data.space {
                Space::Shared => self.b.global_variable(ty, StorageClass::Workgroup),
                Space::Private | Space::Ahead => self.b.function_variable(ty),
            };
            self.b.name(variable, &data.name);
            self.interface.arrays.insert(array, variable);
        }
    }

    /// Loads, in the first block, every field and builtin that the body uses.
    pub(super) fn load_interface(&mut self) -> Result<(), LowerError> {
        self.load_fields();
        let mut places: Vec<(BuiltinOp, u8)> =
            self.interface.used_builtins.iter().copied().collect();
        places.sort_by_key(|&(op, axis)| (op.name(), axis));
        for (op, axis) in places {
            let id = self.load_builtin(op, axis);
            self.interface.places.insert((op, axis), id);
        }
        for (value, data) in self.kernel.values.iter() {
            let id = match data.op {
                Op::Scalar(param) => self.interface.fields.get(&FieldKind::Scalar(param)),
                Op::Dim(dim) => self.interface.fields.get(&FieldKind::Dim(dim)),
                Op::Stride(param, axis) => {
                    self.interface.fields.get(&FieldKind::Stride(param, axis))
                }
                Op::Builtin(op, axis) => self.interface.places.get(&(op, axis)),
                _ => None,
            };
            if let Some(&id) = id {
                self.values[value.index()] = Some(Parts::one(id));
            }
        }
        Ok(())
    }

    fn load_fields(&mut self) {
        let Some(block) = self.interface.block.take() else {
            return;
        };
        let base = if block.class == StorageClass::PhysicalStorageBuffer {
            let u64_type = self.b.type_int(64);
            let pointer = self.b.type_pointer(StorageClass::PushConstant, u64_type);
            let zero = self.b.constant_u32(0);
            let place = self
                .b
                .op(Spv::AccessChain, pointer, &[block.variable, zero]);
            let address = self.b.op(Spv::Load, u64_type, &[place]);
            let pointer = self.b.type_pointer(block.class, block.structure);
            self.b.op(Spv::ConvertUToPtr, pointer, &[address])
        } else {
            block.variable
        };
        let load = |e: &mut Self, index: usize, scalar: Scalar, name: &str| {
            let ty = e.scalar_type(scalar);
            let pointer = e.b.type_pointer(block.class, ty);
            let index = e.b.constant_u32(index as u32);
            let place = e.b.op(Spv::AccessChain, pointer, &[base, index]);
            let mut operands = vec![Operand::IdRef(place)];
            if block.class == StorageClass::PhysicalStorageBuffer {
                operands.push(Operand::MemoryAccess(MemoryAccess::ALIGNED));
                operands.push(Operand::LiteralBit32(scalar.bytes()));
            }
            let id = e.b.op_with(Spv::Load, ty, operands);
            e.b.name(id, name);
            id
        };
        for (index, field) in block.members.iter().enumerate() {
            let id = load(self, index, field.scalar, &field.name);
            self.interface.fields.insert(field.kind, id);
        }
        if block.has_loop_word {
            let id = load(self, block.members.len(), Scalar::U64, "loop_word");
            self.interface.loop_word = Some(id);
        }
        if self.options.device_addresses {
            return;
        }
        // A view may begin anywhere in its binding: the address field holds its byte offset.
        let mut params: Vec<Param> = self.interface.buffers.keys().copied().collect();
        params.sort();
        for param in params {
            let bytes = self.kernel.tensor(param).map_or(1, |t| t.scalar.bytes());
            let offset = self.interface.fields[&FieldKind::Address(param)];
            let u64_type = self.b.type_int(64);
            let shift = self.int(Scalar::U64, u64::from(bytes.trailing_zeros()));
            let origin = self
                .b
                .op(Spv::ShiftRightLogical, u64_type, &[offset, shift]);
            self.b.name(
                origin,
                &format!("{}_origin", self.kernel.params[param].name),
            );
            self.interface.origins.insert(param, origin);
        }
    }

    /// Whether a workgroup of more than one dimension is given to the driver as one of a single
    /// dimension: Vulkan leaves open how others are cut into subgroups, and Mesa's software
    /// driver cuts them by rows.
    pub(super) fn is_flattened(&self) -> bool {
        let [_, y, z] = self.kernel.contract.workgroup;
        y != 1 || z != 1
    }

    /// A thread's index along an axis of a flattened workgroup, or of the whole grid.
    fn flattened_id(&mut self, op: BuiltinOp, axis: usize) -> Word {
        let workgroup = self.kernel.contract.workgroup;
        let u32_type = self.b.type_int(32);
        let index = self.interface.builtins[&(BuiltIn::LocalInvocationIndex as u32)];
        let mut id = self.b.op(Spv::Load, u32_type, &[index]);
        let before: u32 = workgroup[..axis].iter().product();
        if before != 1 {
            let before = self.b.constant_u32(before);
            id = self.b.op(Spv::UDiv, u32_type, &[id, before]);
        }
        if axis < 2 {
            let size = self.b.constant_u32(workgroup[axis]);
            id = self.b.op(Spv::UMod, u32_type, &[id, size]);
        }
        if op == BuiltinOp::GlobalId {
            let group = self.interface.builtins[&(BuiltIn::WorkgroupId as u32)];
            let vector = self.b.type_vector(u32_type, 3);
            let group = self.b.op(Spv::Load, vector, &[group]);
            let group = self.b.extract(u32_type, group, axis as u32);
            let size = self.b.constant_u32(workgroup[axis]);
            let first = self.b.op(Spv::IMul, u32_type, &[group, size]);
            id = self.b.op(Spv::IAdd, u32_type, &[first, id]);
        }
        self.b.name(id, &format!("{}_{axis}", op.name()));
        id
    }

    fn load_builtin(&mut self, op: BuiltinOp, axis: u8) -> Word {
        let workgroup = self.kernel.contract.workgroup;
        let axis_index = usize::from(axis).min(2);
        let Some(builtin) = input_of(op) else {
            return match op {
                BuiltinOp::GroupThreads => self.b.constant_u32(self.kernel.contract.threads()),
                _ => self.b.constant_u32(workgroup[axis_index]),
            };
        };
        if self.is_flattened() && matches!(op, BuiltinOp::LocalId | BuiltinOp::GlobalId) {
            return self.flattened_id(op, axis_index);
        }
        let variable = self.interface.builtins[&(builtin as u32)];
        let u32_type = self.b.type_int(32);
        let id = match op {
            BuiltinOp::GroupId
            | BuiltinOp::GroupCount
            | BuiltinOp::LocalId
            | BuiltinOp::GlobalId => {
                let vector = self.b.type_vector(u32_type, 3);
                let all = self.b.op(Spv::Load, vector, &[variable]);
                self.b.extract(u32_type, all, axis_index as u32)
            }
            BuiltinOp::GroupSize
            | BuiltinOp::LocalIndex
            | BuiltinOp::GroupThreads
            | BuiltinOp::SubgroupId
            | BuiltinOp::SubgroupCount
            | BuiltinOp::SubgroupLane
            | BuiltinOp::SubgroupSize => self.b.op(Spv::Load, u32_type, &[variable]),
        };
        let axes = matches!(
            op,
            BuiltinOp::GroupId | BuiltinOp::GroupCount | BuiltinOp::LocalId | BuiltinOp::GlobalId
        );
        let name = if axes {
            format!("{}_{axis}", op.name())
        } else {
            op.name().to_string()
        };
        self.b.name(id, &name);
        id
    }

    /// The scalar that a place's cells are kept as.
    pub(super) fn cell_scalar(&self, place: Place, scalar: Scalar) -> Scalar {
        if self.interface.integer_cells.contains(&place) {
            scalar.unsigned_of_width()
        } else {
            scalar
        }
    }

    /// The type of a cell in memory; `bool` is a byte outside of the invocation.
    pub(super) fn memory_type(&mut self, scalar: Scalar, class: StorageClass) -> Word {
        let external = matches!(
            class,
            StorageClass::StorageBuffer | StorageClass::PhysicalStorageBuffer
        );
        if !external {
            return self.scalar_type(scalar);
        }
        match scalar.bytes() {
            1 => {
                self.b.capability(Capability::StorageBuffer8BitAccess);
                self.b.extension("SPV_KHR_8bit_storage", (1, 5));
            }
            2 => self.b.capability(Capability::StorageBuffer16BitAccess),
            _ => {}
        }
        match scalar {
            Scalar::Bool => self.b.type_int(8),
            _ => self.scalar_type(scalar),
        }
    }
}

/// The input variable behind a builtin; none for what the contract fixes.
fn input_of(op: BuiltinOp) -> Option<BuiltIn> {
    match op {
        BuiltinOp::GroupId => Some(BuiltIn::WorkgroupId),
        BuiltinOp::GroupCount => Some(BuiltIn::NumWorkgroups),
        BuiltinOp::LocalId => Some(BuiltIn::LocalInvocationId),
        BuiltinOp::GlobalId => Some(BuiltIn::GlobalInvocationId),
        BuiltinOp::LocalIndex => Some(BuiltIn::LocalInvocationIndex),
        BuiltinOp::SubgroupId => Some(BuiltIn::SubgroupId),
        BuiltinOp::SubgroupCount => Some(BuiltIn::NumSubgroups),
        BuiltinOp::SubgroupLane => Some(BuiltIn::SubgroupLocalInvocationId),
        BuiltinOp::SubgroupSize => Some(BuiltIn::SubgroupSize),
        BuiltinOp::GroupSize | BuiltinOp::GroupThreads => None,
    }
}
