//! Functions that the standard library lacks, in `f64`.

/// The error function, within a few units in the last place of `f64`.
///
/// Below 2 the Maclaurin series in the form `2/√π · e^(-x²) · Σ 2^n x^(2n+1) / (2n+1)!!`, whose
/// terms are all of one sign; above, the continued fraction of `erfc` by Lentz's method.
pub fn erf(x: f64) -> f64 {
    const TWO_OVER_SQRT_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI;
    if x.is_nan() {
        return x;
    }
    let a = x.abs();
    if a > 6.0 {
        return 1f64.copysign(x);
    }
    let square = a * a;
    if a < 2.0 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term > sum * 1e-18 {
            n += 1.0;
            term *= 2.0 * square / (2.0 * n + 1.0);
            sum += term;
        }
        let value = TWO_OVER_SQRT_PI * (-square).exp() * sum;
        // Near zero the factor e^0 is exact, and the sign of zero stays.
        return value.copysign(x);
    }
    // erfc(a) = e^(-a²) / √π · 1 / (a + (1/2) / (a + 1 / (a + (3/2) / (a + …)))).
    let mut fraction = a;
    for k in (1..=60).rev() {
        fraction = a + f64::from(k) * 0.5 / fraction;
    }
    let complement = TWO_OVER_SQRT_PI / 2.0 * (-square).exp() / fraction;
    (1.0 - complement).copysign(x)
}
