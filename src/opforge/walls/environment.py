"""The variables of the environment that a toolchain needs; tokens, paths of the user and marks of CI stay outside."""

from __future__ import annotations

from collections.abc import Iterable

_PASSED = """
PATH LANG TZ TERM LD_LIBRARY_PATH VIRTUAL_ENV CC CXX CPATH LIBRARY_PATH CPLUS_INCLUDE_PATH
MAX_JOBS CUDA_HOME CUDA_PATH ROCM_PATH
"""
PASSED = frozenset(_PASSED.split())
PASSED_PREFIXES = (
    "LC_",
    "PYTHON",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "TILELANG_",
    "TVM_",
    "CUDA_",
    "NVCC_",
    "NVIDIA_",
    "HIP_",
    "ASCEND_",
)


def for_toolchains(environ: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The variables that a toolchain starts with."""
    return {name: value for name, value in environ if name in PASSED or name.startswith(PASSED_PREFIXES)}
