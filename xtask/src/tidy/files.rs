//! The files that the rules look at: what git tracks and what it would, with their text.

use std::io::ErrorKind;

use crate::process::ProcessError;
use crate::workspace::Workspace;

/// A file of the workspace.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Relative to the workspace, with `/`.
    pub path: String,
    /// Its content; nothing of a binary file.
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

/// Reads every file that git tracks or would add.
pub fn read_all(workspace: &Workspace) -> Result<Vec<SourceFile>, ProcessError> {
    let files = workspace.listed_files()?.into_iter().filter_map(|path| {
        let text = match std::fs::read_to_string(workspace.root.join(&path)) {
            Ok(text) => text,
            // A binary file: there to be linked to.
            Err(error) if error.kind() == ErrorKind::InvalidData => String::new(),
            // Deleted since git looked.
            Err(_) => return None,
        };
        Some(SourceFile { path, text })
    });
    Ok(files.collect())
}
