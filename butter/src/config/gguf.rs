//! [`ModelConfig`] from GGUF metadata: what the architectures share.

use super::keys::{Found, Keys};
use super::{
    Activation, Attention, ConfigError, ConfigFault, FeedForward, LayerConfig, Mixer, ModelConfig,
    Norms, check_layer_count, quantity,
};
use crate::catalogue::TensorCatalogue;
use crate::config::hugging_face::Common;
use crate::families;
use crate::gguf::{GgufFile, GgufHeader, TensorType};
use crate::quote::quoted;
use crate::rope::{Rope, RopeLayout, RopeScaling};

/// Keys below the architecture's name that do not change what the graph computes.
const IRRELEVANT: &[&str] = &[
    // How the converter's input was laid out; the tensors say it themselves.
    "tensor_data_layout",
    // Whether a RoPE extension was fine-tuned: a remark on training.
    "rope.scaling.finetuned",
];

/// Per-frequency divisors of the Llama 3.1 RoPE recipe.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Output projection where it is not tied.
pub(crate) const OUTPUT: &str = "output.weight";

impl ModelConfig {
    /// Reads the configuration of a GGUF file.
    pub fn from_gguf(file: &GgufFile, catalogue: &TensorCatalogue) -> Result<Self, ConfigError> {
        read(file.header(), catalogue).map_err(|fault| ConfigError {
            path: file.path().to_owned(),
            fault: Box::new(fault),
        })
    }
}

fn read(header: &GgufHeader, catalogue: &TensorCatalogue) -> Result<ModelConfig, ConfigFault> {
    let architecture = check_general(header)?;
    let Some((_, reader)) = families::by_gguf_architecture(architecture) else {
        return Err(ConfigFault::Unsupported {
            key: "general.architecture".to_owned(),
            found: quoted(architecture),
            supported: families::supported_gguf_architectures(),
        });
    };
    let prefix = format!("{architecture}.");
    let file = GgufConfig {
        header,
        keys: Keys::gguf(header, &prefix),
    };
    let config = (reader.read)(&file, catalogue)
        .and_then(ModelConfig::validate)
        .map_err(|fault| fault.with_keys(&file.keys))?;
    file.keys.finish(IRRELEVANT)?;
    Ok(config)
}

/// The keys of a GGUF file below its architecture's name.
pub(crate) struct GgufConfig<'a> {
    header: &'a GgufHeader,
    keys: Keys<'a>,
}

impl GgufConfig<'_> {
    /// The keys themselves.
    pub(crate) fn keys(&self) -> &Keys<'_> {
        &self.keys
    }

    /// The sizes that every architecture has.
    pub(crate) fn common(
        &self,
        family: &'static str,
        catalogue: &TensorCatalogue,
    ) -> Result<Common, ConfigFault> {
        let keys = &self.keys;
        let hidden_size = keys.required_size("embedding_length")?;
        let head_count = keys.required_size("attention.head_count")?;
        if head_count == 0 {
            return quantity::HEADS.invalid("0".to_owned(), "it must lie in 1..2^31");
        }
        let head_dim = match keys.size("attention.key_length")? {
            Some(size) => size,
            None if hidden_size.is_multiple_of(head_count) => hidden_size / head_count,
            None => {
                return Err(ConfigFault::Invalid {
                    key: keys.name("embedding_length"),
                    found: format!("{hidden_size} for {head_count} heads"),
                    rule: format!(
                        "without {} it must be a multiple of them",
                        keys.name("attention.key_length")
                    ),
                });
            }
        };
        if let Some(value_length) = keys.size("attention.value_length")?
            && value_length != head_dim
        {
            return Err(ConfigFault::Conflict {
                first_key: keys.name("attention.key_length"),
                first: head_dim.to_string(),
                second_key: keys.name("attention.value_length"),
                second: value_length.to_string(),
            });
        }
        let eps = keys.epsilon("attention.layer_norm_rms_epsilon")?;
        let eps = keys.required("attention.layer_norm_rms_epsilon", eps)?;
        let tokens = self
            .header
            .get("tokenizer.ggml.tokens")
            .and_then(|value| value.as_strings());
        let vocab_size = match (keys.size("vocab_size")?, tokens) {
            (Some(size), _) => size,
            (None, Some(tokens)) => tokens.len(),
            (None, None) => keys.required("vocab_size", None)?,
        };
        let is_zero = |found: &Found| matches!(found, Found::Unsigned(0));
        keys.only("expert_count", "0 (no mixture of experts)", is_zero)?;
        keys.only("expert_used_count", "0 (no mixture of experts)", is_zero)?;
        keys.only("attention.causal", "true", |found| {
            matches!(found, Found::Bool(true))
        })?;
        let kv_head_count = keys.size("attention.head_count_kv")?.unwrap_or(head_count);
        Ok(Common {
            config: ModelConfig {
                vocab_size,
                context_length: keys.required_size("context_length")?,
                hidden_size,
                norm_eps: eps,
                tied_embeddings: catalogue.get(OUTPUT).is_none(),
                ..ModelConfig::new(family)
            },
            layer_count: check_layer_count(keys.required_size("block_count")?)?,
            attention: Attention::plain(head_count, kv_head_count, head_dim),
        })
    }

    /// The RoPE recipe.
    pub(crate) fn rope(
        &self,
        catalogue: &TensorCatalogue,
        attention: &Attention,
        layout: RopeLayout,
    ) -> Result<Rope, ConfigFault> {
        let rotary_dim = self
            .keys
            .size("rope.dimension_count")?
            .unwrap_or(attention.head_dim);
        Ok(Rope {
            theta: self.keys.positive("rope.freq_base")?.unwrap_or(10_000.0),
            rotary_dim,
            layout,
            scaling: scaling(&self.keys, catalogue, rotary_dim)?,
        })
    }

    /// The config of a family whose layers are all alike: attention with one recipe of positions
    /// and a dense feed-forward of SiLU.
    pub(crate) fn alike(
        &self,
        family: &'static str,
        catalogue: &TensorCatalogue,
        layout: RopeLayout,
        query_key_norm: bool,
    ) -> Result<ModelConfig, ConfigFault> {
        let common = self.common(family, catalogue)?;
        let layer = LayerConfig {
            mixer: Mixer::Attention(Attention {
                query_key_norm,
                rope: Some(self.rope(catalogue, &common.attention, layout)?),
                ..common.attention
            }),
            feed_forward: self.dense(Activation::Silu)?,
            norms: Norms::Before,
        };
        Ok(ModelConfig {
            layers: vec![layer; common.layer_count],
            ..common.config
        })
    }

    /// The dense feed-forward.
    pub(crate) fn dense(&self, activation: Activation) -> Result<FeedForward, ConfigFault> {
        Ok(FeedForward::Dense {
            intermediate_size: self.keys.required_size("feed_forward_length")?,
            activation,
        })
    }
}

/// Checks the keys outside the architecture's own that change how to read the file.
/// Gives the architecture.
fn check_general(header: &GgufHeader) -> Result<&str, ConfigFault> {
    let unsupported = |key: &str, found: String, supported: &str| {
        Err(ConfigFault::Unsupported {
            key: key.to_owned(),
            found,
            supported: supported.to_owned(),
        })
    };
    let text = |key: &str| {
        header
            .get(key)
            .map(|value| (value.as_str(), value.describe()))
    };
    let architecture = match text("general.architecture") {
        None => {
            return Err(ConfigFault::Missing {
                key: "general.architecture".to_owned(),
            });
        }
        Some((Some(architecture), _)) => architecture,
        Some((None, found)) => {
            let supported = families::supported_gguf_architectures();
            return unsupported("general.architecture", found, &supported);
        }
    };
    match text("general.type") {
        None | Some((Some("model"), _)) => {}
        Some((_, found)) => {
            return unsupported(
                "general.type",
                found,
                "\"model\" (no adapters or vocabularies)",
            );
        }
    }
    if let Some(count) = header.get("split.count")
        && count.as_u64().is_none_or(|count| count > 1)
    {
        let supported = "1 (join the parts with `llama-gguf-split --merge`)";
        return unsupported("split.count", count.describe(), supported);
    }
    let quantised = header
        .tensors()
        .iter()
        .any(|tensor| tensor.ty.is_quantised());
    if let Some(version) = header.get("general.quantization_version")
        && quantised
        && version.as_u64() != Some(2)
    {
        let supported = "2 (the layout of blocks since May 2023)";
        return unsupported(
            "general.quantization_version",
            version.describe(),
            supported,
        );
    }
    Ok(architecture)
}

fn scaling(
    keys: &Keys<'_>,
    catalogue: &TensorCatalogue,
    rotary_dim: usize,
) -> Result<RopeScaling, ConfigFault> {
    let factor = keys.float("rope.scaling.factor")?;
    // The recipe's own values, which only YaRN and longrope read.
    keys.only("rope.scaling.attn_factor", "1", is_one)?;
    keys.only("rope.scaling.yarn_log_multiplier", "0", |found| {
        matches!(found, Found::Unsigned(0)) || matches!(found, Found::Float(v) if *v == 0.0)
    })?;
    let original = keys.size("rope.scaling.original_context_length")?;
    let by_keys = match (keys.string("rope.scaling.type")?.as_deref(), factor) {
        (None | Some("none"), None) => match keys.float("rope.scale_linear")? {
            None => RopeScaling::Default,
            Some(factor) => linear(&keys.name("rope.scale_linear"), factor)?,
        },
        (Some("none"), Some(1.0)) => RopeScaling::Default,
        (Some("none"), Some(factor)) => {
            return Err(ConfigFault::Conflict {
                first_key: keys.name("rope.scaling.type"),
                first: "\"none\"".to_owned(),
                second_key: keys.name("rope.scaling.factor"),
                second: factor.to_string(),
            });
        }
        (Some("linear"), Some(factor)) => linear(&keys.name("rope.scaling.factor"), factor)?,
        (Some("linear"), None) => {
            return Err(ConfigFault::Missing {
                key: keys.name("rope.scaling.factor"),
            });
        }
        (None, Some(_)) => {
            return Err(ConfigFault::Missing {
                key: keys.name("rope.scaling.type"),
            });
        }
        (Some(other), _) => {
            return Err(ConfigFault::Unsupported {
                key: keys.name("rope.scaling.type"),
                found: quoted(other),
                supported: "\"none\", \"linear\"".to_owned(),
            });
        }
    };

    let Some(tensor) = catalogue.get(ROPE_FACTORS) else {
        return Ok(by_keys);
    };
    if by_keys != RopeScaling::Default || original.is_some() {
        return Err(ConfigFault::Conflict {
            first_key: format!("tensor {ROPE_FACTORS}"),
            first: "present".to_owned(),
            second_key: keys.name("rope.scaling"),
            second: "present as well".to_owned(),
        });
    }
    let expected = rotary_dim / 2;
    if tensor.ty() != TensorType::F32 || tensor.shape() != [expected] {
        return Err(ConfigFault::Invalid {
            key: format!("tensor {ROPE_FACTORS}"),
            found: format!("{} {:?}", tensor.ty(), tensor.shape()),
            rule: format!("it must be F32 [{expected}], half the rotary size"),
        });
    }
    let factors: Vec<f32> = tensor
        .bytes()
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    if let Some(factor) = factors
        .iter()
        .find(|factor| !(factor.is_finite() && **factor > 0.0))
    {
        return Err(ConfigFault::Invalid {
            key: format!("tensor {ROPE_FACTORS}"),
            found: factor.to_string(),
            rule: "each factor must be positive".to_owned(),
        });
    }
    Ok(RopeScaling::Factors(factors))
}

fn is_one(found: &Found) -> bool {
    matches!(found, Found::Unsigned(1)) || matches!(found, Found::Float(v) if *v == 1.0)
}

fn linear(key: &str, factor: f64) -> Result<RopeScaling, ConfigFault> {
    if factor.is_finite() && factor > 0.0 {
        return Ok(RopeScaling::Linear { factor });
    }
    Err(ConfigFault::Invalid {
        key: key.to_owned(),
        found: factor.to_string(),
        rule: "it must be positive".to_owned(),
    })
}

/// Keys of a GGUF file that loading does not look at: descriptions below
/// `general.`, and the namespaces of those who made the file (`quantize.*`).
pub(crate) fn ignored_keys(header: &GgufHeader) -> impl Iterator<Item = &str> {
    const LOOKED_AT: &[&str] = &[
        "general.architecture",
        "general.type",
        "general.alignment",
        "general.quantization_version",
    ];
    header.metadata().map(|(key, _)| key).filter(|key| {
        let namespace = key.split_once('.').map_or(*key, |(namespace, _)| namespace);
        let architecture = families::by_gguf_architecture(namespace).is_some();
        !architecture && !matches!(namespace, "tokenizer" | "split") && !LOOKED_AT.contains(key)
    })
}
