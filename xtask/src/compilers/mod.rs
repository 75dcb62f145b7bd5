//! The compilers that check generated kernels without a GPU: NVRTC for CUDA, clang for HIP and for
//! MSL's address spaces, `spirv-val` for SPIR-V. Each takes one text (or module) and one
//! architecture and returns what the compiler made and told, or why it refused.

mod cache;
mod hip;
mod msl;
mod msl_structure;
mod nvrtc;
#[cfg(test)]
mod samples;
mod spirv;

use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use crate::process::{ProcessError, run};
use crate::tools::ToolError;
use crate::workspace::Workspace;

pub use cache::{Cache, CacheKey};

/// A language that kernels are generated in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum Target {
    /// Metal Shading Language.
    Msl,
    /// CUDA C++.
    Cuda,
    /// HIP C++.
    Hip,
    /// SPIR-V for Vulkan.
    Spirv,
}

impl Target {
    /// All targets in the order of tables.
    pub const ALL: [Self; 4] = [Self::Msl, Self::Cuda, Self::Hip, Self::Spirv];

    /// The name in the manifest and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Msl => "msl",
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::Spirv => "spirv",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a compiler made of one kernel for one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    /// The binary; empty where the compiler only checks.
    pub bytes: Vec<u8>,
    /// Warnings and remarks, without what changes from run to run.
    pub log: String,
    /// Vector registers a thread.
    pub registers: Option<u32>,
    /// Bytes a thread that did not fit registers.
    pub spills: Option<u32>,
    /// Static shared memory of a workgroup, in bytes.
    pub shared_bytes: Option<u32>,
    /// Who accepted it, with version.
    pub checked_by: String,
}

/// Why there is no [`Compiled`].
#[derive(Debug, thiserror::Error)]
pub enum CompileFailure {
    /// The compiler read the text and refused it: a fault of the lowering, or of the kernel.
    #[error("{compiler} refuses it for {arch}:\n{log}")]
    Refused {
        /// Which compiler.
        compiler: String,
        /// For which architecture.
        arch: String,
        /// What it said.
        log: String,
    },
    /// The compiler is not on this machine.
    #[error("no {tool}: {remedy}")]
    MissingTool {
        /// What is missing.
        tool: &'static str,
        /// How to get it.
        remedy: String,
    },
    /// The compiler is there but does not work.
    #[error("{tool} does not work: {reason}")]
    BrokenTool {
        /// What is broken.
        tool: &'static str,
        /// What it did.
        reason: String,
    },
    /// The compiler could not be started.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A scratch file could not be written or read.
    #[error(transparent)]
    Tool(#[from] ToolError),
}

/// One compiler: what it is, and how it takes a kernel.
pub trait Compiler: Send + Sync {
    /// Everything about the compiler that its result depends on: version, flags, headers.
    fn identity(&self) -> String;

    /// Compiles or checks one kernel. Called from several threads.
    fn compile(&self, source: &[u8], arch: &str) -> Result<Compiled, CompileFailure>;
}

/// The compilers that were found, one a target.
pub struct Compilers {
    found: Vec<(Target, Found)>,
}

/// A compiler, or why there is none.
type Found = Result<Box<dyn Compiler>, CompileFailure>;

impl Compilers {
    /// Looks for the compiler of each of `targets`.
    pub fn discover(workspace: &Workspace, targets: &[Target]) -> Self {
        let found = targets
            .iter()
            .map(|&target| {
                let compiler = match target {
                    Target::Msl => msl::MslCheck::find(workspace).map(boxed),
                    Target::Cuda => nvrtc::Nvrtc::find(workspace).map(boxed),
                    Target::Hip => hip::HipClang::find(workspace).map(boxed),
                    Target::Spirv => spirv::SpirvCheck::find(workspace).map(boxed),
                };
                (target, compiler)
            })
            .collect();
        Self { found }
    }

    /// The compiler of `target`, or why there is none. None when it was not asked for.
    pub fn get(&self, target: Target) -> Option<Result<&dyn Compiler, &CompileFailure>> {
        let (_, compiler) = self.found.iter().find(|(found, _)| *found == target)?;
        Some(compiler.as_ref().map(|compiler| &**compiler))
    }
}

fn boxed<C: Compiler + 'static>(compiler: C) -> Box<dyn Compiler> {
    Box::new(compiler)
}

/// The first line of `program --version` that has a digit.
fn version_line(program: &PathBuf, tool: &'static str) -> Result<String, CompileFailure> {
    let finished = run(Command::new(program).arg("--version"), &[])?;
    let text = String::from_utf8_lossy(&finished.stdout).into_owned();
    text.lines()
        .find(|line| line.contains(|c: char| c.is_ascii_digit()))
        .map(|line| line.trim().to_owned())
        .ok_or_else(|| CompileFailure::BrokenTool {
            tool,
            reason: format!("`{} --version` printed no version", program.display()),
        })
}

/// The number that ends just before `unit` in `line`, as in `16 registers`.
fn number_before(line: &str, unit: &str) -> Option<u32> {
    let head = line[..line.find(unit)?].trim_end();
    head.rsplit(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}
