//! Sets of the threads of a workgroup.

/// A set of threads.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Mask {
    words: Box<[u64]>,
    count: u32,
    threads: u32,
}

impl Mask {
    /// No thread.
    pub fn empty(threads: u32) -> Mask {
        let words = vec![0u64; threads.div_ceil(64) as usize].into_boxed_slice();
        Mask {
            words,
            count: 0,
            threads,
        }
    }

    /// Threads `0..n`.
    pub fn first(threads: u32, n: u32) -> Mask {
        let mut mask = Mask::empty(threads);
        for t in 0..n {
            mask.words[(t / 64) as usize] |= 1 << (t % 64);
        }
        mask.count = n;
        mask
    }

    /// Number of threads in the set.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Every thread of the workgroup.
    pub fn is_full(&self) -> bool {
        self.count == self.threads
    }

    /// No thread.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a thread is in the set.
    pub fn contains(&self, thread: u32) -> bool {
        self.words[(thread / 64) as usize] >> (thread % 64) & 1 == 1
    }

    /// Adds the threads of another set, which has none of this one's.
    pub fn join(&mut self, other: &Mask) {
        for (a, b) in self.words.iter_mut().zip(&other.words) {
            *a |= b;
        }
        self.count += other.count;
    }

    /// Splits by a predicate: those for which it holds stay, the others are returned.
    pub fn split(&mut self, mut keep: impl FnMut(usize) -> bool) -> Mask {
        let mut rest = Mask::empty(self.threads);
        for (w, word) in self.words.iter_mut().enumerate() {
            let mut left = *word;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                if !keep(w * 64 + bit as usize) {
                    *word &= !(1 << bit);
                    rest.words[w] |= 1 << bit;
                    rest.count += 1;
                }
            }
        }
        self.count -= rest.count;
        rest
    }

    /// Removes all threads and returns them.
    pub fn take(&mut self) -> Mask {
        std::mem::replace(self, Mask::empty(self.threads))
    }

    /// The lowest thread that is not in the set.
    pub fn first_absent(&self) -> Option<u32> {
        (0..self.threads).find(|&t| !self.contains(t))
    }

    /// Calls `visit` on every thread, ascending.
    #[inline]
    pub fn for_each(&self, mut visit: impl FnMut(usize)) {
        if self.is_full() {
            (0..self.threads as usize).for_each(visit);
            return;
        }
        for (w, &word) in self.words.iter().enumerate() {
            let mut left = word;
            while left != 0 {
                visit(w * 64 + left.trailing_zeros() as usize);
                left &= left - 1;
            }
        }
    }

    /// As [`for_each`](Mask::for_each), until the first error.
    #[inline]
    pub fn try_for_each<E>(&self, mut visit: impl FnMut(usize) -> Result<(), E>) -> Result<(), E> {
        for (w, &word) in self.words.iter().enumerate() {
            let mut left = word;
            while left != 0 {
                visit(w * 64 + left.trailing_zeros() as usize)?;
                left &= left - 1;
            }
        }
        Ok(())
    }
}
