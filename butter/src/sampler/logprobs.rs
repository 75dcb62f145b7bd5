//! Log-probabilities of tokens, as APIs report them.

use super::{SampleError, argmax};

/// Most alternatives that [`token_logprobs`] lists.
pub const MOST_TOP_LOGPROBS: usize = 20;

/// Log-probabilities of one position.
#[derive(Clone, PartialEq, Debug)]
pub struct TokenLogprobs {
    /// Natural logarithm of the probability of the token asked for.
    pub logprob: f64,
    /// The likeliest tokens with theirs, likeliest first, lower ids first among equals.
    pub top: Vec<(u32, f64)>,
}

/// The log-probabilities that a row of logits gives a token and its `top` likeliest, at most
/// [`MOST_TOP_LOGPROBS`]: `l_i - ln(sum of exp(l_j))` in `f64`, of the model's own logits,
/// before bias, penalties, temperature and filters. A masked token has negative infinity.
///
/// A token past the row has negative infinity, too.
pub fn token_logprobs(
    logits: &[f32],
    token: u32,
    top: usize,
) -> Result<TokenLogprobs, SampleError> {
    let normaliser = log_sum_exp(logits)?;
    let logprob = |logit: f32| f64::from(logit) - normaliser;
    let wanted = top.min(MOST_TOP_LOGPROBS);
    let mut largest: Vec<(u32, f32)> = Vec::with_capacity(wanted + 1);
    if wanted > 0 {
        for (i, &logit) in logits.iter().enumerate() {
            // Equal logits stay behind those of lower ids.
            let place = largest.partition_point(|&(_, other)| other >= logit);
            if place < wanted {
                largest.insert(place, (i as u32, logit));
                largest.truncate(wanted);
            }
        }
    }
    Ok(TokenLogprobs {
        logprob: logits
            .get(token as usize)
            .map_or(f64::NEG_INFINITY, |&logit| logprob(logit)),
        top: largest
            .into_iter()
            .map(|(token, logit)| (token, logprob(logit)))
            .collect(),
    })
}

/// `ln(sum of exp(l_i))`, of a row with a finite logit and without NaN and positive infinity.
pub(crate) fn log_sum_exp(logits: &[f32]) -> Result<f64, SampleError> {
    let largest = f64::from(logits[argmax(logits)?]);
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - largest).exp()).sum();
    Ok(largest + sum.ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_logarithms_of_the_softmax() {
        let logits = [0.5f32, 0.125, 0.25, 0.125].map(|p| p.ln() + 300.0);
        let found = token_logprobs(&logits, 2, 3).expect("finite");
        assert!((found.logprob - 0.25f64.ln()).abs() < 1e-5);
        let tokens: Vec<u32> = found.top.iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, [0, 2, 1], "the lower of equals");
        assert!((found.top[0].1 - 0.5f64.ln()).abs() < 1e-5);
        let masked = [0.0, f32::NEG_INFINITY];
        let found = token_logprobs(&masked, 1, 1000).expect("one is finite");
        assert_eq!(found.logprob, f64::NEG_INFINITY);
        assert_eq!(found.top, [(0, 0.0), (1, f64::NEG_INFINITY)]);
        assert!(token_logprobs(&[f32::NAN], 0, 0).is_err());
        assert!(token_logprobs(&[], 0, 5).is_err());
    }
}
