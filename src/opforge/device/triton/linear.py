"""What a linear layer does to its sums before they are stored, in Triton and Gluon: activations, residual, scale of an
FP8 result.
"""

import triton
import triton.language as tl


@triton.jit
def activated(z, ACTIVATION: tl.constexpr):
    """The activation ("none", "relu", "gelu" by erf, "silu") of float32 values."""
    if ACTIVATION == "relu":
        return tl.where(z < 0, 0.0, z)  # asked this way round, NaN stays
    elif ACTIVATION == "silu":
        return z / (1 + tl.exp2(-1.4426950409 * z))
    elif ACTIVATION == "gelu":
        # the tail of the normal distribution: Abramowitz and Stegun 7.1.26 with the argument scaled by 1/sqrt(2)
        t = 1 / (1 + 0.2316418882 * tl.abs(z))
        tail = (
            tl.exp2(z * z * -0.7213475204)
            * t
            * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
        )
        return z * tl.where(z > 0, 1 - tail, tail)
    else:
        return z


@triton.jit
def biased(sums, col, bias, n, bias_step):
    """sums [rows, cols] of the columns from col on, with their bias added; the bias has n elements, bias_step apart."""
    q = col + tl.arange(0, sums.shape[1])
    return sums + tl.load(bias + q.to(tl.int64) * bias_step, mask=q < n, other=0.0).to(tl.float32)[None, :]


@triton.jit
def linear_epilogue(sums, row, col, extras, ACTIVATION: tl.constexpr):
    """activation(sums + bias); extras are bias, n and the step of bias."""
    bias, n, bias_step = extras
    return activated(biased(sums, col, bias, n, bias_step), ACTIVATION)


@triton.jit
def residual_epilogue(sums, row, col, extras, ACTIVATION: tl.constexpr):
    """activation(sums + bias) + residual; extras are bias, n and the step of bias, residual, m and the strides of
    residual.
    """
    bias, n, bias_step, residual, m, residual_row, residual_col = extras
    r = (row + tl.arange(0, sums.shape[0])).to(tl.int64)[:, None]
    q = (col + tl.arange(0, sums.shape[1])).to(tl.int64)[None, :]
    added = tl.load(residual + r * residual_row + q * residual_col, mask=(r < m) & (q < n), other=0.0).to(tl.float32)
    return activated(biased(sums, col, bias, n, bias_step), ACTIVATION) + added


@triton.jit
def quantized_epilogue(sums, row, col, extras, ACTIVATION: tl.constexpr):
    """activation(sums + bias) / scale, cut off at the largest E4M3; extras are bias, n and the step of bias, and scale
    [1].
    """
    bias, n, bias_step, scale = extras
    z = activated(biased(sums, col, bias, n, bias_step), ACTIVATION) / tl.load(scale)
    # the conversion of a GPU cuts off by itself, and NaN stays; asked this way round it stays here too. Infinity times
    # 0 is NaN
    return tl.where(tl.abs(z) > 448.0, tl.where(z > 0, 448.0, -448.0) + z * 0.0, z)
