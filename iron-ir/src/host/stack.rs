//! Stacks of fibers that stand for the threads of a workgroup.

use corosensei::stack::{DefaultStack, Stack, StackPointer};

/// A stack with a guard page whose first frame lies at a different offset within its page for
/// each thread: equal offsets make the fibers' frames compete for the same cache sets.
pub struct FiberStack {
    inner: DefaultStack,
    skip: usize,
}

impl FiberStack {
    /// A stack of about that many bytes for the thread of that index. Pages that no fiber touches
    /// cost nothing.
    pub fn new(bytes: usize, thread: usize) -> std::io::Result<FiberStack> {
        Ok(FiberStack {
            inner: DefaultStack::new(bytes)?,
            skip: thread * 208 % 4096,
        })
    }
}

// SAFETY: base and limit are those of `DefaultStack`, the base moved down by less than a page
// of its many pages, in multiples of the required alignment; the guard page stays.
unsafe impl Stack for FiberStack {
    fn base(&self) -> StackPointer {
        let base = self.inner.base().get() - self.skip;
        StackPointer::new(base).expect("a stack does not lie at address 0")
    }
    fn limit(&self) -> StackPointer {
        self.inner.limit()
    }
    #[cfg(windows)]
    fn teb_fields(&self) -> corosensei::stack::StackTebFields {
        self.inner.teb_fields()
    }
    #[cfg(windows)]
    fn update_teb_fields(&mut self, stack_limit: usize, guaranteed_stack_bytes: usize) {
        self.inner
            .update_teb_fields(stack_limit, guaranteed_stack_bytes);
    }
}
