//! Running other programs: their output is captured, and a failure says what ran and what it printed.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// What a program left behind.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error, as text.
    pub stderr: String,
}

/// Why a program did not do what it was started for.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program could not be started.
    #[error("`{program}` could not be started: {source}")]
    NotStarted {
        /// The program's name.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The program ended with an error.
    #[error("`{command_line}` ended with {status}:\n{output}")]
    Failed {
        /// The command as one would type it.
        command_line: String,
        /// How it ended.
        status: ExitStatus,
        /// The last lines it printed.
        output: String,
    },
}

/// Runs `command` to its end with `input` on its standard input, whatever its exit status.
pub fn run(command: &mut Command, input: &[u8]) -> Result<Finished, ProcessError> {
    let program = command_name(command.get_program());
    let not_started = |source| ProcessError::NotStarted { program, source };
    let stdin = if input.is_empty() {
        Stdio::null()
    } else {
        Stdio::piped()
    };
    let mut child = match command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    {
        Ok(child) => child,
        Err(source) => return Err(not_started(source)),
    };
    let writer = child.stdin.take().map(|mut pipe| {
        let input = input.to_vec();
        // A program that stops reading early closes the pipe; its exit status tells why.
        std::thread::spawn(move || {
            let _closed_early = pipe.write_all(&input);
        })
    });
    let output = child.wait_with_output();
    if let Some(writer) = writer {
        let _never_panics = writer.join();
    }
    match output {
        Ok(output) => Ok(Finished {
            status: output.status,
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }),
        Err(source) => Err(not_started(source)),
    }
}

/// Runs `command` and takes any exit status but success as an error.
pub fn run_successfully(command: &mut Command) -> Result<Finished, ProcessError> {
    let finished = run(command, &[])?;
    if finished.status.success() {
        return Ok(finished);
    }
    let mut output = String::from_utf8_lossy(&finished.stdout).into_owned();
    output.push_str(&finished.stderr);
    Err(ProcessError::Failed {
        command_line: command_line(command),
        status: finished.status,
        output: last_lines(&output, 12),
    })
}

/// The program on `PATH` with this name.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|candidate| is_executable(candidate))
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

/// The last `count` lines of `text` that are not blank.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn command_line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

fn command_name(program: &OsStr) -> String {
    program.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_reaches_the_program_and_failure_carries_its_words() {
        let finished = run(Command::new("sh").args(["-c", "cat"]), b"through").expect("sh runs");
        assert_eq!(finished.stdout, b"through");
        let error = run_successfully(Command::new("sh").args(["-c", "echo lost >&2; exit 3"]))
            .expect_err("exit 3 is a failure");
        let text = error.to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("lost"),
            "{text}"
        );
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = run(&mut Command::new("no-such-program-here"), &[]).expect_err("absent");
        assert!(
            error
                .to_string()
                .contains("`no-such-program-here` could not be started")
        );
    }
}
