// Stands in for the CUDA toolkit's mma.h when kernels are emulated on the CPU.
#error "opforge emulator: tensor core (wmma) operations are not supported; this kernel can only be built with nvcc"
