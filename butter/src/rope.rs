//! Rotary position embedding: recipes and the frequencies that they give.

use std::f64::consts::PI;

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RopeLayout {
    /// Elements `i` and `i + rotary_dim / 2`, as Hugging Face checkpoints store heads.
    HalfSplit,
    /// Elements `2i` and `2i + 1`, as GGUF files of the `llama` architecture store
    /// them: the converter permuted the rows of the query and key projections
    /// within each head, so that the rotated pairs lie beside each other.
    Interleaved,
}

/// How positions become angles.
#[derive(Clone, PartialEq, Debug)]
pub struct Rope {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// Elements of a head that are rotated, from the first; the rest pass.
    pub rotary_dim: usize,
    /// Which elements form a pair.
    pub layout: RopeLayout,
    /// The context extension.
    pub scaling: RopeScaling,
}

/// How a recipe changes the frequencies. Formulas: transformers,
/// `modeling_rope_utils.py`.
#[derive(Clone, PartialEq, Debug)]
pub enum RopeScaling {
    /// Unchanged.
    Default,
    /// All frequencies divided by one factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// The base grows with the length of a sequence once it passes the model's
    /// context. Butter runs no sequence past that context, where the recipe is
    /// the default one.
    Dynamic {
        /// The factor, which no sequence within the context meets.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided by the factor, short ones kept, those
    /// between interpolated.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length that the model was first trained for.
        original_context: usize,
    },
    /// YaRN (Peng et al., 2023): pairs that turn often within the original
    /// context are kept, those that turn seldom divided by the factor, with a
    /// linear ramp between.
    Yarn {
        /// The factor.
        factor: f64,
        /// Turns above which a pair is kept.
        beta_fast: f64,
        /// Turns below which a pair is divided.
        beta_slow: f64,
        /// Context length that the model was first trained for.
        original_context: usize,
        /// Whether the ramp's ends are rounded outwards to whole pairs.
        truncate: bool,
        /// What rotated elements are multiplied by.
        magnitude: f64,
        /// What attention over latents multiplies its scores by beside its own scale.
        score_factor: f64,
    },
    /// The first pairs of a head keep the frequencies that all of them would have, divided by a
    /// factor; the others do not turn (Gemma 4).
    Proportional {
        /// Pairs that turn.
        pairs: usize,
        /// The factor.
        factor: f64,
    },
    /// Each frequency divided by its own factor: one list up to the original
    /// context, another beyond.
    Longrope {
        /// Divisors for sequences within the original context.
        short: Vec<f64>,
        /// Divisors for longer ones.
        long: Vec<f64>,
        /// Context length that the model was first trained for.
        original_context: usize,
        /// What rotated elements are multiplied by.
        magnitude: f64,
    },
    /// Each frequency divided by its own factor, as GGUF files store the
    /// Llama 3.1 recipe (tensor `rope_freqs.weight`).
    Factors(Vec<f32>),
}

impl Rope {
    /// The angle that each pair turns by from one position to the next:
    /// `rotary_dim / 2` values, computed in `f64` and rounded once. `context` is
    /// the longest sequence that will run: a cache holds keys rotated by one
    /// recipe, so longrope's choice is made once, as llama.cpp and vLLM do.
    pub fn inverse_frequencies(&self, context: usize) -> Vec<f32> {
        (0..self.rotary_dim / 2)
            .map(|pair| {
                let exponent = (2 * pair) as f64 / self.rotary_dim as f64;
                let frequency = self.theta.powf(exponent).recip();
                self.scale(pair, frequency, context) as f32
            })
            .collect()
    }

    /// What rotated elements are multiplied by; 1 but for YaRN and longrope.
    pub fn magnitude(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { magnitude, .. } | RopeScaling::Longrope { magnitude, .. } => {
                magnitude as f32
            }
            _ => 1.0,
        }
    }

    /// What attention over latents multiplies its scores by beside its own scale; 1 but for YaRN.
    pub fn score_factor(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { score_factor, .. } => score_factor as f32,
            _ => 1.0,
        }
    }

    fn scale(&self, pair: usize, frequency: f64, context: usize) -> f64 {
        match &self.scaling {
            RopeScaling::Default | RopeScaling::Dynamic { .. } => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Proportional { pairs, factor } => {
                if pair < *pairs {
                    frequency / factor
                } else {
                    0.0
                }
            }
            RopeScaling::Factors(factors) => frequency / f64::from(factors[pair]),
            RopeScaling::Longrope {
                short,
                long,
                original_context,
                ..
            } => {
                let factors = if context > *original_context {
                    long
                } else {
                    short
                };
                frequency / factors[pair]
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                let wavelength = 2.0 * PI / frequency;
                let original_context = *original_context as f64;
                if wavelength < original_context / high_freq_factor {
                    frequency
                } else if wavelength > original_context / low_freq_factor {
                    frequency / factor
                } else {
                    let smooth = (original_context / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_context,
                truncate,
                ..
            } => {
                let dim = self.rotary_dim as f64;
                // The pair that turns so many times within the original context.
                let pair_of = |turns: f64| {
                    dim * (*original_context as f64 / (turns * 2.0 * PI)).ln()
                        / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (pair_of(*beta_fast), pair_of(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
                if low == high {
                    high += 0.001;
                }
                let ramp = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                frequency / factor * ramp + frequency * (1.0 - ramp)
            }
        }
    }
}

/// The magnitude that YaRN's authors give for a factor, times `mscale` in its
/// logarithm.
pub fn yarn_magnitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * mscale * factor.ln() + 1.0
    }
}

/// The magnitude that longrope's authors give for a factor over the original context.
pub fn longrope_magnitude(factor: f64, original_context: usize) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        (1.0 + factor.ln() / (original_context as f64).ln()).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope {
            theta: 10_000.0,
            rotary_dim: 8,
            layout: RopeLayout::HalfSplit,
            scaling,
        }
    }

    // E15
    #[test]
    fn recipes_give_the_frequencies_of_their_definitions() {
        let plain = rope(RopeScaling::Default).inverse_frequencies(4096);
        assert_eq!(plain, [1.0, 0.1, 0.01, 0.001]);
        let linear = rope(RopeScaling::Linear { factor: 4.0 }).inverse_frequencies(4096);
        assert_eq!(linear, [0.25, 0.025, 0.0025, 0.00025]);
        let factors =
            rope(RopeScaling::Factors(vec![1.0, 2.0, 4.0, 8.0])).inverse_frequencies(4096);
        assert_eq!(factors, [1.0, 0.05, 0.0025, 0.000125]);
        // Wavelengths are 6.28, 62.8, 628 and 6283. Of an original context of
        // 256 (bounds 64 and 256) the first two stay and the last two shrink;
        // of 128 (bounds 32 and 128) the second lies between:
        // smooth = (128 / 62.83 - 1) / 3 = 0.3457277, 0.1 * (0.6542723 / 8 + 0.3457277).
        let llama3 = |original_context| {
            rope(RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context,
            })
            .inverse_frequencies(4096)
        };
        assert_eq!(llama3(256), [1.0, 0.1, 0.00125, 0.000125]);
        assert!((llama3(128)[1] - 0.042_751_17).abs() < 1e-7);
    }
}
