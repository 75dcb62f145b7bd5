//! Compiled kernels and the caches of them.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ash::vk;
use iron_ir::Handle;
use iron_ir::kernel::Kernel;
use iron_ir::launch::LaunchLimits;
use iron_ir::layout::{BlockLayout, FieldKind};
use iron_lower::Profile;
use iron_lower::profile::SpirvOptions;
use iron_lower::spirv::{Bindings, BlockPlace, bindings, block_bytes, block_place, counts_turns};

use super::instance::Context;
use super::{BACKEND, failed};
use crate::device::{DeviceError, Pipeline};

/// A compiled kernel.
pub(super) struct VulkanPipeline {
    context: Arc<Context>,
    kernel: Kernel,
    limits: LaunchLimits,
    artifact: String,
    pub pipeline: vk::Pipeline,
    pub layout: vk::PipelineLayout,
    pub sets: Option<vk::DescriptorSetLayout>,
    pub block_place: BlockPlace,
    pub block_bytes: u32,
    pub bindings: Bindings,
    /// Offset in the block and argument of each tensor's address.
    pub addresses: Vec<(usize, usize)>,
    /// What the block holds.
    pub block_layout: BlockLayout,
    /// Offset in the block of the error word's address.
    pub error_word: Option<usize>,
    /// The kernel counts its loop turns into a word of its own, whose address follows the block.
    pub counts_turns: bool,
    module: vk::ShaderModule,
}

impl VulkanPipeline {
    /// Compiles a module.
    pub fn new(
        context: Arc<Context>,
        cache: &DiskCache,
        kernel: Kernel,
        words: &[u32],
        profile: &Profile,
        options: &SpirvOptions,
        limits: LaunchLimits,
        artifact: String,
    ) -> Result<VulkanPipeline, DeviceError> {
        let layout = BlockLayout::of(&kernel);
        let offset_of = |kind| layout.field(kind).map(|f| f.offset as usize);
        let addresses = kernel
            .tensor_slots()
            .filter_map(|(_, p)| Some((offset_of(FieldKind::Address(p))?, p.index())))
            .collect();
        let mut made = VulkanPipeline {
            limits,
            artifact,
            pipeline: vk::Pipeline::null(),
            layout: vk::PipelineLayout::null(),
            sets: None,
            module: vk::ShaderModule::null(),
            block_place: block_place(&kernel, options),
            block_bytes: block_bytes(&kernel, options),
            counts_turns: counts_turns(&kernel, options),
            bindings: bindings(&kernel, options),
            addresses,
            error_word: offset_of(FieldKind::ErrorWord),
            block_layout: layout,
            context,
            kernel,
        };
        made.create_layout(options)?;
        made.create_pipeline(cache, words, profile)?;
        Ok(made)
    }

    /// Whether the pipeline was compiled on that device.
    pub fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Bytes of push constants.
    pub fn push_bytes(&self) -> u32 {
        match self.block_place {
            BlockPlace::PushConstants => self.block_bytes,
            BlockPlace::Address => 8,
            BlockPlace::Uniform(_) => 0,
        }
    }

    fn create_layout(&mut self, options: &SpirvOptions) -> Result<(), DeviceError> {
        let device = &self.context.device;
        let mut set_layouts = Vec::new();
        if !options.device_addresses {
            let storage = self.bindings.tensors.len() as u32;
            let mut all: Vec<(u32, vk::DescriptorType)> = (0..storage)
                .map(|b| (b, vk::DescriptorType::STORAGE_BUFFER))
                .collect();
            all.extend(
                self.bindings
                    .loop_word
                    .map(|b| (b, vk::DescriptorType::STORAGE_BUFFER)),
            );
            all.extend(
                self.bindings
                    .error_word
                    .map(|b| (b, vk::DescriptorType::STORAGE_BUFFER)),
            );
            all.extend(
                self.bindings
                    .block
                    .map(|b| (b, vk::DescriptorType::UNIFORM_BUFFER)),
            );
            let all: Vec<_> = all
                .into_iter()
                .map(|(binding, kind)| {
                    vk::DescriptorSetLayoutBinding::default()
                        .binding(binding)
                        .descriptor_type(kind)
                        .descriptor_count(1)
                        .stage_flags(vk::ShaderStageFlags::COMPUTE)
                })
                .collect();
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&all);
            // SAFETY: `info` lives until the call returns.
            let layout = unsafe { device.create_descriptor_set_layout(&info, None) }
                .map_err(|e| failed("vkCreateDescriptorSetLayout", e))?;
            self.sets = Some(layout);
            set_layouts.push(layout);
        }
        let range = [vk::PushConstantRange {
            stage_flags: vk::ShaderStageFlags::COMPUTE,
            offset: 0,
            size: self.push_bytes(),
        }];
        let ranges = if self.push_bytes() == 0 {
            &range[..0]
        } else {
            &range[..]
        };
        let info = vk::PipelineLayoutCreateInfo::default()
            .set_layouts(&set_layouts)
            .push_constant_ranges(ranges);
        // SAFETY: `info` lives until the call returns.
        self.layout = unsafe { device.create_pipeline_layout(&info, None) }
            .map_err(|e| failed("vkCreatePipelineLayout", e))?;
        Ok(())
    }

    fn create_pipeline(
        &mut self,
        cache: &DiskCache,
        words: &[u32],
        profile: &Profile,
    ) -> Result<(), DeviceError> {
        let device = &self.context.device;
        let info = vk::ShaderModuleCreateInfo::default().code(words);
        // SAFETY: the words are a whole module.
        self.module = unsafe { device.create_shader_module(&info, None) }
            .map_err(|e| failed("vkCreateShaderModule", e))?;
        let name = std::ffi::CString::new(self.kernel.entry_point()).map_err(|e| {
            DeviceError::Compile {
                kernel: self.kernel.full_name(),
                backend: BACKEND,
                message: format!("the entry point's name holds a zero: {e}"),
            }
        })?;
        let size = self.context.info.subgroup_size.max(1);
        let mut required = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
            .required_subgroup_size(size);
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(self.module)
            .name(&name);
        if profile.subgroup_size.is_some() && self.context.info.must_require_subgroup_size {
            stage = stage.push_next(&mut required);
        }
        if self.context.info.has_full_subgroups
            && self.kernel.contract.workgroup[0].is_multiple_of(size)
        {
            stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
        }
        let info = vk::ComputePipelineCreateInfo::default()
            .stage(stage)
            .layout(self.layout);
        // SAFETY: module, layout and cache are this device's; the chain lives until the call
        // returns.
        let made = unsafe { device.create_compute_pipelines(cache.cache, &[info], None) };
        match made {
            Ok(pipelines) => {
                self.pipeline = pipelines.first().copied().unwrap_or_default();
                cache.added();
                Ok(())
            }
            Err((pipelines, error)) => {
                self.pipeline = pipelines.first().copied().unwrap_or_default();
                Err(DeviceError::Compile {
                    kernel: self.kernel.full_name(),
                    backend: BACKEND,
                    message: format!("vkCreateComputePipelines: {error}"),
                })
            }
        }
    }
}

impl Drop for VulkanPipeline {
    fn drop(&mut self) {
        let device = &self.context.device;
        // SAFETY: submissions that use the pipeline hold it, so none is left. Null handles are
        // ignored.
        unsafe {
            device.destroy_pipeline(self.pipeline, None);
            device.destroy_shader_module(self.module, None);
            device.destroy_pipeline_layout(self.layout, None);
            if let Some(sets) = self.sets {
                device.destroy_descriptor_set_layout(sets, None);
            }
        }
    }
}

impl Pipeline for VulkanPipeline {
    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn limits(&self) -> LaunchLimits {
        self.limits
    }

    fn artifact(&self) -> &str {
        &self.artifact
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The driver's pipeline cache, kept on disk between processes. A file that cannot be read or
/// written costs time and nothing else; the driver checks that its contents fit.
pub(super) struct DiskCache {
    context: Arc<Context>,
    pub cache: vk::PipelineCache,
    path: Option<PathBuf>,
    unsaved: AtomicU32,
}

/// Pipelines that may be compiled before the file is written again.
const SAVE_EVERY: u32 = 16;

impl DiskCache {
    pub fn open(context: Arc<Context>) -> Result<DiskCache, DeviceError> {
        let path = cache_folder().map(|f| f.join(format!("vulkan-{}.bin", context.info.uuid)));
        let data = path
            .as_ref()
            .and_then(|p| std::fs::read(p).ok())
            .unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&data);
        // SAFETY: the driver validates the header of foreign data.
        let made = unsafe { context.device.create_pipeline_cache(&info, None) };
        let made = made.or_else(|_| {
            let empty = vk::PipelineCacheCreateInfo::default();
            // SAFETY: an empty cache has no data.
            unsafe { context.device.create_pipeline_cache(&empty, None) }
        });
        let cache = made.map_err(|e| failed("vkCreatePipelineCache", e))?;
        Ok(DiskCache {
            context,
            cache,
            path,
            unsaved: AtomicU32::new(0),
        })
    }

    fn added(&self) {
        if self.unsaved.fetch_add(1, Ordering::Relaxed) + 1 >= SAVE_EVERY {
            self.save();
        }
    }

    fn save(&self) {
        if self.unsaved.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        let Some(path) = &self.path else { return };
        // SAFETY: the cache lives.
        let Ok(data) = (unsafe { self.context.device.get_pipeline_cache_data(self.cache) }) else {
            return;
        };
        let temporary = path.with_extension(format!("tmp{}", std::process::id()));
        let written = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&temporary, data))
            .and_then(|()| std::fs::rename(&temporary, path));
        if let Err(error) = written {
            tracing::debug!(target: "iron::vulkan", "pipeline cache not saved: {error}");
        }
    }
}

impl Drop for DiskCache {
    fn drop(&mut self) {
        self.save();
        // SAFETY: no pipeline creation is under way, because each borrows the cache.
        unsafe { self.context.device.destroy_pipeline_cache(self.cache, None) };
    }
}

/// `$IRON_CACHE_DIR`, else the user's cache folder.
fn cache_folder() -> Option<PathBuf> {
    let variable = |name| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    variable("IRON_CACHE_DIR")
        .or_else(|| variable("XDG_CACHE_HOME").map(|c| c.join("iron")))
        .or_else(|| variable("HOME").map(|h| h.join(".cache").join("iron")))
}
