// A table of prepared calls, asked by a function of tensors: a Python extension type without PyTorch's headers.
//
// CallTable(slow, types, quiet, autocast, grad_enabled, levels, level, flags, flag, exchange, casting) is called as table(tensors, scalars).
// It looks at shapes, strides, dtypes and devices through DLPack's C exchange API, at the parameters, and at whether a
// gradient is wanted; where keep() was given a call of that class, that one is made, else slow(tensors, scalars).
// Whatever is unusual is slow's: other types than `types`, a function of `quiet` that answers anything but False, None
// or 0, levels[level] >= 0, a true flags[flag], tensors that DLPack refuses.
//
// The functions of `quiet` and `autocast` are Python's, and cost a quarter of a call. Where PyTorch's own state of a thread can be read (the keys that
// its dispatcher includes and excludes, which every transform, mode, trace and autocast changes), they are asked by keep() alone, and the keys stand in
// the class: a call under any other state is no call that is known. `casting` says which of the keys are autocast's and what they are while it is off:
// {mask, mask, off, off} for keys included and excluded. An empty tuple: the functions are asked at each call.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <dlpack/dlpack.h>

#include "opforge/abi/native_call.h"

#include <cstddef>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using opforge::kMostTensors;
constexpr Py_ssize_t kMostScalars = 16;
constexpr std::size_t kMostWords = 512;

enum Kind : long { kSpread = 0, kWhole = 1, kBound = 2, kBoundAnyway = 3, kNative = 4, kNativeAnyway = 5 };

bool whatever_autocast(long kind) { return kind == kBoundAnyway || kind == kNativeAnyway; }

// c10::impl::raw_local_dispatch_key_set of this thread, two words; null in a build of PyTorch without that name
const uint64_t* dispatch_keys() {
  static void* library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  thread_local const uint64_t* keys = library == nullptr ? nullptr : static_cast<const uint64_t*>(dlsym(library, "_ZN3c104impl26raw_local_dispatch_key_setE"));
  return keys;
}

// c10::GradMode::is_enabled, or null
bool (*grad_mode())() {
  static void* library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  static void* found = library == nullptr ? nullptr : dlsym(library, "_ZN3c108GradMode10is_enabledEv");
  return reinterpret_cast<bool (*)()>(found);
}

struct Entry {
  std::vector<int64_t> words;
  std::vector<std::pair<PyObject*, PyObject*>> scalars;
  long kind = kSpread;
  PyObject* call = nullptr;       // spread: call(*tensors, **extra); whole: call(tensors); bound: call(*tensors, output); native: a Native
  PyObject* extra = nullptr;      // spread: keyword arguments, or null; bound: make(*extra), or make(tensors) where null
  PyObject* make = nullptr;       // bound: makes the output
};

struct Table {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *slow, *types, *quiet, *autocast, *grad_enabled, *levels, *level, *flags, *flag, *capsule;
  DLPackDLTensorFromPyObjectNoSync see;
  std::unordered_map<uint64_t, Entry>* entries;
  bool keyed;
  uint64_t casting[4];
};

struct Key {
  DLTensor seen[kMostTensors];
  int64_t words[kMostWords];
  std::size_t count = 0;
  uint64_t hash = 1469598103934665603ull;
  PyObject *names[kMostScalars], *values[kMostScalars];
  Py_ssize_t scalars = 0;

  bool add(int64_t word) {
    if (count == kMostWords) return false;
    words[count++] = word;
    hash = (hash ^ static_cast<uint64_t>(word)) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
    return true;
  }
};

// whether a function of no arguments answers False, None or 0
bool is_quiet(PyObject* function) {
  PyObject* answer = PyObject_CallNoArgs(function);
  if (answer == nullptr) return false;
  const bool quiet = answer == Py_False || answer == Py_None || PyObject_Not(answer) == 1;
  Py_DECREF(answer);
  return quiet;
}

// `ask`: the functions too, and not the flags alone
bool nothing_unusual(Table* self, bool ask) {
  PyObject* flag = PyDict_GetItemWithError(self->flags, self->flag);
  if (flag == nullptr || (flag != Py_False && PyObject_Not(flag) != 1)) return false;
  PyObject* level = PyDict_GetItemWithError(self->levels, self->level);
  if (level == nullptr || !PyLong_Check(level) || PyLong_AsLong(level) >= 0) return false;
  for (Py_ssize_t i = 0; ask && i < PyTuple_GET_SIZE(self->quiet); ++i) {
    if (!is_quiet(PyTuple_GET_ITEM(self->quiet, i))) return false;
  }
  return true;
}

bool autocast_is_off(Table* self) {
  if (!self->keyed) return is_quiet(self->autocast);
  const uint64_t* keys = dispatch_keys();
  return keys != nullptr && (keys[0] & self->casting[0]) == self->casting[2] && (keys[1] & self->casting[1]) == self->casting[3];
}

// tensor.requires_grad, a new reference; past the look-up of the attribute where the type has its function in C
PyObject* requires_grad(Table* self, PyObject* tensor) {
  static PyObject* name = PyUnicode_InternFromString("requires_grad");
  static PyObject* found = PyObject_GetAttr(PyTuple_GET_ITEM(self->types, 0), name);
  if (found == nullptr || Py_TYPE(found) != &PyGetSetDescr_Type) {
    PyErr_Clear();
    return PyObject_GetAttr(tensor, name);
  }
  const PyGetSetDef* getter = reinterpret_cast<PyGetSetDescrObject*>(found)->d_getset;
  return getter->get(tensor, getter->closure);
}

// false: this call is slow's; an exception may be set then, and slow finds its own words for it
bool key_of(Table* self, PyObject* tensors, PyObject* scalars, Key& key) {
  const Py_ssize_t count = PyTuple_GET_SIZE(tensors);
  if (count == 0 || count > kMostTensors) return false;
  key.add(count);
  if (self->keyed) {
    const uint64_t* keys = dispatch_keys();
    if (keys == nullptr) return false;
    for (int i = 0; i < 2; ++i) key.add(static_cast<int64_t>(keys[i] & ~self->casting[i]));
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* tensor = PyTuple_GET_ITEM(tensors, i);
    bool ordinary = false;
    for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(self->types); ++j) {
      ordinary = ordinary || reinterpret_cast<PyObject*>(Py_TYPE(tensor)) == PyTuple_GET_ITEM(self->types, j);
    }
    DLTensor& seen = key.seen[i];
    if (!ordinary || self->see(tensor, &seen) != 0) return false;
    key.add(seen.ndim | static_cast<int64_t>(seen.dtype.code) << 16 | static_cast<int64_t>(seen.dtype.bits) << 24 |
            static_cast<int64_t>(seen.dtype.lanes) << 32);
    key.add(static_cast<int64_t>(seen.device.device_type) << 32 | seen.device.device_id);
    for (int32_t axis = 0; axis < seen.ndim; ++axis) {
      if (seen.strides == nullptr || !key.add(seen.shape[axis]) || !key.add(seen.strides[axis])) return false;
    }
  }
  bool wanted = false, enabled;
  if (bool (*mode)() = grad_mode()) {
    enabled = mode();
  } else {
    PyObject* answer = PyObject_CallNoArgs(self->grad_enabled);
    if (answer == nullptr) return false;
    enabled = answer == Py_True;
    Py_DECREF(answer);
  }
  if (enabled) {
    for (Py_ssize_t i = 0; i < count && !wanted; ++i) {
      PyObject* answer = requires_grad(self, PyTuple_GET_ITEM(tensors, i));
      if (answer == nullptr) return false;
      wanted = answer == Py_True;
      Py_DECREF(answer);
    }
  }
  key.add(wanted);
  if (scalars == nullptr || PyDict_GET_SIZE(scalars) == 0) return key.count < kMostWords;
  PyObject *name, *value;
  Py_ssize_t place = 0;
  while (PyDict_Next(scalars, &place, &name, &value)) {
    if (key.scalars == kMostScalars) return false;
    int64_t word = 0;
    if (PyFloat_CheckExact(value)) {
      const double number = PyFloat_AS_DOUBLE(value);
      std::memcpy(&word, &number, sizeof word);
    } else if (PyLong_CheckExact(value) || PyBool_Check(value) || PyUnicode_CheckExact(value)) {
      word = PyObject_Hash(value);
    } else {
      return false;
    }
    key.add(PyObject_Hash(name));
    key.add(reinterpret_cast<int64_t>(Py_TYPE(value)));
    key.add(word);
    key.names[key.scalars] = name;
    key.values[key.scalars++] = value;
  }
  return key.count < kMostWords;
}

bool matches(const Entry& entry, const Key& key) {
  if (entry.words.size() != key.count || entry.scalars.size() != static_cast<std::size_t>(key.scalars)) return false;
  if (std::memcmp(entry.words.data(), key.words, key.count * sizeof(int64_t)) != 0) return false;
  for (Py_ssize_t i = 0; i < key.scalars; ++i) {
    const auto& [name, value] = entry.scalars[i];
    if (name != key.names[i] && PyUnicode_Compare(name, key.names[i]) != 0) return false;
    // types and the bits of numbers with a point are among the words
    if (value != key.values[i] && !PyFloat_CheckExact(value) && PyObject_RichCompareBool(value, key.values[i], Py_EQ) != 1) return false;
  }
  return true;
}

PyObject* slowly(Table* self, PyObject* tensors, PyObject* scalars) {
  PyErr_Clear();
  PyObject* given[] = {tensors, scalars};
  return PyObject_Vectorcall(self->slow, given, 2, nullptr);
}

PyObject* bound(Table* self, PyObject* tensors, PyObject* scalars, PyObject* call, PyObject* extra, PyObject* make) {
  PyObject* output = extra != nullptr ? PyObject_CallObject(make, extra) : PyObject_CallOneArg(make, tensors);
  if (output == nullptr) return slowly(self, tensors, scalars);
  PyObject* given[kMostTensors + 1];
  const Py_ssize_t count = PyTuple_GET_SIZE(tensors);
  for (Py_ssize_t i = 0; i < count; ++i) given[i] = PyTuple_GET_ITEM(tensors, i);
  given[count] = output;
  PyObject* done = PyObject_Vectorcall(call, given, count + 1, nullptr);
  const bool ran = done == Py_True;
  Py_XDECREF(done);
  if (ran) return output;
  Py_DECREF(output);
  return slowly(self, tensors, scalars);
}

constexpr const char* kWanted = "a call table takes a tuple of tensors and a dict of parameters";

bool are_call(PyObject* tensors, PyObject* scalars) { return PyTuple_CheckExact(tensors) && PyDict_CheckExact(scalars); }

PyObject* table_call(PyObject* object, PyObject* const* args, std::size_t flagged, PyObject* names) {
  auto* self = reinterpret_cast<Table*>(object);
  if (PyVectorcall_NARGS(flagged) != 2 || names != nullptr || !are_call(args[0], args[1])) {
    PyErr_SetString(PyExc_TypeError, kWanted);
    return nullptr;
  }
  PyObject *tensors = args[0], *scalars = args[1];
  Key key;
  if (!nothing_unusual(self, !self->keyed) || !key_of(self, tensors, scalars, key)) return slowly(self, tensors, scalars);
  const auto found = self->entries->find(key.hash);
  if (found == self->entries->end() || !matches(found->second, key)) return slowly(self, tensors, scalars);
  // references of one's own: another thread may clear the table meanwhile
  const long kind = found->second.kind;
  if (!whatever_autocast(kind) && !autocast_is_off(self)) return slowly(self, tensors, scalars);
  PyObject *call = found->second.call, *extra = found->second.extra, *make = found->second.make;
  Py_INCREF(call), Py_XINCREF(extra), Py_XINCREF(make);
  PyObject* result;
  if (kind == kNative || kind == kNativeAnyway) {
    result = opforge::native_run(reinterpret_cast<opforge::Native*>(call), key.seen, PyTuple_GET_SIZE(tensors));
    if (result == nullptr) result = slowly(self, tensors, scalars);
  } else {
    result = kind == kSpread  ? PyObject_Call(call, tensors, extra)
             : kind == kWhole ? PyObject_CallOneArg(call, tensors)
                              : bound(self, tensors, scalars, call, extra, make);
  }
  Py_DECREF(call), Py_XDECREF(extra), Py_XDECREF(make);
  return result;
}

void release(Entry& entry) {
  for (auto& [name, value] : entry.scalars) Py_DECREF(name), Py_DECREF(value);
  Py_CLEAR(entry.call);
  Py_CLEAR(entry.extra);
  Py_CLEAR(entry.make);
}

PyObject* table_clear_entries(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Table*>(object);
  std::unordered_map<uint64_t, Entry> gone;
  gone.swap(*self->entries);
  for (auto& item : gone) release(item.second);
  Py_RETURN_NONE;
}

// keep(tensors, scalars, kind, call, extra, make): True where calls of this class are made so from here on
PyObject* table_keep(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<Table*>(object);
  if (PyTuple_GET_SIZE(args) != 6 || !are_call(PyTuple_GET_ITEM(args, 0), PyTuple_GET_ITEM(args, 1))) {
    PyErr_SetString(PyExc_TypeError, kWanted);
    return nullptr;
  }
  PyObject *tensors = PyTuple_GET_ITEM(args, 0), *scalars = PyTuple_GET_ITEM(args, 1);
  Key key;
  Entry entry;
  entry.kind = PyLong_AsLong(PyTuple_GET_ITEM(args, 2));
  const bool native = entry.kind == kNative || entry.kind == kNativeAnyway;
  if (entry.kind < kSpread || entry.kind > kNativeAnyway || (native && Py_TYPE(PyTuple_GET_ITEM(args, 3)) != &opforge::native_type)) {
    PyErr_SetString(PyExc_ValueError, "no such kind of call");
    return nullptr;
  }
  if (!nothing_unusual(self, true) || !(whatever_autocast(entry.kind) || is_quiet(self->autocast)) || !key_of(self, tensors, scalars, key)) {
    PyErr_Clear();
    Py_RETURN_FALSE;
  }
  entry.words.assign(key.words, key.words + key.count);
  const auto own = [&](Py_ssize_t place) -> PyObject* {
    PyObject* given = PyTuple_GET_ITEM(args, place);
    if (given == Py_None) return nullptr;
    Py_INCREF(given);
    return given;
  };
  entry.call = own(3), entry.extra = own(4), entry.make = own(5);
  for (Py_ssize_t i = 0; i < key.scalars; ++i) {
    Py_INCREF(key.names[i]), Py_INCREF(key.values[i]);
    entry.scalars.emplace_back(key.names[i], key.values[i]);
  }
  Entry before;
  auto& place = (*self->entries)[key.hash];
  before = std::move(place);
  place = std::move(entry);
  release(before);
  Py_RETURN_TRUE;
}

Py_ssize_t table_length(PyObject* object) { return static_cast<Py_ssize_t>(reinterpret_cast<Table*>(object)->entries->size()); }

PyObject* table_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *slow, *types, *quiet, *autocast, *grad_enabled, *levels, *level, *flags, *flag, *capsule, *casting;
  if (!PyArg_ParseTuple(args, "OO!O!OOO!OO!OOO!", &slow, &PyTuple_Type, &types, &PyTuple_Type, &quiet, &autocast, &grad_enabled, &PyDict_Type, &levels, &level, &PyDict_Type,
                        &flags, &flag, &capsule, &PyTuple_Type, &casting)) {
    return nullptr;
  }
  uint64_t words[4] = {0, 0, 0, 0};
  const bool keyed = PyTuple_GET_SIZE(casting) == 4 && dispatch_keys() != nullptr;
  for (Py_ssize_t i = 0; keyed && i < 4; ++i) {
    words[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(casting, i));
    if (PyErr_Occurred()) return nullptr;
  }
  const DLPackExchangeAPI* exchange = opforge::exchange_of(capsule);
  if (exchange == nullptr) return nullptr;
  PyObject* object = type->tp_alloc(type, 0);
  if (object == nullptr) return nullptr;
  auto* self = reinterpret_cast<Table*>(object);
  PyObject* given[] = {slow, types, quiet, autocast, grad_enabled, levels, level, flags, flag, capsule};
  PyObject** own[] = {&self->slow, &self->types, &self->quiet, &self->autocast, &self->grad_enabled, &self->levels, &self->level, &self->flags, &self->flag, &self->capsule};
  for (std::size_t i = 0; i < 10; ++i) {
    Py_INCREF(given[i]);
    *own[i] = given[i];
  }
  self->see = exchange->dltensor_from_py_object_no_sync;
  self->entries = new std::unordered_map<uint64_t, Entry>();
  self->vectorcall = table_call;
  self->keyed = keyed;
  std::memcpy(self->casting, words, sizeof words);
  return object;
}

int table_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Table*>(object);
  Py_VISIT(self->slow);
  Py_VISIT(self->types);
  Py_VISIT(self->quiet);
  Py_VISIT(self->autocast);
  Py_VISIT(self->grad_enabled);
  if (self->entries == nullptr) return 0;
  for (auto& item : *self->entries) {
    Py_VISIT(item.second.call);
    Py_VISIT(item.second.extra);
    Py_VISIT(item.second.make);
  }
  return 0;
}

int table_gc_clear(PyObject* object) {
  auto* self = reinterpret_cast<Table*>(object);
  Py_XDECREF(table_clear_entries(object, nullptr));
  Py_CLEAR(self->slow);
  Py_CLEAR(self->quiet);
  return 0;
}

void table_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Table*>(object);
  PyObject_GC_UnTrack(object);
  if (self->entries != nullptr) Py_XDECREF(table_clear_entries(object, nullptr));
  delete self->entries;
  PyObject** own[] = {&self->slow, &self->types, &self->quiet, &self->autocast, &self->grad_enabled, &self->levels, &self->level, &self->flags, &self->flag, &self->capsule};
  for (PyObject** item : own) Py_CLEAR(*item);
  Py_TYPE(object)->tp_free(object);
}

PyObject* dispatch_keys_now(PyObject*, PyObject*) {
  const uint64_t* keys = dispatch_keys();
  if (keys == nullptr) return PyTuple_New(0);
  return Py_BuildValue("(KK)", static_cast<unsigned long long>(keys[0]), static_cast<unsigned long long>(keys[1]));
}

PyMethodDef functions[] = {
    {"dispatch_keys", dispatch_keys_now, METH_NOARGS, "the keys that PyTorch's dispatcher includes and excludes in this thread, two words; () where they cannot be read"},
    {nullptr, nullptr, 0, nullptr},
};
PyMethodDef methods[] = {
    {"keep", table_keep, METH_VARARGS, "keep(tensors, scalars, kind, call, extra, make): make calls of this class so from here on"},
    {"clear", table_clear_entries, METH_NOARGS, "forget every call"},
    {nullptr, nullptr, 0, nullptr},
};
PyMappingMethods mapping = {table_length, nullptr, nullptr};
PyTypeObject table_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "opforge_call_table", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_opforge_call_table() {
  table_type.tp_name = "opforge_call_table.CallTable";
  table_type.tp_basicsize = sizeof(Table);
  table_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  table_type.tp_vectorcall_offset = offsetof(Table, vectorcall);
  table_type.tp_new = table_new;
  table_type.tp_call = PyVectorcall_Call;
  table_type.tp_methods = methods;
  table_type.tp_as_mapping = &mapping;
  table_type.tp_traverse = table_traverse;
  table_type.tp_clear = table_gc_clear;
  table_type.tp_dealloc = table_dealloc;
  if (PyType_Ready(&table_type) < 0 || !opforge::ready_types()) return nullptr;
  PyObject* made = PyModule_Create(&module);
  if (made == nullptr) return nullptr;
  Py_INCREF(&table_type);
  if (PyModule_AddObject(made, "CallTable", reinterpret_cast<PyObject*>(&table_type)) < 0) return nullptr;
  if (PyModule_AddObjectRef(made, "Native", reinterpret_cast<PyObject*>(&opforge::native_type)) < 0) return nullptr;
  if (PyModule_AddObjectRef(made, "Forward", reinterpret_cast<PyObject*>(&opforge::forward_type)) < 0) return nullptr;
  return made;
}
