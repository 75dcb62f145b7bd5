//! Answers by the evaluator that folds constants, and those of a device that turns subnormal `f32`
//! into zero, which Vulkan and Metal leave to the driver.
//!
//! Such a device is excused only by what it does: for each operation and type, all answers that were
//! computed at run time must be those of one [`Flush`], to the bit. An answer that is right although
//! the others of its operation show that its operands become zero is wrong, as is one that is wrong
//! in another way. Where each row is compiled with constants of its own, or is a function within a
//! bound, each row has a `Flush` of its own.

use iron_ir::op::{BinaryOp, CompareOp, UnaryOp};
use iron_ir::testing::value_of;
use iron_ir::{Const, Scalar, fold};

use crate::oracle;
use crate::rows::{Expected, Row, bounds, is_nan};

/// What an operation does with subnormal `f32`, and with `bf16`, which is computed in `f32`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Flush {
    /// It keeps them, as the specification says.
    Kept,
    /// Its operands become zero.
    Operands,
    /// Its result becomes zero.
    Result,
    /// Operands and result become zero.
    Both,
    /// The comparisons of which a minimum or maximum is made see zero; what they choose is kept.
    Compared,
}

impl Flush {
    const FAULTS: [Flush; 4] = [Flush::Operands, Flush::Result, Flush::Both, Flush::Compared];

    /// Where zeros appear, in words.
    pub fn words(self) -> &'static str {
        match self {
            Flush::Kept => "nowhere",
            Flush::Operands => "in operands",
            Flush::Result => "in results",
            Flush::Both => "in operands and results",
            Flush::Compared => "in the comparisons within",
        }
    }

    /// One operation on numbers, whose result is of type `to`.
    fn step(self, operands: &[Const], to: Scalar, operation: &dyn Fn(&[Const]) -> Const) -> Const {
        let is_wide = |c: &Const| matches!(c.scalar, Scalar::F32 | Scalar::BF16);
        if self == Flush::Kept || !(operands.iter().any(is_wide) || to == Scalar::F32) {
            return fold::convert(operation(operands), to);
        }
        let operands: Vec<Const> = operands
            .iter()
            .map(|&c| match c.scalar {
                Scalar::BF16 => fold::convert(c, Scalar::F32),
                _ => c,
            })
            .map(|c| match self {
                Flush::Operands | Flush::Both => without_subnormal(c),
                Flush::Kept | Flush::Result | Flush::Compared => c,
            })
            .collect();
        let result = operation(&operands);
        let result = match self {
            Flush::Result | Flush::Both => without_subnormal(result),
            Flush::Kept | Flush::Operands | Flush::Compared => result,
        };
        fold::convert(result, to)
    }
}

/// Zero of the same sign in place of a subnormal `f32`.
fn without_subnormal(c: Const) -> Const {
    let is_subnormal = c.scalar == Scalar::F32 && value_of(c.scalar, c.bits).abs() < MIN_NORMAL;
    let bits = if is_subnormal {
        c.bits & 1 << 31
    } else {
        c.bits
    };
    Const { bits, ..c }
}

const MIN_NORMAL: f64 = f32::MIN_POSITIVE as f64;

/// The answer of a row where subnormals fare so; every lane's.
///
/// # Panics
///
/// Where no evaluation of the row's operation is written here.
pub fn answer(row: &Row, flush: Flush) -> Vec<u64> {
    let operands: Vec<Const> = row
        .operands
        .iter()
        .enumerate()
        .map(|(i, &bits)| Const {
            scalar: row.operation.operand_type(row.from, i),
            bits,
        })
        .collect();
    let name = row.operation.name;
    let binary = |op: BinaryOp, a: Const, b: Const| {
        let extremum = matches!(
            op,
            BinaryOp::Min | BinaryOp::Max | BinaryOp::MinNan | BinaryOp::MaxNan
        );
        flush.step(&[a, b], row.from, &|c| match flush {
            Flush::Compared if extremum => compared(op, c[0], c[1]),
            _ => fold::binary(op, c[0], c[1]),
        })
    };
    let a = operands[0];
    let (b, c) = (
        operands.get(1).copied().unwrap_or(a),
        operands.get(2).copied().unwrap_or(a),
    );
    if let Some(op) = UnaryOp::from_name(name) {
        // These look at bits, or move them.
        let exact = matches!(
            op,
            UnaryOp::Neg | UnaryOp::Abs | UnaryOp::IsNan | UnaryOp::IsFinite
        );
        let flush = if exact { Flush::Kept } else { flush };
        return vec![flush.step(&[a], row.to, &|c| fold::unary(op, c[0])).bits];
    }
    if let Some(op) = BinaryOp::from_name(name) {
        return vec![binary(op, a, b).bits];
    }
    if let Some(op) = CompareOp::from_name(name) {
        let holds = |c: &[Const]| Const::bool(fold::compare(op, c[0], c[1]));
        return vec![flush.step(&[a, b], row.to, &holds).bits];
    }
    let result = match name {
        "convert" if matches!(a.scalar, Scalar::F4E2M1x2 | Scalar::Int4x8) => {
            return fold::unpack(a, row.to).iter().map(|c| c.bits).collect();
        }
        "convert" => flush.step(&[a], row.to, &|c| match row.to {
            // Rounded by what comes after the step, which may lose the result before.
            Scalar::BF16 if c[0].scalar == Scalar::F32 => c[0],
            to => fold::convert(c[0], to),
        }),
        "bitcast" => a.bitcast(row.to),
        "select" => [c, b][usize::from(a.as_bool())],
        "fma" => flush.step(&operands, row.to, &|c| {
            // What is tiny before it is rounded to the least normal number goes too.
            let number = |i: usize| value_of(c[i].scalar, c[i].bits);
            let exact = number(0).mul_add(number(1), number(2));
            let loses = matches!(flush, Flush::Result | Flush::Both) && c[0].scalar == Scalar::F32;
            if loses && exact != 0.0 && exact.abs() < MIN_NORMAL {
                let bits = u64::from(exact.is_sign_negative()) << 31;
                return Const { bits, ..c[0] };
            }
            fold::fma(c[0], c[1], c[2])
        }),
        "mul_add" => binary(BinaryOp::Add, binary(BinaryOp::Mul, a, b), c),
        "div_rem" => {
            let product = binary(BinaryOp::Mul, binary(BinaryOp::Div, a, b), b);
            binary(BinaryOp::Add, product, binary(BinaryOp::Rem, a, b))
        }
        "offset" => {
            let element = binary(BinaryOp::Add, binary(BinaryOp::Mul, a, b), c);
            binary(BinaryOp::Mul, element, Const::u64(4))
        }
        "literal" => a,
        other => panic!("no evaluation of `{other}`"),
    };
    vec![result.bits]
}

/// A minimum or maximum made of comparisons that see zero in place of subnormals: they choose, and
/// the two zeros are told apart by their bits.
fn compared(op: BinaryOp, x: Const, y: Const) -> Const {
    let (a, b) = (without_subnormal(x), without_subnormal(y));
    let minimum = matches!(op, BinaryOp::Min | BinaryOp::MinNan);
    let kept = match op {
        BinaryOp::MinNan | BinaryOp::MaxNan => x,
        _ => y,
    };
    if is_nan(kept.scalar, kept.bits) {
        return x;
    }
    if fold::compare(CompareOp::Eq, a, b) {
        let bits = if minimum {
            x.bits | y.bits
        } else {
            x.bits & y.bits
        };
        return Const { bits, ..x };
    }
    let order = if minimum {
        CompareOp::Lt
    } else {
        CompareOp::Gt
    };
    if fold::compare(order, a, b) { x } else { y }
}

/// How an answer stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Right,
    /// What the fault makes of the row.
    Excepted,
    Wrong,
}

/// What is expected of a row where subnormals fare so, and whether it is what was found.
fn standing(row: &Row, found: &[u64], flush: Flush) -> Standing {
    let (kept, other) = (answer(row, Flush::Kept), answer(row, flush));
    let same = |a: &[u64], b: &[u64]| {
        let mut lanes = a.iter().zip(b);
        lanes.all(|(&a, &b)| a == b || (is_nan(row.to, a) && is_nan(row.to, b)))
    };
    if same(&kept, &other) {
        return match row.accepts(found) {
            true => Standing::Right,
            false => Standing::Wrong,
        };
    }
    let matches = match row.expected {
        Expected::Near(_, ulps) => {
            oracle::distance(row.to, found[0], value_of(row.to, other[0])) <= ulps
        }
        _ => same(&other, found),
    };
    match matches {
        true => Standing::Excepted,
        false => Standing::Wrong,
    }
}

/// Whether a wrong answer is what the fault makes of the row.
pub fn explains(row: &Row, found: &[u64]) -> Option<Flush> {
    Flush::FAULTS
        .into_iter()
        .find(|&flush| standing(row, found, flush) == Standing::Excepted)
}

/// What became of rows of one operation and type.
#[derive(Default, Debug)]
pub struct Judgement {
    /// Right by the specification.
    pub right: usize,
    /// Exactly what the fault makes of them.
    pub excepted: Vec<(Flush, usize)>,
    /// Positions of the others.
    pub wrong: Vec<usize>,
}

/// Judges the answers of rows of one operation and type on a device that flushes; `one` says that
/// all were computed by the same instructions.
pub fn judge(rows: &[&Row], answers: &[Vec<u64>], one: bool) -> Judgement {
    let pairs = || rows.iter().zip(answers).enumerate();
    let has_bound = |name: &str| name != "sqrt" && bounds("").iter().any(|(n, _)| *n == name);
    if one && !rows.iter().any(|row| has_bound(row.operation.name)) {
        let under = |flush: Flush| {
            let mut judgement = Judgement::default();
            let mut excepted = 0;
            for (at, (row, found)) in pairs() {
                match standing(row, found, flush) {
                    Standing::Right => judgement.right += 1,
                    Standing::Excepted => excepted += 1,
                    Standing::Wrong => judgement.wrong.push(at),
                }
            }
            judgement
                .excepted
                .extend((excepted > 0).then_some((flush, excepted)));
            judgement
        };
        let all = [Flush::Kept].into_iter().chain(Flush::FAULTS).map(under);
        return all.min_by_key(|j| j.wrong.len()).unwrap_or_default();
    }
    let mut judgement = Judgement::default();
    for (at, (row, found)) in pairs() {
        if row.accepts(found) {
            judgement.right += 1;
        } else if let Some(flush) = explains(row, found) {
            judgement.excepted.push((flush, 1));
        } else {
            judgement.wrong.push(at);
        }
    }
    judgement
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::parse;

    fn judged(rows: &str, found: &[u64], one: bool) -> Judgement {
        let rows = parse("test", rows).expect("rows");
        let rows: Vec<&Row> = rows.iter().collect();
        let answers: Vec<Vec<u64>> = found.iter().map(|&bits| vec![bits]).collect();
        judge(&rows, &answers, one)
    }

    #[test]
    fn what_keeps_subnormals_gives_the_rows_answer() {
        let rows = "convert f32 to bf16: 0x3f808001 = 0x3f81
convert bf16 to f32: 0x0001 = 0x00010000
add bf16: 1.0, 1.0 = 2.0
lt f32: 1.0, 2.0 = true
count_ones u32: 7 = 3";
        for row in parse("test", rows).expect("rows") {
            assert!(
                row.accepts(&answer(&row, Flush::Kept)),
                "{}",
                row.describe()
            );
        }
    }

    const EQUAL: &str = "eq f32: 1e-45, 0.0 = false
eq f32: -1e-40, 1e-40 = false
eq f32: 1.0, 1.0 = true
eq f32: 1e-45, 1.0 = false";

    #[test]
    fn only_one_consistent_fault_excuses() {
        assert_eq!(judged(EQUAL, &[0, 0, 1, 0], true).right, 4);
        let flushed = judged(EQUAL, &[1, 1, 1, 0], true);
        assert_eq!(flushed.excepted, [(Flush::Operands, 2)]);
        assert_eq!((flushed.right, flushed.wrong.len()), (2, 0));
        // One that is right among those that are not, and one that is wrong otherwise.
        assert_eq!(judged(EQUAL, &[1, 0, 1, 0], true).wrong.len(), 1);
        assert_eq!(judged(EQUAL, &[1, 1, 1, 1], true).wrong, [3]);
        assert_eq!(judged(EQUAL, &[1, 1, 0, 0], true).wrong, [2]);
        // Rows with constants of their own are compiled each for itself.
        let own = judged(EQUAL, &[1, 0, 1, 0], false);
        assert_eq!((own.right, own.wrong.len()), (3, 0));
    }

    #[test]
    fn results_and_choices_are_told_apart() {
        let sums = "add f32: 1e-45, 0x00800000 = 0x00800001
sub f32: 0x00800001, 0x00800000 = 1e-45";
        let rows = parse("test", sums).expect("rows");
        assert_eq!(explains(&rows[0], &[0x0080_0000]), Some(Flush::Operands));
        assert_eq!(explains(&rows[1], &[0]), Some(Flush::Result));
        assert_eq!(explains(&rows[1], &[1 << 31]), None);
        let least = "min f32: 1e-45, 0.0 = 0.0\nmin f32: 0.0, -1e-45 = -1e-45";
        let minus = 0x8000_0001;
        assert_eq!(
            judged(least, &[1, minus], true).excepted,
            [(Flush::Compared, 1)]
        );
        assert_eq!(judged(least, &[2, minus], true).wrong, [0]);
        let least = "fma f32: 0x00800000, 0x3f7fffff, 0.0 = 0x00800000";
        let rows = parse("test", least).expect("rows");
        assert_eq!(explains(&rows[0], &[0]), Some(Flush::Result));
        let half = "fma bf16: 1e-40, 1.0, 1.0 = 1.0\nfma bf16: 1e-40, 1.0, 0.0 = 1e-40";
        assert_eq!(
            judged(half, &[0x3f80, 0], true).excepted,
            [(Flush::Operands, 1)]
        );
    }
}
