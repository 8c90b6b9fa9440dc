// Stands in for the CUDA toolkit's device_launch_parameters.h when kernels are emulated on the CPU.
#include "opforge/emulator/execution.h"
