//! `manifest.json`: what was built, by whom it was accepted, and what it uses. The runtime loads by
//! its identities; tests and CI read its statuses.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::plan::full_name;

/// Bumped when a reader of the previous form would misread this one.
pub const VERSION: u32 = 1;

/// The whole file.
#[derive(Debug, Serialize)]
pub struct Manifest {
    /// [`VERSION`].
    pub version: u32,
    /// By name, then instance.
    pub kernels: Vec<KernelRecord>,
}

/// One instance of a kernel.
#[derive(Debug, Serialize)]
pub struct KernelRecord {
    /// The author's name.
    pub name: String,
    /// The instance; empty where the kernel has no generics.
    pub instance: String,
    /// The element type it is about.
    pub dtype: String,
    /// Hash of the specialised IR.
    pub identity: String,
    /// The launch contract.
    pub contract: Value,
    /// One entry a target.
    pub targets: BTreeMap<&'static str, TargetRecord>,
}

/// How a kernel fared on a target.
#[derive(Debug, Serialize)]
pub struct TargetRecord {
    /// `ok` when every variant is; `unsupported` when the target cannot run it in any profile.
    pub status: Status,
    /// Why it is unsupported or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// One a profile and architecture.
    pub variants: Vec<Variant>,
}

/// One profile and architecture.
#[derive(Debug, Serialize)]
pub struct Variant {
    /// The architecture that the compiler was told.
    pub arch: String,
    /// The profile of the target.
    pub profile: String,
    /// How it fared.
    pub status: Status,
    /// Why it is unsupported, failed or unchecked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who accepted it; absent where no compiler was at hand and it was lowered only.
    pub checked_by: Option<String>,
    /// Vector registers a thread.
    pub registers: Option<u32>,
    /// Bytes a thread that did not fit registers.
    pub spills: Option<u32>,
    /// Static shared memory of a workgroup.
    pub shared_bytes: Option<u32>,
    /// Size of the binary, or of the source where there is no binary.
    pub bytes: usize,
    /// SHA-256 of the binary, or of the source where there is no binary.
    pub hash: String,
    /// Hash of source, architecture, flags and compiler version: what the binary is loaded by.
    pub identity: Option<String>,
    /// The source, relative to the manifest.
    pub source: Option<String>,
    /// The binary, relative to the manifest.
    pub binary: Option<String>,
}

/// How something fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Lowered, and accepted by the compiler where one is at hand.
    Ok,
    /// The target cannot run it, by its limits or features.
    Unsupported,
    /// The lowering or a compiler failed.
    Failed,
}

impl TargetRecord {
    /// Sums up the variants: one failure fails the target, and one accepted profile supports it.
    pub fn new(variants: Vec<Variant>) -> Self {
        let with = |status: Status| variants.iter().find(|variant| variant.status == status);
        let (status, reason) = if let Some(failed) = with(Status::Failed) {
            (Status::Failed, failed.reason.clone())
        } else if with(Status::Ok).is_some() {
            (Status::Ok, None)
        } else {
            (
                Status::Unsupported,
                with(Status::Unsupported).and_then(|variant| variant.reason.clone()),
            )
        };
        Self {
            status,
            reason,
            variants,
        }
    }
}

impl Manifest {
    /// One line or more for each failed variant.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for kernel in &self.kernels {
            for (target, record) in &kernel.targets {
                for variant in record
                    .variants
                    .iter()
                    .filter(|variant| variant.status == Status::Failed)
                {
                    failures.push(format!(
                        "{} {target} {} {}: {}",
                        full_name(&kernel.name, &kernel.instance),
                        variant.arch,
                        variant.profile,
                        variant
                            .reason
                            .as_deref()
                            .unwrap_or("no reason was given")
                            .trim_end()
                    ));
                }
            }
        }
        failures
    }
}
