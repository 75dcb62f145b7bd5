//! The tests that a mutant meets, the cheapest first, until one fails.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{MutantError, VARIABLE};

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

/// A suite with its program and the time that it may take.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// As in [`SUITES`].
    pub name: String,
    program: PathBuf,
    folder: PathBuf,
    /// Seconds, without a mutant.
    pub seconds: f64,
}

/// The suites whose programs were built, each run once without a mutant: it must pass, and a mutant
/// may take ten times as long and half a minute more.
pub fn prepare(
    root: &Path,
    programs: &BTreeMap<String, PathBuf>,
    long: bool,
) -> Result<Vec<Ready>, MutantError> {
    let mut ready = Vec::new();
    for suite in SUITES.iter().filter(|suite| long || !suite.long) {
        let Some(program) = programs.get(suite.program) else {
            return Err(MutantError::Suite(suite.program.into(), "is not built"));
        };
        let package = suite.program.split(' ').next().unwrap_or_default();
        let folder = match package {
            "iron-tests" => "tests",
            package => package,
        };
        let mut one = Ready {
            name: suite.program.into(),
            program: program.clone(),
            folder: root.join(folder),
            seconds: 600.0,
        };
        let started = Instant::now();
        if one.run(None)? != Verdict::Passed {
            return Err(MutantError::Suite(
                suite.program.into(),
                "fails without a mutant",
            ));
        }
        one.seconds = started.elapsed().as_secs_f64();
        println!("{:<32} {:>6.1} s", one.name, one.seconds);
        ready.push(one);
    }
    Ok(ready)
}

/// How a suite ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every test passed.
    Passed,
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

    /// Runs the suite with a mutant awake.
    pub fn run(&self, mutant: Option<u32>) -> Result<Verdict, MutantError> {
        let suite = SUITES.iter().find(|s| s.program == self.name);
        let mut command = Command::new(&self.program);
        command
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
        if let Some(number) = mutant {
            command.env(VARIABLE, number.to_string());
        }
        let failed = |source| MutantError::File {
            path: self.program.clone(),
            source,
        };
        let mut child = command.spawn().map_err(failed)?;
        let limit = Duration::from_secs_f64(self.seconds * 10.0 + 30.0);
        wait(&mut child, limit).map_err(failed)
    }
}

fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Verdict> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() {
                Verdict::Passed
            } else {
                Verdict::Failed
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
