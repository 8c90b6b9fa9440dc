"""An implicit product for each tap: filters times channels, over all outputs of all images, in one order.

moves     x and dy once for each tap and tile, out of caches; dw is written once
limits    a program for each tile of filters and channels of a tap: few of them leave most of a GPU idle (no split over
          outputs here). The same bits each time
precision float32 operands are multiplied in float32 ("ieee"), or in TF32 where the call allows it
"""

from opforge.device.triton.conv import LIMITS as LIMITS, STEPS, launch_kernel_gradient

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_M": (32, 64, 128),
    "BLOCK_N": (32, 64, 128),
    "BLOCK_K": (32, 64, 128),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
}
DEFAULT = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}


def launch(x, w, dy, dw, *, precision, **given):
    steps = {name: given.pop(name) for name in STEPS}
    launch_kernel_gradient(x, dy, dw, steps, precision, **given)
