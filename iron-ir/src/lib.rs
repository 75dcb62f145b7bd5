//! The kernel IR: types, operations, builder, text form, verifier, contracts and registry.
//!
//! A [`Kernel`] is typed SSA in structured regions. *Values* ([`Op`]) are computed once, where
//! their [`Stmt::Let`] stands; *effects* ([`Stmt`]) are statements. Mutable variables of one
//! thread are [`entity::Local`]s without an address.
//!
//! # Specification
//!
//! Evaluation is in statement order. No load or store of shared or global memory moves across
//! a barrier, an atomic or a store that may alias it.
//!
//! **Integers** wrap at their width. `x / 0` is all ones, `x % 0 = x`, `MIN / -1 = MIN`,
//! `MIN % -1 = 0`; so `x == (x / y) * y + x % y` always holds. Division truncates towards zero.
//! Shift counts are taken modulo the width. Integer to integer conversion truncates or extends
//! by the source's sign.
//!
//! **Floats**: `+ - * /`, `sqrt` and `fma` round once to nearest even (targets whose division
//! is looser say so in their profile); subnormals are kept. `f16` and `bf16` arithmetic is
//! `f32` arithmetic rounded once at every operation. Contraction happens only where
//! [`Op::Fma`] is written or the contract permits it. `min` and `max` return the number where
//! one side is NaN; `min_nan` and `max_nan` return NaN; all four order `-0 < +0`. A NaN
//! result is quiet, or it is a NaN operand unchanged, which may be a signalling one: that is what
//! Rust promises for its floats, and compilers (rustc's and NVIDIA's are two) fold `x * 1.0` to
//! `x`. Its sign and payload are unspecified otherwise.
//!
//! **Conversions**: float to integer truncates towards zero and saturates, NaN gives 0; integer
//! to float and float to narrower float round to nearest even; overflow gives infinity (to
//! `f16`, `bf16`, `f8e5m2`) or, for `f8e4m3`, NaN; NaN stays NaN; `bool` converts to 0 or 1.
//!
//! **Functions** are within a bound of the exact result, in units in the last place of `f32`, for
//! every argument, on every target; `f16` and `bf16` results are those of `f32` rounded once
//! more, within 1 unit of theirs. Where a target computes a function itself and less exactly, it has
//! a bound of its own; `sqrt`, rounded once elsewhere, is within 1 on Vulkan. A contract's
//! `approximate` gives the target's fast forms, which have no common bound, and lets `min` and `max`
//! of numbers take subnormals and zeros as equal.
//!
//! | function | bound in ULP | on CUDA | on Vulkan |
//! |---|---|---|---|
//! | `sqrt` | 0.5 | 0.5 | 1 |
//! | `rsqrt` | 2 | 2 | 2 |
//! | `exp` | 2 | 2 | 2 |
//! | `exp2` | 2 | 2.5 | 2 |
//! | `log` | 1.5 | 1.5 | 1.5 |
//! | `log2` | 1.5 | 1.5 | 1.5 |
//! | `sin` | 2.5 | 2.5 | 3 |
//! | `cos` | 2.5 | 2.5 | 3 |
//! | `tanh` | 2.5 | 2.5 | 2.5 |
//! | `erf` | 2 | 2 | 2 |
//! | `pow` | 9 | 9 | 16 |
//!
//! **Collectives** combine the values of the threads that are there by the tree of
//! [`op::ReduceOp`], in the order of the thread's linear index; an element without a partner stays
//! as it is. Lane `l` of subgroup `s` is the thread of linear index `s * subgroup_size + l`,
//! whatever the dimensions of the workgroup.
//!
//! **Memory**: shared and private arrays are undefined until written. Threads of one workgroup
//! see each other's writes after a barrier that names the memory; threads of different
//! workgroups only through atomics, a grid barrier or the end of the launch. Barriers and group
//! operations stand in control flow that is uniform in the workgroup.
//!
//! A **grid barrier** joins every thread of the launch: what any of them wrote to memory before
//! is visible to all behind it. It needs a kernel declared `cooperative`, whose launch is refused
//! where its workgroups do not all run at once ([`launch::LaunchLimits::max_resident`]), and
//! control flow that is uniform in the launch: decided by scalars, dimensions and what tensors
//! that the kernel only reads hold at such indices. A workgroup that ends before the others'
//! barrier is a fault.
//!
//! **Faults** have no answer: an index out of bounds, a race, a read of undefined memory, a loop that
//! never ends. Contracts and the verifier refuse what they can see; the `reference` execution of
//! `iron-runtime` reports the rest, each with its line, and `__iron_runner check` runs every test of a
//! crate under it.

pub mod build;
pub mod contract;
pub mod entity;
pub mod fold;
pub mod host;
pub mod kernel;
pub mod lang;
pub mod launch;
pub mod layout;
pub mod machine;
pub mod op;
pub mod parse;
pub mod print;
pub mod registry;
pub mod testing;
pub mod types;
pub mod verify;
mod walk;

pub use contract::{Contract, Expr, ExprOp, Fact, Feature};
pub use entity::Handle;
pub use inventory;
pub use kernel::{Block, Kernel, Span};
pub use op::{Const, Op, Place, Stmt};
pub use types::{Class, Scalar, Type};

/// What a kernel's file imports: the types, traits and functions of the kernel language.
pub mod prelude {
    pub use crate::lang::*;
    pub use iron_macros::{bench_kernel, device_fn, device_struct, kernel, test_kernel};
}
