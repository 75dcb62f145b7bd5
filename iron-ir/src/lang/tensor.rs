//! Tensor views: every access is checked against the dimension it indexes.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};
use std::panic::Location;
use std::sync::Arc;

use super::arrays::Length;
use super::scalar::Element;
use super::tile::{TileTensor, TileTensorMut};
use super::vector::Vector;
use crate::host::HostTensor;
use crate::host::context::{Site, fault};

/// What messages call a tensor.
#[derive(Clone, Debug)]
pub(crate) struct TensorNames {
    pub param: Arc<str>,
}

/// An index of a tensor of rank `R`: `u32` or `usize` for rank 1, `[u32; R]` for every rank.
/// An `i32` is what an unsuffixed literal is; it may not be negative.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no index of a tensor of rank {R}",
    note = "rank 1 is indexed by `u32` or `usize`, every rank by an array of `u32`, one a dimension"
)]
pub trait TensorIndex<const R: usize>: Copy {
    /// One index a dimension.
    #[doc(hidden)]
    fn indices(self) -> [i64; R];
}

impl<const R: usize> TensorIndex<R> for [u32; R] {
    fn indices(self) -> [i64; R] {
        self.map(i64::from)
    }
}

impl TensorIndex<1> for u32 {
    fn indices(self) -> [i64; 1] {
        [i64::from(self)]
    }
}

impl TensorIndex<1> for usize {
    fn indices(self) -> [i64; 1] {
        [i64::try_from(self).unwrap_or(i64::MAX)]
    }
}

impl TensorIndex<1> for i32 {
    fn indices(self) -> [i64; 1] {
        [i64::from(self)]
    }
}

/// The leading indices that choose a row of a tensor of rank `R`: a `u32` for rank 2,
/// `[u32; R - 1]` for ranks 2 to 6.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose a row of a tensor of rank {R}",
    note = "rank 2 takes a `u32`, rank R an array of R - 1 `u32`"
)]
pub trait RowIndex<const R: usize>: Copy {
    /// One index a leading dimension, then 0.
    #[doc(hidden)]
    fn first_element(self) -> [u32; R];
}

impl RowIndex<2> for u32 {
    fn first_element(self) -> [u32; 2] {
        [self, 0]
    }
}

macro_rules! row_indices {
    ($($leading:literal $rank:literal;)*) => { $(
        impl RowIndex<$rank> for [u32; $leading] {
            fn first_element(self) -> [u32; $rank] {
                let mut all = [0; $rank];
                all[..$leading].copy_from_slice(&self);
                all
            }
        }
    )* };
}

row_indices! { 1 2; 2 3; 3 4; 4 5; 5 6; }

/// A view of `R` dimensions over memory that other threads may hold too.
#[derive(Clone, Debug)]
struct View<T, const R: usize> {
    base: *mut T,
    shape: [u32; R],
    strides: [u64; R],
    names: TensorNames,
}

impl<T: Element, const R: usize> View<T, R> {
    fn from_host(tensor: &HostTensor, names: TensorNames) -> Self {
        assert_eq!(tensor.scalar, T::SCALAR, "parameter `{}`", names.param);
        assert_eq!(tensor.shape.len(), R, "parameter `{}`", names.param);
        View {
            base: tensor.base.cast(),
            shape: std::array::from_fn(|i| tensor.shape[i]),
            strides: std::array::from_fn(|i| tensor.strides[i]),
            names,
        }
    }

    /// The address of `lanes` elements along the last dimension from `index`, as logical
    /// elements.
    fn address(&self, index: [i64; R], lanes: u32, site: Site) -> *mut T {
        let mut offset = 0u64;
        for (axis, &i) in index.iter().enumerate() {
            let extent = i64::from(self.shape[axis]);
            let needed = if axis + 1 == R { i64::from(lanes) } else { 1 };
            if i < 0 || i > extent - needed {
                self.out_of_range(axis, i, lanes, site);
            }
            offset += i as u64 * self.strides[axis];
        }
        // SAFETY: the launch was checked: every index below the extents lies in the buffer.
        unsafe { self.base.add(offset as usize) }
    }

    #[cold]
    fn out_of_range(&self, axis: usize, index: i64, lanes: u32, site: Site) -> ! {
        let what = if lanes > 1 && axis + 1 == R {
            format!("{lanes} elements from {index}")
        } else {
            format!("index {index}")
        };
        fault(
            site,
            format!(
                "parameter `{}`: {what} of dimension {axis} out of range, the dimension is {}",
                self.names.param, self.shape[axis]
            ),
        );
    }

    fn element(&self, index: [i64; R], site: Site) -> *mut T {
        let address = self.address(index, 1, site);
        if !T::is_valid(address) {
            fault(
                site,
                format!(
                    "parameter `{}`: the element at {index:?} is no valid {}",
                    self.names.param,
                    T::SCALAR
                ),
            );
        }
        address
    }

    fn lane_stride(&self) -> usize {
        self.strides.last().map_or(1, |&s| s as usize)
    }

    fn load<const N: usize>(&self, index: [i64; R], site: Site) -> Vector<T, N> {
        let address = self.address(in_elements(index, N), N as u32, site);
        // SAFETY: `address` checked that all lanes lie in the view.
        Vector::new(std::array::from_fn(|lane| unsafe {
            address.add(lane * self.lane_stride()).read()
        }))
    }

    fn store<const N: usize>(&self, index: [i64; R], value: Vector<T, N>, site: Site) {
        let address = self.address(in_elements(index, N), N as u32, site);
        for (lane, x) in value.to_array().into_iter().enumerate() {
            // SAFETY: as in `load`; the caller holds the tensor as `&mut`.
            unsafe { address.add(lane * self.lane_stride()).write(x) };
        }
    }

    fn row<I: RowIndex<R>>(&self, index: I, site: Site) -> View<T, 1> {
        let first = index.first_element().map(i64::from);
        let last = R - 1;
        let base = if self.shape[last] == 0 {
            self.base
        } else {
            self.address(first, 1, site)
        };
        View {
            base,
            shape: [self.shape[last]],
            strides: [self.strides[last]],
            names: self.names.clone(),
        }
    }
}

/// The index in elements of one whose last part counts vectors of `lanes`.
fn in_elements<const R: usize>(mut index: [i64; R], lanes: usize) -> [i64; R] {
    if let Some(last) = index.last_mut() {
        *last = last.saturating_mul(lanes as i64);
    }
    index
}

/// A tensor of rank `R` whose last dimension is contiguous; the others have any stride.
/// In a kernel's signature the rank is written as names of the dimensions:
/// `&Tensor<T, (rows, cols)>`.
#[derive(Debug)]
pub struct Tensor<T, const R: usize>(View<T, R>);

/// A tensor of rank `R` of which every dimension has any stride.
#[derive(Debug)]
pub struct StridedTensor<T, const R: usize>(View<T, R>);

/// A row of a tensor: one dimension, readable.
#[derive(Debug)]
pub struct Row<'a, T>(View<T, 1>, PhantomData<&'a T>);

/// A row of a tensor: one dimension, writable.
#[derive(Debug)]
pub struct RowMut<'a, T>(View<T, 1>, PhantomData<&'a mut T>);

macro_rules! readable {
    ([$($generics:tt)*] $name:ty, $rank:expr) => {
        impl<$($generics)*> $name {
            /// The extent of dimension `axis`.
            #[track_caller]
            pub fn dim(&self, axis: impl Length) -> u32 {
                let axis = axis.length();
                match self.0.shape.get(axis) {
                    Some(&extent) => extent,
                    None => fault(
                        Location::caller(),
                        format!("dimension {axis} of a tensor of rank {}", $rank),
                    ),
                }
            }
            /// Two elements of the last dimension; the last index counts pairs.
            #[track_caller]
            pub fn load2<I: TensorIndex<{ $rank }>>(&self, index: I) -> Vector<T, 2> {
                self.0.load(index.indices(), Location::caller())
            }
            /// Four elements of the last dimension; the last index counts fours.
            #[track_caller]
            pub fn load4<I: TensorIndex<{ $rank }>>(&self, index: I) -> Vector<T, 4> {
                self.0.load(index.indices(), Location::caller())
            }
            /// Eight elements of the last dimension; the last index counts eights.
            #[track_caller]
            pub fn load8<I: TensorIndex<{ $rank }>>(&self, index: I) -> Vector<T, 8> {
                self.0.load(index.indices(), Location::caller())
            }
        }
        impl<$($generics)*, I: TensorIndex<{ $rank }>> Index<I> for $name {
            type Output = T;
            #[track_caller]
            fn index(&self, index: I) -> &T {
                // SAFETY: `element` checked index and value; the reference lives for one
                // expression of one thread, and a write by another thread to the same element
                // meanwhile would be a race that the language forbids.
                unsafe { &*self.0.element(index.indices(), Location::caller()) }
            }
        }
    };
}

macro_rules! writable {
    ([$($generics:tt)*] $name:ty, $rank:expr) => {
        impl<$($generics)*> $name {
            /// The address of a cell, for atomics.
            pub(crate) fn cell<I: TensorIndex<{ $rank }>>(&self, index: I, site: Site) -> *mut T {
                self.0.address(index.indices(), 1, site)
            }
            /// Writes two elements of the last dimension; the last index counts pairs.
            #[track_caller]
            pub fn store2<I: TensorIndex<{ $rank }>>(&mut self, index: I, value: Vector<T, 2>) {
                self.0.store(index.indices(), value, Location::caller());
            }
            /// Writes four elements of the last dimension; the last index counts fours.
            #[track_caller]
            pub fn store4<I: TensorIndex<{ $rank }>>(&mut self, index: I, value: Vector<T, 4>) {
                self.0.store(index.indices(), value, Location::caller());
            }
            /// Writes eight elements of the last dimension; the last index counts eights.
            #[track_caller]
            pub fn store8<I: TensorIndex<{ $rank }>>(&mut self, index: I, value: Vector<T, 8>) {
                self.0.store(index.indices(), value, Location::caller());
            }
        }
        impl<$($generics)*, I: TensorIndex<{ $rank }>> IndexMut<I> for $name {
            #[track_caller]
            fn index_mut(&mut self, index: I) -> &mut T {
                let address = self.0.address(index.indices(), 1, Location::caller());
                if !T::is_valid(address) {
                    // SAFETY: in the view; zeros are a value of every element type, and an
                    // invalid one must not be behind a reference.
                    unsafe { address.write_bytes(0, 1) };
                }
                // SAFETY: as in `index`; the tensor is held as `&mut`.
                unsafe { &mut *address }
            }
        }
    };
}

readable!([T: Element, const R: usize] Tensor<T, R>, R);
writable!([T: Element, const R: usize] Tensor<T, R>, R);
readable!([T: Element, const R: usize] StridedTensor<T, R>, R);
writable!([T: Element, const R: usize] StridedTensor<T, R>, R);
readable!([T: Element] Row<'_, T>, 1);
readable!([T: Element] RowMut<'_, T>, 1);
writable!([T: Element] RowMut<'_, T>, 1);

macro_rules! rows {
    ($($name:ident)*) => { $(
        impl<T: Element, const R: usize> $name<T, R> {
            pub(crate) fn from_host(tensor: &HostTensor, names: TensorNames) -> Self {
                $name(View::from_host(tensor, names))
            }
            /// The row at these leading indices.
            #[track_caller]
            pub fn row<I: RowIndex<R>>(&self, index: I) -> Row<'_, T> {
                Row(self.0.row(index, Location::caller()), PhantomData)
            }
            /// The row at these leading indices, writable.
            #[track_caller]
            pub fn row_mut<I: RowIndex<R>>(&mut self, index: I) -> RowMut<'_, T> {
                RowMut(self.0.row(index, Location::caller()), PhantomData)
            }
        }
        impl<T: Element, const R: usize> TileTensor<R> for $name<T, R> {
            type Element = T;
            fn extent(&self, axis: usize) -> u32 {
                self.0.shape[axis]
            }
            fn read(&self, index: [u32; R], site: Site) -> T {
                // SAFETY: `element` checked index and value.
                unsafe { self.0.element(index.map(i64::from), site).read() }
            }
        }
        impl<T: Element, const R: usize> TileTensorMut<R> for $name<T, R> {
            fn write(&mut self, index: [u32; R], value: T, site: Site) {
                let address = self.0.address(index.map(i64::from), 1, site);
                // SAFETY: `address` checked the index; the tensor is held as `&mut`.
                unsafe { address.write(value) };
            }
        }
    )* };
}

rows!(Tensor StridedTensor);
