//! Qwen2 and 2.5: a Llama whose query, key and value projections have biases. Reference:
//! transformers, `Qwen2ForCausalLM`.

use super::{Family, GgufReader, standard_weights};
use crate::catalogue::TensorCatalogue;
use crate::config::gguf::GgufConfig;
use crate::config::hugging_face::{common, dense, must_be_false, rope};
use crate::config::keys::Keys;
use crate::config::{Activation, Attention, ConfigFault, LayerConfig, Mixer, ModelConfig, Norms};
use crate::rope::RopeLayout;

pub(super) const FAMILY: Family = Family {
    gguf: Some(GgufReader {
        architecture: "qwen2",
        read: from_gguf,
    }),
    ..Family::new(&["qwen2"], "Qwen2ForCausalLM", from_json, standard_weights)
};

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, FAMILY.name, false)?;
    must_be_false(keys, "use_mrope")?;
    let attention = Attention {
        bias: true,
        rope: Some(rope(keys, common.rope_defaults(1.0))?),
        ..common.attention
    };
    let feed_forward = dense(keys, "hidden_act", Activation::Silu)?;
    let layer = |window| LayerConfig {
        mixer: Mixer::Attention(Attention {
            window,
            ..attention.clone()
        }),
        feed_forward: feed_forward.clone(),
        norms: Norms::Before,
    };
    let windows = super::qwen3::windows(keys, common.layer_count)?;
    Ok(ModelConfig {
        layers: windows.into_iter().map(layer).collect(),
        ..common.config
    })
}

fn from_gguf(
    file: &GgufConfig<'_>,
    catalogue: &TensorCatalogue,
) -> Result<ModelConfig, ConfigFault> {
    let mut config = file.alike(FAMILY.name, catalogue, RopeLayout::HalfSplit, false)?;
    for layer in &mut config.layers {
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.bias = true;
        }
    }
    Ok(config)
}
