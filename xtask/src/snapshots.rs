//! `snapshots`: the generated source of every kernel for every target is a golden in git. This
//! compares them, showing a changed kernel as a diff, or accepts what is generated now.

use std::process::Command;

use crate::exit::Exit;
use crate::process::ProcessError;
use crate::workspace::Workspace;

/// What to do with the goldens.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Writes what is generated now over the goldens, for review as a git diff.
    #[arg(long)]
    accept: bool,
}

/// Runs the command.
pub fn run(workspace: &Workspace, options: &Options) -> Result<Exit, ProcessError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&cargo);
    command
        .args(["test", "--package", "iron-tests", "--test", "goldens"])
        .current_dir(&workspace.root)
        // insta: write over, or leave the goldens and print every difference.
        .env("INSTA_UPDATE", if options.accept { "always" } else { "no" })
        .env("INSTA_FORCE_PASS", "0");
    let status = command
        .status()
        .map_err(|source| ProcessError::NotStarted {
            program: cargo.to_string_lossy().into_owned(),
            source,
        })?;
    if status.success() {
        println!(
            "{}",
            if options.accept {
                "accepted; review with `git diff`"
            } else {
                "the goldens are what is generated"
            }
        );
        return Ok(Exit::Success);
    }
    if !options.accept {
        eprintln!(
            "error: generated sources differ from the goldens; accept them with `cargo xtask snapshots --accept`"
        );
    }
    Ok(Exit::Failure)
}
