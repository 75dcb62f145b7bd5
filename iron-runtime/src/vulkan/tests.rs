//! Kernels on whatever Vulkan device is here; Mesa's software driver serves.

use std::sync::Arc;

use iron_ir::Handle;
use iron_ir::kernel::{Kernel, ParamKind};
use iron_ir::launch::{Argument, DeviceBuffer, TensorArg};
use iron_ir::op::Const;
use iron_ir::types::Scalar;

use super::{VulkanDevice, failed_lowering};
use crate::device::{Device, DeviceError, RecordedLaunch};

#[path = "../../../iron-lower/src/spirv/sketch.rs"]
mod sketch;

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
        assert!(matches!(
            kernel.params.values().next().map(|p| &p.kind),
            Some(ParamKind::Scalar(_))
        ));
        assert_eq!(kernel.params.handles().next().map(Handle::index), Some(0));
        assert_eq!(device.validation_messages(), Vec::<String>::new());
    }
}
