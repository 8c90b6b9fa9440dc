"""An implicit product: pixels times filters, over taps and blocks of channels that are read where they lie.

moves     each tile of pixels reads what its taps see, kernel_h * kernel_w times over, out of caches; y is written once
limits    a block of 16 channels at the least: of a depthwise convolution 15 of 16 products are with 0
precision float32 operands are multiplied in float32 ("ieee"), or in TF32 where the call allows it
"""

from opforge.device.triton.conv import DEFAULT as DEFAULT, LIMITS as LIMITS, SPACE as SPACE, STEPS, launch_implicit

LAYOUTS = ("contiguous", "rows", "strided")


def launch(x, w, bias, y, *, precision, **given):
    steps = {name: given.pop(name) for name in STEPS}
    launch_implicit(x, w, bias, None, y, steps, "none", precision, **given)
