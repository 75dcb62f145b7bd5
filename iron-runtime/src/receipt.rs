//! Launch receipts: what ran, on which device, from which artifact. Off by default; when off a
//! launch pays one relaxed load.

use std::sync::atomic::{AtomicBool, Ordering};

use iron_ir::launch::Argument;
use parking_lot::Mutex;
use serde::Serialize;

use crate::device::{Device, RecordedLaunch};

/// One launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Receipt {
    /// Kernel and instance: `rms_norm-f16`.
    pub kernel: String,
    /// Backend.
    pub backend: &'static str,
    /// What kind of evidence it is: `native`, `reference`, `host`, `emulated`.
    pub label: &'static str,
    /// The device's own name.
    pub device: String,
    /// Element types of the tensors, in parameter order.
    pub dtypes: Vec<&'static str>,
    /// Shapes of the tensors, in parameter order.
    pub shapes: Vec<Vec<u64>>,
    /// Workgroups along x, y, z.
    pub grid: [u32; 3],
    /// Hash of the artifact's identity.
    pub artifact: String,
    /// How the launch was chosen: `direct` for a launch by name.
    pub route: String,
}

static ENABLED: AtomicBool = AtomicBool::new(false);
static RECEIPTS: Mutex<Vec<Receipt>> = Mutex::new(Vec::new());

/// Switches receipts on or off for the whole process.
pub fn enable(on: bool) {
    ENABLED.store(on, Ordering::Relaxed);
}

/// Whether receipts are written.
pub fn enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Hands over the receipts written so far, in order.
pub fn take() -> Vec<Receipt> {
    std::mem::take(&mut RECEIPTS.lock())
}

/// Writes a receipt where receipts are on.
pub fn record(device: &dyn Device, launch: &RecordedLaunch, route: &str) {
    if !enabled() {
        return;
    }
    let mut dtypes = Vec::new();
    let mut shapes = Vec::new();
    for argument in &launch.arguments {
        if let Argument::Tensor(view) = argument {
            dtypes.push(view.scalar.name());
            shapes.push(view.shape.clone());
        }
    }
    RECEIPTS.lock().push(Receipt {
        kernel: launch.pipeline.kernel().full_name(),
        backend: device.backend().name(),
        label: device.backend().label(),
        device: device.name(),
        dtypes,
        shapes,
        grid: launch.checked.grid,
        artifact: launch.pipeline.artifact().to_string(),
        route: route.to_string(),
    });
}
