"""Matrix products and attention by tiles beside cuBLAS, cuDNN and FlashAttention 2, on one GPU.

Needs PyTorch, `cuda-bindings` and `nvcc`. The texts come from the runner, one a kernel instance:

    __iron_runner explain linear --instance bf16-TILE=256 --target cuda --profile sm_90a > l256.cu
    __iron_runner explain attention_prefill --instance bf16-HEAD_DIM=128-ROWS=128 \\
        --target cuda --profile sm_90a > a128.cu
    python3 tests/peers/tiles.py l256.cu a128.cu

Outputs are poisoned and checked against f64 first. Times are device times: calls captured in one
CUDA graph over at least 300 MB of inputs, ours and the peers' replays taking turns, medians of 7.
"""

import ctypes
import re
import struct
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from device import check, cu, graph, measure


class Text:
    """A generated text, compiled."""

    def __init__(self, path):
        self.path, source = path, open(path).read()
        binary = path + ".cubin"
        arch = "-gencode=arch=compute_90a,code=sm_90a"
        subprocess.run(["nvcc", "--fmad=false", "-std=c++17", arch, "-cubin", path, "-o", binary], check=True)
        self.name = re.search(r'extern "C"[^(]*\([^)]*\) (\w+)\(', source).group(1)
        self.threads = int(re.search(r"// workgroup +(\d+)", source).group(1))
        self.maps = [(a, int(b)) for a, b in re.findall(r"tensor_map (\w+)_map(\d+)", source)]
        self.shared = int(re.findall(r"shared_memory \+ (\d+)", source)[-1]) + 64
        module = check(cu.cuModuleLoad(binary.encode()))
        self.function = check(cu.cuModuleGetFunction(module, self.name.encode()))
        attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(cu.cuFuncSetAttribute(self.function, attribute, self.shared))

    def launcher(self, grid, fields, tensors):
        """`fields` is a list of (struct code, value) in the order of the parameter list."""
        block, offsets = b"", []
        for code, value in fields:
            size = struct.calcsize("<" + code)
            block = block.ljust(-(-len(block) // size) * size, b"\0")
            offsets.append(len(block))
            block += struct.pack("<" + code, value)
        for name, rows in self.maps:
            block = block.ljust(-(-len(block) // 64) * 64, b"\0")
            offsets.append(len(block))
            block += b"".join(struct.pack("<Q", int(w)) for w in tensor_map(tensors[name], rows).opaque)
        memory = (ctypes.c_char * (len(block) + 64))()
        base = -(-ctypes.addressof(memory) // 64) * 64
        ctypes.memmove(base, block, len(block))
        pointers = (ctypes.c_void_p * len(offsets))(*[base + o for o in offsets])

        def go():
            stream = torch.cuda.current_stream().cuda_stream
            check(cu.cuLaunchKernel(self.function, *grid, self.threads, 1, 1, self.shared, stream,
                                    ctypes.addressof(pointers), 0))

        go.keep = (memory, pointers, tensors)
        return go


def tensor_map(tensor, rows):
    u64, u32 = cu.cuuint64_t, cu.cuuint32_t
    shape = list(tensor.shape)[::-1]
    strides = [2 * s for s in tensor.stride()][::-1][1:]
    box = [64, rows] + [1] * (len(shape) - 2)
    return check(cu.cuTensorMapEncodeTiled(
        cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, len(shape), tensor.data_ptr(),
        [u64(n) for n in shape], [u64(n) for n in strides], [u32(n) for n in box], [u32(1)] * len(shape),
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))


def report(title, flops, times):
    best = min(t for name, t in times.items() if not name.endswith(".cu"))
    for name, t in times.items():
        print(f"{title}  {name:12} {t:9.1f} us  {flops / t / 1e6:4.0f} TFLOP/s  {best / t:.2f} of the best peer")


def linear(texts):
    def launch(text, x, w, y):
        tile = int(re.search(r"TILE_(\d+)", text.name).group(1))
        (rows, inner), cols = x.shape, w.shape[0]
        groups = min(-(-cols // tile) * -(-rows // 128), 132)
        fields = [("Q", x.data_ptr()), ("Q", w.data_ptr()), ("Q", y.data_ptr()), ("Q", inner), ("Q", inner),
                  ("Q", cols), ("I", rows), ("I", inner), ("I", cols), ("I", 7)]
        return text.launcher((groups, 1, 1), fields, {"x": x, "w": w})

    def normal(rows, columns):
        return torch.randn(rows, columns, device="cuda").bfloat16()

    for text in texts:
        x, w = normal(520, 1024), normal(1544, 1024)
        y = torch.full((520, 1544), float("nan"), device="cuda", dtype=torch.bfloat16)
        launch(text, x, w, y)()
        exact = x.double() @ w.double().T
        error = ((y.double() - exact).norm() / exact.norm()).item()
        print(f"{text.path}: relative error {error:.1e}", "" if error < 4e-3 else "WRONG")
    for rows in (512, 2048, 8192):
        for inner, cols in ((4096, 12288), (4096, 4096), (12288, 4096)):
            sets = max(2, -(-300_000_000 // (2 * (rows + cols) * inner)))
            flops = 2 * rows * cols * inner
            xs, ws = [normal(rows, inner) for _ in range(sets)], [normal(cols, inner) for _ in range(sets)]
            ys = [torch.empty(rows, cols, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
            repeat = max(1, int(6e-3 / (flops / 7e14) / sets))
            peer = [(lambda i=i: torch.matmul(xs[i], ws[i].T, out=ys[i])) for i in range(sets)]
            graphs = {"cuBLAS": graph(peer * repeat)}
            for text in texts:
                graphs[text.path] = graph([launch(text, xs[i], ws[i], ys[i]) for i in range(sets)] * repeat)
            report(f"linear {rows} x ({inner} x {cols})", flops, measure(graphs, sets * repeat))


def attention(texts):
    for size, heads, kv_heads in ((128, 32, 8), (256, 24, 4)):
        mine = [t for t in texts if f"HEAD_DIM_{size}_" in t.name]
        for length in (2048, 8192, 32768) if mine else ():
            attention_of(mine, size, heads, kv_heads, length)


def attention_of(texts, size, heads, kv_heads, length):
    def normal(*shape):
        return torch.randn(*shape, device="cuda").bfloat16()

    scale, count = size**-0.5, max(2, min(8, -(-100_000_000 // (4 * length * size * (heads + kv_heads)))))
    qs = [normal(heads, length, size) for _ in range(count)]
    ks = [normal(1, kv_heads, length, size) for _ in range(count)]
    vs = [normal(1, kv_heads, length, size) for _ in range(count)]
    positions = torch.arange(length, device="cuda", dtype=torch.int32)
    sequences = torch.zeros(length, device="cuda", dtype=torch.int32)
    table, errors = (torch.zeros(1, device="cuda", dtype=torch.int32) for _ in range(2))
    tiles = -(-length // 128)
    ends = [[128 * tile, min(128 * tile + 128, length)] for tile in range(tiles)]
    tile_rows = torch.tensor(ends, device="cuda", dtype=torch.int32)
    sinks = torch.full((heads,), float("-inf"), device="cuda")

    def launch(text, i, y):
        q, k, v = qs[i], ks[i], vs[i]
        addresses = [q, k, v, positions, sequences, tile_rows, table, sinks, y, errors]
        strides = [q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3], 2, 1, y.stride(0), y.stride(1)]
        dims = [heads, length, 1, kv_heads, length, tiles, 1, 1, 128 * tiles]
        fields = [("Q", t.data_ptr()) for t in addresses] + [("Q", s) for s in strides]
        fields += [("I", d) for d in dims]
        fields += [("f", scale), ("I", 0xFFFFFFFF), ("f", 0.0), ("I", 0xFFFF)]
        maps = {"q": q, "k_cache": k, "v_cache": v}
        return text.launcher((heads, tiles, 1), fields, maps)

    def peer(backend, i):
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(qs[i][None], ks[i], vs[i], is_causal=True, scale=scale, enable_gqa=True)

    graphs, kept = {}, []
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FA2", SDPBackend.FLASH_ATTENTION)):
        graphs[name] = graph([(lambda i=i, b=backend: peer(b, i)) for i in range(count)])
    for text in texts:
        ys = [torch.full((heads, 128 * tiles, size), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in qs]
        kept.append(ys)  # A capture gives back memory that nothing holds.
        calls = [launch(text, i, ys[i]) for i in range(count)]
        calls[0]()
        rows = torch.tensor([0, 1, 5, 127, 128, length // 2 + 3, length - 1], device="cuda")
        worst = 0.0
        for head in (0, heads - 1):
            k, v = (t[0][0, head // (heads // kv_heads)].double() for t in (ks, vs))
            scores = qs[0][head, rows].double() @ k.T * scale
            seen = torch.arange(length, device="cuda")[None] <= rows[:, None]
            exact = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1) @ v
            worst = max(worst, ((ys[0][head, rows].double() - exact).norm() / exact.norm()).item())
        good = worst < 1e-2 and not torch.isnan(ys[0]).any().item()
        print(f"{text.path}, {length}: relative error {worst:.1e}", "" if good else "WRONG")
        graphs[text.path] = graph(calls)
    report(f"attention d{size} {length}", 2 * length * length * size * heads, measure(graphs, count))


def main():
    torch.zeros(1, device="cuda")
    texts = [Text(path) for path in sys.argv[1:]]
    products = [t for t in texts if t.name.startswith("linear_bf16")]
    if products:
        linear(products)
    attention([t for t in texts if t.name.startswith("attention_prefill_bf16")])


if __name__ == "__main__":
    main()
