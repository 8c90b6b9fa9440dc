// opforge/abi/native_call.h - a prepared call of a kernel as a Python object: outputs are allocated and the kernel is called without a frame of Python's.
//
// Native(kernel, handle, makers, otherwise, exchange) is called as native(tensors). `kernel` is a function of TVM-FFI that is bound to a class of
// tensors on the host (prepared.cpp) and says whether tensors are of it, `handle` its address, `makers` {function, arguments} for each output.
// TVM-FFI's own caller sees each tensor again, chooses a stream and looks for what to convert: 0.4 us, half of such a call.
#ifndef OPFORGE_FFI_NATIVE_CALL_H_
#define OPFORGE_FFI_NATIVE_CALL_H_

#include <Python.h>
#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

#include <cstring>
#include <initializer_list>

namespace opforge {

constexpr Py_ssize_t kMostTensors = 12;
// A kernel on so few elements runs with the interpreter's lock held: giving it away and taking it again would cost more than the kernel.
constexpr int64_t kFew = 1024;

struct Native {
  PyObject_HEAD
  PyObject *kernel, *makers, *otherwise, *capsule;
  TVMFFIObjectHandle handle;
  DLPackDLTensorFromPyObjectNoSync see;
};

inline PyTypeObject native_type = {PyVarObject_HEAD_INIT(nullptr, 0)}, forward_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

inline const DLPackExchangeAPI* exchange_of(PyObject* capsule) {
  const auto* exchange = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  if (exchange == nullptr) return nullptr;
  if (exchange->header.version.major != DLPACK_MAJOR_VERSION || exchange->dltensor_from_py_object_no_sync == nullptr) {
    PyErr_SetString(PyExc_TypeError, "another version of DLPack's exchange API");
    return nullptr;
  }
  return exchange;
}

// The outputs for inputs that were seen already: one tensor, or a tuple. Null without an exception where the kernel says that they are not its
// class, and where anything fails: whoever asks then goes another way, which raises what there is to raise.
inline PyObject* native_run(Native* self, const DLTensor* inputs, Py_ssize_t count) {
  const Py_ssize_t fresh = PyTuple_GET_SIZE(self->makers) / 2;
  if (count + fresh > kMostTensors) return nullptr;
  DLTensor seen[kMostTensors];
  PyObject* made[kMostTensors];
  TVMFFIAny given[kMostTensors];
  std::memset(given, 0, sizeof(TVMFFIAny) * static_cast<std::size_t>(count + fresh));
  Py_ssize_t done = 0;
  bool right = true;
  for (; done < fresh && right; ++done) {
    made[done] = PyObject_CallObject(PyTuple_GET_ITEM(self->makers, 2 * done), PyTuple_GET_ITEM(self->makers, 2 * done + 1));
    if (made[done] == nullptr) break;
    right = self->see(made[done], &seen[done]) == 0;
  }
  right = right && done == fresh;
  if (right) {
    int64_t elements = 0;
    for (Py_ssize_t i = 0; i < count + fresh; ++i) {
      const DLTensor& tensor = i < count ? inputs[i] : seen[i - count];
      int64_t own = 1;
      for (int32_t axis = 0; axis < tensor.ndim && own <= kFew; ++axis) own *= tensor.shape[axis];
      elements += own;
      given[i].type_index = kTVMFFIDLTensorPtr;
      given[i].v_ptr = const_cast<DLTensor*>(&tensor);
    }
    TVMFFIAny result;
    std::memset(&result, 0, sizeof result);
    PyThreadState* state = elements <= kFew ? nullptr : PyEval_SaveThread();
    const int failed = TVMFFIFunctionGetCellPtr(self->handle)->safe_call(self->handle, given, static_cast<int32_t>(count + fresh), &result);
    if (state != nullptr) PyEval_RestoreThread(state);
    right = failed == 0 && result.type_index == kTVMFFIBool && result.v_int64 != 0;
  }
  PyObject* outputs = right && fresh != 1 ? PyTuple_New(fresh) : nullptr;
  if (right && (fresh == 1 || outputs != nullptr)) {
    if (fresh == 1) return made[0];
    for (Py_ssize_t i = 0; i < fresh; ++i) PyTuple_SET_ITEM(outputs, i, made[i]);
    return outputs;
  }
  for (Py_ssize_t i = 0; i < done; ++i) Py_DECREF(made[i]);
  PyErr_Clear();
  return nullptr;
}

// the outputs for a tuple of tensors, by `otherwise` where these are not the kernel's class
inline PyObject* native_outputs(Native* self, PyObject* tensors) {
  const Py_ssize_t count = PyTuple_GET_SIZE(tensors);
  DLTensor seen[kMostTensors];
  bool right = count <= kMostTensors;
  for (Py_ssize_t i = 0; i < count && right; ++i) right = self->see(PyTuple_GET_ITEM(tensors, i), &seen[i]) == 0;
  PyErr_Clear();
  PyObject* outputs = right ? native_run(self, seen, count) : nullptr;
  return outputs != nullptr ? outputs : PyObject_CallOneArg(self->otherwise, tensors);
}

inline PyObject* native_call(PyObject* object, PyObject* args, PyObject*) {
  if (PyTuple_GET_SIZE(args) != 1 || !PyTuple_CheckExact(PyTuple_GET_ITEM(args, 0))) {
    PyErr_SetString(PyExc_TypeError, "a prepared call takes a tuple of tensors");
    return nullptr;
  }
  return native_outputs(reinterpret_cast<Native*>(object), PyTuple_GET_ITEM(args, 0));
}

inline PyObject* native_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *kernel, *handle, *makers, *otherwise, *capsule;
  if (!PyArg_ParseTuple(args, "OO!O!OO", &kernel, &PyLong_Type, &handle, &PyTuple_Type, &makers, &otherwise, &capsule)) return nullptr;
  void* address = PyLong_AsVoidPtr(handle);
  const DLPackExchangeAPI* exchange = address == nullptr ? nullptr : exchange_of(capsule);
  bool pairs = PyTuple_GET_SIZE(makers) > 0 && PyTuple_GET_SIZE(makers) % 2 == 0;
  for (Py_ssize_t i = 1; pairs && i < PyTuple_GET_SIZE(makers); i += 2) pairs = PyTuple_CheckExact(PyTuple_GET_ITEM(makers, i));
  if (exchange == nullptr || !pairs) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a prepared call needs a kernel's address, and a function with its arguments for each output");
    return nullptr;
  }
  auto* self = reinterpret_cast<Native*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  Py_INCREF(kernel), Py_INCREF(makers), Py_INCREF(otherwise), Py_INCREF(capsule);
  self->kernel = kernel, self->makers = makers, self->otherwise = otherwise, self->capsule = capsule;
  self->handle = address;
  self->see = exchange->dltensor_from_py_object_no_sync;
  return reinterpret_cast<PyObject*>(self);
}

inline int native_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Native*>(object);
  Py_VISIT(self->kernel);
  Py_VISIT(self->makers);
  Py_VISIT(self->otherwise);
  return 0;
}

// members stay: a call may be under way in another thread, and what they hold holds no tensors
inline void native_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Native*>(object);
  PyObject_GC_UnTrack(object);
  for (PyObject** item : {&self->kernel, &self->makers, &self->otherwise, &self->capsule}) Py_CLEAR(*item);
  Py_TYPE(object)->tp_free(object);
}

// Forward(native, places) is what an autograd.Function of PyTorch's takes for its `forward`: of a context and tensors it gives what native(tensors)
// gives, and leaves in the context's `to_save` what FunctionCtx.save_for_backward would: for each of `places` among tensors and outputs that one, for -1 None.
struct Forward {
  PyObject_HEAD
  PyObject *native, *places;
};

inline PyObject* forward_call(PyObject* object, PyObject* args, PyObject*) {
  auto* self = reinterpret_cast<Forward*>(object);
  static PyObject* name = PyUnicode_InternFromString("to_save");
  const Py_ssize_t count = PyTuple_GET_SIZE(args) - 1;
  if (count < 0) {
    PyErr_SetString(PyExc_TypeError, "a forward call takes a context and tensors");
    return nullptr;
  }
  PyObject* tensors = PyTuple_GetSlice(args, 1, count + 1);
  if (tensors == nullptr) return nullptr;
  PyObject* outputs = native_outputs(reinterpret_cast<Native*>(self->native), tensors);
  const Py_ssize_t size = PyTuple_GET_SIZE(self->places);
  PyObject* saved = outputs == nullptr ? nullptr : PyTuple_New(size);
  for (Py_ssize_t i = 0; saved != nullptr && i < size; ++i) {
    const Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(self->places, i)), after = place - count;
    const bool several = PyTuple_CheckExact(outputs);
    PyObject* kept = place < 0       ? Py_None
                     : place < count ? PyTuple_GET_ITEM(tensors, place)
                     : several       ? (after < PyTuple_GET_SIZE(outputs) ? PyTuple_GET_ITEM(outputs, after) : Py_None)
                                     : (after == 0 ? outputs : Py_None);
    Py_INCREF(kept);
    PyTuple_SET_ITEM(saved, i, kept);
  }
  Py_DECREF(tensors);
  if (saved != nullptr && PyObject_SetAttr(PyTuple_GET_ITEM(args, 0), name, saved) != 0) Py_CLEAR(outputs);
  if (saved == nullptr) Py_CLEAR(outputs);
  Py_XDECREF(saved);
  return outputs;
}

inline PyObject* forward_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *native, *places;
  if (!PyArg_ParseTuple(args, "O!O!", &native_type, &native, &PyTuple_Type, &places)) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); ++i) {
    if (!PyLong_CheckExact(PyTuple_GET_ITEM(places, i))) {
      PyErr_SetString(PyExc_TypeError, "places are whole numbers");
      return nullptr;
    }
  }
  auto* self = reinterpret_cast<Forward*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  Py_INCREF(native), Py_INCREF(places);
  self->native = native, self->places = places;
  return reinterpret_cast<PyObject*>(self);
}

inline int forward_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<Forward*>(object)->native);
  return 0;
}

inline void forward_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Forward*>(object);
  PyObject_GC_UnTrack(object);
  Py_CLEAR(self->native);
  Py_CLEAR(self->places);
  Py_TYPE(object)->tp_free(object);
}

// whether both types could be made ready
inline bool ready_types() {
  PyTypeObject& type = forward_type;
  type.tp_name = "opforge_call_table.Forward";
  type.tp_basicsize = sizeof(Forward);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_new = forward_new;
  type.tp_call = forward_call;
  type.tp_traverse = forward_traverse;
  type.tp_dealloc = forward_dealloc;
  PyTypeObject& other = native_type;
  other.tp_name = "opforge_call_table.Native";
  other.tp_basicsize = sizeof(Native);
  other.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  other.tp_new = native_new;
  other.tp_call = native_call;
  other.tp_traverse = native_traverse;
  other.tp_dealloc = native_dealloc;
  return PyType_Ready(&type) == 0 && PyType_Ready(&other) == 0;
}

}  // namespace opforge

#endif  // OPFORGE_FFI_NATIVE_CALL_H_
