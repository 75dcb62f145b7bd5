//! Launching kernels: by request of a typed launcher, by name and instance, or from IR in hand.
//! Pipelines are compiled once a device and kept in memory.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use iron_ir::kernel::Kernel;
use iron_ir::launch::{Argument, LaunchRequest};
use iron_ir::registry::{InstanceEntry, KernelEntry, kernels};
use parking_lot::Mutex;

use crate::device::{Device, DeviceError, Pipeline, RecordedLaunch};
use crate::receipt;

/// Checks, compiles where needed, and queues one launch. An empty launch is a no-op.
pub fn launch(device: &Arc<dyn Device>, request: LaunchRequest) -> Result<(), DeviceError> {
    submit(device, &[record(device, request)?], "direct")
}

/// Checks and compiles a launch without queuing it, for [`Device::submit`] and
/// [`Device::record`].
pub fn record(
    device: &Arc<dyn Device>,
    request: LaunchRequest,
) -> Result<RecordedLaunch, DeviceError> {
    let pipeline = pipeline_of(
        device,
        request.kernel,
        Some(request.module),
        &request.instance,
    )?;
    Ok(RecordedLaunch::new(pipeline, request.arguments)?)
}

/// The untyped launcher: a kernel by name and instance, arguments in order. `module` is needed
/// only where two modules have a kernel of that name.
pub fn launch_by_name(
    device: &Arc<dyn Device>,
    name: &str,
    module: Option<&str>,
    instance: &str,
    arguments: Vec<Argument>,
) -> Result<(), DeviceError> {
    let pipeline = pipeline_of(device, name, module, instance)?;
    submit(
        device,
        &[RecordedLaunch::new(pipeline, arguments)?],
        "by-name",
    )
}

/// Launches a kernel that is in no registry, such as one built by hand.
pub fn launch_kernel(
    device: &Arc<dyn Device>,
    kernel: &Kernel,
    arguments: Vec<Argument>,
) -> Result<(), DeviceError> {
    let pipeline = device.pipeline(kernel)?;
    submit(
        device,
        &[RecordedLaunch::new(pipeline, arguments)?],
        "kernel",
    )
}

/// Queues recorded launches in order and writes their receipts; `route` says who chose them.
pub fn submit(
    device: &Arc<dyn Device>,
    launches: &[RecordedLaunch],
    route: &str,
) -> Result<(), DeviceError> {
    device.submit(launches)?;
    if receipt::enabled() {
        for launch in launches {
            receipt::record(&**device, launch, route);
        }
    }
    Ok(())
}

/// The compiled kernel of that name and instance, from the memory cache where it is there.
pub fn pipeline_of(
    device: &Arc<dyn Device>,
    name: &str,
    module: Option<&str>,
    instance: &str,
) -> Result<Arc<dyn Pipeline>, DeviceError> {
    let (entry, instance) = find(&**device, name, module, instance)?;
    let key = (std::ptr::from_ref(entry) as usize, instance.name);
    let address = Arc::as_ptr(device).cast::<()>() as usize;
    let mut caches = CACHES.lock();
    let cache = caches.entry(address).or_insert_with(|| Cache {
        device: Arc::downgrade(device),
        pipelines: HashMap::new(),
    });
    if cache.device.strong_count() == 0 {
        // Another device was freed and this one took its address.
        cache.device = Arc::downgrade(device);
        cache.pipelines.clear();
    }
    if let Some(pipeline) = cache.pipelines.get(&key) {
        return Ok(pipeline.clone());
    }
    drop(caches);
    let kernel = (instance.build)().map_err(|error| DeviceError::Compile {
        kernel: entry.name.to_owned(),
        backend: device.backend().name(),
        message: error.to_string(),
    })?;
    let pipeline = device.pipeline(&kernel)?;
    if let Some(cache) = CACHES.lock().get_mut(&address) {
        cache.pipelines.insert(key, pipeline.clone());
    }
    Ok(pipeline)
}

/// Lets go of the kernels of devices that are dropped, and with them of what those hold of a driver.
pub(crate) fn forget_dropped_devices() {
    let mut caches = CACHES.lock();
    let of_dropped: Vec<Cache> = caches
        .extract_if(|_, cache| cache.device.strong_count() == 0)
        .map(|(_, cache)| cache)
        .collect();
    // A driver's own work is done without the lock.
    drop(caches);
    drop(of_dropped);
}

struct Cache {
    device: Weak<dyn Device>,
    pipelines: HashMap<(usize, &'static str), Arc<dyn Pipeline>>,
}

static CACHES: LazyLock<Mutex<HashMap<usize, Cache>>> = LazyLock::new(Mutex::default);

static BY_NAME: LazyLock<HashMap<&'static str, Vec<&'static KernelEntry>>> = LazyLock::new(|| {
    let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
    for entry in kernels() {
        by_name.entry(entry.name).or_default().push(entry);
    }
    by_name
});

/// The registered kernel and instance of that name.
pub fn find(
    device: &dyn Device,
    name: &str,
    module: Option<&str>,
    instance: &str,
) -> Result<(&'static KernelEntry, &'static InstanceEntry), DeviceError> {
    let usage = |message: String| DeviceError::Usage {
        backend: device.backend().name(),
        message,
    };
    let Some(named) = BY_NAME.get(name) else {
        let near = nearest(name, BY_NAME.keys().copied());
        return Err(usage(format!(
            "no kernel `{name}` is linked into this binary ({} are){near}",
            BY_NAME.len()
        )));
    };
    let mut matching = named
        .iter()
        .filter(|k| module.is_none_or(|m| m == k.module));
    let Some(entry) = matching.next() else {
        let modules: Vec<_> = named.iter().map(|k| k.module).collect();
        return Err(usage(format!(
            "kernel `{name}` is in {}, not in `{}`",
            modules.join(", "),
            module.unwrap_or_default()
        )));
    };
    if let Some(other) = matching.next() {
        return Err(usage(format!(
            "kernel `{name}` is in `{}` and in `{}`: name the module",
            entry.module, other.module
        )));
    }
    let Some(found) = entry.instances.iter().find(|i| i.name == instance) else {
        let names: Vec<_> = entry
            .instances
            .iter()
            .map(|i| format!("`{}`", i.name))
            .collect();
        return Err(usage(format!(
            "kernel `{name}` has no instance `{instance}`; it has {}",
            names.join(", ")
        )));
    };
    Ok((entry, found))
}

fn nearest(name: &str, all: impl Iterator<Item = &'static str>) -> String {
    let mut near: Vec<_> = all
        .filter(|other| other.contains(name) || name.contains(other) || distance(name, other) <= 3)
        .collect();
    near.sort_unstable();
    near.truncate(3);
    if near.is_empty() {
        String::new()
    } else {
        format!("; near it: {}", near.join(", "))
    }
}

/// Edits between two names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let cost = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
