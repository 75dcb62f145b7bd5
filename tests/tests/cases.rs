//! Faults that other systems had: each has an id, and a test that carries it in a comment, `// K11`.
//! Here are the list, and the tests that belong to no crate alone.

use std::fs;
use std::path::{Path, PathBuf};

use iron_ir::contract::Feature;
use iron_ir::parse::parse;
use iron_ir::prelude::*;
use iron_lower::{Lack, LowerError, Target, lower, profile};
use iron_tests::built;

/// Id and subject of each case.
const CASES: [(&str, &str); 30] = [
    ("K01", "nothing moves across a barrier"),
    ("K02", "barriers in divergent control flow"),
    ("K04", "shared memory that part of a workgroup fills"),
    ("K06", "offsets past 32 bits"),
    ("K07", "division and remainder of negative numbers"),
    ("K08", "division by zero and of MIN"),
    ("K10", "shifts by the width and more"),
    ("K11", "NaN and signed zero in min, max and argmax"),
    ("K13", "rows of which everything is masked"),
    ("K15", "rounding to bf16"),
    ("K17", "constants that text must keep to the bit"),
    ("K18", "sums in a narrow accumulator"),
    ("K20", "names that a target reserves"),
    ("K22", "more buffers than slots"),
    ("K23", "more shared memory than there is"),
    ("K25", "empty launches"),
    ("K26", "grids past a device's limit"),
    ("K27", "subgroup widths"),
    ("K29", "shared memory read before it is written"),
    ("K30", "known faults of drivers"),
    ("K34", "what identifies an artifact"),
    ("K35", "loads forwarded across a store that may alias"),
    ("K38", "a variable whose first value folds"),
    ("K40", "FP8 quantisation at its edges"),
    ("K41", "what the language does not take"),
    ("K42", "types and atomics that a target lacks"),
    // Neighbours, found by the kinds above.
    ("K06b", "an index below zero, and a loop bound below zero"),
    ("K25b", "strides of an empty view"),
    (
        "K29b",
        "outputs and private memory read before they are written",
    ),
    ("K42b", "what is refused for one target only"),
];

/// Folders with tests.
const FOLDERS: [&str; 7] = [
    "iron-ir",
    "iron-passes",
    "iron-lower",
    "iron-runtime",
    "corpus",
    "xtask",
    "tests",
];

#[test]
fn every_case_has_a_test_that_carries_its_id() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut texts = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut texts);
    }
    assert!(texts.len() > 100, "{} files", texts.len());
    let carried = |id: &str| {
        texts.iter().any(|text| {
            text.lines().any(|line| {
                let comment = ["//", "# "].iter().filter_map(|mark| line.find(mark)).min();
                let comment = comment.map_or("", |at| &line[at..]);
                comment
                    .split(|c: char| !c.is_ascii_alphanumeric())
                    .any(|word| word == id)
            })
        })
    };
    // Those of this file stand above their functions.
    let own = ["K30", "K42", "K42b"];
    let absent: Vec<_> = CASES
        .iter()
        .filter(|(id, _)| !own.contains(id) && !carried(id))
        .collect();
    assert!(absent.is_empty(), "no test carries {absent:?}");
}

/// The texts of a folder where tests can stand.
fn collect(folder: &Path, texts: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    paths.sort();
    for path in paths {
        let name = path
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or_default();
        if path.is_dir() && name != "target" && name != "goldens" {
            collect(&path, texts);
        } else if name != "cases.rs" && (name.ends_with(".rs") || name.ends_with(".txt")) {
            texts.extend(fs::read_to_string(&path));
        }
    }
}

/// Counts in 64 bits.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64)]
pub fn wide_counter(x: &Tensor<u32, (n,)>, total: &mut Tensor<u64, { (1,) }>) {
    let i = global_id(0);
    if i < n {
        total.atomic_add(0, x[i] as u64);
    }
}

/// Reverses a workgroup's elements through shared memory.
#[kernel(grid = [1], workgroup = 64)]
pub fn through_shared(x: &Tensor<f32, { (64,) }>, y: &mut Tensor<f32, { (64,) }>) {
    let mut held = shared::<f32>(64);
    held[local_index()] = x[local_index()];
    barrier();
    y[local_index()] = held[63 - local_index()];
}

const DOUBLES: &str = "kernel @doubles grid(1, 1, 1) workgroup(32, 1, 1) {
  param @y: tensor<f64, [32], read_write, align 1>

  %x: f64 = load @y[local_index]
  %sum: f64 = add %x, %x
  store @y[local_index] = %sum
}
";

// K42, K42b
#[test]
fn a_type_or_atomic_that_metal_lacks_is_refused_there_and_nowhere_else() {
    let doubles = parse(DOUBLES).expect("parses");
    let cases = [
        (built("wide_counter"), Feature::Atomic64),
        (doubles, Feature::F64),
    ];
    for (kernel, lacking) in cases {
        for profile in profile::all() {
            let result = lower(&kernel, &profile);
            let allowed = profile.has(lacking);
            match result {
                Ok(_) => assert!(allowed, "{} takes {}", profile.name, lacking.name()),
                Err(LowerError::Unsupported(refusal)) => {
                    assert!(!allowed, "{refusal}");
                    let Lack::Feature { feature, .. } = refusal.lack else {
                        panic!("{refusal}");
                    };
                    assert_eq!(feature, lacking, "{refusal}");
                    assert_eq!(refusal.profile, profile.name);
                }
                Err(error) => panic!("{}: {error}", profile.name),
            }
        }
        let metal = profile::of(Target::Msl);
        assert!(
            metal.iter().all(|p| !p.has(lacking)),
            "Metal has {}",
            lacking.name()
        );
        let cuda = profile::of(Target::Cuda);
        assert!(
            cuda.iter().all(|p| p.has(lacking)),
            "CUDA lacks {}",
            lacking.name()
        );
    }
}

// K30
#[test]
fn shared_arrays_of_metal_are_declared_in_the_body() {
    let metal = profile::by_name("metal3.1").expect("a profile");
    let artifact = lower(&built("through_shared"), &metal).expect("lowers");
    let text = artifact.text().expect("a text");
    let body = text.find(") {").expect("an entry point");
    let declared = text.find("threadgroup float held[64]").expect("an array");
    assert!(declared > body, "{text}");
    assert!(!text[..body].contains("[[threadgroup("), "{text}");
    let record = include_str!("../../docs/driver-faults.md");
    assert!(record.contains("declared in the body"));
}
