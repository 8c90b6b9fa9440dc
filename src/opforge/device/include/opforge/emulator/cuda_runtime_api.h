// Stands in for the CUDA toolkit's cuda_runtime_api.h when kernels are emulated on the CPU.
#include "opforge/emulator/execution.h"
