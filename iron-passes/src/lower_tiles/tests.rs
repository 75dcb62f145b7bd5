//! The route by warpgroup products: which kernels take it, and what it makes of them.

use iron_ir::Kernel;
use iron_ir::layout::{BlockLayout, FieldKind};
use iron_ir::parse::parse;
use iron_ir::print::print;

use crate::legal::TileRoute;
use crate::{Legal, run};

/// A product of tiles of `rows` × 64 by 64 × 128, `a` and `b` of `scalar`.
pub(super) fn product(threads: u32, rows: u32, scalar: &str, extra: &str) -> String {
    format!(
        "kernel @k grid(1, 1, 1) workgroup({threads}, 1, 1) {{
  dim #m
  dim #n
  dim #k
  param @a: tensor<{scalar}, [#m, #k], read, align 1>
  param @b: tensor<{scalar}, [#n, #k], read, align 1>
  param @c: tensor<{scalar}, [#m, #n], read_write, align 1>
  tile !a: shared [{scalar}; {rows}, 64]
  tile !b: shared [{scalar}; 128, 64]
  tile !sum: register [f32; {rows}, 128]
  tile !most: register [f32; {rows}, 1]
  tile !wide: register [f32; 1, 128]

  tile_fill !sum = 0.0f32
  for %k: u32 in 0u32 .. #k step 64u32 {{
    tile_load !a = @a[0u32, %k]
    tile_load !b = @b[0u32, %k]
    matmul !sum += !a * !b transposed
{extra}  }}
  tile_store @c[0u32, 0u32] = !sum
}}
"
    )
}

fn warpgroups() -> Legal {
    Legal {
        tile_route: TileRoute::Warpgroup,
        subgroup_size: Some(32),
        linear_subgroups: true,
        shared_bytes_limit: 227 << 10,
        expand_unrolled_loops: false,
        max_vector_bytes: 16,
        max_vector_lanes: 8,
        has_bf16_memory: true,
        ..Legal::PORTABLE
    }
}

fn lowered(text: &str) -> Kernel {
    run(parse(text).unwrap(), &warpgroups()).unwrap()
}

#[test]
fn a_product_that_fits_is_divided_into_roles() {
    let kernel = lowered(&product(256, 128, "bf16", ""));
    assert_eq!(kernel.contract.workgroup, [384, 1, 1]);
    let text = print(&kernel);
    assert_eq!(text.matches("machine product ").count(), 4, "{text}");
    // A tile of each operand a turn, in the producer alone.
    let (producer, consumer) = text.split_once("machine registers() 232 1").unwrap();
    assert_eq!(producer.matches("machine copy_panel").count(), 2);
    assert!(!consumer.contains("machine copy_panel"), "{text}");
    // No stage of 32 KiB more than fits.
    let stages = text.matches("machine signal_init &a_full").count();
    assert_eq!(stages, 7, "{text}");
    assert!(kernel.shared_bytes() <= 227 << 10);
    let fields = BlockLayout::of(&kernel).fields;
    let maps: Vec<u32> = fields
        .iter()
        .filter(|f| matches!(f.kind, FieldKind::TensorMap(..)))
        .map(|f| f.offset)
        .collect();
    assert_eq!(maps.len(), 2);
    assert!(maps.iter().all(|at| at % 64 == 0), "{maps:?}");
}

/// The thread that copies waits for the launches before between its copies of what they do not
/// write and of what they do; so does every other thread.
#[test]
fn a_dependent_product_waits_in_either_role() {
    let text = product(128, 64, "bf16", "")
        .replace("workgroup(128, 1, 1)", "workgroup(128, 1, 1) dependent")
        .replace(
            "    tile_load !b",
            "    barrier launch shared_and_global\n    tile_load !b",
        );
    let legal = Legal {
        has_dependent_launch: true,
        ..warpgroups()
    };
    let text = print(&run(parse(&text).unwrap(), &legal).unwrap());
    let copies: Vec<&str> = text.split("machine copy_panel").collect();
    assert_eq!(copies.len(), 3, "{text}");
    assert!(!copies[0].contains("barrier launch"), "{text}");
    assert!(copies[1].contains("barrier launch"), "{text}");
    // Copies by one thread, by all of the producer, and the consumers.
    assert_eq!(text.matches("barrier launch").count(), 3, "{text}");
}

/// A tile of few rows is the beginning of a fragment: its products read 64, and what they make
/// of the rest is never stored.
#[test]
fn few_rows_are_part_of_a_fragment() {
    let text = product(128, 16, "bf16", "");
    let kernel = lowered(&text);
    assert_eq!(kernel.contract.workgroup, [256, 1, 1]);
    let printed = print(&kernel);
    assert_eq!(printed.matches("machine product ").count(), 4, "{printed}");
    let a = kernel.arrays.values().find(|a| &*a.name == "a").unwrap();
    let stages = printed.matches("machine signal_init &a_full").count() as u32;
    assert_eq!(a.len, stages * 16 * 64 + 48 * 64);
}

/// What the route makes survives printing and parsing, and verifies.
#[test]
fn the_divided_kernel_round_trips() {
    let kernel = lowered(&product(
        256,
        256,
        "f16",
        "    reduce_rows.max !most = !sum\n",
    ));
    let text = print(&kernel);
    let again = parse(&text).unwrap();
    iron_ir::verify::verify(&again).unwrap();
    assert_eq!(print(&again), text);
}

#[test]
fn kernels_that_do_not_fit_go_through_loops() {
    for (why, text) in [
        ("f32", product(256, 128, "f32", "")),
        ("threads", product(96, 128, "bf16", "")),
        ("rows", product(256, 64, "bf16", "")),
        ("uneven rows", product(128, 20, "bf16", "")),
        (
            "column sums",
            product(256, 128, "bf16", "    reduce_columns.sum !wide = !sum\n"),
        ),
        (
            "a barrier",
            product(256, 128, "bf16", "    barrier workgroup shared\n"),
        ),
        (
            "a thread's own work",
            product(256, 128, "bf16", "    store @c[0u32, 0u32] = bf16:0x0000\n"),
        ),
    ] {
        let kernel = lowered(&text);
        let lowered = print(&kernel);
        assert!(!lowered.contains("machine"), "{why}: {lowered}");
        assert!(lowered.contains("fma"), "{why}: {lowered}");
    }
}

/// Two products of a loop around a map, `inside` in between.
pub(super) fn attention_like(inside: &str) -> String {
    let body = format!(
        "    tile_map !sum = (%e: f32 = !sum) at (%r: u32, %c: u32) {{
      yield %e
    }}
    tile_copy !held = !sum
{inside}    tile_load !v = @b[0u32, %k]
    matmul !out += !held * !v
"
    );
    let tiles = "  tile !held: shared [bf16; 128, 128]
  tile !v: shared [bf16; 128, 64]
  tile !out: register [f32; 128, 64]
";
    let text = product(256, 128, "bf16", &body).replace(
        "tile_store @c[0u32, 0u32] = !sum",
        "tile_store @c[0u32, 0u32] = !out",
    );
    let fill = "  tile_fill !sum = 0.0f32\n";
    let text = text.replace(fill, "  tile_fill !out = 0.0f32\n");
    let text = text.replace("    matmul !sum +=", &format!("  {fill}    matmul !sum +="));
    text.replace("  tile !wide", &format!("{tiles}  tile !wide"))
}

/// Each warpgroup gives the other its turn as often as the other waits, and none waits for the
/// other by a barrier in its turn.
#[test]
fn two_products_around_a_map_take_turns() {
    let text = print(&lowered(&attention_like("")));
    assert_eq!(text.matches("machine turn_wait").count(), 2, "{text}");
    assert_eq!(text.matches("machine turn_give").count(), 2, "{text}");
    assert_eq!(text.matches("machine product_leave").count(), 1, "{text}");
    let (first, rest) = text.split_once("machine turn_give").unwrap();
    assert!(
        first.contains("machine product "),
        "the first product comes first: {text}"
    );
    let (between, last) = rest.split_once("machine turn_wait").unwrap();
    assert!(between.contains("machine product_end"), "{text}");
    assert!(last.contains("machine product_held"), "{text}");
    // A third product, or one that the loop may leave before, has no turn to belong to.
    for inside in [
        "    tile_load !v = @b[0u32, %k]\n    matmul !out += !held * !v\n",
        "    %early: bool = lt %k, 64u32\n    if %early {\n      break\n    }\n",
    ] {
        let text = print(&lowered(&attention_like(inside)));
        assert!(!text.contains("turn_wait"), "{text}");
    }
}
