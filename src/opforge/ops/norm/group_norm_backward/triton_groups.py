"""Moments of a group's parts, the two sums of each channel of an image, then dx part by part; a fourth launch adds up
the channels over the images, in one order.

moves     x three times and dy twice (later ones from the L2 cache where all of it fits), dx once
limits    four launches
"""

import torch
import triton

from opforge.device.triton.groups import (
    DEFAULT as DEFAULT,
    LIMITS as LIMITS,
    SPACE as SPACE,
    add_images,
    gradients_of_parts,
    moments_of_parts,
    split,
    sums_of_channels,
)


def launch(x, weight, dy, dx, dweight, dbias, *, groups, eps, BLOCK, num_warps):
    batch, channels, _ = x.shape
    if not channels:
        return
    sums = torch.empty((batch, channels, 2), dtype=torch.float32, device=x.device)
    if x.numel():
        (count, parts), sizes = split(x, groups, BLOCK)
        each, positions, length, size, _ = sizes
        moments = torch.empty((count, parts, 2), dtype=torch.float32, device=x.device)
        several = triton.next_power_of_2(parts)
        moments_of_parts[(count * parts,)](x, moments, length, size, parts, BLOCK=BLOCK, num_warps=num_warps)
        width = min(BLOCK, triton.next_power_of_2(positions))
        beside = min(BLOCK // width, triton.next_power_of_2(each))
        sums_of_channels[(count * triton.cdiv(each, beside),)](
            x, dy, moments, sums, *sizes, eps, CHANNELS=beside, BLOCK=width, PARTS=several,
            num_warps=num_warps,
        )  # fmt: skip
        gradients_of_parts[(count * parts,)](
            x, weight, dy, dx, moments, sums, groups, *sizes, eps, BLOCK=BLOCK, PARTS=several,
            EACH=min(1024, triton.next_power_of_2(each)), num_warps=num_warps,
        )  # fmt: skip
    # without an element the sums are of nothing
    add_images[(triton.cdiv(channels, 32),)](
        sums, dweight, dbias, batch if x.numel() else 0, channels, IMAGES=32, CHANNELS=32, num_warps=4
    )
