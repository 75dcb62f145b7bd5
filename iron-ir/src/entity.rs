//! Handles: `u32` newtypes with a niche that print as the textual IR, and arenas of them.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// A handle into an [`Arena`].
pub trait Handle: Copy + Eq + 'static {
    /// The handle of position `index`.
    fn from_index(index: usize) -> Self;
    /// The position in the arena.
    fn index(self) -> usize;
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(NonZeroU32);

        impl Handle for $name {
            fn from_index(index: usize) -> Self {
                let n = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
                $name(n.expect("fewer than 2^32 - 1 handles"))
            }
            fn index(self) -> usize {
                self.0.get() as usize - 1
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.index())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )* };
}

handles! {
    /// A value, defined once.
    Value = "%";
    /// A mutable variable of one thread (`let mut`), without an address.
    Local = "$";
    /// A parameter: a tensor or a scalar.
    Param = "@";
    /// A named dimension.
    Dim = "#";
    /// A shared or private array.
    Array = "&";
    /// A tile.
    Tile = "!";
}

/// Storage addressed by one kind of handle.
#[derive(Clone, PartialEq)]
pub struct Arena<H, T> {
    items: Vec<T>,
    handle: PhantomData<fn() -> H>,
}

impl<H: Handle, T> Arena<H, T> {
    /// An empty arena.
    pub const fn new() -> Self {
        Arena {
            items: Vec::new(),
            handle: PhantomData,
        }
    }

    /// Appends an item.
    pub fn push(&mut self, item: T) -> H {
        self.items.push(item);
        H::from_index(self.items.len() - 1)
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// No items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The item, or `None` where the handle is of another arena.
    pub fn get(&self, handle: H) -> Option<&T> {
        self.items.get(handle.index())
    }

    /// Handles and items in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (H, &T)> + ExactSizeIterator {
        self.items
            .iter()
            .enumerate()
            .map(|(i, t)| (H::from_index(i), t))
    }

    /// Handles and items in order, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (H, &mut T)> {
        self.items
            .iter_mut()
            .enumerate()
            .map(|(i, t)| (H::from_index(i), t))
    }

    /// Handles in order.
    pub fn handles(&self) -> impl DoubleEndedIterator<Item = H> + ExactSizeIterator + use<H, T> {
        (0..self.items.len()).map(H::from_index)
    }

    /// Items in order.
    pub fn values(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }
}

impl<H: Handle, T> Default for Arena<H, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Handle, T: fmt::Debug> fmt::Debug for Arena<H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.items).finish()
    }
}

impl<H: Handle, T> Index<H> for Arena<H, T> {
    type Output = T;
    fn index(&self, handle: H) -> &T {
        &self.items[handle.index()]
    }
}

impl<H: Handle, T> IndexMut<H> for Arena<H, T> {
    fn index_mut(&mut self, handle: H) -> &mut T {
        &mut self.items[handle.index()]
    }
}
