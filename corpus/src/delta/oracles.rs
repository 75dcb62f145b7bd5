//! The tests of the chunked gated delta rule: each kernel against f64, and the whole against the
//! rule row after row.

use std::cell::LazyCell;
use std::rc::Rc;

use iron_ir::Scalar;
use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, Floats, constant, normal, round_to, uniform, value_of};

use super::{delta_chunks, delta_inverse, delta_products, delta_rows};
use crate::recurrent::{Rule, slots, source, starts, target};

/// Lengths of segments, for chunks of 16 and of 64 rows; each is a case.
const RUNS: [[&[u64]; 4]; 2] = [
    [&[0], &[1], &[16], &[5, 0, 35]],
    [&[0], &[1], &[64], &[7, 0, 130]],
];

/// The runs for chunks of that many rows.
fn runs_for(size: u64) -> [&'static [u64]; 4] {
    RUNS[usize::from(size == 64)]
}

/// A chunk by its definition.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    pub number: usize,
    pub first: usize,
    pub count: usize,
}

/// The chunks of segments of the lengths given.
pub(crate) fn chunks_of(runs: &[u64], size: u64) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut start = 0;
    for (segment, run) in runs.iter().enumerate() {
        for within in 0..run.div_ceil(size) {
            chunks.push(Chunk {
                number: (start / size + segment as u64 + within) as usize,
                first: (start + within * size) as usize,
                count: size.min(run - within * size) as usize,
            });
        }
        start += run;
    }
    chunks
}

/// Numbers of chunks.
pub(crate) fn numbers(runs: &[u64], size: u64) -> u64 {
    runs.iter().sum::<u64>() / size + runs.len() as u64
}

/// Elements that belong to no chunk, of a tensor with `each` elements a number.
pub(crate) fn unused(runs: &[u64], size: u64, each: usize) -> Vec<usize> {
    let used: Vec<usize> = chunks_of(runs, size).iter().map(|c| c.number).collect();
    let unused = (0..numbers(runs, size) as usize).filter(|number| !used.contains(number));
    unused
        .flat_map(|number| number * each..(number + 1) * each)
        .collect()
}

/// `X`, `P`, `c` and `e` of the module's doc, for `size` rows of which those past `count` are not
/// there.
struct Squares {
    inverse: Vec<f64>,
    weights: Vec<f64>,
    kept: Vec<f64>,
}

impl Squares {
    fn new(
        size: usize,
        rows: &[(f64, f64)],
        of_keys: impl Fn(usize, usize) -> f64,
        of_queries: impl Fn(usize, usize) -> f64,
    ) -> Squares {
        let decay = |range: std::ops::Range<usize>| -> f64 {
            let inside = rows.get(range.start..range.end.min(rows.len()));
            inside.unwrap_or_default().iter().map(|row| row.0).product()
        };
        let mut inverse = vec![0.0; size * size];
        let mut weights = vec![0.0; size * size];
        for i in 0..rows.len() {
            inverse[i * size + i] = 1.0;
            for j in 0..=i {
                weights[i * size + j] = decay(j + 1..i + 1) * of_queries(i, j);
            }
            for m in 0..i {
                let entry = rows[i].1 * decay(m + 1..i + 1) * of_keys(i, m);
                for j in 0..=m {
                    inverse[i * size + j] -= entry * inverse[m * size + j];
                }
            }
        }
        for (at, x) in inverse.iter_mut().enumerate() {
            *x *= rows.get(at % size).map_or(0.0, |row| row.1);
        }
        let up_to = (0..size).map(|i| decay(0..i + 1));
        let after = (0..size).map(|i| decay(i + 1..size));
        Squares {
            inverse,
            weights,
            kept: up_to.chain(after).collect(),
        }
    }
}

#[test_kernel(delta_products)]
fn delta_products_match_f64(t: &mut Cases) {
    let size = t.constant("CHUNK") as u64;
    for (runs, heads, key_dim) in [
        (runs_for(size)[0], 1, 32),
        (runs_for(size)[1], 1, 8),
        (runs_for(size)[2], 3, 128),
        (runs_for(size)[3], 2, 72),
    ] {
        let rows: u64 = runs.iter().sum();
        let square = [numbers(runs, size), heads, size, size];
        t.case(format!("{runs:?}, {heads} heads of {key_dim}"))
            .input("q", [heads, rows, key_dim], normal(0.0, 0.1))
            .input("k", [heads, rows, key_dim], normal(0.0, 0.1))
            .input("starts", [runs.len() as u64 + 1], starts(runs))
            .output("of_keys", square)
            .output("of_queries", square)
            .bound(Bound::relative(2e-6).absolute(1e-6))
            .expect(move |inputs, out| {
                let [heads, rows, key_dim] = [heads, rows, key_dim].map(|n| n as usize);
                for (output, left) in [("of_keys", "k"), ("of_queries", "q")] {
                    let each = heads * (size * size) as usize;
                    let mut products = vec![0.0; square.iter().product::<u64>() as usize];
                    for chunk in chunks_of(runs, size) {
                        for at in 0..each {
                            let size = size as usize;
                            let head = at / (size * size);
                            let (i, j) = (at / size % size, at % size);
                            // Rows that the tensor lacks are zero.
                            if chunk.first + i.max(j) < rows {
                                let row = |x: usize| (head * rows + chunk.first + x) * key_dim;
                                let left = &inputs[left][row(i)..][..key_dim];
                                let right = &inputs["k"][row(j)..][..key_dim];
                                products[chunk.number * each + at] =
                                    left.iter().zip(right).map(|(x, y)| x * y).sum();
                            }
                        }
                    }
                    out.set(output, products);
                    out.untouched(output, unused(runs, size, each));
                }
            });
    }
}

#[test_kernel(delta_inverse)]
fn delta_inverse_matches_f64(t: &mut Cases) {
    let size = t.constant("CHUNK") as u64;
    for (runs, key_heads, value_heads) in [
        (runs_for(size)[0], 1, 1),
        (runs_for(size)[1], 1, 1),
        (runs_for(size)[2], 1, 3),
        (runs_for(size)[3], 2, 4),
    ] {
        let rows: u64 = runs.iter().sum();
        let chunks = numbers(runs, size);
        let square = [chunks, value_heads, size, size];
        t.case(format!("{runs:?}, {value_heads}/{key_heads} heads"))
            .input("of_keys", [chunks, key_heads, size, size], normal(0.0, 0.3))
            .input(
                "of_queries",
                [chunks, key_heads, size, size],
                normal(0.0, 0.3),
            )
            .input("decay", [rows, value_heads], decays())
            .input("strength", [rows, value_heads], uniform(0.0, 1.0))
            .input("starts", [runs.len() as u64 + 1], starts(runs))
            .output("inverse", square)
            .output("weights", square)
            .output("kept", [chunks, value_heads, 2, size])
            .bound(Bound::relative(2e-5).absolute(1e-5))
            .expect(move |inputs, out| {
                let [key_heads, value_heads, size] =
                    [key_heads, value_heads, size].map(|n| n as usize);
                let cells = chunks as usize * value_heads * size;
                let mut inverse = vec![0.0; cells * size];
                let mut weights = vec![0.0; cells * size];
                let mut kept = vec![0.0; cells * 2];
                for chunk in chunks_of(runs, size as u64) {
                    for head in 0..value_heads {
                        let key_head = head / (value_heads / key_heads);
                        let start = (chunk.number * key_heads + key_head) * size * size;
                        let row = |i| (chunk.first + i) * value_heads + head;
                        let rows: Vec<(f64, f64)> = (0..chunk.count)
                            .map(|i| (inputs["decay"][row(i)], inputs["strength"][row(i)]))
                            .collect();
                        let squares = Squares::new(
                            size,
                            &rows,
                            |i, j| inputs["of_keys"][start + i * size + j],
                            |i, j| inputs["of_queries"][start + i * size + j],
                        );
                        let at = (chunk.number * value_heads + head) * size;
                        inverse[at * size..][..size * size].copy_from_slice(&squares.inverse);
                        weights[at * size..][..size * size].copy_from_slice(&squares.weights);
                        kept[at * 2..][..size * 2].copy_from_slice(&squares.kept);
                    }
                }
                let each = value_heads * size;
                for (output, values, each) in [
                    ("inverse", inverse, each * size),
                    ("weights", weights, each * size),
                    ("kept", kept, each * 2),
                ] {
                    out.set(output, values);
                    out.untouched(output, unused(runs, size as u64, each));
                }
            });
    }
}

/// Decays, some of which forget everything.
fn decays() -> Floats {
    uniform(0.5, 1.0).map(|i, x| if i % 23 == 7 { 0.0 } else { x })
}

/// Queries, keys and values of a prompt, head after head, and what [`delta_inverse`] makes of
/// them, as values of a type.
struct Prompt {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    decay: Vec<f64>,
    strength: Vec<f64>,
    inverse: Vec<f64>,
    weights: Vec<f64>,
    kept: Vec<f64>,
}

/// Key heads, value heads, elements of a value, of a key, rows of a chunk.
type Extents = [u64; 5];

impl Prompt {
    fn new(scalar: Scalar, runs: &[u64], extents: Extents) -> Prompt {
        let [key_heads, value_heads, value_dim, key_dim, size] = extents.map(|n| n as usize);
        let rows = runs.iter().sum::<u64>() as usize;
        let draw = |floats: Floats, seed: u64, count: usize| -> Vec<f64> {
            let rounded = |i| value_of(scalar, round_to(scalar, floats.at(seed, i)));
            (0..count).map(rounded).collect()
        };
        let spread = 1.0 / (key_dim as f64).sqrt();
        let q = draw(normal(0.0, spread), 1, key_heads * rows * key_dim);
        let k = draw(normal(0.0, spread), 2, key_heads * rows * key_dim);
        let decay = draw(decays(), 4, rows * value_heads);
        let strength = draw(uniform(0.0, 1.0), 5, rows * value_heads);
        let chunks = numbers(runs, size as u64) as usize;
        let mut inverse = vec![0.0; chunks * value_heads * size * size];
        let mut weights = inverse.clone();
        let mut kept = vec![0.0; chunks * value_heads * 2 * size];
        for chunk in chunks_of(runs, size as u64) {
            for head in 0..value_heads {
                let key_head = head / (value_heads / key_heads);
                let row = |i| (chunk.first + i) * value_heads + head;
                let of_row = |i| (decay[row(i)], strength[row(i)]);
                let gates: Vec<(f64, f64)> = (0..chunk.count).map(of_row).collect();
                let dot = |left: &[f64], i: usize, j: usize| -> f64 {
                    let at = |i| (key_head * rows + chunk.first + i) * key_dim;
                    let pairs = left[at(i)..].iter().zip(&k[at(j)..]);
                    pairs.take(key_dim).map(|(x, y)| x * y).sum()
                };
                let squares =
                    Squares::new(size, &gates, |i, j| dot(&k, i, j), |i, j| dot(&q, i, j));
                let at = (chunk.number * value_heads + head) * size;
                inverse[at * size..][..size * size].copy_from_slice(&squares.inverse);
                weights[at * size..][..size * size].copy_from_slice(&squares.weights);
                kept[at * 2..][..size * 2].copy_from_slice(&squares.kept);
            }
        }
        Prompt {
            v: draw(normal(0.0, 1.0), 3, value_heads * rows * value_dim),
            q,
            k,
            decay,
            strength,
            inverse,
            weights,
            kept,
        }
    }
}

/// A tensor of a prompt that is made when a case asks for it.
fn part<F: FnOnce() -> Prompt + 'static>(
    prompt: &Rc<LazyCell<Prompt, F>>,
    part: fn(&Prompt) -> &Vec<f64>,
) -> Floats {
    let prompt = prompt.clone();
    constant(0.0).map(move |i, _| part(&prompt)[i])
}

/// `[heads, rows, size]` as `[rows, heads, size]`.
fn by_rows(x: &[f64], heads: usize, size: usize) -> Vec<f64> {
    let rows = x.len() / (heads * size).max(1);
    let row =
        |row: usize| (0..heads).flat_map(move |h| x[(h * rows + row) * size..][..size].to_vec());
    (0..rows).flat_map(row).collect()
}

#[test_kernel(delta_chunks)]
fn delta_chunks_match_the_rule_row_after_row(t: &mut Cases) {
    let (size, key_dim) = (t.constant("CHUNK") as u64, t.constant("KEY_DIM") as u64);
    let scalar = t.scalar("T");
    // What the operands of products are rounded by, in numbers of about 1.
    let rounding = match scalar {
        Scalar::F32 => 2e-5,
        Scalar::F16 => 6e-3,
        _ => 5e-2,
    };
    for (runs, key_heads, value_heads, value_dim) in [
        (runs_for(size)[0], 1, 1, 8),
        (runs_for(size)[1], 1, 1, 1),
        (runs_for(size)[2], 1, 2, 64),
        (runs_for(size)[3], 2, 2, 40),
    ] {
        let rows: u64 = runs.iter().sum();
        let extents = [key_heads, value_heads, value_dim, key_dim, size];
        let prompt = Rc::new(LazyCell::new(move || Prompt::new(scalar, runs, extents)));
        let chunks = numbers(runs, size);
        let square = [chunks, value_heads, size, size];
        let (oracle, segments) = (prompt.clone(), runs.len() as u64);
        t.case(format!(
            "{runs:?}, {value_heads}/{key_heads} heads of {value_dim}"
        ))
        .input("q", [key_heads, rows, key_dim], part(&prompt, |p| &p.q))
        .input("k", [key_heads, rows, key_dim], part(&prompt, |p| &p.k))
        .input("v", [value_heads, rows, value_dim], part(&prompt, |p| &p.v))
        .input("inverse", square, part(&prompt, |p| &p.inverse))
        .input("weights", square, part(&prompt, |p| &p.weights))
        .input(
            "kept",
            [chunks, value_heads, 2, size],
            part(&prompt, |p| &p.kept),
        )
        .input("starts", [segments + 1], starts(runs))
        .input("from", [segments], source())
        .input("to", [segments], target())
        .inout(
            "states",
            [slots(runs), value_heads, value_dim, key_dim],
            normal(0.0, 1.0),
        )
        .output("y", [chunks, value_heads, value_dim, size])
        .bound(Bound::relative(rounding).absolute(rounding))
        .expect(move |inputs, out| {
            let [key_heads, value_heads, value_dim, key_dim, size] = extents.map(|n| n as usize);
            let (states, by_row) = Rule {
                q: &by_rows(&oracle.q, key_heads, key_dim),
                k: &by_rows(&oracle.k, key_heads, key_dim),
                v: &by_rows(&oracle.v, value_heads, value_dim),
                decay: &oracle.decay,
                strength: &oracle.strength,
                states: &inputs["states"],
                runs,
                heads: [key_heads, value_heads],
                sizes: [key_dim, value_dim],
            }
            .run();
            let each = value_heads * value_dim * size;
            let mut y = vec![0.0; chunks as usize * each];
            for chunk in chunks_of(runs, size as u64) {
                for at in 0..value_heads * value_dim * chunk.count {
                    let (cell, i) = (at / chunk.count, at % chunk.count);
                    y[chunk.number * each + cell * size + i] =
                        by_row[(chunk.first + i) * value_heads * value_dim + cell];
                }
            }
            out.set("states", states);
            out.set("y", y);
            out.untouched("y", unused(runs, size as u64, each));
        });
    }
}

#[test_kernel(delta_rows)]
fn delta_rows_move_every_element(t: &mut Cases) {
    let size = t.constant("CHUNK") as u64;
    for (runs, heads, value_dim) in [
        (runs_for(size)[0], 1, 8),
        (runs_for(size)[1], 1, 72),
        (runs_for(size)[2], 3, 128),
        (runs_for(size)[3], 2, 40),
    ] {
        let rows: u64 = runs.iter().sum();
        let chunks = numbers(runs, size);
        t.case(format!("{runs:?}, {heads} heads of {value_dim}"))
            .input(
                "by_chunk",
                [chunks, heads, value_dim, size],
                normal(0.0, 1.0),
            )
            .input("starts", [runs.len() as u64 + 1], starts(runs))
            .output("y", [rows, heads, value_dim])
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let [cells, size] = [heads * value_dim, size].map(|n| n as usize);
                let mut y = vec![0.0; rows as usize * cells];
                for chunk in chunks_of(runs, size as u64) {
                    for at in 0..cells * chunk.count {
                        let (cell, i) = (at / chunk.count, at % chunk.count);
                        y[(chunk.first + i) * cells + cell] =
                            inputs["by_chunk"][(chunk.number * cells + cell) * size + i];
                    }
                }
                out.set("y", y);
            });
    }
}
