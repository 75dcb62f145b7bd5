//! Kernels with one planted fault each, and their mended twins.
//!
//! `MENDED` is the twin. A comment `// fault: RULE` stands on the line that the report must name, and
//! `// with` on the line of its second place; one that stands alone means the line above. `at 4, 8` lists the subgroup widths at which the fault
//! is to be seen; without it, at all. What the reports have beside, `checker.rs` reads from here.

pub mod bounds;
pub mod divergence;
pub mod indices;
pub mod loops;
pub mod memory;
pub mod numbers;
pub mod races;

use iron_ir::testing::Cases;

/// Whether a test is called for the mended twin.
fn is_mended(t: &Cases) -> bool {
    t.constant("MENDED") != 0
}

/// `0, 1, 2, …`.
fn count(n: u64) -> Vec<f64> {
    (0..n).map(|i| i as f64).collect()
}
