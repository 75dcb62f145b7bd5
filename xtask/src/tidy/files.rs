//! The files that the rules look at: what git tracks and what it would, with their text.

use std::process::Command;

use crate::process::{ProcessError, run_successfully};
use crate::workspace::Workspace;

/// A text file of the workspace.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Relative to the workspace, with `/`.
    pub path: String,
    /// Its content.
    pub text: String,
}

impl SourceFile {
    /// Whether its name ends in `.rs`.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether it is below this folder.
    pub fn is_below(&self, folder: &str) -> bool {
        self.path
            .strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
    }

    /// Whether people write it, rather than a program.
    pub fn is_written_by_hand(&self) -> bool {
        let generated = [".snap", ".lock", ".json", ".csv", ".stderr"];
        !generated.iter().any(|ending| self.path.ends_with(ending))
            && !self.path.contains("/goldens/")
            && !self.path.contains("/data/")
    }
}

/// Reads every text file that git tracks or would add.
pub fn read_all(workspace: &Workspace) -> Result<Vec<SourceFile>, ProcessError> {
    let listed = run_successfully(
        Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(&workspace.root),
    )?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut files: Vec<SourceFile> = listed
        .split('\0')
        .filter(|path| !path.is_empty())
        .filter_map(|path| {
            // Binary files and files deleted since git looked have no text to check.
            let text = std::fs::read_to_string(workspace.root.join(path)).ok()?;
            Some(SourceFile {
                path: path.to_owned(),
                text,
            })
        })
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
}
