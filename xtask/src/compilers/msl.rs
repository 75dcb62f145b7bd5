//! MSL text, type-checked by clang with real address spaces over this project's own header
//! (`headers/msl_check.h`), and scanned for what clang ignores (attributes, pointers without an
//! address space). Apple's compiler does not exist outside macOS; this is not its verdict.

use std::path::PathBuf;
use std::process::Command;

use super::{CompileFailure, Compiled, Compiler, msl_structure, version_line};
use crate::process::run;
use crate::tools::{Tool, clang, hash_hex};
use crate::workspace::Workspace;

const TOOL: &str = "clang for the MSL address-space check";

const FLAGS: [&str; 9] = [
    "-x",
    "clcpp",
    "-cl-std=clc++2021",
    // OpenCL's own declarations would compete with Metal's.
    "-cl-no-stdinc",
    // A literal without suffix is a float in Metal.
    "-cl-single-precision-constant",
    // The host's target is the one that has __bf16 in this language mode.
    "--target=x86_64",
    // Unknown attributes are what Metal's are to clang; the structure scan checks them.
    "-w",
    "-fsyntax-only",
    "-ferror-limit=10",
];

/// clang in its C++ for OpenCL mode.
pub struct MslCheck {
    clang: PathBuf,
    version: String,
    headers: PathBuf,
    headers_hash: String,
}

impl MslCheck {
    /// Finds clang and reads the project's header.
    pub fn find(workspace: &Workspace) -> Result<Self, CompileFailure> {
        let clang = clang().ok_or_else(|| CompileFailure::MissingTool {
            tool: TOOL,
            remedy: format!("{} is missing; run `cargo xtask setup`", Tool::Clang.name()),
        })?;
        let version = version_line(&clang, TOOL)?;
        let headers = workspace.root.join("xtask").join("headers").join("msl");
        let headers_hash = hash_hex(
            concat!(
                include_str!("../../headers/msl_check.h"),
                include_str!("../../headers/msl/metal_stdlib"),
                include_str!("../../headers/msl/metal_simdgroup_matrix"),
            )
            .as_bytes(),
        );
        Ok(Self {
            clang,
            version,
            headers,
            headers_hash,
        })
    }
}

impl Compiler for MslCheck {
    fn identity(&self) -> String {
        format!(
            "{} {} {} structure {}",
            self.version,
            FLAGS.join(" "),
            self.headers_hash,
            msl_structure::VERSION
        )
    }

    fn compile(&self, source: &[u8], arch: &str) -> Result<Compiled, CompileFailure> {
        let label = "clang address-space check, not Apple's compiler";
        let refused = |log: String| CompileFailure::Refused {
            compiler: format!("{label} ({})", self.version),
            arch: arch.to_owned(),
            log,
        };
        let text = std::str::from_utf8(source).map_err(|error| refused(error.to_string()))?;
        let faults = msl_structure::check(text);
        if !faults.is_empty() {
            return Err(refused(faults.join("\n")));
        }
        let mut command = Command::new(&self.clang);
        command
            .args(FLAGS)
            .arg("-isystem")
            .arg(&self.headers)
            .arg("-");
        let finished = run(&mut command, source)?;
        if !finished.status.success() {
            return Err(refused(finished.stderr));
        }
        Ok(Compiled {
            log: finished.stderr,
            checked_by: label.to_owned(),
            ..Compiled::default()
        })
    }
}
