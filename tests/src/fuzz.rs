//! Random kernels in the textual IR: well typed, free of faults, and with one answer.
//!
//! A kernel is read off a list of numbers, one a decision; past the end of the list every
//! decision is the first, simplest one. So a shorter list, and smaller numbers in it, give a
//! smaller kernel, and a property test shrinks the list.
//!
//! Generated are all integer operations, the float operations that round once, conversions,
//! vectors, variables, branches, loops with `break` and `continue`, `return`, private arrays,
//! shared arrays with barriers where control flow is uniform, collectives and atomics. Not
//! generated are transcendental functions (each target has its own bits), subgroup operations
//! (each target has its own width), tiles, and bit casts of floats to integers (the payload of
//! a NaN is unspecified).

use std::fmt::Write as _;

use iron_ir::{Scalar, Type};

/// Threads of the whole launch over which a kernel is spread.
pub const WORKGROUPS: [(u32, u32); 4] = [(1, 1), (3, 8), (2, 32), (2, 48)];

/// Types of values.
const SCALARS: [Scalar; 12] = [
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
];

/// The kernel that a list of decisions gives. `tame` ones meet no subnormal `f32`.
pub fn kernel_text(decisions: &[u32]) -> String {
    let mut writer = Writer {
        decisions,
        at: 0,
        text: String::new(),
        depth: 1,
        next: 0,
        values: Vec::new(),
        locals: Vec::new(),
        loops: 0,
        statements: 0,
        tame: true,
        collective: false,
        types: Vec::new(),
        shared: Vec::new(),
        counters: Vec::new(),
    };
    writer.kernel()
}

struct Writer<'d> {
    decisions: &'d [u32],
    at: usize,
    text: String,
    depth: usize,
    /// Number of the next name.
    next: u32,
    /// Values in scope.
    values: Vec<(String, Type)>,
    locals: Vec<(String, Type)>,
    /// Enclosing loops.
    loops: usize,
    statements: usize,
    /// No subnormal `f32` comes up: what becomes tiny is replaced by one.
    tame: bool,
    /// Barriers and collectives at the top level, and so no `return`.
    collective: bool,
    /// Scalars with inputs.
    types: Vec<Scalar>,
    /// Scalars that have a shared array.
    shared: Vec<Scalar>,
    /// Counters of loops, which are zero from the start.
    counters: Vec<String>,
}

/// Elements of private arrays.
const PRIVATE: u32 = 8;
/// Elements of shared arrays, at least the threads of any workgroup.
const SHARED: u32 = 64;
/// Statements of a kernel, about.
const STATEMENTS: usize = 60;

impl Writer<'_> {
    /// A decision below `n`.
    fn pick(&mut self, n: usize) -> usize {
        let value = self.decisions.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        value as usize % n.max(1)
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

    fn define(&mut self, ty: Type, what: &str) -> String {
        let name = self.name();
        self.line(&format!("{name}: {ty} = {what}"));
        self.values.push((name.clone(), ty));
        name
    }

    fn kernel(&mut self) -> String {
        self.tame = self.pick(3) != 2;
        self.collective = self.pick(2) == 1;
        let (groups, threads) = WORKGROUPS[self.pick(WORKGROUPS.len())];
        let count = 1 + self.pick(4);
        self.types = vec![Scalar::I32, Scalar::U32, Scalar::F32];
        for _ in 0..count {
            let scalar = SCALARS[self.pick(SCALARS.len())];
            if !self.types.contains(&scalar) {
                self.types.push(scalar);
            }
        }
        for scalar in self.types.clone() {
            self.define(scalar.x(1), &format!("load @x_{scalar}[global_id.0]"));
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
        self.assemble(groups, threads, &outputs)
    }

    /// Stores variables and the youngest values; for each scalar the number of its results.
    fn outputs(&mut self) -> Vec<(Scalar, usize)> {
        let mut shown: Vec<(String, Type)> = Vec::new();
        for (local, ty) in self.locals.clone() {
            let value = self.define(ty, &local);
            shown.push((value, ty));
        }
        for scalar in self.types.clone() {
            let at = self.index(PRIVATE);
            let ty = scalar.x(1);
            let value = self.define(ty, &format!("load &p_{scalar}[{at}]"));
            shown.push((value, ty));
        }
        let young: Vec<_> = self
            .values
            .iter()
            .rev()
            .skip(shown.len())
            .take(10)
            .cloned()
            .collect();
        shown.extend(young);
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
            let start = self.define(Type::U32, &format!("mul global_id.0, {count}u32"));
            let of_type: Vec<String> = scalars
                .iter()
                .filter(|(s, _)| *s == scalar)
                .map(|(_, v)| v.clone())
                .collect();
            for (i, value) in of_type.iter().enumerate() {
                let at = self.define(Type::U32, &format!("add {start}, {i}u32"));
                self.line(&format!("store @y_{scalar}[{at}] = {value}"));
            }
        }
        counts
    }

    fn assemble(&self, groups: u32, threads: u32, outputs: &[(Scalar, usize)]) -> String {
        let mood = if self.tame { "tame" } else { "wild" };
        let mut out = format!(
            "kernel @{mood} grid({groups}, 1, 1) workgroup({threads}, 1, 1) {{\n  dim #n\n"
        );
        for scalar in &self.types {
            let _ = writeln!(
                out,
                "  param @x_{scalar}: tensor<{scalar}, [#n], read, align 1>"
            );
        }
        for (scalar, count) in outputs {
            let _ = writeln!(
                out,
                "  param @y_{scalar}: tensor<{scalar}, [#n * {count}], read_write, align 1>"
            );
        }
        let _ = writeln!(out, "  param @cells: tensor<u32, [6], read_write, align 1>");
        for (name, ty) in &self.locals {
            let _ = writeln!(out, "  local {name}: {ty}");
        }
        for scalar in &self.shared {
            let _ = writeln!(out, "  shared &s_{scalar}: [{scalar}; {SHARED}]");
        }
        for scalar in &self.types {
            let _ = writeln!(out, "  private &p_{scalar}: [{scalar}; {PRIVATE}]");
        }
        out.push('\n');
        for counter in &self.counters {
            let _ = writeln!(out, "  {counter} = 0u32");
        }
        out.push_str(&self.text);
        out.push_str("}\n");
        out
    }

    /// A scalar with inputs.
    fn scalar(&mut self) -> Scalar {
        let index = self.pick(self.types.len());
        self.types[index]
    }

    fn any_type(&mut self) -> Type {
        let scalar = self.scalar();
        let lanes = [1, 1, 1, 2, 4][self.pick(5)];
        scalar.x(if scalar == Scalar::Bool { 1 } else { lanes })
    }

    /// A value of a type: one in scope, or a constant.
    fn value(&mut self, ty: Type) -> String {
        let fitting: Vec<String> = self
            .values
            .iter()
            .filter(|(_, t)| *t == ty)
            .map(|(n, _)| n.clone())
            .collect();
        // The youngest first, so that most values are used.
        if !fitting.is_empty() && self.pick(6) != 5 {
            let age = self.pick(fitting.len().min(8));
            return fitting[fitting.len() - 1 - age].clone();
        }
        let constant = self.constant(ty.scalar);
        if ty.is_vector() {
            self.define(ty, &format!("splat {constant}"))
        } else {
            constant
        }
    }

    fn constant(&mut self, scalar: Scalar) -> String {
        let edges = edges(scalar, self.tame);
        let bits = edges[self.pick(edges.len())];
        format!("{scalar}:0x{bits:x}")
    }

    fn statement(&mut self) {
        self.statements += 1;
        let top = self.depth == 1;
        match self.pick(28) {
            0..=11 => self.operation(),
            12 | 13 => {
                let index = self.pick(self.locals.len());
                let (local, ty) = self.locals[index].clone();
                let value = self.value(ty);
                self.line(&format!("{local} = {value}"));
            }
            14 => {
                let index = self.pick(self.locals.len());
                let (local, ty) = self.locals[index].clone();
                self.define(ty, &local);
            }
            15 => {
                let scalar = self.scalar();
                let at = self.index(PRIVATE);
                let value = self.value(scalar.x(1));
                self.line(&format!("store &p_{scalar}[{at}] = {value}"));
            }
            16 => {
                let scalar = self.scalar();
                let at = self.index(PRIVATE);
                self.define(scalar.x(1), &format!("load &p_{scalar}[{at}]"));
            }
            17 | 18 if self.depth < 4 => self.branch(),
            19 if self.depth < 4 && self.loops < 2 => self.counted_loop(),
            20 if self.depth < 4 && self.loops < 2 => self.endless_loop(),
            21 | 24 | 25 if top && self.collective => self.exchange(),
            22 | 26 | 27 if top && self.collective => self.collective(),
            23 => self.atomic(),
            _ => self.operation(),
        }
    }

    /// An index below a power of two.
    fn index(&mut self, len: u32) -> String {
        let value = self.value(Type::U32);
        self.define(Type::U32, &format!("and {value}, {}u32", len - 1))
    }

    /// Statements in a block of their own; their values are gone after it.
    fn block(&mut self, most: usize) {
        let visible = self.values.len();
        self.depth += 1;
        for _ in 0..1 + self.pick(most) {
            if self.more() {
                self.statement();
            }
        }
        // What a block computes leaves it through a variable.
        let index = self.pick(self.locals.len());
        let (local, ty) = self.locals[index].clone();
        if self.values[visible..].iter().any(|(_, t)| *t == ty) && self.pick(4) != 3 {
            let value = self.value(ty);
            self.line(&format!("{local} = {value}"));
        }
        if self.loops > 0 && self.more() && self.pick(6) == 5 {
            let jump = if self.pick(2) == 0 {
                "break"
            } else {
                "continue"
            };
            let condition = self.value(Type::BOOL);
            self.line(&format!("if {condition} {{"));
            self.line(&format!("  {jump}"));
            self.line("}");
        }
        if !self.collective && self.more() && self.pick(24) == 23 {
            let condition = self.value(Type::BOOL);
            self.line(&format!("if {condition} {{"));
            self.line("  return");
            self.line("}");
        }
        self.depth -= 1;
        self.values.truncate(visible);
    }

    fn branch(&mut self) {
        let condition = self.value(Type::BOOL);
        self.line(&format!("if {condition} {{"));
        self.block(4);
        if self.pick(2) == 1 {
            self.line("} else {");
            self.block(4);
        }
        self.line("}");
    }

    fn counted_loop(&mut self) {
        let end = if self.pick(2) == 0 {
            format!("{}u32", self.pick(5))
        } else {
            self.index(4)
        };
        let step = ["", " step 2u32", " unroll", " never_unroll"][self.pick(4)];
        // Full unrolling needs a constant trip count.
        let step = if step == " unroll" && !end.ends_with("u32") {
            ""
        } else {
            step
        };
        let index = self.name();
        self.line(&format!("for {index}: u32 in 0u32 .. {end}{step} {{"));
        self.values.push((index, Type::U32));
        self.loops += 1;
        self.block(5);
        self.loops -= 1;
        self.values.pop();
        self.line("}");
    }

    fn endless_loop(&mut self) {
        let counter = format!("$l{}", self.locals.len());
        self.locals.push((counter.clone(), Type::U32));
        let turns = 1 + self.pick(4);
        // No statement of the body may choose the counter, so it is out of the list meanwhile.
        let hidden = self.locals.pop();
        self.counters.push(counter.clone());
        self.line(&format!("{counter} = 0u32"));
        self.line("loop {");
        self.depth += 1;
        let visible = self.values.len();
        let old = self.define(Type::U32, &counter);
        let new = self.define(Type::U32, &format!("add {old}, 1u32"));
        self.line(&format!("{counter} = {new}"));
        let done = self.define(Type::BOOL, &format!("gt {new}, {turns}u32"));
        self.line(&format!("if {done} {{"));
        self.line("  break");
        self.line("}");
        self.depth -= 1;
        self.loops += 1;
        // Locals made inside would take the counter's name.
        let loops = self.loops;
        self.loops = 2;
        self.block(4);
        self.loops = loops - 1;
        self.values.truncate(visible);
        self.line("}");
        self.locals.extend(hidden);
    }

    /// Every thread writes its cell of a shared array and reads another's.
    fn exchange(&mut self) {
        let scalar = self.scalar();
        if !self.shared.contains(&scalar) {
            self.shared.push(scalar);
        }
        let value = self.value(scalar.x(1));
        let distance = self.pick(64);
        self.line(&format!("store &s_{scalar}[local_index] = {value}"));
        self.line("barrier workgroup shared");
        let sum = self.define(Type::U32, &format!("add local_index, {distance}u32"));
        let at = self.define(Type::U32, &format!("rem {sum}, group_threads"));
        self.define(scalar.x(1), &format!("load &s_{scalar}[{at}]"));
        self.line("barrier workgroup shared");
    }

    fn collective(&mut self) {
        let numbers: Vec<Scalar> = self
            .types
            .iter()
            .copied()
            .filter(|s| s.is_int() || *s == Scalar::F32)
            .collect();
        let scalar = numbers[self.pick(numbers.len())];
        let value = self.value(scalar.x(1));
        let op = if scalar.is_float() {
            ["sum", "max", "min", "max_nan", "min_nan"][self.pick(5)]
        } else {
            ["sum", "max", "min", "and", "or", "product"][self.pick(6)]
        };
        let what = match self.pick(4) {
            0 | 1 => format!("group reduce.{op} {value}"),
            2 => format!("group scan_inclusive.{op} {value}"),
            _ => format!("group scan_exclusive.{op} {value}"),
        };
        let result = self.define(scalar.x(1), &what);
        self.calm(scalar.x(1), result);
    }

    /// One operator a cell, so that the order of threads does not show.
    fn atomic(&mut self) {
        let ops = ["add", "xor", "max", "min", "or", "and"];
        let cell = self.pick(ops.len());
        let value = self.value(Type::U32);
        let name = self.name();
        self.line(&format!(
            "{name}: u32 = atomic {} @cells[{cell}u32], {value}",
            ops[cell]
        ));
    }

    fn operation(&mut self) {
        let mut ty = self.any_type();
        if self.pick(8) == 7 {
            ty = Type::BOOL;
        }
        if ty.is_vector() && self.pick(3) == 0 {
            self.build_vector(ty);
            return;
        }
        match ty.scalar {
            Scalar::Bool => self.truth(),
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

    fn truth(&mut self) {
        let what = match self.pick(5) {
            0..=2 => {
                let scalar = self.scalar();
                let (a, b) = (self.value(scalar.x(1)), self.value(scalar.x(1)));
                let ops = ["lt", "eq", "ne", "le", "gt", "ge"];
                let count = if scalar == Scalar::Bool { 2 } else { 6 };
                let ops = if count == 2 { &ops[1..3] } else { &ops[..] };
                format!("{} {a}, {b}", ops[self.pick(count)])
            }
            3 => {
                let (a, b) = (self.value(Type::BOOL), self.value(Type::BOOL));
                format!("{} {a}, {b}", ["and", "or", "xor"][self.pick(3)])
            }
            _ => {
                let a = self.value(Type::BOOL);
                format!("not {a}")
            }
        };
        self.define(Type::BOOL, &what);
    }

    fn select(&mut self, ty: Type) -> String {
        let condition = self.value(Type::BOOL);
        let (a, b) = (self.value(ty), self.value(ty));
        format!("select {condition}, {a}, {b}")
    }

    /// A conversion from another scalar with as many lanes, where one is at hand.
    fn conversion(&mut self, ty: Type) -> String {
        let from = self.scalar();
        if from == ty.scalar || (from == Scalar::Bool && ty.is_vector()) {
            let a = self.value(ty);
            return format!("select true, {a}, {a}");
        }
        let a = self.value(from.x(ty.lanes));
        format!("convert {a}")
    }

    fn integer(&mut self, ty: Type) {
        const BINARY: [&str; 13] = [
            "add", "sub", "mul", "and", "or", "xor", "shl", "shr", "min", "max", "div", "rem",
            "mul_high",
        ];
        let what = match self.pick(20) {
            0..=11 => {
                let op = BINARY[self.pick(BINARY.len())];
                let (a, b) = (self.value(ty), self.value(ty));
                format!("{op} {a}, {b}")
            }
            12..=14 => {
                let op = ["neg", "not", "abs", "reverse_bits"][self.pick(4)];
                let a = self.value(ty);
                format!("{op} {a}")
            }
            15 => self.select(ty),
            16 | 17 => self.conversion(ty),
            18 if ty.scalar == Scalar::U32 => {
                let integers: Vec<Scalar> =
                    self.types.iter().copied().filter(|s| s.is_int()).collect();
                let from = integers[self.pick(integers.len())].x(ty.lanes);
                let a = self.value(from);
                let op = ["count_ones", "leading_zeros", "trailing_zeros"][self.pick(3)];
                format!("{op} {a}")
            }
            _ => self.lane_of(ty),
        };
        self.define(ty, &what);
    }

    /// A lane of a vector in scope, or a choice.
    fn lane_of(&mut self, ty: Type) -> String {
        let vectors: Vec<(String, Type)> = self
            .values
            .iter()
            .filter(|(_, t)| t.is_vector() && t.scalar == ty.scalar)
            .cloned()
            .collect();
        if ty.is_vector() || vectors.is_empty() {
            return self.select(ty);
        }
        let (vector, of) = vectors[self.pick(vectors.len())].clone();
        let lane = self.pick(usize::from(of.lanes));
        format!("extract {vector}, {lane}")
    }

    fn float(&mut self, ty: Type) {
        const BINARY: [&str; 8] = [
            "add", "sub", "mul", "div", "min", "max", "min_nan", "max_nan",
        ];
        let what = match self.pick(16) {
            0..=7 => {
                let op = BINARY[self.pick(BINARY.len())];
                let (a, b) = (self.value(ty), self.value(ty));
                format!("{op} {a}, {b}")
            }
            8 | 9 => {
                let (a, b, c) = (self.value(ty), self.value(ty), self.value(ty));
                format!("fma {a}, {b}, {c}")
            }
            10 | 11 => {
                let op =
                    ["neg", "abs", "sqrt", "floor", "ceil", "trunc", "round_even"][self.pick(7)];
                let a = self.value(ty);
                format!("{op} {a}")
            }
            12 => self.select(ty),
            13 | 14 => self.conversion(ty),
            _ => self.lane_of(ty),
        };
        let result = self.define(ty, &what);
        self.calm(ty, result);
    }

    /// Replaces what is tiny by one, lane by lane: the answer no longer depends on whether a
    /// subnormal is kept.
    fn calm(&mut self, ty: Type, value: String) {
        if !self.tame || !ty.scalar.is_float() {
            return;
        }
        let bits = |x: f64| iron_ir::testing::round_to(ty.scalar, x);
        let (limit, one) = (bits(1e-4), bits(1.0));
        let scalar = ty.scalar;
        let splat = |w: &mut Self, bits: u64| {
            let constant = format!("{scalar}:0x{bits:x}");
            if ty.is_vector() {
                w.define(ty, &format!("splat {constant}"))
            } else {
                constant
            }
        };
        let (limit, one) = (splat(self, limit), splat(self, one));
        let magnitude = self.define(ty, &format!("abs {value}"));
        let truth = Type {
            scalar: Scalar::Bool,
            lanes: ty.lanes,
        };
        let tiny = self.define(truth, &format!("lt {magnitude}, {limit}"));
        // What is not calm yet is used no more.
        self.values
            .retain(|(name, _)| *name != value && *name != magnitude);
        self.define(ty, &format!("select {tiny}, {one}, {value}"));
    }
}

/// Values at which operations of a type change their behaviour, plain ones first.
pub fn edges(scalar: Scalar, tame: bool) -> Vec<u64> {
    if scalar == Scalar::Bool {
        return vec![0, 1];
    }
    let mask = u64::MAX >> (64 - scalar.bits());
    if scalar.is_int() {
        let top = 1u64 << (scalar.bits() - 1);
        let width = u64::from(scalar.bits());
        return [
            1,
            0,
            2,
            3,
            7,
            5,
            mask,
            mask - 1,
            top,
            top - 1,
            top + 1,
            width,
            width - 1,
            width + 1,
        ]
        .into_iter()
        .map(|bits| bits & mask)
        .collect();
    }
    let plain = [
        1.0,
        2.0,
        0.5,
        3.0,
        -1.0,
        0.1,
        -7.5,
        100.0,
        1.0 / 3.0,
        1000.5,
        f64::INFINITY,
    ];
    let wild = [
        0.0,
        -0.0,
        1e-45,
        1e-38,
        -1e-40,
        6e-8,
        3.4e38,
        65504.0,
        -f64::INFINITY,
        f64::NAN,
    ];
    plain
        .iter()
        .chain(if tame { &wild[8..] } else { &wild[..] })
        .map(|&x| iron_ir::testing::round_to(scalar, x))
        .collect()
}
