//! Functions that machine code calls: transcendentals that are rare in inner loops, conversions
//! that would round twice, and exchanges between threads.

use half::{bf16, f16};
use iron_ir::op::{GroupOp, ReduceOp, SubgroupOp};
use iron_ir::{Scalar, op};

macro_rules! math {
    ($($name:ident $text:literal = $f32:expr, $f64:expr;)*) => {
        mod single { $( pub extern "C" fn $name(x: f32) -> f32 { let f: fn(f32) -> f32 = $f32; f(x) } )* }
        mod double { $( pub extern "C" fn $name(x: f64) -> f64 { let f: fn(f64) -> f64 = $f64; f(x) } )* }
        /// Unary functions with their names.
        fn unary() -> Vec<(String, *const u8)> {
            vec![$(
                (concat!($text, "_f32").to_string(), single::$name as *const u8),
                (concat!($text, "_f64").to_string(), double::$name as *const u8),
            )*]
        }
    };
}

math! {
    exp "exp" = f32::exp, f64::exp;
    exp2 "exp2" = f32::exp2, f64::exp2;
    log "log" = f32::ln, f64::ln;
    log2 "log2" = f32::log2, f64::log2;
    sin "sin" = f32::sin, f64::sin;
    cos "cos" = f32::cos, f64::cos;
    tanh "tanh" = f32::tanh, f64::tanh;
    erf "erf" = |x| super::erf(f64::from(x)) as f32, super::erf;
}

/// The error function by its Taylor series near zero and a continued fraction beyond, to about
/// 1e-15.
fn erf(x: f64) -> f64 {
    let size = x.abs();
    if size.is_nan() {
        return x;
    }
    if size < 2.5 {
        let square = x * x;
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -square / f64::from(n);
            let part = term / f64::from(2 * n + 1);
            sum += part;
            if part.abs() < 1e-18 * sum.abs() {
                break;
            }
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    if size > 6.0 {
        return 1f64.copysign(x);
    }
    // Lentz's method from the far end: erfc(x) = exp(-x²)/√π · 1/(x + ½/(x + 1/(x + 3/2/(x + …)))).
    let mut fraction = size;
    for n in (1..60).rev() {
        fraction = size + f64::from(n) / 2.0 / fraction;
    }
    let erfc = (-size * size).exp() / (fraction * std::f64::consts::PI.sqrt());
    (1.0 - erfc).copysign(x)
}

extern "C" fn pow_f32(x: f32, y: f32) -> f32 {
    x.powf(y)
}

extern "C" fn pow_f64(x: f64, y: f64) -> f64 {
    x.powf(y)
}

extern "C" fn f64_to_f16(x: f64) -> u32 {
    f16::from_f64(x).to_bits().into()
}

extern "C" fn f64_to_bf16(x: f64) -> u32 {
    bf16::from_f64(x).to_bits().into()
}

/// A double on the same side of every tie of a narrow float as the integer.
fn sticky(magnitude: u64) -> f64 {
    let spare = 64u32.saturating_sub(magnitude.leading_zeros()).saturating_sub(53);
    let kept = magnitude >> spare << spare;
    let lost = u64::from(magnitude != kept) << spare;
    (kept | lost) as f64
}

fn sticky_signed(x: i64) -> f64 {
    let size = sticky(x.unsigned_abs());
    if x < 0 { -size } else { size }
}

extern "C" fn i64_to_f16(x: i64) -> u32 {
    f16::from_f64(sticky_signed(x)).to_bits().into()
}

extern "C" fn i64_to_bf16(x: i64) -> u32 {
    bf16::from_f64(sticky_signed(x)).to_bits().into()
}

extern "C" fn u64_to_f16(x: u64) -> u32 {
    f16::from_f64(sticky(x)).to_bits().into()
}

extern "C" fn u64_to_bf16(x: u64) -> u32 {
    bf16::from_f64(sticky(x)).to_bits().into()
}

/// Every function by name.
pub(super) fn symbols() -> Vec<(String, *const u8)> {
    let mut all = unary();
    all.extend([
        ("pow_f32".to_string(), pow_f32 as *const u8),
        ("pow_f64".to_string(), pow_f64 as *const u8),
        ("f64_to_f16".to_string(), f64_to_f16 as *const u8),
        ("f64_to_bf16".to_string(), f64_to_bf16 as *const u8),
        ("i64_to_f16".to_string(), i64_to_f16 as *const u8),
        ("i64_to_bf16".to_string(), i64_to_bf16 as *const u8),
        ("u64_to_f16".to_string(), u64_to_f16 as *const u8),
        ("u64_to_bf16".to_string(), u64_to_bf16 as *const u8),
        ("iron_exchange".to_string(), exchange as *const u8),
    ]);
    all
}

/// An exchange, as machine code hands it over. Every element has its own 8 bytes: the bits,
/// zero-extended.
#[repr(C)]
pub(super) struct Exchange {
    /// Operand of each thread.
    pub values: *mut u64,
    /// Lane, distance or thread of each thread; as `values`.
    pub arguments: *const u64,
    /// Threads.
    pub threads: u32,
    /// Position in the operators' table, see [`encode`].
    pub code: u32,
}

/// What an exchange does, in one number.
pub(super) fn encode(kind: Kind, scalar: Scalar) -> u32 {
    let position = Scalar::ALL.iter().position(|&s| s == scalar).unwrap_or(0) as u32;
    let (family, first, second) = match kind {
        Kind::Subgroup(op, reduce) => (0, position_of(SubgroupOp::ALL, op), position_of(ReduceOp::ALL, reduce)),
        Kind::Group(op, reduce) => (1, position_of(GroupOp::ALL, op), position_of(ReduceOp::ALL, reduce)),
    };
    position | family << 8 | first << 12 | second << 20
}

/// The family of an exchange.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Subgroup(SubgroupOp, ReduceOp),
    Group(GroupOp, ReduceOp),
}

fn position_of<T: PartialEq>(all: &[T], item: T) -> u32 {
    all.iter().position(|x| *x == item).unwrap_or(0) as u32
}

/// Lanes of a subgroup.
pub const SUBGROUP_SIZE: u32 = 8;

/// Runs an exchange in place.
extern "C" fn exchange(request: *const Exchange) {
    // SAFETY: machine code passes a record that it filled in its own scratch memory, with
    // `threads` elements in both arrays.
    let (values, arguments, code) = unsafe {
        let request = &*request;
        let n = request.threads as usize;
        (
            std::slice::from_raw_parts_mut(request.values, n),
            std::slice::from_raw_parts(request.arguments, n),
            request.code,
        )
    };
    let scalar = Scalar::ALL[(code & 0xFF) as usize];
    let reduce = ReduceOp::ALL[(code >> 20) as usize & 0xFF];
    let first = (code >> 12) as usize & 0xFF;
    if code >> 8 & 1 == 0 {
        let op = SubgroupOp::ALL[first];
        for (lanes, arguments) in values.chunks_mut(SUBGROUP_SIZE as usize).zip(arguments.chunks(SUBGROUP_SIZE as usize)) {
            subgroup(op, reduce, scalar, lanes, arguments);
        }
        return;
    }
    match GroupOp::ALL[first] {
        GroupOp::Reduce => {
            let total = tree(reduce, scalar, values.to_vec());
            values.fill(total);
        }
        GroupOp::Broadcast => {
            let source = arguments.first().copied().unwrap_or(0);
            let value = values.get(source as usize).copied().unwrap_or(0);
            values.fill(value);
        }
        op @ (GroupOp::ScanInclusive | GroupOp::ScanExclusive) => {
            let n = values.len();
            let mut distance = 1;
            while distance < n {
                for i in 0..n {
                    if i & distance != 0 {
                        let left = values[(i & !(distance - 1)) - 1];
                        values[i] = combine(reduce, scalar, left, values[i]);
                    }
                }
                distance *= 2;
            }
            if op == GroupOp::ScanExclusive {
                values.rotate_right(1);
                values[0] = identity(reduce, scalar);
            }
        }
    }
}

fn subgroup(op: SubgroupOp, reduce: ReduceOp, scalar: Scalar, lanes: &mut [u64], arguments: &[u64]) {
    let old = lanes.to_vec();
    let pick = |own: usize, source: u64| old.get(source as usize).copied().unwrap_or(old[own]);
    let reduced = (op == SubgroupOp::Reduce).then(|| {
        let mut all = old.clone();
        all.resize(SUBGROUP_SIZE as usize, identity(reduce, scalar));
        tree(reduce, scalar, all)
    });
    for (own, lane) in lanes.iter_mut().enumerate() {
        let argument = arguments[own];
        *lane = match op {
            SubgroupOp::Shuffle | SubgroupOp::Broadcast => pick(own, argument),
            SubgroupOp::ShuffleXor => pick(own, own as u64 ^ argument),
            SubgroupOp::ShuffleUp => (own as u64).checked_sub(argument).map_or(old[own], |s| pick(own, s)),
            SubgroupOp::ShuffleDown => pick(own, (own as u64).saturating_add(argument)),
            SubgroupOp::Ballot => old.iter().enumerate().fold(0, |mask, (i, &x)| mask | (x & 1) << i),
            SubgroupOp::Any => u64::from(old.iter().any(|x| x & 1 == 1)),
            SubgroupOp::All => u64::from(old.iter().all(|x| x & 1 == 1)),
            SubgroupOp::Reduce => reduced.unwrap_or(0),
        };
    }
}

/// The adjacent-pair tree.
fn tree(op: ReduceOp, scalar: Scalar, mut values: Vec<u64>) -> u64 {
    let absent = identity(op, scalar);
    let n = values.len();
    let mut distance = 1;
    while distance < n {
        for i in (0..n).step_by(2 * distance) {
            let other = values.get(i + distance).copied().unwrap_or(absent);
            values[i] = combine(op, scalar, values[i], other);
        }
        distance *= 2;
    }
    values[0]
}

fn mask(scalar: Scalar) -> u64 {
    match scalar {
        Scalar::Bool => 1,
        _ if scalar.bits() == 64 => u64::MAX,
        _ => (1 << scalar.bits()) - 1,
    }
}

fn signed(scalar: Scalar, x: u64) -> i64 {
    let shift = 64 - scalar.bits();
    ((x << shift) as i64) >> shift
}

fn to_f64(scalar: Scalar, x: u64) -> f64 {
    match scalar {
        Scalar::F16 => f16::from_bits(x as u16).to_f64(),
        Scalar::BF16 => bf16::from_bits(x as u16).to_f64(),
        Scalar::F32 => f32::from_bits(x as u32).into(),
        _ => f64::from_bits(x),
    }
}

/// Rounds a sum or product of two values of the type, which is exact enough in `f64` for all
/// types but `f64` itself to round as if once.
fn from_f64(scalar: Scalar, x: f64) -> u64 {
    match scalar {
        Scalar::F16 => f16::from_f32(x as f32).to_bits().into(),
        Scalar::BF16 => bf16::from_f32(x as f32).to_bits().into(),
        Scalar::F32 => (x as f32).to_bits().into(),
        _ => x.to_bits(),
    }
}

/// The identity of a reduction.
pub(super) fn identity(reduce: ReduceOp, scalar: Scalar) -> u64 {
    let float = scalar.is_float();
    match reduce {
        ReduceOp::Sum | ReduceOp::Or => 0,
        ReduceOp::And => mask(scalar),
        ReduceOp::Product if float => from_f64(scalar, 1.0),
        ReduceOp::Product => 1,
        ReduceOp::Min | ReduceOp::MinNan if float => from_f64(scalar, f64::INFINITY),
        ReduceOp::Max | ReduceOp::MaxNan if float => from_f64(scalar, f64::NEG_INFINITY),
        ReduceOp::Min | ReduceOp::MinNan if scalar.is_signed() => mask(scalar) >> 1,
        ReduceOp::Max | ReduceOp::MaxNan if scalar.is_signed() => (mask(scalar) >> 1) + 1,
        ReduceOp::Min | ReduceOp::MinNan => mask(scalar),
        ReduceOp::Max | ReduceOp::MaxNan => 0,
    }
}

fn combine(reduce: ReduceOp, scalar: Scalar, a: u64, b: u64) -> u64 {
    let keep = mask(scalar);
    if scalar.is_float() {
        let (x, y) = (to_f64(scalar, a), to_f64(scalar, b));
        let less = x < y || (x == y && x.is_sign_negative() && y.is_sign_positive());
        return match reduce {
            ReduceOp::Sum => from_f64(scalar, x + y),
            ReduceOp::Product => from_f64(scalar, x * y),
            _ if x.is_nan() => if matches!(reduce, op::ReduceOp::Min | op::ReduceOp::Max) { b } else { a },
            _ if y.is_nan() => if matches!(reduce, op::ReduceOp::Min | op::ReduceOp::Max) { a } else { b },
            ReduceOp::Min | ReduceOp::MinNan => if less { a } else { b },
            ReduceOp::Max | ReduceOp::MaxNan => if less { b } else { a },
            ReduceOp::And => a & b,
            ReduceOp::Or => a | b,
        };
    }
    let less = if scalar.is_signed() { signed(scalar, a) < signed(scalar, b) } else { a < b };
    match reduce {
        ReduceOp::Sum => a.wrapping_add(b) & keep,
        ReduceOp::Product => a.wrapping_mul(b) & keep,
        ReduceOp::Min | ReduceOp::MinNan => if less { a } else { b },
        ReduceOp::Max | ReduceOp::MaxNan => if less { b } else { a },
        ReduceOp::And => a & b,
        ReduceOp::Or => a | b,
    }
}
