// opforge/abi/lists.h - kernels that take any number of tensors: opforge::TensorList, and OPFORGE_EXPORT_LISTS in place of OPFORGE_EXPORT.
#ifndef OPFORGE_ABI_LISTS_H_
#define OPFORGE_ABI_LISTS_H_

#include "opforge/ffi.h"

#include <exception>
#include <tuple>
#include <vector>

namespace opforge {

/// The tensors of one argument, borrowed, in the order in which the caller gives them.
using TensorList = std::vector<TensorView>;

namespace detail {

// Arguments one after another: a list is its length, and then its tensors.
struct Arguments {
  const TVMFFIAny* args;
  int32_t count;
  const char* function;
  int32_t at = 0;

  const TVMFFIAny& one() {
    if (at >= count) raise("TypeError", function, "(): argument ", at, " is missing");
    return args[at++];
  }
  template <typename T>
  T next() {
    if constexpr (std::is_same<T, TensorList>::value) {
      const int64_t length = next<int64_t>();
      TensorList list;
      for (int64_t i = 0; i < length; ++i) list.push_back(next<TensorView>());
      return list;
    } else {
      const int32_t place = at;
      return Argument<T>::get(one(), function, place);
    }
  }
};

template <typename... Args>
int call_with_lists(void (*function)(Args...), const char* name, const TVMFFIAny* args, int32_t num_args) {
  try {
    Arguments given{args, num_args, name};
    std::tuple<std::decay_t<Args>...> values{given.next<std::decay_t<Args>>()...};  // braces: from left to right
    if (given.at != num_args) raise("TypeError", name, "() takes ", given.at, " arguments (", num_args, " given)");
    std::apply(function, values);
    return 0;
  } catch (const Error& error) {
    TVMFFIErrorSetRaisedFromCStr(error.kind(), error.what());
  } catch (const std::exception& error) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.what());
  }
  return -1;
}

}  // namespace detail
}  // namespace opforge

/// Exports a function whose parameters may be lists of tensors.
#define OPFORGE_EXPORT_LISTS(name, function)                                 \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(    \
      void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny*) {          \
    return ::opforge::detail::call_with_lists(&function, #name, args, num_args); \
  }

#endif  // OPFORGE_ABI_LISTS_H_
