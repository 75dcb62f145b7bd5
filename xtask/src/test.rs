//! `test`: sets up the tools, then runs each crate's tests and each kernel's tests on every backend.
//! Tiers run to the end whatever an earlier one found, and the last lines say how each ended.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::exit::Exit;
use crate::process::find_program;
use crate::tools::{Tool, ToolError, set_up};
use crate::workspace::Workspace;

/// What to test.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Tests kernels on this backend only, and takes its absence as an error; may be given again.
    #[arg(long = "backend", value_name = "BACKEND")]
    backends: Vec<String>,
    /// Tests the kernels whose name contains this, and no crate's own tests.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Uses the compilers and drivers that are there and sets up none.
    #[arg(long)]
    no_setup: bool,
}

/// Where every kernel's tests run unless backends are named. A machine without one of them skips it
/// by name, with the reason.
const DEFAULT_BACKENDS: [&str; 10] = [
    "host",
    "reference",
    "cpu",
    "vulkan",
    "cuda",
    "hip",
    "metal",
    "emulated-cuda",
    "emulated-hip",
    "emulated-msl",
];

/// Runs the command.
pub fn run(workspace: &Workspace, options: &Options) -> Result<Exit, ToolError> {
    if !options.no_setup {
        eprintln!("Tools:");
        set_up(workspace, &Tool::ALL)?;
    }
    let mut tiers = Vec::new();
    if options.backends.is_empty() && options.filter.is_none() {
        if find_program("cargo-nextest").is_some() {
            tiers.push(cargo_tier(
                workspace,
                "crate tests (nextest)",
                &["nextest", "run", "--workspace", "--no-fail-fast"],
            ));
            tiers.push(cargo_tier(
                workspace,
                "doc tests",
                &["test", "--quiet", "--workspace", "--doc"],
            ));
        } else {
            tiers.push(cargo_tier(
                workspace,
                "crate tests",
                &["test", "--workspace"],
            ));
        }
    }
    let named = !options.backends.is_empty();
    let backends: Vec<&str> = if named {
        options.backends.iter().map(String::as_str).collect()
    } else {
        DEFAULT_BACKENDS.to_vec()
    };
    for backend in backends {
        tiers.push(kernel_tier(
            workspace,
            backend,
            options.filter.as_deref(),
            named,
        ));
    }
    if !named || options.backends.iter().any(|b| b == "reference") {
        tiers.push(check_tier(workspace, options.filter.as_deref()));
    }
    println!("\ntier                             result   time");
    for tier in &tiers {
        println!(
            "{:<32} {:<8} {:>6.1} s",
            tier.name,
            tier.word(),
            tier.elapsed.as_secs_f64()
        );
    }
    for tier in &tiers {
        if let Some(reason) = &tier.reason {
            println!("not run: {}: {reason}", tier.name);
        }
    }
    Ok(tiers
        .iter()
        .map(Tier::exit)
        .fold(Exit::Success, Exit::worst))
}

/// One named part of the tests.
struct Tier {
    name: String,
    result: Exit,
    /// A missing backend is an error only where it was asked for by name.
    required: bool,
    elapsed: Duration,
    /// Why it was skipped.
    reason: Option<String>,
}

impl Tier {
    fn word(&self) -> &'static str {
        match self.result {
            Exit::Success => "ok",
            Exit::Failure => "FAILED",
            Exit::Usage => "USAGE",
            Exit::MissingTool => "SKIPPED",
            Exit::NothingSelected => "NOTHING",
        }
    }

    fn exit(&self) -> Exit {
        match self.result {
            Exit::MissingTool if !self.required => Exit::Success,
            result => result,
        }
    }
}

fn cargo_tier(workspace: &Workspace, name: &str, arguments: &[&str]) -> Tier {
    run_tier(workspace, name.to_owned(), true, arguments)
}

fn kernel_tier(workspace: &Workspace, backend: &str, filter: Option<&str>, required: bool) -> Tier {
    let name = format!("kernels on {backend}");
    let command = ["test", "--backend", backend];
    let mut tier = runner_tier(workspace, name, required, &command, filter);
    if tier.result == Exit::MissingTool {
        tier.reason = Some(reason_of(workspace, backend));
    }
    tier
}

/// Why a backend is missing, in the runner's words.
fn reason_of(workspace: &Workspace, backend: &str) -> String {
    let mut command = cargo(workspace);
    command.args(RUNNER).args(["devices", "--backend", backend]);
    let said = crate::process::run(&mut command, &[]).map(|finished| finished.stdout);
    let said = said.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let reason = said.lines().find_map(|l| l.split_once("missing: "));
    reason.map_or_else(
        || "the backend is missing".into(),
        |(_, why)| why.to_owned(),
    )
}

/// Every rule of the specification, at the subgroup widths that there are.
fn check_tier(workspace: &Workspace, filter: Option<&str>) -> Tier {
    let command = ["check", "--subgroup-width", "4,8,16,32,64"];
    runner_tier(
        workspace,
        "kernels under the checker".into(),
        true,
        &command,
        filter,
    )
}

/// Runs the runner of kernel tests.
const RUNNER: [&str; 7] = [
    "run",
    "--quiet",
    "--package",
    "iron-corpus",
    "--bin",
    "__iron_runner",
    "--",
];

fn cargo(workspace: &Workspace) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(&workspace.root);
    command
}

fn runner_tier(
    workspace: &Workspace,
    name: String,
    required: bool,
    command: &[&str],
    filter: Option<&str>,
) -> Tier {
    let mut arguments = RUNNER.to_vec();
    arguments.extend(command);
    if let Some(filter) = filter {
        arguments.extend(["--filter", filter]);
    }
    run_tier(workspace, name, required, &arguments)
}

fn run_tier(workspace: &Workspace, name: String, required: bool, arguments: &[&str]) -> Tier {
    let started = Instant::now();
    println!("\n== {name}: cargo {}", arguments.join(" "));
    let is_kernel_run = arguments.first() == Some(&"run");
    let result = match cargo(workspace).args(arguments).status() {
        // The runner's exit codes are ours; cargo's own are 0 or a failure.
        Ok(status) if is_kernel_run => Exit::from_code(status.code()),
        Ok(status) if status.success() => Exit::Success,
        Ok(_) => Exit::Failure,
        Err(error) => {
            eprintln!("error: cargo could not be started: {error}");
            Exit::Failure
        }
    };
    Tier {
        name,
        result,
        required,
        elapsed: started.elapsed(),
        reason: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(result: Exit, required: bool) -> Tier {
        Tier {
            name: "t".into(),
            result,
            required,
            elapsed: Duration::ZERO,
            reason: None,
        }
    }

    #[test]
    fn a_missing_backend_fails_only_when_named_and_an_empty_selection_always() {
        let exit = |tiers: &[Tier]| {
            tiers
                .iter()
                .map(Tier::exit)
                .fold(Exit::Success, Exit::worst)
        };
        assert_eq!(
            exit(&[tier(Exit::Success, false), tier(Exit::MissingTool, false)]),
            Exit::Success
        );
        assert_eq!(exit(&[tier(Exit::MissingTool, true)]), Exit::MissingTool);
        assert_eq!(
            exit(&[
                tier(Exit::NothingSelected, false),
                tier(Exit::MissingTool, true)
            ]),
            Exit::NothingSelected
        );
        assert_eq!(
            exit(&[
                tier(Exit::NothingSelected, false),
                tier(Exit::Failure, false)
            ]),
            Exit::Failure
        );
        assert_eq!(Exit::from_code(None), Exit::Failure);
    }
}
