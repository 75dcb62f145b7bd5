"""Generated CUDA texts on a GPU: compiled by `nvcc`, launched by the driver.

The texts come from the runner, one a kernel instance, in one folder:

    __iron_runner explain softmax_eights --instance bf16-EIGHTS=2 --target cuda --profile sm_90a > texts/softmax.cu
"""

import ctypes
import glob
import re
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor

import torch

from device import check, cu


def built(path):
    binary = path + ".cubin"
    arch = "-gencode=arch=compute_90a,code=sm_90a"
    command = ["nvcc", "--fmad=false", "-std=c++17", "-Xptxas=-v", arch, "-cubin", path, "-o", binary]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return path, binary, " ".join(re.findall(r"\d+ registers|\d+ bytes spill \w+", done.stderr))


def compiled(folder):
    """The texts of a folder by the names of their kernels."""
    with ThreadPoolExecutor() as pool:
        texts = [Text(*one) for one in pool.map(built, sorted(glob.glob(folder + "/*.cu")))]
    return {text.name: text for text in texts}


class Text:
    """A generated text, compiled; its parameters are named as in the text."""

    def __init__(self, path, binary, resources):
        source = open(path).read()
        self.resources, self.is_dependent = resources, "griddepcontrol.wait" in source
        found = re.search(r'extern "C"[^(]*\([^)]*\) (\w+)\(([^)]*)\)', source)
        self.name = found.group(1)
        self.parameters = re.findall(r"(\w+)\s*$", found.group(2).replace(",", "\n"), re.M)
        self.kinds = [p.strip() for p in found.group(2).split(",")]
        self.threads = int(re.search(r"// workgroup +(\d+)", source).group(1))
        module = check(cu.cuModuleLoad(binary.encode()))
        self.function = check(cu.cuModuleGetFunction(module, self.name.encode()))
        self.errors = torch.zeros(4, device="cuda", dtype=torch.int32)

    def launcher(self, grid, tensors, early=False, **numbers):
        """A call that launches; `early` lets a dependent kernel begin while the one before ends."""
        block, offsets = b"", []
        for kind, name in zip(self.kinds, self.parameters):
            stride = re.fullmatch(r"(\w+)_stride(\d+)", name)
            if name == "error_word":
                code, value = "Q", self.errors.data_ptr()
            elif name in tensors:
                code, value = "Q", tensors[name].data_ptr()
            elif stride:
                code, value = "Q", tensors[stride.group(1)].stride(int(stride.group(2)))
            else:
                code, value = ("f" if kind.startswith("float") else "I"), numbers[name]
            size = struct.calcsize("<" + code)
            block = block.ljust(-(-len(block) // size) * size, b"\0")
            offsets.append(len(block))
            block += struct.pack("<" + code, value)
        memory = (ctypes.c_char * (len(block) + 8)).from_buffer_copy(block + bytes(8))
        base = ctypes.addressof(memory)
        pointers = (ctypes.c_void_p * len(offsets))(*[base + o for o in offsets])
        grid = [*grid, 1, 1][:3]

        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self.threads, 1, 1
        if early and self.is_dependent:
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1

        def go():
            config.hStream = torch.cuda.current_stream().cuda_stream
            check(cu.cuLaunchKernelEx(config, self.function, ctypes.addressof(pointers), 0))

        go.keep = (memory, pointers, tensors)
        return go
