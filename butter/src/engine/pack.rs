//! Packing GGUF blocks into planes: the permutation of bits that the matrix kernels read (see
//! the corpus's `quant` module for the layout).

use crate::gguf::TensorType;

/// Weights of one block.
pub const BLOCK: usize = 32;

/// A packed matrix: scales of all rows, then quants of all rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planes {
    /// The scales' bytes: f16 for `Q8_0` and `Q4_0`, a word of two f16 for `Q4_1`, one a block.
    pub scales: Vec<u8>,
    /// 32-bit words: 8 a block for `Q8_0`, 4 for the 4-bit formats.
    pub quants: Vec<u32>,
}

/// The packed formats.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PackedFormat {
    /// 8-bit quants, one scale.
    Q8_0,
    /// 4-bit quants around 8, one scale.
    Q4_0,
    /// 4-bit quants, scale and minimum.
    Q4_1,
}

impl PackedFormat {
    /// The packed format of a GGUF type, if it has one.
    pub fn of(ty: TensorType) -> Option<PackedFormat> {
        match ty.name() {
            "Q8_0" => Some(PackedFormat::Q8_0),
            "Q4_0" => Some(PackedFormat::Q4_0),
            "Q4_1" => Some(PackedFormat::Q4_1),
            _ => None,
        }
    }

    /// The suffix of the kernels that read it.
    pub const fn kernel_suffix(self) -> &'static str {
        match self {
            PackedFormat::Q8_0 => "q8_0",
            PackedFormat::Q4_0 => "q4_0",
            PackedFormat::Q4_1 => "q4_1",
        }
    }

    /// Bytes of a block as GGUF stores it.
    pub const fn block_bytes(self) -> usize {
        match self {
            PackedFormat::Q8_0 => 34,
            PackedFormat::Q4_0 => 18,
            PackedFormat::Q4_1 => 20,
        }
    }

    /// Bytes of a block's scales.
    pub const fn scale_bytes(self) -> usize {
        match self {
            PackedFormat::Q8_0 | PackedFormat::Q4_0 => 2,
            PackedFormat::Q4_1 => 4,
        }
    }

    /// Words of a block's quants.
    pub const fn quant_words(self) -> usize {
        match self {
            PackedFormat::Q8_0 => 8,
            PackedFormat::Q4_0 | PackedFormat::Q4_1 => 4,
        }
    }
}

/// Packs whole blocks. `bytes` holds a whole number of blocks, which the catalogue has checked.
pub fn pack(format: PackedFormat, bytes: &[u8]) -> Planes {
    let blocks = bytes.len() / format.block_bytes();
    let mut scales = Vec::with_capacity(blocks * format.scale_bytes());
    let mut quants = vec![0u32; blocks * format.quant_words()];
    let words = quants.chunks_exact_mut(format.quant_words());
    for (block, words) in bytes.chunks_exact(format.block_bytes()).zip(words) {
        let (scale, packed) = block.split_at(format.scale_bytes());
        scales.extend_from_slice(scale);
        match format {
            PackedFormat::Q8_0 => {
                for (k, &byte) in packed.iter().enumerate() {
                    words[k / 16 * 4 + k % 4] |= u32::from(byte) << (8 * (k % 16 / 4));
                }
            }
            PackedFormat::Q4_0 | PackedFormat::Q4_1 => {
                for (j, &byte) in packed.iter().enumerate() {
                    for (k, nibble) in [(j, byte & 15), (j + 16, byte >> 4)] {
                        words[k % 4] |= u32::from(nibble) << (k / 4 * 4);
                    }
                }
            }
        }
    }
    Planes { scales, quants }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bit_words_hold_four_consecutive_weights_at_every_shift() {
        // Weight k of the block is k % 16, so byte j is j in both nibbles.
        let mut block = vec![0x34, 0x12, 0x78, 0x56];
        block.extend((0..16u8).map(|j| j | j << 4));
        let planes = pack(PackedFormat::Q4_1, &block);
        assert_eq!(planes.scales, [0x34, 0x12, 0x78, 0x56]);
        for k in 0..32 {
            assert_eq!(
                (planes.quants[k % 4] >> (k / 4 * 4)) & 15,
                k as u32 % 16,
                "weight {k}"
            );
        }
    }

    #[test]
    fn eight_bit_words_hold_four_consecutive_weights_at_every_shift() {
        let mut block = vec![0x34, 0x12];
        block.extend((0..32u8).map(|k| k.wrapping_mul(9)));
        let planes = pack(PackedFormat::Q8_0, &block);
        for k in 0..32usize {
            let word = planes.quants[k / 16 * 4 + k % 4];
            assert_eq!(
                (word >> (8 * (k % 16 / 4))) as u8,
                (k as u8).wrapping_mul(9),
                "weight {k}"
            );
        }
    }
}
