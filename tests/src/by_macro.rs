//! The operations of rows as kernels of the kernel language, for the `host` execution: the
//! author's body as rustc compiled it. The other backends run the same kernels' IR, which holds
//! the front end to the rows as well.
//!
//! Each kernel takes one element a thread; `op` chooses the operation.

use iron_ir::prelude::*;
use iron_ir::{Const, Scalar};

use crate::rows::Row;

/// Integer and float operations of two numbers.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64,
         instances(T = [i8, i16, i32, i64, u8, u16, u32, u64, f32, f16, bf16, f64]))]
pub fn row_pair<T: Number>(
    a: &Tensor<T, (n,)>,
    b: &Tensor<T, (n,)>,
    y: &mut Tensor<T, (n,)>,
    op: u32,
) {
    let i = global_id(0);
    if i < n {
        y[i] = match op {
            0 => a[i] + b[i],
            1 => a[i] - b[i],
            2 => a[i] * b[i],
            3 => a[i] / b[i],
            4 => a[i].min(b[i]),
            _ => a[i].max(b[i]),
        };
    }
}

/// Comparisons.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64,
         instances(T = [i8, i16, i32, i64, u8, u16, u32, u64, f32, f16, bf16, f64]))]
pub fn row_compare<T: Number>(
    a: &Tensor<T, (n,)>,
    b: &Tensor<T, (n,)>,
    y: &mut Tensor<bool, (n,)>,
    op: u32,
) {
    let i = global_id(0);
    if i < n {
        y[i] = match op {
            0 => a[i] == b[i],
            1 => a[i] != b[i],
            2 => a[i] < b[i],
            3 => a[i] <= b[i],
            4 => a[i] > b[i],
            _ => a[i] >= b[i],
        };
    }
}

/// A choice, `c` being the first operand.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64,
         instances(T = [i8, i16, i32, i64, u8, u16, u32, u64, f32, f16, bf16, f64]))]
pub fn row_select<T: Number>(
    c: &Tensor<bool, (n,)>,
    a: &Tensor<T, (n,)>,
    b: &Tensor<T, (n,)>,
    y: &mut Tensor<T, (n,)>,
) {
    let i = global_id(0);
    if i < n {
        y[i] = select(c[i], a[i], b[i]);
    }
}

/// Operations of two integers alone.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64,
         instances(T = [i8, i16, i32, i64, u8, u16, u32, u64]))]
pub fn row_integers<T: Int>(
    a: &Tensor<T, (n,)>,
    b: &Tensor<T, (n,)>,
    y: &mut Tensor<T, (n,)>,
    op: u32,
) {
    let i = global_id(0);
    if i < n {
        y[i] = match op {
            0 => a[i] % b[i],
            1 => a[i] & b[i],
            2 => a[i] | b[i],
            3 => a[i] ^ b[i],
            4 => a[i] << b[i],
            5 => a[i] >> b[i],
            6 => a[i].mul_high(b[i]),
            _ => (a[i] / b[i]).wrapping_mul(b[i]).wrapping_add(a[i] % b[i]),
        };
    }
}

/// Products of the four bytes of `i32` or `u32`.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64, instances(T = [i32, u32]))]
pub fn row_bytes<T: FourBytes>(a: &Tensor<T, (n,)>, b: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = a[i].dot4(b[i]);
    }
}

/// Products of four bytes without sign and four signed ones.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64)]
pub fn row_mixed_bytes(a: &Tensor<i32, (n,)>, b: &Tensor<i32, (n,)>, y: &mut Tensor<i32, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = a[i].dot4_mixed(b[i]);
    }
}

/// Operations of one integer.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64,
         instances(T = [i8, i16, i32, i64, u8, u16, u32, u64]))]
pub fn row_integer<T: Int>(a: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>, op: u32) {
    let i = global_id(0);
    if i < n {
        y[i] = match op {
            0 => a[i].wrapping_neg(),
            1 => !a[i],
            _ => a[i].reverse_bits(),
        };
    }
}

/// Counts of bits.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64,
         instances(T = [i8, i16, i32, i64, u8, u16, u32, u64]))]
pub fn row_bits<T: Int>(a: &Tensor<T, (n,)>, y: &mut Tensor<u32, (n,)>, op: u32) {
    let i = global_id(0);
    if i < n {
        y[i] = match op {
            0 => a[i].count_ones(),
            1 => a[i].leading_zeros(),
            _ => a[i].trailing_zeros(),
        };
    }
}

/// Operations of one float.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64, instances(T = [f32, f16, bf16, f64]))]
pub fn row_float<T: Float>(a: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>, op: u32) {
    let i = global_id(0);
    if i < n {
        y[i] = match op {
            0 => -a[i],
            1 => a[i].abs(),
            2 => a[i].sqrt(),
            3 => a[i].floor(),
            4 => a[i].ceil(),
            5 => a[i].trunc(),
            _ => a[i].round_ties_even(),
        };
    }
}

/// Functions of one float.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64, instances(T = [f32, f16, bf16]))]
pub fn row_function<T: Float>(a: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>, op: u32) {
    let i = global_id(0);
    if i < n {
        y[i] = match op {
            0 => a[i].rsqrt(),
            1 => a[i].exp(),
            2 => a[i].exp2(),
            3 => a[i].ln(),
            4 => a[i].log2(),
            5 => a[i].sin(),
            6 => a[i].cos(),
            7 => a[i].tanh(),
            _ => a[i].erf(),
        };
    }
}

/// Questions to one float.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64, instances(T = [f32, f16, bf16, f64]))]
pub fn row_question<T: Float>(a: &Tensor<T, (n,)>, y: &mut Tensor<bool, (n,)>, op: u32) {
    let i = global_id(0);
    if i < n {
        y[i] = if op == 0 {
            a[i].is_nan()
        } else {
            a[i].is_finite()
        };
    }
}

/// Operations of two floats alone.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64, instances(T = [f32, f16, bf16, f64]))]
pub fn row_floats<T: Float>(
    a: &Tensor<T, (n,)>,
    b: &Tensor<T, (n,)>,
    y: &mut Tensor<T, (n,)>,
    op: u32,
) {
    let i = global_id(0);
    if i < n {
        y[i] = if op == 0 {
            a[i].min_nan(b[i])
        } else {
            a[i].max_nan(b[i])
        };
    }
}

/// Powers.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64, instances(T = [f32, f16, bf16]))]
pub fn row_power<T: Float>(a: &Tensor<T, (n,)>, b: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = a[i].powf(b[i]);
    }
}

/// A product and a sum, rounded once or twice.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64, instances(T = [f32, f16, bf16, f64]))]
pub fn row_product_sum<T: Float>(
    a: &Tensor<T, (n,)>,
    b: &Tensor<T, (n,)>,
    c: &Tensor<T, (n,)>,
    y: &mut Tensor<T, (n,)>,
    op: u32,
) {
    let i = global_id(0);
    if i < n {
        y[i] = if op == 0 {
            fma(a[i], b[i], c[i])
        } else {
            a[i] * b[i] + c[i]
        };
    }
}

/// Operations of two truth values.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64)]
pub fn row_truths(
    a: &Tensor<bool, (n,)>,
    b: &Tensor<bool, (n,)>,
    y: &mut Tensor<bool, (n,)>,
    op: u32,
) {
    let i = global_id(0);
    if i < n {
        y[i] = match op {
            0 => a[i] & b[i],
            1 => a[i] | b[i],
            2 => a[i] ^ b[i],
            3 => a[i] == b[i],
            _ => a[i] != b[i],
        };
    }
}

/// The other truth value.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64)]
pub fn row_not(a: &Tensor<bool, (n,)>, y: &mut Tensor<bool, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = !a[i];
    }
}

/// Conversions between numbers.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64,
         instances(T = [i8, i16, i32, i64, u8, u16, u32, u64, f32, f16, bf16, f64],
                   U = [i8, i16, i32, i64, u8, u16, u32, u64, f32, f16, bf16, f64]))]
pub fn row_convert<T: Number, U: Number>(a: &Tensor<T, (n,)>, y: &mut Tensor<U, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = a[i].to::<U>();
    }
}

/// Conversions of small packed floats.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64,
         instances(T = [F8E4M3, F8E5M2, E8M0], U = [f32, f16, bf16]))]
pub fn row_unpack<T: Convert, U: Float>(a: &Tensor<T, (n,)>, y: &mut Tensor<U, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = a[i].to::<U>();
    }
}

/// Conversions to small packed floats.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64,
         instances(T = [f32, f16, bf16], U = [F8E4M3, F8E5M2]))]
pub fn row_pack<T: Float, U: ConvertTarget>(a: &Tensor<T, (n,)>, y: &mut Tensor<U, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = a[i].to::<U>();
    }
}

/// Conversions of truth values.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64,
         instances(U = [i8, i16, i32, i64, u8, u16, u32, u64, f32, f16, bf16, f64]))]
pub fn row_of_truth<U: Number>(a: &Tensor<bool, (n,)>, y: &mut Tensor<U, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = a[i].to::<U>();
    }
}

/// Two floats in a byte.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64)]
pub fn row_unpack_two(a: &Tensor<F4E2M1x2, (n,)>, y: &mut Tensor<f32, { (n * 2,) }>) {
    let i = global_id(0);
    if i < n {
        y.store2(i, a[i].to_f32());
    }
}

/// Eight integers in a word.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64)]
pub fn row_unpack_eight(a: &Tensor<Int4x8, (n,)>, y: &mut Tensor<i32, { (n * 8,) }>) {
    let i = global_id(0);
    if i < n {
        y.store8(i, a[i].to_i32());
    }
}

/// Eight integers in a word, as floats.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64)]
pub fn row_unpack_floats(a: &Tensor<Int4x8, (n,)>, y: &mut Tensor<f32, { (n * 8,) }>) {
    let i = global_id(0);
    if i < n {
        y.store8(i, a[i].to_f32());
    }
}

/// A kernel of this file that computes rows, with its instance and its `op`, where it has one.
pub struct Choice {
    /// Name.
    pub kernel: &'static str,
    /// Instance.
    pub instance: String,
    /// Value of the last argument.
    pub op: Option<Const>,
}

/// The kernel for rows of that operation and type.
pub fn choice(row: &Row) -> Option<Choice> {
    let (from, to, name) = (row.from, row.to, row.operation.name);
    let number = |s: Scalar| s.is_int() || s.is_float();
    let halves = |s: Scalar| s.is_float() && s != Scalar::F64;
    let of = |kernel: &'static str, op: usize| {
        Some(Choice {
            kernel,
            instance: from.to_string(),
            op: Some(Const::u32(op as u32)),
        })
    };
    let among = |kernel: &'static str, names: &[&str]| {
        let op = names.iter().position(|n| *n == name)?;
        of(kernel, op)
    };
    let plain = |kernel: &'static str, instance: String| {
        Some(Choice {
            kernel,
            instance,
            op: None,
        })
    };
    if name == "convert" {
        let both = format!("{from}-{to}");
        return match from {
            Scalar::Bool if number(to) => plain("row_of_truth", to.to_string()),
            Scalar::F4E2M1x2 if to == Scalar::F32 => plain("row_unpack_two", String::new()),
            Scalar::Int4x8 if to == Scalar::I32 => plain("row_unpack_eight", String::new()),
            Scalar::Int4x8 if to == Scalar::F32 => plain("row_unpack_floats", String::new()),
            Scalar::F8E4M3 | Scalar::F8E5M2 | Scalar::E8M0 if halves(to) => {
                plain("row_unpack", both)
            }
            _ if halves(from) && matches!(to, Scalar::F8E4M3 | Scalar::F8E5M2) => {
                plain("row_pack", both)
            }
            _ if number(from) && number(to) => plain("row_convert", both),
            _ => None,
        };
    }
    if from == Scalar::Bool {
        let truths = ["and", "or", "xor", "eq", "ne"];
        return match truths.iter().position(|n| *n == name) {
            Some(op) => Some(Choice {
                kernel: "row_truths",
                instance: String::new(),
                op: Some(Const::u32(op as u32)),
            }),
            None if name == "not" => plain("row_not", String::new()),
            None => None,
        };
    }
    if !number(from) {
        return None;
    }
    if name == "select" {
        return plain("row_select", from.to_string());
    }
    if name == "dot4" {
        return plain("row_bytes", from.to_string());
    }
    if name == "dot4_mixed" {
        return plain("row_mixed_bytes", String::new());
    }
    if from.is_int() {
        among(
            "row_integers",
            &[
                "rem", "and", "or", "xor", "shl", "shr", "mul_high", "div_rem",
            ],
        )
        .or_else(|| among("row_integer", &["neg", "not", "reverse_bits"]))
        .or_else(|| {
            among(
                "row_bits",
                &["count_ones", "leading_zeros", "trailing_zeros"],
            )
        })
    } else {
        among(
            "row_float",
            &["neg", "abs", "sqrt", "floor", "ceil", "trunc", "round_even"],
        )
        .or_else(|| among("row_question", &["is_nan", "is_finite"]))
        .or_else(|| among("row_floats", &["min_nan", "max_nan"]))
        .or_else(|| among("row_product_sum", &["fma", "mul_add"]))
        .or_else(|| {
            let functions = [
                "rsqrt", "exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf",
            ];
            let choice = among("row_function", &functions);
            choice.filter(|_| halves(from))
        })
        .or_else(|| match name {
            "pow" if halves(from) => plain("row_power", from.to_string()),
            _ => None,
        })
    }
    .or_else(|| among("row_pair", &["add", "sub", "mul", "div", "min", "max"]))
    .or_else(|| among("row_compare", &["eq", "ne", "lt", "le", "gt", "ge"]))
}

/// Whether Rust itself refuses the operation, as a fault of the launch on `host`: a quotient by
/// zero, and that of the least integer by -1.
pub fn faults_in_rust(row: &Row) -> bool {
    if !row.from.is_int() || !matches!(row.operation.name, "div" | "rem" | "div_rem") {
        return false;
    }
    let bits = row.from.bits();
    let ones = u64::MAX >> (64 - bits);
    let (a, b) = (row.operands[0], row.operands[1]);
    b == 0 || (row.from.is_signed() && b == ones && a == 1 << (bits - 1))
}
