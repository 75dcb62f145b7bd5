"""Decoding's kernels beside PyTorch's (cuDNN, FlashAttention 2), on one GPU.

Needs PyTorch, `cuda-bindings` and `nvcc`. The texts come from the runner, one a kernel instance,
in one folder:

    __iron_runner explain attention_decode_matrix --instance bf16-HEAD_DIM=128 \\
        --target cuda --profile sm_90a > texts/m128.cu
    … bf16-HEAD_DIM=256 …, attention_join bf16 …, attention_decode_joined bf16-HEAD_DIM=128 …
    python3 tests/peers/decode.py texts            # or some rows of attention: texts 1,1024 16,8192

Outputs are poisoned and checked against f64 first. Times are device times: calls captured in one
CUDA graph over at least 300 MB of inputs, ours and the peers' replays taking turns, medians of 9.
"""

import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from device import graph, measure
from texts import compiled

ROTATE = 300_000_000


def report(title, times, moved=None):
    """One line a row; names of ours begin with a dash, those of parts with two."""
    peers = [t for name, t in times.items() if not name.startswith("-")]
    best = min(peers) if peers else None
    cells = []
    for name, t in times.items():
        ratio = f" ({best / t:.2f})" if best and name.startswith("-") and not name.startswith("--") else ""
        cells.append(f"{name} {t:.2f}{ratio}")
    rate = f"  ours {moved / times['-ours'] / 1e3:.0f} GB/s" if moved else ""
    print(f"{title:44} {', '.join(cells)}{rate}", flush=True)


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def poisoned(*shape, dtype=torch.float32):
    return torch.full(shape, float("nan"), device="cuda", dtype=dtype)


def numbers(values):
    return torch.as_tensor(values, device="cuda", dtype=torch.int32)


def most_splits(seen, least):
    return max(min(-(-seen // least), 4096 // least), -(-seen // 512))


def attention(texts, rows, heads, kv_heads, size, context, least, block=64):
    decode = texts.get(f"attention_decode_matrix_bf16_HEAD_DIM_{size}")
    if not decode:
        return
    combine, scale = texts["attention_join_bf16"], size**-0.5
    moved = 4 * rows * kv_heads * context * size
    count, pages, splits = max(2, -(-ROTATE // moved)), context // block, most_splits(context, least)
    sets, peers = [], []
    for _ in range(count):
        q, k, v = normal(rows, heads, size), normal(rows, kv_heads, context, size), normal(rows, kv_heads, context, size)
        table = torch.randperm(rows * pages, device="cuda").int()

        def paged(x):
            blocks = x.view(rows, kv_heads, pages, block, size).transpose(1, 2).reshape(rows * pages, kv_heads, block, size)
            cache = torch.empty_like(blocks)
            cache[table.long()] = blocks
            return cache

        tensors = {"q": q, "k_cache": paged(k), "v_cache": paged(v), "positions": numbers([context - 1] * rows),
                   "sequences": numbers(range(rows)), "block_table": table.view(rows, pages),
                   "partial": poisoned(rows, heads, splits, size), "stats": poisoned(rows, heads, splits, 2),
                   "sinks": torch.full((heads,), float("-inf"), device="cuda"),
                   "arrived": numbers([0] * (rows * kv_heads)), "y": poisoned(rows, heads, size, dtype=torch.bfloat16)}
        sets.append(tensors)
        peers.append((q[:, :, None], k, v))
    common = dict(rows=rows, heads=heads, blocks=rows * pages, kv_heads=kv_heads, block_size=block, all_sequences=rows,
                  max_blocks=pages, splits=splits, scale=scale, window=0xFFFFFFFF, soft_cap=0.0, head_dim=size, least=least)
    first = [decode.launcher((splits, kv_heads, rows), t, **common) for t in sets]
    second = [combine.launcher((-(-heads * size // 2048), rows), t, early=True, **common) for t in sets]
    first[0](), second[0]()
    worst = 0.0
    for row in {0, rows - 1}:
        q, k, v = (t[row].double() for t in peers[0])
        k, v = (t.repeat_interleave(heads // kv_heads, 0) for t in (k, v))
        exact = (torch.softmax(q @ k.transpose(1, 2) * scale, -1) @ v)[:, 0]
        worst = max(worst, ((sets[0]["y"][row].double() - exact).norm() / exact.norm()).item())
        del k, v
    wrong = "" if worst < 5e-3 and not torch.isnan(sets[0]["y"]).any() else f" WRONG {worst}"
    if decode.errors.any() or combine.errors.any():
        wrong += f" ERROR WORD {decode.errors.tolist()} {combine.errors.tolist()}"
    both = [call for pair in zip(first, second) for call in pair]
    graphs = {"-ours": graph(both), "--split": graph(first), "--combine": graph(second)}
    joined = texts.get(f"attention_decode_joined_bf16_HEAD_DIM_{size}")
    if joined:
        ours = sets[0]["y"].clone()
        sets[0]["y"].fill_(float("nan"))
        calls = [joined.launcher((splits, kv_heads, rows), t, **common) for t in sets]
        calls[0]()
        wrong += "" if torch.equal(sets[0]["y"], ours) and not sets[0]["arrived"].any() else " JOINED TO OTHER BITS"
        graphs["-joined"] = graph(calls)
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FA2", SDPBackend.FLASH_ATTENTION)):
        def call(i, backend=backend):
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(*peers[i], scale=scale, enable_gqa=True)

        graphs[name] = graph([(lambda i=i, c=call: c(i)) for i in range(count)])
    report(f"attention {heads}/{kv_heads} d{size} B={rows} {context} splits of {least}{wrong}", measure(graphs, count, replays=9, warm=False), moved)


def delta(texts, rows, key_heads=16, value_heads=48, size=128):
    text = texts["gated_delta_bf16_KEY_DIM_128_LANES_4"]
    moved = 8 * rows * value_heads * size * size
    count, sets = max(2, -(-ROTATE // moved)), []
    for _ in range(count):
        q, k = (F.normalize(normal(rows, key_heads, size).float(), dim=-1).bfloat16() for _ in range(2))
        states = normal(2 * rows, value_heads, size, size, dtype=torch.float32)
        sets.append({"q": q, "k": k, "v": normal(rows, value_heads, size), "states": states,
                     "decay": torch.rand(rows, value_heads, device="cuda"),
                     "strength": torch.rand(rows, value_heads, device="cuda"),
                     "starts": numbers(range(rows + 1)), "from": numbers(range(0, 2 * rows, 2)),
                     "to": numbers(range(1, 2 * rows, 2)), "y": poisoned(rows, value_heads, size, dtype=torch.bfloat16)})
    common = dict(rows=rows, key_heads=key_heads, value_heads=value_heads, value_dim=size, segments=rows, slots=2 * rows)
    calls = []
    for tensors in sets:
        tensors = tensors | {"from_": tensors["from"], "to_": tensors["to"]}
        calls.append(text.launcher((-(-size // 32), value_heads, rows), tensors, **common))
    t = {name: x.double() for name, x in sets[0].items()}
    calls[0]()
    q, k = (t[n].repeat_interleave(value_heads // key_heads, 1) for n in "qk")
    state = t["states"][0::2] * t["decay"][..., None, None]
    change = (t["v"] - torch.einsum("rhji,rhi->rhj", state, k)) * t["strength"][..., None]
    state = state + change[..., None] * k[..., None, :]
    exact = torch.einsum("rhji,rhi->rhj", state, q)
    error = max(((a.double() - b).norm() / b.norm()).item()
                for a, b in ((sets[0]["y"], exact), (sets[0]["states"][1::2], state)))
    wrong = "" if error < 5e-3 and not text.errors.any() else f" WRONG {error}"
    report(f"gated delta 16/48 B={rows}{wrong}", measure({"-ours": graph(calls)}, count, replays=9, warm=False), moved)


def top(texts, rows, cols=151936, k=50):
    parts = [texts["top_keys_f32"], texts["top_of_groups_f32"], texts["top_merge"]]
    groups, count, sets = -(-cols // 256), max(2, min(64, ROTATE // (4 * rows * cols))), []
    for _ in range(count):
        sets.append({"x": normal(rows, cols, dtype=torch.float32), "keys": numbers([[0] * groups] * rows),
                     "found": numbers([[[0] * k] * k] * rows), "place": numbers([[[0] * k] * k] * rows),
                     "value": poisoned(rows, k), "index": numbers([[-1] * k] * rows)})
    common = dict(rows=rows, cols=cols, groups=groups, k=k)
    grids = [(groups, rows), (groups, rows), (rows,)]
    calls = [[part.launcher(grid, t, **common) for part, grid in zip(parts, grids)] for t in sets]
    for call in calls[0]:
        call()
    expected = torch.sort(sets[0]["x"], dim=-1, descending=True, stable=True)
    same = torch.equal(expected.indices[:, :k].int(), sets[0]["index"])
    wrong = "" if same and torch.equal(expected.values[:, :k], sets[0]["value"]) else " WRONG"
    graphs = {"-ours": graph([c for three in calls for c in three])}
    for i, part in enumerate(parts):
        graphs["--" + part.name] = graph([three[i] for three in calls])
    graphs["torch.topk"] = graph([(lambda t=t: torch.topk(t["x"], k)) for t in sets])
    report(f"top {k} of {cols} B={rows}{wrong}", measure(graphs, count, replays=9, warm=False))


def main():
    torch.manual_seed(1)
    torch.zeros(1, device="cuda")  # The driver, for the texts.
    texts = compiled(sys.argv[1])
    print(torch.__version__, torch.cuda.get_device_name())
    for rows in (1, 16):
        if "top_merge" in texts:
            top(texts, rows)
        if "gated_delta_bf16_KEY_DIM_128_LANES_4" in texts:
            delta(texts, rows)
    chosen = [tuple(map(int, pair.split(","))) for pair in sys.argv[2:]]
    for rows in (1, 16):
        for context in (1024, 8192, 32768):
            if chosen and (rows, context) not in chosen:
                continue
            for heads, kv_heads, size in ((32, 8, 128), (24, 4, 256)):
                for least in (128, 256) if size == 128 else (64, 128):
                    attention(texts, rows, heads, kv_heads, size, context, least)
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
