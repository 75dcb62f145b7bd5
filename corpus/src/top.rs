//! The largest elements of long rows, in order.
//!
//! A row is divided into groups of [`GROUP`] columns. The `k` first elements in order lie in the
//! `k` groups whose largest elements come first: any other group has `k` elements before its
//! own. So three launches give the order of a whole row: [`top_keys`] finds the groups' largest
//! elements, [`top_of_groups`] orders the groups that count, [`top_merge`] joins them.
//!
//! *Order*: the larger element comes first, the lower index among equals. NaN counts as the
//! largest, and zeros of either sign are equal.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, ints, normal, values};

/// Columns of a group.
pub const GROUP: u32 = 256;
/// Most elements that are wanted of a row.
pub const MOST: u32 = 64;
/// Cells of what [`top_of_groups`] found for each thread of [`top_merge`].
const CELLS: u32 = MOST * MOST / 1024;

/// A number that orders floats as this module does; 0 comes after all of them.
#[device_fn]
pub(crate) fn order_key(value: f32) -> u32 {
    let bits = select(value == 0.0, 0.0, value).to_bits();
    let negative = bits >> 31 == 1;
    let key = select(negative, !bits, bits | 0x8000_0000);
    select(value.is_nan(), u32::MAX, key)
}

/// The float of an [`order_key`].
#[device_fn]
fn of_order_key(key: u32) -> f32 {
    let positive = key >> 31 == 1;
    f32::from_bits(select(positive, key & 0x7fff_ffff, !key))
}

/// Key and index in one number: of two elements, the one of the larger number comes first.
#[device_fn]
fn order_of(key: u32, index: u32) -> u64 {
    ((key as u64) << 32) | (u32::MAX - index) as u64
}

/// Key of the largest element of each group of each row.
#[kernel(
    grid = [groups, rows],
    workgroup = 256,
    requires(groups == ceil_div(cols, GROUP)),
    dependent,
    instances(T = [f32, f16, bf16])
)]
pub fn top_keys<T: Float>(x: &Tensor<T, (rows, cols)>, keys: &mut Tensor<u32, (rows, groups)>) {
    launch_barrier();
    let (group, row) = (group_id(0), group_id(1));
    let column = group * GROUP + local_index();
    let key = order_key(x[[row, column.min(cols - 1)]].to_f32());
    let largest = workgroup_max(key);
    if local_index() == 0 {
        keys[[row, group]] = largest;
    }
}

/// The elements of the groups that hold the `k` first ones: `found[row, g, r]` is the key and
/// `place[row, g, r]` the column of element `r`, in order, of the group whose largest element is
/// the one of rank `g`, where `g + r < k`. Past a group's elements the key is 0. Other cells are
/// not written.
#[kernel(
    grid = [groups, rows],
    workgroup = 256,
    requires(groups == ceil_div(cols, GROUP), k <= MOST),
    dependent,
    instances(T = [f32, f16, bf16])
)]
pub fn top_of_groups<T: Float>(
    x: &Tensor<T, (rows, cols)>,
    keys: &Tensor<u32, (rows, groups)>,
    found: &mut Tensor<u32, { (rows, k, k) }>,
    place: &mut Tensor<u32, { (rows, k, k) }>,
) {
    launch_barrier();
    let (group, row) = (group_id(0), group_id(1));
    // The group's elements are on their way while its rank is counted.
    let column = group * GROUP + local_index();
    let value = x[[row, column.min(cols - 1)]].to_f32();
    let own = order_of(keys[[row, group]], group);
    let mut before = 0u32;
    for start in (local_index()..groups).step_by(4 * GROUP as usize) {
        for j in unroll(0..4) {
            let i = start + j * GROUP;
            let other = order_of(keys[[row, i.min(groups - 1)]], i);
            before += (i < groups && other > own) as u32;
        }
    }
    let rank = workgroup_sum(before);
    if rank >= k {
        return;
    }
    let mut others = shared::<u32>(GROUP);
    let key = select(column < cols, order_key(value), 0);
    others[local_index()] = key;
    barrier();
    // Equal elements come before where their index does.
    let quad = local_index() / 4;
    let mut order = 0u32;
    for i in 0..quad {
        let four = others.load4(i);
        for lane in unroll(0..4) {
            order += (four[lane as usize] >= key) as u32;
        }
    }
    let four = others.load4(quad);
    for lane in unroll(0..4) {
        let (other, is_before) = (four[lane as usize], 4 * quad + lane < local_index());
        order += select(is_before, other >= key, other > key) as u32;
    }
    for i in quad + 1..GROUP / 4 {
        let four = others.load4(i);
        for lane in unroll(0..4) {
            order += (four[lane as usize] > key) as u32;
        }
    }
    if rank + order < k {
        found[[row, rank, order]] = key;
        place[[row, rank, order]] = column;
    }
}

/// Values and columns of the `k` first elements of each row, from what [`top_of_groups`] found
/// of `groups` groups a row. A zero loses its sign. A row with fewer elements ends with minus infinity at `u32::MAX`.
#[kernel(grid = [rows], workgroup = 1024, requires(k <= MOST), dependent)]
pub fn top_merge(
    found: &Tensor<u32, { (rows, k, k) }>,
    place: &Tensor<u32, { (rows, k, k) }>,
    value: &mut Tensor<f32, (rows, k)>,
    index: &mut Tensor<u32, (rows, k)>,
    groups: u32,
) {
    let row = group_id(0);
    let lists = groups.min(k);
    if lists == 0 {
        for i in strided(k) {
            value[[row, i]] = f32::NEG_INFINITY;
            index[[row, i]] = u32::MAX;
        }
        return;
    }
    let mut orders = shared::<u64>(MOST * (MOST + 1) / 2);
    let mut taken = shared::<u32>(1);
    if local_index() == 0 {
        taken[0] = 0;
    }
    // Cells of a thread, all on their way at once; those that nobody wrote are the first instead.
    let mut cells = [0u64; CELLS as usize];
    for j in unroll(0..CELLS) {
        let i = j * 1024 + local_index();
        let (list, element) = (i / MOST, i % MOST);
        let counts = list < lists && element < k && list + element < k;
        let (list, element) = (select(counts, list, 0), select(counts, element, 0));
        let key = found[[row, list, element]];
        let order = order_of(key, place[[row, list, element]]);
        cells[j as usize] = select(counts && key > 0, order, 0);
    }
    // The largest of the last list that counts: k elements come no later.
    let last = found[[row, lists - 1, 0]];
    let least = select(lists == k, order_of(last, u32::MAX), 1);
    barrier();
    for j in unroll(0..CELLS) {
        if cells[j as usize] >= least {
            orders[taken.atomic_add(0, 1)] = cells[j as usize];
        }
    }
    barrier();
    let count = workgroup_broadcast(taken.atomic_load(0), 0);
    for i in strided(count.max(k)) {
        let order = if i < count { orders[i] } else { 0 };
        let mut rank = i;
        if i < count {
            rank = 0;
            for other in 0..count {
                rank += (orders[other] > order) as u32;
            }
        }
        if rank < k {
            let key = (order >> 32) as u32;
            value[[row, rank]] = select(i < count, of_order_key(key), f32::NEG_INFINITY);
            index[[row, rank]] = select(i < count, u32::MAX - order as u32, u32::MAX);
        }
    }
}

/// Columns of a row in order, by sorting.
fn ordered(row: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    // A stable sort keeps the lower index first.
    order.sort_by(|&a, &b| match (row[a].is_nan(), row[b].is_nan()) {
        (true, true) => std::cmp::Ordering::Equal,
        (true, false) => std::cmp::Ordering::Less,
        (false, true) => std::cmp::Ordering::Greater,
        _ => row[b]
            .partial_cmp(&row[a])
            .unwrap_or(std::cmp::Ordering::Equal),
    });
    order
}

/// The key of a float by its definition: its place among all floats.
fn key_of(value: f64) -> i64 {
    if value.is_nan() {
        return i64::from(u32::MAX);
    }
    let magnitude = i64::from((value.abs() as f32).to_bits());
    let half = 1i64 << 31;
    if value < 0.0 {
        half - 1 - magnitude
    } else {
        half + magnitude
    }
}

/// Rows of each kind: few distinct values, many, none but one.
const SHAPES: [(u64, u64); 5] = [(0, 5), (1, 1), (2, 255), (3, 1000), (1, 20_000)];

#[test_kernel(top_keys)]
fn top_keys_are_the_groups_largest(t: &mut Cases) {
    for (rows, cols) in SHAPES {
        let groups = u64::div_ceil(cols, u64::from(GROUP));
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], normal(0.0, 1.0))
            .output("keys", [rows, groups])
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let rows = inputs["x"].chunks(cols as usize);
                let groups = rows.flat_map(|row| row.chunks(GROUP as usize));
                let largest = |g: &[f64]| g.iter().map(|v| key_of(*v)).max().unwrap_or_default();
                out.set_ints("keys", groups.map(largest).collect());
            });
    }
}

/// Ranks of the groups of a row and the cells that they fill, by sorting.
fn cells(row: &[f64], k: usize) -> Vec<(usize, i64, i64)> {
    let groups: Vec<&[f64]> = row.chunks(GROUP as usize).collect();
    let largest: Vec<f64> = groups.iter().map(|g| g[ordered(g)[0]]).collect();
    let mut cells = Vec::new();
    for (rank, &group) in ordered(&largest).iter().take(k).enumerate() {
        let order = ordered(groups[group]);
        for element in 0..k - rank {
            let first = group * GROUP as usize;
            let (key, column) = match order.get(element) {
                Some(&at) => (key_of(groups[group][at]), first + at),
                None => (0, first + element),
            };
            cells.push((rank * k + element, key, column as i64));
        }
    }
    cells
}

#[test_kernel(top_of_groups)]
fn top_of_groups_orders_what_counts(t: &mut Cases) {
    for ((rows, cols), k) in SHAPES.into_iter().zip([3, 1, 50, 5, 64]) {
        let groups = u64::div_ceil(cols, u64::from(GROUP));
        let kk = (k * k) as usize;
        // Few distinct values, so that ties are everywhere.
        let row = move |i: usize| ((i as i64 * 7919) % 97 - 48) as f64;
        let x: Vec<f64> = (0..(rows * cols) as usize).map(row).collect();
        let keys = x
            .chunks(cols as usize)
            .flat_map(|row| row.chunks(GROUP as usize));
        let largest = |g: &[f64]| g.iter().map(|v| key_of(*v)).max().unwrap_or_default();
        let keys: Vec<i64> = keys.map(largest).collect();
        t.case(format!("{rows}x{cols}, {k}"))
            .input("x", [rows, cols], values(x))
            .input("keys", [rows, groups], ints(0, 1).map(move |i, _| keys[i]))
            .inout("found", [rows, k, k], ints(0, 9))
            .inout("place", [rows, k, k], ints(0, 9))
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let mut found = inputs.ints("found").to_vec();
                let mut place = inputs.ints("place").to_vec();
                for (r, row) in inputs["x"].chunks(cols as usize).enumerate() {
                    for (cell, key, column) in cells(row, k as usize) {
                        found[r * kk + cell] = key;
                        place[r * kk + cell] = column;
                    }
                }
                out.set_ints("found", found);
                out.set_ints("place", place);
            });
    }
}

// K11: NaN first, infinities at either end, equal zeros by index, ties over groups.
#[test_kernel(top_merge)]
fn top_merge_gives_the_first_in_order(t: &mut Cases) {
    let special = |i: usize| match i % 600 {
        3 | 500 => f64::NAN,
        7 => f64::INFINITY,
        8 => f64::NEG_INFINITY,
        i if i % 2 == 0 => 0.0,
        _ => -0.0,
    };
    let few = |i: usize| ((i as i64 * 7919) % 97 - 48) as f64;
    // Ascending and descending rows: all that counts in the last or the first group.
    let up = |i: usize| i as f64;
    let down = |i: usize| -(i as f64);
    let makers: [fn(usize) -> f64; 4] = [special, few, up, down];
    for (maker, (cols, k)) in
        makers
            .into_iter()
            .zip([(600, 9), (17_000, 64), (13_000, 50), (13_001, 50)])
    {
        merge_case(t, maker, 1 + u64::from(cols == 600), cols, k);
    }
    for (cols, k) in [(1, 1), (5, 64), (300, 50), (257, 0)] {
        merge_case(t, few, 1, cols, k);
    }
}

fn merge_case(t: &mut Cases, maker: fn(usize) -> f64, rows: u64, cols: u64, k: u64) {
    let groups = u64::div_ceil(cols, u64::from(GROUP));
    let x: Vec<Vec<f64>> = (0..rows as usize)
        .map(|r| (0..cols as usize).map(|i| maker(i + r * 31)).collect())
        .collect();
    let kk = (k * k) as usize;
    // What nobody wrote is garbage that comes first in order.
    let mut found = vec![i64::from(u32::MAX); rows as usize * kk];
    let mut place = vec![0; rows as usize * kk];
    for (r, row) in x.iter().enumerate() {
        for (cell, key, column) in cells(row, k as usize) {
            found[r * kk + cell] = key;
            place[r * kk + cell] = column;
        }
    }
    t.case(format!("{rows}x{cols}, {k}"))
        .input("found", [rows, k, k], ints(0, 1).map(move |i, _| found[i]))
        .input("place", [rows, k, k], ints(0, 1).map(move |i, _| place[i]))
        .output("value", [rows, k])
        .output("index", [rows, k])
        .scalar("groups", groups as u32)
        .bound(Bound::exact())
        .expect(move |_, out| {
            let (mut value, mut index) = (Vec::new(), Vec::new());
            for row in &x {
                let order = ordered(row);
                for rank in 0..k as usize {
                    // A zero comes back without its sign.
                    value.push(
                        order
                            .get(rank)
                            .map_or(f64::NEG_INFINITY, |&at| row[at] + 0.0),
                    );
                    index.push(order.get(rank).map_or(i64::from(u32::MAX), |&at| at as i64));
                }
            }
            out.set("value", value);
            out.set_ints("index", index);
        });
}

/// Vocabulary of Qwen3.
const VOCABULARY: u64 = 151_936;

#[bench_kernel(top_keys)]
fn top_keys_of_a_vocabulary(b: &mut Benches) {
    let bytes = u64::from(b.scalar("T").bytes());
    b.bench(format!("{VOCABULARY}"))
        .input("x", [1, VOCABULARY], normal(0.0, 1.0))
        .output("keys", [1, VOCABULARY.div_ceil(u64::from(GROUP))])
        .bytes(VOCABULARY * bytes);
}
