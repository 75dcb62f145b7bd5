//! A row's result does not depend on how many rows share a reading of the weights: the kernels
//! for one row and for several give the same bits, row by row, and so do tiles of every size.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_ir::launch::{Argument, AsTensorArg};
use iron_runtime::device::RecordedLaunch;
use iron_runtime::{Backend, Device, Tensor, open, pipeline_of};

/// Eight turns of the pieces that a workgroup holds of four rows, and a rest.
const BLOCKS: usize = 131;
const OUTPUTS: usize = 37;

/// Numbers of both signs and many sizes, the same in every run.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let mut number = || (next() as f32 / (1 << 23) as f32 - 1.0) * (1 << (next() % 12)) as f32;
    (0..count).map(|_| number()).collect()
}

struct Weights {
    bits: usize,
    d: Tensor,
    m: Tensor,
    quants: Tensor,
}

impl Weights {
    fn new(device: &Arc<dyn Device>, bits: usize) -> Weights {
        let blocks = [OUTPUTS as u64, BLOCKS as u64];
        let words = [OUTPUTS as u64, (BLOCKS * bits) as u64];
        let count = OUTPUTS * BLOCKS;
        let quants: Vec<u32> = numbers(count * bits, 3)
            .iter()
            .map(|x| x.to_bits())
            .collect();
        let scales = |seed| {
            let values = numbers(count, seed);
            Tensor::from_slice(device, Scalar::F32, &blocks, &values).expect("memory")
        };
        Weights {
            bits,
            d: scales(1),
            m: scales(2),
            quants: Tensor::from_slice(device, Scalar::U32, &words, &quants).expect("memory"),
        }
    }

    /// The product's bits, row after row, `together` rows a reading.
    fn product(&self, device: &Arc<dyn Device>, x: &[f32], together: usize) -> Vec<u32> {
        let rows = (x.len() / (BLOCKS * 32)) as u64;
        let x = Tensor::from_slice(device, Scalar::F32, &[rows, BLOCKS as u64 * 32], x);
        let y = Tensor::zeros(device, Scalar::F32, &[rows, OUTPUTS as u64]).expect("memory");
        let instance = format!("f32-BITS={}-ROWS={together}", self.bits);
        let module = Some("iron_corpus::affine");
        let pipeline = pipeline_of(device, "affine_product", module, &instance).expect("compiles");
        let tensors = [&x.expect("memory"), &self.d, &self.m, &self.quants, &y];
        let arguments = tensors.map(|t| Argument::Tensor(t.tensor_arg())).to_vec();
        let launch = RecordedLaunch::new(pipeline, arguments).expect("the contract holds");
        device.submit(&[launch]).expect("runs");
        device.synchronize().expect("no index was out of range");
        let values = y.to_f32().expect("memory");
        values.iter().map(|y| y.to_bits()).collect()
    }
}

/// Longer than two steps of every tile, and no multiple of one.
const INNER: usize = 296;
/// Rows and columns of two tiles of the smallest kind.
const TILED: (usize, usize) = (70, 67);

/// The bits of rows of 16-bit floats times weights of the same, by tiles of a size.
fn tiled(device: &Arc<dyn Device>, x: &[f32], tile: u32) -> Vec<u32> {
    let tensor = |values: &[f32], shape: [usize; 2]| {
        let shape = shape.map(|extent| extent as u64);
        Tensor::from_f32(device, Scalar::BF16, &shape, values).expect("memory")
    };
    let (rows, columns) = (x.len() / INNER, TILED.1);
    let x = tensor(x, [rows, INNER]);
    let w = tensor(&numbers(columns * INNER, 7), [columns, INNER]);
    let y = tensor(&vec![f32::NAN; rows * columns], [rows, columns]);
    let instance = format!("bf16-TILE={tile}");
    let module = Some("iron_corpus::matmul");
    let pipeline = pipeline_of(device, "linear", module, &instance).expect("compiles");
    let arguments = [&x, &w, &y].map(|t| Argument::Tensor(t.tensor_arg()));
    let launch = RecordedLaunch::new(pipeline, arguments.to_vec()).expect("the contract holds");
    device.submit(&[launch]).expect("runs");
    device.synchronize().expect("no index was out of range");
    let values = y.to_f32().expect("memory");
    values.iter().map(|y| y.to_bits()).collect()
}

// The tile that a prompt's product takes depends on the rows of the step, those of other prompts
// among them.
#[test]
fn rows_have_the_same_bits_in_tiles_of_every_size() {
    iron_corpus::link();
    let names = std::env::var("IRON_TEST_BACKENDS").unwrap_or_else(|_| "reference".to_owned());
    for name in names.split(',') {
        let backend = Backend::from_name(name.trim()).expect("a backend's name");
        let device = open(backend).expect("the backend is there");
        let x = numbers(TILED.0 * INNER, 6);
        let all = tiled(&device, &x, 128);
        assert!(all.iter().any(|y| f32::from_bits(*y) != 0.0));
        // On an H200 tiles of 64 are loops with an order of their own, which no prompt takes.
        let sizes = match backend {
            Backend::Cuda => vec![128, 256],
            _ => vec![64, 128, 256],
        };
        for &tile in &sizes {
            assert!(all == tiled(&device, &x, tile), "{name}, tile {tile}");
        }
        for first in [0, 3, 69] {
            let row = &x[first * INNER..][..INNER];
            let expected = &all[first * TILED.1..][..TILED.1];
            for &tile in &sizes {
                assert!(expected == tiled(&device, row, tile), "{name}, row {first}");
            }
        }
    }
}

#[test]
fn rows_have_the_same_bits_alone_and_together() {
    iron_corpus::link();
    for backend in [Backend::Reference, Backend::Cpu] {
        let device = open(backend).expect("opens everywhere");
        for bits in [4, 8] {
            let weights = Weights::new(&device, bits);
            let x = numbers(6 * BLOCKS * 32, 5);
            let alone: Vec<u32> = x
                .chunks(BLOCKS * 32)
                .flat_map(|row| weights.product(&device, row, 1))
                .collect();
            let name = backend.name();
            assert!(alone.iter().any(|y| f32::from_bits(*y) != 0.0));
            assert_eq!(
                alone,
                weights.product(&device, &x, 1),
                "{name}, one row at a time"
            );
            assert_eq!(
                alone,
                weights.product(&device, &x, 4),
                "{name}, four at a time"
            );
        }
    }
}
