//! The gated delta rule over whole chunks of a prompt, by products of tiles.
//!
//! [`crate::recurrent::gated_delta`] says what is computed: row after row. Here `CHUNK` rows of a
//! segment go together (Yang et al., "Parallelizing Linear Transformers with the Delta Rule",
//! arXiv 2406.06484, and "Gated Delta Networks", arXiv 2412.06464). Within a chunk that begins
//! with the state `S`, with `d[i, j]` the product of the decays of the rows `j + 1..=i`, `c[i]` of
//! the rows `0..=i`, `e[i]` of the rows after `i`, and `b` the strengths:
//!
//! ```text
//! A[i, j] = b[i] d[i, j] (k[i] · k[j])  for j < i, else 0        delta_products, delta_inverse
//! X       = (I + A)⁻¹ diag(b)                                    delta_inverse
//! P[i, j] = d[i, j] (q[i] · k[j])       for j <= i, else 0       delta_inverse
//! U       = X (V - diag(c) K S)         what the rows add        delta_chunks
//! Y       = diag(c) Q S + P U                                    delta_chunks, delta_rows
//! S'      = c[last] S + Kᵀ diag(e) U                             delta_chunks
//! ```
//!
//! Decays are multiplied, never divided or taken to logarithms, so one of 0 is a decay like any
//! other. The inverse is solved in f32, forwards within blocks of 16 rows and block by block
//! below them. Products of 16-bit types round `S`, `V - diag(c) K S`, `U`, `X` and `P` to the
//! type, as much as their rows are rounded; states and sums are f32.
//!
//! Segments are those of [`crate::recurrent`]: `starts`, `from`, `to`. A chunk begins with its
//! segment or `CHUNK` rows after the one before; chunk `c` of segment `s` has the number
//! `starts[s] / CHUNK + s + c`, of `rows / CHUNK + segments` numbers. What scratch holds of a
//! number that no chunk has is neither written nor read.
//!
//! `CHUNK = 16` fits the shared memory of every target. 64 is for matrix units.

pub(crate) mod oracles;

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, normal, uniform};

use crate::recurrent::{source, starts, target};

/// Sizes that follow from the rows of a chunk.
struct Sizes<const CHUNK: u32>;

impl<const CHUNK: u32> Sizes<CHUNK> {
    /// Steps of a product of tiles in [`delta_products`].
    const DEPTH: u32 = if CHUNK < 64 { 32 } else { 64 };
    /// Elements between the rows of a square in shared memory: whole vectors of four, and four
    /// lanes that store to different rows meet different banks.
    const STRIDE: u32 = CHUNK + 4;
    /// Rows of a chunk that one thread of [`delta_inverse`] makes of a column.
    const SHARE: u32 = if CHUNK < 64 { 4 } else { 32 };
    /// Rows of them whose products it reads at once.
    const TAKEN: u32 = if CHUNK < 64 { 4 } else { 16 };
}

/// Products of the rows of each chunk: `of_keys[c, h, i, j] = k[i] · k[j]` and
/// `of_queries[c, h, i, j] = q[i] · k[j]`, rows counted from the chunk's first. What a place that
/// lies past the chunk's rows gets has no meaning.
#[kernel(
    grid = [key_heads, ceil_div(rows, 2 * CHUNK), bounds - 1],
    workgroup = 128,
    requires(bounds > 0, chunks + 1 == rows / CHUNK + bounds),
    instances(T = [f32, f16, bf16], CHUNK = [16]),
    instances(T = [f16, bf16], CHUNK = [64])
)]
pub fn delta_products<T: Float, const CHUNK: u32>(
    q: &Tensor<T, (key_heads, rows, key_dim)>,
    k: &Tensor<T, (key_heads, rows, key_dim)>,
    starts: &Tensor<u32, (bounds,)>,
    of_keys: &mut Tensor<f32, (chunks, key_heads, CHUNK, CHUNK)>,
    of_queries: &mut Tensor<f32, (chunks, key_heads, CHUNK, CHUNK)>,
) {
    let (head, segment) = (group_id(0), group_id(2));
    let (begin, end) = (starts[segment], starts[segment + 1]);
    let mut keys = shared_tile::<T>(CHUNK, Sizes::<CHUNK>::DEPTH);
    let mut queries = shared_tile::<T>(CHUNK, Sizes::<CHUNK>::DEPTH);
    let mut with_keys = reg_tile::<f32>(CHUNK, CHUNK, 0.0);
    let mut with_queries = reg_tile::<f32>(CHUNK, CHUNK, 0.0);
    // Twice, so that the second chunk is loaded while the first is stored; fewer times where the
    // segment has fewer chunks.
    let own = begin + group_id(1) * CHUNK;
    for first in (own..end).step_by((group_count(1) * CHUNK) as usize) {
        let chunk = begin / CHUNK + segment + (first - begin) / CHUNK;
        with_keys.fill(0.0);
        with_queries.fill(0.0);
        for start in (0..key_dim).step_by(Sizes::<CHUNK>::DEPTH as usize) {
            keys.load(k, [head, first, start]);
            matmul_nt(&mut with_keys, &keys, &keys);
            queries.load(q, [head, first, start]);
            matmul_nt(&mut with_queries, &queries, &keys);
        }
        with_keys.store(of_keys, [chunk, head, 0, 0]);
        with_queries.store(of_queries, [chunk, head, 0, 0]);
    }
}

/// What [`delta_chunks`] takes of each chunk and value head `h`, whose key head is
/// `h / (value_heads / key_heads)`: `inverse` is `X` and `weights` is `P` of the module's doc, with
/// zeros where a row or a column lies past the chunk's rows; `kept[c, h, 0, i]` is `c[i]` and
/// `kept[c, h, 1, i]` is `e[i]`, where rows past the chunk's keep everything.
#[kernel(
    grid = [value_heads, ceil_div(rows, CHUNK), bounds - 1],
    workgroup = 128,
    requires(bounds > 0, value_heads % key_heads == 0, chunks + 1 == rows / CHUNK + bounds),
    instances(T = [f32, f16, bf16], CHUNK = [16]),
    instances(T = [f16, bf16], CHUNK = [64])
)]
pub fn delta_inverse<T: Float, const CHUNK: u32>(
    of_keys: &Tensor<f32, (chunks, key_heads, CHUNK, CHUNK)>,
    of_queries: &Tensor<f32, (chunks, key_heads, CHUNK, CHUNK)>,
    decay: &Tensor<f32, (rows, value_heads)>,
    strength: &Tensor<f32, (rows, value_heads)>,
    starts: &Tensor<u32, (bounds,)>,
    inverse: &mut Tensor<T, (chunks, value_heads, CHUNK, CHUNK)>,
    weights: &mut Tensor<T, (chunks, value_heads, CHUNK, CHUNK)>,
    kept: &mut Tensor<f32, { (chunks, value_heads, 2, CHUNK) }>,
) {
    let (head, segment) = (group_id(0), group_id(2));
    let (begin, end) = (starts[segment], starts[segment + 1]);
    let first = begin + group_id(1) * CHUNK;
    if first >= end {
        return;
    }
    let chunk = begin / CHUNK + segment + group_id(1);
    let count = (end - first).min(CHUNK);
    let key_head = head / (value_heads / key_heads);
    let thread = local_index();
    // Vectors of four between the rows of a square, and blocks of 16 rows.
    let (vectors, blocks) = (Sizes::<CHUNK>::STRIDE / 4, CHUNK / 16);

    let mut factors = shared::<f32>(CHUNK);
    let mut strengths = shared::<f32>(CHUNK);
    // `A` by columns, its inverse by rows.
    let mut below = shared::<f32>(CHUNK * Sizes::<CHUNK>::STRIDE);
    let mut solved = shared::<f32>(CHUNK * Sizes::<CHUNK>::STRIDE);
    for i in strided(CHUNK) {
        let mut factor = 1.0f32;
        let mut own = 0.0f32;
        if i < count {
            factor = decay[[first + i, head]];
            own = strength[[first + i, head]];
        }
        factors[i] = factor;
        strengths[i] = own;
    }
    for i in strided(CHUNK * vectors) {
        solved.store4(i, splat4(0.0f32));
    }
    barrier();

    // All products of the chunk's rows are under way before any is used.
    let (column, share) = (thread % CHUNK, thread / CHUNK);
    if share < CHUNK / Sizes::<CHUNK>::SHARE {
        let begin = share * Sizes::<CHUNK>::SHARE;
        let mut passed = 1.0f32;
        for t in 0..begin {
            passed *= select(t > column, factors[t], 1.0);
        }
        for start in (begin..begin + Sizes::<CHUNK>::SHARE).step_by(Sizes::<CHUNK>::TAKEN as usize)
        {
            let mut with_keys = private::<f32>(Sizes::<CHUNK>::TAKEN);
            let mut with_queries = private::<f32>(Sizes::<CHUNK>::TAKEN);
            for l in unroll(0..Sizes::<CHUNK>::TAKEN) {
                with_keys[l] = of_keys[[chunk, key_head, start + l, column]];
                with_queries[l] = of_queries[[chunk, key_head, start + l, column]];
            }
            for l in unroll(0..Sizes::<CHUNK>::TAKEN) {
                let row = start + l;
                passed *= select(row > column, factors[row], 1.0);
                let inside = row < count && column <= row;
                let entry = strengths[row] * passed * with_keys[l];
                with_keys[l] = select(inside && column < row, entry, 0.0);
                let weight = select(inside, passed * with_queries[l], 0.0);
                weights[[chunk, head, row, column]] = T::from_f32(weight);
            }
            for l in unroll(0..Sizes::<CHUNK>::TAKEN / 4) {
                below.store4(column * vectors + start / 4 + l, with_keys.load4(l));
            }
        }
    }
    barrier();

    // The blocks of the diagonal, a column a thread, and beside it what is kept, a row a thread.
    if thread < CHUNK {
        let block = thread / 16;
        let mut x = private::<f32>(16);
        for i in unroll(0..16) {
            x[i] = select(block * 16 + i == thread, 1.0, 0.0);
        }
        for m in unroll(0..15) {
            let known = splat4(-x[m]);
            for i in unroll(0..4) {
                let entries = below.load4((block * 16 + m) * vectors + block * 4 + i);
                x.store4(i, entries.mul_add(known, x.load4(i)));
            }
        }
        for i in unroll(0..16) {
            solved[(block * 16 + i) * Sizes::<CHUNK>::STRIDE + thread] = x[i];
        }
    } else if thread < 2 * CHUNK {
        let i = thread - CHUNK;
        let mut up_to = 1.0f32;
        let mut after = 1.0f32;
        for t in 0..CHUNK {
            up_to *= select(t <= i, factors[t], 1.0);
            after *= select(t > i, factors[t], 1.0);
        }
        kept[[chunk, head, 0, i]] = up_to;
        kept[[chunk, head, 1, i]] = after;
    }
    barrier();

    // The blocks below, by their distance from the diagonal: with `r` a block's row and `c` its
    // column, `-X[r, r] (A[r, c] X[c, c] + .. + A[r, r - 1] X[r - 1, c])`. A thread has two rows
    // and four columns of a block.
    for distance in 1..blocks {
        let block = thread / 32;
        let is_busy = block < blocks - distance;
        let corner = (block + distance) * 16;
        let row = corner + thread % 32 / 4 * 2;
        let column = block * 4 + thread % 4;
        let mut upper = splat4(0.0f32);
        let mut lower = splat4(0.0f32);
        if is_busy {
            for before in block..block + distance {
                for m in unroll(0..16) {
                    let entries =
                        below.load2(((before * 16 + m) * Sizes::<CHUNK>::STRIDE + row) / 2);
                    let x = solved.load4((before * 16 + m) * vectors + column);
                    upper = x.mul_add(splat4(entries[0]), upper);
                    lower = x.mul_add(splat4(entries[1]), lower);
                }
            }
            solved.store4(row * vectors + column, upper);
            solved.store4((row + 1) * vectors + column, lower);
        }
        barrier();
        upper = splat4(0.0f32);
        lower = splat4(0.0f32);
        if is_busy {
            for m in unroll(0..4) {
                let above = solved.load4(row * vectors + corner / 4 + m);
                let under = solved.load4((row + 1) * vectors + corner / 4 + m);
                let x = solved.load4((corner + 4 * m) * vectors + column);
                upper = x.mul_add(splat4(-above[0]), upper);
                lower = x.mul_add(splat4(-under[0]), lower);
                let x = solved.load4((corner + 4 * m + 1) * vectors + column);
                upper = x.mul_add(splat4(-above[1]), upper);
                lower = x.mul_add(splat4(-under[1]), lower);
                let x = solved.load4((corner + 4 * m + 2) * vectors + column);
                upper = x.mul_add(splat4(-above[2]), upper);
                lower = x.mul_add(splat4(-under[2]), lower);
                let x = solved.load4((corner + 4 * m + 3) * vectors + column);
                upper = x.mul_add(splat4(-above[3]), upper);
                lower = x.mul_add(splat4(-under[3]), lower);
            }
        }
        barrier();
        if is_busy {
            solved.store4(row * vectors + column, upper);
            solved.store4((row + 1) * vectors + column, lower);
        }
        barrier();
    }

    for i in strided(CHUNK * CHUNK / 4) {
        let (row, column) = (i / (CHUNK / 4), i % (CHUNK / 4));
        let x = solved.load4(row * vectors + column) * strengths.load4(column);
        inverse.store4([chunk, head, row, column], x.to::<T>());
    }
}

/// Tiles of [`delta_chunks`].
struct Tiles<const CHUNK: u32>;

impl<const CHUNK: u32> Tiles<CHUNK> {
    /// Elements of the values that a workgroup has.
    const VALUES: u32 = CHUNK;
    /// Queries, and keys and values of which some are left out, have tiles of their own.
    const APART: bool = CHUNK >= 64;
}

/// Chunk after chunk of each segment: the state, and what the rows read of it, as
/// `y[c, h, j, i]` for element `j` of row `i` of chunk `c`; zero past the chunk's rows. `inverse`,
/// `weights` and `kept` are those of [`delta_inverse`]. States and slots are those of
/// [`crate::recurrent::gated_delta`].
#[kernel(
    grid = [ceil_div(value_dim, Tiles::<CHUNK>::VALUES), value_heads, segments],
    workgroup = 128,
    requires(value_heads % key_heads == 0, chunks == rows / CHUNK + segments),
    instances(T = [f32, f16, bf16], KEY_DIM = [32, 128], CHUNK = [16]),
    instances(T = [f16, bf16], KEY_DIM = [128], CHUNK = [64])
)]
pub fn delta_chunks<T: Float, const KEY_DIM: u32, const CHUNK: u32>(
    q: &Tensor<T, (key_heads, rows, KEY_DIM)>,
    k: &Tensor<T, (key_heads, rows, KEY_DIM)>,
    v: &Tensor<T, (value_heads, rows, value_dim)>,
    inverse: &Tensor<T, (chunks, value_heads, CHUNK, CHUNK)>,
    weights: &Tensor<T, (chunks, value_heads, CHUNK, CHUNK)>,
    kept: &Tensor<f32, { (chunks, value_heads, 2, CHUNK) }>,
    starts: &Tensor<u32, { (segments + 1,) }>,
    from: &Tensor<u32, (segments,)>,
    to: &Tensor<u32, (segments,)>,
    states: &mut Tensor<f32, (slots, value_heads, value_dim, KEY_DIM)>,
    y: &mut Tensor<T, (chunks, value_heads, value_dim, CHUNK)>,
) {
    let (head, segment) = (group_id(1), group_id(2));
    let key_head = head / (value_heads / key_heads);
    let first_value = group_id(0) * Tiles::<CHUNK>::VALUES;
    let (source, target) = (index_in(from[segment], slots), index_in(to[segment], slots));
    let (begin, end) = (starts[segment], starts[segment + 1]);

    let mut keys = shared_tile::<T>(CHUNK, KEY_DIM);
    let mut own_queries = shared_tile::<T>(CHUNK, KEY_DIM);
    let mut last_keys = shared_tile::<T>(CHUNK, KEY_DIM);
    let mut wanted = shared_tile::<T>(CHUNK, Tiles::<CHUNK>::VALUES);
    let mut last_wanted = shared_tile::<T>(CHUNK, Tiles::<CHUNK>::VALUES);
    let mut inverses = shared_tile::<T>(CHUNK, CHUNK);
    let mut shares = shared_tile::<T>(CHUNK, CHUNK);
    let mut unit = shared_tile::<T>(CHUNK, CHUNK);
    // Everything that follows has a row a value element, so that products find what the last one
    // made on their left: matrix units take that from registers.
    let mut state = reg_tile::<f32>(Tiles::<CHUNK>::VALUES, KEY_DIM, 0.0);
    let mut state_left = shared_tile::<T>(Tiles::<CHUNK>::VALUES, KEY_DIM);
    let mut recalled = reg_tile::<f32>(Tiles::<CHUNK>::VALUES, CHUNK, 0.0);
    let mut missing = reg_tile::<f32>(Tiles::<CHUNK>::VALUES, CHUNK, 0.0);
    let mut missing_left = shared_tile::<T>(Tiles::<CHUNK>::VALUES, CHUNK);
    let mut added = reg_tile::<f32>(Tiles::<CHUNK>::VALUES, CHUNK, 0.0);
    let mut added_left = shared_tile::<T>(Tiles::<CHUNK>::VALUES, CHUNK);
    let mut faded_left = shared_tile::<T>(Tiles::<CHUNK>::VALUES, CHUNK);
    let mut output = reg_tile::<f32>(Tiles::<CHUNK>::VALUES, CHUNK, 0.0);
    let mut up_to = reg_tile::<f32>(1, CHUNK, 0.0);
    let mut after = reg_tile::<f32>(1, CHUNK, 0.0);

    state.map_indexed(|_, row, column| {
        let value = (first_value + row).min(value_dim - 1);
        states[[source, head, value, column]]
    });
    unit.fill(T::ZERO);
    unit.map_indexed(|_, row, column| select(row == column, T::ONE, T::ZERO));
    for start in (begin..end).step_by(CHUNK as usize) {
        let chunk = index_in(begin / CHUNK + segment + (start - begin) / CHUNK, chunks);
        let count = end - start;
        up_to.map_indexed(|_, _, i| kept[[chunk, head, 0, i]]);
        after.map_indexed(|_, _, i| kept[[chunk, head, 1, i]]);
        let whole = kept[[chunk, head, 0, CHUNK - 1]];

        state_left.copy_from(&state);
        keys.load(k, [key_head, start, 0]);
        recalled.fill(0.0);
        matmul_nt(&mut recalled, &state_left, &keys);
        recalled.map2(&up_to, |x, kept| x * kept);
        // What other segments' rows hold does not count, not even if it is no number: here and
        // where keys meet the state.
        missing.fill(0.0);
        if Tiles::<CHUNK>::APART {
            if count < CHUNK {
                last_wanted.load(v, [head, start, first_value]);
                last_wanted.map_indexed(|x, i, _| select(i < count, x, T::ZERO));
                matmul_tn(&mut missing, &last_wanted, &unit);
            } else {
                wanted.load(v, [head, start, first_value]);
                matmul_tn(&mut missing, &wanted, &unit);
            }
        } else {
            wanted.load(v, [head, start, first_value]);
            if count < CHUNK {
                wanted.map_indexed(|x, i, _| select(i < count, x, T::ZERO));
            }
            matmul_tn(&mut missing, &wanted, &unit);
        }
        missing.map2_indexed(&recalled, |wanted, recalled, _, i| {
            select(i < count, wanted - recalled, 0.0)
        });
        missing_left.copy_from(&missing);
        inverses.load(inverse, [chunk, head, 0, 0]);
        added.fill(0.0);
        matmul_nt(&mut added, &missing_left, &inverses);
        added_left.copy_from(&added);

        output.fill(0.0);
        if Tiles::<CHUNK>::APART {
            own_queries.load(q, [key_head, start, 0]);
            matmul_nt(&mut output, &state_left, &own_queries);
        } else {
            keys.load(q, [key_head, start, 0]);
            matmul_nt(&mut output, &state_left, &keys);
        }
        output.map2_indexed(&up_to, |x, kept, _, i| select(i < count, x * kept, 0.0));
        shares.load(weights, [chunk, head, 0, 0]);
        matmul_nt(&mut output, &added_left, &shares);
        output.store(y, [chunk, head, first_value, 0]);

        added.map2(&after, |x, kept| x * kept);
        faded_left.copy_from(&added);
        state.map(|x| x * whole);
        if Tiles::<CHUNK>::APART {
            if count < CHUNK {
                last_keys.load(k, [key_head, start, 0]);
                last_keys.map_indexed(|x, i, _| select(i < count, x, T::ZERO));
                matmul(&mut state, &faded_left, &last_keys);
            } else {
                matmul(&mut state, &faded_left, &keys);
            }
        } else {
            keys.load(k, [key_head, start, 0]);
            if count < CHUNK {
                keys.map_indexed(|x, i, _| select(i < count, x, T::ZERO));
            }
            matmul(&mut state, &faded_left, &keys);
        }
    }
    state.store(states, [target, head, first_value, 0]);
}

/// Value elements that [`delta_rows`] turns at once.
const TURNED: u32 = 64;

/// Rows out of chunks: `y[r, h, j] = by_chunk[c, h, j, i]`, where row `r` is row `i` of chunk `c`.
#[kernel(
    grid = [value_heads, ceil_div(rows, CHUNK), bounds - 1],
    workgroup = 128,
    requires(bounds > 0, value_dim % 8 == 0, chunks + 1 == rows / CHUNK + bounds),
    instances(T = [f32, f16, bf16], CHUNK = [16]),
    instances(T = [f16, bf16], CHUNK = [64])
)]
pub fn delta_rows<T: Float, const CHUNK: u32>(
    by_chunk: &Tensor<T, (chunks, value_heads, value_dim, CHUNK)>,
    starts: &Tensor<u32, (bounds,)>,
    y: &mut Tensor<T, (rows, value_heads, value_dim)>,
) {
    let (head, segment) = (group_id(0), group_id(2));
    let (begin, end) = (starts[segment], starts[segment + 1]);
    let first = begin + group_id(1) * CHUNK;
    if first >= end {
        return;
    }
    let chunk = begin / CHUNK + segment + group_id(1);
    let count = (end - first).min(CHUNK);
    // Rows of values; one more element sends those that meet in a column to different banks.
    let mut block = shared::<f32>(CHUNK * (TURNED + 1));
    for start in (0..value_dim).step_by(TURNED as usize) {
        let values = (value_dim - start).min(TURNED);
        for at in strided(values * (CHUNK / 8)) {
            let (value, i) = (at / (CHUNK / 8), at % (CHUNK / 8));
            let x = by_chunk.load8([chunk, head, start + value, i]).to_f32();
            block[i * 8 * (TURNED + 1) + value] = x[0];
            block[(i * 8 + 1) * (TURNED + 1) + value] = x[1];
            block[(i * 8 + 2) * (TURNED + 1) + value] = x[2];
            block[(i * 8 + 3) * (TURNED + 1) + value] = x[3];
            block[(i * 8 + 4) * (TURNED + 1) + value] = x[4];
            block[(i * 8 + 5) * (TURNED + 1) + value] = x[5];
            block[(i * 8 + 6) * (TURNED + 1) + value] = x[6];
            block[(i * 8 + 7) * (TURNED + 1) + value] = x[7];
        }
        barrier();
        for at in strided(count * (values / 8)) {
            let (i, value) = (at / (values / 8), at % (values / 8));
            let own = i * (TURNED + 1) + value * 8;
            let x = vec8(
                block[own],
                block[own + 1],
                block[own + 2],
                block[own + 3],
                block[own + 4],
                block[own + 5],
                block[own + 6],
                block[own + 7],
            );
            y.store8([first + i, head, start / 8 + value], x.to::<T>());
        }
        barrier();
    }
}

/// A prompt of the published hybrids: rows, key heads, elements of a head.
const PROMPT: [u64; 3] = [2048, 16, 128];

/// Their value heads.
const VALUE_HEADS: [u64; 2] = [32, 48];

#[bench_kernel(delta_products)]
fn delta_products_of_a_prompt(b: &mut Benches) {
    let size = b.constant("CHUNK") as u64;
    let [rows, heads, key_dim] = PROMPT;
    let square = [rows / size + 1, heads, size, size];
    let bytes = u64::from(b.scalar("T").bytes());
    b.bench(format!("{rows} rows, {heads} heads of {key_dim}"))
        .input("q", [heads, rows, key_dim], normal(0.0, 0.1))
        .input("k", [heads, rows, key_dim], normal(0.0, 0.1))
        .input("starts", [2], starts(&[PROMPT[0]]))
        .output("of_keys", square)
        .output("of_queries", square)
        .bytes(2 * rows * heads * (key_dim * bytes + size * 4))
        .flops(4 * rows * heads * size * key_dim);
}

#[bench_kernel(delta_inverse)]
fn delta_inverse_of_a_prompt(b: &mut Benches) {
    let size = b.constant("CHUNK") as u64;
    let [rows, key_heads, _] = PROMPT;
    let chunks = rows / size + 1;
    let bytes = u64::from(b.scalar("T").bytes());
    for value_heads in VALUE_HEADS {
        let square = [chunks, value_heads, size, size];
        b.bench(format!("{rows} rows, {value_heads}/{key_heads} heads"))
            .input("of_keys", [chunks, key_heads, size, size], normal(0.0, 0.1))
            .input(
                "of_queries",
                [chunks, key_heads, size, size],
                normal(0.0, 0.1),
            )
            .input("decay", [rows, value_heads], uniform(0.5, 1.0))
            .input("strength", [rows, value_heads], uniform(0.0, 1.0))
            .input("starts", [2], starts(&[PROMPT[0]]))
            .output("inverse", square)
            .output("weights", square)
            .output("kept", [chunks, value_heads, 2, size])
            .bytes(2 * rows * (key_heads * size * 4 + value_heads * (size * bytes + 8)));
    }
}

#[bench_kernel(delta_chunks)]
fn delta_chunks_of_a_prompt(b: &mut Benches) {
    let (size, key_dim) = (b.constant("CHUNK") as u64, b.constant("KEY_DIM") as u64);
    let [rows, key_heads, value_dim] = PROMPT;
    let chunks = rows / size + 1;
    let bytes = u64::from(b.scalar("T").bytes());
    for value_heads in VALUE_HEADS {
        let square = [chunks, value_heads, size, size];
        b.bench(format!(
            "{rows} rows, {value_heads}/{key_heads} heads of {value_dim}"
        ))
        .input("q", [key_heads, rows, key_dim], normal(0.0, 0.1))
        .input("k", [key_heads, rows, key_dim], normal(0.0, 0.1))
        .input("v", [value_heads, rows, value_dim], normal(0.0, 1.0))
        .input("inverse", square, normal(0.0, 0.02))
        .input("weights", square, normal(0.0, 0.02))
        .input("kept", [chunks, value_heads, 2, size], uniform(0.5, 1.0))
        .input("starts", [2], starts(&[PROMPT[0]]))
        .input("from", [1], source())
        .input("to", [1], target())
        .inout(
            "states",
            [2, value_heads, value_dim, key_dim],
            normal(0.0, 1.0),
        )
        .output("y", [chunks, value_heads, value_dim, size])
        .bytes(
            rows * bytes * (2 * key_heads * key_dim + 2 * value_heads * (value_dim + size))
                + 8 * value_heads * value_dim * key_dim,
        )
        .flops(2 * rows * value_heads * value_dim * (3 * key_dim + 2 * size));
    }
}

#[bench_kernel(delta_rows)]
fn delta_rows_of_a_prompt(b: &mut Benches) {
    let size = b.constant("CHUNK") as u64;
    let [rows, _, value_dim] = PROMPT;
    let bytes = u64::from(b.scalar("T").bytes());
    for heads in VALUE_HEADS {
        b.bench(format!("{rows} rows, {heads} heads of {value_dim}"))
            .input(
                "by_chunk",
                [rows / size + 1, heads, value_dim, size],
                normal(0.0, 1.0),
            )
            .input("starts", [2], starts(&[PROMPT[0]]))
            .output("y", [rows, heads, value_dim])
            .bytes(2 * rows * heads * value_dim * bytes);
    }
}
