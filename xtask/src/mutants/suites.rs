//! The tests that a mutant meets, the cheapest first, until one fails.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{MutantError, TRACE, VARIABLE};

/// A test program of a package, and what it runs with.
struct Suite {
    program: &'static str,
    arguments: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
    /// Runs where one asks for it: minutes of a processor for each mutant that survives the others.
    long: bool,
}

const fn suite(program: &'static str) -> Suite {
    Suite {
        program,
        arguments: &[],
        variables: &[("IRON_TEST_BACKENDS", "reference,cpu")],
        long: false,
    }
}

/// From seconds to minutes. What a later one has is a superset of what the quick ones see.
const SUITES: [Suite; 14] = [
    suite("iron-ir lib"),
    suite("iron-passes lib"),
    suite("iron-tests vocabulary"),
    suite("iron-ir language"),
    suite("iron-tests goldens"),
    suite("iron-tests checker"),
    suite("iron-ir frontend"),
    suite("iron-tests contracts"),
    suite("iron-tests cases"),
    suite("iron-lower lib"),
    Suite {
        program: "iron-tests differential",
        arguments: &[],
        variables: &[
            ("IRON_TEST_BACKENDS", "reference,cpu"),
            ("IRON_FUZZ_KERNELS", "48"),
            ("IRON_FUZZ_SEED", "7"),
            ("IRON_FUZZ_AS_IS", "1"),
        ],
        long: false,
    },
    Suite {
        long: true,
        ..suite("iron-runtime lib")
    },
    Suite {
        long: true,
        ..suite("iron-tests semantics")
    },
    Suite {
        long: true,
        ..suite("iron-tests passes_keep_results")
    },
];

/// The packages of the suites.
pub fn packages() -> Vec<&'static str> {
    let mut packages: Vec<&str> = SUITES
        .iter()
        .filter_map(|s| s.program.split_once(' ').map(|(package, _)| package))
        .collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// The test targets of the suites that are no libraries.
pub fn test_targets() -> Vec<&'static str> {
    let targets = SUITES.iter().filter_map(|s| s.program.split_once(' '));
    let targets = targets.map(|(_, target)| target);
    targets.filter(|target| *target != "lib").collect()
}

/// A suite with its program and the time that it may take.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// As in [`SUITES`].
    pub name: String,
    program: PathBuf,
    folder: PathBuf,
    /// Seconds, without a mutant.
    pub seconds: f64,
    /// The tests that meet a mutant; an empty name is a thread of any.
    met: BTreeMap<u32, BTreeSet<String>>,
}

/// Bytes of memory of a test's process, in KiB: a mutant may make something without end.
const MEMORY_KIB: u64 = 12 << 20;

/// The suites whose programs were built.
pub fn ready(
    root: &Path,
    programs: &BTreeMap<String, PathBuf>,
    long: bool,
) -> Result<Vec<Ready>, MutantError> {
    let chosen = SUITES.iter().filter(|suite| long || !suite.long);
    chosen
        .map(|suite| {
            let Some(program) = programs.get(suite.program) else {
                return Err(MutantError::Suite(suite.program.into(), "is not built"));
            };
            let package = suite.program.split(' ').next().unwrap_or_default();
            let folder = match package {
                "iron-tests" => "tests",
                package => package,
            };
            Ok(Ready {
                name: suite.program.into(),
                program: program.clone(),
                folder: root.join(folder),
                seconds: 0.0,
                met: BTreeMap::new(),
            })
        })
        .collect()
}

/// Runs each suite once without a mutant, as many at once as there are processors: each must pass. A mutant may take five times
/// as many seconds of a processor and ten more.
pub fn trace(suites: &mut [Ready]) -> Result<(), MutantError> {
    let next = Mutex::new(suites.iter_mut());
    let work = || -> Result<(), MutantError> {
        loop {
            let suite = next.lock().ok().and_then(|mut left| left.next());
            let Some(suite) = suite else {
                return Ok(());
            };
            suite.seconds = 600.0;
            suite.met.clear();
            let started = Instant::now();
            suite.trace()?;
            suite.seconds = started.elapsed().as_secs_f64();
            println!(
                "{:<32} {:>6.1} s, meets {} mutants",
                suite.name,
                suite.seconds,
                suite.met.len()
            );
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
    })
}

/// How a suite ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every test passed.
    Passed,
    /// No test of the suite runs the place of the mutant.
    NotMet,
    /// A test failed, or the process ended.
    Failed,
    /// It did not end.
    TimedOut,
}

impl Ready {
    /// Whether it runs where one asks for it alone.
    pub fn is_long(&self) -> bool {
        SUITES.iter().any(|s| s.program == self.name && s.long)
    }

    /// Runs the suite without a mutant and notes which test meets which; it must pass.
    fn trace(&mut self) -> Result<(), MutantError> {
        let path = self.program.with_extension("met");
        let failed = |source| MutantError::File {
            path: path.clone(),
            source,
        };
        if path.exists() {
            std::fs::remove_file(&path).map_err(failed)?;
        }
        let mut command = self.command(&[]);
        command.env(TRACE, &path);
        if self.wait(&mut command)? != Verdict::Passed {
            return Err(MutantError::Suite(
                self.name.clone(),
                "fails without a mutant",
            ));
        }
        let listed = Command::new(&self.program)
            .args(["--list", "--format", "terse"])
            .output()
            .map_err(failed)?;
        let listed = String::from_utf8_lossy(&listed.stdout);
        let names: BTreeSet<&str> = listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .collect();
        // A suite that meets none writes nothing.
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for line in text.lines() {
            if let Some((number, thread)) = line.split_once(' ')
                && let Ok(number) = number.parse()
            {
                // A thread that a test starts has another name, or none.
                let test = names.get(thread).map_or(String::new(), |t| (*t).to_owned());
                self.met.entry(number).or_default().insert(test);
            }
        }
        Ok(())
    }

    /// Runs the tests that meet a mutant, with it awake.
    pub fn run(&self, mutant: u32) -> Result<Verdict, MutantError> {
        let Some(tests) = self.met.get(&mutant) else {
            return Ok(Verdict::NotMet);
        };
        let tests: Vec<&str> = match tests.contains("") {
            true => Vec::new(),
            false => tests.iter().map(String::as_str).collect(),
        };
        let mut command = self.command(&tests);
        command.env(VARIABLE, mutant.to_string());
        self.wait(&mut command)
    }

    /// The suite's program with those tests, or all where none is named.
    fn command(&self, tests: &[&str]) -> Command {
        let suite = SUITES.iter().find(|s| s.program == self.name);
        let mut command = Command::new("sh");
        let processor = (self.seconds * 5.0 + 10.0).ceil();
        let limits = format!("ulimit -S -t {processor}; ulimit -v {MEMORY_KIB}; exec \"$@\"");
        command
            .args(["-c", &limits, "sh"])
            .arg(&self.program)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("INSTA_UPDATE", "no")
            .env(
                "INSTA_WORKSPACE_ROOT",
                self.folder.parent().unwrap_or(&self.folder),
            )
            .env("RUST_BACKTRACE", "0")
            .env("TRYBUILD", "none")
            .arg("--quiet")
            .args(suite.map_or(&[][..], |s| s.arguments))
            .envs(suite.map_or(&[][..], |s| s.variables).iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if !tests.is_empty() {
            command.arg("--exact").args(tests);
        }
        command
    }

    fn wait(&self, command: &mut Command) -> Result<Verdict, MutantError> {
        let failed = |source| MutantError::File {
            path: self.program.clone(),
            source,
        };
        let mut child = command.spawn().map_err(failed)?;
        // Where it waits and computes nothing, the limit of the processor does not end it.
        let limit = Duration::from_secs_f64(self.seconds * 20.0 + 120.0);
        wait(&mut child, limit).map_err(failed)
    }
}

/// The signal that ends a process past its seconds of a processor.
const SIGXCPU: i32 = 24;

fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Verdict> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(match status.code() {
                Some(0) => Verdict::Passed,
                _ if status.signal() == Some(SIGXCPU) => Verdict::TimedOut,
                _ => Verdict::Failed,
            });
        }
        if started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(Verdict::TimedOut);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
