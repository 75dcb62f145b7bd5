//! The queue: command buffers, the timeline, what submissions keep alive, and error words.

use std::collections::VecDeque;
use std::sync::Arc;

use ash::vk;
use iron_ir::launch::DeviceBuffer;
use parking_lot::Mutex;

use super::instance::Context;
use super::memory::{Allocation, VulkanBuffer};
use super::{BACKEND, failed};
use crate::device::{DeviceError, Pipeline};

/// One queue with a timeline semaphore that counts submissions.
pub(super) struct Queue {
    pub context: Arc<Context>,
    queue: vk::Queue,
    timeline: vk::Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Value of the last submission.
    last: u64,
    idle: Vec<Commands>,
    in_flight: VecDeque<Submission>,
    /// The first tripped check since the last synchronisation.
    error: Option<Tripped>,
}

/// A command buffer with a pool of its own, so that buffers are recorded in parallel.
pub(super) struct Commands {
    context: Arc<Context>,
    pool: vk::CommandPool,
    pub buffer: vk::CommandBuffer,
}

struct Submission {
    value: u64,
    /// Given back for reuse; none where a graph owns them.
    commands: Option<Commands>,
    keep: Keep,
}

/// What queued work needs alive, and where it reports failed checks.
#[derive(Default)]
pub(super) struct Keep {
    pub buffers: Vec<Arc<dyn DeviceBuffer>>,
    pub pipelines: Vec<Arc<dyn Pipeline>>,
    pub allocations: Vec<Arc<Allocation>>,
    pub descriptors: Vec<DescriptorPool>,
    pub errors: Option<ErrorWords>,
    /// A graph that is being replayed.
    pub graph: Option<Arc<Keep>>,
}

/// Error words of launches, in host-visible memory.
pub(super) struct ErrorWords {
    pub memory: Arc<Allocation>,
    pub words: Vec<ErrorWord>,
}

/// A word that a kernel writes where something is wrong.
pub(super) struct ErrorWord {
    pub offset: u64,
    pub kernel: String,
    /// The kernel reached the driver's limit of loop turns.
    pub of_loops: bool,
}

/// What a word told.
#[derive(Clone, Debug)]
pub(super) enum Tripped {
    /// A failed index check with its code.
    Index { kernel: String, code: u32 },
    /// Loops that the driver cut off.
    Loops { kernel: String },
}

/// Descriptor sets of a submission.
pub(super) struct DescriptorPool {
    pub context: Arc<Context>,
    pub pool: vk::DescriptorPool,
}

impl Drop for DescriptorPool {
    fn drop(&mut self) {
        // SAFETY: the submission that used the sets is over.
        unsafe { self.context.device.destroy_descriptor_pool(self.pool, None) };
    }
}

impl Queue {
    pub fn new(context: Arc<Context>) -> Result<Queue, DeviceError> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device has timeline semaphores and one queue of this family.
        let (timeline, queue) = unsafe {
            let timeline = context
                .device
                .create_semaphore(&info, None)
                .map_err(|e| failed("vkCreateSemaphore", e))?;
            (
                timeline,
                context.device.get_device_queue(context.queue_family, 0),
            )
        };
        Ok(Queue {
            context,
            queue,
            timeline,
            state: Mutex::default(),
        })
    }

    /// A command buffer that is ready to record.
    pub fn commands(&self) -> Result<Commands, DeviceError> {
        let idle = {
            let mut state = self.state.lock();
            self.retire(&mut state)?;
            state.idle.pop()
        };
        match idle {
            Some(commands) => Ok(commands),
            None => Commands::new(self.context.clone()),
        }
    }

    /// Submits recorded commands; they and `keep` live until the work is done.
    pub fn submit(&self, commands: Commands, keep: Keep) -> Result<u64, DeviceError> {
        let buffer = commands.buffer;
        self.enqueue(buffer, Some(commands), keep)
    }

    /// Submits commands that the caller keeps alive through `keep`.
    pub fn enqueue(
        &self,
        buffer: vk::CommandBuffer,
        commands: Option<Commands>,
        keep: Keep,
    ) -> Result<u64, DeviceError> {
        let mut state = self.state.lock();
        let value = state.last + 1;
        let (buffers, signals) = ([buffer], [self.timeline]);
        let values = [value];
        let mut timeline =
            vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let info = vk::SubmitInfo::default()
            .command_buffers(&buffers)
            .signal_semaphores(&signals)
            .push_next(&mut timeline);
        // SAFETY: the lock orders access to the queue; the command buffer is recorded.
        unsafe {
            self.context
                .device
                .queue_submit(self.queue, &[info], vk::Fence::null())
        }
        .map_err(|e| failed("vkQueueSubmit", e))?;
        state.last = value;
        keep.mark(value);
        state.in_flight.push_back(Submission {
            value,
            commands,
            keep,
        });
        Ok(value)
    }

    /// Waits until a submission, and so every earlier one, is done.
    pub fn wait(&self, value: u64) -> Result<(), DeviceError> {
        let (semaphores, values) = ([self.timeline], [value]);
        let info = vk::SemaphoreWaitInfo::default()
            .semaphores(&semaphores)
            .values(&values);
        // SAFETY: the semaphore lives, and the value was or will be signalled by a submission.
        unsafe { self.context.device.wait_semaphores(&info, u64::MAX) }
            .map_err(|e| failed("vkWaitSemaphores", e))?;
        let finished = {
            let mut state = self.state.lock();
            self.retire(&mut state)?
        };
        drop(finished);
        Ok(())
    }

    /// Waits for everything.
    pub fn wait_all(&self) -> Result<(), DeviceError> {
        let last = self.state.lock().last;
        self.wait(last)
    }

    /// The first check that failed since the last call.
    pub fn take_error(&self) -> Option<Tripped> {
        self.state.lock().error.take()
    }

    /// The kernel whose loops the driver cut off, while no synchronisation reported it.
    pub fn cut_loops(&self) -> Option<String> {
        match &self.state.lock().error {
            Some(Tripped::Loops { kernel }) => Some(kernel.clone()),
            Some(Tripped::Index { .. }) | None => None,
        }
    }

    /// Collects finished submissions. What they kept is returned, to be dropped without the lock.
    fn retire(&self, state: &mut State) -> Result<Vec<Keep>, DeviceError> {
        if state.in_flight.is_empty() {
            return Ok(Vec::new());
        }
        // SAFETY: the semaphore lives.
        let done = unsafe {
            self.context
                .device
                .get_semaphore_counter_value(self.timeline)
        }
        .map_err(|e| failed("vkGetSemaphoreCounterValue", e))?;
        let mut finished = Vec::new();
        while state.in_flight.front().is_some_and(|s| s.value <= done)
            && let Some(submission) = state.in_flight.pop_front()
        {
            state.idle.extend(submission.commands);
            let keep = submission.keep;
            let graph = keep.graph.as_ref().and_then(|g| g.errors.as_ref());
            for words in keep.errors.iter().chain(graph) {
                if let Some(found) = words.collect() {
                    state.error.get_or_insert(found);
                }
            }
            finished.push(keep);
        }
        Ok(finished)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: waiting has no precondition; after it nothing uses the semaphore. A lost
        // device cannot be waited for, and destroying is then allowed too.
        unsafe {
            let _ = self.context.device.queue_wait_idle(self.queue);
            self.context.device.destroy_semaphore(self.timeline, None);
        }
    }
}

impl Keep {
    fn mark(&self, value: u64) {
        let graph = self.graph.iter().flat_map(|g| &g.buffers);
        for buffer in self.buffers.iter().chain(graph) {
            if let Some(buffer) = buffer.as_any().downcast_ref::<VulkanBuffer>() {
                buffer.used_by(value);
            }
        }
    }
}

impl ErrorWords {
    /// The first word that a check wrote; all are cleared.
    fn collect(&self) -> Option<Tripped> {
        let mut found = None;
        for ErrorWord {
            offset,
            kernel,
            of_loops,
        } in &self.words
        {
            let mut word = [0; 4];
            self.memory.read(*offset, &mut word);
            let code = u32::from_le_bytes(word);
            if code != 0 {
                self.memory.write(*offset, &[0; 4]);
                let kernel = kernel.clone();
                found.get_or_insert(if *of_loops {
                    Tripped::Loops { kernel }
                } else {
                    Tripped::Index { kernel, code }
                });
            }
        }
        found
    }
}

impl Commands {
    pub fn new(context: Arc<Context>) -> Result<Commands, DeviceError> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(context.queue_family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the device lives and has this queue family.
        let pool = unsafe { context.device.create_command_pool(&info, None) }
            .map_err(|e| failed("vkCreateCommandPool", e))?;
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool was just created.
        match unsafe { context.device.allocate_command_buffers(&info) } {
            Ok(buffers) => match buffers.first() {
                Some(&buffer) => Ok(Commands {
                    context,
                    pool,
                    buffer,
                }),
                None => Err(DeviceError::Driver {
                    backend: BACKEND,
                    call: "vkAllocateCommandBuffers",
                    message: "no buffer".into(),
                }),
            },
            Err(error) => {
                // SAFETY: nothing uses the pool.
                unsafe { context.device.destroy_command_pool(pool, None) };
                Err(failed("vkAllocateCommandBuffers", error))
            }
        }
    }

    /// Starts recording, after all earlier work and with its writes visible.
    pub fn begin(&self, reusable: bool) -> Result<(), DeviceError> {
        let flags = if reusable {
            vk::CommandBufferUsageFlags::SIMULTANEOUS_USE
        } else {
            vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT
        };
        let info = vk::CommandBufferBeginInfo::default().flags(flags);
        // SAFETY: the buffer is not pending: it is fresh or its submission was retired.
        unsafe { self.context.device.begin_command_buffer(self.buffer, &info) }
            .map_err(|e| failed("vkBeginCommandBuffer", e))?;
        self.barrier();
        Ok(())
    }

    /// Ends recording; the host may read what was written once the submission is done.
    pub fn end(&self) -> Result<(), DeviceError> {
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ)];
        // SAFETY: the buffer is being recorded.
        unsafe {
            self.context.device.cmd_pipeline_barrier(
                self.buffer,
                vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER,
                vk::PipelineStageFlags::HOST,
                vk::DependencyFlags::empty(),
                &barrier,
                &[],
                &[],
            );
            self.context
                .device
                .end_command_buffer(self.buffer)
                .map_err(|e| failed("vkEndCommandBuffer", e))
        }
    }

    /// What follows sees every write of what came before.
    pub fn barrier(&self) {
        use vk::AccessFlags as Access;
        let stages = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
        let reads = Access::SHADER_READ | Access::UNIFORM_READ | Access::TRANSFER_READ;
        self.memory_barrier(stages, Access::SHADER_WRITE | Access::TRANSFER_WRITE, reads);
    }

    /// Launches that follow see every write of launches that came before.
    pub fn barrier_of_launches(&self) {
        use vk::AccessFlags as Access;
        let stage = vk::PipelineStageFlags::COMPUTE_SHADER;
        self.memory_barrier(stage, Access::SHADER_WRITE, Access::SHADER_READ);
    }

    /// Orders the writes of stages before the writes and `reads` of the same stages after.
    fn memory_barrier(
        &self,
        stages: vk::PipelineStageFlags,
        writes: vk::AccessFlags,
        reads: vk::AccessFlags,
    ) {
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(writes)
            .dst_access_mask(reads | writes)];
        // SAFETY: the buffer is being recorded.
        unsafe {
            self.context.device.cmd_pipeline_barrier(
                self.buffer,
                stages,
                stages,
                vk::DependencyFlags::empty(),
                &barrier,
                &[],
                &[],
            );
        }
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        // SAFETY: whoever held the commands waited for their submission.
        unsafe { self.context.device.destroy_command_pool(self.pool, None) };
    }
}
