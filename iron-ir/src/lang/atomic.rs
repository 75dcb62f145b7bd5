//! Atomic operations on cells of tensors and shared arrays; each returns the old value.

use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::arrays::Shared;
use super::scalar::Number;
use super::tensor::{RowMut, StridedTensor, Tensor, TensorIndex};

/// A type of atomic cells: `i32`, `u32`, `i64`, `u64`, and `f32` for add and exchange.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no atomic operations",
    label = "i32, u32, i64, u64 or f32 only"
)]
pub trait Atomic: Number {
    /// Replaces the cell by `f` of it, in one step; the old value.
    ///
    /// # Safety
    /// `cell` is an aligned cell that lives, and every access to it meanwhile is atomic.
    #[doc(hidden)]
    unsafe fn update(cell: *mut Self, f: impl Fn(Self) -> Option<Self>) -> Self;
}

macro_rules! atomics {
    ($($t:ty: $atomic:ty, $bits:ty;)*) => { $(
        impl Atomic for $t {
            unsafe fn update(cell: *mut Self, f: impl Fn(Self) -> Option<Self>) -> Self {
                // SAFETY: the caller's promise; the sizes and alignments are equal.
                let cell = unsafe { <$atomic>::from_ptr(cell.cast()) };
                let old = cell.fetch_update(Relaxed, Relaxed, |bits| {
                    Some(f(Self::from_bits64(bits.into()))?.to_bits64() as $bits)
                });
                let (Ok(bits) | Err(bits)) = old;
                Self::from_bits64(bits.into())
            }
        }
    )* };
}

use super::scalar::Element;

atomics! {
    i32: AtomicU32, u32;
    u32: AtomicU32, u32;
    i64: AtomicU64, u64;
    u64: AtomicU64, u64;
    f32: AtomicU32, u32;
}

/// An integer type of atomic cells: `i32`, `u32`, `i64` or `u64`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no such atomic operation",
    label = "i32, u32, i64 or u64 only"
)]
pub trait AtomicInt: Atomic + super::integer::Int {}

impl AtomicInt for i32 {}
impl AtomicInt for u32 {}
impl AtomicInt for i64 {}
impl AtomicInt for u64 {}

macro_rules! atomic_methods {
    ([$($generics:tt)*] $name:ty, $rank:expr, $cell:ident, $write:ident) => {
        impl<T: Atomic, $($generics)*> $name {
            /// Adds `value` (integers wrap); the old value.
            #[track_caller]
            pub fn atomic_add<I: TensorIndex<{ $rank }>>(&mut self, index: I, value: T) -> T {
                let cell = self.$cell(index, Location::caller());
                // SAFETY: a checked cell of this tensor or array.
                unsafe { T::update(cell, |old| Some(old.sum_of(value))) }
            }
            /// Stores `value`; the old value.
            #[track_caller]
            pub fn atomic_exchange<I: TensorIndex<{ $rank }>>(&mut self, index: I, value: T) -> T {
                let cell = self.$cell(index, Location::caller());
                // SAFETY: as above.
                unsafe { T::update(cell, |_| Some(value)) }
            }
            /// Reads.
            #[track_caller]
            pub fn atomic_load<I: TensorIndex<{ $rank }>>(&mut self, index: I) -> T {
                let cell = self.$cell(index, Location::caller());
                // SAFETY: as above.
                unsafe { T::update(cell, |_| None) }
            }
            /// Writes.
            #[track_caller]
            pub fn atomic_store<I: TensorIndex<{ $rank }>>(&mut self, index: I, value: T) {
                let cell = self.$write(index, Location::caller());
                // SAFETY: as above.
                unsafe { T::update(cell, |_| Some(value)) };
            }
        }
        impl<T: AtomicInt, $($generics)*> $name {
            /// Keeps the smaller; the old value.
            #[track_caller]
            pub fn atomic_min<I: TensorIndex<{ $rank }>>(&mut self, index: I, value: T) -> T {
                let cell = self.$cell(index, Location::caller());
                // SAFETY: as above.
                unsafe { T::update(cell, |old| Some(old.min(value))) }
            }
            /// Keeps the larger; the old value.
            #[track_caller]
            pub fn atomic_max<I: TensorIndex<{ $rank }>>(&mut self, index: I, value: T) -> T {
                let cell = self.$cell(index, Location::caller());
                // SAFETY: as above.
                unsafe { T::update(cell, |old| Some(old.max(value))) }
            }
            /// Bitwise and; the old value.
            #[track_caller]
            pub fn atomic_and<I: TensorIndex<{ $rank }>>(&mut self, index: I, value: T) -> T {
                let cell = self.$cell(index, Location::caller());
                // SAFETY: as above.
                unsafe { T::update(cell, |old| Some(old & value)) }
            }
            /// Bitwise or; the old value.
            #[track_caller]
            pub fn atomic_or<I: TensorIndex<{ $rank }>>(&mut self, index: I, value: T) -> T {
                let cell = self.$cell(index, Location::caller());
                // SAFETY: as above.
                unsafe { T::update(cell, |old| Some(old | value)) }
            }
            /// Bitwise exclusive or; the old value.
            #[track_caller]
            pub fn atomic_xor<I: TensorIndex<{ $rank }>>(&mut self, index: I, value: T) -> T {
                let cell = self.$cell(index, Location::caller());
                // SAFETY: as above.
                unsafe { T::update(cell, |old| Some(old ^ value)) }
            }
            /// Stores `new` where the cell equals `expected`; the old value.
            #[track_caller]
            pub fn atomic_compare_exchange<I: TensorIndex<{ $rank }>>(
                &mut self,
                index: I,
                expected: T,
                new: T,
            ) -> T {
                let cell = self.$cell(index, Location::caller());
                // SAFETY: as above.
                unsafe { T::update(cell, |old| (old == expected).then_some(new)) }
            }
        }
    };
}

atomic_methods!([const R: usize] Tensor<T, R>, R, cell, cell);
atomic_methods!([const R: usize] StridedTensor<T, R>, R, cell, cell);
atomic_methods!([] RowMut<'_, T>, 1, cell, cell);
atomic_methods!([] Shared<T>, 1, cell, cell_to_write);
