//! Many kernels compiled at once, where a device gains by it ([`Device::prepare`]).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use iron_ir::Kernel;
use iron_ir::contract::Feature;
use iron_ir::launch::{DeviceBuffer, LaunchLimits};
use iron_ir::parse::parse;
use iron_runtime::{Backend, Device, DeviceError, Graph, Pipeline, RecordedLaunch};

use crate::backends::Target;

/// Compiles every kernel that `work` runs, so that it need not compile one by one. `work` is
/// called with a device that runs nothing: each kernel that it meets is noted and then
/// unsupported. Devices whose compiler starts at once are left alone.
pub fn prepare(target: &Target, work: impl FnOnce(&Target)) {
    if target.device.backend().label() != "emulated" {
        return;
    }
    let collector = Arc::new(Collector {
        device: target.device.clone(),
        kernels: Mutex::default(),
    });
    work(&Target {
        device: collector.clone(),
        flushes_subnormals: target.flushes_subnormals,
    });
    let kernels = collector.kernels.lock();
    let kernels = kernels.unwrap_or_else(PoisonError::into_inner);
    target.device.prepare(&kernels.iter().collect::<Vec<_>>());
}

/// As [`prepare`], for kernels in the textual IR. One that does not parse is left to whoever
/// runs it.
pub fn prepare_texts(targets: &[Target], texts: &[String]) {
    let kernels: Vec<Kernel> = texts.iter().filter_map(|text| parse(text).ok()).collect();
    for target in targets {
        target.device.prepare(&kernels.iter().collect::<Vec<_>>());
    }
}

/// Notes kernels and refuses them; memory is the other device's.
struct Collector {
    device: Arc<dyn Device>,
    kernels: Mutex<Vec<Kernel>>,
}

impl Device for Collector {
    fn backend(&self) -> Backend {
        self.device.backend()
    }
    fn name(&self) -> String {
        self.device.name()
    }
    fn driver(&self) -> String {
        self.device.driver()
    }
    fn limits(&self) -> LaunchLimits {
        self.device.limits()
    }
    fn max_shared_bytes(&self) -> u64 {
        self.device.max_shared_bytes()
    }
    fn subgroup_size(&self) -> u32 {
        self.device.subgroup_size()
    }
    fn has(&self, feature: Feature) -> bool {
        self.device.has(feature)
    }
    fn alloc(&self, bytes: u64) -> Result<Arc<dyn DeviceBuffer>, DeviceError> {
        self.device.alloc(bytes)
    }
    fn upload(&self, to: &dyn DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.upload(to, offset, bytes)
    }
    fn download(
        &self,
        from: &dyn DeviceBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.device.download(from, offset, bytes)
    }
    fn pipeline(&self, kernel: &Kernel) -> Result<Arc<dyn Pipeline>, DeviceError> {
        let kernels = self.kernels.lock();
        let mut kernels = kernels.unwrap_or_else(PoisonError::into_inner);
        kernels.push(kernel.clone());
        Err(self.refusal(kernel.full_name()))
    }
    fn submit(&self, launches: &[RecordedLaunch]) -> Result<(), DeviceError> {
        launches.first().map_or(Ok(()), |launch| {
            Err(self.refusal(launch.pipeline.kernel().full_name()))
        })
    }
    fn record(&self, _launches: &[RecordedLaunch]) -> Result<Box<dyn Graph>, DeviceError> {
        Err(self.refusal(String::new()))
    }
    fn synchronize(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn time(&self, _launches: &[RecordedLaunch]) -> Result<Vec<Duration>, DeviceError> {
        Err(self.refusal(String::new()))
    }
}

impl Collector {
    fn refusal(&self, kernel: String) -> DeviceError {
        DeviceError::Unsupported {
            kernel,
            backend: self.backend().name(),
            reason: "kernels are only collected".into(),
        }
    }
}
