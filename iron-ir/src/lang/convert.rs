//! Conversions between scalar types, by the specification: one rounding, to nearest even;
//! floats to integers truncate and saturate, NaN becomes 0; integers truncate or extend.

use half::{bf16, f16};

use super::packed::{E8M0, F8E4M3, F8E5M2, Format, two_to};
use super::scalar::Element;

/// A value between source and target type, exact for every source.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub enum Exact {
    /// Of an integer or `bool`.
    Int(i128),
    /// Of a float.
    Float(f64),
}

/// A scalar type that converts to numbers.
pub trait Convert: Element {
    /// The value, exactly.
    #[doc(hidden)]
    fn exact(self) -> Exact;
    /// Converts to another scalar type.
    #[must_use]
    fn to<U: ConvertTarget>(self) -> U {
        U::from_exact(self.exact())
    }
    /// Converts to `f32`.
    fn to_f32(self) -> f32 {
        f32::from_exact(self.exact())
    }
}

/// A scalar type that numbers convert to.
pub trait ConvertTarget: Element {
    /// The nearest value of this type.
    #[doc(hidden)]
    fn from_exact(value: Exact) -> Self;
}

macro_rules! int_conversions {
    ($($t:ty)*) => { $(
        impl Convert for $t {
            fn exact(self) -> Exact {
                Exact::Int(self as i128)
            }
        }
        impl ConvertTarget for $t {
            fn from_exact(value: Exact) -> Self {
                match value {
                    Exact::Int(i) => i as $t,
                    Exact::Float(x) => x as $t,
                }
            }
        }
    )* };
}

int_conversions!(i8 i16 i32 i64 u8 u16 u32 u64 usize);

impl Convert for bool {
    fn exact(self) -> Exact {
        Exact::Int(i128::from(self))
    }
}

macro_rules! float_conversions {
    ($($t:ty: $to:expr, $int:expr, $float:expr;)*) => { $(
        impl Convert for $t {
            fn exact(self) -> Exact {
                let to: fn($t) -> f64 = $to;
                Exact::Float(to(self))
            }
        }
        impl ConvertTarget for $t {
            fn from_exact(value: Exact) -> Self {
                let (int, float): (fn(i128) -> $t, fn(f64) -> $t) = ($int, $float);
                match value {
                    Exact::Int(i) => int(i),
                    Exact::Float(x) => float(x),
                }
            }
        }
    )* };
}

float_conversions! {
    f64: |x| x, |i| i as f64, |x| x;
    f32: f64::from, |i| i as f32, |x| x as f32;
    f16: |x| Format::F16.decode(x.to_bits().into()),
        |i| f16::from_bits(Format::F16.encode(int_to_odd(i)) as u16),
        |x| f16::from_bits(Format::F16.encode(x) as u16);
    bf16: |x| Format::BF16.decode(x.to_bits().into()),
        |i| bf16::from_bits(Format::BF16.encode(int_to_odd(i)) as u16),
        |x| bf16::from_bits(Format::BF16.encode(x) as u16);
    F8E4M3: |x| Format::E4M3.decode(x.to_bits().into()),
        |i| F8E4M3::from_bits(Format::E4M3.encode(int_to_odd(i)) as u8),
        |x| F8E4M3::from_bits(Format::E4M3.encode(x) as u8);
    F8E5M2: |x| Format::E5M2.decode(x.to_bits().into()),
        |i| F8E5M2::from_bits(Format::E5M2.encode(int_to_odd(i)) as u8),
        |x| F8E5M2::from_bits(Format::E5M2.encode(x) as u8);
}

impl Convert for E8M0 {
    fn exact(self) -> Exact {
        Exact::Float(match self.to_bits() {
            255 => f64::NAN,
            bits => two_to(i32::from(bits) - 127),
        })
    }
}

/// The integer as a float rounded to odd, so that a second rounding is right.
fn int_to_odd(i: i128) -> f64 {
    let near = i as f64;
    let back = near as i128;
    if back == i || near.to_bits() & 1 == 1 {
        return near;
    }
    // An even neighbour of an integer between two floats: the odd one is on the other side.
    let away = (back < i) == (i > 0);
    f64::from_bits(if away {
        near.to_bits() + 1
    } else {
        near.to_bits() - 1
    })
}

/// A type of plain bits: any bit pattern of its size is a value.
///
/// # Safety
/// No padding, no invalid bit patterns.
#[doc(hidden)]
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($t:ty)*) => { $(
        // SAFETY: a number, or a transparent wrapper of one.
        unsafe impl Plain for $t {}
    )* };
}

plain!(i8 i16 i32 i64 u8 u16 u32 u64 usize f16 bf16 f32 f64);
plain!(super::F8E4M3 super::F8E5M2 super::E8M0 super::F4E2M1x2 super::Int4x8);

// SAFETY: lanes without padding, each plain.
unsafe impl<T: Plain, const N: usize> Plain for super::Vector<T, N> {}

/// Reading the bits as another type.
pub trait Bitcast: Plain {
    /// The same bits as a type of the same size.
    #[must_use]
    fn bitcast<U: Plain>(self) -> U {
        const {
            assert!(
                size_of::<Self>() == size_of::<U>(),
                "`bitcast` needs two types of one size"
            );
        }
        // SAFETY: both are plain bits of one size.
        unsafe { std::mem::transmute_copy(&self) }
    }
}

impl<T: Plain> Bitcast for T {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_rounds_once() {
        assert_eq!(300i32.to::<u8>(), 44);
        assert_eq!((-1i8).to::<u32>(), u32::MAX);
        assert_eq!(f32::NAN.to::<i32>(), 0);
        assert_eq!(3e9f32.to::<i32>(), i32::MAX);
        assert_eq!((-1.5f32).to::<u8>(), 0);
        assert_eq!(true.to_f32(), 1.0);
        assert_eq!(65519.99f32.to::<f16>(), f16::MAX);
        assert_eq!(65520.0f32.to::<f16>(), f16::INFINITY);
        assert!(465.0f32.to::<F8E4M3>().to_f32().is_nan());
        assert_eq!(464.0f32.to::<F8E4M3>().to_f32(), 448.0);
        // 2^60 + 2^52 lies on a tie of bf16; one more is above it.
        assert_eq!(
            ((1i64 << 60) + (1 << 52)).to::<bf16>().to_f32(),
            2f32.powi(60)
        );
        let above = ((1i64 << 60) + (1 << 52) + 1).to::<bf16>();
        assert_eq!(above.to_f32(), 2f32.powi(60) * (1.0 + 1.0 / 128.0));
        assert_eq!(1.0f32.bitcast::<u32>(), 0x3f80_0000);
    }

    #[test]
    fn small_floats_agree_with_another_implementation() {
        for bits in 0..=u16::MAX {
            let (a, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            for (ours, theirs) in [
                (Convert::to_f32(a), a.to_f32()),
                (Convert::to_f32(b), b.to_f32()),
            ] {
                assert!(
                    ours == theirs || ours.is_nan() && theirs.is_nan(),
                    "{bits:#x}"
                );
            }
            let low = [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001];
            for low in low {
                let x = f32::from_bits(u32::from(bits) << 16 | low);
                let (a, b) = (x.to::<f16>(), x.to::<bf16>());
                if x.is_nan() {
                    assert!(a.is_nan() && b.is_nan());
                } else {
                    assert_eq!(a.to_bits(), f16::from_f32_const(x).to_bits(), "{x}");
                    assert_eq!(b.to_bits(), bf16::from_f32_const(x).to_bits(), "{x}");
                }
            }
        }
    }
}
