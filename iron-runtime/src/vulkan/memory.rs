//! Device memory: large blocks with one buffer and one address each, cut into allocations.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ash::vk;
use iron_ir::launch::DeviceBuffer;
use parking_lot::Mutex;

use super::instance::Context;
use super::{BACKEND, failed};
use crate::device::DeviceError;

/// Bytes of a shared block. Larger allocations than half of it have a block of their own.
const BLOCK_BYTES: u64 = 64 << 20;
/// Alignment of every allocation: the largest that any Vulkan limit may ask of an offset.
const ALIGNMENT: u64 = 256;

/// Who reads and writes the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// Kernels; the host where memory is unified.
    Device,
    /// The host, coherently, and copies or small reads of the device.
    Host,
}

/// The blocks of one device.
pub(super) struct Pool {
    context: Arc<Context>,
    device_type: u32,
    host_type: u32,
    blocks: Mutex<BTreeMap<u64, Block>>,
    next: AtomicU64,
}

struct Block {
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    /// Null where the host cannot see it.
    mapped: *mut u8,
    address: u64,
    bytes: u64,
    memory_type: u32,
    /// Free ranges: offset to length. Neighbours are merged.
    free: BTreeMap<u64, u64>,
}

// SAFETY: the mapping is plain memory that lives as long as the block.
unsafe impl Send for Block {}

/// A range of a block, given back when dropped.
pub(super) struct Allocation {
    pool: Arc<Pool>,
    block: u64,
    pub buffer: vk::Buffer,
    pub offset: u64,
    pub address: u64,
    /// Bytes asked for.
    pub bytes: u64,
    mapped: *mut u8,
}

// SAFETY: the mapping is plain memory that lives as long as the allocation; access is ordered
// by the queue's timeline.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Pool {
    pub fn new(context: Arc<Context>) -> Result<Arc<Pool>, DeviceError> {
        use vk::MemoryPropertyFlags as Flags;
        let memory = &context.info.memory;
        let types = &memory.memory_types[..memory.memory_type_count as usize];
        let find = |wanted: Flags| types.iter().position(|t| t.property_flags.contains(wanted));
        let host = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
        let unified = find(host | Flags::DEVICE_LOCAL).filter(|_| is_unified(memory));
        let cached = |index: Option<usize>, flags| find(flags | Flags::HOST_CACHED).or(index);
        let lacks = |what: &str| DeviceError::Driver {
            backend: BACKEND,
            call: "vkGetPhysicalDeviceMemoryProperties",
            message: format!("no {what} memory"),
        };
        let host_type = cached(find(host), host).ok_or_else(|| lacks("host-coherent"))?;
        let device_type = match unified {
            Some(index) => cached(Some(index), host | Flags::DEVICE_LOCAL).unwrap_or(index),
            None => find(Flags::DEVICE_LOCAL).ok_or_else(|| lacks("device-local"))?,
        };
        Ok(Arc::new(Pool {
            context,
            device_type: device_type as u32,
            host_type: host_type as u32,
            blocks: Mutex::new(BTreeMap::new()),
            next: AtomicU64::new(0),
        }))
    }

    /// Takes memory. Its contents are undefined.
    pub fn allocate(self: &Arc<Pool>, bytes: u64, usage: Use) -> Result<Allocation, DeviceError> {
        let size = bytes.max(1).checked_next_multiple_of(ALIGNMENT);
        let max = self.context.info.max_allocation;
        let Some(size) = size.filter(|&s| s <= max) else {
            return Err(DeviceError::OutOfMemory {
                backend: BACKEND,
                bytes,
            });
        };
        let memory_type = match usage {
            Use::Device => self.device_type,
            Use::Host => self.host_type,
        };
        let mut blocks = self.blocks.lock();
        for (&id, block) in blocks.iter_mut() {
            if block.memory_type == memory_type
                && let Some(offset) = block.take(size)
            {
                return Ok(self.hand_out(id, block, offset, bytes));
            }
        }
        let block_bytes = if size > BLOCK_BYTES / 2 {
            size
        } else {
            BLOCK_BYTES.min(max)
        };
        let mut block = self.create_block(block_bytes, memory_type)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(offset) = block.take(size) else {
            return Err(DeviceError::OutOfMemory {
                backend: BACKEND,
                bytes,
            });
        };
        let allocation = self.hand_out(id, &block, offset, bytes);
        blocks.insert(id, block);
        Ok(allocation)
    }

    fn hand_out(self: &Arc<Pool>, id: u64, block: &Block, offset: u64, bytes: u64) -> Allocation {
        let mapped = if block.mapped.is_null() {
            block.mapped
        } else {
            // SAFETY: the offset lies in the block, which is mapped whole.
            unsafe { block.mapped.add(offset as usize) }
        };
        Allocation {
            pool: self.clone(),
            block: id,
            buffer: block.buffer,
            offset,
            address: block.address + offset,
            bytes,
            mapped,
        }
    }

    fn create_block(&self, bytes: u64, memory_type: u32) -> Result<Block, DeviceError> {
        let device = &self.context.device;
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::UNIFORM_BUFFER
            | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        let out_of_memory = |call, error| match error {
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
                DeviceError::OutOfMemory {
                    backend: BACKEND,
                    bytes,
                }
            }
            other => failed(call, other),
        };
        // SAFETY: the device lives; the info holds no pointer.
        let buffer = unsafe { device.create_buffer(&info, None) }
            .map_err(|e| out_of_memory("vkCreateBuffer", e))?;
        // SAFETY: the buffer was just created.
        let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
        let mut flags =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let allocate = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(memory_type)
            .push_next(&mut flags);
        // SAFETY: the type index is below the device's count.
        let memory = match unsafe { device.allocate_memory(&allocate, None) } {
            Ok(memory) => memory,
            Err(error) => {
                // SAFETY: nothing uses the buffer.
                unsafe { device.destroy_buffer(buffer, None) };
                return Err(out_of_memory("vkAllocateMemory", error));
            }
        };
        let visible = self.context.info.memory.memory_types[memory_type as usize]
            .property_flags
            .contains(vk::MemoryPropertyFlags::HOST_VISIBLE);
        let bound = || -> Result<(*mut u8, u64), DeviceError> {
            // SAFETY: memory and buffer are fresh and of matching size; the whole range is
            // mapped once and stays mapped.
            unsafe {
                device
                    .bind_buffer_memory(buffer, memory, 0)
                    .map_err(|e| out_of_memory("vkBindBufferMemory", e))?;
                let mapped = if visible {
                    device
                        .map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())
                        .map_err(|e| out_of_memory("vkMapMemory", e))?
                        .cast()
                } else {
                    std::ptr::null_mut()
                };
                let address = vk::BufferDeviceAddressInfo::default().buffer(buffer);
                Ok((mapped, device.get_buffer_device_address(&address)))
            }
        };
        match bound() {
            Ok((mapped, address)) => Ok(Block {
                buffer,
                memory,
                mapped,
                address,
                bytes,
                memory_type,
                free: BTreeMap::from([(0, bytes)]),
            }),
            Err(error) => {
                // SAFETY: nothing uses either.
                unsafe {
                    device.destroy_buffer(buffer, None);
                    device.free_memory(memory, None);
                }
                Err(error)
            }
        }
    }

    fn give_back(&self, id: u64, offset: u64, bytes: u64) {
        let mut blocks = self.blocks.lock();
        let Some(block) = blocks.get_mut(&id) else {
            return;
        };
        block.put(offset, bytes.max(1).next_multiple_of(ALIGNMENT));
        let is_whole = block.free.get(&0) == Some(&block.bytes);
        if is_whole
            && block.bytes != BLOCK_BYTES
            && let Some(block) = blocks.remove(&id)
        {
            self.destroy(&block);
        }
    }

    fn destroy(&self, block: &Block) {
        // SAFETY: no allocation of the block is left, so no queued work uses it.
        unsafe {
            self.context.device.destroy_buffer(block.buffer, None);
            self.context.device.free_memory(block.memory, None);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for block in std::mem::take(&mut *self.blocks.lock()).values() {
            self.destroy(block);
        }
    }
}

impl Block {
    /// The first free range that is long enough.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&offset, &length) = self.free.iter().find(|(_, length)| **length >= bytes)?;
        self.free.remove(&offset);
        if length > bytes {
            self.free.insert(offset + bytes, length - bytes);
        }
        Some(offset)
    }

    fn put(&mut self, mut offset: u64, mut bytes: u64) {
        if let Some((&before, &length)) = self.free.range(..offset).next_back()
            && before + length == offset
        {
            self.free.remove(&before);
            offset = before;
            bytes += length;
        }
        if let Some(length) = self.free.remove(&(offset + bytes)) {
            bytes += length;
        }
        self.free.insert(offset, bytes);
    }
}

impl Allocation {
    /// The host's view, where there is one.
    pub fn mapped(&self) -> Option<*mut u8> {
        (!self.mapped.is_null()).then_some(self.mapped)
    }

    /// Writes through the host's view. The range must lie in the allocation.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let fits = offset
            .checked_add(bytes.len() as u64)
            .is_some_and(|end| end <= self.bytes);
        let (Some(mapped), true) = (self.mapped(), fits) else {
            return false;
        };
        // SAFETY: the range was checked, and no queued work touches it (the caller waited, or
        // has not submitted yet).
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), mapped.add(offset as usize), bytes.len());
        }
        true
    }

    /// Reads through the host's view. The range must lie in the allocation.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let fits = offset
            .checked_add(bytes.len() as u64)
            .is_some_and(|end| end <= self.bytes);
        let (Some(mapped), true) = (self.mapped(), fits) else {
            return false;
        };
        // SAFETY: the range was checked, and no queued work writes it (the caller waited).
        unsafe {
            let from = mapped.add(offset as usize);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
        true
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.pool.give_back(self.block, self.offset, self.bytes);
    }
}

/// Every heap is the device's own: host and device share the memory.
fn is_unified(memory: &vk::PhysicalDeviceMemoryProperties) -> bool {
    memory.memory_heaps[..memory.memory_heap_count as usize]
        .iter()
        .all(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
}

/// A buffer of this backend.
pub(super) struct VulkanBuffer {
    pub allocation: Arc<Allocation>,
    /// Timeline value of the last submission that uses it.
    pub last_use: AtomicU64,
}

impl VulkanBuffer {
    pub fn is_of(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.allocation.pool, pool)
    }

    pub fn used_by(&self, value: u64) {
        self.last_use.fetch_max(value, Ordering::AcqRel);
    }
}

impl DeviceBuffer for VulkanBuffer {
    fn bytes(&self) -> u64 {
        self.allocation.bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
