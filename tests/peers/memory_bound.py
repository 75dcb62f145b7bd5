"""Our memory-bound kernels beside PyTorch's, torch.compile's and Triton's, bf16 unless named.

Usage: memory_bound.py TEXTS [--quick] [ROW …]: a folder of generated texts (`texts.py` says how),
and words that the rows to measure begin with. `--quick` leaves out torch.compile.

Each variant is captured as a chain of calls in one CUDA graph, over copies of its inputs that
together pass 300 MB and outputs of their own; the variants' replays take turns, and the median of
nine over the calls is one time in microseconds. Each is first compared with PyTorch in float64,
its outputs poisoned. Names of ours begin with a dash; where a kernel may begin while the launch
before ends, as in an engine, that is a variant of its own. Prints one JSON object a row.
"""

import json
import re
import sys

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from device import graph, measure
from texts import compiled as compiled_texts

DEVICE = "cuda"
ROTATE = 300_000_000
TEXTS = {}


@triton.jit
def rms_norm_kernel(x, w, y, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 0) / cols + eps)
    out = v * scale * tl.load(w + at, mask=at < cols, other=0.0).to(tl.float32)
    tl.store(y + row * cols + at, out.to(tl.bfloat16), mask=at < cols)


def triton_rms_norm(x, w):
    y = torch.empty_like(x)
    rms_norm_kernel[(x.shape[0],)](x, w, y, x.shape[1], 1e-5, BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
    return y


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * cols + at, (e / tl.sum(e, 0)).to(tl.bfloat16), mask=at < cols)


def triton_softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=16)
    return y


@triton.jit
def gemv_kernel(x, w, y, inner, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in range(0, inner, BLOCK):
        at = k + tl.arange(0, BLOCK)
        weights = tl.load(w + row.to(tl.int64) * inner + at, mask=at < inner, other=0.0)
        sums += weights.to(tl.float32) * tl.load(x + at, mask=at < inner, other=0.0).to(tl.float32)
    tl.store(y + row, tl.sum(sums, 0).to(tl.bfloat16))


def triton_gemv(block, warps):
    def call(x, w):
        y = torch.empty((1, w.shape[0]), device=DEVICE, dtype=torch.bfloat16)
        gemv_kernel[(w.shape[0],)](x, w, y, w.shape[1], BLOCK=block, num_warps=warps)
        return y

    return call


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos[:, None, :] + turned * sin[:, None, :]


def randn(*shape, dtype=torch.bfloat16, scale=1.0):
    return torch.randn(shape, device=DEVICE, dtype=torch.float32).mul_(scale).to(dtype)


def compiled(function):
    return torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)


def like(x, dtype=None, shape=None):
    """Room for an output, poisoned."""
    shape, dtype = shape or x.shape, dtype or x.dtype
    fill = float("nan") if dtype.is_floating_point else -1
    return torch.full(shape, fill, device=DEVICE, dtype=dtype)


def ours(pattern, launches):
    """Variants for the texts whose names match; `launches` gives, of a text and one copy of the
    inputs, its launches (each a text, a grid, tensors and numbers) and the output."""
    variants = {}
    for name, text in TEXTS.items():
        if not re.fullmatch(pattern, name):
            continue
        for early in (False, True):
            def prepare(*inputs, text=text, early=early):
                calls, output = launches(text, *inputs)
                calls = [t.launcher(grid, tensors, early=early, **numbers) for t, grid, tensors, numbers in calls]
                return calls, output

            parts = [text, *(TEXTS[other] for other in FOLLOWED.get(name, ()))]
            if early and not any(part.is_dependent for part in parts):
                continue
            variants["-" + name + (" early" if early else "")] = prepare
    return variants


# The kernels that are launched after one, by their names.
FOLLOWED = {
    "sum_chunks_f32": ["sum_all_f32"],
    "argmax_chunks_f32": ["argmax_of_chunks"],
    "top_keys_f32": ["top_of_groups_f32", "top_merge"],
}


def peer(call):
    """A variant of a function of the inputs."""
    def prepare(*inputs):
        found = {}

        def go():
            found["y"] = call(*inputs)

        return [go], lambda: found["y"]

    return prepare


def row(name, inputs, reference, variants, bytes_moved, tolerance=2e-2):
    wanted = [word for word in sys.argv[2:] if word != "--quick"]
    if wanted and not any(name.startswith(word) for word in wanted):
        return
    copies = [inputs()]
    size = sum(t.numel() * t.element_size() for t in copies[0])
    while size * len(copies) < ROTATE and len(copies) < 64:
        copies.append(inputs())
    expected = reference(*[t.double() if t.is_floating_point() else t for t in copies[0]])
    graphs, failed, chains, calls = {}, {}, [], max(16, len(copies))
    for variant, prepare in variants.items():
        if variant == "compile" and "--quick" in sys.argv:
            continue
        try:
            launches, output = prepare(*[t.clone() for t in copies[0]])
            for launch in launches:
                launch()
            got = output()
            if expected.is_floating_point():
                error = (got.double() - expected).norm() / expected.norm()
                assert error < tolerance, f"relative error {error}"
            else:
                assert torch.equal(got.long(), expected.long()), "another answer"
            del got, output
            chain = []
            for i in range(calls):
                launches, output = prepare(*copies[i % len(copies)])
                chain += launches
            chains.append(chain)  # The graph holds their addresses alone.
            graphs[variant] = graph(chain)
        except Exception as problem:  # A variant that fails is named in the row.
            failed[variant] = f"failed: {str(problem)[:120]}"
    times = {v: round(t, 2) for v, t in measure(graphs, calls, replays=9, warm=False).items()}
    best_peer = min((t for v, t in times.items() if not v.startswith("-")), default=None)
    best_ours = min((t for v, t in times.items() if v.startswith("-")), default=None)
    ratio = round(best_peer / best_ours, 3) if best_peer and best_ours else None
    rate = round(bytes_moved / best_ours / 1e3) if best_ours else None
    print(json.dumps({"row": name, "ratio": ratio, "GB/s": rate, "us": times | failed}), flush=True)
    del graphs, chains, copies
    torch.cuda.empty_cache()


def ceil(a, b):
    return -(-a // b)


def main():
    torch.manual_seed(1)
    torch.zeros(1, device=DEVICE)  # The driver, for the texts.
    TEXTS.update(compiled_texts(sys.argv[1]))
    print(json.dumps({"torch": torch.__version__, "triton": triton.__version__, "device": torch.cuda.get_device_name()}))
    for name, text in TEXTS.items():
        print(f"{name}: {text.resources}")
    n = 4096

    def norms(text, x, w):
        y = like(x)
        return [(text, (n,), {"x": x, "w": w, "y": y}, dict(rows=n, cols=n, eps=1e-5))], lambda: y

    norm = lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-5)
    row("rms_norm 4096x4096", lambda: (randn(n, n), randn(n)), norm,
        {"eager": peer(norm), "compile": peer(compiled(norm)), "triton": peer(triton_rms_norm)}
        | ours("rms_norm_bf16", norms), 4 * n * n)

    def add_norms(text, x, h, w):
        y, h = like(x), h.clone()
        return [(text, (n,), {"x": x, "w": w, "h": h, "y": y}, dict(rows=n, cols=n, eps=1e-5))], lambda: y

    add_norm = lambda x, h, w: (x + h, norm(x + h, w))
    fused = compiled(add_norm)
    row("add_rms_norm 4096x4096", lambda: (randn(n, n), randn(n, n), randn(n)), lambda x, h, w: add_norm(x, h, w)[1],
        {"compile": peer(lambda x, h, w: fused(x, h, w)[1])} | ours("add_rms_norm_bf16", add_norms), 8 * n * n)

    def softs(text, x):
        y = like(x)
        return [(text, (n,), {"x": x, "y": y}, dict(rows=n, cols=2 * n))], lambda: y

    soft = lambda x: torch.softmax(x, -1)
    row("softmax 4096x8192", lambda: (randn(n, 2 * n),), soft,
        {"eager": peer(soft), "compile": peer(compiled(soft)), "triton": peer(triton_softmax)}
        | ours("softmax_eights_bf16_EIGHTS_2", softs), 8 * n * n)

    def sums(text, x):
        count, chunks, y = x.numel(), ceil(x.numel(), 16384), like(x, shape=(1,))
        parts = like(x, shape=(chunks,))
        return [(text, (chunks,), {"x": x, "y": parts}, dict(n=count, chunks=chunks)),
                (TEXTS["sum_all_f32"], (1,), {"x": parts, "y": y}, dict(n=chunks))], lambda: y

    total = lambda x: x.sum()
    row("sum 1 GiB f32", lambda: (randn(1 << 28, dtype=torch.float32),), total,
        {"eager": peer(total), "compile": peer(compiled(total))} | ours("sum_chunks_f32", sums), 4 << 28, tolerance=1e-2)

    def gates(text, a, b):
        y = like(a)
        return [(text, (ceil(a.numel(), 8 * text.threads),), {"gate": a, "up": b, "y": y}, dict(n=a.numel()))], lambda: y

    silu = lambda a, b: F.silu(a) * b
    row("silu_mul 4096x12288", lambda: (randn(n, 3 * n), randn(n, 3 * n)), silu,
        {"eager": peer(silu), "compile": peer(compiled(silu))} | ours("silu_mul_bf16", gates), 18 * n * n)

    def turns(text, x, cos, sin):
        cosines, sines = cos[:, :64].contiguous(), sin[:, :64].contiguous()
        x = x.clone()
        tensors = {"x": x, "cosines": cosines, "sines": sines}
        grid = (ceil(40 * 64, 8 * text.threads), n)
        return [(text, grid, tensors, dict(rows=n, heads=40, head_dim=128, pairs=64))], lambda: x

    def tables():
        angles = torch.rand(n, 64, device=DEVICE) * 6
        return [torch.cat((t, t), -1).bfloat16() for t in (angles.cos(), angles.sin())]

    row("rope 4096x40x128", lambda: (randn(n, 40, 128), *tables()), rope,
        {"eager": peer(rope), "compile": peer(compiled(rope))} | ours("rope_half_by_tables_bf16", turns), 4 * n * 40 * 128)

    def scales(text, x):
        y = like(x)
        return [(text, (ceil(x.numel(), 4 * text.threads),), {"x": x, "y": y}, dict(n=x.numel(), factor=1.5))], lambda: y

    triple = lambda x: x * 1.5
    row("scale 64 Mi f32", lambda: (randn(64 << 20, dtype=torch.float32),), triple,
        {"eager": peer(triple), "compile": peer(compiled(triple))} | ours("scale_f32", scales), 8 * (64 << 20))

    def matvecs(text, x, w):
        y = like(x, shape=(1, w.shape[0]))
        numbers = dict(rows=1, inner=w.shape[1], cols=w.shape[0])
        return [(text, (w.shape[0], 1), {"x": x, "w": w, "y": y}, numbers)], lambda: y

    for cols, inner in [(12288, 4096), (4096, 4096), (4096, 12288), (151936, 4096)]:
        row(f"matvec {inner}x{cols}", lambda: (randn(1, inner), randn(cols, inner, scale=0.1)), F.linear,
            {"cuBLAS": peer(F.linear), "triton 2048/8": peer(triton_gemv(2048, 8)), "triton 1024/4": peer(triton_gemv(1024, 4))}
            | ours("matvec_bf16_LANES_256", matvecs), 2 * cols * inner)

    vocabulary = lambda: (randn(1, 151936, dtype=torch.float32),)

    def firsts(text, x):
        chunks, index, largest = ceil(151936, 1024), like(x, torch.int32, (1,)), like(x, shape=(1,))
        parts = {"largest_of": like(x, shape=(1, chunks)), "index_of": like(x, torch.int32, (1, chunks))}
        numbers = dict(rows=1, cols=151936, chunks=chunks)
        return [(text, (chunks, 1), {"x": x, **parts}, numbers),
                (TEXTS["argmax_of_chunks"], (1,), {**parts, "index": index, "largest": largest}, numbers)], lambda: index

    argmax = lambda x: x.argmax(-1)
    row("argmax 151936 f32", vocabulary, argmax,
        {"eager": peer(argmax), "compile": peer(compiled(argmax))} | ours("argmax_chunks_f32", firsts), 4 * 151936)

    def tops(text, x):
        k, groups = 50, ceil(151936, 256)
        tensors = {"x": x, "keys": like(x, torch.int32, (1, groups)), "found": like(x, torch.int32, (1, k, k)),
                   "place": like(x, torch.int32, (1, k, k)), "value": like(x, shape=(1, k)), "index": like(x, torch.int32, (1, k))}
        numbers = dict(rows=1, cols=151936, groups=groups, k=k)
        parts = [TEXTS[name] for name in ("top_keys_f32", "top_of_groups_f32", "top_merge")]
        grids = [(groups, 1), (groups, 1), (1,)]
        return [(part, grid, tensors, numbers) for part, grid in zip(parts, grids)], lambda: tensors["index"]

    first = lambda x: torch.sort(x, dim=-1, descending=True, stable=True).indices[:, :50]
    row("top 50 of 151936 f32", vocabulary, first,
        {"torch.topk": peer(lambda x: torch.topk(x, 50).indices)} | ours("top_keys_f32", tops), 4 * 151936)


if __name__ == "__main__":
    main()
