"""One program per group of an image: the mean, then the variance around it, then the result, block by block.

moves     x three times (the second and third time from the cache where a group fits), y once
limits    few large groups are few programs
"""

import triton
import triton.language as tl

SPACE = {"BLOCK": (256, 512, 1024, 2048)}
DEFAULT = {"BLOCK": 1024}


@triton.jit
def normalise(x_ptr, weight_ptr, bias_ptr, y_ptr, groups, channels, pixels, eps, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    length = channels * pixels  # of one group
    # int64: the offset leaves int32 beyond 2**31 elements
    first = program.to(tl.int64) * length
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, length, BLOCK):
        i = start + lane
        total += tl.load(x_ptr + first + i, mask=i < length, other=0.0).to(tl.float32)  # [BLOCK]
    mean = tl.sum(total) / length
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, length, BLOCK):
        i = start + lane
        x = tl.load(x_ptr + first + i, mask=i < length, other=0.0).to(tl.float32)  # [BLOCK]
        centred = tl.where(i < length, x - mean, 0.0)
        squares += centred * centred
    scale = 1 / tl.sqrt(tl.sum(squares) / length + eps)
    channel = (program % groups) * channels
    for start in range(0, length, BLOCK):
        i = start + lane
        inside = i < length
        x = tl.load(x_ptr + first + i, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
        weight = tl.load(weight_ptr + channel + i // pixels, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
        bias = tl.load(bias_ptr + channel + i // pixels, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
        y = (x - mean) * scale * weight + bias
        tl.store(y_ptr + first + i, y.to(y_ptr.dtype.element_ty), mask=inside)


def launch(x, weight, bias, y, *, groups, eps, BLOCK):
    batch, channels, height, width = x.shape
    if x.numel():
        normalise[(batch * groups,)](x, weight, bias, y, groups, channels // groups, height * width, eps, BLOCK=BLOCK)
