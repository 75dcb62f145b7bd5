//! GPT-OSS: attention with sinks, a window in every second layer, and mixtures of experts of four
//! bits (MXFP4) with biases and a clamped SwiGLU. Reference: transformers, `GptOssForCausalLM`.

use super::Family;
use crate::config::hugging_face::{RopeDefaults, common, layer_types, must_say, rope};
use crate::config::keys::Keys;
use crate::config::{
    Activation, Attention, ConfigFault, FeedForward, LayerConfig, Mixer, Mixture, ModelConfig,
    Norms,
};
use crate::weights::{FeedForwardWeights, LayerNames, MixtureWeights, ModelWeights, Resolver};

pub(super) const FAMILY: Family =
    Family::new(&["gpt_oss"], "GptOssForCausalLM", from_json, weights);

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, FAMILY.name, false)?.or_norm_eps(keys, 1e-5)?;
    let quantisation = keys.object("quantization_config")?;
    let quantisation = keys.required("quantization_config", quantisation)?;
    let quantisation = Keys::json(quantisation, "quantization_config.");
    must_say(&quantisation, "quant_method", "mxfp4")?;
    // What is stored plainly; the tensors say so themselves.
    quantisation.strings("modules_to_not_convert")?;
    quantisation.finish(&[])?;
    must_say(keys, "hidden_act", "silu")?;
    // Stands in the recipe of positions as well, which is read.
    keys.size("initial_context_length")?;
    let defaults = RopeDefaults {
        theta: 150_000.0,
        ..common.rope_defaults(1.0)
    };
    let bias = keys.bool("attention_bias")?.unwrap_or(true);
    let attention = Attention {
        rope: Some(rope(keys, defaults)?),
        sinks: true,
        bias,
        output_bias: bias,
        ..common.attention
    };
    let number = |key: &str, default: f64| -> Result<f32, ConfigFault> {
        Ok(keys.positive(key)?.unwrap_or(default) as f32)
    };
    let expert_count = keys.size_of_any(&["num_local_experts", "num_experts"])?;
    let chosen = keys.size_of_any(&["num_experts_per_tok", "experts_per_token"])?;
    let mixture = Mixture::plain(
        keys.required("num_local_experts", expert_count)?,
        keys.required("num_experts_per_tok", chosen)?,
        keys.required_size("intermediate_size")?,
    );
    let feed_forward = FeedForward::Mixture(Mixture {
        activation: Activation::ClampedSwiGlu {
            limit: number("swiglu_limit", 7.0)?,
            alpha: number("swiglu_alpha", 1.702)?,
        },
        biases: true,
        router_bias: true,
        // A softmax over the logits chosen is the softmax over all, divided by their sum.
        renormalise: true,
        ..mixture
    });
    let window = keys.size("sliding_window")?.unwrap_or(128);
    let known = [("sliding_attention", true), ("full_attention", false)];
    let types = match layer_types(keys, common.layer_count, &known)? {
        Some(types) => types,
        None => (0..common.layer_count)
            .map(|i| i.is_multiple_of(2))
            .collect(),
    };
    let layer = |sliding: bool| LayerConfig {
        mixer: Mixer::Attention(Attention {
            window: sliding.then_some(window),
            ..attention.clone()
        }),
        feed_forward: feed_forward.clone(),
        norms: Norms::Before,
    };
    Ok(ModelConfig {
        layers: types.into_iter().map(layer).collect(),
        ..common.config
    })
}

fn weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    resolver.model(config, |resolver, prefix, layer| {
        let mixer = resolver.mixer(prefix, &layer.mixer);
        let feed_forward = match &layer.feed_forward {
            FeedForward::Mixture(mixture) => {
                FeedForwardWeights::Mixture(Box::new(experts(resolver, prefix, mixture)))
            }
            other => resolver.feed_forward(prefix, other),
        };
        resolver.layer_of(prefix, &LayerNames::STANDARD, mixer, feed_forward)
    })
}

/// Gates and what they gate lie row by row in one tensor of all experts.
fn experts(resolver: &mut Resolver<'_>, prefix: &str, mixture: &Mixture) -> MixtureWeights {
    let hidden = resolver.hidden_size();
    let (count, size) = (mixture.expert_count, mixture.intermediate_size);
    let name = |part: &str| format!("{prefix}mlp.{part}");
    let both = resolver.mxfp4(&name("experts.gate_up_proj"), [count, 2 * size, hidden]);
    let both_biases = resolver.elements(&name("experts.gate_up_proj_bias"), [count, 2 * size]);
    MixtureWeights {
        router: resolver.matrix(&name("router.weight"), &[count, hidden]),
        router_bias: Some(resolver.vector(&name("router.bias"), count)),
        gate: both.alternate(0),
        up: both.alternate(1),
        down: resolver.mxfp4(&name("experts.down_proj"), [count, hidden, size]),
        biases: Some([
            both_biases.alternate(0),
            both_biases.alternate(1),
            resolver.matrix(&name("experts.down_proj_bias"), &[count, hidden]),
        ]),
        ..MixtureWeights::default()
    }
}
