//! The choice of the next token from a row of logits, on the host.
//!
//! A device that draws (`iron_corpus::sampling`) gives the same tokens. The choice depends on the row,
//! the settings, and the tokens of the prompt and of the answer so far, never on a hidden
//! state: the same request gives the same answer alone, in company and after a restart.
//!
//! # Order of operations
//!
//! Every operation is one of f32, rounded once, or of whole numbers, so that a device can make the
//! same choice to the bit, whatever the order of its sums. A step whose setting is at its neutral
//! value (the one that [`SamplingParameters::default`] has) changes nothing.
//!
//! 1. The row is checked: NaN or positive infinity is an error of this request alone. Negative
//!    infinity is a masked token, which nothing brings back.
//! 2. `logit_bias` is added.
//! 3. `repetition_penalty` `r`: the logit of each distinct token of the prompt *or* the answer,
//!    once however often it occurs: `l * (1 / r)` where `l > 0`, else `l * r`.
//! 4. `frequency_penalty` and `presence_penalty`: `l - frequency * n - presence` for each token
//!    that occurs `n > 0` times in the *answer*; the prompt does not count.
//! 5. At temperature 0 the largest is the choice, the lowest id among equals. The steps below
//!    are not taken.
//! 6. `temperature` `t`: token `i` weighs `exp((l_i - largest) / t)`, in whole parts of 2^31
//!    ([`weight_of`]): `(l_i - largest) * s` with `s = log2(e) / t` is rounded to f32, and a token
//!    less likely than 2^-31 times the likeliest weighs nothing and is out. A token's probability
//!    is its weight by the sum of what is left at each step below.
//! 7. `top_k`: the `k` largest stay, lower ids first among equals.
//! 8. `top_p`: of the order of step 7 the shortest beginning stays that weighs at least
//!    `floor(P * sum / 2^32)`, where `P` is `top_p` in parts of 2^32, rounded.
//! 9. `min_p`: tokens at least `min_p` times as likely as the likeliest stay.
//! 10. `typical_p`: ordered by `|-ln(p_i) - entropy|`, lower ids first among equals, the
//!     shortest beginning stays that weighs as step 8 says (Meister et al., "Locally Typical
//!     Sampling"). The logarithms are those to base 2 of step 6 in parts of 2^26, and their mean
//!     stands for the entropy.
//! 11. Of the tokens left, in the order of their ids, the choice is the first with
//!     `w_0 + … + w_i > floor(u * (w_0 + … + w_n))`, where `u` is [`uniform`]`(seed, n)` cut to 32
//!     bits and `n` the number of tokens in the answer so far.
//!
//! Whoever masks tokens (a grammar) sets their logits to negative infinity before.

mod distribution;
mod draw;
mod history;
mod logprobs;
mod parameters;

pub use distribution::Distribution;
pub use draw::{Changed, Draw, LARGEST_WEIGHT, WHOLE, weight_of};
pub use history::TokenHistory;
pub(crate) use logprobs::log_sum_exp;
pub use logprobs::{MOST_TOP_LOGPROBS, TokenLogprobs, token_logprobs};
pub use parameters::{ParameterError, SamplingParameters};

use crate::model::RowOutput;

/// How to choose: settings whose ranges were checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampler {
    parameters: SamplingParameters,
}

/// A row from which nothing can be chosen.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum SampleError {
    /// The row holds NaN or positive infinity.
    #[error("logit of token {token} is {value}")]
    NotFinite {
        /// The first such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// The row is empty, or every logit is negative infinity.
    #[error("none of {tokens} tokens has a finite logit")]
    NothingLeft {
        /// Length of the row.
        tokens: usize,
    },
}

impl Sampler {
    /// A sampler for rows of `vocab_size` logits; an error names the field that is out of its
    /// range.
    pub fn new(parameters: SamplingParameters, vocab_size: usize) -> Result<Self, ParameterError> {
        parameters.check(vocab_size)?;
        Ok(Self { parameters })
    }

    /// The greedy sampler, without penalties.
    pub const fn greedy() -> Self {
        Self {
            parameters: SamplingParameters::GREEDY,
        }
    }

    /// The settings.
    pub fn parameters(&self) -> &SamplingParameters {
        &self.parameters
    }

    /// Whether the temperature is 0.
    pub fn is_greedy(&self) -> bool {
        self.parameters.temperature == 0.0
    }

    /// What a step must give for a choice: the token where the largest logit as it stands is
    /// the choice, else the logits.
    pub fn row_output(&self) -> RowOutput {
        if self.is_greedy() && !self.parameters.adjust_logits() {
            RowOutput::Greedy
        } else {
            RowOutput::Logits
        }
    }

    /// Chooses from a row the token that follows the history.
    pub fn choose(&self, logits: &[f32], history: &TokenHistory) -> Result<u32, SampleError> {
        if self.row_output() == RowOutput::Greedy {
            return Ok(argmax(logits)? as u32);
        }
        self.draw(history).choose(logits)
    }

    /// What [`Sampler::choose`] draws from: steps 1 to 10. Greedy, it is one token.
    pub fn distribution(
        &self,
        logits: &[f32],
        history: &TokenHistory,
    ) -> Result<Distribution, SampleError> {
        self.draw(history).distribution(logits)
    }

    /// What [`Model::step_drawing`](crate::model::Model::step_drawing) takes for a row behind the
    /// history: nothing where the largest logit as it stands is the choice.
    pub fn draws(&self, history: &TokenHistory) -> Vec<Draw> {
        match self.row_output() {
            RowOutput::Greedy => Vec::new(),
            _ => vec![self.draw(history)],
        }
    }

    /// The choice of the token that follows the history, of a row that is not there yet.
    pub fn draw(&self, history: &TokenHistory) -> Draw {
        let parameters = &self.parameters;
        let index = history.answer_length() as u64;
        let part = |share: f64| ((share * WHOLE as f64).round() as u64).clamp(1, WHOLE);
        let draw = Draw {
            // A temperature at the edge of the numbers is greedy in effect.
            scale: (std::f64::consts::LOG2_E / parameters.temperature).min(1e30) as f32,
            top_k: parameters.top_k,
            top_p: part(parameters.top_p),
            min_weight: (parameters.min_p * f64::from(LARGEST_WEIGHT)).ceil() as u32,
            typical_p: part(parameters.typical_p),
            above: (1.0 / parameters.repetition_penalty) as f32,
            below: parameters.repetition_penalty as f32,
            frequency: parameters.frequency_penalty as f32,
            presence: parameters.presence_penalty as f32,
            changed: self.changed(history),
            random: (split_mix_64(parameters.seed, index) >> 32) as u32,
        };
        if !self.is_greedy() {
            return draw;
        }
        Draw {
            scale: 1.0,
            top_k: 1,
            top_p: WHOLE,
            min_weight: 0,
            typical_p: WHOLE,
            ..draw
        }
    }

    /// The tokens whose logits change.
    fn changed(&self, history: &TokenHistory) -> Vec<Changed> {
        let parameters = &self.parameters;
        let mut changed = Vec::new();
        let mut biases = parameters.logit_bias.clone();
        if parameters.has_penalties() {
            changed.extend(history.counts().map(|(token, count)| Changed {
                token,
                bias: biases.remove(&token).unwrap_or(0.0),
                is_seen: true,
                count,
            }));
        }
        changed.extend(biases.into_iter().map(|(token, bias)| Changed {
            token,
            bias,
            is_seen: false,
            count: 0,
        }));
        changed
    }
}

/// Index of the largest logit, the lowest among equals. Negative infinity is a
/// masked token; NaN and positive infinity are errors.
pub fn argmax(logits: &[f32]) -> Result<usize, SampleError> {
    let mut best: Option<usize> = None;
    for (token, &value) in logits.iter().enumerate() {
        if value.is_nan() || value == f32::INFINITY {
            return Err(SampleError::NotFinite { token, value });
        }
        if value > best.map_or(f32::NEG_INFINITY, |best| logits[best]) {
            best = Some(token);
        }
    }
    best.ok_or(SampleError::NothingLeft {
        tokens: logits.len(),
    })
}

/// Element `index` of the sequence of uniform numbers in `[0, 1)` for a seed:
/// SplitMix64, the upper 53 bits times 2^-53.
///
/// `z = seed + (index + 1) * 0x9e3779b97f4a7c15`, then
/// `z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9`,
/// `z = (z ^ (z >> 27)) * 0x94d049bb133111eb`, `z = z ^ (z >> 31)`, all modulo 2^64.
pub fn uniform(seed: u64, index: u64) -> f64 {
    (split_mix_64(seed, index) >> 11) as f64 * (0.5f64).powi(53)
}

/// Another sequence of the same seed, independent of [`uniform`]: that of the seed which is
/// element `2^64 - 1 - stream` of this seed's sequence before it is cut to 53 bits.
pub fn uniform_of_stream(seed: u64, stream: u64, index: u64) -> f64 {
    uniform(split_mix_64(seed, u64::MAX - stream), index)
}

fn split_mix_64(seed: u64, index: u64) -> u64 {
    let step = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = seed.wrapping_add(step);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampler(change: impl FnOnce(&mut SamplingParameters)) -> Sampler {
        let mut parameters = SamplingParameters {
            temperature: 1.0,
            ..SamplingParameters::default()
        };
        change(&mut parameters);
        Sampler::new(parameters, 1000).expect("in range")
    }

    fn probabilities(sampler: &Sampler, logits: &[f32], history: &TokenHistory) -> Vec<f64> {
        let distribution = sampler.distribution(logits, history).expect("a choice");
        (0..logits.len() as u32)
            .map(|token| distribution.probability(token))
            .collect()
    }

    #[test]
    fn the_generator_is_the_published_one() {
        // Steele, Lea and Flood's reference program, seed 1234567.
        let first: Vec<u64> = (0..3).map(|index| split_mix_64(1_234_567, index)).collect();
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(first, published);
    }

    proptest! {
        // The short way through a row that keeps every token is the long way.
        #[test]
        fn a_choice_of_all_tokens_is_a_draw_of_their_distribution(
            logits in prop::collection::vec(
                prop_oneof![8 => -30.0f32..30.0, 1 => Just(f32::NEG_INFINITY), 1 => Just(-1e30f32)],
                1..200,
            ),
            temperature in prop_oneof![Just(1.0), 0.01f64..100.0],
            penalty in prop_oneof![Just(1.0), 0.5f64..2.0],
            seed: u64,
            answer in 0usize..20,
        ) {
            let sampler = sampler(|p| {
                (p.temperature, p.repetition_penalty, p.seed) = (temperature, penalty, seed);
            });
            let mut history = TokenHistory::new(&[1, 2, 3]);
            (0..answer).for_each(|i| history.push(i as u32 * 3));
            let random = uniform(seed, answer as u64);
            let drawn = sampler.distribution(&logits, &history).map(|d| d.draw(random));
            prop_assert_eq!(sampler.choose(&logits, &history), drawn);
        }
    }

    // E29
    #[test]
    fn greedy_takes_the_lowest_of_equals_and_refuses_what_is_not_finite() {
        let greedy = Sampler::greedy();
        let penalised = sampler(|p| (p.temperature, p.presence_penalty) = (0.0, 0.5));
        let empty = TokenHistory::default();
        for sampler in [&greedy, &penalised] {
            let masked = f32::NEG_INFINITY;
            assert_eq!(sampler.choose(&[1.0, 3.0, 3.0, masked], &empty), Ok(1));
            assert_eq!(sampler.choose(&[-0.0, 0.0], &empty), Ok(0));
        }
        let biased = sampler(|p| p.logit_bias = [(1, 100.0)].into());
        for sampler in [&greedy, &penalised, &sampler(|_| ()), &biased] {
            for bad in [f32::NAN, f32::INFINITY] {
                let error = sampler.choose(&[0.0, bad, 1.0], &empty);
                let found = matches!(error, Err(SampleError::NotFinite { token: 1, .. }));
                assert!(found, "{error:?}");
            }
            // A bias does not bring back what is masked.
            let masked = sampler.choose(&[f32::NEG_INFINITY; 3], &empty);
            assert_eq!(masked, Err(SampleError::NothingLeft { tokens: 3 }));
            assert!(sampler.choose(&[], &empty).is_err());
        }
        assert_eq!(biased.choose(&[0.0, f32::NEG_INFINITY], &empty), Ok(0));
    }

    // E27
    #[test]
    fn penalties_have_their_scope_and_their_sign() {
        // Token 0 stands in the prompt alone, 1 five times in the answer, 2 in both, 3 nowhere.
        let mut history = TokenHistory::new(&[0, 2, 0]);
        for token in [1, 1, 2, 1, 1, 1] {
            history.push(token);
        }
        for (logits, expected) in [
            ([2.0, 2.0, 2.0, 2.0], [1.0, 1.0, 1.0, 2.0]),
            ([-2.0, -2.0, 0.0, -2.0], [-4.0, -4.0, 0.0, -2.0]),
        ] {
            let repetition = sampler(|p| p.repetition_penalty = 2.0);
            assert_eq!(repetition.draw(&history).adjusted(&logits), expected);
        }
        let frequency = sampler(|p| p.frequency_penalty = 0.5);
        assert_eq!(
            frequency.draw(&history).adjusted(&[1.0; 4]),
            [1.0, -1.5, 0.5, 1.0]
        );
        let presence = sampler(|p| p.presence_penalty = -0.25);
        assert_eq!(
            presence.draw(&history).adjusted(&[1.0; 4]),
            [1.0, 1.25, 1.25, 1.0]
        );
        let all = sampler(|p| {
            p.repetition_penalty = 2.0;
            p.frequency_penalty = 0.5;
            p.presence_penalty = 1.0;
            p.logit_bias = [(1, 7.0), (3, -1.0)].into();
        });
        // (1 + 7) / 2 - 5 * 0.5 - 1.
        assert_eq!(
            all.draw(&history).adjusted(&[1.0; 4]),
            [0.5, 0.5, -1.0, 0.0]
        );
        let greedy = Sampler {
            parameters: SamplingParameters {
                temperature: 0.0,
                ..all.parameters
            },
        };
        assert_eq!(greedy.row_output(), RowOutput::Logits);
        assert_eq!(greedy.choose(&[1.0; 4], &history), Ok(0));
        // What is taken back is forgotten.
        for _ in 0..6 {
            history.pop();
        }
        assert_eq!(
            greedy.draw(&history).adjusted(&[1.0; 4]),
            TokenHistory::new(&[0, 2]).counts().fold(
                vec![1.0, 8.0, 1.0, 0.0],
                |mut row, (token, _)| {
                    row[token as usize] = 0.5;
                    row
                }
            )
        );
    }

    #[test]
    fn filters_keep_what_their_definitions_say() {
        // Probabilities 1/2, 1/4, 1/8, 1/16, 1/16.
        let logits = [0.5f32, 0.25, 0.125, 0.0625, 0.0625].map(f32::ln);
        let kept = |sampler: &Sampler| -> Vec<usize> {
            let row = probabilities(sampler, &logits, &TokenHistory::default());
            let sum: f64 = row.iter().sum();
            assert!((sum - 1.0).abs() < 1e-12);
            (0..5).filter(|&i| row[i] > 0.0).collect()
        };
        assert_eq!(kept(&sampler(|p| p.top_k = 4)), [0, 1, 2, 3]);
        assert_eq!(kept(&sampler(|p| p.top_k = 99)), [0, 1, 2, 3, 4]);
        assert_eq!(kept(&sampler(|p| p.top_p = 1e-9)), [0]);
        assert_eq!(kept(&sampler(|p| p.top_p = 0.7)), [0, 1]);
        assert_eq!(kept(&sampler(|p| p.top_p = 0.8)), [0, 1, 2]);
        assert_eq!(kept(&sampler(|p| p.min_p = 0.2)), [0, 1, 2]);
        assert_eq!(kept(&sampler(|p| p.min_p = 1.0)), [0]);
        // Entropy 1.3 nats; |-ln p - entropy|: 0.61, 0.09, 0.78, 1.47, 1.47.
        assert_eq!(kept(&sampler(|p| p.typical_p = 0.2)), [1]);
        assert_eq!(kept(&sampler(|p| p.typical_p = 0.6)), [0, 1]);
        assert_eq!(kept(&sampler(|p| p.typical_p = 0.8)), [0, 1, 2]);
        // Of the two that top-k leaves, the first has 2/3.
        let both = sampler(|p| (p.top_k, p.top_p) = (2, 0.6));
        assert_eq!(kept(&both), [0]);
        // Temperature goes first: squared, the first has 0.73.
        let cold = sampler(|p| (p.temperature, p.top_p) = (0.5, 0.7));
        assert_eq!(kept(&cold), [0]);
    }

    /// Steps 6 to 10 by full sorts over the whole row in `f64`, with the probabilities made anew
    /// each time; `None` where a cut is closer than the sampler's arithmetic can tell.
    fn plain(parameters: &SamplingParameters, logits: &[f32]) -> Option<Vec<f64>> {
        let unclear = std::cell::Cell::new(false);
        let near =
            |a: f64, b: f64| unclear.set(unclear.get() || (a - b).abs() < 2e-6 * b.max(1e-3));
        let softmax = |row: &[f64]| -> Vec<f64> {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = row.iter().map(|l| (l - largest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            weights.iter().map(|w| w / sum).collect()
        };
        let keep = |row: &mut Vec<f64>, order: &[usize], mass: f64| {
            let p = softmax(row);
            let mut sum = 0.0;
            for &i in order {
                if sum >= mass {
                    row[i] = f64::NEG_INFINITY;
                }
                sum += p[i];
                near(sum, mass);
            }
        };
        let sorted = |keys: Vec<f64>| {
            let mut order: Vec<usize> = (0..keys.len()).collect();
            order.sort_by(|&a, &b| keys[a].partial_cmp(&keys[b]).expect("a number"));
            order
        };
        let mut row: Vec<f64> = logits
            .iter()
            .map(|&l| f64::from(l) / parameters.temperature)
            .collect();
        if parameters.top_k > 0 {
            for &i in sorted(row.iter().map(|l| -l).collect())
                .iter()
                .skip(parameters.top_k as usize)
            {
                row[i] = f64::NEG_INFINITY;
            }
        }
        let order = sorted(row.iter().map(|l| -l).collect());
        keep(&mut row, &order, parameters.top_p);
        let p = softmax(&row);
        let most = p.iter().copied().fold(0.0, f64::max);
        for (l, p) in row.iter_mut().zip(&p) {
            near(*p / most, parameters.min_p);
            if *p < parameters.min_p * most {
                *l = f64::NEG_INFINITY;
            }
        }
        if parameters.typical_p < 1.0 {
            let p = softmax(&row);
            let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
            let keys: Vec<f64> = p.iter().map(|p| (-p.ln() - entropy).abs()).collect();
            let order = sorted(keys.clone());
            let pairs = order.windows(2).filter(|pair| p[pair[0]] != p[pair[1]]);
            for pair in pairs {
                let apart = (keys[pair[0]] - keys[pair[1]]).abs();
                unclear.set(unclear.get() || apart < 2e-6);
            }
            keep(&mut row, &order, parameters.typical_p);
        }
        (!unclear.get()).then(|| softmax(&row))
    }

    proptest! {
        #[test]
        fn all_filters_together_agree_with_full_sorts(
            logits in prop::collection::vec(-6.0f32..6.0, 1..700),
            masked in prop::collection::vec(0usize..700, 0..4),
            temperature in 0.2f64..3.0,
            top_k in 0u32..200,
            top_p in 0.05f64..1.0,
            min_p in 0.0f64..0.3,
            typical_p in 0.05f64..1.0,
        ) {
            let mut logits = logits;
            for place in masked {
                if place > 0 && place < logits.len() {
                    logits[place] = f32::NEG_INFINITY;
                }
            }
            let parameters = SamplingParameters {
                temperature, top_k, top_p, min_p, typical_p, ..SamplingParameters::default()
            };
            let Some(expected) = plain(&parameters, &logits) else {
                return Ok(());
            };
            let sampler = Sampler::new(parameters, logits.len()).expect("in range");
            let found = probabilities(&sampler, &logits, &TokenHistory::default());
            for (token, (found, expected)) in found.iter().zip(&expected).enumerate() {
                prop_assert!((found - expected).abs() < 1e-6, "{token}: {found} {expected}");
            }
        }
    }

    // All filters on, against the distribution by full sorts in `f64`: chi-square over 200,000
    // draws; with 3 to 12 tokens left, at most 11 degrees of freedom, 31.3 is exceeded once in a
    // thousand seeds, and these are fixed.
    #[test]
    fn draws_behind_all_filters_have_their_distribution() {
        for seed in 0..3 {
            let logits: Vec<f32> = (0..40u64).map(|i| 6.0 * uniform(seed, i) as f32).collect();
            let parameters = SamplingParameters {
                temperature: 1.5,
                top_k: 25,
                top_p: 0.9,
                min_p: 0.02,
                typical_p: 0.7,
                seed,
                ..SamplingParameters::default()
            };
            let expected = plain(&parameters, &logits).expect("a clear case");
            let sampler = Sampler::new(parameters, logits.len()).expect("in range");
            let draws = 200_000u64;
            let mut draw = sampler.draw(&TokenHistory::default());
            let mut counts = vec![0.0f64; logits.len()];
            for index in 0..draws {
                draw.random = (split_mix_64(seed, index) >> 32) as u32;
                counts[draw.choose(&logits).expect("finite") as usize] += 1.0;
            }
            let left = expected.iter().filter(|p| **p > 1e-9).count();
            assert!((3..=12).contains(&left), "{left}");
            let mut chi_square = 0.0;
            for (p, count) in expected.iter().zip(counts) {
                if *p <= 1e-9 {
                    assert_eq!(count, 0.0, "a token that no filter leaves");
                    continue;
                }
                let wanted = p * draws as f64;
                chi_square += (count - wanted).powi(2) / wanted;
            }
            assert!(chi_square < 31.3, "{chi_square}");
        }
    }

    #[test]
    fn temperature_draws_from_the_softmax() {
        // Chi-square over four tokens, 3 degrees of freedom; 16.3 is exceeded once in a thousand
        // seeds, and this seed is fixed.
        let logits = [0.0f32, 1.0, -1.0, 2.0];
        let sampler = sampler(|p| (p.temperature, p.seed) = (0.8, 42));
        let mut history = TokenHistory::default();
        let expected = probabilities(&sampler, &logits, &history);
        let draws = 20_000u64;
        let mut counts = [0.0f64; 4];
        for _ in 0..draws {
            let token = sampler.choose(&logits, &history).expect("finite");
            counts[token as usize] += 1.0;
            history.push(token);
        }
        let chi_square: f64 = expected
            .iter()
            .zip(counts)
            .map(|(p, count)| (count - p * draws as f64).powi(2) / (p * draws as f64))
            .sum();
        assert!(chi_square < 16.3, "{chi_square}");
        // A temperature at the edge of the numbers is greedy in effect.
        let mut cold = sampler;
        cold.parameters.temperature = f64::MIN_POSITIVE;
        assert_eq!(cold.choose(&logits, &history), Ok(3));
    }
}
