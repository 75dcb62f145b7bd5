//! Devices, buffers, streams, launches and receipts.

pub mod device;

pub use device::{Backend, Device, DeviceError, Graph, Pipeline, RecordedLaunch};
