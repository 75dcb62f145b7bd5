"""Skinny products beside cuBLAS, and an expert layer beside `torch._grouped_mm`, on one GPU.

Needs PyTorch, `cuda-bindings` and `nvcc`. Texts come from the runner into one folder, a file an
instance, named `KERNEL-INSTANCE.cu`:

    __iron_runner explain linear_skinny --instance bf16-ROWS=8 --target cuda --profile sm_90a \\
        > texts/linear_skinny-bf16-ROWS=8.cu
    python3 tests/peers/products.py texts skinny experts

`skinny` takes `linear_skinny` and `matvec-bf16-LANES=256`; `experts` all of `experts.rs`. Outputs are
poisoned and compared with f64 first. Times are medians of 7 replays of a CUDA graph over at least
300 MB of inputs, the graphs taking turns.
"""

import glob
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

import tiles
from device import check, cu, graph, measure


def build(path):
    arch = "-gencode=arch=compute_90a,code=sm_90a"
    subprocess.run(["nvcc", "-w", "--fmad=false", "-std=c++17", arch, "-cubin", path, "-o", path + ".cubin"], check=True)


class Text(tiles.Text):
    """A generated text, compiled, that is launched by the names of its parameters."""

    def __init__(self, path):
        self.path, source = os.path.basename(path)[:-3], open(path).read()
        self.name = re.search(r'extern "C"[^(]*\([^)]*\) (\w+)\(', source).group(1)
        self.threads = int(re.search(r"// workgroup +(\d+)", source).group(1))
        self.maps = [(a, int(b)) for a, b in re.findall(r"tensor_map (\w+)_map(\d+)", source)]
        shared = re.findall(r"shared_memory \+ (\d+)", source)
        self.shared = int(shared[-1]) + 64 if shared else 0
        signature = re.search(r'extern "C" __global__.*?\(\n(.*?)\n\) \{', source, re.S).group(1)
        self.parameters = [line.strip().rstrip(",") for line in signature.split("\n")]
        module = check(cu.cuModuleLoad((path + ".cubin").encode()))
        self.function = check(cu.cuModuleGetFunction(module, self.name.encode()))
        if self.shared:
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cu.cuFuncSetAttribute(self.function, attribute, self.shared))

    def call(self, grid, tensors, **values):
        tensors = {"error_word": ERRORS, **tensors}
        fields = []
        for parameter in self.parameters:
            name = parameter.split()[-1]
            if "tensor_map" in parameter:
                continue
            if "*" in parameter:
                fields.append(("Q", tensors[name].data_ptr()))
            elif "long long" in parameter:
                tensor, axis = name.rsplit("_stride", 1)
                fields.append(("Q", tensors[tensor].stride(int(axis))))
            elif name == "aligned":
                fields.append(("I", 0xFFFF))
            else:
                fields.append(("f" if "float" in parameter else "I", values[name]))
        return self.launcher(tuple(grid) + (1,) * (3 - len(grid)), fields, tensors)


def up(a, b):
    return -(-a // b)


def normal(*shape):
    return torch.randn(*shape, device="cuda").bfloat16()


def poison(*shape):
    return torch.full(shape, float("nan"), device="cuda", dtype=torch.bfloat16)


def error(y, exact):
    return ((y.double() - exact).norm() / exact.norm()).item()


def skinny(texts):
    rows_of = {r: texts[f"linear_skinny-bf16-ROWS={r}"] for r in (8, 16, 32, 64)}
    matvec = texts["matvec-bf16-LANES=256"]

    def launch(text, x, w, y):
        (rows, inner), cols = x.shape, w.shape[0]
        grid = (cols, rows)
        if text is not matvec:
            grid = (min(up(cols, 32), 132), up(rows, int(text.path.split("=")[1])))
        return text.call(grid, {"x": x, "w": w, "y": y}, rows=rows, inner=inner, cols=cols)

    for text in rows_of.values():
        for rows, cols, inner in ((3, 1544, 1024), (16, 512, 4096), (70, 40, 136)):
            x, w, y = normal(rows, inner), normal(cols, inner), poison(rows, cols)
            launch(text, x, w, y)()
            torch.cuda.synchronize()
            wrong = error(y, x.double() @ w.double().T)
            print(f"{text.path} {rows} x ({inner} x {cols}): error {wrong:.1e}", "" if wrong < 4e-3 else "WRONG")
    for inner, cols in ((4096, 12288), (4096, 4096), (12288, 4096), (4096, 151936)):
        sets = max(2, up(300_000_000, 2 * cols * inner))
        ws = [normal(cols, inner) for _ in range(sets)]
        repeat = max(2, up(32, sets)) if cols < 100_000 else 2
        for rows in (1, 2, 4, 8, 16, 32, 64):
            xs, ys = [normal(rows, inner) for _ in ws], [poison(rows, cols) for _ in ws]
            text = next(t for r, t in rows_of.items() if r >= rows)
            graphs = {"cuBLAS": graph([(lambda i=i: torch.matmul(xs[i], ws[i].T, out=ys[i])) for i in range(sets)] * repeat)}
            for t in [text] + [matvec] * (rows == 1):
                graphs[t.path] = graph([launch(t, xs[i], ws[i], ys[i]) for i in range(sets)] * repeat)
            times = measure(graphs, sets * repeat)
            print(f"{rows:3} x ({inner} x {cols})", "  ".join(f"{n} {t:.1f} us" for n, t in times.items()), flush=True)


def experts(texts):
    count, hidden, inner, chosen = 128, 2048, 768, 8
    gate, up_, down = (normal(count, *shape) * 0.03 for shape in ((inner, hidden), (inner, hidden), (hidden, inner)))
    both = torch.cat([gate, up_], 1).contiguous()

    def integers(n):
        return torch.zeros(n, dtype=torch.int32, device="cuda")

    def sorted_layer(rows, x, ids, weights):
        tokens = x.shape[0]
        n = tokens * chosen
        used = up(n + count * (rows - 1), rows)
        slots, columns, groups = used * rows, 32 if rows < 64 else 128, 264 if rows < 64 else 132
        lists = {"pair_of": integers(slots), "slot_of": integers(n), "expert_of": integers(used),
                 "used": integers(1), "counts": integers(count)}
        xs, h, ys, y = poison(slots, hidden), poison(slots, inner), poison(slots, hidden), poison(tokens, hidden)
        sizes = {"pairs": n, "slots": slots, "tiles": used, "experts": count}
        own = lambda name: texts[f"{name}-ROWS={rows}"]
        return y, [
            own("expert_sort").call((count,), {"ids": ids, **lists}, **sizes),
            texts["expert_gather-bf16"].call((slots,), {"x": x, "y": xs, **lists}, rows=tokens, inner=hidden, slots=slots, chosen=chosen, tile_rows=rows),
            own("expert_gate_up-bf16").call((min(up(inner, columns) * used, groups),), {"x": xs, "gate": gate, "up": up_, "y": h, **lists}, inner=hidden, cols=inner, **sizes),
            own("expert_linear-bf16").call((min(up(hidden, columns) * used, groups),), {"x": h, "w": down, "y": ys, **lists}, inner=inner, cols=hidden, **sizes),
            texts["expert_sum-bf16"].call((up(hidden, 1024), tokens), {"x": ys, "slot_of": lists["slot_of"].view(tokens, chosen), "weights": weights, "y": y}, slots=slots, cols=hidden, rows=tokens, chosen=chosen),
        ]

    def by_pairs(x, ids, weights):
        tokens = x.shape[0]
        h, y, ids = poison(tokens, chosen, inner), poison(tokens, hidden), ids.view(tokens, chosen)
        sizes = {"rows": tokens, "experts": count, "chosen": chosen}
        return y, [
            texts["expert_gate_up_matvec-bf16-LANES=128"].call((inner, chosen, tokens), {"x": x, "gate": gate, "up": up_, "ids": ids, "y": h}, inner=hidden, cols=inner, **sizes),
            texts["expert_down_matvec-bf16"].call((hidden, tokens), {"x": h, "w": down, "ids": ids, "weights": weights, "y": y}, inner=inner, cols=hidden, **sizes),
        ]

    def products(xs, offsets):
        both_sums = torch._grouped_mm(xs, both.transpose(1, 2), offs=offsets)
        h = F.silu(both_sums[:, :inner]) * both_sums[:, inner:]
        return torch._grouped_mm(h, down.transpose(1, 2), offs=offsets)

    def offsets_of(ids):
        return torch.searchsorted(ids, torch.arange(count, device="cuda", dtype=ids.dtype), right=True).int()

    def whole(x, ids, weights):
        in_order, order = torch.sort(ids)
        y = products(x[order // chosen], offsets_of(in_order)) * weights.view(-1)[order, None].to(x.dtype)
        return torch.zeros_like(x).index_add_(0, order // chosen, y)

    for tokens, tile_rows in ((1, 0), (16, 8), (64, 8), (2048, 128)):
        data = []
        for _ in range(12 if tokens == 1 else 4):
            ids = torch.rand(tokens, count, device="cuda").topk(chosen).indices.int().contiguous().view(-1)
            data.append((normal(tokens, hidden), ids, torch.softmax(torch.randn(tokens, chosen, device="cuda"), -1)))
        ready = [(x[torch.sort(ids)[1] // chosen].contiguous(), offsets_of(torch.sort(ids)[0])) for x, ids, _ in data]
        made = [sorted_layer(tile_rows, *d) if tile_rows else by_pairs(*d) for d in data]
        for call in made[0][1]:
            call()
        torch.cuda.synchronize()
        (x, ids, weights), y = data[0], made[0][0]
        exact = torch.zeros(min(tokens, 20), hidden, device="cuda", dtype=torch.double)
        for row in range(exact.shape[0]):
            for place in range(chosen):
                e, v = int(ids[row * chosen + place]), x[row].double()
                h = F.silu(gate[e].double() @ v) * (up_[e].double() @ v)
                exact[row] += weights[row, place].double() * (down[e].double() @ h)
        wrong = error(y[: exact.shape[0]], exact)
        good = wrong < 1e-2 and not torch.isnan(y).any().item() and not int(ERRORS)
        times = measure({
            "torch, the layer": graph([lambda d=d: whole(*d) for d in data]),
            "torch, sorted already and not summed": graph([lambda r=r: products(*r) for r in ready]),
            "ours, the layer": graph([call for _, calls in made for call in calls]),
        }, len(data))
        print(f"experts, {tokens} rows: error {wrong:.1e}", "" if good else "WRONG")
        print("   ", "  ".join(f"{n} {t:.1f} us" for n, t in times.items()), flush=True)


def main():
    global ERRORS
    ERRORS = torch.zeros(1, device="cuda", dtype=torch.int32)
    paths = sorted(glob.glob(os.path.join(sys.argv[1], "*.cu")))
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(build, paths))
    texts = {text.path: text for text in map(Text, paths)}
    for part in sys.argv[2:]:
        {"skinny": skinny, "experts": experts}[part](texts)


if __name__ == "__main__":
    main()
