//! The devices that a test runs on.
//!
//! `IRON_TEST_BACKENDS=cuda,vulkan` names the backends to run, and a named one that is missing
//! is a failure. Without it every backend that opens here runs, and the others are skipped aloud.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Backend, Device, open};

use crate::batch::{Form, run_batch};
use crate::rows::{Expected, Operation, Row};

/// A device and what it is known not to promise.
#[derive(Clone)]
pub struct Target {
    /// Device.
    pub device: Arc<dyn Device>,
    /// It turns subnormal `f32` into zero, which Vulkan and Metal leave to the driver.
    pub flushes_subnormals: bool,
}

impl Target {
    /// Name of the backend.
    pub fn name(&self) -> &'static str {
        self.device.backend().name()
    }

    /// Runs the author's Rust, and no IR.
    pub fn is_host(&self) -> bool {
        self.device.backend() == Backend::Host
    }
}

/// Opens the backends that run IR, all but `host`, and prints the skipped ones.
/// The emulated texts take minutes of a C++ compiler: they run where they are named, as in CI.
///
/// # Panics
///
/// Where a backend named in `IRON_TEST_BACKENDS` is unknown or missing, or none is left.
pub fn targets() -> Vec<Target> {
    chosen(&|backend| backend != Backend::Host)
}

/// As [`targets`], with `host`, which runs the author's Rust and no IR.
///
/// # Panics
///
/// As [`targets`].
pub fn targets_with_host() -> Vec<Target> {
    chosen(&|_| true)
}

fn chosen(fits: &dyn Fn(Backend) -> bool) -> Vec<Target> {
    let named = std::env::var("IRON_TEST_BACKENDS").ok();
    let chosen: Vec<Backend> = match &named {
        None => {
            let quick = |b: &Backend| b.label() != "emulated";
            Backend::ALL.into_iter().filter(quick).collect()
        }
        Some(list) => list
            .split(',')
            .map(|name| {
                Backend::from_name(name.trim()).unwrap_or_else(|| {
                    let known: Vec<_> = Backend::ALL.iter().map(|b| b.name()).collect();
                    panic!(
                        "IRON_TEST_BACKENDS has `{name}`, known are {}",
                        known.join(", ")
                    )
                })
            })
            .collect(),
    };
    let mut targets = Vec::new();
    let mut skipped = Vec::new();
    for backend in chosen.into_iter().filter(|b| fits(*b)) {
        match open(backend) {
            Ok(device) => targets.push(probe(device)),
            Err(error) if named.is_some() => panic!("{error}"),
            Err(error) => skipped.push(format!("skipped {}: {error}", backend.name())),
        }
    }
    for target in &targets {
        let flushes = if target.flushes_subnormals {
            "; turns subnormal f32 into zero"
        } else {
            ""
        };
        println!("on {} ({}{flushes})", target.name(), target.device.name());
    }
    for line in &skipped {
        println!("{line}");
    }
    println!("{} backends, {} skipped", targets.len(), skipped.len());
    assert!(!targets.is_empty(), "no backend to test");
    targets
}

/// Finds out by running a product, a comparison and a root whether subnormals survive, on backends
/// that may drop them: a driver may keep them in some operations alone.
fn probe(device: Arc<dyn Device>) -> Target {
    let mut target = Target {
        device,
        flushes_subnormals: false,
    };
    if matches!(target.device.backend(), Backend::Vulkan | Backend::Metal) {
        let probes = [
            ("mul", Scalar::F32, vec![0x0040_0000, 0x3f00_0000], 0),
            ("eq", Scalar::Bool, vec![0x0040_0000, 0], 1),
            ("sqrt", Scalar::F32, vec![0x0040_0000], 0),
        ];
        target.flushes_subnormals = probes.into_iter().any(|(name, to, operands, flushed)| {
            let tiny = Row {
                operation: Operation::named(name).unwrap_or_else(|| unreachable!("an operation")),
                from: Scalar::F32,
                to,
                operands,
                expected: Expected::Bits(Vec::new()),
                source: "probe".into(),
            };
            let found = run_batch(&target, &[&tiny], Form::Loaded);
            matches!(found, Ok(bits) if bits == [[flushed]])
        });
    }
    target
}
