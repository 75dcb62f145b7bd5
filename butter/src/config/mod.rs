//! Model configuration of the Llama family, from GGUF metadata or `config.json`.
//!
//! Reading is strict: every key is used, listed as irrelevant to the result, or
//! a load error. A value that Butter does not compute with (biases, another
//! activation, an unknown RoPE recipe) is an error that names key and value,
//! never a default.

mod gguf;
mod hugging_face;
mod keys;

use std::path::PathBuf;

pub(crate) use gguf::{OUTPUT, ROPE_FACTORS, ignored_keys};

use crate::rope::Rope;

/// Largest dimension that kernels index (dims are `u32`, below 2^31).
const LARGEST_DIMENSION: usize = (1 << 31) - 1;
/// More layers than any published model by an order of magnitude; bounds the
/// work that a lying file can ask for.
const MOST_LAYERS: usize = 4096;

/// Everything that the Llama graph needs to know about a checkpoint.
///
/// Llama here is the architecture: SmolLM2 and TinyLlama are Llamas as well.
/// Pre-norm blocks of grouped-query attention and a SiLU-gated feed-forward,
/// without biases.
#[derive(Clone, PartialEq, Debug)]
pub struct LlamaConfig {
    /// Tokens in the embedding.
    pub vocab_size: usize,
    /// Longest sequence, prompt and answer together.
    pub context_length: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the feed-forward.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub layer_count: usize,
    /// Query heads.
    pub head_count: usize,
    /// Key-value heads; a divisor of `head_count`.
    pub kv_head_count: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Added to the mean square under the root of each RMS norm.
    pub rms_norm_eps: f32,
    /// Position embedding.
    pub rope: Rope,
    /// Whether the embedding is the output projection as well. If so, it is
    /// used even where the file holds a separate one.
    pub tied_embeddings: bool,
}

impl LlamaConfig {
    /// Elements of all query heads together.
    pub fn query_size(&self) -> usize {
        self.head_count * self.head_dim
    }

    /// Elements of all key (or value) heads together.
    pub fn kv_size(&self) -> usize {
        self.kv_head_count * self.head_dim
    }

    /// Bytes of keys and values that one position takes over all layers.
    pub fn kv_bytes_per_position(&self, element_bytes: usize) -> usize {
        2 * self.layer_count * self.kv_size() * element_bytes
    }

    /// Checks what each value alone and the values together must satisfy.
    fn validate(self) -> Result<Self, ConfigFault> {
        let invalid = |key: &str, found: String, rule: &str| {
            Err(ConfigFault::Invalid {
                key: key.to_owned(),
                found,
                rule: rule.to_owned(),
            })
        };
        for (key, size) in [
            ("vocabulary size", self.vocab_size),
            ("context length", self.context_length),
            ("hidden size", self.hidden_size),
            ("feed-forward size", self.intermediate_size),
            ("layer count", self.layer_count),
            ("head count", self.head_count),
            ("key-value head count", self.kv_head_count),
            ("head size", self.head_dim),
        ] {
            if size == 0 || size > LARGEST_DIMENSION {
                return invalid(key, size.to_string(), "it must lie in 1..2^31");
            }
        }
        if self.layer_count > MOST_LAYERS {
            return invalid(
                "layer count",
                self.layer_count.to_string(),
                "at most 4096 are read",
            );
        }
        let projected = self.head_count.checked_mul(self.head_dim);
        if projected.is_none_or(|size| size > LARGEST_DIMENSION) {
            let found = format!("{} of size {}", self.head_count, self.head_dim);
            return invalid(
                "heads",
                found,
                "all heads together must stay below 2^31 elements",
            );
        }
        if !self.head_count.is_multiple_of(self.kv_head_count) {
            let found = format!("{} for {} query heads", self.kv_head_count, self.head_count);
            return invalid(
                "key-value head count",
                found,
                "it must divide the query heads",
            );
        }
        let rotary = self.rope.rotary_dim;
        if rotary == 0 || !rotary.is_multiple_of(2) || rotary > self.head_dim {
            let found = format!("{rotary} of a head of {}", self.head_dim);
            return invalid(
                "rotary size",
                found,
                "it must be even, positive and within the head",
            );
        }
        if !(self.rope.theta.is_finite() && self.rope.theta > 0.0) {
            return invalid(
                "RoPE base",
                self.rope.theta.to_string(),
                "it must be positive",
            );
        }
        if !(self.rms_norm_eps.is_finite() && self.rms_norm_eps >= 0.0) {
            let found = self.rms_norm_eps.to_string();
            return invalid(
                "RMS norm epsilon",
                found,
                "it must be finite and not negative",
            );
        }
        Ok(self)
    }
}

/// A configuration could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Box<ConfigFault>,
}

/// One thing wrong with a configuration. Names from files are already quoted.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFault {
    /// The file could not be read.
    #[error("cannot be read: {0}")]
    Io(std::io::Error),
    /// The file is not a JSON object.
    #[error("is not a JSON object: {0}")]
    Json(serde_json::Error),
    /// A required key is absent.
    #[error("required key {key} is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// A key holds another type of value.
    #[error("{key} is {found}, expected {expected}")]
    Type {
        /// The key.
        key: String,
        /// What it holds.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// Keys that Butter does not know, so that ignoring them may change results.
    #[error("unknown key{} {}: Butter cannot tell whether ignoring {} changes results", if keys.len() == 1 { "" } else { "s" }, keys.join(", "), if keys.len() == 1 { "it" } else { "them" })]
    Unknown {
        /// The keys, quoted.
        keys: Vec<String>,
    },
    /// A value that the graph does not compute with.
    #[error("{key} is {found}, supported: {supported}")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What is supported.
        supported: &'static str,
    },
    /// Two keys that say different things.
    #[error("{first_key} is {first}, but {second_key} is {second}")]
    Conflict {
        /// One key.
        first_key: String,
        /// Its value.
        first: String,
        /// The other key.
        second_key: String,
        /// Its value.
        second: String,
    },
    /// A value that no model can have.
    #[error("{key} is {found}: {rule}")]
    Invalid {
        /// The key or quantity.
        key: String,
        /// Its value.
        found: String,
        /// What it must satisfy.
        rule: String,
    },
}
