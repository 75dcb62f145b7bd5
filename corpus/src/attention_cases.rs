//! Cases of the attention of single query rows, which several kernels have the contract of.

use iron_ir::testing::{Bound, Case, Cases, Expected, Inputs, ints, normal, uniform};

use crate::attention::{EXTRAS, Extras, least_positions, most_splits_of};
use crate::heads::{MAGNITUDE, NewHeads};

/// Splits by their definition: positions `first..end` of each that a row has, of `least` where the
/// row sees up to 4,096.
pub(crate) fn splits_of(length: usize, window: usize, least: usize) -> Vec<(usize, usize)> {
    let first = length - length.min(window);
    let positions = match length - first {
        0..=4096 => least,
        4097..=8192 => (2 * least).min(512),
        seen => panic!("no case has {seen} positions"),
    };
    let starts = (first..length).step_by(positions);
    starts
        .map(|start| (start, length.min(start + positions)))
        .collect()
}

/// A case of rows whose sequences have fewer positions each, the first up to position `longest`:
/// what all kernels of single query rows take but queries. The kernel may write the cache.
pub(crate) fn rows_case(
    t: &mut Cases,
    decode: Decode,
    rows: u64,
    longest: u64,
    writes_cache: bool,
) -> &mut Case {
    let Decode {
        scale,
        extras,
        least,
        ..
    } = decode;
    let [heads, kv_heads, head_dim, block_size] = [
        decode.heads,
        decode.kv_heads,
        decode.head_dim,
        decode.block_size,
    ]
    .map(|size| size as u64);
    let pages = longest / block_size + 1;
    let blocks = rows * pages;
    let splits = u64::from(most_splits_of(longest as u32 + 1, least as u32));
    let cache = [blocks, kv_heads, block_size, head_dim];
    let position = move |row: usize, _: i64| longest as i64 / (row as i64 + 1);
    let case = t.case(format!(
        "{rows} rows, {heads}/{kv_heads} heads, context {}, splits of {least}, {extras:?}",
        longest + 1
    ));
    if longest > 4000 {
        case.production();
    }
    for name in ["k_cache", "v_cache"] {
        match writes_cache {
            true => case.inout(name, cache, normal(0.0, 1.0)),
            false => case.input(name, cache, normal(0.0, 1.0)),
        };
    }
    case.input("positions", [rows], ints(0, 1).map(position))
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
}

/// What kernels that make the heads of their new rows take beyond [`rows_case`].
pub(crate) fn heads_case(case: &mut Case, decode: Decode, rows: u64, is_normed: bool) -> &mut Case {
    let head_dim = decode.head_dim as u64;
    let width = (decode.heads + 2 * decode.kv_heads) as u64 * head_dim;
    case.input("qkv", [rows, width], normal(0.0, 1.0))
        .input("q_norm", [head_dim], uniform(0.5, 1.5))
        .input("k_norm", [head_dim], uniform(0.5, 1.5))
        .input("frequencies", [head_dim / 2], uniform(1e-4, 1.0))
        .scalar("magnitude", MAGNITUDE)
        .scalar("eps", 1e-5f32)
        .scalar("is_normed", u32::from(is_normed))
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
        let decode = Decode {
            heads: (heads * group) as usize,
            kv_heads: kv_heads as usize,
            head_dim: head_dim as usize,
            block_size: 64,
            scale: 1.0 / (head_dim as f32).sqrt(),
            extras,
            least: least_positions(head_dim as u32) as usize,
        };
        let case = rows_case(t, decode, rows, longest, false);
        if is_scaled {
            let blocks = rows * (longest / 64 + 1);
            for scales in ["k_scales", "v_scales"] {
                case.input(scales, [blocks, kv_heads, 64], uniform(0.2, 2.0));
            }
        }
        case.input("q", [rows, heads * group, head_dim], normal(0.0, 1.0))
            .bound(Bound::relative(2e-5).absolute(2e-5 + rounding))
            .expect(move |inputs, out| {
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
    /// Positions of a split where a row sees up to 4,096.
    pub least: usize,
}

/// Rows whose splits are joined.
pub(crate) fn joined_of(heads: u64, head_dim: u64, extras: Extras, least: u32) -> Decode {
    Decode {
        heads: heads as usize,
        kv_heads: 1,
        head_dim: head_dim as usize,
        block_size: 64,
        scale: 1.0,
        extras,
        least: least as usize,
    }
}

impl Decode {
    /// What a kernel gives that makes the heads of its new rows: sets the caches; gives queries,
    /// keys and values of all positions, rounded.
    pub(crate) fn set_heads(
        self,
        inputs: &Inputs,
        is_normed: bool,
        out: &mut Expected,
    ) -> [Vec<f64>; 3] {
        let new = NewHeads {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            is_normed,
        };
        let (mut k, mut v) = (inputs["k_cache"].to_vec(), inputs["v_cache"].to_vec());
        let positions = inputs.ints("positions");
        let table = inputs.ints("block_table");
        let pages = table.len() / positions.len().max(1);
        let place = |row: usize, kv_head: usize| {
            let position = positions[row] as usize;
            let block = table[row * pages + position / self.block_size] as usize;
            (block * self.kv_heads + kv_head) * self.block_size + position % self.block_size
        };
        let q = new.written(inputs, place, [&mut k, &mut v]);
        let rounded = [&q, &k, &v].map(|x| out.rounded("k_cache", x));
        out.set("k_cache", rounded[1].clone());
        out.set("v_cache", rounded[2].clone());
        rounded
    }

    /// Sets what a kernel gives that writes rows of attention to `y` where it has one split, and
    /// outputs of splits where it has several.
    pub(crate) fn set_whole(self, inputs: &Inputs, tensors: [&[f64]; 3], out: &mut Expected) {
        let [partial, stats] = self.outputs(inputs, tensors);
        let rows = inputs.ints("positions").len();
        if stats.len() == 2 * self.heads * rows {
            out.set("y", self.joined(inputs, [&partial, &stats]));
            out.set("partial", inputs["partial"].to_vec());
            out.set("stats", inputs["stats"].to_vec());
        } else {
            out.set("y", inputs["y"].to_vec());
            out.set("partial", partial);
            out.set("stats", stats);
        }
    }

    /// Sets what a kernel gives that writes rows of attention to `y`, and outputs of splits where a
    /// row has several.
    pub(crate) fn set_attended(self, inputs: &Inputs, tensors: [&[f64]; 3], out: &mut Expected) {
        let [mut partial, mut stats] = self.outputs(inputs, tensors);
        out.set("y", self.joined(inputs, [&partial, &stats]));
        let positions = inputs.ints("positions");
        for (row, position) in positions.iter().enumerate() {
            let seen = splits_of(
                *position as usize + 1,
                self.extras.window as usize,
                self.least,
            );
            if seen.len() == 1 {
                for (values, name) in [(&mut partial, "partial"), (&mut stats, "stats")] {
                    let size = values.len() / positions.len();
                    let own = row * size..(row + 1) * size;
                    values[own.clone()].copy_from_slice(&inputs[name][own]);
                }
            }
        }
        out.set("partial", partial);
        out.set("stats", stats);
        out.set_ints("arrived", vec![0; self.kv_heads * positions.len()]);
    }

    /// The splits of every row joined, with a score of `sinks` in each head's softmax.
    pub(crate) fn joined(self, inputs: &Inputs, [partial, stats]: [&[f64]; 2]) -> Vec<f64> {
        let positions = inputs.ints("positions");
        let splits = stats.len() / (2 * self.heads * positions.len()).max(1);
        let mut y = Vec::new();
        for (row, position) in positions.iter().enumerate() {
            let length = *position as usize + 1;
            let used = splits_of(length, self.extras.window as usize, self.least).len();
            for head in 0..self.heads {
                let sink = inputs["sinks"][head];
                let cell = |s: usize| (row * self.heads + head) * splits + s;
                let stat = |s: usize, which: usize| stats[2 * cell(s) + which];
                let largest = (0..used).map(|s| stat(s, 0)).fold(sink, f64::max);
                let factor = |s: usize| (stat(s, 0) - largest).exp();
                let sum: f64 = (0..used).map(|s| factor(s) * stat(s, 1)).sum();
                let sum = sum + (sink - largest).exp();
                for i in 0..self.head_dim {
                    let term = |s: usize| factor(s) * partial[cell(s) * self.head_dim + i];
                    y.push((0..used).map(term).sum::<f64>() / sum);
                }
            }
        }
        y
    }

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
            least,
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
                let splits = splits_of(*position as usize + 1, extras.window as usize, least);
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

/// Of each sequence the first position and the rows of a prompt; heads, key-value heads.
pub(crate) type Prompts = (&'static [(u64, u64)], u64, u64);

pub(crate) const PREFILLS: [Prompts; 4] = [
    (&[(0, 1)], 1, 1),
    (&[(0, 16)], 2, 1),
    (&[(30, 37), (0, 16), (47, 1)], 4, 2),
    (&[(310, 20)], 1, 1),
];

/// More tiles than [`attention_prefill`](crate::attention::attention_prefill) takes those of all
/// heads together of.
pub(crate) const MANY_PREFILLS: Prompts = (&[(0, 1); 129], 2, 1);

/// The same for tiles of 128 rows, with what is added to plain attention: one row, several tiles
/// of rows and of keys, several sequences, the first tiles out of the window.
pub(crate) const WIDE_PREFILLS: [(Prompts, Extras); 3] = [
    ((&[(0, 1)], 1, 1), EXTRAS[1]),
    ((&[(125, 5), (0, 3)], 2, 1), EXTRAS[0]),
    ((&[(310, 130)], 1, 1), EXTRAS[2]),
];

/// First row and one past the last of each tile of up to `size` rows; one without rows behind them.
pub(crate) fn tiles_of(prompts: &[(u64, u64)], size: u64) -> Vec<(u64, u64)> {
    let mut tiles = Vec::new();
    let mut begin = 0;
    for (_, rows) in prompts {
        let end = begin + rows;
        tiles.extend(
            (begin..end)
                .step_by(size as usize)
                .map(|first| (first, end.min(first + size))),
        );
        begin = end;
    }
    tiles.push((0, 0));
    tiles
}
