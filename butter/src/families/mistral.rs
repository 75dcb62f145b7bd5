//! Mistral: a Llama whose layers may all have a window. Reference: transformers,
//! `MistralForCausalLM`.

use super::Family;
use crate::config::hugging_face::{common, dense, rope};
use crate::config::keys::Keys;
use crate::config::{Activation, Attention, ConfigFault, LayerConfig, Mixer, ModelConfig, Norms};
use crate::weights::{ModelWeights, Resolver};

pub(super) const FAMILY: Family = Family {
    name: "mistral",
    model_types: &["mistral"],
    architecture: "MistralForCausalLM",
    from_json,
    // Its GGUF files are those of the architecture `llama`.
    gguf: None,
    weights,
    gguf_names: &[],
    hugging_face_names: &[],
};

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, FAMILY.name, false)?;
    let layer = LayerConfig {
        mixer: Mixer::Attention(Attention {
            window: keys.size("sliding_window")?,
            rope: Some(rope(keys, common.rope_defaults(1.0))?),
            ..common.attention
        }),
        feed_forward: dense(keys, "hidden_act", Activation::Silu)?,
        norms: Norms::Before,
    };
    Ok(ModelConfig {
        layers: vec![layer; common.layer_count],
        ..common.config
    })
}

fn weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    resolver.model(config, |resolver, prefix, layer| {
        resolver.standard_layer(prefix, layer)
    })
}
