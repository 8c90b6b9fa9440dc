// Stands in for the CUDA toolkit's vector_types.h when kernels are emulated on the CPU.
#include "opforge/emulator/execution.h"
