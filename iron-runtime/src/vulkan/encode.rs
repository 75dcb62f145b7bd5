//! Launches as commands: parameter blocks, error words, dispatches, barriers and timestamps.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ash::vk;
use iron_ir::Handle;
use iron_ir::kernel::{Access, ParamKind};
use iron_ir::launch::{Argument, DeviceBuffer, TensorArg};
use iron_lower::spirv::BlockPlace;

use super::memory::{Allocation, Use};
use super::pipeline::VulkanPipeline;
use super::queue::{Commands, DescriptorPool, ErrorWord, ErrorWords, Keep};
use super::{BACKEND, Shared, failed};
use crate::device::{DeviceError, Pipeline, RecordedLaunch};

/// Alignment of blocks and error words that are bound to a slot.
const SLOT_BYTES: u64 = 256;

/// A launch with its places in the submission's host memory.
struct Plan<'l> {
    index: usize,
    pipeline: &'l VulkanPipeline,
    block_at: Option<u64>,
    error_at: Option<u64>,
    turns_at: Option<u64>,
}

/// The addresses of the allocations that launches since the last barrier read and wrote.
#[derive(Default)]
struct Pending {
    reads: Vec<Range<u64>>,
    writes: Vec<Range<u64>>,
}

impl Pending {
    /// Joins what a launch reads and writes. Whether it must come after launches that are pending;
    /// then it is the only one.
    fn add(&mut self, own: Pending) -> bool {
        let meets = |a: &[Range<u64>], b: &[Range<u64>]| {
            a.iter()
                .any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
        };
        let must_wait = meets(&own.reads, &self.writes)
            || meets(&own.writes, &self.writes)
            || meets(&own.writes, &self.reads);
        if must_wait {
            *self = own;
        } else {
            self.reads.extend(own.reads);
            self.writes.extend(own.writes);
        }
        must_wait
    }
}

/// Encodes launches in order, each after those before that it has memory in common with, unless
/// both only read it. Launches that are timed run one by one.
pub(super) fn launches(
    shared: &Shared,
    commands: &Commands,
    launches: &[RecordedLaunch],
    timer: Option<vk::QueryPool>,
) -> Result<Keep, DeviceError> {
    let mut keep = Keep::default();
    let mut plan = Vec::new();
    let mut host_bytes = 0;
    for (index, launch) in launches.iter().enumerate() {
        if launch.checked.is_empty {
            continue;
        }
        let pipeline = own_pipeline(shared, launch)?;
        let mut place = |needed: bool| {
            let at = host_bytes;
            host_bytes += if needed {
                SLOT_BYTES.max(u64::from(pipeline.block_bytes))
            } else {
                0
            };
            host_bytes = host_bytes.next_multiple_of(SLOT_BYTES);
            needed.then_some(at)
        };
        let block_at = place(pipeline.block_place != BlockPlace::PushConstants);
        let error_at = place(pipeline.error_word.is_some());
        let turns_at = place(pipeline.counts_turns);
        plan.push(Plan {
            index,
            pipeline,
            block_at,
            error_at,
            turns_at,
        });
    }
    let host = match host_bytes {
        0 => None,
        bytes => Some(Arc::new(shared.pool.allocate(bytes, Use::Host)?)),
    };
    let words: Vec<ErrorWord> = plan
        .iter()
        .flat_map(|p| {
            let word = |of_loops| {
                let kernel = name_of(p.pipeline);
                move |offset| ErrorWord {
                    offset,
                    kernel,
                    of_loops,
                }
            };
            [p.error_at.map(word(false)), p.turns_at.map(word(true))]
        })
        .flatten()
        .collect();
    if let Some(host) = &host {
        for word in &words {
            host.write(word.offset, &[0; 4]);
        }
        keep.allocations.push(host.clone());
        if !words.is_empty() {
            keep.errors = Some(ErrorWords {
                memory: host.clone(),
                words,
            });
        }
    }
    let sets = descriptor_pool(shared, plan.iter().map(|p| p.pipeline))?;
    let device = &shared.context.device;
    let mut bound = vk::Pipeline::null();
    let mut pending = Pending::default();
    for Plan {
        index,
        pipeline,
        block_at,
        error_at,
        turns_at,
    } in plan
    {
        let launch = &launches[index];
        let mut block = launch.checked.block.clone();
        block.resize(pipeline.block_bytes as usize, 0);
        let by_address = pipeline.sets.is_none();
        let mut own = Pending::default();
        for &(offset, argument) in &pipeline.addresses {
            let Some(Argument::Tensor(view)) = launch.arguments.get(argument) else {
                continue;
            };
            let buffer = shared.own(&*view.buffer)?;
            let bytes = view.offset * u64::from(view.scalar.bytes());
            let value = if by_address {
                buffer.allocation.address + bytes
            } else {
                bytes - bound_offset(shared, view)
            };
            block[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
            keep.buffers.push(view.buffer.clone());
            let start = buffer.allocation.address;
            let range = start..start + buffer.allocation.bytes.max(1);
            if only_reads(pipeline, argument) {
                own.reads.push(range);
            } else {
                own.writes.push(range);
            }
        }
        let must_wait = pending.add(own) || timer.is_some();
        if must_wait {
            commands.barrier_of_launches();
        }
        crate::alignment::write(
            &mut block,
            &pipeline.block_layout,
            &launch.arguments,
            |view| {
                let buffer = shared.own(&*view.buffer)?;
                let bytes = view.offset * u64::from(view.scalar.bytes());
                Ok(buffer.allocation.address + bytes)
            },
        )?;
        if let (Some(offset), Some(at), Some(host)) = (pipeline.error_word, error_at, &host) {
            block[offset..offset + 8].copy_from_slice(&(host.address + at).to_le_bytes());
        }
        if let (true, Some(at), Some(host)) = (by_address, turns_at, &host) {
            let last = block.len() - 8;
            block[last..].copy_from_slice(&(host.address + at).to_le_bytes());
        }
        let mut push = block.clone();
        if let (Some(at), Some(host)) = (block_at, &host) {
            host.write(at, &block);
            push = (host.address + at).to_le_bytes().to_vec();
        }
        keep.pipelines.push(launch.pipeline.clone());
        let set = match (&sets, pipeline.sets) {
            (Some(pool), Some(layout)) => {
                let slots = [block_at, error_at, turns_at];
                Some(descriptor_set(
                    shared, pool, layout, pipeline, launch, &host, slots,
                )?)
            }
            _ => None,
        };
        // SAFETY: the commands are being recorded; pipeline, layout and set belong together,
        // and the ranges are those of the layout.
        unsafe {
            if bound != pipeline.pipeline {
                let point = vk::PipelineBindPoint::COMPUTE;
                device.cmd_bind_pipeline(commands.buffer, point, pipeline.pipeline);
                bound = pipeline.pipeline;
            }
            if let Some(set) = set {
                device.cmd_bind_descriptor_sets(
                    commands.buffer,
                    vk::PipelineBindPoint::COMPUTE,
                    pipeline.layout,
                    0,
                    &[set],
                    &[],
                );
            }
            let push = &push[..pipeline.push_bytes() as usize];
            if !push.is_empty() {
                let stage = vk::ShaderStageFlags::COMPUTE;
                device.cmd_push_constants(commands.buffer, pipeline.layout, stage, 0, push);
            }
            if let Some(timer) = timer {
                let stage = vk::PipelineStageFlags::COMPUTE_SHADER;
                device.cmd_write_timestamp(commands.buffer, stage, timer, 2 * index as u32);
            }
            let [x, y, z] = launch.checked.grid;
            device.cmd_dispatch(commands.buffer, x, y, z);
            if let Some(timer) = timer {
                let stage = vk::PipelineStageFlags::COMPUTE_SHADER;
                device.cmd_write_timestamp(commands.buffer, stage, timer, 2 * index as u32 + 1);
            }
        }
    }
    keep.descriptors.extend(sets);
    Ok(keep)
}

/// Runs launches one after the other and reads the device's clock around each.
pub(super) fn time(
    shared: &Shared,
    launches: &[RecordedLaunch],
) -> Result<Vec<Duration>, DeviceError> {
    let info = &shared.context.info;
    if info.timestamp_bits == 0 {
        return Err(DeviceError::Usage {
            backend: BACKEND,
            message: format!("`{}` has no timestamps on its compute queue", info.name),
        });
    }
    if launches.is_empty() {
        return Ok(Vec::new());
    }
    let n_queries = 2 * launches.len() as u32;
    let create = vk::QueryPoolCreateInfo::default()
        .query_type(vk::QueryType::TIMESTAMP)
        .query_count(n_queries);
    let device = &shared.context.device;
    // SAFETY: the device lives.
    let pool = unsafe { device.create_query_pool(&create, None) }
        .map_err(|e| failed("vkCreateQueryPool", e))?;
    let run = || -> Result<Vec<Duration>, DeviceError> {
        // SAFETY: the pool is fresh and `hostQueryReset` is enabled.
        unsafe { device.reset_query_pool(pool, 0, n_queries) };
        let commands = shared.queue.commands()?;
        commands.begin(false)?;
        let keep = self::launches(shared, &commands, launches, Some(pool))?;
        commands.end()?;
        let value = shared.queue.submit(commands, keep)?;
        shared.queue.wait(value)?;
        let mask = match info.timestamp_bits {
            64.. => u64::MAX,
            bits => (1 << bits) - 1,
        };
        let mut times = Vec::with_capacity(launches.len());
        for (index, launch) in launches.iter().enumerate() {
            if launch.checked.is_empty {
                times.push(Duration::ZERO);
                continue;
            }
            let mut ticks = [0u64; 2];
            let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
            // SAFETY: both queries were written by the finished submission.
            unsafe { device.get_query_pool_results(pool, 2 * index as u32, &mut ticks, flags) }
                .map_err(|e| failed("vkGetQueryPoolResults", e))?;
            let elapsed = ticks[1].wrapping_sub(ticks[0]) & mask;
            let nanoseconds = elapsed as f64 * f64::from(info.limits.timestamp_period);
            times.push(Duration::from_nanos(nanoseconds as u64));
        }
        Ok(times)
    };
    let times = run();
    // A failure between submission and the wait leaves the pool in use.
    let idle = shared.queue.wait_all();
    if idle.is_ok() {
        // SAFETY: no submission uses the pool.
        unsafe { device.destroy_query_pool(pool, None) };
    }
    times
}

/// Whether a kernel reads the tensor of an argument and never writes it.
fn only_reads(pipeline: &VulkanPipeline, argument: usize) -> bool {
    let params = &pipeline.kernel().params;
    params.values().nth(argument).is_some_and(
        |param| matches!(&param.kind, ParamKind::Tensor(tensor) if tensor.access == Access::Read),
    )
}

fn own_pipeline<'l>(
    shared: &Shared,
    launch: &'l RecordedLaunch,
) -> Result<&'l VulkanPipeline, DeviceError> {
    launch
        .pipeline
        .as_any()
        .downcast_ref::<VulkanPipeline>()
        .filter(|p| p.is_of(&shared.context))
        .ok_or_else(|| DeviceError::Usage {
            backend: BACKEND,
            message: format!(
                "the pipeline of `{}` belongs to another device",
                launch.pipeline.kernel().full_name()
            ),
        })
}

fn name_of(pipeline: &VulkanPipeline) -> String {
    pipeline.kernel().full_name()
}

/// The start of a view's binding: the device's alignment at or below the view's first byte.
fn bound_offset(shared: &Shared, view: &TensorArg) -> u64 {
    let alignment = shared
        .context
        .info
        .limits
        .min_storage_buffer_offset_alignment
        .max(1);
    let bytes = view.offset * u64::from(view.scalar.bytes());
    bytes / alignment * alignment
}

/// A pool for the sets of all launches; none where tensors go by address.
fn descriptor_pool<'p>(
    shared: &Shared,
    pipelines: impl Iterator<Item = &'p VulkanPipeline>,
) -> Result<Option<DescriptorPool>, DeviceError> {
    let (mut n_sets, mut storage, mut uniform) = (0, 0, 0);
    for pipeline in pipelines.filter(|p| p.sets.is_some()) {
        n_sets += 1;
        storage += pipeline.bindings.tensors.len() as u32;
        storage += u32::from(pipeline.bindings.error_word.is_some());
        storage += u32::from(pipeline.bindings.loop_word.is_some());
        uniform += u32::from(pipeline.bindings.block.is_some());
    }
    if n_sets == 0 {
        return Ok(None);
    }
    let sizes: Vec<vk::DescriptorPoolSize> = [
        (vk::DescriptorType::STORAGE_BUFFER, storage),
        (vk::DescriptorType::UNIFORM_BUFFER, uniform),
    ]
    .into_iter()
    .filter(|&(_, n)| n > 0)
    .map(|(ty, descriptor_count)| vk::DescriptorPoolSize {
        ty,
        descriptor_count,
    })
    .collect();
    let info = vk::DescriptorPoolCreateInfo::default()
        .max_sets(n_sets)
        .pool_sizes(&sizes);
    // SAFETY: `info` lives until the call returns.
    let pool = unsafe { shared.context.device.create_descriptor_pool(&info, None) }
        .map_err(|e| failed("vkCreateDescriptorPool", e))?;
    Ok(Some(DescriptorPool {
        context: shared.context.clone(),
        pool,
    }))
}

fn descriptor_set(
    shared: &Shared,
    pool: &DescriptorPool,
    layout: vk::DescriptorSetLayout,
    pipeline: &VulkanPipeline,
    launch: &RecordedLaunch,
    host: &Option<Arc<Allocation>>,
    [block_at, error_at, turns_at]: [Option<u64>; 3],
) -> Result<vk::DescriptorSet, DeviceError> {
    let device = &shared.context.device;
    let layouts = [layout];
    let info = vk::DescriptorSetAllocateInfo::default()
        .descriptor_pool(pool.pool)
        .set_layouts(&layouts);
    // SAFETY: the pool was sized for every set of this submission.
    let sets = unsafe { device.allocate_descriptor_sets(&info) }
        .map_err(|e| failed("vkAllocateDescriptorSets", e))?;
    let set = sets.first().copied().unwrap_or_default();
    let mut all: Vec<(u32, vk::DescriptorType, vk::DescriptorBufferInfo)> = Vec::new();
    for (binding, param) in pipeline.bindings.tensors.iter().enumerate() {
        let Some(Argument::Tensor(view)) = launch.arguments.get(param.index()) else {
            continue;
        };
        let buffer = shared.own(&*view.buffer)?;
        let from = bound_offset(shared, view);
        let rest = buffer
            .bytes()
            .saturating_sub(from)
            .max(4)
            .next_multiple_of(4);
        let range = rest.min(u64::from(
            shared.context.info.limits.max_storage_buffer_range,
        ));
        let offset = buffer.allocation.offset + from;
        let info = vk::DescriptorBufferInfo {
            buffer: buffer.allocation.buffer,
            offset,
            range,
        };
        all.push((binding as u32, vk::DescriptorType::STORAGE_BUFFER, info));
    }
    if let Some(host) = host {
        let slot = |at: u64, range: u64| vk::DescriptorBufferInfo {
            buffer: host.buffer,
            offset: host.offset + at,
            range,
        };
        if let (Some(binding), Some(at)) = (pipeline.bindings.error_word, error_at) {
            all.push((binding, vk::DescriptorType::STORAGE_BUFFER, slot(at, 4)));
        }
        if let (Some(binding), Some(at)) = (pipeline.bindings.loop_word, turns_at) {
            all.push((binding, vk::DescriptorType::STORAGE_BUFFER, slot(at, 4)));
        }
        if let (Some(binding), Some(at)) = (pipeline.bindings.block, block_at) {
            let range = u64::from(pipeline.block_bytes);
            all.push((binding, vk::DescriptorType::UNIFORM_BUFFER, slot(at, range)));
        }
    }
    let writes: Vec<vk::WriteDescriptorSet<'_>> = all
        .iter()
        .map(|(binding, kind, info)| {
            vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(*binding)
                .descriptor_type(*kind)
                .buffer_info(std::slice::from_ref(info))
        })
        .collect();
    // SAFETY: the set is fresh and every buffer lives as long as the submission.
    unsafe { device.update_descriptor_sets(&writes, &[]) };
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A launch by where what it reads and writes begins and ends.
    fn launch(reads: &[(u64, u64)], writes: &[(u64, u64)]) -> Pending {
        let ranges = |all: &[(u64, u64)]| all.iter().map(|r| r.0..r.1).collect();
        Pending {
            reads: ranges(reads),
            writes: ranges(writes),
        }
    }

    #[test]
    fn a_launch_waits_for_what_it_has_in_common_and_is_not_only_read() {
        let first = || launch(&[(0, 16)], &[(16, 32)]);
        for (own, waits) in [
            (launch(&[(0, 16)], &[(32, 48)]), false),
            (launch(&[], &[(32, 48)]), false),
            (launch(&[(31, 40)], &[]), true),
            (launch(&[], &[(31, 40)]), true),
            (launch(&[], &[(15, 16)]), true),
        ] {
            let mut pending = Pending::default();
            assert!(!pending.add(first()), "the first waits for nothing");
            let (reads, writes) = (own.reads.clone(), own.writes.clone());
            assert_eq!(pending.add(own), waits, "{reads:?} {writes:?}");
        }
    }

    #[test]
    fn a_barrier_forgets_what_came_before_it_and_keeps_who_waited() {
        let mut pending = Pending::default();
        assert!(!pending.add(launch(&[], &[(0, 16)])));
        assert!(pending.add(launch(&[(0, 16)], &[(16, 32)])));
        assert!(!pending.add(launch(&[(0, 16)], &[])));
        assert!(pending.add(launch(&[], &[(0, 16)])), "two readers are left");
        assert!(
            !pending.add(launch(&[(16, 32)], &[])),
            "its writer came before the barrier"
        );
    }
}
