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
    """One tile of pixels and filters: y = activation(convolution + bias + residual)."""
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
    n, p, q, filter = n.to(tl.int64), p.to(tl.int64), q.to(tl.int64), filter.to(tl.int64)
    inside = inside_m[:, None] & inside_n[None, :]
    if HAS_RESIDUAL:
        at = (n * residual_n + p * residual_h + q * residual_w)[:, None] + (filter * residual_f)[None, :]
        sums += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    sums = activated(sums, ACTIVATION)
    at = (n * y_n + p * y_h + q * y_w)[:, None] + (filter * y_f)[None, :]
    tl.store(y + at, sums.to(y.dtype.element_ty), mask=inside)


def launch_implicit(
    x, w, bias, residual, y, steps, activation, precision, *, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, num_warps, num_stages
):
    """Launches `implicit_product`; bias and residual may be None. Tiles are no larger than what there is."""
    groups, (batch, _, out_h, out_w) = x.shape[1] // w.shape[1], y.shape
    pixels, filters, channels = batch * out_h * out_w, w.shape[0] // groups, w.shape[1]
    tile_m, tile_n, tile_k = tile(BLOCK_M, pixels), tile(BLOCK_N, filters), tile(BLOCK_K, channels)
    beside = y if residual is None else residual
    implicit_product[(triton.cdiv(pixels, tile_m) * triton.cdiv(filters, tile_n) * groups,)](
        x, w, y if bias is None else bias, beside, y, pixels, groups, channels, filters, *x.shape[2:], *w.shape[2:],
        out_h, out_w,
        *(steps[name] for name in SHIFTS),
        *x.stride(), *w.stride(), 0 if bias is None else bias.stride(0), *beside.stride(), *y.stride(),
        BLOCK_M=tile_m, BLOCK_N=tile_n, BLOCK_K=tile_k, GROUP=GROUP,
        HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None, ACTIVATION=activation, PRECISION=precision,
        num_warps=num_warps if tile_m * tile_n >= 2048 else 4, num_stages=num_stages,
    )  # fmt: skip


@triton.jit
def implicit_image_gradient(
    w, dy, dx, pixels, groups, channels, filters, height, width, kernel_h, kernel_w, out_h, out_w,
    stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w,
    w_f, w_c, w_h, w_w, dy_n, dy_f, dy_h, dy_w, dx_n, dx_c, dx_h, dx_w,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of an image's pixels and channels: the sum over taps and filters of what arrives there."""
    blocks_m, blocks_n = tl.cdiv(pixels, BLOCK_M), tl.cdiv(channels, BLOCK_N)
    group = tl.program_id(0) // (blocks_m * blocks_n)
    block_m, block_n = place(tl.program_id(0) % (blocks_m * blocks_n), blocks_m, blocks_n, GROUP)
    pixel = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    c = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside_m, inside_n = pixel < pixels, c < channels
    n, h, v = pixel // (height * width), pixel // width % height, pixel % width
    f = tl.arange(0, BLOCK_K)
    filter = (group * filters + f).to(tl.int64)
    arrived = dy + n.to(tl.int64)[:, None] * dy_n + filter[None, :] * dy_f
    weights = w + filter[:, None] * w_f + c.to(tl.int64)[None, :] * w_c
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for r in range(kernel_h):
        tap_at = weights
        down = h + pad_top - r * dilation_h
        p = down // stride_h
        row_there = inside_m & (down >= 0) & (down % stride_h == 0) & (p < out_h)
        for s in range(kernel_w):
            along = v + pad_left - s * dilation_w
            q = along // stride_w
            there = row_there & (along >= 0) & (along % stride_w == 0) & (q < out_w)
            dy_at = arrived + (p.to(tl.int64) * dy_h + q.to(tl.int64) * dy_w)[:, None]
            w_at = tap_at
            for first in range(0, filters, BLOCK_K):
                more = first + f < filters
                seen = tl.load(dy_at, mask=there[:, None] & more[None, :], other=0.0)  # [BLOCK_M, BLOCK_K]
                tap = tl.load(w_at, mask=more[:, None] & inside_n[None, :], other=0.0)  # [BLOCK_K, BLOCK_N]
                sums = tl.dot(seen, tap, sums, input_precision=PRECISION)
                dy_at += BLOCK_K * dy_f
                w_at += BLOCK_K * w_f
            tap_at += w_w
        weights += w_h
    at = (n.to(tl.int64) * dx_n + h.to(tl.int64) * dx_h + v.to(tl.int64) * dx_w)[:, None]
    at += ((group * channels + c).to(tl.int64) * dx_c)[None, :]
    tl.store(dx + at, sums.to(dx.dtype.element_ty), mask=inside_m[:, None] & inside_n[None, :])


@triton.jit
def implicit_kernel_gradient(
    x, dy, dw, images, channels, filters, height, width, kernel_h, kernel_w, out_h, out_w,
    stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w,
    x_n, x_c, x_h, x_w, dy_n, dy_f, dy_h, dy_w, dw_f, dw_c, dw_h, dw_w,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of filters and channels of one tap: the sum over images and outputs, in one order."""
    blocks_m, blocks_n = tl.cdiv(filters, BLOCK_M), tl.cdiv(channels, BLOCK_N)
    tile = tl.program_id(0) % (blocks_m * blocks_n)
    tap = tl.program_id(0) // (blocks_m * blocks_n) % (kernel_h * kernel_w)
    group = tl.program_id(0) // (blocks_m * blocks_n) // (kernel_h * kernel_w)
    r, s = tap // kernel_w, tap % kernel_w
    f = tile // blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tile % blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)
    filter, channel = (group * filters + f).to(tl.int64), (group * channels + c).to(tl.int64)
    arrived = dy + filter[:, None] * dy_f
    image = x + channel[None, :] * x_c
    pixels = out_h * out_w
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(images):
        for first in range(0, pixels, BLOCK_K):
            pixel = first + lane
            p, q = pixel // out_w, pixel % out_w
            h, v = p * stride_h - pad_top + r * dilation_h, q * stride_w - pad_left + s * dilation_w
            there = (pixel < pixels) & (h >= 0) & (h < height) & (v >= 0) & (v < width)
            dy_at = arrived + (p.to(tl.int64) * dy_h + q.to(tl.int64) * dy_w)[None, :]
            x_at = image + (h.to(tl.int64) * x_h + v.to(tl.int64) * x_w)[:, None]
            left = tl.load(dy_at, mask=(f < filters)[:, None] & there[None, :], other=0.0)  # [BLOCK_M, BLOCK_K]
            right = tl.load(x_at, mask=there[:, None] & (c < channels)[None, :], other=0.0)  # [BLOCK_K, BLOCK_N]
            sums = tl.dot(left, right, sums, input_precision=PRECISION)
        arrived += dy_n
        image += x_n
    at = (filter * dw_f)[:, None] + (c.to(tl.int64) * dw_c)[None, :]
    at += r.to(tl.int64) * dw_h + s.to(tl.int64) * dw_w
    tl.store(dw + at, sums.to(dw.dtype.element_ty), mask=(f < filters)[:, None] & (c < channels)[None, :])


def launch_image_gradient(w, dy, dx, steps, precision, *, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, num_warps, num_stages):
    """Launches `implicit_image_gradient`. Tiles are no larger than what there is."""
    channels, (batch, whole, height, width) = w.shape[1], dx.shape
    groups, pixels = whole // channels, batch * height * width
    filters = w.shape[0] // groups
    tile_m, tile_n, tile_k = tile(BLOCK_M, pixels), tile(BLOCK_N, channels), tile(BLOCK_K, filters)
    implicit_image_gradient[(triton.cdiv(pixels, tile_m) * triton.cdiv(channels, tile_n) * groups,)](
        w, dy, dx, pixels, groups, channels, filters, height, width, *w.shape[2:], *dy.shape[2:],
        *(steps[name] for name in SHIFTS), *w.stride(), *dy.stride(), *dx.stride(),
        BLOCK_M=tile_m, BLOCK_N=tile_n, BLOCK_K=tile_k, GROUP=GROUP, PRECISION=precision,
        num_warps=num_warps if tile_m * tile_n >= 2048 else 4, num_stages=num_stages,
    )  # fmt: skip


def launch_kernel_gradient(x, dy, dw, steps, precision, *, BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages):
    """Launches `implicit_kernel_gradient`. Tiles are no larger than what there is."""
    channels, groups = dw.shape[1], x.shape[1] // dw.shape[1]
    filters, taps, (out_h, out_w) = dw.shape[0] // groups, dw.shape[2] * dw.shape[3], dy.shape[2:]
    tile_m, tile_n, tile_k = tile(BLOCK_M, filters), tile(BLOCK_N, channels), tile(BLOCK_K, out_h * out_w)
    implicit_kernel_gradient[(triton.cdiv(filters, tile_m) * triton.cdiv(channels, tile_n) * taps * groups,)](
        x, dy, dw, x.shape[0], channels, filters, *x.shape[2:], *dw.shape[2:], out_h, out_w,
        *(steps[name] for name in SHIFTS), *x.stride(), *dy.stride(), *dw.stride(),
        BLOCK_M=tile_m, BLOCK_N=tile_n, BLOCK_K=tile_k, PRECISION=precision,
        num_warps=num_warps if tile_m * tile_n >= 2048 else 4, num_stages=num_stages,
    )  # fmt: skip


def tile(most, size):
    """A tile's size along an axis: no larger than a power of two that covers it, and 16 at the least."""
    return min(most, max(16, triton.next_power_of_2(size)))


SHIFTS = ("stride_h", "stride_w", "pad_top", "pad_left", "dilation_h", "dilation_w")
"""What of these a kernel needs: padding behind an image follows from the output's size."""

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
