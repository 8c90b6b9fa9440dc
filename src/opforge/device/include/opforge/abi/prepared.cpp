// A kernel bound to one class of tensors: of these shapes, strides, dtypes and devices.
//
// prepare(kernel, alignment, count, {example, axes, size..., stride...} for each tensor, number...) returns a function of `count` tensors.
// It hands them to the kernel in the given sizes and strides, which are a view of the same elements in the same order, then the numbers, and
// returns true; for tensors of another class, or at addresses that are no multiples of `alignment`, it does nothing and
// returns false, and so it does when the kernel says false.  A view made by PyTorch costs more than the whole call.
#include "opforge/abi/packed.h"

#include <cstring>
#include <memory>
#include <vector>

namespace {

constexpr int kMostTensors = 12, kMostArguments = 32;

struct Known {
  DLDataType dtype;
  DLDevice device;
  std::vector<int64_t> sizes, strides, kernel_sizes, kernel_strides;

  bool fits(const DLTensor& tensor) const {
    if (tensor.ndim != static_cast<int32_t>(sizes.size()) || !opforge::same_dtype(tensor.dtype, dtype)) return false;
    if (tensor.device.device_type != device.device_type || tensor.device.device_id != device.device_id) return false;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (tensor.shape[i] != sizes[i]) return false;
      if (sizes[i] != 1 && (tensor.strides == nullptr || tensor.strides[i] != strides[i])) return false;
    }
    return true;
  }
};

struct Prepared {
  TVMFFIObjectHandle kernel = nullptr;
  uint64_t alignment = 1;
  std::vector<Known> tensors;
  std::vector<TVMFFIAny> numbers;
  ~Prepared() {
    if (kernel != nullptr) TVMFFIObjectDecRef(kernel);
  }
};

const DLTensor* tensor_of(const TVMFFIAny& any) {
  if (any.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(any.v_ptr);
  return any.type_index == kTVMFFITensor ? TVMFFITensorGetDLTensorPtr(any.v_obj) : nullptr;
}

int call(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  auto& prepared = *static_cast<Prepared*>(self);
  const std::size_t count = prepared.tensors.size();
  opforge::detail::set_result(result, false);
  if (static_cast<std::size_t>(num_args) != count) return 0;
  DLTensor seen[kMostTensors];
  TVMFFIAny given[kMostArguments];
  for (std::size_t i = 0; i < count; ++i) {
    const DLTensor* tensor = tensor_of(args[i]);
    Known& known = prepared.tensors[i];
    if (tensor == nullptr || !known.fits(*tensor)) return 0;
    if ((reinterpret_cast<uint64_t>(tensor->data) + tensor->byte_offset) % prepared.alignment != 0) return 0;
    seen[i] = *tensor;
    seen[i].ndim = static_cast<int32_t>(known.kernel_sizes.size());
    seen[i].shape = known.kernel_sizes.data();
    seen[i].strides = known.kernel_strides.data();
    std::memset(&given[i], 0, sizeof given[i]);
    given[i].type_index = kTVMFFIDLTensorPtr;
    given[i].v_ptr = &seen[i];
  }
  for (std::size_t i = 0; i < prepared.numbers.size(); ++i) given[count + i] = prepared.numbers[i];
  TVMFFIAny nothing;
  std::memset(&nothing, 0, sizeof nothing);
  const int failed = TVMFFIFunctionCall(prepared.kernel, given, static_cast<int32_t>(count + prepared.numbers.size()), &nothing);
  if (failed != 0) return failed;
  opforge::detail::set_result(result, nothing.type_index != kTVMFFIBool || nothing.v_int64 != 0);
  if (nothing.type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(nothing.v_obj);
  return 0;
}

void prepare(const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  int32_t next = 0;
  const auto take = [&]() -> const TVMFFIAny& {
    OPFORGE_CHECK(next < num_args, TypeError, "prepare() was given ", num_args, " arguments, and they end too soon");
    return args[next++];
  };
  auto prepared = std::make_unique<Prepared>();
  const TVMFFIAny& kernel = take();
  OPFORGE_CHECK(kernel.type_index == kTVMFFIFunction, TypeError, "the first argument of prepare() must be a function");
  const int64_t alignment = opforge::detail::Argument<int64_t>::get(take(), "prepare", 1);
  OPFORGE_CHECK(alignment > 0, ValueError, "addresses cannot be multiples of ", alignment);
  prepared->alignment = static_cast<uint64_t>(alignment);
  const int64_t count = opforge::detail::Argument<int64_t>::get(take(), "prepare", 2);
  OPFORGE_CHECK(count >= 0 && count <= kMostTensors, ValueError, "prepare() takes at most ", kMostTensors, " tensors, not ", count);
  for (int64_t i = 0; i < count; ++i) {
    const DLTensor* example = tensor_of(take());
    OPFORGE_CHECK(example != nullptr, TypeError, "prepare() needs an example of each tensor");
    OPFORGE_CHECK(example->strides != nullptr || example->ndim == 0, ValueError, "prepare() needs the strides of each tensor");
    Known known{example->dtype, example->device, {example->shape, example->shape + example->ndim}, {example->strides, example->strides + example->ndim}, {}, {}};
    const int64_t axes = opforge::detail::Argument<int64_t>::get(take(), "prepare", next);
    int64_t elements = 1;
    for (int64_t axis = 0; axis < axes; ++axis) {
      known.kernel_sizes.push_back(opforge::detail::Argument<int64_t>::get(take(), "prepare", next));
      elements *= known.kernel_sizes.back();
    }
    OPFORGE_CHECK(elements == opforge::TensorView(example).numel(), ValueError, "the kernel would see ", elements, " elements of a tensor with ",
                  opforge::TensorView(example).numel());
    for (int64_t axis = 0; axis < axes; ++axis) known.kernel_strides.push_back(opforge::detail::Argument<int64_t>::get(take(), "prepare", next));
    prepared->tensors.push_back(std::move(known));
  }
  for (; next < num_args; ++next) {
    OPFORGE_CHECK(args[next].type_index == kTVMFFIInt || args[next].type_index == kTVMFFIBool || args[next].type_index == kTVMFFIFloat, TypeError,
                  "argument ", next, " of prepare() must be a number");
    prepared->numbers.push_back(args[next]);
  }
  OPFORGE_CHECK(count + prepared->numbers.size() <= kMostArguments, ValueError, "prepare() takes at most ", kMostArguments, " arguments for a kernel");
  TVMFFIObjectIncRef(kernel.v_obj);
  prepared->kernel = kernel.v_obj;
  opforge::answer_function(std::move(prepared), call, result, "a prepared call");
}

}  // namespace

OPFORGE_EXPORT_PACKED(prepare, prepare)
