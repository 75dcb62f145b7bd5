//! Running models on a device: weights in the form that kernels read, a paged key-value cache,
//! an activation arena, and steps recorded once a key.

mod arena;
mod llama;
mod matrix;
mod pack;
mod pages;
mod step;

pub use llama::{EngineOptions, LlamaModel};
pub use pack::{AffinePlanes, BLOCK, PackedFormat, Planes, pack, pack_affine};
