//! Running models on a device: weights in the form that kernels read, state of sequences,
//! an activation arena, and steps recorded once a key.

mod arena;
mod attention;
mod burst;
mod draws;
mod exchange;
mod feed_forward;
mod fused;
mod head;
mod latent;
mod layer_inputs;
mod matrix;
mod mixture;
mod model;
mod pack;
mod pack_k;
mod pages;
mod plan;
mod prompts;
mod recurrent;
mod route;
mod rows;
mod state;
mod step;
mod tuned;
mod unpacked;

pub use burst::KindTime;

pub use model::{DeviceModel, EngineOptions, Prepared, StateUsage};
pub use pack::{AffinePlanes, BLOCK, PackedFormat, Planes, pack, pack_affine};
pub use plan::ProductInputs;
pub use route::Route;
pub use state::{BLOCK_SIZE, CacheType, MemoryPlan};
