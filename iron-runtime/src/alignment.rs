//! Which tensors of a launch can be accessed 16 bytes at a time: one word of the parameter block,
//! where a kernel asks ([`MachineOp::IsAligned`](iron_ir::machine::MachineOp::IsAligned)).

use iron_ir::launch::{Argument, TensorArg};
use iron_ir::layout::{BlockLayout, FieldKind};

use crate::device::DeviceError;

/// What addresses and strides are multiples of, in bytes.
pub(crate) const ALIGNMENT: u64 = 16;

/// Whether base address and strides, but that of the last dimension, are multiples of 16 bytes.
/// The stride of a dimension of one element is never used.
pub(crate) fn is_aligned(view: &TensorArg, address: u64) -> bool {
    let bytes = u64::from(view.scalar.bytes());
    let rank = view.shape.len();
    let outer = view.shape.iter().zip(&view.strides).take(rank.max(1) - 1);
    address.is_multiple_of(ALIGNMENT)
        && outer
            .filter(|(extent, _)| **extent > 1)
            .all(|(_, stride)| (stride * bytes).is_multiple_of(ALIGNMENT))
}

/// The bits of the aligned tensors, by argument.
pub(crate) fn aligned(
    arguments: &[Argument],
    mut address: impl FnMut(&TensorArg) -> Result<u64, DeviceError>,
) -> Result<u32, DeviceError> {
    let mut bits = 0u32;
    for (index, argument) in arguments.iter().enumerate().take(32) {
        if let Argument::Tensor(view) = argument {
            bits |= u32::from(is_aligned(view, address(view)?)) << index;
        }
    }
    Ok(bits)
}

/// Writes the word into a block that has one.
pub(crate) fn write(
    block: &mut [u8],
    layout: &BlockLayout,
    arguments: &[Argument],
    address: impl FnMut(&TensorArg) -> Result<u64, DeviceError>,
) -> Result<(), DeviceError> {
    let Some(word) = layout.field(FieldKind::Aligned) else {
        return Ok(());
    };
    let bits = aligned(arguments, address)?;
    let at = word.offset as usize;
    if let Some(place) = block.get_mut(at..at + 4) {
        place.copy_from_slice(&bits.to_le_bytes());
    }
    Ok(())
}
