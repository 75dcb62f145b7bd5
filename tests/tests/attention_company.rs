//! A row's attention by matrix products does not depend on its company: not on whether longer rows
//! make the launch one of several splits, nor on whether one kernel makes the heads of the new rows
//! and attends or two do, nor on who joins a row's splits. Nor does a prompt's attention depend on the prompts beside it. The same
//! bits, row by row.

use std::sync::Arc;

use iron_corpus::attention::most_splits_of;
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::{Const, Scalar};
use iron_runtime::device::RecordedLaunch;
use iron_runtime::{Backend, Device, Tensor, open, pipeline_of};

const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const HEAD_DIM: u64 = 128;
const BLOCK: u64 = 64;
/// Blocks of a sequence, and positions of a split.
const PAGES: u64 = 5;
const LEAST: u32 = 256;
const SEQUENCES: u64 = 4;

/// Numbers between -1 and 1, the same in every run.
fn numbers(count: u64, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn halves(device: &Arc<dyn Device>, shape: &[u64], seed: u32) -> Tensor {
    let values = numbers(shape.iter().product(), seed);
    Tensor::from_f32(device, Scalar::BF16, shape, &values).expect("memory")
}

fn integers(device: &Arc<dyn Device>, shape: &[u64], values: &[u32]) -> Tensor {
    Tensor::from_slice(device, Scalar::U32, shape, values).expect("memory")
}

fn scalar(scalar: Scalar, bits: u32) -> Argument {
    let bits = u64::from(bits);
    Argument::Scalar(Const { scalar, bits })
}

fn launch(
    device: &Arc<dyn Device>,
    [module, kernel, instance]: [&str; 3],
    tensors: &[&Tensor],
    scalars: &[Argument],
) {
    let module = format!("iron_corpus::{module}");
    let pipeline = pipeline_of(device, kernel, Some(&module), instance).expect("compiles");
    let mut arguments: Vec<Argument> = tensors
        .iter()
        .map(|t| Argument::Tensor(t.tensor_arg()))
        .collect();
    arguments.extend_from_slice(scalars);
    let launch = RecordedLaunch::new(pipeline, arguments).expect("the contract holds");
    device.submit(&[launch]).expect("runs");
}

/// How rows attend: a kernel makes their heads too, or one attends to heads that another made, and
/// its last workgroup of a row joins the row's splits or yet another kernel does.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    WithHeads,
    Apart,
    Joined,
}

/// Bits of the attention of the first rows, each the new position `positions[i]` of sequence `i`.
fn attended(device: &Arc<dyn Device>, positions: &[u32], way: Way) -> Vec<Vec<u32>> {
    let rows = positions.len() as u64;
    let cache = [SEQUENCES * PAGES, KV_HEADS, BLOCK, HEAD_DIM];
    let (keys, values) = (halves(device, &cache, 1), halves(device, &cache, 2));
    let width = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
    // A row is the same whatever rows come after it.
    let projected = halves(device, &[rows, width], 3);
    let norms = [4, 5].map(|seed| halves(device, &[HEAD_DIM], seed));
    let at = integers(device, &[rows], positions);
    let of: Vec<u32> = (0..rows as u32).collect();
    let of = integers(device, &[rows], &of);
    let table: Vec<u32> = (0..(SEQUENCES * PAGES) as u32).rev().collect();
    let table = integers(device, &[SEQUENCES, PAGES], &table);
    let pairs = HEAD_DIM / 2;
    let frequencies = numbers(pairs, 6);
    let frequencies = Tensor::from_slice(device, Scalar::F32, &[pairs], &frequencies);
    let frequencies = frequencies.expect("memory");
    let sinks = Tensor::from_slice(device, Scalar::F32, &[HEADS], &[0.5f32, 2.0, 4.0, -1.0]);
    let sinks = sinks.expect("memory");
    let longest = positions.iter().max().expect("a row") + 1;
    let splits = u64::from(most_splits_of(longest, LEAST));
    let partial = Tensor::zeros(device, Scalar::F32, &[rows, HEADS, splits, HEAD_DIM]);
    let stats = Tensor::zeros(device, Scalar::F32, &[rows, HEADS, splits, 2]);
    let (partial, stats) = (partial.expect("memory"), stats.expect("memory"));
    let query = Tensor::zeros(device, Scalar::BF16, &[rows, HEADS, HEAD_DIM]).expect("memory");
    let y = Tensor::zeros(device, Scalar::BF16, &[rows, HEADS, HEAD_DIM]).expect("memory");

    let float = |x: f32| scalar(Scalar::F32, x.to_bits());
    let window = scalar(Scalar::U32, u32::MAX);
    let least = scalar(Scalar::U32, LEAST);
    let new_heads = [float(1.0), float(1e-5), scalar(Scalar::U32, 1)];
    let attention = [float(0.1), window.clone(), float(0.0), least.clone()];
    let instance = format!("bf16-HEAD_DIM={HEAD_DIM}");
    let [q_norm, k_norm] = &norms;
    let made = [&projected, q_norm, k_norm, &at, &frequencies, &of, &table];
    let given = [&partial, &stats, &y];
    if way == Way::WithHeads {
        let name = ["matrix_attention", "attention_of_heads_matrix", &instance];
        let tensors = [&made[..], &[&sinks, &keys, &values], &given].concat();
        launch(
            device,
            name,
            &tensors,
            &[&attention[..], &new_heads].concat(),
        );
    } else {
        let name = ["heads", "heads_to_cache", &instance];
        let tensors = [&made[..], &[&query, &keys, &values]].concat();
        launch(device, name, &tensors, &new_heads);
        let from = [&query, &keys, &values, &at, &of, &table, &sinks];
        if way == Way::Apart {
            let name = ["matrix_attention", "attention_decode_matrix", &instance];
            launch(device, name, &[&from[..], &given].concat(), &attention);
        } else {
            let name = ["attention_join", "attention_decode_joined", &instance];
            let counters = vec![0; (rows * KV_HEADS) as usize];
            let arrived = integers(device, &[rows * KV_HEADS], &counters);
            let tensors = [&from[..], &[&partial, &stats, &arrived, &y]].concat();
            // The second launch finds the counters as the first left them.
            for _ in 0..2 {
                launch(device, name, &tensors, &attention);
            }
        }
    }
    if splits > 1 && way != Way::Joined {
        let tensors = [&partial, &stats, &at, &sinks, &y];
        let name = ["attention_join", "attention_join", "bf16"];
        launch(device, name, &tensors, &[window, least]);
    }
    device.synchronize().expect("no index was out of range");
    let y = y.to_f32().expect("memory");
    y.chunks((HEADS * HEAD_DIM) as usize)
        .map(|row| row.iter().map(|y| y.to_bits()).collect())
        .collect()
}

#[test]
fn a_row_attends_to_the_same_bits_in_any_company() {
    iron_corpus::link();
    let names = std::env::var("IRON_TEST_BACKENDS").unwrap_or_else(|_| "cpu".to_owned());
    for name in names.split(',') {
        let backend = Backend::from_name(name.trim()).expect("a backend's name");
        let device = open(backend).expect("the backend is there");
        // The new position is alone in its run, in the middle of one, the only one there is.
        let alone = attended(&device, &[192, 255, 0], Way::WithHeads);
        assert!(alone.iter().flatten().any(|y| f32::from_bits(*y) != 0.0));
        for (positions, way) in [
            (&[192, 255, 0][..], Way::Apart),
            (&[192, 255, 0], Way::Joined),
            (&[192, 255, 0, 300], Way::WithHeads),
            (&[192, 255, 0, 300], Way::Apart),
            (&[192, 255, 0, 300], Way::Joined),
        ] {
            let found = attended(&device, positions, way);
            assert_eq!(found[..3], alone[..], "{name}, {positions:?}, {way:?}");
        }
        // Of two splits, the second of the new position alone.
        let two = attended(&device, &[256, 300], Way::WithHeads);
        for way in [Way::Apart, Way::Joined] {
            assert_eq!(attended(&device, &[256, 300], way), two, "{name}, {way:?}");
        }
    }
}

/// Of each prompt its sequence, its first position and its rows.
type Prompt = (u32, u32, u32);

/// Bits of the attention of prompts that share a launch by tiles of `size` rows: of each prompt
/// those of its rows and heads.
fn prompts_attended(device: &Arc<dyn Device>, prompts: &[Prompt], size: u32) -> Vec<Vec<u32>> {
    let (head_dim, block, pages) = (64, 128, 3);
    let cache = [SEQUENCES * pages, KV_HEADS, block, head_dim];
    let (keys, values) = (halves(device, &cache, 1), halves(device, &cache, 2));
    let (mut at, mut of, mut tiles) = (Vec::new(), Vec::new(), Vec::new());
    let mut queries = Vec::new();
    for &(sequence, first, rows) in prompts {
        let (begin, end) = (at.len() as u32, at.len() as u32 + rows);
        for tile in (begin..end).step_by(size as usize) {
            tiles.extend([tile, end.min(tile + size)]);
        }
        at.extend(first..first + rows);
        of.extend((0..rows).map(|_| sequence));
        queries.extend(numbers(u64::from(rows) * HEADS * head_dim, 10 + sequence));
    }
    let (rows, count) = (at.len() as u64, tiles.len() as u64 / 2);
    let places = count * u64::from(size);
    let query = Tensor::from_f32(device, Scalar::BF16, &[rows, HEADS, head_dim], &queries);
    let y = Tensor::zeros(device, Scalar::BF16, &[places, HEADS, head_dim]).expect("memory");
    let table: Vec<u32> = (0..(SEQUENCES * pages) as u32).rev().collect();
    let table = integers(device, &[SEQUENCES, pages], &table);
    let sinks = Tensor::from_slice(device, Scalar::F32, &[HEADS], &[0.5f32, 2.0, 4.0, -1.0]);
    let (at, of) = (
        integers(device, &[rows], &at),
        integers(device, &[rows], &of),
    );
    let tile_rows = integers(device, &[count, 2], &tiles);
    let by_heads = |tensor: &Tensor| {
        let shape = tensor.shape();
        let strides = [head_dim, HEADS * head_dim, 1];
        tensor
            .with_strides(&[HEADS, shape[0], head_dim], &strides)
            .expect("inside")
    };
    let (query, by_heads_y) = (by_heads(&query.expect("memory")), by_heads(&y));
    let (sinks, float) = (sinks.expect("memory"), |x: f32| {
        scalar(Scalar::F32, x.to_bits())
    });
    let instance = format!("bf16-HEAD_DIM={head_dim}-ROWS={size}");
    let tensors = [
        &query,
        &keys,
        &values,
        &at,
        &of,
        &tile_rows,
        &table,
        &sinks,
        &by_heads_y,
    ];
    let scalars = [float(0.1), scalar(Scalar::U32, 150), float(0.0)];
    launch(
        device,
        ["attention", "attention_prefill", &instance],
        &tensors,
        &scalars,
    );
    device.synchronize().expect("no index was out of range");
    let bits: Vec<u32> = y
        .to_f32()
        .expect("memory")
        .iter()
        .map(|y| y.to_bits())
        .collect();
    let width = (HEADS * head_dim) as usize;
    let mut first = 0;
    let of_prompt = |&(_, _, rows): &Prompt| {
        let own = &bits[first * width..][..rows as usize * width];
        first += rows.next_multiple_of(size) as usize;
        own.to_vec()
    };
    prompts.iter().map(of_prompt).collect()
}

#[test]
fn a_prompt_attends_to_the_same_bits_beside_others() {
    iron_corpus::link();
    let names = std::env::var("IRON_TEST_BACKENDS").unwrap_or_else(|_| "reference".to_owned());
    for name in names.split(',') {
        let backend = Backend::from_name(name.trim()).expect("a backend's name");
        let device = open(backend).expect("the backend is there");
        for size in [16, 128] {
            let prompts = [(2, 125, 21), (0, 0, 131), (3, 300, 16)];
            let together = prompts_attended(&device, &prompts, size);
            for (prompt, found) in prompts.into_iter().zip(together) {
                let alone = prompts_attended(&device, &[prompt], size).remove(0);
                assert!(alone.iter().any(|y| f32::from_bits(*y) != 0.0));
                assert!(alone == found, "{name}, {size} rows a tile, {prompt:?}");
            }
        }
    }
}
