"""PyTorch's convolutions in the precision that a call asks for: cuDNN takes TF32 for float32 unless told otherwise."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from opforge.device.torch.precision import _TURN


def conv2d_in(precision: str, x: Tensor, w: Tensor, bias: Tensor | None, steps: Mapping[str, int]) -> Tensor:
    """The convolution; padding that differs from side to side is put around the image first."""
    top, bottom, left, right = (steps[f"pad_{side}"] for side in ("top", "bottom", "left", "right"))
    padding = (top, left)
    if top != bottom or left != right:
        x, padding = pad(x, (left, right, top, bottom)), (0, 0)
    groups = x.shape[1] // w.shape[1]
    return convolving_in(
        precision,
        conv2d,
        *(x, w, bias),
        (steps["stride_h"], steps["stride_w"]),
        padding,
        (steps["dilation_h"], steps["dilation_w"]),
        groups,
    )


def conv2d_gradient(precision: str, place: int, x: Tensor, w: Tensor, dy: Tensor, steps: Mapping[str, int]) -> Tensor:
    """The gradient of a convolution for x (place 0) or w (place 1)."""
    top, bottom, left, right = (steps[f"pad_{side}"] for side in ("top", "bottom", "left", "right"))
    padding, around = [top, left], (0, 0, 0, 0)
    if top != bottom or left != right:
        padding, around = [0, 0], (left, right, top, bottom)
    found = convolving_in(
        precision,
        torch.ops.aten.convolution_backward,
        dy,
        pad(x, around) if any(around) else x,
        w,
        None,
        [steps["stride_h"], steps["stride_w"]],
        padding,
        [steps["dilation_h"], steps["dilation_w"]],
        False,
        [0, 0],
        x.shape[1] // w.shape[1],
        [place == 0, place == 1, False],
    )[place]
    if place == 0 and any(around):
        found = pad(found, tuple(-side for side in around))
    return found


def convolving_in(precision: str, convolve: Callable[..., Any], *arguments: Any) -> Any:
    """convolve(*arguments), with cuDNN's float32 products in "ieee" or "tf32". Other devices and dtypes have one way to
    multiply.

    Compiled by torch.compile, it is a call outside of the graph on a GPU in float32.
    """
    first = arguments[0]
    if not first.is_cuda or first.dtype is not torch.float32:
        return convolve(*arguments)
    return _chosen(precision, convolve, *arguments)


def _chosen(precision: str, convolve: Callable[..., Any], *arguments: Any) -> Any:
    settings = getattr(torch.backends.cudnn, "conv", None)
    # since torch 2.9 the choice has a name of its own; the older switch refuses there where a process uses both
    name, tf32, ieee = ("fp32_precision", "tf32", "ieee")
    if settings is None or not hasattr(settings, name):
        settings, name, tf32, ieee = torch.backends.cudnn, "allow_tf32", True, False  # type: ignore[assignment]
    with _TURN:
        before = getattr(settings, name)
        setattr(settings, name, tf32 if precision == "tf32" else ieee)
        try:
            return convolve(*arguments)
        finally:
            setattr(settings, name, before)


if "torch._dynamo" in sys.modules:
    # where nothing is compiled, importing a compiler for the sake of a warning that it would give would cost seconds
    _chosen = torch.compiler.disable(_chosen)
