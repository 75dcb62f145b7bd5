//! Drawing a row's token where its logits are.
//!
//! The meaning is that of Butter's sampler, to the bit: f32 operations, each rounded once, up to a
//! token's weight, and whole numbers from there on, whose sums have no order. The likeliest token
//! weighs 2^31; one whose logarithm to base 2 lies `x` below it weighs `floor(2^31 * 2^-x)` by the
//! polynomial of `weight_of`, one that lies 32 or more below it nothing.
//!
//! A filter keeps the beginning of an order: of the logits, the larger first (`top_k`, `top_p`),
//! or of the distances from the mean logarithm, the smaller first (`typical_p`); the lower index
//! comes first among equals. [`draw_rows`] finds where the beginning ends without sorting: two
//! bits a turn, it narrows down the key of the last element, by the sums over the elements whose
//! keys come before those that are tried, and then its index among the equal ones.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, bits, ints, normal, values};

use crate::top::order_key;

/// Columns of the settings of [`draw_rows`]: 0 leaves the row's token as it is.
pub const IS_DRAWN: u32 = 0;
/// Bits of the f32 that differences of logits are multiplied by: `log2(e) / temperature`.
pub const SCALE: u32 = 1;
/// Least weight that stays, 2^31 for the likeliest alone.
pub const LEAST_WEIGHT: u32 = 2;
/// How many of the largest stay; 0 keeps all.
pub const TOP_K: u32 = 3;
/// Part of 2^32, less 1, that the likeliest reach together.
pub const TOP_P: u32 = 4;
/// Part of 2^32, less 1, that the most typical reach together.
pub const TYPICAL_P: u32 = 5;
/// The random number, below 2^32.
pub const RANDOM: u32 = 6;
/// Bits of the f32 that a seen token's logit above 0 is multiplied by.
pub const ABOVE: u32 = 7;
/// Bits of the f32 that another seen token's logit is multiplied by.
pub const BELOW: u32 = 8;
/// Bits of the f32 that is subtracted as often as the answer has a token.
pub const FREQUENCY: u32 = 9;
/// Bits of the f32 that is subtracted from a token of the answer.
pub const PRESENCE: u32 = 10;
/// Columns of the settings.
pub const SETTINGS: u32 = 11;

/// Of a change's number, whether penalties reach the token; the other bits count how often the
/// answer has it.
pub const IS_SEEN: u32 = 1 << 31;

/// Logarithm to base 2 of a part of the likeliest token's weight that rounds to nothing.
pub const LEAST_EXPONENT: f32 = -32.0;
/// `2^f` for `f` in `0..=1` as a polynomial in `f`, from the first power on (the constant is 1):
/// least squares of the relative error at the nodes of Chebyshev, off by at most 8.1e-8 with each
/// operation rounded to f32.
pub const POWERS: [f32; 6] = [
    0.693_147_06,
    0.240_229_32,
    0.055_485_22,
    0.009_675_533,
    0.001_246_737_7,
    0.000_216_138_08,
];
/// Threads of a row, and the sums that they are first put together to.
const THREADS: u32 = 512;
const GROUPS: u32 = 16;
/// Steps of a draw: three filters, and the draw itself.
const STEPS: u32 = 4;

/// Rows of logits as f32, for [`change_logits`] and [`draw_rows`].
#[kernel(grid = [ceil_div(cols, 1024), rows], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn widen_logits<T: Float>(x: &Tensor<T, (rows, cols)>, y: &mut Tensor<f32, (rows, cols)>) {
    let row = group_id(1);
    let first = group_id(0) * 1024 + local_index();
    for j in unroll(0..4) {
        let i = first + j * 256;
        if i < cols {
            y[[row, i]] = x[[row, i]].to_f32();
        }
    }
}

/// Biases and penalties of single tokens, no token of a row twice: `bias[c]` is added to the logit
/// of token `token[c]` of row `row_of[c]`; of a seen token ([`IS_SEEN`] in `counts[c]`) it is
/// multiplied, and of one that the answer has, the frequency's product and the presence are
/// subtracted, each by the row's settings and each result rounded. A row past the rows is none.
#[kernel(grid = [ceil_div(changes, 256)], workgroup = 256)]
pub fn change_logits(
    row_of: &Tensor<u32, (changes,)>,
    token: &Tensor<u32, (changes,)>,
    bias: &Tensor<f32, (changes,)>,
    counts: &Tensor<u32, (changes,)>,
    settings: &Tensor<u32, { (rows, SETTINGS) }>,
    x: &mut Tensor<f32, (rows, cols)>,
) {
    let i = global_id(0);
    if i >= changes || row_of[i] >= rows {
        return;
    }
    let row = row_of[i];
    let column = index_in(token[i], cols);
    let setting = |column: u32| f32::from_bits(settings[[row, column]]);
    let mut logit = x[[row, column]] + bias[i];
    let count = counts[i] & (IS_SEEN - 1);
    if counts[i] >= IS_SEEN {
        let factor = select(logit > 0.0, setting(ABOVE), setting(BELOW));
        logit *= factor;
    }
    if count > 0 {
        let product = setting(FREQUENCY) * count as f32;
        logit -= product;
        logit -= setting(PRESENCE);
    }
    x[[row, column]] = logit;
}

/// The weight of a token `x` below the likeliest, in whole parts of 2^31.
#[device_fn]
fn weight_of(x: f32) -> u32 {
    let whole = x.floor();
    let f = x - whole;
    let mut power = POWERS[5];
    for i in unroll(0..5) {
        power = power * f + POWERS[4 - i as usize];
    }
    power = power * f + 1.0;
    let mantissa = (power * 8_388_608.0) as u32;
    let n = (-whole).min(32.0) as u32;
    let weight = select(n == 0, 1 << 31, (mantissa << 7) >> (n.max(1) - 1));
    select(x > LEAST_EXPONENT, weight, 0)
}

/// What a step of a draw has so far.
#[device_struct]
struct State {
    row: u32,
    step: u32,
    largest: f32,
    scale: f32,
    /// Of the order of the logits the last that stays: its key and its index.
    last_key: u32,
    last: u32,
    least_weight: u32,
    /// The last that stays of the order of the distances.
    last_near: u32,
    last_of_near: u32,
}

/// An element's key in the order of the step, what it counts there, and its logarithm; `mean` is
/// the mean of the logarithms once it is known. Logarithms are in parts of 2^26.
#[device_fn]
fn element(x: &Tensor<f32, 2>, i: u32, state: State, mean: u32) -> (u32, u32, u32) {
    let value = x[[state.row, i]];
    let exponent = (value - state.largest) * state.scale;
    let weight = weight_of(exponent);
    let below = (-exponent * 67_108_864.0) as u32;
    let key = order_key(value);
    let near = u32::MAX - below.abs_diff(mean);
    let is_before = key > state.last_key || (key == state.last_key && i <= state.last);
    let is_near = near > state.last_near || (near == state.last_near && i <= state.last_of_near);
    let least = select(state.step >= 2, state.least_weight.max(1), 1);
    let stays = is_before && is_near && weight >= least;
    let counted = select(state.step == 0, 1, weight);
    let ordered = select(state.step < 2, key, near);
    (ordered, select(stays, counted, 0), below)
}

/// `floor(whole * part / 2^32)`, of a whole below 2^60 and a part of at most 2^32.
#[device_fn]
fn part_of(whole: u64, part: u64) -> u64 {
    let low = whole & 0xffff_ffff;
    (whole >> 32) * part + ((low * part) >> 32)
}

/// Draws the token of each row whose settings say so, by the order of steps of Butter's sampler:
/// `top_k`, `top_p`, the least weight, `typical_p`, and the draw. Where the largest logit is no
/// number or infinite, the token is `u32::MAX`.
#[kernel(
    grid = [rows],
    workgroup = THREADS,
    requires(cols > 0)
)]
pub fn draw_rows(
    x: &Tensor<f32, (rows, cols)>,
    settings: &Tensor<u32, { (rows, SETTINGS) }>,
    token: &mut Tensor<u32, (rows,)>,
) {
    let row = group_id(0);
    if settings[[row, IS_DRAWN]] == 0 {
        return;
    }
    let mut most = f32::NEG_INFINITY;
    for i in strided(cols) {
        most = most.max_nan(x[[row, i]]);
    }
    let largest = workgroup_max_nan(most);
    if !largest.is_finite() {
        if local_index() == 0 {
            token[row] = u32::MAX;
        }
        return;
    }
    // Whole numbers: their sums have no order, so that two barriers do for a turn.
    let mut parts = shared::<u64>(3 * THREADS);
    let mut group_sums = shared::<u64>(3 * GROUPS);
    let mut last_key = 0u32;
    let mut last = u32::MAX;
    let mut mean = 0u32;
    let mut last_near = 0u32;
    let mut last_of_near = u32::MAX;
    for step in 0..STEPS {
        let part = settings[[row, TOP_K + step]];
        let is_draw = step == STEPS - 1;
        let is_on = is_draw || select(step == 0, part > 0, part < u32::MAX);
        if is_on {
            let held = State {
                row,
                step,
                largest,
                scale: f32::from_bits(settings[[row, SCALE]]),
                last_key,
                last,
                least_weight: settings[[row, LEAST_WEIGHT]],
                last_near,
                last_of_near,
            };
            let mut sum = 0u64;
            let mut logarithms = 0u64;
            for i in strided(cols) {
                let (_, counted, below) = element(x, i, held, mean);
                sum += counted as u64;
                logarithms += (counted as u64 * below as u64) >> 12;
            }
            let total = workgroup_sum(sum);
            if step == 2 {
                let logarithms = workgroup_sum(logarithms);
                let (whole, rest) = (logarithms / total, logarithms % total);
                mean = ((whole << 12) + (rest << 12) / total) as u32;
            }
            let target = if step == 0 {
                part as u64
            } else if is_draw {
                part_of(total, part as u64) + 1
            } else {
                part_of(total, part as u64 + 1).max(1)
            };
            // The key of the last that is needed, and what lies above it; 0 where all together are
            // not enough.
            let mut key = 0u32;
            let mut above = 0u64;
            if !is_draw && target <= total {
                for turn in 0..16 {
                    let shift = 30 - 2 * turn;
                    let mut sums = [0u64; 3];
                    for i in strided(cols) {
                        let (own, counted, _) = element(x, i, held, mean);
                        for digit in unroll(0..3) {
                            let is_past = own >= key + ((digit + 1) << shift);
                            sums[digit as usize] += select(is_past, counted, 0) as u64;
                        }
                    }
                    for digit in unroll(0..3) {
                        parts[digit * THREADS + local_index()] = sums[digit as usize];
                    }
                    barrier();
                    if local_index() < 3 * GROUPS {
                        let mut sum = 0u64;
                        for j in 0..THREADS / GROUPS {
                            sum += parts[local_index() * (THREADS / GROUPS) + j];
                        }
                        group_sums[local_index()] = sum;
                    }
                    barrier();
                    // The most digits with which there is enough; past one more there is not.
                    let base = key;
                    for digit in 0..3 {
                        let mut sum = 0u64;
                        for j in 0..GROUPS {
                            sum += group_sums[(2 - digit) * GROUPS + j];
                        }
                        if sum >= target && key == base {
                            key = base + ((3 - digit) << shift);
                        } else if sum < target {
                            above = sum;
                        }
                    }
                }
            }
            // The index of the last that is needed among the equal ones: a thread has neighbours.
            let needed = target - above;
            let each = cols.div_ceil(THREADS);
            let start = (local_index() * each).min(cols);
            let end = (start + each).min(cols);
            let mut own_sum = 0u64;
            for i in start..end {
                let (own, counted, _) = element(x, i, held, mean);
                own_sum += select(is_draw || own == key, counted, 0) as u64;
            }
            let mut reached = workgroup_scan_sum_exclusive(own_sum);
            let mut place = u32::MAX;
            if reached < needed && reached + own_sum >= needed {
                for i in start..end {
                    let (own, counted, _) = element(x, i, held, mean);
                    reached += select(is_draw || own == key, counted, 0) as u64;
                    if reached >= needed && place == u32::MAX {
                        place = i;
                    }
                }
            }
            let place = workgroup_min(place);
            if is_draw {
                if local_index() == 0 {
                    token[row] = place;
                }
            } else if target <= total {
                if step < 2 {
                    last_key = key;
                    last = place;
                } else {
                    last_near = key;
                    last_of_near = place;
                }
            }
        }
    }
}

#[test_kernel(widen_logits)]
fn widen_logits_is_exact(t: &mut Cases) {
    for (rows, cols) in [(0, 3), (1, 1), (2, 1030)] {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], ints(-300, 300))
            .output("y", [rows, cols])
            .bound(Bound::exact())
            .expect(|inputs, out| out.set("y", inputs["x"].to_vec()));
    }
}

/// The bits of settings that hold an f32.
fn float(value: f32) -> u64 {
    u64::from(value.to_bits())
}

// E27: by sign, once a token; what nobody names stays.
#[test_kernel(change_logits)]
fn change_logits_follows_the_order_of_steps(t: &mut Cases) {
    let (above, below, frequency, presence) = (0.625f32, 1.6f32, 0.3f32, -0.7f32);
    for (rows, cols, changes) in [(1u64, 1u64, 0u64), (3, 50, 40), (2, 400, 300)] {
        let mut row = vec![0; SETTINGS as usize];
        for (column, value) in [
            (ABOVE, above),
            (BELOW, below),
            (FREQUENCY, frequency),
            (PRESENCE, presence),
        ] {
            row[column as usize] = float(value);
        }
        let row_of = move |c: usize| {
            if c % 5 == 4 {
                u32::MAX as usize
            } else {
                c % rows as usize
            }
        };
        let token_of = move |c: usize| (c / rows as usize * 7) % cols as usize;
        let count_of = |c: usize| {
            if c.is_multiple_of(3) {
                0
            } else {
                (c % 4) as u32 | IS_SEEN
            }
        };
        let all = |of: &dyn Fn(usize) -> u64| bits((0..changes as usize).map(of).collect());
        t.case(format!("{changes} of {rows}x{cols}"))
            .input("row_of", [changes], all(&|c| row_of(c) as u64))
            .input("token", [changes], all(&|c| token_of(c) as u64))
            .input("bias", [changes], all(&|c| float((c % 7) as f32 - 3.0)))
            .input("counts", [changes], all(&|c| u64::from(count_of(c))))
            .input(
                "settings",
                [rows, u64::from(SETTINGS)],
                bits(row.repeat(rows as usize)),
            )
            .inout("x", [rows, cols], ints(-9, 9))
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let mut x: Vec<f32> = inputs["x"].iter().map(|x| *x as f32).collect();
                for c in 0..changes as usize {
                    if row_of(c) >= rows as usize {
                        continue;
                    }
                    let logit = &mut x[row_of(c) * cols as usize + token_of(c)];
                    *logit += (c % 7) as f32 - 3.0;
                    if count_of(c) > 0 {
                        let factor = if *logit > 0.0 { above } else { below };
                        *logit *= factor;
                    }
                    let count = count_of(c) & !IS_SEEN;
                    if count > 0 {
                        *logit = *logit - frequency * count as f32 - presence;
                    }
                }
                out.set("x", x.into_iter().map(f64::from).collect());
            });
    }
}

/// Settings of a row of a case.
#[derive(Clone, Copy, Debug)]
struct Settings {
    scale: f32,
    top_k: u32,
    /// Parts of 2^32.
    top_p: u64,
    least_weight: u32,
    typical_p: u64,
    random: u32,
}

const WHOLE: u64 = 1 << 32;
const ALL: Settings = Settings {
    scale: 1.0,
    top_k: 0,
    top_p: WHOLE,
    least_weight: 0,
    typical_p: WHOLE,
    random: 0x9000_0000,
};

impl Settings {
    fn row(self) -> Vec<u64> {
        let mut row = vec![0; SETTINGS as usize];
        for (column, value) in [
            (IS_DRAWN, 1),
            (SCALE, float(self.scale)),
            (LEAST_WEIGHT, u64::from(self.least_weight)),
            (TOP_K, u64::from(self.top_k)),
            (TOP_P, self.top_p - 1),
            (TYPICAL_P, self.typical_p - 1),
            (RANDOM, u64::from(self.random)),
        ] {
            row[column as usize] = value;
        }
        row
    }

    /// The token of a row by sorting, with weights from powers in f64.
    fn drawn(self, row: &[f64]) -> i64 {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if row.iter().any(|l| l.is_nan()) || !largest.is_finite() {
            return i64::from(u32::MAX);
        }
        // Logarithms of the cases are whole, so that the powers are exact.
        let below = |l: f64| (largest - l) * f64::from(self.scale);
        let mut left: Vec<(usize, f64, u64)> = Vec::new();
        for (i, &l) in row.iter().enumerate() {
            let weight = 2f64.powf(31.0 - below(l)).floor();
            if below(l) < 32.0 && weight > 0.0 {
                left.push((i, l, weight as u64));
            }
        }
        let part = |left: &[(usize, f64, u64)], part: u64| {
            let total: u128 = left.iter().map(|c| u128::from(c.2)).sum();
            (total * u128::from(part)) >> 32
        };
        let cut = |left: &mut Vec<(usize, f64, u64)>, target: u128| {
            let (mut mass, mut kept) = (0, 0);
            while kept < left.len() && (kept == 0 || mass < target) {
                mass += u128::from(left[kept].2);
                kept += 1;
            }
            left.truncate(kept);
        };
        left.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if self.top_k > 0 {
            left.truncate(self.top_k as usize);
        }
        if self.top_p < WHOLE {
            let target = part(&left, self.top_p);
            cut(&mut left, target);
        }
        left.retain(|c| c.2 >= u64::from(self.least_weight));
        if self.typical_p < WHOLE {
            let total: u128 = left.iter().map(|c| u128::from(c.2)).sum();
            let parts = |l: f64| (below(l) * 67_108_864.0) as u128;
            let sum: u128 = left
                .iter()
                .map(|c| (u128::from(c.2) * parts(c.1)) >> 12)
                .sum();
            let mean = (sum << 12) / total;
            left.sort_by_key(|c| (parts(c.1).abs_diff(mean), c.0));
            let target = part(&left, self.typical_p);
            cut(&mut left, target);
        }
        left.sort_by_key(|c| c.0);
        let target = part(&left, u64::from(self.random));
        let mut mass = 0;
        for (i, _, weight) in left {
            mass += u128::from(weight);
            if mass > target {
                return i as i64;
            }
        }
        unreachable!("the sum passes every part of itself")
    }
}

#[test_kernel(draw_rows)]
fn draw_rows_draws_what_sorting_draws(t: &mut Cases) {
    let part = |share: f64| (share * WHOLE as f64) as u64;
    let all = Settings {
        scale: 0.5,
        top_k: 100,
        top_p: part(0.9),
        least_weight: 1 << 20,
        typical_p: part(0.7),
        random: 0xfedc_ba98,
    };
    let each = [
        ALL,
        Settings { top_k: 1, ..ALL },
        Settings {
            top_k: 37,
            random: u32::MAX,
            ..ALL
        },
        Settings {
            top_k: 5000,
            random: 0,
            ..ALL
        },
        Settings {
            top_p: part(0.3),
            ..ALL
        },
        Settings { top_p: 1, ..ALL },
        Settings {
            top_p: part(0.999),
            random: u32::MAX,
            ..ALL
        },
        Settings {
            least_weight: 1 << 29,
            ..ALL
        },
        Settings {
            least_weight: 1 << 31,
            random: u32::MAX,
            ..ALL
        },
        Settings {
            typical_p: part(0.2),
            ..ALL
        },
        Settings {
            typical_p: part(0.95),
            random: 0xf000_0000,
            ..ALL
        },
        all,
        Settings {
            scale: 8.0,
            top_k: 0,
            ..all
        },
        Settings {
            scale: 0.0,
            top_k: 700,
            ..all
        },
    ];
    // Few distinct values, so that ties are everywhere, some of them masked.
    let few = |row: usize, i: usize| match (i * 7919 + row * 31) % 97 {
        0..5 => f64::NEG_INFINITY,
        n => -(((n % 41) * 2) as f64),
    };
    for (cols, each) in [(1u64, &each[10..12]), (90, &each[5..]), (1500, &each[..])] {
        let rows = each.len();
        let x: Vec<f64> = (0..rows * cols as usize)
            .map(|at| match (at / cols as usize, at % cols as usize) {
                (_, 0) => -6.0,
                (row, i) => few(row, i),
            })
            .collect();
        draw_case(t, &format!("{cols} tokens"), cols, each, x);
    }
    // E29: no number, infinite, nothing left.
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let x = vec![
        0.0, nan, 2.0, 0.0, inf, 2.0, -inf, -inf, -inf, -inf, 2.0, -inf,
    ];
    draw_case(t, "special rows", 3, &[ALL, all, ALL, all], x);
}

fn draw_case(t: &mut Cases, name: &str, cols: u64, each: &[Settings], x: Vec<f64>) {
    let each = each.to_vec();
    // The last row wants none.
    let rows = each.len() as u64 + 1;
    let mut settings: Vec<u64> = each.iter().flat_map(|s| s.row()).collect();
    settings.extend(vec![0; SETTINGS as usize]);
    let mut x = x;
    x.extend(vec![f64::NAN; cols as usize]);
    t.case(name)
        .input("x", [rows, cols], values(x))
        .input("settings", [rows, u64::from(SETTINGS)], bits(settings))
        .inout("token", [rows], ints(7, 8))
        .bound(Bound::exact())
        .expect(move |inputs, out| {
            let all_rows = inputs["x"].chunks(cols as usize);
            let drawn = all_rows.zip(&each).map(|(row, one)| one.drawn(row));
            out.set_ints("token", drawn.chain([7]).collect());
        });
}

/// 64 rows of Qwen3's vocabulary: every token left, the nucleus, all filters.
#[bench_kernel(draw_rows)]
fn draw_rows_of_a_vocabulary(b: &mut Benches) {
    let (rows, cols) = (64u64, 151_936u64);
    let part = |share: f64| (share * WHOLE as f64) as u64;
    let scale = std::f32::consts::LOG2_E / 0.8;
    let nucleus = Settings {
        scale,
        top_p: part(0.95),
        ..ALL
    };
    let all = Settings {
        top_k: 50,
        least_weight: 1 << 24,
        typical_p: part(0.9),
        ..nucleus
    };
    for (name, settings) in [
        ("all tokens", Settings { scale, ..ALL }),
        ("top-p", nucleus),
        ("all filters", all),
    ] {
        let settings = settings.row().repeat(rows as usize);
        b.bench(format!("{rows}x{cols}, {name}"))
            .input("x", [rows, cols], normal(0.0, 3.0))
            .input("settings", [rows, u64::from(SETTINGS)], bits(settings))
            .output("token", [rows])
            .bytes(rows * cols * 4);
    }
}
