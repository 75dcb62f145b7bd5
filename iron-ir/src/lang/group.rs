//! Barriers, and collectives over the workgroup and its subgroups. All need control flow that
//! is uniform in the workgroup; threads that wait at different calls are a fault.

use std::panic::Location;

use super::scalar::{Element, Float, Number};
use super::vector::Vector;
use crate::host::context::{GroupContext, Site, collective, fault, wait};
use crate::types::Scalar;

/// Waits for the workgroup; orders shared memory.
#[track_caller]
pub fn barrier() {
    wait("barrier", Location::caller(), false);
}

/// Waits for the workgroup; orders shared memory, and global memory within the workgroup.
#[track_caller]
pub fn barrier_global() {
    wait("barrier_global", Location::caller(), false);
}

/// Waits for the workgroup; orders shared memory, and global memory on the whole device, together
/// with atomics: where one workgroup changes a counter behind such a barrier, another that reads
/// the counter atomically and then passes such a barrier sees what the first had written before its
/// own. It waits for no other workgroup.
#[track_caller]
pub fn barrier_device() {
    wait("barrier_device", Location::caller(), false);
}

/// Waits for the subgroup; orders shared memory within it.
#[track_caller]
pub fn subgroup_barrier() {
    wait("subgroup_barrier", Location::caller(), false);
}

/// Waits for every thread of the launch; needs a `cooperative` kernel.
#[track_caller]
pub fn grid_barrier() {
    wait("grid_barrier", Location::caller(), true);
}

/// Waits for the launches before this one, in a `dependent` kernel, which may start while they
/// end: weights that no launch writes can be loaded before it. Without it the whole kernel waits.
/// A barrier of the launch's memory, not of the workgroup's threads.
#[track_caller]
pub fn launch_barrier() {
    wait("launch_barrier", Location::caller(), false);
}

/// The adjacent-pair tree: at distance 1, 2, 4, … element `i`, a multiple of twice the
/// distance, becomes `e[i] ∘ e[i + distance]` where there is such an element.
fn tree<T: Copy>(mut elements: Vec<T>, combine: impl Fn(T, T) -> T) -> T {
    let mut distance = 1;
    while distance < elements.len() {
        for i in (distance..elements.len()).step_by(2 * distance) {
            elements[i - distance] = combine(elements[i - distance], elements[i]);
        }
        distance *= 2;
    }
    elements[0]
}

fn workgroup_reduce<T: Element>(name: &'static str, site: Site, x: T, combine: fn(T, T) -> T) -> T {
    let bits = collective(name, site, x.to_bits64(), 0, |_, operands| {
        let elements = operands.iter().map(|o| T::from_bits64(o.0)).collect();
        let result = tree(elements, combine).to_bits64();
        vec![result; operands.len()]
    });
    T::from_bits64(bits)
}

fn subgroup_reduce<T: Element>(name: &'static str, site: Site, x: T, combine: fn(T, T) -> T) -> T {
    let bits = collective(name, site, x.to_bits64(), 0, |context, operands| {
        let mut results = Vec::with_capacity(operands.len());
        for lanes in operands.chunks(context.subgroup_size as usize) {
            let elements = lanes.iter().map(|o| T::from_bits64(o.0)).collect();
            let result = tree(elements, combine).to_bits64();
            results.extend(lanes.iter().map(|_| result));
        }
        results
    });
    T::from_bits64(bits)
}

macro_rules! reductions {
    ($($workgroup:ident $subgroup:ident $bound:ident $combine:expr, $doc:literal;)*) => { $(
        #[doc = concat!($doc, " over the workgroup, by the adjacent-pair tree over the thread index; every thread gets it.")]
        #[track_caller]
        pub fn $workgroup<T: $bound>(x: T) -> T {
            workgroup_reduce(stringify!($workgroup), Location::caller(), x, $combine)
        }
        #[doc = concat!($doc, " over the subgroup, by the adjacent-pair tree over the lanes; every lane gets it.")]
        #[track_caller]
        pub fn $subgroup<T: $bound>(x: T) -> T {
            subgroup_reduce(stringify!($subgroup), Location::caller(), x, $combine)
        }
    )* };
}

reductions! {
    workgroup_sum subgroup_sum Number T::sum_of, "Sum";
    workgroup_product subgroup_product Number T::product_of, "Product";
    workgroup_min subgroup_min Number |a, b| a.min(b), "The least (a NaN loses)";
    workgroup_max subgroup_max Number |a, b| a.max(b), "The greatest (a NaN loses)";
    workgroup_min_nan subgroup_min_nan Float T::min_nan, "The least, or NaN where one is NaN,";
    workgroup_max_nan subgroup_max_nan Float T::max_nan, "The greatest, or NaN where one is NaN,";
}

/// Whether some thread's `x` is true.
#[track_caller]
pub fn workgroup_any(x: bool) -> bool {
    workgroup_reduce("workgroup_any", Location::caller(), x, |a, b| a | b)
}

/// Whether every thread's `x` is true.
#[track_caller]
pub fn workgroup_all(x: bool) -> bool {
    workgroup_reduce("workgroup_all", Location::caller(), x, |a, b| a & b)
}

/// Whether some lane's `x` is true.
#[track_caller]
pub fn subgroup_any(x: bool) -> bool {
    subgroup_reduce("subgroup_any", Location::caller(), x, |a, b| a | b)
}

/// Whether every lane's `x` is true.
#[track_caller]
pub fn subgroup_all(x: bool) -> bool {
    subgroup_reduce("subgroup_all", Location::caller(), x, |a, b| a & b)
}

/// The `x` of the thread with linear index `thread`, which is the same in every thread.
#[track_caller]
pub fn workgroup_broadcast<T: Element>(x: T, thread: u32) -> T {
    let site = Location::caller();
    let bits = collective(
        "workgroup_broadcast",
        site,
        x.to_bits64(),
        thread.into(),
        |_, operands| {
            same_argument("workgroup_broadcast", "thread", site, operands);
            match operands.get(thread as usize) {
                Some(operand) => vec![operand.0; operands.len()],
                None => fault(
                    site,
                    format!(
                        "`workgroup_broadcast` from thread {thread} of {}",
                        operands.len()
                    ),
                ),
            }
        },
    );
    T::from_bits64(bits)
}

fn same_argument(name: &str, what: &str, site: Site, operands: &[(u64, u64)]) {
    let first = operands[0].1;
    if let Some(other) = operands.iter().position(|o| o.1 != first) {
        fault(
            site,
            format!(
                "`{name}`: the {what} is not uniform: {first} in thread 0 of the group, \
                 {} in thread {other}",
                operands[other].1
            ),
        );
    }
}

fn scan<T: Number>(name: &'static str, site: Site, x: T, exclusive: bool) -> T {
    let bits = collective(name, site, x.to_bits64(), 0, |_, operands| {
        // The tree of `fold::tree_scan`, on the author's types.
        let mut sums: Vec<T> = operands.iter().map(|o| T::from_bits64(o.0)).collect();
        let mut distance = 1;
        while distance < sums.len() {
            for i in (0..sums.len()).filter(|i| i & distance != 0) {
                let left = sums[(i & !(2 * distance - 1)) + distance - 1];
                sums[i] = left.sum_of(sums[i]);
            }
            distance *= 2;
        }
        if exclusive {
            sums.rotate_right(1);
            sums[0] = T::ZERO;
        }
        let results: Vec<u64> = sums.into_iter().map(T::to_bits64).collect();
        results
    });
    T::from_bits64(bits)
}

/// Sum of the `x` of threads 0 to this one.
#[track_caller]
pub fn workgroup_scan_sum<T: Number>(x: T) -> T {
    scan("workgroup_scan_sum", Location::caller(), x, false)
}

/// Sum of the `x` of the threads before this one; zero in thread 0.
#[track_caller]
pub fn workgroup_scan_sum_exclusive<T: Number>(x: T) -> T {
    scan("workgroup_scan_sum_exclusive", Location::caller(), x, true)
}

/// A `u64` with bit `i` set where lane `i`'s `x` is true.
#[track_caller]
pub fn subgroup_ballot(x: bool) -> u64 {
    collective(
        "subgroup_ballot",
        Location::caller(),
        x.into(),
        0,
        |context, operands| {
            let mut results = Vec::with_capacity(operands.len());
            for lanes in operands.chunks(context.subgroup_size as usize) {
                let mask = lanes.iter().rev().fold(0u64, |mask, o| mask << 1 | o.0);
                results.extend(lanes.iter().map(|_| mask));
            }
            results
        },
    )
}

/// Each lane's source lane of a shuffle: own lane and argument to source.
type Source = fn(u64, u64) -> Option<u64>;

fn shuffle<T: Element>(
    name: &'static str,
    site: Site,
    x: T,
    argument: u32,
    source: Source,
    uniform: bool,
    must_exist: bool,
) -> T {
    let compute = |context: &GroupContext, operands: &[(u64, u64)]| {
        let mut results = Vec::with_capacity(operands.len());
        for lanes in operands.chunks(context.subgroup_size as usize) {
            if uniform {
                same_argument(name, "lane", site, lanes);
            }
            for (own, &(bits, argument)) in lanes.iter().enumerate() {
                let lane = source(own as u64, argument);
                let found = lane.and_then(|l| lanes.get(usize::try_from(l).ok()?));
                results.push(match found {
                    Some(operand) => operand.0,
                    None if must_exist => fault(
                        site,
                        format!("`{name}` from lane {argument} of {} lanes", lanes.len()),
                    ),
                    None => bits,
                });
            }
        }
        results
    };
    T::from_bits64(collective(
        name,
        site,
        x.to_bits64(),
        argument.into(),
        compute,
    ))
}

/// The `x` of lane `lane`, which is the same in every lane of the subgroup.
#[track_caller]
pub fn subgroup_broadcast<T: Element>(x: T, lane: u32) -> T {
    let site = Location::caller();
    shuffle(
        "subgroup_broadcast",
        site,
        x,
        lane,
        |_, l| Some(l),
        true,
        true,
    )
}

/// The `x` of lane `lane`, which exists.
#[track_caller]
pub fn subgroup_shuffle<T: Element>(x: T, lane: u32) -> T {
    let site = Location::caller();
    shuffle(
        "subgroup_shuffle",
        site,
        x,
        lane,
        |_, l| Some(l),
        false,
        true,
    )
}

/// The `x` of lane `own ^ mask`; the own one where that lane does not exist.
#[track_caller]
pub fn subgroup_shuffle_xor<T: Element>(x: T, mask: u32) -> T {
    let site = Location::caller();
    shuffle(
        "subgroup_shuffle_xor",
        site,
        x,
        mask,
        |o, m| Some(o ^ m),
        false,
        false,
    )
}

/// The `x` of lane `own - distance`; the own one where that lane does not exist.
#[track_caller]
pub fn subgroup_shuffle_up<T: Element>(x: T, distance: u32) -> T {
    let site = Location::caller();
    shuffle(
        "subgroup_shuffle_up",
        site,
        x,
        distance,
        u64::checked_sub,
        false,
        false,
    )
}

/// The `x` of lane `own + distance`; the own one where that lane does not exist.
#[track_caller]
pub fn subgroup_shuffle_down<T: Element>(x: T, distance: u32) -> T {
    let site = Location::caller();
    shuffle(
        "subgroup_shuffle_down",
        site,
        x,
        distance,
        u64::checked_add,
        false,
        false,
    )
}

/// Threads that multiply matrices together.
const MMA_THREADS: usize = 32;

/// Multiplies matrices of 16-bit floats in each 32 consecutive threads of the workgroup, whose
/// number is a multiple of 32: `sum + a · b`, where `a` has 16 rows and 16 columns and `b` has 16
/// rows and 8 columns. NVIDIA's matrix units do it from compute capability 8.0 on; elsewhere the
/// threads exchange through shared memory and add one product after the other with `fma`.
///
/// Thread `4 g + t` of the 32 (`t < 4`) gives columns `4 t .. 4 t + 4` of `a`'s row `g` (`low`)
/// and of its row `g + 8` (`high`), and rows `4 t .. 4 t + 4` of `b`'s column `g`. It has columns
/// `2 t` and `2 t + 1` of the sum's row `g`, then of row `g + 8`. `T` is `f16` or `bf16`. Every
/// thread of the workgroup takes part.
///
/// Matrix units add in an order and with roundings of their own: each element is within `2^-19` of
/// the exact one, relative to the sum of its terms' magnitudes.
#[track_caller]
pub fn mma_16x8x16<T: Float>(
    low: Vector<T, 4>,
    high: Vector<T, 4>,
    b: Vector<T, 4>,
    sum: Vector<f32, 4>,
) -> Vector<f32, 4> {
    const NAME: &str = "mma_16x8x16";
    let site = Location::caller();
    if !matches!(T::SCALAR, Scalar::F16 | Scalar::BF16) {
        fault(site, format!("`{NAME}` of {}, not f16 or bf16", T::SCALAR));
    }
    let bits = |v: Vector<T, 4>| {
        let lanes = v.to_array();
        (0..4).fold(0, |word, i| word | lanes[i].to_bits64() << (16 * i))
    };
    let lane = crate::host::context::with(NAME, site, |context| {
        context.thread.get() as usize % MMA_THREADS
    });
    // The four elements that a lane of the 32 gives; each thread asks for one lane.
    let of_lane = |own: u64, lane: usize| {
        let word = collective(NAME, site, own, lane as u64, |_, operands| {
            if !operands.len().is_multiple_of(MMA_THREADS) {
                let threads = operands.len();
                fault(
                    site,
                    format!("`{NAME}` in {threads} threads, not a multiple of 32"),
                );
            }
            let all = operands.chunks(MMA_THREADS);
            all.flat_map(|unit| unit.iter().map(|o| unit[o.1 as usize].0))
                .collect()
        });
        [0, 1, 2, 3].map(|i| T::from_bits64(word >> (16 * i) & 0xffff).to_f32())
    };
    let (row, pair) = (lane / 4, lane % 4);
    let mut sums = sum.to_array();
    for quarter in 0..4 {
        let rows = [low, high].map(|v| of_lane(bits(v), 4 * row + quarter));
        let columns = [0, 1].map(|c| of_lane(bits(b), 4 * (2 * pair + c) + quarter));
        for (i, sum) in sums.iter_mut().enumerate() {
            for k in 0..4 {
                *sum = rows[i / 2][k].mul_add(columns[i % 2][k], *sum);
            }
        }
    }
    Vector::new(sums)
}
