"""What combines two neighbours of a scan in Triton, NaN handed on: for tl.associative_scan."""

import triton
import triton.language as tl


@triton.jit
def larger(a, b):
    """The larger of two, NaN when either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    """The smaller of two, NaN when either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
