//! Functions that machine code calls: transcendentals that are rare in inner loops, conversions
//! that would round twice, and exchanges between threads.

use iron_ir::op::{GroupOp, ReduceOp, SubgroupOp, UnaryOp};
use iron_ir::{Const, Scalar, fold};

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
    erf "erf" = |x| super::single_bits(super::UnaryOp::Erf, x), |x| super::double_bits(super::UnaryOp::Erf, x);
}

extern "C" fn pow_f32(x: f32, y: f32) -> f32 {
    x.powf(y)
}

extern "C" fn pow_f64(x: f64, y: f64) -> f64 {
    x.powf(y)
}

/// The specification's evaluator on one `f32`.
fn single_bits(op: UnaryOp, x: f32) -> f32 {
    let a = Const {
        scalar: Scalar::F32,
        bits: x.to_bits().into(),
    };
    f32::from_bits(fold::unary(op, a).bits as u32)
}

/// The specification's evaluator on one `f64`.
fn double_bits(op: UnaryOp, x: f64) -> f64 {
    let a = Const {
        scalar: Scalar::F64,
        bits: x.to_bits(),
    };
    f64::from_bits(fold::unary(op, a).bits)
}

macro_rules! conversions {
    ($($name:ident($ty:ty, $from:ident) -> $to:ident;)*) => {
        $( extern "C" fn $name(x: $ty) -> u32 {
            let a = Const { scalar: Scalar::$from, bits: u64::from_ne_bytes(x.to_ne_bytes()) };
            fold::convert(a, Scalar::$to).bits as u32
        } )*
        /// Conversions with their names.
        fn conversions() -> Vec<(String, *const u8)> {
            vec![$( (stringify!($name).to_string(), $name as *const u8), )*]
        }
    };
}

conversions! {
    f64_to_f16(f64, F64) -> F16;
    f64_to_bf16(f64, F64) -> BF16;
    i64_to_f16(i64, I64) -> F16;
    i64_to_bf16(i64, I64) -> BF16;
    u64_to_f16(u64, U64) -> F16;
    u64_to_bf16(u64, U64) -> BF16;
}

/// Every function by name.
pub(super) fn symbols() -> Vec<(String, *const u8)> {
    let mut all = unary();
    all.extend(conversions());
    all.extend([
        ("pow_f32".to_string(), pow_f32 as *const u8),
        ("pow_f64".to_string(), pow_f64 as *const u8),
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
        Kind::Subgroup(op, reduce) => (
            0,
            position_of(SubgroupOp::ALL, op),
            position_of(ReduceOp::ALL, reduce),
        ),
        Kind::Group(op, reduce) => (
            1,
            position_of(GroupOp::ALL, op),
            position_of(ReduceOp::ALL, reduce),
        ),
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
        for (lanes, arguments) in values
            .chunks_mut(SUBGROUP_SIZE as usize)
            .zip(arguments.chunks(SUBGROUP_SIZE as usize))
        {
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
            let elements: Vec<Const> = values.iter().map(|&bits| Const { scalar, bits }).collect();
            let exclusive = op == GroupOp::ScanExclusive;
            for (value, c) in values
                .iter_mut()
                .zip(fold::tree_scan(reduce, &elements, exclusive))
            {
                *value = c.bits;
            }
        }
    }
}

fn subgroup(
    op: SubgroupOp,
    reduce: ReduceOp,
    scalar: Scalar,
    lanes: &mut [u64],
    arguments: &[u64],
) {
    let old = lanes.to_vec();
    let pick = |own: usize, source: u64| old.get(source as usize).copied().unwrap_or(old[own]);
    let reduced = (op == SubgroupOp::Reduce).then(|| tree(reduce, scalar, old.clone()));
    for (own, lane) in lanes.iter_mut().enumerate() {
        let argument = arguments[own];
        *lane = match op {
            SubgroupOp::Shuffle | SubgroupOp::Broadcast => pick(own, argument),
            SubgroupOp::ShuffleXor => pick(own, own as u64 ^ argument),
            SubgroupOp::ShuffleUp => (own as u64)
                .checked_sub(argument)
                .map_or(old[own], |s| pick(own, s)),
            SubgroupOp::ShuffleDown => pick(own, (own as u64).saturating_add(argument)),
            SubgroupOp::Ballot => old
                .iter()
                .enumerate()
                .fold(0, |mask, (i, &x)| mask | (x & 1) << i),
            SubgroupOp::Any => u64::from(old.iter().any(|x| x & 1 == 1)),
            SubgroupOp::All => u64::from(old.iter().all(|x| x & 1 == 1)),
            SubgroupOp::Reduce => reduced.unwrap_or(0),
        };
    }
}

/// The adjacent-pair tree.
fn tree(op: ReduceOp, scalar: Scalar, values: Vec<u64>) -> u64 {
    let elements: Vec<Const> = values
        .into_iter()
        .map(|bits| Const { scalar, bits })
        .collect();
    fold::tree_reduce(op, &elements).map_or(0, |c| c.bits)
}

/// What stands for an absent element of a reduction.
pub(super) fn absent(reduce: ReduceOp, scalar: Scalar) -> u64 {
    fold::reduce_absent(reduce, scalar).bits
}
