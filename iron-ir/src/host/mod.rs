//! Native execution of kernels: the author's own body as rustc compiled it, over the executable
//! types of [`crate::lang`]. A workgroup's threads are fibers of one OS thread that meet at
//! barriers and group operations; workgroups run one after the other, so results are the same
//! in every run.
//!
//! This execution shares nothing with the translation of bodies to IR, which makes it the
//! oracle of that translation, and the place for a breakpoint or a print.

pub(crate) mod context;
mod fiber;
mod stack;

use std::any::Any;
use std::cell::RefCell;

use crate::contract::Bindings;
use crate::kernel::Kernel;
use crate::lang::{Element, ScalarArgument, StridedTensor, Tensor};
use crate::op::Const;
use crate::types::Scalar;

pub use fiber::run;
pub use stack::FiberStack;

/// Runs one thread of a kernel natively. `#[kernel]` generates one for each listed instance.
pub type HostBody = for<'a> fn(&mut HostArgs<'a>);

/// A broken rule of the kernel language, found while a kernel ran natively.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// One line: what, both values, the author's line, workgroup and thread.
    pub message: String,
}

/// A tensor argument of a native launch.
#[derive(Clone, Debug)]
pub struct HostTensor {
    /// Address of the view's first element.
    pub base: *mut u8,
    /// Element type.
    pub scalar: Scalar,
    /// Extent of each dimension.
    pub shape: Vec<u32>,
    /// Stride of each dimension, in elements.
    pub strides: Vec<u64>,
}

/// One argument of a native launch.
#[derive(Clone, Debug)]
pub enum HostArgument {
    /// A tensor.
    Tensor(HostTensor),
    /// A scalar.
    Scalar(Const),
}

/// A native launch whose contract was checked by [`crate::launch::check`].
pub struct HostLaunch<'a> {
    /// The kernel, for names and the workgroup's size.
    pub kernel: &'a Kernel,
    /// The author's body.
    pub body: HostBody,
    /// Workgroups along each axis.
    pub grid: [u32; 3],
    /// Values of the dimensions.
    pub bindings: &'a Bindings,
    /// Arguments, one a parameter.
    pub arguments: Vec<HostArgument>,
    /// Lanes of a subgroup: 4, 8, 16, 32 or 64.
    pub subgroup_size: u32,
}

/// What a launch leaves beside its outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostReport {
    /// The author's line of the first `index_in` that was out of range.
    pub index_out_of_range: Option<u32>,
}

/// Tensor handles of one thread.
#[derive(Default)]
pub(crate) struct Handles(RefCell<Vec<Box<dyn Any>>>);

/// The arguments as one thread sees them. Every thread makes its own handles, so a `&mut`
/// tensor is unique within its thread.
pub struct HostArgs<'a> {
    launch: &'a HostLaunch<'a>,
    handles: &'a Handles,
}

impl<'a> HostArgs<'a> {
    /// The tensor of parameter `index`, of which the last dimension has stride 1.
    pub fn tensor<T: Element, const R: usize>(&self, index: usize) -> &'a Tensor<T, R> {
        self.keep(Tensor::from_host(self.raw(index), self.names(index)))
    }

    /// As [`tensor`](HostArgs::tensor), writable.
    pub fn tensor_mut<T: Element, const R: usize>(&self, index: usize) -> &'a mut Tensor<T, R> {
        self.keep(Tensor::from_host(self.raw(index), self.names(index)))
    }

    /// The tensor of parameter `index`, with any stride in each dimension.
    pub fn strided<T: Element, const R: usize>(&self, index: usize) -> &'a StridedTensor<T, R> {
        self.keep(StridedTensor::from_host(self.raw(index), self.names(index)))
    }

    /// As [`strided`](HostArgs::strided), writable.
    pub fn strided_mut<T: Element, const R: usize>(
        &self,
        index: usize,
    ) -> &'a mut StridedTensor<T, R> {
        self.keep(StridedTensor::from_host(self.raw(index), self.names(index)))
    }

    /// The scalar of parameter `index`.
    pub fn scalar<S: ScalarArgument>(&self, index: usize) -> S {
        match &self.launch.arguments[index] {
            HostArgument::Scalar(value) => S::from_const(value.bits),
            HostArgument::Tensor(_) => panic!("parameter {index} is a tensor, not a scalar"),
        }
    }

    /// The value of the named dimension `index`, in the order of [`Kernel::dims`].
    pub fn dim(&self, index: usize) -> u32 {
        self.launch.bindings.dims[index]
    }

    fn raw(&self, index: usize) -> &HostTensor {
        match &self.launch.arguments[index] {
            HostArgument::Tensor(tensor) => tensor,
            HostArgument::Scalar(_) => panic!("parameter {index} is a scalar, not a tensor"),
        }
    }

    fn names(&self, index: usize) -> crate::lang::TensorNames {
        let kernel = self.launch.kernel;
        let param = kernel.params.values().nth(index).map(|p| p.name.clone());
        crate::lang::TensorNames {
            param: param.unwrap_or_default(),
        }
    }

    fn keep<H: 'static>(&self, handle: H) -> &'a mut H {
        let mut boxed = Box::new(handle);
        let pointer: *mut H = &mut *boxed;
        self.handles.0.borrow_mut().push(boxed);
        // SAFETY: the box lives in `handles`, which outlives 'a and never moves or drops its
        // contents before; this is the only reference to this handle.
        unsafe { &mut *pointer }
    }
}
