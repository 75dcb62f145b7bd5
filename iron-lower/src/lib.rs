//! Lowering of the kernel IR to MSL, CUDA C++, HIP C++, SPIR-V and machine code.
