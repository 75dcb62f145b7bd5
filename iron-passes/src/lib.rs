//! The passes that rewrite the kernel IR.
//!
//! [`pipeline`] is the whole list in order; [`run`] applies it for one target's [`Legal`] table.
//! A pass is one file with its doc, its code and its tests; it takes verified IR and leaves
//! verified IR with the same results, bit for bit. None performs I/O or knows a target's syntax.

mod addressing;
mod canonicalise;
mod copies_ahead;
mod cse;
mod dead_code;
mod forward;
#[cfg(test)]
#[path = "goldens/tests.rs"]
mod goldens;
mod launch_barriers;
mod legal;
mod legalise;
mod licm;
mod lower_groups;
mod lower_mma;
mod lower_tiles;
mod promote;
mod rewrite;
#[cfg(test)]
mod tests;
mod trees;
mod unroll;

use iron_ir::Kernel;
use iron_ir::verify::{VerifyErrors, verify, verify_lowered};

pub use legal::{Fragments, Legal, Regroup, TileRoute};

/// A pass: rewrites a kernel in place for a target.
pub type Pass = fn(&mut Kernel, &Legal) -> Result<(), PassError>;

/// Why a kernel cannot be brought into the target's legal form.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PassError {
    /// The kernel was wrong before the first pass.
    #[error("the kernel does not verify:\n{0}")]
    Input(VerifyErrors),
    /// A pass made wrong IR, which is a fault in Iron.
    #[error("pass `{pass}` left a kernel that does not verify, which is a bug in Iron:\n{errors}")]
    Broken {
        /// Pass.
        pass: &'static str,
        /// What is wrong.
        errors: VerifyErrors,
    },
    /// The kernel needs what the target's passes cannot give.
    #[error("kernel `{kernel}`: {what}")]
    Unsupported {
        /// Kernel and instance.
        kernel: String,
        /// What, and what to do.
        what: String,
    },
}

/// The passes in order.
pub fn pipeline(_: &Legal) -> &'static [(&'static str, Pass)] {
    &[
        ("launch_barriers", launch_barriers::launch_barriers),
        ("copies_ahead", copies_ahead::copies_ahead),
        ("canonicalise", canonicalise::canonicalise),
        ("lower_tiles", lower_tiles::lower_tiles),
        ("lower_mma", lower_mma::lower_mma),
        ("lower_groups", lower_groups::lower_groups),
        ("unroll", unroll::unroll),
        ("canonicalise_unrolled", canonicalise::canonicalise),
        ("promote", promote::promote),
        ("forward", forward::forward),
        ("addressing", addressing::addressing),
        ("canonicalise_addresses", canonicalise::canonicalise),
        ("cse", cse::cse),
        ("licm", licm::licm),
        ("legalise_arithmetic", legalise::legalise_arithmetic),
        ("split_vectors", legalise::split_vectors),
        ("canonicalise_legal", canonicalise::canonicalise),
        ("cse_legal", cse::cse),
        ("dead_code", dead_code::dead_code),
    ]
}

/// Brings a kernel as built into the target's legal form. In debug and test builds the verifier
/// runs after every pass, in others before the first and after the last.
pub fn run(kernel: Kernel, legal: &Legal) -> Result<Kernel, PassError> {
    run_with(kernel, legal, &mut |_, _| {})
}

/// As [`run`], showing the kernel after each pass.
pub fn run_with(
    mut kernel: Kernel,
    legal: &Legal,
    show: &mut dyn FnMut(&'static str, &Kernel),
) -> Result<Kernel, PassError> {
    verify(&kernel).map_err(PassError::Input)?;
    let passes = pipeline(legal);
    let mut has_collectives = true;
    for (index, (name, pass)) in passes.iter().enumerate() {
        pass(&mut kernel, legal)?;
        has_collectives &= *name != "lower_groups";
        if cfg!(debug_assertions) || index + 1 == passes.len() {
            let check = if has_collectives {
                verify
            } else {
                verify_lowered
            };
            check(&kernel).map_err(|errors| PassError::Broken { pass: name, errors })?;
        }
        show(name, &kernel);
    }
    Ok(kernel)
}
