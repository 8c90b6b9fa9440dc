"""float32 products by PyTorch in the precision that a call asks for, whatever the process has chosen; its choice comes
back.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

_TURN = threading.RLock()
"""The choice is the process's: two calls that change it at one time would leave behind what neither found. It is held
while kernels are launched, not while they run. A thread that calls PyTorch itself meanwhile may see the choice of a
call here.
"""


def products_in(precision: str, multiply: Callable[..., torch.Tensor], *operands: Any) -> torch.Tensor:
    """multiply(*operands), with CUDA's float32 products in "ieee" or "tf32". Other devices and dtypes have one way to
    multiply.

    Compiled by torch.compile, "ieee" is what the process has chosen, and "tf32" a call outside of the graph.
    """
    first = operands[0]
    if not first.is_cuda or first.dtype is not torch.float32 or (precision == "ieee" and torch.compiler.is_compiling()):
        return multiply(*operands)
    return _chosen(precision, multiply, *operands)


def _chosen(precision: str, multiply: Callable[..., torch.Tensor], *operands: Any) -> torch.Tensor:
    settings = torch.backends.cuda.matmul
    # since torch 2.9 the choice has a name of its own; the older switch refuses there where a process uses both
    name, tf32, ieee = (
        ("fp32_precision", "tf32", "ieee") if hasattr(settings, "fp32_precision") else ("allow_tf32", True, False)
    )
    with _TURN:
        before = getattr(settings, name)
        # what nobody has chosen ("none") is ieee
        if (before == tf32) == (precision == "tf32"):
            return multiply(*operands)
        setattr(settings, name, tf32 if precision == "tf32" else ieee)
        try:
            return multiply(*operands)
        finally:
            setattr(settings, name, before)


if "torch._dynamo" in sys.modules:
    # where nothing is compiled, importing a compiler for the sake of a warning that it would give would cost seconds
    _chosen = torch.compiler.disable(_chosen)
