//! Free functions of scalars.

use super::scalar::Float;

/// `1 / sqrt(x)`.
pub fn rsqrt<T: Float>(x: T) -> T {
    x.rsqrt()
}

/// The error function.
pub fn erf<T: Float>(x: T) -> T {
    Float::erf(x)
}

/// `a * b + c`, rounded once.
pub fn fma<T: Float>(a: T, b: T, c: T) -> T {
    a.mul_add(b, c)
}

/// `a` where `condition` is true, else `b`. Both are evaluated.
pub fn select<T: Copy>(condition: bool, a: T, b: T) -> T {
    if condition { a } else { b }
}

/// `a / b` rounded up, as in grid formulas. `b` is above zero.
pub const fn ceil_div(a: u32, b: u32) -> u32 {
    a.div_ceil(b)
}

/// The error function: Kummer's series, whose terms are all positive, so that no digits cancel.
pub(crate) fn erf_f64(x: f64) -> f64 {
    let a = x.abs();
    if x.is_nan() || a == 0.0 {
        return x;
    }
    if a >= 6.0 {
        return 1.0f64.copysign(x);
    }
    let (mut term, mut sum, mut n) = (a, a, 0.0);
    while term > sum * 1e-18 {
        n += 1.0;
        term *= 2.0 * a * a / (2.0 * n + 1.0);
        sum += term;
    }
    let value = std::f64::consts::FRAC_2_SQRT_PI * (-a * a).exp() * sum;
    value.min(1.0).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::erf_f64;

    #[test]
    fn error_function() {
        for (x, y) in [
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (4.0, 0.999_999_984_582_742_1),
        ] {
            assert!((erf_f64(x) - y).abs() < 1e-14, "{x}");
            assert_eq!(erf_f64(-x), -erf_f64(x));
        }
    }
}
