//! Weights on a device, in the form that their kernels read, and the launches that read them.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::op::Const;
use iron_runtime::device::RecordedLaunch;
use iron_runtime::{Backend, Device, DeviceError, Tensor};

use super::pack::{BLOCK, PackedFormat, pack, pack_affine};
use crate::catalogue;
use crate::model::ModelError;

/// A weight matrix `[outputs, inputs]` on a device.
pub enum Matrix {
    /// Elements of the activations' type.
    Dense(Tensor),
    /// Planes of a block format.
    Packed {
        /// Which.
        format: PackedFormat,
        /// `[outputs, inputs / 32]`.
        scales: Tensor,
        /// `[outputs, words]`.
        quants: Tensor,
    },
    /// Planes of `d * q + m`, as processors read a block format.
    Affine {
        /// Bits of a quant.
        bits: usize,
        /// `[outputs, inputs / 32]`.
        d: Tensor,
        /// `[outputs, inputs / 32]`.
        m: Tensor,
        /// `[outputs, words]`.
        quants: Tensor,
    },
}

impl Matrix {
    /// Uploads a tensor: block formats as planes, floats in the activations' type.
    pub fn upload(
        device: &Arc<dyn Device>,
        tensor: &catalogue::Tensor,
        dtype: Scalar,
    ) -> Result<Matrix, ModelError> {
        let &[rows, columns] = tensor.shape() else {
            let message = format!(
                "tensor {} has shape {:?}, not two dimensions",
                tensor.name(),
                tensor.shape()
            );
            return Err(ModelError::Device(message));
        };
        let (rows, columns) = (rows as u64, columns as u64);
        if let Some(format) = PackedFormat::of(tensor.ty()) {
            let blocks = columns / BLOCK as u64;
            let words = blocks * format.quant_words() as u64;
            if device.backend() == Backend::Cpu {
                let planes = pack_affine(format, tensor.bytes());
                let scales = |values: &[f32]| {
                    failed(Tensor::from_slice(
                        device,
                        Scalar::F32,
                        &[rows, blocks],
                        values,
                    ))
                };
                let quants =
                    Tensor::from_slice(device, Scalar::U32, &[rows, words], &planes.quants);
                return Ok(Matrix::Affine {
                    bits: format.quant_bits(),
                    d: scales(&planes.d)?,
                    m: scales(&planes.m)?,
                    quants: failed(quants)?,
                });
            }
            let planes = pack(format, tensor.bytes());
            let scale = match format {
                PackedFormat::Q8_0 | PackedFormat::Q4_0 => Scalar::F16,
                PackedFormat::Q4_1 => Scalar::U32,
            };
            let scales = Tensor::from_bytes(device, scale, &[rows, blocks], &planes.scales);
            let quants = Tensor::from_slice(device, Scalar::U32, &[rows, words], &planes.quants);
            return Ok(Matrix::Packed {
                format,
                scales: failed(scales)?,
                quants: failed(quants)?,
            });
        }
        let values = tensor
            .to_f32()
            .map_err(|e| ModelError::Device(e.to_string()))?;
        Ok(Matrix::Dense(failed(Tensor::from_f32(
            device,
            dtype,
            &[rows, columns],
            &values,
        ))?))
    }
}

/// Uploads a vector in the activations' type.
pub fn upload_vector(
    device: &Arc<dyn Device>,
    tensor: &catalogue::Tensor,
    dtype: Scalar,
) -> Result<Tensor, ModelError> {
    let values = tensor
        .to_f32()
        .map_err(|e| ModelError::Device(e.to_string()))?;
    failed(Tensor::from_f32(
        device,
        dtype,
        &[values.len() as u64],
        &values,
    ))
}

/// A device error as a model error.
pub fn failed<T>(result: Result<T, DeviceError>) -> Result<T, ModelError> {
    result.map_err(|e| ModelError::Device(e.to_string()))
}

/// Records the launches of a step, by kernel name and instance.
pub struct Recorder<'d> {
    device: &'d Arc<dyn Device>,
    dtype: Scalar,
    /// Threads that share an output of a dense matrix-vector product.
    lanes: u32,
    /// The launches so far.
    pub launches: Vec<RecordedLaunch>,
}

/// Module of the kernels, relative to the corpus.
#[derive(Clone, Copy)]
pub enum Family {
    /// `affine`.
    Affine,
    /// `attention`.
    Attention,
    /// `elementwise`.
    Elementwise,
    /// `layout`.
    Layout,
    /// `matmul`.
    Matmul,
    /// `norm`.
    Norm,
    /// `quant`.
    Quant,
    /// `quant_product`.
    QuantProduct,
    /// `reduce`.
    Reduce,
    /// `rope`.
    Rope,
}

impl Family {
    const fn module(self) -> &'static str {
        match self {
            Family::Affine => "iron_corpus::affine",
            Family::Attention => "iron_corpus::attention",
            Family::Elementwise => "iron_corpus::elementwise",
            Family::Layout => "iron_corpus::layout",
            Family::Matmul => "iron_corpus::matmul",
            Family::Norm => "iron_corpus::norm",
            Family::Quant => "iron_corpus::quant",
            Family::QuantProduct => "iron_corpus::quant_product",
            Family::Reduce => "iron_corpus::reduce",
            Family::Rope => "iron_corpus::rope",
        }
    }
}

impl<'d> Recorder<'d> {
    /// A recorder of launches on activations of type `dtype`.
    pub fn new(device: &'d Arc<dyn Device>, dtype: Scalar, lanes: u32) -> Recorder<'d> {
        Recorder {
            device,
            dtype,
            lanes,
            launches: Vec::new(),
        }
    }

    /// Records a launch of the instance for the activations' type with `suffix` appended.
    pub fn launch(
        &mut self,
        family: Family,
        kernel: &str,
        suffix: &str,
        arguments: Vec<Argument>,
    ) -> Result<(), ModelError> {
        let instance = format!("{}{suffix}", self.dtype);
        self.launch_instance(family, kernel, &instance, arguments)
    }

    /// Records a launch of a named instance.
    pub fn launch_instance(
        &mut self,
        family: Family,
        kernel: &str,
        instance: &str,
        arguments: Vec<Argument>,
    ) -> Result<(), ModelError> {
        let module = Some(family.module());
        let pipeline = failed(iron_runtime::pipeline_of(
            self.device,
            kernel,
            module,
            instance,
        ))?;
        let launch = RecordedLaunch::new(pipeline, arguments);
        self.launches
            .push(launch.map_err(|e| ModelError::Device(e.to_string()))?);
        Ok(())
    }

    /// `y[r, :] = x[r, :] · wᵀ`.
    pub fn linear(&mut self, w: &Matrix, x: &Tensor, y: &Tensor) -> Result<(), ModelError> {
        match w {
            Matrix::Dense(w) => self.launch(
                Family::Matmul,
                "matvec",
                &format!("-LANES={}", self.lanes),
                vec![arg(x), arg(w), arg(y)],
            ),
            Matrix::Packed {
                format,
                scales,
                quants,
            } => {
                let kernel = format!("matvec_{}", format.kernel_suffix());
                let arguments = vec![arg(x), arg(scales), arg(quants), arg(y)];
                self.launch(Family::QuantProduct, &kernel, "", arguments)
            }
            Matrix::Affine { bits, d, m, quants } => {
                // Rows that share a reading of the weights; the result is the same either way.
                let rows = if x.shape()[0] == 1 { 1 } else { 4 };
                let suffix = format!("-BITS={bits}-ROWS={rows}");
                let arguments = vec![arg(x), arg(d), arg(m), arg(quants), arg(y)];
                self.launch(Family::Affine, "affine_product", &suffix, arguments)
            }
        }
    }

    /// `y[r, :] = w[ids[r], :]`.
    pub fn gather(&mut self, w: &Matrix, ids: &Tensor, y: &Tensor) -> Result<(), ModelError> {
        match w {
            Matrix::Dense(table) => {
                let suffix = format!("-{}", self.dtype);
                self.launch(
                    Family::Layout,
                    "gather_rows",
                    &suffix,
                    vec![arg(table), arg(ids), arg(y)],
                )
            }
            Matrix::Packed {
                format,
                scales,
                quants,
            } => {
                let kernel = format!("gather_rows_{}", format.kernel_suffix());
                let arguments = vec![arg(scales), arg(quants), arg(ids), arg(y)];
                self.launch(Family::Quant, &kernel, "", arguments)
            }
            Matrix::Affine { bits, d, m, quants } => {
                let arguments = vec![arg(d), arg(m), arg(quants), arg(ids), arg(y)];
                let suffix = format!("-BITS={bits}");
                self.launch(Family::Affine, "affine_rows", &suffix, arguments)
            }
        }
    }
}

/// A tensor argument.
pub fn arg(tensor: &Tensor) -> Argument {
    Argument::Tensor(tensor.tensor_arg())
}

/// An f32 argument.
pub fn f32_arg(value: f32) -> Argument {
    Argument::Scalar(Const {
        scalar: Scalar::F32,
        bits: u64::from(value.to_bits()),
    })
}
