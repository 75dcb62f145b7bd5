//! The registry: what `#[kernel]`, `#[test_kernel]` and `#[bench_kernel]` submit, so that a
//! binary that links a crate of kernels knows every one.

use crate::kernel::Kernel;
use crate::types::Scalar;

/// One kernel and its listed instances.
pub struct KernelEntry {
    /// The author's name.
    pub name: &'static str,
    /// `module_path!()` of the definition.
    pub module: &'static str,
    /// `file!()` of the definition.
    pub file: &'static str,
    /// Line of the definition.
    pub line: u32,
    /// The listed instances, in the author's order.
    pub instances: &'static [InstanceEntry],
}

/// One instance of a kernel.
pub struct InstanceEntry {
    /// As [`Kernel::instance`].
    pub name: &'static str,
    /// The scalar bound to each type parameter: `("T", F16)`.
    pub types: &'static [(&'static str, Scalar)],
    /// The value of each const parameter: `("HEAD_DIM", 64)`.
    pub consts: &'static [(&'static str, i64)],
    /// Builds the IR.
    pub build: fn() -> Result<Kernel, crate::build::BuildError>,
    /// Runs one thread of the author's body natively; see [`crate::host`].
    pub host: crate::host::HostBody,
}

inventory::collect!(KernelEntry);

/// Every registered kernel of this binary, by name.
pub fn kernels() -> Vec<&'static KernelEntry> {
    let mut all: Vec<_> = inventory::iter::<KernelEntry>.into_iter().collect();
    all.sort_by_key(|k| (k.name, k.module));
    all
}
