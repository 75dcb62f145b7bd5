//! The runner of kernel tests and benches, as a library.
