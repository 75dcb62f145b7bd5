//! Metal: MSL texts through Apple's framework, on macOS.
//!
//! **Nobody has run this backend yet.** It is type-checked for `aarch64-apple-darwin`, its texts
//! are checked by clang over a header that stands for Metal's, and both were written from Apple's
//! documentation; a Mac has the last word.
//!
//! Buffers are in shared storage, which is the GPU's own memory on Apple's chips. A submission is
//! one command buffer with one serial encoder, so that each launch sees the writes of those
//! before it. Recorded lists are encoded again at each replay: Metal has no graphs of compute
//! work that bake buffers in. Apple's driver keeps its own cache of compiled pipelines.

#[cfg(target_os = "macos")]
mod device;

#[cfg(not(target_os = "macos"))]
#[path = "absent.rs"]
mod device;

pub use device::open;
