//! What a model keeps for its sequences on a device: where keys, values and states lie.
//!
//! Layers of full attention keep every position, in blocks that a sequence reserves when it
//! opens. Layers with a window keep only a ring: its table names the same few blocks over and
//! over, so that the kernels, which know tables alone, need not know of it. The ring holds the
//! window and the rows of one step more, so a step that is abandoned has overwritten nothing
//! that the committed positions still see.
//!
//! Recurrent layers keep at least two slots of state a sequence: a step reads the committed one
//! and writes another, which committing makes the committed one. States of earlier positions stay
//! where they are as snapshots, as long as slots are free: those of a common pool come to the two
//! of each sequence, and of states that lie close together one goes first (`pages.rs`). One more
//! slot stays zero, for sequences that begin, and one takes what padding rows leave.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Device, Tensor};

use super::matrix::failed;
use super::model::EngineOptions;
use crate::config::{Attention, Mamba2, Mixer, ModelConfig};
use crate::model::ModelError;

/// Positions of a cache block, and the rows of a tile of the prompt's
/// attention, which does not cross a block.
pub const BLOCK_SIZE: usize = 128;

/// Snapshots that a sequence has at most.
pub const MOST_SNAPSHOTS: usize = 8;
/// Bytes that all snapshots take at most.
const SNAPSHOT_BYTES: usize = 1 << 30;

/// How keys and values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum CacheType {
    /// As the activations' type.
    #[default]
    Activations,
    /// As 8-bit floats with a scale a row and head (`iron_corpus::f8_cache`).
    F8E4M3,
}

impl CacheType {
    /// The name on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Activations => "auto",
            Self::F8E4M3 => "fp8",
        }
    }

    /// Bytes of the key or the value that a head has of a position, where an activation has
    /// `element` bytes.
    pub const fn row_bytes(self, head_dim: u64, element: u64) -> u64 {
        match self {
            Self::Activations => head_dim * element,
            Self::F8E4M3 => head_dim + 1,
        }
    }
}

/// Sizes of the caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheShape {
    /// Longest sequence that fits.
    pub longest_sequence: usize,
    /// Sequences that may be open at once.
    pub max_sequences: usize,
    /// Blocks of a layer of full attention.
    pub blocks: usize,
    /// Entries of a row of a block table.
    pub blocks_a_sequence: usize,
    /// Blocks of a sequence in a layer with a window; 0 where there is none.
    pub ring_blocks: usize,
    /// Most rows of a step.
    pub step_rows: usize,
    /// Slots of states beside the two of each sequence; 0 where no layer is recurrent.
    pub snapshots: usize,
    /// How keys and values are kept.
    pub kind: CacheType,
}

impl CacheShape {
    /// The shape for a model set up by `options`.
    pub fn new(config: &ModelConfig, options: &EngineOptions) -> Self {
        let (positions, max_sequences) = (options.cache_positions, options.max_sequences);
        let max_step_rows = options.max_step_rows;
        let blocks = positions.div_ceil(BLOCK_SIZE).max(1);
        let blocks_a_sequence = config.context_length.div_ceil(BLOCK_SIZE);
        let ring = |window: usize| {
            // One block more, since a window rarely starts where a block does.
            let wanted = window.saturating_add(max_step_rows).div_ceil(BLOCK_SIZE) + 1;
            wanted.min(blocks_a_sequence)
        };
        Self {
            longest_sequence: config.context_length.min(blocks * BLOCK_SIZE),
            max_sequences,
            blocks,
            blocks_a_sequence,
            ring_blocks: config.widest_window().map_or(0, ring),
            step_rows: max_step_rows,
            snapshots: match slot_bytes(config) {
                0 => 0,
                bytes => (SNAPSHOT_BYTES / bytes).min(max_sequences.saturating_mul(MOST_SNAPSHOTS)),
            },
            kind: options.cache,
        }
    }

    /// Slots of a recurrent layer's states: two a sequence, the snapshots', the one that stays
    /// zero, and one that padding rows leave theirs in.
    pub fn state_slots(&self) -> usize {
        2 * self.max_sequences + self.snapshots + 2
    }

    /// The slot that stays zero: the last but one.
    pub fn zero_slot(&self) -> u32 {
        (2 * self.max_sequences + self.snapshots) as u32
    }

    /// Blocks of a layer with a window.
    pub fn window_blocks(&self) -> usize {
        self.ring_blocks * self.max_sequences
    }
}

/// Bytes of one slot of all recurrent layers, histories counted in f32.
fn slot_bytes(config: &ModelConfig) -> usize {
    let mamba2 = |mamba: &Mamba2| {
        mamba.inner_size() * mamba.state_size + (mamba.conv_width - 1) * mamba.conv_channels()
    };
    let elements = config.layers.iter().map(|layer| match &layer.mixer {
        Mixer::GatedDelta(delta) => {
            delta.value_size() * delta.key_head_dim + (delta.conv_width - 1) * delta.conv_channels()
        }
        Mixer::Mamba2(mamba) => mamba2(mamba),
        Mixer::Parallel(both) => mamba2(&both.1),
        Mixer::ShortConvolution(convolution) => (convolution.width - 1) * convolution.channels,
        Mixer::Attention(_) | Mixer::Latent(_) | Mixer::Absent => 0,
    });
    elements.sum::<usize>() * 4
}

/// Bytes that a model's sequences take on a device, by kind of state, known before it is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryPlan {
    /// Keys and values of layers that keep every position.
    pub full_cache: u64,
    /// Keys and values of layers that keep a window.
    pub window_cache: u64,
    /// Matrices of recurrent layers.
    pub recurrent: u64,
    /// Rows that short convolutions still see.
    pub convolution: u64,
}

impl MemoryPlan {
    /// The plan of a model set up by `options`.
    pub fn new(config: &ModelConfig, options: &EngineOptions) -> Self {
        let cache = CacheShape::new(config, options);
        let element = u64::from(options.dtype.bytes());
        let slots = cache.state_slots() as u64;
        let mut plan = Self::default();
        for layer in &config.layers {
            match &layer.mixer {
                Mixer::Attention(attention) => plan.add_attention(attention, &cache, element),
                Mixer::GatedDelta(delta) => {
                    plan.recurrent += slots * (delta.value_size() * delta.key_head_dim) as u64 * 4;
                    let held = (delta.conv_width - 1) * delta.conv_channels();
                    plan.convolution += slots * held as u64 * element;
                }
                Mixer::Mamba2(mamba) => plan.add_mamba2(mamba, slots, element),
                Mixer::Latent(latent) => {
                    let position = (latent.latent_size + latent.rotary_dim) as u64 * element;
                    plan.full_cache += position * (cache.blocks * BLOCK_SIZE) as u64;
                }
                Mixer::ShortConvolution(convolution) => {
                    let held = (convolution.width - 1) * convolution.channels;
                    plan.convolution += slots * held as u64 * element;
                }
                Mixer::Parallel(both) => {
                    plan.add_attention(&both.0, &cache, element);
                    plan.add_mamba2(&both.1, slots, element);
                }
                Mixer::Absent => {}
            }
        }
        plan
    }

    fn add_attention(&mut self, attention: &Attention, cache: &CacheShape, element: u64) {
        if attention.shares_cache_of.is_some() {
            return;
        }
        let row = cache.kind.row_bytes(attention.head_dim as u64, element);
        let position = 2 * attention.kv_head_count as u64 * row;
        let (sum, blocks) = match attention.window {
            Some(_) => (&mut self.window_cache, cache.window_blocks()),
            None => (&mut self.full_cache, cache.blocks),
        };
        *sum += position * (blocks * BLOCK_SIZE) as u64;
    }

    fn add_mamba2(&mut self, mamba: &Mamba2, slots: u64, element: u64) {
        self.recurrent += slots * (mamba.inner_size() * mamba.state_size) as u64 * 4;
        let held = (mamba.conv_width - 1) * mamba.conv_channels();
        self.convolution += slots * held as u64 * element;
    }

    /// All kinds together.
    pub fn bytes(&self) -> u64 {
        self.full_cache + self.window_cache + self.recurrent + self.convolution
    }
}

/// Where each sequence's positions lie.
pub struct BlockTables {
    /// Of layers of full attention: `[sequences, blocks a sequence]`.
    pub full: Tensor,
    /// Of layers with a window, the same shape; every sequence's ring is its own for good.
    pub window: Tensor,
    /// The row of `full` of the sequence whose prompt is unpacked: `[blocks a sequence]`.
    pub prompt_full: Tensor,
    /// The same of `window`.
    pub prompt_window: Tensor,
    /// As `full`, of sequences whose blocks lie in order.
    pub in_order: Tensor,
    /// As `window`, of rings whose blocks lie in order.
    pub ring_in_order: Tensor,
    /// Blocks of a sequence's ring.
    ring: usize,
}

impl BlockTables {
    /// Tables of a shape.
    pub fn new(device: &Arc<dyn Device>, shape: &CacheShape) -> Result<Self, ModelError> {
        let dims = [shape.max_sequences as u64, shape.blocks_a_sequence as u64];
        let ring = shape.ring_blocks;
        let entries: Vec<u32> = (0..shape.max_sequences)
            .flat_map(|slot| ring_row(slot, ring, shape.blocks_a_sequence))
            .collect();
        let row = [dims[1]];
        let ordered = |ring: usize| {
            let entries = ring_row(0, ring, shape.blocks_a_sequence);
            let entries = entries.repeat(shape.max_sequences);
            failed(Tensor::from_slice(device, Scalar::U32, &dims, &entries))
        };
        Ok(Self {
            full: failed(Tensor::zeros(device, Scalar::U32, &dims))?,
            window: failed(Tensor::from_slice(device, Scalar::U32, &dims, &entries))?,
            prompt_full: failed(Tensor::zeros(device, Scalar::U32, &row))?,
            prompt_window: failed(Tensor::zeros(device, Scalar::U32, &row))?,
            in_order: ordered(shape.blocks_a_sequence)?,
            ring_in_order: ordered(ring)?,
            ring,
        })
    }

    /// Writes the blocks of a sequence into its row.
    pub fn assign(&self, slot: u32, blocks: &[u32]) -> Result<(), ModelError> {
        let mut bytes: Vec<u8> = blocks.iter().flat_map(|b| b.to_le_bytes()).collect();
        bytes.resize(self.full.shape()[1] as usize * 4, 0);
        let slot = u64::from(slot);
        let row = failed(self.full.slice(0, slot..slot + 1))?;
        failed(row.write_bytes(&bytes))
    }

    /// Blocks of a sequence's ring.
    pub fn ring(&self) -> usize {
        self.ring
    }

    /// Makes a sequence the one whose prompt the next step unpacks.
    pub fn choose(&self, slot: u32, blocks: &[u32]) -> Result<(), ModelError> {
        let pages = self.prompt_full.shape()[0] as usize;
        let mut full = blocks.to_vec();
        full.resize(pages, 0);
        let write = |to: &Tensor, entries: &[u32]| {
            let bytes: Vec<u8> = entries.iter().flat_map(|b| b.to_le_bytes()).collect();
            failed(to.write_bytes(&bytes))
        };
        write(&self.prompt_full, &full)?;
        if self.ring > 0 {
            write(
                &self.prompt_window,
                &ring_row(slot as usize, self.ring, pages),
            )?;
        }
        Ok(())
    }
}

/// The row of a sequence's ring, which is its own for good.
fn ring_row(slot: usize, ring: usize, pages: usize) -> Vec<u32> {
    let entry = |page: usize| (slot * ring + page.checked_rem(ring).unwrap_or(0)) as u32;
    (0..pages).map(entry).collect()
}
