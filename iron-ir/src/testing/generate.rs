//! Seeded values. Element `i` depends on the seed and `i` alone:
//!
//! ```text
//! draw(seed, i) = mix(seed + (i + 1) * 0x9e3779b97f4a7c15)          all modulo 2^64
//! mix(z)        = z ^= z >> 30; z *= 0xbf58476d1ce4e5b9;
//!                 z ^= z >> 27; z *= 0x94d049bb133111eb; z ^ (z >> 31)
//! unit(seed, i) = (draw(seed, i) >> 11) * 2^-53                     in [0, 1)
//! uniform       = low + (high - low) * unit(seed, i)
//! normal        = mean + deviation * sqrt(-2 ln(1 - unit(seed, 2i))) * cos(2π unit(seed, 2i + 1))
//! ints          = low + draw(seed, i) * (high - low) >> 64          in [low, high)
//! ```
//!
//! (SplitMix64 and Box-Muller.) The seed of a parameter is [`seed_of`] the run's seed and the
//! names of test, instance, case and parameter.

/// What fills a tensor, before it is rounded to the tensor's type.
pub enum Generator {
    /// Reals by seed and element index.
    Floats(Floats),
    /// Integers by seed and element index.
    Ints(Ints),
    /// Exactly these reals, one an element.
    Values(Vec<f64>),
    /// Exactly these bits, one an element.
    Bits(Vec<u64>),
    /// Random bits.
    Random,
}

type FloatFunction = Box<dyn Fn(u64, usize) -> f64>;
type IntFunction = Box<dyn Fn(u64, usize) -> i64>;

/// Reals by seed and element index.
pub struct Floats(FloatFunction);

/// Integers by seed and element index.
pub struct Ints(IntFunction);

impl Floats {
    /// The value of an element.
    pub fn at(&self, seed: u64, index: usize) -> f64 {
        (self.0)(seed, index)
    }
    /// Each element becomes `f(index, value)`.
    #[must_use]
    pub fn map(self, f: impl Fn(usize, f64) -> f64 + 'static) -> Floats {
        Floats(Box::new(move |seed, i| f(i, (self.0)(seed, i))))
    }
}

impl Ints {
    /// The value of an element.
    pub fn at(&self, seed: u64, index: usize) -> i64 {
        (self.0)(seed, index)
    }
    /// Each element becomes `f(index, value)`.
    #[must_use]
    pub fn map(self, f: impl Fn(usize, i64) -> i64 + 'static) -> Ints {
        Ints(Box::new(move |seed, i| f(i, (self.0)(seed, i))))
    }
}

impl From<Floats> for Generator {
    fn from(floats: Floats) -> Generator {
        Generator::Floats(floats)
    }
}

impl From<Ints> for Generator {
    fn from(ints: Ints) -> Generator {
        Generator::Ints(ints)
    }
}

/// Normal values of this mean and standard deviation.
pub fn normal(mean: f64, deviation: f64) -> Floats {
    Floats(Box::new(move |seed, i| {
        let i = i as u64;
        let radius = (-2.0 * (1.0 - unit(seed, 2 * i)).ln()).sqrt();
        mean + deviation * radius * (std::f64::consts::TAU * unit(seed, 2 * i + 1)).cos()
    }))
}

/// Values spread evenly over `low..high`.
pub fn uniform(low: f64, high: f64) -> Floats {
    Floats(Box::new(move |seed, i| {
        low + (high - low) * unit(seed, i as u64)
    }))
}

/// Integers spread evenly over `low..high`; `low` where the range is empty.
pub fn ints(low: i64, high: i64) -> Ints {
    Ints(Box::new(move |seed, i| {
        let range = u128::from(high.saturating_sub(low).max(0) as u64);
        low + ((u128::from(draw(seed, i as u64)) * range) >> 64) as i64
    }))
}

/// `start + step * index`.
pub fn ramp(start: f64, step: f64) -> Floats {
    Floats(Box::new(move |_, i| start + step * i as f64))
}

/// The same value everywhere.
pub fn constant(value: f64) -> Floats {
    Floats(Box::new(move |_, _| value))
}

/// Exactly these values, in row-major order.
pub fn values(values: Vec<f64>) -> Generator {
    Generator::Values(values)
}

/// Exactly these bits, in row-major order; for packed types and special floats.
pub fn bits(bits: Vec<u64>) -> Generator {
    Generator::Bits(bits)
}

/// Random bits; for packed types and integers.
pub fn bytes() -> Generator {
    Generator::Random
}

/// The seed of a name under another seed: FNV-1a of the name, mixed in.
pub fn seed_of(seed: u64, name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(seed ^ hash)
}

/// The 64 random bits of element `index`.
pub(crate) fn draw(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

fn unit(seed: u64, index: u64) -> f64 {
    (draw(seed, index) >> 11) as f64 * (f64::EPSILON / 2.0)
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_draws_and_ranges() {
        // The published first output of SplitMix64 with seed 1234567.
        assert_eq!(draw(1_234_567, 0), 6_457_827_717_110_365_317);
        let n = 20_000;
        let sample: Vec<f64> = (0..n).map(|i| normal(1.0, 2.0).at(7, i)).collect();
        let mean = sample.iter().sum::<f64>() / n as f64;
        let variance = sample.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        assert!(
            (mean - 1.0).abs() < 0.05 && (variance - 4.0).abs() < 0.15,
            "{mean} {variance}"
        );
        let seen: std::collections::BTreeSet<i64> =
            (0..200).map(|i| ints(-2, 3).at(3, i)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [-2, -1, 0, 1, 2]);
    }
}
