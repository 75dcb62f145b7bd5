//! `fuzz`: compares random kernels on every execution, for as long as one likes.

use std::process::Command;

use crate::exit::Exit;
use crate::process::ProcessError;
use crate::workspace::Workspace;

/// What to compare.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Kernels to make.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    kernels: u64,
    /// Chooses the kernels: the same seed gives the same ones.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Begins with this kernel of the seed, as a difference names it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Compares with this backend only, and takes its absence as an error; may be given again.
    #[arg(long = "backend", value_name = "BACKEND")]
    backends: Vec<String>,
    /// Compares `host` with the others on kernels in the kernel language, which are compiled.
    #[arg(long)]
    source: bool,
}

/// Runs the command.
pub fn run(workspace: &Workspace, options: &Options) -> Result<Exit, ProcessError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["test", "--package", "iron-tests", "--test"])
        .current_dir(&workspace.root);
    let seed = options.seed.to_string();
    let kernels = options.kernels.to_string();
    if options.source {
        command
            .args(["generated", "rustc_and_the_macro"])
            .env("IRON_FUZZ_RUST", kernels)
            .env("IRON_FUZZ_RUST_SEED", seed);
    } else {
        command
            .args(["differential", "random_kernels"])
            .env("IRON_FUZZ_KERNELS", kernels)
            .env("IRON_FUZZ_SEED", seed)
            .env("IRON_FUZZ_FIRST", options.first.to_string());
    }
    command.args(["--", "--nocapture"]);
    if !options.backends.is_empty() {
        command.env("IRON_TEST_BACKENDS", options.backends.join(","));
    }
    let status = command
        .status()
        .map_err(|source| ProcessError::NotStarted {
            program: "cargo".into(),
            source,
        })?;
    Ok(if status.success() {
        Exit::Success
    } else {
        Exit::Failure
    })
}
