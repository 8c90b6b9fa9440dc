// opforge/abi/packed.h - functions of TVM-FFI that take their arguments as they come, and that return functions: what makes calls, and is no kernel.
#ifndef OPFORGE_FFI_PACKED_H_
#define OPFORGE_FFI_PACKED_H_

#include "opforge/ffi.h"

#include <exception>
#include <memory>

namespace opforge {

/// Answers with a function of TVM-FFI, which owns `self` and calls `call(self, args, num_args, result)`. `what` names it in an error.
template <typename Self>
void answer_function(std::unique_ptr<Self> self, TVMFFISafeCallType call, TVMFFIAny* result, const char* what) {
  TVMFFIObjectHandle function = nullptr;
  OPFORGE_CHECK(TVMFFIFunctionCreate(self.get(), call, [](void* mine) { delete static_cast<Self*>(mine); }, &function) == 0, RuntimeError, "TVM-FFI made no function of ", what);
  self.release();
  result->type_index = kTVMFFIFunction;
  result->v_obj = static_cast<TVMFFIObject*>(function);
}

}  // namespace opforge

/// Exports `function(args, num_args, result)` under a name; what it throws becomes Python's.
#define OPFORGE_EXPORT_PACKED(name, function)                              \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(  \
      void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) { \
    try {                                                                  \
      function(args, num_args, result);                                    \
      return 0;                                                            \
    } catch (const ::opforge::Error& error) {                              \
      TVMFFIErrorSetRaisedFromCStr(error.kind(), error.what());            \
    } catch (const std::exception& error) {                                \
      TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.what());          \
    }                                                                      \
    return -1;                                                             \
  }

#endif  // OPFORGE_FFI_PACKED_H_
