//! Arithmetic, comparisons, conversions, vectors, bit casts and functions.

use iron_ir::{Scalar, Type};

use super::Writer;

/// Functions without an exact answer, with their operands.
const FUNCTIONS: [(&str, usize); 10] = [
    ("exp", 1),
    ("exp2", 1),
    ("log", 1),
    ("log2", 1),
    ("sin", 1),
    ("cos", 1),
    ("tanh", 1),
    ("erf", 1),
    ("rsqrt", 1),
    ("pow", 2),
];

/// Types of one size, between which bits can be cast.
const SAME_SIZE: [&[Type]; 7] = [
    &[Scalar::U8.x(1), Scalar::I8.x(1)],
    &[
        Scalar::U16.x(1),
        Scalar::I16.x(1),
        Scalar::F16.x(1),
        Scalar::BF16.x(1),
        Scalar::U8.x(2),
        Scalar::I8.x(2),
    ],
    &[
        Scalar::U32.x(1),
        Scalar::F32.x(1),
        Scalar::I32.x(1),
        Scalar::U16.x(2),
        Scalar::F16.x(2),
        Scalar::BF16.x(2),
        Scalar::U8.x(4),
        Scalar::I8.x(4),
    ],
    &[
        Scalar::U64.x(1),
        Scalar::I64.x(1),
        Scalar::F64.x(1),
        Scalar::U32.x(2),
        Scalar::F32.x(2),
        Scalar::I16.x(4),
        Scalar::F16.x(4),
        Scalar::U8.x(8),
    ],
    &[
        Scalar::U64.x(2),
        Scalar::I32.x(4),
        Scalar::F32.x(4),
        Scalar::U16.x(8),
        Scalar::BF16.x(8),
        Scalar::F64.x(2),
    ],
    &[
        Scalar::I64.x(4),
        Scalar::F64.x(4),
        Scalar::F32.x(8),
        Scalar::U32.x(8),
    ],
    &[Scalar::I64.x(8), Scalar::U64.x(8), Scalar::F64.x(8)],
];

impl Writer<'_> {
    pub(super) fn operation(&mut self) {
        let mut ty = self.any_type();
        if self.pick(8) == 7 {
            ty = ty.with_scalar(Scalar::Bool);
        }
        if ty.is_vector() && self.pick(3) == 0 {
            self.build_vector(ty);
            return;
        }
        match ty.scalar {
            Scalar::Bool => self.truth(ty),
            scalar if scalar.is_int() => self.integer(ty),
            _ => self.float(ty),
        }
    }

    fn build_vector(&mut self, ty: Type) {
        let scalar = ty.scalar.x(1);
        let what = match self.pick(3) {
            0 => {
                let value = self.value(scalar);
                format!("splat {value}")
            }
            1 => {
                let parts: Vec<String> = (0..ty.lanes).map(|_| self.value(scalar)).collect();
                format!("vector {}", parts.join(", "))
            }
            _ => {
                let (old, lane) = (self.value(ty), self.pick(usize::from(ty.lanes)));
                let part = self.value(scalar);
                format!("insert {old}, {lane}, {part}")
            }
        };
        self.define(ty, &what);
    }

    fn truth(&mut self, ty: Type) {
        let what = match self.pick(8) {
            0..=2 => {
                let operand = self.scalar().x(ty.lanes);
                let (a, b) = (self.value(operand), self.value(operand));
                let op = if operand.scalar == Scalar::Bool {
                    self.choose(&["eq", "ne"])
                } else {
                    self.choose(&["lt", "eq", "ne", "le", "gt", "ge"])
                };
                format!("{op} {a}, {b}")
            }
            3 => {
                let (a, b) = (self.value(ty), self.value(ty));
                format!("{} {a}, {b}", self.choose(&["and", "or", "xor"]))
            }
            4 => {
                let a = self.value(ty);
                format!("not {a}")
            }
            5 => {
                let operand = self.scalar_of(Scalar::is_float).x(ty.lanes);
                let a = self.value(operand);
                format!("{} {a}", self.choose(&["is_nan", "is_finite"]))
            }
            6 => self.select(ty),
            _ => self.lane_of(ty),
        };
        self.define(ty, &what);
    }

    fn select(&mut self, ty: Type) -> String {
        let lanes = if self.pick(2) == 1 { ty.lanes } else { 1 };
        let condition = self.value(Scalar::Bool.x(lanes));
        let (a, b) = (self.value(ty), self.value(ty));
        format!("select {condition}, {a}, {b}")
    }

    /// A conversion from another scalar with as many lanes, where one is at hand.
    fn conversion(&mut self, ty: Type) -> String {
        let from = self.scalar();
        if from == ty.scalar {
            return self.select(ty);
        }
        let a = self.value(from.x(ty.lanes));
        format!("convert {a}")
    }

    /// The bits of another type of the size.
    fn bits_of(&mut self, ty: Type) -> String {
        let Some(types) = SAME_SIZE.iter().find(|types| types.contains(&ty)) else {
            return self.select(ty);
        };
        let from = self.choose(types);
        let a = self.value(from);
        if from == ty || !from.scalar.is_float() {
            return format!("bitcast {a}");
        }
        // The payload of a NaN is unspecified: its bits show nowhere.
        let zero = self.spread(from, &format!("{}:0x0", from.scalar));
        let truth = from.with_scalar(Scalar::Bool);
        self.divergent = true;
        let nan = self.define(truth, &format!("is_nan {a}"));
        self.divergent = true;
        let number = self.define(from, &format!("select {nan}, {zero}, {a}"));
        self.divergent = true;
        format!("bitcast {number}")
    }

    fn integer(&mut self, ty: Type) {
        const BINARY: [&str; 13] = [
            "add", "sub", "mul", "and", "or", "xor", "shl", "shr", "min", "max", "div", "rem",
            "mul_high",
        ];
        let what = match self.pick(22) {
            0..=11 => {
                let op = match ty.scalar {
                    Scalar::I32 if self.pick(10) == 0 => self.choose(&["dot4", "dot4_mixed"]),
                    Scalar::U32 if self.pick(20) == 0 => "dot4",
                    _ => self.choose(&BINARY),
                };
                let (a, b) = (self.value(ty), self.value(ty));
                format!("{op} {a}, {b}")
            }
            12..=14 => {
                let op = self.choose(&["neg", "not", "abs", "reverse_bits"]);
                let a = self.value(ty);
                format!("{op} {a}")
            }
            15 => self.select(ty),
            16 | 17 => self.conversion(ty),
            18 if ty.scalar == Scalar::U32 => {
                let from = self.scalar_of(Scalar::is_int).x(ty.lanes);
                let a = self.value(from);
                let op = self.choose(&["count_ones", "leading_zeros", "trailing_zeros"]);
                format!("{op} {a}")
            }
            19 | 20 => self.bits_of(ty),
            _ => self.lane_of(ty),
        };
        self.define(ty, &what);
    }

    /// A lane of a vector in scope, or a choice.
    fn lane_of(&mut self, ty: Type) -> String {
        let vectors: Vec<_> = self
            .values
            .iter()
            .filter(|v| v.ty.is_vector() && v.ty.scalar == ty.scalar)
            .cloned()
            .collect();
        if ty.is_vector() || vectors.is_empty() {
            return self.select(ty);
        }
        let vector = vectors[self.pick(vectors.len())].clone();
        let lane = self.pick(usize::from(vector.ty.lanes));
        self.divergent |= !vector.uniform;
        format!("extract {}, {lane}", vector.name)
    }

    fn float(&mut self, ty: Type) {
        const BINARY: [&str; 8] = [
            "add", "sub", "mul", "div", "min", "max", "min_nan", "max_nan",
        ];
        let what = match self.pick(18) {
            0..=7 => {
                let op = self.choose(&BINARY);
                let (a, b) = (self.value(ty), self.value(ty));
                format!("{op} {a}, {b}")
            }
            8 | 9 => {
                let (a, b, c) = (self.value(ty), self.value(ty), self.value(ty));
                format!("fma {a}, {b}, {c}")
            }
            10 | 11 => {
                let op =
                    self.choose(&["neg", "abs", "sqrt", "floor", "ceil", "trunc", "round_even"]);
                let a = self.value(ty);
                format!("{op} {a}")
            }
            12 => self.select(ty),
            13 | 14 => self.conversion(ty),
            15 | 16 => self.bits_of(ty),
            _ => self.lane_of(ty),
        };
        let result = self.define(ty, &what);
        self.calm(ty, result);
    }

    /// A function whose result is kept apart.
    pub(super) fn function(&mut self) {
        let (name, operands) = self.choose(&FUNCTIONS);
        let scalar = self.scalar_of(|s| matches!(s, Scalar::F32 | Scalar::F16 | Scalar::BF16));
        let ty = scalar.x(self.choose(&[1, 1, 2, 4]));
        let operands: Vec<String> = (0..operands).map(|_| self.value(ty)).collect();
        let result = self.name();
        self.line(&format!("{result}: {ty} = {name} {}", operands.join(", ")));
        let kept = if ty.is_vector() {
            let lane = self.pick(usize::from(ty.lanes));
            let part = self.name();
            self.line(&format!("{part}: {scalar} = extract {result}, {lane}"));
            part
        } else {
            result
        };
        self.divergent = false;
        self.line(&format!("$f_{name}_{scalar} = {kept}"));
        if !self.functions.contains(&(name, scalar)) {
            self.functions.push((name, scalar));
        }
    }

    /// Replaces what is tiny by one, lane by lane: the answer no longer depends on whether a
    /// subnormal is kept.
    pub(super) fn calm(&mut self, ty: Type, value: String) {
        if !self.tame || !ty.scalar.is_float() {
            return;
        }
        let bits = |x: f64| iron_ir::testing::round_to(ty.scalar, x);
        let uniform = self.values.iter().any(|v| v.name == value && v.uniform);
        let (limit, one) = (
            self.spread(ty, &format!("{}:0x{:x}", ty.scalar, bits(1e-4))),
            self.spread(ty, &format!("{}:0x{:x}", ty.scalar, bits(1.0))),
        );
        self.divergent = !uniform;
        let magnitude = self.define(ty, &format!("abs {value}"));
        let truth = ty.with_scalar(Scalar::Bool);
        self.divergent = !uniform;
        let tiny = self.define(truth, &format!("lt {magnitude}, {limit}"));
        // What is not calm yet is used no more.
        self.values
            .retain(|v| v.name != value && v.name != magnitude);
        self.divergent = !uniform;
        self.define(ty, &format!("select {tiny}, {one}, {value}"));
    }
}
