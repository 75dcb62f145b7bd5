//! Plain decoding of tensor bytes to `f32`.
//!
//! It serves tensors that are needed as numbers at load (norms, frequency
//! factors) and is the oracle for the packed kernels, with which it shares no
//! code. Formulas: ggml's `dequantize_row_*` reference functions.

use half::{bf16, f16};

use super::TensorType;

/// Bytes could not be decoded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DequantiseError {
    /// The type is published but not decoded here.
    #[error(
        "tensor type {0} is not supported yet; supported are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K"
    )]
    Unsupported(TensorType),
    /// Bytes and elements disagree.
    #[error("{elements} elements of {ty} need {needed} bytes, but there are {found}")]
    Length {
        /// The type.
        ty: TensorType,
        /// Elements asked for.
        elements: usize,
        /// Bytes that they need (0 if they fill no whole number of blocks).
        needed: usize,
        /// Bytes given.
        found: usize,
    },
}

/// Decodes `bytes` of type `ty` into `out`, element for element.
///
/// Arithmetic is `f32`, one rounding an operation, in the order of ggml's
/// reference: `Q4_1` is `q * d + m`, the product rounded before the sum.
pub fn dequantise(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), DequantiseError> {
    let needed = ty.bytes_of(out.len());
    if needed != Some(bytes.len()) {
        return Err(DequantiseError::Length {
            ty,
            elements: out.len(),
            needed: needed.unwrap_or(0),
            found: bytes.len(),
        });
    }
    match ty {
        TensorType::F32 => each(bytes, out, |b: [u8; 4]| f32::from_le_bytes(b)),
        TensorType::F16 => each(bytes, out, |b: [u8; 2]| f16::from_le_bytes(b).to_f32()),
        TensorType::BF16 => each(bytes, out, |b: [u8; 2]| bf16::from_le_bytes(b).to_f32()),
        TensorType::Q8_0 => {
            for (block, out) in bytes.chunks_exact(34).zip(out.chunks_exact_mut(32)) {
                let scale = half_at(block, 0);
                for (value, &code) in out.iter_mut().zip(&block[2..]) {
                    *value = f32::from(code as i8) * scale;
                }
            }
        }
        TensorType::Q4_0 => {
            for (block, out) in bytes.chunks_exact(18).zip(out.chunks_exact_mut(32)) {
                let scale = half_at(block, 0);
                let (low, high) = out.split_at_mut(16);
                for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[2..]) {
                    *low = (f32::from(pair & 15) - 8.0) * scale;
                    *high = (f32::from(pair >> 4) - 8.0) * scale;
                }
            }
        }
        TensorType::Q4_1 => {
            for (block, out) in bytes.chunks_exact(20).zip(out.chunks_exact_mut(32)) {
                let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
                let (low, high) = out.split_at_mut(16);
                for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[4..]) {
                    *low = f32::from(pair & 15) * scale + minimum;
                    *high = f32::from(pair >> 4) * scale + minimum;
                }
            }
        }
        TensorType::Q5_0 | TensorType::Q5_1 => {
            let size = ty.block_bytes();
            for (block, out) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(32)) {
                let scale = half_at(block, 0);
                let (offset, minimum) = match ty {
                    TensorType::Q5_1 => (0.0, half_at(block, 2)),
                    _ => (16.0, 0.0),
                };
                let (fifths, pairs) = block[size - 20..].split_at(4);
                let (low, high) = out.split_at_mut(16);
                for (j, &pair) in pairs.iter().enumerate() {
                    let fifth = |k: usize| (fifths[k / 8] >> (k % 8) & 1) << 4;
                    let value = |code: u8| (f32::from(code) - offset) * scale + minimum;
                    low[j] = value(pair & 15 | fifth(j));
                    high[j] = value(pair >> 4 | fifth(j + 16));
                }
            }
        }
        TensorType::Q4_K | TensorType::Q5_K => {
            let size = ty.block_bytes();
            for (block, out) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(256)) {
                let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
                let pairs = &block[size - 128..];
                for (part, out) in out.chunks_exact_mut(32).enumerate() {
                    let (s, m) = scale_and_minimum(&block[4..16], part);
                    let (s, m) = (scale * f32::from(s), minimum * f32::from(m));
                    for (k, value) in out.iter_mut().enumerate() {
                        let mut code = pairs[part / 2 * 32 + k] >> (part % 2 * 4) & 15;
                        if ty == TensorType::Q5_K {
                            code += (block[16 + k] >> part & 1) * 16;
                        }
                        *value = s * f32::from(code) - m;
                    }
                }
            }
        }
        TensorType::Q6_K => {
            for (block, out) in bytes.chunks_exact(210).zip(out.chunks_exact_mut(256)) {
                let scale = half_at(block, 208);
                for (half, out) in out.chunks_exact_mut(128).enumerate() {
                    let low = &block[64 * half..64 * half + 64];
                    let high = &block[128 + 32 * half..160 + 32 * half];
                    let scales = &block[192 + 8 * half..200 + 8 * half];
                    for l in 0..32 {
                        let codes = [
                            low[l] & 15 | (high[l] & 3) << 4,
                            low[l + 32] & 15 | (high[l] >> 2 & 3) << 4,
                            low[l] >> 4 | (high[l] >> 4 & 3) << 4,
                            low[l + 32] >> 4 | (high[l] >> 6) << 4,
                        ];
                        for (quarter, code) in codes.into_iter().enumerate() {
                            let s = scales[l / 16 + 2 * quarter] as i8;
                            let code = f32::from(code) - 32.0;
                            out[l + 32 * quarter] = scale * f32::from(s) * code;
                        }
                    }
                }
            }
        }
        other => return Err(DequantiseError::Unsupported(other)),
    }
    Ok(())
}

/// The numbers that a code of four bits (E2M1) stands for without its sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Decodes blocks of 32 elements (OCP Microscaling formats): 16 bytes of codes, the first element
/// of each two in the low half, and one power of two, its exponent plus 127; 255 is NaN.
pub fn dequantise_mxfp4(codes: &[u8], exponents: &[u8], out: &mut [f32]) {
    let blocks = codes.chunks_exact(16).zip(exponents);
    for ((codes, &exponent), out) in blocks.zip(out.chunks_exact_mut(32)) {
        let scale = match exponent {
            255 => f32::NAN,
            // 2^-127 is subnormal.
            0 => f32::from_bits(1 << 22),
            exponent => f32::from_bits(u32::from(exponent) << 23),
        };
        for (pair, &byte) in out.chunks_exact_mut(2).zip(codes) {
            for (value, code) in pair.iter_mut().zip([byte & 15, byte >> 4]) {
                let size = E2M1[usize::from(code & 7)] * scale;
                *value = if code & 8 == 0 { size } else { -size };
            }
        }
    }
}

/// The 6-bit scale and minimum of a part of a K block (ggml's `get_scale_min_k4`).
fn scale_and_minimum(packed: &[u8], part: usize) -> (u8, u8) {
    if part < 4 {
        (packed[part] & 63, packed[part + 4] & 63)
    } else {
        let high = |byte: u8| (byte >> 6) << 4;
        (
            (packed[part + 4] & 15) | high(packed[part - 4]),
            (packed[part + 4] >> 4) | high(packed[part]),
        )
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (value, element) in out.iter_mut().zip(elements) {
        *value = decode(*element);
    }
}

fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(ty: TensorType, bytes: &[u8], elements: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; elements];
        dequantise(ty, bytes, &mut out).expect("the bytes fill whole blocks");
        out
    }

    #[test]
    fn microscaled_blocks_decode_low_halves_first() {
        let mut codes = [0u8; 32];
        codes[..4].copy_from_slice(&[0x21, 0x7f, 0x80, 0x01]);
        codes[16] = 0x32;
        let mut out = [f32::NAN; 64];
        dequantise_mxfp4(&codes, &[128, 0], &mut out);
        assert_eq!(out[..8], [1.0, 2.0, -12.0, 12.0, 0.0, -0.0, 1.0, 0.0]);
        assert!(out[5].is_sign_negative());
        assert_eq!(out[32..34], [2f32.powi(-127), 1.5 * 2f32.powi(-127)]);
        dequantise_mxfp4(&codes, &[255, 254], &mut out);
        assert!(out[0].is_nan() && out[32] == 2f32.powi(127));
    }

    #[test]
    fn four_bit_blocks_keep_low_nibbles_first() {
        let mut block = f16::from_f32(0.5).to_le_bytes().to_vec();
        block.extend((0..16).map(|i| i | ((15 - i) << 4)));
        let q4_0 = decode(TensorType::Q4_0, &block, 32);
        let expected: Vec<f32> = (0..16)
            .chain((0..16).rev())
            .map(|q| (q as f32 - 8.0) * 0.5)
            .collect();
        assert_eq!(q4_0, expected);

        block.splice(2..2, f16::from_f32(-3.0).to_le_bytes());
        let q4_1 = decode(TensorType::Q4_1, &block, 32);
        let expected: Vec<f32> = (0..16)
            .chain((0..16).rev())
            .map(|q| q as f32 * 0.5 - 3.0)
            .collect();
        assert_eq!(q4_1, expected);
    }

    #[test]
    fn eight_bit_codes_are_signed() {
        let mut block = f16::from_f32(2.0).to_le_bytes().to_vec();
        block.extend([0x80, 0xff, 0x00, 0x7f].iter().cycle().take(32));
        assert_eq!(
            decode(TensorType::Q8_0, &block, 32)[..4],
            [-256.0, -2.0, 0.0, 254.0]
        );
    }

    #[test]
    fn wrong_lengths_and_unsupported_types_are_errors() {
        let mut out = [0.0; 32];
        assert!(dequantise(TensorType::Q4_0, &[0; 17], &mut out).is_err());
        assert!(dequantise(TensorType::Q4_0, &[0; 18], &mut out[..31]).is_err());
        let mut out = [0.0; 256];
        let error = dequantise(TensorType::Q3_K, &[0; 110], &mut out).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("tensor type Q3_K is not supported yet")
        );
    }
}
