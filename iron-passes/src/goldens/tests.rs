//! The cases of `goldens/*.txt`: a kernel, and the kernel after one pass.
//!
//! A case begins with `=== PASS TABLE: what it shows`, the table one of [`legal`]; behind `---` stands
//! what the pass leaves, without dimensions and parameters. `IRON_BLESS=1 cargo test -p iron-passes goldens` writes those bodies;
//! the diff is to be read.

use std::fmt::Write as _;
use std::path::Path;

use iron_ir::parse::parse;
use iron_ir::print::print;
use iron_ir::verify::{verify, verify_lowered};

use crate::legal::TileRoute;
use crate::{Legal, pipeline};

/// The tables by name.
fn legal(name: &str) -> Option<Legal> {
    let with_lanes = |lanes| Legal {
        subgroup_size: Some(lanes),
        linear_subgroups: true,
        ..Legal::PORTABLE
    };
    Some(match name {
        "portable" => Legal::PORTABLE,
        "least" => Legal {
            has_f16_memory: false,
            max_vector_lanes: 1,
            auto_unroll_statements: 0,
            expand_unrolled_loops: false,
            has_tanh: false,
            ..Legal::PORTABLE
        },
        "most" => Legal {
            has_f16_arith: true,
            has_bf16_memory: true,
            max_vector_bytes: 64,
            max_vector_lanes: 8,
            native_saturating_convert: true,
            native_ordered_minmax: true,
            native_total_division: true,
            has_erf: true,
            has_dot4: true,
            has_dot4_mixed: true,
            ..Legal::PORTABLE
        },
        "lanes8" => with_lanes(8),
        "lanes32" => with_lanes(32),
        // Of that width, but in an order of their own.
        "unordered8" => Legal {
            linear_subgroups: false,
            ..with_lanes(8)
        },
        "collectives" => Legal {
            native_collectives: true,
            ..Legal::PORTABLE
        },
        "warpgroup" => Legal {
            tile_route: TileRoute::Warpgroup,
            shared_bytes_limit: 227 << 10,
            expand_unrolled_loops: false,
            max_vector_bytes: 16,
            max_vector_lanes: 8,
            has_bf16_memory: true,
            ..with_lanes(32)
        },
        "dependent" => Legal {
            has_dependent_launch: true,
            ..Legal::PORTABLE
        },
        _ => return None,
    })
}

/// The statements after a pass.
fn after(head: &str, text: &str) -> Result<String, String> {
    let (what, _) = head.split_once(':').expect("what a case shows");
    let (name, table) = what.trim().split_once(' ').expect("pass and table");
    let legal = legal(table).unwrap_or_else(|| panic!("no table `{table}`"));
    let passes = pipeline(&legal);
    let place = passes.iter().position(|(n, _)| *n == name);
    let place = place.unwrap_or_else(|| panic!("no pass `{name}`"));
    let mut kernel = parse(text).map_err(|e| e.to_string())?;
    // Behind the lowering of collectives their results are uniform no longer.
    let is_lowered = passes[..place].iter().any(|(n, _)| *n == "lower_groups");
    let before = if is_lowered { verify_lowered } else { verify };
    before(&kernel).map_err(|e| e.to_string())?;
    passes[place].1(&mut kernel, &legal).map_err(|e| e.to_string())?;
    verify_lowered(&kernel).map_err(|e| format!("after the pass: {e}"))?;
    let printed = print(&kernel);
    let is_declared = |line: &str| line.starts_with("  dim ") || line.starts_with("  param ");
    let lines = printed.lines().filter(|l| !l.is_empty() && !is_declared(l));
    Ok(lines.map(|line| format!("{line}\n")).collect())
}

#[test]
fn each_case_is_what_its_pass_makes_of_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/goldens");
    let bless = std::env::var_os("IRON_BLESS").is_some();
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder of cases")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "txt"))
        .collect();
    files.sort();
    let (mut count, mut wrong) = (0, Vec::new());
    for file in &files {
        let text = std::fs::read_to_string(file).expect("a file of cases");
        let (intro, cases) = text.split_once("=== ").expect("a case");
        let mut rewritten = intro.to_string();
        for case in cases.split("\n=== ") {
            let (head, rest) = case.split_once('\n').expect("a kernel");
            let (kernel, expected) = rest.split_once("\n---").unwrap_or((rest, ""));
            let found = after(head, kernel).unwrap_or_else(|error| format!("error: {error}\n"));
            count += 1;
            if expected.trim() != found.trim() || found.starts_with("error") {
                wrong.push(format!(
                    "=== {head}\n--- found\n{found}--- expected\n{expected}"
                ));
            }
            let _ = writeln!(rewritten, "=== {head}\n{}\n---\n{found}", kernel.trim_end());
        }
        if bless {
            let rewritten = format!("{}\n", rewritten.trim_end());
            std::fs::write(file, rewritten).expect("the file of cases");
        }
    }
    assert!(count >= 40, "only {count} cases");
    assert!(
        bless || wrong.is_empty(),
        "{} of {count} differ; IRON_BLESS=1 writes them\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
