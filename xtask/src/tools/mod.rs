//! Sets up the compilers that check generated kernels, under `target/tools` where that needs no
//! root, else through the system's package manager. Each step is quick when its tool is present,
//! and a tool that cannot be had is skipped by name with the reason.

mod amd;
mod cuda;
mod python;
mod spirv;
mod system;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::process::ProcessError;
use crate::workspace::Workspace;

pub use amd::AmdFiles;
pub use cuda::CudaFiles;
pub use python::Python;
pub use spirv::validator;
pub use system::clang;

/// One tool that set-up can provide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// clang and lld: HIP, the MSL address-space check, the emulated executions.
    Clang,
    /// `spirv-val`.
    SpirvTools,
    /// Mesa's software Vulkan driver and the Vulkan loader.
    Vulkan,
    /// NVRTC.
    Cuda,
    /// AMD's device bitcode and HIP's headers.
    Amd,
}

impl Tool {
    /// All tools in the order they are set up.
    pub const ALL: [Self; 5] = [
        Self::Clang,
        Self::SpirvTools,
        Self::Vulkan,
        Self::Cuda,
        Self::Amd,
    ];

    /// What the tool is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clang => "clang 19 + lld",
            Self::SpirvTools => "spirv-val",
            Self::Vulkan => "Mesa Vulkan driver",
            Self::Cuda => "NVRTC 13.0",
            Self::Amd => "HIP headers + device bitcode",
        }
    }
}

/// How a step of set-up ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The tool was there; says where.
    Present(String),
    /// The tool was installed; says where.
    Installed(String),
    /// The tool is absent; says why and what to do.
    Skipped(String),
}

/// One line of the set-up report.
#[derive(Clone, Debug)]
pub struct Step {
    /// Which tool.
    pub tool: Tool,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took.
    pub elapsed: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, detail) = match &self.outcome {
            Outcome::Present(detail) => ("present  ", detail),
            Outcome::Installed(detail) => ("installed", detail),
            Outcome::Skipped(detail) => ("SKIPPED  ", detail),
        };
        write!(f, "  {word}  {:<28} {detail}", self.tool.name())?;
        if self.elapsed > Duration::from_millis(500) {
            write!(f, " ({:.1} s)", self.elapsed.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Why a tool could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Something that the step itself needs is missing.
    #[error("{0}")]
    Unavailable(String),
    /// A program that the step runs failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file could not be read, written or moved.
    #[error("{what} {path}: {source}")]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A download is not the file that was expected.
    #[error(
        "{path} is not the expected file: {what} is {found}, expected {expected}; delete it and try again"
    )]
    WrongContent {
        /// Which file.
        path: PathBuf,
        /// Which property differs.
        what: &'static str,
        /// What the file has.
        found: String,
        /// What it should have.
        expected: String,
    },
}

/// Sets up `wanted`, printing each step as it ends, and returns the report.
///
/// A second process that sets up at the same time waits for the first.
pub fn set_up(workspace: &Workspace, wanted: &[Tool]) -> Result<Vec<Step>, ToolError> {
    let tools = workspace.tools();
    create_folder(&tools)?;
    let lock_path = tools.join(".lock");
    let lock = std::fs::File::create(&lock_path)
        .map_err(|source| file_error("create", &lock_path, source))?;
    lock.lock()
        .map_err(|source| file_error("lock", &lock_path, source))?;

    let mut steps = Vec::new();
    for &tool in wanted {
        let started = Instant::now();
        let result = match tool {
            Tool::Clang | Tool::Vulkan => system::set_up(tool),
            Tool::SpirvTools => spirv::set_up(workspace),
            Tool::Cuda => cuda::set_up(workspace),
            Tool::Amd => amd::set_up(workspace),
        };
        let outcome = result.unwrap_or_else(|error| Outcome::Skipped(error.to_string()));
        let step = Step {
            tool,
            outcome,
            elapsed: started.elapsed(),
        };
        eprintln!("{step}");
        steps.push(step);
    }
    Ok(steps)
}

/// Installs into a fresh folder and moves it to `folder` in one rename, with `recipe`'s hash as its
/// stamp, so that a half-finished installation is never taken for a whole one.
fn install_stamped(
    folder: &Path,
    recipe: &str,
    install: impl FnOnce(&Path) -> Result<(), ToolError>,
) -> Result<(), ToolError> {
    let partial = folder.with_extension("partial");
    remove_folder(&partial)?;
    create_folder(&partial)?;
    install(&partial)?;
    let stamp = partial.join(STAMP);
    std::fs::write(&stamp, hash_hex(recipe.as_bytes()))
        .map_err(|source| file_error("write", &stamp, source))?;
    remove_folder(folder)?;
    std::fs::rename(&partial, folder)
        .map_err(|source| file_error("move into place", folder, source))
}

/// Installs Python packages, each named with its hashes, into a fresh folder.
fn install_wheels(folder: &Path, requirements: &str) -> Result<(), ToolError> {
    let python = Python::with_pip()?;
    install_stamped(folder, requirements, |partial| {
        let list = partial.join("requirements.txt");
        std::fs::write(&list, requirements).map_err(|source| file_error("write", &list, source))?;
        let list = list.to_string_lossy();
        python.install(partial, &["--require-hashes", "--requirement", &list])
    })
}

/// Whether `folder` was installed by this very recipe.
fn is_stamped(folder: &Path, recipe: &str) -> bool {
    std::fs::read_to_string(folder.join(STAMP))
        .is_ok_and(|stamp| stamp == hash_hex(recipe.as_bytes()))
}

const STAMP: &str = ".stamp";

/// SHA-256 in lower-case hexadecimal.
pub fn hash_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

pub(crate) fn create_folder(folder: &Path) -> Result<(), ToolError> {
    std::fs::create_dir_all(folder).map_err(|source| file_error("create", folder, source))
}

pub(crate) fn remove_folder(folder: &Path) -> Result<(), ToolError> {
    match std::fs::remove_dir_all(folder) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(file_error("remove", folder, source))
        }
        _ => Ok(()),
    }
}

pub(crate) fn file_error(what: &'static str, path: &Path, source: std::io::Error) -> ToolError {
    ToolError::File {
        what,
        path: path.to_path_buf(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_installation_leaves_nothing_that_counts_as_installed() {
        let scratch = tempfile::tempdir().expect("temporary folder");
        let folder = scratch.path().join("tool");
        let failed = install_stamped(&folder, "v1", |_| {
            Err(ToolError::Unavailable("no network".into()))
        });
        assert!(failed.is_err() && !folder.exists());
        install_stamped(&folder, "v1", |partial| {
            std::fs::write(partial.join("file"), "1")
                .map_err(|source| file_error("write", partial, source))
        })
        .expect("installs");
        assert!(is_stamped(&folder, "v1"), "installed by this recipe");
        assert!(
            !is_stamped(&folder, "v2"),
            "a changed recipe installs again"
        );
    }
}
