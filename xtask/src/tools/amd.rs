//! HIP's headers and AMD's device bitcode, unpacked from Debian packages without root.
//!
//! They come from Debian 13 whatever the machine runs: its bitcode is the first in Debian that
//! knows gfx942 and gfx1100. apt checks the packages against the archive's signing key.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Outcome, ToolError, create_folder, file_error, install_stamped, is_stamped};
use crate::process::{find_program, run_successfully};
use crate::workspace::Workspace;

const SUITE: &str = "trixie";
const PACKAGES: [&str; 2] = ["rocm-device-libs-17", "libamdhip64-dev"];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The files that compiling HIP text needs.
#[derive(Clone, Debug)]
pub struct AmdFiles {
    /// Folder of `ockl.bc` and its like.
    pub bitcode: PathBuf,
    /// Folder of `hip/hip_runtime.h`.
    pub include: PathBuf,
}

impl AmdFiles {
    /// The unpacked files, else those of an installed ROCm.
    pub fn find(workspace: &Workspace) -> Option<Self> {
        let unpacked = folder(workspace).join("usr");
        let rocm =
            std::env::var_os("ROCM_PATH").map_or_else(|| PathBuf::from("/opt/rocm"), PathBuf::from);
        [
            Self {
                bitcode: unpacked.join("lib/llvm-17/lib/clang/17/amdgcn/bitcode"),
                include: unpacked.join("include"),
            },
            Self {
                bitcode: rocm.join("amdgcn/bitcode"),
                include: rocm.join("include"),
            },
        ]
        .into_iter()
        .find(|files| {
            files.bitcode.join("ockl.bc").is_file()
                && files.include.join("hip/hip_runtime.h").is_file()
        })
    }
}

pub(super) fn set_up(workspace: &Workspace) -> Result<Outcome, ToolError> {
    let folder = folder(workspace);
    let recipe = format!("{SUITE} {}", PACKAGES.join(" "));
    let found = AmdFiles::find(workspace);
    if let Some(files) = &found
        && (is_stamped(&folder, &recipe) || !files.include.starts_with(&folder))
    {
        return Ok(Outcome::Present(workspace.display(&files.bitcode)));
    }
    for program in ["apt-get", "dpkg-deb"] {
        if find_program(program).is_none() {
            return Err(ToolError::Unavailable(format!(
                "no ROCm installation and no {program} to unpack Debian's packages; set ROCM_PATH to a ROCm that has amdgcn/bitcode"
            )));
        }
    }
    let archive = debian_archive()?;
    install_stamped(&folder, &recipe, |partial| unpack(partial, &archive))?;
    let files = AmdFiles::find(workspace).ok_or_else(|| {
        ToolError::Unavailable(format!(
            "Debian's packages hold no ockl.bc and hip_runtime.h where they were expected below {}",
            workspace.display(&folder)
        ))
    })?;
    Ok(Outcome::Installed(workspace.display(&files.bitcode)))
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("amd")
}

/// Downloads and unpacks with apt's state kept inside `folder`, so that the system's is untouched.
fn unpack(folder: &Path, archive: &str) -> Result<(), ToolError> {
    let apt = folder.join("apt");
    for part in ["state/lists/partial", "cache/archives/partial", "deb"] {
        create_folder(&apt.join(part))?;
    }
    let list = apt.join("sources.list");
    std::fs::write(
        &list,
        format!("deb [signed-by={KEYRING}] {archive} {SUITE} main\n"),
    )
    .map_err(|source| file_error("write", &list, source))?;
    let apt_get = || {
        let mut command = Command::new("apt-get");
        for (key, value) in [
            ("Dir::Etc::sourcelist", list.as_path()),
            ("Dir::Etc::sourceparts", Path::new("/dev/null")),
            ("Dir::State", &apt.join("state")),
            ("Dir::State::status", Path::new("/dev/null")),
            ("Dir::Cache", &apt.join("cache")),
        ] {
            command.arg("-o").arg(format!("{key}={}", value.display()));
        }
        // The download runs as this user: apt's own unprivileged user cannot write here.
        command.args([
            "-o",
            "Debug::NoLocking=1",
            "-o",
            "APT::Sandbox::User=",
            "-qq",
        ]);
        // Only the package list is needed, not descriptions, translations or icons.
        command.args([
            "-o",
            "Acquire::Languages=none",
            "-o",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
        ]);
        command
    };
    run_successfully(apt_get().arg("update"))?;
    run_successfully(
        apt_get()
            .arg("download")
            .args(PACKAGES)
            .current_dir(apt.join("deb")),
    )?;
    let debs =
        std::fs::read_dir(apt.join("deb")).map_err(|source| file_error("list", &apt, source))?;
    for deb in debs.filter_map(|entry| Some(entry.ok()?.path())) {
        run_successfully(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(folder))?;
    }
    super::remove_folder(&apt)
}

/// The archive that this Debian installs from.
fn debian_archive() -> Result<String, ToolError> {
    if !Path::new(KEYRING).is_file() {
        return Err(ToolError::Unavailable(format!(
            "no ROCm installation, and {KEYRING} is missing, so Debian's packages cannot be verified; install debian-archive-keyring or set ROCM_PATH"
        )));
    }
    let new_form =
        std::fs::read_to_string("/etc/apt/sources.list.d/debian.sources").unwrap_or_default();
    let old_form = std::fs::read_to_string("/etc/apt/sources.list").unwrap_or_default();
    archive_in(&new_form, &old_form).ok_or_else(|| {
        ToolError::Unavailable(
            "no ROCm installation, and apt's sources name no Debian archive; set ROCM_PATH".into(),
        )
    })
}

fn archive_in(new_form: &str, old_form: &str) -> Option<String> {
    let from_new = new_form
        .lines()
        .filter_map(|line| line.strip_prefix("URIs:")?.split_whitespace().next());
    let from_old = old_form.lines().filter_map(|line| {
        line.strip_prefix("deb ")?
            .split_whitespace()
            .find(|word| word.contains("://"))
    });
    from_new
        .chain(from_old)
        .find(|uri| uri.trim_end_matches('/').ends_with("/debian"))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_read_from_both_forms_of_apt_sources() {
        let new_form = "Types: deb\nURIs: http://mirror.invalid/debian-security\n\nURIs: http://mirror.invalid/debian\n";
        assert_eq!(
            archive_in(new_form, "").as_deref(),
            Some("http://mirror.invalid/debian")
        );
        let old_form = "# deb http://off.invalid/debian x main\ndeb [arch=amd64] https://mirror.invalid/debian/ bookworm main\n";
        assert_eq!(
            archive_in("", old_form).as_deref(),
            Some("https://mirror.invalid/debian/")
        );
        assert_eq!(
            archive_in("", "deb http://mirror.invalid/ubuntu noble main\n"),
            None
        );
    }
}
