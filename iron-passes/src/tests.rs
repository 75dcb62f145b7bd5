//! Pass tests: text in, text out.

use iron_ir::parse::parse;
use iron_ir::print::print;
use iron_ir::verify::verify;

use crate::{Legal, Pass, pipeline, run_with};

/// Declarations that every test may use, around a body.
fn text(body: &str) -> String {
    format!(
        "kernel @k grid(1, 1, 1) workgroup(64, 1, 1) requires(#n > 0) {{
  dim #n
  param @x: tensor<f32, [#n, #n], read, align 1>
  param @y: tensor<f32, [#n, #n], read_write, align 1>
  param @a: tensor<f32, [#n], read_write, align 1, alias @b>
  param @b: tensor<f32, [#n], read, align 1>
  param @s: i32
  local $v: f32
  shared &sh: [f32; 64]

{body}}}
"
    )
}

/// The statements of a text.
fn body(text: &str) -> String {
    let body = text.split_once("\n\n").map_or("", |(_, body)| body);
    body.strip_suffix("}\n").unwrap_or(body).to_string()
}

/// Runs one pass by name and compares the statements.
#[track_caller]
fn check(pass: &str, legal: &Legal, before: &str, after: &str) {
    let pass: Pass = pipeline(legal)
        .iter()
        .find(|(name, _)| *name == pass)
        .unwrap()
        .1;
    let mut kernel = parse(&text(before)).unwrap();
    verify(&kernel).unwrap();
    pass(&mut kernel, legal).unwrap();
    verify(&kernel).unwrap();
    assert_eq!(body(&print(&kernel)), after);
}

/// K06: indices are widened before they are multiplied.
#[test]
fn addresses_are_64_bit() {
    check(
        "addressing",
        &Legal::PORTABLE,
        "  %i: u32 = add local_index, 1u32
  %v: f32 = load @x[%i, local_index]
  store @y[0u32, %i] = %v
",
        "  %i: u32 = add local_index, 1u32
  %3: u64 = convert %i
  %x_row: u64 = mul %3, stride(@x, 0)
  %6: u64 = convert local_index
  %7: u64 = add %x_row, %6
  %v: f32 = load @x[flat %7]
  %9: u64 = convert %i
  store @y[flat %9] = %v
",
    );
}

/// K35: with a store between, only loads that it cannot reach are merged.
#[test]
fn loads_are_merged_only_with_proof() {
    check(
        "cse",
        &Legal::PORTABLE,
        "  %0: f32 = load @b[0u32]
  %1: f32 = load @x[0u32, 0u32]
  store @a[local_index] = %1
  %2: f32 = load @b[0u32]
  %3: f32 = load @x[0u32, 0u32]
  %4: f32 = add %2, %3
  %5: f32 = add %3, %2
  %6: f32 = add %0, %4
  store @a[0u32] = %6
  store @a[1u32] = %5
",
        "  %0: f32 = load @b[0u32]
  %2: f32 = load @x[0u32, 0u32]
  store @a[local_index] = %2
  %4: f32 = load @b[0u32]
  %5: f32 = add %4, %2
  %6: f32 = add %0, %5
  store @a[0u32] = %6
  store @a[1u32] = %5
",
    );
}

/// An index that was widened and narrowed back is itself.
#[test]
fn a_round_trip_of_widths_is_nothing() {
    check(
        "canonicalise",
        &Legal::PORTABLE,
        "  %i: u32 = add local_index, 1u32
  %wide: u64 = convert %i
  %back: u32 = convert %wide
  %low: u8 = convert %i
  %lossy: u32 = convert %low
  store @a[%back] = 1f32
  store @a[%lossy] = 2f32
",
        "  %i: u32 = add local_index, 1u32
  %wide: u64 = convert %i
  %low: u8 = convert %i
  %lossy: u32 = convert %low
  store @a[%i] = 1.0f32
  store @a[%lossy] = 2.0f32
",
    );
}

/// K38: a variable stays one, whatever its initialiser folded to.
#[test]
fn forwarding_stops_at_loops_that_assign() {
    check(
        "forward",
        &Legal::PORTABLE,
        "  $v = 2.0f32
  %0: f32 = $v
  %1: f32 = mul %0, %0
  $v = %1
  for %i: u32 in 0u32 .. 4u32 {
    %2: f32 = $v
    %3: f32 = add %2, 1.0f32
    $v = %3
    %4: f32 = $v
    store @a[%i] = %4
  }
  %5: f32 = $v
  store @a[0u32] = %5
",
        "  $v = 2.0f32
  %1: f32 = mul 2.0f32, 2.0f32
  $v = %1
  for %i: u32 in 0u32 .. 4u32 {
    %6: f32 = $v
    %7: f32 = add %6, 1.0f32
    $v = %7
    store @a[%i] = %7
  }
  %9: f32 = $v
  store @a[0u32] = %9
",
    );
}

#[test]
fn constants_fold_and_floats_keep_their_zeros() {
    check(
        "canonicalise",
        &Legal::PORTABLE,
        "  %0: u32 = mul group_threads, 2u32
  %1: u32 = add %0, 0u32
  %2: u32 = add local_index, %1
  %3: i32 = div @s, 1i32
  %4: f32 = convert %3
  %5: f32 = add %4, 0.0f32
  %6: f32 = mul %5, 1.0f32
  if true {
    store @a[%2] = %6
  } else {
    store @a[0u32] = %6
  }
  for %i: u32 in 3u32 .. 3u32 {
    store @a[0u32] = %6
  }
  loop {
    store @a[1u32] = %6
    break
  }
",
        "  %0: u32 = add local_index, 128u32
  %3: f32 = convert @s
  %5: f32 = add %3, 0.0f32
  %7: f32 = mul %5, 1.0f32
  store @a[%0] = %7
  store @a[1u32] = %7
",
    );
}

#[test]
fn invariants_leave_loops_and_loads_stay() {
    check(
        "licm",
        &Legal::PORTABLE,
        "  for %i: u32 in 0u32 .. #n {
    for %j: u32 in 0u32 .. #n {
      %0: u32 = mul %i, 4u32
      %1: u32 = add local_index, 1u32
      %2: u32 = add %0, %j
      %3: f32 = load @x[%1, %2]
      store @y[%i, %j] = %3
    }
  }
",
        "  %0: u32 = add local_index, 1u32
  for %i: u32 in 0u32 .. #n {
    %6: u32 = mul %i, 4u32
    for %j: u32 in 0u32 .. #n {
      %9: u32 = add %6, %j
      %10: f32 = load @x[%0, %9]
      store @y[%i, %j] = %10
    }
  }
",
    );
}

/// K08: the guard is there, and not where a contract fact or a constant makes it idle.
#[test]
fn divisions_are_guarded() {
    check(
        "legalise_arithmetic",
        &Legal::PORTABLE,
        "  %0: u32 = div local_index, #n
  %1: u32 = rem local_index, 3u32
  %2: i32 = div 7i32, @s
  %3: u32 = shl %0, %1
",
        "  %0: u32 = div local_index, #n
  %3: u32 = rem local_index, 3u32
  %5: bool = eq @s, 0i32
  %8: bool = eq @s, -1i32
  %10: bool = or %5, %8
  %11: i32 = select %10, 1i32, @s
  %13: i32 = div 7i32, %11
  %15: i32 = neg 7i32
  %16: i32 = select %8, %15, %13
  %17: i32 = select %5, -1i32, %16
  %18: u32 = and %3, 31u32
  %20: u32 = shl %0, %18
",
    );
}

#[test]
fn dead_code_goes_and_effects_stay() {
    check(
        "dead_code",
        &Legal::PORTABLE,
        "  %0: f32 = load @b[0u32]
  %1: f32 = add %0, 1.0f32
  $v = %1
  store &sh[local_index] = %0
  if true {
  }
  %2: f32 = atomic add @a[0u32], 1.0f32
  loop {
    break
    store @a[0u32] = %2
  }
",
        "  %0: f32 = atomic add @a[0u32], 1.0f32
  loop {
    break
  }
",
    );
}

/// K01: nothing of memory moves across a barrier.
#[test]
fn memory_keeps_its_order_around_barriers() {
    let kernel = parse(&text(
        "  %0: f32 = load @b[local_index]
  store &sh[local_index] = %0
  barrier workgroup shared
  %1: u32 = xor local_index, 1u32
  %2: f32 = load &sh[%1]
  barrier workgroup shared
  store &sh[local_index] = %2
  barrier workgroup shared
  %3: f32 = load &sh[%1]
  store @a[local_index] = %3
",
    ))
    .unwrap();
    let order = |text: &str| -> Vec<String> {
        let memory = |line: &&str| {
            ["load", "store", "barrier"]
                .iter()
                .any(|w| line.contains(w))
        };
        let strip = |line: &str| {
            let at = ["load", "store", "barrier"]
                .iter()
                .filter_map(|w| line.find(w))
                .min();
            line[at.unwrap_or(0)..]
                .split('[')
                .next()
                .unwrap_or("")
                .to_string()
        };
        text.lines().filter(memory).map(strip).collect()
    };
    let before = order(&body(&print(&kernel)));
    assert_eq!(before.len(), 9);
    run_with(kernel, &Legal::PORTABLE, &mut |pass, k| {
        assert_eq!(order(&body(&print(k))), before, "after {pass}");
    })
    .unwrap();
}

/// Barriers stand where another thread may read or overwrite, and nowhere else (K04).
#[test]
fn tiles_and_collectives_synchronise_as_little_as_needed() {
    let barriers = |body: &str, pass: &str| {
        let text = text(body).replace(
            "  shared &sh: [f32; 64]\n",
            "  shared &sh: [f32; 64]\n  tile !p: shared [f32; 8, 8]\n  tile !q: shared [f32; 8, 8]\n  tile !acc: register [f32; 8, 8]\n",
        );
        let mut count = 0;
        run_with(parse(&text).unwrap(), &Legal::PORTABLE, &mut |name, k| {
            if name == pass {
                count = print(k).matches("barrier").count();
            }
        })
        .unwrap();
        count
    };
    let product =
        "tile_load !p = @x[0u32, 0u32]\ntile_load !q = @x[0u32, 8u32]\nmatmul !acc += !p * !q\n";
    assert_eq!(
        barriers(
            &format!("tile_fill !acc = 0.0f32\n{product}"),
            "lower_tiles"
        ),
        1
    );
    assert_eq!(
        barriers(
            &format!("tile_fill !acc = 0.0f32\n{product}{product}"),
            "lower_tiles"
        ),
        3
    );
    let turns = format!("tile_fill !acc = 0.0f32\nfor %i: u32 in 0u32 .. #n {{\n{product}}}\n");
    assert_eq!(barriers(&turns, "lower_tiles"), 2);
    let author = format!("tile_fill !acc = 0.0f32\n{product}barrier workgroup shared\n{product}");
    assert_eq!(barriers(&author, "lower_tiles"), 3);
    // 64 threads in stages of 8: one barrier after the elements, one after their partial sums. The
    // next collective writes to other arrays, the one after that to the first ones again, which
    // the barriers of the second order; in a loop, one stands before the first.
    let one = "%v: f32 = convert local_index\n%s: f32 = group reduce.sum %v\nstore @a[local_index] = %s\n";
    assert_eq!(barriers(one, "lower_groups"), 2);
    let two = format!("{one}%t: f32 = group reduce.max %v\nstore @a[local_index] = %t\n");
    assert_eq!(barriers(&two, "lower_groups"), 4);
    let three = format!("{two}%w: f32 = group reduce.min %v\nstore @a[local_index] = %w\n");
    assert_eq!(barriers(&three, "lower_groups"), 6);
    let turns = format!("for %i: u32 in 0u32 .. #n {{\n{two}}}\n");
    assert_eq!(barriers(&turns, "lower_groups"), 5);
    let author = format!(
        "{one}barrier workgroup shared\n%t: f32 = group reduce.max %v\nstore @a[local_index] = %t\n"
    );
    assert_eq!(barriers(&author, "lower_groups"), 5);
}

#[test]
fn a_kernel_that_does_not_verify_is_refused_before_the_first_pass() {
    let kernel = parse(&text("  break\n")).unwrap();
    let error = crate::run(kernel, &Legal::PORTABLE).unwrap_err();
    assert!(
        error.to_string().contains("`break` outside of a loop"),
        "{error}"
    );
}

/// The largest error, in units in the last place, of a legalised function of one `f32`.
fn worst_error(function: &str, exact: fn(f64) -> f64) -> f64 {
    use iron_ir::{Const, Op, Stmt};
    let text = format!(
        "kernel @k grid(1, 1, 1) workgroup(1, 1, 1) {{\n  param @x: f32\n  %r: f32 = {function} @x\n}}\n"
    );
    let mut kernel = parse(&text).unwrap();
    let legal = Legal {
        has_erf: false,
        has_tanh: false,
        ..Legal::PORTABLE
    };
    crate::legalise::legalise_arithmetic(&mut kernel, &legal).unwrap();
    verify(&kernel).unwrap();
    let mut worst: f64 = 0.0;
    let steps = (0..4000)
        .map(|i| 1e-6f32 * 1.005f32.powi(i))
        .take_while(|x| *x < 12.0);
    for x in steps.flat_map(|x| [x, -x]) {
        let mut values = std::collections::HashMap::new();
        let mut last = 0.0;
        for (stmt, _) in &kernel.body.0 {
            let Stmt::Let(value) = stmt else { continue };
            let data = &kernel.values[*value];
            let args: Vec<Const> = iron_ir::kernel::operands(&data.op)
                .into_iter()
                .map(|v| match kernel.values[v].op {
                    Op::Const(c) => c,
                    Op::Scalar(_) => Const::f32(x),
                    _ => values[&v],
                })
                .collect();
            let result = iron_ir::fold::eval(&data.op, data.ty.scalar, &args).unwrap();
            values.insert(*value, result);
            last = result.as_f64();
        }
        let want = exact(f64::from(x));
        let ulp = f64::from((want as f32).abs().next_up()) - f64::from((want as f32).abs());
        worst = worst.max((last - want).abs() / ulp);
        assert_eq!(last.is_sign_negative(), x.is_sign_negative());
    }
    worst
}

#[test]
fn expanded_functions_stay_within_their_stated_error() {
    let erf = |x: f64| {
        let c = iron_ir::fold::unary(iron_ir::op::UnaryOp::Erf, iron_ir::Const::f64(x));
        c.as_f64()
    };
    assert!(worst_error("erf", erf) < 1.1, "{}", worst_error("erf", erf));
    assert!(
        worst_error("tanh", f64::tanh) < 2.0,
        "{}",
        worst_error("tanh", f64::tanh)
    );
}
