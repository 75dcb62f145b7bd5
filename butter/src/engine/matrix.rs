//! Weights on a device, in the form that their kernels read, and the launches that read them.

use std::sync::Arc;

use iron_corpus::matmul::skinny_rows;
use iron_ir::Scalar;
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::op::Const;
use iron_runtime::{Backend, Device, DeviceError, Tensor};

use super::pack::{BLOCK, PackedFormat, pack, pack_affine};
use super::pack_k::{KPlanes, bits_of, pack_k};
use super::plan::{Activation, Operand, Planner, ProductInputs};
use super::route::tile_of;
use super::unpacked::parts;
use crate::gguf::DequantiseError;
use crate::model::ModelError;
use crate::weights::{WeightMatrix, WeightVector};

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
    /// Planes of a format of 4, 5 or 6 bits with a scale and a minimum.
    KQuant {
        /// Bits of a weight.
        bits: u32,
        /// `[outputs, inputs / 16]`.
        scales: Tensor,
        /// `[outputs, inputs / 8]`.
        low: Tensor,
        /// `[outputs, inputs / 8]`, of bytes or halfwords; none with 4 bits.
        high: Option<Tensor>,
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
    /// Number of outputs.
    pub fn outputs(&self) -> u64 {
        match self {
            Matrix::Dense(tensor)
            | Matrix::Packed { quants: tensor, .. }
            | Matrix::KQuant { low: tensor, .. }
            | Matrix::Affine { quants: tensor, .. } => tensor.shape()[0],
        }
    }

    /// `count` outputs from `first` on.
    fn rows(&self, first: u64, count: u64) -> Result<Matrix, DeviceError> {
        let part = |tensor: &Tensor| tensor.slice(0, first..first + count);
        Ok(match self {
            Matrix::Dense(tensor) => Matrix::Dense(part(tensor)?),
            Matrix::Packed {
                format,
                scales,
                quants,
            } => Matrix::Packed {
                format: *format,
                scales: part(scales)?,
                quants: part(quants)?,
            },
            Matrix::KQuant {
                bits,
                scales,
                low,
                high,
            } => Matrix::KQuant {
                bits: *bits,
                scales: part(scales)?,
                low: part(low)?,
                high: high.as_ref().map(part).transpose()?,
            },
            Matrix::Affine { bits, d, m, quants } => Matrix::Affine {
                bits: *bits,
                d: part(d)?,
                m: part(m)?,
                quants: part(quants)?,
            },
        })
    }

    /// Uploads a matrix: block formats as planes, floats in the activations' type. Rows of
    /// several types together are decoded.
    pub fn upload(
        device: &Arc<dyn Device>,
        matrix: &WeightMatrix,
        dtype: Scalar,
    ) -> Result<Matrix, ModelError> {
        let (rows, columns) = (matrix.rows() as u64, matrix.columns() as u64);
        let ty = matrix.first_type();
        if let Some(bits) = ty.and_then(bits_of)
            && let Some((ty, bytes)) = matrix.bytes()
        {
            return Self::upload_k(device, [rows, columns], bits, &pack_k(ty, &bytes));
        }
        if let Some(format) = ty.and_then(PackedFormat::of)
            && let Some((_, bytes)) = matrix.bytes()
        {
            let blocks = columns / BLOCK as u64;
            let words = blocks * format.quant_words() as u64;
            if device.backend() == Backend::Cpu {
                let planes = pack_affine(format, &bytes);
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
            let planes = pack(format, &bytes);
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
        let dense = upload_dense(device, matrix, dtype, &[rows, columns])?;
        Ok(Matrix::Dense(dense))
    }

    /// Whether [`Self::upload`] keeps a block format.
    fn keeps_blocks(matrix: &WeightMatrix) -> bool {
        let known = |ty| bits_of(ty).is_some() || PackedFormat::of(ty).is_some();
        matrix.one_type().is_some_and(known)
    }

    /// Uploads matrices of as many columns; where all are dense, their rows lie one after the
    /// other in one matrix too, which is given as well.
    pub fn upload_stacked<const N: usize>(
        device: &Arc<dyn Device>,
        matrices: [&WeightMatrix; N],
        dtype: Scalar,
    ) -> Result<([Matrix; N], Option<Tensor>), ModelError> {
        let columns = matrices.first().map_or(0, |m| m.columns());
        let stacks = matrices
            .iter()
            .all(|m| m.columns() == columns && !Self::keeps_blocks(m));
        let mut uploaded = Vec::with_capacity(N);
        let mut whole = None;
        if stacks {
            let rows: usize = matrices.iter().map(|m| m.rows()).sum();
            let shape = [rows as u64, columns as u64];
            let all = failed(Tensor::empty(device, dtype, &shape))?;
            let mut first = 0;
            for matrix in matrices {
                let part = failed(all.slice(0, first..first + matrix.rows() as u64))?;
                fill_dense(device, matrix, &part)?;
                first += matrix.rows() as u64;
                uploaded.push(Matrix::Dense(part));
            }
            whole = Some(all);
        } else {
            for matrix in matrices {
                uploaded.push(Matrix::upload(device, matrix, dtype)?);
            }
        }
        let unlike = |_| ModelError::Device("matrices that were uploaded are missing".into());
        Ok((uploaded.try_into().map_err(unlike)?, whole))
    }

    fn upload_k(
        device: &Arc<dyn Device>,
        [rows, columns]: [u64; 2],
        bits: u32,
        planes: &KPlanes,
    ) -> Result<Matrix, ModelError> {
        let shape = [rows, columns / 8];
        let high = match bits {
            5 => Some(Scalar::U8),
            6 => Some(Scalar::U16),
            _ => None,
        };
        let high = high.map(|scalar| Tensor::from_bytes(device, scalar, &shape, &planes.high));
        let parts = [rows, columns / 16];
        Ok(Matrix::KQuant {
            bits,
            scales: failed(Tensor::from_f32(
                device,
                Scalar::F32,
                &parts,
                &planes.scales,
            ))?,
            low: failed(Tensor::from_slice(device, Scalar::U32, &shape, &planes.low))?,
            high: high.map(failed).transpose()?,
        })
    }
}

/// Uploads a matrix decoded, in a shape of as many elements.
pub fn upload_dense(
    device: &Arc<dyn Device>,
    matrix: &WeightMatrix,
    dtype: Scalar,
    shape: &[u64],
) -> Result<Tensor, ModelError> {
    let tensor = failed(Tensor::empty(device, dtype, shape))?;
    let rows = [matrix.rows() as u64, matrix.columns() as u64];
    fill_dense(device, matrix, &failed(tensor.reshape(&rows))?)?;
    Ok(tensor)
}

/// Writes a matrix, decoded, into a contiguous tensor of its shape. Random weights are made on
/// the device.
fn fill_dense(
    device: &Arc<dyn Device>,
    matrix: &WeightMatrix,
    to: &Tensor,
) -> Result<(), ModelError> {
    if let Some(random) = matrix.random() {
        let n = to.elements();
        let flat = failed(to.with_strides(&[n], &[1]))?;
        let scalar = |scalar, bits: u32| {
            let bits = u64::from(bits);
            Argument::Scalar(Const { scalar, bits })
        };
        let arguments = vec![
            Argument::Tensor(flat.tensor_arg()),
            scalar(Scalar::U32, random.seed),
            scalar(Scalar::F32, random.limit.to_bits()),
        ];
        return failed(iron_runtime::launch_by_name(
            device,
            "fill_uniform",
            Some(Family::Decode.module()),
            &to.scalar().to_string(),
            arguments,
        ));
    }
    failed(to.write_f32(&decoded(matrix.to_f32())?))
}

/// Uploads a vector decoded.
pub fn upload_vector(
    device: &Arc<dyn Device>,
    vector: &WeightVector,
    dtype: Scalar,
) -> Result<Tensor, ModelError> {
    let values = decoded(vector.to_f32())?;
    failed(Tensor::from_f32(
        device,
        dtype,
        &[values.len() as u64],
        &values,
    ))
}

fn decoded<T>(result: Result<T, DequantiseError>) -> Result<T, ModelError> {
    result.map_err(|e| ModelError::Device(e.to_string()))
}

/// A device error as a model error.
pub fn failed<T>(result: Result<T, DeviceError>) -> Result<T, ModelError> {
    result.map_err(|e| ModelError::Device(e.to_string()))
}

/// Module of the kernels, relative to the corpus.
#[derive(Clone, Copy)]
pub enum Family {
    /// `affine`.
    Affine,
    /// `affine_q8`.
    AffineQ8,
    /// `attention`.
    Attention,
    /// `attention_join`.
    AttentionJoin,
    /// `decode`.
    Decode,
    /// `delta`.
    Delta,
    /// `elementwise`.
    Elementwise,
    /// `f8_cache`.
    F8Cache,
    /// `grouped_attention`.
    GroupedAttention,
    /// `heads`.
    Heads,
    /// `latent`.
    Latent,
    /// `layout`.
    Layout,
    /// `matmul`.
    Matmul,
    /// `matrix_attention`.
    MatrixAttention,
    /// `moe`.
    Moe,
    /// `norm`.
    Norm,
    /// `products_ahead`.
    ProductsAhead,
    /// `quant`.
    Quant,
    /// `quant_k`.
    QuantK,
    /// `quant_product`.
    QuantProduct,
    /// `recurrent`.
    Recurrent,
    /// `sampling`.
    Sampling,
    /// `scan`.
    Scan,
    /// `selection`.
    Selection,
    /// `rope`.
    Rope,
}

impl Family {
    /// The module's path.
    pub const fn module(self) -> &'static str {
        match self {
            Family::Affine => "iron_corpus::affine",
            Family::AffineQ8 => "iron_corpus::affine_q8",
            Family::Attention => "iron_corpus::attention",
            Family::AttentionJoin => "iron_corpus::attention_join",
            Family::Decode => "iron_corpus::decode",
            Family::Delta => "iron_corpus::delta",
            Family::Elementwise => "iron_corpus::elementwise",
            Family::F8Cache => "iron_corpus::f8_cache",
            Family::GroupedAttention => "iron_corpus::grouped_attention",
            Family::Heads => "iron_corpus::heads",
            Family::Latent => "iron_corpus::latent",
            Family::Layout => "iron_corpus::layout",
            Family::Matmul => "iron_corpus::matmul",
            Family::MatrixAttention => "iron_corpus::matrix_attention",
            Family::Moe => "iron_corpus::moe",
            Family::Norm => "iron_corpus::norm",
            Family::ProductsAhead => "iron_corpus::products_ahead",
            Family::Quant => "iron_corpus::quant",
            Family::QuantK => "iron_corpus::quant_k",
            Family::QuantProduct => "iron_corpus::quant_product",
            Family::Recurrent => "iron_corpus::recurrent",
            Family::Sampling => "iron_corpus::sampling",
            Family::Scan => "iron_corpus::scan",
            Family::Selection => "iron_corpus::selection",
            Family::Rope => "iron_corpus::rope",
        }
    }
}

impl Planner {
    /// `y[r, :] = x[r, :] · wᵀ`.
    pub fn linear(&mut self, w: &Matrix, x: &Activation, y: &Activation) {
        if w.outputs() > self.most_outputs {
            for (first, count) in parts(w.outputs(), self.most_outputs) {
                let Ok(part) = w.rows(first, count) else {
                    unreachable!("{count} rows from {first} lie within the matrix");
                };
                self.linear(&part, x, &y.columns(first, count));
            }
            return;
        }
        if self.linear_unpacked(w, x, y) {
            return;
        }
        match w {
            Matrix::Dense(w) => {
                let operands = [x.into(), w.into(), y.into()];
                let (rows, outputs) = (x.shape()[0], w.shape()[0]);
                let (kernel, suffix) = if self.is_shared {
                    ("linear_skinny", format!("-ROWS={}", skinny_rows(rows)))
                } else if self.is_tiled {
                    return self.linear_tiled(x, w.into(), [outputs, w.shape()[1]], y);
                } else {
                    let lanes = self.route.dense_lanes(w.shape()[1]);
                    ("matvec", format!("-LANES={lanes}"))
                };
                self.launch(Family::Matmul, kernel, &suffix, operands);
            }
            Matrix::Packed {
                format,
                scales,
                quants,
            } => {
                let kernel = format!("matvec_{}", format.kernel_suffix());
                let operands = [x.into(), scales.into(), quants.into(), y.into()];
                self.launch(Family::QuantProduct, &kernel, "", operands);
            }
            Matrix::Affine { bits, d, m, quants } => {
                // Rows that share a reading of the weights; the result is the same either way.
                let rows = if x.shape()[0] == 1 { 1 } else { 4 };
                let suffix = format!("-BITS={bits}-ROWS={rows}");
                let weights = [d.into(), m.into(), quants.into(), y.into()];
                match self.product_inputs {
                    ProductInputs::Exact => {
                        let operands = [x.into()].into_iter().chain(weights);
                        self.launch(Family::Affine, "affine_product", &suffix, operands);
                    }
                    ProductInputs::Q8 => {
                        let x = self.rounded(x, *bits);
                        let inputs = [x.scales.into(), x.sums.into(), x.quants.into()];
                        let operands = inputs.into_iter().chain(weights);
                        self.launch(Family::AffineQ8, "affine_product_q8", &suffix, operands);
                        self.keep_rounded();
                    }
                }
            }
            Matrix::KQuant {
                bits,
                scales,
                low,
                high,
            } => {
                let mut operands = vec![x.into(), scales.into(), low.into()];
                operands.extend(high.iter().map(Into::into));
                operands.push(y.into());
                let kernel = format!("matvec_k{bits}");
                let lanes = format!("-LANES={}", self.route.lanes());
                self.launch(Family::QuantK, &kernel, &lanes, operands);
            }
        }
    }

    /// [`Self::linear`] by large tiles and dense weights `[outputs, inputs]`.
    pub(super) fn linear_tiled(
        &mut self,
        x: &Activation,
        w: Operand,
        [outputs, inputs]: [u64; 2],
        y: &Activation,
    ) {
        let rows = x.shape()[0];
        let shape = [rows, outputs, inputs];
        let tuned = self.tuned.product("linear", "TILE", self.dtype, shape);
        let tile = tuned.unwrap_or_else(|| tile_of(rows, outputs).into());
        let suffix = format!("-TILE={tile}");
        self.launch(Family::Matmul, "linear", &suffix, [x.into(), w, y.into()]);
    }

    /// `x[r, :] · wᵀ` as a new activation `[rows, outputs]`.
    pub fn projected(&mut self, w: &Matrix, x: &Activation) -> Activation {
        let y = self.activation(&[x.shape()[0], w.outputs()]);
        self.linear(w, x, &y);
        y
    }

    /// `y[r, :] = w[ids[r], :]`.
    pub fn gather(&mut self, w: &Matrix, ids: &Tensor, y: &Activation) {
        match w {
            Matrix::Dense(table) => {
                let suffix = format!("-{}", self.dtype);
                let operands = [table.into(), ids.into(), y.into()];
                self.launch(Family::Layout, "gather_rows", &suffix, operands);
            }
            Matrix::Packed {
                format,
                scales,
                quants,
            } => {
                let kernel = format!("gather_rows_{}", format.kernel_suffix());
                let operands = [scales.into(), quants.into(), ids.into(), y.into()];
                self.launch(Family::Quant, &kernel, "", operands);
            }
            Matrix::KQuant {
                bits,
                scales,
                low,
                high,
            } => {
                let mut operands = vec![scales.into(), low.into()];
                operands.extend(high.iter().map(Into::into));
                operands.extend([ids.into(), y.into()]);
                let kernel = format!("gather_rows_k{bits}");
                self.launch(Family::QuantK, &kernel, "", operands);
            }
            Matrix::Affine { bits, d, m, quants } => {
                let operands = [d.into(), m.into(), quants.into(), ids.into(), y.into()];
                self.launch(
                    Family::Affine,
                    "affine_rows",
                    &format!("-BITS={bits}"),
                    operands,
                );
            }
        }
    }
}
