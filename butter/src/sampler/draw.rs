//! One choice of a token with its settings as the arithmetic takes them, so that any device makes
//! the same choice as the host.

use iron_corpus::sampling::{LEAST_EXPONENT, POWERS};

use super::distribution::{
    Candidate, Distribution, keep_min_weight, keep_top, keep_typical, reached,
};
use super::{SampleError, argmax};

/// The whole, of which [`Draw::top_p`] and [`Draw::typical_p`] are parts.
pub const WHOLE: u64 = 1 << 32;
/// The weight of the likeliest token.
pub const LARGEST_WEIGHT: u32 = 1 << 31;

/// A choice ready to be made: settings, the tokens that they touch, and the random number.
#[derive(Clone, PartialEq, Debug)]
pub struct Draw {
    /// `log2(e) / temperature`.
    pub scale: f32,
    /// How many of the largest stay; 0 keeps all.
    pub top_k: u32,
    /// Part of [`WHOLE`] that the likeliest reach together.
    pub top_p: u64,
    /// Least weight.
    pub min_weight: u32,
    /// Part of [`WHOLE`] that the most typical reach together.
    pub typical_p: u64,
    /// What a seen token's logit above 0 is multiplied by.
    pub above: f32,
    /// What another seen token's logit is multiplied by.
    pub below: f32,
    /// Subtracted as often as a token occurs in the answer.
    pub frequency: f32,
    /// Subtracted from a token of the answer.
    pub presence: f32,
    /// The tokens whose logits change, each once.
    pub changed: Vec<Changed>,
    /// Of `0..2^32`.
    pub random: u32,
}

/// What changes a token's logit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Changed {
    /// The token.
    pub token: u32,
    /// Added first.
    pub bias: f32,
    /// Whether penalties reach it: it stands in prompt or answer.
    pub is_seen: bool,
    /// How often the answer has it.
    pub count: u32,
}

impl Draw {
    /// Chooses from a row of logits.
    pub fn choose(&self, logits: &[f32]) -> Result<u32, SampleError> {
        if !self.keeps_all() {
            return Ok(self.distribution(logits)?.draw_word(self.random));
        }
        let (row, largest) = self.adjusted_row(logits)?;
        let weights = row.iter().map(|&l| weight_of((l - largest) * self.scale));
        let weights: Vec<u32> = weights.collect();
        let total = weights.iter().map(|&w| u64::from(w)).sum();
        let target = part_of(total, u64::from(self.random));
        let mut sum = 0;
        let place = weights.iter().position(|&weight| {
            sum += u64::from(weight);
            sum > target
        });
        place
            .map(|place| place as u32)
            .ok_or(SampleError::NothingLeft {
                tokens: logits.len(),
            })
    }

    /// What [`Self::choose`] draws from.
    pub fn distribution(&self, logits: &[f32]) -> Result<Distribution, SampleError> {
        let (row, largest) = self.adjusted_row(logits)?;
        let mut candidates = Candidate::row(&row, largest, self.scale);
        if self.top_k > 0 {
            keep_top(&mut candidates, |n, _| n >= u64::from(self.top_k));
        }
        if self.top_p < WHOLE {
            let target = reached(&candidates, self.top_p);
            keep_top(&mut candidates, |_, mass| mass >= target);
        }
        keep_min_weight(&mut candidates, self.min_weight);
        if self.typical_p < WHOLE {
            keep_typical(&mut candidates, self.typical_p);
        }
        Ok(Distribution::new(candidates))
    }

    /// Whether every token stays.
    fn keeps_all(&self) -> bool {
        self.top_k == 0 && self.top_p >= WHOLE && self.min_weight == 0 && self.typical_p >= WHOLE
    }

    /// The logits with biases and penalties, and the largest of them.
    fn adjusted_row(&self, logits: &[f32]) -> Result<(Vec<f32>, f32), SampleError> {
        argmax(logits)?;
        let row = self.adjusted(logits);
        let largest = row[argmax(&row)?];
        Ok((row, largest))
    }

    /// Steps 2 to 4.
    pub(super) fn adjusted(&self, logits: &[f32]) -> Vec<f32> {
        let mut row = logits.to_vec();
        for changed in &self.changed {
            let Some(logit) = row.get_mut(changed.token as usize) else {
                continue;
            };
            *logit += changed.bias;
            if changed.is_seen {
                *logit *= if *logit > 0.0 { self.above } else { self.below };
            }
            if changed.count > 0 {
                *logit -= self.frequency * changed.count as f32;
                *logit -= self.presence;
            }
        }
        row
    }
}

/// `floor(whole * part / 2^32)`.
pub(super) fn part_of(whole: u64, part: u64) -> u64 {
    ((u128::from(whole) * u128::from(part)) >> 32) as u64
}

/// The weight of a token whose logarithm to base 2 is `x` below the likeliest's: `2^31 * 2^x`
/// rounded down, by f32 operations that are each rounded once and by integers, so that every
/// device finds the same.
pub fn weight_of(x: f32) -> u32 {
    if x.is_nan() || x <= LEAST_EXPONENT {
        return 0;
    }
    let whole = x.floor();
    let f = x - whole;
    let mut power = POWERS[5];
    for factor in POWERS[..5].iter().rev() {
        power = power * f + factor;
    }
    power = power * f + 1.0;
    let mantissa = (power * 8_388_608.0) as u32;
    match (-whole) as u32 {
        0 => LARGEST_WEIGHT,
        n => (mantissa << 7) >> (n - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_powers_of_two() {
        assert_eq!(weight_of(0.0), LARGEST_WEIGHT);
        assert_eq!(weight_of(-1.0), LARGEST_WEIGHT / 2);
        assert_eq!(weight_of(-1e-9), LARGEST_WEIGHT);
        assert_eq!(weight_of(-31.0), 1);
        assert_eq!(weight_of(-32.0), 0);
        assert_eq!(weight_of(f32::NEG_INFINITY), 0);
        for i in 0..200_000u32 {
            let x = -(i as f32) * 1e-4;
            let exact = 2f64.powf(f64::from(x) + 31.0);
            let found = f64::from(weight_of(x));
            assert!(
                (found - exact).abs() < 1.0 + 2e-7 * exact,
                "{x}: {found} {exact}"
            );
        }
    }

    #[test]
    fn parts_of_large_sums_are_exact() {
        assert_eq!(part_of(u64::MAX >> 12, WHOLE), u64::MAX >> 12);
        assert_eq!(part_of(3, u64::from(u32::MAX)), 2);
    }
}
