//! The route by fragments of subgroups: which kernels take it, and what it makes of them.

use iron_ir::machine::FRAGMENT;
use iron_ir::parse::parse;
use iron_ir::print::print;

use super::tests::{attention_like, product};
use super::units::Units;
use crate::legal::Fragments;
use crate::{Legal, run};

fn fragments(lanes: u32, shared_bytes: u64) -> Legal {
    Legal {
        fragments: Some(Fragments::BOTH),
        subgroup_size: Some(lanes),
        linear_subgroups: true,
        shared_bytes_limit: shared_bytes,
        expand_unrolled_loops: false,
        max_vector_lanes: 8,
        has_bf16_memory: true,
        ..Legal::PORTABLE
    }
}

fn lowered(text: &str, legal: &Legal) -> String {
    print(&run(parse(text).unwrap(), legal).unwrap())
}

#[test]
fn a_loop_that_multiplies_goes_by_slices() {
    let text = lowered(&product(256, 128, "bf16", ""), &fragments(32, 48 << 10));
    // Three loops, by chunks from within, by chunks and by elements, each of four products of 16
    // steps.
    assert_eq!(
        text.matches("machine fragment_product").count(),
        12,
        "{text}"
    );
    // Of 64 columns of 128 rows each thread holds four chunks of either tile, read before the loop
    // and in it.
    let reads = |tensor: &str| text.matches(&format!("bf16x8 = load @{tensor}[")).count();
    assert_eq!([reads("a"), reads("b")], [16, 16], "{text}");
    let again = parse(&text).unwrap();
    iron_ir::verify::verify_lowered(&again).unwrap();
    assert_eq!(print(&again), text);
}

/// Where the first and the last turn do not say what lies between them, nothing is taken to lie
/// within the tensors.
#[test]
fn places_that_turns_do_not_enclose_are_looked_at() {
    let straight = product(256, 128, "bf16", "");
    let bent = straight.replace(
        "    tile_load !a = @a[0u32, %k]",
        "    %row: u32 = and %k, 64u32\n    tile_load !a = @a[%row, %k]",
    );
    assert_ne!(straight, bent);
    let loops = |text: &str| {
        let text = lowered(text, &fragments(32, 48 << 10));
        text.matches("machine fragment_product").count() / 4
    };
    assert_eq!([loops(&straight), loops(&bent)], [3, 2]);
}

#[test]
fn slices_are_as_long_as_memory_and_registers_allow() {
    let arrays = |legal: &Legal| {
        let kernel = run(parse(&product(256, 128, "f16", "")).unwrap(), legal).unwrap();
        let a = kernel.arrays.values().find(|a| &*a.name == "a").unwrap();
        (a.len / 128, kernel.shared_bytes())
    };
    for (limit, pitch) in [(48 << 10, 64 + 8), (32 << 10, 32 + 8), (24 << 10, 16 + 8)] {
        let (found, bytes) = arrays(&fragments(32, limit));
        assert_eq!(found, pitch, "of {limit}");
        assert!(bytes <= limit, "{bytes} of {limit}");
    }
}

/// Copies bring slices to stages, of which two workgroups' fit; where they do not, registers do.
#[test]
fn copies_bring_slices_ahead() {
    let copies = |bytes| Legal {
        has_chunk_copies: true,
        ..fragments(32, bytes)
    };
    for (limit, pitch, stages) in [
        (227 << 10, 32 + 8, 4),
        (163 << 10, 32 + 8, 3),
        (100 << 10, 16 + 8, 3),
        (64 << 10, 64 + 8, 1),
    ] {
        let text = product(256, 128, "bf16", "");
        let kernel = run(parse(&text).unwrap(), &copies(limit)).unwrap();
        let a = kernel.arrays.values().find(|a| &*a.name == "a").unwrap();
        assert_eq!(a.len, 128 * pitch * stages, "of {limit}");
        let text = print(&kernel);
        assert_eq!(text.contains("machine copy_chunk"), stages > 1, "{text}");
        assert_eq!(text.contains("_next_"), stages == 1, "{text}");
        let again = parse(&text).unwrap();
        iron_ir::verify::verify_lowered(&again).unwrap();
        assert_eq!(print(&again), text);
    }
}

/// Every element of a tile has one subgroup, one fragment and one lane, and a lane's elements of
/// its array are those of its fragments in order.
#[test]
fn every_element_is_held_once() {
    let kernel = parse(&product(256, 128, "bf16", "")).unwrap();
    for lanes in [32, 64] {
        let units = Units::of(&kernel, &fragments(lanes, 48 << 10)).unwrap();
        let (down, across) = units.grid;
        assert_eq!(down * across, 256 / lanes);
        let tile = *units.sums.iter().next().unwrap();
        let (rows, columns) = units.fragments(&kernel, tile);
        let each = units.side_by_side();
        let mut seen = std::collections::HashSet::new();
        for subgroup in 0..down * across {
            for lane in 0..lanes {
                for slot in 0..units.elements(&kernel, tile) {
                    let (fragment, within) = (slot / each, slot % each);
                    let place = (fragment / columns, fragment % columns);
                    let lane_row = lane / (FRAGMENT / each);
                    let lane_column = lane % (FRAGMENT / each) * each + within;
                    let row = (place.0 * down + subgroup / across) * FRAGMENT + lane_row;
                    let column = (place.1 * across + subgroup % across) * FRAGMENT + lane_column;
                    assert!(row < 128 && column < 128);
                    assert!(seen.insert((row, column)), "{row} {column} twice");
                }
            }
        }
        assert_eq!(seen.len(), 128 * 128);
        assert_eq!(rows * columns * down * across, 64);
    }
}

/// Sums leave their fragments for a map and return for the next product; a tile that every turn of
/// a loop fills anew does not return at its end.
#[test]
fn maps_go_over_elements() {
    let text = lowered(&attention_like(""), &fragments(32, 200 << 10));
    assert!(text.contains("machine fragment_store"), "{text}");
    // `out` is only ever multiplied and stored, `sum` is dead behind the map.
    assert!(!text.contains("machine fragment_load"), "{text}");
    let twice = "    tile_map !out = (%x: f32 = !out) at (%i: u32, %j: u32) {
      yield %x
    }
";
    let text = lowered(&attention_like(twice), &fragments(32, 200 << 10));
    assert!(text.contains("machine fragment_load"), "{text}");
}

#[test]
fn kernels_that_do_not_fit_go_through_loops() {
    let (small, whole) = (fragments(32, 16 << 10), fragments(32, 48 << 10));
    let only_f16 = Legal {
        fragments: Some(Fragments {
            f16: true,
            bf16: false,
        }),
        ..whole.clone()
    };
    let narrow = Legal {
        subgroup_size: Some(8),
        ..whole.clone()
    };
    for (why, text, legal) in [
        ("f32", product(256, 128, "f32", ""), &whole),
        ("threads", product(80, 128, "bf16", ""), &whole),
        ("rows", product(256, 24, "bf16", ""), &whole),
        ("memory", product(256, 128, "bf16", ""), &small),
        ("type", product(256, 128, "bf16", ""), &only_f16),
        ("lanes", product(256, 128, "bf16", ""), &narrow),
    ] {
        let lowered = lowered(&text, legal);
        assert!(!lowered.contains("machine"), "{why}: {lowered}");
        assert!(lowered.contains("fma"), "{why}: {lowered}");
    }
}

/// A tile that the loop names for more than its products is loaded whole, by the same chunks.
#[test]
fn other_loops_load_whole_tiles() {
    let text = product(256, 128, "bf16", "    barrier workgroup shared\n");
    let text = lowered(&text, &fragments(32, 64 << 10));
    assert!(text.contains("machine fragment_product"), "{text}");
    assert!(!text.contains("_next_"), "{text}");
}
