//! Texts as they are give what their kernels say at every subgroup width; texts that are wrong
//! give another answer or a fault, never the right answer and never a hang.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_ir::kernel::Kernel;
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::parse::parse;

use super::compiler::Compiler;
use super::unit::Text;
use super::{Backend, EmulatedDevice};
use crate::device::{Device, DeviceError, RecordedLaunch};
use crate::{Tensor, launch_kernel};

const BACKENDS: [Backend; 3] = [
    Backend::EmulatedCuda,
    Backend::EmulatedHip,
    Backend::EmulatedMsl,
];

/// A device, or nothing where this machine has no clang++.
fn open(backend: Backend, profile: Option<&str>) -> Option<EmulatedDevice> {
    match EmulatedDevice::open(backend, profile) {
        Ok(device) => Some(device),
        Err(DeviceError::Missing { looked_for, .. }) => {
            eprintln!("skipped: {looked_for}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn kernel(text: &str) -> Kernel {
    parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// `y[i] = x[the next thread's]`, through shared memory.
const ROTATE: &str = "kernel @pass_on grid(2, 1, 1) workgroup(64, 1, 1) {
  dim #n
  param @x: tensor<u32, [#n], read, align 1>
  param @y: tensor<u32, [#n], read_write, align 1>
  file \"src/pass.rs\"
  shared &s: [u32; 64]

  %v: u32 = load @x[global_id.0]
  store &s[local_index] = %v !8:5
  barrier workgroup shared !9:5
  %next: u32 = add local_index, 1u32
  %other: u32 = and %next, 63u32
  %w: u32 = load &s[%other]
  store @y[global_id.0] = %w
}
";

fn rotated() -> Vec<u32> {
    (0..128).map(|i| i / 64 * 64 + (i + 1) % 64).collect()
}

/// Runs a kernel of `x` and `y` whose text went through `change`; `x` counts up.
fn run_changed(
    device: EmulatedDevice,
    kernel: &Kernel,
    change: &dyn Fn(String) -> String,
) -> Result<Vec<u32>, DeviceError> {
    let text = device.text(kernel)?;
    let source = change(text.source.clone());
    let pipeline = device.pipeline_of(text.with_source(source))?;
    let n = 128u32;
    let device: Arc<dyn Device> = Arc::new(device);
    let values: Vec<u32> = (0..n).collect();
    let x = Tensor::from_slice(&device, Scalar::U32, &[128], &values)?;
    let y = Tensor::from_slice(&device, Scalar::U32, &[128], &vec![7u32; 128])?;
    let arguments = [&x, &y].map(|t| Argument::Tensor(t.tensor_arg())).to_vec();
    device.submit(&[RecordedLaunch::new(Arc::new(pipeline), arguments)?])?;
    device.synchronize()?;
    let words = |bytes: Vec<u8>| {
        let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        bytes.chunks_exact(4).map(word).collect()
    };
    Ok(words(y.to_bytes()?))
}

fn replaced<'a>(from: &'a str, to: &'a str) -> impl Fn(String) -> String + 'a {
    move |text| {
        assert!(text.contains(from), "`{from}` is not in\n{text}");
        text.replacen(from, to, 1)
    }
}

fn fault(result: Result<Vec<u32>, DeviceError>) -> String {
    match result {
        Err(error @ DeviceError::Fault { .. }) => error.to_string(),
        other => panic!("expected a fault, got {other:?}"),
    }
}

fn barrier_of(backend: Backend) -> &'static str {
    match backend {
        Backend::EmulatedMsl => "threadgroup_barrier(mem_flags::mem_threadgroup);",
        _ => "__syncthreads();",
    }
}

fn index_of(backend: Backend) -> &'static str {
    match backend {
        Backend::EmulatedMsl => "local_index",
        _ => "threadIdx.x",
    }
}

#[test]
fn a_dropped_barrier_changes_the_answer() {
    let rotate = kernel(ROTATE);
    for backend in BACKENDS {
        let Some(device) = open(backend, None) else {
            return;
        };
        let whole = run_changed(device, &rotate, &|text| text).expect("runs");
        assert_eq!(whole, rotated(), "{}", backend.name());
        let device = open(backend, None).expect("opened before");
        let change = replaced(barrier_of(backend), "");
        let found = run_changed(device, &rotate, &change).expect("runs");
        assert_ne!(found, rotated(), "{}", backend.name());
        // What the next thread had not written yet is poison, not the last workgroup's.
        assert_eq!(found[0], u32::MAX, "{}", backend.name());
        assert_eq!(found[64], u32::MAX, "{}", backend.name());
    }
}

#[test]
fn threads_that_wait_at_different_places_are_reported() {
    let rotate = kernel(ROTATE);
    for backend in BACKENDS {
        let (barrier, index) = (barrier_of(backend), index_of(backend));
        let some = format!("if ({index} < 40u) {{ {barrier} }}");
        let either = format!("if ({index} < 40u) {{ {barrier} }} else {{\n{barrier} }}");
        for (instead, says) in [
            (&some, "thread 40 has ended"),
            (&either, "thread 40 waits at the barrier in line"),
        ] {
            let Some(device) = open(backend, None) else {
                return;
            };
            let message = fault(run_changed(device, &rotate, &replaced(barrier, instead)));
            assert!(message.contains("divergent"), "{message}");
            assert!(
                message.contains("thread 0 waits at the barrier in line"),
                "{message}"
            );
            assert!(message.contains(says), "{message}");
        }
    }
}

/// Lanes of each subgroup of 48 threads, of which the last may be short.
const LANES: &str = "kernel @lanes grid(1, 1, 1) workgroup(48, 1, 1) {
  dim #n
  param @x: tensor<u32, [#n], read, align 1>
  param @y: tensor<u32, [#n], read_write, align 1>

  %v: u32 = load @x[local_index]
  %a: u32 = subgroup shuffle_xor %v, 1u32
  %b: u32 = subgroup shuffle_up %v, 3u32
  %c: u32 = subgroup shuffle_down %v, 2u32
  %sum: u32 = subgroup reduce.sum %v
  %low: u32 = and %v, 1u32
  %odd: bool = eq %low, 1u32
  %votes: u64 = subgroup ballot %odd
  %ones: u32 = count_ones %votes
  %b1: u32 = mul %b, 100u32
  %c1: u32 = mul %c, 10000u32
  %s1: u32 = mul %sum, 1000003u32
  %o1: u32 = mul %ones, 7u32
  %ab: u32 = add %a, %b1
  %abc: u32 = add %ab, %c1
  %abcs: u32 = add %abc, %s1
  %all: u32 = add %abcs, %o1
  store @y[local_index] = %all
}
";

fn lanes_of(width: u32) -> Vec<u32> {
    let x = |first: u32, lane: u32| first + lane;
    (0..48u32)
        .map(|t| {
            let (first, lane) = (t / width * width, t % width);
            let lanes = width.min(48 - first);
            let own_unless = |ok: bool, other: u32| x(first, if ok { other } else { lane });
            let a = own_unless((lane ^ 1) < lanes, lane ^ 1);
            let b = own_unless(lane >= 3, lane.wrapping_sub(3));
            let c = own_unless(lane + 2 < lanes, lane + 2);
            let sum: u32 = (0..lanes).map(|l| x(first, l)).sum();
            let odd = (0..lanes).filter(|&l| x(first, l) % 2 == 1).count() as u32;
            a + 100 * b + 10_000 * c + sum.wrapping_mul(1_000_003).wrapping_add(7 * odd)
        })
        .collect()
}

#[test]
fn exchanges_are_right_at_every_width() {
    let lanes = kernel(LANES);
    let on = |device: EmulatedDevice| {
        let width = device.subgroup_size;
        let found = run_changed(device, &lanes, &|text| text).expect("runs");
        assert_eq!(found[..48], lanes_of(width), "{width} lanes");
    };
    for (backend, profile) in [
        (Backend::EmulatedCuda, "sm_80"),
        (Backend::EmulatedHip, "gfx942"),
        (Backend::EmulatedHip, "gfx1100"),
    ] {
        let Some(device) = open(backend, Some(profile)) else {
            return;
        };
        on(device);
    }
    for width in [4, 8, 16, 32, 64] {
        let device = open(Backend::EmulatedMsl, None).expect("opened before");
        on(device.with_subgroup_size(width).expect("a width"));
    }
}

#[test]
fn a_wrong_exchange_changes_the_answer_or_is_reported() {
    let lanes = kernel(LANES);
    let Some(device) = open(Backend::EmulatedCuda, Some("sm_80")) else {
        return;
    };
    let text = device.text(&lanes).expect("lowers").source;
    // The first exchange takes its mask from the lanes that are there.
    let masked = "0xffffffffu >> (32u - subgroup_lanes)";
    assert!(text.contains(masked), "{text}");
    let message = fault(run_changed(
        device,
        &lanes,
        &replaced(masked, "0xffffffffu"),
    ));
    assert!(message.contains("names the lanes 0xffffffff"), "{message}");
    for (backend, profile) in [
        (Backend::EmulatedCuda, "sm_80"),
        (Backend::EmulatedHip, "gfx1100"),
    ] {
        let device = open(backend, Some(profile)).expect("opened before");
        let text = device.text(&lanes).expect("lowers").source;
        let distance = "distance <= lane ? lane - distance : lane";
        let change = replaced(distance, "distance < lane ? lane - distance : lane");
        assert!(text.contains(distance), "{text}");
        let found = run_changed(device, &lanes, &change).expect("runs");
        assert_ne!(found[..48], lanes_of(32), "{}", backend.name());
    }
}

/// Every workgroup reads what the next one wrote before the barrier.
const GRID: &str = "kernel @meet grid(4, 1, 1) workgroup(32, 1, 1) cooperative {
  dim #n
  param @x: tensor<u32, [#n], read, align 1>
  param @y: tensor<u32, [#n], read_write, align 1>
  shared &s: [u32; 32]

  %v: u32 = load @x[global_id.0]
  store @y[global_id.0] = %v
  store &s[local_index] = %v
  barrier grid shared_and_global
  %there: u32 = add global_id.0, 32u32
  %other: u32 = and %there, 127u32
  %w: u32 = load @y[%other]
  barrier grid shared_and_global
  %own: u32 = load &s[local_index]
  %both: u32 = mul %own, 1000u32
  %sum: u32 = add %both, %w
  store @y[global_id.0] = %sum
}
";

#[test]
fn workgroups_of_a_cooperative_launch_meet_and_a_wait_without_end_ends() {
    let meet = kernel(GRID);
    for backend in [Backend::EmulatedCuda, Backend::EmulatedHip] {
        let Some(device) = open(backend, None) else {
            return;
        };
        let found = run_changed(device, &meet, &|text| text).expect("runs");
        let expected: Vec<u32> = (0..128).map(|i| i * 1000 + (i + 32) % 128).collect();
        assert_eq!(found, expected, "{}", backend.name());
        let device = open(backend, None).expect("opened before");
        let never = replaced("0x80000000u - others", "0x7fffffffu - others");
        let message = fault(run_changed(device, &meet, &never));
        assert!(message.contains("without end"), "{message}");
    }
}

/// Every thread reads what the last one wrote to the tensor that it had read before.
const TELL: &str = "kernel @tell grid(1, 1, 1) workgroup(64, 1, 1) {
  dim #n
  param @x: tensor<u32, [#n], read, align 1>
  param @y: tensor<u32, [#n], read_write, align 1>

  %before: u32 = load @y[0u32]
  barrier workgroup shared_and_global
  %last: bool = eq local_index, 63u32
  if %last {
    store @y[0u32] = 9u32
  }
  barrier workgroup shared_and_global
  %after: u32 = load @y[0u32]
  barrier workgroup shared_and_global
  %sum: u32 = add %before, %after
  store @y[local_index] = %sum
}
";

/// A pointer that is `__restrict__` lets the compiler keep what it read before the barrier.
#[test]
fn a_tensor_carries_values_over_a_barrier() {
    for backend in BACKENDS {
        let Some(device) = open(backend, None) else {
            return;
        };
        let found = run_changed(device, &kernel(TELL), &|text| text).expect("runs");
        assert_eq!(found[..64], [16; 64], "{}", backend.name());
    }
}

#[test]
fn a_refused_text_names_its_line_and_spoils_no_other() {
    let rotate = kernel(ROTATE);
    for backend in BACKENDS {
        let Some(device) = open(backend, None) else {
            return;
        };
        let broken = replaced(barrier_of(backend), "no_such_function();");
        let error = run_changed(device, &rotate, &broken).expect_err("refused");
        let message = error.to_string();
        assert!(matches!(error, DeviceError::Compile { .. }), "{message}");
        assert!(message.contains("no_such_function"), "{message}");
        assert!(message.contains("pass_on.0."), "{message}");
        assert!(message.contains("`pass_on`"), "{message}");
        assert!(
            message.ends_with("(made from src/pass.rs:9:5)"),
            "{message}"
        );
        assert!(!message.contains('\n'), "{message}");

        let compiler = Compiler::find().expect("found before");
        let folder = std::env::temp_dir().join(format!(
            "iron-emulated-{}-{}",
            backend.name(),
            std::process::id()
        ));
        let compiler = compiler.with_cache(&folder);
        let device = open(backend, None).expect("opened before");
        let text = |change: &dyn Fn(String) -> String| {
            let text = device.text(&rotate).expect("lowers");
            let source = change(text.source.clone());
            text.with_source(source)
        };
        let texts = [
            text(&|t| t),
            text(&broken),
            text(&replaced("&", "/* another text */ &")),
        ];
        compiler.prepare(&texts);
        let is_cached = |text: &Text| {
            crate::cache::ArtifactCache::at(&folder)
                .get(&compiler.key(text))
                .is_some()
        };
        assert_eq!(texts.each_ref().map(is_cached), [true, false, true]);
        // Another process finds them without compiling.
        let again = Compiler::find().expect("found before").with_cache(&folder);
        let again = again.that_compiles_nothing();
        assert!(again.program(&texts[0]).is_ok());
        assert!(again.program(&texts[1]).is_err());
        std::fs::remove_dir_all(folder).expect("removed");
    }
}

#[test]
fn an_instruction_of_the_target_alone_is_refused_by_name() {
    let Some(device) = open(Backend::EmulatedCuda, None) else {
        return;
    };
    let text = device.text(&kernel(ROTATE)).expect("lowers");
    assert_eq!(text.foreign_instruction(), None);
    let head = "__shared__";
    let with = |line: &str| {
        let text = device.text(&kernel(ROTATE)).expect("lowers");
        let source = text
            .source
            .replacen(head, &format!("{line}\n    {head}"), 1);
        text.with_source(source).foreign_instruction()
    };
    assert_eq!(
        with("asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");"),
        None
    );
    assert_eq!(
        with("asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");"),
        Some("wgmma.fence.sync.aligned;".into())
    );
    assert_eq!(
        with("#ifndef IRON_SUM_BY_HOST\n    asm(\"redux.sync.add.u32 %0, %1;\");\n#endif"),
        None
    );
}

#[test]
fn a_launch_that_breaks_its_contract_is_refused() {
    for backend in BACKENDS {
        let Some(device) = open(backend, None) else {
            return;
        };
        let device: Arc<dyn Device> = Arc::new(device);
        let x = Tensor::zeros(&device, Scalar::U32, &[128]).expect("memory");
        let y = Tensor::zeros(&device, Scalar::U32, &[64]).expect("memory");
        let arguments = [&x, &y].map(|t| Argument::Tensor(t.tensor_arg())).to_vec();
        let error = launch_kernel(&device, &kernel(ROTATE), arguments).expect_err("refused");
        assert!(matches!(error, DeviceError::Contract(_)), "{error}");
        let other = crate::open(Backend::Host).expect("always there");
        let z = Tensor::zeros(&other, Scalar::U32, &[128]).expect("memory");
        let arguments = [&x, &z].map(|t| Argument::Tensor(t.tensor_arg())).to_vec();
        let error = launch_kernel(&device, &kernel(ROTATE), arguments).expect_err("refused");
        assert!(error.to_string().contains("another device"), "{error}");
    }
}

#[test]
fn a_compiler_that_is_not_there_is_named() {
    let error = Compiler::find_among(&["clang++-that-is-not-there".into()]).err();
    assert_eq!(error.as_deref(), Some("clang++-that-is-not-there"));
}
