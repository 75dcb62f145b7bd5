//! One kernel on every execution, compared bit for bit: printed and parsed, on the reference as
//! built and after every pass, and on every device.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use iron_ir::contract::{Bindings, Expr};
use iron_ir::kernel::{Access, ParamKind, TensorData, TensorLayout};
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::parse::parse;
use iron_ir::print::{canonical, print};
use iron_ir::verify::verify;
use iron_ir::{Const, Handle, Kernel, Scalar};
use iron_lower::{LowerError, lower, profile};
use iron_passes::{Legal, PassError};
use iron_runtime::host::HostDevice;
use iron_runtime::reference::{ReferenceDevice, ReferenceOptions};
use iron_runtime::{Device, DeviceError, Tensor, launch_kernel};

use crate::backends::Target;
use crate::{batch, fuzz, oracle, rows};

/// What a kernel left in each writable tensor.
type Outputs = Vec<(String, Scalar, Vec<u64>)>;

/// What was compared.
#[derive(Default, Debug, Clone)]
pub struct Compared {
    /// Kernels whose every execution gave one answer.
    pub kernels: usize,
    /// Kernels run after a pass.
    pub stages: usize,
    /// Kernels lowered for every profile.
    pub lowered: usize,
    /// Kernels run by a device's name.
    pub devices: BTreeMap<&'static str, usize>,
    /// Kernels that a device cannot run, by its name.
    pub unsupported: BTreeMap<&'static str, usize>,
}

impl Compared {
    /// Adds what another run compared.
    pub fn add(&mut self, other: &Compared) {
        self.kernels += other.kernels;
        self.stages += other.stages;
        self.lowered += other.lowered;
        for (name, count) in &other.devices {
            *self.devices.entry(name).or_default() += count;
        }
        for (name, count) in &other.unsupported {
            *self.unsupported.entry(name).or_default() += count;
        }
    }
}

/// Which of the executions to compare.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// After every pass, for these tables of [`legal_tables`]: all, or the one of this index.
    pub table: Option<usize>,
    /// Lower for every profile.
    pub lower: bool,
}

impl Depth {
    /// Everything.
    pub const WHOLE: Depth = Depth {
        table: None,
        lower: true,
    };
}

/// Lanes of a subgroup of the reference on which kernels run after passes.
const LANES: u32 = 8;

/// Legal tables that differ in what is rewritten: what every target has, nothing at all, nearly
/// everything, and collectives through the subgroups.
pub fn legal_tables() -> [Legal; 4] {
    let least = Legal {
        has_f16_memory: false,
        max_vector_lanes: 1,
        auto_unroll_statements: 0,
        expand_unrolled_loops: false,
        has_tanh: false,
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
    let lanes = Legal {
        subgroup_size: Some(LANES),
        linear_subgroups: true,
        max_vector_lanes: 2,
        ..Legal::PORTABLE
    };
    [Legal::PORTABLE, least, most, lanes]
}

/// The reference with subgroups of so many lanes.
fn reference(lanes: u32) -> Arc<dyn Device> {
    Arc::new(ReferenceDevice::with_options(ReferenceOptions {
        subgroup_size: lanes,
        // What passes make of a collective is no longer uniform in the verifier's eyes.
        unverified: true,
        ..ReferenceOptions::default()
    }))
}

/// Runs a kernel everywhere and compares. The error names the execution that differs.
pub fn check(
    text: &str,
    targets: &[Target],
    depth: Depth,
    compared: &mut Compared,
) -> Result<(), String> {
    let kernel = parse(text).map_err(|error| format!("does not parse: {error}"))?;
    verify(&kernel).map_err(|errors| format!("does not verify: {errors}"))?;
    let printed = print(&kernel);
    let again = parse(&printed).map_err(|error| format!("printed, does not parse: {error}"))?;
    if again != canonical(&kernel) {
        return Err("printed and parsed, is another kernel".into());
    }
    let device = reference(LANES);
    let expected = run(&device, &kernel).map_err(|error| format!("on the reference: {error}"))?;
    after_passes(&kernel, &device, &expected, depth, compared)?;
    if depth.lower {
        lowers(&kernel)?;
        compared.lowered += 1;
    }
    let wild = &*kernel.name != "tame";
    // What subgroups do depends on their width.
    let by_lanes = printed.contains("subgroup");
    let mut of_lanes = BTreeMap::from([(LANES, expected)]);
    for target in targets {
        if target.name() == "reference" || (wild && target.flushes_subnormals) {
            continue;
        }
        let lanes = if by_lanes {
            target.device.subgroup_size()
        } else {
            LANES
        };
        let found = match run(&target.device, &kernel) {
            Ok(found) => found,
            Err(DeviceError::Unsupported { .. }) => {
                *compared.unsupported.entry(target.name()).or_default() += 1;
                continue;
            }
            Err(error) => return Err(format!("on {}: {error}", target.name())),
        };
        if let Entry::Vacant(entry) = of_lanes.entry(lanes) {
            let outputs = run(&reference(lanes), &kernel)
                .map_err(|error| format!("on the reference: {error}"))?;
            entry.insert(outputs);
        }
        compare(&of_lanes[&lanes], &found)
            .map_err(|what| format!("on {}: {what}", target.name()))?;
        *compared.devices.entry(target.name()).or_default() += 1;
    }
    compared.kernels += 1;
    Ok(())
}

/// What `host` makes of a kernel of this binary, against the reference's answer to its IR.
pub fn check_host(kernel: &Kernel) -> Result<(), String> {
    let host: Arc<dyn Device> = Arc::new(HostDevice::with_subgroup_size(LANES));
    let expected =
        run(&reference(LANES), kernel).map_err(|error| format!("on the reference: {error}"))?;
    let found = run(&host, kernel).map_err(|error| format!("on host: {error}"))?;
    compare(&expected, &found).map_err(|what| format!("on host: {what}"))
}

/// The reference's answers before and after each pass.
fn after_passes(
    kernel: &Kernel,
    device: &Arc<dyn Device>,
    expected: &Outputs,
    depth: Depth,
    compared: &mut Compared,
) -> Result<(), String> {
    for (index, legal) in legal_tables().iter().enumerate() {
        if depth.table.is_some_and(|table| table != index) {
            continue;
        }
        let mut stages: Vec<(&'static str, Kernel)> = Vec::new();
        let lowered = caught(|| {
            iron_passes::run_with(kernel.clone(), legal, &mut |name, kernel| {
                let same = stages.last().is_some_and(|(_, last)| last == kernel);
                if !same {
                    stages.push((name, kernel.clone()));
                }
            })
        });
        lowered
            .map_err(|panic| format!("the passes of table {index} panic: {panic}"))?
            .map_err(|error| format!("in the passes of table {index}: {error}"))?;
        for (name, stage) in &stages {
            let found = run(device, stage)
                .map_err(|error| format!("after pass `{name}` of table {index}: {error}"))?;
            compare(expected, &found)
                .map_err(|what| format!("after pass `{name}` of table {index}: {what}"))?;
            compared.stages += 1;
        }
    }
    Ok(())
}

/// What the verifier accepts lowers for every profile, or is refused by name: no lowering
/// panics, and none finds IR that the passes left illegal.
pub fn lowers(kernel: &Kernel) -> Result<(), String> {
    for profile in profile::all() {
        match caught(|| lower(kernel, &profile)) {
            Ok(Ok(_) | Err(LowerError::Unsupported(_))) => {}
            Ok(Err(LowerError::Pass(PassError::Unsupported { .. }))) => {}
            Ok(Err(error)) => return Err(format!("lowering for {}: {error}", profile.name)),
            Err(panic) => return Err(format!("lowering for {} panics: {panic}", profile.name)),
        }
    }
    Ok(())
}

/// The message of a panic as an error.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(|payload| {
        payload
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_string()))
            .unwrap_or_default()
    })
}

fn compare(expected: &Outputs, found: &Outputs) -> Result<(), String> {
    for ((name, scalar, expected), (_, _, found)) in expected.iter().zip(found) {
        let bound = function_of(name).map(|function| bound_of(function, *scalar));
        let same = |a: u64, b: u64| match bound {
            None => batch::same(*scalar, a, b),
            Some(bound) => near(*scalar, a, b, bound),
        };
        let differs = expected.iter().zip(found).position(|(&a, &b)| !same(a, b));
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

/// The function whose results a tensor named `f_exp_f32` holds.
fn function_of(tensor: &str) -> Option<&str> {
    tensor
        .strip_prefix("f_")?
        .rsplit_once('_')
        .map(|(name, _)| name)
}

fn bound_of(function: &str, scalar: Scalar) -> f64 {
    if scalar != Scalar::F32 {
        return 1.0;
    }
    let of = |backend: &str| {
        let mut bounds = rows::bounds(backend).into_iter();
        bounds.find(|(name, _)| *name == function)
    };
    // Either of the two that are compared may be a target's with a bound of its own.
    let bounds = ["reference", "cuda", "vulkan"].into_iter().filter_map(of);
    bounds.fold(0.0, |widest, (_, bound)| f64::max(widest, bound))
}

/// Two answers that are both within the bound of the exact one.
fn near(scalar: Scalar, a: u64, b: u64, bound: f64) -> bool {
    let number = iron_ir::testing::value_of(scalar, a);
    // Whether a subnormal result is kept is up to the device.
    let tiny = |bits: u64| iron_ir::testing::value_of(scalar, bits).abs() < 1.2e-38;
    batch::same(scalar, a, b)
        || (tiny(a) && tiny(b))
        || oracle::distance(scalar, b, number) <= 2.0 * bound + 1.0
}

/// The extent of every dimension named `m`; that named `n` has one element a thread.
const M: u32 = 5;

/// Runs a kernel on inputs that depend on its declaration alone.
fn run(device: &Arc<dyn Device>, kernel: &Kernel) -> Result<Outputs, DeviceError> {
    let extent = |axis: usize| match kernel.contract.grid[axis] {
        Expr::Const(groups) => groups as u64,
        _ => 1,
    };
    let threads = u64::from(kernel.contract.threads());
    let n = extent(0) * extent(1) * extent(2) * threads;
    let bindings = Bindings {
        dims: kernel
            .dims
            .values()
            .map(|name| if &**name == "m" { M } else { n as u32 })
            .collect(),
        scalars: vec![None; kernel.params.len()],
    };
    let tame = &*kernel.name == "tame";
    let mut arguments: Vec<Argument> = Vec::new();
    let mut outputs: Vec<(String, Scalar, Tensor)> = Vec::new();
    let mut views: Vec<Option<Tensor>> = Vec::new();
    for (index, (_, param)) in kernel.params.iter().enumerate() {
        let tensor = match &param.kind {
            ParamKind::Tensor(tensor) => tensor,
            ParamKind::Scalar(scalar) => {
                let bits = input(*scalar, tame, &param.name, 3);
                arguments.push(Argument::Scalar(Const {
                    scalar: *scalar,
                    bits,
                }));
                views.push(None);
                continue;
            }
        };
        // A parameter that may be another one is the same view.
        let other = tensor.may_alias.iter().find(|p| p.index() < index);
        let same = other.and_then(|p| views[p.index()].clone());
        let view = match same {
            Some(view) => view,
            None => filled(device, tensor, &param.name, &bindings, tame)?,
        };
        arguments.push(Argument::Tensor(view.tensor_arg()));
        if tensor.access == Access::ReadWrite {
            outputs.push((param.name.to_string(), tensor.scalar, view.clone()));
        }
        views.push(Some(view));
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

/// A tensor for a parameter: rows of two dimensions have a gap, elements of a strided one too,
/// and the view begins inside its buffer. What is only written holds a sentinel.
fn filled(
    device: &Arc<dyn Device>,
    tensor: &TensorData,
    name: &str,
    bindings: &Bindings,
    tame: bool,
) -> Result<Tensor, DeviceError> {
    let shape: Vec<u64> = tensor
        .shape
        .iter()
        .map(|extent| extent.eval(bindings).unwrap_or(0) as u64)
        .collect();
    let align = u64::from(tensor.align);
    let step = if tensor.layout == TensorLayout::Strided {
        2
    } else {
        1
    };
    let mut strides = vec![step; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        let gap = if axis + 2 == shape.len() { align } else { 0 };
        strides[axis] = strides[axis + 1] * shape[axis + 1].next_multiple_of(align) + gap;
    }
    let elements: u64 = shape.iter().product();
    let offset_of = |i: u64| {
        let (mut rest, mut offset) = (i, align);
        for axis in (0..shape.len()).rev() {
            offset += rest % shape[axis] * strides[axis];
            rest /= shape[axis];
        }
        offset
    };
    let size = tensor.scalar.bytes() as usize;
    let span = elements
        .checked_sub(1)
        .map_or(1, |last| offset_of(last) + 1);
    let mut bytes = vec![1u8; span as usize * size];
    let only_written = name.starts_with(['y', 'f', 'u', 'k']) || name == "cells";
    for i in 0..elements {
        let bits = if only_written {
            0x0101_0101_0101_0101
        } else if name.starts_with('t') {
            let whole = (i * 7 + 3) % 9;
            iron_ir::testing::round_to(tensor.scalar, whole as f64 - 4.0)
        } else {
            // Both names of one memory give one content.
            input(tensor.scalar, tame, &name.replacen('o', "i", 1), i)
        };
        let at = offset_of(i) as usize * size;
        bytes[at..at + size].copy_from_slice(&bits.to_le_bytes()[..size]);
    }
    Tensor::from_bytes(device, tensor.scalar, &[span], &bytes)?
        .with_strides(&shape, &strides)?
        .with_offset(align)
}

/// Element `i` of the input of that name: an edge value, or anything.
fn input(scalar: Scalar, tame: bool, name: &str, i: u64) -> u64 {
    let seed = name
        .bytes()
        .fold(0u64, |sum, byte| sum * 31 + u64::from(byte));
    let mut random = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (seed + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    random = (random ^ random >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    random ^= random >> 32;
    let edges = fuzz::edges(scalar, tame);
    if scalar == Scalar::Bool || random.is_multiple_of(3) {
        return edges[(random >> 8) as usize % edges.len()];
    }
    let mask = u64::MAX >> (64 - scalar.bits());
    if !scalar.is_float() {
        return random >> 7 & mask;
    }
    let number = ((random >> 11 & 0xffff) as f64 / 65536.0 - 0.5) * 200.0;
    let number = if number.abs() < 0.01 { 0.5 } else { number };
    iron_ir::testing::round_to(scalar, number)
}
