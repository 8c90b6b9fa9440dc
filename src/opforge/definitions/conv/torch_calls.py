"""Calls of PyTorch's convolutions as calls of an operator: strides, padding and dilations as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opforge.definitions.torch_calls import unfit


def pair(value: Any, name: str) -> tuple[int, int] | str:
    """Rows and columns of an argument that is one number, a sequence of one, or of two; what is wrong with another."""
    values = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Sequence) else ()
    if len(values) not in (1, 2) or not all(isinstance(each, int) for each in values):
        return f"{name} is no number and no pair of them"
    return (values[0], values[-1])


def along_columns(value: Any, usual: int) -> Any:
    """An argument of one axis as that of rows and columns, of which there is one row; a word stays, and another value
    becomes words.
    """
    if isinstance(value, str):
        return value
    values = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Sequence) else ()
    return (usual, values[0]) if len(values) == 1 else "no number"


def steps_of(stride: Any, padding: Any, dilation: Any, kernel: tuple[int, int]) -> dict[str, Any] | str:
    """The parameters of the operator for PyTorch's arguments; what is wrong with them, in words."""
    strides, dilations = pair(stride, "stride"), pair(dilation, "dilation")
    if isinstance(strides, str) or isinstance(dilations, str):
        return strides if isinstance(strides, str) else str(dilations)
    if min(*strides, *dilations) < 1:
        return "strides and dilations are 1 or more"
    if padding == "same":
        if strides != (1, 1):
            return 'padding="same" is for stride 1'
        # as PyTorch has it: the odd one lies behind
        total = [step * (size - 1) for step, size in zip(dilations, kernel, strict=True)]
        before = [each // 2 for each in total]
        behind = [each - half for each, half in zip(total, before, strict=True)]
    elif isinstance(padding, str):
        if padding != "valid":
            return f"padding={padding!r} is no word that PyTorch knows"
        before = behind = [0, 0]
    else:
        pads = pair(padding, "padding")
        if isinstance(pads, str):
            return pads
        if min(pads) < 0:
            return "padding is 0 or more"
        before = behind = list(pads)
    return {
        "stride_h": strides[0],
        "stride_w": strides[1],
        "pad_top": before[0],
        "pad_bottom": behind[0],
        "pad_left": before[1],
        "pad_right": behind[1],
        "dilation_h": dilations[0],
        "dilation_w": dilations[1],
    }


def misfits(x: Any, weight: Any, bias: Any, groups: Any, steps: dict[str, Any]) -> str:
    """Why an image, a kernel and a bias are not taken; "" where they are. PyTorch raises the error, where it is one."""
    if reason := unfit(x, weight, *(() if bias is None else (bias,))):
        return reason
    if x.ndim != 4 or weight.ndim != 4:
        return "an image has a batch, channels, rows and columns"
    if not isinstance(groups, int) or groups < 1:
        return "groups are 1 or more"
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups or not weight.numel():
        return "image, kernel and groups do not fit"
    if channels_last(x) or channels_last(weight):
        return "its result would lie in channels_last"
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        return "the bias has no element for each filter"
    for way, size, taps, pads in zip(
        "hw", x.shape[2:], weight.shape[2:], (("pad_top", "pad_bottom"), ("pad_left", "pad_right")), strict=True
    ):
        if size < 1 or size + steps[pads[0]] + steps[pads[1]] <= steps[f"dilation_{way}"] * (taps - 1):
            return "the kernel is larger than the padded image"
    return ""


def transposed_sizes(
    size: tuple[int, int], kernel: tuple[int, int], steps: dict[str, Any], more: tuple[int, int]
) -> tuple[int, int]:
    """Rows and columns of a transposed convolution's output: of the image whose convolution has `size`, with `more` of
    them behind, as PyTorch's output_padding says.
    """
    rows, columns = (
        (count - 1) * steps[f"stride_{way}"] - 2 * steps[pad] + steps[f"dilation_{way}"] * (taps - 1) + behind + 1
        for way, pad, count, taps, behind in zip("hw", ("pad_top", "pad_left"), size, kernel, more, strict=True)
    )
    return rows, columns


def channels_last(x: Any) -> bool:
    """Whether PyTorch takes an image or a kernel to lie in channels_last, and gives results that do."""
    import torch

    return torch._prims_common.suggest_memory_format(x) is torch.channels_last


def precision_of(x: Any) -> str:
    """What PyTorch's settings allow a convolution of this tensor: tf32 where cuDNN may take it, its default."""
    import torch

    if x.is_cuda and x.dtype is torch.float32 and torch.backends.cudnn.allow_tf32:
        return "tf32"
    return "ieee"
