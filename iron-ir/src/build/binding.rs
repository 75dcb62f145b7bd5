//! Variables: reading and writing places, binding patterns, arrays as values.

use std::rc::Rc;

use crate::build::error::BuildFault;
use crate::build::tree::Pattern;
use crate::build::value::{ArrayVal, Cell, Element, Val};
use crate::entity::{Array, Handle, Local, Value};
use crate::kernel::{ArrayData, LocalData, Space};
use crate::op::{Const, Op, Place, Stmt, Unroll};
use crate::types::Type;

use super::interpreter::{Builder, Eval};

/// Elements up to which a fill or a copy is written out.
const WRITTEN_OUT: u32 = 8;

impl Builder {
    /// The value of a place; arrays, handles and references stay what they are.
    pub(super) fn read(&mut self, value: Val) -> Eval<Val> {
        Ok(match value {
            Val::Local(local) => {
                let ty = self.kernel.locals[local].ty;
                Val::Scalar(self.push(Op::Get(local), ty))
            }
            Val::Lane(vector, lane) => {
                let vector = self.read(*vector)?;
                let vector = self.as_scalar(vector)?;
                let ty = self.ty(vector).scalar.x(1);
                Val::Scalar(self.push(Op::Extract(vector, lane), ty))
            }
            Val::Cell(Cell { place, indices, ty }) => {
                Val::Scalar(self.push(Op::Load { place, indices }, ty))
            }
            Val::Tuple(items) => Val::Tuple(
                items
                    .into_iter()
                    .map(|item| self.read(item))
                    .collect::<Eval<_>>()?,
            ),
            Val::Struct(name, fields) => {
                let fields = fields
                    .into_iter()
                    .map(|(key, value)| Ok((key, self.read(value)?)))
                    .collect::<Eval<_>>()?;
                Val::Struct(name, fields)
            }
            other => other,
        })
    }

    /// The number that a value is; references are followed.
    pub(super) fn as_scalar(&mut self, value: Val) -> Eval<Value> {
        match self.read(value)? {
            Val::Scalar(value) => Ok(value),
            Val::Reference(place) => self.as_scalar(*place),
            other => self.wrong_kind("this operation", "a number or a vector", &other),
        }
    }

    /// The type of a scalar place.
    pub(super) fn place_type(&mut self, place: &Val) -> Eval<Type> {
        match place {
            Val::Local(local) => Ok(self.kernel.locals[*local].ty),
            Val::Cell(cell) => Ok(cell.ty),
            Val::Lane(vector, _) => Ok(self.place_type(vector)?.scalar.x(1)),
            Val::Reference(inner) => self.place_type(inner),
            _ => self.fail(BuildFault::NotAPlace),
        }
    }

    /// Assigns a value to a place, field by field and element by element.
    pub(super) fn store(&mut self, place: &Val, value: Val) -> Eval<()> {
        match place {
            Val::Reference(inner) => self.store(inner, value),
            Val::Local(local) => {
                let value = self.as_scalar(value)?;
                let (left, right) = (self.kernel.locals[*local].ty, self.ty(value));
                if left != right {
                    return self.fail(BuildFault::Types {
                        operation: "the assignment".into(),
                        left,
                        right,
                    });
                }
                self.stmt(Stmt::Set(*local, value));
                Ok(())
            }
            Val::Cell(cell) => {
                let value = self.as_scalar(value)?;
                let right = self.ty(value);
                if cell.ty != right {
                    return self.fail(BuildFault::Types {
                        operation: "the store".into(),
                        left: cell.ty,
                        right,
                    });
                }
                let Cell { place, indices, .. } = cell.clone();
                self.stmt(Stmt::Store {
                    place,
                    indices,
                    value,
                });
                Ok(())
            }
            Val::Lane(vector, lane) => {
                let value = self.as_scalar(value)?;
                let old = self.read((**vector).clone())?;
                let old = self.as_scalar(old)?;
                let ty = self.ty(old);
                let new = self.push(Op::Insert(old, *lane, value), ty);
                self.store(vector, Val::Scalar(new))
            }
            Val::Tuple(places) => {
                let Val::Tuple(values) = value.target() else {
                    return self.fail(BuildFault::NotAPlace);
                };
                for (place, value) in places.iter().zip(values) {
                    self.store(place, value)?;
                }
                Ok(())
            }
            Val::Struct(_, places) => {
                let Val::Struct(_, values) = value.target() else {
                    return self.fail(BuildFault::NotAPlace);
                };
                for (key, place) in places {
                    let found = values.iter().find(|(known, _)| known == key);
                    let Some((_, value)) = found else {
                        return self.fail(BuildFault::Malformed);
                    };
                    self.store(place, value.clone())?;
                }
                Ok(())
            }
            Val::Array(array) => self.fill(array, value.target()),
            Val::Scalar(_)
            | Val::List(_)
            | Val::Repeat(..)
            | Val::Tensor(_)
            | Val::Row(..)
            | Val::Tile(_)
            | Val::Range(_)
            | Val::Closure(_) => self.fail(BuildFault::NotAPlace),
        }
    }

    /// Writes a whole array.
    fn fill(&mut self, array: &ArrayVal, value: Val) -> Eval<()> {
        let count = array.dims.first().copied().unwrap_or(0);
        let of_elements = match &value {
            Val::List(items) => Some(items.clone()),
            _ => None,
        };
        if let Some(items) = of_elements {
            for (i, item) in items.iter().enumerate() {
                let index = self.const_u32(i as u32);
                let place = self.element(array, index)?;
                self.store(&place, item.clone())?;
            }
            return Ok(());
        }
        if !matches!(value, Val::Repeat(..) | Val::Array(_)) {
            return self.wrong_kind("the assignment", "an array", &value);
        }
        let each = |b: &mut Self, index: Value| -> Eval<()> {
            let item = match &value {
                Val::Array(from) => {
                    let place = b.element(from, index)?;
                    b.read(place)?
                }
                Val::Repeat(item, _) => (**item).clone(),
                _ => Val::unit(),
            };
            let place = b.element(array, index)?;
            b.store(&place, item)
        };
        if count <= WRITTEN_OUT {
            for i in 0..count {
                let index = self.const_u32(i);
                each(self, index)?;
            }
            return Ok(());
        }
        let (start, end, step) = (self.const_u32(0), self.const_u32(count), self.const_u32(1));
        let index = self.result(Type::U32);
        let (body, _) = self.in_block(|b| each(b, index))?;
        self.stmt(Stmt::For {
            index,
            start,
            end,
            step,
            unroll: Unroll::Auto,
            body,
        });
        Ok(())
    }

    /// A value for a new name: a native array gets storage of its own.
    pub(super) fn copied(&mut self, value: Val) -> Eval<Val> {
        match value {
            Val::Array(array) if !array.is_handle => {
                let shape = self.shape_of(&Val::Array(array.clone()))?;
                let copy = self.variable_of(&shape, "", true)?;
                self.store(&copy, Val::Array(array))?;
                Ok(copy)
            }
            other => Ok(other),
        }
    }

    /// The structure of a value, for a variable that is to hold it.
    pub(super) fn shape_of(&mut self, value: &Val) -> Eval<Shape> {
        Ok(match value {
            Val::Scalar(value) => Shape::Value(self.ty(*value)),
            Val::Local(_) | Val::Cell(_) | Val::Lane(..) => Shape::Value(self.place_type(value)?),
            Val::Tuple(items) => Shape::Tuple(
                items
                    .iter()
                    .map(|item| self.shape_of(item))
                    .collect::<Eval<_>>()?,
            ),
            Val::Struct(name, fields) => Shape::Struct(
                name.clone(),
                fields
                    .iter()
                    .map(|(key, value)| Ok((key.clone(), self.shape_of(value)?)))
                    .collect::<Eval<_>>()?,
            ),
            Val::List(items) => match items.first() {
                Some(first) => Shape::Array(Box::new(self.shape_of(first)?), items.len() as u32),
                None => Shape::Array(Box::new(Shape::Tuple(Vec::new())), 0),
            },
            Val::Repeat(item, count) => Shape::Array(Box::new(self.shape_of(item)?), *count),
            Val::Array(array) if !array.is_handle => array
                .dims
                .iter()
                .rev()
                .fold(Shape::of_element(&array.element), |shape, dim| {
                    Shape::Array(Box::new(shape), *dim)
                }),
            other => {
                return self.wrong_kind(
                    "a variable or a value of a branch",
                    "a number, a tuple, a struct or an array",
                    other,
                );
            }
        })
    }

    pub(super) fn new_local(&mut self, name: &str, ty: Type) -> Local {
        self.kernel.locals.push(LocalData {
            name: name.into(),
            ty,
            span: self.span,
        })
    }

    /// Storage of that structure; nothing is written.
    pub(super) fn variable_of(&mut self, shape: &Shape, name: &str, private: bool) -> Eval<Val> {
        Ok(match shape {
            Shape::Value(ty) => Val::Local(self.new_local(name, *ty)),
            Shape::Tuple(items) => Val::Tuple(
                items
                    .iter()
                    .enumerate()
                    .map(|(i, item)| self.variable_of(item, &joined(name, &i.to_string()), private))
                    .collect::<Eval<_>>()?,
            ),
            Shape::Struct(ty, fields) => Val::Struct(
                ty.clone(),
                fields
                    .iter()
                    .map(|(key, shape)| {
                        Ok((
                            key.clone(),
                            self.variable_of(shape, &joined(name, key), private)?,
                        ))
                    })
                    .collect::<Eval<_>>()?,
            ),
            Shape::Array(..) => {
                let mut dims = Vec::new();
                let mut inner = shape;
                while let Shape::Array(next, count) = inner {
                    dims.push(*count);
                    inner = next;
                }
                let space = if private {
                    Space::Private
                } else {
                    Space::Shared
                };
                Val::Array(self.new_array(dims, inner, name, space, false)?)
            }
        })
    }

    /// New storage for an array.
    pub(super) fn new_array(
        &mut self,
        dims: Vec<u32>,
        element: &Shape,
        name: &str,
        space: Space,
        is_handle: bool,
    ) -> Eval<ArrayVal> {
        let count = dims.iter().map(|&n| u64::from(n)).product::<u64>();
        let element = self.new_element(element, count, name, space)?;
        Ok(ArrayVal {
            dims,
            offset: None,
            element: Rc::new(element),
            is_handle,
        })
    }

    fn new_element(
        &mut self,
        shape: &Shape,
        count: u64,
        name: &str,
        space: Space,
    ) -> Eval<Element> {
        Ok(match shape {
            Shape::Value(ty) => {
                let len = count * u64::from(ty.lanes);
                let limit = 1u64 << 24;
                if len == 0 || len > limit {
                    return self.fail(BuildFault::OutOfRange {
                        what: "the length of this array".into(),
                        found: i128::from(len),
                        allowed: format!("1 to {limit}"),
                    });
                }
                let array = self.kernel.arrays.push(ArrayData {
                    name: name.into(),
                    scalar: ty.scalar,
                    len: len as u32,
                    space,
                    span: self.span,
                });
                Element::Leaf(array, *ty)
            }
            Shape::Tuple(items) => Element::Tuple(
                items
                    .iter()
                    .enumerate()
                    .map(|(i, item)| {
                        self.new_element(item, count, &joined(name, &i.to_string()), space)
                    })
                    .collect::<Eval<_>>()?,
            ),
            Shape::Struct(ty, fields) => Element::Struct(
                ty.clone(),
                fields
                    .iter()
                    .map(|(key, shape)| {
                        let element = self.new_element(shape, count, &joined(name, key), space)?;
                        Ok((key.clone(), element))
                    })
                    .collect::<Eval<_>>()?,
            ),
            Shape::Array(inner, n) => {
                return self.new_element(inner, count * u64::from(*n), name, space);
            }
        })
    }

    /// The place of one element of an array, or a part of a nested one.
    pub(super) fn element(&mut self, array: &ArrayVal, index: Value) -> Eval<Val> {
        let Some((&count, inner)) = array.dims.split_first() else {
            return self.fail(BuildFault::Malformed);
        };
        if let Some(known) = self.known_int(index)
            && known >= i128::from(count)
        {
            return self.fail(BuildFault::OutOfRange {
                what: "this index".into(),
                found: known,
                allowed: format!("0 to {}", i128::from(count) - 1),
            });
        }
        let offset = match array.offset {
            None => index,
            Some(offset) => {
                let count = self.const_u32(count);
                let scaled = self.binary_token("*", offset, count)?;
                self.binary_token("+", scaled, index)?
            }
        };
        if inner.is_empty() {
            let element = array.element.clone();
            return self.cell_of(&element, offset);
        }
        Ok(Val::Array(ArrayVal {
            dims: inner.to_vec(),
            offset: Some(offset),
            element: array.element.clone(),
            is_handle: array.is_handle,
        }))
    }

    fn cell_of(&mut self, element: &Element, index: Value) -> Eval<Val> {
        Ok(match element {
            Element::Leaf(array, ty) => {
                let index = self.scaled(index, ty.lanes)?;
                Val::Cell(Cell {
                    place: Place::Array(*array),
                    indices: vec![index],
                    ty: *ty,
                })
            }
            Element::Tuple(items) => Val::Tuple(
                items
                    .iter()
                    .map(|e| self.cell_of(e, index))
                    .collect::<Eval<_>>()?,
            ),
            Element::Struct(name, fields) => Val::Struct(
                name.clone(),
                fields
                    .iter()
                    .map(|(key, element)| Ok((key.clone(), self.cell_of(element, index)?)))
                    .collect::<Eval<_>>()?,
            ),
        })
    }

    /// `index * lanes`.
    pub(super) fn scaled(&mut self, index: Value, lanes: u8) -> Eval<Value> {
        if lanes == 1 {
            return Ok(index);
        }
        let lanes = self.const_u32(u32::from(lanes));
        self.binary_token("*", index, lanes)
    }

    /// An element of an array without storage; a run-time index gives it storage.
    pub(super) fn list_element(&mut self, items: Rc<Vec<Val>>, index: Value) -> Eval<Val> {
        if let Some(known) = self.known_int(index) {
            let found = usize::try_from(known).ok().and_then(|i| items.get(i));
            return match found {
                Some(item) => Ok(item.clone()),
                None => self.fail(BuildFault::OutOfRange {
                    what: "this index".into(),
                    found: known,
                    allowed: format!("0 to {}", items.len() as i128 - 1),
                }),
            };
        }
        let constants: Option<Vec<Const>> = items
            .iter()
            .map(|item| match item {
                Val::Scalar(value) => self.kernel.constant(*value),
                _ => None,
            })
            .collect();
        let table = match constants {
            Some(constants) => self.table(constants, items)?,
            None => self.stored(Val::List(items), "list")?,
        };
        match table {
            Val::Array(array) => self.element(&array, index),
            _ => self.fail(BuildFault::Malformed),
        }
    }

    /// A constant table, written once at the start of the kernel.
    fn table(&mut self, constants: Vec<Const>, items: Rc<Vec<Val>>) -> Eval<Val> {
        if let Some((_, known)) = self.tables.iter().find(|(known, _)| *known == constants) {
            return Ok(known.clone());
        }
        let mut prologue = std::mem::take(&mut self.prologue);
        let table = self.append_to(&mut prologue, |b| b.stored(Val::List(items), "table"));
        self.prologue = prologue;
        let table = table?;
        self.tables.push((constants, table.clone()));
        Ok(table)
    }

    /// A variable that holds the value.
    pub(super) fn stored(&mut self, value: Val, name: &str) -> Eval<Val> {
        let shape = self.shape_of(&value)?;
        let variable = self.variable_of(&shape, name, true)?;
        self.store(&variable, value)?;
        Ok(variable)
    }

    /// Binds a pattern that always matches. Values made since `first` take the pattern's name.
    pub(super) fn bind(&mut self, pattern: &Pattern, value: Val, first: Option<usize>) -> Eval<()> {
        match pattern {
            Pattern::Name { name, mutable, at } => {
                let place = self.span_of(at);
                let bound = if *mutable {
                    self.variable(value, name)?
                } else {
                    self.name_value(&value, name, first);
                    value
                };
                self.span = place;
                self.names.bind(name, bound);
                Ok(())
            }
            Pattern::Wild {}
            | Pattern::Int { .. }
            | Pattern::Bool { .. }
            | Pattern::Const { .. }
            | Pattern::Range { .. } => Ok(()),
            Pattern::Or { cases } => match cases.first() {
                Some(case) => self.bind(case, value, first),
                None => Ok(()),
            },
            Pattern::Tuple { items } => {
                let value = value.target();
                for (i, item) in items.iter().enumerate() {
                    let part = match &value {
                        Val::List(parts) if i < parts.len() => parts[i].clone(),
                        _ => self.field(value.clone(), &i.to_string())?,
                    };
                    self.bind(item, part, first)?;
                }
                Ok(())
            }
            Pattern::Struct { fields } => {
                let value = value.target();
                for field in fields {
                    let part = self.field(value.clone(), &field.name)?;
                    self.bind(&field.pattern, part, first)?;
                }
                Ok(())
            }
        }
    }

    /// `let mut`: a variable of the value's structure. Handles stay handles.
    fn variable(&mut self, value: Val, name: &str) -> Eval<Val> {
        match &value {
            Val::Array(array) => {
                if array.is_handle {
                    self.name_element(&array.element.clone(), name);
                    return Ok(value);
                }
                // A fresh copy without a name, or a value that `let` copied.
                self.name_element(&array.element.clone(), name);
                Ok(value)
            }
            Val::Tile(tile) => {
                self.name_tile(*tile, name);
                Ok(value)
            }
            Val::Tensor(_) | Val::Row(..) | Val::Range(_) | Val::Closure(_) | Val::Reference(_) => {
                Ok(value)
            }
            _ => self.stored(value, name),
        }
    }

    fn name_element(&mut self, element: &Element, name: &str) {
        match element {
            Element::Leaf(array, _) => self.name_array(*array, name),
            Element::Tuple(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.name_element(item, &joined(name, &i.to_string()));
                }
            }
            Element::Struct(_, fields) => {
                for (key, item) in fields {
                    self.name_element(item, &joined(name, key));
                }
            }
        }
    }

    fn name_array(&mut self, array: Array, name: &str) {
        let data = &mut self.kernel.arrays[array];
        if data.name.is_empty() {
            data.name = name.into();
        }
    }

    /// Names the values of a `let`, where they are new.
    pub(super) fn name_value(&mut self, value: &Val, name: &str, first: Option<usize>) {
        match value {
            Val::Scalar(scalar) => {
                let is_new = first.is_some_and(|first| scalar.index() >= first);
                let data = &mut self.kernel.values[*scalar];
                if !is_new || data.name.is_some() || matches!(data.op, Op::Get(_)) {
                    return;
                }
                data.name = Some(name.into());
                let needs_let = matches!(data.op, Op::Const(_) | Op::Builtin(..));
                if needs_let {
                    self.stmt(Stmt::Let(*scalar));
                }
            }
            Val::Tuple(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.name_value(item, &joined(name, &i.to_string()), first);
                }
            }
            Val::Struct(_, fields) => {
                for (key, item) in fields {
                    self.name_value(item, &joined(name, key), first);
                }
            }
            Val::Array(array) => self.name_element(&array.element.clone(), name),
            Val::Tile(tile) => self.name_tile(*tile, name),
            _ => {}
        }
    }
}

/// The structure of a value.
#[derive(Clone)]
pub(super) enum Shape {
    Value(Type),
    Tuple(Vec<Shape>),
    Struct(Rc<str>, Vec<(Rc<str>, Shape)>),
    Array(Box<Shape>, u32),
}

impl Shape {
    fn of_element(element: &Element) -> Shape {
        match element {
            Element::Leaf(_, ty) => Shape::Value(*ty),
            Element::Tuple(items) => Shape::Tuple(items.iter().map(Shape::of_element).collect()),
            Element::Struct(name, fields) => Shape::Struct(
                name.clone(),
                fields
                    .iter()
                    .map(|(key, e)| (key.clone(), Shape::of_element(e)))
                    .collect(),
            ),
        }
    }
}

/// `acc` and `0` are `acc_0`.
fn joined(name: &str, part: &str) -> String {
    if name.is_empty() {
        part.to_string()
    } else {
        format!("{name}_{part}")
    }
}
