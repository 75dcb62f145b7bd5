//! Rates of kernels on the CPU backend beside a plain copy, in bytes moved a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use iron_ir::Scalar;
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::Const;
use iron_runtime::{Backend, Device, RecordedLaunch, Tensor, open, pipeline_of};

fn cpu() -> f64 {
    unsafe extern "C" { fn clock_gettime(c: i32, t: *mut i64) -> i32; }
    let mut t = [0i64; 2];
    unsafe { clock_gettime(2, t.as_mut_ptr()) };
    t[0] as f64 + t[1] as f64 * 1e-9
}
fn best_cpu(mut f: impl FnMut()) -> f64 {
    (0..9).map(|_| { let t = cpu(); f(); cpu() - t }).fold(f64::MAX, f64::min)
}
#[allow(dead_code)]
fn best(mut f: impl FnMut()) -> Duration {
    (0..9).map(|_| { let t = Instant::now(); f(); t.elapsed() }).min().unwrap()
}

fn main() {
    println!("{} kernels", iron_corpus::link());
    let _ = open; let _ = Backend::Cpu; let device: Arc<dyn Device> = Arc::new(iron_runtime::cpu::CpuDevice::with_threads(1).unwrap());
    println!("{}", device.name());
    let n = 32 << 20;
    let from = vec![1u8; n];
    let mut to = vec![0u8; n];
    let t = best_cpu(|| to.copy_from_slice(&from));
    println!("memcpy one thread, 32 MiB: {:6.2} GB/s (read + write)", 2.0 * n as f64 / t / 1e9);
    let half = n / 2;
    let t = best(|| std::thread::scope(|s| {
        let (a, b) = to.split_at_mut(half);
        let from = &from;
        s.spawn(move || a.copy_from_slice(&from[..half]));
        b.copy_from_slice(&from[half..]);
    }));
    println!("memcpy two threads, 32 MiB: {:6.2} GB/s", 2.0 * n as f64 / t.as_secs_f64() / 1e9);
    let run = |name: &str, instance: &str, bytes: u64, tensors: &[&Tensor], scalars: &[f32]| {
        measure(&device, name, instance, bytes, tensors, scalars);
    };
    let z = |s: Scalar, shape: &[u64]| Tensor::zeros(&device, s, shape).unwrap();
    let m = 4u64 << 20;
    let (a, b, c) = (z(Scalar::F32, &[m]), z(Scalar::F32, &[m]), z(Scalar::F32, &[m]));
    run("scale", "f32", m * 8, &[&a, &b], &[2.0]);
    run("add", "f32", m * 12, &[&a, &b, &c], &[]);
    run("silu_mul", "f32", m * 12, &[&a, &b, &c], &[]);
    let k = 1u64 << 16;
    let (a, b, c) = (z(Scalar::F32, &[k]), z(Scalar::F32, &[k]), z(Scalar::F32, &[k]));
    run("add", "f32", k * 12, &[&a, &b, &c], &[]);
    run("silu_mul", "f32", k * 12, &[&a, &b, &c], &[]);
    let (x, w, y) = (z(Scalar::F32, &[1024, 576]), z(Scalar::F32, &[576]), z(Scalar::F32, &[1024, 576]));
    run("rms_norm", "f32", 1024 * 576 * 8, &[&x, &w, &y], &[1e-5]);
    let (x, w, y) = (z(Scalar::F32, &[1, 576]), z(Scalar::F32, &[576]), z(Scalar::F32, &[1, 576]));
    run("rms_norm", "f32", 576 * 8, &[&x, &w, &y], &[1e-5]);
    for (inner, cols) in [(576u64, 1536u64), (576, 49152), (1536, 576)] {
        for t in ["f32", "bf16"] {
            let s = Scalar::from_name(t).unwrap();
            let (x, w, y) = (z(s, &[1, inner]), z(s, &[cols, inner]), z(s, &[1, cols]));
            run("matvec", &format!("{t}-LANES=1"), inner * cols * u64::from(s.bytes()), &[&x, &w, &y], &[]);
        }
        let blocks = inner / 32;
        let (x, y) = (z(Scalar::F32, &[1, inner]), z(Scalar::F32, &[1, cols]));
        let (scales, quants) = (z(Scalar::U32, &[cols, blocks]), z(Scalar::U32, &[cols, blocks * 4]));
        run("matvec_q4_1", "f32-LANES=1", cols * blocks * 20, &[&x, &scales, &quants, &y], &[]);
        let (scales, quants) = (z(Scalar::F16, &[cols, blocks]), z(Scalar::U32, &[cols, blocks * 8]));
        run("matvec_q8_0", "f32-LANES=1", cols * blocks * 34, &[&x, &scales, &quants, &y], &[]);
    }
}

fn measure(device: &Arc<dyn Device>, name: &str, instance: &str, bytes: u64, tensors: &[&Tensor], scalars: &[f32]) {
    let t = Instant::now();
    let pipeline = match pipeline_of(device, name, None, instance) {
        Ok(p) => p,
        Err(e) => { println!("{name} {instance}: {e}"); return; }
    };
    let compile = t.elapsed();
    let mut arguments: Vec<Argument> = tensors.iter().map(|t| Argument::Tensor(t.tensor_arg())).collect();
    arguments.extend(scalars.iter().map(|s| Argument::Scalar(Const { scalar: Scalar::F32, bits: s.to_bits().into() })));
    let launch = RecordedLaunch::new(pipeline, arguments).unwrap();
    let list = vec![launch; 20];
    let t = best_cpu(|| device.submit(&list).unwrap()) / 20.0;
    println!("{name:12} {instance:12} {:8.1} KiB: {:8.1} us {:6.2} GB/s (compile {:.1} ms)", bytes as f64 / 1024.0, t * 1e6, bytes as f64 / t / 1e9, compile.as_secs_f64() * 1e3);
}
