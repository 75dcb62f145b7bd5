//! The attribute macros of the kernel language.
