//! The runner of kernel tests and benches, as a library: a crate of kernels makes its own
//! runner with three lines.
//!
//! ```ignore
//! fn main() -> std::process::ExitCode {
//!     my_kernels::link();
//!     iron_runner::main()
//! }
//! ```
//!
//! Exit codes: 0 all passed, 1 something failed, 2 wrong usage, 3 a backend is missing,
//! 4 nothing was selected. Over several backends the worst wins: 1, then 4, then 3.

mod bench;
mod command;
mod contracts;
mod explain;
mod layouts;
mod list;
mod report;
mod select;
mod test;

pub use command::{main, run};
