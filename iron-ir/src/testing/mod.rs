//! The test and bench API of kernels. Nothing here does I/O: `#[test_kernel]` and
//! `#[bench_kernel]` register functions that describe cases, and the runner runs them on every
//! backend in several layouts.
//!
//! Oracles are written in `f64` over the very values that the kernel sees. The code here that
//! rounds to a tensor's type and compares shares nothing with the builder, the passes or the
//! executable language types.

mod cases;
mod compare;
mod formats;
mod generate;

use std::sync::Arc;

use crate::build::BuildError;
use crate::kernel::Kernel;
use crate::registry::InstanceEntry;

pub use cases::{
    Bench, Benches, Case, CaseParam, Cases, Expectation, Expected, Inputs, Role, ScalarValue,
};
pub use compare::{Bound, ErrorReport, Mismatch, compare};
pub use formats::{is_nan, poison_bits, round_to, ulp_of, value_of};
pub use generate::{
    Floats, Generator, Ints, bits, bytes, constant, ints, normal, ramp, seed_of, uniform, values,
};

/// A `#[test_kernel]` function.
pub struct TestEntry {
    /// The function's name.
    pub name: &'static str,
    /// `module_path!()` of the function.
    pub module: &'static str,
    /// Name of the kernel it tests.
    pub kernel: &'static str,
    /// `file!()` of the function.
    pub file: &'static str,
    /// Line of the function.
    pub line: u32,
    /// Describes the cases of one instance.
    pub build: fn(&mut Cases),
}

/// A `#[bench_kernel]` function.
pub struct BenchEntry {
    /// The function's name.
    pub name: &'static str,
    /// `module_path!()` of the function.
    pub module: &'static str,
    /// Name of the kernel it measures.
    pub kernel: &'static str,
    /// `file!()` of the function.
    pub file: &'static str,
    /// Line of the function.
    pub line: u32,
    /// Describes the benches of one instance.
    pub build: fn(&mut Benches),
}

inventory::collect!(TestEntry);
inventory::collect!(BenchEntry);

/// Every registered test of this binary, by name.
pub fn tests() -> Vec<&'static TestEntry> {
    let mut all: Vec<_> = inventory::iter::<TestEntry>.into_iter().collect();
    all.sort_by_key(|t| (t.name, t.module));
    all
}

/// Every registered bench of this binary, by name.
pub fn benches() -> Vec<&'static BenchEntry> {
    let mut all: Vec<_> = inventory::iter::<BenchEntry>.into_iter().collect();
    all.sort_by_key(|b| (b.name, b.module));
    all
}

/// A kernel's instance as tests see it.
#[derive(Clone)]
pub struct Subject {
    /// The instance's entry in the registry.
    pub instance: &'static InstanceEntry,
    /// Its IR, as built.
    pub kernel: Arc<Kernel>,
}

impl Subject {
    /// Builds the instance.
    pub fn new(instance: &'static InstanceEntry) -> Result<Subject, BuildError> {
        let kernel = Arc::new((instance.build)()?);
        Ok(Subject { instance, kernel })
    }
}
