//! Devices, buffers, streams, launches and receipts.
//!
//! | you want | call |
//! |---|---|
//! | a device | [`open()`], [`devices`] |
//! | memory with a shape | [`Tensor`] |
//! | to run a kernel by its typed launcher | [`launch()`] |
//! | to run a kernel by name and instance | [`launch_by_name`] |
//! | to run IR in hand | [`launch_kernel`] |
//! | a list of launches, checked once and played often | [`record`], [`Device::submit`], [`Device::record`] |
//! | to know what ran | [`receipt`] |
//! | every rule checked | [`mod@reference`], with [`reference::ReferenceOptions`] |
//!
//! Contracts are checked when a launch is recorded, never when it is replayed. There is no
//! fallback from one backend to another.

mod alignment;
pub mod cache;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod emulated;
pub(crate) mod gpu;
pub mod hip;
pub mod host;
pub mod identity;
mod in_order;
mod launch;
mod memory;
pub mod metal;
mod open;
pub mod receipt;
pub mod reference;
mod tensor;
pub mod tuning;
pub mod vulkan;

pub use device::{Backend, Device, DeviceError, Graph, Pipeline, RecordedLaunch};
pub use launch::{find, launch, launch_by_name, launch_kernel, pipeline_of, record, submit};
pub use open::{devices, open};
pub use tensor::{Tensor, contiguous_strides};
