//! SPIR-V modules, checked by Khronos' `spirv-val` and read by naga as a second, independent reader.
//!
//! Only `spirv-val` decides. naga's reader lacks buffer device addresses, 8-bit storage and bf16,
//! so what it says is recorded beside the verdict.

use std::path::PathBuf;
use std::process::Command;

use super::{CompileFailure, Compiled, Compiler, version_line};
use crate::process::run;
use crate::tools::{Tool, validator};
use crate::workspace::Workspace;

const TOOL: &str = "spirv-val";

/// `spirv-val` and naga.
pub struct SpirvCheck {
    validator: PathBuf,
    version: String,
    knows_matrices: bool,
}

impl SpirvCheck {
    /// Finds `spirv-val`.
    pub fn find(workspace: &Workspace) -> Result<Self, CompileFailure> {
        let validator = validator(workspace).ok_or_else(|| CompileFailure::MissingTool {
            tool: TOOL,
            remedy: format!(
                "{} is missing; run `cargo xtask setup`",
                Tool::SpirvTools.name()
            ),
        })?;
        let version = version_line(&validator, TOOL)?;
        // `SPIRV-Tools v2023.1 unknown hash, 2023-…`: the hash and the date say nothing more.
        let version = version
            .split_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" ");
        Ok(Self {
            knows_matrices: release(&version).is_some_and(|found| found >= KNOWS_MATRICES),
            validator,
            version,
        })
    }
}

/// The first release that knows `SPV_KHR_bfloat16`.
const KNOWS_MATRICES: (u32, u32) = (2025, 3);

/// Year and number of `SPIRV-Tools v2025.5`.
fn release(version: &str) -> Option<(u32, u32)> {
    let (year, number) = version.split_once(" v")?.1.split_once('.')?;
    let number = number.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((year.parse().ok()?, number.parse().ok()?))
}

/// Whether a module declares the extension: its name stands in the words as bytes.
fn has_matrices(module: &[u8]) -> bool {
    let name = b"SPV_KHR_cooperative_matrix";
    module.windows(name.len()).any(|bytes| bytes == name)
}

impl Compiler for SpirvCheck {
    fn identity(&self) -> String {
        format!("{} naga {}", self.version, naga_version())
    }

    fn compile(&self, module: &[u8], arch: &str) -> Result<Compiled, CompileFailure> {
        if !self.knows_matrices && has_matrices(module) {
            return Err(CompileFailure::MissingTool {
                tool: TOOL,
                remedy: format!(
                    "{} does not know cooperative matrices of bf16; run `cargo xtask setup` where \
                     Python packages can be installed",
                    self.version
                ),
            });
        }
        let mut command = Command::new(&self.validator);
        // Our modules use scalar block layout and device addresses where the profile has them.
        command.args(["--target-env", arch, "--scalar-block-layout", "-"]);
        let finished = run(&mut command, module)?;
        if !finished.status.success() {
            return Err(CompileFailure::Refused {
                compiler: self.version.clone(),
                arch: arch.to_owned(),
                log: format!(
                    "{}{}",
                    String::from_utf8_lossy(&finished.stdout),
                    finished.stderr
                ),
            });
        }
        let naga = naga_version();
        let (log, checked_by) = match read_with_naga(module) {
            Ok(()) => (String::new(), format!("{} + naga {naga}", self.version)),
            Err(reason) => (
                format!("naga {naga} does not read it: {reason}\n"),
                self.version.clone(),
            ),
        };
        Ok(Compiled {
            bytes: module.to_vec(),
            log,
            checked_by,
            ..Compiled::default()
        })
    }
}

/// Reads and validates a module with naga, or says why it cannot.
fn read_with_naga(module: &[u8]) -> Result<(), String> {
    let options = naga::front::spv::Options::default();
    // naga panics on some valid modules that it does not know; that is its limit, not the module's.
    let read = std::panic::catch_unwind(|| naga::front::spv::parse_u8_slice(module, &options));
    let module = match read {
        Ok(Ok(module)) => module,
        Ok(Err(error)) => return Err(one_line(&error)),
        Err(_) => return Err("its reader panicked".to_owned()),
    };
    naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        naga::valid::Capabilities::all(),
    )
    .validate(&module)
    .map(drop)
    .map_err(|error| one_line(&error.into_inner()))
}

fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The version of naga in this build, from the lock file that built it.
fn naga_version() -> &'static str {
    const LOCK: &str = include_str!("../../../Cargo.lock");
    LOCK.split_once("name = \"naga\"\nversion = \"")
        .and_then(|(_, tail)| tail.split('"').next())
        .unwrap_or("of unknown version")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_validator_is_known_by_its_release() {
        assert_eq!(release("SPIRV-Tools v2023.1"), Some((2023, 1)));
        assert_eq!(release("SPIRV-Tools v2025.5"), Some((2025, 5)));
        assert_eq!(release("SPIRV-Tools v2025.1-dev"), Some((2025, 1)));
        assert_eq!(release("unknown"), None);
        let old = SpirvCheck {
            validator: "spirv-val".into(),
            version: "SPIRV-Tools v2023.1".into(),
            knows_matrices: false,
        };
        let declares = b"..SPV_KHR_cooperative_matrix..";
        let refused = old.compile(declares, "vulkan1.3");
        assert!(matches!(refused, Err(CompileFailure::MissingTool { .. })));
    }

    #[test]
    fn the_version_of_naga_is_known() {
        assert!(
            naga_version().starts_with(|c: char| c.is_ascii_digit()),
            "{}",
            naga_version()
        );
    }

    #[test]
    fn garbage_is_refused_with_a_reason() {
        assert!(read_with_naga(&[1, 2, 3, 4]).is_err());
    }
}
