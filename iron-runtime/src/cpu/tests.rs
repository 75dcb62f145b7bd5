//! Kernels built by hand, and their results beside the reference's.

use std::sync::Arc;

use iron_ir::contract::Expr;
use iron_ir::kernel::{Access, Kernel, Space};
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::op::{
    AtomicOp, BinaryOp, BuiltinOp, CompareOp, GroupOp, ReduceOp, SubgroupOp, UnaryOp, Unroll,
};
use iron_ir::{Const, Op, Place, Scalar, Stmt, Type};

use crate::reference::{ReferenceDevice, ReferenceOptions, draft::Draft};
use crate::{Device, Tensor, launch_kernel};

/// Runs a kernel on both and compares the bytes of every tensor.
fn agree(kernel: &Kernel, inputs: &[(Scalar, Vec<u64>, Vec<u8>)]) -> Vec<Vec<u8>> {
    let options = ReferenceOptions {
        subgroup_size: 8,
        ..ReferenceOptions::default()
    };
    let devices: [Arc<dyn Device>; 2] = [
        Arc::new(ReferenceDevice::with_options(options)),
        Arc::new(super::CpuDevice::with_threads(2).unwrap()),
    ];
    let [expected, found] = devices.map(|device| {
        let tensors: Vec<Tensor> = inputs
            .iter()
            .map(|(scalar, shape, bytes)| {
                Tensor::from_bytes(&device, *scalar, shape, bytes).unwrap()
            })
            .collect();
        let arguments = tensors
            .iter()
            .map(|t| Argument::Tensor(t.tensor_arg()))
            .collect();
        launch_kernel(&device, kernel, arguments).unwrap();
        device.synchronize().unwrap();
        tensors
            .iter()
            .map(|t| t.to_bytes().unwrap())
            .collect::<Vec<_>>()
    });
    for (at, (a, b)) in expected.iter().zip(&found).enumerate() {
        let word = a.iter().zip(b).position(|(x, y)| x != y).map(|i| i / 4 * 4);
        if let Some(i) = word {
            let show = |v: &[u8]| f32::from_le_bytes(v[i..i + 4].try_into().unwrap());
            panic!(
                "tensor {at} differs at byte {i}: reference {} cpu {}",
                show(a),
                show(b)
            );
        }
    }
    found
}

fn floats(n: u64) -> (Scalar, Vec<u64>, Vec<u8>) {
    let bytes = (0..n)
        .flat_map(|i| ((i * 37 % 101) as f32 * 0.25 - 12.0).to_le_bytes())
        .collect();
    (Scalar::F32, vec![n], bytes)
}

fn words(n: u64) -> (Scalar, Vec<u64>, Vec<u8>) {
    let mut x = 0x9E37_79B9u32;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x
    };
    (
        Scalar::U32,
        vec![n],
        (0..n).flat_map(|_| next().to_le_bytes()).collect(),
    )
}

#[test]
fn guarded_elementwise_with_a_cut_workgroup() {
    for workgroup in [64, 6, 1] {
        let mut d = Draft::new("double", workgroup, 200 / i64::from(workgroup) + 1);
        let n = d.dim("n");
        let x = d.tensor("x", Scalar::F32, vec![n.clone()], Access::Read);
        let y = d.tensor("y", Scalar::F32, vec![n], Access::ReadWrite);
        let i = d.free(Op::Builtin(BuiltinOp::GlobalId, 0), Type::U32);
        let extent = d.kernel.dim_named("n").unwrap();
        let extent = d.free(Op::Dim(extent), Type::U32);
        let inside = d.less(i, extent);
        d.when(inside, |d| {
            let v = d.load(Place::Tensor(x), &[i], Type::F32);
            let e = d.value(Op::Unary(UnaryOp::Sqrt, v), Type::F32);
            let sum = d.binary(BinaryOp::Max, v, e);
            d.store(Place::Tensor(y), &[i], sum);
        });
        agree(&d.finish(), &[floats(199), floats(199)]);
    }
}

/// Row sums: a loop that threads leave at different turns, a collective, and a second region.
fn row_sums(workgroup: u32, columns: i64) -> Kernel {
    let mut d = Draft::new("row_sums", workgroup, 3);
    let x = d.tensor(
        "x",
        Scalar::F32,
        vec![Expr::Const(3), Expr::Const(columns)],
        Access::Read,
    );
    let y = d.tensor(
        "y",
        Scalar::F32,
        vec![Expr::Const(3), Expr::Const(columns)],
        Access::ReadWrite,
    );
    let row = d.free(Op::Builtin(BuiltinOp::GroupId, 0), Type::U32);
    let t = d.thread();
    let zero = d.free(
        Op::Const(Const {
            scalar: Scalar::F32,
            bits: 0,
        }),
        Type::F32,
    );
    let sum = d.local("sum", Type::F32);
    d.stmt(Stmt::Set(sum, zero));
    let end = d.u32(columns as u32);
    let step = d.u32(workgroup);
    let each = |d: &mut Draft, body: &mut dyn FnMut(&mut Draft, iron_ir::entity::Value)| {
        let index = d.free(Op::Result, Type::U32);
        let body = d.block(|d| body(d, index));
        d.stmt(Stmt::For {
            index,
            start: t,
            end,
            step,
            unroll: Unroll::Auto,
            body,
        });
    };
    each(&mut d, &mut |d, i| {
        let v = d.load(Place::Tensor(x), &[row, i], Type::F32);
        let old = d.value(Op::Get(sum), Type::F32);
        let new = d.value(Op::Fma(v, v, old), Type::F32);
        d.stmt(Stmt::Set(sum, new));
    });
    let own = d.value(Op::Get(sum), Type::F32);
    let total = d.free(Op::Result, Type::F32);
    d.stmt(Stmt::Group {
        result: total,
        op: GroupOp::Reduce,
        reduce: Some(ReduceOp::Sum),
        value: own,
        argument: None,
    });
    each(&mut d, &mut |d, i| {
        let v = d.load(Place::Tensor(x), &[row, i], Type::F32);
        let scaled = d.binary(BinaryOp::Mul, v, total);
        let shifted = d.binary(BinaryOp::Add, scaled, own);
        d.store(Place::Tensor(y), &[row, i], shifted);
    });
    d.finish()
}

#[test]
fn loops_collectives_and_values_across_regions() {
    for workgroup in [4, 8, 32, 64, 96, 256, 5] {
        for columns in [3, 64, 257] {
            let shape = vec![3, columns as u64];
            let mut x = floats(3 * columns as u64);
            x.1 = shape;
            agree(&row_sums(workgroup, columns), &[x.clone(), x]);
        }
    }
}

#[test]
fn shared_memory_shuffles_and_atomics() {
    let mut d = Draft::new("mix", 64, 2);
    let x = d.tensor("x", Scalar::U32, vec![Expr::Const(128)], Access::Read);
    let y = d.tensor("y", Scalar::U32, vec![Expr::Const(128)], Access::ReadWrite);
    let count = d.tensor(
        "count",
        Scalar::U32,
        vec![Expr::Const(4)],
        Access::ReadWrite,
    );
    let s = d.array("s", Scalar::U32, 64, Space::Shared);
    let p = d.array("p", Scalar::U32, 4, Space::Private);
    let i = d.free(Op::Builtin(BuiltinOp::GlobalId, 0), Type::U32);
    let t = d.thread();
    let v = d.load(Place::Tensor(x), &[i], Type::U32);
    let three = d.u32(3);
    let slot = d.binary(BinaryOp::And, v, three);
    d.store(Place::Array(p), &[slot], v);
    d.store(Place::Array(s), &[t], v);
    d.barrier();
    let last = d.u32(63);
    let mirrored = d.binary(BinaryOp::Sub, last, t);
    let other = d.load(Place::Array(s), &[mirrored], Type::U32);
    let back = d.load(Place::Array(p), &[slot], Type::U32);
    let one = d.u32(1);
    let neighbour = d.free(Op::Result, Type::U32);
    d.stmt(Stmt::Subgroup {
        result: neighbour,
        op: SubgroupOp::ShuffleXor,
        reduce: None,
        value: other,
        argument: Some(one),
    });
    let mixed = d.binary(BinaryOp::Xor, back, neighbour);
    let quotient = d.binary(BinaryOp::Div, mixed, slot);
    let result = d.free(Op::Result, Type::U32);
    d.stmt(Stmt::Atomic {
        result,
        op: AtomicOp::Add,
        place: Place::Tensor(count),
        indices: vec![slot],
        value: Some(one),
        compare: None,
    });
    d.store(Place::Tensor(y), &[i], quotient);
    let counts = (Scalar::U32, vec![4], vec![0u8; 16]);
    agree(&d.finish(), &[words(128), words(128), counts]);
}

#[test]
fn vectors_of_four_and_conversions() {
    for scalar in [
        Scalar::F16,
        Scalar::BF16,
        Scalar::I8,
        Scalar::U8,
        Scalar::F32,
    ] {
        let mut d = Draft::new("vectors", 8, 2);
        let x = d.tensor("x", scalar, vec![Expr::Const(64)], Access::Read);
        let y = d.tensor("y", scalar, vec![Expr::Const(64)], Access::ReadWrite);
        d.align(x, 4);
        d.align(y, 4);
        let z = d.tensor("z", Scalar::F32, vec![Expr::Const(16)], Access::ReadWrite);
        let i = d.free(Op::Builtin(BuiltinOp::GlobalId, 0), Type::U32);
        let four = d.u32(4);
        let at = d.binary(BinaryOp::Mul, i, four);
        let v = d.load(Place::Tensor(x), &[at], scalar.x(4));
        let wide = if scalar == Scalar::F32 {
            v
        } else {
            d.value(Op::Convert(v), Scalar::F32.x(4))
        };
        let twice = d.binary(BinaryOp::Add, wide, wide);
        let narrow = if scalar == Scalar::F32 {
            twice
        } else {
            d.value(Op::Convert(twice), scalar.x(4))
        };
        let e = [0, 1, 2, 3].map(|lane| d.value(Op::Extract(twice, lane), Type::F32));
        let sum = d.binary(BinaryOp::Add, e[0], e[1]);
        let sum = d.binary(BinaryOp::Mul, sum, e[2]);
        let sum = d.binary(BinaryOp::Sub, sum, e[3]);
        d.store(Place::Tensor(y), &[at], narrow);
        d.store(Place::Tensor(z), &[i], sum);
        let n = 64 * scalar.bytes() as usize;
        // Every bit pattern of 8 bits; of 16 bits those without NaN.
        let bytes: Vec<u8> = (0..n).map(|i| ((i * 73 + 11) % 251) as u8 & 0x7B).collect();
        let x = (scalar, vec![64], bytes);
        let z = (Scalar::F32, vec![16], vec![0; 64]);
        agree(&d.finish(), &[x.clone(), x, z]);
    }
}

#[test]
fn breaks_that_threads_take_at_their_own_turn() {
    let mut d = Draft::new("breaks", 32, 1);
    let x = d.tensor("x", Scalar::U32, vec![Expr::Const(32)], Access::Read);
    let y = d.tensor("y", Scalar::U32, vec![Expr::Const(32)], Access::ReadWrite);
    let t = d.thread();
    let limit = d.load(Place::Tensor(x), &[t], Type::U32);
    let seven = d.u32(7);
    let limit = d.binary(BinaryOp::And, limit, seven);
    let n = d.local("n", Type::U32);
    let (zero, one) = (d.u32(0), d.u32(1));
    d.stmt(Stmt::Set(n, zero));
    let body = d.block(|d| {
        let old = d.value(Op::Get(n), Type::U32);
        let done = d.value(Op::Compare(CompareOp::Ge, old, limit), Type::BOOL);
        d.when(done, |d| d.stmt(Stmt::Break));
        let new = d.binary(BinaryOp::Add, old, one);
        d.stmt(Stmt::Set(n, new));
    });
    d.stmt(Stmt::Loop { body });
    let count = d.value(Op::Get(n), Type::U32);
    d.store(Place::Tensor(y), &[t], count);
    agree(&d.finish(), &[words(32), words(32)]);
}

#[test]
fn exponentials_stay_within_two_units() {
    let device: Arc<dyn Device> = Arc::new(super::CpuDevice::with_threads(1).unwrap());
    let special = [
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        0.0,
        88.7,
        88.8,
        -87.4,
        -103.9,
        -104.1,
    ];
    let inputs: Vec<f32> = special
        .into_iter()
        .chain((0..2039).map(|i| i as f32 * 0.05 - 51.0))
        .collect();
    let n = inputs.len() as u64;
    for (op, exact) in [
        (UnaryOp::Exp, f64::exp as fn(f64) -> f64),
        (UnaryOp::Exp2, f64::exp2),
    ] {
        let mut d = Draft::new("exponential", 64, n.div_ceil(64) as i64);
        let y = d.tensor(
            "y",
            Scalar::F32,
            vec![Expr::Const(n as i64)],
            Access::ReadWrite,
        );
        let i = d.free(Op::Builtin(BuiltinOp::GlobalId, 0), Type::U32);
        let v = d.load(Place::Tensor(y), &[i], Type::F32);
        let e = d.value(Op::Unary(op, v), Type::F32);
        d.store(Place::Tensor(y), &[i], e);
        let tensor = Tensor::from_f32(&device, Scalar::F32, &[n], &inputs).unwrap();
        launch_kernel(
            &device,
            &d.finish(),
            vec![Argument::Tensor(tensor.tensor_arg())],
        )
        .unwrap();
        for (x, found) in inputs.iter().zip(tensor.to_f32().unwrap()) {
            let expected = exact(f64::from(*x));
            let rounded = expected as f32;
            if !rounded.is_finite() || rounded == 0.0 {
                assert!(
                    found == rounded || found.is_nan() && rounded.is_nan(),
                    "{x}: {found}"
                );
                continue;
            }
            let unit = f64::from(rounded.abs().next_up()) - f64::from(rounded.abs());
            let error = (f64::from(found) - expected).abs() / unit;
            assert!(
                error < 2.0,
                "{} of {x}: {found}, exactly {expected}: {error} units",
                op.name()
            );
        }
    }
}
