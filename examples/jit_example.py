"""A C++ kernel of one's own, written here, compiled when it is first called, and called from PyTorch.

    python examples/jit_example.py

The other mode is to compile ahead, so that a machine without a compiler runs it too:

    opforge --home my_ops build squares                 # into my_ops/squares/built/, used where it matches
    opforge --home my_ops build squares --wheel dist    # a wheel of the operator with its library
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from opforge.core.language.errors import EnvironmentLacks
from opforge.dispatch import call_named
from opforge.forge import create
from opforge.registry import load

KERNEL = """
#include "opforge/host.h"

template <typename T>
void square(const T* x, T* y, int64_t n) {
  opforge::parallel_for(0, n, 1 << 15, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const float v = opforge::load_as_float(x[i]);
      y[i] = opforge::store_from_float<T>(v * v);
    }
  });
}

void squares(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_DISPATCH_DTYPE(x, T, square(opforge::data<T>(x), opforge::data<T>(y), x.numel()));
}

OPFORGE_EXPORT(run, squares)
"""


def main() -> torch.Tensor:
    """The squares of 0 to 7, by the kernel above."""
    x = torch.arange(8.0)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        create(load(), "squares", home)  # the definition, and kernels to start from
        (home / "squares" / "cpp_flat.cpp").write_text(KERNEL, encoding="utf-8")
        try:
            for which in ("first", "second"):
                began = time.perf_counter()
                y = call_named(home / "squares", "cpp_flat", x)
                print(f"the {which} call: {1e3 * (time.perf_counter() - began):.2f} ms")
        except EnvironmentLacks as error:
            raise SystemExit(f"{error}") from error
    print(y)
    return y


if __name__ == "__main__":
    main()
