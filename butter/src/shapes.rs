//! Shapes of known models, and random weights of them: what speed depends on, without a
//! checkpoint.

use crate::config::{Activation, Attention, FeedForward, LayerConfig, Mixer, ModelConfig, Norms};
use crate::rope::{Rope, RopeLayout, RopeScaling};
use crate::weights::{
    AttentionWeights, FeedForwardWeights, GatedWeights, LayerWeights, MixerWeights, ModelWeights,
    Random, WeightMatrix, WeightVector,
};

/// The sizes of a Qwen3 model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Name on the command line.
    pub name: &'static str,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    tied: bool,
}

/// Every shape; sizes from the `config.json` of the models on the Hugging Face hub. `tiny` is no
/// model's, and runs in moments on a processor.
pub const SHAPES: [Shape; 5] = [
    Shape {
        name: "tiny",
        vocab_size: 1024,
        hidden_size: 128,
        intermediate_size: 256,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        tied: true,
    },
    Shape {
        name: "qwen3-0.6b",
        vocab_size: 151_936,
        hidden_size: 1024,
        intermediate_size: 3072,
        layers: 28,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        tied: true,
    },
    Shape {
        name: "qwen3-1.7b",
        vocab_size: 151_936,
        hidden_size: 2048,
        intermediate_size: 6144,
        layers: 28,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        tied: true,
    },
    Shape {
        name: "qwen3-4b",
        vocab_size: 151_936,
        hidden_size: 2560,
        intermediate_size: 9728,
        layers: 36,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        tied: true,
    },
    Shape {
        name: "qwen3-8b",
        vocab_size: 151_936,
        hidden_size: 4096,
        intermediate_size: 12_288,
        layers: 36,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        tied: false,
    },
];

/// The shape of that name.
pub fn by_name(name: &str) -> Option<Shape> {
    SHAPES.into_iter().find(|shape| shape.name == name)
}

impl Shape {
    /// The config of a Qwen3 of these sizes.
    pub fn config(self) -> ModelConfig {
        let attention = Attention {
            query_key_norm: true,
            rope: Some(Rope {
                theta: 1e6,
                rotary_dim: self.head_dim,
                layout: RopeLayout::HalfSplit,
                scaling: RopeScaling::Default,
            }),
            ..Attention::plain(self.heads, self.kv_heads, self.head_dim)
        };
        let layer = LayerConfig {
            mixer: Mixer::Attention(attention),
            feed_forward: FeedForward::Dense {
                intermediate_size: self.intermediate_size,
                activation: Activation::Silu,
            },
            norms: Norms::Before,
        };
        ModelConfig {
            vocab_size: self.vocab_size,
            context_length: 40_960,
            hidden_size: self.hidden_size,
            norm_eps: 1e-6,
            tied_embeddings: self.tied,
            layers: vec![layer; self.layers],
            ..ModelConfig::new("qwen3")
        }
    }

    /// Random weights of it, equal for equal seeds on every backend: matrices uniform with
    /// deviation `1 / sqrt(inputs)`, norms of ones.
    pub fn random_weights(self, seed: u32) -> ModelWeights {
        let mut next = seed;
        let mut matrix = |rows: usize, columns: usize| {
            // Elements count on from the seed: another matrix begins elsewhere.
            next = next.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15);
            let random = Random {
                seed: next,
                limit: (3.0 / columns as f32).sqrt(),
            };
            WeightMatrix::of_random(rows, columns, random)
        };
        let (query, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let mut layer = || LayerWeights {
            mixer_norm: Some(WeightVector::ones(hidden)),
            mixer: MixerWeights::Attention(Box::new(AttentionWeights {
                query: matrix(query, hidden),
                key: matrix(kv, hidden),
                value: matrix(kv, hidden),
                output: matrix(hidden, query),
                query_norm: Some(WeightVector::ones(self.head_dim)),
                key_norm: Some(WeightVector::ones(self.head_dim)),
                ..AttentionWeights::default()
            })),
            mixer_post_norm: None,
            feed_forward_norm: Some(WeightVector::ones(hidden)),
            feed_forward: FeedForwardWeights::Dense(GatedWeights {
                gate: matrix(inner, hidden),
                up: matrix(inner, hidden),
                down: matrix(hidden, inner),
            }),
            feed_forward_post_norm: None,
            inputs: None,
            output_scale: None,
        };
        let layers = (0..self.layers).map(|_| layer()).collect();
        ModelWeights {
            embedding: matrix(self.vocab_size, hidden),
            layers,
            final_norm: WeightVector::ones(hidden),
            output: (!self.tied).then(|| matrix(self.vocab_size, hidden)),
            per_layer: None,
            multi_token_head: None,
        }
    }
}
