//! Private arrays, tensors of each thread's own rows, packed types, and atomics.

use iron_ir::{Scalar, Type};

use super::{PRIVATE, Writer};

/// Packed storage types.
pub(super) const PACKED: [Scalar; 5] = [
    Scalar::F8E4M3,
    Scalar::F8E5M2,
    Scalar::E8M0,
    Scalar::F4E2M1x2,
    Scalar::Int4x8,
];

/// Types of atomic cells.
pub(super) const ATOMIC: [Scalar; 5] = [
    Scalar::U32,
    Scalar::I32,
    Scalar::U64,
    Scalar::I64,
    Scalar::F32,
];

impl Writer<'_> {
    /// An index of whole vectors into `len` elements.
    fn vector_index(&mut self, len: u32, lanes: u8) -> String {
        let value = self.value(Type::U32);
        let mask = len - u32::from(lanes);
        self.define(Type::U32, &format!("and {value}, {mask}u32"))
    }

    /// Writes or reads the thread's array, by lanes that divide it.
    pub(super) fn private(&mut self) {
        let scalar = self.scalar();
        let ty = scalar.x(self.choose(&[1, 1, 1, 2, 4, 8]));
        let at = self.vector_index(PRIVATE, ty.lanes);
        if self.pick(2) == 0 {
            let value = self.value(ty);
            self.line(&format!("store &p_{scalar}[{at}] = {value}"));
        } else {
            self.define_own(ty, &format!("load &p_{scalar}[{at}]"));
        }
    }

    /// Writes or reads the thread's own row of a tensor.
    pub(super) fn own_memory(&mut self) {
        let scalar = self.scalar();
        let ty = scalar.x(self.choose(&[1, 1, 2, 4]));
        let at = self.vector_index(4, ty.lanes);
        let own = self.own.clone();
        if self.pick(2) == 0 {
            let value = self.value(ty);
            self.line(&format!("store @m_{scalar}[{own}, {at}] = {value}"));
        } else {
            self.define_own(ty, &format!("load @m_{scalar}[{own}, {at}]"));
        }
    }

    /// A tensor that is read, and the same one by the name under which it is written.
    pub(super) fn aliased(&mut self) {
        let scalar = self.scalar();
        let own = self.own.clone();
        match self.pick(3) {
            0 => {
                let value = self.value(scalar.x(1));
                self.line(&format!("store @o_{scalar}[{own}] = {value}"));
            }
            1 => {
                self.define_own(scalar.x(1), &format!("load @i_{scalar}[{own}]"));
            }
            _ => {
                self.define_own(scalar.x(1), &format!("load @o_{scalar}[{own}]"));
            }
        }
    }

    /// Reads anywhere in a tensor that nothing writes.
    pub(super) fn gather(&mut self) {
        let scalar = self.scalar();
        let uniform = self.pick(3) == 2;
        let row = if uniform {
            self.uniform_value(Type::U32)
        } else {
            self.value(Type::U32)
        };
        let row = self.define(Type::U32, &format!("rem {row}, #n"));
        let divergent = self.values.iter().any(|v| v.name == row && !v.uniform);
        match self.pick(3) {
            0 => {
                self.divergent = divergent;
                self.define(scalar.x(1), &format!("load @x_{scalar}[{row}]"));
            }
            1 => {
                let column = format!("{}u32", self.pick(5));
                self.divergent = divergent;
                self.define(scalar.x(1), &format!("load @z_{scalar}[{row}, {column}]"));
            }
            _ => {
                let ty = scalar.x(self.choose(&[8, 4, 2]));
                let column = self.choose(&[0, u32::from(ty.lanes) & 4]);
                self.divergent = divergent;
                self.define(ty, &format!("load @w_{scalar}[{row}, {column}u32]"));
            }
        }
    }

    /// Decodes packed values, or encodes and stores them.
    pub(super) fn packed(&mut self) {
        let packed = self.choose(&PACKED);
        let encodes = matches!(packed, Scalar::F8E4M3 | Scalar::F8E5M2);
        let own = self.own.clone();
        let lanes = self.choose(&[1, 1, 2, 4]);
        if encodes && self.pick(2) == 1 {
            let float = self.scalar_of(Scalar::is_float);
            let value = self.value(float.x(lanes));
            let code = self.name();
            let ty = packed.x(lanes);
            self.line(&format!("{code}: {ty} = convert {value}"));
            self.line(&format!("store @k_{packed}[{own}, 0u32] = {code}"));
            self.decode(packed, lanes, &code);
            return;
        }
        let lanes = match packed {
            Scalar::Int4x8 => 1,
            _ => lanes,
        };
        let at = self.vector_index(4, lanes);
        let code = self.name();
        let ty = packed.x(lanes);
        self.line(&format!("{code}: {ty} = load @q_{packed}[{own}, {at}]"));
        self.decode(packed, lanes, &code);
    }

    fn decode(&mut self, packed: Scalar, lanes: u8, code: &str) {
        let (to, lanes) = match packed {
            Scalar::Int4x8 => {
                let to = self.scalar_of(|s| s.is_int() || s.is_float());
                (to, 8)
            }
            Scalar::F4E2M1x2 => (self.scalar_of(Scalar::is_float), 2 * lanes),
            _ => (self.scalar_of(Scalar::is_float), lanes),
        };
        let ty = to.x(lanes);
        let result = self.define_own(ty, &format!("convert {code}"));
        self.calm(ty, result);
    }

    /// One operator a cell of the launch, so that the order of threads does not show.
    pub(super) fn atomic_of_all(&mut self) {
        let ops = ["add", "xor", "max", "min", "or", "and"];
        let cell = self.pick(ops.len());
        let value = self.value(Type::U32);
        let name = self.name();
        self.divergent = false;
        self.line(&format!(
            "{name}: u32 = atomic {} @cells[{cell}u32], {value}",
            ops[cell]
        ));
    }

    /// The thread's own cell, whose old value is known.
    pub(super) fn atomic_of_own(&mut self) {
        let scalar = self.choose(&ATOMIC);
        let ty = scalar.x(1);
        let own = self.own.clone();
        let op = if scalar == Scalar::F32 {
            self.choose(&["add", "exchange", "load", "store"])
        } else {
            self.choose(&[
                "add",
                "min",
                "max",
                "and",
                "or",
                "xor",
                "exchange",
                "compare_exchange",
                "load",
                "store",
            ])
        };
        let mut operands = String::new();
        if op != "load" {
            operands = format!(", {}", self.value(ty));
        }
        if op == "compare_exchange" {
            let expected = if self.pick(2) == 0 {
                self.define_own(ty, &format!("load @c_{scalar}[{own}]"))
            } else {
                self.value(ty)
            };
            operands = format!("{operands}, {expected}");
        }
        let what = format!("atomic {op} @c_{scalar}[{own}]{operands}");
        if op == "store" {
            let name = self.name();
            self.divergent = false;
            self.line(&format!("{name}: {ty} = {what}"));
        } else {
            let old = self.define_own(ty, &what);
            self.calm(ty, old);
        }
    }
}
