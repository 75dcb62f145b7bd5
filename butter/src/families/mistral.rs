//! Mistral: a Llama whose layers may all have a window. Reference: transformers,
//! `MistralForCausalLM`.

use super::{Family, standard_weights};
use crate::config::hugging_face::{common, dense, rope};
use crate::config::keys::Keys;
use crate::config::{Activation, Attention, ConfigFault, LayerConfig, Mixer, ModelConfig, Norms};

// Its GGUF files are those of the architecture `llama`.
pub(super) const FAMILY: Family = Family::new(
    &["mistral"],
    "MistralForCausalLM",
    from_json,
    standard_weights,
);

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
