//! The runner over the corpus.

use std::process::ExitCode;

fn main() -> ExitCode {
    iron_corpus::link();
    iron_runner::main()
}
