//! Experts by tiles: the pairs of a row and an expert that it chose are sorted by expert, so that
//! an expert's weights are read once for all of its rows.
//!
//! A **pair** is `p = row * chosen + place`. [`expert_sort`] gives each pair a **slot**; the slots
//! of an expert are consecutive and begin at a multiple of the tile's rows, so that a tile belongs
//! to one expert, and an expert that nobody chose has none. Then come [`expert_gather`],
//! [`expert_gate_up`], [`expert_linear`] for the way down, and [`expert_sum`]. A slot's result
//! does not depend on the other rows: neither on which slot it is nor on the tile's rows.
//!
//! 8 rows a tile suit decoding, where few rows meet an expert and time is that of reading
//! weights; 128 suit prompts. For a single row the products of [`crate::moe`] need no sorting.

use iron_ir::Scalar;
use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, Inputs, ints, normal, uniform, values};

use crate::elementwise::silu;

/// Most experts of [`expert_sort`].
const MOST_EXPERTS: u32 = 1024;

/// The pair of a slot that no pair has.
const NOBODY: u32 = u32::MAX;

/// Sorts pairs by expert, pairs `p` of one expert by `p % 256` and then by `p`. Slots that fill up an expert's
/// last tile get the pair `u32::MAX`; what lies past the last used tile is left as it was.
#[kernel(
    grid = [experts],
    workgroup = 256,
    requires(experts <= MOST_EXPERTS, pairs + experts * (ROWS - 1) <= slots, tiles * ROWS == slots),
    instances(ROWS = [8, 128])
)]
pub fn expert_sort<const ROWS: u32>(
    ids: &Tensor<u32, (pairs,)>,
    pair_of: &mut Tensor<u32, (slots,)>,
    slot_of: &mut Tensor<u32, (pairs,)>,
    expert_of: &mut Tensor<u32, (tiles,)>,
    used: &mut Tensor<u32, { (1,) }>,
    counts: &mut Tensor<u32, (experts,)>,
) {
    let expert = group_id(0);
    let mut bins = shared::<u32>(MOST_EXPERTS);
    for i in strided(experts) {
        bins[i] = 0;
    }
    barrier();
    for pair in strided(pairs) {
        bins.atomic_add(index_in(ids[pair], experts), 1);
    }
    barrier();
    let mut before = 0u32;
    for i in strided(expert) {
        before += bins[i].div_ceil(ROWS) * ROWS;
    }
    let start = workgroup_sum(before);
    let count = bins[expert];
    let mut own = 0u32;
    for pair in strided(pairs) {
        if ids[pair] == expert {
            own += 1;
        }
    }
    let mut slot = start + workgroup_scan_sum_exclusive(own);
    for pair in strided(pairs) {
        if ids[pair] == expert {
            pair_of[slot] = pair;
            slot_of[pair] = slot;
            slot += 1;
        }
    }
    let own_tiles = count.div_ceil(ROWS);
    for i in strided(own_tiles * ROWS - count) {
        pair_of[start + count + i] = NOBODY;
    }
    for i in strided(own_tiles) {
        expert_of[start / ROWS + i] = expert;
    }
    if local_index() == 0 {
        counts[expert] = count;
        if expert == experts - 1 {
            used[0] = start / ROWS + own_tiles;
        }
    }
}

/// The rows of the slots: `y[s, :] = x[pair_of[s] / chosen, :]` in the used tiles of `tile_rows`
/// slots, zero where no pair has the slot.
#[kernel(
    grid = [slots],
    workgroup = 128,
    requires(inner % 8 == 0, chosen > 0, tile_rows > 0),
    instances(T = [f32, f16, bf16])
)]
pub fn expert_gather<T: Float>(
    x: &Tensor<T, (rows, inner)>,
    pair_of: &Tensor<u32, (slots,)>,
    used: &Tensor<u32, { (1,) }>,
    y: &mut Tensor<T, (slots, inner)>,
    chosen: u32,
    tile_rows: u32,
) {
    let slot = group_id(0);
    if slot / tile_rows >= used[0] {
        return;
    }
    let pair = pair_of[slot];
    if pair == NOBODY {
        for i in strided(inner / 8) {
            y.store8([slot, i], splat8(0.0f32).to::<T>());
        }
    } else {
        let row = index_in(pair / chosen, rows);
        for i in strided(inner / 8) {
            y.store8([slot, i], x.load8([row, i]));
        }
    }
}

/// Sizes of the tiles of the products.
struct Sizes<const ROWS: u32>;

impl<const ROWS: u32> Sizes<ROWS> {
    /// Columns of a tile: few of a skinny product, so that all multiprocessors have some.
    const COLUMNS: u32 = if ROWS < 64 { 32 } else { 128 };
    /// Steps of a product of tiles.
    const DEPTH: u32 = if ROWS < 64 { 128 } else { 64 };
    /// Threads of a workgroup.
    const THREADS: u32 = if ROWS < 64 { 128 } else { 256 };
    /// Workgroups that take one tile after the other: as many as the 132 multiprocessors of an
    /// H200 hold.
    const GROUPS: u32 = if ROWS < 64 { 264 } else { 132 };
}

/// The way up of the experts' feed-forward: with `e` the expert of the slot's tile,
/// `y[s, n] = silu(sum_k x[s, k] * gate[e, n, k]) * sum_k x[s, k] * up[e, n, k]`.
/// Both sums are rounded to the tensors' type before they meet.
#[kernel(
    grid = [min(ceil_div(cols, Sizes::<ROWS>::COLUMNS) * tiles, Sizes::<ROWS>::GROUPS)],
    workgroup = Sizes::<ROWS>::THREADS,
    requires(tiles * ROWS == slots),
    instances(T = [f16, bf16], ROWS = [8, 128])
)]
pub fn expert_gate_up<T: Float, const ROWS: u32>(
    x: &Tensor<T, (slots, inner)>,
    gate: &Tensor<T, (experts, cols, inner)>,
    up: &Tensor<T, (experts, cols, inner)>,
    expert_of: &Tensor<u32, (tiles,)>,
    used: &Tensor<u32, { (1,) }>,
    y: &mut Tensor<T, (slots, cols)>,
) {
    let columns = Sizes::<ROWS>::COLUMNS;
    let across = cols.div_ceil(columns);
    let mut x_tile = shared_tile::<T>(ROWS, Sizes::<ROWS>::DEPTH);
    let mut gate_tile = shared_tile::<T>(Sizes::<ROWS>::COLUMNS, Sizes::<ROWS>::DEPTH);
    let mut up_tile = shared_tile::<T>(Sizes::<ROWS>::COLUMNS, Sizes::<ROWS>::DEPTH);
    let mut gate_sum = reg_tile::<f32>(ROWS, Sizes::<ROWS>::COLUMNS, 0.0);
    let mut up_sum = reg_tile::<f32>(ROWS, Sizes::<ROWS>::COLUMNS, 0.0);
    let end = used[0].min(tiles) * across;
    for at in (group_id(0)..end).step_by(group_count(0) as usize) {
        let (tile, column) = (at / across, at % across * columns);
        let expert = index_in(expert_of[tile], experts);
        gate_sum.fill(0.0);
        up_sum.fill(0.0);
        for k in (0..inner).step_by(Sizes::<ROWS>::DEPTH as usize) {
            x_tile.load(x, [tile * ROWS, k]);
            gate_tile.load(gate, [expert, column, k]);
            matmul_nt(&mut gate_sum, &x_tile, &gate_tile);
            up_tile.load(up, [expert, column, k]);
            matmul_nt(&mut up_sum, &x_tile, &up_tile);
        }
        gate_sum.map2(&up_sum, |gate, up| {
            let (gate, up) = (T::from_f32(gate).to_f32(), T::from_f32(up).to_f32());
            silu(gate) * up
        });
        gate_sum.store(y, [tile * ROWS, column]);
    }
}

/// Product of each slot with its tile's expert: `y[s, n] = sum_k x[s, k] * w[e, n, k]`.
#[kernel(
    grid = [min(ceil_div(cols, Sizes::<ROWS>::COLUMNS) * tiles, Sizes::<ROWS>::GROUPS)],
    workgroup = Sizes::<ROWS>::THREADS,
    requires(tiles * ROWS == slots),
    instances(T = [f16, bf16], ROWS = [8, 128])
)]
pub fn expert_linear<T: Float, const ROWS: u32>(
    x: &Tensor<T, (slots, inner)>,
    w: &Tensor<T, (experts, cols, inner)>,
    expert_of: &Tensor<u32, (tiles,)>,
    used: &Tensor<u32, { (1,) }>,
    y: &mut Tensor<T, (slots, cols)>,
) {
    let columns = Sizes::<ROWS>::COLUMNS;
    let across = cols.div_ceil(columns);
    let mut x_tile = shared_tile::<T>(ROWS, Sizes::<ROWS>::DEPTH);
    let mut w_tile = shared_tile::<T>(Sizes::<ROWS>::COLUMNS, Sizes::<ROWS>::DEPTH);
    let mut sum = reg_tile::<f32>(ROWS, Sizes::<ROWS>::COLUMNS, 0.0);
    let end = used[0].min(tiles) * across;
    for at in (group_id(0)..end).step_by(group_count(0) as usize) {
        let (tile, column) = (at / across, at % across * columns);
        let expert = index_in(expert_of[tile], experts);
        sum.fill(0.0);
        for k in (0..inner).step_by(Sizes::<ROWS>::DEPTH as usize) {
            x_tile.load(x, [tile * ROWS, k]);
            w_tile.load(w, [expert, column, k]);
            matmul_nt(&mut sum, &x_tile, &w_tile);
        }
        sum.store(y, [tile * ROWS, column]);
    }
}

/// Weighted sum of a row's experts, in the order of their choice:
/// `y[r, n] = sum_e weights[r, e] * x[slot_of[r, e], n]`.
#[kernel(
    grid = [ceil_div(cols, 1024), rows],
    workgroup = 128,
    requires(cols % 8 == 0),
    instances(T = [f32, f16, bf16])
)]
pub fn expert_sum<T: Float>(
    x: &Tensor<T, (slots, cols)>,
    slot_of: &Tensor<u32, (rows, chosen)>,
    weights: &Tensor<f32, (rows, chosen)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (i, row) = (global_id(0), group_id(1));
    if i >= cols / 8 {
        return;
    }
    let mut sum = splat8(0.0f32);
    for place in 0..chosen {
        let slot = index_in(slot_of[[row, place]], slots);
        let value = x.load8([slot, i]).to_f32();
        sum = splat8(weights[[row, place]]).mul_add(value, sum);
    }
    y.store8([row, i], sum.to::<T>());
}

/// The way up for a pair at a time, without sorting: with `e = ids[r, place]`,
/// `y[r, place, n] = silu(sum_k x[r, k] * gate[e, n, k]) * sum_k x[r, k] * up[e, n, k]`, both
/// sums rounded to the tensors' type before they meet. `LANES` threads share an output; each sums
/// eight interleaved chains in ascending `k`.
#[kernel(
    grid = [cols, chosen, rows],
    workgroup = LANES,
    requires(inner % 8 == 0),
    instances(T = [f32, f16, bf16], LANES = [128])
)]
pub fn expert_gate_up_matvec<T: Float, const LANES: u32>(
    x: &Tensor<T, (rows, inner)>,
    gate: &Tensor<T, (experts, cols, inner)>,
    up: &Tensor<T, (experts, cols, inner)>,
    ids: &Tensor<u32, (rows, chosen)>,
    y: &mut Tensor<T, (rows, chosen, cols)>,
) {
    let (column, place, row) = (group_id(0), group_id(1), group_id(2));
    let expert = index_in(ids[[row, place]], experts);
    let (mut gate_sum, mut up_sum) = (splat8(0.0f32), splat8(0.0f32));
    for i in strided(inner / 8) {
        let value = x.load8([row, i]).to_f32();
        gate_sum = gate
            .load8([expert, column, i])
            .to_f32()
            .mul_add(value, gate_sum);
        up_sum = up
            .load8([expert, column, i])
            .to_f32()
            .mul_add(value, up_sum);
    }
    let gate_sum = workgroup_sum(gate_sum.sum());
    let up_sum = workgroup_sum(up_sum.sum());
    if local_index() == 0 {
        let (gate, up) = (T::from_f32(gate_sum).to_f32(), T::from_f32(up_sum).to_f32());
        y[[row, place, column]] = T::from_f32(silu(gate) * up);
    }
}

/// The way down and the sum over a row's experts for a pair at a time, without sorting: the sum
/// in the order of choice of `weights[r, place] * sum_k x[r, place, k] * w[ids[r, place], n, k]`,
/// each product rounded to the tensors' type before it is weighted. 32 threads share a product;
/// their parts are added in order.
#[kernel(
    grid = [cols, rows],
    workgroup = 256,
    requires(inner % 8 == 0, chosen > 0),
    instances(T = [f32, f16, bf16])
)]
pub fn expert_down_matvec<T: Float>(
    x: &Tensor<T, (rows, chosen, inner)>,
    w: &Tensor<T, (experts, cols, inner)>,
    ids: &Tensor<u32, (rows, chosen)>,
    weights: &Tensor<f32, (rows, chosen)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (column, row) = (group_id(0), group_id(1));
    let (own, lane) = (local_index() / 32, local_index() % 32);
    let mut parts = shared::<f32>(8 * 33);
    let mut products = shared::<f32>(8);
    let mut total = 0.0f32;
    for first in (0..chosen).step_by(8) {
        let place = (first + own).min(chosen - 1);
        let expert = index_in(ids[[row, place]], experts);
        let mut sum = splat8(0.0f32);
        for i in (lane..inner / 8).step_by(32) {
            let weights = w.load8([expert, column, i]).to_f32();
            sum = weights.mul_add(x.load8([row, place, i]).to_f32(), sum);
        }
        parts[own * 33 + lane] = sum.sum();
        barrier();
        if local_index() < 8 {
            let mut product = 0.0f32;
            for i in unroll(0..32) {
                product += parts[local_index() * 33 + i];
            }
            products[local_index()] = T::from_f32(product).to_f32();
        }
        barrier();
        if local_index() == 0 {
            for i in 0..(chosen - first).min(8) {
                total = fma(weights[[row, first + i]], products[i], total);
            }
        }
    }
    if local_index() == 0 {
        y[[row, column]] = T::from_f32(total);
    }
}

/// What [`expert_sort`] gives, by sorting.
struct Sorted {
    pair_of: Vec<i64>,
    slot_of: Vec<i64>,
    expert_of: Vec<i64>,
    used: usize,
    counts: Vec<i64>,
}

impl Sorted {
    fn of(ids: &[i64], experts: usize, rows: usize) -> Sorted {
        let mut sorted = Sorted {
            pair_of: Vec::new(),
            slot_of: vec![0; ids.len()],
            expert_of: Vec::new(),
            used: 0,
            counts: Vec::new(),
        };
        for expert in 0..experts {
            let is_own = |p: &usize| ids[*p] == expert as i64;
            let mut own: Vec<usize> = (0..ids.len()).filter(is_own).collect();
            own.sort_by_key(|p| (p % 256, *p));
            sorted.counts.push(own.len() as i64);
            for pair in own {
                sorted.slot_of[pair] = sorted.pair_of.len() as i64;
                sorted.pair_of.push(pair as i64);
            }
            while !sorted.pair_of.len().is_multiple_of(rows) {
                sorted.pair_of.push(i64::from(NOBODY));
            }
            sorted
                .expert_of
                .resize(sorted.pair_of.len() / rows, expert as i64);
        }
        sorted.used = sorted.expert_of.len();
        sorted
    }
}

/// Pairs, experts, and the tiles that are left over.
const SORTS: [(u64, u64, u64); 4] = [(0, 3, 0), (1, 1, 2), (40, 7, 0), (600, 40, 1)];

/// Slots for the most tiles that so many pairs can need, and some more.
fn tiles_for(pairs: u64, experts: u64, rows: u64, more: u64) -> u64 {
    (pairs + experts * (rows - 1)).div_ceil(rows) + more
}

#[test_kernel(expert_sort)]
fn expert_sort_matches_sorting(t: &mut Cases) {
    let rows = t.constant("ROWS") as u64;
    for (pairs, experts, more) in SORTS {
        let tiles = tiles_for(pairs, experts, rows, more);
        t.case(format!("{pairs} to {experts}"))
            .input("ids", [pairs], ints(0, experts as i64))
            .inout("pair_of", [tiles * rows], ints(0, 9))
            .output("slot_of", [pairs])
            .inout("expert_of", [tiles], ints(0, 9))
            .output("used", [1])
            .output("counts", [experts])
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let sorted = Sorted::of(inputs.ints("ids"), experts as usize, rows as usize);
                for (name, own) in [("pair_of", sorted.pair_of), ("expert_of", sorted.expert_of)] {
                    let mut all = inputs.ints(name).to_vec();
                    all[..own.len()].copy_from_slice(&own);
                    out.set_ints(name, all);
                }
                out.set_ints("slot_of", sorted.slot_of);
                out.set_ints("used", vec![sorted.used as i64]);
                out.set_ints("counts", sorted.counts);
            });
    }
}

/// The experts that pairs choose: some often, some never.
fn choices(pairs: u64, experts: u64) -> Vec<i64> {
    (0..pairs)
        .map(|p| (p * p % 11 * 3 % experts) as i64)
        .collect()
}

fn ints_of(list: &[i64]) -> iron_ir::testing::Generator {
    values(list.iter().map(|i| *i as f64).collect())
}

#[test_kernel(expert_gather)]
fn expert_gather_takes_rows(t: &mut Cases) {
    for (rows, chosen, inner, tile_rows) in [(0, 2, 8, 8), (5, 3, 1032, 8), (3, 8, 40, 128)] {
        let sorted = Sorted::of(&choices(rows * chosen, 7), 7, tile_rows as usize);
        let tiles = sorted.used as u64 + 1;
        let mut pair_of = sorted.pair_of.clone();
        pair_of.resize((tiles * tile_rows) as usize, 0);
        t.case(format!("{rows}x{chosen}x{inner}"))
            .input("x", [rows, inner], normal(0.0, 1.0))
            .input("pair_of", [tiles * tile_rows], ints_of(&pair_of))
            .input("used", [1], values(vec![sorted.used as f64]))
            .inout("y", [tiles * tile_rows, inner], normal(0.0, 1.0))
            .scalar("chosen", chosen as u32)
            .scalar("tile_rows", tile_rows as u32)
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let inner = inner as usize;
                let mut y = inputs["y"].to_vec();
                for (slot, pair) in sorted.pair_of.iter().enumerate() {
                    let to = &mut y[slot * inner..][..inner];
                    match *pair == i64::from(NOBODY) {
                        true => to.fill(0.0),
                        false => to.copy_from_slice(
                            &inputs["x"][*pair as usize / chosen as usize * inner..][..inner],
                        ),
                    }
                }
                out.set("y", y);
            });
    }
}

/// Tiles in use, tiles, experts, outputs, inputs.
const PRODUCTS: [(u64, u64, u64, u64, u64); 3] =
    [(0, 1, 2, 5, 8), (1, 1, 1, 1, 8), (2, 3, 3, 70, 72)];

/// `x · wᵀ` of each slot with the expert of its tile.
fn products(
    inputs: &Inputs,
    w: &str,
    used: usize,
    rows: usize,
    cols: usize,
    inner: usize,
) -> Vec<f64> {
    let mut y = Vec::new();
    for slot in 0..used * rows {
        let expert = inputs.ints("expert_of")[slot / rows] as usize;
        let x = &inputs["x"][slot * inner..][..inner];
        for column in 0..cols {
            let w = &inputs[w][(expert * cols + column) * inner..][..inner];
            y.push(x.iter().zip(w).map(|(a, b)| a * b).sum());
        }
    }
    y
}

#[test_kernel(expert_linear)]
fn expert_linear_matches_f64(t: &mut Cases) {
    let rows = t.constant("ROWS") as u64;
    for (used, tiles, experts, cols, inner) in PRODUCTS {
        // Several steps of a product, the last one incomplete, also of the deeper tiles.
        let inner = if rows < 64 { inner + 64 } else { inner };
        t.case(format!(
            "{used} of {tiles} tiles, {experts} experts, {cols}x{inner}"
        ))
        .input("x", [tiles * rows, inner], normal(0.0, 1.0))
        .input("w", [experts, cols, inner], normal(0.0, 0.1))
        .input("expert_of", [tiles], ints(0, experts as i64))
        .input("used", [1], values(vec![used as f64]))
        .inout("y", [tiles * rows, cols], normal(0.0, 1.0))
        .bound(Bound::relative(1e-5).absolute(2e-5))
        .expect(move |inputs, out| {
            let (used, rows) = (used as usize, rows as usize);
            let own = products(inputs, "w", used, rows, cols as usize, inner as usize);
            let mut y = inputs["y"].to_vec();
            y[..own.len()].copy_from_slice(&own);
            out.set("y", y);
        });
    }
}

fn silu_f64(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// How far a product of two rounded sums may lie from the exact one.
fn rounded(t: &Cases) -> Bound {
    let ulp = match t.scalar("T") {
        Scalar::F16 => 2f64.powi(-10),
        Scalar::BF16 => 2f64.powi(-7),
        _ => 0.0,
    };
    Bound::relative(1e-5 + 3.0 * ulp).absolute(4e-5 + ulp / 4.0)
}

#[test_kernel(expert_gate_up)]
fn expert_gate_up_matches_f64(t: &mut Cases) {
    let rows = t.constant("ROWS") as u64;
    let bound = rounded(t);
    for (used, tiles, experts, cols, inner) in PRODUCTS {
        // Several steps of a product, the last one incomplete, also of the deeper tiles.
        let inner = if rows < 64 { inner + 64 } else { inner };
        t.case(format!(
            "{used} of {tiles} tiles, {experts} experts, {cols}x{inner}"
        ))
        .input("x", [tiles * rows, inner], normal(0.0, 1.0))
        .input("gate", [experts, cols, inner], normal(0.0, 0.1))
        .input("up", [experts, cols, inner], normal(0.0, 0.1))
        .input("expert_of", [tiles], ints(0, experts as i64))
        .input("used", [1], values(vec![used as f64]))
        .inout("y", [tiles * rows, cols], normal(0.0, 1.0))
        .bound(bound)
        .expect(move |inputs, out| {
            let own = |w| {
                let (used, rows) = (used as usize, rows as usize);
                products(inputs, w, used, rows, cols as usize, inner as usize)
            };
            let mut y = inputs["y"].to_vec();
            for ((y, gate), up) in y.iter_mut().zip(own("gate")).zip(own("up")) {
                *y = silu_f64(gate) * up;
            }
            out.set("y", y);
        });
    }
}

#[test_kernel(expert_sum)]
fn expert_sum_matches_f64(t: &mut Cases) {
    for (rows, chosen, slots, cols) in [(0, 2, 3, 8), (1, 1, 1, 8), (3, 8, 40, 1032)] {
        t.case(format!("{rows}x{chosen} of {slots}x{cols}"))
            .input("x", [slots, cols], normal(0.0, 1.0))
            .input("slot_of", [rows, chosen], ints(0, slots as i64))
            .input("weights", [rows, chosen], uniform(0.0, 1.0))
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-6).absolute(2e-6))
            .expect(move |inputs, out| {
                let (chosen, cols) = (chosen as usize, cols as usize);
                let mut y = vec![0.0; rows as usize * cols];
                for (pair, slot) in inputs.ints("slot_of").iter().enumerate() {
                    let weight = inputs["weights"][pair];
                    let from = &inputs["x"][*slot as usize * cols..][..cols];
                    let to = &mut y[pair / chosen * cols..][..cols];
                    to.iter_mut().zip(from).for_each(|(y, x)| *y += weight * x);
                }
                out.set("y", y);
            });
    }
}

#[test_kernel(expert_gate_up_matvec)]
fn expert_gate_up_matvec_matches_f64(t: &mut Cases) {
    let bound = rounded(t);
    for (rows, chosen, experts, cols, inner) in
        [(0, 2, 3, 5, 8), (1, 1, 1, 1, 8), (3, 2, 7, 9, 136)]
    {
        t.case(format!("{rows}x{chosen} of {experts}, {cols}x{inner}"))
            .input("x", [rows, inner], normal(0.0, 1.0))
            .input("gate", [experts, cols, inner], normal(0.0, 0.1))
            .input("up", [experts, cols, inner], normal(0.0, 0.1))
            .input("ids", [rows, chosen], ints(0, experts as i64))
            .output("y", [rows, chosen, cols])
            .bound(bound)
            .expect(move |inputs, out| {
                let (cols, inner) = (cols as usize, inner as usize);
                let mut y = Vec::new();
                for (pair, expert) in inputs.ints("ids").iter().enumerate() {
                    let x = &inputs["x"][pair / chosen as usize * inner..][..inner];
                    let dot = |w: &str, n: usize| -> f64 {
                        let w = &inputs[w][(*expert as usize * cols + n) * inner..][..inner];
                        x.iter().zip(w).map(|(a, b)| a * b).sum()
                    };
                    y.extend((0..cols).map(|n| silu_f64(dot("gate", n)) * dot("up", n)));
                }
                out.set("y", y);
            });
    }
}

#[test_kernel(expert_down_matvec)]
fn expert_down_matvec_matches_f64(t: &mut Cases) {
    let bound = rounded(t);
    for (rows, chosen, experts, cols, inner) in
        [(0, 2, 3, 5, 8), (1, 1, 1, 1, 8), (3, 10, 7, 9, 264)]
    {
        t.case(format!("{rows}x{chosen} of {experts}, {cols}x{inner}"))
            .input("x", [rows, chosen, inner], normal(0.0, 1.0))
            .input("w", [experts, cols, inner], normal(0.0, 0.1))
            .input("ids", [rows, chosen], ints(0, experts as i64))
            .input("weights", [rows, chosen], uniform(0.0, 0.3))
            .output("y", [rows, cols])
            .bound(bound)
            .expect(move |inputs, out| {
                let (cols, inner) = (cols as usize, inner as usize);
                let mut y = vec![0.0; rows as usize * cols];
                for (pair, expert) in inputs.ints("ids").iter().enumerate() {
                    let x = &inputs["x"][pair * inner..][..inner];
                    for n in 0..cols {
                        let w = &inputs["w"][(*expert as usize * cols + n) * inner..][..inner];
                        let product: f64 = x.iter().zip(w).map(|(a, b)| a * b).sum();
                        y[pair / chosen as usize * cols + n] += inputs["weights"][pair] * product;
                    }
                }
                out.set("y", y);
            });
    }
}
