//! The builder: turns the syntax tree that `#[kernel]` encodes into a [`Kernel`].
//!
//! It is an interpreter whose values are handles of the kernel under construction: evaluating
//! `a + b` appends an addition. Types of operations follow from their operands; what only
//! rustc's inference knows comes through the unit's tables ([`Unit`]). Control flow is
//! structured as the IR is; `return` from inlined functions and labelled exits become flags
//! and single-trip loops (`control`).

mod arithmetic;
mod binding;
mod contract;
mod control;
mod error;
mod expression;
mod functions;
mod interpreter;
mod iteration;
mod memory;
mod methods;
mod patterns;
mod shape;
mod slot;
mod tiles;
#[path = "../../../iron-macros/src/tree.rs"]
#[allow(
    dead_code,
    missing_docs,
    reason = "shared with iron-macros, which writes what this crate reads"
)]
mod tree;
mod unit;
mod value;

pub use error::{BuildError, BuildFault};
pub use shape::{KernelConst, KernelType, LiteralType, TypeShape};
pub use slot::Slot;
pub use unit::{Call, ConstantValue, Source, Unit};

use crate::kernel::Kernel;
use crate::launch::{Argument, LaunchRequest};

/// Builds the IR of a kernel's instance, which its expansion describes.
pub fn build(kernel: fn(Call<'_, '_>), instance: &'static str) -> Result<Kernel, BuildError> {
    let mut unit = Unit::nothing();
    kernel(Call::Describe(&mut unit));
    interpreter::build(unit, instance)
}

/// The name of a type in an instance's name.
pub fn instance_type<T: KernelType>() -> String {
    match T::SHAPE {
        TypeShape::Value(ty) => ty.to_string(),
        TypeShape::Struct(name, _) | TypeShape::Opaque(name) => name.to_string(),
        TypeShape::Array(..) | TypeShape::Tuple(_) => std::any::type_name::<T>().to_string(),
    }
}

/// The request that a typed launcher makes. `module` is the launcher's own, inside the module
/// of the kernel's name.
pub fn launch_request(
    kernel: &'static str,
    module: &'static str,
    instance: &[String],
    arguments: Vec<Argument>,
) -> LaunchRequest {
    let outer = module
        .strip_suffix(kernel)
        .and_then(|m| m.strip_suffix("::"));
    LaunchRequest {
        kernel,
        module: outer.unwrap_or(module),
        instance: instance.join("-"),
        arguments,
    }
}

/// A scalar argument of a typed launcher.
pub fn scalar_argument<T: KernelConst>(value: T) -> Argument {
    let mut constants = Vec::new();
    value.constants(&mut constants);
    Argument::Scalar(constants.first().copied().unwrap_or(crate::op::Const {
        scalar: crate::types::Scalar::U32,
        bits: 0,
    }))
}

/// A type that has the operator `%` in kernels: an integer.
#[diagnostic::on_unimplemented(
    message = "`%` of `{Self}` is not part of the kernel language",
    label = "integers only",
    note = "for floats write `a - b * (a / b).trunc()`, and mind its rounding"
)]
pub trait Remainder {}

#[diagnostic::do_not_recommend]
impl<T: crate::lang::Int> Remainder for T {}

/// Passes an operand of `%` through, so that rustc refuses floats at the author's token.
#[inline(always)]
pub fn remainder_operand<T: Remainder>(value: T) -> T {
    value
}

/// What a name of a kernel's body must be; nothing else has this.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a name in a kernel stands for",
    label = "no local, no parameter, no dimension and no constant in capitals",
    note = "write a constant's name in capitals, and pass a function as a closure: `|x| f(x)`"
)]
pub trait NamedInKernel {}

/// Passes a name through that is not known to the macro, so that rustc refuses it: by its own
/// words where it does not exist, by ours where it does.
#[inline(always)]
pub fn named<T: NamedInKernel>(value: T) -> T {
    value
}

/// Two names of one function.
#[diagnostic::on_unimplemented(
    message = "another function has the name of a function of the kernel language",
    label = "this is not the language's function, which the device would run",
    note = "rename the other function, or import this one from `iron_ir::prelude`"
)]
pub trait SameFunction<F> {}

impl<F> SameFunction<F> for F {}

/// With a second implementation, rustc compares the functions once it knows both, and says what
/// stands above where they differ.
#[diagnostic::do_not_recommend]
impl<F> SameFunction<Other<F>> for F {}

/// Nothing that can be called.
pub struct Other<F>(std::marker::PhantomData<F>);

/// Passes a function that the author named through; it must be the one of the language, which is
/// what the builder takes it for.
#[inline(always)]
pub fn of_the_language<F, L>(written: F, _: L) -> F
where
    F: SameFunction<L>,
{
    written
}
