//! Why a kernel could not be built.

use crate::types::Type;

/// A kernel that could not be built, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{file}:{line}:{column}: kernel `{kernel}`: {fault}")]
pub struct BuildError {
    /// Kernel.
    pub kernel: String,
    /// The author's file.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
    /// What is wrong.
    pub fault: BuildFault,
}

impl BuildError {
    pub(super) fn unlocated(fault: BuildFault) -> BuildError {
        BuildError {
            kernel: String::new(),
            file: String::new(),
            line: 0,
            column: 0,
            fault,
        }
    }
}

/// What is wrong with a kernel that rustc accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BuildFault {
    /// A value that must be known at build time is not.
    #[error("{what} must be a constant; use a literal, a `const` or a const parameter")]
    NotConstant {
        /// Of what.
        what: String,
    },
    /// A constant outside its range.
    #[error("{what} is {found}, allowed are {allowed}")]
    OutOfRange {
        /// Of what.
        what: String,
        /// Given.
        found: i128,
        /// Allowed.
        allowed: String,
    },
    /// An operation that a type does not have on devices.
    #[error("{operation} does not exist for `{ty}` in a kernel")]
    NoOperation {
        /// Operation.
        operation: String,
        /// Type.
        ty: Type,
    },
    /// An operation on something that is no number.
    #[error("{operation} needs {expected}, but this is {found}")]
    WrongKind {
        /// Operation.
        operation: String,
        /// What it takes.
        expected: &'static str,
        /// What it got.
        found: &'static str,
    },
    /// Two types that must be one.
    #[error("{operation} joins `{left}` and `{right}`, which are not one type")]
    Types {
        /// Operation.
        operation: String,
        /// Left.
        left: Type,
        /// Right.
        right: Type,
    },
    /// A function that calls itself.
    #[error("the call of `{name}` nests more than 64 deep; kernels have no recursion")]
    Recursion {
        /// Function.
        name: String,
    },
    /// A place that cannot be assigned.
    #[error("this expression is no place that a kernel can assign to")]
    NotAPlace,
    /// Bytes that are no syntax tree, or refer to what is not there.
    #[error("the encoded body is damaged; rebuild the crate of the kernel")]
    Malformed,
}
