//! What the threads of a workgroup do together, in uniform control flow.

use iron_ir::{Scalar, Type};

use super::Writer;

impl Writer<'_> {
    /// Every thread writes its cell of a shared array and reads another's.
    pub(super) fn exchange(&mut self) {
        let scalar = self.scalar();
        let value = self.value(scalar.x(1));
        let memory = self.choose(&["shared", "shared_and_global"]);
        self.line(&format!("store &s_{scalar}[local_index] = {value}"));
        self.line(&format!("barrier workgroup {memory}"));
        let at = if self.pick(2) == 0 {
            format!("{}u32", self.pick(64))
        } else {
            // Sums of indices must not wrap before the remainder is taken.
            self.index(1 << 16)
        };
        let sum = self.define_own(Type::U32, &format!("add local_index, {at}"));
        self.divergent = true;
        let at = self.define(Type::U32, &format!("rem {sum}, group_threads"));
        self.define_own(scalar.x(1), &format!("load &s_{scalar}[{at}]"));
        self.line("barrier workgroup shared");
    }

    /// An operator of a reduction that does not depend on rounding that subnormals change.
    fn reduction(&mut self, scalar: Scalar) -> &'static str {
        if scalar == Scalar::Bool {
            self.choose(&["and", "or"])
        } else if scalar.is_int() {
            self.choose(&["sum", "max", "min", "and", "or", "product"])
        } else {
            let ops = ["sum", "max", "min", "max_nan", "min_nan", "product"];
            self.choose(&ops[..if self.tame { 5 } else { 6 }])
        }
    }

    pub(super) fn collective(&mut self) {
        let scalar = self.scalar();
        let ty = scalar.x(1);
        let value = self.value(ty);
        let kind = self.pick(6);
        let scan = matches!(kind, 2 | 3);
        let what = match kind {
            2 => format!("group scan_inclusive.{} {value}", self.reduction(scalar)),
            3 => format!("group scan_exclusive.{} {value}", self.reduction(scalar)),
            4 => {
                let thread = self.uniform_value(Type::U32);
                self.divergent = false;
                let thread = self.define(Type::U32, &format!("rem {thread}, group_threads"));
                format!("group broadcast {value}, {thread}")
            }
            _ => format!("group reduce.{} {value}", self.reduction(scalar)),
        };
        self.divergent = scan;
        let result = self.define(ty, &what);
        self.calm(ty, result);
    }

    pub(super) fn subgroup(&mut self) {
        let kind = self.pick(9);
        if matches!(kind, 5..=7) {
            let value = self.value(Type::BOOL);
            let (name, ty) = [
                ("any", Type::BOOL),
                ("all", Type::BOOL),
                ("ballot", Type::U64),
            ][kind - 5];
            self.define_own(ty, &format!("subgroup {name} {value}"));
            return;
        }
        let scalar = self.scalar();
        let ty = scalar.x(1);
        let value = self.value(ty);
        let what = match kind {
            0 | 8 => format!("subgroup reduce.{} {value}", self.reduction(scalar)),
            1 => {
                // A lane that this subgroup has.
                let lane = self.value(Type::U32);
                let before = self.define_own(Type::U32, "mul subgroup_id, subgroup_size");
                let left = self.define_own(Type::U32, &format!("sub group_threads, {before}"));
                let lanes = self.define_own(Type::U32, &format!("min {left}, subgroup_size"));
                let lane = self.define_own(Type::U32, &format!("rem {lane}, {lanes}"));
                format!("subgroup shuffle {value}, {lane}")
            }
            2 => {
                let whole = self.threads().is_multiple_of(4);
                let lane = self.pick(if whole { 4 } else { 1 });
                format!("subgroup broadcast {value}, {lane}u32")
            }
            _ => {
                let op = self.choose(&["shuffle_xor", "shuffle_up", "shuffle_down"]);
                let distance = if self.pick(3) == 2 {
                    self.value(Type::U32)
                } else {
                    self.choose(&["1u32", "2u32", "3u32", "4u32", "16u32", "31u32", "63u32"])
                        .into()
                };
                format!("subgroup {op} {value}, {distance}")
            }
        };
        let result = self.define_own(ty, &what);
        self.calm(ty, result);
    }

    /// Cells of the workgroup, set to zero, changed by every thread by one operator a cell, and
    /// read.
    pub(super) fn shared_atomics(&mut self) {
        let scalar = self.choose(&[Scalar::U32, Scalar::I32, Scalar::U64, Scalar::I64]);
        let ty = scalar.x(1);
        let first = self.define_own(Type::BOOL, "eq local_index, 0u32");
        self.line(&format!("if {first} {{"));
        let index = self.name();
        self.line(&format!("  for {index}: u32 in 0u32 .. 8u32 {{"));
        self.line(&format!("    store &a_{scalar}[{index}] = {scalar}:0x0"));
        self.line("  }");
        self.line("}");
        self.line("barrier workgroup shared");
        let ops = ["add", "xor", "max", "min", "or"];
        let mut cells = Vec::new();
        for _ in 0..1 + self.pick(3) {
            let cell = self.pick(ops.len());
            let value = self.value(ty);
            let name = self.name();
            self.line(&format!(
                "{name}: {ty} = atomic {} &a_{scalar}[{cell}u32], {value}",
                ops[cell]
            ));
            cells.push(cell);
        }
        self.line("barrier workgroup shared");
        for cell in cells {
            self.define_own(ty, &format!("load &a_{scalar}[{cell}u32]"));
        }
        self.line("barrier workgroup shared");
    }
}
