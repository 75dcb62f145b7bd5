//! The rules as tables: for every operation and every scalar, whether the verifier accepts it; and
//! for every limit, what lies on each side of it.

use super::verify;
use crate::contract::{Expr, ExprOp, Fact};
use crate::entity::Handle;
use crate::kernel::ParamKind;
use crate::op::{AtomicOp, BinaryOp, CompareOp, GroupOp, Op, ReduceOp, Stmt, SubgroupOp, UnaryOp};
use crate::parse::parse;
use crate::types::Scalar;
use crate::{Kernel, Type};

const INTS: &[&str] = &["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"];
const FLOATS: &[&str] = &["f16", "bf16", "f32", "f64"];

/// A kernel with a variable of each scalar, alone and as four lanes, and one tensor of each.
fn kernel(body: &str) -> Kernel {
    let mut text = String::from("kernel @k grid(1, 1, 1) workgroup(64, 1, 1) {\n  dim #n\n");
    text.push_str("  param @s: u32\n  param @f: f32\n  param @i: i64\n");
    for scalar in Scalar::ALL {
        let name = scalar.name();
        text.push_str(&format!(
            "  param @{name}: tensor<{name}, [#n], read_write, align 1>\n  local ${name}: {name}\n"
        ));
    }
    for scalar in Scalar::ALL {
        let name = scalar.name();
        text.push_str(&format!("  local ${name}_4: {name}x4\n"));
    }
    text.push_str("  shared &shared: [u32; 64]\n  private &private: [u32; 8]\n");
    text.push_str("  param @matrix: tensor<f32, [#n, #n], read_write, align 1>\n");
    text.push_str("  tile !a: shared [f32; 16, 8]\n  tile !b: shared [f32; 8, 24]\n");
    text.push_str("  tile !c: register [f32; 16, 24]\n  tile !row: register [f32; 1, 24]\n");
    text.push_str("  tile !column: register [f32; 16, 1]\n  tile !half: register [f16; 16, 24]\n");
    text.push_str("  tile !count: register [u32; 16, 24]\n  tile !wide: register [f32; 16, 8]\n");
    text.push_str("  tile !tall: register [f32; 8, 24]\n");
    text.push_str(body);
    text.push_str("\n}\n");
    parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn is_accepted(body: &str) -> bool {
    verify(&kernel(body)).is_ok()
}

/// One row: what an operation gives for operands of each scalar in `allowed`, and that it takes no
/// other scalar and gives no other type.
fn row(op: &str, operands: usize, allowed: &[&[&str]], result: &dyn Fn(&str) -> String) {
    for scalar in Scalar::ALL {
        let name = scalar.name();
        let list = ["%v"; 3][..operands].join(", ");
        let body = |ty: &str| format!("%v: {name} = ${name}\n%r: {ty} = {op} {list}");
        let expected = allowed.iter().any(|list| list.contains(&name));
        let ty = result(name);
        assert_eq!(is_accepted(&body(&ty)), expected, "{}", body(&ty));
        let other = if ty == "i32" { "u32" } else { "i32" };
        assert!(!is_accepted(&body(other)), "{}", body(other));
        // Lanes go through as they are.
        let lanes = format!("%v: {name}x4 = ${name}_4\n%r: {ty}x4 = {op} {list}");
        assert_eq!(is_accepted(&lanes), expected, "{lanes}");
    }
}

fn same(name: &str) -> String {
    name.into()
}

#[test]
fn each_operation_takes_its_scalars_and_no_other() {
    for op in UnaryOp::ALL {
        use UnaryOp::*;
        let allowed: &[&[&str]] = match op {
            Neg | Abs => &[INTS, FLOATS],
            Not => &[INTS, &["bool"]],
            CountOnes | LeadingZeros | TrailingZeros | ReverseBits => &[INTS],
            Sqrt | Rsqrt | Exp | Exp2 | Log | Log2 | Sin | Cos | Tanh | Erf | Floor | Ceil
            | Trunc | RoundEven | IsNan | IsFinite => &[FLOATS],
        };
        let result = |name: &str| match op {
            CountOnes | LeadingZeros | TrailingZeros => "u32".into(),
            IsNan | IsFinite => "bool".into(),
            _ => same(name),
        };
        row(op.name(), 1, allowed, &result);
    }
    for op in BinaryOp::ALL {
        use BinaryOp::*;
        let allowed: &[&[&str]] = match op {
            Add | Sub | Mul | Div | Min | Max => &[INTS, FLOATS],
            Rem | Shl | Shr | MulHigh => &[INTS],
            And | Or | Xor => &[INTS, &["bool"]],
            Dot4 => &[&["i32", "u32"]],
            Dot4Mixed => &[&["i32"]],
            MinNan | MaxNan | Pow => &[FLOATS],
        };
        row(op.name(), 2, allowed, &same);
    }
    for op in CompareOp::ALL {
        let allowed: &[&[&str]] = match op {
            CompareOp::Eq | CompareOp::Ne => &[INTS, FLOATS, &["bool"]],
            CompareOp::Lt | CompareOp::Le | CompareOp::Gt | CompareOp::Ge => &[INTS, FLOATS],
        };
        row(op.name(), 2, allowed, &|_| "bool".into());
    }
    row("fma", 3, &[FLOATS], &same);
}

#[test]
fn operands_are_of_one_type() {
    let pair = "%a: f32 = $f32\n%b: f64 = $f64\n%w: f32x4 = $f32_4\n";
    for wrong in [
        "%r: f32 = add %a, %b",
        "%r: f32 = add %a, %w",
        "%r: bool = eq %a, %b",
        "%r: f32 = fma %a, %b, %a",
        "%r: f32 = fma %a, %a, %b",
        "%r: f32 = select true, %a, %b",
        "%r: f32x4 = select true, %a, %a",
    ] {
        assert!(!is_accepted(&format!("{pair}{wrong}")), "{wrong}");
    }
    // One condition for all lanes, or one a lane.
    let lanes = "%c: boolx4 = $bool_4\n%w: f32x4 = $f32_4\n%a: f32 = $f32\n%u: u32x4 = $u32_4\n";
    for (select, accepted) in [
        ("%r: f32x4 = select true, %w, %w", true),
        ("%r: f32x4 = select %c, %w, %w", true),
        ("%r: f32 = select %c, %a, %a", false),
        ("%r: f32x4 = select %u, %w, %w", false),
    ] {
        assert_eq!(
            is_accepted(&format!("{lanes}{select}")),
            accepted,
            "{select}"
        );
    }
}

#[test]
fn conversions_and_bit_casts_are_those_of_the_specification() {
    let is = |list: &[&str], name: &str| list.contains(&name);
    for from in Scalar::ALL {
        for to in Scalar::ALL {
            let (a, b) = (from.name(), to.name());
            let number = is(INTS, b) || is(FLOATS, b);
            let expected = match a {
                "f8e4m3" | "f8e5m2" | "e8m0" => is(FLOATS, b),
                "f4e2m1x2" | "int4x8" => false,
                "bool" => number,
                _ if is(FLOATS, a) => number || is(&["f8e4m3", "f8e5m2"], b),
                _ => number,
            };
            let body = format!("%v: {a} = ${a}\n%r: {b} = convert %v");
            assert_eq!(is_accepted(&body), expected, "{body}");
            let size = |s: Scalar| s.bytes();
            let expected = size(from) == size(to) && (a == "bool") == (b == "bool");
            let body = format!("%v: {a} = ${a}\n%r: {b} = bitcast %v");
            assert_eq!(is_accepted(&body), expected, "{body}");
        }
    }
    // Packed pairs and octets unpack to as many lanes.
    for (from, to, accepted) in [
        ("f4e2m1x2", "f32x2", true),
        ("f4e2m1x2", "f32x4", false),
        ("f4e2m1x2", "u32x2", false),
        ("f4e2m1x2_4", "f32x8", true),
        ("int4x8", "f32x8", true),
        ("int4x8", "i8x8", true),
        ("int4x8", "f32x4", false),
        ("int4x8", "boolx8", false),
        ("f32_4", "f16x4", true),
        ("f32_4", "f16x2", false),
    ] {
        let own = from.replace("_4", "x4");
        let body = format!("%v: {own} = ${from}\n%r: {to} = convert %v");
        assert_eq!(is_accepted(&body), accepted, "{body}");
    }
}

#[test]
fn lanes_are_made_and_taken_within_the_vector() {
    let head = "%a: f32 = $f32\n%d: f64 = $f64\n%w: f32x4 = $f32_4\n";
    for (body, accepted) in [
        ("%r: f32 = extract %w, 3", true),
        ("%r: f32 = extract %w, 4", false),
        ("%r: f64 = extract %w, 0", false),
        ("%r: f32 = extract %a, 0", false),
        ("%r: f32x4 = insert %w, 3, %a", true),
        ("%r: f32x4 = insert %w, 4, %a", false),
        ("%r: f32x4 = insert %w, 0, %d", false),
        ("%r: f32x2 = insert %w, 0, %a", false),
        ("%r: f32x8 = splat %a", true),
        ("%r: f32 = splat %a", false),
        ("%r: f64x2 = splat %a", false),
        ("%r: f32x4 = splat %w", false),
        ("%r: f32x2 = vector %a, %a", true),
        ("%r: f32x2 = vector %a, %d", false),
    ] {
        assert_eq!(is_accepted(&format!("{head}{body}")), accepted, "{body}");
    }
    for count in 1..=3 {
        let mut k = kernel(&format!("{head}%r: f32x2 = vector %a, %a"));
        let made = k.values.handles().last().expect("the vector");
        if let Op::Vector(parts) = &mut k.values[made].op {
            parts.resize(count, parts[0]);
        }
        assert_eq!(verify(&k).is_ok(), count == 2, "{count} parts");
    }
}

#[test]
fn atomics_are_of_words_that_other_threads_see() {
    for op in AtomicOp::ALL {
        let operands = match op {
            AtomicOp::Load => "",
            AtomicOp::CompareExchange => ", %v, %v",
            _ => ", %v",
        };
        let float = matches!(
            op,
            AtomicOp::Add | AtomicOp::Exchange | AtomicOp::Load | AtomicOp::Store
        );
        for scalar in Scalar::ALL {
            let name = scalar.name();
            let expected =
                matches!(name, "i32" | "u32" | "i64" | "u64") || (name == "f32" && float);
            let body = format!(
                "%v: {name} = ${name}\n%r: {name} = atomic {} @{name}[0u32]{operands}",
                op.name()
            );
            assert_eq!(is_accepted(&body), expected, "{body}");
        }
        let with =
            |operands: &str| format!("%r: u32 = atomic {} &shared[0u32]{operands}", op.name());
        let wants = operands.matches("%v").count();
        for (count, operands) in ["", ", 1u32", ", 1u32, 2u32"].into_iter().enumerate() {
            assert_eq!(
                is_accepted(&with(operands)),
                count == wants,
                "{}",
                with(operands)
            );
        }
        let operands = operands.replace("%v", "1u32");
        let private = with(&operands).replace("&shared", "&private");
        assert!(!is_accepted(&private), "{private}");
        let wrong = operands.replace("1u32", "1i32");
        if wants > 0 {
            assert!(!is_accepted(&with(&wrong)), "{}", with(&wrong));
        }
    }
}

#[test]
fn collectives_take_one_scalar_and_their_operands() {
    for reduce in ReduceOp::ALL {
        use ReduceOp::*;
        let allowed: &[&[&str]] = match reduce {
            Sum | Product | Min | Max => &[INTS, FLOATS],
            MinNan | MaxNan => &[FLOATS],
            And | Or => &[INTS, &["bool"]],
        };
        for scalar in Scalar::ALL {
            let name = scalar.name();
            let expected = allowed.iter().any(|list| list.contains(&name));
            for what in [
                "group reduce",
                "group scan_inclusive",
                "group scan_exclusive",
                "subgroup reduce",
            ] {
                let body = format!(
                    "%v: {name} = ${name}\n%r: {name} = {what}.{} %v",
                    reduce.name()
                );
                assert_eq!(is_accepted(&body), expected, "{body}");
            }
        }
    }
    for op in GroupOp::ALL {
        let is_broadcast = *op == GroupOp::Broadcast;
        for (operator, argument, accepted) in [
            ("", ", 3u32", is_broadcast),
            ("", "", false),
            (".sum", "", !is_broadcast),
            (".sum", ", 3u32", false),
            ("", ", 3u64", false),
        ] {
            let body = format!(
                "%v: f32 = $f32\n%r: f32 = group {}{operator} %v{argument}",
                op.name()
            );
            assert_eq!(is_accepted(&body), accepted, "{body}");
        }
    }
    for op in SubgroupOp::ALL {
        use SubgroupOp::*;
        let (ty, result, moves) = match op {
            Shuffle | ShuffleXor | ShuffleUp | ShuffleDown | Broadcast => ("f32", "f32", true),
            Reduce => ("f32", "f32", false),
            Ballot => ("bool", "u64", false),
            Any | All => ("bool", "bool", false),
        };
        let operator = if *op == Reduce { ".sum" } else { "" };
        let body = |ty: &str, result: &str, operator: &str, argument: &str| {
            format!(
                "%v: {ty} = ${}\n%r: {result} = subgroup {}{operator} %v{argument}",
                ty.replace("x4", "_4"),
                op.name()
            )
        };
        let argument = if moves { ", 1u32" } else { "" };
        let right = body(ty, result, operator, argument);
        assert!(is_accepted(&right), "{right}");
        let other_operator = if operator.is_empty() { ".sum" } else { "" };
        let other_argument = if moves { "" } else { ", 1u32" };
        let other_result = if result == "u64" { "u32" } else { "u64" };
        for wrong in [
            body(ty, other_result, operator, argument),
            body(ty, result, other_operator, argument),
            body(ty, result, operator, other_argument),
            body("f32x4", "f32x4", operator, argument),
            body("int4x8", "int4x8", operator, argument),
            body("u32", result, operator, argument),
        ] {
            assert!(!is_accepted(&wrong), "{wrong}");
        }
        if moves {
            let wrong = body(ty, result, operator, ", 1u64");
            assert!(!is_accepted(&wrong), "{wrong}");
        }
    }
}

#[test]
fn leaves_read_what_the_kernel_has() {
    for (body, accepted) in [
        ("%r: u32 = add @s, 1u32", true),
        ("%r: f32 = add @f, 1.0f32", true),
        ("%r: u32 = add #n, 1u32", true),
        ("%r: u32 = add group_id.2, 1u32", true),
        ("%r: u64 = add stride(@f32, 0), 1u64", true),
    ] {
        assert_eq!(is_accepted(body), accepted, "{body}");
    }
    let changed = |op: Op, ty: Type| {
        let mut k = kernel("%v: u32 = $u32\n$u32 = %v");
        let leaf = k.add_value(op, ty, Default::default());
        k.body
            .push(Stmt::Set(Handle::from_index(7), leaf), Default::default());
        verify(&k).map_err(|errors| errors.to_string())
    };
    let says = |op: Op, ty: Type, what: &str| {
        let text = changed(op.clone(), ty).expect_err("refused");
        assert!(text.contains(what), "{op:?}: {text}");
    };
    let (param, dim) = (Handle::from_index, Handle::from_index);
    assert_eq!(changed(Op::Scalar(param(0)), Type::U32), Ok(()));
    says(
        Op::Scalar(param(3)),
        Type::U32,
        "reads what is no scalar parameter",
    );
    says(
        Op::Scalar(param(99)),
        Type::U32,
        "reads what is no scalar parameter",
    );
    says(Op::Scalar(param(0)), Type::U64, "the parameter is u32");
    assert_eq!(changed(Op::Dim(dim(0)), Type::U32), Ok(()));
    says(Op::Dim(dim(1)), Type::U32, "a dimension of another kernel");
    says(Op::Dim(dim(0)), Type::U64, "a dimension is u32");
    says(
        Op::Stride(param(3), 1),
        Type::U64,
        "an axis that is not there",
    );
    says(
        Op::Stride(param(0), 0),
        Type::U64,
        "an axis that is not there",
    );
    says(Op::Stride(param(3), 0), Type::U32, "a stride is u64");
    use crate::op::BuiltinOp::GroupId;
    assert_eq!(changed(Op::Builtin(GroupId, 2), Type::U32), Ok(()));
    says(Op::Builtin(GroupId, 3), Type::U32, "axis 3 of group_id");
    says(Op::Builtin(GroupId, 0), Type::U64, "group_id is u32");
}

#[test]
fn tables_keep_their_limits() {
    let with = |change: &dyn Fn(&mut Kernel)| {
        let mut k = kernel("");
        change(&mut k);
        verify(&k).map_err(|errors| errors.to_string())
    };
    let tensor = |change: &dyn Fn(&mut crate::kernel::TensorData)| {
        with(&|k| {
            if let ParamKind::Tensor(t) = &mut k.params[Handle::from_index(3)].kind {
                change(t)
            }
        })
    };
    for rank in 0..=10usize {
        let result = tensor(&|t| t.shape = vec![Expr::Const(4); rank]);
        assert_eq!(result.is_ok(), (1..=8).contains(&rank), "rank {rank}");
    }
    for align in 0..=9u8 {
        let result = tensor(&|t| t.align = align);
        assert_eq!(
            result.is_ok(),
            matches!(align, 1 | 2 | 4 | 8),
            "align {align}"
        );
    }
    let count = kernel("").params.len();
    for (other, known) in [(0, true), (count - 1, true), (count, false)] {
        let result = tensor(&|t| t.may_alias = vec![Handle::from_index(other)]);
        assert_eq!(result.is_ok(), known, "parameter {other}");
    }
    for scalar in Scalar::ALL {
        let result = with(&|k| k.params[Handle::from_index(1)].kind = ParamKind::Scalar(scalar));
        let allowed = matches!(scalar.name(), "i32" | "u32" | "i64" | "u64" | "f32");
        assert_eq!(result.is_ok(), allowed, "{scalar}");
    }
    for (rows, columns, scalar) in [
        (0, 8, Scalar::F32),
        (8, 0, Scalar::F32),
        (8, 8, Scalar::F8E4M3),
    ] {
        let text = with(&|k| {
            let tile = &mut k.tiles[Handle::from_index(0)];
            (tile.rows, tile.columns, tile.scalar) = (rows, columns, scalar);
        })
        .expect_err("no tile");
        assert!(text.contains("tile `a` is"), "{text}");
    }
    assert_eq!(with(&|k| k.tiles[Handle::from_index(0)].rows = 1), Ok(()));
    assert_eq!(with(&|k| k.arrays[Handle::from_index(0)].len = 1), Ok(()));
    assert!(with(&|k| k.arrays[Handle::from_index(0)].len = 0).is_err());
    for lanes in 0..=9u8 {
        let result = with(&|k| k.locals[Handle::from_index(0)].ty.lanes = lanes);
        assert_eq!(
            result.is_ok(),
            matches!(lanes, 1 | 2 | 4 | 8),
            "{lanes} lanes"
        );
    }
    for workgroup in [[0, 1, 1], [1, 0, 1], [1, 1, 0]] {
        let text = with(&|k| k.contract.workgroup = workgroup).expect_err("empty");
        assert!(text.contains("has a size of zero"), "{text}");
    }
    assert_eq!(with(&|k| k.contract.workgroup = [1, 1, 1]), Ok(()));
}

#[test]
fn a_contract_names_dimensions_and_integers() {
    type Place<'a> = &'a dyn Fn(&mut Kernel, Expr);
    let places: [Place<'_>; 4] = [
        &|k, e| k.contract.grid[2] = e,
        &|k, e| {
            k.contract.requires = vec![Fact {
                op: CompareOp::Eq,
                lhs: e,
                rhs: Expr::Const(0),
            }]
        },
        &|k, e| {
            k.contract.requires = vec![Fact {
                op: CompareOp::Eq,
                lhs: Expr::Const(0),
                rhs: e,
            }]
        },
        &|k, e| {
            if let ParamKind::Tensor(t) = &mut k.params[Handle::from_index(3)].kind {
                t.shape = vec![e];
            }
        },
    ];
    let scalar = |index| Expr::Scalar(Handle::from_index(index));
    let dim = |index| Expr::Dim(Handle::from_index(index));
    for place in places {
        for (expr, accepted) in [
            (Expr::Const(-5), true),
            (dim(0), true),
            (dim(1), false),
            (scalar(0), true),
            (scalar(1), false),
            (scalar(2), true),
            (scalar(3), false),
            (scalar(99), false),
        ] {
            for expr in [
                expr.clone(),
                Expr::binary(ExprOp::Add, expr.clone(), Expr::Const(1)),
                Expr::binary(ExprOp::Add, Expr::Const(1), expr.clone()),
            ] {
                let mut k = kernel("");
                place(&mut k, expr.clone());
                assert_eq!(verify(&k).is_ok(), accepted, "{expr:?}");
            }
        }
    }
}

#[test]
fn roles_leave_threads_to_both() {
    for (producers, accepted) in [(0, false), (1, true), (63, true), (64, false), (65, false)] {
        let body = format!("roles {producers} {{\n}} else {{\n}}");
        assert_eq!(is_accepted(&body), accepted, "{body}");
    }
}

#[test]
fn tiles_agree_in_shape_space_and_scalar() {
    for (body, accepted) in [
        ("matmul !c += !a * !b", true),
        ("matmul !c += !b * !a", false),
        ("matmul !c += !b transposed * !b", false),
        ("matmul !c += !b transposed * !a transposed", false),
        ("matmul !half += !a * !b", false),
        ("matmul !a += !a * !b", false),
        ("matmul !c += !wide * !b", false),
        ("matmul !c += !a * !tall", false),
        ("tile_copy !half = !c", true),
        ("tile_copy !count = !c", false),
        ("tile_copy !row = !c", false),
        ("reduce_rows.sum !column = !c", true),
        ("reduce_rows.sum !row = !c", false),
        ("reduce_columns.sum !row = !c", true),
        ("reduce_columns.sum !column = !c", false),
        ("reduce_rows.sum !column = !half", false),
        ("reduce_rows.sum !column = !a", false),
        ("reduce_rows.and !column = !c", false),
        ("reduce_columns.sum !row = !row", false),
        ("tile_fill !c = 1.0f32", true),
        ("tile_fill !c = 1.0f16", false),
        ("tile_fill !count = 1.0f32", false),
        ("tile_load !a = @matrix[0u32, 0u32]", true),
        ("tile_load !half = @matrix[0u32, 0u32]", true),
        ("tile_load !count = @matrix[0u32, 0u32]", false),
        ("tile_load !a = @matrix[0u32, 0u64]", false),
        ("tile_load !a = @matrix[0u32, 0u32, 0u32]", false),
        ("tile_load !a = @f32[0u32, 0u32]", false),
        ("tile_store @matrix[0u32, 0u32] = !c", true),
        ("tile_store @u32[0u32, 0u32] = !count", false),
    ] {
        assert_eq!(is_accepted(body), accepted, "{body}");
    }
    let map = |to: &str, from: &str, inside: &str, ty: &str| {
        format!(
            "tile_map !{to} = (%e: {ty} = !{from}) at (%r: u32, %c: u32) {{\n{inside}\nyield %e\n}}"
        )
    };
    for (body, accepted) in [
        (map("c", "c", "", "f32"), true),
        (map("c", "row", "", "f32"), true),
        (map("c", "column", "", "f32"), true),
        (map("row", "c", "", "f32"), false),
        (map("half", "c", "", "f32"), false),
        (map("c", "c", "", "f16"), false),
        (map("c", "c", "$u32 = %r", "f32"), true),
        (map("c", "c", "store &private[%r] = 1u32", "f32"), true),
        (map("c", "c", "store &shared[%r] = 1u32", "f32"), false),
        (map("c", "c", "store @u32[%r] = 1u32", "f32"), false),
        (
            map("c", "c", "%x: u32 = atomic add &shared[0u32], 1u32", "f32"),
            false,
        ),
        (map("c", "c", "%x: bool = subgroup any true", "f32"), false),
        (map("c", "c", "%x: f32 = group reduce.sum %e", "f32"), false),
        (map("c", "c", "return", "f32"), false),
        (map("c", "c", "tile_fill !row = 1.0f32", "f32"), false),
        (map("c", "c", "break", "f32"), false),
        (map("c", "c", "loop {\nbreak\n}", "f32"), true),
        // The element's own type, whatever is made of it.
        (
            "tile_map !c = (%e: f16 = !c) at (%r: u32, %c: u32) {\n%w: f32 = convert %e\nyield %w\n}"
                .to_owned(),
            false,
        ),
        // A loop outside of the map is none of its own.
        (
            format!("loop {{\n{}\nbreak\n}}", map("c", "c", "break", "f32")),
            false,
        ),
    ] {
        assert_eq!(is_accepted(&body), accepted, "{body}");
    }
}

#[test]
fn accesses_fit_their_memory() {
    let aligned = |align: u8, strided: &str, ty: &str, index: &str| {
        let text = format!(
            "kernel @k grid(1, 1, 1) workgroup(64, 1, 1) {{\n  dim #n\n  param @x: tensor<f32, [#n], read, {strided}align {align}>\n%v: {ty} = load @x[{index}]\n}}\n"
        );
        verify(&parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))).is_ok()
    };
    for align in [1, 2, 4, 8] {
        for lanes in [2, 4, 8] {
            let ty = format!("f32x{lanes}");
            assert_eq!(
                aligned(align, "", &ty, "0u32"),
                lanes <= align,
                "{lanes} of {align}"
            );
            assert!(
                aligned(align, "strided, ", &ty, "0u32"),
                "strides are checked at launch"
            );
            assert!(
                aligned(align, "", &ty, "flat 0u64"),
                "addresses were checked before"
            );
        }
        assert!(aligned(align, "", "f32", "0u32"));
    }
    for (body, accepted) in [
        ("%v: u32 = load &shared[0u32]", true),
        ("%v: u32x4 = load &shared[0u32]", true),
        ("%v: i32 = load &shared[0u32]", false),
        ("%v: u32 = load &shared[0u64]", false),
        ("%v: u32 = load &shared[0u32, 0u32]", false),
        ("store &shared[0u32] = 1u32", true),
        ("store &shared[0u32] = 1i32", false),
        ("store @u32[0u32] = 1u32", true),
        ("store @u32[0u32] = 1i32", false),
        ("store @u32[flat 0u64] = 1i32", true),
        ("store @u32[flat 0u64] = 1i64", false),
        ("store @s[0u32] = 1u32", false),
        ("%v: u32 = atomic add @u32[0u32], 1u32", true),
        ("%v: u32 = atomic add @u32[0u64], 1u32", false),
        ("%v: u32 = atomic add @u32[0u32, 0u32], 1u32", false),
        ("%v: u32 = atomic add @i32[0u32], 1u32", false),
        ("%v: u32 = atomic add @s[0u32], 1u32", false),
        ("%v: u32 = atomic add &shared[0u64], 1u32", false),
        ("%v: u32 = check_index 1u32, 2u32", true),
        ("%v: u64 = check_index 1u32, 2u32", false),
        ("%v: u32 = check_index 1u64, 2u32", false),
        ("for %i: f32 in 0.0f32 .. 1.0f32 {\n}", false),
        ("for %i: u8 in 0u8 .. 1u8 {\n}", true),
        ("for %i: u32 in 0u64 .. 1u32 {\n}", false),
        ("for %i: u32 in 0u32 .. 1u32 step 1u64 {\n}", false),
        ("for %i: u32 in 0u32 .. 1u32 {\nbreak\n}", true),
        ("for %i: u32 in 0u32 .. 1u32 {\n}\nbreak", false),
        ("loop {\nif true {\ncontinue\n}\nbreak\n}", true),
        ("loop {\nbreak\n}\ncontinue", false),
    ] {
        assert_eq!(is_accepted(body), accepted, "{body}");
    }
}
