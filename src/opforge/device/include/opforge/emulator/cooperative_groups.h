// Stands in for the CUDA toolkit's cooperative_groups.h when kernels are emulated on the CPU.
#error "opforge emulator: cooperative groups are not supported; this kernel can only be built with nvcc"
