//! Scalar and vector types of kernel values.

use std::fmt;

/// A scalar type. Packed storage types hold bits, not numbers: they can be loaded, stored,
/// bit-cast and decoded by [`crate::Op::Convert`], and have no arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Scalar {
    /// Truth value; one byte in memory, 0 or 1.
    Bool,
    /// Two's complement, 8 bits.
    I8,
    /// Two's complement, 16 bits.
    I16,
    /// Two's complement, 32 bits.
    I32,
    /// Two's complement, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits; `usize` of the kernel language.
    U64,
    /// IEEE 754 binary16.
    F16,
    /// The upper 16 bits of binary32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64, where the target has it.
    F64,
    /// OCP 8-bit float, 4 exponent and 3 mantissa bits, no infinity; packed storage.
    F8E4M3,
    /// OCP 8-bit float, 5 exponent and 2 mantissa bits; packed storage.
    F8E5M2,
    /// OCP power-of-two scale, 8 exponent bits; packed storage.
    E8M0,
    /// Two OCP 4-bit floats in a byte, low nibble first; packed storage.
    F4E2M1x2,
    /// Eight 4-bit integers in 32 bits, low nibble first; packed storage.
    Int4x8,
}

/// What kind of arithmetic a scalar has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// Truth values.
    Bool,
    /// Signed integers.
    Signed,
    /// Unsigned integers.
    Unsigned,
    /// Floating point.
    Float,
    /// Bits without arithmetic.
    Packed,
}

impl Scalar {
    /// Every scalar type, in declaration order.
    pub const ALL: [Scalar; 18] = [
        Scalar::Bool,
        Scalar::I8,
        Scalar::I16,
        Scalar::I32,
        Scalar::I64,
        Scalar::U8,
        Scalar::U16,
        Scalar::U32,
        Scalar::U64,
        Scalar::F16,
        Scalar::BF16,
        Scalar::F32,
        Scalar::F64,
        Scalar::F8E4M3,
        Scalar::F8E5M2,
        Scalar::E8M0,
        Scalar::F4E2M1x2,
        Scalar::Int4x8,
    ];

    /// Bytes of one element in memory.
    pub const fn bytes(self) -> u32 {
        match self {
            Scalar::Bool
            | Scalar::I8
            | Scalar::U8
            | Scalar::F8E4M3
            | Scalar::F8E5M2
            | Scalar::E8M0
            | Scalar::F4E2M1x2 => 1,
            Scalar::I16 | Scalar::U16 | Scalar::F16 | Scalar::BF16 => 2,
            Scalar::I32 | Scalar::U32 | Scalar::F32 | Scalar::Int4x8 => 4,
            Scalar::I64 | Scalar::U64 | Scalar::F64 => 8,
        }
    }

    /// Bits of one element in memory.
    pub const fn bits(self) -> u32 {
        self.bytes() * 8
    }

    /// The kind of arithmetic it has.
    pub const fn class(self) -> Class {
        match self {
            Scalar::Bool => Class::Bool,
            Scalar::I8 | Scalar::I16 | Scalar::I32 | Scalar::I64 => Class::Signed,
            Scalar::U8 | Scalar::U16 | Scalar::U32 | Scalar::U64 => Class::Unsigned,
            Scalar::F16 | Scalar::BF16 | Scalar::F32 | Scalar::F64 => Class::Float,
            Scalar::F8E4M3 | Scalar::F8E5M2 | Scalar::E8M0 | Scalar::F4E2M1x2 | Scalar::Int4x8 => {
                Class::Packed
            }
        }
    }

    /// Signed or unsigned integer.
    pub const fn is_int(self) -> bool {
        matches!(self.class(), Class::Signed | Class::Unsigned)
    }

    /// Signed integer.
    pub const fn is_signed(self) -> bool {
        matches!(self.class(), Class::Signed)
    }

    /// Floating point with arithmetic.
    pub const fn is_float(self) -> bool {
        matches!(self.class(), Class::Float)
    }

    /// The unsigned integer of the same width.
    pub const fn unsigned_of_width(self) -> Scalar {
        match self.bytes() {
            1 => Scalar::U8,
            2 => Scalar::U16,
            4 => Scalar::U32,
            _ => Scalar::U64,
        }
    }

    /// The name in the textual IR, in instance names and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Scalar::Bool => "bool",
            Scalar::I8 => "i8",
            Scalar::I16 => "i16",
            Scalar::I32 => "i32",
            Scalar::I64 => "i64",
            Scalar::U8 => "u8",
            Scalar::U16 => "u16",
            Scalar::U32 => "u32",
            Scalar::U64 => "u64",
            Scalar::F16 => "f16",
            Scalar::BF16 => "bf16",
            Scalar::F32 => "f32",
            Scalar::F64 => "f64",
            Scalar::F8E4M3 => "f8e4m3",
            Scalar::F8E5M2 => "f8e5m2",
            Scalar::E8M0 => "e8m0",
            Scalar::F4E2M1x2 => "f4e2m1x2",
            Scalar::Int4x8 => "int4x8",
        }
    }

    /// The scalar with that [`name`](Scalar::name).
    pub fn from_name(name: &str) -> Option<Scalar> {
        Scalar::ALL.into_iter().find(|s| s.name() == name)
    }

    /// This scalar as a type of `lanes` lanes (1, 2, 4 or 8).
    pub const fn x(self, lanes: u8) -> Type {
        Type {
            scalar: self,
            lanes,
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of a value: a scalar, or a vector of 2, 4 or 8 of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Type {
    /// Element type.
    pub scalar: Scalar,
    /// 1, 2, 4 or 8.
    pub lanes: u8,
}

impl Type {
    /// `bool`.
    pub const BOOL: Type = Scalar::Bool.x(1);
    /// `i32`.
    pub const I32: Type = Scalar::I32.x(1);
    /// `u32`.
    pub const U32: Type = Scalar::U32.x(1);
    /// `u64`, the type of strides and flat offsets.
    pub const U64: Type = Scalar::U64.x(1);
    /// `f32`.
    pub const F32: Type = Scalar::F32.x(1);

    /// Bytes of a value in memory.
    pub const fn bytes(self) -> u32 {
        self.scalar.bytes() * self.lanes as u32
    }

    /// More than one lane.
    pub const fn is_vector(self) -> bool {
        self.lanes > 1
    }

    /// The same lanes with another scalar.
    pub const fn with_scalar(self, scalar: Scalar) -> Type {
        Type {
            scalar,
            lanes: self.lanes,
        }
    }

    /// Parses what `Display` prints: `f32`, `f32x4`, `f4e2m1x2`, `f4e2m1x2x4`.
    pub fn from_name(name: &str) -> Option<Type> {
        if let Some(scalar) = Scalar::from_name(name) {
            return Some(scalar.x(1));
        }
        let (head, lanes) = name.rsplit_once('x')?;
        let lanes: u8 = lanes.parse().ok()?;
        matches!(lanes, 2 | 4 | 8).then_some(Scalar::from_name(head)?.x(lanes))
    }
}

impl From<Scalar> for Type {
    fn from(scalar: Scalar) -> Type {
        scalar.x(1)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lanes {
            1 => self.scalar.fmt(f),
            n => write!(f, "{}x{n}", self.scalar),
        }
    }
}
