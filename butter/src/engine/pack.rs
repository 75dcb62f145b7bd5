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

    /// Bits of a quant.
    pub const fn quant_bits(self) -> usize {
        self.quant_words()
    }

    /// Words of a block's quants: as many as a quant has bits, for 32 quants.
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

/// A packed matrix whose weights are `d * q + m` with `q` of [`PackedFormat::quant_bits`] bits
/// without sign, as processors read it (see the corpus's `affine` module).
#[derive(Clone, PartialEq, Debug)]
pub struct AffinePlanes {
    /// One a block.
    pub d: Vec<f32>,
    /// One a block.
    pub m: Vec<f32>,
    /// 32-bit words, as in [`Planes`].
    pub quants: Vec<u32>,
}

/// As [`pack`]; every weight is the same to the bit.
pub fn pack_affine(format: PackedFormat, bytes: &[u8]) -> AffinePlanes {
    let Planes { scales, mut quants } = pack(format, bytes);
    let halves = scales
        .chunks_exact(2)
        .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32());
    let (d, m): (Vec<f32>, Vec<f32>) = match format {
        PackedFormat::Q4_1 => {
            let all: Vec<f32> = halves.collect();
            all.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip()
        }
        PackedFormat::Q4_0 => halves.map(|d| (d, -8.0 * d)).unzip(),
        PackedFormat::Q8_0 => {
            // From -128..128 to 0..256.
            quants.iter_mut().for_each(|word| *word ^= 0x8080_8080);
            halves.map(|d| (d, -128.0 * d)).unzip()
        }
    };
    AffinePlanes { d, m, quants }
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

    #[test]
    fn affine_planes_hold_the_same_weights() {
        let d = half::f16::from_f32(0.0371).to_le_bytes();
        let quants: Vec<u8> = (0..32u8).map(|k| k.wrapping_mul(37) ^ 0x85).collect();
        for format in [PackedFormat::Q8_0, PackedFormat::Q4_0, PackedFormat::Q4_1] {
            let mut block = d.to_vec();
            if format == PackedFormat::Q4_1 {
                block.extend(half::f16::from_f32(-0.29).to_le_bytes());
            }
            let packed = format.block_bytes() - block.len();
            block.extend(&quants[..packed]);
            let planes = pack_affine(format, &block);
            let bits = format.quant_bits();
            let scale = half::f16::from_f32(0.0371).to_f32();
            for k in 0..32usize {
                let (i, fields) = (k / 4, 32 / bits);
                let word = planes.quants[i / fields * 4 + k % 4];
                let q = (word >> (i % fields * bits)) & ((1 << bits) - 1);
                let weight = (q as f32).mul_add(planes.d[0], planes.m[0]);
                let nibble = f32::from((quants[k % 16] >> (k / 16 * 4)) & 15);
                let expected = match format {
                    PackedFormat::Q8_0 => scale * f32::from(quants[k] as i8),
                    PackedFormat::Q4_0 => scale * (nibble - 8.0),
                    PackedFormat::Q4_1 => {
                        nibble.mul_add(scale, half::f16::from_f32(-0.29).to_f32())
                    }
                };
                assert_eq!(
                    weight.to_bits(),
                    expected.to_bits(),
                    "{format:?}, weight {k}"
                );
            }
        }
    }
}
