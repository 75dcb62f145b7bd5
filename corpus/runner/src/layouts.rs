//! How a case's tensors lie in memory: contiguous, at an offset, with padded rows, transposed,
//! in place; each between guard bands. Reading back checks every byte that no view covers.

use std::sync::Arc;

use iron_ir::kernel::{Access, Kernel, ParamKind, TensorLayout};
use iron_ir::launch::{Argument, DeviceBuffer, TensorArg};
use iron_ir::testing::{Case, CaseParam, Role};
use iron_ir::{Handle, Scalar};
use iron_runtime::{Device, DeviceError};

/// Bytes before the first element of a contiguous view.
const GUARD_BYTES: u64 = 256;

/// How the views of a launch lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Variant {
    Contiguous,
    Offset,
    Strided,
    Transposed,
    InPlace,
}

impl Variant {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Contiguous => "contiguous",
            Variant::Offset => "offset view",
            Variant::Strided => "strided view",
            Variant::Transposed => "transposed view",
            Variant::InPlace => "in place",
        }
    }

    /// The variants that a case has.
    pub fn of(kernel: &Kernel, case: &Case) -> Vec<Variant> {
        let mut all = vec![Variant::Contiguous, Variant::Offset];
        let strided = |p: &CaseParam| layout_of(kernel, &p.name) == Some(TensorLayout::Strided);
        if case.params.iter().any(|p| p.shape.len() >= 2 || strided(p)) {
            all.push(Variant::Strided);
        }
        if case.params.iter().any(|p| p.shape.len() >= 2 && strided(p)) {
            all.push(Variant::Transposed);
        }
        if case
            .params
            .iter()
            .any(|p| partner(kernel, case, p).is_some())
        {
            all.push(Variant::InPlace);
        }
        all
    }
}

fn layout_of(kernel: &Kernel, name: &str) -> Option<TensorLayout> {
    let param = kernel.params.values().find(|p| &*p.name == name)?;
    match &param.kind {
        ParamKind::Tensor(tensor) => Some(tensor.layout),
        ParamKind::Scalar(_) => None,
    }
}

/// The input whose view an output may be, by the contract.
fn partner<'a>(kernel: &Kernel, case: &'a Case, output: &CaseParam) -> Option<&'a CaseParam> {
    if output.role != Role::Output {
        return None;
    }
    let (index, param) = kernel.params.iter().find(|(_, p)| *p.name == output.name)?;
    let ParamKind::Tensor(tensor) = &param.kind else {
        return None;
    };
    case.params.iter().find(|other| {
        let found = kernel.params.iter().find(|(_, p)| *p.name == other.name);
        let Some((other_index, other_param)) = found else {
            return false;
        };
        let ParamKind::Tensor(other_tensor) = &other_param.kind else {
            return false;
        };
        let allowed =
            tensor.may_alias.contains(&other_index) || other_tensor.may_alias.contains(&index);
        allowed
            && other_tensor.access == Access::Read
            && other.role == Role::Input
            && other.shape == output.shape
            && other.scalar == output.scalar
    })
}

/// A tensor argument in memory.
pub(crate) struct Placed {
    pub name: String,
    pub role: Role,
    pub scalar: Scalar,
    pub shape: Vec<u64>,
    /// Bits of each element before the launch, in row-major order.
    pub initial: Vec<u64>,
    pub view: TensorArg,
    /// The buffer before the launch.
    image: Arc<Vec<u8>>,
    /// Another argument's view lies on the same memory.
    shares: bool,
}

/// Places every argument of a case; tensors in the order of the kernel's parameters.
pub(crate) fn place(
    device: &Arc<dyn Device>,
    kernel: &Kernel,
    case: &Case,
    variant: Variant,
) -> Result<(Vec<Argument>, Vec<Placed>), DeviceError> {
    let mut arguments = Vec::new();
    let mut placed: Vec<Placed> = Vec::new();
    for param in kernel.params.values() {
        let tensor = match &param.kind {
            ParamKind::Scalar(_) => {
                if let Some(value) = case.scalars.get(&*param.name) {
                    arguments.push(Argument::Scalar(*value));
                }
                continue;
            }
            ParamKind::Tensor(tensor) => tensor,
        };
        let Some(given) = case.params.iter().find(|p| *p.name == *param.name) else {
            continue;
        };
        let size = u64::from(given.scalar.bytes());
        let align = u64::from(tensor.align.max(1));
        let strides = strides_of(&given.shape, tensor.layout, align, variant);
        let offset = match variant {
            Variant::Offset => GUARD_BYTES / size + align,
            _ => GUARD_BYTES / size,
        };
        let span = span_of(&given.shape, &strides);
        let guard = guard_bits(given.scalar, given.role).to_le_bytes();
        let bytes = ((offset + span) * size + GUARD_BYTES) as usize;
        let mut image = guard[..size as usize].repeat(bytes / size as usize);
        for (at, bits) in element_offsets(&given.shape, &strides, offset).zip(&given.bits) {
            write_element(&mut image, at * size, *bits, size);
        }
        let buffer = device.alloc(image.len() as u64)?;
        device.upload(&*buffer, 0, &image)?;
        let view = TensorArg {
            buffer,
            scalar: given.scalar,
            shape: given.shape.clone(),
            strides,
            offset,
        };
        placed.push(Placed {
            name: given.name.clone(),
            role: given.role,
            scalar: given.scalar,
            shape: given.shape.clone(),
            initial: given.bits.clone(),
            view: view.clone(),
            image: Arc::new(image),
            shares: false,
        });
        arguments.push(Argument::Tensor(view));
    }
    if variant == Variant::InPlace {
        join_partners(kernel, case, &mut arguments, &mut placed);
    }
    Ok((arguments, placed))
}

/// The arguments again, on memory of their own with the same contents.
pub(crate) fn copy(
    device: &Arc<dyn Device>,
    arguments: &[Argument],
    placed: &[Placed],
) -> Result<Vec<Argument>, DeviceError> {
    let mut images = placed.iter();
    let mut copied = Vec::with_capacity(arguments.len());
    for argument in arguments {
        copied.push(
            match (
                argument,
                matches!(argument, Argument::Tensor(_))
                    .then(|| images.next())
                    .flatten(),
            ) {
                (Argument::Tensor(view), Some(placed)) => {
                    let buffer = device.alloc(placed.image.len() as u64)?;
                    device.upload(&*buffer, 0, &placed.image)?;
                    Argument::Tensor(TensorArg {
                        buffer,
                        ..view.clone()
                    })
                }
                _ => argument.clone(),
            },
        );
    }
    Ok(copied)
}

/// Lets outputs be the views of the inputs that they may overwrite.
fn join_partners(kernel: &Kernel, case: &Case, arguments: &mut [Argument], placed: &mut [Placed]) {
    for output in &case.params {
        let Some(input) = partner(kernel, case, output) else {
            continue;
        };
        let Some(from) = placed.iter().position(|p| p.name == input.name) else {
            continue;
        };
        if placed[from].shares {
            continue;
        }
        placed[from].shares = true;
        let (view, image, initial) = {
            let from = &placed[from];
            (from.view.clone(), from.image.clone(), from.initial.clone())
        };
        let index = kernel.params.iter().find(|(_, p)| *p.name == output.name);
        let to = placed.iter_mut().find(|p| p.name == output.name);
        if let (Some(to), Some((index, _))) = (to, index) {
            arguments[index.index()] = Argument::Tensor(view.clone());
            to.view = view;
            to.image = image;
            to.initial = initial;
            to.shares = true;
        }
    }
}

impl Placed {
    /// Offset and size in bytes of each element that no other argument's view has.
    pub fn own_ranges(&self) -> Vec<(u64, usize)> {
        if self.shares {
            return Vec::new();
        }
        let size = u64::from(self.scalar.bytes());
        element_offsets(&self.shape, &self.view.strides, self.view.offset)
            .map(|at| (at * size, size as usize))
            .collect()
    }

    /// The elements after the launch, in row-major order. A byte that changed outside of the
    /// view, or in an input, is an error.
    pub fn read_back(&self, device: &dyn Device) -> Result<Vec<u64>, String> {
        let mut bytes = vec![0u8; self.image.len()];
        let downloaded = device.download(&*self.view.buffer, 0, &mut bytes);
        downloaded.map_err(|e| e.to_string())?;
        let size = u64::from(self.scalar.bytes());
        let offsets = element_offsets(&self.shape, &self.view.strides, self.view.offset);
        let mut expected = self.image.to_vec();
        let mut elements = Vec::with_capacity(self.initial.len());
        for at in offsets {
            let at = (at * size) as usize;
            let cell = &bytes[at..at + size as usize];
            let mut word = [0u8; 8];
            word[..size as usize].copy_from_slice(cell);
            elements.push(u64::from_le_bytes(word));
            if self.role != Role::Input || self.shares {
                expected[at..at + size as usize].copy_from_slice(cell);
            }
        }
        if self.role == Role::Input && self.shares {
            return Ok(elements);
        }
        match bytes.iter().zip(&expected).position(|(a, b)| a != b) {
            None => Ok(elements),
            Some(at) => {
                let element = at as i64 / size as i64 - self.view.offset as i64;
                let what = if self.role == Role::Input {
                    "the input changed, or a write went beside it"
                } else {
                    "a write went outside of the view"
                };
                Err(format!(
                    "`{}`: {what}: byte {} of the buffer is {:#04x}, was {:#04x} (element {element} \
                     from the view's first)",
                    self.name, at, bytes[at], expected[at]
                ))
            }
        }
    }
}

/// What fills memory outside of views: NaN for floats, so that a stray read shows. What a launch
/// writes has another pattern, to which no copy and no arithmetic leads: it is a signalling NaN,
/// and of integers no simple function of what lies beside inputs. So a kernel that runs past all
/// its tensors is noticed, too.
fn guard_bits(scalar: Scalar, role: Role) -> u64 {
    let is_read = role == Role::Input;
    match scalar {
        Scalar::Bool => {
            if is_read {
                1
            } else {
                0x5a
            }
        }
        Scalar::F8E4M3 => {
            if is_read {
                0xff
            } else {
                0x7f
            }
        }
        Scalar::F8E5M2 => {
            if is_read {
                0xff
            } else {
                0x7d
            }
        }
        Scalar::E8M0 => {
            if is_read {
                0xff
            } else {
                0x5a
            }
        }
        scalar if scalar.is_float() && is_read => u64::MAX,
        Scalar::F16 => 0x7da5,
        Scalar::BF16 => 0x7fa5,
        Scalar::F32 => 0x7fa5_a5a5,
        Scalar::F64 => 0x7ff5_a5a5_a5a5_a5a5,
        _ if is_read => 0xa9a9_a9a9_a9a9_a9a9,
        _ => 0x1d3c_a5f0_4b96_8e27,
    }
}

fn write_element(image: &mut [u8], at: u64, bits: u64, size: u64) {
    let at = at as usize;
    image[at..at + size as usize].copy_from_slice(&bits.to_le_bytes()[..size as usize]);
}

fn strides_of(shape: &[u64], layout: TensorLayout, align: u64, variant: Variant) -> Vec<u64> {
    let rank = shape.len();
    let mut strides = vec![1u64; rank];
    let strided = layout == TensorLayout::Strided;
    if variant == Variant::Transposed && strided {
        for axis in 1..rank {
            strides[axis] = strides[axis - 1] * shape[axis - 1].max(1);
        }
        return strides;
    }
    let padded = variant == Variant::Strided;
    if rank > 0 && padded && strided {
        strides[rank - 1] = 2;
    }
    for axis in (0..rank.saturating_sub(1)).rev() {
        let dense = strides[axis + 1] * shape[axis + 1].max(1);
        strides[axis] = if padded {
            (dense + 1).next_multiple_of(align) + 2 * align
        } else {
            dense
        };
    }
    strides
}

/// Elements from a view's first to past its last.
fn span_of(shape: &[u64], strides: &[u64]) -> u64 {
    if shape.contains(&0) {
        return 0;
    }
    shape
        .iter()
        .zip(strides)
        .map(|(n, s)| (n - 1) * s)
        .sum::<u64>()
        + 1
}

/// The offset of each element in row-major order.
fn element_offsets(shape: &[u64], strides: &[u64], base: u64) -> impl Iterator<Item = u64> {
    let count: u64 = shape.iter().product();
    let (shape, strides) = (shape.to_vec(), strides.to_vec());
    let mut index = vec![0u64; shape.len()];
    let mut at = base;
    (0..count).map(move |_| {
        let here = at;
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            at -= strides[axis] * shape[axis];
            index[axis] = 0;
        }
        here
    })
}

/// A buffer of the device with undefined contents, for launches that are to be refused.
pub(crate) fn scratch(
    device: &Arc<dyn Device>,
    bytes: u64,
) -> Result<Arc<dyn DeviceBuffer>, DeviceError> {
    device.alloc(bytes.max(GUARD_BYTES))
}

/// The bytes that a contiguous view of this shape needs.
pub(crate) fn contiguous_bytes(shape: &[u64], scalar: Scalar) -> u64 {
    shape.iter().product::<u64>() * u64::from(scalar.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_beside_inputs_does_not_become_what_lies_beside_outputs() {
        let read = f32::from_bits(guard_bits(Scalar::F32, Role::Input) as u32);
        let written = guard_bits(Scalar::F32, Role::Output) as u32;
        assert!(read.is_nan() && f32::from_bits(written).is_nan());
        for value in [
            read,
            -read,
            read.abs(),
            read * 2.0,
            read + 1.0,
            read.max(0.0),
            f32::NAN,
        ] {
            assert_ne!(value.to_bits(), written);
        }
        // Itself, once it took part in arithmetic; compilers leave a product with 1 out.
        let twice = std::hint::black_box(f32::from_bits(written)) * std::hint::black_box(2.0);
        assert_ne!(twice.to_bits(), written);
        let read = guard_bits(Scalar::U32, Role::Input) as u32;
        let written = guard_bits(Scalar::U32, Role::InOut) as u32;
        for value in [
            read,
            !read,
            read + 1,
            read << 1,
            read >> 1,
            read & 0xff,
            0,
            u32::MAX,
        ] {
            assert_ne!(value, written);
        }
    }

    #[test]
    fn strides_and_offsets() {
        let padded = strides_of(&[2, 3, 5], TensorLayout::RowMajor, 4, Variant::Strided);
        assert_eq!(padded, [60, 16, 1]);
        assert_eq!(span_of(&[2, 3, 5], &padded), 60 + 32 + 5);
        let offsets: Vec<u64> = element_offsets(&[2, 2], &[10, 1], 3).collect();
        assert_eq!(offsets, [3, 4, 13, 14]);
        assert_eq!(element_offsets(&[], &[], 3).count(), 1);
        assert_eq!(element_offsets(&[0, 4], &[4, 1], 3).count(), 0);
        let transposed = strides_of(&[2, 3], TensorLayout::Strided, 1, Variant::Transposed);
        assert_eq!(transposed, [1, 2]);
    }
}
