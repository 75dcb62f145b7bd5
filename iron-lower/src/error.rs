//! What can go wrong between the IR and a target's code.

use iron_ir::contract::Feature;
use iron_passes::PassError;

/// Why a kernel has no artifact for a profile. Messages are one line.
#[derive(Debug, thiserror::Error)]
pub enum LowerError {
    /// A pass refused the kernel.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The profile lacks something that the kernel needs.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The IR still holds what the passes should have rewritten: a fault of Iron.
    #[error(
        "kernel `{kernel}`, profile `{profile}`: {what} reached the lowering (line {line}); \
         this is a fault of Iron, please report it"
    )]
    NotLegalised {
        /// Kernel.
        kernel: String,
        /// Profile.
        profile: String,
        /// The construct.
        what: String,
        /// The author's line, 0 where unknown.
        line: u32,
    },
    /// The code generator of the machine, or the SPIR-V assembler, refused its input.
    #[error("kernel `{kernel}`, profile `{profile}`: code generation failed: {message}")]
    Codegen {
        /// Kernel.
        kernel: String,
        /// Profile.
        profile: String,
        /// Its message.
        message: String,
    },
}

/// A limit or feature of a profile that a kernel does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel `{kernel}` does not fit `{profile}`: {lack}")]
pub struct Unsupported {
    /// Kernel and instance.
    pub kernel: String,
    /// Profile.
    pub profile: String,
    /// What is lacking.
    pub lack: Lack,
}

/// What a profile lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// A feature.
    #[error("it needs `{}` (line {line}), which this target does not have", feature.name())]
    Feature {
        /// Feature.
        feature: Feature,
        /// The author's line that needs it, 0 where unknown.
        line: u32,
    },
    /// Shared memory.
    #[error("it needs {needed} bytes of shared memory ({arrays}), this target has {limit}")]
    SharedBytes {
        /// Needed.
        needed: u64,
        /// Allowed.
        limit: u64,
        /// Each array with its bytes.
        arrays: String,
    },
    /// Buffer slots of the entry point.
    #[error(
        "it needs {needed} buffer slots, this target has {limit}; \
         the first parameter without a slot is `{param}` (line {line})"
    )]
    BufferSlots {
        /// Needed, with those of the parameter block and the error word.
        needed: u32,
        /// Allowed.
        limit: u32,
        /// The first parameter past the limit.
        param: String,
        /// Its line.
        line: u32,
    },
    /// Threads of a workgroup.
    #[error("its workgroup has {needed} threads, this target allows {limit}")]
    Threads {
        /// Needed.
        needed: u64,
        /// Allowed.
        limit: u32,
    },
    /// Threads of a workgroup along one axis.
    #[error("its workgroup has {needed} threads along axis {axis}, this target allows {limit}")]
    WorkgroupAxis {
        /// 0, 1, 2.
        axis: usize,
        /// Needed.
        needed: u32,
        /// Allowed.
        limit: u32,
    },
    /// An operation that the target cannot compute as the specification says.
    #[error("it needs {what}, which this target does not have")]
    Operation {
        /// The operation and what is asked of it.
        what: &'static str,
    },
    /// Bytes of the parameter block.
    #[error("its parameter block has {needed} bytes, this target allows {limit}")]
    ParameterBytes {
        /// Needed.
        needed: u32,
        /// Allowed.
        limit: u32,
    },
}
