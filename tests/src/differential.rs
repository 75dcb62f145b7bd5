//! One kernel on every execution, compared bit for bit: printed and parsed, on the reference as
//! built and after every pass, and on every device.

use std::sync::Arc;

use iron_ir::contract::{Bindings, Expr};
use iron_ir::kernel::{Access, ParamKind};
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::parse::parse;
use iron_ir::print::{canonical, print};
use iron_ir::verify::verify;
use iron_ir::{Kernel, Scalar};
use iron_passes::Legal;
use iron_runtime::reference::ReferenceDevice;
use iron_runtime::{Device, DeviceError, Tensor, launch_kernel};

use crate::backends::Target;
use crate::{batch, fuzz, rows};

/// What a kernel left in each writable tensor.
type Outputs = Vec<(String, Scalar, Vec<u64>)>;

/// What was compared.
#[derive(Default, Debug, Clone)]
pub struct Compared {
    /// Kernels whose every execution gave one answer.
    pub kernels: usize,
    /// Kernels run after a pass.
    pub stages: usize,
    /// Kernels run by a device's name.
    pub devices: std::collections::BTreeMap<&'static str, usize>,
}

/// Legal tables that differ in what is rewritten: what every target has, and nothing at all.
pub fn legal_tables() -> [Legal; 3] {
    let least = Legal {
        has_f16_memory: false,
        max_vector_lanes: 1,
        auto_unroll_statements: 0,
        expand_unrolled_loops: false,
        ..Legal::PORTABLE
    };
    let most = Legal {
        has_f16_arith: true,
        has_bf16_memory: true,
        max_vector_bytes: 64,
        max_vector_lanes: 8,
        native_saturating_convert: true,
        native_ordered_minmax: true,
        native_total_division: true,
        has_erf: true,
        auto_unroll_statements: 64,
        ..Legal::PORTABLE
    };
    [Legal::PORTABLE, least, most]
}

/// Runs a kernel of one dimension `n` everywhere. The error names the execution that differs.
pub fn check(text: &str, targets: &[Target], compared: &mut Compared) -> Result<(), String> {
    let kernel = parse(text).map_err(|error| format!("does not parse: {error}"))?;
    verify(&kernel).map_err(|errors| format!("does not verify: {errors}"))?;
    let printed = print(&kernel);
    let again = parse(&printed).map_err(|error| format!("printed, does not parse: {error}"))?;
    if again != canonical(&kernel) {
        return Err("printed and parsed, is another kernel".into());
    }
    let reference: Arc<dyn Device> = Arc::new(ReferenceDevice::new());
    let expected =
        run(&reference, &kernel).map_err(|error| format!("on the reference: {error}"))?;
    for (index, legal) in legal_tables().iter().enumerate() {
        let mut stages: Vec<(&'static str, Kernel)> = Vec::new();
        let lowered = iron_passes::run_with(kernel.clone(), legal, &mut |name, kernel| {
            let same = stages.last().is_some_and(|(_, last)| last == kernel);
            if !same {
                stages.push((name, kernel.clone()));
            }
        });
        lowered.map_err(|error| format!("in the passes of table {index}: {error}"))?;
        for (name, stage) in &stages {
            let found = run(&reference, stage)
                .map_err(|error| format!("after pass `{name}` of table {index}: {error}"))?;
            compare(&expected, &found)
                .map_err(|what| format!("after pass `{name}` of table {index}: {what}"))?;
            compared.stages += 1;
        }
    }
    let wild = text.starts_with("kernel @wild");
    for target in targets {
        if target.name() == "reference" || (wild && target.flushes_subnormals) {
            continue;
        }
        match run(&target.device, &kernel) {
            Ok(found) => {
                compare(&expected, &found)
                    .map_err(|what| format!("on {}: {what}", target.name()))?;
                *compared.devices.entry(target.name()).or_default() += 1;
            }
            Err(DeviceError::Unsupported { .. }) => {}
            Err(error) => return Err(format!("on {}: {error}", target.name())),
        }
    }
    compared.kernels += 1;
    Ok(())
}

fn compare(expected: &Outputs, found: &Outputs) -> Result<(), String> {
    for ((name, scalar, expected), (_, _, found)) in expected.iter().zip(found) {
        let differs = expected
            .iter()
            .zip(found)
            .position(|(&a, &b)| !batch::same(*scalar, a, b));
        if let Some(at) = differs {
            return Err(format!(
                "`{name}[{at}]` is {}, the reference has {}",
                rows::show(*scalar, found[at]),
                rows::show(*scalar, expected[at])
            ));
        }
    }
    Ok(())
}

/// Runs a kernel on inputs that depend on its declaration alone.
fn run(device: &Arc<dyn Device>, kernel: &Kernel) -> Result<Outputs, DeviceError> {
    let groups = match kernel.contract.grid[0] {
        Expr::Const(groups) => groups as u64,
        _ => 1,
    };
    let n = groups * u64::from(kernel.contract.workgroup[0]);
    let bindings = Bindings {
        dims: vec![n as u32; kernel.dims.len()],
        scalars: vec![None; kernel.params.len()],
    };
    let tame = &*kernel.name == "tame";
    let mut arguments = Vec::new();
    let mut outputs = Vec::new();
    for (index, (_, param)) in kernel.params.iter().enumerate() {
        let ParamKind::Tensor(tensor) = &param.kind else {
            return Err(DeviceError::Usage {
                backend: device.backend().name(),
                message: format!("`{}` is a scalar", param.name),
            });
        };
        let shape: Vec<u64> = tensor
            .shape
            .iter()
            .map(|extent| extent.eval(&bindings).unwrap_or(0) as u64)
            .collect();
        let elements: u64 = shape.iter().product();
        let size = tensor.scalar.bytes() as usize;
        let bytes: Vec<u8> = (0..elements)
            .flat_map(|i| {
                let bits = match tensor.access {
                    Access::Read => input(tensor.scalar, tame, index as u64, i),
                    Access::ReadWrite => 0x0101_0101_0101_0101,
                };
                bits.to_le_bytes()[..size].to_vec()
            })
            .collect();
        let view = Tensor::from_bytes(device, tensor.scalar, &shape, &bytes)?;
        arguments.push(Argument::Tensor(view.tensor_arg()));
        if tensor.access == Access::ReadWrite {
            outputs.push((param.name.to_string(), tensor.scalar, view));
        }
    }
    launch_kernel(device, kernel, arguments)?;
    device.synchronize()?;
    outputs
        .into_iter()
        .map(|(name, scalar, view)| {
            let size = scalar.bytes() as usize;
            let bytes = view.to_bytes()?;
            let cells = bytes
                .chunks_exact(size)
                .map(|cell| {
                    let mut word = [0u8; 8];
                    word[..size].copy_from_slice(cell);
                    u64::from_le_bytes(word)
                })
                .collect();
            Ok((name, scalar, cells))
        })
        .collect()
}

/// Element `i` of input `seed`: an edge value, or anything.
fn input(scalar: Scalar, tame: bool, seed: u64, i: u64) -> u64 {
    let mut random = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (seed + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    random = (random ^ random >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    random ^= random >> 32;
    let edges = fuzz::edges(scalar, tame);
    if scalar == Scalar::Bool || random.is_multiple_of(3) {
        return edges[(random >> 8) as usize % edges.len()];
    }
    let mask = u64::MAX >> (64 - scalar.bits());
    if scalar.is_int() {
        return random >> 7 & mask;
    }
    let number = ((random >> 11 & 0xffff) as f64 / 65536.0 - 0.5) * 200.0;
    let number = if number.abs() < 0.01 { 0.5 } else { number };
    iron_ir::testing::round_to(scalar, number)
}
