//! Writes random kernels in the kernel language for the test `generated`: what the macro makes of
//! each is compared with what rustc makes of the same text.
//!
//! `IRON_FUZZ_RUST` is their number and `IRON_FUZZ_RUST_SEED` the seed; without them every build
//! has the same ones. Kernels are free of faults: indices are masked, divisors are not zero, and
//! nothing observes what the specification leaves open (the bits of a NaN, the order of atomics).

#[path = "build/expressions.rs"]
mod expressions;
#[path = "build/statements.rs"]
mod statements;

use std::fmt::Write as _;
use std::path::Path;

/// Kernels of a build without a number of its own.
const KERNELS: u64 = 100;

fn main() {
    for file in ["build.rs", "build/expressions.rs", "build/statements.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
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
}
