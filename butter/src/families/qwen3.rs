//! Qwen3: a Llama whose heads' queries and keys are normalised before they are rotated.
//! Reference: transformers, `Qwen3ForCausalLM`.

use super::{Family, GgufReader, standard_weights};
use crate::catalogue::TensorCatalogue;
use crate::config::gguf::GgufConfig;
use crate::config::hugging_face::{common, dense, layer_types};
use crate::config::keys::Keys;
use crate::config::{Activation, Attention, ConfigFault, LayerConfig, Mixer, ModelConfig, Norms};
use crate::rope::RopeLayout;

pub(super) const FAMILY: Family = Family {
    gguf: Some(GgufReader {
        architecture: "qwen3",
        read: from_gguf,
    }),
    ..Family::new(&["qwen3"], "Qwen3ForCausalLM", from_json, standard_weights)
};

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, FAMILY.name, false)?;
    let attention = Attention {
        query_key_norm: true,
        ..common.rotary_attention(keys, 1.0)?
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
    let windows = windows(keys, common.layer_count)?;
    Ok(ModelConfig {
        layers: windows.into_iter().map(layer).collect(),
        ..common.config
    })
}

/// The window of each layer: with `use_sliding_window`, layers from `max_window_layers` on have
/// it, unless `layer_types` says otherwise.
pub(super) fn windows(
    keys: &Keys<'_>,
    layer_count: usize,
) -> Result<Vec<Option<usize>>, ConfigFault> {
    let in_use = keys.bool("use_sliding_window")?.unwrap_or(false);
    let window = keys.size("sliding_window")?.filter(|_| in_use);
    let full_layers = keys.size("max_window_layers")?.unwrap_or(28);
    let types = layer_types(
        keys,
        layer_count,
        &[("full_attention", false), ("sliding_attention", true)],
    )?;
    let Some(types) = types else {
        return Ok((0..layer_count)
            .map(|index| window.filter(|_| index >= full_layers))
            .collect());
    };
    if !in_use && types.contains(&true) {
        return Err(ConfigFault::Conflict {
            first_key: keys.name("use_sliding_window"),
            first: "false".to_owned(),
            second_key: keys.name("layer_types"),
            second: "a list with \"sliding_attention\"".to_owned(),
        });
    }
    if window.is_none() && types.contains(&true) {
        return Err(ConfigFault::Missing {
            key: "sliding_window".to_owned(),
        });
    }
    Ok(types
        .into_iter()
        .map(|sliding| window.filter(|_| sliding))
        .collect())
}

fn from_gguf(
    file: &GgufConfig<'_>,
    catalogue: &TensorCatalogue,
) -> Result<ModelConfig, ConfigFault> {
    file.alike(FAMILY.name, catalogue, RopeLayout::HalfSplit, true)
}
