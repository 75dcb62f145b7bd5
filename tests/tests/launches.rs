//! What a launch by name leaves behind: a receipt where one is asked for, and no kernel of a device
//! that is gone; and patterns with signs, which no kernel of the corpus has.

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

/// Which pattern takes each number.
#[kernel(grid = [ceil_div(n, 32)], workgroup = 32)]
pub fn sign_sample(x: &Tensor<i32, (n,)>, y: &mut Tensor<u32, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = match x[i] {
            -1 => 1,
            -5..=-2 => 2,
            i32::MIN..-5 => 3,
            0 => 4,
            _ => 5,
        };
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

#[test]
fn patterns_have_signs() {
    let numbers = [-1, -2, -5, -6, i32::MIN, 0, 1, i32::MAX];
    for backend in [Backend::Reference, Backend::Host, Backend::Cpu] {
        let device = open(backend).expect("needs no driver");
        let x =
            iron_runtime::Tensor::from_slice(&device, Scalar::I32, &[8], &numbers).expect("fits");
        let y = iron_runtime::Tensor::zeros(&device, Scalar::U32, &[8]).expect("fits");
        let arguments = vec![
            Argument::Tensor(x.tensor_arg()),
            Argument::Tensor(y.tensor_arg()),
        ];
        launch_by_name(&device, "sign_sample", None, "", arguments).expect("accepted");
        let expected = [1u32, 2, 2, 3, 3, 4, 5, 5].map(u32::to_le_bytes).concat();
        assert_eq!(y.to_bytes().expect("read"), expected, "{}", backend.name());
    }
}
