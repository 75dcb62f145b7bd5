//! What threads do together: barriers, atomics and subgroup exchanges.

use iron_ir::Handle;
use iron_ir::entity::Value;
use iron_ir::op::{AtomicOp, BarrierMemory, BarrierScope, BuiltinOp, Place, SubgroupOp};
use iron_ir::types::{Scalar, Type};
use rspirv::dr::Operand;
use rspirv::spirv::{Capability, MemorySemantics, Op as Spv, Scope, StorageClass, Word};

use super::memory::Target;
use super::{Emitter, Parts};
use crate::error::LowerError;

/// Most lanes that a subgroup can have.
const MAX_LANES: u32 = 64;

impl Emitter<'_> {
    pub(super) fn barrier(
        &mut self,
        scope: BarrierScope,
        memory: BarrierMemory,
    ) -> Result<(), LowerError> {
        let scope = match scope {
            BarrierScope::Subgroup => {
                self.b.capability(Capability::GroupNonUniform);
                Scope::Subgroup
            }
            BarrierScope::Workgroup => Scope::Workgroup,
            BarrierScope::Grid => return self.not_legalised("a grid barrier"),
            BarrierScope::Launch => return self.not_legalised("a launch barrier"),
        };
        let mut semantics = MemorySemantics::ACQUIRE_RELEASE | MemorySemantics::WORKGROUP_MEMORY;
        let mut ordered = scope;
        match memory {
            BarrierMemory::Shared => {}
            BarrierMemory::SharedAndGlobal => semantics |= MemorySemantics::UNIFORM_MEMORY,
            BarrierMemory::Device => {
                if !self.options.device_addresses {
                    return self.not_legalised("a barrier of the device's memory");
                }
                semantics |= MemorySemantics::UNIFORM_MEMORY;
                self.b.capability(Capability::VulkanMemoryModelDeviceScope);
                ordered = Scope::Device;
            }
        }
        if self.options.device_addresses {
            semantics |= MemorySemantics::MAKE_AVAILABLE | MemorySemantics::MAKE_VISIBLE;
        }
        let scope = self.b.constant_u32(scope as u32);
        let ordered = self.b.constant_u32(ordered as u32);
        let semantics = self.b.constant_u32(semantics.bits());
        self.b.effect(
            Spv::ControlBarrier,
            vec![
                Operand::IdScope(scope),
                Operand::IdScope(ordered),
                Operand::IdMemorySemantics(semantics),
            ],
        );
        Ok(())
    }

    pub(super) fn atomic(
        &mut self,
        result: Value,
        op: AtomicOp,
        place: Place,
        indices: &[Value],
        value: Option<Value>,
        compare: Option<Value>,
    ) -> Result<(), LowerError> {
        let ty = self.kernel.ty(result);
        let target = self.target(place, indices)?;
        let integer = match ty.scalar {
            Scalar::I32 | Scalar::U32 => true,
            Scalar::I64 | Scalar::U64 => {
                self.b.capability(Capability::Int64Atomics);
                true
            }
            Scalar::F32 => false,
            _ => return self.not_legalised(format!("an atomic on {ty}")),
        };
        let cell = ty.scalar.unsigned_of_width();
        let cell_type = self.scalar_type(cell);
        let operand = value.map(|v| self.single(v)).transpose()?;
        let expected = compare.map(|v| self.single(v)).transpose()?;
        if !integer && op == AtomicOp::Add && self.native_float_add(&target) {
            let Some(operand) = operand else {
                return self.not_legalised("an atomic without its operand");
            };
            let id = self.float_add(&target, operand)?;
            self.define(result, Parts::one(id));
            return Ok(());
        }
        let pointer = match target.class {
            StorageClass::PhysicalStorageBuffer => self.address_pointer(&target, cell_type, 0),
            _ => self.cell_pointer(&target, 0)?,
        };
        let shared = target.class == StorageClass::Workgroup;
        if !integer && op == AtomicOp::Add {
            let Some(operand) = operand else {
                return self.not_legalised("an atomic without its operand");
            };
            let id = self.float_add_loop(pointer, shared, operand);
            self.define(result, Parts::one(id));
            return Ok(());
        }
        let [operand, expected] = [operand, expected].map(|id| {
            id.map(|id| {
                if integer {
                    id
                } else {
                    self.b.op(Spv::Bitcast, cell_type, &[id])
                }
            })
        });
        let signed = ty.scalar.is_signed();
        let spv = match op {
            AtomicOp::Add => Spv::AtomicIAdd,
            AtomicOp::Min if signed => Spv::AtomicSMin,
            AtomicOp::Min => Spv::AtomicUMin,
            AtomicOp::Max if signed => Spv::AtomicSMax,
            AtomicOp::Max => Spv::AtomicUMax,
            AtomicOp::And => Spv::AtomicAnd,
            AtomicOp::Or => Spv::AtomicOr,
            AtomicOp::Xor => Spv::AtomicXor,
            AtomicOp::Exchange => Spv::AtomicExchange,
            AtomicOp::CompareExchange => Spv::AtomicCompareExchange,
            AtomicOp::Load => Spv::AtomicLoad,
            AtomicOp::Store => Spv::AtomicStore,
        };
        let arithmetic = !matches!(
            op,
            AtomicOp::Exchange | AtomicOp::CompareExchange | AtomicOp::Load | AtomicOp::Store
        );
        if !integer && arithmetic {
            return self.not_legalised(format!("atomic `{}` of {ty}", op.name()));
        }
        let (scope, relaxed) = self.atomic_scope(shared);
        let mut operands = vec![
            Operand::IdRef(pointer),
            Operand::IdScope(scope),
            Operand::IdMemorySemantics(relaxed),
        ];
        if op == AtomicOp::CompareExchange {
            operands.push(Operand::IdMemorySemantics(relaxed));
        }
        operands.extend(operand.map(Operand::IdRef));
        if op == AtomicOp::CompareExchange {
            operands.extend(expected.map(Operand::IdRef));
        }
        if op == AtomicOp::Store {
            self.b.effect(spv, operands);
            // The result of a store has no use; any value serves.
            let undefined = self.int(cell, 0);
            self.values[result.index()] = Some(Parts::one(undefined));
            return Ok(());
        }
        let mut id = self.b.op_with(spv, cell_type, operands);
        if !integer {
            let float = self.scalar_type(ty.scalar);
            id = self.b.op(Spv::Bitcast, float, &[id]);
        }
        self.define(result, Parts::one(id));
        Ok(())
    }

    /// Scope of atomics on shared or global memory, and relaxed semantics.
    fn atomic_scope(&mut self, shared: bool) -> (Word, Word) {
        let scope = if shared {
            Scope::Workgroup
        } else {
            Scope::Device
        };
        if !shared && self.options.device_addresses {
            self.b.capability(Capability::VulkanMemoryModelDeviceScope);
        }
        let relaxed = self.b.constant_u32(MemorySemantics::RELAXED.bits());
        (self.b.constant_u32(scope as u32), relaxed)
    }

    fn native_float_add(&self, target: &Target) -> bool {
        self.options.atomic_float_add && target.class == StorageClass::PhysicalStorageBuffer
    }

    fn float_add(&mut self, target: &Target, operand: Word) -> Result<Word, LowerError> {
        self.b.capability(Capability::AtomicFloat32AddEXT);
        self.b.extension("SPV_EXT_shader_atomic_float_add", (9, 0));
        let float = self.b.type_float(32);
        let pointer = self.address_pointer(target, float, 0);
        let (scope, relaxed) = self.atomic_scope(false);
        let operands = vec![
            Operand::IdRef(pointer),
            Operand::IdScope(scope),
            Operand::IdMemorySemantics(relaxed),
            Operand::IdRef(operand),
        ];
        Ok(self.b.op_with(Spv::AtomicFAddEXT, float, operands))
    }

    /// Adds by compare-exchange on the bits until no other thread came between.
    fn float_add_loop(&mut self, pointer: Word, shared: bool, operand: Word) -> Word {
        let (u32_type, float) = (self.b.type_int(32), self.b.type_float(32));
        let bool_type = self.b.type_bool();
        let (scope, relaxed) = self.atomic_scope(shared);
        let variable = self.b.function_variable(u32_type);
        let place = [
            Operand::IdRef(pointer),
            Operand::IdScope(scope),
            Operand::IdMemorySemantics(relaxed),
        ];
        let first = self.b.op_with(Spv::AtomicLoad, u32_type, place.to_vec());
        self.b.effect(
            Spv::Store,
            vec![Operand::IdRef(variable), Operand::IdRef(first)],
        );
        let [header, body, next, merge] = [0; 4].map(|_| self.b.id());
        self.b.branch(header);
        self.b.begin_block(header);
        self.count_turn();
        self.b
            .loop_merge(merge, next, rspirv::spirv::LoopControl::NONE);
        self.b.branch(body);
        self.b.begin_block(body);
        let seen = self.b.op(Spv::Load, u32_type, &[variable]);
        let old = self.b.op(Spv::Bitcast, float, &[seen]);
        let sum = self.exact(Spv::FAdd, float, &[old, operand]);
        let new = self.b.op(Spv::Bitcast, u32_type, &[sum]);
        let mut operands = place.to_vec();
        operands.push(Operand::IdMemorySemantics(relaxed));
        operands.extend([Operand::IdRef(new), Operand::IdRef(seen)]);
        let found = self
            .b
            .op_with(Spv::AtomicCompareExchange, u32_type, operands);
        self.b.effect(
            Spv::Store,
            vec![Operand::IdRef(variable), Operand::IdRef(found)],
        );
        let done = self.b.op(Spv::IEqual, bool_type, &[found, seen]);
        self.b.branch_if(done, merge, next);
        self.b.begin_block(next);
        self.b.branch(header);
        self.b.begin_block(merge);
        self.marked = None;
        old
    }

    /// Puts a code into a word that is still zero.
    pub(super) fn compare_exchange_word(&mut self, pointer: Word, code: Word) {
        let u32_type = self.b.type_int(32);
        let (scope, relaxed) = self.atomic_scope(false);
        let zero = self.b.constant_u32(0);
        let operands = vec![
            Operand::IdRef(pointer),
            Operand::IdScope(scope),
            Operand::IdMemorySemantics(relaxed),
            Operand::IdMemorySemantics(relaxed),
            Operand::IdRef(code),
            Operand::IdRef(zero),
        ];
        self.b
            .op_with(Spv::AtomicCompareExchange, u32_type, operands);
    }

    pub(super) fn subgroup(
        &mut self,
        result: Value,
        op: SubgroupOp,
        value: Value,
        argument: Option<Value>,
    ) -> Result<(), LowerError> {
        self.b.capability(Capability::GroupNonUniform);
        let ty = self.kernel.ty(value);
        let operand = self.value(value)?;
        let argument_id = argument.map(|v| self.single(v)).transpose()?;
        let scope = self.b.constant_u32(Scope::Subgroup as u32);
        let bool_type = self.b.type_bool();
        let parts = match op {
            SubgroupOp::Any | SubgroupOp::All => {
                self.b.capability(Capability::GroupNonUniformVote);
                let spv = match op {
                    SubgroupOp::Any => Spv::GroupNonUniformAny,
                    _ => Spv::GroupNonUniformAll,
                };
                let operands = vec![Operand::IdScope(scope), Operand::IdRef(operand.ids[0])];
                Parts::one(self.b.op_with(spv, bool_type, operands))
            }
            SubgroupOp::Ballot => {
                self.b.capability(Capability::GroupNonUniformBallot);
                let (u32_type, u64_type) = (self.b.type_int(32), self.b.type_int(64));
                let mask_type = self.b.type_vector(u32_type, 4);
                let operands = vec![Operand::IdScope(scope), Operand::IdRef(operand.ids[0])];
                let mask = self
                    .b
                    .op_with(Spv::GroupNonUniformBallot, mask_type, operands);
                let [low, high] = [0, 1].map(|word| {
                    let word = self.b.extract(u32_type, mask, word);
                    self.b.op(Spv::UConvert, u64_type, &[word])
                });
                let shift = self.int(Scalar::U64, 32);
                let upper = self.b.op(Spv::ShiftLeftLogical, u64_type, &[high, shift]);
                Parts::one(self.b.op(Spv::BitwiseOr, u64_type, &[upper, low]))
            }
            SubgroupOp::Reduce => return self.not_legalised("a subgroup reduction"),
            SubgroupOp::Shuffle
            | SubgroupOp::ShuffleXor
            | SubgroupOp::ShuffleUp
            | SubgroupOp::ShuffleDown
            | SubgroupOp::Broadcast => {
                let Some(argument_id) = argument_id else {
                    return self.not_legalised(format!("`{}` without its lane", op.name()));
                };
                let constant = argument
                    .and_then(|v| self.kernel.constant(v))
                    .map(|c| c.bits);
                self.shuffle(op, operand, ty, argument_id, constant)?
            }
        };
        self.define(result, parts);
        Ok(())
    }

    fn shuffle(
        &mut self,
        op: SubgroupOp,
        operand: Parts,
        ty: Type,
        argument: Word,
        constant: Option<u64>,
    ) -> Result<Parts, LowerError> {
        self.b.capability(Capability::GroupNonUniformShuffle);
        let mut spv = Spv::GroupNonUniformShuffle;
        let lane = match op {
            SubgroupOp::Broadcast if constant.is_some() => {
                self.b.capability(Capability::GroupNonUniformBallot);
                spv = Spv::GroupNonUniformBroadcast;
                argument
            }
            // Every subgroup has at least 4 lanes, a power of two, so a small distance stays in.
            SubgroupOp::ShuffleXor
                if !self.has_partial_subgroup()
                    && constant.is_some_and(|c| c < self.least_lanes()) =>
            {
                spv = Spv::GroupNonUniformShuffleXor;
                argument
            }
            SubgroupOp::ShuffleXor | SubgroupOp::ShuffleUp | SubgroupOp::ShuffleDown => {
                self.guarded_lane(op, argument)
            }
            _ => argument,
        };
        let scope = self.b.constant_u32(Scope::Subgroup as u32);
        let part = self.part_type(ty);
        self.parts(ty, &[operand], |e, ids| {
            let operands = vec![
                Operand::IdScope(scope),
                Operand::IdRef(ids[0]),
                Operand::IdRef(lane),
            ];
            Ok(e.b.op_with(spv, part, operands))
        })
    }

    /// The lane to read from; the own where the wanted one does not exist.
    fn guarded_lane(&mut self, op: SubgroupOp, argument: Word) -> Word {
        let (u32_type, bool_type) = (self.b.type_int(32), self.b.type_bool());
        let lane = self.interface.places[&(BuiltinOp::SubgroupLane, 0)];
        let mut size = self.interface.places[&(BuiltinOp::SubgroupSize, 0)];
        if op == SubgroupOp::ShuffleUp {
            let exists = self.b.op(Spv::ULessThanEqual, bool_type, &[argument, lane]);
            let wanted = self.b.op(Spv::ISub, u32_type, &[lane, argument]);
            return self.b.op(Spv::Select, u32_type, &[exists, wanted, lane]);
        }
        if let Some(&subgroup) = self.interface.places.get(&(BuiltinOp::SubgroupId, 0)) {
            // The last subgroup may hold fewer threads than it has lanes.
            if self.has_partial_subgroup() {
                let threads = self.b.constant_u32(self.kernel.contract.threads());
                let before = self.b.op(Spv::IMul, u32_type, &[subgroup, size]);
                let rest = self.b.op(Spv::ISub, u32_type, &[threads, before]);
                let partial = self.b.op(Spv::ULessThan, bool_type, &[rest, size]);
                size = self.b.op(Spv::Select, u32_type, &[partial, rest, size]);
            }
        }
        let (exists, wanted) = if op == SubgroupOp::ShuffleXor {
            let wanted = self.b.op(Spv::BitwiseXor, u32_type, &[lane, argument]);
            (
                self.b.op(Spv::ULessThan, bool_type, &[wanted, size]),
                wanted,
            )
        } else {
            let above = self.b.op(Spv::ISub, u32_type, &[size, lane]);
            let wanted = self.b.op(Spv::IAdd, u32_type, &[lane, argument]);
            (
                self.b.op(Spv::ULessThan, bool_type, &[argument, above]),
                wanted,
            )
        };
        self.b.op(Spv::Select, u32_type, &[exists, wanted, lane])
    }

    /// Whether the last subgroup of a workgroup may hold fewer threads than lanes.
    pub(super) fn has_partial_subgroup(&self) -> bool {
        let lanes = self.profile.subgroup_size.unwrap_or(MAX_LANES);
        !self.kernel.contract.threads().is_multiple_of(lanes.max(1))
    }

    fn least_lanes(&self) -> u64 {
        u64::from(self.profile.subgroup_size.unwrap_or(4))
    }
}

/// Whether the operator looks at the own lane.
pub(super) fn asks_lane(op: SubgroupOp) -> bool {
    match op {
        SubgroupOp::ShuffleXor | SubgroupOp::ShuffleUp | SubgroupOp::ShuffleDown => true,
        SubgroupOp::Shuffle
        | SubgroupOp::Broadcast
        | SubgroupOp::Ballot
        | SubgroupOp::Any
        | SubgroupOp::All
        | SubgroupOp::Reduce => false,
    }
}
