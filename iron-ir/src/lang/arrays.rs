//! Shared and private arrays: undefined until written, and an unwritten element that is read is
//! a fault.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};
use std::panic::Location;
use std::rc::Rc;

use super::scalar::Element;
use super::tensor::TensorIndex;
use super::vector::Vector;
use crate::host::context::{SharedMemory, Site, fault, shared_memory};

/// A length or extent that is known when the kernel is built: `u32`, `usize`, or a literal.
pub trait Length: Copy {
    /// The length.
    #[doc(hidden)]
    fn length(self) -> usize;
}

impl Length for u32 {
    fn length(self) -> usize {
        self as usize
    }
}

impl Length for usize {
    fn length(self) -> usize {
        self
    }
}

impl Length for i32 {
    fn length(self) -> usize {
        usize::try_from(self).unwrap_or(0)
    }
}

/// An array that the threads of a workgroup share.
pub struct Shared<T>(Cells<T>);

/// An array of one thread.
pub struct Private<T>(Cells<T>);

/// An array of one thread that is filled ahead of its use, in batches; see [`ahead`].
pub struct Ahead<T>(Cells<T>);

/// Declares an array of `len` elements that the threads of the workgroup share.
#[track_caller]
pub fn shared<T: Element>(len: impl Length) -> Shared<T> {
    let memory = shared_memory("shared", Location::caller(), T::SCALAR, len.length());
    Shared(Cells {
        memory,
        space: "shared",
        batches: None,
        element: PhantomData,
    })
}

/// Declares an array of `len` elements of this thread.
pub fn private<T: Element>(len: impl Length) -> Private<T> {
    Private(Cells {
        memory: Rc::new(SharedMemory::new(T::SCALAR, len.length())),
        space: "private",
        batches: None,
        element: PhantomData,
    })
}

/// Declares an array of `len` elements of this thread for what is loaded ahead of its use. What is
/// stored belongs to the batch that [`Ahead::end_batch`] ends, and can be read once
/// [`Ahead::wait_batches`] has waited for that batch. On GPUs that copy asynchronously (NVIDIA,
/// compute capability 8.0), eight 16-bit elements that are stored as they are loaded from a tensor
/// that the kernel does not write go to shared memory without passing registers, so that a thread
/// can have as many on their way as there is shared memory; elsewhere the array is a private one.
/// A kernel has one such array.
pub fn ahead<T: Element>(len: impl Length) -> Ahead<T> {
    let len = len.length();
    Ahead(Cells {
        memory: Rc::new(SharedMemory::new(T::SCALAR, len)),
        space: "ahead",
        batches: Some(Batches {
            of: RefCell::new(vec![0; len]),
            open: Cell::new(0),
            arrived: Cell::new(0),
        }),
        element: PhantomData,
    })
}

/// Which batch each element belongs to, the one that is being filled, and how many have arrived.
struct Batches {
    of: RefCell<Vec<usize>>,
    open: Cell<usize>,
    arrived: Cell<usize>,
}

struct Cells<T> {
    memory: Rc<SharedMemory>,
    space: &'static str,
    /// Of an array that is filled ahead of its use.
    batches: Option<Batches>,
    element: PhantomData<T>,
}

impl<T: Element> Cells<T> {
    fn check(&self, index: i64, lanes: usize, site: Site) -> usize {
        let len = self.memory.len();
        if index < 0 || index as u64 + lanes as u64 > len as u64 {
            fault(
                site,
                format!(
                    "index {index} of a {} array of {len} elements is out of range",
                    self.space
                ),
            );
        }
        index as usize
    }

    fn read(&self, index: usize, site: Site) -> *mut T {
        if !self.memory.is_written(index) {
            fault(
                site,
                format!(
                    "element {index} of a {} array is read before it was written",
                    self.space
                ),
            );
        }
        if let Some(batches) = &self.batches
            && batches.of.borrow()[index] >= batches.arrived.get()
        {
            fault(
                site,
                format!(
                    "element {index} of an ahead array is read before `wait_batches` has waited for \
                     its batch"
                ),
            );
        }
        self.memory.address(index).cast()
    }

    /// Notes that an element is written.
    fn mark(&self, index: usize) {
        self.memory.mark(index);
        if let Some(batches) = &self.batches {
            batches.of.borrow_mut()[index] = batches.open.get();
        }
    }

    fn load<const N: usize>(&self, index: i64, site: Site) -> Vector<T, N> {
        let first = self.check(index.saturating_mul(N as i64), N, site);
        // SAFETY: checked to be in range and written.
        Vector::new(std::array::from_fn(|lane| unsafe {
            self.read(first + lane, site).read()
        }))
    }

    fn store<const N: usize>(&self, index: i64, value: Vector<T, N>, site: Site) {
        let first = self.check(index.saturating_mul(N as i64), N, site);
        for (lane, x) in value.to_array().into_iter().enumerate() {
            self.mark(first + lane);
            // SAFETY: checked to be in range.
            unsafe { self.memory.address(first + lane).cast::<T>().write(x) };
        }
    }
}

macro_rules! arrays {
    ($($name:ident)*) => { $(
        impl<T: Element> $name<T> {
            /// Number of elements.
            #[allow(clippy::len_without_is_empty, reason = "an array's length is a constant")]
            pub fn len(&self) -> u32 {
                self.0.memory.len() as u32
            }
            /// Two elements; the index counts pairs.
            #[track_caller]
            pub fn load2<I: TensorIndex<1>>(&self, index: I) -> Vector<T, 2> {
                self.0.load(index.indices()[0], Location::caller())
            }
            /// Four elements; the index counts fours.
            #[track_caller]
            pub fn load4<I: TensorIndex<1>>(&self, index: I) -> Vector<T, 4> {
                self.0.load(index.indices()[0], Location::caller())
            }
            /// Eight elements; the index counts eights.
            #[track_caller]
            pub fn load8<I: TensorIndex<1>>(&self, index: I) -> Vector<T, 8> {
                self.0.load(index.indices()[0], Location::caller())
            }
            /// Writes two elements; the index counts pairs.
            #[track_caller]
            pub fn store2<I: TensorIndex<1>>(&mut self, index: I, value: Vector<T, 2>) {
                self.0.store(index.indices()[0], value, Location::caller());
            }
            /// Writes four elements; the index counts fours.
            #[track_caller]
            pub fn store4<I: TensorIndex<1>>(&mut self, index: I, value: Vector<T, 4>) {
                self.0.store(index.indices()[0], value, Location::caller());
            }
            /// Writes eight elements; the index counts eights.
            #[track_caller]
            pub fn store8<I: TensorIndex<1>>(&mut self, index: I, value: Vector<T, 8>) {
                self.0.store(index.indices()[0], value, Location::caller());
            }
        }
        impl<T: Element, I: TensorIndex<1>> Index<I> for $name<T> {
            type Output = T;
            #[track_caller]
            fn index(&self, index: I) -> &T {
                let site = Location::caller();
                let index = self.0.check(index.indices()[0], 1, site);
                // SAFETY: in range and written; lives for one expression of one thread.
                unsafe { &*self.0.read(index, site) }
            }
        }
        impl<T: Element, I: TensorIndex<1>> IndexMut<I> for $name<T> {
            #[track_caller]
            fn index_mut(&mut self, index: I) -> &mut T {
                let index = self.0.check(index.indices()[0], 1, Location::caller());
                self.0.mark(index);
                // SAFETY: in range; the initial bytes are a value of every element type.
                unsafe { &mut *self.0.memory.address(index).cast() }
            }
        }
    )* };
}

arrays!(Shared Private Ahead);

impl<T: Element> Ahead<T> {
    /// Ends a batch: what was stored since the last one.
    pub fn end_batch(&mut self) {
        if let Some(batches) = &self.0.batches {
            batches.open.set(batches.open.get() + 1);
        }
    }

    /// Waits until all batches have arrived but the `newest`.
    pub fn wait_batches(&mut self, newest: impl Length) {
        if let Some(batches) = &self.0.batches {
            let arrived = batches.open.get().saturating_sub(newest.length());
            batches.arrived.set(arrived.max(batches.arrived.get()));
        }
    }
}

impl<T: Element> Shared<T> {
    /// The address of a written cell, for atomics.
    pub(crate) fn cell<I: TensorIndex<1>>(&self, index: I, site: Site) -> *mut T {
        let index = self.0.check(index.indices()[0], 1, site);
        self.0.read(index, site)
    }

    /// The address of a cell that an atomic store writes.
    pub(crate) fn cell_to_write<I: TensorIndex<1>>(&self, index: I, site: Site) -> *mut T {
        let index = self.0.check(index.indices()[0], 1, site);
        self.0.memory.mark(index);
        self.0.memory.address(index).cast()
    }
}
