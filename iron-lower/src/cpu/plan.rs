//! What is decided of a kernel before a line of code is made: which values are the same in all
//! threads, where the body is cut at synchronisation points, and which values and variables
//! live across a cut.

use std::collections::{HashMap, HashSet};

use iron_ir::entity::{Array, Handle, Local, Value};
use iron_ir::kernel::{Kernel, Space, Span, operands};
use iron_ir::op::{BarrierScope, BinaryOp, UnaryOp};
use iron_ir::{Op, Place, Stmt};

use super::uniformity::{uniform, variance};

/// A statement of the kernel with its place.
pub(super) type Line<'k> = &'k (Stmt, Span);

/// A step of the workgroup.
pub(super) enum Node<'k> {
    /// Values that are the same in all threads, computed once.
    Hoisted(Vec<Value>),
    /// Statements that every thread runs before the next step.
    Run(Run<'k>),
    /// A collective or subgroup exchange of a value that the run before left in scratch memory.
    Exchange(Line<'k>),
    /// A branch that the whole workgroup takes.
    If {
        condition: Value,
        then_nodes: Vec<Node<'k>>,
        else_nodes: Vec<Node<'k>>,
    },
    /// A loop that the whole workgroup runs.
    For {
        index: Value,
        start: Value,
        end: Value,
        step: Value,
        body: Vec<Node<'k>>,
    },
    /// See `For`.
    Loop(Vec<Node<'k>>),
    Break,
    Continue,
    Return,
}

/// Statements between two synchronisation points.
#[derive(Default)]
pub(super) struct Run<'k> {
    pub lines: Vec<Line<'k>>,
    /// Values computed before the run, once.
    pub hoisted: HashSet<Value>,
    /// Values of earlier runs that this one reads from scratch memory.
    pub reloads: Vec<Value>,
    /// Variables that this run touches.
    pub locals: Vec<Local>,
    /// Operands of the exchange that follows, to be left in scratch memory.
    pub operands: Vec<Value>,
    /// Threads are taken one at a time.
    pub one_at_a_time: bool,
}

/// The plan of a kernel.
pub(super) struct Plan<'k> {
    pub nodes: Vec<Node<'k>>,
    /// Values that may differ between neighbouring threads.
    pub varying: Vec<bool>,
    /// Variables that may.
    pub local_varying: Vec<bool>,
    /// Values that are the same in the whole workgroup and computed once.
    pub uniform: Vec<bool>,
    /// Values kept in scratch memory from one run to another.
    pub spilled: HashSet<Value>,
    /// Variables kept in scratch memory between runs.
    pub stored_locals: HashSet<Local>,
    /// Private arrays that live within one run: threads may share the place, one after another.
    pub transient_arrays: HashSet<Array>,
    /// Threads that run side by side: 4, or 1.
    pub width: u32,
}

impl<'k> Plan<'k> {
    /// Plans a kernel.
    pub fn new(kernel: &'k Kernel) -> Plan<'k> {
        let width = if kernel.contract.threads().is_multiple_of(4) {
            4
        } else {
            1
        };
        let (varying, local_varying) = variance(kernel);
        let mut planner = Planner {
            kernel,
            uniform: uniform(kernel),
            varying: &varying,
        };
        let lines: Vec<Line<'k>> = kernel.body.0.iter().collect();
        let mut nodes = planner.nodes(&lines, true);
        let uniform = planner.uniform;
        let mut residence = Residence {
            kernel,
            uniform: &uniform,
            home: HashMap::new(),
            spilled: HashSet::new(),
            local_runs: HashMap::new(),
            array_runs: HashMap::new(),
            n_runs: 0,
        };
        residence.define(&nodes, 0);
        residence.n_runs = 0;
        residence.settle(&mut nodes);
        let spilled = residence.spilled;
        let stored_locals = residence
            .local_runs
            .iter()
            .filter(|(_, u)| u.lives_on())
            .map(|(l, _)| *l)
            .collect();
        let transient_arrays = residence
            .array_runs
            .iter()
            .filter(|(_, u)| !u.lives_on())
            .map(|(a, _)| *a)
            .collect();
        Plan {
            nodes,
            varying,
            local_varying,
            uniform,
            spilled,
            stored_locals,
            transient_arrays,
            width,
        }
    }
}

/// Where a statement joins threads.
pub(super) fn synchronises(stmt: &Stmt) -> bool {
    let itself = matches!(
        stmt,
        Stmt::Barrier(..) | Stmt::Group { .. } | Stmt::Subgroup { .. }
    );
    itself
        || stmt
            .blocks()
            .iter()
            .any(|block| block.0.iter().any(|(s, _)| synchronises(s)))
}

/// Whether a statement may leave itself: a return, or a break or continue of a loop around it.
pub(super) fn escapes(stmt: &Stmt) -> bool {
    fn inner(stmt: &Stmt, in_loop: bool) -> bool {
        match stmt {
            Stmt::Return => true,
            Stmt::Break | Stmt::Continue => !in_loop,
            Stmt::For { body, .. } | Stmt::Loop { body } => {
                body.0.iter().any(|(s, _)| inner(s, true))
            }
            other => other
                .blocks()
                .iter()
                .any(|b| b.0.iter().any(|(s, _)| inner(s, in_loop))),
        }
    }
    inner(stmt, false)
}

/// Whether a block holds a return anywhere.
pub(super) fn returns(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::Return)
        || stmt
            .blocks()
            .iter()
            .any(|b| b.0.iter().any(|(s, _)| returns(s)))
}

/// `if c { …; return }`: the lines before the return, where the branch ends so and has no other
/// escape.
pub(super) fn guard<'k>(stmt: &'k Stmt) -> Option<Vec<Line<'k>>> {
    let Stmt::If {
        then_block,
        else_block,
        ..
    } = stmt
    else {
        return None;
    };
    let (last, before) = then_block.0.split_last()?;
    let plain = matches!(last.0, Stmt::Return)
        && else_block.is_empty()
        && before.iter().all(|(s, _)| !escapes(s));
    plain.then(|| before.iter().collect())
}

/// Cheap and without effect: may be computed again wherever it is needed.
pub(super) fn is_cheap(op: &Op) -> bool {
    match op {
        Op::Const(_) | Op::Scalar(_) | Op::Dim(_) | Op::Stride(..) | Op::Builtin(..) => true,
        Op::Unary(op, _) => matches!(op, UnaryOp::Neg | UnaryOp::Not | UnaryOp::Abs),
        Op::Binary(op, ..) => !matches!(
            op,
            BinaryOp::Div
                | BinaryOp::Rem
                | BinaryOp::Pow
                | BinaryOp::MulHigh
                | BinaryOp::Dot4
                | BinaryOp::Dot4Mixed
        ),
        Op::Compare(..) | Op::Select(..) | Op::Convert(_) | Op::Bitcast(_) | Op::Extract(..) => {
            true
        }
        Op::Splat(_) => true,
        Op::Fma(..)
        | Op::Vector(_)
        | Op::Insert(..)
        | Op::Get(_)
        | Op::Load { .. }
        | Op::Result => false,
    }
}

struct Planner<'a, 'k> {
    kernel: &'k Kernel,
    uniform: Vec<bool>,
    varying: &'a [bool],
}

impl<'k> Planner<'_, 'k> {
    /// Cuts lines at synchronisation points. `last`: nothing after these lines joins threads.
    fn nodes(&mut self, lines: &[Line<'k>], last: bool) -> Vec<Node<'k>> {
        let after_last = if last {
            lines
                .iter()
                .rposition(|(stmt, _)| synchronises(stmt))
                .map_or(0, |at| at + 1)
        } else {
            lines.len()
        };
        let mut nodes = Vec::new();
        let mut run: Vec<Line<'k>> = Vec::new();
        for (at, &line) in lines.iter().enumerate() {
            let (stmt, _) = line;
            let joins = synchronises(stmt) || (at < after_last && escapes(stmt));
            if !joins {
                run.push(line);
                continue;
            }
            match stmt {
                // One of the device's memory too: a workgroup runs in one thread of the processor,
                // whose atomics are sequentially consistent.
                Stmt::Barrier(..) => {
                    self.run(&mut nodes, &mut run, Vec::new());
                }
                Stmt::Group {
                    value, argument, ..
                }
                | Stmt::Subgroup {
                    value, argument, ..
                } => {
                    let operands = [*value].into_iter().chain(*argument).collect();
                    self.run(&mut nodes, &mut run, operands);
                    nodes.push(Node::Exchange(line));
                }
                Stmt::If {
                    condition,
                    then_block,
                    else_block,
                } => {
                    self.run(&mut nodes, &mut run, Vec::new());
                    let tail = last && at + 1 == lines.len();
                    let then_lines: Vec<_> = then_block.0.iter().collect();
                    let else_lines: Vec<_> = else_block.0.iter().collect();
                    nodes.push(Node::If {
                        condition: *condition,
                        then_nodes: self.nodes(&then_lines, tail),
                        else_nodes: self.nodes(&else_lines, tail),
                    });
                }
                Stmt::For {
                    index,
                    start,
                    end,
                    step,
                    body,
                    ..
                } => {
                    self.run(&mut nodes, &mut run, Vec::new());
                    let body: Vec<_> = body.0.iter().collect();
                    self.uniform[index.index()] = true;
                    let body = self.nodes(&body, false);
                    nodes.push(Node::For {
                        index: *index,
                        start: *start,
                        end: *end,
                        step: *step,
                        body,
                    });
                }
                Stmt::Loop { body } => {
                    self.run(&mut nodes, &mut run, Vec::new());
                    let body: Vec<_> = body.0.iter().collect();
                    nodes.push(Node::Loop(self.nodes(&body, false)));
                }
                Stmt::Break | Stmt::Continue | Stmt::Return => {
                    self.run(&mut nodes, &mut run, Vec::new());
                    nodes.push(match stmt {
                        Stmt::Break => Node::Break,
                        Stmt::Continue => Node::Continue,
                        _ => Node::Return,
                    });
                    // What follows in this block is never reached.
                    return nodes;
                }
                _ => {}
            }
        }
        self.run(&mut nodes, &mut run, Vec::new());
        nodes
    }

    fn run(&mut self, nodes: &mut Vec<Node<'k>>, lines: &mut Vec<Line<'k>>, operands: Vec<Value>) {
        if lines.is_empty() && operands.is_empty() {
            return;
        }
        let lines = std::mem::take(lines);
        let mut hoisted = Vec::new();
        let mut may_have_ended = false;
        for (stmt, _) in &lines {
            // What is computed from a value that stays in the run stays there too.
            if let Stmt::Let(value) = stmt
                && self.uniform[value.index()]
                && iron_ir::kernel::operands(&self.kernel.values[*value].op)
                    .iter()
                    .all(|operand| self.uniform[operand.index()])
                && !(may_have_ended && matches!(self.kernel.values[*value].op, Op::Load { .. }))
            {
                hoisted.push(*value);
            } else if let Stmt::Let(value) = stmt {
                self.uniform[value.index()] = false;
            }
            may_have_ended |= escapes(stmt);
        }
        if !hoisted.is_empty() {
            nodes.push(Node::Hoisted(hoisted.clone()));
        }
        let one_at_a_time = lines.iter().any(|(stmt, _)| !self.side_by_side(stmt, true));
        let hoisted: HashSet<Value> = hoisted.into_iter().collect();
        let empty = lines
            .iter()
            .all(|(s, _)| matches!(s, Stmt::Let(v) if hoisted.contains(v)));
        if empty && operands.is_empty() {
            return;
        }
        nodes.push(Node::Run(Run {
            lines,
            hoisted,
            operands,
            one_at_a_time,
            ..Run::default()
        }));
    }

    /// Whether threads side by side can run a statement: a return must be a guard at the top of
    /// the run, or be taken by all of them.
    fn side_by_side(&self, stmt: &Stmt, top: bool) -> bool {
        if !returns(stmt) {
            return true;
        }
        match stmt {
            Stmt::If {
                condition,
                then_block,
                else_block,
            } => {
                if self.varying[condition.index()] {
                    return top && guard(stmt).is_some();
                }
                [then_block, else_block]
                    .into_iter()
                    .all(|b| b.0.iter().all(|(s, _)| self.side_by_side(s, false)))
            }
            Stmt::Return => true,
            _ => false,
        }
    }
}

/// Which runs touch a variable or private array.
#[derive(Clone, Copy)]
struct Usage {
    first_run: usize,
    many: bool,
    /// Its run stands in a loop of the workgroup and reads it before writing it.
    carried: bool,
}

impl Usage {
    fn lives_on(self) -> bool {
        self.many || self.carried
    }
}

struct Residence<'a, 'k> {
    kernel: &'k Kernel,
    uniform: &'a [bool],
    /// The run that defines a value; absent for those of the workgroup.
    home: HashMap<Value, usize>,
    spilled: HashSet<Value>,
    local_runs: HashMap<Local, Usage>,
    array_runs: HashMap<Array, Usage>,
    n_runs: usize,
}

impl<'k> Residence<'_, 'k> {
    fn define(&mut self, nodes: &[Node<'k>], loops: usize) {
        for node in nodes {
            match node {
                Node::Run(run) => {
                    let id = self.n_runs;
                    self.n_runs += 1;
                    for line in &run.lines {
                        self.define_stmt(&line.0, run, id);
                    }
                    self.usage(run, id, loops > 0);
                }
                Node::If {
                    then_nodes,
                    else_nodes,
                    ..
                } => {
                    self.define(then_nodes, loops);
                    self.define(else_nodes, loops);
                }
                Node::For { body, .. } | Node::Loop(body) => self.define(body, loops + 1),
                Node::Exchange(line) => {
                    for value in line.0.defines() {
                        if !self.uniform[value.index()] {
                            // Its result lies in scratch memory.
                            self.home.insert(value, usize::MAX);
                            self.spilled.insert(value);
                        }
                    }
                }
                Node::Hoisted(_) | Node::Break | Node::Continue | Node::Return => {}
            }
        }
    }

    fn define_stmt(&mut self, stmt: &Stmt, run: &Run<'k>, id: usize) {
        for value in stmt.defines() {
            if !run.hoisted.contains(&value) {
                self.home.insert(value, id);
            }
        }
        for block in stmt.blocks() {
            for (stmt, _) in &block.0 {
                self.define_stmt(stmt, run, id);
            }
        }
    }

    fn usage(&mut self, run: &Run<'k>, id: usize, in_loop: bool) {
        for line in &run.lines {
            let (mut locals, mut arrays) = (Vec::new(), Vec::new());
            touched(self.kernel, &line.0, &mut locals, &mut arrays);
            for local in locals {
                let set_first = matches!(line.0, Stmt::Set(l, _) if l == local);
                let usage = self.local_runs.entry(local).or_insert(Usage {
                    first_run: id,
                    many: false,
                    carried: in_loop && !set_first,
                });
                usage.many |= usage.first_run != id;
            }
            for array in arrays {
                let usage = self.array_runs.entry(array).or_insert(Usage {
                    first_run: id,
                    many: false,
                    carried: in_loop,
                });
                usage.many |= usage.first_run != id;
            }
        }
    }

    /// Finds, for each use, whether its value must be kept in scratch memory.
    fn settle(&mut self, nodes: &mut [Node<'k>]) {
        for node in nodes {
            match node {
                Node::Run(run) => {
                    let id = self.n_runs;
                    self.n_runs += 1;
                    let mut uses = run.operands.clone();
                    let mut locals = HashSet::new();
                    for line in &run.lines {
                        uses_of(self.kernel, &line.0, &mut uses);
                        let (mut touched_locals, mut arrays) = (Vec::new(), Vec::new());
                        touched(self.kernel, &line.0, &mut touched_locals, &mut arrays);
                        locals.extend(touched_locals);
                    }
                    let mut seen = HashSet::new();
                    for value in uses {
                        self.reach(value, Some(id), &mut seen, &mut run.reloads);
                    }
                    run.reloads.sort_unstable();
                    run.locals = locals.into_iter().collect();
                    run.locals.sort_unstable();
                }
                Node::If {
                    condition,
                    then_nodes,
                    else_nodes,
                } => {
                    self.reach(*condition, None, &mut HashSet::new(), &mut Vec::new());
                    self.settle(then_nodes);
                    self.settle(else_nodes);
                }
                Node::For {
                    start,
                    end,
                    step,
                    body,
                    ..
                } => {
                    for value in [*start, *end, *step] {
                        self.reach(value, None, &mut HashSet::new(), &mut Vec::new());
                    }
                    self.settle(body);
                }
                Node::Loop(body) => self.settle(body),
                Node::Hoisted(_)
                | Node::Exchange(_)
                | Node::Break
                | Node::Continue
                | Node::Return => {}
            }
        }
    }

    fn reach(
        &mut self,
        value: Value,
        run: Option<usize>,
        seen: &mut HashSet<Value>,
        reloads: &mut Vec<Value>,
    ) {
        if !seen.insert(value) {
            return;
        }
        let Some(&home) = self.home.get(&value) else {
            return;
        };
        if Some(home) == run {
            return;
        }
        let op = &self.kernel.values[value].op;
        if is_cheap(op) {
            for operand in operands(op) {
                self.reach(operand, run, seen, reloads);
            }
            return;
        }
        self.spilled.insert(value);
        reloads.push(value);
    }
}

/// Values that a statement and its blocks read.
fn uses_of(kernel: &Kernel, stmt: &Stmt, uses: &mut Vec<Value>) {
    uses.extend(stmt.uses());
    if let Stmt::Let(value) = stmt {
        uses.extend(operands(&kernel.values[*value].op));
    }
    for block in stmt.blocks() {
        for (stmt, _) in &block.0 {
            uses_of(kernel, stmt, uses);
        }
    }
}

/// Variables and private arrays that a statement and its blocks touch.
fn touched(kernel: &Kernel, stmt: &Stmt, locals: &mut Vec<Local>, arrays: &mut Vec<Array>) {
    let mut place_of = |place: &Place| {
        if let Place::Array(array) = place
            && kernel.arrays[*array].space == Space::Private
        {
            arrays.push(*array);
        }
    };
    match stmt {
        Stmt::Let(value) => match &kernel.values[*value].op {
            Op::Get(local) => locals.push(*local),
            Op::Load { place, .. } => place_of(place),
            _ => {}
        },
        Stmt::Set(local, _) => locals.push(*local),
        Stmt::Store { place, .. } | Stmt::Atomic { place, .. } => place_of(place),
        _ => {}
    }
    for block in stmt.blocks() {
        for (stmt, _) in &block.0 {
            touched(kernel, stmt, locals, arrays);
        }
    }
}

/// Whether the kernel joins the whole grid, which one workgroup at a time cannot.
pub(super) fn has_grid_barrier(kernel: &Kernel) -> bool {
    let mut found = false;
    kernel
        .body
        .walk(&mut |stmt, _| found |= matches!(stmt, Stmt::Barrier(BarrierScope::Grid, _)));
    found
}
