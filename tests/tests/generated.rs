//! Random kernels in the kernel language: what rustc makes of the author's body (`host`) and what
//! the macro makes of it (the IR, on every other execution) are the same.
//!
//! `build.rs` writes them: `IRON_FUZZ_RUST=500 IRON_FUZZ_RUST_SEED=7 cargo test -p iron-tests
//! --test generated` compiles other ones.

use iron_ir::print::print;
use iron_ir::registry::kernels;
use iron_tests::backends::targets;
use iron_tests::differential::{Compared, Depth, check, check_host, legal_tables};

#[allow(
    unused,
    unused_comparisons,
    invalid_nan_comparisons,
    arithmetic_overflow,
    clippy::all,
    reason = "written by a program, which folds no constants and uses what it likes"
)]
mod kernels_of_build {
    use iron_ir::prelude::*;

    include!(concat!(env!("OUT_DIR"), "/generated_kernels.rs"));
}

#[test]
fn rustc_and_the_macro_agree_on_generated_kernels() {
    let targets = targets();
    let mut compared = Compared::default();
    let mut count = 0;
    let mut faults = Vec::new();
    let built: Vec<_> = kernels()
        .into_iter()
        .filter(|entry| entry.name.starts_with("generated_"))
        .filter_map(|entry| (entry.instances[0].build)().ok())
        .collect();
    for target in &targets {
        target.device.prepare(&built.iter().collect::<Vec<_>>());
    }
    for entry in kernels() {
        if !entry.name.starts_with("generated_") {
            continue;
        }
        let kernel = match (entry.instances[0].build)() {
            Ok(kernel) => kernel,
            Err(error) => {
                faults.push(format!("{}: {error}", entry.name));
                continue;
            }
        };
        let depth = Depth {
            table: Some(count % legal_tables().len()),
            lower: false,
        };
        count += 1;
        if let Err(what) = check_host(&kernel) {
            faults.push(format!("{}: {what}\n{}", entry.name, print(&kernel)));
        } else if let Err(what) = check(&print(&kernel), &targets, depth, &mut compared) {
            faults.push(format!("{}: {what}\n{}", entry.name, print(&kernel)));
        }
    }
    println!("{count} kernels alike on host and the reference: {compared:?}");
    assert!(count > 0, "no kernel was generated");
    let shown = faults.len().min(6);
    assert!(
        faults.is_empty(),
        "{} of {count} differ:\n{}",
        faults.len(),
        faults[..shown].join("\n")
    );
}
