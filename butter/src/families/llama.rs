//! Llama 2 and 3, SmolLM, TinyLlama: pre-norm blocks of grouped-query attention and a
//! SiLU-gated feed-forward. Reference: transformers, `LlamaForCausalLM`.

use super::{Family, GgufReader};
use crate::catalogue::TensorCatalogue;
use crate::config::gguf::GgufConfig;
use crate::config::hugging_face::{common, dense, must_be_false};
use crate::config::keys::Keys;
use crate::config::{Activation, Attention, ConfigFault, LayerConfig, Mixer, ModelConfig, Norms};
use crate::rope::{Rope, RopeLayout};
use crate::weights::{ModelWeights, Resolver};

pub(super) const FAMILY: Family = Family {
    gguf: Some(GgufReader {
        architecture: "llama",
        read: from_gguf,
    }),
    ..Family::new(&["llama"], "LlamaForCausalLM", from_json, weights)
};

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, FAMILY.name, false)?;
    must_be_false(keys, "mlp_bias")?;
    keys.only("sliding_window", "null", |_| false)?;
    let attention = common.rotary_attention(keys, 1.0)?;
    let layout = match keys.bool("rope_interleaved")? {
        None | Some(false) => RopeLayout::HalfSplit,
        Some(true) => RopeLayout::Interleaved,
    };
    let layer = LayerConfig {
        mixer: Mixer::Attention(Attention {
            rope: attention.rope.map(|rope| Rope { layout, ..rope }),
            ..attention
        }),
        feed_forward: dense(keys, "hidden_act", Activation::Silu)?,
        norms: Norms::Before,
    };
    Ok(ModelConfig {
        layers: vec![layer; common.layer_count],
        ..common.config
    })
}

fn from_gguf(
    file: &GgufConfig<'_>,
    catalogue: &TensorCatalogue,
) -> Result<ModelConfig, ConfigFault> {
    file.alike(FAMILY.name, catalogue, RopeLayout::Interleaved, false)
}

fn weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    resolver.ignore(|name| {
        // Old files store the plain frequencies, which follow from the config.
        name.starts_with("model.layers.") && name.ends_with(".self_attn.rotary_emb.inv_freq")
    });
    resolver.model(config, |resolver, prefix, layer| {
        resolver.standard_layer(prefix, layer)
    })
}
