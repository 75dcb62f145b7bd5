//! Buffers in the memory of the process, for backends that run one launch at a time.

use std::any::Any;
use std::cell::UnsafeCell;

use iron_ir::launch::DeviceBuffer;
use parking_lot::Mutex;

use crate::device::DeviceError;

#[repr(align(256))]
#[expect(
    dead_code,
    reason = "the bytes are reached through the buffer's base address"
)]
struct Chunk([u8; 256]);

/// Memory of the process, aligned to 256 bytes, that only the device reads and writes, under its
/// lock. Its first contents are no plausible values.
pub(crate) struct ProcessMemory {
    chunks: Box<[UnsafeCell<Chunk>]>,
    bytes: u64,
    backend: &'static str,
}

// SAFETY: the bytes are read and written only by the device, under its lock.
unsafe impl Sync for ProcessMemory {}

impl ProcessMemory {
    /// Memory of a device of that backend.
    pub fn new(backend: &'static str, bytes: u64) -> Result<ProcessMemory, DeviceError> {
        let out_of_memory = || DeviceError::OutOfMemory { backend, bytes };
        let count = usize::try_from(bytes.div_ceil(256)).map_err(|_| out_of_memory())?;
        let mut chunks = Vec::new();
        chunks
            .try_reserve_exact(count)
            .map_err(|_| out_of_memory())?;
        chunks.resize_with(count, || UnsafeCell::new(Chunk([0xa7; 256])));
        Ok(ProcessMemory {
            chunks: chunks.into(),
            bytes,
            backend,
        })
    }

    /// Address of the first byte.
    pub fn base(&self) -> *mut u8 {
        // The pointer is made from the whole slice, so that it may reach every chunk.
        self.chunks.as_ptr().cast::<u8>().cast_mut()
    }
}

impl DeviceBuffer for ProcessMemory {
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The buffer as process memory of that backend.
pub(crate) fn own<'b>(
    backend: &'static str,
    buffer: &'b dyn DeviceBuffer,
) -> Result<&'b ProcessMemory, DeviceError> {
    let own = buffer.as_any().downcast_ref::<ProcessMemory>();
    own.filter(|own| own.backend == backend)
        .ok_or_else(|| DeviceError::Usage {
            backend,
            message: "a buffer of another device".into(),
        })
}

/// Copies into a buffer of that backend, while nobody holds its lock.
pub(crate) fn upload<T>(
    backend: &'static str,
    lock: &Mutex<T>,
    to: &dyn DeviceBuffer,
    offset: u64,
    bytes: &[u8],
) -> Result<(), DeviceError> {
    let _turn = lock.lock();
    let target = range_of(backend, to, offset, bytes.len())?;
    // SAFETY: in range; the lock keeps others away.
    unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}

/// Copies out of a buffer of that backend, while nobody holds its lock.
pub(crate) fn download<T>(
    backend: &'static str,
    lock: &Mutex<T>,
    from: &dyn DeviceBuffer,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), DeviceError> {
    let _turn = lock.lock();
    let source = range_of(backend, from, offset, bytes.len())?;
    // SAFETY: in range; the lock keeps others away.
    unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    Ok(())
}

/// The address of a range that lies in the buffer.
fn range_of(
    backend: &'static str,
    buffer: &dyn DeviceBuffer,
    offset: u64,
    bytes: usize,
) -> Result<*mut u8, DeviceError> {
    let own = own(backend, buffer)?;
    let end = offset.checked_add(bytes as u64);
    if end.is_none_or(|end| end > own.bytes) {
        return Err(DeviceError::Usage {
            backend,
            message: format!(
                "a copy of {bytes} bytes at offset {offset} of a buffer of {} bytes",
                own.bytes
            ),
        });
    }
    // SAFETY: the offset lies in the buffer, or at its end.
    Ok(unsafe { own.base().add(offset as usize) })
}
