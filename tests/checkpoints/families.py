"""Each family's tiny configuration, its class, and how its checkpoint is stored."""

import copy
from dataclasses import dataclass, field
from typing import Callable

import torch
import transformers

COMMON = {
    "vocab_size": 512,
    "hidden_size": 64,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}


@dataclass
class Family:
    """How a family's checkpoint is made."""

    name: str
    overrides: dict
    config_class: str
    model_class: str
    prepare: Callable = lambda model: None
    stored: Callable = lambda tensors: tensors
    added: dict = field(default_factory=dict)

    def config(self):
        return getattr(transformers, self.config_class)(**copy.deepcopy(self.overrides))

    def model(self, config):
        return getattr(transformers, self.model_class)(config)


# The numbers that four bits stand for (OCP Microscaling formats, E2M1), by code.
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FP4 = torch.tensor(FP4 + [-x for x in FP4])


def mxfp4(weights):
    """Codes and exponents of blocks of 32 along the last dimension, and what they decode to."""
    blocks = weights.float().reshape(*weights.shape[:-1], -1, 32)
    largest = blocks.abs().amax(-1, keepdim=True).clamp_min(2.0**-20)
    exponents = torch.floor(torch.log2(largest)) - 2
    scaled = blocks * torch.exp2(-exponents)
    codes = (scaled.unsqueeze(-1) - FP4).abs().argmin(-1)
    decoded = (FP4[codes] * torch.exp2(exponents)).reshape(weights.shape)
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return packed, (exponents.squeeze(-1) + 127).to(torch.uint8), decoded


EXPERTS = ["gate_up_proj", "down_proj"]


def round_experts(model):
    """GPT-OSS: expert weights that four bits hold."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith(tuple(f"experts.{part}" for part in EXPERTS)):
                decoded = mxfp4(tensor.transpose(1, 2).contiguous())[2]
                tensor.copy_(decoded.transpose(1, 2))


def packed_experts(tensors):
    """GPT-OSS: experts as the released checkpoints store them, outputs by blocks of inputs."""
    stored = {}
    for name, tensor in tensors.items():
        if name.endswith(tuple(f"experts.{part}" for part in EXPERTS)):
            blocks, scales, _ = mxfp4(tensor.transpose(1, 2).contiguous())
            stored[f"{name}_blocks"], stored[f"{name}_scales"] = blocks, scales
        else:
            stored[name] = tensor
    return stored


FAMILIES = {
    family.name: family
    for family in [
        Family(
            "mistral",
            {**COMMON, **HEADS, "intermediate_size": 160, "num_hidden_layers": 4,
             "sliding_window": 32, "rms_norm_eps": 1e-5},
            "MistralConfig", "MistralForCausalLM",
        ),
        Family(
            "qwen2",
            {**COMMON, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 160, "num_hidden_layers": 5, "use_sliding_window": True,
             "sliding_window": 32, "max_window_layers": 2, "tie_word_embeddings": True,
             "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            "Qwen2Config", "Qwen2ForCausalLM",
        ),
        Family(
            "mixtral",
            {**COMMON, **HEADS, "intermediate_size": 48, "num_hidden_layers": 3,
             "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None,
             "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            "MixtralConfig", "MixtralForCausalLM",
        ),
        Family(
            "olmo3",
            {**COMMON, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 128, "num_hidden_layers": 6, "sliding_window": 32,
             "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
             "rope_parameters": {
                 "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
                 "full_attention": {
                     "rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0,
                     "original_max_position_embeddings": 128, "attention_factor": 1.2079441541679836,
                     "beta_fast": 32.0, "beta_slow": 1.0}}},
            "Olmo3Config", "Olmo3ForCausalLM",
        ),
        Family(
            "gpt_oss",
            {**COMMON, **HEADS, "intermediate_size": 64, "num_hidden_layers": 4,
             "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 32,
             # A limit that random weights reach.
             "swiglu_limit": 1.5,
             "rope_parameters": {
                 "rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "beta_fast": 32.0,
                 "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 128}},
            "GptOssConfig", "GptOssForCausalLM", round_experts, packed_experts,
            {"quantization_config": {
                "quant_method": "mxfp4",
                "modules_to_not_convert": [
                    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                    "lm_head"]}},
        ),
        Family(
            "gemma4",
            {**COMMON, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
             "global_head_dim": 32, "intermediate_size": 96, "num_hidden_layers": 6,
             "sliding_window": 32, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
             "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
             "vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 16,
             "final_logit_softcapping": 30.0, "tie_word_embeddings": True},
            "Gemma4TextConfig", "Gemma4ForCausalLM",
        ),
        Family(
            "qwen3_5_moe",
            {**COMMON, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
             "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2,
             "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
             "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 2,
             "linear_num_value_heads": 4,
             "rope_parameters": {
                 "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                 "mrope_section": [2, 1, 1], "mrope_interleaved": True}},
            "Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM",
        ),
        Family(
            "deepseek_v3",
            {**COMMON, "num_attention_heads": 4, "num_key_value_heads": 4,
             "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 3,
             "n_shared_experts": 1, "n_routed_experts": 16, "num_experts_per_tok": 4,
             "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "kv_lora_rank": 32,
             "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 24, "v_head_dim": 32,
             "num_mtp_layers": 0,
             "rope_parameters": {
                 "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 32,
                 "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
                 "original_max_position_embeddings": 128}},
            "DeepseekV3Config", "DeepseekV3ForCausalLM",
        ),
        Family(
            "lfm2",
            {**COMMON, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 192, "num_hidden_layers": 6, "conv_L_cache": 3,
             "block_auto_adjust_ff_dim": True, "block_multiple_of": 32,
             "layer_types": ["conv", "conv", "full_attention"] * 2},
            "Lfm2Config", "Lfm2ForCausalLM",
        ),
        Family(
            "falcon_h1",
            {**COMMON, **HEADS, "intermediate_size": 96, "num_hidden_layers": 4,
             "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_n_groups": 1,
             "mamba_d_state": 32, "mamba_chunk_size": 64, "mamba_rms_norm": False,
             "mamba_norm_before_gate": False, "lm_head_multiplier": 0.5,
             "embedding_multiplier": 1.5, "mlp_multipliers": [0.8, 0.9], "key_multiplier": 0.7,
             "attention_out_multiplier": 0.9, "attention_in_multiplier": 1.1,
             "ssm_multipliers": [0.9, 0.8, 1.1, 0.7, 1.2], "ssm_in_multiplier": 0.9,
             "ssm_out_multiplier": 1.1, "tie_word_embeddings": False},
            "FalconH1Config", "FalconH1ForCausalLM",
        ),
        Family(
            "nemotron_h",
            {**COMMON, **HEADS, "intermediate_size": 96, "mlp_hidden_act": "relu2",
             "layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention",
                                   "mlp", "moe"],
             "ssm_state_size": 32, "mamba_num_heads": 4, "mamba_head_dim": 32, "n_groups": 2,
             "conv_kernel": 4, "chunk_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2,
             "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48,
             "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5,
             # This version raises the time steps of prompts to it, and those of single tokens not.
             "time_step_min": 1e-9},
            "NemotronHConfig", "NemotronHForCausalLM",
        ),
    ]
}


def old_spelling(name, config):
    """The config as files on the hub spell it, where that is not how this version writes it."""
    old = dict(config)
    recipe = old.pop("rope_parameters", None)
    if name == "gemma4":
        old["rope_parameters"] = recipe
        old["global_head_dim"] = old.pop("per_layer_config")["2"]["head_dim"]
        old["num_global_key_value_heads"] = None
        return old
    if name == "gpt_oss":
        old["experts_per_token"] = old["num_experts_per_tok"]
        old["initial_context_length"] = recipe["original_max_position_embeddings"]
    if name == "nemotron_h":
        old["hybrid_override_pattern"] = "M-M*-E"
        old["num_hidden_layers"] = len(old.pop("layers_block_type"))
    if name == "deepseek_v3":
        old |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1}
    if name == "lfm2":
        types = old.pop("layer_types")
        old["full_attn_idxs"] = [i for i, t in enumerate(types) if t == "full_attention"]
        old["block_ff_dim"] = old["intermediate_size"]
    if recipe and "full_attention" in recipe:
        recipe = recipe["full_attention"]
    if recipe:
        recipe = dict(recipe)
        old["rope_theta"] = recipe.pop("rope_theta")
        plain = recipe.get("rope_type") == "default" and len(recipe) == 1
        old["rope_scaling"] = None if plain else recipe
    if "dtype" in old:
        old["torch_dtype"] = old.pop("dtype")
    return old
