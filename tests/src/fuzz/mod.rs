//! Random kernels in the textual IR: well typed, free of faults, and with one answer.
//!
//! A kernel is read off a list of numbers, one a decision; past the end of the list every
//! decision is the first, simplest one. So a shorter list, and smaller numbers in it, give a
//! smaller kernel, and a property test shrinks the list.
//!
//! | file | what it writes |
//! |---|---|
//! | `compute` | arithmetic, comparisons, conversions, vectors, bit casts, functions |
//! | `flow` | branches, loops of every integer type, `break`, `continue`, `return` |
//! | `memory` | private arrays, tensors of one and two dimensions, packed types, atomics |
//! | `together` | shared arrays with barriers, collectives, subgroup operations, shared atomics |
//! | `tiles` | tile statements on small whole numbers, so that every order of sums is exact |
//! | `edges` | the constants and inputs |
//!
//! Transcendental functions have no exact answer: their results go to tensors of their own
//! (`f_exp_f32`), which are compared within the stated bound, and nothing else reads them. Not
//! generated are barriers of the whole grid, and the bits of a NaN (its payload is unspecified).

mod compute;
mod edges;
mod flow;
mod memory;
mod tiles;
mod together;

use std::fmt::Write as _;

use iron_ir::{Scalar, Type};

pub use edges::edges;
use tiles::Tiles;

/// Grid and workgroup of a kernel.
type Shape = ([u32; 3], [u32; 3]);

/// Grids and workgroups over which kernels are spread, the simplest first.
const SHAPES: [Shape; 9] = [
    ([1, 1, 1], [1, 1, 1]),
    ([3, 1, 1], [8, 1, 1]),
    ([2, 1, 1], [32, 1, 1]),
    ([2, 1, 1], [48, 1, 1]),
    ([1, 1, 1], [64, 1, 1]),
    ([2, 1, 1], [33, 1, 1]),
    ([2, 2, 1], [4, 3, 2]),
    ([1, 3, 2], [8, 4, 1]),
    ([2, 1, 2], [1, 16, 1]),
];

/// Types of values.
const SCALARS: [Scalar; 13] = [
    Scalar::I32,
    Scalar::U32,
    Scalar::F32,
    Scalar::Bool,
    Scalar::U64,
    Scalar::I64,
    Scalar::I8,
    Scalar::U8,
    Scalar::I16,
    Scalar::U16,
    Scalar::F16,
    Scalar::BF16,
    Scalar::F64,
];

/// Elements of private arrays.
const PRIVATE: u32 = 8;
/// Elements of shared arrays: the threads of the largest workgroup.
const SHARED: u32 = 64;
/// Statements of a kernel, about.
const STATEMENTS: usize = 60;
/// Depth of blocks from which on no statement opens another.
const DEPTH: usize = 4;
/// Nested loops.
const LOOPS: usize = 2;

/// The kernel that a list of decisions gives. `tame` ones meet no subnormal `f32`.
pub fn kernel_text(decisions: &[u32]) -> String {
    let mut writer = Writer {
        decisions,
        at: 0,
        text: String::new(),
        depth: 1,
        next: 0,
        values: Vec::new(),
        divergent: false,
        locals: Vec::new(),
        loops: Vec::new(),
        statements: 0,
        tame: true,
        collective: false,
        uniform_flow: false,
        shape: SHAPES[0],
        own: "global_id.0".into(),
        group: "group_id.0".into(),
        types: Vec::new(),
        counters: 0,
        functions: Vec::new(),
        tiles: None,
    };
    writer.kernel()
}

/// A value in scope.
#[derive(Clone)]
struct Named {
    name: String,
    ty: Type,
    /// The same in every thread of a workgroup, as the verifier sees it.
    uniform: bool,
}

struct Writer<'d> {
    decisions: &'d [u32],
    at: usize,
    text: String,
    depth: usize,
    /// Number of the next name.
    next: u32,
    /// Values in scope.
    values: Vec<Named>,
    /// An operand of the value that is being written differs between threads.
    divergent: bool,
    /// Variables.
    locals: Vec<(String, Type)>,
    /// Enclosing loops: whether every thread of the workgroup takes the same turns.
    loops: Vec<bool>,
    statements: usize,
    /// No subnormal `f32` comes up: what becomes tiny is replaced by one.
    tame: bool,
    /// Barriers and collectives in uniform control flow, and so no `return`.
    collective: bool,
    /// Every thread of the workgroup is here.
    uniform_flow: bool,
    shape: Shape,
    /// The thread's index in the whole launch, `u32`.
    own: String,
    /// The workgroup's index in the whole launch, `u32`.
    group: String,
    /// Scalars with inputs.
    types: Vec<Scalar>,
    /// Counters of endless loops.
    counters: usize,
    /// Functions whose results are kept, with the type.
    functions: Vec<(&'static str, Scalar)>,
    tiles: Option<Tiles>,
}

impl Writer<'_> {
    /// A decision below `n`.
    fn pick(&mut self, n: usize) -> usize {
        let value = self.decisions.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        value as usize % n.max(1)
    }

    /// One of a list, the first where decisions have run out.
    fn choose<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.pick(list.len())]
    }

    /// There are decisions left.
    fn more(&self) -> bool {
        self.at < self.decisions.len() && self.statements < STATEMENTS
    }

    fn line(&mut self, line: &str) {
        let indent = "  ".repeat(self.depth);
        let _ = writeln!(self.text, "{indent}{line}");
    }

    fn name(&mut self) -> String {
        self.next += 1;
        format!("%v{}", self.next)
    }

    /// A value of the operands named since the last one.
    fn define(&mut self, ty: Type, what: &str) -> String {
        let name = self.name();
        self.line(&format!("{name}: {ty} = {what}"));
        let uniform = !std::mem::replace(&mut self.divergent, false);
        self.values.push(Named {
            name: name.clone(),
            ty,
            uniform,
        });
        name
    }

    /// A value that is each thread's own.
    fn define_own(&mut self, ty: Type, what: &str) -> String {
        self.divergent = true;
        self.define(ty, what)
    }

    fn threads(&self) -> u32 {
        self.shape.1.iter().product()
    }

    fn kernel(&mut self) -> String {
        self.tame = self.pick(3) != 2;
        self.collective = self.pick(2) == 1;
        self.uniform_flow = self.collective;
        self.shape = self.choose(&SHAPES);
        let count = 1 + self.pick(4);
        self.types = vec![Scalar::I32, Scalar::U32, Scalar::F32];
        for _ in 0..count {
            let scalar = self.choose(&SCALARS);
            if !self.types.contains(&scalar) {
                self.types.push(scalar);
            }
        }
        self.places();
        for scalar in self.types.clone() {
            let at = self.own.clone();
            self.define_own(scalar.x(1), &format!("load @x_{scalar}[{at}]"));
        }
        for index in 0..2 + self.pick(3) {
            let ty = self.any_type();
            let value = self.value(ty);
            let name = format!("$l{index}");
            self.line(&format!("{name} = {value}"));
            self.locals.push((name, ty));
        }
        for scalar in self.types.clone() {
            // Private arrays are written whole before anything reads them.
            let (index, cell) = (self.name(), self.value(scalar.x(1)));
            self.line(&format!("for {index}: u32 in 0u32 .. {PRIVATE}u32 {{"));
            self.line(&format!("  store &p_{scalar}[{index}] = {cell}"));
            self.line("}");
        }
        while self.more() {
            self.statement();
        }
        let outputs = self.outputs();
        self.assemble(&outputs)
    }

    /// The thread's and the workgroup's place in the launch.
    fn places(&mut self) {
        let ([_, y, z], [_, width_y, width_z]) = self.shape;
        if [y, z, width_y, width_z] == [1; 4] {
            return;
        }
        let lines = [
            "%g1: u32 = mul group_id.1, group_count.0",
            "%g2: u32 = mul group_id.2, group_count.0",
            "%g3: u32 = mul %g2, group_count.1",
            "%g4: u32 = add group_id.0, %g1",
            "%group: u32 = add %g4, %g3",
            "%g5: u32 = mul %group, group_threads",
            "%own: u32 = add %g5, local_index",
        ];
        for line in lines {
            self.line(line);
        }
        (self.own, self.group) = ("%own".into(), "%group".into());
    }

    fn statement(&mut self) {
        self.statements += 1;
        let nests = self.depth < DEPTH;
        let together = self.uniform_flow;
        match self.pick(44) {
            0..=13 => self.operation(),
            14 => {
                let (local, ty) = self.local();
                let value = self.value(ty);
                self.line(&format!("{local} = {value}"));
            }
            15 => {
                let (local, ty) = self.local();
                self.define_own(ty, &local);
            }
            16 | 17 => self.private(),
            18 | 19 if nests => self.branch(),
            20 | 21 if nests && self.loops.len() < LOOPS => self.counted_loop(),
            22 if nests && self.loops.len() < LOOPS => self.endless_loop(),
            23 | 24 if together => self.exchange(),
            25..=27 if together => self.collective(),
            28..=30 if together => self.subgroup(),
            31 if together => self.shared_atomics(),
            32 | 33 if together => self.tile(),
            34 => self.atomic_of_all(),
            35 => self.atomic_of_own(),
            36 | 37 => self.own_memory(),
            38 => self.packed(),
            39 => self.function(),
            40 => self.gather(),
            41 => self.aliased(),
            42 => {
                let index = self.index(8);
                self.divergent = true;
                self.define(Type::U32, &format!("check_index {index}, 8u32"));
            }
            _ => self.operation(),
        }
    }

    fn local(&mut self) -> (String, Type) {
        let index = self.pick(self.locals.len());
        self.locals[index].clone()
    }

    /// An index below a power of two.
    fn index(&mut self, len: u32) -> String {
        let value = self.value(Type::U32);
        self.define(Type::U32, &format!("and {value}, {}u32", len - 1))
    }

    /// A scalar with inputs.
    fn scalar(&mut self) -> Scalar {
        let index = self.pick(self.types.len());
        self.types[index]
    }

    /// A scalar with inputs of these.
    fn scalar_of(&mut self, fits: impl Fn(Scalar) -> bool) -> Scalar {
        let fitting: Vec<Scalar> = self.types.iter().copied().filter(|s| fits(*s)).collect();
        self.choose(&fitting)
    }

    fn any_type(&mut self) -> Type {
        let scalar = self.scalar();
        scalar.x(self.choose(&[1, 1, 1, 2, 4, 8]))
    }

    /// A value of a type: one in scope, or a constant.
    fn value(&mut self, ty: Type) -> String {
        let fitting: Vec<Named> = self.values.iter().filter(|v| v.ty == ty).cloned().collect();
        // The youngest first, so that most values are used.
        if !fitting.is_empty() && self.pick(6) != 5 {
            let age = self.pick(fitting.len().min(8));
            let chosen = &fitting[fitting.len() - 1 - age];
            self.divergent |= !chosen.uniform;
            return chosen.name.clone();
        }
        let leaf = self.leaf(ty.scalar);
        self.spread(ty, &leaf)
    }

    /// A value that is the same in every thread of the workgroup.
    fn uniform_value(&mut self, ty: Type) -> String {
        let fitting: Vec<Named> = self
            .values
            .iter()
            .filter(|v| v.ty == ty && v.uniform)
            .cloned()
            .collect();
        if !fitting.is_empty() && self.pick(3) != 2 {
            return fitting[fitting.len() - 1 - self.pick(fitting.len().min(8))]
                .name
                .clone();
        }
        if ty == Type::U32 && self.pick(2) == 1 {
            let group = self.group.clone();
            let places = ["#n", "#m", "group_count.0", "group_threads", &group];
            return places[self.pick(places.len())].into();
        }
        let constant = self.constant(ty.scalar);
        self.spread(ty, &constant)
    }

    /// A scalar leaf in every lane.
    fn spread(&mut self, ty: Type, leaf: &str) -> String {
        if !ty.is_vector() {
            return leaf.into();
        }
        // The splat of one operand says nothing of the others of the value being written.
        let before = self.divergent;
        let name = self.define(ty, &format!("splat {leaf}"));
        self.divergent |= before;
        name
    }

    /// A constant, a scalar parameter, or the thread's place.
    fn leaf(&mut self, scalar: Scalar) -> String {
        let parameter = matches!(
            scalar,
            Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::U64 | Scalar::F32
        );
        match (self.pick(6), scalar) {
            (4, _) if parameter => format!("@s_{scalar}"),
            (5, Scalar::U32) => {
                self.divergent = true;
                self.choose(&[
                    "local_index",
                    "global_id.0",
                    "local_id.1",
                    "global_id.2",
                    "group_size.0",
                ])
                .into()
            }
            (5, Scalar::U64) => {
                let of = self.scalar();
                format!("stride(@z_{of}, 0)")
            }
            _ => self.constant(scalar),
        }
    }

    fn constant(&mut self, scalar: Scalar) -> String {
        let edges = edges(scalar, self.tame);
        format!("{scalar}:0x{:x}", self.choose(&edges))
    }

    /// Stores variables and the youngest values; for each scalar the number of its results.
    fn outputs(&mut self) -> Vec<(Scalar, usize)> {
        let mut shown: Vec<(String, Type)> = Vec::new();
        for (local, ty) in self.locals.clone() {
            let value = self.define_own(ty, &local);
            shown.push((value, ty));
        }
        for scalar in self.types.clone() {
            let at = self.index(PRIVATE);
            let ty = scalar.x(1);
            let value = self.define_own(ty, &format!("load &p_{scalar}[{at}]"));
            shown.push((value, ty));
        }
        let young = self.values.iter().rev().skip(shown.len()).take(10);
        shown.extend(young.map(|v| (v.name.clone(), v.ty)));
        let mut scalars: Vec<(Scalar, String)> = Vec::new();
        for (value, ty) in shown {
            if ty.is_vector() {
                for lane in 0..ty.lanes {
                    let part = self.define(ty.scalar.x(1), &format!("extract {value}, {lane}"));
                    scalars.push((ty.scalar, part));
                }
            } else {
                scalars.push((ty.scalar, value));
            }
        }
        let mut counts: Vec<(Scalar, usize)> = Vec::new();
        for (scalar, _) in &scalars {
            match counts.iter_mut().find(|(s, _)| s == scalar) {
                Some((_, count)) => *count += 1,
                None => counts.push((*scalar, 1)),
            }
        }
        for &(scalar, count) in &counts {
            let own = self.own.clone();
            let start = self.define(Type::U32, &format!("mul {own}, {count}u32"));
            let of_type = scalars.iter().filter(|(s, _)| *s == scalar);
            for (i, (_, value)) in of_type.enumerate() {
                let at = self.define(Type::U32, &format!("add {start}, {i}u32"));
                self.line(&format!("store @y_{scalar}[{at}] = {value}"));
            }
        }
        for (name, scalar) in self.functions.clone() {
            let (own, local) = (self.own.clone(), format!("$f_{name}_{scalar}"));
            let value = self.define(scalar.x(1), &local);
            self.line(&format!("store @f_{name}_{scalar}[{own}] = {value}"));
        }
        self.store_tiles();
        counts
    }

    /// The whole text: declarations of what the body names, and the body.
    fn assemble(&self, outputs: &[(Scalar, usize)]) -> String {
        let mood = if self.tame { "tame" } else { "wild" };
        let ([gx, gy, gz], [wx, wy, wz]) = self.shape;
        let mut body = String::new();
        for counter in 0..self.counters {
            let _ = writeln!(body, "  $c{counter} = 0u32");
        }
        for (name, scalar) in &self.functions {
            let _ = writeln!(body, "  $f_{name}_{scalar} = {scalar}:0x0");
        }
        body.push_str(&self.text);
        let mut declared = String::new();
        let mut declare = |name: &str, what: String| {
            if names(&body, name) {
                let _ = writeln!(declared, "  {what}");
            }
        };
        for scalar in &self.types {
            for (name, shape) in [("x", "#n"), ("z", "#n, #m")] {
                let name = format!("@{name}_{scalar}");
                let layout = if scalar.bytes() == 4 && name.starts_with("@z") {
                    "strided, "
                } else {
                    ""
                };
                declare(
                    &name,
                    format!("param {name}: tensor<{scalar}, [{shape}], read, {layout}align 1>"),
                );
            }
            let name = format!("@w_{scalar}");
            declare(
                &name,
                format!("param {name}: tensor<{scalar}, [#n, 8], read, align 8>"),
            );
            let name = format!("@m_{scalar}");
            declare(
                &name,
                format!("param {name}: tensor<{scalar}, [#n, 4], read_write, align 4>"),
            );
            let (from, to) = (format!("@i_{scalar}"), format!("@o_{scalar}"));
            for (name, access, other) in [(&from, "read", &to), (&to, "read_write", &from)] {
                let what = format!(
                    "param {name}: tensor<{scalar}, [#n], {access}, align 1, alias {other}>"
                );
                // Each names the other, so both are there where one is used.
                let used = if names(&body, &from) { &from } else { &to };
                declare(used, what);
            }
        }
        for scalar in memory::PACKED {
            for (name, access) in [("q", "read"), ("k", "read_write")] {
                let name = format!("@{name}_{scalar}");
                declare(
                    &name,
                    format!("param {name}: tensor<{scalar}, [#n, 4], {access}, align 4>"),
                );
            }
        }
        for scalar in memory::ATOMIC {
            let name = format!("@c_{scalar}");
            declare(
                &name,
                format!("param {name}: tensor<{scalar}, [#n], read_write, align 1>"),
            );
        }
        for (scalar, count) in outputs {
            let name = format!("@y_{scalar}");
            declare(
                &name,
                format!("param {name}: tensor<{scalar}, [#n * {count}], read_write, align 1>"),
            );
        }
        for (name, scalar) in &self.functions {
            let name = format!("@f_{name}_{scalar}");
            declare(
                &name,
                format!("param {name}: tensor<{scalar}, [#n], read_write, align 1>"),
            );
        }
        declare(
            "@cells",
            "param @cells: tensor<u32, [6], read_write, align 1>".into(),
        );
        for scalar in [
            Scalar::I32,
            Scalar::U32,
            Scalar::I64,
            Scalar::U64,
            Scalar::F32,
        ] {
            let name = format!("@s_{scalar}");
            declare(&name, format!("param {name}: {scalar}"));
        }
        if let Some(tiles) = &self.tiles {
            tiles.declare(gx * gy * gz, &mut declare);
        }
        for (name, ty) in &self.locals {
            declare(name, format!("local {name}: {ty}"));
        }
        for counter in 0..self.counters {
            declare(&format!("$c{counter}"), format!("local $c{counter}: u32"));
        }
        for (name, scalar) in &self.functions {
            let name = format!("$f_{name}_{scalar}");
            declare(&name, format!("local {name}: {scalar}"));
        }
        for scalar in SCALARS {
            for (name, space, len) in [
                ("&s", "shared", SHARED),
                ("&a", "shared", 8),
                ("&p", "private", PRIVATE),
            ] {
                let name = format!("{name}_{scalar}");
                declare(&name, format!("{space} {name}: [{scalar}; {len}]"));
            }
        }
        // A dimension is bound by a tensor that has it as an extent of its own.
        for (dim, binder) in [("#m", "[#n, #m]"), ("#n", "[#n")] {
            let needed = dim == "#n" || names(&body, dim) || names(&declared, dim);
            let bound = declared.contains(&format!("{binder}, "))
                || declared.contains(&format!("{binder}]"));
            if needed && !bound {
                let extents = binder.trim_start_matches('[').trim_end_matches(']');
                let name = if dim == "#n" { "bind_n" } else { "bind_m" };
                let _ = writeln!(
                    declared,
                    "  param @{name}: tensor<u32, [{extents}], read, align 1>"
                );
            }
        }
        // Parameters stand before variables and arrays.
        let (params, others): (Vec<&str>, Vec<&str>) = declared
            .lines()
            .partition(|line| line.starts_with("  param"));
        let mut out = format!(
            "kernel @{mood} grid({gx}, {gy}, {gz}) workgroup({wx}, {wy}, {wz}) {{\n  dim #n\n"
        );
        if names(&body, "#m") || names(&declared, "#m") {
            out.push_str("  dim #m\n");
        }
        for line in params.into_iter().chain(others) {
            out.push_str(line);
            out.push('\n');
        }
        out.push('\n');
        out.push_str(&body);
        out.push_str("}\n");
        out
    }
}

/// Whether a text holds a name, and not as the beginning of a longer one.
fn names(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let after = text[at + name.len()..].chars().next();
        !after.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_whole() {
        assert!(names("load @x_u8[%v1]", "@x_u8"));
        assert!(!names("load @x_u8[%v1]", "@x_u"));
        assert!(!names("%v1", "#n"));
    }

    #[test]
    fn no_decisions_give_the_simplest_kernel_and_each_is_well_formed() {
        for seed in 0..200u32 {
            let decisions: Vec<u32> = (0..seed)
                .map(|i| (i + seed * 977).wrapping_mul(0x9e37_79b9).rotate_left(7))
                .collect();
            let text = kernel_text(&decisions);
            let kernel = iron_ir::parse::parse(&text)
                .unwrap_or_else(|error| panic!("{seed}: {error}\n{text}"));
            if let Err(errors) = iron_ir::verify::verify(&kernel) {
                panic!("{seed}: {errors}\n{text}");
            }
        }
    }
}
