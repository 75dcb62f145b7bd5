//! Tensors of a device: a buffer with element type, shape, strides and offset. Views share the
//! buffer.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use iron_ir::Scalar;
use iron_ir::launch::{AsTensorArg, DeviceBuffer, TensorArg, byte_range};

use crate::device::{Device, DeviceError};

/// A tensor on a device. Cloning and slicing share the memory.
#[derive(Clone)]
pub struct Tensor {
    device: Arc<dyn Device>,
    view: TensorArg,
}

impl Tensor {
    /// A contiguous tensor whose contents are undefined.
    pub fn empty(
        device: &Arc<dyn Device>,
        scalar: Scalar,
        shape: &[u64],
    ) -> Result<Tensor, DeviceError> {
        let elements = element_count(device, shape)?;
        let bytes = elements
            .checked_mul(u64::from(scalar.bytes()))
            .ok_or_else(|| {
                usage(
                    device,
                    format!("a tensor of shape {shape:?} has 2^64 bytes or more"),
                )
            })?;
        let buffer = device.alloc(bytes)?;
        let view = TensorArg {
            buffer,
            scalar,
            shape: shape.to_vec(),
            strides: contiguous_strides(shape),
            offset: 0,
        };
        Ok(Tensor {
            device: device.clone(),
            view,
        })
    }

    /// A contiguous tensor of zeros.
    pub fn zeros(
        device: &Arc<dyn Device>,
        scalar: Scalar,
        shape: &[u64],
    ) -> Result<Tensor, DeviceError> {
        let tensor = Tensor::empty(device, scalar, shape)?;
        let bytes = vec![0u8; tensor.view.buffer.bytes() as usize];
        device.upload(&*tensor.view.buffer, 0, &bytes)?;
        Ok(tensor)
    }

    /// A contiguous tensor from the bytes of its elements, little-endian, in row-major order.
    pub fn from_bytes(
        device: &Arc<dyn Device>,
        scalar: Scalar,
        shape: &[u64],
        bytes: &[u8],
    ) -> Result<Tensor, DeviceError> {
        let tensor = Tensor::empty(device, scalar, shape)?;
        let expected = tensor.view.buffer.bytes();
        if bytes.len() as u64 != expected {
            let message = format!(
                "a tensor of {scalar} and shape {shape:?} takes {expected} bytes, got {}",
                bytes.len()
            );
            return Err(usage(device, message));
        }
        device.upload(&*tensor.view.buffer, 0, bytes)?;
        Ok(tensor)
    }

    /// A contiguous tensor of `f32`, `f16`, `bf16` or `f64` from `f32` values, rounded to
    /// nearest even.
    pub fn from_f32(
        device: &Arc<dyn Device>,
        scalar: Scalar,
        shape: &[u64],
        values: &[f32],
    ) -> Result<Tensor, DeviceError> {
        let elements = element_count(device, shape)?;
        if values.len() as u64 != elements {
            let message = format!(
                "shape {shape:?} has {elements} elements, got {}",
                values.len()
            );
            return Err(usage(device, message));
        }
        let bytes = rounded(device, scalar, values)?;
        Tensor::from_bytes(device, scalar, shape, &bytes)
    }

    /// A contiguous tensor of plain integers or floats, bit for bit.
    pub fn from_slice<T: bytemuck::NoUninit>(
        device: &Arc<dyn Device>,
        scalar: Scalar,
        shape: &[u64],
        values: &[T],
    ) -> Result<Tensor, DeviceError> {
        Tensor::from_bytes(device, scalar, shape, bytemuck::cast_slice(values))
    }

    /// A view of memory that exists already.
    pub fn from_view(device: &Arc<dyn Device>, view: TensorArg) -> Result<Tensor, DeviceError> {
        if view.shape.len() != view.strides.len() {
            let message = format!(
                "a shape of rank {} with strides of rank {}",
                view.shape.len(),
                view.strides.len()
            );
            return Err(usage(device, message));
        }
        check_in_buffer(device, &view)?;
        Ok(Tensor {
            device: device.clone(),
            view,
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The memory.
    pub fn buffer(&self) -> &Arc<dyn DeviceBuffer> {
        &self.view.buffer
    }

    /// Element type.
    pub fn scalar(&self) -> Scalar {
        self.view.scalar
    }

    /// Extent of each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.view.shape
    }

    /// Stride of each dimension, in elements.
    pub fn strides(&self) -> &[u64] {
        &self.view.strides
    }

    /// First element, in elements from the buffer's start.
    pub fn offset(&self) -> u64 {
        self.view.offset
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.view.shape.iter().product()
    }

    /// Elements follow each other in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let expected = contiguous_strides(&self.view.shape);
        let same =
            |axis: usize| self.view.shape[axis] <= 1 || self.view.strides[axis] == expected[axis];
        self.view.shape.contains(&0) || (0..expected.len()).all(same)
    }

    /// The part `range` of one axis.
    pub fn slice(&self, axis: usize, range: Range<u64>) -> Result<Tensor, DeviceError> {
        let rank = self.view.shape.len();
        let Some(&extent) = self.view.shape.get(axis) else {
            return Err(usage(
                &self.device,
                format!("slice of axis {axis} of a tensor of rank {rank}"),
            ));
        };
        if range.start > range.end || range.end > extent {
            let message = format!("slice {range:?} of axis {axis}, which has extent {extent}");
            return Err(usage(&self.device, message));
        }
        let mut view = self.view.clone();
        view.shape[axis] = range.end - range.start;
        view.offset += range.start * view.strides[axis];
        Ok(Tensor {
            device: self.device.clone(),
            view,
        })
    }

    /// The same elements in another shape; the tensor must be contiguous.
    pub fn reshape(&self, shape: &[u64]) -> Result<Tensor, DeviceError> {
        let elements = element_count(&self.device, shape)?;
        if elements != self.elements() {
            let message = format!(
                "reshape of {:?} ({} elements) to {shape:?} ({elements} elements)",
                self.view.shape,
                self.elements()
            );
            return Err(usage(&self.device, message));
        }
        if !self.is_contiguous() {
            let message = format!(
                "reshape of a view with shape {:?} and strides {:?}, which is not contiguous",
                self.view.shape, self.view.strides
            );
            return Err(usage(&self.device, message));
        }
        let mut view = self.view.clone();
        view.shape = shape.to_vec();
        view.strides = contiguous_strides(shape);
        Ok(Tensor {
            device: self.device.clone(),
            view,
        })
    }

    /// The same first element with another shape and strides (in elements), within the buffer:
    /// rows with a gap, a transposition, a broadcast.
    pub fn with_strides(&self, shape: &[u64], strides: &[u64]) -> Result<Tensor, DeviceError> {
        let mut view = self.view.clone();
        view.shape = shape.to_vec();
        view.strides = strides.to_vec();
        Tensor::from_view(&self.device, view)
    }

    /// The same view moved to `offset`, in elements from the buffer's start.
    pub fn with_offset(&self, offset: u64) -> Result<Tensor, DeviceError> {
        let mut view = self.view.clone();
        view.offset = offset;
        Tensor::from_view(&self.device, view)
    }

    /// Two axes exchanged.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Tensor, DeviceError> {
        let rank = self.view.shape.len();
        if a >= rank || b >= rank {
            let message = format!("transposition of axes {a} and {b} of a tensor of rank {rank}");
            return Err(usage(&self.device, message));
        }
        let mut view = self.view.clone();
        view.shape.swap(a, b);
        view.strides.swap(a, b);
        Ok(Tensor {
            device: self.device.clone(),
            view,
        })
    }

    /// The bytes of the view's elements in row-major order, after all queued work.
    pub fn to_bytes(&self) -> Result<Vec<u8>, DeviceError> {
        let (start, end) = byte_range(&self.view);
        let mut span = vec![0u8; (end - start) as usize];
        if span.is_empty() {
            self.device.synchronize()?;
            return Ok(span);
        }
        self.device
            .download(&*self.view.buffer, start as u64, &mut span)?;
        if self.is_contiguous() {
            return Ok(span);
        }
        let size = self.view.scalar.bytes() as usize;
        let mut bytes = Vec::with_capacity(self.elements() as usize * size);
        self.for_each_offset(|offset| {
            let at = offset as usize * size;
            bytes.extend_from_slice(&span[at..at + size]);
        });
        Ok(bytes)
    }

    /// The elements of a float tensor in row-major order, widened or rounded to `f32`.
    pub fn to_f32(&self) -> Result<Vec<f32>, DeviceError> {
        let bytes = self.to_bytes()?;
        Ok(match self.view.scalar {
            Scalar::F32 => bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            Scalar::F16 => bytes
                .chunks_exact(2)
                .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
            Scalar::BF16 => bytes
                .chunks_exact(2)
                .map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
            Scalar::F64 => bytes
                .chunks_exact(8)
                .map(|b| {
                    f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32
                })
                .collect(),
            other => {
                let message = format!("a tensor of {other} has no f32 values; use `to_bytes`");
                return Err(usage(&self.device, message));
            }
        })
    }

    /// Overwrites the elements of a contiguous view from bytes in row-major order.
    pub fn write_bytes(&self, bytes: &[u8]) -> Result<(), DeviceError> {
        let size = u64::from(self.view.scalar.bytes());
        let expected = self.elements() * size;
        if bytes.len() as u64 != expected {
            let message = format!("a write of {} bytes to a view of {expected}", bytes.len());
            return Err(usage(&self.device, message));
        }
        if !self.is_contiguous() {
            let message = format!(
                "a write to a view with shape {:?} and strides {:?}, which is not contiguous",
                self.view.shape, self.view.strides
            );
            return Err(usage(&self.device, message));
        }
        self.device
            .upload(&*self.view.buffer, self.view.offset * size, bytes)
    }

    /// Overwrites the elements of a contiguous view of floats, rounded to nearest even.
    pub fn write_f32(&self, values: &[f32]) -> Result<(), DeviceError> {
        self.write_bytes(&rounded(&self.device, self.view.scalar, values)?)
    }

    /// Offsets of the elements from the view's first one, in row-major order.
    fn for_each_offset(&self, mut visit: impl FnMut(u64)) {
        let rank = self.view.shape.len();
        if self.view.shape.contains(&0) {
            return;
        }
        let mut index = vec![0u64; rank];
        let mut offset = 0u64;
        loop {
            visit(offset);
            let mut axis = rank;
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                offset += self.view.strides[axis];
                if index[axis] < self.view.shape[axis] {
                    break;
                }
                offset -= self.view.strides[axis] * self.view.shape[axis];
                index[axis] = 0;
            }
        }
    }
}

impl AsTensorArg for Tensor {
    fn tensor_arg(&self) -> TensorArg {
        self.view.clone()
    }
}

/// Strides of a row-major tensor without gaps.
pub fn contiguous_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1u64; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1].saturating_mul(shape[axis + 1].max(1));
    }
    strides
}

fn usage(device: &Arc<dyn Device>, message: String) -> DeviceError {
    DeviceError::Usage {
        backend: device.backend().name(),
        message,
    }
}

/// The bytes of `values` as elements of a float type, rounded to nearest even.
fn rounded(
    device: &Arc<dyn Device>,
    scalar: Scalar,
    values: &[f32],
) -> Result<Vec<u8>, DeviceError> {
    Ok(match scalar {
        Scalar::F32 => bytemuck::cast_slice(values).to_vec(),
        Scalar::F16 => values
            .iter()
            .flat_map(|&v| f16::from_f32(v).to_le_bytes())
            .collect(),
        Scalar::BF16 => values
            .iter()
            .flat_map(|&v| bf16::from_f32(v).to_le_bytes())
            .collect(),
        Scalar::F64 => values
            .iter()
            .flat_map(|&v| f64::from(v).to_le_bytes())
            .collect(),
        other => {
            let message = format!("f32 values do not make a tensor of {other}; use `from_bytes`");
            return Err(usage(device, message));
        }
    })
}

fn element_count(device: &Arc<dyn Device>, shape: &[u64]) -> Result<u64, DeviceError> {
    shape
        .iter()
        .try_fold(1u64, |n, &extent| n.checked_mul(extent))
        .ok_or_else(|| usage(device, format!("shape {shape:?} has 2^64 elements or more")))
}

fn check_in_buffer(device: &Arc<dyn Device>, view: &TensorArg) -> Result<(), DeviceError> {
    let (_, end) = byte_range(view);
    let bytes = view.buffer.bytes();
    if end > u128::from(bytes) {
        let message = format!(
            "a view of shape {:?}, strides {:?} and offset {} ends at byte {end}, the buffer has {bytes}",
            view.shape, view.strides, view.offset
        );
        return Err(usage(device, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_read_back_in_logical_order() {
        let device = crate::open(crate::Backend::Reference).unwrap();
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let t = Tensor::from_f32(&device, Scalar::F32, &[3, 4], &values).unwrap();
        let part = t.slice(0, 1..3).unwrap().slice(1, 1..3).unwrap();
        assert_eq!(part.to_f32().unwrap(), [5.0, 6.0, 9.0, 10.0]);
        assert!(part.reshape(&[4]).is_err(), "not contiguous");
        let flipped = part.transpose(0, 1).unwrap();
        assert_eq!(flipped.to_f32().unwrap(), [5.0, 9.0, 6.0, 10.0]);
        assert_eq!(
            t.reshape(&[2, 6])
                .unwrap()
                .slice(0, 1..2)
                .unwrap()
                .to_f32()
                .unwrap()[0],
            6.0
        );
    }

    #[test]
    fn misuse_names_both_values() {
        let device = crate::open(crate::Backend::Reference).unwrap();
        let t = Tensor::zeros(&device, Scalar::F32, &[4]).unwrap();
        let message = t.slice(0, 2..9).err().unwrap().to_string();
        assert!(
            message.contains("2..9") && message.contains("extent 4"),
            "{message}"
        );
        let message = Tensor::from_f32(&device, Scalar::F32, &[3], &[1.0])
            .err()
            .unwrap()
            .to_string();
        assert!(message.contains("3 elements, got 1"), "{message}");
        let message = t.with_strides(&[4], &[2]).err().unwrap().to_string();
        assert!(
            message.contains("28") && message.contains("16"),
            "{message}"
        );
    }
}
