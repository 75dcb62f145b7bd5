//! What the expansion of a function hands to the builder.

use crate::build::shape::{KernelConst, TypeShape};
use crate::host::HostArgs;
use crate::op::Const;

/// The non-generic part of a function: its name, its file and its syntax tree.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The author's name.
    pub name: &'static str,
    /// `file!()`.
    pub file: &'static str,
    /// The encoded tree.
    pub tree: &'static [u8],
}

/// One instance of a function: its source and the tables that the tree refers to.
#[derive(Clone, Debug)]
pub struct Unit {
    pub(super) source: &'static Source,
    pub(super) types: Vec<TypeShape>,
    pub(super) callees: Vec<fn() -> Unit>,
    pub(super) consts: Vec<Constant>,
}

/// A constant that rustc evaluated.
#[derive(Clone, Debug)]
pub(super) struct Constant {
    pub(super) shape: TypeShape,
    pub(super) values: Vec<Const>,
}

/// What the expansion of a kernel is called for.
pub enum Call<'a, 'b> {
    /// To say what it is.
    Describe(&'a mut Unit),
    /// To run one thread natively.
    Run(&'a mut HostArgs<'b>),
}

/// A value of a type that kernels may hold as a constant.
#[diagnostic::on_unimplemented(
    message = "a constant of type `{Self}` cannot be used in a kernel",
    label = "not a type of kernel constants",
    note = "constants are numbers, bool and arrays or tuples of them"
)]
pub trait ConstantValue {
    /// Its structure.
    fn shape(&self) -> TypeShape;
    /// Its scalars in order.
    fn scalars(&self) -> Vec<Const>;
}

#[diagnostic::do_not_recommend]
impl<T: KernelConst> ConstantValue for T {
    fn shape(&self) -> TypeShape {
        T::SHAPE
    }
    fn scalars(&self) -> Vec<Const> {
        let mut out = Vec::new();
        self.constants(&mut out);
        out
    }
}

impl Unit {
    /// What a kernel's description replaces.
    pub(super) fn nothing() -> Unit {
        static NOTHING: Source = Source {
            name: "",
            file: "",
            tree: &[],
        };
        Unit::new(&NOTHING, &[], &[], &[])
    }

    /// An instance of a function.
    pub fn new(
        source: &'static Source,
        types: &[TypeShape],
        callees: &[fn() -> Unit],
        consts: &[&dyn ConstantValue],
    ) -> Unit {
        Unit {
            source,
            types: types.to_vec(),
            callees: callees.to_vec(),
            consts: consts
                .iter()
                .map(|value| Constant {
                    shape: value.shape(),
                    values: value.scalars(),
                })
                .collect(),
        }
    }
}
