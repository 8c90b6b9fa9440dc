"""An implicit product: an image's pixels times channels, over taps and blocks of filters that are read where they lie.

moves     each tile reads what arrives there, kernel_h * kernel_w times over, out of caches; dx is written once
limits    with strides above 1 most taps meet no output, and are multiplied with 0 all the same
precision float32 operands are multiplied in float32 ("ieee"), or in TF32 where the call allows it
"""

from opforge.device.triton.conv import (
    DEFAULT as DEFAULT,
    LIMITS as LIMITS,
    SPACE as SPACE,
    STEPS,
    launch_image_gradient,
)

LAYOUTS = ("contiguous", "rows", "strided")


def launch(x, w, dy, dx, *, precision, **given):
    steps = {name: given.pop(name) for name in STEPS}
    launch_image_gradient(w, dy, dx, steps, precision, **given)
