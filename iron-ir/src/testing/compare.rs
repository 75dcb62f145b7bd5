//! Comparing an output with the oracle: bounds, and what every comparison reports.

use std::fmt;

use super::cases::Expectation;
use super::formats::{is_nan, round_to, ulp_of, value_of};
use crate::types::Scalar;

/// How far a result may lie from the oracle's value: the sum of the parts given, plus half an
/// ULP of the output's type for floats (the rounding of the store). Integers are exact unless
/// an absolute part is given.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Bound {
    relative: f64,
    absolute: f64,
    ulps: f64,
    exact: bool,
}

impl Bound {
    /// The bits of the oracle's value rounded to the output's type; a part that is added makes it a
    /// distance from that.
    pub fn exact() -> Bound {
        Bound {
            exact: true,
            ..Bound::default()
        }
    }
    /// A share of the oracle's magnitude, as a constructor and as a part.
    pub fn relative(share: f64) -> Bound {
        Bound {
            relative: share,
            ..Bound::default()
        }
    }
    /// Adds a constant.
    #[must_use]
    pub fn absolute(self, distance: f64) -> Bound {
        Bound {
            absolute: distance,
            exact: self.exact && distance == 0.0,
            ..self
        }
    }
    /// Adds ULPs of the output's type at the oracle's value.
    #[must_use]
    pub fn ulps(self, ulps: f64) -> Bound {
        Bound {
            ulps,
            exact: self.exact && ulps == 0.0,
            ..self
        }
    }

    /// The greatest distance from `expected` that passes.
    pub fn tolerance(&self, scalar: Scalar, expected: f64) -> f64 {
        let ulps = if scalar.is_int() || scalar == Scalar::Bool {
            self.ulps
        } else {
            self.ulps + 0.5
        };
        self.absolute + self.relative * expected.abs() + ulps * ulp_of(scalar, expected)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.exact {
            return f.write_str("exact");
        }
        let parts = [
            (self.absolute, "absolute"),
            (self.relative, "relative"),
            (self.ulps, "ULP"),
        ];
        for (value, name) in parts.into_iter().filter(|p| p.0 != 0.0) {
            write!(f, "{value:e} {name} + ")?;
        }
        f.write_str("half an ULP")
    }
}

/// One element that is out of bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Row-major index.
    pub index: usize,
    /// The result's value.
    pub got: f64,
    /// The result's bits.
    pub got_bits: u64,
    /// The oracle's value.
    pub expected: f64,
    /// The greatest distance that passes; 0 for exact bounds.
    pub bound: f64,
    /// What is wrong, where it is not the distance: `never written`, `unexpected NaN`.
    pub reason: &'static str,
}

/// Errors of one output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorReport {
    /// Elements compared.
    pub compared: usize,
    /// Elements that a sampled launch did not write.
    pub unwritten: usize,
    /// Elements out of bound.
    pub failures: usize,
    /// The first of them.
    pub first: Option<Mismatch>,
    /// Greatest distance.
    pub max_absolute: f64,
    /// Greatest distance over the oracle's magnitude.
    pub max_relative: f64,
    /// Greatest distance in ULPs of the output's type.
    pub max_ulps: f64,
    /// Cosine of the angle between result and oracle.
    pub cosine: f64,
    /// `|result| / |oracle| - 1`, of the Euclidean norms.
    pub norm_drift: f64,
    /// NaNs in the result.
    pub nans: usize,
    /// Infinities in the result.
    pub infinities: usize,
}

/// Compares an output, given as bits of each element in row-major order. `initial` is what the
/// output held before; `sampled` lets elements keep it.
pub fn compare(
    scalar: Scalar,
    got: &[u64],
    initial: &[u64],
    expectation: &Expectation,
    bound: &Bound,
    sampled: bool,
) -> ErrorReport {
    let mut report = ErrorReport::default();
    let (mut dot, mut got_norm, mut expected_norm) = (0.0, 0.0, 0.0);
    for (index, (&got_bits, &initial_bits)) in got.iter().zip(initial).enumerate() {
        let value = value_of(scalar, got_bits);
        let nan = is_nan(scalar, got_bits);
        let expected_bits = expectation.bits(scalar, index);
        let expected = expectation.value(scalar, index);
        let untouched = expectation.is_untouched(index);
        if sampled && got_bits == initial_bits && !untouched {
            report.unwritten += 1;
            continue;
        }
        report.compared += 1;
        report.nans += usize::from(nan);
        report.infinities += usize::from(value.is_infinite());
        let mut fail = |reason, limit| {
            report.failures += 1;
            report.first.get_or_insert(Mismatch {
                index,
                got: value,
                got_bits,
                expected,
                bound: limit,
                reason,
            });
        };
        if untouched {
            if got_bits != initial_bits {
                fail("written, but must stay untouched", 0.0);
            }
            continue;
        }
        if expected.is_nan() && is_nan(scalar, expected_bits) {
            if !nan {
                fail("NaN expected", 0.0);
            }
            continue;
        }
        if nan {
            let reason = if got_bits == super::formats::poison_bits(scalar) {
                "never written"
            } else {
                "unexpected NaN"
            };
            fail(reason, 0.0);
            continue;
        }
        let distance = if value == expected {
            0.0
        } else {
            (value - expected).abs()
        };
        if expected.is_finite() && value.is_finite() {
            report.max_absolute = report.max_absolute.max(distance);
            if expected != 0.0 {
                report.max_relative = report.max_relative.max(distance / expected.abs());
            }
            let ulp = ulp_of(scalar, expected);
            if ulp > 0.0 {
                report.max_ulps = report.max_ulps.max(distance / ulp);
            }
            dot += value * expected;
            got_norm += value * value;
            expected_norm += expected * expected;
        }
        let plain_bits = !(scalar.is_float() || scalar == Scalar::E8M0);
        let wrong = if got_bits == expected_bits {
            false
        } else if bound.exact || (plain_bits && bound.tolerance(scalar, expected) == 0.0) {
            true
        } else {
            // An oracle beyond the type's range rounds to infinity, or just below it.
            let rounded = value_of(scalar, expected_bits);
            let limit = bound.tolerance(scalar, expected);
            let is_near =
                distance <= limit || (rounded.is_infinite() && (value - expected).abs() <= limit);
            !is_near
        };
        if wrong {
            let limit = if bound.exact {
                0.0
            } else {
                bound.tolerance(scalar, expected)
            };
            let reason = if got_bits == initial_bits && !scalar.is_float() {
                "never written, or out of bound"
            } else {
                "out of bound"
            };
            fail(reason, limit);
        }
    }
    report.cosine = if got_norm > 0.0 && expected_norm > 0.0 {
        dot / (got_norm.sqrt() * expected_norm.sqrt())
    } else {
        1.0
    };
    report.norm_drift = if expected_norm > 0.0 {
        (got_norm / expected_norm).sqrt() - 1.0
    } else {
        0.0
    };
    report
}

/// The bits of `value` in `scalar`, for expectations in reals.
pub(super) fn rounded_bits(scalar: Scalar, value: f64) -> u64 {
    round_to(scalar, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(got: &[f32], expected: &[f64], bound: Bound, sampled: bool) -> ErrorReport {
        let poison = super::super::poison_bits(Scalar::F32);
        let bits: Vec<u64> = got
            .iter()
            .map(|x| {
                if x.is_nan() {
                    poison
                } else {
                    u64::from(x.to_bits())
                }
            })
            .collect();
        let expectation = Expectation::floats(expected.to_vec());
        compare(
            Scalar::F32,
            &bits,
            &vec![poison; got.len()],
            &expectation,
            &bound,
            sampled,
        )
    }

    #[test]
    fn bounds_are_sharp() {
        let near = 1.0 + f32::EPSILON;
        assert_eq!(
            check(&[near], &[1.0], Bound::relative(1.2e-7), false).failures,
            0
        );
        let report = check(&[1.0, near], &[1.0, 1.0], Bound::relative(1e-8), false);
        assert_eq!((report.failures, report.first.unwrap().index), (1, 1));
        assert_eq!(report.max_ulps, 1.0);
        assert_eq!(check(&[0.1], &[0.1], Bound::exact(), false).failures, 0);
        let near = Bound::exact().absolute(0.2);
        assert_eq!(check(&[0.2], &[0.1], near, false).failures, 0);
        assert_eq!(check(&[0.4], &[0.1], near, false).failures, 1);
        assert_eq!(check(&[0.2], &[0.1], Bound::exact(), false).failures, 1);
        assert_eq!(check(&[0.0], &[-0.0], Bound::exact(), false).failures, 1);
        assert_eq!(
            check(&[f32::INFINITY], &[1e39], Bound::relative(0.0), false).failures,
            0
        );
        assert_eq!(
            check(&[f32::INFINITY], &[1e30], Bound::relative(1.0), false).failures,
            1
        );
    }

    #[test]
    fn unwritten_elements_fail_unless_sampled() {
        let bound = Bound::relative(1e-6);
        let report = check(&[1.0, f32::NAN], &[1.0, 1.0], bound, false);
        assert_eq!(report.first.unwrap().reason, "never written");
        let report = check(&[1.0, f32::NAN], &[1.0, 1.0], bound, true);
        assert_eq!(
            (report.failures, report.compared, report.unwritten),
            (0, 1, 1)
        );
    }
}
