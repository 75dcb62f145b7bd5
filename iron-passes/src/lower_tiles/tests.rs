//! The route by warpgroup products: which kernels take it, and what it makes of them.

use iron_ir::Kernel;
use iron_ir::layout::{BlockLayout, FieldKind};
use iron_ir::parse::parse;
use iron_ir::print::print;

use crate::legal::TileRoute;
use crate::{Legal, run};

/// A product of tiles of `rows` × 64 by 64 × 128, `a` and `b` of `scalar`.
fn product(threads: u32, rows: u32, scalar: &str, extra: &str) -> String {
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

fn lowered(text: &str) -> Kernel {
    let legal = Legal {
        tile_route: TileRoute::Warpgroup,
        subgroup_size: Some(32),
        linear_subgroups: true,
        shared_bytes_limit: 227 << 10,
        expand_unrolled_loops: false,
        max_vector_bytes: 16,
        max_vector_lanes: 8,
        has_bf16_memory: true,
        ..Legal::PORTABLE
    };
    run(parse(text).unwrap(), &legal).unwrap()
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
