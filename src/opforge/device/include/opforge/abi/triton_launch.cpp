// A kernel that Triton compiled, with the grid and the numbers of one launch: a function of tensors that launches it again on PyTorch's current stream.
//
// launcher(cuLaunchKernelEx, cuCtxGetDevice, kernel, grid x, y, z, threads, shared bytes, blocks of a cluster, {tensor, bits} for each parameter...)
// returns that function.  The first two are addresses in the driver, the third its CUfunction.  A parameter is the address of the data of a tensor (its
// place among the arguments), or with tensor -1 the lowest bytes of `bits`: the driver takes as many as the parameter has.  The function returns true; where
// another device is current than the tensors' own it does nothing and returns false: the kernel lies in the context of one device.
#include "opforge/abi/packed.h"

#include <cuda.h>

#include <memory>
#include <vector>

namespace {

constexpr int kMostParameters = 64;

struct Parameter {
  int64_t tensor, bits;
};

struct Launch {
  decltype(&cuLaunchKernelEx) launch = nullptr;
  decltype(&cuCtxGetDevice) current_device = nullptr;
  CUfunction kernel = nullptr;
  CUlaunchConfig config{};
  CUlaunchAttribute attributes[2]{};
  std::vector<Parameter> parameters;
};

int call(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  const auto& known = *static_cast<const Launch*>(self);
  opforge::detail::set_result(result, false);
  int64_t bits[kMostParameters];
  void* addresses[kMostParameters];
  int32_t device = -1;
  const std::size_t count = known.parameters.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Parameter& parameter = known.parameters[i];
    bits[i] = parameter.bits;
    if (parameter.tensor >= 0) {
      if (parameter.tensor >= num_args || args[parameter.tensor].type_index != kTVMFFIDLTensorPtr) return 0;
      const auto* tensor = static_cast<const DLTensor*>(args[parameter.tensor].v_ptr);
      bits[i] = reinterpret_cast<int64_t>(static_cast<const char*>(tensor->data) + tensor->byte_offset);
      device = tensor->device.device_id;
    }
    addresses[i] = &bits[i];
  }
  CUdevice current = -1;
  if (known.current_device(&current) != CUDA_SUCCESS || current != device) return 0;
  CUlaunchConfig config = known.config;
  config.hStream = static_cast<CUstream>(TVMFFIEnvGetStream(kDLCUDA, device));
  const CUresult status = known.launch(&config, known.kernel, addresses, nullptr);
  if (status != CUDA_SUCCESS) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", ("CUDA refused to launch a Triton kernel (CUresult " + std::to_string(static_cast<int>(status)) + ")").c_str());
    return -1;
  }
  opforge::detail::set_result(result, true);
  return 0;
}

void launcher(const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  int32_t next = 0;
  const auto take = [&]() -> int64_t {
    OPFORGE_CHECK(next < num_args, TypeError, "launcher() was given ", num_args, " arguments, and they end too soon");
    const int64_t value = opforge::detail::Argument<int64_t>::get(args[next], "launcher", next);
    ++next;
    return value;
  };
  auto made = std::make_unique<Launch>();
  made->launch = reinterpret_cast<decltype(made->launch)>(take());
  made->current_device = reinterpret_cast<decltype(made->current_device)>(take());
  made->kernel = reinterpret_cast<CUfunction>(take());
  CUlaunchConfig& config = made->config;
  config.gridDimX = static_cast<unsigned>(take()), config.gridDimY = static_cast<unsigned>(take()), config.gridDimZ = static_cast<unsigned>(take());
  config.blockDimX = static_cast<unsigned>(take()), config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(take());
  const auto blocks = static_cast<unsigned>(take());
  if (blocks > 1) {
    // as Triton launches clusters: the grid counts their blocks
    config.gridDimX *= blocks;
    made->attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    made->attributes[0].value.clusterDim.x = blocks;
    made->attributes[0].value.clusterDim.y = made->attributes[0].value.clusterDim.z = 1;
    made->attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
    made->attributes[1].value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
    config.attrs = made->attributes;
    config.numAttrs = 2;
  }
  bool any = false;
  while (next < num_args) {
    const int64_t tensor = take();
    made->parameters.push_back({tensor, take()});
    any = any || tensor >= 0;
  }
  OPFORGE_CHECK(any && made->parameters.size() <= kMostParameters, ValueError, "launcher() takes at most ", kMostParameters, " parameters, one of them a tensor");
  opforge::answer_function(std::move(made), call, result, "a launch");
}

}  // namespace

OPFORGE_EXPORT_PACKED(launcher, launcher)
