//! What a sampler draws from, and the filters that leave it.

use std::cmp::Ordering;

use super::draw::{part_of, weight_of};

/// A token that may be chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    token: u32,
    /// Adjusted, before temperature; finite.
    logit: f32,
    /// Proportional to its probability; above 0.
    weight: u32,
    /// Logarithm to base 2 of the largest weight by its own, in parts of 2^26.
    below: u32,
}

/// Tokens and their probabilities.
#[derive(Clone, PartialEq, Debug)]
pub struct Distribution {
    /// In the order of their ids, each above 0.
    weights: Vec<(u32, f64)>,
    /// Their sum, taken in that order.
    total: f64,
    /// Whether they are whole numbers, whose sums are exact.
    is_whole: bool,
}

impl Candidate {
    /// The tokens of a row that have a weight.
    pub(super) fn row(logits: &[f32], largest: f32, scale: f32) -> Vec<Self> {
        let candidate = |(token, &logit): (usize, &f32)| {
            let x = (logit - largest) * scale;
            let weight = weight_of(x);
            (weight > 0).then(|| Self {
                token: token as u32,
                logit,
                weight,
                below: (-x * 67_108_864.0) as u32,
            })
        };
        logits.iter().enumerate().filter_map(candidate).collect()
    }

    /// Larger logits first, lower ids first among equals.
    fn likelier(a: &Self, b: &Self) -> Ordering {
        let larger = b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal);
        larger.then(a.token.cmp(&b.token))
    }
}

impl Distribution {
    pub(super) fn new(mut candidates: Vec<Candidate>) -> Self {
        candidates.sort_unstable_by_key(|candidate| candidate.token);
        let weights = candidates.iter().map(|c| (c.token, f64::from(c.weight)));
        Self {
            is_whole: true,
            ..Self::of(weights)
        }
    }

    /// One token.
    pub fn certain(token: u32) -> Self {
        Self {
            is_whole: true,
            ..Self::of([(token, 1.0)].into_iter())
        }
    }

    /// Of weights in the order of the tokens' ids.
    fn of(weights: impl Iterator<Item = (u32, f64)>) -> Self {
        let weights: Vec<(u32, f64)> = weights.filter(|(_, weight)| *weight > 0.0).collect();
        let total = weights.iter().map(|(_, weight)| weight).sum();
        Self {
            weights,
            total,
            is_whole: false,
        }
    }

    /// The tokens that may be drawn, in the order of their ids, with their probabilities.
    pub fn probabilities(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.weights
            .iter()
            .map(|&(token, weight)| (token, weight / self.total))
    }

    /// The probability of a token.
    pub fn probability(&self, token: u32) -> f64 {
        match self
            .weights
            .binary_search_by_key(&token, |&(token, _)| token)
        {
            Ok(place) => self.weights[place].1 / self.total,
            Err(_) => 0.0,
        }
    }

    /// The token that a number in `[0, 1)` falls on; of whole weights, its 32 upper bits count.
    pub fn draw(&self, random: f64) -> u32 {
        if self.is_whole {
            return self.draw_word((random * 2f64.powi(32)) as u32);
        }
        self.first_past(random * self.total)
    }

    /// The token that `word / 2^32` falls on, of whole weights.
    pub(super) fn draw_word(&self, word: u32) -> u32 {
        // Below 2^53, as the sums are.
        self.first_past(part_of(self.total as u64, u64::from(word)) as f64)
    }

    fn first_past(&self, threshold: f64) -> u32 {
        let mut sum = 0.0;
        for &(token, weight) in &self.weights {
            sum += weight;
            if sum > threshold {
                return token;
            }
        }
        // The same sum in the same order: reached only if a product rounds up to it.
        self.weights.last().map_or(0, |&(token, _)| token)
    }

    /// `max(self - other, 0)`, normalised: what a token is drawn from after one of `other` was
    /// rejected. `None` where nothing is left, since the two are the same.
    pub fn residual(&self, other: &Self) -> Option<Self> {
        let more = |(token, p): (u32, f64)| (token, (p - other.probability(token)).max(0.0));
        let residual = Self::of(self.probabilities().map(more));
        (residual.total > 0.0).then_some(residual)
    }
}

/// The fewest of the likeliest, one at least, with which `is_enough` of their number and mass.
pub(super) fn keep_top(candidates: &mut Vec<Candidate>, is_enough: impl Fn(u64, u64) -> bool) {
    let (mut sorted, mut mass, mut part) = (0, 0, 64);
    // A vocabulary is large and what stays is small: order no more than is needed.
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let length = part.min(rest.len());
        if length < rest.len() {
            rest.select_nth_unstable_by(length - 1, Candidate::likelier);
        }
        rest[..length].sort_unstable_by(Candidate::likelier);
        for candidate in &rest[..length] {
            mass += u64::from(candidate.weight);
            sorted += 1;
            if is_enough(sorted as u64, mass) {
                candidates.truncate(sorted);
                return;
            }
        }
        part *= 4;
    }
}

/// Those of at least this weight.
pub(super) fn keep_min_weight(candidates: &mut Vec<Candidate>, least: u32) {
    candidates.retain(|candidate| candidate.weight >= least);
}

/// The fewest of the most typical that reach `part` of the whole.
pub(super) fn keep_typical(candidates: &mut Vec<Candidate>, part: u64) {
    let target = reached(candidates, part);
    let total = total(candidates);
    let product = |c: &Candidate| (u64::from(c.weight) * u64::from(c.below)) >> 12;
    let sum: u64 = candidates.iter().map(product).sum();
    // `sum * 2^12 / total`.
    let (whole, rest) = (sum / total.max(1), sum % total.max(1));
    let mean = (whole << 12) + (rest << 12) / total.max(1);
    let distance = |candidate: &Candidate| u64::from(candidate.below).abs_diff(mean);
    candidates.sort_unstable_by_key(|candidate| (distance(candidate), candidate.token));
    let (mut mass, mut kept) = (0, 0);
    for candidate in candidates.iter() {
        mass += u64::from(candidate.weight);
        kept += 1;
        if mass >= target {
            break;
        }
    }
    candidates.truncate(kept);
}

/// The mass that is `part` of 2^32 of the whole.
pub(super) fn reached(candidates: &[Candidate], part: u64) -> u64 {
    part_of(total(candidates), part)
}

fn total(candidates: &[Candidate]) -> u64 {
    let weights = candidates.iter();
    weights.map(|candidate| u64::from(candidate.weight)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_residual_is_what_one_has_more_than_the_other() {
        let of = |weights: &[(u32, f64)]| Distribution::of(weights.iter().copied());
        let p = of(&[(0, 5.0), (1, 3.0), (4, 2.0)]);
        let q = of(&[(0, 2.0), (1, 6.0), (2, 2.0)]);
        let residual: Vec<_> = p
            .residual(&q)
            .expect("they differ")
            .probabilities()
            .collect();
        let expected = [(0, 0.6), (4, 0.4)];
        assert_eq!(residual.len(), 2);
        for (found, expected) in residual.iter().zip(expected) {
            assert_eq!(found.0, expected.0);
            assert!((found.1 - expected.1).abs() < 1e-12);
        }
        assert_eq!(p.residual(&p), None);
        assert_eq!((p.draw(0.0), p.draw(0.5), p.draw(1.0 - 1e-16)), (0, 1, 4));
        assert_eq!((p.probability(1), p.probability(3)), (0.3, 0.0));
    }
}
