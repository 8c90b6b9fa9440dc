"""The implicit product of ../conv2d; bias, residual and activation are applied to the sums before they are stored.

moves     as ../conv2d/triton_implicit, and the residual once. Passes of their own read and write y once more for each
limits    those of ../conv2d/triton_implicit
precision the epilogue is computed in float32 on sums that were never rounded
"""

from opforge.device.triton.conv import DEFAULT as DEFAULT, LIMITS as LIMITS, SPACE as SPACE, STEPS, launch_implicit

LAYOUTS = ("contiguous", "rows", "strided")


def launch(x, w, bias, residual, y, *, activation, precision, **given):
    steps = {name: given.pop(name) for name in STEPS}
    launch_implicit(x, w, bias, residual, y, steps, activation, precision, **given)
