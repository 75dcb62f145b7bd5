//! Device memory with a free list.
//!
//! All work of a device is queued in order on one stream, so memory that is dropped may be given
//! out again at once: whatever uses it next is queued behind whatever used it last. Graphs hold
//! the buffers whose addresses they bake in.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use iron_ir::launch::DeviceBuffer;

use super::device::Stream;
use super::driver::OUT_OF_MEMORY;
use crate::device::DeviceError;

/// Memory kept for reuse at most, as a share of the device's.
const KEPT_SHARE: u64 = 8;

/// Blocks that are free, by size.
#[derive(Default)]
pub(crate) struct FreeList {
    blocks: HashMap<u64, Vec<u64>>,
    bytes: u64,
}

/// The size that a request is rounded up to: few distinct sizes, little waste.
fn rounded(bytes: u64) -> u64 {
    const SMALL: u64 = 1 << 20;
    let step = if bytes <= SMALL { 512 } else { 2 << 20 };
    bytes.max(1).next_multiple_of(step)
}

/// Memory of a device.
pub(crate) struct GpuBuffer {
    pub stream: Arc<Stream>,
    pub address: u64,
    bytes: u64,
    block: u64,
}

impl GpuBuffer {
    /// Takes a free block or allocates one.
    pub fn new(stream: &Arc<Stream>, bytes: u64) -> Result<GpuBuffer, DeviceError> {
        let out_of_memory = || DeviceError::OutOfMemory {
            backend: stream.driver.vendor.name(),
            bytes,
        };
        if bytes > stream.memory {
            return Err(out_of_memory());
        }
        let block = rounded(bytes);
        let found = {
            let mut free = stream.free.lock();
            let address = free.blocks.get_mut(&block).and_then(Vec::pop);
            if address.is_some() {
                free.bytes -= block;
            }
            address
        };
        let address = match found {
            Some(address) => address,
            None => {
                stream.enter()?;
                let size = usize::try_from(block).map_err(|_| out_of_memory())?;
                let mut answer = stream.driver.try_alloc(size);
                if answer == Err(OUT_OF_MEMORY) {
                    stream.release_free_blocks();
                    answer = stream.driver.try_alloc(size);
                }
                match answer {
                    Ok(address) => address,
                    Err(OUT_OF_MEMORY) => return Err(out_of_memory()),
                    Err(status) => {
                        stream.driver.check("memory allocation", status)?;
                        return Err(out_of_memory());
                    }
                }
            }
        };
        Ok(GpuBuffer {
            stream: stream.clone(),
            address,
            bytes,
            block,
        })
    }
}

impl DeviceBuffer for GpuBuffer {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for GpuBuffer {
    fn drop(&mut self) {
        let mut free = self.stream.free.lock();
        if free.bytes + self.block <= self.stream.memory / KEPT_SHARE {
            free.bytes += self.block;
            free.blocks
                .entry(self.block)
                .or_default()
                .push(self.address);
            return;
        }
        drop(free);
        if self.stream.enter().is_ok() {
            // SAFETY: allocated by the driver and freed once; it waits for work that uses it.
            let _ = unsafe { self.stream.driver.free(self.address) };
        }
    }
}

impl Stream {
    /// Gives every free block back to the driver.
    pub fn release_free_blocks(&self) {
        let blocks = std::mem::take(&mut *self.free.lock());
        if self.enter().is_err() {
            return;
        }
        for address in blocks.blocks.into_values().flatten() {
            // SAFETY: as in `drop`; the list held the only use of the address.
            let _ = unsafe { self.driver.free(address) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn sizes_round_up_to_few() {
        assert_eq!(rounded(0), 512);
        assert_eq!(rounded(512), 512);
        assert_eq!(rounded(513), 1024);
        assert_eq!(rounded(1 << 20), 1 << 20);
        assert_eq!(rounded((1 << 20) + 1), 2 << 20);
    }
}
