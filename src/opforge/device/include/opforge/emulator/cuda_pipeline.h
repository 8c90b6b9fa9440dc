// Stands in for the CUDA toolkit's cuda_pipeline.h when kernels are emulated on the CPU.
#error "opforge emulator: asynchronous copies are not supported; this kernel can only be built with nvcc"
