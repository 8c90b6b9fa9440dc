"""Convolutions of images as products that are never written down: M = batch * out_h * out_w pixels, N = filters of a
group, K = taps times channels.

What a pixel reads is addressed where it lies, tap by tap, so NCHW, NHWC and any other strides are taken. The loop over
K is three loops, over rows, columns and blocks of channels: Triton miscompiles one loop that divides its counter into
them (8 warps and more; pytorch#173068, #177823).
"""

import triton
import triton.language as tl

from opforge.device.triton.gemm import place
from opforge.device.triton.linear import activated


@triton.jit
def implicit_product(
    x, w, bias, residual, y, pixels, groups, channels, filters, height, width, kernel_h, kernel_w, out_h, out_w,
    stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w,
    x_n, x_c, x_h, x_w, w_f, w_c, w_h, w_w, bias_f, residual_n, residual_f, residual_h, residual_w, y_n, y_f, y_h, y_w,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of pixels and filters: y = activation(convolution + bias) + residual."""
    blocks_m, blocks_n = tl.cdiv(pixels, BLOCK_M), tl.cdiv(filters, BLOCK_N)
    group = tl.program_id(0) // (blocks_m * blocks_n)
    block_m, block_n = place(tl.program_id(0) % (blocks_m * blocks_n), blocks_m, blocks_n, GROUP)
    pixel = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    own = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside_m, inside_n = pixel < pixels, own < filters
    n, p, q = pixel // (out_h * out_w), pixel // out_w % out_h, pixel % out_w
    filter = group * filters + own
    top, left = p * stride_h - pad_top, q * stride_w - pad_left
    c = tl.arange(0, BLOCK_K)
    # int64: strides leave int32 beyond 2^31 elements
    image = x + n.to(tl.int64)[:, None] * x_n + (group * channels + c).to(tl.int64)[None, :] * x_c
    weights = w + filter.to(tl.int64)[None, :] * w_f + c.to(tl.int64)[:, None] * w_c
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for r in range(kernel_h):
        h = top + r * dilation_h
        tap_at = weights
        for s in range(kernel_w):
            v = left + s * dilation_w
            there = inside_m & (h >= 0) & (h < height) & (v >= 0) & (v < width)
            x_at = image + (h.to(tl.int64) * x_h + v.to(tl.int64) * x_w)[:, None]
            w_at = tap_at
            for first in range(0, channels, BLOCK_K):
                more = first + c < channels
                seen = tl.load(x_at, mask=there[:, None] & more[None, :], other=0.0)  # [BLOCK_M, BLOCK_K]
                tap = tl.load(w_at, mask=more[:, None] & inside_n[None, :], other=0.0)  # [BLOCK_K, BLOCK_N]
                sums = tl.dot(seen, tap, sums, input_precision=PRECISION)
                x_at += BLOCK_K * x_c
                w_at += BLOCK_K * w_c
            tap_at += w_w
        weights += w_h
    if HAS_BIAS:
        sums += tl.load(bias + filter.to(tl.int64) * bias_f, mask=inside_n, other=0.0).to(tl.float32)[None, :]
    sums = activated(sums, ACTIVATION)
    n, p, q, filter = n.to(tl.int64), p.to(tl.int64), q.to(tl.int64), filter.to(tl.int64)
    inside = inside_m[:, None] & inside_n[None, :]
    if HAS_RESIDUAL:
        at = (n * residual_n + p * residual_h + q * residual_w)[:, None] + (filter * residual_f)[None, :]
        sums += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    at = (n * y_n + p * y_h + q * y_w)[:, None] + (filter * y_f)[None, :]
    tl.store(y + at, sums.to(y.dtype.element_ty), mask=inside)


def launch_implicit(
    x, w, bias, residual, y, steps, activation, precision, *, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, num_warps, num_stages
):
    """Launches `implicit_product`; bias and residual may be None. Tiles are no larger than what there is."""
    groups, (batch, _, out_h, out_w) = x.shape[1] // w.shape[1], y.shape
    pixels, filters, channels = batch * out_h * out_w, w.shape[0] // groups, w.shape[1]
    tile_m = min(BLOCK_M, max(16, triton.next_power_of_2(pixels)))
    tile_n = min(BLOCK_N, max(16, triton.next_power_of_2(filters)))
    tile_k = min(BLOCK_K, max(16, triton.next_power_of_2(channels)))
    beside = y if residual is None else residual
    implicit_product[(triton.cdiv(pixels, tile_m) * triton.cdiv(filters, tile_n) * groups,)](
        x, w, y if bias is None else bias, beside, y, pixels, groups, channels, filters, *x.shape[2:], *w.shape[2:],
        out_h, out_w,
        *(steps[name] for name in ("stride_h", "stride_w", "pad_top", "pad_left", "dilation_h", "dilation_w")),
        *x.stride(), *w.stride(), 0 if bias is None else bias.stride(0), *beside.stride(), *y.stride(),
        BLOCK_M=tile_m, BLOCK_N=tile_n, BLOCK_K=tile_k, GROUP=GROUP,
        HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None, ACTIVATION=activation, PRECISION=precision,
        num_warps=num_warps if tile_m * tile_n >= 2048 else 4, num_stages=num_stages,
    )  # fmt: skip


STEPS = (
    "stride_h", "stride_w", "pad_top", "pad_bottom", "pad_left", "pad_right", "dilation_h", "dilation_w",
)  # fmt: skip
"""How a kernel moves over an image, by the names of a definition's parameters."""

SPACE = {
    "BLOCK_M": (64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128),
    "GROUP": (1, 4, 8),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}
LIMITS = {
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * BLOCK_K * itemsize * num_stages <= shared_bytes_per_block",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 4096 * num_warps",
}
DEFAULT = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP": 8, "num_warps": 8, "num_stages": 3}
