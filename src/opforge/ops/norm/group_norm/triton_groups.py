"""A group in parts, so that few large groups keep a device busy: moments of each part, then each part normalised.

moves     x twice (the second time from the L2 cache where all of it fits) and y once; two numbers a part
limits    two launches
"""

import torch
import triton

from opforge.device.triton.groups import (
    DEFAULT as DEFAULT,
    LIMITS as LIMITS,
    SPACE as SPACE,
    moments_of_parts,
    normalise_parts,
    split,
)


def launch(x, weight, bias, y, *, groups, eps, BLOCK, num_warps):
    if not x.numel():
        return
    (count, parts), (each, positions, length, size, _) = split(x, groups, BLOCK)
    moments = torch.empty((count, parts, 2), dtype=torch.float32, device=x.device)
    grid = (count * parts,)
    moments_of_parts[grid](x, moments, length, size, parts, BLOCK=BLOCK, num_warps=num_warps)
    normalise_parts[grid](
        x, weight, bias, y, moments, groups, each, positions, length, size, parts, eps, BLOCK=BLOCK,
        PARTS=triton.next_power_of_2(parts), num_warps=num_warps,
    )  # fmt: skip
