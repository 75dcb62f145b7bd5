//! Checking a launch against the contract, on the host, before anything is queued.
//!
//! [`check`] is the one place where a launch is accepted: every backend, the typed launchers
//! and the untyped one go through it.

#[cfg(test)]
mod tests;

use std::any::Any;
use std::sync::Arc;

use crate::contract::{Bindings, Expr};
use crate::entity::{Handle, Param};
use crate::kernel::{Access, Kernel, ParamKind, TensorData, TensorLayout};
use crate::layout::{BlockLayout, FieldKind};
use crate::op::Const;
use crate::types::Scalar;

/// Memory of some device, as a launch sees it.
pub trait DeviceBuffer: Any + Send + Sync {
    /// Size.
    fn bytes(&self) -> u64;
    /// Alignment of the base address, in bytes.
    fn alignment(&self) -> u64 {
        256
    }
    /// For the backend, which takes only its own.
    fn as_any(&self) -> &dyn Any;
}

/// A tensor view handed to a launch.
#[derive(Clone)]
pub struct TensorArg {
    /// Memory.
    pub buffer: Arc<dyn DeviceBuffer>,
    /// Element type.
    pub scalar: Scalar,
    /// Extent of each dimension.
    pub shape: Vec<u64>,
    /// Stride of each dimension, in elements.
    pub strides: Vec<u64>,
    /// First element, in elements from the buffer's start.
    pub offset: u64,
}

/// Anything that can be handed to a launch as a tensor.
pub trait AsTensorArg {
    /// The view.
    fn tensor_arg(&self) -> TensorArg;
}

impl AsTensorArg for TensorArg {
    fn tensor_arg(&self) -> TensorArg {
        self.clone()
    }
}

impl<T: AsTensorArg + ?Sized> AsTensorArg for &T {
    fn tensor_arg(&self) -> TensorArg {
        (**self).tensor_arg()
    }
}

/// One argument, in the order of the kernel's parameters.
#[derive(Clone)]
pub enum Argument {
    /// A tensor view.
    Tensor(TensorArg),
    /// A scalar.
    Scalar(Const),
}

/// A launch by name, as typed launchers make it.
#[derive(Clone)]
pub struct LaunchRequest {
    /// Kernel.
    pub kernel: &'static str,
    /// Module of the kernel, which makes the name unambiguous.
    pub module: &'static str,
    /// Instance: the name that the const and type parameters give.
    pub instance: String,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
}

/// What the device and the compiled pipeline allow.
#[derive(Clone, Copy, Debug)]
pub struct LaunchLimits {
    /// Workgroups along each axis.
    pub max_grid: [u64; 3],
    /// Threads of a workgroup along each axis.
    pub max_workgroup: [u32; 3],
    /// Threads of a workgroup, of this pipeline where it is known.
    pub max_threads: u32,
    /// Bytes of one tensor's extent.
    pub max_buffer_bytes: u64,
    /// Workgroups of a cooperative launch, which all run at once: of this pipeline where it is
    /// known.
    pub max_resident: u64,
}

/// A launch that the contract accepts.
#[derive(Clone, Debug)]
pub struct CheckedLaunch {
    /// Dimensions and integer scalars.
    pub bindings: Bindings,
    /// Workgroups along x, y, z.
    pub grid: [u32; 3],
    /// The parameter block with zeros where addresses go.
    pub block: Vec<u8>,
    /// Some grid axis or every output is empty: nothing is to run.
    pub is_empty: bool,
}

/// Why a launch is refused. Every message is one line with kernel, parameter and both values.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ContractError {
    /// Wrong number of arguments.
    #[error("kernel `{kernel}`: takes {expected} arguments, got {found}")]
    ArgumentCount {
        /// Kernel.
        kernel: String,
        /// Declared.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// A tensor where a scalar is declared, or the reverse, or the wrong scalar type.
    #[error("kernel `{kernel}`, parameter `{param}`: expected {expected}, got {found}")]
    Kind {
        /// Kernel.
        kernel: String,
        /// Parameter.
        param: String,
        /// Declared.
        expected: String,
        /// Given.
        found: String,
    },
    /// Wrong rank.
    #[error("kernel `{kernel}`, parameter `{param}`: expected rank {expected}, got {found}")]
    Rank {
        /// Kernel.
        kernel: String,
        /// Parameter.
        param: String,
        /// Declared.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// A dimension disagrees with an earlier one or with its formula.
    #[error(
        "kernel `{kernel}`, parameter `{param}`: dimension {axis} (`{dim}`) is {found}, \
         but `{dim}` is {expected} ({source_text})"
    )]
    Dimension {
        /// Kernel.
        kernel: String,
        /// Parameter.
        param: String,
        /// Axis.
        axis: usize,
        /// Name or formula.
        dim: String,
        /// Value bound earlier.
        expected: i128,
        /// Given.
        found: u64,
        /// Which argument bound the earlier value.
        source_text: String,
    },
    /// A dimension of 2^31 or more.
    #[error(
        "kernel `{kernel}`, parameter `{param}`: dimension {axis} is {found}, the limit is {limit}"
    )]
    DimensionTooLarge {
        /// Kernel.
        kernel: String,
        /// Parameter.
        param: String,
        /// Axis.
        axis: usize,
        /// Given.
        found: u64,
        /// Largest allowed.
        limit: u64,
    },
    /// The last dimension of a row-major tensor is strided.
    #[error(
        "kernel `{kernel}`, parameter `{param}`: the last dimension must have stride 1, got {found}"
    )]
    LastStride {
        /// Kernel.
        kernel: String,
        /// Parameter.
        param: String,
        /// Given.
        found: u64,
    },
    /// The view reaches past its buffer.
    #[error(
        "kernel `{kernel}`, parameter `{param}`: the view needs {needed} bytes, the buffer has {bytes}"
    )]
    OutOfBuffer {
        /// Kernel.
        kernel: String,
        /// Parameter.
        param: String,
        /// End of the view in bytes.
        needed: u128,
        /// Size of the buffer.
        bytes: u64,
    },
    /// The base or a stride is not a multiple of what vector accesses need.
    #[error(
        "kernel `{kernel}`, parameter `{param}`: {what} is {found} elements, \
         not a multiple of {align}"
    )]
    Misaligned {
        /// Kernel.
        kernel: String,
        /// Parameter.
        param: String,
        /// `offset` or `stride of dimension N`.
        what: String,
        /// Given.
        found: u64,
        /// Needed.
        align: u8,
    },
    /// A writable view overlaps another argument.
    #[error(
        "kernel `{kernel}`: writable `{param}` (bytes {start}..{end}) overlaps `{other}` \
         (bytes {other_start}..{other_end} of the same buffer)"
    )]
    Overlap {
        /// Kernel.
        kernel: String,
        /// The `&mut` parameter.
        param: String,
        /// The other.
        other: String,
        /// First byte.
        start: u128,
        /// Past the last byte.
        end: u128,
        /// First byte.
        other_start: u128,
        /// Past the last byte.
        other_end: u128,
    },
    /// Two elements of a writable view share memory.
    #[error(
        "kernel `{kernel}`, parameter `{param}`: writable view overlaps itself: \
         dimension {axis} has stride {stride} but {needed} elements lie below it"
    )]
    SelfOverlap {
        /// Kernel.
        kernel: String,
        /// Parameter.
        param: String,
        /// Axis.
        axis: usize,
        /// Given.
        stride: u64,
        /// Least stride without overlap.
        needed: u128,
    },
    /// A `requires` fact does not hold.
    #[error(
        "kernel `{kernel}`: requires `{fact}`, but the left side is {lhs} and the right side {rhs}"
    )]
    Requires {
        /// Kernel.
        kernel: String,
        /// The fact in the author's words.
        fact: String,
        /// Value of the left side.
        lhs: i128,
        /// Value of the right side.
        rhs: i128,
    },
    /// A formula of the contract has no value.
    #[error("kernel `{kernel}`: `{formula}` has no value (division by zero or overflow)")]
    NoValue {
        /// Kernel.
        kernel: String,
        /// Formula.
        formula: String,
    },
    /// The grid is too large or negative.
    #[error("kernel `{kernel}`: grid axis {axis} is {found}, this device allows 0 to {limit}")]
    Grid {
        /// Kernel.
        kernel: String,
        /// 0, 1, 2.
        axis: usize,
        /// Given.
        found: i128,
        /// Largest allowed.
        limit: u64,
    },
    /// The workgroup is too large for the device or the pipeline.
    #[error(
        "kernel `{kernel}`: workgroup of {found} threads ({axes}), this device and pipeline allow {limit}"
    )]
    Workgroup {
        /// Kernel.
        kernel: String,
        /// Threads.
        found: u64,
        /// As `256×1×1`.
        axes: String,
        /// Largest allowed.
        limit: u64,
    },
    /// More workgroups would wait for each other than run at once.
    #[error(
        "kernel `{kernel}`: its {found} workgroups wait for each other at grid barriers, this device and pipeline run {limit} at once; launch fewer"
    )]
    Resident {
        /// Kernel.
        kernel: String,
        /// Workgroups.
        found: u64,
        /// Most that run at once.
        limit: u64,
    },
    /// A view is larger than the device can address.
    #[error(
        "kernel `{kernel}`, parameter `{param}`: the view spans {bytes} bytes, this device addresses {limit}"
    )]
    BufferTooLarge {
        /// Kernel.
        kernel: String,
        /// Parameter.
        param: String,
        /// Extent.
        bytes: u128,
        /// Largest allowed.
        limit: u64,
    },
}

/// Checks a launch and lays out its parameter block.
pub fn check(
    kernel: &Kernel,
    arguments: &[Argument],
    limits: &LaunchLimits,
) -> Result<CheckedLaunch, ContractError> {
    let name = || kernel.full_name();
    if arguments.len() != kernel.params.len() {
        let (expected, found) = (kernel.params.len(), arguments.len());
        return Err(ContractError::ArgumentCount {
            kernel: name(),
            expected,
            found,
        });
    }
    let mut dims: Vec<Option<(u32, String)>> = vec![None; kernel.dims.len()];
    let mut scalars = vec![None; kernel.params.len()];
    let mut views: Vec<(Param, &TensorData, &TensorArg)> = Vec::new();
    for ((param, data), argument) in kernel.params.iter().zip(arguments) {
        let kind_error = |expected: String, found: String| ContractError::Kind {
            kernel: name(),
            param: data.name.to_string(),
            expected,
            found,
        };
        match (&data.kind, argument) {
            (ParamKind::Tensor(tensor), Argument::Tensor(view)) => {
                if view.scalar != tensor.scalar {
                    let (expected, found) = (tensor.scalar, view.scalar);
                    return Err(kind_error(
                        format!("a tensor of {expected}"),
                        format!("{found}"),
                    ));
                }
                let (expected, found) = (tensor.shape.len(), view.shape.len());
                if expected != found || view.strides.len() != found {
                    let param = data.name.to_string();
                    return Err(ContractError::Rank {
                        kernel: name(),
                        param,
                        expected,
                        found,
                    });
                }
                for (axis, (expr, &extent)) in tensor.shape.iter().zip(&view.shape).enumerate() {
                    const LIMIT: u64 = (1 << 31) - 1;
                    if extent > LIMIT {
                        return Err(ContractError::DimensionTooLarge {
                            kernel: name(),
                            param: data.name.to_string(),
                            axis,
                            found: extent,
                            limit: LIMIT,
                        });
                    }
                    if let Expr::Dim(dim) = expr {
                        let slot = &mut dims[dim.index()];
                        if slot.is_none() {
                            *slot = Some((extent as u32, format!("bound by `{}`", data.name)));
                        }
                    }
                }
                views.push((param, tensor, view));
            }
            (ParamKind::Scalar(scalar), Argument::Scalar(value)) => {
                if value.scalar != *scalar {
                    return Err(kind_error(scalar.to_string(), value.scalar.to_string()));
                }
                scalars[param.index()] = match scalar {
                    Scalar::I32 => Some(i128::from(value.bits as u32 as i32)),
                    Scalar::I64 => Some(i128::from(value.bits as i64)),
                    Scalar::U32 | Scalar::U64 => Some(i128::from(value.bits)),
                    _ => None,
                };
            }
            (ParamKind::Tensor(tensor), Argument::Scalar(value)) => {
                let found = format!("a scalar {}", value.scalar);
                return Err(kind_error(format!("a tensor of {}", tensor.scalar), found));
            }
            (ParamKind::Scalar(scalar), Argument::Tensor(view)) => {
                let found = format!("a tensor of {}", view.scalar);
                return Err(kind_error(scalar.to_string(), found));
            }
        }
    }
    let bindings = Bindings {
        dims: dims.iter().map(|d| d.as_ref().map_or(0, |d| d.0)).collect(),
        scalars,
    };
    for (param, tensor, view) in &views {
        check_view(kernel, *param, tensor, view, &bindings, &dims, limits)?;
    }
    check_overlaps(kernel, &views)?;
    for fact in &kernel.contract.requires {
        let text = fact.display(kernel).to_string();
        let Some((holds, lhs, rhs)) = fact.eval(&bindings) else {
            return Err(ContractError::NoValue {
                kernel: name(),
                formula: text,
            });
        };
        if !holds {
            return Err(ContractError::Requires {
                kernel: name(),
                fact: text,
                lhs,
                rhs,
            });
        }
    }
    let grid = check_grid(kernel, &bindings, limits)?;
    let no_output = views
        .iter()
        .filter(|(_, tensor, _)| tensor.access == Access::ReadWrite)
        .all(|(_, _, view)| view.shape.contains(&0));
    let is_empty = grid.contains(&0) || no_output;
    let block = write_block(kernel, arguments, &bindings);
    Ok(CheckedLaunch {
        bindings,
        grid,
        block,
        is_empty,
    })
}

fn check_view(
    kernel: &Kernel,
    param: Param,
    tensor: &TensorData,
    view: &TensorArg,
    bindings: &Bindings,
    dims: &[Option<(u32, String)>],
    limits: &LaunchLimits,
) -> Result<(), ContractError> {
    let name = || kernel.full_name();
    let param_name = || kernel.params[param].name.to_string();
    for (axis, (expr, &found)) in tensor.shape.iter().zip(&view.shape).enumerate() {
        let text = expr.display(kernel).to_string();
        let Some(expected) = expr.eval(bindings) else {
            return Err(ContractError::NoValue {
                kernel: name(),
                formula: text,
            });
        };
        if expected != i128::from(found) {
            let source_text = match expr {
                Expr::Dim(dim) => dims[dim.index()]
                    .as_ref()
                    .map_or(String::new(), |d| d.1.clone()),
                Expr::Const(_) => "a constant of the kernel".into(),
                Expr::Scalar(_) | Expr::Binary(..) => "by its formula".into(),
            };
            return Err(ContractError::Dimension {
                kernel: name(),
                param: param_name(),
                axis,
                dim: text,
                expected,
                found,
                source_text,
            });
        }
    }
    let rank = view.shape.len();
    if tensor.layout == TensorLayout::RowMajor
        && rank > 0
        && view.strides[rank - 1] != 1
        && view.shape[rank - 1] > 1
    {
        let found = view.strides[rank - 1];
        return Err(ContractError::LastStride {
            kernel: name(),
            param: param_name(),
            found,
        });
    }
    let (start, end) = byte_range(view);
    if end > u128::from(view.buffer.bytes()) {
        return Err(ContractError::OutOfBuffer {
            kernel: name(),
            param: param_name(),
            needed: end,
            bytes: view.buffer.bytes(),
        });
    }
    if end.saturating_sub(start) > u128::from(limits.max_buffer_bytes) {
        return Err(ContractError::BufferTooLarge {
            kernel: name(),
            param: param_name(),
            bytes: end - start,
            limit: limits.max_buffer_bytes,
        });
    }
    let align = u64::from(tensor.align.max(1));
    let misaligned = |what: String, found: u64| ContractError::Misaligned {
        kernel: name(),
        param: param_name(),
        what,
        found,
        align: tensor.align,
    };
    let size = u64::from(view.scalar.bytes());
    if !view.buffer.alignment().is_multiple_of(align * size) {
        let base = view.buffer.alignment() / size;
        return Err(misaligned("the base address".into(), base));
    }
    if !view.offset.is_multiple_of(align) {
        return Err(misaligned("the offset".into(), view.offset));
    }
    // The strides of an empty view address nothing.
    let is_empty = view.shape.contains(&0);
    for axis in 0..rank.saturating_sub(1) {
        if !is_empty && view.shape[axis] > 1 && !view.strides[axis].is_multiple_of(align) {
            return Err(misaligned(
                format!("the stride of dimension {axis}"),
                view.strides[axis],
            ));
        }
    }
    if tensor.access == Access::ReadWrite && !view.shape.contains(&0) {
        let mut axes: Vec<usize> = (0..rank).filter(|&a| view.shape[a] > 1).collect();
        axes.sort_by_key(|&a| view.strides[a]);
        let mut needed: u128 = 1;
        for axis in axes {
            let stride = view.strides[axis];
            if u128::from(stride) < needed {
                return Err(ContractError::SelfOverlap {
                    kernel: name(),
                    param: param_name(),
                    axis,
                    stride,
                    needed,
                });
            }
            needed += u128::from(view.shape[axis] - 1) * u128::from(stride);
        }
    }
    Ok(())
}

/// First byte and one past the last byte that a view may touch; empty views are `start..start`.
pub fn byte_range(view: &TensorArg) -> (u128, u128) {
    let size = u128::from(view.scalar.bytes());
    let start = u128::from(view.offset) * size;
    if view.shape.contains(&0) {
        return (start, start);
    }
    let last: u128 = view
        .shape
        .iter()
        .zip(&view.strides)
        .map(|(&n, &stride)| u128::from(n - 1) * u128::from(stride))
        .sum();
    (start, start + (last + 1) * size)
}

fn check_overlaps(
    kernel: &Kernel,
    views: &[(Param, &TensorData, &TensorArg)],
) -> Result<(), ContractError> {
    for (i, (param, tensor, view)) in views.iter().enumerate() {
        if tensor.access != Access::ReadWrite {
            continue;
        }
        let (start, end) = byte_range(view);
        for (j, (other, other_tensor, other_view)) in views.iter().enumerate() {
            let same_buffer =
                std::ptr::addr_eq(Arc::as_ptr(&view.buffer), Arc::as_ptr(&other_view.buffer));
            if i == j || !same_buffer {
                continue;
            }
            let (other_start, other_end) = byte_range(other_view);
            if start >= other_end || other_start >= end {
                continue;
            }
            let in_place =
                tensor.may_alias.contains(other) || other_tensor.may_alias.contains(param);
            let same_view = view.offset == other_view.offset
                && view.shape == other_view.shape
                && view.strides == other_view.strides;
            if !(in_place && same_view) {
                return Err(ContractError::Overlap {
                    kernel: kernel.full_name(),
                    param: kernel.params[*param].name.to_string(),
                    other: kernel.params[*other].name.to_string(),
                    start,
                    end,
                    other_start,
                    other_end,
                });
            }
        }
    }
    Ok(())
}

fn check_grid(
    kernel: &Kernel,
    bindings: &Bindings,
    limits: &LaunchLimits,
) -> Result<[u32; 3], ContractError> {
    let mut grid = [0u32; 3];
    for (axis, expr) in kernel.contract.grid.iter().enumerate() {
        let Some(found) = expr.eval(bindings) else {
            let formula = expr.display(kernel).to_string();
            return Err(ContractError::NoValue {
                kernel: kernel.full_name(),
                formula,
            });
        };
        let limit = limits.max_grid[axis].min(u64::from(u32::MAX));
        if found < 0 || found > i128::from(limit) {
            return Err(ContractError::Grid {
                kernel: kernel.full_name(),
                axis,
                found,
                limit,
            });
        }
        grid[axis] = found as u32;
    }
    let workgroup = kernel.contract.workgroup;
    let axes = format!("{}×{}×{}", workgroup[0], workgroup[1], workgroup[2]);
    let refuse = |found: u64, limit: u64| ContractError::Workgroup {
        kernel: kernel.full_name(),
        found,
        axes: axes.clone(),
        limit,
    };
    for (found, limit) in workgroup.into_iter().zip(limits.max_workgroup) {
        if found > limit {
            return Err(refuse(u64::from(found), u64::from(limit)));
        }
    }
    let threads: u64 = workgroup.iter().map(|&n| u64::from(n)).product();
    if threads > u64::from(limits.max_threads) {
        return Err(refuse(threads, u64::from(limits.max_threads)));
    }
    let count = grid.iter().map(|&n| u64::from(n));
    let count = count.fold(1, u64::saturating_mul);
    if kernel.contract.cooperative && count > limits.max_resident {
        return Err(ContractError::Resident {
            kernel: kernel.full_name(),
            found: count,
            limit: limits.max_resident,
        });
    }
    Ok(grid)
}

fn write_block(kernel: &Kernel, arguments: &[Argument], bindings: &Bindings) -> Vec<u8> {
    let layout = BlockLayout::of(kernel);
    let mut block = vec![0u8; layout.bytes as usize];
    for field in &layout.fields {
        let bits = match field.kind {
            FieldKind::TensorMap(..) => continue,
            FieldKind::Address(_) | FieldKind::ErrorWord | FieldKind::Aligned => 0,
            FieldKind::Dim(dim) => u64::from(bindings.dims[dim.index()]),
            FieldKind::Stride(param, axis) => match &arguments[param.index()] {
                Argument::Tensor(view) => view.strides[usize::from(axis)],
                Argument::Scalar(_) => 0,
            },
            FieldKind::Scalar(param) => match &arguments[param.index()] {
                Argument::Scalar(value) => value.bits,
                Argument::Tensor(_) => 0,
            },
        };
        let at = field.offset as usize;
        let size = field.scalar.bytes() as usize;
        block[at..at + size].copy_from_slice(&bits.to_le_bytes()[..size]);
    }
    block
}
