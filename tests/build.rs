//! Writes random kernels in the kernel language for the test `generated`: what the macro makes of
//! each is compared with what rustc makes of the same text.
//!
//! `IRON_FUZZ_RUST` is their number and `IRON_FUZZ_RUST_SEED` the seed; without them every build
//! has the same ones. Kernels are free of faults: indices are masked, divisors are not zero, and
//! nothing observes what the specification leaves open (the bits of a NaN, the order of atomics).

use std::fmt::Write as _;
use std::path::Path;

/// Kernels of a build without a number of its own.
const KERNELS: u64 = 100;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for variable in ["IRON_FUZZ_RUST", "IRON_FUZZ_RUST_SEED"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let kernels = number("IRON_FUZZ_RUST", KERNELS);
    let seed = number("IRON_FUZZ_RUST_SEED", 1);
    let mut text = String::from(HELPERS);
    for index in 0..kernels {
        text.push_str(&Writer::new(seed, index).kernel(index));
    }
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(Path::new(&folder).join("generated_kernels.rs"), text)
        .expect("the build folder can be written");
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is `{text}`, no number")),
        Err(_) => default,
    }
}

/// Device functions and a structure that the kernels use.
const HELPERS: &str = r"
#[device_struct]
struct Pair {
    a: u32,
    b: f32,
}

#[device_fn]
fn clipped(x: i32, low: i32) -> i32 {
    if x < low {
        return low;
    }
    for j in 0..4i32 {
        if x < low.wrapping_add(j) {
            return j;
        }
    }
    x
}

#[device_fn]
fn both(x: u32, y: u32) -> (u32, u32) {
    let (q, r) = (x / (y | 1), x % (y | 1));
    if q > r { (r, q) } else { (q, r) }
}

#[device_fn]
fn apply<F: Fn(u32) -> u32>(x: u32, f: F) -> u32 {
    if x & 1 == 1 {
        return f(x) ^ 3;
    }
    f(f(x >> 1))
}

#[device_fn]
fn mixed<T: Float>(x: T, y: f32) -> f32 {
    (x + T::ONE).to_f32() * y
}

#[device_fn]
fn bumped(place: &mut u32, by: u32) {
    *place = place.wrapping_add(by);
}

#[device_fn]
fn paired(p: Pair, x: u32) -> Pair {
    Pair { a: p.a ^ x, b: p.b + x as f32 }
}
";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ty {
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    U8,
    I16,
    F16,
}

use Ty::{Bool, F16, F32, I16, I32, I64, U8, U32, U64};

const NUMBERS: [Ty; 6] = [U32, I32, U64, I64, U8, I16];

impl Ty {
    fn name(self) -> &'static str {
        match self {
            U32 => "u32",
            I32 => "i32",
            F32 => "f32",
            Bool => "bool",
            U64 => "u64",
            I64 => "i64",
            U8 => "u8",
            I16 => "i16",
            F16 => "f16",
        }
    }

    fn is_signed(self) -> bool {
        matches!(self, I32 | I64 | I16)
    }
}

#[derive(Clone)]
struct Variable {
    name: String,
    ty: Ty,
    mutable: bool,
}

struct Writer {
    state: u64,
    text: String,
    depth: usize,
    next: u32,
    variables: Vec<Variable>,
    /// Arrays of four `u32`.
    arrays: Vec<String>,
    /// Closures from `u32` to `u32`.
    closures: Vec<String>,
    /// Structures of type `Pair`.
    pairs: Vec<String>,
    /// Labels of enclosing loops.
    labels: Vec<String>,
    statements: u32,
    /// Threads meet at collectives, and none returns early.
    collective: bool,
}

impl Writer {
    fn new(seed: u64, index: u64) -> Writer {
        Writer {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                ^ index.wrapping_mul(0xd1b5_4a32_d192_ed03),
            text: String::new(),
            depth: 1,
            next: 0,
            variables: Vec::new(),
            arrays: Vec::new(),
            closures: Vec::new(),
            pairs: Vec::new(),
            labels: Vec::new(),
            statements: 0,
            collective: false,
        }
    }

    /// Splitmix64, below `n`.
    fn pick(&mut self, n: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 16) as usize % n
    }

    fn choose<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.pick(list.len())]
    }

    fn line(&mut self, line: &str) {
        let indent = "    ".repeat(self.depth);
        let _ = writeln!(self.text, "{indent}{line}");
    }

    fn name(&mut self, prefix: &str) -> String {
        self.next += 1;
        format!("{prefix}{}", self.next)
    }

    fn kernel(&mut self, index: u64) -> String {
        self.collective = self.pick(2) == 1;
        let threads = self.choose(&[1, 8, 32, 48]);
        let groups = 1 + self.pick(3);
        let _ = writeln!(
            self.text,
            "\n#[kernel(grid = [{groups}], workgroup = {threads})]\nfn generated_{index}(
    xu: &Tensor<u32, (n,)>,
    xi: &Tensor<i32, (n,)>,
    xf: &Tensor<f32, (n,)>,
    xh: &Tensor<f16, (n,)>,
    yu: &mut Tensor<u32, {{ (n * 4,) }}>,
    yi: &mut Tensor<i64, {{ (n * 4,) }}>,
    yf: &mut Tensor<f32, {{ (n * 4,) }}>,
    cells: &mut Tensor<u32, {{ (6,) }}>,
    mine: &mut Tensor<i32, (n,)>,
    k: u32,
    e: f32,
) {{"
        );
        self.line("let i = global_id(0);");
        if self.collective {
            self.line("let mut sh = shared::<u32>(64);");
        }
        for (name, ty, what) in [
            ("a", U32, "xu[i]"),
            ("b", I32, "xi[i]"),
            ("c", F32, "xf[i]"),
            ("d", F16, "xh[i]"),
        ] {
            self.line(&format!("let {name} = {what};"));
            self.variables.push(Variable {
                name: name.into(),
                ty,
                mutable: false,
            });
        }
        for name in ["k", "n"] {
            self.variables.push(Variable {
                name: name.into(),
                ty: U32,
                mutable: false,
            });
        }
        self.variables.push(Variable {
            name: "e".into(),
            ty: F32,
            mutable: false,
        });
        for ty in [U32, I32, F32, I64] {
            self.declare(ty, true);
        }
        let count = 4 + self.pick(14);
        for _ in 0..count {
            self.statement();
        }
        for (tensor, ty) in [("yu", U32), ("yi", I64), ("yf", F32)] {
            for slot in 0..4u32 {
                let value = self.expr(ty, 1);
                self.line(&format!("{tensor}[i * 4 + {slot}] = {value};"));
            }
        }
        self.text.push_str("}\n");
        std::mem::take(&mut self.text)
    }

    fn declare(&mut self, ty: Ty, mutable: bool) {
        let value = self.expr(ty, 2);
        // Shadowing, now and then.
        let old = self
            .variables
            .iter()
            .filter(|v| v.ty == ty && v.name.len() > 1);
        let old: Vec<String> = old.map(|v| v.name.clone()).collect();
        let name = if !old.is_empty() && self.pick(5) == 0 && self.labels.is_empty() {
            old[self.pick(old.len())].clone()
        } else {
            self.name("v")
        };
        let word = if mutable { "mut " } else { "" };
        let typed = if self.pick(2) == 0 {
            format!(": {}", ty.name())
        } else {
            String::new()
        };
        self.line(&format!("let {word}{name}{typed} = {value};"));
        self.variables.retain(|v| v.name != name);
        self.variables.push(Variable { name, ty, mutable });
    }

    fn scoped(&mut self, write: impl FnOnce(&mut Self)) {
        let before = (
            self.variables.clone(),
            self.arrays.clone(),
            self.closures.clone(),
            self.pairs.clone(),
        );
        self.depth += 1;
        write(self);
        self.depth -= 1;
        (self.variables, self.arrays, self.closures, self.pairs) = before;
    }

    fn body(&mut self, most: usize) {
        for _ in 0..1 + self.pick(most) {
            self.statement();
        }
    }

    fn statement(&mut self) {
        self.statements += 1;
        let nests = self.depth < 4 && self.statements < 40;
        let top = self.depth == 1;
        match self.pick(26) {
            0..=3 => {
                let ty = self.choose(&[U32, I32, F32, Bool, U64, I64, U8, I16, F16]);
                let mutable = self.pick(2) == 0;
                self.declare(ty, mutable);
            }
            4..=8 => self.assign(),
            9 | 10 if nests => self.branch(),
            11 | 12 if nests => self.for_loop(),
            13 if nests => self.while_loop(),
            14 if nests => self.valued_loop(),
            15 if nests => self.match_statement(),
            16 => self.array(),
            17 => {
                let name = self.name("f");
                let held = self.expr(U32, 1);
                let kept = self.name("h");
                self.line(&format!("let {kept} = {held};"));
                let op = self.choose(&["^", "&", "|"]);
                self.line(&format!(
                    "let {name} = |p: u32| (p {op} {kept}).wrapping_add(p);"
                ));
                self.closures.push(name);
            }
            18 => self.structure(),
            19 if top && self.collective => self.exchange(),
            20 | 21 if top && self.collective => self.collective(),
            22 => self.atomic(),
            23 => self.vector(),
            24 if !self.collective && self.labels.is_empty() => {
                let condition = self.expr(Bool, 2);
                self.line(&format!("if {condition} && k == 77 {{"));
                self.line("    return;");
                self.line("}");
            }
            _ => self.assign(),
        }
    }

    fn mutable(&mut self) -> Option<Variable> {
        let fitting: Vec<Variable> = self
            .variables
            .iter()
            .filter(|v| v.mutable)
            .cloned()
            .collect();
        if fitting.is_empty() {
            return None;
        }
        let index = self.pick(fitting.len());
        Some(fitting[index].clone())
    }

    fn assign(&mut self) {
        let Some(variable) = self.mutable() else {
            return self.declare(U32, true);
        };
        let Variable { name, ty, .. } = variable;
        let value = self.expr(ty, 3);
        let op = match ty {
            Bool => self.choose(&["=", "=", "&=", "|=", "^="]),
            F32 | F16 => self.choose(&["=", "+=", "-=", "*="]),
            _ => self.choose(&["=", "=", "+=", "-=", "*=", "^=", "|=", "&="]),
        };
        self.line(&format!("{name} {op} {value};"));
    }

    fn branch(&mut self) {
        let condition = self.expr(Bool, 2);
        self.line(&format!("if {condition} {{"));
        self.scoped(|w| w.body(3));
        match self.pick(3) {
            0 => {}
            1 => {
                self.line("} else {");
                self.scoped(|w| w.body(3));
            }
            _ => {
                let condition = self.expr(Bool, 1);
                self.line(&format!("}} else if {condition} {{"));
                self.scoped(|w| w.body(2));
                self.line("} else {");
                self.scoped(|w| w.body(2));
            }
        }
        self.line("}");
    }

    fn jump(&mut self, label: &str) {
        let condition = self.expr(Bool, 2);
        let labels = self.labels.clone();
        let jump = self.choose(&["break", "continue"]);
        let target = match self.pick(3) {
            0 => String::new(),
            1 => format!(" {label}"),
            _ => format!(" {}", labels[self.pick(labels.len())]),
        };
        self.line(&format!("if {condition} {{"));
        self.line(&format!("    {jump}{target};"));
        self.line("}");
    }

    fn for_loop(&mut self) {
        let ty = self.choose(&[U32, U32, I32, U64, U8]);
        let (index, label) = (self.name("j"), self.name("'l"));
        let end = self.pick(5);
        let unit = ty.name();
        let range = match self.pick(6) {
            0 => format!("0..{end}{unit}"),
            1 => format!("1..={end}{unit}"),
            2 => format!("(0..{}{unit}).step_by({})", end + 3, 1 + self.pick(3)),
            3 if ty == U32 => {
                let value = self.expr(U32, 1);
                format!("0..({value} & 3)")
            }
            4 if ty.is_signed() => format!("-{end}..2{unit}"),
            _ => format!("{}::MAX - {end}..{}::MAX", unit, unit),
        };
        self.line(&format!("{label}: for {index} in {range} {{"));
        self.labels.push(label.clone());
        self.scoped(|w| {
            w.variables.push(Variable {
                name: index,
                ty,
                mutable: false,
            });
            w.body(3);
            w.jump(&label);
            w.body(1);
        });
        self.labels.pop();
        self.line("}");
    }

    fn while_loop(&mut self) {
        let (counter, label) = (self.name("w"), self.name("'l"));
        let condition = self.expr(Bool, 1);
        let turns = 1 + self.pick(4);
        self.line(&format!("let mut {counter} = 0u32;"));
        self.line(&format!(
            "{label}: while {counter} < {turns} && ({condition} || {counter} < 2) {{"
        ));
        self.labels.push(label.clone());
        self.scoped(|w| {
            w.line(&format!("{counter} += 1;"));
            w.body(3);
            w.jump(&label);
        });
        self.labels.pop();
        self.line("}");
    }

    fn valued_loop(&mut self) {
        let (counter, result) = (self.name("w"), self.name("v"));
        let turns = self.pick(4);
        self.line(&format!("let mut {counter} = 0u32;"));
        self.line(&format!("let {result} = loop {{"));
        // Labels of outer loops stay out of a loop that has a value.
        let labels = std::mem::take(&mut self.labels);
        self.scoped(|w| {
            w.body(2);
            let (first, second) = (w.expr(U32, 2), w.expr(U32, 2));
            let condition = w.expr(Bool, 1);
            w.line(&format!("{counter} += 1;"));
            w.line(&format!("if {counter} > {turns} {{"));
            w.line(&format!("    break {first};"));
            w.line("}");
            w.line(&format!("if {condition} {{"));
            w.line(&format!("    break {second};"));
            w.line("}");
        });
        self.labels = labels;
        self.line("};");
        self.variables.push(Variable {
            name: result,
            ty: U32,
            mutable: false,
        });
    }

    fn match_statement(&mut self) {
        let scrutinee = self.expr(U32, 1);
        self.line(&format!("match {scrutinee} % 12 {{"));
        for pattern in ["0", "1 | 4", "5..=8"] {
            self.depth += 1;
            self.line(&format!("{pattern} => {{"));
            self.scoped(|w| w.body(2));
            self.line("}");
            self.depth -= 1;
        }
        self.depth += 1;
        let guard = self.expr(Bool, 1);
        let bound = self.name("m");
        self.line(&format!("{bound} if {guard} && {bound} > 2 => {{"));
        self.scoped(|w| {
            w.variables.push(Variable {
                name: bound,
                ty: U32,
                mutable: false,
            });
            w.body(2);
        });
        self.line("}");
        self.line("_ => {");
        self.scoped(|w| w.body(1));
        self.line("}");
        self.depth -= 1;
        self.line("}");
    }

    fn array(&mut self) {
        if self.arrays.is_empty() || self.pick(3) == 0 {
            let (name, value) = (self.name("t"), self.expr(U32, 2));
            if self.pick(2) == 0 {
                self.line(&format!("let mut {name} = [{value}; 4];"));
            } else {
                let others: Vec<String> = (0..3).map(|_| self.expr(U32, 1)).collect();
                self.line(&format!(
                    "let mut {name} = [{value}, {}];",
                    others.join(", ")
                ));
            }
            self.arrays.push(name);
            return;
        }
        let arrays = self.arrays.clone();
        let name = &arrays[self.pick(arrays.len())];
        let (at, value) = (self.expr(U32, 1), self.expr(U32, 2));
        let op = self.choose(&["=", "+=", "^="]);
        self.line(&format!("{name}[({at} & 3) as usize] {op} {value};"));
    }

    fn structure(&mut self) {
        let name = self.name("s");
        let (a, b) = (self.expr(U32, 2), self.expr(F32, 1));
        if self.pick(2) == 0 || self.pairs.is_empty() {
            self.line(&format!("let {name} = Pair {{ a: {a}, b: {b} }};"));
        } else {
            let pairs = self.pairs.clone();
            let old = &pairs[self.pick(pairs.len())];
            self.line(&format!(
                "let {name} = paired(Pair {{ a: {old}.a, b: {old}.b }}, {a});"
            ));
        }
        self.pairs.push(name);
    }

    fn exchange(&mut self) {
        let (value, name) = (self.expr(U32, 2), self.name("v"));
        let distance = self.pick(40);
        self.line(&format!("sh[local_index()] = {value};"));
        self.line("barrier();");
        self.line(&format!(
            "let {name} = sh[(local_index() + {distance}) % group_threads()];"
        ));
        self.line("barrier();");
        self.variables.push(Variable {
            name,
            ty: U32,
            mutable: false,
        });
    }

    fn collective(&mut self) {
        let name = self.name("v");
        let ty = self.choose(&[U32, I32, F32, U64, F16]);
        let value = self.expr(ty, 2);
        let truth = self.expr(Bool, 2);
        let (ty, what) = match self.pick(16) {
            0 => (ty, format!("workgroup_sum({value})")),
            1 => (ty, format!("workgroup_max({value})")),
            2 => (ty, format!("workgroup_min({value})")),
            3 => (ty, format!("subgroup_sum({value})")),
            4 => (ty, format!("subgroup_max({value})")),
            5 => (ty, format!("workgroup_scan_sum({value})")),
            6 => (ty, format!("workgroup_scan_sum_exclusive({value})")),
            7 => (
                ty,
                format!("workgroup_broadcast({value}, k % group_threads())"),
            ),
            8 => (Bool, format!("workgroup_any({truth})")),
            9 => (Bool, format!("subgroup_all({truth})")),
            10 => (U64, format!("subgroup_ballot({truth})")),
            11 => (
                ty,
                format!("subgroup_shuffle_xor({value}, {}u32)", 1 + self.pick(5)),
            ),
            12 => (
                ty,
                format!("subgroup_shuffle_up({value}, {}u32)", self.pick(5)),
            ),
            13 => (
                ty,
                format!("subgroup_shuffle_down({value}, {}u32)", self.pick(9)),
            ),
            14 => (ty, format!("subgroup_broadcast({value}, 0)")),
            _ => (ty, format!("workgroup_product({value})")),
        };
        self.line(&format!("let {name} = {what};"));
        self.variables.push(Variable {
            name,
            ty,
            mutable: false,
        });
    }

    fn atomic(&mut self) {
        if self.pick(2) == 0 {
            let ops = ["add", "xor", "max", "min", "or", "and"];
            let cell = self.pick(ops.len());
            let value = self.expr(U32, 2);
            self.line(&format!("cells.atomic_{}({cell}, {value});", ops[cell]));
            return;
        }
        let (value, name) = (self.expr(I32, 2), self.name("v"));
        let what = match self.pick(8) {
            0 => "mine.atomic_load(i)".into(),
            1 => {
                let expected = self.expr(I32, 1);
                format!("mine.atomic_compare_exchange(i, {expected}, {value})")
            }
            _ => {
                let op = self.choose(&["add", "min", "max", "and", "or", "xor", "exchange"]);
                format!("mine.atomic_{op}(i, {value})")
            }
        };
        self.line(&format!("let {name} = {what};"));
        self.variables.push(Variable {
            name,
            ty: I32,
            mutable: false,
        });
    }

    fn vector(&mut self) {
        let (name, result) = (self.name("q"), self.name("v"));
        let ty = self.choose(&[F32, U32, I32]);
        let lanes: Vec<String> = (0..4).map(|_| self.expr(ty, 1)).collect();
        self.line(&format!("let mut {name} = vec4({});", lanes.join(", ")));
        let other = self.expr(ty, 1);
        match self.pick(4) {
            0 => self.line(&format!("{name} = {name} * {name} + splat4({other});")),
            1 => self.line(&format!("{name}[2] = {other};")),
            2 => self.line(&format!("{name} = {name}.max(splat4({other}));")),
            _ => self.line(&format!("{name} += {other};")),
        }
        let lane = self.pick(4);
        let what = match self.pick(5) {
            0 => format!("{name}.sum()"),
            1 => format!("{name}.max_lane()"),
            2 if ty == F32 => format!("{name}.dot({name})"),
            3 => format!("{name}.map(|p| p + {name}[0])[{lane}]"),
            _ => format!("{name}[{lane}]"),
        };
        self.line(&format!("let {result} = {what};"));
        self.variables.push(Variable {
            name: result,
            ty,
            mutable: false,
        });
    }

    fn variable(&mut self, ty: Ty) -> Option<String> {
        let fitting: Vec<String> = self
            .variables
            .iter()
            .filter(|v| v.ty == ty)
            .map(|v| v.name.clone())
            .collect();
        if fitting.is_empty() {
            return None;
        }
        let index = self.pick(fitting.len());
        Some(fitting[index].clone())
    }

    fn leaf(&mut self, ty: Ty) -> String {
        if self.pick(4) != 3
            && let Some(name) = self.variable(ty)
        {
            return name;
        }
        match ty {
            Bool => self.choose(&["true", "false", "(k > 3)"]).into(),
            F32 => self
                .choose(&[
                    "0.0f32",
                    "1.5f32",
                    "-2.25f32",
                    "1e10f32",
                    "f32::INFINITY",
                    "f32::MAX",
                    "-0.0f32",
                    "f32::NAN",
                    "1e-40f32",
                    "f32::EPSILON",
                ])
                .into(),
            F16 => self
                .choose(&[
                    "f16::from_f32(0.5)",
                    "f16::from_f32(1000.0)",
                    "f16::ONE",
                    "f16::MAX",
                    "f16::from_f32(-0.1)",
                ])
                .into(),
            U32 => {
                let place = self.choose(&[
                    "3u32",
                    "0u32",
                    "u32::MAX",
                    "local_index()",
                    "group_id(0)",
                    "0x8000_0000u32",
                    "17u32",
                    "group_threads()",
                ]);
                place.into()
            }
            _ => {
                let unit = ty.name();
                let plain = format!("{}{unit}", self.choose(&[0, 1, 2, 5, 9, 100]));
                match self.pick(4) {
                    0 => format!("{unit}::MAX"),
                    1 => format!("{unit}::MIN"),
                    _ => plain,
                }
            }
        }
    }

    fn expr(&mut self, ty: Ty, depth: usize) -> String {
        if depth == 0 {
            return self.leaf(ty);
        }
        let d = depth - 1;
        // What every type has.
        match self.pick(16) {
            0 => {
                let (c, a, b) = (self.expr(Bool, d), self.expr(ty, d), self.expr(ty, d));
                return format!("(if {c} {{ {a} }} else {{ {b} }})");
            }
            1 => {
                let (c, a, b) = (self.expr(Bool, d), self.expr(ty, d), self.expr(ty, d));
                return format!("select({c}, {a}, {b})");
            }
            2 => {
                let (a, inner) = (self.expr(ty, d), self.name("z"));
                let b = self.expr(ty, d);
                let joined = match ty {
                    Bool => format!("{inner} ^ {b}"),
                    F32 | F16 => format!("{inner} + {b}"),
                    _ => format!("{inner}.wrapping_add({b})"),
                };
                return format!("{{ let {inner} = {a}; {joined} }}");
            }
            3 => {
                let scrutinee = self.expr(U32, d);
                let arms: Vec<String> = (0..3).map(|_| self.expr(ty, d)).collect();
                return format!(
                    "(match {scrutinee} & 7 {{ 0 | 5 => {}, 1..=3 => {}, _ => {} }})",
                    arms[0], arms[1], arms[2]
                );
            }
            4 => return self.leaf(ty),
            _ => {}
        }
        match ty {
            Bool => self.truth(d),
            F32 => self.single(d),
            F16 => self.half(d),
            _ => self.integer(ty, d),
        }
    }

    fn truth(&mut self, d: usize) -> String {
        match self.pick(6) {
            0..=2 => {
                let of = self.choose(&[U32, I32, F32, I64, U8, F16]);
                let (a, b) = (self.expr(of, d), self.expr(of, d));
                let op = self.choose(&["<", "<=", ">", ">=", "==", "!="]);
                format!("({a} {op} {b})")
            }
            3 => {
                let (a, b) = (self.expr(Bool, d), self.expr(Bool, d));
                let op = self.choose(&["&&", "||", "&", "|", "^"]);
                format!("({a} {op} {b})")
            }
            4 => format!("!{}", self.expr(Bool, d)),
            _ => {
                let a = self.expr(F32, d);
                format!("({a}).{}()", self.choose(&["is_nan", "is_finite"]))
            }
        }
    }

    fn single(&mut self, d: usize) -> String {
        match self.pick(9) {
            0..=2 => {
                let (a, b) = (self.expr(F32, d), self.expr(F32, d));
                let op = self.choose(&["+", "-", "*", "/"]);
                format!("({a} {op} {b})")
            }
            3 => {
                let (a, b, c) = (self.expr(F32, d), self.expr(F32, d), self.expr(F32, d));
                let form = self.pick(2);
                if form == 0 {
                    format!("fma({a}, {b}, {c})")
                } else {
                    format!("({a}).mul_add({b}, {c})")
                }
            }
            4 => {
                let a = self.expr(F32, d);
                let op = self.choose(&["abs", "sqrt", "floor", "ceil", "trunc", "round_ties_even"]);
                format!("({a}).{op}()")
            }
            5 => {
                let (a, b) = (self.expr(F32, d), self.expr(F32, d));
                format!(
                    "({a}).{}({b})",
                    self.choose(&["min", "max", "min_nan", "max_nan"])
                )
            }
            6 => {
                let from = self.choose(&NUMBERS);
                format!("({} as f32)", self.expr(from, d))
            }
            7 => {
                let (a, b) = (self.expr(F16, d), self.expr(F32, d));
                if self.pick(2) == 0 {
                    format!("mixed({a}, {b})")
                } else {
                    format!("({a}).to_f32()")
                }
            }
            _ => match self.pairs.last().cloned() {
                Some(pair) => format!("{pair}.b"),
                None => format!("-({})", self.expr(F32, d)),
            },
        }
    }

    fn half(&mut self, d: usize) -> String {
        let (a, b) = (self.expr(F16, d), self.expr(F16, d));
        match self.pick(5) {
            0..=2 => format!("({a} {} {b})", self.choose(&["+", "-", "*"])),
            3 => format!("f16::from_f32({})", self.expr(F32, d)),
            _ => format!("({a}).{}({b})", self.choose(&["min", "max"])),
        }
    }

    fn integer(&mut self, ty: Ty, d: usize) -> String {
        let unit = ty.name();
        match self.pick(15) {
            0..=3 => {
                let (a, b) = (self.expr(ty, d), self.expr(ty, d));
                let op = self.choose(&["+", "-", "*", "&", "|", "^"]);
                format!("({a} {op} {b})")
            }
            4 => {
                let a = self.expr(ty, d);
                // A literal without a suffix takes the type of what is beside it.
                format!("({a} {} {})", self.choose(&["+", "^", "*"]), self.pick(100))
            }
            5 => {
                let (a, b) = (self.expr(ty, d), self.expr(ty, d));
                format!("({a} {} (({b} & 7) + 1))", self.choose(&["/", "%"]))
            }
            6 => {
                let (a, b) = (self.expr(ty, d), self.expr(ty, d));
                format!("({a} {} ({b} & 7))", self.choose(&["<<", ">>"]))
            }
            7 => {
                let (a, b) = (self.expr(ty, d), self.expr(ty, d));
                let op = self.choose(&["min", "max", "wrapping_sub", "wrapping_mul", "mul_high"]);
                format!("({a}).{op}({b})")
            }
            8 => {
                let from = self.choose(&[U32, I32, U64, I64, U8, I16, F32, Bool]);
                if from == ty {
                    return self.leaf(ty);
                }
                format!("({} as {unit})", self.expr(from, d))
            }
            9 => {
                let a = self.expr(ty, d);
                if ty.is_signed() && self.pick(2) == 0 {
                    format!("(-({a}))")
                } else {
                    format!("(!({a}))")
                }
            }
            10 => format!("({}).reverse_bits()", self.expr(ty, d)),
            11 if ty == U32 => {
                let of = self.choose(&NUMBERS);
                let op = self.choose(&["count_ones", "leading_zeros", "trailing_zeros"]);
                format!("({}).{op}()", self.expr(of, d))
            }
            12 if ty == U32 => match (self.pick(5), self.closures.last().cloned()) {
                (0, Some(closure)) => format!("{closure}({})", self.expr(U32, d)),
                (1, Some(closure)) => format!("apply({}, {closure})", self.expr(U32, d)),
                (2, _) => {
                    let (a, b) = (self.expr(U32, d), self.expr(U32, d));
                    format!("{{ let (p, q) = both({a}, {b}); p ^ (q << 1) }}")
                }
                (3, _) => {
                    let (a, b) = (self.expr(U32, d), self.expr(U32, d));
                    format!("{{ let mut p = {a}; bumped(&mut p, {b}); p }}")
                }
                _ => format!("apply({}, |p| p.wrapping_mul(5))", self.expr(U32, d)),
            },
            12 if ty == I32 => {
                format!("clipped({}, {})", self.expr(I32, d), self.expr(I32, d))
            }
            13 if ty == U32 => match self.arrays.last().cloned() {
                Some(array) => format!("{array}[({} & 3) as usize]", self.expr(U32, d)),
                None => format!("xu[({}) % n]", self.expr(U32, d)),
            },
            14 if ty == U32 => match self.pairs.last().cloned() {
                Some(pair) => format!("{pair}.a"),
                None => self.leaf(ty),
            },
            _ => self.leaf(ty),
        }
    }
}
