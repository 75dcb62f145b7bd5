//! HIP text to an AMD code object with clang, over HIP's own headers and AMD's device bitcode.
//!
//! Reading HIP's headers takes three times as long as compiling a kernel, so they are precompiled
//! once an architecture, as hipRTC does.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use iron_lower::hip::COMPILE_FLAGS;

use super::{CompileFailure, Compiled, Compiler, version_line};
use crate::process::{last_lines, run};
use crate::tools::{AmdFiles, Tool, clang, create_folder, file_error, hash_hex};
use crate::workspace::Workspace;

const TOOL: &str = "clang with AMD's device bitcode";

/// The header that generated text includes, and that hipRTC has built in.
const BUILT_IN_HEADERS: &str = "#include <hip/hip_runtime.h>\n";

/// Flags beside those that every compiler of HIP text gets. The unit id is off because it depends
/// on the file's path, and equal texts must give equal code objects.
const FLAGS: [&str; 6] = [
    "-xhip",
    "--offload-device-only",
    "--no-gpu-bundle-output",
    "-fuse-cuid=none",
    "-nogpuinc",
    "-Rpass-analysis=kernel-resource-usage",
];

/// clang for AMD GPUs.
pub struct HipClang {
    clang: PathBuf,
    files: AmdFiles,
    version: String,
    precompiled_folder: PathBuf,
    precompiled: Mutex<BTreeMap<String, PathBuf>>,
}

impl HipClang {
    /// Finds clang, and the files that set-up unpacked.
    pub fn find(workspace: &Workspace) -> Result<Self, CompileFailure> {
        let missing = |what: Tool| CompileFailure::MissingTool {
            tool: TOOL,
            remedy: format!("{} is missing; run `cargo xtask setup`", what.name()),
        };
        let clang = clang().ok_or_else(|| missing(Tool::Clang))?;
        let files = AmdFiles::find(workspace).ok_or_else(|| missing(Tool::Amd))?;
        let version = version_line(&clang, TOOL)?;
        let precompiled_folder = workspace.tools().join("amd-precompiled");
        create_folder(&precompiled_folder)?;
        Ok(Self {
            clang,
            files,
            version,
            precompiled_folder,
            precompiled: Mutex::default(),
        })
    }

    fn command(&self, arch: &str) -> Command {
        let mut command = Command::new(&self.clang);
        command
            .args(FLAGS)
            .args(COMPILE_FLAGS)
            .arg(format!("--offload-arch={arch}"))
            .arg(format!(
                "--rocm-device-lib-path={}",
                self.files.bitcode.display()
            ))
            .arg("-isystem")
            .arg(&self.files.include);
        command
    }

    /// The precompiled headers for `arch`, made when they are first asked for.
    fn precompiled_headers(&self, arch: &str) -> Result<PathBuf, CompileFailure> {
        let mut known = self
            .precompiled
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(path) = known.get(arch) {
            return Ok(path.clone());
        }
        // Clang refuses a precompiled header whose sources changed since, so their folder's hash is
        // not needed; the path of the sources is baked in, though.
        let key = hash_hex(
            format!(
                "{}\n{}\n{:?}\n{BUILT_IN_HEADERS}",
                self.identity(),
                arch,
                self.files
            )
            .as_bytes(),
        );
        let path = self
            .precompiled_folder
            .join(format!("{arch}-{}.pch", &key[..16]));
        if !path.is_file() {
            let mut command = self.command(arch);
            // The HIP driver has no mode that writes a precompiled header to a file; the compiler
            // proper prints it when it is given no output.
            command.args([
                "-fsyntax-only",
                "-w",
                "-Xclang",
                "-emit-pch",
                "-o",
                "-",
                "-",
            ]);
            let finished = run(&mut command, BUILT_IN_HEADERS.as_bytes())?;
            if !finished.status.success() || !finished.stdout.starts_with(b"CPCH") {
                return Err(CompileFailure::BrokenTool {
                    tool: TOOL,
                    reason: format!(
                        "HIP's headers do not compile for {arch}:\n{}",
                        last_lines(&finished.stderr, 8)
                    ),
                });
            }
            let partial = path.with_extension(format!("partial-{}", std::process::id()));
            std::fs::write(&partial, &finished.stdout)
                .map_err(|source| file_error("write", &partial, source))?;
            std::fs::rename(&partial, &path)
                .map_err(|source| file_error("move into place", &path, source))?;
        }
        known.insert(arch.to_owned(), path.clone());
        Ok(path)
    }
}

impl Compiler for HipClang {
    fn identity(&self) -> String {
        format!(
            "{} {} {}",
            self.version,
            FLAGS.join(" "),
            COMPILE_FLAGS.join(" ")
        )
    }

    fn compile(&self, source: &[u8], arch: &str) -> Result<Compiled, CompileFailure> {
        let headers = self.precompiled_headers(arch)?;
        let object = tempfile::Builder::new()
            .suffix(".co")
            .tempfile()
            .map_err(|source| file_error("create", std::env::temp_dir().as_path(), source))?;
        let mut command = self.command(arch);
        command
            .args(["-Xclang", "-include-pch", "-Xclang"])
            .arg(&headers)
            .arg("-o")
            .arg(object.path())
            .arg("-");
        let finished = run(&mut command, source)?;
        if !finished.status.success() {
            return Err(CompileFailure::Refused {
                compiler: self.version.clone(),
                arch: arch.to_owned(),
                log: without_remarks(&finished.stderr),
            });
        }
        let bytes = std::fs::read(object.path())
            .map_err(|source| file_error("read", object.path(), source))?;
        let use_of = ResourceUse::parse(&finished.stderr);
        Ok(Compiled {
            bytes,
            log: without_remarks(&finished.stderr),
            registers: use_of.registers,
            spills: use_of.spills,
            shared_bytes: use_of.shared_bytes,
            checked_by: self.version.clone(),
        })
    }
}

/// What the resource remarks tell: the largest of each over the functions of a text.
#[derive(Default)]
struct ResourceUse {
    registers: Option<u32>,
    spills: Option<u32>,
    shared_bytes: Option<u32>,
}

impl ResourceUse {
    fn parse(remarks: &str) -> Self {
        let mut parsed = Self::default();
        for line in remarks.lines() {
            // A spilled register is four bytes a lane, as in CUDA's figure.
            for (name, field, scale) in [
                (" VGPRs: ", &mut parsed.registers, 1),
                (" VGPRs Spill: ", &mut parsed.spills, 4),
                (" LDS Size [bytes/block]: ", &mut parsed.shared_bytes, 1),
            ] {
                if let Some(value) = number_after(line, name) {
                    *field = (*field).max(Some(value * scale));
                }
            }
        }
        parsed
    }
}

fn number_after(line: &str, name: &str) -> Option<u32> {
    let tail = &line[line.find(name)? + name.len()..];
    tail.split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// Drops each remark with the source lines that clang prints below it.
fn without_remarks(log: &str) -> String {
    let mut kept = String::new();
    let mut in_remark = false;
    for line in log.lines() {
        let excerpt = line
            .split_once('|')
            .is_some_and(|(head, _)| head.chars().all(|c| c == ' ' || c.is_ascii_digit()));
        if line.contains(": remark: ") {
            in_remark = true;
        } else if !excerpt {
            in_remark = false;
        }
        if !in_remark {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_remarks_are_read_and_warnings_kept() {
        let log = "<stdin>:6:1: remark: Function Name: red [-Rpass-analysis=kernel-resource-usage]\n    6 | extern \"C\"\n      | ^\n\
                   <stdin>:6:1: remark:     SGPRs: 16 [-Rpass-analysis=kernel-resource-usage]\n\
                   <stdin>:6:1: remark:     VGPRs: 12 [-Rpass-analysis=kernel-resource-usage]\n\
                   <stdin>:6:1: remark:     SGPRs Spill: 0 [-Rpass-analysis=kernel-resource-usage]\n\
                   <stdin>:6:1: remark:     VGPRs Spill: 3 [-Rpass-analysis=kernel-resource-usage]\n\
                   <stdin>:6:1: remark:     LDS Size [bytes/block]: 256 [-Rpass-analysis=kernel-resource-usage]\n\
                   <stdin>:9:1: warning: something\n    9 | int x;\n";
        let parsed = ResourceUse::parse(log);
        assert_eq!(
            (parsed.registers, parsed.spills, parsed.shared_bytes),
            (Some(12), Some(12), Some(256))
        );
        assert_eq!(
            without_remarks(log),
            "<stdin>:9:1: warning: something\n    9 | int x;\n"
        );
    }
}
