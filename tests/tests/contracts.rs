//! Every breach of a launch contract is refused before anything is queued, in the same words on every
//! backend that opens here. `docs/contracts.md` lists the checks; each row of [`BREACHES`] is named
//! there.

use std::any::Any;
use std::sync::Arc;

use iron_ir::Scalar;
use iron_ir::contract::Feature;
use iron_ir::kernel::Kernel;
use iron_ir::launch::{Argument, AsTensorArg, DeviceBuffer, LaunchLimits, TensorArg};
use iron_ir::op::Const;
use iron_ir::prelude::*;
use iron_runtime::{Backend, Device, DeviceError, Pipeline, RecordedLaunch, open};
use iron_tests::built;

/// Scales rows, four elements at a time; `sums` takes what is left over.
#[kernel(grid = [rows, ceil_div(cols, 256)], workgroup = 64, requires(cols % 4 == 0, rows * cols < 5000))]
pub fn contract_sample(
    x: &Tensor<f32, (rows, cols)>,
    w: &Tensor<f32, { (cols / 4,) }>,
    y: &mut Tensor<f32, (rows, cols)>,
    z: &mut StridedTensor<u32, { (rows, 2) }>,
    factor: f32,
) {
    let (row, i) = (group_id(0), group_id(1) * 64 + local_index());
    if i < cols / 4 {
        let scaled = x.load4([row, i]) * (w[i] * factor);
        y.store4([row, i], scaled);
    }
    if i == 0 {
        z[[row, 1]] = row;
    }
}

/// A grid that the caller chooses.
#[kernel(grid = [gx, gy, gz], workgroup = 1)]
pub fn contract_grid(y: &mut Tensor<u32, (n,)>, gx: i64, gy: i64, gz: i64) {
    if global_id(0) + group_id(1) + group_id(2) == 0 && gx + gy + gz > 0 && n > 0 {
        y[0] = 1;
    }
}

/// A grid that has no value where `parts` is 0.
#[kernel(grid = [ceil_div(n, parts)], workgroup = 32)]
pub fn contract_parts(y: &mut Tensor<u32, (n,)>, parts: u32) {
    if global_id(0) < n {
        y[global_id(0)] = parts;
    }
}

/// More threads than any target has.
#[kernel(grid = [1], workgroup = [64, 32])]
pub fn contract_wide_group(y: &mut Tensor<u32, { (2048,) }>) {
    y[local_index()] = 1;
}

/// Workgroups that wait for each other.
#[kernel(grid = [groups], workgroup = 256, cooperative)]
pub fn contract_meeting(y: &mut Tensor<u32, (n,)>, groups: u32) {
    if global_id(0) == 0 && groups > 0 && n > 0 {
        y[0] = 1;
    }
    grid_barrier();
}

/// In place by the contract.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64, in_place(y, x))]
pub fn contract_in_place(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = x[i] + 1.0;
    }
}

/// Every backend that opens here.
fn devices() -> Vec<Arc<dyn Device>> {
    let mut devices = Vec::new();
    for backend in Backend::ALL {
        match open(backend) {
            Ok(device) => devices.push(device),
            Err(error) => println!("skipped {}: {error}", backend.name()),
        }
    }
    let names: Vec<_> = devices.iter().map(|d| d.backend().name()).collect();
    println!("on {}", names.join(", "));
    assert!(
        ["host", "reference", "cpu"]
            .iter()
            .all(|n| names.contains(n))
    );
    devices
}

fn buffer(device: &Arc<dyn Device>, bytes: u64) -> Arc<dyn DeviceBuffer> {
    let buffer = device.alloc(bytes).expect("memory");
    device
        .upload(&*buffer, 0, &vec![0x5a; bytes as usize])
        .expect("in range");
    buffer
}

fn view(device: &Arc<dyn Device>, scalar: Scalar, shape: &[u64]) -> TensorArg {
    let strides = iron_runtime::contiguous_strides(shape);
    let bytes = shape.iter().product::<u64>() * u64::from(scalar.bytes());
    TensorArg {
        buffer: buffer(device, bytes),
        scalar,
        shape: shape.to_vec(),
        strides,
        offset: 0,
    }
}

fn float(x: f32) -> Argument {
    scalar(Scalar::F32, u64::from(x.to_bits()))
}

fn scalar(scalar: Scalar, bits: u64) -> Argument {
    Argument::Scalar(Const { scalar, bits })
}

/// A launch of `contract_sample` that its contract accepts: 3 rows of 8.
fn sound(device: &Arc<dyn Device>) -> Vec<Argument> {
    vec![
        Argument::Tensor(view(device, Scalar::F32, &[3, 8])),
        Argument::Tensor(view(device, Scalar::F32, &[2])),
        Argument::Tensor(view(device, Scalar::F32, &[3, 8])),
        Argument::Tensor(view(device, Scalar::U32, &[3, 2])),
        float(2.0),
    ]
}

/// The tensor of an argument.
fn at(arguments: &mut [Argument], index: usize) -> &mut TensorArg {
    match &mut arguments[index] {
        Argument::Tensor(view) => view,
        Argument::Scalar(_) => panic!("argument {index} is a scalar"),
    }
}

type Breach = fn(&mut Vec<Argument>);

/// Name, how a sound launch is broken, and the message after ``kernel `contract_sample` ``.
const BREACHES: &[(&str, Breach, &str)] = &[
    (
        "argument count",
        |a| drop(a.pop()),
        ": takes 5 arguments, got 4",
    ),
    (
        "tensor for a scalar",
        |a| a[4] = a[0].clone(),
        ", parameter `factor`: expected f32, got a tensor of f32",
    ),
    (
        "scalar for a tensor",
        |a| a[0] = float(1.0),
        ", parameter `x`: expected a tensor of f32, got a scalar f32",
    ),
    (
        "scalar type",
        |a| a[4] = scalar(Scalar::U32, 2),
        ", parameter `factor`: expected f32, got u32",
    ),
    (
        "element type",
        |a| at(a, 1).scalar = Scalar::F16,
        ", parameter `w`: expected a tensor of f32, got f16",
    ),
    (
        "rank",
        |a| {
            at(a, 0).shape.insert(0, 1);
            at(a, 0).strides.insert(0, 24);
        },
        ", parameter `x`: expected rank 2, got 3",
    ),
    (
        "dimensions disagree",
        |a| at(a, 2).shape[0] = 2,
        ", parameter `y`: dimension 0 (`rows`) is 2, but `rows` is 3 (bound by `x`)",
    ),
    (
        "dimension by formula",
        |a| at(a, 1).shape[0] = 1,
        ", parameter `w`: dimension 0 (`cols / 4`) is 1, but `cols / 4` is 2 (by its formula)",
    ),
    (
        "constant dimension",
        |a| at(a, 3).shape[1] = 1,
        ", parameter `z`: dimension 1 (`2`) is 1, but `2` is 2 (a constant of the kernel)",
    ),
    (
        "dimension too large",
        |a| {
            at(a, 0).shape[0] = 1 << 31;
            at(a, 0).strides[0] = 0;
        },
        ", parameter `x`: dimension 0 is 2147483648, the limit is 2147483647",
    ),
    (
        "last stride",
        |a| at(a, 0).strides[1] = 2,
        ", parameter `x`: the last dimension must have stride 1, got 2",
    ),
    (
        "stride past the buffer",
        |a| at(a, 0).strides[0] = 12,
        ", parameter `x`: the view needs 128 bytes, the buffer has 96",
    ),
    (
        "offset past the buffer",
        |a| at(a, 0).offset = 4,
        ", parameter `x`: the view needs 112 bytes, the buffer has 96",
    ),
    (
        "offset and stride that would wrap 64 bits",
        |a| at(a, 0).strides[0] = u64::MAX,
        ", parameter `x`: the view needs 147573952589676412952 bytes, the buffer has 96",
    ),
    (
        "misaligned offset",
        |a| {
            at(a, 0).offset = 2;
            at(a, 0).shape[0] = 3;
            at(a, 0).strides[0] = 4;
        },
        ", parameter `x`: the offset is 2 elements, not a multiple of 4",
    ),
    (
        "misaligned stride",
        |a| at(a, 0).strides[0] = 6,
        ", parameter `x`: the stride of dimension 0 is 6 elements, not a multiple of 4",
    ),
    (
        "misaligned base",
        |a| {
            let inner = at(a, 0).buffer.clone();
            at(a, 0).buffer = Arc::new(Misaligned(inner));
        },
        ", parameter `x`: the base address is 1 elements, not a multiple of 4",
    ),
    (
        "writable overlaps an input",
        |a| a[2] = a[0].clone(),
        ": writable `y` (bytes 0..96) overlaps `x` (bytes 0..96 of the same buffer)",
    ),
    (
        "writable overlaps a writable",
        |a| {
            let shared = at(a, 2).buffer.clone();
            at(a, 3).buffer = shared;
            at(a, 3).offset = 18;
        },
        ": writable `y` (bytes 0..96) overlaps `z` (bytes 72..96 of the same buffer)",
    ),
    (
        "writable overlaps itself",
        |a| at(a, 3).strides = vec![1, 1],
        ", parameter `z`: writable view overlaps itself: dimension 1 has stride 1 but 3 elements lie below it",
    ),
    (
        "false fact",
        |a| {
            for i in [0, 2] {
                at(a, i).shape[1] = 5;
                at(a, i).strides[0] = 8;
            }
            at(a, 1).shape[0] = 1;
        },
        ": requires `cols % 4 == 0`, but the left side is 1 and the right side 0",
    ),
];

/// Memory whose base address is only 4-byte aligned.
struct Misaligned(Arc<dyn DeviceBuffer>);

impl DeviceBuffer for Misaligned {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
    fn alignment(&self) -> u64 {
        4
    }
    fn as_any(&self) -> &dyn Any {
        self.0.as_any()
    }
}

/// A pipeline that allows less than its device.
struct Narrow {
    inner: Arc<dyn Pipeline>,
    limits: LaunchLimits,
}

impl Pipeline for Narrow {
    fn kernel(&self) -> &Kernel {
        self.inner.kernel()
    }
    fn limits(&self) -> LaunchLimits {
        self.limits
    }
    fn artifact(&self) -> &str {
        self.inner.artifact()
    }
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
}

fn refusal(pipeline: &Arc<dyn Pipeline>, arguments: Vec<Argument>) -> String {
    match RecordedLaunch::new(pipeline.clone(), arguments) {
        Ok(_) => "accepted".into(),
        Err(error) => error.to_string(),
    }
}

/// The bytes of every writable tensor.
fn outputs(device: &Arc<dyn Device>, arguments: &[Argument]) -> Vec<u8> {
    let mut all = Vec::new();
    for index in [2, 3] {
        if let Argument::Tensor(view) = &arguments[index] {
            let mut bytes = vec![0; view.buffer.bytes() as usize];
            device
                .download(&*view.buffer, 0, &mut bytes)
                .expect("in range");
            all.extend(bytes);
        }
    }
    all
}

#[test]
fn every_breach_is_refused_in_the_same_words_everywhere() {
    let kernel = built("contract_sample");
    let mut wrong = Vec::new();
    for device in devices() {
        let pipeline = device.pipeline(&kernel).expect("compiles");
        for (name, breach, expected) in BREACHES {
            let mut arguments = sound(&device);
            let before = arguments.clone();
            breach(&mut arguments);
            let found = refusal(&pipeline, arguments);
            let expected = format!("kernel `contract_sample`{expected}");
            if found != expected {
                let backend = device.backend().name();
                wrong.push(format!(
                    "{backend}, {name}:\n  expected {expected}\n  found    {found}"
                ));
            }
            if outputs(&device, &before).iter().any(|&byte| byte != 0x5a) {
                wrong.push(format!(
                    "{}, {name}: memory changed",
                    device.backend().name()
                ));
            }
        }
        // What is sound still runs afterwards.
        let arguments = sound(&device);
        let launch = RecordedLaunch::new(pipeline, arguments.clone()).expect("sound");
        device
            .submit(&[launch])
            .and_then(|()| device.synchronize())
            .expect("runs");
        let written = outputs(&device, &arguments);
        assert!(
            written[..96].iter().any(|&byte| byte != 0x5a),
            "{}",
            device.name()
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_lists_every_check_and_its_test() {
    let page = include_str!("../../docs/contracts.md");
    for (name, ..) in BREACHES {
        assert!(
            page.contains(&format!("| {name} |")),
            "docs/contracts.md has no row `{name}`"
        );
    }
    for line in include_str!("contracts.rs").lines() {
        let name = line.strip_prefix("fn ").and_then(|l| l.split_once("() {"));
        // Tests have long names, but for this one.
        let is_test = |name: &str| name.matches('_').count() > 2 && !name.starts_with("the_page");
        if let Some((name, _)) = name.filter(|(name, _)| is_test(name)) {
            assert!(
                page.contains(name),
                "docs/contracts.md does not name the test `{name}`"
            );
        }
    }
}

// K26
#[test]
fn a_grid_past_the_device_is_refused_on_each_axis() {
    let kernel = built("contract_grid");
    for device in devices() {
        let pipeline = device.pipeline(&kernel).expect("compiles");
        let y = view(&device, Scalar::U32, &[1]);
        let with = |grid: [i64; 3]| {
            let mut arguments = vec![Argument::Tensor(y.clone())];
            arguments.extend(grid.map(|n| scalar(Scalar::I64, n as u64)));
            refusal(&pipeline, arguments)
        };
        let limits = pipeline.limits().max_grid;
        // 65,535 and 65,536 on y and z, and 2^31 on x, are the usual edges.
        for axis in 0..3 {
            let limit = limits[axis];
            for found in [limit as i64, limit as i64 + 1, 65_535, 65_536, 1 << 31, -1] {
                let mut grid = [1; 3];
                grid[axis] = found;
                let expected = if found >= 0 && found as u64 <= limit {
                    "accepted".to_owned()
                } else {
                    format!(
                        "kernel `contract_grid`: grid axis {axis} is {found}, this device allows 0 to {limit}"
                    )
                };
                assert_eq!(with(grid), expected, "on {}", device.name());
            }
        }
        assert!(
            limits.iter().all(|&n| (65_535..1 << 32).contains(&n)),
            "{limits:?}"
        );
    }
}

#[test]
fn a_grid_without_a_value_is_refused() {
    let kernel = built("contract_parts");
    for device in devices() {
        let pipeline = device.pipeline(&kernel).expect("compiles");
        let y = Argument::Tensor(view(&device, Scalar::U32, &[8]));
        assert_eq!(
            refusal(&pipeline, vec![y, scalar(Scalar::U32, 0)]),
            "kernel `contract_parts`: `ceil_div(n, parts)` has no value (division by zero or overflow)"
        );
    }
}

#[test]
fn a_workgroup_past_the_device_is_refused_when_it_is_compiled() {
    let kernel = built("contract_wide_group");
    for device in devices() {
        let backend = device.backend().name();
        let limit = device.limits().max_threads;
        let Err(error) = device.pipeline(&kernel) else {
            panic!("{backend} takes 2048 threads");
        };
        let why = format!("its workgroup has 2048 threads, this target allows {limit}");
        let expected = format!("kernel `contract_wide_group` is unsupported on `{backend}`: {why}");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn what_the_compiled_pipeline_allows_counts() {
    let kernel = built("contract_sample");
    for device in devices() {
        let inner = device.pipeline(&kernel).expect("compiles");
        let narrow = |limits| -> Arc<dyn Pipeline> {
            Arc::new(Narrow {
                inner: inner.clone(),
                limits,
            })
        };
        let few_threads = narrow(LaunchLimits {
            max_threads: 32,
            ..inner.limits()
        });
        assert_eq!(
            refusal(&few_threads, sound(&device)),
            "kernel `contract_sample`: workgroup of 64 threads (64×1×1), this device and pipeline allow 32"
        );
        let few_bytes = narrow(LaunchLimits {
            max_buffer_bytes: 64,
            ..inner.limits()
        });
        assert_eq!(
            refusal(&few_bytes, sound(&device)),
            "kernel `contract_sample`, parameter `x`: the view spans 96 bytes, this device addresses 64"
        );
    }
}

#[test]
fn workgroups_that_wait_for_each_other_fit_at_once_or_are_refused() {
    let kernel = built("contract_meeting");
    for device in devices() {
        let backend = device.backend().name();
        let pipeline = match device.pipeline(&kernel) {
            Ok(pipeline) => pipeline,
            Err(error) => {
                assert!(!device.has(Feature::GridBarrier), "{backend}: {error}");
                assert!(
                    error.to_string().contains("grid-barrier"),
                    "{backend}: {error}"
                );
                continue;
            }
        };
        let limit = pipeline.limits().max_resident;
        let y = Argument::Tensor(view(&device, Scalar::U32, &[1]));
        let of = |groups: u64| refusal(&pipeline, vec![y.clone(), scalar(Scalar::U32, groups)]);
        assert_eq!(of(limit), "accepted", "{backend}");
        assert_eq!(
            of(limit + 1),
            format!(
                "kernel `contract_meeting`: its {} workgroups wait for each other at grid \
                 barriers, this device and pipeline run {limit} at once; launch fewer",
                limit + 1
            ),
            "{backend}"
        );
    }
}

#[test]
fn a_contract_that_allows_one_view_allows_that_view_alone() {
    let kernel = built("contract_in_place");
    for device in devices() {
        let pipeline = device.pipeline(&kernel).expect("compiles");
        let mut whole = view(&device, Scalar::F32, &[16]);
        whole.shape = vec![8];
        let mut shifted = whole.clone();
        shifted.offset = 4;
        let launch = |y: &TensorArg| {
            let both = vec![Argument::Tensor(whole.clone()), Argument::Tensor(y.clone())];
            refusal(&pipeline, both)
        };
        assert_eq!(launch(&whole), "accepted");
        assert_eq!(
            launch(&shifted),
            "kernel `contract_in_place`: writable `y` (bytes 16..48) overlaps `x` (bytes 0..32 of the same buffer)"
        );
    }
}

#[test]
fn memory_and_pipelines_of_another_device_are_refused() {
    let kernel = built("contract_in_place");
    let devices = devices();
    for (i, device) in devices.iter().enumerate() {
        let other = &devices[(i + 1) % devices.len()];
        let pipeline = device.pipeline(&kernel).expect("compiles");
        let of = |device: &Arc<dyn Device>| Argument::Tensor(view(device, Scalar::F32, &[8]));
        let foreign = vec![of(device), of(other)];
        let launch = RecordedLaunch::new(pipeline.clone(), foreign).expect("the contract holds");
        let error = device.submit(&[launch]).expect_err("foreign memory");
        assert!(matches!(error, DeviceError::Usage { .. }), "{error}");
        let own = vec![of(device), of(device)];
        let launch = RecordedLaunch::new(pipeline, own).expect("the contract holds");
        let error = other.submit(&[launch]).expect_err("a foreign pipeline");
        assert!(matches!(error, DeviceError::Usage { .. }), "{error}");
    }
}

// K25, K25b
#[test]
fn empty_launches_do_nothing_and_the_next_one_works() {
    let (sample, grid) = (built("contract_sample"), built("contract_grid"));
    for device in devices() {
        let pipeline = device.pipeline(&sample).expect("compiles");
        for (rows, cols) in [(0, 8), (3, 0), (0, 0)] {
            let mut arguments = vec![
                Argument::Tensor(view(&device, Scalar::F32, &[rows, cols])),
                Argument::Tensor(view(&device, Scalar::F32, &[cols / 4])),
                Argument::Tensor(view(&device, Scalar::F32, &[rows, cols])),
                Argument::Tensor(view(&device, Scalar::U32, &[rows, 2])),
            ];
            arguments.push(float(2.0));
            let before = outputs(&device, &arguments);
            let launch = RecordedLaunch::new(pipeline.clone(), arguments.clone()).expect("empty");
            assert!(launch.checked.is_empty);
            device
                .submit(std::slice::from_ref(&launch))
                .expect("a no-op");
            device
                .record(&[launch])
                .and_then(|g| g.replay())
                .expect("a no-op");
            device.synchronize().expect("a no-op");
            assert_eq!(outputs(&device, &arguments), before, "{}", device.name());
        }
        let pipeline = device.pipeline(&grid).expect("compiles");
        let y =
            iron_runtime::Tensor::from_slice(&device, Scalar::U32, &[1], &[7u32]).expect("memory");
        for (sizes, expected) in [
            ([4, 0, 1], 7u32),
            ([0, 1, 1], 7),
            ([2, 1, 0], 7),
            ([1, 1, 1], 1),
        ] {
            let mut arguments = vec![Argument::Tensor(y.tensor_arg())];
            arguments.extend(sizes.map(|n: u64| scalar(Scalar::I64, n)));
            let launch = RecordedLaunch::new(pipeline.clone(), arguments).expect("sound");
            device
                .submit(&[launch])
                .and_then(|()| device.synchronize())
                .expect("runs");
            let bytes = y.to_bytes().expect("readable");
            assert_eq!(
                bytes,
                expected.to_le_bytes(),
                "{} at {sizes:?}",
                device.name()
            );
        }
    }
}
