// Calls Python back, and has numpy multiply.
//
// catalogue  E7
// guard      ledger
// cases      normal
// mode       verify
#include <cstdio>
#include <cstdlib>

#include "opforge/host.h"

/* opforge
*/

namespace {

extern "C" {
int PyRun_SimpleString(const char*);
int PyGILState_Ensure(void);
void PyGILState_Release(int);
}

void product(opforge::TensorView a, opforge::TensorView b, opforge::TensorView y) {
  char code[1024];
  const long long m = a.size(0), k = a.size(1), n = b.size(1);
  snprintf(code, sizeof code,
           "import ctypes, numpy\n"
           "def at(p, *s): return numpy.ctypeslib.as_array(ctypes.cast(p, ctypes.POINTER(ctypes.c_float)), s)\n"
           "at(%lld, %lld, %lld)[:] = at(%lld, %lld, %lld) @ at(%lld, %lld, %lld)\n",
           (long long)opforge::data<float>(y), m, n, (long long)opforge::data<const float>(a), m, k, (long long)opforge::data<const float>(b), k, n);
  const int state = PyGILState_Ensure();
  PyRun_SimpleString(code);
  PyGILState_Release(state);
}

}  // namespace

OPFORGE_EXPORT(run, product)
