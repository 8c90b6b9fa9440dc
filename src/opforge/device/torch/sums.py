"""16-bit products by PyTorch whose sums are kept in float32, whatever the process has chosen; its choice comes back.

cuBLAS may split a sum into parts, and PyTorch lets it round each part to the dtype of the factors before they are added
(`torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction`, True by default).
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from opforge.device.torch.precision import _TURN

Choice = tuple[Callable[[], tuple[bool, bool]], Callable[[bool, bool], None]]


def choice_of(kind: str) -> Choice:
    """How this torch is asked for its choice for "bf16" or "fp16", and how it is told one: whether parts of a sum may
    be rounded, and whether sums may be split at all. An older torch has the first alone.
    """
    name = f"allow_{kind}_reduced_precision_reduction"
    ask, tell = (getattr(torch._C, f"_{word}_cublas_{name}", None) for word in ("get", "set"))
    # by its public names it costs 2 us (2 cores, EPYC), by these 0.2
    if ask is not None and tell is not None and isinstance(ask(), tuple):
        return ask, tell
    settings = torch.backends.cuda.matmul
    return lambda: (getattr(settings, name), True), lambda rounded, split: setattr(settings, name, rounded)


CHOICES = {torch.bfloat16: choice_of("bf16"), torch.float16: choice_of("fp16")}


def sums_in_float32(multiply: Callable[..., torch.Tensor], *operands: Any) -> torch.Tensor:
    """multiply(*operands), with the sums of CUDA's 16-bit products in float32; the first operand is a factor. Other
    devices and dtypes have one way to add up. Compiled by torch.compile, it is a call outside of the graph.
    """
    first = operands[0]
    if not first.is_cuda or first.dtype not in CHOICES:
        return multiply(*operands)
    return _chosen(first.dtype, multiply, *operands)


def _chosen(dtype: torch.dtype, multiply: Callable[..., torch.Tensor], *operands: Any) -> torch.Tensor:
    settings, (ask, tell) = torch.backends.cuda.matmul, CHOICES[dtype]
    with _TURN:
        rounded, split = ask()
        # whole sums in float16, which somebody may have asked for
        half = dtype is torch.float16 and getattr(settings, "allow_fp16_accumulation", False)
        if not rounded and not half:
            return multiply(*operands)
        try:
            tell(False, split)
            if half:
                settings.allow_fp16_accumulation = False
            return multiply(*operands)
        finally:
            if half:
                settings.allow_fp16_accumulation = True
            tell(rounded, split)


if "torch._dynamo" in sys.modules:
    # where nothing is compiled, importing a compiler for the sake of a warning that it would give would cost seconds
    _chosen = torch.compiler.disable(_chosen)
