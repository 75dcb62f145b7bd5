//! Packing GGUF blocks of 4, 5 and 6 bits into planes: the permutation of bits that the corpus's
//! `quant_k` kernels read. Formats: ggml's `ggml-common.h` and `dequantize_row_*`.

use half::f16;

use crate::gguf::TensorType;

/// Weights that share two scales.
const PART: usize = 32;

/// A packed matrix.
#[derive(Clone, PartialEq, Debug)]
pub struct KPlanes {
    /// Two a part: scale and minimum, or the scales of the two halves.
    pub scales: Vec<f32>,
    /// Four words a part: the low four bits of each weight.
    pub low: Vec<u32>,
    /// Four numbers a part of as many bytes as there are bits above four.
    pub high: Vec<u8>,
}

/// Bits of a weight of a type that these planes hold: 4, 5 or 6.
pub fn bits_of(ty: TensorType) -> Option<u32> {
    match ty {
        TensorType::Q4_K => Some(4),
        TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5_K => Some(5),
        TensorType::Q6_K => Some(6),
        _ => None,
    }
}

/// Packs whole blocks of a type that has [`bits_of`]. `bytes` holds a whole number of them,
/// which the catalogue has checked.
pub fn pack_k(ty: TensorType, bytes: &[u8]) -> KPlanes {
    let parts = bytes.len() / ty.block_bytes() * (ty.block_elements() / PART);
    let high_bytes = bits_of(ty).map_or(0, |bits| bits as usize - 4);
    let mut planes = KPlanes {
        scales: Vec::with_capacity(2 * parts),
        low: Vec::with_capacity(4 * parts),
        high: Vec::with_capacity(4 * parts * high_bytes),
    };
    for block in bytes.chunks_exact(ty.block_bytes()) {
        match ty {
            TensorType::Q4_K => k_block(block, None, &mut planes),
            TensorType::Q5_K => k_block(block, Some(16), &mut planes),
            TensorType::Q6_K => q6_block(block, &mut planes),
            TensorType::Q5_0 => q5_block(block, false, &mut planes),
            _ => q5_block(block, true, &mut planes),
        }
    }
    planes
}

impl KPlanes {
    fn push(&mut self, quants: [u8; PART], scales: [f32; 2], high_bits: usize) {
        self.scales.extend(scales);
        for lane in 0..4 {
            let (mut low, mut high) = (0u32, 0u32);
            for s in 0..8 {
                let q = u32::from(quants[4 * s + lane]);
                low |= (q & 15) << (4 * s);
                high |= (q >> 4) << (high_bits * s);
            }
            self.low.push(low);
            self.high.extend(&high.to_le_bytes()[..high_bits]);
        }
    }
}

fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

/// `Q5_0` and `Q5_1`: low bits of weights `j` and `j + 16` in byte `j`, the fifth bits in a word.
fn q5_block(block: &[u8], with_minimum: bool, planes: &mut KPlanes) {
    let d = half_at(block, 0);
    let (minimum, rest) = if with_minimum {
        (half_at(block, 2), &block[4..])
    } else {
        (-16.0 * d, &block[2..])
    };
    let fifth = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
    let quants = std::array::from_fn(|k| {
        let byte = rest[4 + k % 16];
        let low = if k < 16 { byte & 15 } else { byte >> 4 };
        low | ((fifth >> k) as u8 & 1) << 4
    });
    planes.push(quants, [d, minimum], 1);
}

/// `Q4_K` and `Q5_K`: eight parts; scales and minima of 6 bits in 12 bytes; the fifth bits, if
/// any, from byte `high` on, bit `part` of byte `k`.
fn k_block(block: &[u8], high: Option<usize>, planes: &mut KPlanes) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let packed = &block[4..16];
    let low = &block[high.map_or(16, |high| high + 32)..];
    for part in 0..8 {
        let (scale, minimum) = if part < 4 {
            (packed[part] & 63, packed[part + 4] & 63)
        } else {
            (
                packed[part + 4] & 15 | packed[part - 4] >> 6 << 4,
                packed[part + 4] >> 4 | packed[part] >> 6 << 4,
            )
        };
        let quants = std::array::from_fn(|k| {
            let byte = low[part / 2 * 32 + k];
            let nibble = if part % 2 == 0 { byte & 15 } else { byte >> 4 };
            let fifth = high.map_or(0, |high| block[high + k] >> part & 1);
            nibble | fifth << 4
        });
        let scales = [d * f32::from(scale), -(dmin * f32::from(minimum))];
        planes.push(quants, scales, usize::from(high.is_some()));
    }
}

/// `Q6_K`: two halves of 128; low bits in 64 bytes a half, the next two in 32, a signed scale
/// for each 16 weights.
fn q6_block(block: &[u8], planes: &mut KPlanes) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let d = half_at(rest, 16);
    for part in 0..8 {
        let (half, quarter) = (part / 4, part % 4);
        let quants = std::array::from_fn(|k| {
            let byte = low[64 * half + 32 * (quarter % 2) + k];
            let nibble = if quarter < 2 { byte & 15 } else { byte >> 4 };
            nibble | (high[32 * half + k] >> (2 * quarter) & 3) << 4
        });
        let scale = |i: usize| d * f32::from(rest[8 * half + 2 * quarter + i] as i8);
        planes.push(quants, [scale(0), scale(1)], 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::dequantise;

    /// What the kernels compute of the planes, weight by weight.
    fn unpacked(bits: usize, planes: &KPlanes) -> Vec<f32> {
        let weight = |i: usize| {
            let (part, k) = (i / PART, i % PART);
            let place = 4 * part + k % 4;
            let low = planes.low[place] >> (k / 4 * 4) & 15;
            let high_bits = bits - 4;
            let high = (0..high_bits).fold(0u32, |word, byte| {
                word | u32::from(planes.high[place * high_bits + byte]) << (8 * byte)
            });
            let high = high >> (k / 4 * high_bits) & ((1 << high_bits) - 1);
            let q = (low | high << 4) as f32;
            let scales = &planes.scales[2 * part..2 * part + 2];
            if bits == 6 {
                scales[k / 16] * (q - 32.0)
            } else {
                q.mul_add(scales[0], scales[1])
            }
        };
        (0..planes.scales.len() / 2 * PART).map(weight).collect()
    }

    #[test]
    fn planes_hold_the_weights_that_plain_decoding_gives() {
        for ty in [
            TensorType::Q5_0,
            TensorType::Q5_1,
            TensorType::Q4_K,
            TensorType::Q5_K,
            TensorType::Q6_K,
        ] {
            let blocks = 3;
            let mut bytes: Vec<u8> = (0..blocks * ty.block_bytes())
                .map(|i| (i * 167 + i / 7 * 89 + 13) as u8)
                .collect();
            // Sane scales: random halves may be NaN.
            for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                let at = if ty == TensorType::Q6_K { 208 } else { 0 };
                block[at..at + 2].copy_from_slice(&f16::from_f32(0.0371).to_le_bytes());
                if !matches!(ty, TensorType::Q6_K | TensorType::Q5_0) {
                    block[2..4].copy_from_slice(&f16::from_f32(-0.25).to_le_bytes());
                }
            }
            let mut expected = vec![0.0; blocks * ty.block_elements()];
            dequantise(ty, &bytes, &mut expected).expect("whole blocks");
            let bits = bits_of(ty).expect("a packed type");
            let found = unpacked(bits as usize, &pack_k(ty, &bytes));
            assert_eq!(found.len(), expected.len());
            for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
                // One rounding against two.
                assert!(
                    (a - b).abs() <= 2e-7 * b.abs().max(1.0),
                    "{ty} {i}: {a} {b}"
                );
            }
        }
    }
}
