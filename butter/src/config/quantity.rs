//! What the checks that all families share call a number, and the keys that files give it by, so
//! that a message names what stands in the file.

use super::ConfigFault;
use super::keys::Keys;

/// A number of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantity {
    /// Its name in messages.
    pub(super) name: &'static str,
    /// Where files have it: keys of `config.json`, with dots into objects, and keys of GGUF files
    /// below the architecture's name. Those that a file has are named with their values.
    keys: &'static [&'static str],
}

macro_rules! quantities {
    ($($constant:ident = $name:literal: $($key:literal),*;)*) => {
        $(pub(crate) const $constant: Quantity = Quantity { name: $name, keys: &[$($key),*] };)*
    };
}

quantities! {
    VOCABULARY = "vocabulary size": "vocab_size";
    CONTEXT = "context length": "max_position_embeddings", "context_length";
    HIDDEN = "hidden size": "hidden_size", "embedding_length";
    LAYERS = "layer count": "num_hidden_layers", "layers_block_type", "hybrid_override_pattern",
        "block_count";
    HEAD_LAYERS = "multi-token heads": "num_nextn_predict_layers", "num_mtp_layers",
        "mtp_num_hidden_layers";
    EPSILON = "RMS norm epsilon": "rms_norm_eps", "norm_eps", "layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon";
    EMBEDDING_SCALE = "embedding scale": "embedding_multiplier", "hidden_size";
    RESIDUAL_SCALE = "residual scale": "residual_multiplier";
    LOGIT_SCALE = "logit scale": "logits_scaling", "lm_head_multiplier";
    LOGIT_CAP = "logit soft cap": "final_logit_softcapping";
    LAYER_VOCABULARY = "per-layer vocabulary size": "vocab_size_per_layer_input";
    LAYER_INPUT = "per-layer input size": "hidden_size_per_layer_input";
    SHARED_CACHE = "shared cache": "num_kv_shared_layers";
    ACTIVATION = "activation": "hidden_act", "hidden_activation", "mlp_hidden_act";
    HEADS = "head count": "num_attention_heads", "attention.head_count";
    KV_HEADS = "key-value head count": "num_key_value_heads", "num_global_key_value_heads",
        "num_attention_heads", "attention.head_count_kv", "attention.head_count";
    HEAD_SIZE = "head size": "head_dim", "attention_head_dim", "global_head_dim", "hidden_size",
        "num_attention_heads", "attention.key_length", "embedding_length", "attention.head_count";
    ALL_HEADS = "heads": "num_attention_heads", "num_key_value_heads", "head_dim",
        "global_head_dim", "hidden_size", "attention.head_count", "attention.key_length";
    WINDOW = "window": "sliding_window", "attention.sliding_window";
    ATTENTION_SCALE = "attention scale": "attention_multiplier", "query_pre_attn_scalar",
        "head_dim", "hidden_size", "num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim";
    ATTENTION_CAP = "attention soft cap": "attn_logit_softcapping";
    VALUES = "values": "attention_k_eq_v";
    ROTARY = "rotary size": "partial_rotary_factor", "rope_parameters.partial_rotary_factor",
        "rope_scaling.partial_rotary_factor", "rope_parameters.full_attention.partial_rotary_factor",
        "rope_parameters.sliding_attention.partial_rotary_factor", "head_dim", "global_head_dim",
        "hidden_size",
        "num_attention_heads", "rope.dimension_count", "attention.key_length",
        "embedding_length", "attention.head_count";
    ROPE_BASE = "RoPE base": "rope_theta", "rope_local_base_freq", "rope_parameters.rope_theta",
        "rope_scaling.rope_theta", "rope_parameters.full_attention.rope_theta",
        "rope_parameters.sliding_attention.rope_theta", "rope.freq_base", "rope.freq_base_swa";
    DELTA_KEY_HEADS = "key head count": "linear_num_key_heads";
    DELTA_VALUE_HEADS = "value head count": "linear_num_value_heads", "linear_num_key_heads";
    DELTA_KEY_SIZE = "key head size": "linear_key_head_dim";
    DELTA_VALUE_SIZE = "value head size": "linear_value_head_dim";
    DELTA_HEADS = "heads": "linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads",
        "linear_value_head_dim";
    CONVOLUTION = "convolution width": "linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel",
        "conv_L_cache";
    CHANNELS = "convolution channels": "hidden_size";
    ALL_CHANNELS = "convolution": "hidden_size", "conv_L_cache";
    STATE_HEADS = "state-space head count": "mamba_n_heads", "mamba_num_heads";
    STATE_HEAD_SIZE = "state-space head size": "mamba_d_head", "mamba_head_dim", "mamba_d_ssm";
    STATE = "state size": "mamba_d_state", "ssm_state_size";
    STATE_GROUPS = "state group count": "mamba_n_groups", "n_groups", "mamba_n_heads",
        "mamba_num_heads";
    STATE_ALL = "heads": "mamba_n_heads", "mamba_num_heads", "mamba_d_head", "mamba_head_dim",
        "mamba_n_groups", "n_groups", "mamba_d_state", "ssm_state_size";
    NORM_GROUPS = "norm group count": "mamba_n_groups", "n_groups";
    TIME_STEPS = "time step limits": "time_step_limit";
    FEED_FORWARD = "feed-forward size": "intermediate_size", "shared_intermediate_size",
        "block_ff_dim", "block_multiple_of", "block_ffn_dim_multiplier", "feed_forward_length";
    EXPERTS = "expert count": "num_experts", "num_local_experts", "n_routed_experts";
    CHOSEN = "experts a token": "num_experts_per_tok", "experts_per_token", "num_experts",
        "num_local_experts", "n_routed_experts", "n_group", "topk_group";
    EXPERT_SIZE = "expert size": "moe_intermediate_size", "intermediate_size";
    EXPERT_SCALE = "scale of expert weights": "routed_scaling_factor";
    EXPERT_GROUPS = "expert groups": "n_group", "topk_group", "n_routed_experts";
    SHARED_EXPERT = "shared expert size": "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size", "shared_intermediate_size", "n_shared_experts",
        "moe_intermediate_size";
    LATENT = "latent size": "kv_lora_rank";
    QUERY_RANK = "query rank": "q_lora_rank";
    UNROTATED = "unrotated key size": "qk_nope_head_dim";
    ROTATED = "rotated key size": "qk_rope_head_dim", "partial_rotary_factor",
        "rope_parameters.partial_rotary_factor";
    LATENT_VALUE = "value size": "v_head_dim";
    LATENT_HEADS = "heads": "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim",
        "v_head_dim";
    MULTIPLIER = "multiplier": "attention_in_multiplier", "attention_out_multiplier",
        "key_multiplier", "ssm_in_multiplier", "ssm_out_multiplier", "ssm_multipliers",
        "mlp_multipliers";
}

impl Quantity {
    /// The fault of a value that no model can have.
    pub(super) fn invalid<T>(self, found: String, rule: &str) -> Result<T, ConfigFault> {
        Err(ConfigFault::Range {
            quantity: self.name,
            keys: self.keys,
            found,
            given: String::new(),
            rule: rule.to_owned(),
        })
    }
}

impl ConfigFault {
    /// The same, naming the keys of the file that the value comes from.
    pub(crate) fn with_keys(mut self, file: &Keys<'_>) -> Self {
        if let Self::Range { keys, given, .. } = &mut self {
            let found = keys.iter().filter_map(|key| {
                let value = file.given(key)?;
                Some(format!("{} = {value}", file.name(key)))
            });
            let found: Vec<String> = found.collect();
            if !found.is_empty() {
                *given = format!(" ({})", found.join(", "));
            }
        }
        self
    }
}
