//! Cases of the attention of single query rows, which several kernels have the contract of.

use iron_ir::testing::{Bound, Cases, Inputs, ints, normal, uniform};

use crate::attention::{EXTRAS, Extras, most_splits};

/// Splits by their definition: positions `first..end` of each that a row has.
pub(crate) fn splits_of(length: usize, window: usize, head_dim: usize) -> Vec<(usize, usize)> {
    let first = length - length.min(window);
    let least = [128, 64][usize::from(head_dim > 128)];
    let positions = match length - first {
        0..=4096 => least,
        4097..=8192 => 2 * least,
        seen => panic!("no case has {seen} positions"),
    };
    let starts = (first..length).step_by(positions);
    starts
        .map(|start| (start, length.min(start + positions)))
        .collect()
}

/// Cases of a kernel with the contract of [`attention_decode`](crate::attention::attention_decode): rows, heads by `group`,
/// key-value heads and the longest row's position of each shape, with and without extras.
/// `rounding` is the error that rounded weights may add.
pub(crate) fn decode_cases(
    t: &mut Cases,
    head_dim: u64,
    group: u64,
    shapes: &[(u64, u64, u64, u64)],
    rounding: f64,
) {
    cases_of(t, head_dim, group, shapes, rounding, false);
}

/// The same of a cache whose rows have scales, `k_scales` and `v_scales`.
pub(crate) fn scaled_decode_cases(t: &mut Cases, head_dim: u64, shapes: &[(u64, u64, u64, u64)]) {
    cases_of(t, head_dim, 1, shapes, 0.0, true);
}

fn cases_of(
    t: &mut Cases,
    head_dim: u64,
    group: u64,
    shapes: &[(u64, u64, u64, u64)],
    rounding: f64,
    is_scaled: bool,
) {
    let cases = shapes
        .iter()
        .zip(EXTRAS)
        .chain([(&shapes[shapes.len() - 1], EXTRAS[0])])
        // The largest heads take the same steps over more columns.
        .take(if head_dim > 256 { 3 } else { usize::MAX });
    for (&(rows, heads, kv_heads, longest), extras) in cases {
        let heads = heads * group;
        let (block_size, pages) = (64, longest / 64 + 1);
        let blocks = rows * pages;
        let splits = u64::from(most_splits(longest as u32 + 1, head_dim as u32));
        let scale = 1.0 / (head_dim as f32).sqrt();
        let position = move |row: usize, _: i64| longest as i64 / (row as i64 + 1);
        let case = t.case(format!(
            "{rows} rows, {heads}/{kv_heads} heads, context {}, {extras:?}",
            longest + 1
        ));
        if longest > 4000 {
            case.production();
        }
        if is_scaled {
            for scales in ["k_scales", "v_scales"] {
                case.input(scales, [blocks, kv_heads, block_size], uniform(0.2, 2.0));
            }
        }
        case.input("q", [rows, heads, head_dim], normal(0.0, 1.0))
            .input(
                "k_cache",
                [blocks, kv_heads, block_size, head_dim],
                normal(0.0, 1.0),
            )
            .input(
                "v_cache",
                [blocks, kv_heads, block_size, head_dim],
                normal(0.0, 1.0),
            )
            .input("positions", [rows], ints(0, 1).map(position))
            .input("sequences", [rows], ints(0, 1).map(|row, _| row as i64))
            .input(
                "block_table",
                [rows, pages],
                ints(0, 1).map(move |i, _| blocks as i64 - 1 - i as i64),
            )
            // Splits past a row's context stay as they were.
            .inout("partial", [rows, heads, splits, head_dim], normal(0.0, 1.0))
            .inout("stats", [rows, heads, splits, 2], normal(0.0, 1.0))
            .scalar("scale", scale)
            .scalar("window", extras.window)
            .scalar("soft_cap", extras.soft_cap)
            .bound(Bound::relative(2e-5).absolute(2e-5 + rounding))
            .expect(move |inputs, out| {
                let decode = Decode {
                    heads: heads as usize,
                    kv_heads: kv_heads as usize,
                    head_dim: head_dim as usize,
                    block_size: block_size as usize,
                    scale,
                    extras,
                };
                let scaled = |cache: &str, scales: &str| -> Vec<f64> {
                    let rows = inputs[cache].chunks(head_dim as usize);
                    let one = |row: usize| if is_scaled { inputs[scales][row] } else { 1.0 };
                    let values = |(row, x): (usize, &[f64])| {
                        let scale = one(row);
                        x.iter().map(move |x| x * scale).collect::<Vec<_>>()
                    };
                    rows.enumerate().flat_map(values).collect()
                };
                let (k, v) = (scaled("k_cache", "k_scales"), scaled("v_cache", "v_scales"));
                let [partial, stats] = decode.outputs(inputs, [&inputs["q"], &k, &v]);
                out.set("partial", partial);
                out.set("stats", stats);
            });
    }
}

/// Single query rows whose attention is split.
#[derive(Clone, Copy)]
pub(crate) struct Decode {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub block_size: usize,
    pub scale: f32,
    pub extras: Extras,
}

impl Decode {
    /// Outputs of the splits, and their largest scores and sums, of queries over caches by
    /// definition; what no split has is as in the inputs.
    pub(crate) fn outputs(self, inputs: &Inputs, [q, k, v]: [&[f64]; 3]) -> [Vec<f64>; 2] {
        let Self {
            heads,
            kv_heads,
            head_dim: dim,
            block_size,
            scale,
            extras,
        } = self;
        let positions = inputs.ints("positions");
        let tables = inputs.ints("block_table");
        let pages = tables.len() / positions.len().max(1);
        let mut partial = inputs["partial"].to_vec();
        let mut stats = inputs["stats"].to_vec();
        let n_splits = stats.len() / (2 * heads * positions.len()).max(1);
        for (row, position) in positions.iter().enumerate() {
            let table = &tables[row * pages..(row + 1) * pages];
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let q = &q[(row * heads + head) * dim..][..dim];
                let splits = splits_of(*position as usize + 1, extras.window as usize, dim);
                for (split, (first, end)) in splits.into_iter().enumerate() {
                    let at = |p: usize| {
                        let block = table[p / block_size] as usize;
                        ((block * kv_heads + kv_head) * block_size + p % block_size) * dim
                    };
                    let score = |p| {
                        let key = &k[at(p)..at(p) + dim];
                        let dot = q.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
                        extras.capped(dot * f64::from(scale))
                    };
                    let scores: Vec<f64> = (first..end).map(score).collect();
                    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                    let cell = (row * heads + head) * n_splits + split;
                    stats[2 * cell] = largest;
                    stats[2 * cell + 1] = weights.iter().sum();
                    for i in 0..dim {
                        let terms = weights.iter().enumerate();
                        partial[cell * dim + i] =
                            terms.map(|(j, w)| w * v[at(first + j) + i]).sum();
                    }
                }
            }
        }
        [partial, stats]
    }
}
