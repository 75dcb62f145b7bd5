//! The file of a report, opened before the work that it will tell of.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::CommandError;

/// A file that can be written. What it holds stays until the report is there; one that did not
/// exist and got no report goes away again.
#[derive(Debug)]
pub(super) struct ReportFile {
    path: PathBuf,
    file: File,
    is_empty_and_new: bool,
}

impl ReportFile {
    /// Opens the file, where one is asked for.
    pub(super) fn open(path: Option<&Path>) -> Result<Option<Self>, CommandError> {
        let Some(path) = path else {
            return Ok(None);
        };
        let is_new = !path.exists();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = in_file(path, options.open(path))?;
        Ok(Some(Self {
            path: path.to_owned(),
            file,
            is_empty_and_new: is_new,
        }))
    }

    /// Writes the report in the place of what the file held.
    pub(super) fn write(mut self, text: &str) -> Result<(), CommandError> {
        self.is_empty_and_new = false;
        // A pipe or a terminal has no length.
        if in_file(&self.path, self.file.metadata())?.is_file() {
            in_file(&self.path, self.file.set_len(0))?;
        }
        in_file(&self.path, self.file.write_all(text.as_bytes()))
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if self.is_empty_and_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn in_file<T>(path: &Path, result: std::io::Result<T>) -> Result<T, CommandError> {
    result.map_err(|error| CommandError::File {
        path: path.to_owned(),
        problem: format!("cannot be written: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_what_was_there_and_a_failure_leaves_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report.md");
        let open = || {
            let file = ReportFile::open(Some(&path)).expect("opens");
            file.expect("asked for")
        };
        drop(open());
        assert!(!path.exists());
        open().write("a long first report").expect("written");
        drop(open());
        assert_eq!(
            std::fs::read_to_string(&path).expect("read"),
            "a long first report"
        );
        open().write("short").expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "short");
        let nowhere = folder.path().join("none/report.md");
        let error = ReportFile::open(Some(&nowhere)).expect_err("there is no such folder");
        assert!(error.to_string().contains("none/report.md"), "{error}");
    }
}
