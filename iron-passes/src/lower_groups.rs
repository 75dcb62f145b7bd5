//! Collectives of a workgroup, and reductions of a subgroup, become shuffles, shared memory and
//! barriers.
//!
//! Every reduction is the adjacent-pair tree over the linear thread index, with the same bits at
//! every subgroup width: the levels below the width are exchanged by shuffles where the profile
//! knows the width and that lanes are consecutive threads, the others go through shared memory,
//! eight elements a thread and stage. The last stage is computed by every thread, so that no
//! barrier is spent on handing the result out.
//!
//! A scan is Sklansky's: at distance `d = 1, 2, 4, …` every element whose index has bit `d` set
//! takes the last element of the block of `d` before its own on its left.
//!
//! Scratch memory is two arrays for each scalar type, which the collectives of the kernel take in
//! turn: the barrier inside one orders the reads of the one before. A barrier stands before a
//! collective only where both may still be read.

use std::collections::HashMap;

use iron_ir::entity::{Array, Value};
use iron_ir::kernel::Space;
use iron_ir::op::{BarrierScope, BinaryOp, BuiltinOp, CompareOp, GroupOp, ReduceOp, SubgroupOp};
use iron_ir::{Block, Kernel, Place, Scalar, Stmt, Type};

use crate::rewrite::Builder;
use crate::trees::{
    absent, butterfly, combine, identity, shuffle, shuffle_width, shuffle_xor, tree,
};
use crate::{Legal, PassError};

/// Elements that one thread combines in a stage of shared memory.
const STAGE: u32 = 8;
/// Lanes of the widest subgroup of any target.
const MAX_SUBGROUP: u32 = 64;

/// See the module doc.
pub fn lower_groups(kernel: &mut Kernel, legal: &Legal) -> Result<(), PassError> {
    if !has_collectives(kernel, legal) {
        return Ok(());
    }
    let threads = kernel.contract.threads();
    let body = std::mem::take(&mut kernel.body);
    let mut lowering = Lowering {
        b: Builder::new(kernel),
        legal,
        threads,
        scratch: HashMap::new(),
        in_use: [false; 2],
        own: 0,
    };
    let body = lowering.block(body);
    kernel.body = body;
    Ok(())
}

fn has_collectives(kernel: &Kernel, legal: &Legal) -> bool {
    let mut found = false;
    kernel
        .body
        .walk(&mut |stmt, _| found |= is_lowered(kernel, legal, stmt));
    found
}

/// Whether a statement is a collective that this pass lowers: all of them, or those of halves
/// where the target has collectives of its own, because halves are legalised after this pass and
/// their reduction rounds at every level.
fn is_lowered(kernel: &Kernel, legal: &Legal, stmt: &Stmt) -> bool {
    let value = match stmt {
        Stmt::Group { value, .. } => value,
        Stmt::Subgroup {
            op: SubgroupOp::Reduce,
            value,
            ..
        } => value,
        _ => return false,
    };
    let half = matches!(kernel.ty(*value).scalar, Scalar::F16 | Scalar::BF16);
    !legal.native_collectives || half
}

struct Lowering<'a> {
    b: Builder<'a>,
    legal: &'a Legal,
    threads: u32,
    /// By type, and which of the two.
    scratch: HashMap<(Scalar, usize), Array>,
    /// Some thread may still read the first, or the second, arrays of an earlier collective.
    in_use: [bool; 2],
    /// Which arrays the collective at hand takes.
    own: usize,
}

impl Lowering<'_> {
    fn block(&mut self, block: Block) -> Block {
        let outer = std::mem::take(&mut self.b.out);
        for (mut stmt, span) in block.0 {
            self.b.span = span;
            self.b.rename(&mut stmt);
            if !is_lowered(self.b.kernel, self.legal, &stmt) {
                self.keep(stmt, span);
                continue;
            }
            match stmt {
                Stmt::Group {
                    result,
                    op,
                    reduce,
                    value,
                    argument,
                } => {
                    let reduce = reduce.unwrap_or(ReduceOp::Sum);
                    let new = match op {
                        GroupOp::Reduce => self.reduce(reduce, value),
                        GroupOp::ScanInclusive => self.scan(reduce, value, false),
                        GroupOp::ScanExclusive => self.scan(reduce, value, true),
                        GroupOp::Broadcast => self.broadcast(value, argument),
                    };
                    self.b.replace(result, new);
                }
                Stmt::Subgroup {
                    result,
                    op: SubgroupOp::Reduce,
                    reduce,
                    value,
                    ..
                } => {
                    let new = self.subgroup_reduce(reduce.unwrap_or(ReduceOp::Sum), value);
                    self.b.replace(result, new);
                }
                other => self.b.push(other),
            }
        }
        Block(std::mem::replace(&mut self.b.out, outer))
    }

    /// A statement that is no collective to lower, with its blocks.
    fn keep(&mut self, mut stmt: Stmt, span: iron_ir::Span) {
        if let Stmt::Barrier(BarrierScope::Workgroup | BarrierScope::Grid, _) = stmt {
            self.in_use = [false; 2];
        }
        let before = self.in_use;
        let repeats = matches!(stmt, Stmt::For { .. } | Stmt::Loop { .. });
        let mut after = before;
        for nested in stmt.blocks_mut() {
            let mut again = false;
            nested.walk(&mut |s, _| again |= is_lowered(self.b.kernel, self.legal, s));
            self.in_use = before.map(|used| used || (repeats && again));
            let taken = std::mem::take(nested);
            *nested = self.block(taken);
            after = [0, 1].map(|i| after[i] || self.in_use[i]);
        }
        self.in_use = after;
        self.b.span = span;
        self.b.push(stmt);
    }

    fn reduce(&mut self, op: ReduceOp, value: Value) -> Value {
        let ty = self.b.ty(value);
        if self.threads == 1 {
            return value;
        }
        let thread = self.b.builtin(BuiltinOp::LocalIndex, 0);
        let Some(width) = shuffle_width(self.legal, self.threads) else {
            return self.reduce_in_shared(op, value, thread);
        };
        let partial = butterfly(&mut self.b, op, value, width, 1);
        let count = self.threads / width;
        if count <= 1 {
            return partial;
        }
        let scratch = self.begin(ty.scalar, count);
        let lane = self
            .b
            .with_int(BinaryOp::And, thread, i128::from(width) - 1);
        let lane = self.b.named(lane, "lane");
        let first = self.b.compare_int(CompareOp::Eq, lane, 0);
        self.b.if_then(first, |b| {
            let subgroup = b.with_int(BinaryOp::Shr, thread, i128::from(width.trailing_zeros()));
            b.store(Place::Array(scratch), vec![subgroup], partial);
        });
        self.join();
        if count > 4 && count <= width {
            // Every block of lanes loads all partial results, so that every lane gets the tree.
            let block = count.next_power_of_two();
            let own = self.b.with_int(BinaryOp::And, lane, i128::from(block) - 1);
            let index = match block - count {
                0 => own,
                _ => self.b.with_int(BinaryOp::Min, own, i128::from(count) - 1),
            };
            let mut mine = self.b.load(Place::Array(scratch), vec![index], ty);
            if count < block {
                let present = self.b.compare_int(CompareOp::Lt, own, i128::from(count));
                let absent = absent(&mut self.b, op, ty);
                mine = self.b.select(present, mine, absent);
            }
            return butterfly(&mut self.b, op, mine, block, 1);
        }
        let partials = (0..count)
            .map(|i| {
                let index = self.b.u32(i);
                self.b.load(Place::Array(scratch), vec![index], ty)
            })
            .collect();
        tree(&mut self.b, op, partials)
    }

    fn reduce_in_shared(&mut self, op: ReduceOp, value: Value, thread: Value) -> Value {
        let ty = self.b.ty(value);
        let mut needed = self.threads;
        let mut count = self.threads;
        while count > STAGE {
            count = count.div_ceil(STAGE);
            needed += count;
        }
        let scratch = self.begin(ty.scalar, needed);
        let place = Place::Array(scratch);
        self.b.store(place, vec![thread], value);
        self.join();
        let (mut first, mut count) = (0, self.threads);
        while count > STAGE {
            let next = count.div_ceil(STAGE);
            let active = self.b.compare_int(CompareOp::Lt, thread, i128::from(next));
            self.b.if_then(active, |b| {
                let base = b.with_int(BinaryOp::Mul, thread, i128::from(STAGE));
                let elements = (0..STAGE)
                    .map(|i| {
                        let element = b.with_int(BinaryOp::Add, base, i128::from(i));
                        load_element(b, op, place, ty, first, element, count)
                    })
                    .collect();
                let partial = tree(b, op, elements);
                let partial = b.named(partial, "partial");
                let target = b.with_int(BinaryOp::Add, thread, i128::from(first + count));
                b.store(place, vec![target], partial);
            });
            self.b.workgroup_barrier();
            first += count;
            count = next;
        }
        let elements = (0..count)
            .map(|i| {
                let index = self.b.u32(first + i);
                self.b.load(place, vec![index], ty)
            })
            .collect();
        tree(&mut self.b, op, elements)
    }

    fn scan(&mut self, op: ReduceOp, value: Value, exclusive: bool) -> Value {
        let ty = self.b.ty(value);
        let thread = self.b.builtin(BuiltinOp::LocalIndex, 0);
        let mut value = value;
        let mut distance = 1;
        if let Some(width) = shuffle_width(self.legal, self.threads) {
            let lane = self
                .b
                .with_int(BinaryOp::And, thread, i128::from(width) - 1);
            while distance < width {
                let source = left_neighbour(&mut self.b, lane, distance);
                let left = shuffle(&mut self.b, SubgroupOp::Shuffle, value, source);
                let sum = combine(&mut self.b, op, left, value);
                let right_half = has_bit(&mut self.b, lane, distance);
                value = self.b.select(right_half, sum, value);
                distance *= 2;
            }
        }
        if distance >= self.threads && !exclusive {
            return value;
        }
        let scratch = self.begin(ty.scalar, self.threads);
        let place = Place::Array(scratch);
        self.b.store(place, vec![thread], value);
        self.join();
        while distance < self.threads {
            // A level reads only elements whose index lacks the bit and writes only those that
            // have it, so one barrier a level is enough.
            let right_half = has_bit(&mut self.b, thread, distance);
            self.b.if_then(right_half, |b| {
                let source = left_neighbour(b, thread, distance);
                let left = b.load(place, vec![source], ty);
                let own = b.load(place, vec![thread], ty);
                let sum = combine(b, op, left, own);
                b.store(place, vec![thread], sum);
            });
            self.b.workgroup_barrier();
            distance *= 2;
        }
        if !exclusive {
            return self.b.load(place, vec![thread], ty);
        }
        let first = self.b.compare_int(CompareOp::Eq, thread, 0);
        let before = self.b.with_int(BinaryOp::Sub, thread, 1);
        let zero = self.b.u32(0);
        let before = self.b.select(first, zero, before);
        let left = self.b.load(place, vec![before], ty);
        let none = identity(&mut self.b, op, ty);
        self.b.select(first, none, left)
    }

    fn broadcast(&mut self, value: Value, argument: Option<Value>) -> Value {
        let ty = self.b.ty(value);
        let source = argument.unwrap_or_else(|| self.b.u32(0));
        let thread = self.b.builtin(BuiltinOp::LocalIndex, 0);
        let scratch = self.begin(ty.scalar, 1);
        let zero = self.b.u32(0);
        let mine = self.b.compare(CompareOp::Eq, thread, source);
        self.b
            .if_then(mine, |b| b.store(Place::Array(scratch), vec![zero], value));
        self.join();
        self.b.load(Place::Array(scratch), vec![zero], ty)
    }

    fn subgroup_reduce(&mut self, op: ReduceOp, value: Value) -> Value {
        if let Some(width) = shuffle_width(self.legal, self.threads) {
            return butterfly(&mut self.b, op, value, width, 1);
        }
        let ty = self.b.ty(value);
        let size = self.legal.subgroup_size;
        let widest = size.unwrap_or(MAX_SUBGROUP);
        let lane = self.b.builtin(BuiltinOp::SubgroupLane, 0);
        let lanes = self.b.builtin(BuiltinOp::SubgroupSize, 0);
        // Absent lanes exist only where the workgroup does not fill its subgroups.
        let partial = !self.threads.is_multiple_of(widest);
        let mut value = value;
        let mut distance = 1;
        while distance < widest {
            let mut other = shuffle_xor(&mut self.b, value, distance);
            if partial {
                let subgroup = self.b.builtin(BuiltinOp::SubgroupId, 0);
                let first = self.b.mul(subgroup, lanes);
                let partner = self.b.with_int(BinaryOp::Xor, lane, i128::from(distance));
                let partner = self.b.add(first, partner);
                let limit = i128::from(self.threads);
                let present = self.b.compare_int(CompareOp::Lt, partner, limit);
                let absent = absent(&mut self.b, op, ty);
                other = self.b.select(present, other, absent);
            }
            let sum = combine(&mut self.b, op, value, other);
            value = if size.is_some() {
                sum
            } else {
                let inside = self
                    .b
                    .compare_int(CompareOp::Gt, lanes, i128::from(distance));
                self.b.select(inside, sum, value)
            };
            distance *= 2;
        }
        if !partial {
            return value;
        }
        // Lanes beside absent ones have not seen every element; the first has.
        let first = self.b.u32(0);
        shuffle(&mut self.b, SubgroupOp::Broadcast, value, first)
    }

    /// The barrier after the first write to scratch memory, which is then read: every thread has
    /// read what an earlier collective left in the other arrays.
    fn join(&mut self) {
        self.b.workgroup_barrier();
        self.in_use = [self.own == 0, self.own == 1];
    }

    /// The scratch array of a type with at least `len` elements, safe to write.
    fn begin(&mut self, scalar: Scalar, len: u32) -> Array {
        self.own = match self.in_use {
            [false, _] => 0,
            [true, false] => 1,
            [true, true] => {
                self.b.workgroup_barrier();
                self.in_use = [false; 2];
                0
            }
        };
        let own = self.own;
        let b = &mut self.b;
        let array = *self.scratch.entry((scalar, own)).or_insert_with(|| {
            let mut name = match scalar {
                Scalar::F32 => "scratch".to_string(),
                other => format!("scratch_{other}"),
            };
            if own == 1 {
                name += "_other";
            }
            b.array(&name, scalar, len, Space::Shared)
        });
        let data = &mut b.kernel.arrays[array];
        data.len = data.len.max(len);
        array
    }
}

/// Element `element` of `count` from `first` on, one that changes nothing beyond.
fn load_element(
    b: &mut Builder<'_>,
    op: ReduceOp,
    place: Place,
    ty: Type,
    first: u32,
    element: Value,
    count: u32,
) -> Value {
    let offset = |b: &mut Builder<'_>, index: Value| match first {
        0 => index,
        _ => b.with_int(BinaryOp::Add, index, i128::from(first)),
    };
    if count.is_multiple_of(STAGE) {
        let index = offset(b, element);
        return b.load(place, vec![index], ty);
    }
    let inside = b.with_int(BinaryOp::Min, element, i128::from(count) - 1);
    let index = offset(b, inside);
    let loaded = b.load(place, vec![index], ty);
    let present = b.compare_int(CompareOp::Lt, element, i128::from(count));
    let absent = absent(b, op, ty);
    b.select(present, loaded, absent)
}

/// The last element of the block of `distance` on the left of the one that `index` is in.
fn left_neighbour(b: &mut Builder<'_>, index: Value, distance: u32) -> Value {
    let mask = i128::from(!(2 * distance - 1));
    let block = b.with_int(BinaryOp::And, index, mask);
    b.with_int(BinaryOp::Or, block, i128::from(distance) - 1)
}

fn has_bit(b: &mut Builder<'_>, index: Value, bit: u32) -> Value {
    let masked = b.with_int(BinaryOp::And, index, i128::from(bit));
    b.compare_int(CompareOp::Ne, masked, 0)
}
