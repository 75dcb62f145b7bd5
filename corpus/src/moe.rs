//! Mixtures of experts: choosing experts, their products, and the weighted sum of their answers.
//!
//! The products take each pair of a row and a chosen expert for itself, so any number of rows
//! goes to any expert: an expert that nobody chose costs nothing and changes nothing, and a
//! row's answer does not depend on which other rows chose what.

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, ints, normal, uniform, values};

/// Most experts of [`route`].
const MOST_EXPERTS: u32 = 1024;
/// Stands for a key that must not be chosen while another is left; a chosen one is minus
/// infinity.
const EXCLUDED: f32 = -3e38;

/// Chooses the experts of each row, the best first, the lowest index among equals.
///
/// Scores are the softmax of a row's logits over all experts, or with `sigmoid != 0` the sigmoid
/// of each. An expert's key is its score plus its `bias`. With `groups > 1` only experts of the
/// `groups_used` best groups of consecutive experts may be chosen; a group's worth is the sum of
/// its two best keys (DeepSeek-V3). A weight is `scale` times the score, without the bias, with
/// `renormalise != 0` divided by the sum of the scores chosen. A NaN in the logits gives weights
/// of NaN.
#[kernel(
    grid = [rows],
    workgroup = 64,
    requires(experts > 0, experts <= 1024, chosen <= experts),
    instances(T = [f32, f16, bf16])
)]
pub fn route<T: Float>(
    logits: &Tensor<T, (rows, experts)>,
    bias: &Tensor<f32, (experts,)>,
    ids: &mut Tensor<u32, (rows, chosen)>,
    weights: &mut Tensor<f32, (rows, chosen)>,
    sigmoid: u32,
    renormalise: u32,
    scale: f32,
    groups: u32,
    groups_used: u32,
) {
    let row = group_id(0);
    let mut scores = shared::<f32>(MOST_EXPERTS);
    let mut keys = shared::<f32>(MOST_EXPERTS);
    let mut largest = f32::NEG_INFINITY;
    for i in strided(experts) {
        largest = largest.max(logits[[row, i]].to_f32());
    }
    let largest = workgroup_max(largest);
    let mut sum = 0.0f32;
    for i in strided(experts) {
        sum += (logits[[row, i]].to_f32() - largest).exp();
    }
    let sum = workgroup_sum(sum);
    for i in strided(experts) {
        let logit = logits[[row, i]].to_f32();
        let mut score = (logit - largest).exp() / sum;
        if sigmoid != 0 {
            score = 1.0 / (1.0 + (-logit).exp());
        }
        scores[i] = score;
        let key = score + bias[i];
        keys[i] = select(key.is_nan(), EXCLUDED, key);
    }
    barrier();
    if groups > 1 {
        let size = experts / groups;
        let mut worth = shared::<f32>(MOST_EXPERTS);
        for group in strided(groups) {
            let (mut best, mut second) = (EXCLUDED, EXCLUDED);
            for i in group * size..(group + 1) * size {
                let key = keys[i];
                second = second.max(key.min(best));
                best = best.max(key);
            }
            worth[group] = best + select(size > 1, second, 0.0);
        }
        barrier();
        for i in strided(experts) {
            let own = (i / size).min(groups - 1);
            let mut rank = 0u32;
            for other in 0..groups {
                let ahead =
                    worth[other] > worth[own] || (worth[other] == worth[own] && other < own);
                if ahead {
                    rank += 1;
                }
            }
            if rank >= groups_used {
                keys[i] = EXCLUDED;
            }
        }
        barrier();
    }
    let mut total = 0.0f32;
    for place in 0..chosen {
        let mut best = f32::NEG_INFINITY;
        let mut at = u32::MAX;
        for i in strided(experts) {
            if keys[i] > best {
                best = keys[i];
                at = i;
            }
        }
        let most = workgroup_max(best);
        let first = workgroup_min(select(best == most, at, u32::MAX));
        if local_index() == 0 {
            ids[[row, place]] = first;
            weights[[row, place]] = scores[first];
            total += scores[first];
            keys[first] = f32::NEG_INFINITY;
        }
        barrier();
    }
    if local_index() == 0 {
        let factor = select(renormalise != 0, scale / total, scale);
        for place in 0..chosen {
            weights[[row, place]] *= factor;
        }
    }
}

/// Products of rows with the experts that they chose:
/// `y[r, e, n] = sum_k x[r, e % slots, k] * w[ids[r, e], n, k]`. `slots` is 1 where all experts of
/// a row read the same input, and `chosen` where each reads its own. `LANES` threads share an
/// output, as in [`crate::matmul::matvec`].
#[kernel(
    grid = [cols, chosen, rows],
    workgroup = LANES,
    requires(inner % 4 == 0, slots > 0),
    instances(T = [f32, f16, bf16], LANES = [1, 32])
)]
pub fn expert_matvec<T: Float, const LANES: u32>(
    x: &Tensor<T, (rows, slots, inner)>,
    w: &Tensor<T, (experts, cols, inner)>,
    ids: &Tensor<u32, (rows, chosen)>,
    y: &mut Tensor<T, (rows, chosen, cols)>,
) {
    let (column, place, row) = (group_id(0), group_id(1), group_id(2));
    let expert = index_in(ids[[row, place]], experts);
    let mut sum = splat4(0.0f32);
    for i in strided(inner / 4) {
        let weights = w.load4([expert, column, i]).to_f32();
        sum = weights.mul_add(x.load4([row, place % slots, i]).to_f32(), sum);
    }
    let total = workgroup_sum(sum.sum());
    if local_index() == 0 {
        y[[row, place, column]] = T::from_f32(total);
    }
}

/// The biases of the experts that rows chose: `y[r, e, n] = x[r, e, n] + bias[ids[r, e], n]`.
#[kernel(grid = [ceil_div(cols, 256), chosen, rows], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn add_expert_bias<T: Float>(
    x: &Tensor<T, (rows, chosen, cols)>,
    bias: &Tensor<T, (experts, cols)>,
    ids: &Tensor<u32, (rows, chosen)>,
    y: &mut Tensor<T, (rows, chosen, cols)>,
) {
    let (column, place, row) = (global_id(0), group_id(1), group_id(2));
    if column >= cols {
        return;
    }
    let expert = index_in(ids[[row, place]], experts);
    let sum = x[[row, place, column]].to_f32() + bias[[expert, column]].to_f32();
    y[[row, place, column]] = T::from_f32(sum);
}

/// Weighted sum of a row's experts, in the order of their choice:
/// `y[r, n] = sum_e weights[r, e] * x[r, e, n]`.
#[kernel(grid = [ceil_div(cols, 256), rows], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn weighted_sum<T: Float>(
    x: &Tensor<T, (rows, chosen, cols)>,
    weights: &Tensor<f32, (rows, chosen)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (column, row) = (global_id(0), group_id(1));
    if column >= cols {
        return;
    }
    let mut sum = 0.0f32;
    for place in 0..chosen {
        sum = fma(weights[[row, place]], x[[row, place, column]].to_f32(), sum);
    }
    y[[row, column]] = T::from_f32(sum);
}

/// A sum whose second part has one gate a row: `y[r, n] = a[r, n] + sigmoid(gate[r]) * b[r, n]`,
/// the expert that every row shares.
#[kernel(grid = [ceil_div(cols, 256), rows], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn add_gated<T: Float>(
    a: &Tensor<T, (rows, cols)>,
    b: &Tensor<T, (rows, cols)>,
    gate: &Tensor<T, { (rows, 1) }>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (column, row) = (global_id(0), group_id(1));
    if column >= cols {
        return;
    }
    let open = 1.0 / (1.0 + (-gate[[row, 0]].to_f32()).exp());
    y[[row, column]] = T::from_f32(fma(
        open,
        b[[row, column]].to_f32(),
        a[[row, column]].to_f32(),
    ));
}

/// How [`route`] is asked.
#[derive(Clone, Copy, Debug)]
struct Routing {
    sigmoid: bool,
    renormalise: bool,
    scale: f32,
    groups: usize,
    groups_used: usize,
}

const PLAIN: Routing = Routing {
    sigmoid: false,
    renormalise: false,
    scale: 1.0,
    groups: 1,
    groups_used: 1,
};

/// The choice of one row in f64, by sorting.
fn routed(logits: &[f64], bias: &[f64], chosen: usize, how: Routing) -> (Vec<i64>, Vec<f64>) {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|l| (l - largest).exp()).sum();
    let score = |l: &f64| {
        if how.sigmoid {
            1.0 / (1.0 + (-l).exp())
        } else {
            (l - largest).exp() / sum
        }
    };
    let scores: Vec<f64> = logits.iter().map(score).collect();
    let keys: Vec<f64> = scores.iter().zip(bias).map(|(s, b)| s + b).collect();
    let size = keys.len() / how.groups;
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]).then(a.cmp(&b)));
    if how.groups > 1 {
        let worth = |group: usize| -> f64 {
            let mut own = keys[group * size..(group + 1) * size].to_vec();
            own.sort_by(|a, b| b.total_cmp(a));
            own.iter().take(2).sum()
        };
        let mut groups: Vec<usize> = (0..how.groups).collect();
        groups.sort_by(|&a, &b| worth(b).total_cmp(&worth(a)).then(a.cmp(&b)));
        order.retain(|i| groups[..how.groups_used].contains(&(i / size)));
    }
    order.truncate(chosen);
    let total: f64 = order.iter().map(|&i| scores[i]).sum();
    let factor = f64::from(how.scale) / if how.renormalise { total } else { 1.0 };
    (
        order.iter().map(|&i| i as i64).collect(),
        order.iter().map(|&i| scores[i] * factor).collect(),
    )
}

// E41: softmax over all, gather, renormalise only when asked.
#[test_kernel(route)]
fn route_matches_sorting(t: &mut Cases) {
    let grouped = Routing {
        sigmoid: true,
        renormalise: true,
        scale: 2.5,
        groups: 4,
        groups_used: 2,
    };
    let renormalised = Routing {
        renormalise: true,
        ..PLAIN
    };
    for (rows, experts, chosen, how) in [
        (0, 8, 2, PLAIN),
        (1, 1, 1, PLAIN),
        (3, 16, 4, renormalised),
        (2, 128, 8, renormalised),
        (5, 60, 4, PLAIN),
        (4, 64, 6, grouped),
        (1, 512, 10, renormalised),
    ] {
        let biased = how.groups > 1;
        t.case(format!("{rows}x{experts}, {chosen} of them, {how:?}"))
            // Distinct by far more than a rounding, so that both sort alike.
            .input(
                "logits",
                [rows, experts],
                values(
                    (0..rows * experts)
                        .map(|i| ((i * 37 + i / experts * 11) % experts) as f64 / 64.0 - 2.0)
                        .collect(),
                ),
            )
            .input(
                "bias",
                [experts],
                values(
                    (0..experts)
                        .map(|i| if biased { (i % 7) as f64 / 32.0 } else { 0.0 })
                        .collect(),
                ),
            )
            .output("ids", [rows, chosen])
            .output("weights", [rows, chosen])
            .scalar("sigmoid", u32::from(how.sigmoid))
            .scalar("renormalise", u32::from(how.renormalise))
            .scalar("scale", how.scale)
            .scalar("groups", how.groups as u32)
            .scalar("groups_used", how.groups_used as u32)
            .bound(Bound::relative(2e-5))
            .expect(move |inputs, out| {
                let (mut ids, mut weights) = (Vec::new(), Vec::new());
                for row in inputs["logits"].chunks(experts as usize) {
                    let (i, w) = routed(row, &inputs["bias"], chosen as usize, how);
                    ids.extend(i);
                    weights.extend(w);
                }
                out.set_ints("ids", ids);
                out.set("weights", weights);
            });
    }
}

// E41: the lowest index among equals, whichever expert's score it is.
#[test_kernel(route)]
fn route_takes_the_first_of_equals(t: &mut Cases) {
    let logits = vec![
        1.0,
        1.0,
        1.0,
        1.0,
        0.0,
        2.0,
        2.0,
        0.0,
        f64::NAN,
        1.0,
        1.0,
        1.0,
    ];
    t.case("ties".to_string())
        .input("logits", [3, 4], values(logits))
        .input("bias", [4], values(vec![0.0; 4]))
        .output("ids", [3, 3])
        .output("weights", [3, 3])
        .scalar("sigmoid", 1u32)
        .scalar("renormalise", 0u32)
        .scalar("scale", 1.0f32)
        .scalar("groups", 1u32)
        .scalar("groups_used", 1u32)
        .bound(Bound::relative(2e-6))
        .expect(|_, out| {
            let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
            let (one, two, half) = (sigmoid(1.0), sigmoid(2.0), 0.5);
            out.set_ints("ids", vec![0, 1, 2, 1, 2, 0, 1, 2, 3]);
            out.set(
                "weights",
                vec![one, one, one, two, two, half, one, one, one],
            );
        });
}

#[test_kernel(expert_matvec)]
fn expert_matvec_matches_f64(t: &mut Cases) {
    for (rows, chosen, slots, experts, cols, inner) in [
        (0, 2, 1, 3, 5, 8),
        (1, 1, 1, 1, 1, 4),
        // All rows to few experts of many, each with its own input or all with one.
        (5, 2, 1, 7, 33, 64),
        (3, 4, 4, 16, 20, 96),
    ] {
        t.case(format!(
            "{rows}x{chosen}/{slots} of {experts}, {cols}x{inner}"
        ))
        .input("x", [rows, slots, inner], normal(0.0, 1.0))
        .input("w", [experts, cols, inner], normal(0.0, 0.1))
        .input("ids", [rows, chosen], ints(0, experts as i64))
        .output("y", [rows, chosen, cols])
        .bound(Bound::relative(1e-5).absolute(1e-5))
        .expect(move |inputs, out| {
            let inner = inner as usize;
            let mut y = Vec::new();
            for (pair, id) in inputs.ints("ids").iter().enumerate() {
                let (row, place) = (pair / chosen as usize, pair % chosen as usize);
                let x = row * slots as usize + place % slots as usize;
                let x = &inputs["x"][x * inner..][..inner];
                for column in 0..cols as usize {
                    let w = (*id as usize * cols as usize + column) * inner;
                    let products = x.iter().zip(&inputs["w"][w..w + inner]);
                    y.push(products.map(|(a, b)| a * b).sum());
                }
            }
            out.set("y", y);
        });
    }
}

#[test_kernel(add_expert_bias)]
fn add_expert_bias_matches_f64(t: &mut Cases) {
    for (rows, chosen, experts, cols) in [(0, 2, 3, 8), (1, 1, 1, 1), (3, 4, 32, 300)] {
        t.case(format!("{rows}x{chosen} of {experts}, {cols}"))
            .input("x", [rows, chosen, cols], normal(0.0, 1.0))
            .input("bias", [experts, cols], normal(0.0, 1.0))
            .input("ids", [rows, chosen], ints(0, experts as i64))
            .output("y", [rows, chosen, cols])
            .bound(Bound::relative(1e-7))
            .expect(move |inputs, out| {
                let cols = cols as usize;
                let pairs = inputs["x"].chunks(cols).zip(inputs.ints("ids"));
                let sum = |(x, id): (&[f64], &i64)| -> Vec<f64> {
                    let bias = &inputs["bias"][*id as usize * cols..][..cols];
                    x.iter().zip(bias).map(|(x, b)| x + b).collect()
                };
                out.set("y", pairs.flat_map(sum).collect());
            });
    }
}

#[test_kernel(weighted_sum)]
fn weighted_sum_matches_f64(t: &mut Cases) {
    for (rows, chosen, cols) in [(0, 2, 8), (1, 1, 1), (3, 8, 300), (2, 4, 256)] {
        t.case(format!("{rows}x{chosen}x{cols}"))
            .input("x", [rows, chosen, cols], normal(0.0, 1.0))
            .input("weights", [rows, chosen], uniform(0.0, 1.0))
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-6).absolute(1e-6))
            .expect(move |inputs, out| {
                let (chosen, cols) = (chosen as usize, cols as usize);
                let cell = |row: usize, column: usize| -> f64 {
                    (0..chosen)
                        .map(|e| {
                            let pair = row * chosen + e;
                            inputs["weights"][pair] * inputs["x"][pair * cols + column]
                        })
                        .sum()
                };
                let cells = (0..rows as usize).flat_map(|r| (0..cols).map(move |c| (r, c)));
                out.set("y", cells.map(|(r, c)| cell(r, c)).collect());
            });
    }
}

#[test_kernel(add_gated)]
fn add_gated_matches_f64(t: &mut Cases) {
    for (rows, cols) in [(0, 8), (1, 1), (3, 300)] {
        t.case(format!("{rows}x{cols}"))
            .input("a", [rows, cols], normal(0.0, 1.0))
            .input("b", [rows, cols], normal(0.0, 1.0))
            .input("gate", [rows, 1], normal(0.0, 4.0))
            .output("y", [rows, cols])
            .bound(Bound::relative(2e-6).absolute(1e-6))
            .expect(move |inputs, out| {
                let parts = inputs["a"].iter().zip(&inputs["b"]).enumerate();
                let sum = |(i, (a, b)): (usize, (&f64, &f64))| {
                    a + b / (1.0 + (-inputs["gate"][i / cols as usize]).exp())
                };
                out.set("y", parts.map(sum).collect());
            });
    }
}
