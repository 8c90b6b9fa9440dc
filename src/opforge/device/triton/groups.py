"""Groups normalised in Triton: statistics of a group by as many programs as keep a device busy, joined as Chan, Golub
and LeVeque (1983) join them; then what is made of each channel.
"""

from typing import Any

import triton
import triton.language as tl

SPACE = {"BLOCK": (512, 1024, 2048, 4096), "num_warps": (4, 8)}
LIMITS = {"fits_registers": "BLOCK <= 32 * 32 * num_warps"}
DEFAULT = {"BLOCK": 1024, "num_warps": 4}

PROGRAMS = 1024
"""Programs that keep any device busy: groups are split until there are about so many."""
MOST = 128
"""Parts of a group; a program that joins them has them in registers."""


def parts_of(groups: int, length: int, block: int) -> tuple[int, int]:
    """How many parts each group is read in, and the elements of a part, whole blocks."""
    blocks = -(-length // block)
    parts = max(1, min(MOST, blocks, -(-PROGRAMS // max(1, groups))))
    size = -(-blocks // parts)
    return -(-blocks // size), size * block


@triton.jit
def moments_of_parts(x_ptr, moments_ptr, length, size, parts, BLOCK: tl.constexpr):
    """The mean of a part of a group, and the sum of squares of the deviations from it."""
    group, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    first = part * size
    count = tl.minimum(size, length - first)
    at = x_ptr + group * length + first
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        total += tl.load(at + start + i, mask=start + i < count, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / count
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        x = tl.load(at + start + i, mask=start + i < count, other=0.0).to(tl.float32)
        centred = tl.where(start + i < count, x - mean, 0.0)
        squares += centred * centred
    place = moments_ptr + (group * parts + part) * 2
    tl.store(place, mean)
    tl.store(place + 1, tl.sum(squares, axis=0))


@triton.jit
def joined(moments_ptr, group, length, size, parts, eps, PARTS: tl.constexpr):
    """Mean and scale of a group from the moments of its parts."""
    part = tl.arange(0, PARTS)
    there = part < parts
    place = moments_ptr + (group * parts + part) * 2
    mean = tl.load(place, mask=there, other=0.0)
    squares = tl.load(place + 1, mask=there, other=0.0)
    count = tl.where(there, tl.minimum(size, length - part * size), 0).to(tl.float32)
    # as deviations from the first part's mean, which loses nothing where all lie far from 0
    origin = tl.load(moments_ptr + group * parts * 2)
    apart = tl.where(there, mean - origin, 0.0)
    shift = tl.sum(apart * count, axis=0) / length
    between = apart - shift
    variance = (tl.sum(squares, axis=0) + tl.sum(count * between * between, axis=0)) / length
    return origin + shift, 1.0 / tl.sqrt(variance + eps)


@triton.jit
def normalise_parts(
    x_ptr, weight_ptr, bias_ptr, y_ptr, moments_ptr, groups, each, positions, length, size, parts, eps,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    group, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    mean, scale = joined(moments_ptr, group, length, size, parts, eps, PARTS)
    first, end = part * size, tl.minimum((part + 1) * size, length)
    channel = (group % groups) * each
    i = tl.arange(0, BLOCK)
    for start in range(first, end, BLOCK):
        place = start + i
        inside = place < end
        x = tl.load(x_ptr + group * length + place, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
        weight = tl.load(weight_ptr + channel + place // positions, mask=inside, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + channel + place // positions, mask=inside, other=0.0).to(tl.float32)
        y = (x - mean) * scale * weight + bias
        tl.store(y_ptr + group * length + place, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def sums_of_channels(
    x_ptr, dy_ptr, moments_ptr, sums_ptr, each, positions, length, size, parts, eps, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Of some channels of a group: the sum of dy over its positions, and that of dy * h."""
    blocks = tl.cdiv(each, CHANNELS)
    group, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    mean, scale = joined(moments_ptr, group, length, size, parts, eps, PARTS)
    channel = block * CHANNELS + tl.arange(0, CHANNELS)  # [CHANNELS]
    at = group * length + channel[:, None] * positions
    i = tl.arange(0, BLOCK)[None, :]
    level = tl.zeros([CHANNELS, BLOCK], tl.float32)
    slope = tl.zeros([CHANNELS, BLOCK], tl.float32)
    for start in range(0, positions, BLOCK):
        inside = (channel < each)[:, None] & (start + i < positions)
        dy = tl.load(dy_ptr + at + start + i, mask=inside, other=0.0).to(tl.float32)  # [CHANNELS, BLOCK]
        x = tl.load(x_ptr + at + start + i, mask=inside, other=0.0).to(tl.float32)
        level += dy
        slope += tl.where(inside, dy * ((x - mean) * scale), 0.0)
    place = sums_ptr + (group * each + channel) * 2
    tl.store(place, tl.sum(level, axis=1), mask=channel < each)
    tl.store(place + 1, tl.sum(slope, axis=1), mask=channel < each)


@triton.jit
def gradients_of_parts(
    x_ptr, weight_ptr, dy_ptr, dx_ptr, moments_ptr, sums_ptr, groups, each, positions, length, size, parts, eps,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    group, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    mean, scale = joined(moments_ptr, group, length, size, parts, eps, PARTS)
    channel = (group % groups) * each
    levels = tl.zeros([EACH], tl.float32)
    slopes = tl.zeros([EACH], tl.float32)
    c = tl.arange(0, EACH)
    for start in range(0, each, EACH):
        w = tl.load(weight_ptr + channel + start + c, mask=start + c < each, other=0.0).to(tl.float32)
        place = sums_ptr + (group * each + start + c) * 2
        levels += w * tl.load(place, mask=start + c < each, other=0.0)
        slopes += w * tl.load(place + 1, mask=start + c < each, other=0.0)
    level, slope = tl.sum(levels, axis=0) / length, tl.sum(slopes, axis=0) / length
    first, end = part * size, tl.minimum((part + 1) * size, length)
    i = tl.arange(0, BLOCK)
    for start in range(first, end, BLOCK):
        place = start + i
        inside = place < end
        x = tl.load(x_ptr + group * length + place, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
        dy = tl.load(dy_ptr + group * length + place, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + channel + place // positions, mask=inside, other=0.0).to(tl.float32)
        dx = (dy * weight - level - (x - mean) * scale * slope) * scale
        tl.store(dx_ptr + group * length + place, dx.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_images(sums_ptr, dweight_ptr, dbias_ptr, batch, channels, IMAGES: tl.constexpr, CHANNELS: tl.constexpr):
    """The sums of each channel over the images, in one order."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    image = tl.arange(0, IMAGES)[:, None]
    level = tl.zeros([IMAGES, CHANNELS], tl.float32)
    slope = tl.zeros([IMAGES, CHANNELS], tl.float32)
    for start in range(0, batch, IMAGES):
        inside = (start + image < batch) & (channel < channels)
        place = sums_ptr + ((start + image).to(tl.int64) * channels + channel) * 2
        level += tl.load(place, mask=inside, other=0.0)
        slope += tl.load(place + 1, mask=inside, other=0.0)
    inside = channel < channels
    tl.store(dweight_ptr + channel, tl.sum(slope, axis=0, keep_dims=True).to(dweight_ptr.dtype.element_ty), mask=inside)
    tl.store(dbias_ptr + channel, tl.sum(level, axis=0, keep_dims=True).to(dbias_ptr.dtype.element_ty), mask=inside)


def split(x: Any, groups: int, block: int) -> tuple[tuple[int, int], tuple[int, int, int, int, int]]:
    """(groups of all images, parts of each), and what kernels are told: channels of a group, positions, elements of a
    group and of a part, parts."""
    batch, channels, positions = x.shape
    each = channels // groups
    length = each * positions
    parts, size = parts_of(batch * groups, length, block)
    return (batch * groups, parts), (each, positions, length, size, parts)
