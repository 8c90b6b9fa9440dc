"""Group normalisation and its gradients: their bounds, cases and workloads, on whatever has the methods of a tensor.

A group is a row of definitions.bounds.rows: the elements of its channels, one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opforge.core.definition.operator import Case, Constraint, Scalar, Workload
from opforge.core.definition.rounding_errors import Errors
from opforge.definitions.bounds.rows import (
    RoundedRows,
    centred_row,
    column_sum_errors,
    expanded_gradient,
    gradient_errors,
    gradient_of_weight,
    lost_below,
    normalised_errors,
    where_squares_fit,
)

SOURCE = "Wu and He, Group Normalization, arXiv:1803.08494, 2018"
PARAMETERS = (
    Scalar(name="groups", default=32, about="how many groups the channels are divided into"),
    Scalar(name="eps", default=1e-5, about="added to the variance"),
)
WHOLE_GROUPS = Constraint(
    name="whole_groups", expression="groups >= 1 and channels % groups == 0", about="groups of one size"
)
SHARED = "channels // groups * prod(spatial)"


def grouped(x: Any, groups: int) -> Any:
    """The elements of each group as a row: [batch, groups, channels // groups * positions]."""
    return x.reshape(x.shape[0], groups, -1) if x.numel() else x.reshape(x.shape[0], groups, 0)


def along_channels(vector: Any, x: Any) -> Any:
    """A vector over channels in the shape of x [batch, channels, *spatial], without a copy."""
    return vector.reshape(-1, *(1,) * (x.ndim - 2)).expand(x.shape)


def normalised(x: Any, groups: int, eps: float) -> tuple[Any, Any]:
    """Each group's elements with mean 0 and variance 1, and 1 / the deviation it had; as rows."""
    rows = grouped(x, groups)
    centred = rows - rows.mean(dim=-1, keepdim=True)
    scale = ((centred * centred).mean(dim=-1, keepdim=True) + eps).rsqrt()
    return centred * scale, scale


def gradients(x: Any, weight: Any, dy: Any, groups: int, eps: float) -> tuple[Any, Any, Any]:
    """dx, dweight and dbias. Each channel of an image is added up before it meets its weight: what an infinite weight
    makes of terms of both signs is decided here.
    """
    batch, channels = x.shape[0], x.shape[1]
    if not x.numel():
        return 0.0 * dy, 0.0 * weight, 0.0 * weight
    h, scale = normalised(x, groups, eps)
    arrived = dy.reshape(batch, channels, -1)
    levels, slopes = arrived.sum(dim=-1), (arrived * h.reshape(arrived.shape)).sum(dim=-1)
    count = h.shape[-1]
    level, slope = (
        (weight * sums).reshape(batch, groups, -1).sum(dim=-1, keepdim=True) / count for sums in (levels, slopes)
    )
    g = grouped(along_channels(weight, x) * dy, groups)
    dx = (g - level - h * slope) * scale
    return dx.reshape(x.shape), slopes.sum(dim=0), levels.sum(dim=0)


def by_channel(x: Any) -> Any:
    """x [batch, channels, *spatial] with the channels last: [batch * positions, channels]."""
    return x.movedim(1, -1).reshape(-1, x.shape[1])


def forward_errors(inputs: Mapping[str, Any], scalars: Mapping[str, Any]) -> Errors:
    """Of y."""
    x, groups = inputs["x"], int(scalars["groups"])
    row = centred_row(grouped(x, groups), scalars["eps"])
    weight, bias = (grouped(along_channels(inputs[name], x), groups) for name in ("weight", "bias"))
    size = weight.abs() * row.scale * (grouped(x, groups).abs().mean(dim=-1, keepdim=True) + row.centred.abs())
    return shaped(where_squares_fit(normalised_errors(row, weight, bias), row.squares, size + bias.abs()), x)


def backward_errors(inputs: Mapping[str, Any], scalars: Mapping[str, Any]) -> dict[str, Errors]:
    """Of dx, dweight and dbias."""
    x, weight, dy, groups = inputs["x"], inputs["weight"], inputs["dy"], int(scalars["groups"])
    rows, arrived = grouped(x, groups), grouped(dy, groups)
    row = centred_row(rows, scalars["eps"])
    weights = grouped(along_channels(weight, x), groups)
    g = weights * arrived
    size = row.scale * (rows.abs().mean(dim=-1, keepdim=True) + row.centred.abs())
    terms = g.abs() + g.abs().mean(dim=-1, keepdim=True) + size * (g.abs() * size).mean(dim=-1, keepdim=True)
    reached = (terms * row.scale).maximum(expanded_gradient(row, rows, weights, arrived))
    dweight = gradient_of_weight(_by_channel_of(row, x, groups), by_channel(dy).unsqueeze(0))
    # the positions of one image share the errors of its groups' statistics, so these are no errors of a term each
    shared = _of_statistics(row, arrived, x, groups)
    dbias = column_sum_errors(by_channel(dy))
    reached_weight = by_channel(dy.abs() * size.reshape(x.shape)).sum(dim=0)
    return {
        "dx": shaped(where_squares_fit(gradient_errors(row, g), row.squares, reached), x),
        "dweight": where_squares_fit(dweight + shared, row.squares.sum(), reached_weight),
        "dbias": Errors(dbias.largest, dbias.typical, by_channel(dy).abs().sum(dim=0)),
    }


def lost_of_groups(inputs: Mapping[str, Any], scalars: Mapping[str, Any]) -> Any:
    """What the gradients of each group may lose below the smallest float32, [batch, groups]."""
    x, groups = inputs["x"], int(scalars["groups"])
    row = centred_row(grouped(x, groups), scalars["eps"])
    return lost_below(row, grouped(along_channels(inputs["weight"], x) * inputs["dy"], groups)).sum(dim=-1)


def shaped(errors: Errors, x: Any) -> Errors:
    """Of rows, in the shape of x."""
    largest = errors.largest.expand(x.shape[0], -1, -1) if errors.largest.ndim == 3 else errors.largest
    return Errors(
        largest.reshape(x.shape), errors.typical.expand(largest.shape).reshape(x.shape), errors.reached.reshape(x.shape)
    )


def _by_channel_of(row: RoundedRows, x: Any, groups: int) -> RoundedRows:
    """The statistics of each element's group, as `by_channel` has the elements; without the errors of statistics."""

    def spread(values: Any) -> Any:
        rows = values.expand(row.centred.shape)
        return by_channel(rows.reshape(x.shape)).unsqueeze(0)

    centred = spread(row.centred)
    none = Errors(0.0 * centred[..., :1], 0.0 * centred[..., :1])
    return RoundedRows(
        spread(row.mean),
        centred,
        spread(row.scale),
        none,
        none,
        none,
        spread(row.size),
        row.squares,
        row.takes_the_mean,
    )


def _of_statistics(row: RoundedRows, dy: Any, x: Any, groups: int) -> Errors:
    """What the errors of each image's means and scales make of dweight: (sum of dy * scale) * of_mean and (sum of
    dy * h) * of_scale, over the images.
    """
    batch, channels = x.shape[0], x.shape[1]
    each = channels // groups
    positions = (batch, groups, each, dy.shape[-1] // max(1, each))

    def sums(terms: Any) -> Any:
        return terms.reshape(positions).sum(dim=-1).reshape(batch, channels)

    def of_channels(errors: Errors) -> Errors:
        spread = [
            part.expand(batch, groups, each).reshape(batch, channels) for part in (errors.largest, errors.typical)
        ]
        return Errors(*spread)

    of_mean, of_scale = sums(dy * row.scale), sums(dy * row.h)
    return column_sum_errors(
        0.0 * of_mean.nan_to_num(), (of_mean, of_channels(row.of_mean)), (of_scale, of_channels(row.of_scale))
    )


def norm_axes(batch: int, channels: int, *spatial: int) -> dict[str, int | tuple[int, ...]]:
    """The axes of a call."""
    return {"batch": batch, "channels": channels, "spatial": spatial}


CASES = (
    Case(name="usual", axes=norm_axes(2, 64, 5, 4), why="32 groups, as in the paper"),
    Case(name="odd", axes=norm_axes(3, 15, 7, 5), scalars={"groups": 3}, why="no power of two anywhere"),
    Case(name="one_group", axes=norm_axes(2, 6, 5, 3), scalars={"groups": 1}, why="layer norm of an image"),
    Case(name="one_channel", axes=norm_axes(2, 7, 9, 11), scalars={"groups": 7}, why="instance norm"),
    Case(name="no_position", axes=norm_axes(5, 24), scalars={"groups": 4}, why="rows of channels: no spatial axis"),
    Case(name="one_value", axes=norm_axes(3, 8), scalars={"groups": 8}, why="groups of one value: y is the bias"),
    Case(name="volume", axes=norm_axes(2, 6, 3, 4, 5), scalars={"groups": 2}, why="three spatial axes"),
    Case(name="past_a_block", axes=norm_axes(1, 5, 41, 5), scalars={"groups": 1}, why="1025 elements in a group"),
    Case(
        name="few_large_groups",
        axes=norm_axes(1, 4, 96, 128),
        scalars={"groups": 2},
        why="two groups of 24576 elements: several programs share one",
    ),
    Case(
        name="long_odd",
        axes=norm_axes(1, 3, 8191),
        scalars={"groups": 1},
        why="one axis of a prime length: channels begin off the 16-byte grid",
    ),
    Case(
        name="many_images", axes=norm_axes(67, 8, 3, 3), scalars={"groups": 4}, why="sums over a prime number of images"
    ),
    Case(
        name="offset",
        axes=norm_axes(2, 8, 16, 17),
        scalars={"groups": 4},
        distribution="offset",
        why="E[x^2] - E[x]^2 loses four digits here; two passes lose none",
    ),
    Case(
        name="large_values",
        axes=norm_axes(2, 8, 9, 7),
        scalars={"groups": 2},
        distribution="large",
        why="squares beyond float16's range",
    ),
    Case(
        name="tiny_eps",
        axes=norm_axes(2, 8, 9, 7),
        scalars={"groups": 2, "eps": 1e-12},
        distribution="tiny",
        why="eps must be the one that was passed",
    ),
    Case(
        name="zeros", axes=norm_axes(2, 8, 5, 5), scalars={"groups": 2}, distribution="zeros", why="no deviation: eps"
    ),
    Case(
        name="special",
        axes=norm_axes(3, 12, 5, 3),
        scalars={"groups": 3},
        distribution="special",
        dtype="float16",
        why="NaN and infinities stay in their group",
    ),
    Case(
        name="no_image", axes=norm_axes(0, 4, 3, 3), scalars={"groups": 2}, why="nothing to do; sums of nothing are 0"
    ),
    Case(
        name="channels_last",
        axes=norm_axes(2, 12, 5, 3),
        scalars={"groups": 3},
        layout="channels_last",
        why="NHWC memory, as convolutions give it",
    ),
    Case(
        name="misaligned",
        axes=norm_axes(2, 8, 8, 8),
        scalars={"groups": 4},
        layout="misaligned",
        why="vector accesses must not assume 16-byte addresses",
    ),
)

OFFSET_CHANNELS_LAST = Case(
    name="channels_last_offset",
    axes=norm_axes(1, 4, 16, 60),
    scalars={"groups": 2},
    distribution="offset",
    layout="channels_last",
    why="a path of its own in many libraries, where the mean must be taken away as well",
)

WORKLOADS = (
    Workload(
        name="unet_sd15_middle",
        axes=norm_axes(2, 1280, 8, 8),
        source="Stable Diffusion 1.5: U-Net, innermost level, guidance pair",
        scale="laptop",
    ),
    Workload(
        name="unet_sd15_first_laptop",
        axes=norm_axes(1, 320, 64, 64),
        source="Stable Diffusion 1.5: U-Net, first level, one latent",
        scale="laptop",
    ),
    Workload(
        name="resnet50_gn_conv2",
        axes=norm_axes(2, 256, 56, 56),
        source="ResNet-50 with group norm: conv2_x, 2 images",
        scale="laptop",
    ),
    Workload(
        name="unet_sd15_first",
        axes=norm_axes(16, 320, 64, 64),
        source="Stable Diffusion 1.5: U-Net, first level, 16 latents",
    ),
    Workload(
        name="unet_sdxl_second",
        axes=norm_axes(16, 640, 64, 64),
        source="Stable Diffusion XL: U-Net, second level, 16 latents",
    ),
    Workload(
        name="vae_sd_last",
        axes=norm_axes(2, 128, 512, 512),
        source="Stable Diffusion's decoder: last level, 2 images of 512 x 512",
    ),
    Workload(
        name="vae_sdxl_last",
        axes=norm_axes(1, 256, 1024, 1024),
        source="Stable Diffusion XL's decoder: last but one level, one image of 1024 x 1024",
    ),
    Workload(
        name="resnet50_gn_conv4",
        axes=norm_axes(128, 1024, 14, 14),
        source="ResNet-50 with group norm: conv4_x, 128 images",
    ),
)


def _classes(scale: str, *shapes: tuple[int, int, tuple[int, ...], int]) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            name=f"{batch}x{channels}x" + "x".join(map(str, spatial)),
            axes=norm_axes(batch, channels, *spatial),
            source="shape class: small and large groups, few and many, odd sizes",
            scale=scale,
            scalars={"groups": groups},
        )
        for batch, channels, spatial, groups in shapes
    )


GRID = (
    *_classes(
        "gpu",
        (64, 1024, (14, 14), 32),
        (16, 320, (64, 64), 32),
        (2, 256, (512, 512), 32),
        (16, 96, (127, 129), 32),
        (2, 1280, (8, 8), 32),
    ),
    *_classes("laptop", (1, 320, (32, 32), 32), (2, 96, (31, 33), 32), (1, 640, (8, 8), 32)),
)
