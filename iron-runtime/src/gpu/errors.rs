//! Error words: one for each pipeline whose kernel checks indices.
//!
//! A kernel stores the author's line plus one; which word it is says which kernel.

/// Words of one allocation.
pub(crate) const WORDS: usize = 4096;

/// Which word belongs to which kernel.
#[derive(Default)]
pub(crate) struct ErrorWords {
    kernels: Vec<String>,
    /// Some kernel with a word was queued since the words were last read.
    pub is_pending: bool,
}

impl ErrorWords {
    /// A word for a kernel, or `None` where all are taken.
    pub fn take(&mut self, kernel: String) -> Option<usize> {
        if self.kernels.len() == WORDS {
            return None;
        }
        self.kernels.push(kernel);
        Some(self.kernels.len() - 1)
    }

    /// Words in use.
    pub fn count(&self) -> usize {
        self.kernels.len()
    }

    /// The kernel and line of the first word that is set.
    pub fn first(&self, words: &[u32]) -> Option<(String, u32)> {
        self.kernels
            .iter()
            .zip(words)
            .find(|&(_, &word)| word != 0)
            .map(|(kernel, &word)| (kernel.clone(), word - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_its_kernel_and_line() {
        let mut words = ErrorWords::default();
        assert_eq!(words.take("gather".into()), Some(0));
        assert_eq!(words.take("scatter".into()), Some(1));
        assert_eq!(words.first(&[0, 0]), None);
        assert_eq!(words.first(&[0, 43]), Some(("scatter".into(), 42)));
        assert_eq!(words.first(&[1, 43]), Some(("gather".into(), 0)));
    }
}
