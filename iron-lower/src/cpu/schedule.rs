//! Orders the instructions of each block so that few values wait in registers.
//!
//! Cranelift's optimiser leaves what has no effect to be computed as late as its last user
//! allows, operands first to last. An unrolled chain of multiply-adds then has all its factors
//! computed before its first addition, which no register file holds: everything goes to the
//! stack and back. Here an operand that takes longer to compute comes first, so that a chain
//! begins with its innermost link, each load stands right before its user, where the code
//! generator makes it a memory operand, and what is used once is used at once.
//!
//! Loads keep their place among stores, calls and other effects; those keep their order.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::flowgraph::ControlFlowGraph;
use cranelift_codegen::ir::{Block, Function, Inst, InstructionData, ValueDef};

/// See the module doc.
pub(super) fn schedule(function: &mut Function) {
    join(function);
    let blocks: Vec<Block> = function.layout.blocks().collect();
    let mut place = SecondaryMap::with_default(u32::MAX);
    for block in blocks {
        let order = Scheduler::new(function, block, &mut place).order();
        for &inst in &order {
            function.layout.remove_inst(inst);
        }
        for &inst in &order {
            function.layout.append_inst(inst, block);
            place[inst] = u32::MAX;
        }
    }
}

/// Joins a block that ends in a jump with the block it jumps to, where nothing else goes there:
/// a loop's body would lie apart from what its next turn is given.
fn join(function: &mut Function) {
    let flow = ControlFlowGraph::with_function(function);
    let blocks: Vec<Block> = function.layout.blocks().collect();
    for block in blocks {
        // A block that joined another one is gone.
        while function.layout.is_block_inserted(block)
            && let Some(jump) = function.layout.last_inst(block)
            && let InstructionData::Jump { destination, .. } = function.dfg.insts[jump]
        {
            let next = destination.block(&function.dfg.value_lists);
            let alone = flow.pred_iter(next).count() == 1
                && function.dfg.block_params(next).is_empty()
                && Some(next) != function.layout.entry_block()
                && next != block;
            if !alone {
                break;
            }
            function.layout.remove_inst(jump);
            while let Some(inst) = function.layout.first_inst(next) {
                function.layout.remove_inst(inst);
                function.layout.append_inst(inst, block);
            }
            function.layout.remove_block(next);
        }
    }
}

/// How an instruction may move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Anywhere behind its operands.
    Pure,
    /// As `Pure`, but not past an effect.
    Load,
    /// Not past another one or an effect; loads may pass it.
    Trap,
    /// Nowhere.
    Effect,
}

struct Scheduler {
    insts: Vec<Inst>,
    kinds: Vec<Kind>,
    /// Operands that the block itself computes, the longest to compute first.
    operands: Vec<Vec<u32>>,
    scheduled: Vec<bool>,
    order: Vec<Inst>,
}

impl Scheduler {
    fn new(function: &Function, block: Block, place: &mut SecondaryMap<Inst, u32>) -> Scheduler {
        let insts: Vec<Inst> = function.layout.block_insts(block).collect();
        for (i, &inst) in insts.iter().enumerate() {
            place[inst] = i as u32;
        }
        let mut depths: Vec<u32> = Vec::with_capacity(insts.len());
        let mut operands = Vec::with_capacity(insts.len());
        for &inst in &insts {
            let mut own: Vec<u32> = Vec::new();
            for value in function.dfg.inst_values(inst) {
                let value = function.dfg.resolve_aliases(value);
                if let ValueDef::Result(by, _) = function.dfg.value_def(value)
                    && place[by] != u32::MAX
                    && !own.contains(&place[by])
                {
                    own.push(place[by]);
                }
            }
            own.sort_by_key(|&i| std::cmp::Reverse(depths[i as usize]));
            depths.push(own.first().map_or(0, |&i| depths[i as usize] + 1));
            operands.push(own);
        }
        let kind = |&inst: &Inst| {
            let opcode = function.dfg.insts[inst].opcode();
            if opcode.is_terminator()
                || opcode.is_call()
                || opcode.can_store()
                || opcode.other_side_effects()
            {
                Kind::Effect
            } else if opcode.can_trap() {
                Kind::Trap
            } else if opcode.can_load() {
                Kind::Load
            } else {
                Kind::Pure
            }
        };
        Scheduler {
            kinds: insts.iter().map(kind).collect(),
            scheduled: vec![false; insts.len()],
            order: Vec::with_capacity(insts.len()),
            insts,
            operands,
        }
    }

    fn order(mut self) -> Vec<Inst> {
        let mut loads = Vec::new();
        let last = self.insts.len().saturating_sub(1);
        for i in 0..self.insts.len() {
            match self.kinds[i] {
                Kind::Pure => {}
                Kind::Load => loads.push(i),
                Kind::Trap => self.place(i),
                Kind::Effect => {
                    for operand in self.operands[i].clone() {
                        self.place(operand as usize);
                    }
                    for load in loads.drain(..) {
                        self.place(load);
                    }
                    if i == last {
                        // What only other blocks use.
                        (0..last).for_each(|i| self.place(i));
                    }
                    self.place(i);
                }
            }
        }
        (0..self.insts.len()).for_each(|i| self.place(i));
        self.order
    }

    /// Places an instruction behind what it needs.
    fn place(&mut self, root: usize) {
        // An instruction and how many of its operands are placed.
        let mut path = vec![(root, 0)];
        while let Some((at, next)) = path.pop() {
            if self.scheduled[at] {
                continue;
            }
            match self.operands[at].get(next) {
                Some(&operand) => {
                    path.push((at, next + 1));
                    path.push((operand as usize, 0));
                }
                None => {
                    self.scheduled[at] = true;
                    self.order.push(self.insts[at]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_codegen::ir::types::{F32, I64};
    use cranelift_codegen::ir::{AbiParam, InstBuilder, MemFlagsData, Opcode, Signature};
    use cranelift_codegen::isa::CallConv;
    use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

    #[test]
    fn a_chain_takes_each_load_when_it_needs_it_and_loads_stay_before_stores() {
        let mut signature = Signature::new(CallConv::SystemV);
        signature.params.push(AbiParam::new(I64));
        let mut function = Function::with_name_signature(Default::default(), signature);
        let mut context = FunctionBuilderContext::new();
        let mut b = FunctionBuilder::new(&mut function, &mut context);
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        b.seal_all_blocks();
        let at = b.block_params(entry)[0];
        let flags = MemFlagsData::new().with_notrap();
        let loads: Vec<_> = (0..4)
            .map(|i| b.ins().load(F32, flags, at, 4 * i))
            .collect();
        // Read before the store, used only after it.
        let late = b.ins().load(F32, flags, at, 32);
        let mut sum = b.ins().fneg(loads[0]);
        let roots: Vec<_> = loads[1..].iter().map(|&x| b.ins().sqrt(x)).collect();
        for root in roots {
            sum = b.ins().fma(root, root, sum);
        }
        b.ins().store(flags, sum, at, 32);
        b.ins().store(flags, late, at, 36);
        b.ins().return_(&[]);
        let isa = crate::cpu::processor("none").unwrap();
        b.finalize(isa.frontend_config());
        schedule(&mut function);
        let opcodes: Vec<Opcode> = function
            .layout
            .block_insts(entry)
            .map(|inst| function.dfg.insts[inst].opcode())
            .collect();
        use Opcode::{Fma, Fneg, Load, Return, Sqrt, Store};
        assert_eq!(
            opcodes,
            [
                Load, Sqrt, Load, Fneg, Fma, Load, Sqrt, Fma, Load, Sqrt, Fma, Load, Store, Store,
                Return
            ]
        );
    }
}
