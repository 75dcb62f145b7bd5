//! What crosses crates: semantics tables, differential tests, end-to-end goldens.
