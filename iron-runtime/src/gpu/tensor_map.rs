//! Tensor maps: what the copy engine of compute capability 9.0 knows of a tensor
//! (CUDA driver API, "Tensor Map Object Management").

use iron_ir::Scalar;
use iron_ir::launch::TensorArg;
use iron_ir::machine::PANEL;

use super::driver::Driver;
use crate::alignment::ALIGNMENT;

/// Strides must be below, in bytes.
const STRIDE_LIMIT: u64 = 1 << 40;

/// `CU_TENSOR_MAP_DATA_TYPE_FLOAT16` and `…_BFLOAT16`.
fn data_type(scalar: Scalar) -> Option<i32> {
    match scalar {
        Scalar::F16 => Some(6),
        Scalar::BF16 => Some(9),
        _ => None,
    }
}

/// `CU_TENSOR_MAP_INTERLEAVE_NONE`.
const NO_INTERLEAVING: i32 = 0;
/// `CU_TENSOR_MAP_SWIZZLE_128B`.
const SWIZZLE_128: i32 = 3;
/// `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`.
const PROMOTION_256: i32 = 3;
/// `CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE`: what lies outside is zero.
const FILL_ZERO: i32 = 0;

/// The map of an aligned view for boxes of `rows` rows of one panel, swizzled; `None` where the
/// driver has no maps or none for such a view.
pub(super) fn encode(
    driver: &Driver,
    view: &TensorArg,
    address: u64,
    rows: u32,
) -> Option<[u8; 128]> {
    let encode = driver.encode_tensor_map?;
    let data_type = data_type(view.scalar)?;
    let bytes = u64::from(view.scalar.bytes());
    let rank = u32::try_from(view.shape.len()).ok()?;
    // From the innermost dimension.
    let extents: Vec<u64> = view.shape.iter().rev().copied().collect();
    let mut strides = Vec::new();
    let mut last = extents
        .first()?
        .checked_mul(bytes)?
        .next_multiple_of(ALIGNMENT);
    for (extent, stride) in view.shape.iter().zip(&view.strides).rev().skip(1) {
        if *extent > 1 {
            last = stride.checked_mul(bytes)?;
        }
        strides.push(last);
    }
    if extents.contains(&0) || strides.iter().any(|s| *s == 0 || *s >= STRIDE_LIMIT) {
        return None;
    }
    let mut block = vec![1u32; extents.len()];
    *block.first_mut()? = PANEL;
    *block.get_mut(1)? = rows;
    let steps = vec![1u32; extents.len()];
    /// The driver wants maps at multiples of 64 bytes.
    #[repr(align(64))]
    struct Map([u8; 128]);
    let mut map = Map([0; 128]);
    // SAFETY: every pointer is to as many values as the rank asks for, the map is valid for
    // writes and aligned, and the driver only reads the view's address as a number.
    let status = unsafe {
        encode(
            &mut map.0,
            data_type,
            rank,
            address,
            extents.as_ptr(),
            strides.as_ptr(),
            block.as_ptr(),
            steps.as_ptr(),
            NO_INTERLEAVING,
            SWIZZLE_128,
            PROMOTION_256,
            FILL_ZERO,
        )
    };
    (status == 0).then_some(map.0)
}
