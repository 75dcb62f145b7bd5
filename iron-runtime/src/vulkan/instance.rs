//! The loader, the choice of a physical device, and what it has.

use std::ffi::{CStr, c_void};

use ash::vk;
use iron_ir::machine::FRAGMENT;
use iron_passes::Fragments;
use parking_lot::Mutex;

use super::{BACKEND, bfloat, failed};
use crate::device::DeviceError;

/// Environment variable: a device by its index or by a part of its name.
pub(super) const DEVICE_VARIABLE: &str = "IRON_VULKAN_DEVICE";
/// Environment variable: `descriptor` binds tensors as storage buffers.
pub(super) const PROFILE_VARIABLE: &str = "IRON_VULKAN_PROFILE";
/// Environment variable: `1` runs under the validation layer.
pub(super) const VALIDATION_VARIABLE: &str = "IRON_VULKAN_VALIDATION";

/// The loader, which stays for the life of the process: drivers do not give back what each loading
/// of their library takes, and NVIDIA's opens no device after some hundred loadings.
static ENTRY: Mutex<Option<ash::Entry>> = Mutex::new(None);
/// The instance that all devices without validation share, which stays as long.
static INSTANCE: Mutex<Option<ash::Instance>> = Mutex::new(None);

/// The logical device with everything below it. Dropped last.
pub(super) struct Context {
    pub device: ash::Device,
    pub instance: ash::Instance,
    pub queue_family: u32,
    pub info: Info,
    /// Of an instance of this context's own.
    messenger: Option<Messenger>,
    /// Boxed, because the layer holds its address.
    messages: Box<Mutex<Vec<String>>>,
}

/// What the device has.
#[derive(Clone, Debug, Default)]
pub(super) struct Info {
    pub name: String,
    pub driver: String,
    pub driver_id: vk::DriverId,
    /// Identifies driver and device in file names.
    pub uuid: String,
    pub limits: vk::PhysicalDeviceLimits,
    pub memory: vk::PhysicalDeviceMemoryProperties,
    pub max_allocation: u64,
    pub subgroup_size: u32,
    /// The driver may choose another size unless the pipeline asks for one.
    pub must_require_subgroup_size: bool,
    pub has_full_subgroups: bool,
    pub timestamp_bits: u32,
    pub float64: bool,
    pub float16: bool,
    pub storage8: bool,
    pub storage16: bool,
    pub atomic64: bool,
    pub atomic_float_add: bool,
    /// Cooperative matrices of 16 by 16 over a subgroup with sums in `f32`.
    pub matrices: Option<Fragments>,
    pub subgroups: bool,
    pub signed_zero_inf_nan: u32,
    pub denorm_preserve: u32,
    pub round_to_even: u32,
}

/// A physical device that fits, with its features.
struct Candidate {
    physical: vk::PhysicalDevice,
    queue_family: u32,
    kind: vk::PhysicalDeviceType,
    info: Info,
    features: Features,
}

/// Feature structures without their chain.
#[derive(Clone, Copy, Default)]
struct Features {
    core: vk::PhysicalDeviceFeatures,
    v11: vk::PhysicalDeviceVulkan11Features<'static>,
    v12: vk::PhysicalDeviceVulkan12Features<'static>,
    v13: vk::PhysicalDeviceVulkan13Features<'static>,
    atomic_float: bool,
    bfloat16: bool,
    bfloat16_matrices: bool,
    matrices: bool,
}

impl Context {
    /// Loads Vulkan and opens the device that [`DEVICE_VARIABLE`] names, else the first of the
    /// most capable kind.
    pub fn open() -> Result<Context, DeviceError> {
        let entry = entry()?;
        let wants_validation = std::env::var(VALIDATION_VARIABLE).is_ok_and(|v| v == "1");
        let instance = if wants_validation {
            create_instance(&entry, true)?
        } else {
            shared_instance(&entry)?
        };
        let opened = open_device(&entry, &instance, wants_validation);
        let (device, chosen, messages, messenger) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                if wants_validation {
                    // SAFETY: opening left no object of the instance, which is not shared.
                    unsafe { instance.destroy_instance(None) };
                }
                return Err(error);
            }
        };
        Ok(Context {
            device,
            instance,
            queue_family: chosen.queue_family,
            info: chosen.info,
            messenger,
            messages,
        })
    }

    /// What the validation layer said so far.
    pub fn messages(&self) -> Vec<String> {
        self.messages.lock().clone()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every object of the device is owned by structures that hold this context, so
        // none is left; the messenger belongs to this instance.
        unsafe {
            self.device.destroy_device(None);
            if let Some((loader, messenger)) = self.messenger.take() {
                loader.destroy_debug_utils_messenger(messenger, None);
                self.instance.destroy_instance(None);
            }
        }
    }
}

type Messenger = (ash::ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT);
type Opened = (
    ash::Device,
    Candidate,
    Box<Mutex<Vec<String>>>,
    Option<Messenger>,
);

fn open_device(
    entry: &ash::Entry,
    instance: &ash::Instance,
    validate: bool,
) -> Result<Opened, DeviceError> {
    let (candidates, refused) = candidates(instance)?;
    let chosen = choose(candidates, refused)?;
    let messages = Box::new(Mutex::new(Vec::new()));
    let messenger = validate
        .then(|| create_messenger(entry, instance, &messages))
        .transpose()?;
    match create_device(instance, &chosen) {
        Ok(device) => Ok((device, chosen, messages, messenger)),
        Err(error) => {
            if let Some((loader, messenger)) = messenger {
                // SAFETY: the messenger is this instance's and was just created.
                unsafe { loader.destroy_debug_utils_messenger(messenger, None) };
            }
            Err(error)
        }
    }
}

/// The loader of this process; one that could not be loaded is tried again.
fn entry() -> Result<ash::Entry, DeviceError> {
    let mut kept = ENTRY.lock();
    if let Some(entry) = &*kept {
        return Ok(entry.clone());
    }
    // SAFETY: loading the Vulkan loader runs its initialisers, which have no preconditions.
    let entry = unsafe { ash::Entry::load() }.map_err(|error| DeviceError::Missing {
        backend: BACKEND,
        reason: error
            .to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .to_string(),
        looked_for: loader_name().to_string(),
    })?;
    Ok(kept.insert(entry).clone())
}

fn shared_instance(entry: &ash::Entry) -> Result<ash::Instance, DeviceError> {
    let mut kept = INSTANCE.lock();
    if let Some(instance) = &*kept {
        return Ok(instance.clone());
    }
    Ok(kept.insert(create_instance(entry, false)?).clone())
}

fn loader_name() -> &'static str {
    if cfg!(windows) {
        "vulkan-1.dll"
    } else if cfg!(target_vendor = "apple") {
        "libvulkan.dylib"
    } else {
        "libvulkan.so.1"
    }
}

fn missing(reason: impl Into<String>) -> DeviceError {
    DeviceError::Missing {
        backend: BACKEND,
        reason: reason.into(),
        looked_for: "a Vulkan 1.3 driver with a compute queue and device addresses".into(),
    }
}

fn create_instance(entry: &ash::Entry, validate: bool) -> Result<ash::Instance, DeviceError> {
    let application = vk::ApplicationInfo::default()
        .application_name(c"iron")
        .api_version(vk::API_VERSION_1_3);
    let mut layers = Vec::new();
    let mut extensions = Vec::new();
    if validate {
        let layer = c"VK_LAYER_KHRONOS_validation";
        // SAFETY: the entry is loaded.
        let known = unsafe { entry.enumerate_instance_layer_properties() }
            .map_err(|e| failed("vkEnumerateInstanceLayerProperties", e))?;
        if !known.iter().any(|l| l.layer_name_as_c_str() == Ok(layer)) {
            return Err(DeviceError::Missing {
                backend: BACKEND,
                reason: format!("{VALIDATION_VARIABLE}=1 asks for the validation layer"),
                looked_for: "VK_LAYER_KHRONOS_validation".into(),
            });
        }
        layers.push(layer.as_ptr());
        extensions.push(ash::ext::debug_utils::NAME.as_ptr());
    }
    let info = vk::InstanceCreateInfo::default()
        .application_info(&application)
        .enabled_layer_names(&layers)
        .enabled_extension_names(&extensions);
    // SAFETY: every pointer in `info` lives until the call returns.
    unsafe { entry.create_instance(&info, None) }.map_err(|error| match error {
        vk::Result::ERROR_INCOMPATIBLE_DRIVER => missing("the loader found no driver"),
        other => failed("vkCreateInstance", other),
    })
}

fn create_messenger(
    entry: &ash::Entry,
    instance: &ash::Instance,
    messages: &Mutex<Vec<String>>,
) -> Result<Messenger, DeviceError> {
    let loader = ash::ext::debug_utils::Instance::new(entry, instance);
    let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(
            vk::DebugUtilsMessageSeverityFlagsEXT::WARNING
                | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
        )
        .message_type(
            vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION
                | vk::DebugUtilsMessageTypeFlagsEXT::PERFORMANCE,
        )
        .pfn_user_callback(Some(on_message))
        .user_data(std::ptr::from_ref(messages).cast_mut().cast::<c_void>());
    // SAFETY: `messages` is boxed in the context, which destroys the messenger before the box.
    let messenger = unsafe { loader.create_debug_utils_messenger(&info, None) }
        .map_err(|e| failed("vkCreateDebugUtilsMessengerEXT", e))?;
    Ok((loader, messenger))
}

/// Keeps what the validation layer says.
///
/// # Safety
/// The layer calls it with the user data of the messenger and its own message.
unsafe extern "system" fn on_message(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: both pointers are the layer's and the messenger's, valid during the call.
    unsafe {
        let messages = &*user.cast::<Mutex<Vec<String>>>();
        if !data.is_null() && !(*data).p_message.is_null() {
            let text = CStr::from_ptr((*data).p_message)
                .to_string_lossy()
                .into_owned();
            tracing::warn!(target: "iron::vulkan", "{text}");
            messages.lock().push(text);
        }
    }
    vk::FALSE
}

/// Devices that fit, and why the others do not.
fn candidates(instance: &ash::Instance) -> Result<(Vec<Candidate>, Vec<String>), DeviceError> {
    // SAFETY: the instance lives.
    let all = unsafe { instance.enumerate_physical_devices() }
        .map_err(|e| failed("vkEnumeratePhysicalDevices", e))?;
    let (mut fit, mut refused) = (Vec::new(), Vec::new());
    for physical in all {
        match inspect(instance, physical) {
            Ok(candidate) => fit.push(candidate),
            Err(reason) => refused.push(reason),
        }
    }
    Ok((fit, refused))
}

fn choose(candidates: Vec<Candidate>, refused: Vec<String>) -> Result<Candidate, DeviceError> {
    if candidates.is_empty() {
        let reason = if refused.is_empty() {
            "the loader found no device".to_string()
        } else {
            refused.join("; ")
        };
        return Err(missing(reason));
    }
    if let Ok(wanted) = std::env::var(DEVICE_VARIABLE) {
        let names: Vec<String> = candidates.iter().map(|c| c.info.name.clone()).collect();
        let index = wanted
            .parse::<usize>()
            .ok()
            .filter(|&i| i < candidates.len());
        let lower = wanted.to_lowercase();
        let index = index.or_else(|| names.iter().position(|n| n.to_lowercase().contains(&lower)));
        return match index.and_then(|i| candidates.into_iter().nth(i)) {
            Some(candidate) => Ok(candidate),
            None => Err(DeviceError::Missing {
                backend: BACKEND,
                reason: format!(
                    "{DEVICE_VARIABLE}={wanted} names none of: {}",
                    names.join(", ")
                ),
                looked_for: wanted,
            }),
        };
    }
    let rank = |kind| match kind {
        vk::PhysicalDeviceType::DISCRETE_GPU => 0,
        vk::PhysicalDeviceType::INTEGRATED_GPU => 1,
        vk::PhysicalDeviceType::VIRTUAL_GPU => 2,
        vk::PhysicalDeviceType::CPU => 4,
        _ => 3,
    };
    candidates
        .into_iter()
        .min_by_key(|c| rank(c.kind))
        .ok_or_else(|| missing("the loader found no device"))
}

fn inspect(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Result<Candidate, String> {
    // SAFETY: `physical` came from this instance.
    let basic = unsafe { instance.get_physical_device_properties(physical) };
    let name = text_of(basic.device_name_as_c_str());
    if basic.api_version < vk::API_VERSION_1_3 {
        let (major, minor) = (
            vk::api_version_major(basic.api_version),
            vk::api_version_minor(basic.api_version),
        );
        return Err(format!(
            "`{name}` has Vulkan {major}.{minor}, 1.3 is needed"
        ));
    }
    let mut p11 = vk::PhysicalDeviceVulkan11Properties::default();
    let mut p12 = vk::PhysicalDeviceVulkan12Properties::default();
    let mut p13 = vk::PhysicalDeviceVulkan13Properties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default()
        .push_next(&mut p11)
        .push_next(&mut p12)
        .push_next(&mut p13);
    // SAFETY: the chain holds structures that Vulkan 1.3 knows.
    unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
    let properties = properties.properties;

    let extensions = has_extension(instance, physical, ash::ext::shader_atomic_float::NAME);
    let mut features = Features::default();
    let mut atomic = vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT::default();
    let mut query = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut features.v11)
        .push_next(&mut features.v12)
        .push_next(&mut features.v13);
    if extensions {
        query = query.push_next(&mut atomic);
    }
    let mut bfloat = bfloat::Features::new(false);
    if has_extension(instance, physical, bfloat::NAME) {
        query = query.push_next(&mut bfloat);
    }
    let mut matrix = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    if has_extension(instance, physical, ash::khr::cooperative_matrix::NAME) {
        query = query.push_next(&mut matrix);
    }
    // SAFETY: the chain holds structures that Vulkan 1.3, or the extension at hand, knows.
    unsafe { instance.get_physical_device_features2(physical, &mut query) };
    features.core = query.features;
    features.atomic_float = atomic.shader_buffer_float32_atomic_add == vk::TRUE;
    features.bfloat16 = bfloat.shader_bfloat16_type == vk::TRUE;
    features.bfloat16_matrices = bfloat.shader_bfloat16_cooperative_matrix == vk::TRUE;
    features.matrices = matrix.cooperative_matrix == vk::TRUE;
    let needed = [
        (features.core.shader_int64, "shaderInt64"),
        (features.v12.buffer_device_address, "bufferDeviceAddress"),
        (features.v12.vulkan_memory_model, "vulkanMemoryModel"),
        (
            features.v12.vulkan_memory_model_device_scope,
            "vulkanMemoryModelDeviceScope",
        ),
        (features.v12.timeline_semaphore, "timelineSemaphore"),
        (features.v12.host_query_reset, "hostQueryReset"),
    ];
    for (has, feature) in needed {
        if has == vk::FALSE {
            return Err(format!("`{name}` lacks {feature}"));
        }
    }
    // SAFETY: `physical` came from this instance.
    let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
    let queue_family = families
        .iter()
        .position(|f| f.queue_flags.contains(vk::QueueFlags::COMPUTE))
        .ok_or_else(|| format!("`{name}` has no compute queue"))?;
    // SAFETY: `physical` came from this instance.
    let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
    let size = p11.subgroup_size;
    let can_require = features.v13.subgroup_size_control == vk::TRUE
        && p13
            .required_subgroup_size_stages
            .contains(vk::ShaderStageFlags::COMPUTE)
        && (p13.min_subgroup_size..=p13.max_subgroup_size).contains(&size);
    let operations = vk::SubgroupFeatureFlags::BASIC
        | vk::SubgroupFeatureFlags::VOTE
        | vk::SubgroupFeatureFlags::BALLOT
        | vk::SubgroupFeatureFlags::SHUFFLE;
    let widths = |w16, w32, w64| {
        [(w16, 16), (w32, 32), (w64, 64)]
            .iter()
            .filter(|w| w.0 == vk::TRUE)
            .map(|w| w.1)
            .sum()
    };
    // Where widths depend on one another, only a mode of one width is always valid.
    let independent = |independence, mask: u32| match independence {
        vk::ShaderFloatControlsIndependence::ALL => mask,
        vk::ShaderFloatControlsIndependence::TYPE_32_ONLY => mask & 32,
        _ => 0,
    };
    let info = Info {
        driver: format!(
            "{} {} (Vulkan {}.{}.{})",
            text_of(p12.driver_name_as_c_str()),
            text_of(p12.driver_info_as_c_str()),
            vk::api_version_major(properties.api_version),
            vk::api_version_minor(properties.api_version),
            vk::api_version_patch(properties.api_version),
        ),
        driver_id: p12.driver_id,
        uuid: properties
            .pipeline_cache_uuid
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect(),
        limits: properties.limits,
        memory,
        max_allocation: p11.max_memory_allocation_size.min(p13.max_buffer_size),
        subgroup_size: size,
        must_require_subgroup_size: can_require && p13.min_subgroup_size != p13.max_subgroup_size,
        has_full_subgroups: features.v13.compute_full_subgroups == vk::TRUE,
        timestamp_bits: families[queue_family].timestamp_valid_bits,
        float64: features.core.shader_float64 == vk::TRUE,
        float16: features.v12.shader_float16 == vk::TRUE
            && features.v11.storage_buffer16_bit_access == vk::TRUE,
        storage8: features.v12.shader_int8 == vk::TRUE
            && features.v12.storage_buffer8_bit_access == vk::TRUE,
        storage16: features.core.shader_int16 == vk::TRUE
            && features.v11.storage_buffer16_bit_access == vk::TRUE,
        atomic64: features.v12.shader_buffer_int64_atomics == vk::TRUE
            && features.v12.shader_shared_int64_atomics == vk::TRUE,
        atomic_float_add: features.atomic_float,
        matrices: match features.matrices {
            true => matrices(instance, physical, features.bfloat16_matrices),
            false => None,
        },
        subgroups: p11
            .subgroup_supported_stages
            .contains(vk::ShaderStageFlags::COMPUTE)
            && p11.subgroup_supported_operations.contains(operations)
            && features.v12.shader_subgroup_extended_types == vk::TRUE,
        signed_zero_inf_nan: widths(
            p12.shader_signed_zero_inf_nan_preserve_float16,
            p12.shader_signed_zero_inf_nan_preserve_float32,
            p12.shader_signed_zero_inf_nan_preserve_float64,
        ),
        denorm_preserve: independent(
            p12.denorm_behavior_independence,
            widths(
                p12.shader_denorm_preserve_float16,
                p12.shader_denorm_preserve_float32,
                p12.shader_denorm_preserve_float64,
            ),
        ),
        round_to_even: independent(
            p12.rounding_mode_independence,
            widths(
                p12.shader_rounding_mode_rte_float16,
                p12.shader_rounding_mode_rte_float32,
                p12.shader_rounding_mode_rte_float64,
            ),
        ),
        name,
    };
    let kind = properties.device_type;
    let queue_family = queue_family as u32;
    Ok(Candidate {
        physical,
        queue_family,
        kind,
        info,
        features: features.detached(),
    })
}

/// `VK_COMPONENT_TYPE_BFLOAT16_KHR`.
const BFLOAT16: vk::ComponentTypeKHR = vk::ComponentTypeKHR::from_raw(1_000_141_000);

/// The types of which the driver lists products of 16 by 16 over 16 steps with sums in `f32`.
fn matrices(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    has_bfloat16: bool,
) -> Option<Fragments> {
    let mut stages = vk::PhysicalDeviceCooperativeMatrixPropertiesKHR::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut stages);
    // SAFETY: the chain holds a structure of an extension that this device has.
    unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
    let stages = stages.cooperative_matrix_supported_stages;
    let functions = ash::khr::cooperative_matrix::Instance::new(&entry().ok()?, instance);
    // SAFETY: `physical` came from this instance and has the extension.
    let all = unsafe { functions.get_physical_device_cooperative_matrix_properties(physical) };
    let all = all.ok()?;
    let float = vk::ComponentTypeKHR::FLOAT32;
    let has = |scalar| {
        all.iter().any(|p| {
            [p.m_size, p.n_size, p.k_size] == [FRAGMENT; 3]
                && [p.a_type, p.b_type] == [scalar; 2]
                && [p.c_type, p.result_type] == [float; 2]
                && p.scope == vk::ScopeKHR::SUBGROUP
        })
    };
    for p in &all {
        tracing::debug!(target: "iron::vulkan", "cooperative matrices: {p:?}");
    }
    let found = Fragments {
        f16: has(vk::ComponentTypeKHR::FLOAT16),
        bf16: has_bfloat16 && has(BFLOAT16),
    };
    let is_any = found.f16 || found.bf16;
    (is_any && stages.contains(vk::ShaderStageFlags::COMPUTE)).then_some(found)
}

impl Features {
    /// Without pointers into the query's chain.
    fn detached(mut self) -> Features {
        self.v11.p_next = std::ptr::null_mut();
        self.v12.p_next = std::ptr::null_mut();
        self.v13.p_next = std::ptr::null_mut();
        self
    }
}

fn text_of<E>(name: Result<&CStr, E>) -> String {
    name.map_or_else(|_| String::new(), |n| n.to_string_lossy().into_owned())
}

fn has_extension(instance: &ash::Instance, physical: vk::PhysicalDevice, extension: &CStr) -> bool {
    // SAFETY: `physical` came from this instance.
    let all = unsafe { instance.enumerate_device_extension_properties(physical) };
    all.is_ok_and(|all| {
        all.iter()
            .any(|e| e.extension_name_as_c_str() == Ok(extension))
    })
}

/// Creates the device with the features that kernels use, each only where it is there.
fn create_device(instance: &ash::Instance, chosen: &Candidate) -> Result<ash::Device, DeviceError> {
    let has = &chosen.features;
    let core = vk::PhysicalDeviceFeatures {
        shader_int64: has.core.shader_int64,
        shader_int16: has.core.shader_int16,
        shader_float64: has.core.shader_float64,
        ..Default::default()
    };
    let mut v11 = vk::PhysicalDeviceVulkan11Features {
        storage_buffer16_bit_access: has.v11.storage_buffer16_bit_access,
        ..Default::default()
    };
    let mut v12 = vk::PhysicalDeviceVulkan12Features {
        shader_float16: has.v12.shader_float16,
        shader_int8: has.v12.shader_int8,
        storage_buffer8_bit_access: has.v12.storage_buffer8_bit_access,
        buffer_device_address: has.v12.buffer_device_address,
        vulkan_memory_model: has.v12.vulkan_memory_model,
        vulkan_memory_model_device_scope: has.v12.vulkan_memory_model_device_scope,
        timeline_semaphore: has.v12.timeline_semaphore,
        host_query_reset: has.v12.host_query_reset,
        shader_buffer_int64_atomics: has.v12.shader_buffer_int64_atomics,
        shader_shared_int64_atomics: has.v12.shader_shared_int64_atomics,
        shader_subgroup_extended_types: has.v12.shader_subgroup_extended_types,
        ..Default::default()
    };
    let mut v13 = vk::PhysicalDeviceVulkan13Features {
        subgroup_size_control: has.v13.subgroup_size_control,
        compute_full_subgroups: has.v13.compute_full_subgroups,
        maintenance4: has.v13.maintenance4,
        ..Default::default()
    };
    let mut atomic = vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT::default()
        .shader_buffer_float32_atomic_add(true);
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(chosen.queue_family)
        .queue_priorities(&[1.0])];
    let mut extensions = Vec::new();
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_features(&core)
        .push_next(&mut v11)
        .push_next(&mut v12)
        .push_next(&mut v13);
    if has.atomic_float {
        extensions.push(ash::ext::shader_atomic_float::NAME.as_ptr());
        info = info.push_next(&mut atomic);
    }
    let mut bfloat = bfloat::Features::new(has.bfloat16);
    bfloat.shader_bfloat16_cooperative_matrix = has.bfloat16_matrices.into();
    if has.bfloat16 {
        extensions.push(bfloat::NAME.as_ptr());
        info = info.push_next(&mut bfloat);
    }
    let mut matrix =
        vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    if has.matrices {
        extensions.push(ash::khr::cooperative_matrix::NAME.as_ptr());
        info = info.push_next(&mut matrix);
    }
    let info = info.enabled_extension_names(&extensions);
    // SAFETY: every pointer in `info` lives until the call returns, and every feature and
    // extension in it was reported by this device.
    unsafe { instance.create_device(chosen.physical, &info, None) }
        .map_err(|e| failed("vkCreateDevice", e))
}
