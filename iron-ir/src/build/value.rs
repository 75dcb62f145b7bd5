//! Values of the interpreter: handles of the kernel under construction, and places.

use std::rc::Rc;

use crate::build::tree;
use crate::entity::{Array, Local, Param, Tile, Value};
use crate::op::Place;
use crate::types::Type;

use super::interpreter::Context;

/// What an expression of the kernel evaluates to.
#[derive(Clone)]
pub(super) enum Val {
    /// A number, a `bool` or a vector.
    Scalar(Value),
    /// A variable.
    Local(Local),
    /// One lane of a vector place.
    Lane(Box<Val>, u8),
    /// A cell of memory.
    Cell(Cell),
    /// A tuple; the empty one is the unit value.
    Tuple(Vec<Val>),
    /// A struct: name and fields.
    Struct(Rc<str>, Vec<(Rc<str>, Val)>),
    /// An array that nobody indexes yet at run time: its elements.
    List(Rc<Vec<Val>>),
    /// `[x; n]` before it has a place.
    Repeat(Rc<Val>, u32),
    /// An array with a place.
    Array(ArrayVal),
    /// A tensor parameter.
    Tensor(Param),
    /// A row of a tensor: its leading indices.
    Row(Param, Vec<Value>),
    /// A tile.
    Tile(Tile),
    /// An iterator of `for`.
    Range(Box<RangeVal>),
    /// A closure and where it was made.
    Closure(Rc<ClosureVal>),
    /// A reference to a place.
    Reference(Box<Val>),
}

/// A cell of memory: where, at which indices, and as which type.
#[derive(Clone)]
pub(super) struct Cell {
    pub(super) place: Place,
    pub(super) indices: Vec<Value>,
    pub(super) ty: Type,
}

/// A shared, private or native array.
#[derive(Clone)]
pub(super) struct ArrayVal {
    /// Extents that are not indexed yet, outer first.
    pub(super) dims: Vec<u32>,
    /// Elements before this part, in units of the extents left.
    pub(super) offset: Option<Value>,
    /// The structure of one element; its leaves are storage.
    pub(super) element: Rc<Element>,
    /// `shared` and `private` are handles; native arrays are copied by `let` and `=`.
    pub(super) is_handle: bool,
}

/// The structure of an array's element: a struct of arrays.
pub(super) enum Element {
    Leaf(Array, Type),
    Tuple(Vec<Element>),
    Struct(Rc<str>, Vec<(Rc<str>, Element)>),
}

/// A range, as `for` takes it.
#[derive(Clone)]
pub(super) struct RangeVal {
    pub(super) start: Value,
    pub(super) end: Value,
    pub(super) step: Option<Value>,
    pub(super) inclusive: bool,
    pub(super) unroll: bool,
}

/// A closure: its code, the unit of that code and the names in scope where it was made.
pub(super) struct ClosureVal {
    pub(super) parameters: Vec<tree::Pattern>,
    pub(super) body: tree::Expr,
    pub(super) context: Rc<Context>,
    pub(super) names: Names,
}

/// Names in scope, innermost first; sharing tails makes scopes and closures cheap.
#[derive(Clone, Default)]
pub(super) struct Names(Option<Rc<Binding>>);

struct Binding {
    name: String,
    value: Val,
    outer: Names,
}

impl Names {
    pub(super) fn bind(&mut self, name: &str, value: Val) {
        let outer = self.clone();
        self.0 = Some(Rc::new(Binding {
            name: name.to_string(),
            value,
            outer,
        }));
    }

    pub(super) fn get(&self, name: &str) -> Option<&Val> {
        let mut names = self;
        while let Some(binding) = &names.0 {
            if binding.name == name {
                return Some(&binding.value);
            }
            names = &binding.outer;
        }
        None
    }
}

impl Val {
    pub(super) fn unit() -> Val {
        Val::Tuple(Vec::new())
    }

    /// The place behind any references.
    pub(super) fn target(self) -> Val {
        match self {
            Val::Reference(inner) => inner.target(),
            other => other,
        }
    }

    /// What it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Val::Scalar(_) | Val::Local(_) | Val::Lane(..) | Val::Cell(_) => "a number",
            Val::Tuple(items) if items.is_empty() => "the unit value",
            Val::Tuple(_) => "a tuple",
            Val::Struct(..) => "a struct",
            Val::List(_) | Val::Repeat(..) | Val::Array(_) => "an array",
            Val::Tensor(_) => "a tensor",
            Val::Row(..) => "a row of a tensor",
            Val::Tile(_) => "a tile",
            Val::Range(_) => "a range",
            Val::Closure(_) => "a closure",
            Val::Reference(inner) => inner.kind(),
        }
    }
}
