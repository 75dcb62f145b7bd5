//! NVRTC from NVIDIA's Python wheel: no driver, no GPU, no root.

use std::path::{Path, PathBuf};

use super::{Outcome, ToolError, install_wheels, is_stamped};
use crate::workspace::Workspace;

const REQUIREMENTS: &str = include_str!("cuda_wheels.txt");

/// The files that compiling CUDA text needs.
#[derive(Clone, Debug)]
pub struct CudaFiles {
    /// `libnvrtc`.
    pub nvrtc: PathBuf,
    /// The library that NVRTC opens by its bare name.
    pub builtins: PathBuf,
}

impl CudaFiles {
    /// The installed files, or none when set-up has not installed them.
    pub fn find(workspace: &Workspace) -> Option<Self> {
        let libraries = folder(workspace).join("nvidia").join("cu13").join("lib");
        Some(Self {
            nvrtc: library(&libraries, "libnvrtc.so.")?,
            builtins: library(&libraries, "libnvrtc-builtins.so.")?,
        })
    }
}

pub(super) fn set_up(workspace: &Workspace) -> Result<Outcome, ToolError> {
    let folder = folder(workspace);
    if is_stamped(&folder, REQUIREMENTS)
        && let Some(files) = CudaFiles::find(workspace)
    {
        return Ok(Outcome::Present(workspace.display(&files.nvrtc)));
    }
    if !cfg!(target_os = "linux") {
        return Err(ToolError::Unavailable(
            "the pinned NVRTC wheel is for Linux on x86_64 and aarch64".into(),
        ));
    }
    install_wheels(&folder, REQUIREMENTS)?;
    let files = CudaFiles::find(workspace).ok_or_else(|| {
        ToolError::Unavailable(format!(
            "the wheel holds no libnvrtc below {}",
            workspace.display(&folder)
        ))
    })?;
    Ok(Outcome::Installed(workspace.display(&files.nvrtc)))
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("cuda")
}

/// The file in `folder` whose name is `stem` and a version.
fn library(folder: &Path, stem: &str) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(stem))
        })
        .collect();
    found.sort();
    found.pop()
}
