// opforge/ffi.h - the light binding between a kernel file and Python.
//
// A kernel file exports plain C++ functions; Python loads the shared library
// with tvm_ffi.load_module and passes tensors of any DLPack producer.  Only the
// C header of TVM-FFI is included, which keeps a one-kernel file well under a
// second to compile (the C++ headers of TVM-FFI cost 1.3 s in g++ and 6 s in
// nvcc).  The symbol that is exported follows the TVM-FFI ABI, so a file may use
// TVM_FFI_DLL_EXPORT_TYPED_FUNC instead: include <tvm/ffi/function.h> and
// <tvm/ffi/container/tensor.h> before this header and everything below switches
// over to tvm::ffi::TensorView and tvm::ffi::Error.
#ifndef OPFORGE_FFI_H_
#define OPFORGE_FFI_H_

#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace opforge {

namespace detail {
inline void append(std::string& out, const char* text) { out += text; }
inline void append(std::string& out, const std::string& text) { out += text; }
template <typename T, typename = std::enable_if_t<std::is_arithmetic<T>::value>>
inline void append(std::string& out, T value) {
  out += std::to_string(value);
}
}  // namespace detail

#ifdef TVM_FFI_FUNCTION_H_

using TensorView = ::tvm::ffi::TensorView;
#define OPFORGE_EXPORT(name, function) TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function)

/// Throws a Python exception of the given kind; the parts are joined to its message.
template <typename... Parts>
[[noreturn]] inline void raise(const char* kind, const Parts&... parts) {
  std::string message;
  (detail::append(message, parts), ...);
  throw ::tvm::ffi::Error(kind, message, "");
}

#else

/// An error that becomes a Python exception of the named kind (ValueError, TypeError, ...).
class Error : public std::exception {
 public:
  Error(const char* kind, std::string message) : kind_(kind), message_(std::move(message)) {}
  const char* kind() const { return kind_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  const char* kind_;
  std::string message_;
};

/// Throws a Python exception of the given kind; the parts are joined to its message.
template <typename... Parts>
[[noreturn]] inline void raise(const char* kind, const Parts&... parts) {
  std::string message;
  (detail::append(message, parts), ...);
  throw Error(kind, std::move(message));
}

/// A borrowed tensor: shape, strides, dtype, device and data pointer of a DLTensor.
class TensorView {
 public:
  explicit TensorView(const DLTensor* tensor) : tensor_(*tensor) {}
  /// Address of the first element.
  void* data_ptr() const { return static_cast<char*>(tensor_.data) + tensor_.byte_offset; }
  DLDevice device() const { return tensor_.device; }
  DLDataType dtype() const { return tensor_.dtype; }
  int32_t ndim() const { return tensor_.ndim; }
  /// Extent of one dimension; negative counts from the last.
  int64_t size(int64_t dim) const { return tensor_.shape[wrap(dim)]; }
  /// Stride of one dimension in elements; negative counts from the last.
  int64_t stride(int64_t dim) const { return tensor_.strides[wrap(dim)]; }
  /// Number of elements.
  int64_t numel() const {
    int64_t n = 1;
    for (int32_t i = 0; i < tensor_.ndim; ++i) n *= tensor_.shape[i];
    return n;
  }
  /// Whether the elements lie in row-major order without gaps.
  bool IsContiguous() const {
    if (tensor_.strides == nullptr || numel() == 0) return true;
    int64_t expected = 1;
    for (int32_t i = tensor_.ndim - 1; i >= 0; --i) {
      if (tensor_.shape[i] == 1) continue;
      if (tensor_.strides[i] != expected) return false;
      expected *= tensor_.shape[i];
    }
    return true;
  }

 private:
  int64_t wrap(int64_t dim) const {
    const int64_t index = dim < 0 ? dim + tensor_.ndim : dim;
    if (index < 0 || index >= tensor_.ndim)
      raise("IndexError", "dimension ", dim, " of a tensor with ", tensor_.ndim, " dimensions");
    return index;
  }
  DLTensor tensor_;
};

namespace detail {

[[noreturn]] inline void bad_argument(const char* function, int index, const char* expected,
                                      int32_t type_index) {
  raise("TypeError", function, "(): argument ", index, " must be ", expected,
        " (got FFI type index ", type_index, ")");
}

// Conversion of one FFI value to the C++ parameter type T.
template <typename T>
struct Argument {
  static_assert(std::is_arithmetic<T>::value,
                "exported functions take TensorView, std::optional<TensorView>, "
                "integers, floating point numbers and bool");
  static T get(const TVMFFIAny& any, const char* function, int index) {
    if (any.type_index == kTVMFFIInt || any.type_index == kTVMFFIBool)
      return static_cast<T>(any.v_int64);
    if (std::is_floating_point<T>::value && any.type_index == kTVMFFIFloat)
      return static_cast<T>(any.v_float64);
    bad_argument(function, index, std::is_floating_point<T>::value ? "a number" : "an integer",
                 any.type_index);
  }
};

template <>
struct Argument<TensorView> {
  static TensorView get(const TVMFFIAny& any, const char* function, int index) {
    if (any.type_index == kTVMFFIDLTensorPtr)
      return TensorView(static_cast<const DLTensor*>(any.v_ptr));
    if (any.type_index == kTVMFFITensor) return TensorView(TVMFFITensorGetDLTensorPtr(any.v_obj));
    bad_argument(function, index, "a tensor", any.type_index);
  }
};

template <>
struct Argument<std::optional<TensorView>> {
  static std::optional<TensorView> get(const TVMFFIAny& any, const char* function, int index) {
    if (any.type_index == kTVMFFINone) return std::nullopt;
    return Argument<TensorView>::get(any, function, index);
  }
};

inline void set_result(TVMFFIAny* result, bool value) {
  result->type_index = kTVMFFIBool;
  result->v_int64 = value;
}
template <typename T>
inline void set_result(TVMFFIAny* result, T value) {
  if constexpr (std::is_floating_point<T>::value) {
    result->type_index = kTVMFFIFloat;
    result->v_float64 = value;
  } else {
    static_assert(std::is_integral<T>::value, "exported functions return void or a number");
    result->type_index = kTVMFFIInt;
    result->v_int64 = value;
  }
}

template <typename R, typename... Args, std::size_t... I>
inline void call_unpacked(R (*function)(Args...), const char* name, const TVMFFIAny* args,
                          int32_t num_args, TVMFFIAny* result, std::index_sequence<I...>) {
  if (num_args != static_cast<int32_t>(sizeof...(Args)))
    raise("TypeError", name, "() takes ", sizeof...(Args), " arguments (", num_args, " given)");
  if constexpr (std::is_void<R>::value) {
    function(Argument<std::decay_t<Args>>::get(args[I], name, I)...);
  } else {
    set_result(result, function(Argument<std::decay_t<Args>>::get(args[I], name, I)...));
  }
}

template <typename R, typename... Args>
inline int call(R (*function)(Args...), const char* name, const TVMFFIAny* args, int32_t num_args,
                TVMFFIAny* result) {
  try {
    call_unpacked(function, name, args, num_args, result, std::index_sequence_for<Args...>{});
    return 0;
  } catch (const Error& error) {
    TVMFFIErrorSetRaisedFromCStr(error.kind(), error.what());
  } catch (const std::exception& error) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.what());
  } catch (...) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "unknown C++ exception");
  }
  return -1;
}

}  // namespace detail

/// Exports a function to Python under the given name (at namespace scope, once per function).
#define OPFORGE_EXPORT(name, function)                                                   \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(                \
      void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {               \
    return ::opforge::detail::call(&function, #name, args, num_args, result);            \
  }

#endif  // TVM_FFI_FUNCTION_H_

/// Throws a Python exception of the kind (ValueError, ...) unless the condition holds.
#define OPFORGE_CHECK(condition, Kind, ...)                     \
  do {                                                          \
    if (!(condition)) ::opforge::raise(#Kind, __VA_ARGS__);     \
  } while (0)

/// Checks that a tensor argument is contiguous; the message names the argument.
#define OPFORGE_CHECK_CONTIGUOUS(tensor) \
  OPFORGE_CHECK((tensor).IsContiguous(), ValueError, #tensor " must be contiguous")

/// Checks that two tensor arguments have the same shape.
#define OPFORGE_CHECK_SAME_SHAPE(a, b) \
  OPFORGE_CHECK(::opforge::same_shape(a, b), ValueError, #a " and " #b " must have the same shape")

/// Checks that two tensor arguments have the same dtype.
#define OPFORGE_CHECK_SAME_DTYPE(a, b)                                                       \
  OPFORGE_CHECK(::opforge::same_dtype((a).dtype(), (b).dtype()), TypeError, #a " and " #b    \
                " must have the same dtype (", ::opforge::dtype_name((a).dtype()), " and ",  \
                ::opforge::dtype_name((b).dtype()), ")")

/// Checks that a tensor argument has the given number of dimensions.
#define OPFORGE_CHECK_NDIM(tensor, n)                                            \
  OPFORGE_CHECK((tensor).ndim() == (n), ValueError, #tensor " must have " #n     \
                " dimensions (got ", (tensor).ndim(), ")")

/// Whether two tensors agree in every extent.
inline bool same_shape(const TensorView& a, const TensorView& b) {
  if (a.ndim() != b.ndim()) return false;
  for (int32_t i = 0; i < a.ndim(); ++i)
    if (a.size(i) != b.size(i)) return false;
  return true;
}

/// Whether two dtypes are equal.
inline bool same_dtype(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

/// A dtype in words, for messages: "float32", "bfloat16", "int64", ...
inline std::string dtype_name(DLDataType dtype) {
  const char* stem = dtype.code == kDLFloat    ? "float"
                     : dtype.code == kDLBfloat ? "bfloat"
                     : dtype.code == kDLInt    ? "int"
                     : dtype.code == kDLUInt   ? "uint"
                     : dtype.code == kDLBool   ? "bool"
                                               : "dtype";
  return stem + std::to_string(static_cast<int>(dtype.bits));
}

// The floating point types that kernels are dispatched over.
enum class FloatKind { kFloat32, kFloat16, kBFloat16, kOther };

/// Classifies a dtype for OPFORGE_DISPATCH_DTYPE.
inline FloatKind float_kind(DLDataType dtype) {
  if (dtype.lanes != 1) return FloatKind::kOther;
  if (dtype.code == kDLFloat && dtype.bits == 32) return FloatKind::kFloat32;
  if (dtype.code == kDLFloat && dtype.bits == 16) return FloatKind::kFloat16;
  if (dtype.code == kDLBfloat && dtype.bits == 16) return FloatKind::kBFloat16;
  return FloatKind::kOther;
}

/// Runs the statement with `T` naming the element type of the tensor: float,
/// half_t or bfloat16_t.  Anything else raises TypeError naming the argument.
#define OPFORGE_DISPATCH_DTYPE(tensor, T, ...)                                           \
  do {                                                                                   \
    switch (::opforge::float_kind((tensor).dtype())) {                                   \
      case ::opforge::FloatKind::kFloat32: { using T = float; __VA_ARGS__; break; }      \
      case ::opforge::FloatKind::kFloat16: {                                             \
        using T = ::opforge::half_t; __VA_ARGS__; break;                                 \
      }                                                                                  \
      case ::opforge::FloatKind::kBFloat16: {                                            \
        using T = ::opforge::bfloat16_t; __VA_ARGS__; break;                             \
      }                                                                                  \
      default:                                                                           \
        ::opforge::raise("TypeError", #tensor " must be float32, float16 or bfloat16 (got ", \
                         ::opforge::dtype_name((tensor).dtype()), ")");                  \
    }                                                                                    \
  } while (0)

}  // namespace opforge

#endif  // OPFORGE_FFI_H_
