//! Writes what was built: `<target>/<kernel>.<instance>…` sources and binaries, and the manifest
//! last, so that a manifest never names a file that is not there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::LoweringResult;
use super::manifest::{KernelRecord, Manifest, Status, TargetRecord, VERSION, Variant};
use super::plan::{Lowered, Lowering, Plan};
use crate::compilers::Target;
use crate::tools::{ToolError, create_folder, file_error, hash_hex, remove_folder};

/// What was written.
pub struct Written {
    /// The content of the manifest.
    pub manifest: Manifest,
    /// Where it lies.
    pub path: PathBuf,
}

/// Writes all files below `out`, replacing what an earlier run left there.
pub fn write(
    out: &Path,
    plan: &Plan<'_>,
    results: &[LoweringResult],
) -> Result<Written, ToolError> {
    create_folder(out)?;
    let path = out.join("manifest.json");
    if path.exists() {
        std::fs::remove_file(&path).map_err(|source| file_error("remove", &path, source))?;
    }
    for target in Target::ALL {
        remove_folder(&out.join(target.name()))?;
    }
    let mut kernels: Vec<KernelRecord> = plan
        .kernels
        .iter()
        .map(|kernel| KernelRecord {
            name: kernel.name.clone(),
            instance: kernel.instance.clone(),
            dtype: kernel.dtype.clone(),
            identity: hash_hex(kernel.ir.as_bytes()),
            contract: kernel.contract.clone(),
            targets: BTreeMap::new(),
        })
        .collect();
    let mut variants: BTreeMap<(usize, &'static str), Vec<Variant>> = BTreeMap::new();
    for (lowering, result) in plan.lowerings.iter().zip(results) {
        let list = variants
            .entry((lowering.kernel, lowering.profile.target.name()))
            .or_default();
        list.push(match &lowering.lowered {
            Lowered::Unsupported(reason) => refused(lowering, Status::Unsupported, reason),
            Lowered::Failed(reason) => refused(lowering, Status::Failed, reason),
            Lowered::Source {
                extension,
                bytes,
                shared_bytes,
                places: _,
            } => {
                let stem = file_stem(plan, lowering);
                let source = format!("{stem}.{extension}");
                write_file(out, &source, bytes)?;
                let binary = format!("{stem}.{}", binary_extension(lowering.profile.target));
                accepted(out, lowering, &source, bytes, *shared_bytes, result, binary)?
            }
        });
    }
    for ((kernel, target), list) in variants {
        kernels[kernel]
            .targets
            .insert(target, TargetRecord::new(list));
    }
    let manifest = Manifest {
        version: VERSION,
        kernels,
    };
    let mut text = serde_json::to_vec_pretty(&manifest)
        .map_err(|error| file_error("write", &path, std::io::Error::other(error)))?;
    text.push(b'\n');
    let partial = out.join("manifest.json.partial");
    std::fs::write(&partial, &text).map_err(|source| file_error("write", &partial, source))?;
    std::fs::rename(&partial, &path)
        .map_err(|source| file_error("move into place", &path, source))?;
    Ok(Written { manifest, path })
}

fn accepted(
    out: &Path,
    lowering: &Lowering<'_>,
    source_name: &str,
    source: &[u8],
    shared_bytes: u32,
    result: &LoweringResult,
    binary_name: String,
) -> Result<Variant, ToolError> {
    let unchecked = Variant {
        arch: lowering.profile.arch.clone(),
        profile: lowering.profile.name.clone(),
        status: Status::Ok,
        reason: None,
        checked_by: None,
        registers: None,
        spills: None,
        shared_bytes: Some(shared_bytes),
        bytes: source.len(),
        hash: hash_hex(source),
        identity: None,
        source: Some(source_name.to_owned()),
        binary: None,
    };
    Ok(match result {
        LoweringResult::NotLowered => unchecked,
        LoweringResult::Skipped { reason } => Variant {
            reason: Some(reason.clone()),
            ..unchecked
        },
        LoweringResult::Failed { reason } => Variant {
            status: Status::Failed,
            reason: Some(reason.clone()),
            ..unchecked
        },
        LoweringResult::Compiled {
            compiled, identity, ..
        } => {
            let checked = Variant {
                checked_by: Some(compiled.checked_by.clone()),
                registers: compiled.registers,
                spills: compiled.spills,
                // What the launcher adds at run time is unknown to the compiler.
                shared_bytes: compiled.shared_bytes.max(Some(shared_bytes)),
                identity: Some(identity.clone()),
                reason: (!compiled.log.trim().is_empty()).then(|| compiled.log.trim().to_owned()),
                ..unchecked
            };
            if compiled.bytes.is_empty() || compiled.bytes == source {
                checked
            } else {
                write_file(out, &binary_name, &compiled.bytes)?;
                Variant {
                    bytes: compiled.bytes.len(),
                    hash: hash_hex(&compiled.bytes),
                    binary: Some(binary_name),
                    ..checked
                }
            }
        }
    })
}

fn refused(lowering: &Lowering<'_>, status: Status, reason: &str) -> Variant {
    Variant {
        arch: lowering.profile.arch.clone(),
        profile: lowering.profile.name.clone(),
        status,
        reason: Some(reason.to_owned()),
        checked_by: None,
        registers: None,
        spills: None,
        shared_bytes: None,
        bytes: 0,
        hash: String::new(),
        identity: None,
        source: None,
        binary: None,
    }
}

/// `target/kernel-instance.profile`.
fn file_stem(plan: &Plan<'_>, lowering: &Lowering<'_>) -> String {
    let name = format!(
        "{}.{}",
        plan.kernels[lowering.kernel].full_name(),
        lowering.profile.name
    );
    let name: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._-=+".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect();
    format!("{}/{name}", lowering.profile.target)
}

fn binary_extension(target: Target) -> &'static str {
    match target {
        Target::Msl => "metallib",
        Target::Cuda => "cubin",
        Target::Hip => "co",
        Target::Spirv => "spv",
    }
}

fn write_file(out: &Path, name: &str, bytes: &[u8]) -> Result<(), ToolError> {
    let path = out.join(name);
    if let Some(folder) = path.parent() {
        create_folder(folder)?;
    }
    std::fs::write(&path, bytes).map_err(|source| file_error("write", &path, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::plan::tests::{profiles, sample};
    use crate::compilers::Compiled;

    fn build(out: &Path) -> Manifest {
        let (kernels, profiles) = ([sample("axpy", "f32"), sample("scale", "")], profiles());
        let plan = Plan::new(&kernels, &profiles, || {});
        let results: Vec<LoweringResult> = plan
            .lowerings
            .iter()
            .map(|lowering| match lowering.profile.target {
                Target::Msl => LoweringResult::NotLowered,
                Target::Hip => LoweringResult::Skipped {
                    reason: "no clang".into(),
                },
                Target::Spirv => LoweringResult::Failed {
                    reason: "refused".into(),
                },
                Target::Cuda => LoweringResult::Compiled {
                    compiled: Compiled {
                        bytes: lowering.profile.arch.clone().into_bytes(),
                        registers: Some(8),
                        ..Compiled::default()
                    },
                    identity: "id".into(),
                    cached: false,
                    cost: std::time::Duration::ZERO,
                },
            })
            .collect();
        write(out, &plan, &results).expect("writes").manifest
    }

    #[test]
    fn statuses_files_and_bytes_are_those_of_the_results() {
        let scratch = tempfile::tempdir().expect("temporary folder");
        let (one, two) = (scratch.path().join("one"), scratch.path().join("two"));
        std::fs::create_dir_all(one.join("cuda")).expect("stale folder");
        std::fs::write(one.join("cuda/removed-f32.cu"), "stale").expect("stale file");
        let manifest = build(&one);
        build(&two);
        let axpy = &manifest.kernels[0];
        let status = |target: &str| axpy.targets[target].status;
        assert_eq!(status("cuda"), Status::Ok);
        assert_eq!(
            (
                status("hip"),
                axpy.targets["hip"].variants[0].checked_by.clone()
            ),
            (Status::Ok, None)
        );
        assert_eq!(status("spirv"), Status::Failed);
        assert_eq!(status("msl"), Status::Unsupported);
        assert!(
            axpy.targets["msl"]
                .reason
                .as_deref()
                .is_some_and(|reason| reason.contains("32 buffer slots"))
        );
        assert_eq!(
            std::fs::read(one.join("cuda/axpy-f32.sm_80.cubin")).expect("binary"),
            b"sm_80"
        );
        assert!(
            !one.join("cuda/removed-f32.cu").exists(),
            "files of an earlier run are gone"
        );
        let read = |out: &Path| std::fs::read(out.join("manifest.json")).expect("manifest");
        assert_eq!(read(&one), read(&two), "equal inputs, equal bytes");
        assert_eq!(manifest.failures().len(), 2);
    }
}
