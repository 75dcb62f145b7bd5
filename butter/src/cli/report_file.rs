//! The file of a report, opened before the work that it will tell of.

use std::fs::{File, OpenOptions, canonicalize, rename, set_permissions};
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

    /// Opens the files of `--json` and `--markdown`, which are not the same one.
    pub(super) fn open_both(
        json: &Option<PathBuf>,
        markdown: &Option<PathBuf>,
    ) -> Result<[Option<Self>; 2], CommandError> {
        let files = [
            Self::open(json.as_deref())?,
            Self::open(markdown.as_deref())?,
        ];
        if let [Some(json), Some(markdown)] = &files
            && json.is_file()
            && canonicalize(&json.path).ok() == canonicalize(&markdown.path).ok()
        {
            return Err(CommandError::Option {
                option: "--json, --markdown",
                problem: format!("both name {}", json.path.display()),
            });
        }
        Ok(files)
    }

    /// Writes a report as JSON to its file, if there is one, and as Markdown to its own or else to
    /// standard output. Where one cannot be written the other is all the same.
    pub(super) fn write_both(
        [json_file, markdown_file]: [Option<Self>; 2],
        json: &str,
        markdown: &str,
    ) -> Result<(), CommandError> {
        let shown = match markdown_file {
            Some(file) => file.write(markdown),
            None => std::io::stdout()
                .write_all(markdown.as_bytes())
                .map_err(CommandError::from),
        };
        let kept = json_file.map_or(Ok(()), |file| file.write(json));
        shown.and(kept)
    }

    fn is_file(&self) -> bool {
        self.file
            .metadata()
            .is_ok_and(|metadata| metadata.is_file())
    }

    /// Writes the report in the place of what the file held, which stays if that fails.
    pub(super) fn write(mut self, text: &str) -> Result<(), CommandError> {
        // A pipe, a terminal or a device is not replaced.
        if !self.is_file() {
            return in_file(&self.path, self.file.write_all(text.as_bytes()));
        }
        in_file(&self.path, self.replace(text))?;
        self.is_empty_and_new = false;
        Ok(())
    }

    /// Writes a file beside this one and puts it in its place.
    fn replace(&self, text: &str) -> std::io::Result<()> {
        // Of a link, what it leads to.
        let path = canonicalize(&self.path)?;
        let mut beside = path.clone().into_os_string();
        beside.push(format!(".{}.new", std::process::id()));
        let beside = PathBuf::from(beside);
        let mut written = File::create_new(&beside)?;
        let done = written
            .write_all(text.as_bytes())
            .and_then(|()| set_permissions(&beside, self.file.metadata()?.permissions()))
            .and_then(|()| rename(&beside, &path));
        if done.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        done
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
        let same = [Some(path.clone()), Some(folder.path().join("./report.md"))];
        let error = ReportFile::open_both(&same[0], &same[1]).expect_err("one file");
        assert!(error.to_string().contains("both name"), "{error}");
        let files = [Some(Path::new("/dev/full")), Some(path.as_path())];
        let files = files.map(|file| ReportFile::open(file).expect("opens"));
        ReportFile::write_both(files, "json", "markdown").expect_err("one is full");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "markdown");
        let link = folder.path().join("link.md");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        let file = ReportFile::open(Some(&link)).expect("opens");
        file.expect("asked for")
            .write("by a link")
            .expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "by a link");
        assert_eq!(
            std::fs::read_dir(folder.path()).expect("a folder").count(),
            2
        );
        let file = ReportFile::open(Some(Path::new("/dev/full"))).expect("opens");
        file.expect("asked for").write("x").expect_err("it is full");
        let nowhere = folder.path().join("none/report.md");
        let error = ReportFile::open(Some(&nowhere)).expect_err("there is no such folder");
        assert!(error.to_string().contains("none/report.md"), "{error}");
    }
}
