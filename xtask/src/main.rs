//! Project tasks: `cargo xtask --help`.

#[macro_use]
mod print;

mod build;
mod compilers;
mod exit;
mod fuzz;
mod model;
mod mutants;
mod process;
mod report;
mod snapshots;
mod test;
mod tidy;
mod tools;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use exit::Exit;
use tools::{Outcome, Tool};
use workspace::Workspace;

/// Tasks of the Iron and Butter workspace.
///
/// Exit codes: 0 done, 1 a check failed, 2 usage, 3 a required tool or backend is missing,
/// 4 nothing was selected.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct CommandLine {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Lowers every kernel for every target, compiles the texts, writes target/kernels/manifest.json.
    BuildKernels(build::Options),
    /// Runs the tests: every crate's, and every kernel's on each backend.
    Test(test::Options),
    /// Compares random kernels on every execution and makes a difference small.
    Fuzz(fuzz::Options),
    /// Breaks passes, verifier and launch check on purpose, and names what no test notices.
    Mutants(mutants::Options),
    /// Compares the generated sources with the goldens in git, or accepts them.
    Snapshots(snapshots::Options),
    /// Downloads a model into target/models and checks it.
    FetchModel(model::Options),
    /// Sets up the compilers that check kernels, under target/tools or by the system's package manager.
    Setup {
        /// Makes a tool that cannot be had an error instead of a skip.
        #[arg(long)]
        require: bool,
    },
    /// Checks the workspace's own rules: who may depend on whom, file sizes, docs, stray paths.
    Tidy,
    /// Prints what the last build-kernels and the recorded receipts say.
    Report,
}

fn main() -> ExitCode {
    let command_line = CommandLine::parse();
    let workspace = Workspace::locate();
    let result: Result<Exit, Box<dyn std::error::Error>> = match command_line.task {
        Task::BuildKernels(options) => build::run(&workspace, &options).map_err(Into::into),
        Task::Test(options) => test::run(&workspace, &options).map_err(Into::into),
        Task::Fuzz(options) => fuzz::run(&workspace, &options).map_err(Into::into),
        Task::Mutants(options) => mutants::run(&workspace, &options).map_err(Into::into),
        Task::Snapshots(options) => snapshots::run(&workspace, &options).map_err(Into::into),
        Task::FetchModel(options) => model::run(&workspace, &options).map_err(Into::into),
        Task::Setup { require } => set_up_all(&workspace, require).map_err(Into::into),
        Task::Tidy => tidy::run(&workspace).map_err(Into::into),
        Task::Report => report::run(&workspace).map_err(Into::into),
    };
    let exit = result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        Exit::Failure
    });
    ExitCode::from(exit as u8)
}

fn set_up_all(workspace: &Workspace, require: bool) -> Result<Exit, tools::ToolError> {
    eprintln!("Tools:");
    let steps = tools::set_up(workspace, &Tool::ALL)?;
    let skipped: Vec<&str> = steps
        .iter()
        .filter(|step| matches!(step.outcome, Outcome::Skipped(_)))
        .map(|step| step.tool.name())
        .collect();
    if skipped.is_empty() {
        println!("{} tools are ready", steps.len());
        return Ok(Exit::Success);
    }
    println!(
        "{} tools are ready, {} SKIPPED: {}",
        steps.len() - skipped.len(),
        skipped.len(),
        skipped.join(", ")
    );
    Ok(if require {
        Exit::MissingTool
    } else {
        Exit::Success
    })
}
