//! Type slots: how a type that only rustc's inference knows reaches the builder.
//!
//! The expansion of a kernel declares `let s = Slot::new();`, passes a literal of the author's
//! body through `s.literal(…)`, and hands `s.shape()` to the builder.

use std::marker::PhantomData;

use crate::build::shape::{KernelType, LiteralType, TypeShape};

/// A place for one inferred type.
pub struct Slot<T>(PhantomData<fn() -> T>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slot<T> {}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slot<T> {
    /// A slot whose type inference fills.
    pub const fn new() -> Self {
        Slot(PhantomData)
    }
}

impl<T: LiteralType> Slot<T> {
    /// Ties the slot to the type of a literal, which it returns.
    #[inline(always)]
    pub fn literal(self, value: T) -> T {
        value
    }
}

impl<T: KernelType> Slot<T> {
    /// Ties the slot to the type of a value, which it returns.
    #[inline(always)]
    pub fn value(self, value: T) -> T {
        value
    }

    /// The type's structure.
    #[inline(always)]
    pub fn shape(self) -> TypeShape {
        T::SHAPE
    }
}
