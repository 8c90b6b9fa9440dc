// Stands in for the CUDA toolkit's cuda_fp16.h when kernels are emulated on the CPU.
#include "opforge/emulator/execution.h"
