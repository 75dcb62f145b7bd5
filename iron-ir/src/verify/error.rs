//! What the verifier says.

use std::fmt;
use std::sync::Arc;

use crate::kernel::{Kernel, Span};
use crate::types::Type;

/// A place in a named file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// File, empty where unknown.
    pub file: Arc<str>,
    /// From 1; 0 where unknown.
    pub line: u32,
    /// From 1.
    pub column: u16,
}

impl Location {
    /// The place that a span of the kernel means.
    pub fn of(kernel: &Kernel, span: Span) -> Location {
        let file = kernel.files.get(usize::from(span.file)).cloned();
        Location {
            file: file.unwrap_or_else(|| "".into()),
            line: span.line,
            column: span.column,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, &*self.file) {
            (0, "") => write!(f, "(unknown place)"),
            (0, file) => write!(f, "{file}"),
            (line, "") => write!(f, "{line}:{}", self.column),
            (line, file) => write!(f, "{file}:{line}:{}", self.column),
        }
    }
}

/// What is wrong.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Fault {
    /// A value has another type than its place needs.
    #[error("{role} must be {expected}, found {found}")]
    Type {
        /// What the value is for.
        role: String,
        /// Needed.
        expected: String,
        /// Found.
        found: Type,
    },
    /// A value is used where it is not yet, or no longer, defined.
    #[error("{0} is used before its definition, or outside of the block that defines it")]
    UsedBeforeDefinition(String),
    /// A value has two definitions.
    #[error("{0} is defined twice")]
    DefinedTwice(String),
    /// A write through `&`.
    #[error("`{tensor}` is read-only; declare it `&mut` to write it")]
    ReadOnly {
        /// Tensor.
        tensor: String,
        /// Where it is declared.
        declared: Span,
    },
    /// `break` or `continue` outside of a loop.
    #[error("`{0}` outside of a loop")]
    OutsideLoop(&'static str),
    /// An operation that every thread must reach stands where only some may (K02).
    #[error(
        "{operation} must be reached by every thread of the workgroup, but {cause} may differ between threads; do it outside and mask the work instead"
    )]
    Divergent {
        /// The operation.
        operation: String,
        /// What diverges.
        cause: &'static str,
        /// Where.
        condition: Span,
    },
    /// A grid barrier stands where only some workgroups may pass.
    #[error(
        "a grid barrier must be reached by every thread of the launch, but {cause} may differ between them; do it outside and mask the work instead"
    )]
    DivergentGrid {
        /// What diverges.
        cause: &'static str,
        /// Where.
        condition: Span,
    },
    /// A value that must be the same in every thread may not be.
    #[error("{role} must be the same in every thread of the workgroup")]
    NotUniform {
        /// What the value is for.
        role: String,
    },
    /// Everything that only a fault in Iron can produce.
    #[error("{0}")]
    Malformed(String),
}

/// A fault, where it is, and the place that explains it.
#[derive(Clone, PartialEq, Debug)]
pub struct VerifyError {
    /// Kernel and instance.
    pub kernel: String,
    /// What is wrong.
    pub fault: Fault,
    /// Of the operation.
    pub span: Span,
    /// The same with the file's name.
    pub location: Location,
    /// The condition that diverges, or the declaration that forbids.
    pub related: Option<(Span, Location)>,
}

impl VerifyError {
    pub(crate) fn new(kernel: &Kernel, span: Span, fault: Fault) -> VerifyError {
        let related = match &fault {
            Fault::Divergent { condition, .. } | Fault::DivergentGrid { condition, .. } => {
                Some(*condition)
            }
            Fault::ReadOnly { declared, .. } => Some(*declared),
            _ => None,
        };
        VerifyError {
            kernel: kernel.full_name(),
            fault,
            span,
            location: Location::of(kernel, span),
            related: related.map(|s| (s, Location::of(kernel, s))),
        }
    }
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: kernel `{}`: {}",
            self.location, self.kernel, self.fault
        )?;
        match (&self.fault, &self.related) {
            (Fault::Divergent { .. } | Fault::DivergentGrid { .. }, Some((_, at))) => {
                write!(f, " (diverges at {at})")
            }
            (_, Some((_, at))) => write!(f, " (declared at {at})"),
            (_, None) => Ok(()),
        }
    }
}

impl std::error::Error for VerifyError {}

/// Every fault found, at least one.
#[derive(Clone, PartialEq, Debug)]
pub struct VerifyErrors(pub Vec<VerifyError>);

impl fmt::Display for VerifyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for VerifyErrors {}
