//! Facts about a kernel that the printer needs before it prints.

use std::collections::HashMap;

use iron_ir::entity::{Array, Handle, Local, Value};
use iron_ir::kernel::{Block, Kernel, Space, operands};
use iron_ir::op::{BinaryOp, BuiltinOp, Op, Place, Stmt};

/// Uses of each value, by live code only.
pub(crate) struct Uses {
    counts: Vec<u32>,
}

impl Uses {
    /// Counts uses; a value that nothing live needs has none.
    pub fn of(kernel: &Kernel) -> Uses {
        let mut uses = Uses {
            counts: vec![0; kernel.values.len()],
        };
        let mut work = Vec::new();
        kernel.body.walk(&mut |stmt, _| work.extend(stmt.uses()));
        while let Some(value) = work.pop() {
            uses.counts[value.index()] += 1;
            if uses.counts[value.index()] == 1 {
                work.extend(operands(&kernel.values[value].op));
            }
        }
        uses
    }

    /// How often a value is read.
    pub fn count(&self, value: Value) -> u32 {
        self.counts.get(value.index()).copied().unwrap_or(0)
    }

    /// Builtins that live code asks for, with how often by values without a name, in order of
    /// first definition.
    pub fn builtins(&self, kernel: &Kernel) -> Vec<((BuiltinOp, u8), u32)> {
        let mut found: Vec<((BuiltinOp, u8), u32)> = Vec::new();
        for (value, data) in kernel.values.iter() {
            let count = self.count(value);
            if let (Op::Builtin(op, axis), 1..) = (&data.op, count) {
                // A named one has a variable of its own.
                let count = if data.name.is_some() { 0 } else { count };
                match found.iter_mut().find(|(key, _)| *key == (*op, *axis)) {
                    Some((_, total)) => *total += count,
                    None => found.push(((*op, *axis), count)),
                }
            }
        }
        found
    }
}

/// What a block changes.
#[derive(Default)]
pub(crate) struct Effects {
    /// Variables set.
    pub locals: Vec<Local>,
    /// Writes memory or orders it.
    pub memory: bool,
    /// Has a loop.
    pub has_loop: bool,
}

impl Effects {
    /// Of one statement with its nested blocks.
    pub fn of(stmt: &Stmt) -> Effects {
        let mut effects = Effects::default();
        effects.add(stmt);
        for block in stmt.blocks() {
            block.walk(&mut |inner, _| effects.add(inner));
        }
        effects
    }

    fn add(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::Set(local, _) => self.locals.push(*local),
            Stmt::Store { .. }
            | Stmt::Atomic { .. }
            | Stmt::Barrier(..)
            | Stmt::Subgroup { .. }
            | Stmt::Group { .. }
            | Stmt::Mma { .. }
            | Stmt::Machine(_)
            | Stmt::Tile(_) => self.memory = true,
            Stmt::For { .. } | Stmt::Loop { .. } => self.has_loop = true,
            Stmt::Let(_)
            | Stmt::CheckIndex { .. }
            | Stmt::If { .. }
            | Stmt::Roles { .. }
            | Stmt::Break
            | Stmt::Continue
            | Stmt::Return => {}
        }
    }
}

/// Where each variable is declared: before statement `index` of the block at `block` (its
/// address), the innermost that holds every use.
pub(crate) struct Declarations {
    at: HashMap<(*const Block, usize), Vec<Local>>,
}

impl Declarations {
    /// Finds the place of every variable that the body names.
    pub fn of(kernel: &Kernel) -> Declarations {
        let mut declarations = Declarations { at: HashMap::new() };
        let mut open: Vec<Local> = kernel.locals.handles().collect();
        declarations.place(kernel, &kernel.body, &mut open);
        for places in declarations.at.values_mut() {
            places.sort();
        }
        declarations
    }

    /// Variables to declare before statement `index` of `block`.
    pub fn before(&self, block: &Block, index: usize) -> &[Local] {
        self.at
            .get(&(std::ptr::from_ref(block), index))
            .map_or(&[], Vec::as_slice)
    }

    /// Places those of `open` that `block` holds, the others stay open for outer blocks.
    fn place(&mut self, kernel: &Kernel, block: &Block, open: &mut Vec<Local>) {
        let mentioned: Vec<Vec<Local>> = block
            .0
            .iter()
            .map(|(stmt, _)| mentions(kernel, stmt))
            .collect();
        let mut inner: HashMap<usize, Vec<Local>> = HashMap::new();
        open.retain(|local| {
            let mut holders = mentioned
                .iter()
                .enumerate()
                .filter(|(_, m)| m.contains(local))
                .map(|(i, _)| i);
            let Some(first) = holders.next() else {
                return true;
            };
            let is_sole = holders.next().is_none();
            let (stmt, _) = &block.0[first];
            if is_sole && !stmt.blocks().is_empty() && !mentions_itself(kernel, stmt, *local) {
                let nested: Vec<&Block> = stmt
                    .blocks()
                    .into_iter()
                    .filter(|b| block_mentions(kernel, b).contains(local))
                    .collect();
                // A loop's body may carry the value from one turn to the next unless the turn
                // begins by setting it.
                let may_enter = nested.len() == 1
                    && (!matches!(stmt, Stmt::For { .. } | Stmt::Loop { .. })
                        || sets_first(kernel, nested[0], *local));
                if may_enter {
                    inner.entry(first).or_default().push(*local);
                    return false;
                }
            }
            self.at
                .entry((std::ptr::from_ref(block), first))
                .or_default()
                .push(*local);
            false
        });
        for (index, mut locals) in inner {
            for nested in block.0[index].0.blocks() {
                self.place(kernel, nested, &mut locals);
            }
        }
    }
}

/// Whether the first statement of the block that names the variable sets it, outside any nested
/// block.
fn sets_first(kernel: &Kernel, block: &Block, local: Local) -> bool {
    let first = block
        .0
        .iter()
        .find(|(stmt, _)| mentions(kernel, stmt).contains(&local));
    match first {
        Some((Stmt::Set(set, value), _)) => *set == local && !reads(kernel, *value, local),
        Some((stmt, _))
            if matches!(stmt, Stmt::If { .. } | Stmt::For { .. } | Stmt::Loop { .. }) =>
        {
            let nested: Vec<&Block> = stmt
                .blocks()
                .into_iter()
                .filter(|b| block_mentions(kernel, b).contains(&local))
                .collect();
            let elsewhere = block
                .0
                .iter()
                .filter(|(s, _)| mentions(kernel, s).contains(&local));
            nested.len() == 1 && elsewhere.count() == 1 && sets_first(kernel, nested[0], local)
        }
        _ => false,
    }
}

fn reads(kernel: &Kernel, value: Value, local: Local) -> bool {
    matches!(kernel.values[value].op, Op::Get(l) if l == local)
}

fn block_mentions(kernel: &Kernel, block: &Block) -> Vec<Local> {
    block
        .0
        .iter()
        .flat_map(|(stmt, _)| mentions(kernel, stmt))
        .collect()
}

/// Variables that a statement names, nested blocks included.
fn mentions(kernel: &Kernel, stmt: &Stmt) -> Vec<Local> {
    let mut found = own_mentions(kernel, stmt);
    for block in stmt.blocks() {
        block.walk(&mut |inner, _| found.extend(own_mentions(kernel, inner)));
    }
    found
}

/// Whether the statement itself, not its blocks, names the variable. Its operands were read by
/// `Get`s that stand before it.
fn mentions_itself(kernel: &Kernel, stmt: &Stmt, local: Local) -> bool {
    own_mentions(kernel, stmt).contains(&local)
        || stmt.uses().into_iter().any(|v| reads(kernel, v, local))
}

fn own_mentions(kernel: &Kernel, stmt: &Stmt) -> Vec<Local> {
    match stmt {
        Stmt::Set(local, _) => vec![*local],
        Stmt::Let(value) => match kernel.values[*value].op {
            Op::Get(local) => vec![local],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Bytes after which the pattern of swizzled tiles repeats, which is counted from address 0.
pub(crate) const SWIZZLE_BYTES: u32 = 1024;

/// Bytes that vector accesses of each array need it aligned to; 0 where scalars only.
pub(crate) fn array_alignment(kernel: &Kernel) -> HashMap<Array, u32> {
    let mut align: HashMap<Array, u32> = HashMap::new();
    let mut note = |place: &Place, ty: iron_ir::Type| {
        if let (Place::Array(array), true) = (place, ty.is_vector()) {
            let bytes = align.entry(*array).or_default();
            *bytes = (*bytes).max(ty.bytes()).min(16);
        }
    };
    kernel.body.walk(&mut |stmt, _| match stmt {
        Stmt::Let(value) => {
            if let Op::Load { place, .. } = &kernel.values[*value].op {
                note(place, kernel.ty(*value));
            }
        }
        Stmt::Store { place, value, .. } => note(place, kernel.ty(*value)),
        _ => {}
    });
    kernel.body.walk(&mut |stmt, _| {
        if let Stmt::Machine(machine) = stmt {
            for array in &machine.arrays {
                let data = &kernel.arrays[*array];
                if data.space != Space::Shared {
                    continue;
                }
                if machine.op.is_of_fragments() || machine.op.is_of_batches() {
                    // Eight elements are read at once.
                    let bytes = align.entry(*array).or_default();
                    *bytes = (*bytes).max(16);
                } else if data.scalar.bytes() == 2 {
                    align.insert(*array, SWIZZLE_BYTES);
                }
            }
        }
    });
    align
}

/// An upper bound of an integer value taken as unsigned, or `None` where nothing is known.
pub(crate) fn upper_bound(kernel: &Kernel, value: Value, depth: u32) -> Option<u128> {
    if depth == 0 {
        return None;
    }
    let bound = |v| upper_bound(kernel, v, depth - 1);
    let ty = kernel.ty(value);
    let most = u128::from(u64::MAX >> (64 - ty.scalar.bits().min(64)));
    let fits = |n: u128| (n <= most).then_some(n);
    match &kernel.values[value].op {
        Op::Const(c) if !c.scalar.is_signed() || c.bits >> (c.scalar.bits() - 1) == 0 => {
            Some(u128::from(c.bits))
        }
        Op::Dim(_) => Some((1 << 31) - 1),
        Op::Builtin(op, axis) => {
            let workgroup = kernel.contract.workgroup;
            let size = workgroup.get(usize::from(*axis)).copied().unwrap_or(1);
            match op {
                BuiltinOp::LocalId => Some(u128::from(size.saturating_sub(1))),
                BuiltinOp::GroupSize => Some(u128::from(size)),
                BuiltinOp::LocalIndex
                | BuiltinOp::GroupThreads
                | BuiltinOp::SubgroupId
                | BuiltinOp::SubgroupCount => Some(u128::from(kernel.contract.threads())),
                BuiltinOp::SubgroupLane | BuiltinOp::SubgroupSize => Some(64),
                BuiltinOp::GroupId | BuiltinOp::GroupCount | BuiltinOp::GlobalId => None,
            }
        }
        Op::Binary(op, a, b) if !ty.scalar.is_signed() => match op {
            BinaryOp::Add => fits(bound(*a)? + bound(*b)?),
            BinaryOp::Mul => fits(bound(*a)? * bound(*b)?),
            BinaryOp::Div => match kernel.constant(*b) {
                Some(c) if c.bits > 0 => Some(bound(*a)? / u128::from(c.bits)),
                _ => None,
            },
            BinaryOp::Rem => match kernel.constant(*b) {
                Some(c) if c.bits > 0 => Some(u128::from(c.bits) - 1),
                _ => None,
            },
            BinaryOp::Min => match (bound(*a), bound(*b)) {
                (Some(x), Some(y)) => Some(x.min(y)),
                (x, y) => x.or(y),
            },
            BinaryOp::And => match (bound(*a), bound(*b)) {
                (Some(x), Some(y)) => Some(x.min(y)),
                (x, y) => x.or(y),
            },
            BinaryOp::Shr => match kernel.constant(*b) {
                Some(c) => Some(bound(*a)? >> c.bits.min(63)),
                None => bound(*a),
            },
            _ => None,
        },
        Op::Convert(a) if !kernel.ty(*a).scalar.is_signed() && kernel.ty(*a).scalar.is_int() => {
            fits(bound(*a).unwrap_or(u128::from(u64::MAX >> (64 - kernel.ty(*a).scalar.bits()))))
        }
        _ => None,
    }
}
