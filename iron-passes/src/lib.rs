//! The passes that rewrite the kernel IR.
