//! The rows of `semantics/*.txt`; the format is in `semantics/README.md`.

use std::borrow::Cow;

use iron_ir::op::{BinaryOp, CompareOp, UnaryOp};
use iron_ir::testing::round_to;
use iron_ir::{Class, Scalar};

/// What a row computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Operation {
    /// Name in rows and, but for compound rows, in the textual IR.
    pub name: &'static str,
    /// Number of operands.
    pub operands: usize,
}

/// Names that are no operator of the IR's enums, with their number of operands.
const OTHERS: [(&str, usize); 8] = [
    ("convert", 1),
    ("bitcast", 1),
    ("select", 3),
    ("fma", 3),
    ("mul_add", 3),
    ("div_rem", 2),
    ("literal", 1),
    ("offset", 3),
];

impl Operation {
    /// The operation of that name.
    pub fn named(name: &str) -> Option<Operation> {
        let of = |name, operands| Some(Operation { name, operands });
        if let Some(op) = UnaryOp::from_name(name) {
            return of(op.name(), 1);
        }
        if let Some(op) = BinaryOp::from_name(name) {
            return of(op.name(), 2);
        }
        if let Some(op) = CompareOp::from_name(name) {
            return of(op.name(), 2);
        }
        let (name, operands) = *OTHERS.iter().find(|(n, _)| *n == name)?;
        of(name, operands)
    }

    /// The type of operand `index` of a row of type `from`.
    pub fn operand_type(self, from: Scalar, index: usize) -> Scalar {
        if self.name == "select" && index == 0 {
            Scalar::Bool
        } else {
            from
        }
    }

    /// The type of the result of a row that names no other.
    pub fn result_type(self, from: Scalar) -> Scalar {
        match self.name {
            "count_ones" | "leading_zeros" | "trailing_zeros" => Scalar::U32,
            "is_nan" | "is_finite" => Scalar::Bool,
            name if CompareOp::from_name(name).is_some() => Scalar::Bool,
            _ => from,
        }
    }

    /// Works on every lane of a vector.
    pub fn takes_vectors(self, from: Scalar) -> bool {
        !matches!(self.name, "literal" | "offset")
            && !matches!(from, Scalar::F4E2M1x2 | Scalar::Int4x8)
    }
}

/// The answer of a row.
#[derive(Clone, PartialEq, Debug)]
pub enum Expected {
    /// The bits of every lane; `None` in a lane that is NaN.
    Lanes(Vec<Option<u64>>),
    /// The bits of every lane.
    Bits(Vec<u64>),
    /// Any NaN.
    Nan,
    /// A NaN with the quiet bit, or an operand that is NaN, unchanged.
    QuietNan,
    /// The number that the bits are, within so many units in the last place.
    Near(u64, f64),
    /// The exact number, within so many units in the last place of the type.
    Within(f64, f64),
}

/// One row.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Operation.
    pub operation: Operation,
    /// Type of the operands.
    pub from: Scalar,
    /// Type of the result.
    pub to: Scalar,
    /// Bits of the operands.
    pub operands: Vec<u64>,
    /// Answer.
    pub expected: Expected,
    /// File and line, or the grid's name.
    pub source: String,
}

impl Row {
    /// Lanes of the result.
    pub fn lanes(&self) -> usize {
        match self.from {
            Scalar::F4E2M1x2 if self.operation.name == "convert" => 2,
            Scalar::Int4x8 if self.operation.name == "convert" => 8,
            _ => 1,
        }
    }

    /// Whether the answer is right.
    pub fn accepts(&self, found: &[u64]) -> bool {
        match &self.expected {
            Expected::Bits(bits) => bits == found,
            Expected::Lanes(lanes) => {
                lanes.len() == found.len()
                    && lanes.iter().zip(found).all(|(lane, &found)| match lane {
                        Some(bits) => *bits == found,
                        None => is_nan(self.to, found),
                    })
            }
            Expected::Nan => is_nan(self.to, found[0]),
            Expected::QuietNan => {
                let handed_on = self.from == self.to && self.operands.contains(&found[0]);
                let quiet = found[0] & quiet_bit(self.to) != 0;
                is_nan(self.to, found[0]) && (quiet || handed_on)
            }
            Expected::Near(bits, ulps) => {
                let number = iron_ir::testing::value_of(self.to, *bits);
                crate::oracle::distance(self.to, found[0], number) <= *ulps
            }
            Expected::Within(number, ulps) => {
                crate::oracle::distance(self.to, found[0], *number) <= *ulps
            }
        }
    }

    /// The row with the bound that its function has on that backend.
    pub fn on(&self, backend: &str) -> Cow<'_, Row> {
        let bounds = bounds(backend).into_iter();
        let mut of_function = bounds.filter(|(name, _)| *name == self.operation.name);
        let bound = of_function.next().map_or(0.0, |(_, bound)| bound);
        let expected = match &self.expected {
            Expected::Near(bits, ulps) if bound > *ulps => Expected::Near(*bits, bound),
            // What is rounded once elsewhere.
            Expected::Bits(bits) if bound > 0.5 && bits.len() == 1 && self.has_finite_answer() => {
                Expected::Near(bits[0], bound)
            }
            _ => return Cow::Borrowed(self),
        };
        if self.to != Scalar::F32 {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Row {
            expected,
            ..self.clone()
        })
    }

    /// Whether zero and infinity, which have no units around them, are not the answer.
    fn has_finite_answer(&self) -> bool {
        let Expected::Bits(bits) = &self.expected else {
            return false;
        };
        let number = iron_ir::testing::value_of(self.to, bits[0]);
        number.is_finite() && number != 0.0
    }

    /// The row in its own words.
    pub fn describe(&self) -> String {
        let operands: Vec<String> = self
            .operands
            .iter()
            .enumerate()
            .map(|(i, &bits)| show(self.operation.operand_type(self.from, i), bits))
            .collect();
        let to = if self.operation.result_type(self.from) == self.to {
            String::new()
        } else {
            format!(" to {}", self.to)
        };
        format!(
            "{}: {} {}{to}: {}",
            self.source,
            self.operation.name,
            self.from,
            operands.join(", ")
        )
    }

    /// The expected answer in words.
    pub fn describe_expected(&self) -> String {
        match &self.expected {
            Expected::Bits(bits) => bits
                .iter()
                .map(|&b| show(self.to, b))
                .collect::<Vec<_>>()
                .join(" "),
            Expected::Lanes(lanes) => lanes
                .iter()
                .map(|lane| lane.map_or("NaN".into(), |b| show(self.to, b)))
                .collect::<Vec<_>>()
                .join(" "),
            Expected::Nan => "NaN".into(),
            Expected::QuietNan => "a quiet NaN, or that of an operand".into(),
            Expected::Near(bits, ulps) => format!("{} within {ulps} ULP", show(self.to, *bits)),
            Expected::Within(number, ulps) => format!("{number:e} within {ulps} ULP"),
        }
    }
}

/// A value with its bits.
pub fn show(scalar: Scalar, bits: u64) -> String {
    let digits = (scalar.bits() / 4) as usize;
    match scalar.class() {
        Class::Bool => format!("{}", bits != 0),
        Class::Float => format!(
            "{:e} (0x{bits:0digits$x})",
            iron_ir::testing::value_of(scalar, bits)
        ),
        Class::Signed | Class::Unsigned | Class::Packed => format!("0x{bits:0digits$x}"),
    }
}

/// NaN of any float format.
pub fn is_nan(scalar: Scalar, bits: u64) -> bool {
    let magnitude = |infinity: u64, mask: u64| bits & mask > infinity;
    match scalar {
        Scalar::F16 => magnitude(0x7c00, 0x7fff),
        Scalar::BF16 => magnitude(0x7f80, 0x7fff),
        Scalar::F32 => magnitude(0x7f80_0000, 0x7fff_ffff),
        Scalar::F64 => magnitude(0x7ff0 << 48, u64::MAX >> 1),
        Scalar::F8E5M2 => magnitude(0x7c, 0x7f),
        Scalar::F8E4M3 => bits & 0x7f == 0x7f,
        Scalar::E8M0 => bits == 255,
        _ => false,
    }
}

fn quiet_bit(scalar: Scalar) -> u64 {
    match scalar {
        Scalar::F16 => 1 << 9,
        Scalar::BF16 => 1 << 6,
        Scalar::F32 => 1 << 22,
        Scalar::F64 => 1 << 51,
        _ => 0,
    }
}

/// A subnormal number of a type whose arithmetic has the exponents of `f32`.
pub fn is_subnormal(scalar: Scalar, bits: u64) -> bool {
    match scalar {
        Scalar::F32 => bits & 0x7f80_0000 == 0 && bits & 0x7f_ffff != 0,
        Scalar::BF16 => bits & 0x7f80 == 0 && bits & 0x7f != 0,
        Scalar::F64 => bits & (0x7ff << 52) == 0 && bits & (u64::MAX >> 12) != 0,
        Scalar::E8M0 => bits == 0,
        _ => false,
    }
}

/// Function and bound in units in the last place on a backend, as `semantics/functions.txt` states
/// them.
///
/// # Panics
///
/// Where the file is not well formed.
pub fn bounds(backend: &str) -> Vec<(&'static str, f64)> {
    let number = |text: &str| text.parse().expect("a number");
    include_str!("../semantics/functions.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (name, general) = (words[0], number(words[1]));
            let mut own = words[2..].chunks_exact(2);
            let own = own.find(|pair| pair[0] == backend);
            (name, own.map_or(general, |pair| number(pair[1])))
        })
        .collect()
}

/// Reads the rows of a file.
pub fn parse(file: &str, text: &str) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let source = format!("{file}:{}", index + 1);
        rows.push(row(line, &source).map_err(|message| format!("{source}: {message}"))?);
    }
    Ok(rows)
}

fn row(line: &str, source: &str) -> Result<Row, String> {
    let (head, tail) = line.split_once(':').ok_or("a row has a `:`")?;
    let (operands, answer) = tail.split_once('=').ok_or("a row has a `=`")?;
    let words: Vec<&str> = head.split_whitespace().collect();
    let scalar = |name: &str| Scalar::from_name(name).ok_or(format!("no type `{name}`"));
    let (name, from, to) = match words[..] {
        [name, from] => (name, scalar(from)?, None),
        [name, from, "to", to] => (name, scalar(from)?, Some(scalar(to)?)),
        _ => return Err(format!("`{head}` is no operation and type")),
    };
    let operation = Operation::named(name).ok_or(format!("no operation `{name}`"))?;
    let to = to.unwrap_or(operation.result_type(from));
    let operands: Vec<&str> = operands.split(',').map(str::trim).collect();
    if operands.len() != operation.operands {
        return Err(format!(
            "`{name}` takes {} operands, got {}",
            operation.operands,
            operands.len()
        ));
    }
    let operands = operands
        .iter()
        .enumerate()
        .map(|(i, text)| literal(operation.operand_type(from, i), text))
        .collect::<Result<_, _>>()?;
    let mut row = Row {
        operation,
        from,
        to,
        operands,
        expected: Expected::Nan,
        source: source.into(),
    };
    row.expected = expected(&row, answer.trim())?;
    Ok(row)
}

fn expected(row: &Row, text: &str) -> Result<Expected, String> {
    if text == "nan" {
        return Ok(Expected::Nan);
    }
    if text == "quiet" {
        return Ok(Expected::QuietNan);
    }
    if let Some((value, ulps)) = text.split_once('~') {
        let bits = literal(row.to, value.trim())?;
        let ulps = ulps
            .trim()
            .parse()
            .map_err(|_| format!("`{ulps}` is no bound"))?;
        return Ok(Expected::Near(bits, ulps));
    }
    let bits = text
        .split_whitespace()
        .map(|word| literal(row.to, word))
        .collect::<Result<Vec<_>, _>>()?;
    if bits.len() == row.lanes() {
        Ok(Expected::Bits(bits))
    } else {
        Err(format!("{} lanes, expected {}", bits.len(), row.lanes()))
    }
}

/// The bits of a value as written in a row.
pub(crate) fn literal(scalar: Scalar, text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no {scalar}");
    let width = u64::MAX >> (64 - scalar.bits());
    if let Some(hex) = text.strip_prefix("0x") {
        let bits = u64::from_str_radix(hex, 16).map_err(|_| wrong())?;
        return if bits & !width == 0 {
            Ok(bits)
        } else {
            Err(wrong())
        };
    }
    match scalar.class() {
        Class::Bool => match text {
            "true" => Ok(1),
            "false" => Ok(0),
            _ => Err(wrong()),
        },
        Class::Signed | Class::Unsigned | Class::Packed => {
            let bits = scalar.bits();
            let (low, high) = if scalar.is_signed() {
                (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
            } else {
                (0, (1i128 << bits) - 1)
            };
            let value = match text {
                "MIN" => low,
                "MAX" => high,
                _ => text.parse().map_err(|_| wrong())?,
            };
            if (low..=high).contains(&value) {
                Ok(value as u64 & width)
            } else {
                Err(wrong())
            }
        }
        Class::Float => {
            let (sign, magnitude) = match text.strip_prefix('-') {
                Some(rest) => (1u64 << (scalar.bits() - 1), rest),
                None => (0, text),
            };
            let bits = match (magnitude, scalar) {
                ("nan", Scalar::F16) => 0x7e00,
                ("nan", Scalar::BF16) => 0x7fc0,
                ("nan", Scalar::F32) => 0x7fc0_0000,
                ("nan", _) => 0x7ff8 << 48,
                ("MAX", Scalar::F16) => 0x7bff,
                ("MAX", Scalar::BF16) => 0x7f7f,
                ("MAX", Scalar::F32) => 0x7f7f_ffff,
                ("MAX", _) => 0x7fef_ffff_ffff_ffff,
                (_, Scalar::F32) => {
                    let value: f32 = magnitude.parse().map_err(|_| wrong())?;
                    u64::from(value.to_bits())
                }
                _ => round_to(scalar, magnitude.parse().map_err(|_| wrong())?),
            };
            Ok(sign | bits)
        }
    }
}
