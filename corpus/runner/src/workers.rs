//! Tests in several processes. Each is the same program with the same selection; it takes the
//! numbers of tests on its standard input and answers with outcomes. What a launch may break, the
//! memory and the device of its process, is shared with no other.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use iron_ir::testing::{TestEntry, seed_of};
use iron_runtime::Backend;

use crate::command::TestOptions;
use crate::report::Outcome;
use crate::select::{Selected, full_name};

/// Comes before an outcome in a worker's line; other lines are what tests print.
const MARK: &str = "\u{1}outcome ";

/// How often a test that does not end is named.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test, and says on the standard error that it runs still as long as it does not end.
pub(crate) fn watched<T>(name: &str, backend: Backend, run: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            let mut waited = PATIENCE;
            while ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let (backend, seconds) = (backend.name(), waited.as_secs());
                eprintln!("{backend}: {name} runs still, after {seconds} s");
                waited += PATIENCE;
            }
        });
        let result = run();
        drop(end);
        result
    })
}

/// Processes that run tests.
pub(crate) struct Workers<'a> {
    pub program: &'a Path,
    pub jobs: usize,
    pub options: &'a TestOptions,
}

/// Writes a worker's outcome.
pub(crate) fn answer(outcome: &Outcome) {
    match serde_json::to_string(outcome) {
        Ok(json) => println!("{MARK}{json}"),
        Err(error) => eprintln!("the outcome is no JSON: {error}"),
    }
}

impl Workers<'_> {
    /// Runs every test of the selection on a backend and gives the outcomes in its order.
    pub fn run(
        &self,
        backend: Backend,
        selected: &[Selected<TestEntry>],
        note: &mut dyn FnMut(Outcome),
    ) {
        let next = AtomicUsize::new(0);
        let (sender, outcomes) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                let (sender, next) = (sender.clone(), &next);
                scope.spawn(move || {
                    let mut process = None;
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(item) = selected.get(index) else {
                            break;
                        };
                        let outcome = self.run_one(backend, item, index, &mut process);
                        if sender.send((index, outcome)).is_err() {
                            break;
                        }
                    }
                    if let Some(process) = process {
                        process.end();
                    }
                });
            }
            drop(sender);
            let (mut early, mut due) = (BTreeMap::new(), 0);
            for (index, outcome) in outcomes {
                early.insert(index, outcome);
                while let Some(outcome) = early.remove(&due) {
                    note(outcome);
                    due += 1;
                }
            }
        });
    }

    /// One test in the thread's process, which is started where there is none.
    fn run_one(
        &self,
        backend: Backend,
        item: &Selected<TestEntry>,
        index: usize,
        process: &mut Option<Process>,
    ) -> Outcome {
        let failed = |message: String| {
            let kernel = full_name(item.kernel.name, item.instance.name);
            let mut outcome = Outcome::new(&item.name, &kernel, item.instance.name, backend);
            let seed = seed_of(self.options.seed, item.entry.name);
            outcome.fail("", "", seed, message);
            outcome
        };
        let mut running = match process.take().map_or_else(|| self.start(backend), Ok) {
            Ok(running) => running,
            Err(error) => {
                let program = self.program.display();
                return failed(format!("no process could be started: {program}: {error}"));
            }
        };
        match watched(&item.name, backend, || running.ask(index)) {
            Some(outcome) => {
                *process = Some(running);
                outcome
            }
            // Another is started for the next test.
            None => failed(format!(
                "the process that ran the test ended with {}; `--jobs 1` runs it in this process",
                running.end()
            )),
        }
    }

    fn start(&self, backend: Backend) -> std::io::Result<Process> {
        let options = self.options;
        let mut command = Command::new(self.program);
        command
            .args(["test", "--worker", "--backend", backend.name()])
            .args(["--seed", &options.seed.to_string()])
            .args(options.small.then_some("--small"));
        for (name, value) in [
            ("--filter", &options.selection.filter),
            ("--dtype", &options.selection.dtype),
        ] {
            // With `=`, so that no value is taken for an option.
            command.args(value.iter().map(|value| format!("{name}={value}")));
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, answers) =
            pipes.ok_or_else(|| std::io::Error::other("it has no standard input and output"))?;
        Ok(Process {
            child,
            requests,
            answers: BufReader::new(answers),
        })
    }
}

/// A worker.
struct Process {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// The outcome of a test; none where the process ended instead.
    fn ask(&mut self, index: usize) -> Option<Outcome> {
        writeln!(self.requests, "{index}").ok()?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.answers.read_line(&mut line).ok()? == 0 {
                return None;
            }
            // What tests print goes to the standard error: the standard output may be a document.
            match line.split_once(MARK) {
                Some((printed, json)) => {
                    eprint!("{printed}");
                    return serde_json::from_str(json).ok();
                }
                None => eprint!("{line}"),
            }
        }
    }

    /// Lets the process end; how it ended.
    fn end(self) -> String {
        let Process {
            mut child,
            requests,
            answers,
        } = self;
        drop((requests, answers));
        match child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}
