//! The runner over the corpus.
fn main() {}
