"""Times of PyTorch, torch.compile and Triton for the memory-bound rows, in bf16 unless named.

Usage: memory_bound.py [--quick]

Each variant is captured as a chain of calls in one CUDA graph, over copies of its inputs that
together pass 300 MB, and replayed; the median of the replays over the calls is one time in
microseconds. Each variant is first compared with PyTorch in float64. Prints one JSON object a row.
"""

import json
import statistics
import sys

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

QUICK = "--quick" in sys.argv
DEVICE = "cuda"
ROTATE = 300_000_000


def time_chain(call, copies, calls=32, replays=15):
    for arguments in copies[:2]:
        call(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    calls = max(calls, len(copies))
    kept = []
    with torch.cuda.graph(graph):
        for i in range(calls):
            kept.append(call(*copies[i % len(copies)]))
    times = []
    for _ in range(3):
        graph.replay()
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


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


def row(name, inputs, reference, variants, bytes_moved, tolerance=2e-2):
    copies = [inputs()]
    size = sum(t.numel() * t.element_size() for t in copies[0])
    while size * len(copies) < ROTATE and len(copies) < 64:
        copies.append(inputs())
    expected = reference(*[t.double() for t in copies[0]]) if size < 3e9 else None
    times = {}
    for variant, call in variants.items():
        try:
            if expected is not None:
                got = call(*copies[0])
                error = (got.double() - expected.double()).norm() / expected.double().norm()
                assert error < tolerance, f"relative error {error}"
            times[variant] = round(time_chain(call, copies), 2)
        except Exception as problem:  # A variant that fails is named in the row.
            times[variant] = f"failed: {str(problem)[:80]}"
    numbers = [t for t in times.values() if isinstance(t, float)]
    best = min(numbers) if numbers else None
    rate = round(bytes_moved / best / 1e3, 1) if best else None
    print(json.dumps({"row": name, "best_us": best, "GB/s": rate, "us": times}), flush=True)


def main():
    torch.manual_seed(1)
    print(json.dumps({"torch": torch.__version__, "triton": triton.__version__, "device": torch.cuda.get_device_name()}))
    n = 4096
    norm = lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-5)
    row("rms_norm 4096x4096", lambda: (randn(n, n), randn(n)), norm,
        {"eager": norm, "compile": compiled(norm), "triton": triton_rms_norm}, 4 * n * n)
    add_norm = lambda x, h, w: (x + h, norm(x + h, w))
    fused = compiled(add_norm)
    row("add_rms_norm 4096x4096", lambda: (randn(n, n), randn(n, n), randn(n)), lambda x, h, w: add_norm(x, h, w)[1],
        {"compile": lambda x, h, w: fused(x, h, w)[1]}, 8 * n * n)
    soft = lambda x: torch.softmax(x, -1)
    row("softmax 4096x8192", lambda: (randn(n, 2 * n),), soft,
        {"eager": soft, "compile": compiled(soft), "triton": triton_softmax}, 8 * n * n)
    total = lambda x: x.sum()
    row("sum 1 GiB f32", lambda: (randn(1 << 28, dtype=torch.float32),), total,
        {"eager": total, "compile": compiled(total)}, 4 << 28, tolerance=1e-2)
    silu = lambda a, b: F.silu(a) * b
    row("silu_mul 4096x12288", lambda: (randn(n, 3 * n), randn(n, 3 * n)), silu,
        {"eager": silu, "compile": compiled(silu)}, 18 * n * n)
    row("rope 4096x40x128", lambda: (randn(n, 40, 128), randn(n, 128), randn(n, 128)), rope,
        {"eager": rope, "compile": compiled(rope)}, 4 * n * 40 * 128)
    triple = lambda x: x * 1.5
    row("scale 64 Mi f32", lambda: (randn(64 << 20, dtype=torch.float32),), triple,
        {"eager": triple, "compile": compiled(triple)}, 8 * (64 << 20))
    for cols, inner in [(12288, 4096), (4096, 4096), (4096, 12288), (151936, 4096)]:
        row(f"matvec {inner}x{cols}", lambda: (randn(1, inner), randn(cols, inner, scale=0.1)), F.linear,
            {"cuBLAS": F.linear, "triton 2048/8": triton_gemv(2048, 8), "triton 1024/4": triton_gemv(1024, 4)}, 2 * cols * inner)
    argmax = lambda x: x.argmax(-1)
    row("argmax 151936 f32", lambda: (randn(1, 151936, dtype=torch.float32),), argmax, {"eager": argmax, "compile": compiled(argmax)}, 4 * 151936)


main()
