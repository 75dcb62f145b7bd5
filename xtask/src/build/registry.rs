//! The kernels of this binary, from the registry that linking the corpus fills, in the form that
//! the build wants: contract as JSON, lowering as a function of the profile.

use iron_ir::contract::Feature;
use iron_ir::kernel::{Access, Kernel, ParamKind, TensorData, TensorLayout};
use iron_ir::layout::BlockLayout;
use iron_ir::registry::InstanceEntry;
use iron_lower::{Artifact, LowerError, profile};
use serde_json::{Value, json};

use super::plan::{KernelInstance, Lowered, Profile};
use crate::compilers::Target;

/// The environment that every SPIR-V profile is validated for.
const SPIRV_ENVIRONMENT: &str = "vulkan1.3";

/// Every profile of the targets that any machine can build for.
pub fn profiles() -> Vec<Profile> {
    profile::all()
        .iter()
        .filter_map(|profile| {
            let target = target_of(profile.target)?;
            let arch = if target == Target::Spirv {
                SPIRV_ENVIRONMENT
            } else {
                profile.name
            };
            Some(Profile {
                target,
                name: profile.name.to_owned(),
                arch: arch.to_owned(),
            })
        })
        .collect()
}

/// Every registered kernel, built once an instance.
pub fn kernels() -> Vec<KernelInstance> {
    iron_corpus::link();
    let entries = iron_ir::registry::kernels();
    entries
        .iter()
        .flat_map(|entry| {
            entry
                .instances
                .iter()
                .map(|instance| kernel_instance(entry.name, instance))
        })
        .collect()
}

fn kernel_instance(name: &str, entry: &InstanceEntry) -> KernelInstance {
    // One kernel that cannot be built is that kernel's failure, not the end of the build.
    let built = without_panic(entry.build)
        .map_err(|reason| format!("building its IR panicked: {reason}"))
        .and_then(|kernel| kernel.map_err(|error| format!("its IR cannot be built: {error}")));
    let kernel = match built {
        Ok(kernel) => kernel,
        Err(reason) => {
            return KernelInstance {
                name: name.to_owned(),
                instance: entry.name.to_owned(),
                dtype: String::new(),
                contract: Value::Null,
                ir: String::new(),
                lower: Box::new(move |_| Lowered::Failed(reason.clone())),
            };
        }
    };
    KernelInstance {
        name: kernel.name.to_string(),
        instance: kernel.instance.to_string(),
        dtype: dtype(entry, &kernel),
        contract: contract(&kernel),
        ir: iron_ir::print::print(&kernel),
        lower: Box::new(move |profile| lower(&kernel, profile)),
    }
}

fn lower(kernel: &Kernel, wanted: &Profile) -> Lowered {
    let Some(profile) = profile::by_name(&wanted.name) else {
        return Lowered::Failed(format!("no profile `{}`", wanted.name));
    };
    match without_panic(|| iron_lower::lower(kernel, &profile)) {
        Err(reason) => Lowered::Failed(format!("the lowering panicked: {reason}")),
        Ok(result) => lowered(result, &profile),
    }
}

fn lowered(result: Result<Artifact, LowerError>, profile: &iron_lower::Profile) -> Lowered {
    match result {
        Ok(artifact) => match artifact.bytes() {
            Some(bytes) => Lowered::Source {
                extension: profile.target.extension(),
                bytes,
                places: artifact.places,
                shared_bytes: u32::try_from(artifact.kernel.shared_bytes()).unwrap_or(u32::MAX),
            },
            None => Lowered::Failed(format!("`{}` has no source", profile.name)),
        },
        Err(LowerError::Unsupported(unsupported)) => {
            Lowered::Unsupported(unsupported.lack.to_string())
        }
        Err(error) => Lowered::Failed(error.to_string()),
    }
}

fn target_of(target: iron_lower::Target) -> Option<Target> {
    match target {
        iron_lower::Target::Msl => Some(Target::Msl),
        iron_lower::Target::Cuda => Some(Target::Cuda),
        iron_lower::Target::Hip => Some(Target::Hip),
        iron_lower::Target::SpirV => Some(Target::Spirv),
        // Machine code is made in the process that runs it.
        iron_lower::Target::Cpu => None,
    }
}

/// The type that the instance is about: its first type parameter, else its first tensor's elements.
fn dtype(entry: &InstanceEntry, kernel: &Kernel) -> String {
    let of_tensors = kernel.params.values().find_map(|param| match &param.kind {
        ParamKind::Tensor(tensor) => Some(tensor.scalar),
        ParamKind::Scalar(_) => None,
    });
    entry
        .types
        .first()
        .map(|(_, scalar)| *scalar)
        .or(of_tensors)
        .map_or_else(String::new, |scalar| scalar.name().to_owned())
}

/// The launch contract in the author's words, and the parameter block byte for byte.
fn contract(kernel: &Kernel) -> Value {
    let params: Vec<Value> = kernel
        .params
        .values()
        .map(|param| match &param.kind {
            ParamKind::Tensor(tensor) => tensor_parameter(kernel, &param.name, tensor),
            ParamKind::Scalar(scalar) => {
                json!({ "name": &*param.name, "kind": "scalar", "dtype": scalar.name() })
            }
        })
        .collect();
    let block = BlockLayout::of(kernel);
    let fields: Vec<Value> = block
        .fields
        .iter()
        .map(|field| json!({ "name": field.name, "dtype": field.scalar.name(), "offset": field.offset }))
        .collect();
    let features: Vec<&str> = profile::needs(kernel)
        .into_iter()
        .map(|need| Feature::name(need.feature))
        .collect();
    json!({
        "params": params,
        "grid": kernel.contract.grid.iter().map(|expr| expr.display(kernel).to_string()).collect::<Vec<_>>(),
        "workgroup": kernel.contract.workgroup,
        "requires": kernel.contract.requires.iter().map(|fact| fact.display(kernel).to_string()).collect::<Vec<_>>(),
        "contract_fma": kernel.contract.permissions.contract,
        "approximate": kernel.contract.permissions.approximate,
        "cooperative": kernel.contract.cooperative,
        "dependent": kernel.contract.dependent,
        "checks_indices": kernel.checks_indices(),
        "features": features,
        "parameter_block": { "bytes": block.bytes, "fields": fields },
    })
}

fn tensor_parameter(kernel: &Kernel, name: &str, tensor: &TensorData) -> Value {
    let aliases: Vec<&str> = tensor
        .may_alias
        .iter()
        .map(|&param| &*kernel.params[param].name)
        .collect();
    json!({
        "name": name,
        "kind": "tensor",
        "dtype": tensor.scalar.name(),
        "shape": tensor.shape.iter().map(|expr| expr.display(kernel).to_string()).collect::<Vec<_>>(),
        "access": match tensor.access { Access::Read => "read", Access::ReadWrite => "read-write" },
        "layout": match tensor.layout { TensorLayout::RowMajor => "row-major", TensorLayout::Strided => "strided" },
        "align_elements": tensor.align,
        "may_alias": aliases,
    })
}

/// Runs `work`, and takes a panic as an error with its message.
fn without_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no message")
            .to_owned()
    })
}
