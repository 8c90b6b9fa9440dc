"""One program for each filter walks over its images and pixels in blocks.

moves     dy once
limits    few filters leave most of a GPU idle
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {"BLOCK": (128, 256, 512, 1024), "num_warps": (1, 2, 4, 8)}
DEFAULT = {"BLOCK": 512, "num_warps": 4}


@triton.jit
def filter_sums(dy, dbias, images, pixels, columns, dy_n, dy_f, dy_h, dy_w, dbias_f, BLOCK: tl.constexpr):
    """dbias[f] = the sum of dy[:, f]."""
    filter = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    image = dy + filter * dy_f
    for _ in range(images):
        for first in range(0, pixels, BLOCK):
            pixel = first + lane
            at = (pixel // columns).to(tl.int64) * dy_h + (pixel % columns).to(tl.int64) * dy_w
            sums += tl.load(image + at, mask=pixel < pixels, other=0.0).to(tl.float32)
        image += dy_n
    tl.store(dbias + filter * dbias_f, tl.sum(sums).to(dbias.dtype.element_ty))


def launch(bias, dy, dbias, *, BLOCK, num_warps):
    images, filters, rows, columns = dy.shape
    pixels = rows * columns
    width = min(BLOCK, max(16, triton.next_power_of_2(pixels)))
    filter_sums[(filters,)](
        dy, dbias, images, pixels, columns, *dy.stride(), dbias.stride(0), BLOCK=width, num_warps=num_warps
    )
