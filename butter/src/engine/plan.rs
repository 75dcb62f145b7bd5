//! Planning a step: launches over activations that have no place yet.
//!
//! Blocks declare activations and launch kernels on them in order. When the step is complete,
//! each activation's life is known (from the launch that first names it to the last), the
//! arena is laid out, and the launches are recorded against it. So the arena's size is known
//! before anything is recorded, and no block says by hand how long its activations live.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::op::Const;
use iron_runtime::device::RecordedLaunch;
use iron_runtime::{Device, Tensor, contiguous_strides};

use super::arena::{ArenaLayout, ArenaPlan};
use super::matrix::{Family, failed};
use super::route::Route;
use super::tuned::Tuned;
use crate::model::ModelError;

/// A view of an activation whose place is not known yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Activation {
    index: usize,
    scalar: Scalar,
    shape: Vec<u64>,
    strides: Vec<u64>,
    offset: u64,
}

impl Activation {
    /// Extent of each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The same elements in another shape; for a view without gaps.
    pub fn reshape(&self, shape: &[u64]) -> Self {
        debug_assert_eq!(self.elements(), shape.iter().product::<u64>());
        debug_assert!(self.elements() == 0 || self.strides == contiguous_strides(&self.shape));
        Self {
            shape: shape.to_vec(),
            strides: contiguous_strides(shape),
            ..self.clone()
        }
    }

    /// One dimension.
    pub fn flat(&self) -> Self {
        self.reshape(&[self.elements()])
    }

    /// Rows of `columns` elements.
    pub fn rows_of(&self, columns: u64) -> Self {
        self.reshape(&[self.elements() / columns.max(1), columns])
    }

    /// Columns `start..start + length` of a matrix.
    pub fn columns(&self, start: u64, length: u64) -> Self {
        debug_assert!(self.shape.len() == 2 && start + length <= self.shape[1]);
        Self {
            shape: vec![self.shape[0], length],
            offset: self.offset + start * self.strides[1],
            ..self.clone()
        }
    }

    /// The last dimension, in rows of `size` elements: `[rows, n * size]` as `[rows, n, size]`.
    pub fn split_last(&self, size: u64) -> Self {
        let (Some(&last), Some(&stride)) = (self.shape.last(), self.strides.last()) else {
            return self.clone();
        };
        let mut split = self.clone();
        split.shape.pop();
        split.strides.pop();
        split.shape.extend([last / size.max(1), size]);
        split.strides.extend([size * stride, stride]);
        split
    }

    /// The first two axes exchanged.
    pub fn transposed(&self) -> Self {
        let mut view = self.clone();
        view.shape.swap(0, 1);
        view.strides.swap(0, 1);
        view
    }
}

/// An argument of a planned launch.
#[derive(Clone)]
pub enum Operand {
    /// An activation.
    Activation(Activation),
    /// Anything that has its place.
    Fixed(Argument),
}

impl From<&Activation> for Operand {
    fn from(activation: &Activation) -> Self {
        Self::Activation(activation.clone())
    }
}

impl From<Activation> for Operand {
    fn from(activation: Activation) -> Self {
        Self::Activation(activation)
    }
}

impl From<&Tensor> for Operand {
    fn from(tensor: &Tensor) -> Self {
        Self::Fixed(Argument::Tensor(tensor.tensor_arg()))
    }
}

impl From<f32> for Operand {
    fn from(value: f32) -> Self {
        Self::Fixed(Argument::Scalar(Const {
            scalar: Scalar::F32,
            bits: u64::from(value.to_bits()),
        }))
    }
}

impl From<u32> for Operand {
    fn from(value: u32) -> Self {
        Self::Fixed(Argument::Scalar(Const {
            scalar: Scalar::U32,
            bits: u64::from(value),
        }))
    }
}

/// What products with packed weights read on the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProductInputs {
    /// The activations as they are.
    #[default]
    Exact,
    /// The activations rounded to 8 bits in blocks of 32, as llama.cpp does it.
    Q8,
}

/// An activation rounded to 8 bits (see the corpus's `affine_q8` module).
#[derive(Clone)]
pub struct RoundedActivation {
    /// `[rows, blocks]`, f32.
    pub scales: Activation,
    /// `[rows, blocks]`, f32.
    pub sums: Activation,
    /// `[rows, 8 * blocks]`, i32.
    pub quants: Activation,
}

/// The activation that was rounded last.
struct Rounded {
    of: Activation,
    /// Bits of the weights that it is rounded for.
    bits: usize,
    /// Launches so far, when nothing had written to it yet.
    launches: usize,
    rounded: RoundedActivation,
}

struct PlannedLaunch {
    family: Family,
    kernel: String,
    instance: String,
    operands: Vec<Operand>,
}

/// A step under construction.
pub struct Planner {
    /// Type of activations and cache.
    pub dtype: Scalar,
    /// Which kernels are chosen.
    pub route: Route,
    /// Whether the rows are a prompt's and the device has matrix units: products go by tiles.
    pub is_tiled: bool,
    /// Whether a prompt's attention takes the corpus's large tiles too.
    pub attends_by_large_tiles: bool,
    /// Whether the rows decode and share a reading of dense weights.
    pub is_shared: bool,
    /// Whether a multiprocessor has shared memory for two workgroups of the corpus's products whose
    /// weights are copied ahead.
    pub has_ahead: bool,
    /// Outputs that one launch of a product may have: workgroups along the grid's first axis.
    pub most_outputs: u64,
    /// `0, 1, 2, …`, where a prompt's packed weights are decoded to be multiplied by large tiles.
    pub row_numbers: Option<Tensor>,
    /// What was measured on the device.
    pub tuned: &'static Tuned,
    /// What products with packed weights read.
    pub product_inputs: ProductInputs,
    rounded: Option<Rounded>,
    bytes: Vec<u64>,
    kept: Vec<usize>,
    launches: Vec<PlannedLaunch>,
}

/// A planned step whose activations have their places.
pub struct PlacedStep {
    launches: Vec<PlannedLaunch>,
    layout: ArenaLayout,
    slots: Vec<super::arena::Slot>,
}

impl Planner {
    /// An empty step on activations of type `dtype`.
    pub fn new(dtype: Scalar, route: Route, product_inputs: ProductInputs) -> Self {
        Self {
            dtype,
            route,
            is_tiled: false,
            attends_by_large_tiles: false,
            is_shared: false,
            has_ahead: false,
            most_outputs: u64::MAX,
            row_numbers: None,
            tuned: Tuned::none(),
            product_inputs,
            rounded: None,
            bytes: Vec::new(),
            kept: Vec::new(),
            launches: Vec::new(),
        }
    }

    /// An activation of the step's type. What it holds before a launch writes it is undefined.
    pub fn activation(&mut self, shape: &[u64]) -> Activation {
        self.activation_of(self.dtype, shape)
    }

    /// An activation of a type of its own.
    pub fn activation_of(&mut self, scalar: Scalar, shape: &[u64]) -> Activation {
        let elements: u64 = shape.iter().product();
        self.bytes.push(elements * u64::from(scalar.bytes()));
        Activation {
            index: self.bytes.len() - 1,
            scalar,
            shape: shape.to_vec(),
            strides: contiguous_strides(shape),
            offset: 0,
        }
    }

    /// `x` rounded to 8 bits for weights of `bits` bits. Products that follow one another and read
    /// the same activation share the rounding; any other launch might change it.
    pub fn rounded(&mut self, x: &Activation, bits: usize) -> RoundedActivation {
        if let Some(last) = &self.rounded
            && last.of == *x
            && last.bits == bits
            && last.launches == self.launches.len()
        {
            return last.rounded.clone();
        }
        let (rows, blocks) = (x.shape()[0], x.shape()[1] / 32);
        let rounded = RoundedActivation {
            scales: self.activation_of(Scalar::F32, &[rows, blocks]),
            sums: self.activation_of(Scalar::F32, &[rows, blocks]),
            quants: self.activation_of(Scalar::I32, &[rows, 8 * blocks]),
        };
        let RoundedActivation {
            scales,
            sums,
            quants,
        } = &rounded;
        let operands = [x.into(), scales.into(), sums.into(), quants.into()];
        let suffix = format!("-BITS={bits}");
        self.launch(Family::AffineQ8, "quantize_q8", &suffix, operands);
        self.rounded = Some(Rounded {
            of: x.clone(),
            bits,
            launches: self.launches.len(),
            rounded: rounded.clone(),
        });
        rounded
    }

    /// Says that the last launch left the activation as it was that [`Self::rounded`] gave last.
    pub fn keep_rounded(&mut self) {
        if let Some(rounded) = &mut self.rounded {
            rounded.launches = self.launches.len();
        }
    }

    /// Whether any activation was rounded.
    pub fn has_rounded(&self) -> bool {
        self.rounded.is_some()
    }

    /// Keeps an activation until the step's end, to be read back.
    pub fn keep(&mut self, activation: &Activation) {
        self.kept.push(activation.index);
    }

    /// Launches the instance for the activations' type with `suffix` appended.
    pub fn launch(
        &mut self,
        family: Family,
        kernel: &str,
        suffix: &str,
        operands: impl IntoIterator<Item = Operand>,
    ) {
        let instance = format!("{}{suffix}", self.dtype);
        self.launch_instance(family, kernel, &instance, operands);
    }

    /// Launches a named instance.
    pub fn launch_instance(
        &mut self,
        family: Family,
        kernel: &str,
        instance: &str,
        operands: impl IntoIterator<Item = Operand>,
    ) {
        self.launches.push(PlannedLaunch {
            family,
            kernel: kernel.to_owned(),
            instance: instance.to_owned(),
            operands: operands.into_iter().collect(),
        });
    }

    /// Gives every activation its place.
    pub fn place(self) -> PlacedStep {
        let end = self.launches.len();
        let mut lives: Vec<Option<(usize, usize)>> = vec![None; self.bytes.len()];
        for (at, launch) in self.launches.iter().enumerate() {
            for operand in &launch.operands {
                if let Operand::Activation(activation) = operand {
                    let life = lives[activation.index].get_or_insert((at, at));
                    life.1 = at;
                }
            }
        }
        for index in self.kept {
            let life = lives[index].get_or_insert((end, end));
            life.1 = end;
        }
        let mut plan = ArenaPlan::default();
        let slots = self.bytes.iter().zip(lives).map(|(&bytes, life)| {
            // One that no launch names takes no room.
            let (bytes, (first, last)) = life.map_or((0, (0, 0)), |life| (bytes, life));
            plan.declare(bytes, first, last)
        });
        let slots = slots.collect();
        PlacedStep {
            launches: self.launches,
            layout: plan.place(),
            slots,
        }
    }
}

impl PlacedStep {
    /// Bytes of the arena that the step needs.
    pub fn arena_bytes(&self) -> u64 {
        self.layout.bytes
    }

    /// The tensor that an activation is, in an arena of at least [`Self::arena_bytes`].
    pub fn tensor(&self, arena: &Tensor, activation: &Activation) -> Result<Tensor, ModelError> {
        let mut view = arena.tensor_arg();
        let bytes = u64::from(activation.scalar.bytes());
        view.scalar = activation.scalar;
        view.shape = activation.shape.clone();
        view.strides = activation.strides.clone();
        view.offset = self.layout.offset(self.slots[activation.index]) / bytes + activation.offset;
        failed(Tensor::from_view(arena.device(), view))
    }

    /// Checks and records every launch.
    pub fn record(
        &self,
        device: &Arc<dyn Device>,
        arena: &Tensor,
    ) -> Result<Vec<RecordedLaunch>, ModelError> {
        let record = |planned: &PlannedLaunch| {
            let module = Some(planned.family.module());
            let pipeline = failed(iron_runtime::pipeline_of(
                device,
                &planned.kernel,
                module,
                &planned.instance,
            ))?;
            let argument = |operand: &Operand| match operand {
                Operand::Fixed(argument) => Ok(argument.clone()),
                Operand::Activation(activation) => {
                    let tensor = self.tensor(arena, activation)?;
                    Ok(Argument::Tensor(tensor.tensor_arg()))
                }
            };
            let arguments = planned.operands.iter().map(argument);
            let arguments = arguments.collect::<Result<_, ModelError>>()?;
            RecordedLaunch::new(pipeline, arguments).map_err(|e| ModelError::Device(e.to_string()))
        };
        self.launches.iter().map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(planner: &mut Planner, operands: &[&Activation]) {
        let operands = operands.iter().map(|activation| Operand::from(*activation));
        planner.launch(Family::Elementwise, "add", "", operands);
    }

    #[test]
    fn activations_share_bytes_only_when_their_lives_are_apart() {
        let mut planner = Planner::new(Scalar::F32, Route::Rows, ProductInputs::Exact);
        let [a, b, c, d] = [64, 64, 64, 64].map(|n| planner.activation(&[n]));
        launch(&mut planner, &[&a, &b]);
        launch(&mut planner, &[&b, &c]);
        launch(&mut planner, &[&c, &d]);
        planner.keep(&b);
        let step = planner.place();
        let offset = |x: &Activation| step.layout.offset(step.slots[x.index]);
        // `b` is kept to the end, so only `a` has left when `d` comes.
        assert_eq!(step.arena_bytes(), 3 * 256);
        assert_eq!(offset(&a), offset(&d).min(offset(&c)));
        let apart = [&b, &c, &d].map(offset);
        assert!(apart[0] != apart[1] && apart[1] != apart[2] && apart[0] != apart[2]);
    }
}
