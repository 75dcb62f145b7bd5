//! Identity of compiled artifacts.

use iron_ir::kernel::Kernel;
use sha2::{Digest, Sha256};

/// Hash of a kernel and of whatever else makes its artifact (target, flags, tool versions), in
/// hexadecimal. Nothing local to the process enters it.
pub fn artifact_hash(kernel: &Kernel, identity: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in identity {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.update(format!("{kernel:?}").as_bytes());
    hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
