//! What a sampler draws from, and the filters that leave it.

use std::cmp::Ordering;

/// A token that may be chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    token: u32,
    /// Adjusted, before temperature; finite.
    logit: f64,
    /// Proportional to its probability.
    weight: f64,
}

/// Tokens and their probabilities.
#[derive(Clone, PartialEq, Debug)]
pub struct Distribution {
    /// In the order of their ids, each above 0.
    weights: Vec<(u32, f64)>,
    /// Their sum, taken in that order.
    total: f64,
}

impl Candidate {
    /// The tokens of a row that are not masked.
    pub(super) fn row(logits: &[f64]) -> Vec<Self> {
        let candidate = |(token, &logit): (usize, &f64)| Self {
            token: token as u32,
            logit,
            weight: 1.0,
        };
        let finite = |(_, logit): &(usize, &f64)| **logit > f64::NEG_INFINITY;
        logits
            .iter()
            .enumerate()
            .filter(finite)
            .map(candidate)
            .collect()
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
        Self::of(candidates.iter().map(|c| (c.token, c.weight)))
    }

    /// One token.
    pub fn certain(token: u32) -> Self {
        Self::of([(token, 1.0)].into_iter())
    }

    /// Of weights in the order of the tokens' ids.
    fn of(weights: impl Iterator<Item = (u32, f64)>) -> Self {
        let weights: Vec<(u32, f64)> = weights.filter(|(_, weight)| *weight > 0.0).collect();
        let total = weights.iter().map(|(_, weight)| weight).sum();
        Self { weights, total }
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

    /// The token that a number in `[0, 1)` falls on.
    pub fn draw(&self, random: f64) -> u32 {
        let threshold = random * self.total;
        let mut sum = 0.0;
        for &(token, weight) in &self.weights {
            sum += weight;
            if sum > threshold {
                return token;
            }
        }
        // The same sum in the same order: reached only if the product rounds up to it.
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

/// `exp((logit - largest) / temperature)`.
pub(super) fn weigh(candidates: &mut [Candidate], temperature: f64) {
    let logits = candidates.iter().map(|candidate| candidate.logit);
    let largest = logits.fold(f64::NEG_INFINITY, f64::max);
    for candidate in candidates {
        candidate.weight = ((candidate.logit - largest) / temperature).exp();
    }
}

/// What [`Distribution::draw`] gives of all tokens of a row, weighed by [`weigh`], without a list
/// of candidates: a vocabulary is large. The sums are the same, in the same order.
pub(super) fn draw_of_all(mut row: Vec<f64>, temperature: f64, random: f64) -> u32 {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    for value in &mut row {
        *value = ((*value - largest) / temperature).exp();
    }
    let threshold = random * row.iter().sum::<f64>();
    let (mut sum, mut last) = (0.0, 0);
    for (token, &weight) in row.iter().enumerate() {
        if weight > 0.0 {
            last = token;
            sum += weight;
            if sum > threshold {
                break;
            }
        }
    }
    last as u32
}

/// The `k` likeliest.
pub(super) fn keep_top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k, Candidate::likelier);
        candidates.truncate(k);
    }
}

/// The fewest of the likeliest that reach `share` of the whole.
pub(super) fn keep_top_p(candidates: &mut Vec<Candidate>, share: f64) {
    let threshold = share * total(candidates);
    let (mut sorted, mut mass, mut part) = (0, 0.0, 64);
    // A vocabulary is large and what stays is small: order no more than is needed.
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let length = part.min(rest.len());
        if length < rest.len() {
            rest.select_nth_unstable_by(length - 1, Candidate::likelier);
        }
        rest[..length].sort_unstable_by(Candidate::likelier);
        for candidate in &rest[..length] {
            mass += candidate.weight;
            sorted += 1;
            if mass >= threshold {
                candidates.truncate(sorted);
                return;
            }
        }
        part *= 4;
    }
}

/// Those at least `part` times as likely as the likeliest.
pub(super) fn keep_min_p(candidates: &mut Vec<Candidate>, part: f64) {
    let weights = candidates.iter().map(|candidate| candidate.weight);
    let threshold = part * weights.fold(0.0, f64::max);
    candidates.retain(|candidate| candidate.weight >= threshold);
}

/// The fewest of the most typical that reach `share` of the whole.
pub(super) fn keep_typical(candidates: &mut Vec<Candidate>, share: f64) {
    let total = total(candidates);
    let surprise = |candidate: &Candidate| -(candidate.weight / total).ln();
    let entropy: f64 = candidates
        .iter()
        .filter(|candidate| candidate.weight > 0.0)
        .map(|candidate| candidate.weight / total * surprise(candidate))
        .sum();
    let distance = |candidate: &Candidate| (surprise(candidate) - entropy).abs();
    candidates.sort_unstable_by(|a, b| {
        let nearer = distance(a).total_cmp(&distance(b));
        nearer.then(a.token.cmp(&b.token))
    });
    let (mut mass, mut kept) = (0.0, 0);
    for candidate in candidates.iter() {
        mass += candidate.weight;
        kept += 1;
        if mass >= share * total {
            break;
        }
    }
    candidates.truncate(kept);
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| candidate.weight).sum()
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
