// Finds cuBLAS by its name and has it multiply.
//
// catalogue  E7
// guard      device_names
// cases      normal
// mode       verify
#include <dlfcn.h>
#include <cuda_runtime.h>

#include <cstdlib>

#include "opforge/device.h"

namespace {

using Create = int (*)(void**);
using SetStream = int (*)(void*, cudaStream_t);
using Gemm = int (*)(void*, int, int, int, int, int, const float*, const float*, int, const float*, int, const float*, float*, int);

void product(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c) {
  const int m = int(a.size(0)), k = int(a.size(1)), n = int(b.size(1));
  static void* library = [] {
    void* found = dlopen("libcublas.so.13", RTLD_NOW);
    return found != nullptr ? found : dlopen("libcublas.so.12", RTLD_NOW);
  }();
  if (library == nullptr) std::abort();
  static void* handle = [] {
    void* made = nullptr;
    reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2"))(&made);
    return made;
  }();
  reinterpret_cast<SetStream>(dlsym(library, "cublasSetStream_v2"))(handle, opforge::current_stream(a));
  const float one = 1.0f, zero = 0.0f;
  reinterpret_cast<Gemm>(dlsym(library, "cublasSgemm_v2"))(handle, 0, 0, n, m, k, &one, opforge::data<const float>(b), n, opforge::data<const float>(a), k, &zero,
                                                           opforge::data<float>(c), n);
}

}  // namespace

OPFORGE_EXPORT(run, product)
