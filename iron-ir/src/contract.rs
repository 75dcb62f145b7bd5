//! The launch contract: data that the launcher, the optimiser, tests, docs and engines share.

use std::fmt;
use std::sync::Arc;

use crate::entity::{Dim, Handle, Param};
use crate::kernel::Kernel;

/// An integer expression over dimensions and scalar parameters, evaluated in `i128` on the
/// host: no overflow, division by zero is an error.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Expr {
    /// A constant.
    Const(i64),
    /// A named dimension.
    Dim(Dim),
    /// An integer scalar parameter.
    Scalar(Param),
    /// Two operands.
    Binary(ExprOp, Arc<Expr>, Arc<Expr>),
}

/// Operators of [`Expr`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExprOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient rounded down.
    Div,
    /// Quotient rounded up.
    CeilDiv,
    /// Remainder.
    Rem,
    /// Smaller.
    Min,
    /// Larger.
    Max,
}

impl ExprOp {
    /// The spelling in the textual IR and in messages; the last four are calls.
    pub const fn name(self) -> &'static str {
        match self {
            ExprOp::Add => "+",
            ExprOp::Sub => "-",
            ExprOp::Mul => "*",
            ExprOp::Div => "/",
            ExprOp::Rem => "%",
            ExprOp::CeilDiv => "ceil_div",
            ExprOp::Min => "min",
            ExprOp::Max => "max",
        }
    }
}

/// Comparison of a [`Fact`].
pub use crate::op::CompareOp;

/// A `requires(...)`: a comparison that holds of every launch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fact {
    /// Comparison.
    pub op: CompareOp,
    /// Left.
    pub lhs: Expr,
    /// Right.
    pub rhs: Expr,
}

/// A capability that not every target has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Feature {
    /// `f64` values.
    F64,
    /// `f16` values in memory.
    F16,
    /// `bf16` values in memory (always legal: legalised to 16-bit integers).
    BF16,
    /// 8-bit elements in memory.
    Storage8,
    /// 16-bit integer elements in memory.
    Storage16,
    /// 64-bit integer values.
    Int64,
    /// 64-bit atomics.
    Atomic64,
    /// `f32` atomic add.
    AtomicF32Add,
    /// Subgroup exchanges.
    Subgroups,
    /// Grid-wide barriers (cooperative launch).
    GridBarrier,
    /// Barriers of a workgroup that order its memory on the whole device.
    DeviceBarrier,
    /// Programmatic dependent launch: a launch may start while the one before it ends.
    DependentLaunch,
}

impl Feature {
    /// Every feature.
    pub const ALL: [Feature; 12] = [
        Feature::F64,
        Feature::F16,
        Feature::BF16,
        Feature::Storage8,
        Feature::Storage16,
        Feature::Int64,
        Feature::Atomic64,
        Feature::AtomicF32Add,
        Feature::Subgroups,
        Feature::GridBarrier,
        Feature::DeviceBarrier,
        Feature::DependentLaunch,
    ];

    /// The name in manifests and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Feature::F64 => "f64",
            Feature::F16 => "f16",
            Feature::BF16 => "bf16",
            Feature::Storage8 => "storage-8-bit",
            Feature::Storage16 => "storage-16-bit",
            Feature::Int64 => "int64",
            Feature::Atomic64 => "atomic-64-bit",
            Feature::AtomicF32Add => "atomic-f32-add",
            Feature::Subgroups => "subgroups",
            Feature::GridBarrier => "grid-barrier",
            Feature::DeviceBarrier => "device-barrier",
            Feature::DependentLaunch => "dependent-launch",
        }
    }
}

/// What every launch of a kernel promises.
#[derive(Clone, PartialEq, Debug)]
pub struct Contract {
    /// Workgroups along x, y, z.
    pub grid: [Expr; 3],
    /// Threads of a workgroup along x, y, z.
    pub workgroup: [u32; 3],
    /// Workgroups that a multiprocessor is meant to hold at once, so that compilers use no more
    /// registers than they leave; 0 for no wish. It changes no result.
    pub resident: u32,
    /// Facts.
    pub requires: Vec<Fact>,
    /// Licences.
    pub permissions: crate::kernel::FloatPermissions,
    /// The kernel asks for a cooperative launch (grid barriers).
    pub cooperative: bool,
    /// The kernel may start before its predecessor ends (dependent launch); a licence, so a
    /// target without the feature runs launches one after the other.
    pub dependent: bool,
}

impl Default for Contract {
    fn default() -> Self {
        Contract {
            grid: [Expr::Const(1), Expr::Const(1), Expr::Const(1)],
            workgroup: [1, 1, 1],
            resident: 0,
            requires: Vec::new(),
            permissions: Default::default(),
            cooperative: false,
            dependent: false,
        }
    }
}

impl Contract {
    /// Threads of a workgroup.
    pub fn threads(&self) -> u32 {
        self.workgroup.iter().product()
    }
}

/// Values of dimensions and scalars of one launch.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// One a [`Dim`].
    pub dims: Vec<u32>,
    /// One a [`Param`]; integer scalars only, others are `None`.
    pub scalars: Vec<Option<i128>>,
}

impl Expr {
    /// A binary expression.
    pub fn binary(op: ExprOp, lhs: Expr, rhs: Expr) -> Expr {
        Expr::Binary(op, Arc::new(lhs), Arc::new(rhs))
    }

    /// The value, or `None` on division by zero or a scalar that is not an integer.
    pub fn eval(&self, bindings: &Bindings) -> Option<i128> {
        Some(match self {
            Expr::Const(c) => i128::from(*c),
            Expr::Dim(d) => i128::from(*bindings.dims.get(d.index())?),
            Expr::Scalar(p) => (*bindings.scalars.get(p.index())?)?,
            Expr::Binary(op, a, b) => {
                let (a, b) = (a.eval(bindings)?, b.eval(bindings)?);
                match op {
                    ExprOp::Add => a.checked_add(b)?,
                    ExprOp::Sub => a.checked_sub(b)?,
                    ExprOp::Mul => a.checked_mul(b)?,
                    ExprOp::Div => a.checked_div_euclid(b)?,
                    ExprOp::CeilDiv => a.checked_add(b.checked_sub(1)?)?.checked_div_euclid(b)?,
                    ExprOp::Rem => a.checked_rem_euclid(b)?,
                    ExprOp::Min => a.min(b),
                    ExprOp::Max => a.max(b),
                }
            }
        })
    }

    /// The expression in the author's words.
    pub fn display<'a>(&'a self, kernel: &'a Kernel) -> impl fmt::Display + 'a {
        DisplayExpr {
            expr: self,
            kernel,
            nested: false,
        }
    }
}

impl Fact {
    /// Whether the fact holds, with both sides' values; `None` where one has no value.
    pub fn eval(&self, bindings: &Bindings) -> Option<(bool, i128, i128)> {
        let (a, b) = (self.lhs.eval(bindings)?, self.rhs.eval(bindings)?);
        let holds = match self.op {
            CompareOp::Eq => a == b,
            CompareOp::Ne => a != b,
            CompareOp::Lt => a < b,
            CompareOp::Le => a <= b,
            CompareOp::Gt => a > b,
            CompareOp::Ge => a >= b,
        };
        Some((holds, a, b))
    }

    /// The fact in the author's words: `cols % 4 == 0`.
    pub fn display<'a>(&'a self, kernel: &'a Kernel) -> impl fmt::Display + 'a {
        DisplayFact { fact: self, kernel }
    }
}

struct DisplayExpr<'a> {
    expr: &'a Expr,
    kernel: &'a Kernel,
    nested: bool,
}

impl fmt::Display for DisplayExpr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nest = |expr, nested| DisplayExpr {
            expr,
            kernel: self.kernel,
            nested,
        };
        match self.expr {
            Expr::Const(c) => c.fmt(f),
            Expr::Dim(d) => f.write_str(&self.kernel.dims[*d]),
            Expr::Scalar(p) => f.write_str(&self.kernel.params[*p].name),
            Expr::Binary(op, a, b) => match op {
                ExprOp::CeilDiv | ExprOp::Min | ExprOp::Max => {
                    write!(f, "{}({}, {})", op.name(), nest(a, false), nest(b, false))
                }
                ExprOp::Add | ExprOp::Sub | ExprOp::Mul | ExprOp::Div | ExprOp::Rem => {
                    let (open, close) = if self.nested { ("(", ")") } else { ("", "") };
                    write!(
                        f,
                        "{open}{} {} {}{close}",
                        nest(a, true),
                        op.name(),
                        nest(b, true)
                    )
                }
            },
        }
    }
}

struct DisplayFact<'a> {
    fact: &'a Fact,
    kernel: &'a Kernel,
}

impl fmt::Display for DisplayFact<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.fact.op {
            CompareOp::Eq => "==",
            CompareOp::Ne => "!=",
            CompareOp::Lt => "<",
            CompareOp::Le => "<=",
            CompareOp::Gt => ">",
            CompareOp::Ge => ">=",
        };
        let lhs = self.fact.lhs.display(self.kernel);
        write!(f, "{lhs} {op} {}", self.fact.rhs.display(self.kernel))
    }
}
