//! Functions in `f64`, and distances in units in the last place.

use iron_ir::Scalar;
use iron_ir::testing::{ulp_of, value_of};

/// Distance of a found value from the exact one, in units in the last place of the type at the
/// exact one. Infinity counts as the power of two past the greatest finite value, so that a
/// result one unit off is one unit off there as well. NaN is at distance 0 of NaN alone.
pub fn distance(scalar: Scalar, found: u64, exact: f64) -> f64 {
    let found = value_of(scalar, found);
    if found.is_nan() || exact.is_nan() {
        return if found.is_nan() && exact.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    if found == exact {
        // The sign of an exact zero counts.
        let same_sign = found.is_sign_negative() == exact.is_sign_negative();
        return if same_sign { 0.0 } else { f64::INFINITY };
    }
    let past = match scalar {
        Scalar::F16 => 65536.0,
        Scalar::F32 | Scalar::BF16 => 2f64.powi(128),
        _ => f64::INFINITY,
    };
    let bounded = |x: f64| x.clamp(-past, past);
    if exact.is_infinite() || exact.abs() >= past {
        // A finite result may be off by its bound only if the exact one is finite in the type.
        let gap = (bounded(exact) - bounded(found)).abs();
        return if gap == 0.0 {
            0.0
        } else {
            gap / ulp_of(scalar, past)
        };
    }
    (bounded(found) - exact).abs() / ulp_of(scalar, exact)
}

/// The error function: its Maclaurin series below 3, one less the integral of the rest (by
/// Simpson's rule) above.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if x.is_nan() {
        return x;
    }
    if a > 8.0 {
        return 1f64.copysign(x);
    }
    let value = if a < 3.0 {
        let (mut power, mut sum, mut n) = (a, a, 0.0f64);
        while power.abs() > 1e-20 * sum.abs() && n < 200.0 {
            n += 1.0;
            power *= -a * a / n;
            sum += power / (2.0 * n + 1.0);
        }
        sum
    } else {
        let (steps, end) = (2000, 9.0);
        let h = (end - a) / f64::from(steps);
        let f = |i: i32| (-(a + h * f64::from(i)).powi(2)).exp();
        let inner: f64 = (1..steps)
            .map(|i| f(i) * if i % 2 == 1 { 4.0 } else { 2.0 })
            .sum();
        let rest = h / 3.0 * (f(0) + inner + f(steps));
        std::f64::consts::PI.sqrt() / 2.0 - rest
    };
    (value * std::f64::consts::FRAC_2_SQRT_PI).copysign(x)
}

/// The function of that name in the table of bounds, of one operand.
pub fn function(name: &str) -> Option<fn(f64) -> f64> {
    Some(match name {
        "sqrt" => f64::sqrt,
        "rsqrt" => |x| 1.0 / x.sqrt(),
        "exp" => f64::exp,
        "exp2" => f64::exp2,
        "log" => f64::ln,
        "log2" => f64::log2,
        "sin" => f64::sin,
        "cos" => f64::cos,
        "tanh" => f64::tanh,
        "erf" => erf,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_has_its_known_values() {
        for (x, y) in [
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.9, 0.999_958_902_121_900_5),
            (3.1, 0.999_988_351_342_632_8),
        ] {
            assert!((erf(x) - y).abs() < 1e-12, "{x}: {} is not {y}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!(erf(f64::INFINITY), 1.0);
    }

    #[test]
    fn distance_counts_units_and_treats_infinity_as_the_next_number() {
        let bits = |x: f32| u64::from(x.to_bits());
        assert_eq!(distance(Scalar::F32, bits(1.0), 1.0), 0.0);
        assert_eq!(distance(Scalar::F32, bits(1.0f32.next_up()), 1.0), 1.0);
        assert_eq!(
            distance(Scalar::F32, bits(f32::INFINITY), f64::from(f32::MAX)),
            1.0
        );
        assert_eq!(distance(Scalar::F32, bits(f32::INFINITY), 1e300), 0.0);
        assert!(distance(Scalar::F32, bits(1.0), f64::INFINITY) > 1e6);
        assert!(distance(Scalar::F32, bits(f32::NAN), 1.0).is_infinite());
        assert!(distance(Scalar::F32, bits(-f32::INFINITY), f64::INFINITY) > 1e6);
    }
}
