//! The settings of a sampler and their ranges.

use std::collections::BTreeMap;

/// Settings of a sampler, each at its neutral value by default: greedy, nothing penalised. The
/// parent module says in which order they act.
#[derive(Clone, PartialEq, Debug)]
pub struct SamplingParameters {
    /// 0 is greedy; 0 to 100.
    pub temperature: f64,
    /// How many of the largest logits stay; 0 keeps all.
    pub top_k: u32,
    /// Probability that the likeliest tokens reach together; above 0, 1 keeps all.
    pub top_p: f64,
    /// Least probability, as a part of the likeliest token's; 0 to 1, 0 keeps all.
    pub min_p: f64,
    /// Probability that the most typical tokens reach together; above 0, 1 keeps all.
    pub typical_p: f64,
    /// Divides positive logits of tokens seen and multiplies the others; 0.01 to 100, 1 is off.
    pub repetition_penalty: f64,
    /// Subtracted from logits of tokens of the answer; -2 to 2.
    pub presence_penalty: f64,
    /// Subtracted as often as the token occurs in the answer; -2 to 2.
    pub frequency_penalty: f64,
    /// Added to the logits of single tokens; each token below the vocabulary's size, each value
    /// -100 to 100.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for SamplingParameters {
    fn default() -> Self {
        Self::GREEDY
    }
}

/// A setting out of its range.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field} is {value}, it must be {allowed}")]
pub struct ParameterError {
    /// The field of [`SamplingParameters`].
    pub field: &'static str,
    /// What it was.
    pub value: String,
    /// What it may be.
    pub allowed: String,
}

impl SamplingParameters {
    /// The default.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        typical_p: 1.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        logit_bias: BTreeMap::new(),
        seed: 0,
    };

    /// Checks every field's range (E31); the first that is out of it is the error.
    pub fn check(&self, vocab_size: usize) -> Result<(), ParameterError> {
        let share = |value: f64| value > 0.0 && value <= 1.0;
        let penalty = |value: f64| (-2.0..=2.0).contains(&value);
        let part = (0.0..=1.0).contains(&self.min_p);
        // Comparisons with NaN are false, so that NaN is in no range.
        let hot = (0.0..=100.0).contains(&self.temperature);
        let repeated = (0.01..=100.0).contains(&self.repetition_penalty);
        for (field, value, right, allowed) in [
            ("temperature", self.temperature, hot, "0 to 100"),
            (
                "top_p",
                self.top_p,
                share(self.top_p),
                "above 0 and at most 1",
            ),
            ("min_p", self.min_p, part, "0 to 1"),
            (
                "typical_p",
                self.typical_p,
                share(self.typical_p),
                "above 0 and at most 1",
            ),
            (
                "repetition_penalty",
                self.repetition_penalty,
                repeated,
                "0.01 to 100",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                penalty(self.presence_penalty),
                "-2 to 2",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                penalty(self.frequency_penalty),
                "-2 to 2",
            ),
        ] {
            if !right {
                return Err(ParameterError {
                    field,
                    value: short(value),
                    allowed: allowed.to_owned(),
                });
            }
        }
        for (&token, &bias) in &self.logit_bias {
            if token as usize >= vocab_size {
                return Err(ParameterError {
                    field: "logit_bias",
                    value: format!("for token {token}"),
                    allowed: format!("for tokens below {vocab_size}"),
                });
            }
            if !(-100.0..=100.0).contains(&bias) {
                return Err(ParameterError {
                    field: "logit_bias",
                    value: format!("{bias} for token {token}"),
                    allowed: "-100 to 100".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Whether logits depend on the tokens so far.
    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// Whether logits are changed before the choice.
    pub(super) fn adjust_logits(&self) -> bool {
        self.has_penalties() || !self.logit_bias.is_empty()
    }
}

/// A number in few digits, however large or small.
fn short(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || (1e-4..1e16).contains(&size) || !size.is_finite() {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // E31
    #[test]
    fn every_field_has_a_range_and_an_error_that_names_it() {
        type Change = fn(&mut SamplingParameters, f64);
        let fields: [(&str, Change, &[f64], &[f64]); 7] = [
            (
                "temperature",
                |p, v| p.temperature = v,
                &[-1e-300, -1.0, 100.5, 1e308],
                &[0.0, 100.0],
            ),
            ("top_p", |p, v| p.top_p = v, &[0.0, 1.0001], &[1e-300, 1.0]),
            ("min_p", |p, v| p.min_p = v, &[-0.1, 1.1], &[0.0, 1.0]),
            (
                "typical_p",
                |p, v| p.typical_p = v,
                &[0.0, 2.0],
                &[0.5, 1.0],
            ),
            (
                "repetition_penalty",
                |p, v| p.repetition_penalty = v,
                &[0.0, -1.0, 101.0],
                &[0.01, 100.0],
            ),
            (
                "presence_penalty",
                |p, v| p.presence_penalty = v,
                &[-2.1, 2.1],
                &[-2.0, 2.0],
            ),
            (
                "frequency_penalty",
                |p, v| p.frequency_penalty = v,
                &[-2.1, 2.1],
                &[-2.0, 2.0],
            ),
        ];
        for (field, change, wrong, right) in fields {
            let check = |value| {
                let mut parameters = SamplingParameters::default();
                change(&mut parameters, value);
                parameters.check(10)
            };
            for value in right {
                assert_eq!(check(*value), Ok(()), "{field} {value}");
            }
            for value in wrong
                .iter()
                .copied()
                .chain([f64::NAN, f64::INFINITY, f64::NEG_INFINITY])
            {
                let error = check(value).expect_err(field);
                assert_eq!(error.field, field);
                assert!(error.value.len() < 20, "{}", error.value);
                let shown: f64 = error.value.parse().expect("a number");
                assert_eq!(shown.to_bits(), value.to_bits(), "{}", error.value);
            }
        }
        let bias = |token, value| {
            let logit_bias = [(token, value)].into();
            SamplingParameters {
                logit_bias,
                ..SamplingParameters::default()
            }
            .check(10)
        };
        assert_eq!(bias(9, -100.0), Ok(()));
        for (token, value, words) in [
            (
                10,
                0.0,
                "logit_bias is for token 10, it must be for tokens below 10",
            ),
            (u32::MAX, 0.0, "for token 4294967295"),
            (
                3,
                100.5,
                "logit_bias is 100.5 for token 3, it must be -100 to 100",
            ),
            (3, f32::NAN, "NaN for token 3"),
        ] {
            let error = bias(token, value).expect_err("out of range").to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
