//! Where things lie: the workspace root and the folders below its target directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{ProcessError, run_successfully};

/// The folders that the commands read and write.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// The folder of the workspace's `Cargo.toml`.
    pub root: PathBuf,
    /// Cargo's target directory.
    pub target: PathBuf,
}

impl Workspace {
    /// Finds the workspace from the variables that cargo sets, else from where this crate was built.
    pub fn locate() -> Self {
        let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest_dir
            .parent()
            .map_or_else(|| manifest_dir.clone(), Path::to_path_buf);
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root.join("target"), |target| root.join(target));
        Self { root, target }
    }

    /// Compilers and their headers, set up by [`crate::tools`].
    pub fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// Default output of `build-kernels`.
    pub fn kernels(&self) -> PathBuf {
        self.target.join("kernels")
    }

    /// Compile results by content hash.
    pub fn kernel_cache(&self) -> PathBuf {
        self.target.join("kernels").join("cache")
    }

    /// Downloaded model files.
    pub fn models(&self) -> PathBuf {
        self.target.join("models")
    }

    /// The files that git tracks or would add, relative to the root, in order.
    pub fn listed_files(&self) -> Result<BTreeSet<String>, ProcessError> {
        let listed = run_successfully(
            Command::new("git")
                .args([
                    "ls-files",
                    "-z",
                    "--cached",
                    "--others",
                    "--exclude-standard",
                ])
                .current_dir(&self.root),
        )?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names = listed.split('\0').filter(|name| !name.is_empty());
        Ok(names.map(str::to_owned).collect())
    }

    /// A path as the user would write it: relative to the root where it lies below.
    pub fn display(&self, path: &Path) -> String {
        path.strip_prefix(&self.root)
            .unwrap_or(path)
            .display()
            .to_string()
    }
}
