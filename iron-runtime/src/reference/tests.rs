//! Kernels built by hand: right results, and every fault reported with its place and values.

use std::sync::Arc;

use iron_ir::contract::Expr;
use iron_ir::kernel::{Access, Kernel, Space};
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::op::{AtomicOp, BinaryOp, BuiltinOp, GroupOp, ReduceOp, SubgroupOp};
use iron_ir::{Op, Place, Scalar, Stmt, Type};

use super::draft::Draft;
use super::{ReferenceDevice, ReferenceOptions};
use crate::{Device, DeviceError, Tensor, launch_kernel};

fn device() -> Arc<dyn Device> {
    Arc::new(ReferenceDevice::new())
}

fn run(device: &Arc<dyn Device>, kernel: &Kernel, tensors: &[&Tensor]) -> Result<(), DeviceError> {
    let arguments = tensors
        .iter()
        .map(|t| Argument::Tensor(t.tensor_arg()))
        .collect();
    launch_kernel(device, kernel, arguments)
}

fn ramp(device: &Arc<dyn Device>, n: u64) -> Tensor {
    let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
    Tensor::from_f32(device, Scalar::F32, &[n], &values).unwrap()
}

/// `y[i] = x[i] + x[i]` with a guard that cuts the last workgroup.
fn double(guarded: bool) -> Kernel {
    let mut d = Draft::new("double", 64, 2);
    let n = d.dim("n");
    let x = d.tensor("x", Scalar::F32, vec![n.clone()], Access::Read);
    let y = d.tensor("y", Scalar::F32, vec![n], Access::ReadWrite);
    let i = d.free(Op::Builtin(BuiltinOp::GlobalId, 0), Type::U32);
    let extent = d.kernel.dim_named("n").unwrap();
    let extent = d.free(Op::Dim(extent), Type::U32);
    let body = |d: &mut Draft| {
        let v = d.load(Place::Tensor(x), &[i], Type::F32);
        let sum = d.binary(BinaryOp::Add, v, v);
        d.store(Place::Tensor(y), &[i], sum);
    };
    if guarded {
        let inside = d.less(i, extent);
        d.when(inside, body);
    } else {
        body(&mut d);
    }
    d.finish()
}

fn fault(result: Result<(), DeviceError>) -> String {
    match result {
        Err(error @ DeviceError::Fault { .. }) => error.to_string(),
        other => panic!("expected a fault, got {other:?}"),
    }
}

#[test]
fn guarded_elementwise_runs() {
    let device = device();
    let x = ramp(&device, 100);
    let y = Tensor::empty(&device, Scalar::F32, &[100]).unwrap();
    run(&device, &double(true), &[&x, &y]).unwrap();
    let expected: Vec<f32> = (0..100).map(|i| 2.0 * i as f32).collect();
    assert_eq!(y.to_f32().unwrap(), expected);
}

#[test]
fn out_of_bounds_names_dimension_index_and_extent() {
    let device = device();
    let (x, y) = (ramp(&device, 100), ramp(&device, 100));
    let message = fault(run(&device, &double(false), &[&x, &y]));
    assert!(message.contains("kernel.rs:2:5"), "{message}");
    assert!(
        message.contains("index 100 of dimension 0 of `x`, which has extent 100"),
        "{message}"
    );
    assert!(
        message.contains("workgroup 1, 0, 0, thread 36"),
        "{message}"
    );
}

#[test]
fn unwritten_memory_is_reported() {
    let device = device();
    let x = Tensor::empty(&device, Scalar::F32, &[100]).unwrap();
    let y = ramp(&device, 100);
    let message = fault(run(&device, &double(true), &[&x, &y]));
    assert!(
        message.contains("`x[0]` is read before anything wrote it"),
        "{message}"
    );
}

/// Reverses 64 elements through shared memory, with or without the barrier. // K01, K04
fn reverse(with_barrier: bool) -> Kernel {
    let mut d = Draft::new("reverse", 64, 1);
    let y = d.tensor("y", Scalar::F32, vec![Expr::Const(64)], Access::ReadWrite);
    let s = d.array("s", Scalar::F32, 64, Space::Shared);
    let t = d.thread();
    let v = d.load(Place::Tensor(y), &[t], Type::F32);
    d.store(Place::Array(s), &[t], v);
    if with_barrier {
        d.barrier();
    }
    let last = d.u32(63);
    let mirrored = d.binary(BinaryOp::Sub, last, t);
    let v = d.load(Place::Array(s), &[mirrored], Type::F32);
    d.store(Place::Tensor(y), &[t], v);
    d.finish()
}

#[test]
fn a_missing_barrier_is_a_race() {
    let device = device();
    let y = ramp(&device, 64);
    run(&device, &reverse(true), &[&y]).unwrap();
    assert_eq!(y.to_f32().unwrap()[0], 63.0);
    let message = fault(run(&device, &reverse(false), &[&y]));
    assert!(
        message.contains("this thread reads `s[63]`, which thread 63 wrote")
            && message.contains("(the other access: kernel.rs:3:5)"),
        "{message}"
    );
}

#[test]
fn workgroups_that_write_one_cell_race_and_atomics_do_not() {
    let device = device();
    let build = |atomic: bool| {
        let mut d = Draft::new("count", 4, 3);
        let y = d.tensor("y", Scalar::U32, vec![Expr::Const(1)], Access::ReadWrite);
        let zero = d.u32(0);
        let one = d.u32(1);
        if atomic {
            let result = d.free(Op::Result, Type::U32);
            d.stmt(Stmt::Atomic {
                result,
                op: AtomicOp::Add,
                place: Place::Tensor(y),
                indices: vec![zero],
                value: Some(one),
                compare: None,
            });
        } else {
            let t = d.thread();
            let first = d.less(t, one);
            d.when(first, |d| d.store(Place::Tensor(y), &[zero], one));
        }
        d.finish()
    };
    let y = Tensor::from_slice(&device, Scalar::U32, &[1], &[0u32]).unwrap();
    run(&device, &build(true), &[&y]).unwrap();
    assert_eq!(y.to_bytes().unwrap(), 12u32.to_le_bytes());
    let message = fault(run(&device, &build(false), &[&y]));
    assert!(
        message.contains("which thread 0 of workgroup 0, 0, 0 wrote"),
        "{message}"
    );
}

#[test]
fn a_barrier_that_some_threads_miss_is_reported() {
    // K02
    let unverified = ReferenceOptions {
        unverified: true,
        ..ReferenceOptions::default()
    };
    let mut d = Draft::new("divergent", 8, 1);
    d.tensor("y", Scalar::F32, vec![Expr::Const(1)], Access::ReadWrite);
    let t = d.thread();
    let five = d.u32(5);
    let some = d.less(t, five);
    d.when(some, Draft::barrier);
    let kernel = d.finish();
    let refused = device().pipeline(&kernel).map(|_| ()).unwrap_err();
    assert!(matches!(refused, DeviceError::Compile { .. }), "{refused}");
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice::with_options(unverified));
    let message = fault(run(&device, &kernel, &[&ramp(&device, 1)]));
    assert!(
        message.contains("5 of 8 threads are here, thread 5 is not"),
        "{message}"
    );
    assert!(
        message.contains("kernel.rs:4:5"),
        "the condition: {message}"
    );
    assert!(message.contains("kernel.rs:3:5"), "the barrier: {message}");
}

#[test]
fn endless_loops_spend_the_budget() {
    let options = ReferenceOptions {
        step_budget: 1000,
        ..ReferenceOptions::default()
    };
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice::with_options(options));
    let mut d = Draft::new("endless", 1, 1);
    d.tensor("y", Scalar::F32, vec![Expr::Const(1)], Access::ReadWrite);
    let body = d.block(|d| {
        let one = d.u32(1);
        d.binary(BinaryOp::Add, one, one);
    });
    d.stmt(Stmt::Loop { body });
    let message = fault(run(&device, &d.finish(), &[&ramp(&device, 1)]));
    assert!(message.contains("1000 statements"), "{message}");
}

#[test]
fn index_arithmetic_that_wraps_is_reported() {
    // K06
    let device = device();
    let mut d = Draft::new("wraps", 1, 1);
    let y = d.tensor("y", Scalar::U32, vec![Expr::Const(4)], Access::ReadWrite);
    let big = d.u32(1 << 16);
    let product = d.binary(BinaryOp::Mul, big, big);
    d.store(Place::Tensor(y), &[product], big);
    let y = Tensor::zeros(&device, Scalar::U32, &[4]).unwrap();
    let message = fault(run(&device, &d.finish(), &[&y]));
    assert!(message.contains("65536 * 65536 is 4294967296"), "{message}");
}

#[test]
fn collectives_agree_at_every_subgroup_width() {
    // K27
    for width in [4, 8, 16, 32, 64] {
        let options = ReferenceOptions {
            subgroup_size: width,
            ..ReferenceOptions::default()
        };
        let device: Arc<dyn Device> = Arc::new(ReferenceDevice::with_options(options));
        let mut d = Draft::new("sums", 96, 1);
        let y = d.tensor("y", Scalar::F32, vec![Expr::Const(96)], Access::ReadWrite);
        let z = d.tensor("z", Scalar::F32, vec![Expr::Const(96)], Access::ReadWrite);
        let t = d.thread();
        let v = d.load(Place::Tensor(y), &[t], Type::F32);
        let total = d.free(Op::Result, Type::F32);
        d.stmt(Stmt::Group {
            result: total,
            op: GroupOp::Reduce,
            reduce: Some(ReduceOp::Sum),
            value: v,
            argument: None,
        });
        let one = d.u32(1);
        let neighbour = d.free(Op::Result, Type::F32);
        d.stmt(Stmt::Subgroup {
            result: neighbour,
            op: SubgroupOp::ShuffleXor,
            reduce: None,
            value: v,
            argument: Some(one),
        });
        d.store(Place::Tensor(y), &[t], total);
        d.store(Place::Tensor(z), &[t], neighbour);
        let (y, z) = (ramp(&device, 96), ramp(&device, 96));
        run(&device, &d.finish(), &[&y, &z]).unwrap();
        assert_eq!(y.to_f32().unwrap()[95], 95.0 * 48.0);
        assert_eq!(z.to_f32().unwrap()[10], 11.0);
    }
}

#[test]
fn empty_launches_do_nothing() {
    // K25
    let device = device();
    let x = Tensor::empty(&device, Scalar::F32, &[0]).unwrap();
    run(&device, &double(false), &[&x, &x.clone()]).unwrap();
}
