//! Where the driver and NVRTC are looked for.

use std::path::{Path, PathBuf};

/// The driver's names on Linux and Windows.
#[cfg(not(windows))]
pub(super) const DRIVER: &[&str] = &["libcuda.so.1", "libcuda.so"];
/// The driver's names on Linux and Windows.
#[cfg(windows)]
pub(super) const DRIVER: &[&str] = &["nvcuda.dll"];

#[cfg(not(windows))]
const NVRTC: &[&str] = &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
#[cfg(windows)]
const NVRTC: &[&str] = &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"];

/// NVRTC by the loader's path, then in the toolkit's folders, then in the wheel that
/// `cargo xtask setup` installs under `target/tools`.
pub(super) fn nvrtc_candidates() -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::new()];
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(home) = std::env::var_os(variable).filter(|v| !v.is_empty()) {
            folders.extend(["lib64", "lib", "bin"].map(|f| Path::new(&home).join(f)));
        }
    }
    folders.extend(["/usr/local/cuda/lib64", "/opt/cuda/lib64"].map(PathBuf::from));
    folders.extend(wheel_folders());
    folders
        .iter()
        .flat_map(|folder| NVRTC.iter().map(move |name| folder.join(name)))
        .collect()
}

/// `target/tools/cuda/nvidia/cu13/lib` below the current folder or one above it, and beside the
/// program in a `target` folder.
fn wheel_folders() -> Vec<PathBuf> {
    let inside = Path::new("tools")
        .join("cuda")
        .join("nvidia")
        .join("cu13")
        .join("lib");
    let mut folders = Vec::new();
    if let Ok(here) = std::env::current_dir() {
        folders.extend(here.ancestors().map(|f| f.join("target").join(&inside)));
    }
    if let Ok(program) = std::env::current_exe() {
        folders.extend(program.ancestors().skip(1).map(|f| f.join(&inside)));
    }
    folders.retain(|f| f.is_dir());
    folders
}

/// The library that NVRTC opens by its bare name, in NVRTC's folder.
pub(super) fn builtins_beside(nvrtc: &Path) -> Option<PathBuf> {
    let folder = nvrtc.parent().filter(|f| !f.as_os_str().is_empty())?;
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path
                .file_name()
                .and_then(|n| n.to_str())
                .unwrap_or_default();
            name.starts_with("libnvrtc-builtins.so") || name.starts_with("nvrtc-builtins64")
        })
        .collect();
    found.sort();
    found.pop()
}
