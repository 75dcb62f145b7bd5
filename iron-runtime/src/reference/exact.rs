//! Index arithmetic that loses bits.
//!
//! Beside the register of every integer that can reach an index or a loop bound runs its exact
//! value, kept only where the two differ. Sums, differences, products, left shifts, quotients and
//! conversions compute on; minima, maxima and selections take the operand that they choose;
//! variables carry it along. Remainders, right shifts and bitwise operations begin anew from the
//! register, because hashes and bit fields wrap on purpose. A difference is a fault only where the
//! value addresses memory or bounds a loop: `i.wrapping_sub(1).wrapping_add(1)` is none.
//!
//! A constant in the upper half of an unsigned type stands for a negative number when it is added or
//! multiplied, as passes write subtractions.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use iron_ir::entity::{Handle, Local, Value};
use iron_ir::kernel::{Kernel, Span, operands};
use iron_ir::op::{BinaryOp, TileStmt};
use iron_ir::{Op, Scalar, Stmt};

use super::machine::{Machine, ordered};
use super::program::{Inst, Row};
use super::report::{Fault, Rule};

/// An integer that is not what its register holds.
#[derive(Clone)]
pub(super) struct Wrapped {
    exact: i128,
    origin: Rc<Origin>,
}

/// The operation that first lost bits.
struct Origin {
    span: Span,
    message: String,
}

/// The wrapped integers of a workgroup, by row and thread.
#[derive(Default)]
pub(super) struct WrappedValues {
    registers: HashMap<(Row, usize), Wrapped>,
    locals: HashMap<(Row, usize), Wrapped>,
}

impl WrappedValues {
    /// None.
    pub fn clear(&mut self) {
        self.registers.clear();
        self.locals.clear();
    }

    fn is_empty(&self) -> bool {
        self.registers.is_empty() && self.locals.is_empty()
    }

    fn put(&mut self, row: Row, t: usize, value: Option<Wrapped>) {
        match value {
            Some(value) => {
                self.registers.insert((row, t), value);
            }
            None if self.registers.is_empty() => {}
            None => {
                self.registers.remove(&(row, t));
            }
        }
    }
}

impl Machine<'_> {
    /// Where an access uses a row as an index.
    #[inline]
    pub(super) fn check_exact(&self, row: Row, t: usize, span: Span) -> Result<(), Fault> {
        if self.wrapped.registers.is_empty() {
            return Ok(());
        }
        self.check_wrapped(row, t, "its use as an index", span)
    }

    fn check_wrapped(
        &self,
        row: Row,
        t: usize,
        what: &'static str,
        span: Span,
    ) -> Result<(), Fault> {
        let Some(found) = self.wrapped.registers.get(&(row, t)) else {
            return Ok(());
        };
        let held = self.regs[self.at(row) + t];
        let message = format!(
            "index arithmetic loses bits: {}; the index would be {}, and is {held}",
            found.origin.message, found.exact
        );
        let fault = self.fault(Rule::WrappedIndex, found.origin.span, t, message);
        Err(fault.with(what, span))
    }

    /// Follows an instruction that has just run and whose result can reach an index.
    pub(super) fn follow(&mut self, inst: &Inst, span: Span) -> Result<(), Fault> {
        match *inst {
            Inst::Binary {
                op,
                scalar,
                dst,
                a,
                b,
                signed_constants,
                ..
            } => self.follow_binary(op, scalar, dst, [a, b], signed_constants, span),
            Inst::Convert { from, to, dst, a } => {
                let (d, source) = (self.at(dst), self.at(a));
                let mask = self.mask.clone();
                mask.for_each(|t| {
                    let held = ordered(to.scalar, self.regs[d + t]);
                    let known = self.wrapped.registers.get(&(a, t)).cloned();
                    let exact = match &known {
                        Some(wrapped) => wrapped.exact,
                        None => ordered(from.scalar, self.regs[source + t]),
                    };
                    let now = (exact != held).then(|| match known {
                        Some(known) => known,
                        None => Wrapped {
                            exact,
                            origin: Rc::new(Origin {
                                span,
                                message: format!(
                                    "{exact} does not fit {}, which takes it as {held}",
                                    to.scalar
                                ),
                            }),
                        },
                    });
                    self.wrapped.put(dst, t, now);
                });
            }
            _ if self.wrapped.is_empty() => {}
            Inst::Select {
                dst,
                condition,
                a,
                b,
                ..
            } => {
                let c = self.at(condition);
                self.choose(dst, |m, t| if m.regs[c + t] & 1 == 1 { a } else { b });
            }
            Inst::Get { local, dst, .. } => {
                let row = self.program.local_rows[local.index()];
                let mask = self.mask.clone();
                mask.for_each(|t| {
                    let value = self.wrapped.locals.get(&(row, t)).cloned();
                    self.wrapped.put(dst, t, value);
                });
            }
            Inst::Set { local, src, .. } => {
                let row = self.program.local_rows[local.index()];
                let mask = self.mask.clone();
                mask.for_each(|t| match self.wrapped.registers.get(&(src, t)).cloned() {
                    Some(value) => {
                        self.wrapped.locals.insert((row, t), value);
                    }
                    None => {
                        self.wrapped.locals.remove(&(row, t));
                    }
                });
            }
            Inst::CheckIndex { index, bound, .. } => {
                let mask = self.mask.clone();
                mask.try_for_each(|t| {
                    self.check_wrapped(index, t, "its use as an index", span)?;
                    self.check_wrapped(bound, t, "its use as a bound", span)
                })?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The bounds of a loop that is about to begin.
    pub(super) fn check_bounds(&mut self, rows: [Row; 3], span: Span) -> Result<(), Fault> {
        if self.wrapped.registers.is_empty() {
            return Ok(());
        }
        self.mask.try_for_each(|t| {
            rows.iter()
                .try_for_each(|&row| self.check_wrapped(row, t, "the loop that it bounds", span))
        })
    }

    /// Takes the exact value along from the row that was chosen.
    fn choose(&mut self, dst: Row, chosen: impl Fn(&Self, usize) -> Row) {
        let mask = self.mask.clone();
        mask.for_each(|t| {
            let value = self.wrapped.registers.get(&(chosen(self, t), t)).cloned();
            self.wrapped.put(dst, t, value);
        });
    }

    fn follow_binary(
        &mut self,
        op: BinaryOp,
        scalar: Scalar,
        dst: Row,
        [a, b]: [Row; 2],
        signed_constants: [bool; 2],
        span: Span,
    ) {
        let (d, x, y) = (self.at(dst), self.at(a), self.at(b));
        if matches!(op, BinaryOp::Min | BinaryOp::Max) {
            if !self.wrapped.is_empty() {
                // Where both are equal, the one that is exact.
                self.choose(dst, |m, t| {
                    let is_b = m.regs[d + t] == m.regs[y + t];
                    if is_b && !m.wrapped.registers.contains_key(&(b, t))
                        || m.regs[d + t] != m.regs[x + t]
                    {
                        b
                    } else {
                        a
                    }
                });
            }
            return;
        }
        let mask = self.mask.clone();
        let none_wrapped = self.wrapped.registers.is_empty();
        mask.for_each(|t| {
            let (x, y, held) = (self.regs[x + t], self.regs[y + t], self.regs[d + t]);
            if none_wrapped && is_plainly_exact(op, scalar, x, y, held) {
                self.wrapped.put(dst, t, None);
                return;
            }
            let known = [a, b].map(|row| self.wrapped.registers.get(&(row, t)).cloned());
            let operand = |i: usize, bits: u64| match &known[i] {
                Some(wrapped) => wrapped.exact,
                None if signed_constants[i] => as_signed(scalar, bits),
                None => ordered(scalar, bits),
            };
            let (x, y) = (operand(0, x), operand(1, y));
            let held = ordered(scalar, held);
            let Some(exact) = exact(op, scalar, x, y) else {
                self.wrapped.put(dst, t, None);
                return;
            };
            let now = (exact != held).then(|| {
                let origin = known.into_iter().flatten().next().map(|known| known.origin);
                let origin = origin.unwrap_or_else(|| {
                    let sign = sign_of(op);
                    Rc::new(Origin {
                        span,
                        message: format!(
                            "{x} {sign} {y} is {exact}, which {scalar} takes as {held}"
                        ),
                    })
                });
                Wrapped { exact, origin }
            });
            self.wrapped.put(dst, t, now);
        });
    }
}

/// Whether the machine's result is exact, for the usual type and operations at little cost.
fn is_plainly_exact(op: BinaryOp, scalar: Scalar, x: u64, y: u64, held: u64) -> bool {
    if scalar != Scalar::U32 {
        return false;
    }
    match op {
        BinaryOp::Add => x + y == held,
        BinaryOp::Sub => x >= y,
        BinaryOp::Mul => x * y == held,
        BinaryOp::Div => true,
        _ => false,
    }
}

/// The exact result of an operation; `None` where it begins anew.
fn exact(op: BinaryOp, scalar: Scalar, x: i128, y: i128) -> Option<i128> {
    // Past 128 bits the value is far from fitting anyway.
    let far = i128::MAX;
    match op {
        BinaryOp::Add => Some(x.saturating_add(y)),
        BinaryOp::Sub => Some(x.saturating_sub(y)),
        BinaryOp::Mul => Some(x.checked_mul(y).unwrap_or(far)),
        BinaryOp::Shl => {
            let count = y.rem_euclid(i128::from(scalar.bits())) as u32;
            Some(x.checked_mul(1i128 << count).unwrap_or(far))
        }
        BinaryOp::Div => x.checked_div(y),
        _ => None,
    }
}

fn sign_of(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::Shl => "<<",
        BinaryOp::Div => "/",
        other => other.name(),
    }
}

/// The bits of an unsigned type as its signed twin orders them.
fn as_signed(scalar: Scalar, bits: u64) -> i128 {
    let shift = 64 - scalar.bits();
    i128::from(((bits << shift) as i64) >> shift)
}

/// What can reach an index or a loop bound by operations that are followed.
pub(super) struct Reaching {
    pub values: HashSet<Value>,
    pub locals: HashSet<Local>,
}

impl Reaching {
    /// Of a kernel.
    pub fn of(kernel: &Kernel) -> Reaching {
        let mut work: Vec<Value> = Vec::new();
        for data in kernel.values.values() {
            if let Op::Load { indices, .. } = &data.op {
                work.extend(indices);
            }
        }
        let mut sets: HashMap<Local, Vec<Value>> = HashMap::new();
        kernel.body.walk(&mut |stmt, _| match stmt {
            Stmt::Store { indices, .. } | Stmt::Atomic { indices, .. } => work.extend(indices),
            Stmt::Tile(TileStmt::Load {
                leading, origin, ..
            })
            | Stmt::Tile(TileStmt::Store {
                leading, origin, ..
            }) => {
                work.extend(leading.iter().chain(origin));
            }
            Stmt::CheckIndex { index, bound, .. } => work.extend([index, bound]),
            Stmt::For {
                start, end, step, ..
            } => work.extend([start, end, step]),
            Stmt::Set(local, value) => sets.entry(*local).or_default().push(*value),
            _ => {}
        });
        let mut reaching = Reaching {
            values: HashSet::new(),
            locals: HashSet::new(),
        };
        while let Some(value) = work.pop() {
            let data = &kernel.values[value];
            if !data.ty.scalar.is_int() || data.ty.lanes != 1 {
                continue;
            }
            let from: Vec<Value> = match &data.op {
                Op::Convert(a) if kernel.ty(*a).scalar.is_int() => vec![*a],
                Op::Binary(op, ..) if follows(*op) => operands(&data.op).into_vec(),
                Op::Select(_, a, b) => vec![*a, *b],
                Op::Get(local) => {
                    if reaching.locals.insert(*local) {
                        sets.remove(local).unwrap_or_default()
                    } else {
                        Vec::new()
                    }
                }
                _ => continue,
            };
            if reaching.values.insert(value) {
                work.extend(from);
            }
        }
        reaching
    }
}

fn follows(op: BinaryOp) -> bool {
    match op {
        BinaryOp::Add
        | BinaryOp::Sub
        | BinaryOp::Mul
        | BinaryOp::Div
        | BinaryOp::Shl
        | BinaryOp::Min
        | BinaryOp::Max => true,
        BinaryOp::Rem
        | BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::Shr
        | BinaryOp::MinNan
        | BinaryOp::MaxNan
        | BinaryOp::MulHigh
        | BinaryOp::Dot4
        | BinaryOp::Dot4Mixed
        | BinaryOp::Pow => false,
    }
}
