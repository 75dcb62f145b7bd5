//! Tools that come as system packages. They are installed where this user may do that (root, with
//! apt), and skipped by name elsewhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Outcome, Tool, ToolError};
use crate::process::{find_program, run_successfully};

pub(super) fn set_up(tool: Tool) -> Result<Outcome, ToolError> {
    if let Some(place) = find(tool) {
        return Ok(Outcome::Present(place));
    }
    install_packages(packages(tool))?;
    find(tool).map(Outcome::Installed).ok_or_else(|| {
        ToolError::Unavailable(format!(
            "{} is still missing after installing {}",
            tool.name(),
            packages(tool).join(" ")
        ))
    })
}

/// Installs packages with apt, when this is root on a machine that has it.
pub(super) fn install_packages(packages: &[&str]) -> Result<(), ToolError> {
    let wanted = packages.join(" ");
    if find_program("apt-get").is_none() {
        return Err(ToolError::Unavailable(format!(
            "not found, and this system has no apt-get; install what Debian calls {wanted}"
        )));
    }
    if !is_root() {
        return Err(ToolError::Unavailable(format!(
            "not found, and this is not root; run `apt-get install {wanted}`"
        )));
    }
    run_successfully(Command::new("apt-get").args(["update", "-qq"]))?;
    run_successfully(
        Command::new("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )?;
    Ok(())
}

/// The clang++ that the checks use: 19 is what they were written against, newer ones are accepted.
pub fn clang() -> Option<PathBuf> {
    ["clang++-19", "clang++-20", "clang++-21", "clang++-22"]
        .into_iter()
        .find_map(find_program)
}

fn find(tool: Tool) -> Option<String> {
    match tool {
        Tool::Clang => {
            let clang = clang()?;
            linker_beside(&clang)?;
            Some(clang.display().to_string())
        }
        Tool::SpirvTools => Some(find_program("spirv-val")?.display().to_string()),
        Tool::Vulkan => {
            vulkan_loader()?;
            Some(vulkan_driver()?.display().to_string())
        }
        Tool::Cuda | Tool::Amd => None,
    }
}

fn packages(tool: Tool) -> &'static [&'static str] {
    match tool {
        Tool::Clang => &["clang-19", "lld-19"],
        Tool::SpirvTools => &["spirv-tools"],
        Tool::Vulkan => &["mesa-vulkan-drivers", "libvulkan1"],
        Tool::Cuda | Tool::Amd => &[],
    }
}

/// The `lld` of the same LLVM, which links AMD code objects.
fn linker_beside(clang: &Path) -> Option<PathBuf> {
    let lld = clang.canonicalize().ok()?.parent()?.join("lld");
    lld.is_file().then_some(lld)
}

fn vulkan_driver() -> Option<PathBuf> {
    if let Some(named) =
        std::env::var_os("VK_DRIVER_FILES").or_else(|| std::env::var_os("VK_ICD_FILENAMES"))
    {
        return std::env::split_paths(&named).find(|path| path.is_file());
    }
    [
        "/usr/share/vulkan/icd.d",
        "/etc/vulkan/icd.d",
        "/usr/local/share/vulkan/icd.d",
    ]
    .iter()
    .filter_map(|folder| std::fs::read_dir(folder).ok())
    .flatten()
    .filter_map(|entry| Some(entry.ok()?.path()))
    .find(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("lvp_icd"))
    })
}

fn vulkan_loader() -> Option<()> {
    let output = run_successfully(Command::new("ldconfig").arg("-p"))
        .or_else(|_| run_successfully(Command::new("/sbin/ldconfig").arg("-p")))
        .ok()?;
    String::from_utf8_lossy(&output.stdout)
        .contains("libvulkan.so.1")
        .then_some(())
}

fn is_root() -> bool {
    run_successfully(Command::new("id").arg("-u"))
        .is_ok_and(|finished| String::from_utf8_lossy(&finished.stdout).trim() == "0")
}
