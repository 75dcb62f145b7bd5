//! What a run found, for people and as JSON.

use std::time::Duration;

use iron_runtime::Backend;
use serde::{Deserialize, Deserializer, Serialize};

use crate::command::Ending;

/// One failure of a test.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Failure {
    /// Case, or empty for a failure of the whole test.
    pub case: String,
    /// Layout of the tensors, or empty.
    pub variant: String,
    /// Seed of the case's inputs, in hexadecimal.
    pub seed: String,
    /// What is wrong, with values.
    pub message: String,
}

/// Something that was not run, and why.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct NotRun {
    pub case: String,
    pub reason: String,
}

/// Errors of one output over all variants of one case.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct CaseErrors {
    pub case: String,
    pub variant: String,
    pub output: String,
    pub compared: usize,
    #[serde(deserialize_with = "number")]
    pub max_absolute: f64,
    #[serde(deserialize_with = "number")]
    pub max_relative: f64,
    #[serde(deserialize_with = "number")]
    pub max_ulps: f64,
    #[serde(deserialize_with = "number")]
    pub cosine: f64,
    #[serde(deserialize_with = "number")]
    pub norm_drift: f64,
    pub nans: usize,
    pub infinities: usize,
}

/// A number that JSON writes as `null` where it is not finite.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// One test over one instance on one backend.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Outcome {
    pub test: String,
    pub kernel: String,
    pub instance: String,
    pub backend: String,
    /// Cases that ran and passed.
    pub passed: usize,
    /// Launches made.
    pub launches: usize,
    pub failures: Vec<Failure>,
    pub skipped: Vec<NotRun>,
    pub unsupported: Vec<NotRun>,
    pub errors: Vec<CaseErrors>,
    pub milliseconds: f64,
}

impl Outcome {
    pub fn new(test: &str, kernel: &str, instance: &str, backend: Backend) -> Outcome {
        Outcome {
            test: test.to_owned(),
            kernel: kernel.to_owned(),
            instance: instance.to_owned(),
            backend: backend.name().to_owned(),
            passed: 0,
            launches: 0,
            failures: Vec::new(),
            skipped: Vec::new(),
            unsupported: Vec::new(),
            errors: Vec::new(),
            milliseconds: 0.0,
        }
    }

    /// Adds a failure.
    pub fn fail(&mut self, case: &str, variant: &str, seed: u64, message: String) {
        self.failures.push(Failure {
            case: case.to_owned(),
            variant: variant.to_owned(),
            seed: format!("{seed:#018x}"),
            message,
        });
    }

    /// Cases that failed.
    pub fn failed(&self) -> usize {
        let mut cases: Vec<&str> = self.failures.iter().map(|f| f.case.as_str()).collect();
        cases.sort_unstable();
        cases.dedup();
        cases.len()
    }

    /// One line, and the failures below it.
    pub fn print(&self, seed: u64) {
        let word = match (&self.failures[..], self.passed, &self.unsupported[..]) {
            ([_, ..], ..) => "FAIL",
            ([], 0, [_, ..]) => "unsupported",
            ([], 0, []) => "skipped",
            ([], ..) => "ok",
        };
        let mut line = format!("{word:<11} {:<9} {}", self.backend, self.test);
        line += &format!(
            "  {} cases, {} launches",
            self.passed + self.failed(),
            self.launches
        );
        let worst = self.errors.iter().map(|e| e.max_ulps).fold(0.0, f64::max);
        if worst > 0.0 {
            line += &format!(", at most {worst:.3} ULP");
        }
        println!("{line}, {:.0} ms", self.milliseconds);
        const SHOWN: usize = 6;
        for failure in self.failures.iter().take(SHOWN) {
            let at = match (failure.case.as_str(), failure.variant.as_str()) {
                ("", _) => String::new(),
                (case, "") => format!("case {case}, seed {}: ", failure.seed),
                (case, variant) => format!("case {case}, {variant}, seed {}: ", failure.seed),
            };
            println!("    {at}{}", failure.message);
        }
        if self.failures.len() > SHOWN {
            println!("    and {} more failures", self.failures.len() - SHOWN);
        }
        if let Some(first) = self.failures.first() {
            let filter = if first.case.is_empty() {
                self.test.clone()
            } else {
                format!("{}/{}", self.test, first.case)
            };
            println!(
                "    again: test --backend {} --seed {seed} --filter '{filter}'",
                self.backend
            );
        }
        for skipped in &self.skipped {
            println!("    skipped case {}: {}", skipped.case, skipped.reason);
        }
    }
}

/// A backend of the run.
#[derive(Serialize, Clone, Debug)]
pub(crate) struct BackendLine {
    pub backend: &'static str,
    /// `native`, `reference`, `host`, `emulated`; absent where the backend is missing.
    pub label: Option<&'static str>,
    pub device: Option<String>,
    pub driver: Option<String>,
    /// Why it is missing.
    pub missing: Option<String>,
}

/// A whole run.
#[derive(Serialize, Clone, Debug)]
pub(crate) struct Run {
    pub registry: String,
    pub seed: u64,
    pub backends: Vec<BackendLine>,
    pub outcomes: Vec<Outcome>,
    pub summary: Summary,
}

/// Counts over a run; of cases, but for `missing_backends`.
#[derive(Serialize, Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    pub unsupported: usize,
    pub missing_backends: usize,
}

impl Summary {
    pub fn of(outcomes: &[Outcome], backends: &[BackendLine]) -> Summary {
        let sum = |f: &dyn Fn(&Outcome) -> usize| outcomes.iter().map(f).sum();
        Summary {
            passed: sum(&|o| o.passed),
            failed: sum(&|o| o.failed()),
            skipped: sum(&|o| o.skipped.len()),
            unsupported: sum(&|o| o.unsupported.len()),
            missing_backends: backends.iter().filter(|b| b.missing.is_some()).count(),
        }
    }

    /// How the run ended; `nothing` where no test was selected.
    pub fn ending(&self, nothing: bool) -> Ending {
        let failed = if self.failed > 0 {
            Ending::Failed
        } else {
            Ending::Passed
        };
        let empty = if nothing {
            Ending::NothingSelected
        } else {
            Ending::Passed
        };
        let missing = if self.missing_backends > 0 {
            Ending::BackendMissing
        } else {
            Ending::Passed
        };
        failed.max(empty).max(missing)
    }
}

impl Run {
    /// The closing lines.
    pub fn print_summary(&self, elapsed: Duration) {
        let mut reasons: Vec<(&str, &str, &str)> = Vec::new();
        for outcome in &self.outcomes {
            for not_run in &outcome.unsupported {
                reasons.push((&outcome.backend, &outcome.kernel, &not_run.reason));
            }
        }
        reasons.sort_unstable();
        reasons.dedup();
        for (backend, kernel, reason) in reasons {
            println!("unsupported on {backend}: {kernel}: {reason}");
        }
        for backend in &self.backends {
            if let Some(reason) = &backend.missing {
                println!("missing backend {}: {reason}", backend.backend);
            }
        }
        let s = &self.summary;
        println!(
            "{} passed, {} failed, {} skipped, {} unsupported cases; {} missing backends; \
             registry {}, seed {}, {:.1} s",
            s.passed,
            s.failed,
            s.skipped,
            s.unsupported,
            s.missing_backends,
            self.registry,
            self.seed,
            elapsed.as_secs_f64()
        );
    }
}

/// Prints a JSON document.
pub(crate) fn print_json(value: &impl Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("the report is no JSON: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_over_several_backends() {
        let summary = |failed, missing_backends| Summary {
            failed,
            missing_backends,
            ..Summary::default()
        };
        assert_eq!(summary(0, 0).ending(false), Ending::Passed);
        assert_eq!(summary(0, 1).ending(false), Ending::BackendMissing);
        assert_eq!(summary(0, 1).ending(true), Ending::NothingSelected);
        assert_eq!(summary(2, 1).ending(false), Ending::Failed);
    }
}
