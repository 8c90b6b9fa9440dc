// Stands in for the CUDA toolkit's cudaTypedefs.h when kernels are emulated on the CPU.
#error "opforge emulator: TMA descriptors are not supported; this kernel can only be built with nvcc"
