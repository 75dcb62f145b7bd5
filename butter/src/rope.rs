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

/// How a recipe changes the frequencies.
#[derive(Clone, PartialEq, Debug)]
pub enum RopeScaling {
    /// Unchanged.
    Default,
    /// All frequencies divided by one factor.
    Linear {
        /// The factor.
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
    /// Each frequency divided by its own factor, as GGUF files store the
    /// Llama 3.1 recipe (tensor `rope_freqs.weight`).
    Factors(Vec<f32>),
}

impl Rope {
    /// The angle that each pair turns by from one position to the next:
    /// `rotary_dim / 2` values, computed in `f64` and rounded once.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        (0..self.rotary_dim / 2)
            .map(|pair| {
                let exponent = (2 * pair) as f64 / self.rotary_dim as f64;
                let frequency = self.theta.powf(exponent).recip();
                self.scaling.scale(pair, frequency) as f32
            })
            .collect()
    }
}

impl RopeScaling {
    fn scale(&self, pair: usize, frequency: f64) -> f64 {
        match self {
            Self::Default => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Factors(factors) => frequency / f64::from(factors[pair]),
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                // transformers, `_compute_llama3_parameters`.
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
        }
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
        let plain = rope(RopeScaling::Default).inverse_frequencies();
        assert_eq!(plain, [1.0, 0.1, 0.01, 0.001]);
        let linear = rope(RopeScaling::Linear { factor: 4.0 }).inverse_frequencies();
        assert_eq!(linear, [0.25, 0.025, 0.0025, 0.00025]);
        let factors = rope(RopeScaling::Factors(vec![1.0, 2.0, 4.0, 8.0])).inverse_frequencies();
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
            .inverse_frequencies()
        };
        assert_eq!(llama3(256), [1.0, 0.1, 0.00125, 0.000125]);
        assert!((llama3(128)[1] - 0.042_751_17).abs() < 1e-7);
    }
}
