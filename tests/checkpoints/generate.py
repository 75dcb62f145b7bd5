"""Tiny random checkpoints and what PyTorch with transformers computes from them.

    pip install torch transformers==5.24.0 safetensors
    python3 tests/checkpoints/generate.py [FAMILY ...]     # all families where none is named
    python3 tests/checkpoints/generate.py rope             # the tables of RoPE recipes

Writes `tests/data/models/FAMILY` (layout: `tests/data/README.md`) and `tests/data/rope.json`.
Nothing here is needed to run the tests. Everything is float32 on the CPU with eager attention; the
weights are rounded to bf16 first, so that the stored checkpoint and the computed one are the same.
"""

import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

from families import FAMILIES, old_spelling

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
PROMPTS = [1, 7, 33, 130]
NEW_TOKENS = 32
CHUNKINGS = {
    "64+50+16": [64, 50, 16],
    "1x130": [1] * 130,
    "100+1x30": [100] + [1] * 30,
    "33+97": [33, 97],
}
LEAST_MARGIN = 0.003
GAIN = 1.4


def randomise(model, seed, tied):
    """Weights that keep the residual stream near unit size and the logits apart."""
    generator = torch.Generator().manual_seed(seed)

    def noise(shape, deviation):
        return torch.randn(shape, generator=generator) * deviation

    named = dict(model.named_parameters(remove_duplicate=True))
    named |= {n: b for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
    with torch.no_grad():
        for name, tensor in sorted(named.items()):
            shape = tensor.shape
            if name.endswith("e_score_correction_bias"):
                new = noise(shape, 0.05)
            elif name.endswith("layer_scalar"):
                new = 1 + noise(shape, 0.1)
            elif name.endswith("sinks"):
                new = noise(shape, 1.0)
            elif name.endswith("bias") and "dt_bias" not in name:
                new = noise(shape, 0.1)
            elif len(shape) == 1:
                new = tensor + noise(shape, 0.14)
            elif "embed_tokens_per_layer" in name:
                new = noise(shape, 1.0)
            elif "embed" in name and not tied:
                new = noise(shape, 1.0)
            elif "embed" in name or "lm_head" in name:
                new = noise(shape, 2.2 / shape[-1] ** 0.5)
            else:
                # GPT-OSS keeps its experts as inputs by outputs.
                inputs_first = model.config.model_type == "gpt_oss" and len(shape) == 3
                fan_in = shape[1] if inputs_first else shape[-1]
                new = noise(shape, GAIN / fan_in**0.5)
            tensor.copy_(new.to(torch.bfloat16).to(tensor.dtype))


def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def chunked(model, ids, chunks):
    """Last logits of a prompt that goes in by chunks over a cache; None where it cannot."""
    cache, at = None, 0
    try:
        for chunk in chunks:
            out = model(
                input_ids=torch.tensor([ids[at : at + chunk]]), past_key_values=cache, use_cache=True
            )
            cache, at = out.past_key_values, at + chunk
    except Exception as error:
        print(f"  chunks {chunks[:4]}: {type(error).__name__}: {error}")
        return None
    return out.logits[0, -1].float()


def rounded(values):
    return [float(f"{v:.6g}") for v in values]


def prompt_entry(model, ids):
    """The golden of one prompt; None where a choice is too close to be compared."""
    whole = logits_of(model, ids)
    greedy, margins, grown, last = [], [], list(ids), whole[-1]
    for _ in range(NEW_TOKENS):
        best = torch.topk(last, 2)
        margin = (best.values[0] - best.values[1]).item()
        if margin < LEAST_MARGIN:
            return None
        greedy.append(best.indices[0].item())
        margins.append(margin)
        grown.append(greedy[-1])
        last = logits_of(model, grown)[-1]
    return {
        "len": len(ids),
        "prompt_ids": ids,
        "last_logits": rounded(whole[-1].tolist()),
        "greedy": greedy,
        "greedy_margin": rounded(margins),
        "logits_std": float(f"{whole.std().item():.6g}"),
    }


def goldens(model, family, seed):
    generator = torch.Generator().manual_seed(seed + 500)
    draw = lambda n: torch.randint(0, 512, (n,), generator=generator).tolist()
    prompts = [draw(n) for n in PROMPTS]
    entries = []
    for ids in prompts:
        entry = prompt_entry(model, ids)
        if entry is None:
            return None
        entries.append(entry)
    whole = logits_of(model, prompts[-1])[-1]
    checks = {}
    for name, chunks in CHUNKINGS.items():
        last = chunked(model, prompts[-1], chunks)
        checks[name] = None if last is None else float(f"{(last - whole).abs().max().item():.6g}")
    return {
        "family": family,
        "seed": seed,
        "gain": GAIN,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "compute": "float32 CPU eager, no cache",
        "vocab_size": 512,
        "params": sum(p.numel() for p in model.parameters()),
        "prompts": entries,
        "chunk_checks": checks,
    }


def write_json(path, value, indent=None):
    path.write_text(json.dumps(value, indent=indent) + ("\n" if indent else ""))


def generate(name):
    family = FAMILIES[name]
    for seed in range(2001, 2100):
        config = family.config()
        config._attn_implementation = "eager"
        torch.manual_seed(seed)
        model = family.model(config).float().eval()
        randomise(model, seed, getattr(config, "tie_word_embeddings", False))
        family.prepare(model)
        with torch.no_grad():
            golden = goldens(model, name, seed)
        if golden is not None:
            break
        print(f"  {name}: seed {seed} has a margin below {LEAST_MARGIN}")
    else:
        raise SystemExit(f"{name}: no seed keeps its margins")
    folder = DATA / "models" / name
    (folder / "bf16").mkdir(parents=True, exist_ok=True)
    saved = folder / "saved"
    model.to(torch.bfloat16).save_pretrained(saved)
    config = json.loads((saved / "config.json").read_text())
    config.pop("_attn_implementation_autoset", None)
    config |= family.added
    write_json(folder / "bf16" / "config.v5.json", config, 1)
    write_json(folder / "bf16" / "config.json", old_spelling(name, config), 1)
    tensors = {}
    from safetensors import safe_open

    with safe_open(saved / "model.safetensors", "pt") as file:
        for key in file.keys():
            tensors[key] = file.get_tensor(key).contiguous()
    tensors = family.stored(tensors)
    save_file(tensors, folder / "bf16" / "model.safetensors", metadata={"format": "pt"})
    for file in saved.iterdir():
        file.unlink()
    saved.rmdir()
    write_json(folder / "goldens.json", golden)
    size = (folder / "bf16" / "model.safetensors").stat().st_size
    margins = [m for p in golden["prompts"] for m in p["greedy_margin"]]
    print(
        f"{name}: seed {seed}, {golden['params']} parameters, {size} bytes, "
        f"least margin {min(margins):.4f}, logits {golden['prompts'][3]['logits_std']:.2f}, "
        f"chunks {golden['chunk_checks']}"
    )


def rope_tables():
    """Cosines and sines of each recipe, as the reference's own rotary module gives them."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    positions = [0, 1, 77, 8192, 60000]
    pairs = 16
    short = [1.0 + 0.03 * i for i in range(pairs)]
    long = [1.0 + 2.0 * i for i in range(pairs)]
    recipes = {
        "linear": {"rope_type": "linear", "factor": 4.0},
        "dynamic": {"rope_type": "dynamic", "factor": 4.0},
        "llama3": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
        "yarn": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
        "yarn of GPT-OSS": {
            "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        },
        "yarn of DeepSeek": {
            "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.707,
        },
        "longrope": {
            "rope_type": "longrope", "short_factor": short, "long_factor": long, "factor": 16.0,
            "original_max_position_embeddings": 4096,
        },
    }
    tables = []
    for name, recipe in recipes.items():
        for context in ([2048, 65536] if name == "longrope" else [65536]):
            config = LlamaConfig(
                hidden_size=64, num_attention_heads=2, head_dim=2 * pairs,
                max_position_embeddings=65536,
                rope_parameters={"rope_theta": 150000.0, **recipe},
            )
            rotary = LlamaRotaryEmbedding(config)
            seen = [p for p in positions if p < context]
            # The longest position decides between longrope's lists.
            ids = torch.tensor([seen + [context - 1]])
            cos, sin = rotary(torch.zeros(1, 1, 1), ids)
            rows = lambda table: [rounded(row[:pairs].tolist()) for row in table[0][: len(seen)]]
            tables.append({
                "name": name, "context": context, "rope_parameters": config.rope_parameters,
                "positions": seen, "cos": rows(cos), "sin": rows(sin),
            })
    write_json(DATA / "rope.json", tables)
    print(f"rope: {len(tables)} tables")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["rope", *FAMILIES]:
        if name == "rope":
            rope_tables()
        else:
            generate(name)
