//! What a launch by name leaves behind: a receipt where one is asked for, and no kernel of a device
//! that is gone.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::prelude::*;
use iron_runtime::{Backend, Device, DeviceError, launch_by_name, open, pipeline_of, receipt};

/// Numbers the elements of rows.
#[kernel(grid = [rows], workgroup = 32)]
pub fn launch_sample(y: &mut Tensor<u32, (rows, cols)>) {
    for i in strided(cols) {
        y[[group_id(0), i]] = i;
    }
}

fn launch(device: &Arc<dyn Device>) -> Result<(), DeviceError> {
    let y = iron_runtime::Tensor::zeros(device, Scalar::U32, &[3, 40])?;
    let arguments = vec![Argument::Tensor(y.tensor_arg())];
    launch_by_name(device, "launch_sample", None, "", arguments)
}

#[test]
fn a_launch_writes_a_receipt_where_asked() {
    let device = open(Backend::Cpu).expect("a processor");
    launch(&device).expect("accepted");
    assert!(receipt::take().is_empty());
    receipt::enable(true);
    let done = launch(&device);
    receipt::enable(false);
    done.expect("accepted");
    let receipts = receipt::take();
    let [receipt] = &receipts[..] else {
        panic!("one launch, {receipts:#?}");
    };
    let receipt::Receipt {
        kernel,
        backend,
        label,
        grid,
        ..
    } = receipt;
    assert_eq!(
        (kernel.as_str(), *backend, *label),
        ("launch_sample", "cpu", "native")
    );
    assert_eq!(
        (*grid, receipt.shapes.clone()),
        ([3, 1, 1], vec![vec![3, 40]])
    );
}

#[test]
fn a_dropped_device_leaves_no_kernel() {
    for backend in Backend::ALL {
        let Ok(device) = open(backend) else {
            continue;
        };
        let pipeline = pipeline_of(&device, "launch_sample", None, "");
        let kept = Arc::downgrade(&pipeline.expect("compiles"));
        assert!(kept.upgrade().is_some(), "{}", backend.name());
        drop(device);
        drop(open(backend));
        assert!(kept.upgrade().is_none(), "{}", backend.name());
    }
}
