// Stands in for the CUDA toolkit's cuda_bf16.h when kernels are emulated on the CPU.
#include "opforge/emulator/execution.h"
