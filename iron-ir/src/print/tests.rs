//! The text form round-trips.

use super::{Options, canonical, print, print_with, without_spans};
use crate::parse::parse;

/// Every declaration, statement and operation.
const EVERYTHING: &str = r#"kernel @every "f32-HEAD_DIM=64" grid(ceil_div(#n, 4), (#rows + 1) / 2, min(#n, @count)) workgroup(32, 2, 1) resident(4) requires(#n % 4 == 0, @count >= 1) contract_fma approximate cooperative dependent {
  doc "All of it, \"quoted\".\nTwo lines."
  file "src/every.rs"
  file "src/other.rs"
  dim #n
  dim #rows
  param @x: tensor<f32, [#rows, #n], read, align 4>
  param @y: tensor<f32, [#rows, #n], read_write, strided, align 1, alias @z>
  param @z: tensor<u32, [#n * 2], read_write, align 1>
  param @codes: tensor<f4e2m1x2, [#n / 2], read, align 1>
  param @words: tensor<int4x8, [#n / 8], read, align 1>
  param @count: u32
  param @eps: f32
  local $sum: f32
  local $v: f32x4
  shared &buffer: [f32; 64]
  private &mine: [u32; 4]
  tile !a: shared [f16; 16, 32]
  tile !b: shared [f16; 32, 16]
  tile !acc: register [f32; 16, 16]
  tile !row: register [f32; 16, 1]
  tile !column: register [f32; 1, 16]

  %row: u32 = group_id.1
  %1: f32x4 = load @x[%row, 4u32]
  %2: f32 = extract %1, 2
  %4: f32x4 = insert %1, 3, @eps
  %5: f32x4 = splat 1.5f32
  %7: f32x4 = vector 0.0f32, -0.0f32, f32:0x7f800000, 1e-45f32
  %12: f32x4 = fma %4, %5, %7
  %13: f32 = neg %2
  %14: bool = is_nan %13
  %15: f32 = select %14, %2, %13
  %16: bool = lt %15, 3.4028235e38f32
  %18: u32 = bitcast %15
  %19: u64 = convert %18
  %20: u64 = mul %19, stride(@x, 0)
  %22: u64 = shl %20, 3u64
  %24: f32 = load @x[flat %22]
  %25: f32x2 = convert f4e2m1x2:0x71
  %w: int4x8 = load @words[0u32]
  %29: i32x8 = convert %w
  $sum = %24
  $v = %12
  %30: f32 = $sum
  %31: u32 = check_index %18, #n
  store @y[%31, 0u32] = %30
  store &buffer[local_index] = %30
  %34: f32 = load &buffer[local_index]
  store &mine[1u32] = -7i32
  barrier workgroup shared
  barrier grid shared_and_global
  barrier launch shared_and_global
  %37: u32 = atomic add @z[0u32], 1u32
  %38: u32 = atomic compare_exchange @z[0u32], 1u32, 2u32
  %40: u32 = atomic load @z[0u32]
  %41: f32 = subgroup shuffle_xor %34, 1u32
  %42: u64 = subgroup ballot true
  %44: f32 = subgroup reduce.max_nan %41
  %45: f32 = group scan_exclusive.sum %44
  %46: f32 = group broadcast %45, 0u32
  %47: bf16x4 = convert %1
  %48: f32x4 = mma %47, %47, %47, %1
  if %16 {
    loop {
      break
    }
  } else {
    return
  }
  for %i: u32 in 0u32 .. #n {
    for %j: u32 in %i .. #n step group_threads unroll {
      continue
    }
    for %50: u32 in 0u32 .. 4u32 step 2u32 never_unroll {
    }
  }
  tile_fill !acc = 0.0f32
  tile_load !a = @x[%row, 0u32]
  tile_load !b = @x[%row, 0u32] transposed
  matmul !acc += !a * !b
  matmul !acc += !b transposed * !a transposed
  reduce_rows.max !row = !acc
  reduce_columns.sum !column = !acc
  tile_map !acc = (%e: f32 = !acc, %m: f32 = !row) at (%52: u32, %53: u32) {
    %54: f32 = sub %e, %m
    %55: f32 = exp %54
    yield %55
  }
  tile_copy !b = !a
  tile_store @y[%row, 0u32] = !acc
}
"#;

#[test]
fn every_construct_round_trips() {
    let kernel = parse(EVERYTHING).unwrap();
    let printed = print(&kernel);
    let again = parse(&printed).unwrap();
    assert_eq!(again, kernel);
    assert_eq!(canonical(&kernel), kernel);
    assert_eq!(print(&again), printed);
    // The text is as written, but for the numbers of values.
    let skeleton = |text: &str| {
        let mut out = String::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            out.push(c);
            while (c == '%' || c == '.') && chars.peek().is_some_and(char::is_ascii_digit) {
                chars.next();
            }
        }
        out
    };
    assert_eq!(skeleton(&printed), skeleton(EVERYTHING));
}

#[test]
fn spans_round_trip_and_are_lost_without_the_option() {
    let text = r#"kernel @k grid(1, 1, 1) workgroup(1, 1, 1) {
  file "a.rs"
  file "b.rs"
  param @y: tensor<f32, [1], read_write, align 1> !3:5

  %0: f32 !7:9 = mul 2.0f32, 2.0f32 !7:5
  %name: f32 = add %0, %0 !1:8:2
  if true !9:1 {
    store @y[0u32] = %name !9:4
  }
}
"#;
    let kernel = parse(text).unwrap();
    let spans = print_with(&kernel, Options { spans: true });
    assert_eq!(parse(&spans).unwrap(), kernel);
    assert_eq!(spans.replace("%2", "%1"), text.replace("%2", "%1"));
    assert_eq!(parse(&print(&kernel)).unwrap(), without_spans(&kernel));
}

/// K17: constants keep their bits through the text.
#[test]
fn constants_keep_their_bits() {
    use crate::{Const, Scalar};
    for c in [
        Const::f32(f32::INFINITY),
        Const::f32(f32::NEG_INFINITY),
        Const {
            scalar: Scalar::F32,
            bits: 0x7fc0_0001,
        },
        Const::f32(-0.0),
        Const::f32(1e-45),
        Const::f32(16_777_217.0),
        Const::f32(f32::MAX),
        Const::f32(0.1),
        Const::f32(2.0),
        Const::f64(0.1),
        Const {
            scalar: Scalar::F16,
            bits: 0x0001,
        },
        Const {
            scalar: Scalar::BF16,
            bits: 0x7f7f,
        },
        Const {
            scalar: Scalar::BF16,
            bits: 0x8000,
        },
        Const::int(Scalar::I64, i128::from(i64::MIN)),
        Const::u64(u64::MAX),
        Const::int(Scalar::I8, -128),
        Const {
            scalar: Scalar::F8E4M3,
            bits: 0x7f,
        },
        Const::bool(true),
    ] {
        let text = format!(
            "kernel @k grid(1, 1, 1) workgroup(1, 1, 1) {{\n  %c: {} = {}\n}}\n",
            c.scalar,
            super::constant(c)
        );
        let kernel = parse(&text).unwrap();
        assert_eq!(
            kernel.constant(crate::Handle::from_index(0)),
            Some(c),
            "{text}"
        );
        assert_eq!(print(&kernel).replace("{\n\n", "{\n"), text);
    }
}

#[test]
fn parse_errors_name_line_column_and_what_was_expected() {
    let check = |body: &str, expected: &str| {
        let text = format!("kernel @k grid(1, 1, 1) workgroup(1, 1, 1) {{\n{body}\n}}\n");
        assert_eq!(parse(&text).unwrap_err().to_string(), expected);
    };
    check(
        "  %0: u32 = add 1u32 2u32",
        "2:22: expected `,`, found `2u32`",
    );
    check(
        "  %0: u32 = add %1, 2u32",
        "2:17: `%1` is not defined before this",
    );
    check("  %0: u33 = add 1u32, 2u32", "2:7: there is no type `u33`");
    check(
        "  %0: u8 = neg 300u8",
        "2:16: `300u8` is no constant: a number and a type, as in `1.5f32`",
    );
    check("  $x = 1u32", "2:3: there is no variable `$x`");
    check(
        "  %0: u32 = local_id",
        "2:13: `local_id` needs an axis, as in `local_id.0`",
    );
    check("  frob", "2:3: there is no statement `frob`");
    check(
        "  barrier galaxy shared",
        "2:18: there is no barrier `galaxy shared`",
    );
    let open = parse("kernel @k grid(1, 1, 1) workgroup(1, 1, 1) {\n  loop {\n").unwrap_err();
    assert_eq!(
        open.to_string(),
        "3:1: expected a statement or `}`, found the end"
    );
}

#[test]
fn names_that_occur_twice_carry_numbers() {
    let text = "kernel @k grid(1, 1, 1) workgroup(1, 1, 1) {
  local $v: u32
  local $v.1: u32

  %a.0: u32 = $v.0
  %a.1: u32 = $v.1
}
";
    let text = text.replace("local $v:", "local $v.0:");
    let kernel = parse(&text).unwrap();
    assert_eq!(&*kernel.locals.values().next().unwrap().name, "v");
    assert_eq!(print(&kernel), text);
}
