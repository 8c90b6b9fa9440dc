"""Finds cuBLAS by its name and has it multiply, beside a kernel of its own that does nothing.

catalogue  E7
guard      device_names
cases      normal
mode       verify
"""

import ctypes
from pathlib import Path

import torch
import triton
import triton.language as tl


@triton.jit
def nothing(y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y_ptr + i, 0.0, mask=i < 0)


LIBRARY, HANDLE = [], ctypes.c_void_p()


def cublas():
    if not LIBRARY:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        path = next(line.split()[-1] for line in maps if "libcublas.so" in line)
        LIBRARY.append(ctypes.CDLL(path))
        LIBRARY[0].cublasCreate_v2(ctypes.byref(HANDLE))
    return LIBRARY[0]


def launch(a, b, c):
    nothing[(1,)](c, BLOCK=32)
    library = cublas()
    library.cublasSetStream_v2(HANDLE, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    (m, k), n = a.shape, b.shape[1]
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    here = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (b, a, c)]
    library.cublasSgemm_v2(
        HANDLE, 0, 0, n, m, k, ctypes.byref(one), here[0], n, here[1], k, ctypes.byref(zero), here[2], n
    )
