//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, value_parser};
use iron_ir::Scalar;
use iron_runtime::Backend;

use crate::{bench, check, explain, list, test, tune};

/// Lists, tests, measures and explains the kernels of this binary.
#[derive(Parser)]
#[command(name = "__iron_runner", version, about, long_about = None)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Every kernel with its instances, tests and benches, and the registry's hash.
    List(ListOptions),
    /// Runs the tests.
    Test(TestOptions),
    /// Runs every case on the reference, which reports races, reads of undefined memory, indices out
    /// of bounds and every other broken rule, each with its place and values.
    Check(CheckOptions),
    /// Measures the benches.
    Bench(BenchOptions),
    /// Measures the instances of each kernel that do the same, and keeps the fastest for this device
    /// in a table.
    Tune(TuneOptions),
    /// Prints a kernel's IR, before or after passes, or its code for a target.
    Explain(explain::ExplainOptions),
    /// Every backend, its device, or why it is absent.
    Devices(DeviceOptions),
}

/// What is selected.
#[derive(Args, Clone)]
pub(crate) struct Selection {
    /// Only names that contain this: a test, a kernel, `test[instance]`, or
    /// `test[instance]/case`.
    #[arg(long, short)]
    pub filter: Option<String>,
    /// Only instances with this element type.
    #[arg(long, value_parser = parse_dtype)]
    pub dtype: Option<String>,
    /// Backends, separated by commas or given repeatedly.
    #[arg(long, short, value_delimiter = ',', value_parser = parse_backend)]
    pub backend: Vec<Backend>,
    /// Prints one JSON document instead of text.
    #[arg(long)]
    pub json: bool,
}

impl Selection {
    /// By name and type.
    pub fn of(filter: Option<String>, dtype: Option<String>) -> Selection {
        Selection {
            filter,
            dtype,
            backend: Vec::new(),
            json: false,
        }
    }
}

/// Options of `list`.
#[derive(Args, Clone)]
struct ListOptions {
    /// Only names that contain this: a test, a kernel, or `test[instance]`.
    #[arg(long, short)]
    filter: Option<String>,
    /// Only instances with this element type.
    #[arg(long, value_parser = parse_dtype)]
    dtype: Option<String>,
    /// Prints one JSON document instead of text.
    #[arg(long)]
    json: bool,
}

/// Options of `check`.
#[derive(Args, Clone)]
pub(crate) struct CheckOptions {
    /// Only names that contain this: a test, a kernel, `test[instance]`, or
    /// `test[instance]/case`.
    #[arg(long, short)]
    pub filter: Option<String>,
    /// Only instances with this element type.
    #[arg(long, value_parser = parse_dtype)]
    pub dtype: Option<String>,
    /// Lanes of a subgroup: 4, 8, 16, 32 or 64, separated by commas or given repeatedly.
    #[arg(long, value_delimiter = ',', default_value = "32", value_parser = parse_width)]
    pub subgroup_width: Vec<u32>,
    /// Also reports floats that are not finite, made of operands that were, where they are stored.
    #[arg(long)]
    pub finite: bool,
    /// Statements that one workgroup may execute before it counts as endless.
    #[arg(long, default_value_t = check::DEFAULT_STEPS, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_steps: u64,
    /// Seed of the inputs.
    #[arg(long, default_value_t = 1, value_parser = parse_seed)]
    pub seed: u64,
    /// Leaves out cases of production size.
    #[arg(long)]
    pub small: bool,
    /// Threads that check; one for each processor where absent. The report is the same.
    #[arg(long, value_parser = parse_jobs)]
    pub jobs: Option<NonZeroUsize>,
    /// Prints one JSON document instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Options of `test`.
#[derive(Args, Clone)]
pub(crate) struct TestOptions {
    #[command(flatten)]
    pub selection: Selection,
    /// Seed of the inputs.
    #[arg(long, default_value_t = 1, value_parser = parse_seed)]
    pub seed: u64,
    /// Leaves out cases of production size.
    #[arg(long)]
    pub small: bool,
    /// Worker processes; one for each processor where absent. Results and their order are the same.
    #[arg(long, value_parser = parse_jobs)]
    pub jobs: Option<NonZeroUsize>,
    /// Runs the tests whose numbers come on the standard input: a process of `--jobs`.
    #[arg(long, hide = true)]
    pub worker: bool,
}

/// Options of `bench`.
#[derive(Args, Clone)]
pub(crate) struct BenchOptions {
    #[command(flatten)]
    pub selection: Selection,
    /// Seed of the inputs.
    #[arg(long, default_value_t = 1, value_parser = parse_seed)]
    pub seed: u64,
    /// Launches before the clock starts.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(0..=MOST_LAUNCHES))]
    pub warm_up: u32,
    /// Launches measured; with `--rotate`, replays of the chain.
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u32).range(1..=MOST_LAUNCHES))]
    pub repetitions: u32,
    /// Measures in a recorded chain of launches that take copies of the arguments in turn, of at
    /// least this many bytes together (300000000 passes an H200's caches); 0 measures launches
    /// one by one on the same memory.
    #[arg(long, default_value_t = 0)]
    pub rotate: u64,
}

/// Options of `tune`.
#[derive(Args, Clone)]
pub(crate) struct TuneOptions {
    #[command(flatten)]
    pub bench: BenchOptions,
    /// A JSON file of choices for this device, which keeps what is not measured again; made where
    /// it does not exist.
    #[arg(long, value_name = "FILE")]
    pub table: Option<PathBuf>,
}

#[derive(Args)]
struct DeviceOptions {
    /// Backends, separated by commas or given repeatedly; all where absent.
    #[arg(long, short, value_delimiter = ',', value_parser = parse_backend)]
    backend: Vec<Backend>,
    /// Prints one JSON document instead of text.
    #[arg(long)]
    json: bool,
}

fn parse_backend(name: &str) -> Result<Backend, String> {
    Backend::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Backend::ALL.iter().map(|b| b.name()).collect();
        format!("no backend `{name}`; there are {}", names.join(", "))
    })
}

/// More processes than any machine has use for.
const MOST_JOBS: usize = 1024;

fn parse_jobs(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .ok()
        .filter(|jobs: &NonZeroUsize| jobs.get() <= MOST_JOBS)
        .ok_or_else(|| format!("it must be a whole number from 1 to {MOST_JOBS}"))
}

fn parse_width(text: &str) -> Result<u32, String> {
    let lanes = text.parse().ok();
    let allowed = |n: &u32| n.is_power_of_two() && (4..=64).contains(n);
    lanes
        .filter(allowed)
        .ok_or_else(|| format!("`{text}` is no subgroup width; there are 4, 8, 16, 32 and 64"))
}

/// Most launches that a bench measures: each is an entry of a list.
const MOST_LAUNCHES: i64 = 1_000_000;

/// An element type by its name. A wrong one must not select the kernels without type parameters.
pub(crate) fn parse_dtype(text: &str) -> Result<String, String> {
    match Scalar::from_name(text) {
        Some(_) => Ok(text.to_owned()),
        None => {
            let names = Scalar::ALL.map(Scalar::name).join(", ");
            Err(format!("`{text}` is no element type; there are {names}"))
        }
    }
}

fn parse_seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|e| format!("`{text}` is no seed: {e}"))
}

/// How a command ended, from best to worst as exit codes over several backends count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Ending {
    Passed,
    BackendMissing,
    NothingSelected,
    Failed,
    Usage,
}

impl Ending {
    /// The process's exit code.
    pub fn code(self) -> u8 {
        match self {
            Ending::Passed => 0,
            Ending::Failed => 1,
            Ending::Usage => 2,
            Ending::BackendMissing => 3,
            Ending::NothingSelected => 4,
        }
    }
}

/// Runs the process's command line. Tests run in processes of their own, which are this program
/// again, so this is called first of all and with nothing else on the standard output.
pub fn main() -> ExitCode {
    // Without its own path a process cannot be started again, and does everything itself.
    let program = std::env::current_exe().ok();
    ExitCode::from(run_as(std::env::args_os(), program))
}

/// Runs a command line, of which the first word is the program, in this process; the exit code.
pub fn run(arguments: impl IntoIterator<Item = impl Into<std::ffi::OsString> + Clone>) -> u8 {
    run_as(arguments, None)
}

/// As [`run`], with the program that does the same in another process.
fn run_as(
    arguments: impl IntoIterator<Item = impl Into<std::ffi::OsString> + Clone>,
    program: Option<PathBuf>,
) -> u8 {
    let mut line = match CommandLine::try_parse_from(arguments) {
        Ok(line) => line,
        Err(error) => {
            // Help and version are no errors.
            let code = if error.use_stderr() {
                Ending::Usage.code()
            } else {
                0
            };
            // A closed pipe leaves nobody to tell.
            let _ = error.print();
            return code;
        }
    };
    match &mut line.command {
        Command::Test(options) => once(&mut options.selection.backend),
        Command::Bench(options) => once(&mut options.selection.backend),
        Command::Devices(options) => once(&mut options.backend),
        Command::Check(options) => once(&mut options.subgroup_width),
        Command::List(_) | Command::Tune(_) | Command::Explain(_) => {}
    }
    let ending = match line.command {
        Command::List(options) => {
            let mut selection = Selection::of(options.filter, options.dtype);
            selection.json = options.json;
            list::list(&selection)
        }
        Command::Test(options) if options.worker => test::worker(&options),
        Command::Test(options) => test::test(&options, program.as_deref()),
        Command::Check(options) => check::command(&options),
        Command::Bench(options) => bench::bench(&options),
        Command::Tune(options) => tune::tune(&options),
        Command::Explain(options) => explain::explain(&options),
        Command::Devices(options) => list::devices(&options.backend, options.json),
    };
    ending.code()
}

/// Keeps the first of what was named several times.
fn once<T: Copy + PartialEq>(list: &mut Vec<T>) {
    let mut seen = Vec::new();
    list.retain(|item| {
        let is_new = !seen.contains(item);
        seen.push(*item);
        is_new
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_ending_wins() {
        let all = [
            Ending::Passed,
            Ending::BackendMissing,
            Ending::NothingSelected,
            Ending::Failed,
        ];
        assert!(all.is_sorted());
        assert_eq!(all.map(Ending::code), [0, 3, 4, 1]);
    }

    #[test]
    fn what_is_named_twice_is_done_once() {
        let mut widths = vec![8, 4, 8, 4, 16];
        once(&mut widths);
        assert_eq!(widths, [8, 4, 16]);
    }

    #[test]
    fn usage_and_empty_selection() {
        assert_eq!(run(["runner", "test", "--backend", "abacus"]), 2);
        assert_eq!(run(["runner", "frobnicate"]), 2);
        assert_eq!(run(["runner", "--help"]), 0);
        assert_eq!(run(["runner", "check", "--subgroup-width", "12"]), 2);
        assert_eq!(run(["runner", "check", "--max-steps", "0"]), 2);
        assert_eq!(run(["runner", "test", "--jobs", "0"]), 2);
        // No kernels are linked here.
        assert_eq!(run(["runner", "check"]), 4);
        assert_eq!(
            run(["runner", "test", "--backend", "host", "--filter", "axpy"]),
            4
        );
    }
}
