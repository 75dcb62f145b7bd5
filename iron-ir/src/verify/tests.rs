//! Each check refuses what it is for, and the uniformity rules draw their line where they say.

use super::{Fault, lint, uniform_values, verify};
use crate::parse::parse;
use crate::print::print;

/// A kernel of 64 threads around a body.
fn kernel(body: &str) -> crate::Kernel {
    let text = format!(
        "kernel @k grid(#n, 1, 1) workgroup(64, 1, 1) {{
  file \"k.rs\"
  dim #n
  param @x: tensor<f32, [#n, #n], read, align 4> !1:3
  param @y: tensor<f32, [#n, #n], read_write, align 1>
  param @i: tensor<u32, [#n], read_write, align 1>
  param @b: tensor<bool, [#n], read, align 1>
  param @s: u32
  local $v: u32
  local $go: bool
  shared &sh: [f32; 64]
  private &mine: [u32; 8]
  tile !a: shared [f32; 16, 8]
  tile !acc: register [f32; 16, 16]
  tile !row: register [f32; 16, 1]
{body}
}}
"
    );
    parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn refused(body: &str, expected: &str) {
    let errors = verify(&kernel(body)).expect_err(body);
    let text = errors.to_string();
    assert!(
        text.contains(expected),
        "{body}\nsays: {text}\nnot: {expected}"
    );
}

fn accepted(body: &str) {
    if let Err(errors) = verify(&kernel(body)) {
        panic!("{body}\n{errors}");
    }
}

#[test]
fn types_of_operations() {
    refused(
        "%0: u32 = add 1u32, 1i32",
        "operands of `add` are u32 and i32",
    );
    refused("%0: u64 = add 1u32, 1u32", "add is u32, not u64");
    refused("%0: f32 = rem 1.0f32, 1.0f32", "no `rem` of f32");
    refused("%0: bool = lt true, false", "no `lt` of bool");
    refused("%0: u32 = neg true", "neg");
    refused("%0: f32 = sqrt 1u32", "no `sqrt` of u32");
    refused(
        "%0: f32 = select 1u32, 1.0f32, 2.0f32",
        "condition of a select",
    );
    refused("%0: bool = convert 1u32", "no conversion of u32 to bool");
    refused("%0: f8e4m3 = convert 1u32", "no conversion");
    refused("%0: f32 = bitcast 1u64", "no bit cast of u64 to f32");
    refused("%0: f32x4 = splat 1u32", "splat");
    refused(
        "%0: f32x4 = splat 1.0f32\n%1: f32 = extract %0, 4",
        "lane 4 of f32x4",
    );
    refused("%0: f32x2 = vector 1.0f32, 1u32", "f32x2 of 2 parts");
    refused("$v = 1.0f32", "assigned value must be u32, found f32");
    refused("if 1u32 {\n}", "condition must be bool, found u32");
    refused(
        "for %k: u32 in 0u32 .. 4u64 {\n}",
        "loop end must be u32, found u64",
    );
    refused("%0: u32 = check_index 1u32, 2u64", "bound must be u32");
    refused("%0: f32 = group reduce.and 1.0f32", "has no such operator");
    refused(
        "%0: u32 = subgroup ballot true",
        "subgroup `ballot` of bool to u32",
    );
    accepted("%0: f32x4 = splat 1.0f32\n%1: boolx4 = lt %0, %0\n%2: f32x4 = select %1, %0, %0");
}

#[test]
fn places_and_access() {
    refused(
        "store @x[0u32, 0u32] = 1.0f32",
        "`x` is read-only; declare it `&mut` to write it (declared at",
    );
    refused("%0: f32 = load @x[0u32]", "1 indices into `x` of rank 2");
    refused(
        "%0: f32 = load @x[0u64, 0u32]",
        "index must be u32, found u64",
    );
    refused(
        "%0: f32 = load @x[flat 0u32]",
        "index must be u64, found u32",
    );
    refused(
        "%0: u32 = load @x[0u32, 0u32]",
        "element of `x` must be f32, found u32",
    );
    accepted("%0: u32 = load @x[flat 0u64]");
    refused("%0: u64 = load @x[flat 0u64]", "element of `x`");
    refused("%0: f32x8 = load @x[0u32, 0u32]", "aligned to 4 elements");
    refused("%0: u32 = atomic add &mine[0u32], 1u32", "private array");
    refused(
        "%0: f32 = atomic min @y[0u32, 0u32], 1.0f32",
        "no atomic `min` on f32",
    );
    refused(
        "%0: u32 = atomic load @i[0u32], 1u32",
        "wrong number of operands",
    );
}

#[test]
fn structure_and_definitions() {
    refused("break", "`break` outside of a loop");
    refused("if true {\ncontinue\n}", "`continue` outside of a loop");
    let mut broken = kernel("if true {\n%0: u32 = add 1u32, @s\n}\n$v = 1u32");
    let inner = crate::entity::Handle::from_index(1);
    let last = broken.body.0.last_mut().unwrap();
    last.0 = crate::Stmt::Set(crate::entity::Handle::from_index(0), inner);
    let text = verify(&broken).unwrap_err().to_string();
    assert!(
        text.contains("used before its definition, or outside of the block"),
        "{text}"
    );
    let mut twice = kernel("%0: u32 = add 1u32, @s");
    let again = twice.body.0[0].clone();
    twice.body.0.push(again);
    assert!(
        verify(&twice)
            .unwrap_err()
            .to_string()
            .contains("defined twice")
    );
    let mut foreign = kernel("");
    let value = crate::entity::Handle::from_index(99);
    foreign
        .body
        .push(crate::Stmt::Let(value), Default::default());
    assert!(
        verify(&foreign)
            .unwrap_err()
            .to_string()
            .contains("another kernel")
    );
    let mut wide = kernel("%0: u8 = 1u8");
    let first: crate::entity::Value = crate::entity::Handle::from_index(0);
    wide.values[first].op = crate::Op::Const(crate::Const {
        scalar: crate::Scalar::U8,
        bits: 256,
    });
    assert!(
        verify(&wide)
            .unwrap_err()
            .to_string()
            .contains("does not fit u8")
    );
}

#[test]
fn tile_rules() {
    accepted("tile_fill !acc = 0.0f32\nmatmul !acc += !a * !a transposed");
    refused(
        "matmul !acc += !a * !a",
        "matmul of `a` (16 × 8 of f32) and",
    );
    refused("matmul !a += !acc * !acc", "matmul");
    refused("reduce_rows.sum !acc = !acc", "reduction of register tile");
    refused("tile_copy !a = !acc", "copy of tile");
    refused("tile_store @x[0u32, 0u32] = !acc", "read-only");
    refused(
        "tile_map !acc = (%e: f32 = !acc) at (%r: u32, %c: u32) {\nbarrier workgroup shared\nyield %e\n}",
        "the body of a tile map may hold no",
    );
    refused(
        "tile_load !a = @x[local_index, 0u32]",
        "must be the same in every thread",
    );
}

/// K02: the error shows the operation and the condition that makes it divergent.
#[test]
fn a_barrier_after_a_divergent_return_names_both_places() {
    let errors = verify(&kernel(
        "%c: bool = ge global_id.0, #n !7:8
if %c !7:5 {
  return !7:20
}
barrier workgroup shared !9:5",
    ))
    .unwrap_err();
    assert_eq!(
        errors.to_string(),
        "k.rs:9:5: kernel `k`: the workgroup barrier must be reached by every thread of the workgroup, but this condition may differ between threads; do it outside and mask the work instead (diverges at k.rs:7:8)"
    );
    let Fault::Divergent { condition, .. } = &errors.0[0].fault else {
        panic!("{errors}")
    };
    assert_eq!((condition.line, errors.0[0].span.line), (7, 9));
}

#[test]
fn divergence_of_control_flow() {
    let divergent = "may differ between threads";
    refused(
        "%l: u32 = and local_index, 1u32\n%c: bool = eq %l, 0u32\nif %c {\nbarrier workgroup shared\n}",
        divergent,
    );
    refused(
        "for %k: u32 in local_index .. 64u32 {\nbarrier workgroup shared\n}",
        divergent,
    );
    // A break on a divergent condition: before it too, for the next turn.
    refused(
        "loop {\nbarrier workgroup shared\n%c: bool = lt local_index, 3u32\nif %c {\nbreak\n}\n}",
        divergent,
    );
    refused(
        "for %k: u32 in 0u32 .. 4u32 {\n%c: bool = lt local_index, %k\nif %c {\ncontinue\n}\nbarrier workgroup shared\n}",
        divergent,
    );
    // After the loop threads are together again.
    accepted(
        "loop {\n%c: bool = lt local_index, 3u32\nif %c {\nbreak\n}\nbreak\n}\nbarrier workgroup shared",
    );
    accepted(
        "for %k: u32 in 0u32 .. 4u32 {\nbarrier workgroup shared\n%c: bool = lt local_index, %k\nif %c {\ncontinue\n}\n}",
    );
    // A loop of one turn does not go round again, so what is before the break is uniform.
    accepted(
        "loop {\nbarrier workgroup shared\n%c: bool = lt local_index, 3u32\nif %c {\nbreak\n}\n$v = 1u32\nbreak\n}",
    );
    refused(
        "loop {\n%c: bool = lt local_index, 3u32\nif %c {\nbreak\n}\nbarrier workgroup shared\nbreak\n}",
        divergent,
    );
    // A return inside of a loop makes the next turn divergent.
    refused(
        "for %k: u32 in 0u32 .. 4u32 {\nbarrier workgroup shared\n%c: bool = lt local_index, %k\nif %c {\nreturn\n}\n}",
        divergent,
    );
    accepted("%c: bool = lt @s, 3u32\nif %c {\nreturn\n}\nbarrier workgroup shared");
}

#[test]
fn uniformity_of_values() {
    let guarded = |make: &str| format!("{make}\nif %c {{\nbarrier workgroup shared\n}}");
    let yes = |make: &str| accepted(&guarded(make));
    let no = |make: &str| refused(&guarded(make), "may differ between threads");
    yes("%c: bool = load @b[group_id.0]");
    no("%c: bool = load @b[local_id.0]");
    yes("%c: bool = eq local_id.1, 0u32");
    no("%i: u32 = load @i[0u32]\n%c: bool = eq %i, 0u32");
    no("%f: f32 = load &sh[0u32]\n%c: bool = lt %f, 0.0f32");
    yes("%f: f32 = convert local_index\n%m: f32 = group reduce.max %f\n%c: bool = lt %m, 0.0f32");
    no(
        "%f: f32 = convert local_index\n%m: f32 = group scan_inclusive.sum %f\n%c: bool = lt %m, 0.0f32",
    );
    no("%c0: bool = lt local_index, 3u32\n%c: bool = subgroup any %c0");
    no("%a: u32 = atomic add @i[0u32], 1u32\n%c: bool = eq %a, 0u32");
    // Variables: every assignment counts, wherever it stands.
    yes("$go = true\n%c: bool = $go");
    no("$go = true\n%d: bool = lt local_index, 3u32\nif %d {\n$go = false\n}\n%c: bool = $go");
    no(
        "$v = 0u32\nfor %k: u32 in 0u32 .. 4u32 {\n%d: bool = lt local_index, %k\nif %d {\nbreak\n}\n$v = %k\n}\n%w: u32 = $v\n%c: bool = eq %w, 1u32",
    );
    yes(
        "$v = 0u32\nfor %k: u32 in 0u32 .. @s {\n%w0: u32 = $v\n%w1: u32 = add %w0, %k\n$v = %w1\n}\n%w: u32 = $v\n%c: bool = eq %w, 1u32",
    );
    // A tile map's body runs once for each element that a thread holds.
    no(
        "$v = 0u32\ntile_map !acc = (%e: f32 = !acc) at (%r: u32, %q: u32) {\n$v = 1u32\nyield %e\n}\n%w: u32 = $v\n%c: bool = eq %w, 1u32",
    );
    // What another tensor of the kernel may write is not the same in every thread.
    yes("%f: f32 = load @x[0u32, 0u32]\n%c: bool = lt %f, 0.0f32");
    yes("store &mine[1u32] = @s\n%w: u32 = load &mine[1u32]\n%c: bool = eq %w, 1u32");
    no("store &mine[1u32] = local_index\n%w: u32 = load &mine[1u32]\n%c: bool = eq %w, 1u32");
    let aliased = print(&kernel("%f: f32 = load @x[0u32, 0u32]\n%c: bool = lt %f, 0.0f32\nif %c {\nbarrier workgroup shared\n}"))
        .replace("@y: tensor<f32, [#n, #n], read_write, align 1>", "@y: tensor<f32, [#n, #n], read_write, align 1, alias @x>");
    let errors = verify(&parse(&aliased).expect("it parses")).expect_err("it may change");
    assert!(
        errors.to_string().contains("may differ between threads"),
        "{errors}"
    );
    let k = kernel("%u: u32 = add group_id.0, 1u32\n%d: u32 = add local_index, 1u32");
    let uniform = uniform_values(&k);
    let of = |name: &str| {
        k.values
            .iter()
            .position(|(_, v)| v.name.as_deref() == Some(name))
            .map(|i| uniform[i])
    };
    assert_eq!((of("u"), of("d")), (Some(true), Some(false)));
}

/// K18.
#[test]
fn narrow_accumulators_are_flagged() {
    let text = "kernel @k grid(1, 1, 1) workgroup(64, 1, 1) {
  dim #n
  param @x: tensor<f16, [#n], read, align 1>
  local $sum: f16
  local $wide: f32
  $sum = 0.0f16
  for %i: u32 in 0u32 .. #n {
    %v: f16 = load @x[%i]
    %s: f16 = $sum
    %t: f16 = add %s, %v
    $sum = %t
    %w: f32 = convert %v
    %ws: f32 = $wide
    %wt: f32 = add %ws, %w
    $wide = %wt
  }
  %last: f16 = $sum
  %all: f16 = group reduce.sum %last
  %max: f16 = group reduce.max %last
}
";
    let messages: Vec<_> = lint(&parse(text).unwrap())
        .into_iter()
        .map(|l| l.message)
        .collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(
        messages
            .iter()
            .any(|m| m.starts_with("`sum` accumulates in f16"))
    );
    assert!(
        messages
            .iter()
            .any(|m| m.starts_with("this sum accumulates in f16"))
    );
}

/// A cooperative kernel with a body and an attribute more.
fn cooperative(attribute: &str, body: &str) -> Result<(), String> {
    let text = format!(
        "kernel @k grid(#n, 1, 1) workgroup(64, 1, 1) {attribute} {{
  dim #n
  param @count: u32
  param @x: tensor<u32, [#n], read, align 1>
  param @y: tensor<u32, [#n], read_write, align 1>
  shared &s: [u32; 64]
{body}
}}
"
    );
    let kernel = crate::parse::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    verify(&kernel).map_err(|errors| errors.to_string())
}

#[test]
fn grid_barriers_stand_where_the_whole_launch_passes() {
    const MEET: &str = "barrier grid shared_and_global";
    let inside = |condition: &str| format!("{condition}\nif %c {{\n{MEET}\n}}");
    let uniform = [
        "%c: bool = lt @count, 3u32",
        "%c: bool = lt #n, group_count.0",
        "%v: u32 = load @x[3u32]\n%c: bool = lt %v, 3u32",
    ];
    for condition in uniform {
        cooperative("cooperative", &inside(condition)).expect(condition);
    }
    let differing = [
        "%c: bool = lt group_id.0, 3u32",
        "%v: u32 = load @x[group_id.0]\n%c: bool = lt %v, 3u32",
        "%v: u32 = load @y[3u32]\n%c: bool = lt %v, 3u32",
        "%v: u32 = group reduce.sum 1u32\n%c: bool = lt %v, 3u32",
        "%c: bool = lt local_index, 3u32",
    ];
    for condition in differing {
        let refused = cooperative("cooperative", &inside(condition)).expect_err(condition);
        assert!(refused.contains("every thread of the launch"), "{refused}");
    }
    // A workgroup's own barrier may stand there.
    let own = "%c: bool = lt group_id.0, 3u32\nif %c {\nbarrier workgroup shared\n}";
    cooperative("cooperative", &format!("{own}\n{MEET}")).expect("uniform in the workgroup");
}

#[test]
fn a_kernel_has_one_array_that_is_filled_ahead() {
    let kernel = |arrays: &str| {
        let text = format!("kernel @k grid(1, 1, 1) workgroup(1, 1, 1) {{\n{arrays}\n}}\n");
        verify(&parse(&text).expect("parses")).map_err(|errors| errors.to_string())
    };
    kernel("ahead &a: [f32; 4]\nprivate &b: [f32; 4]").expect("one");
    let refused = kernel("ahead &a: [f32; 4]\nahead &b: [f32; 4]").expect_err("two");
    assert!(
        refused.contains("batches are those of one array"),
        "{refused}"
    );
}

#[test]
fn grid_barriers_need_their_licence_and_stand_behind_the_launch_barrier() {
    const MEET: &str = "barrier grid shared_and_global";
    const WAIT: &str = "barrier launch shared_and_global";
    let refused = cooperative("", MEET).expect_err("not cooperative");
    assert!(refused.contains("declared `cooperative`"), "{refused}");
    let both = "cooperative dependent";
    cooperative(both, &format!("{WAIT}\n{MEET}")).expect("behind it");
    cooperative(both, MEET).expect("the launch waits at its start");
    let refused = cooperative(both, &format!("{MEET}\n{WAIT}")).expect_err("before it");
    assert!(
        refused.contains("launch barrier; put it behind"),
        "{refused}"
    );
    let held = format!("%c: bool = lt @count, 3u32\nif %c {{\n{WAIT}\n{MEET}\n}}");
    cooperative(both, &held).expect_err("one statement holds both");
}
