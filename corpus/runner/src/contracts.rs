//! Contract tests, made from a case that works: each breach must be refused, and for its own
//! reason.

use std::sync::Arc;

use iron_ir::contract::{Bindings, Expr, Fact};
use iron_ir::kernel::{Access, Kernel, ParamKind, TensorData};
use iron_ir::launch::{self, Argument, ContractError, TensorArg};
use iron_ir::testing::Case;
use iron_ir::{Handle, Scalar};
use iron_runtime::{Device, DeviceError, Pipeline};

use crate::layouts::{Variant, contiguous_bytes, place, scratch};

/// Whether breaches can be made from the case: nothing in it is empty.
pub(crate) fn is_suitable(case: &Case) -> bool {
    case.params.iter().all(|p| !p.shape.contains(&0))
}

/// Makes every breach; what was wrongly accepted, or refused for another reason.
pub(crate) fn check(
    device: &Arc<dyn Device>,
    pipeline: &Arc<dyn Pipeline>,
    kernel: &Kernel,
    case: &Case,
) -> Vec<String> {
    let (arguments, _) = match place(device, kernel, case, Variant::Contiguous) {
        Ok(placed) => placed,
        Err(error) => return vec![error.to_string()],
    };
    let mut breaches = Breaches {
        device,
        pipeline,
        kernel,
        arguments,
        wrong: Vec::new(),
    };
    breaches.dtypes_and_ranks();
    breaches.dimensions();
    if let Err(error) = breaches.overlaps() {
        breaches.wrong.push(error.to_string());
    }
    if let Err(error) = breaches.facts() {
        breaches.wrong.push(error.to_string());
    }
    breaches.wrong
}

struct Breaches<'a> {
    device: &'a Arc<dyn Device>,
    pipeline: &'a Arc<dyn Pipeline>,
    kernel: &'a Kernel,
    arguments: Vec<Argument>,
    wrong: Vec<String>,
}

impl Breaches<'_> {
    /// The tensor parameters with their arguments.
    fn tensors(&self) -> Vec<(usize, TensorData, TensorArg)> {
        let pairs = self.kernel.params.iter().zip(&self.arguments);
        pairs
            .filter_map(|((param, data), argument)| match (&data.kind, argument) {
                (ParamKind::Tensor(tensor), Argument::Tensor(view)) => {
                    Some((param.index(), tensor.clone(), view.clone()))
                }
                _ => None,
            })
            .collect()
    }

    fn name(&self, index: usize) -> String {
        let param = self.kernel.params.values().nth(index);
        param.map_or_else(String::new, |p| p.name.to_string())
    }

    /// The arguments with one replaced.
    fn with(&self, index: usize, view: TensorArg) -> Vec<Argument> {
        let mut arguments = self.arguments.clone();
        arguments[index] = Argument::Tensor(view);
        arguments
    }

    fn refuse(&mut self, arguments: &[Argument], what: &str, right: fn(&ContractError) -> bool) {
        match check_launch(self.pipeline, arguments) {
            Ok(()) => self.wrong.push(format!("accepted a launch with {what}")),
            Err(error) if right(&error) => {}
            Err(error) => self.wrong.push(format!(
                "refused a launch with {what}, but for this: {error}"
            )),
        }
    }

    fn dtypes_and_ranks(&mut self) {
        for (index, _, view) in self.tensors() {
            let name = self.name(index);
            let mut other = view.clone();
            other.scalar = if view.scalar == Scalar::I16 {
                Scalar::U16
            } else {
                Scalar::I16
            };
            let arguments = self.with(index, other);
            self.refuse(&arguments, &format!("`{name}` of a wrong dtype"), |e| {
                matches!(e, ContractError::Kind { .. })
            });
            let mut other = view.clone();
            other.shape.insert(0, 1);
            other.strides.insert(0, 1);
            let arguments = self.with(index, other);
            self.refuse(&arguments, &format!("`{name}` of a wrong rank"), |e| {
                matches!(e, ContractError::Rank { .. })
            });
        }
    }

    /// Shortens one dimension of one tensor that another tensor has too.
    fn dimensions(&mut self) {
        let tensors = self.tensors();
        for (index, tensor, view) in &tensors {
            for (axis, expr) in tensor.shape.iter().enumerate() {
                let Expr::Dim(dim) = expr else { continue };
                let elsewhere = tensors.iter().any(|(other_index, other, _)| {
                    let mut axes = other.shape.iter().enumerate();
                    axes.any(|(a, e)| *e == Expr::Dim(*dim) && (*other_index, a) != (*index, axis))
                });
                if !elsewhere {
                    continue;
                }
                let mut other = view.clone();
                other.shape[axis] -= 1;
                let arguments = self.with(*index, other);
                let what = format!("`{}` shorter in dimension {axis}", self.name(*index));
                self.refuse(&arguments, &what, |e| {
                    matches!(e, ContractError::Dimension { .. })
                });
            }
        }
    }

    /// Puts another tensor on the memory of each writable one.
    fn overlaps(&mut self) -> Result<(), DeviceError> {
        let tensors = self.tensors();
        for (index, tensor, view) in &tensors {
            if tensor.access != Access::ReadWrite {
                continue;
            }
            for (other_index, other_tensor, other_view) in &tensors {
                let aliased =
                    |data: &TensorData, i: usize| data.may_alias.iter().any(|p| p.index() == i);
                if other_index == index
                    || aliased(tensor, *other_index)
                    || aliased(other_tensor, *index)
                {
                    continue;
                }
                let bytes = contiguous_bytes(&view.shape, view.scalar)
                    .max(contiguous_bytes(&other_view.shape, other_view.scalar));
                let buffer = scratch(self.device, bytes)?;
                let moved = |view: &TensorArg| TensorArg {
                    buffer: buffer.clone(),
                    offset: 0,
                    ..view.clone()
                };
                let mut arguments = self.with(*index, moved(view));
                arguments[*other_index] = Argument::Tensor(moved(other_view));
                let what = format!(
                    "`{}` on the memory of `{}`",
                    self.name(*other_index),
                    self.name(*index)
                );
                self.refuse(&arguments, &what, |e| {
                    matches!(e, ContractError::Overlap { .. })
                });
            }
        }
        Ok(())
    }

    /// Breaks each fact by another extent of one dimension, where one does it.
    fn facts(&mut self) -> Result<(), DeviceError> {
        let launch = launch::check(self.kernel, &self.arguments, &self.pipeline.limits())?;
        for fact in &self.kernel.contract.requires {
            let Some(bindings) = self.breach_of(fact, &launch.bindings) else {
                continue;
            };
            let Some(arguments) = self.resized(&bindings)? else {
                continue;
            };
            let what = format!("`{}` broken", fact.display(self.kernel));
            self.refuse(&arguments, &what, |e| {
                matches!(e, ContractError::Requires { .. })
            });
        }
        Ok(())
    }

    /// Bindings that break this fact, found by changing one dimension a little.
    fn breach_of(&self, fact: &Fact, bindings: &Bindings) -> Option<Bindings> {
        for dim in 0..bindings.dims.len() {
            let now = bindings.dims[dim];
            for other in [now + 1, now + 2, now.saturating_sub(1), 1, 0, 2 * now + 1] {
                let mut changed = bindings.clone();
                changed.dims[dim] = other;
                let broken = |f: &Fact| f.eval(&changed).is_some_and(|(holds, ..)| !holds);
                if other != now && broken(fact) {
                    return Some(changed);
                }
            }
        }
        None
    }

    /// The arguments with the extents of these bindings, on fresh memory; `None` where a shape
    /// has no value.
    fn resized(&self, bindings: &Bindings) -> Result<Option<Vec<Argument>>, DeviceError> {
        let mut arguments = self.arguments.clone();
        for (index, tensor, view) in self.tensors() {
            let mut shape = Vec::new();
            for expr in &tensor.shape {
                match expr.eval(bindings).and_then(|n| u64::try_from(n).ok()) {
                    Some(extent) if extent < 1 << 24 => shape.push(extent),
                    Some(_) | None => return Ok(None),
                }
            }
            let align = u64::from(tensor.align.max(1));
            let mut strides = vec![1; shape.len()];
            for axis in (0..shape.len().saturating_sub(1)).rev() {
                strides[axis] =
                    (strides[axis + 1] * shape[axis + 1].max(1)).next_multiple_of(align);
            }
            let bytes = shape.first().zip(strides.first()).map_or(1, |(n, s)| n * s)
                * u64::from(view.scalar.bytes());
            if bytes > 1 << 26 {
                return Ok(None);
            }
            arguments[index] = Argument::Tensor(TensorArg {
                buffer: scratch(self.device, bytes)?,
                scalar: view.scalar,
                shape,
                strides,
                offset: 0,
            });
        }
        Ok(Some(arguments))
    }
}

/// As recording a launch does, without making one.
fn check_launch(pipeline: &Arc<dyn Pipeline>, arguments: &[Argument]) -> Result<(), ContractError> {
    launch::check(pipeline.kernel(), arguments, &pipeline.limits()).map(|_| ())
}
