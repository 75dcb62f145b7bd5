//! Helper functions and types of a text: written once, in the order of first need, before the
//! entry point.

use std::collections::HashSet;

/// Helpers by key.
#[derive(Default)]
pub(crate) struct Helpers {
    known: HashSet<String>,
    texts: Vec<String>,
}

impl Helpers {
    /// Whether the helper is new; if so the caller adds its text once its own needs are met.
    pub fn is_new(&mut self, key: &str) -> bool {
        self.known.insert(key.to_owned())
    }

    /// Adds the text of a new helper.
    pub fn add(&mut self, text: String) {
        self.texts.push(text);
    }

    /// Adds a helper that needs no other.
    pub fn require(&mut self, key: &str, text: impl FnOnce() -> String) {
        if self.is_new(key) {
            let text = text();
            self.add(text);
        }
    }

    /// Every text, each followed by an empty line.
    pub fn finish(&self) -> String {
        self.texts
            .iter()
            .map(|t| format!("{}\n\n", t.trim_end()))
            .collect()
    }
}
