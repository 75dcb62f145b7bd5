//! What the checker says: one [`Report`] a fault, with the rule, the places and the values.

use std::fmt;

use iron_ir::kernel::{Kernel, Span};
use iron_ir::verify::Location;

/// A rule of the specification that a kernel or a launch can break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Rule {
    /// The kernel does not build, or the verifier refuses it for a reason of its own.
    Malformed,
    /// The launch contract refuses the arguments: dimensions, types, strides, a false `requires`.
    Contract,
    /// An index outside of a tensor's dimension, a flat view, or a shared or private array.
    OutOfBounds,
    /// A vector access at an index that is no multiple of its lanes.
    Misaligned,
    /// Two threads touch one cell of shared or global memory, one of them writes, not both are
    /// atomic, and nothing orders them. Equal values are no excuse: the specification orders no
    /// two such writes, and a compiler may split, widen or repeat them.
    Race,
    /// A read of shared, private, tile or output memory that nothing wrote.
    Uninitialised,
    /// A barrier, collective, subgroup or tile operation that not every thread reaches together.
    Divergence,
    /// A value that must be the same in every thread, and is not.
    NotUniform,
    /// A subgroup or workgroup operation that names a lane or thread that does not exist.
    NoSuchLane,
    /// Integer arithmetic that lost bits, and whose result addresses memory or bounds a loop.
    WrappedIndex,
    /// An index given to `index_in` that is not below its bound.
    IndexIn,
    /// A loop whose step is not above zero.
    ZeroStep,
    /// A workgroup that spent its step budget.
    Endless,
    /// A float that is not finite, made of operands that were, and stored. On request only.
    NonFinite,
    /// A store through `&`.
    ReadOnly,
    /// A grid barrier that some workgroup never reaches.
    GridBarrier,
    /// An operation that the type does not have; the verifier refuses it before.
    NoOperation,
    /// The launch ended, broke no other rule, and its outputs are not the oracle's.
    WrongResult,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 18] = [
        Rule::Malformed,
        Rule::Contract,
        Rule::OutOfBounds,
        Rule::Misaligned,
        Rule::Race,
        Rule::Uninitialised,
        Rule::Divergence,
        Rule::NotUniform,
        Rule::NoSuchLane,
        Rule::WrappedIndex,
        Rule::IndexIn,
        Rule::ZeroStep,
        Rule::Endless,
        Rule::NonFinite,
        Rule::ReadOnly,
        Rule::GridBarrier,
        Rule::NoOperation,
        Rule::WrongResult,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Malformed => "malformed",
            Rule::Contract => "contract",
            Rule::OutOfBounds => "out-of-bounds",
            Rule::Misaligned => "misaligned",
            Rule::Race => "race",
            Rule::Uninitialised => "uninitialised",
            Rule::Divergence => "divergence",
            Rule::NotUniform => "not-uniform",
            Rule::NoSuchLane => "no-such-lane",
            Rule::WrappedIndex => "wrapped-index",
            Rule::IndexIn => "index-in",
            Rule::ZeroStep => "zero-step",
            Rule::Endless => "endless",
            Rule::NonFinite => "non-finite",
            Rule::ReadOnly => "read-only",
            Rule::GridBarrier => "grid-barrier",
            Rule::NoOperation => "no-operation",
            Rule::WrongResult => "wrong-result",
        }
    }

    /// What to do about it.
    pub const fn help(self) -> &'static str {
        match self {
            Rule::Malformed => "mend the kernel as the message says",
            Rule::Contract => {
                "mend the caller, or the kernel's signature and `requires` if they say too much"
            }
            Rule::OutOfBounds => {
                "guard the access with the dimension (`if i < n`), or state the bound with `requires`"
            }
            Rule::Misaligned => "load and store vectors at multiples of their lanes only",
            Rule::Race => {
                "put `barrier()` between the accesses (`barrier_global()` for tensors), give each \
                 thread its own cells, or make both atomic; workgroups meet only through atomics or \
                 the end of the launch"
            }
            Rule::Uninitialised => "write the cell before the read, in every thread that reads it",
            Rule::Divergence => "move the operation out of the branch and mask the work instead",
            Rule::NotUniform => "compute the value from uniform values, or broadcast it",
            Rule::NoSuchLane => {
                "keep lanes below `subgroup_size()` and threads below `group_threads()`"
            }
            Rule::WrappedIndex => {
                "index by row and column, or compute in `u64`; where wrapping is meant, undo it \
                 before the access"
            }
            Rule::IndexIn => {
                "the data is wrong, or the bound is; the launch fails on every backend"
            }
            Rule::ZeroStep => "step by at least 1",
            Rule::Endless => {
                "mend the loop's end, or raise the step budget if the work is that large"
            }
            Rule::NonFinite => "guard the operation, or scale its operands",
            Rule::ReadOnly => "declare the tensor `&mut`",
            Rule::GridBarrier => "let every workgroup reach the barrier equally often",
            Rule::NoOperation => "verify the kernel before it runs",
            Rule::WrongResult => {
                "the kernel or its test is wrong: `test --backend reference` prints where they differ"
            }
        }
    }
}

/// A second place of a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Related {
    /// What is there: `the earlier access`, `the condition`.
    pub what: &'static str,
    /// Where.
    pub at: Location,
}

/// One fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Rule that is broken.
    pub rule: Rule,
    /// Kernel and instance.
    pub kernel: String,
    /// Place in the author's source.
    pub at: Location,
    /// The other place, where two are needed to see the fault.
    pub related: Option<Related>,
    /// Workgroup along x, y, z.
    pub workgroup: Option<[u32; 3]>,
    /// Linear thread index in the workgroup.
    pub thread: Option<u32>,
    /// What happened, with the values at hand.
    pub message: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.message)?;
        if let Some(related) = &self.related {
            write!(f, " ({}: {})", related.what, related.at)?;
        }
        match (self.workgroup, self.thread) {
            (Some([x, y, z]), Some(t)) => write!(f, " (workgroup {x}, {y}, {z}, thread {t})"),
            (Some([x, y, z]), None) => write!(f, " (workgroup {x}, {y}, {z})"),
            (None, _) => Ok(()),
        }
    }
}

/// A fault while a kernel runs; its places are spans of that kernel.
pub(super) struct Fault {
    pub rule: Rule,
    pub message: String,
    pub span: Span,
    pub related: Option<(&'static str, Span)>,
    pub thread: Option<u32>,
}

impl Fault {
    /// A fault of the whole workgroup.
    pub fn new(rule: Rule, span: Span, message: String) -> Fault {
        Fault {
            rule,
            message,
            span,
            related: None,
            thread: None,
        }
    }

    /// With its second place.
    pub fn with(mut self, what: &'static str, span: Span) -> Fault {
        self.related = Some((what, span));
        self
    }

    /// The fault for people.
    pub fn report(self, kernel: &Kernel, workgroup: [u32; 3]) -> Report {
        Report {
            rule: self.rule,
            kernel: kernel.full_name(),
            at: Location::of(kernel, self.span),
            related: self.related.map(|(what, span)| Related {
                what,
                at: Location::of(kernel, span),
            }),
            workgroup: Some(workgroup),
            thread: self.thread,
            message: self.message,
        }
    }
}
