//! Lowering of the kernel IR to MSL, CUDA C++, HIP C++, SPIR-V and machine code.
//!
//! [`lower`] is the way from a kernel as built to an artifact: it checks the profile's limits,
//! runs the passes and calls the target's emitter. Emitters take only legal IR (no tiles, no
//! workgroup collectives, flat places) and answer anything else with
//! [`LowerError::NotLegalised`]; they never panic.
//!
//! The three C-family texts share one printer ([`c`]); a dialect gives names, helper functions
//! and the entry point. Texts are meant to be read: they keep the author's names and carry the
//! contract as a comment.

pub mod c;
pub mod cpu;
pub mod cuda;
pub mod error;
mod fragments;
pub mod hip;
pub mod msl;
pub mod places;
pub mod profile;
pub mod spirv;

use iron_ir::kernel::{Kernel, Span};

pub use error::{Lack, LowerError, Unsupported};
pub use places::Places;
pub use profile::{Limits, Profile, Target};

/// A lowered kernel.
#[derive(Debug)]
pub struct Artifact {
    /// The kernel after the passes.
    pub kernel: Kernel,
    /// Its code.
    pub code: Code,
    /// What the author wrote for each line of a text, each instruction of a module.
    pub places: Places,
}

/// Code of one target.
#[derive(Debug)]
pub enum Code {
    /// MSL, CUDA C++ or HIP C++.
    Text(String),
    /// A module.
    SpirV(Vec<u32>),
    /// Functions in this process's memory.
    Machine(Box<cpu::Compiled>),
}

impl Artifact {
    /// The text, where the target is a language.
    pub fn text(&self) -> Option<&str> {
        match &self.code {
            Code::Text(text) => Some(text),
            Code::SpirV(_) | Code::Machine(_) => None,
        }
    }

    /// The bytes of the artifact's file, where it has one: the text, or the module in little
    /// endian.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match &self.code {
            Code::Text(text) => Some(text.clone().into_bytes()),
            Code::SpirV(words) => Some(words.iter().flat_map(|w| w.to_le_bytes()).collect()),
            Code::Machine(_) => None,
        }
    }
}

/// Lowers a kernel as its author's build made it.
pub fn lower(kernel: &Kernel, profile: &Profile) -> Result<Artifact, LowerError> {
    let kernel = legalise(kernel, profile)?;
    let text = |(text, places): (String, Places)| (Code::Text(text), places);
    let (code, places) = match profile.target {
        Target::Msl => text(msl::emit(&kernel, profile)?),
        Target::Cuda => text(cuda::emit(&kernel, profile)?),
        Target::Hip => text(hip::emit(&kernel, profile)?),
        Target::SpirV => {
            let words = spirv::emit(&kernel, profile)?;
            let places = Places::of_module(&words);
            (Code::SpirV(words), places)
        }
        Target::Cpu => {
            let machine = Code::Machine(Box::new(cpu::compile(&kernel)?));
            (machine, Places::default())
        }
    };
    Ok(Artifact {
        kernel,
        code,
        places,
    })
}

/// The kernel as the profile's emitter takes it: limits checked before and after the passes,
/// which may add shared memory.
pub fn legalise(kernel: &Kernel, profile: &Profile) -> Result<Kernel, LowerError> {
    profile.check(kernel)?;
    let kernel = iron_passes::run(kernel.clone(), &profile.legal)?;
    profile.check(&kernel)?;
    Ok(kernel)
}

/// What the error word takes when a data-dependent index of that place is out of range: the
/// author's line plus one, so that 0 means no error.
pub fn error_code(span: Span) -> u32 {
    span.line.saturating_add(1)
}
