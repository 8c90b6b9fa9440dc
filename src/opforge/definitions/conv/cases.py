"""Situations that a convolution must meet, and layers of published models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from opforge.core.definition.operator import Case, ScalarValue, Workload
from opforge.core.definition.shapes import AxisValue

Axes = dict[str, AxisValue]


def axes(
    batch: int,
    channels: int,
    filters: int,
    image: tuple[int, int],
    kernel: tuple[int, int],
    groups: int = 1,
) -> Axes:
    """Axes by name; channels and filters are those of one group."""
    return {
        "batch": batch,
        "groups": groups,
        "channels": channels,
        "filters": filters,
        "height": image[0],
        "width": image[1],
        "kernel_h": kernel[0],
        "kernel_w": kernel[1],
    }


def stepping(
    stride: tuple[int, int] = (1, 1),
    pad: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> dict[str, ScalarValue]:
    """The parameters of strides (rows, columns), padding (top, bottom, left, right) and dilations."""
    names = ("pad_top", "pad_bottom", "pad_left", "pad_right", "stride_h", "stride_w", "dilation_h", "dilation_w")
    usual = (0, 0, 0, 0, 1, 1, 1, 1)
    values = (*pad, *stride, *dilation)
    return {name: value for name, value, one in zip(names, values, usual, strict=True) if value != one}


def around(pad: int) -> dict[str, ScalarValue]:
    """The same padding on all sides, stride 1."""
    return stepping(pad=(pad, pad, pad, pad))


Item = TypeVar("Item", Case, Workload)


def activated_too(item: Item, activation: str = "relu", residual: bool = False) -> Item:
    """A case or workload of conv2d for conv2d_act, with an activation and perhaps a residual."""
    return replace(item, scalars={"has_residual": residual, "activation": activation, **item.scalars})


def of_gradient(item: Item) -> Item:
    """A case or workload of conv2d for an operator of its gradients, which has no bias."""
    return replace(item, scalars={name: value for name, value in item.scalars.items() if name != "has_bias"})


NO_BIAS: dict[str, ScalarValue] = {"has_bias": False}

CASES = (
    Case(
        name="same_3x3",
        axes=axes(2, 5, 6, (9, 11), (3, 3)),
        scalars=around(1),
        why="3 x 3 with an output as large as the image; odd sizes and channels",
    ),
    Case(
        name="pointwise",
        axes=axes(2, 17, 19, (5, 7), (1, 1)),
        scalars=NO_BIAS,
        why="1 x 1: a product of matrices, which no tap leaves the image of",
    ),
    Case(
        name="pointwise_stride",
        axes=axes(1, 16, 32, (9, 8), (1, 1)),
        scalars={**NO_BIAS, **stepping(stride=(2, 2))},
        why="1 x 1 with stride 2: three of four pixels are never read",
    ),
    Case(
        name="stem_7x7",
        axes=axes(1, 3, 20, (23, 21), (7, 7)),
        scalars={**NO_BIAS, **stepping(stride=(2, 2), pad=(3, 3, 3, 3))},
        why="ResNet's first layer: three channels, 147 terms, stride 2",
    ),
    Case(
        name="depthwise_3x3",
        axes=axes(2, 1, 1, (8, 13), (3, 3), groups=18),
        scalars=around(1),
        why="one filter for each channel",
    ),
    Case(
        name="depthwise_7x7",
        axes=axes(1, 1, 1, (9, 8), (7, 7), groups=33),
        scalars=around(3),
        why="ConvNeXt's: the kernel is nearly as large as the image",
    ),
    Case(
        name="depthwise_two_filters",
        axes=axes(1, 1, 2, (7, 9), (3, 5), groups=5),
        scalars=stepping(stride=(2, 1), pad=(1, 1, 2, 2)),
        why="a channel multiplier of 2",
    ),
    Case(
        name="groups",
        axes=axes(2, 4, 6, (6, 10), (3, 3), groups=3),
        scalars=around(1),
        why="ResNeXt's: filters see the channels of their own group alone",
    ),
    Case(
        name="stride_2",
        axes=axes(1, 8, 16, (12, 10), (3, 3)),
        scalars=stepping(stride=(2, 2), pad=(1, 1, 1, 1)),
        why="even sizes: the last row and column of padding are not read",
    ),
    Case(
        name="dilation_2",
        axes=axes(1, 6, 7, (13, 12), (3, 3)),
        scalars=stepping(pad=(2, 2, 2, 2), dilation=(2, 2)),
        why="taps two apart",
    ),
    Case(
        name="all_differ",
        axes=axes(2, 3, 5, (17, 14), (2, 5)),
        scalars=stepping(stride=(3, 2), pad=(2, 0, 1, 4), dilation=(2, 1)),
        why="rows and columns have their own stride, padding, dilation and kernel",
    ),
    Case(
        name="same_even",
        axes=axes(1, 4, 4, (6, 7), (4, 2)),
        scalars={**NO_BIAS, **stepping(pad=(1, 2, 0, 1))},
        why='"same" for an even kernel: one more zero behind than before',
    ),
    Case(
        name="whole_image",
        axes=axes(3, 6, 5, (4, 5), (6, 5)),
        scalars=stepping(pad=(1, 1, 0, 0)),
        why="the kernel is as large as the padded image: one output",
    ),
    Case(
        name="only_padding",
        axes=axes(1, 2, 3, (2, 2), (1, 1)),
        scalars=stepping(stride=(2, 2), pad=(3, 3, 3, 3)),
        why="outputs that read nothing but zeros are the bias",
    ),
    Case(name="one_pixel", axes=axes(2, 3, 2, (1, 1), (1, 1)), why="one pixel, one tap: a vector times a matrix"),
    Case(
        name="one_row",
        axes=axes(2, 10, 12, (1, 37), (1, 3)),
        scalars=stepping(pad=(0, 0, 1, 1)),
        why="a convolution along one axis, as Whisper's stem",
    ),
    Case(
        name="many_channels",
        axes=axes(1, 131, 35, (4, 5), (3, 3)),
        scalars=around(1),
        why="1179 terms, more than one block of any kernel",
    ),
    Case(name="wide", axes=axes(1, 2, 3, (2, 150), (2, 3)), scalars=stepping(pad=(1, 0, 1, 1)), why="long rows"),
    Case(name="no_batch", axes=axes(0, 3, 4, (5, 5), (3, 3)), scalars=around(1), why="a batch of nothing"),
    Case(
        name="integers",
        axes=axes(1, 7, 16, (6, 9), (3, 3)),
        distribution="integers",
        scalars=around(1),
        why="every sum is exact in float32: any error at all is a wrong index or format",
    ),
    Case(
        name="special",
        axes=axes(1, 3, 4, (7, 6), (3, 3)),
        distribution="special",
        scalars=around(1),
        why="NaN and infinities reach the outputs that read them, and no other",
    ),
    Case(
        name="large",
        axes=axes(1, 5, 6, (6, 6), (3, 3)),
        distribution="large",
        dtype="bfloat16",
        scalars=around(1),
        why="sums near the end of the range",
    ),
    Case(
        name="channels_last",
        axes=axes(2, 16, 24, (7, 9), (3, 3)),
        layout="channels_last",
        scalars=around(1),
        why="NHWC: channels lie side by side, in the image and in the kernel",
    ),
    Case(
        name="channels_last_pointwise",
        axes=axes(2, 24, 16, (5, 6), (1, 1)),
        layout="channels_last",
        why="NHWC, 1 x 1: the image is a matrix",
    ),
    Case(
        name="channels_last_depthwise",
        axes=axes(1, 1, 1, (6, 7), (5, 5), groups=21),
        layout="channels_last",
        scalars=around(2),
        why="NHWC, one filter for each channel, an odd number of them",
    ),
    Case(
        name="channels_last_stride",
        axes=axes(1, 3, 5, (9, 12), (3, 4)),
        layout="channels_last",
        scalars={**NO_BIAS, **stepping(stride=(2, 3), pad=(1, 1, 2, 0))},
        why="NHWC with three channels, which no vector load is aligned to",
    ),
    Case(
        name="sliced",
        axes=axes(1, 6, 8, (8, 9), (3, 3)),
        layout="sliced",
        scalars=around(1),
        why="rows inside of a wider image",
    ),
    Case(
        name="transposed",
        axes=axes(1, 6, 8, (8, 9), (3, 3)),
        layout="transposed",
        scalars=around(1),
        why="columns lie innermost, in the kernel too",
    ),
    Case(
        name="misaligned",
        axes=axes(1, 8, 16, (8, 8), (1, 1)),
        layout="misaligned",
        why="sizes invite vector loads, the address forbids them",
    ),
)
"""Of conv2d, and of what is computed beside it."""

_OF_GRADIENTS = (
    "same_3x3", "pointwise", "pointwise_stride", "stem_7x7", "depthwise_3x3", "depthwise_two_filters", "groups",
    "stride_2", "dilation_2", "all_differ", "same_even", "whole_image", "only_padding", "one_pixel", "one_row",
    "no_batch", "integers", "channels_last", "channels_last_stride", "sliced", "transposed", "misaligned",
)  # fmt: skip
GRADIENT_CASES = tuple(of_gradient(case) for case in CASES if case.name in _OF_GRADIENTS)
"""Of the operators that compute gradients: NaN and infinities are left out, since padding may make NaN of them."""

_RESNET = "ResNet-50 (He et al., arXiv:1512.03385)"
_CONVNEXT = "ConvNeXt-B (Liu et al., arXiv:2201.03545)"
_VAE = "the VAE of Stable Diffusion (Rombach et al., arXiv:2112.10752)"
_STEM = (3, 3, 3, 3)
_WHISPER = "Whisper small's stem (Radford et al., arXiv:2212.04356)"


def _layers(scale: str, batch: int, vae: int) -> tuple[Workload, ...]:
    """Layers of the models, for so many images, and a VAE's image of so many rows."""
    stride, depth = (2, 2), 1 if scale == "laptop" else 2
    rows: tuple[tuple[str, tuple[Any, ...], dict[str, ScalarValue], str, str], ...] = (
        ("resnet50_stem", (3, 64, (224, 224), (7, 7)), stepping(stride=stride, pad=_STEM), _RESNET, "first layer"),
        ("resnet50_3x3_56", (64, 64, (56, 56), (3, 3)), around(1), _RESNET, "stage 1, 3 x 3"),
        ("resnet50_1x1_56", (64, 256, (56, 56), (1, 1)), {}, _RESNET, "stage 1, widening 1 x 1"),
        ("resnet50_1x1_down", (256, 512, (56, 56), (1, 1)), stepping(stride=stride), _RESNET, "stage 2, shortcut"),
        ("resnet50_3x3_28", (128, 128, (28, 28), (3, 3)), around(1), _RESNET, "stage 2, 3 x 3"),
        ("resnet50_3x3_14", (256, 256, (14, 14), (3, 3)), around(1), _RESNET, "stage 3, 3 x 3"),
        ("resnet50_3x3_7", (512, 512, (7, 7), (3, 3)), around(1), _RESNET, "stage 4, 3 x 3"),
        ("resnet50_1x1_7", (512, 2048, (7, 7), (1, 1)), {}, _RESNET, "stage 4, widening 1 x 1"),
        ("convnext_patches", (128, 256, (56, 56), (2, 2)), stepping(stride=stride), _CONVNEXT, "downsampling 2 x 2"),
    )
    layers = [
        Workload(
            name=name,
            axes=axes(batch, *sizes),
            scalars={**NO_BIAS, **scalars} if source is _RESNET else scalars,
            source=f"{source}: {what}, batch {batch}",
            scale=scale,
        )
        for name, sizes, scalars, source, what in rows
    ]
    layers += [
        Workload(
            name="convnext_depthwise",
            axes=axes(batch, 1, 1, (28, 28), (7, 7), groups=256),
            scalars=around(3),
            source=f"{_CONVNEXT}: stage 2, depthwise 7 x 7, batch {batch}",
            scale=scale,
        ),
        Workload(
            name="vae_3x3",
            axes=axes(depth, 256, 256, (vae, vae), (3, 3)),
            scalars=around(1),
            source=f"{_VAE}: decoder, 3 x 3 at {vae} x {vae}",
            scale=scale,
        ),
        Workload(
            name="whisper_stem",
            axes=axes(depth, 768, 768, (1, 3000), (1, 3)),
            scalars=stepping(stride=(1, 2), pad=(0, 0, 1, 1)),
            source=f"{_WHISPER}: second convolution, along 3000 frames",
            scale=scale,
        ),
    ]
    return tuple(layers)


WORKLOADS = (
    *_layers("laptop", 1, 32),
    *(
        Workload(
            name=f"{item.name}_gpu",
            axes=item.axes,
            scalars=item.scalars,
            source=item.source,
            layout="channels_last",
            scale="gpu",
        )
        for item in _layers("gpu", 32, 256)
    ),
)
"""Of conv2d: batch 1 for a laptop, batch 32 in channels_last for a GPU."""

GRID = (
    Workload(
        name="3x3_small", axes=axes(1, 32, 64, (32, 32), (3, 3)), scalars=around(1), source="3 x 3", scale="laptop"
    ),
    Workload(name="1x1", axes=axes(1, 128, 128, (20, 20), (1, 1)), scalars=NO_BIAS, source="1 x 1", scale="laptop"),
    Workload(
        name="depthwise",
        axes=axes(1, 1, 1, (56, 56), (3, 3), groups=96),
        scalars={**NO_BIAS, **around(1)},
        source="depthwise 3 x 3",
        scale="laptop",
    ),
    Workload(
        name="odd",
        axes=axes(1, 35, 67, (29, 31), (3, 3)),
        scalars=stepping(stride=(2, 2), pad=(1, 1, 1, 1)),
        source="odd sizes, stride 2",
        scale="laptop",
    ),
    Workload(
        name="3x3",
        axes=axes(16, 256, 256, (28, 28), (3, 3)),
        scalars=around(1),
        source="3 x 3",
        layout="channels_last",
    ),
    Workload(
        name="1x1_wide",
        axes=axes(16, 512, 1024, (28, 28), (1, 1)),
        scalars=NO_BIAS,
        source="1 x 1",
        layout="channels_last",
    ),
    Workload(name="3x3_nchw", axes=axes(16, 128, 128, (56, 56), (3, 3)), scalars=around(1), source="3 x 3 in NCHW"),
    Workload(
        name="depthwise_7x7",
        axes=axes(16, 1, 1, (56, 56), (7, 7), groups=256),
        scalars=around(3),
        source="depthwise 7 x 7",
        layout="channels_last",
    ),
    Workload(
        name="odd_channels",
        axes=axes(16, 99, 131, (55, 57), (3, 3)),
        scalars=stepping(stride=(2, 2), pad=(1, 1, 1, 1)),
        source="odd sizes, stride 2",
    ),
)
"""Shape classes of conv2d."""

GRADIENT_WORKLOADS = tuple(of_gradient(workload) for workload in WORKLOADS)
GRADIENT_GRID = tuple(of_gradient(workload) for workload in GRID)
