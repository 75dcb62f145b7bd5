//! Prompts by packed weights on a device with matrix units: weights are decoded to the activations'
//! type, a part of a matrix at a time, and multiplied by large tiles.
//!
//! A product of rows by itself reads packed weights once a row; decoding writes and reads them
//! unpacked once for all rows. Decoded weights are rounded to the activations' type, which products
//! of single rows do not do.

use iron_runtime::Tensor;

use super::matrix::Matrix;
use super::plan::{Activation, Planner};
use super::route::PROMPT_ROWS;

/// Bytes of a part: several of a matrix's rows for each multiprocessor.
const PART_BYTES: u64 = 128 << 20;
/// Outputs of a part are a multiple of this, the larger tile.
const PART_OUTPUTS: u64 = 256;

impl Planner {
    /// `y[r, :] = x[r, :] · wᵀ` of a prompt's rows by packed weights; false where it is no such
    /// product.
    pub(super) fn linear_unpacked(&mut self, w: &Matrix, x: &Activation, y: &Activation) -> bool {
        let is_packed = matches!(w, Matrix::Packed { .. } | Matrix::KQuant { .. });
        let (rows, inputs, outputs) = (x.shape()[0], x.shape()[1], w.outputs());
        let Some(numbers) = self.row_numbers.clone() else {
            return false;
        };
        if !is_packed || rows < PROMPT_ROWS as u64 || outputs > numbers.elements() {
            return false;
        }
        let row_bytes = inputs * u64::from(self.dtype.bytes());
        for (first, count) in parts(outputs, PART_BYTES / row_bytes.max(1)) {
            let Ok(ids) = numbers.slice(0, first..first + count) else {
                unreachable!("{count} rows from {first} lie within {outputs}");
            };
            let dense = self.activation(&[count, inputs]);
            self.gather(w, &ids, &dense);
            self.linear_tiled(
                x,
                (&dense).into(),
                [count, inputs],
                &y.columns(first, count),
            );
        }
        true
    }
}

/// The numbers of rows that [`Planner::linear_unpacked`] decodes by.
pub(super) fn row_numbers(
    device: &std::sync::Arc<dyn iron_runtime::Device>,
    vocab_size: usize,
) -> Result<Tensor, crate::model::ModelError> {
    let numbers: Vec<u32> = (0..vocab_size.max(1 << 17) as u32).collect();
    let shape = [numbers.len() as u64];
    super::matrix::failed(Tensor::from_slice(
        device,
        iron_ir::Scalar::U32,
        &shape,
        &numbers,
    ))
}

/// The parts of a matrix of so many rows that have about `most` each: first row and count.
pub(super) fn parts(outputs: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    let most = (most / PART_OUTPUTS).max(1) * PART_OUTPUTS;
    let first = (0..outputs).step_by(most as usize);
    first.map(move |first| (first, most.min(outputs - first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_matrix_in_whole_tiles() {
        for (outputs, most, expected) in [
            (4096, 16384, vec![(0, 4096)]),
            (151_936, 65535, vec![(0, 65280)]),
            (300, 0, vec![(0, 256), (256, 44)]),
            (0, 1 << 20, vec![]),
        ] {
            let found: Vec<_> = parts(outputs, most).collect();
            assert!(found.starts_with(&expected), "{found:?}");
            let mut next = 0;
            for (first, count) in found {
                assert!(first == next && first.is_multiple_of(PART_OUTPUTS) && count > 0);
                next += count;
            }
            assert_eq!(next, outputs);
        }
    }
}
