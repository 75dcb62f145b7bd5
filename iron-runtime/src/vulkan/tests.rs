//! Kernels on whatever Vulkan device is here; Mesa's software driver serves.

use std::sync::Arc;

use iron_ir::entity::Value;
use iron_ir::kernel::{Access, Kernel, Space};
use iron_ir::launch::{Argument, DeviceBuffer, TensorArg};
use iron_ir::op::{
    AtomicOp, BarrierMemory, BarrierScope, BinaryOp, BuiltinOp, CompareOp, Const, Op, Place, Stmt,
    SubgroupOp, UnaryOp,
};
use iron_ir::types::{Scalar, Type};

use super::{VulkanDevice, failed_lowering};
use crate::device::{Device, DeviceError, RecordedLaunch};

#[path = "../../../iron-lower/src/spirv/sketch.rs"]
mod sketch;

use sketch::Sketch;

/// The device, by address and by descriptor; none where no driver is installed.
fn devices() -> Vec<Arc<VulkanDevice>> {
    [false, true]
        .into_iter()
        .filter_map(|descriptors| match VulkanDevice::open_with(descriptors) {
            Ok(device) => Some(device),
            Err(DeviceError::Missing { reason, .. }) => {
                eprintln!("skipped: {reason}");
                None
            }
            Err(error) => panic!("{error}"),
        })
        .collect()
}

#[test]
fn devices_share_an_instance_that_stays() {
    let opened = devices();
    let instances: Vec<_> = opened
        .iter()
        .map(|device| device.shared.context.instance.handle())
        .collect();
    drop(opened);
    let again = devices();
    for device in &again {
        let instance = device.shared.context.instance.handle();
        assert!(instances.iter().all(|before| *before == instance));
    }
    assert_eq!(again.len(), instances.len());
}

/// Compiles a kernel that needs no pass.
fn compile(device: &VulkanDevice, kernel: &Kernel) -> Arc<super::VulkanPipeline> {
    let words = iron_lower::spirv::emit(kernel, &device.profile)
        .map_err(|e| failed_lowering(kernel, e))
        .expect("the kernel lowers");
    let made = device.compile_module(kernel.clone(), &words, "test".into());
    Arc::new(made.expect("the module compiles"))
}

fn upload(device: &VulkanDevice, bytes: &[u8]) -> Arc<dyn DeviceBuffer> {
    let buffer = device.alloc(bytes.len() as u64).expect("memory");
    device.upload(&*buffer, 0, bytes).expect("upload");
    buffer
}

fn download(device: &VulkanDevice, buffer: &dyn DeviceBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.bytes() as usize];
    device.download(buffer, 0, &mut bytes).expect("download");
    bytes
}

fn view(buffer: &Arc<dyn DeviceBuffer>, scalar: Scalar, offset: u64, n: u64) -> Argument {
    let buffer = buffer.clone();
    Argument::Tensor(TensorArg {
        buffer,
        scalar,
        shape: vec![n],
        strides: vec![1],
        offset,
    })
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn as_floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&b| f32::from_le_bytes(b))
        .collect()
}

#[test]
fn axpy_on_offset_views() {
    for device in devices() {
        let kernel = sketch::axpy(Scalar::F32);
        let pipeline = compile(&device, &kernel);
        let n = 1000;
        let xs: Vec<f32> = (0..n + 3).map(|i| i as f32 * 0.5 - 7.0).collect();
        let ys: Vec<f32> = (0..n + 9).map(|i| 3.0 - i as f32).collect();
        let (x, y) = (upload(&device, &floats(&xs)), upload(&device, &floats(&ys)));
        let a = Argument::Scalar(Const {
            scalar: Scalar::F32,
            bits: 2.5f32.to_bits().into(),
        });
        let arguments = vec![
            a,
            view(&x, Scalar::F32, 3, n as u64),
            view(&y, Scalar::F32, 5, n as u64),
        ];
        let launch = RecordedLaunch::new(pipeline, arguments).expect("the contract holds");
        device
            .submit(std::slice::from_ref(&launch))
            .expect("submit");
        let found = as_floats(&download(&device, &*y));
        let mut wanted = ys.clone();
        for i in 0..n {
            wanted[i + 5] += 2.5 * xs[i + 3];
        }
        assert_eq!(found, wanted);
        let graph = device
            .record(&[launch.clone(), launch.clone()])
            .expect("record");
        graph.replay().expect("replay");
        graph.replay().expect("replay");
        device.synchronize().expect("synchronize");
        for i in 0..n {
            for _ in 0..4 {
                wanted[i + 5] += 2.5 * xs[i + 3];
            }
        }
        assert_eq!(as_floats(&download(&device, &*y)), wanted);
        let times = device.time(&[launch]).expect("timestamps");
        assert_eq!(times.len(), 1);
        assert_eq!(device.validation_messages(), Vec::<String>::new());
    }
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn as_words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&b| u32::from_le_bytes(b))
        .collect()
}

/// Runs a kernel on tensors of one dimension and gives their contents afterwards.
fn run(device: &VulkanDevice, kernel: &Kernel, tensors: &[(Scalar, Vec<u8>)]) -> Vec<Vec<u8>> {
    let pipeline = compile(device, kernel);
    let buffers: Vec<_> = tensors
        .iter()
        .map(|(_, bytes)| upload(device, bytes))
        .collect();
    let arguments = buffers
        .iter()
        .zip(tensors)
        .map(|(b, (s, bytes))| view(b, *s, 0, bytes.len() as u64 / u64::from(s.bytes())))
        .collect();
    let launch = RecordedLaunch::new(pipeline, arguments).expect("the contract holds");
    device.submit(&[launch]).expect("submit");
    device.synchronize().expect("synchronize");
    assert_eq!(device.validation_messages(), Vec::<String>::new());
    buffers.iter().map(|b| download(device, &**b)).collect()
}

/// A kernel that maps each element of `x` to one of `y`.
fn map(from: Type, to: Type, f: impl FnOnce(&mut Sketch, Value) -> Value) -> Kernel {
    let mut s = Sketch::new("map", 64);
    let x = s.tensor("x", from.scalar, Access::Read);
    let y = s.tensor("y", to.scalar, Access::ReadWrite);
    let i = s.builtin(BuiltinOp::GlobalId);
    let n = s.n();
    let inside = s.compare(CompareOp::Lt, i, n);
    s.if_else(
        inside,
        |s| {
            let value = s.load(x, i, from);
            let value = f(s, value);
            s.store(y, i, value);
        },
        |_| {},
    );
    s.finish()
}

/// The index is odd: skipped. The sum passes the limit: stop. Steps of 3 to the type's end.
#[test]
fn loops_continue_break_and_never_wrap() {
    for device in devices() {
        let mut s = Sketch::new("loops", 32);
        let y = s.tensor("y", Scalar::U32, Access::ReadWrite);
        let i = s.builtin(BuiltinOp::GlobalId);
        let (n, one, three) = (s.n(), s.u32(1), s.u32(3));
        let outside = s.compare(CompareOp::Ge, i, n);
        s.if_else(outside, |s| s.push(Stmt::Return), |_| {});
        let total = s.local("total", Type::U32);
        let (zero, limit) = (s.u32(0), s.u32(40));
        s.push(Stmt::Set(total, zero));
        let end = s.load(y, i, Type::U32);
        s.for_range([zero, end, three], |s, index| {
            let rest = s.binary(BinaryOp::And, index, one);
            let odd = s.compare(CompareOp::Eq, rest, one);
            s.if_else(odd, |s| s.push(Stmt::Continue), |_| {});
            let sum = s.get(total);
            let sum = s.binary(BinaryOp::Add, sum, index);
            s.push(Stmt::Set(total, sum));
            let large = s.compare(CompareOp::Gt, sum, limit);
            s.if_else(large, |s| s.push(Stmt::Break), |_| {});
        });
        // From near the end of the type: two turns, and no third after a wrap.
        let (near, last) = (s.u32(u32::MAX - 4), s.u32(u32::MAX));
        let step = s.binary(BinaryOp::Add, end, zero);
        let some = s.compare(CompareOp::Gt, step, three);
        let step = s.compute(Op::Select(some, three, three), Type::U32);
        let thousand = s.u32(1000);
        s.for_range([near, last, step], |s, _| {
            let sum = s.get(total);
            let sum = s.binary(BinaryOp::Add, sum, thousand);
            s.push(Stmt::Set(total, sum));
        });
        let body = s.nest(|s| {
            let sum = s.get(total);
            let small = s.compare(CompareOp::Lt, sum, thousand);
            s.if_else(small, |s| s.push(Stmt::Break), |_| {});
            let sum = s.binary(BinaryOp::Sub, sum, thousand);
            s.push(Stmt::Set(total, sum));
            let seven = s.u32(7);
            let is_seven = s.compare(CompareOp::Eq, sum, seven);
            s.if_else(is_seven, |s| s.push(Stmt::Continue), |_| {});
        });
        s.push(Stmt::Loop { body });
        let sum = s.get(total);
        s.store(y, i, sum);
        let ends: Vec<u32> = (0..70).collect();
        let found = run(&device, &s.finish(), &[(Scalar::U32, words(&ends))]);
        let wanted: Vec<u32> = ends
            .iter()
            .map(|&end| {
                let mut total = 0;
                for index in (0..end).step_by(3).filter(|i| i % 2 == 0) {
                    total += index;
                    if total > 40 {
                        break;
                    }
                }
                total
            })
            .collect();
        assert_eq!(as_words(&found[0]), wanted);
    }
}

/// Shared memory, atomics on floats in shared and global memory, ballots and shuffles, with a
/// workgroup that does not fill its last subgroup.
#[test]
fn threads_exchange() {
    for device in devices() {
        const THREADS: u32 = 44;
        let mut s = Sketch::new("exchange", THREADS);
        let y = s.tensor("y", Scalar::U32, Access::ReadWrite);
        let f = s.tensor("f", Scalar::F32, Access::ReadWrite);
        let shared = s.array("line", Scalar::U32, THREADS, Space::Shared);
        let sum = s.array("sum", Scalar::F32, 1, Space::Shared);
        let i = s.builtin(BuiltinOp::LocalIndex);
        let (zero, one) = (s.u32(0), s.u32(1));
        let (float_one, float_zero) = (s.f32(1.0), s.f32(0.0));
        let first = s.compare(CompareOp::Eq, i, zero);
        s.if_else(first, |s| s.store_array(sum, zero, float_zero), |_| {});
        let square = s.binary(BinaryOp::Mul, i, i);
        s.store_array(shared, i, square);
        s.push(Stmt::Barrier(
            BarrierScope::Workgroup,
            BarrierMemory::Shared,
        ));
        let last = s.u32(THREADS - 1);
        let mirror = s.binary(BinaryOp::Sub, last, i);
        let other = s.load_array(shared, mirror, Type::U32);
        let global = s.compute(Op::Convert(zero), Type::U64);
        for (place, index) in [(Place::Array(sum), zero), (Place::Flat(f), global)] {
            s.effect(Type::F32, |result| Stmt::Atomic {
                result,
                op: AtomicOp::Add,
                place,
                indices: vec![index],
                value: Some(float_one),
                compare: None,
            });
        }
        s.push(Stmt::Barrier(
            BarrierScope::Workgroup,
            BarrierMemory::SharedAndGlobal,
        ));
        let total = s.load_array(sum, zero, Type::F32);
        let total = s.compute(Op::Convert(total), Type::U32);
        let mut all = s.binary(BinaryOp::Add, other, total);
        let distances = [
            (SubgroupOp::ShuffleXor, 1),
            (SubgroupOp::ShuffleXor, 6),
            (SubgroupOp::ShuffleUp, 3),
            (SubgroupOp::ShuffleDown, 5),
        ];
        for (op, distance) in distances {
            let distance = s.u32(distance);
            let found = s.effect(Type::U32, |result| Stmt::Subgroup {
                result,
                op,
                reduce: None,
                value: i,
                argument: Some(distance),
            });
            let sixteen = s.u32(31);
            all = s.binary(BinaryOp::Mul, all, sixteen);
            all = s.binary(BinaryOp::Add, all, found);
        }
        let odd = s.binary(BinaryOp::And, i, one);
        let odd = s.compare(CompareOp::Eq, odd, one);
        let mask = s.effect(Type::U64, |result| Stmt::Subgroup {
            result,
            op: SubgroupOp::Ballot,
            reduce: None,
            value: odd,
            argument: None,
        });
        let ones = s.unary(UnaryOp::CountOnes, mask);
        all = s.binary(BinaryOp::Add, all, ones);
        s.store(y, i, all);
        let mut kernel = s.finish();
        kernel.contract.grid[0] = iron_ir::Expr::Const(1);
        kernel.params.iter_mut().for_each(|(_, p)| {
            if let iron_ir::kernel::ParamKind::Tensor(t) = &mut p.kind {
                t.shape = vec![iron_ir::Expr::Const(i64::from(THREADS))];
            }
        });
        kernel.dims = Default::default();
        let blank = vec![0; 4 * THREADS as usize];
        let tensors = [(Scalar::U32, blank.clone()), (Scalar::F32, blank)];
        let found = run(&device, &kernel, &tensors);
        let lanes = device.subgroup_size();
        let wanted: Vec<u32> = (0..THREADS)
            .map(|i| {
                let (lane, base) = (i % lanes, i / lanes * lanes);
                let width = lanes.min(THREADS - base);
                let get = |wanted: u32| if wanted < width { base + wanted } else { i };
                let mirror = THREADS - 1 - i;
                let mut all = mirror * mirror + THREADS;
                let up = if lane >= 3 { base + lane - 3 } else { i };
                for found in [get(lane ^ 1), get(lane ^ 6), up, get(lane + 5)] {
                    all = all.wrapping_mul(31).wrapping_add(found);
                }
                all.wrapping_add(width / 2)
            })
            .collect();
        assert_eq!(as_words(&found[0]), wanted);
        assert_eq!(as_floats(&found[1])[0], THREADS as f32);
    }
}

/// The first failing check is reported once, by kernel and line; the index becomes 0.
#[test]
fn a_bad_index_is_reported() {
    for device in devices() {
        let mut s = Sketch::new("gather", 32);
        let y = s.tensor("y", Scalar::U32, Access::ReadWrite);
        let i = s.builtin(BuiltinOp::GlobalId);
        let n = s.n();
        let inside = s.compare(CompareOp::Lt, i, n);
        s.if_else(
            inside,
            |s| {
                let wanted = s.load(y, i, Type::U32);
                let checked = s.effect(Type::U32, |result| Stmt::CheckIndex {
                    result,
                    index: wanted,
                    bound: n,
                });
                s.store(y, i, checked);
            },
            |_| {},
        );
        let kernel = s.finish();
        let pipeline = compile(&device, &kernel);
        let y = upload(&device, &words(&[3, 9, 0, 1]));
        let launch = RecordedLaunch::new(pipeline, vec![view(&y, Scalar::U32, 0, 4)]);
        let launch = [launch.expect("the contract holds")];
        device.submit(&launch).expect("submit");
        match device.synchronize() {
            Err(DeviceError::IndexOutOfRange { kernel, line }) => {
                assert_eq!((kernel.as_str(), line), ("gather", 4));
            }
            other => panic!("{other:?}"),
        }
        device.synchronize().expect("reported once");
        assert_eq!(as_words(&download(&device, &*y)), [3, 0, 0, 1]);
        let graph = device.record(&launch).expect("record");
        graph.replay().expect("replay");
        device.synchronize().expect("all in range");
        device.upload(&*y, 0, &words(&[7])).expect("upload");
        graph.replay().expect("replay");
        assert!(matches!(
            device.synchronize(),
            Err(DeviceError::IndexOutOfRange { .. })
        ));
    }
}

/// A parameter block that push constants cannot hold.
#[test]
fn a_large_block_goes_through_memory() {
    for device in devices() {
        let mut s = Sketch::new("many", 32);
        let y = s.tensor("y", Scalar::U32, Access::ReadWrite);
        let scalars: Vec<_> = (0..90)
            .map(|i| s.scalar(&format!("s{i}"), Scalar::U32))
            .collect();
        let i = s.builtin(BuiltinOp::GlobalId);
        let n = s.n();
        let inside = s.compare(CompareOp::Lt, i, n);
        s.if_else(
            inside,
            |s| {
                let mut sum = s.load(y, i, Type::U32);
                for &scalar in &scalars {
                    sum = s.binary(BinaryOp::Add, sum, scalar);
                }
                s.store(y, i, sum);
            },
            |_| {},
        );
        let pipeline = compile(&device, &s.finish());
        assert_eq!(device.validation_messages(), Vec::<String>::new());
        let y = upload(&device, &words(&[1, 2, 3]));
        let mut arguments = vec![view(&y, Scalar::U32, 0, 3)];
        arguments.extend((0..90).map(|bits| {
            Argument::Scalar(Const {
                scalar: Scalar::U32,
                bits,
            })
        }));
        let launch = RecordedLaunch::new(pipeline, arguments).expect("the contract holds");
        device.submit(&[launch]).expect("submit");
        let sum: u32 = (0..90).sum();
        assert_eq!(
            as_words(&download(&device, &*y)),
            [1 + sum, 2 + sum, 3 + sum]
        );
    }
}

/// Bit operations of every width against the host's.
#[test]
fn bit_operations_of_every_width() {
    let mut seed = 7u64;
    let mut patterns: Vec<u64> = (0..1000)
        .map(|i| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> (i % 64)
        })
        .collect();
    patterns.extend([0, 1, u64::MAX, 1 << 63, 1 << 31, 1 << 32, 0x80, 0x8000]);
    let n = patterns.len();
    for device in devices() {
        for scalar in [
            Scalar::U8,
            Scalar::U16,
            Scalar::U32,
            Scalar::U64,
            Scalar::I64,
        ] {
            let size = scalar.bytes() as usize;
            let input: Vec<u8> = patterns
                .iter()
                .flat_map(|p| p.to_le_bytes()[..size].to_vec())
                .collect();
            let mask = u64::MAX >> (64 - scalar.bits());
            let reference = |op: UnaryOp, x: u64| -> u64 {
                let empty = 64 - scalar.bits();
                match op {
                    UnaryOp::CountOnes => x.count_ones().into(),
                    UnaryOp::LeadingZeros => (x.leading_zeros() - empty).into(),
                    UnaryOp::TrailingZeros => x.trailing_zeros().min(scalar.bits()).into(),
                    _ => x.reverse_bits() >> empty,
                }
            };
            let operators = [
                UnaryOp::CountOnes,
                UnaryOp::LeadingZeros,
                UnaryOp::TrailingZeros,
                UnaryOp::ReverseBits,
            ];
            for op in operators {
                let to = if op == UnaryOp::ReverseBits {
                    scalar
                } else {
                    Scalar::U32
                };
                let kernel = map(scalar.x(1), to.x(1), |s, v| s.unary(op, v));
                if device.profile.check(&kernel).is_err() {
                    continue;
                }
                let blank = vec![0xAA; n * to.bytes() as usize];
                let found = run(&device, &kernel, &[(scalar, input.clone()), (to, blank)]);
                for (i, &pattern) in patterns.iter().enumerate() {
                    let at = i * to.bytes() as usize;
                    let mut bytes = [0; 8];
                    bytes[..to.bytes() as usize]
                        .copy_from_slice(&found[1][at..at + to.bytes() as usize]);
                    let x = pattern & mask;
                    let wanted = reference(op, x);
                    assert_eq!(
                        u64::from_le_bytes(bytes),
                        wanted,
                        "{} {x:#x} {scalar}",
                        op.name()
                    );
                }
            }
        }
        for signed in [false, true] {
            let scalar = if signed { Scalar::I64 } else { Scalar::U64 };
            let kernel = map(scalar.x(1), scalar.x(1), |s, v| {
                let three = s.constant(scalar, 3);
                let other = s.binary(BinaryOp::Mul, v, three);
                s.binary(BinaryOp::MulHigh, v, other)
            });
            let input: Vec<u8> = patterns.iter().flat_map(|p| p.to_le_bytes()).collect();
            let found = run(
                &device,
                &kernel,
                &[(scalar, input.clone()), (scalar, input)],
            );
            for (bytes, &p) in found[1].as_chunks::<8>().0.iter().zip(&patterns) {
                let q = p.wrapping_mul(3);
                let wanted = if signed {
                    ((i128::from(p as i64) * i128::from(q as i64)) >> 64) as u64
                } else {
                    ((u128::from(p) * u128::from(q)) >> 64) as u64
                };
                assert_eq!(u64::from_le_bytes(*bytes), wanted, "{p:#x}");
            }
        }
    }
}

/// The stated bounds of the transcendental functions, and one rounding of `fma`.
#[test]
fn functions_keep_their_bounds() {
    let mut inputs: Vec<f32> = vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        1e-45,
        -1e-40,
        f32::MAX,
        f32::MIN,
        0.5,
        88.7,
        -103.0,
        128.0,
    ];
    let mut bits = 1u32;
    inputs.extend((0..20_000).map(|_| {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from_bits(bits ^ (bits >> 13))
    }));
    inputs.extend((-5000..5000).map(|i| i as f32 * 0.0041));
    type Function = (UnaryOp, f64, fn(f64) -> f64);
    let functions: [Function; 8] = [
        (UnaryOp::Exp, 1.0, f64::exp),
        (UnaryOp::Exp2, 1.5, f64::exp2),
        (UnaryOp::Log, 1.0, f64::ln),
        (UnaryOp::Log2, 1.0, f64::log2),
        (UnaryOp::Sin, 2.5, f64::sin),
        (UnaryOp::Cos, 2.5, f64::cos),
        (UnaryOp::Tanh, 3.5, f64::tanh),
        (UnaryOp::Sqrt, 2.5, f64::sqrt),
    ];
    for device in devices() {
        for (op, bound, function) in functions {
            let kernel = map(Type::F32, Type::F32, |s, v| s.unary(op, v));
            let tensors = [
                (Scalar::F32, floats(&inputs)),
                (Scalar::F32, floats(&inputs)),
            ];
            let found = as_floats(&run(&device, &kernel, &tensors)[1]);
            for (&x, &y) in inputs.iter().zip(&found) {
                if op == UnaryOp::Sqrt && x.is_subnormal() {
                    // Drivers may flush it.
                    continue;
                }
                let wanted = function(f64::from(x));
                let error = ulp_error(y, wanted);
                assert!(
                    error <= bound,
                    "{}({x:e}) = {y:e}, not {wanted:e}: {error}",
                    op.name()
                );
                assert!(
                    wanted != 0.0 || y.is_sign_negative() == wanted.is_sign_negative(),
                    "{}({x:e}) = {y:e}",
                    op.name()
                );
            }
        }
        let kernel = map(Type::F32, Type::F32, |s, v| {
            let minus = s.unary(UnaryOp::Neg, v);
            let third = s.f32(1.0 / 3.0);
            let product = s.binary(BinaryOp::Mul, minus, third);
            s.compute(Op::Fma(v, third, product), Type::F32)
        });
        if device.options.fused_multiply_add || device.has(iron_ir::Feature::F64) {
            let small: Vec<f32> = inputs
                .iter()
                .copied()
                .filter(|x| (1e-20..1e30).contains(&x.abs()))
                .collect();
            let tensors = [(Scalar::F32, floats(&small)), (Scalar::F32, floats(&small))];
            let found = as_floats(&run(&device, &kernel, &tensors)[1]);
            for (&x, &y) in small.iter().zip(&found) {
                let wanted = x.mul_add(1.0 / 3.0, -x * (1.0 / 3.0));
                assert_eq!(
                    y.to_bits(),
                    wanted.to_bits(),
                    "{x:e}: {y:e}, not {wanted:e}"
                );
            }
        }
    }
}

/// Distance in units of the last place of the `f32` nearest to the wanted value.
fn ulp_error(found: f32, wanted: f64) -> f64 {
    let nearest = wanted as f32;
    if wanted.is_nan() || nearest.is_infinite() || found.is_infinite() {
        return if found == nearest || (wanted.is_nan() && found.is_nan()) {
            0.0
        } else {
            1e9
        };
    }
    let from = nearest.abs().max(f32::MIN_POSITIVE);
    let unit = f64::from(f32::from_bits(from.to_bits() + 1)) - f64::from(from);
    (f64::from(found) - wanted).abs() / unit
}

#[test]
fn misuse_is_an_error() {
    let all = devices();
    let [first, second] = &all[..] else { return };
    let empty = first.alloc(0).expect("zero bytes");
    assert_eq!(empty.bytes(), 0);
    let buffer = first.alloc(8).expect("memory");
    assert!(matches!(
        second.upload(&*buffer, 0, &[0; 8]),
        Err(DeviceError::Usage { .. })
    ));
    assert!(matches!(
        first.upload(&*buffer, 4, &[0; 8]),
        Err(DeviceError::Usage { .. })
    ));
    assert!(matches!(
        first.alloc(1 << 62),
        Err(DeviceError::OutOfMemory { .. })
    ));
}

/// Many threads share a device; memory and pipelines go while work is queued.
#[test]
fn threads_share_a_device() {
    for device in devices() {
        let kernel = sketch::axpy(Scalar::F32);
        std::thread::scope(|scope| {
            for worker in 0..4u32 {
                let (device, kernel) = (&device, &kernel);
                scope.spawn(move || {
                    for round in 0..8u32 {
                        let pipeline = compile(device, kernel);
                        let value = (worker * 8 + round) as f32;
                        let x = upload(device, &floats(&[value; 300]));
                        let y = upload(device, &floats(&[1.0; 300]));
                        let bits = u64::from(2.0f32.to_bits());
                        let a = Argument::Scalar(Const {
                            scalar: Scalar::F32,
                            bits,
                        });
                        let arguments = vec![
                            a,
                            view(&x, Scalar::F32, 0, 300),
                            view(&y, Scalar::F32, 0, 300),
                        ];
                        let launch = RecordedLaunch::new(pipeline, arguments).expect("launch");
                        device.submit(&[launch]).expect("submit");
                        drop(x);
                        let found = as_floats(&download(device, &*y));
                        assert_eq!(found, [1.0 + 2.0 * value; 300]);
                    }
                });
            }
        });
    }
}

/// A driver that cuts loops off must not be believed in silence.
#[test]
fn loops_past_the_drivers_limit_are_reported() {
    for device in devices() {
        let Some(limit) = device.options.loop_turns else {
            continue;
        };
        for (turns, is_cut) in [(limit - 2, false), (limit + 1000, true)] {
            let kernel = map(Type::U32, Type::U32, |s, end| {
                let total = s.local("total", Type::U32);
                let (zero, one) = (s.u32(0), s.u32(1));
                s.push(Stmt::Set(total, zero));
                s.for_range([zero, end, one], |s, index| {
                    let sum = s.get(total);
                    let sum = s.binary(BinaryOp::Xor, sum, index);
                    let sum = s.binary(BinaryOp::Add, sum, one);
                    s.push(Stmt::Set(total, sum));
                });
                s.get(total)
            });
            let pipeline = compile(&device, &kernel);
            let x = upload(&device, &words(&[3, turns]));
            let y = device.alloc(8).expect("memory");
            let arguments = vec![view(&x, Scalar::U32, 0, 2), view(&y, Scalar::U32, 0, 2)];
            let launch = RecordedLaunch::new(pipeline, arguments).expect("the contract holds");
            device.submit(&[launch]).expect("submit");
            let found = device.download(&*y, 0, &mut [0; 8]);
            assert_eq!(found.is_err(), is_cut, "{turns}: {found:?}");
            let found = device.synchronize();
            assert_eq!(found.is_err(), is_cut, "{turns}: {found:?}");
            device.synchronize().expect("reported once");
        }
    }
}
