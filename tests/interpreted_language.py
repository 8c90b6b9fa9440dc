# ruff: noqa: F811, SIM108, PIE808, RUF059, I001, F401
# each kernel is called k and is written as its author would, not as Python is; the interpreter is imported first
"""Small kernels over Triton's public language, interpreted, each beside what NumPy or PyTorch computes. As a program it
prints one JSON object, {name: "right", or what went wrong}. tests/test_interpreter.py reads it.

Inputs of 16: x drawn from N(0, 1), p = |x| + 0.1, i = 0 … 15 shuffled (int32), m = a 4 x 4 of x, q = another 4 x 4.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import opforge.backends.triton_interpreter as interp
from opforge.backends import triton_syntax
from opforge.core.language.errors import EnvironmentLacks

import torch
import triton
import triton.language as tl
from triton.language import load as load_by_name
from triton.language.extra import libdevice

N = 16
KERNELS: dict[str, tuple[Callable[..., None], Callable[..., torch.Tensor]]] = {}


def case(names: str, expected: Callable[..., torch.Tensor]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The kernel below is called k(x, p, i, m, out) and leaves `expected(x, p, i)` in out; it covers these names."""

    def add(kernel: Callable[..., None]) -> Callable[..., None]:
        KERNELS[names] = (triton.jit(kernel), expected)
        return kernel

    return add


def M(x: torch.Tensor) -> torch.Tensor:
    return x.view(4, 4)


@case("load store arange program_id constexpr int32", lambda x, p, i: x)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.program_id(0) + tl.arange(0, n)
    tl.store(out + o, tl.load(x + o))


@case("abs", lambda x, p, i: x.abs())
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    tl.store(out + o, tl.abs(tl.load(x + o)))


@case("add sub mul", lambda x, p, i: (x + p) * p - x)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a, b = tl.load(x + o), tl.load(p + o)
    tl.store(out + o, tl.sub(tl.mul(tl.add(a, b), b), a))


@case("exp exp2 log log2 sqrt rsqrt", lambda x, p, i: x.exp() + x.exp2() + p.log() + p.log2() + p.sqrt() + p.rsqrt())
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a, b = tl.load(x + o), tl.load(p + o)
    tl.store(out + o, tl.exp(a) + tl.exp2(a) + tl.log(b) + tl.log2(b) + tl.sqrt(b) + tl.rsqrt(b))


@case(
    "sin cos erf sigmoid floor ceil", lambda x, p, i: x.sin() + x.cos() + x.erf() + x.sigmoid() + x.floor() + x.ceil()
)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a = tl.load(x + o)
    tl.store(out + o, tl.sin(a) + tl.cos(a) + tl.erf(a) + tl.sigmoid(a) + tl.floor(a) + tl.ceil(a))


@case("fma div_rn sqrt_rn fdiv math", lambda x, p, i: x * p + x + p.sqrt() / x + x / p + x.exp())
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a, b = tl.load(x + o), tl.load(p + o)
    tl.store(out + o, tl.fma(a, b, a) + tl.div_rn(tl.sqrt_rn(b), a) + tl.fdiv(a, b) + tl.math.exp(a))


@case("maximum minimum clamp where PropagateNan", lambda x, p, i: x.clamp(-0.5, 0.5) + torch.where(x > 0, x, -p))
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a, b = tl.load(x + o), tl.load(p + o)
    c = tl.maximum(tl.minimum(a, 0.5, propagate_nan=tl.PropagateNan.ALL), -0.5) * 0.5 + tl.clamp(a, -0.5, 0.5) * 0.5
    tl.store(out + o, c + tl.where(a > 0, a, -b))


@case(
    "sum max min argmax argmin",
    lambda x, p, i: x.sum() + M(x).amax(1).sum() - x.min() + x.argmax() * 100 + x.argmin() + 0 * x,
)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a = tl.load(x + o)
    rows = tl.max(tl.reshape(a, (4, 4)), axis=1)
    tl.store(out + o, tl.sum(a) + tl.sum(rows) - tl.min(a) + tl.argmax(a, 0) * 100 + tl.argmin(a, 0) + 0 * a)


@case("xor_sum reduce_or cumsum cumprod", lambda x, p, i: p.cumsum(0) + p.cumprod(0) + 0 + 31)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a, j = tl.load(p + o), tl.load(i + o)
    tl.store(out + o, tl.cumsum(a) + tl.cumprod(a) + tl.xor_sum(j, 0) + tl.reduce_or(j | 16, 0))


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def larger_by_if(a, b):
    if a > b:
        r = a
    else:
        r = b
    return r


@triton.jit
def one_more(a, c, b, d):
    return a + b, c * d


@case(
    "reduce associative_scan",
    lambda x, p, i: M(x).amax(1).repeat_interleave(4) + x.cummax(0)[0] + x.amax() + M(p).cumprod(1).reshape(-1),
)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a, b = tl.load(x + o), tl.load(p + o)
    rows = tl.reduce(tl.reshape(a, (4, 4)), 1, larger, keep_dims=True)
    _, products = tl.associative_scan((tl.reshape(a, (4, 4)), tl.reshape(b, (4, 4))), 1, one_more)
    wide = tl.reshape(tl.broadcast_to(rows, (4, 4)), (n,)) + tl.reshape(products, (n,))
    tl.store(out + o, wide + tl.associative_scan(a, 0, larger) + tl.reduce(a, 0, larger_by_if))


@case("sort topk flip bitonic_merge", lambda x, p, i: x.sort()[0] + x.flip(0) + x.sort(descending=True)[0][0])
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a = tl.load(x + o)
    tl.store(out + o, tl.sort(a) + tl.flip(a, 0) + tl.max(tl.topk(a, 4)))


@case("gather histogram", lambda x, p, i: x[i.long()] + torch.bincount(i.long() // 4, minlength=16))
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a, j = tl.load(x + o), tl.load(i + o)
    tl.store(out + o, tl.gather(a, j, 0) + tl.histogram(j // 4, n))


@case("cat join split interleave", lambda x, p, i: torch.stack([x[:8], x[8:]], 1).reshape(-1) + 10 * x[0])
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    h = tl.arange(0, n // 2)
    a, b = tl.load(x + h), tl.load(x + n // 2 + h)
    c, d = tl.split(tl.join(a, b))
    first = tl.sum(tl.where(h == 0, c, 0.0))
    tl.store(out + o, tl.interleave(c, d) + 10 * first)
    tl.cat(a, b, can_reorder=True)


@case(
    "reshape view ravel permute trans expand_dims broadcast broadcast_to",
    lambda x, p, i: M(x).T.reshape(-1) * 2 + x.view(2, 8).T.reshape(-1),
)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a = tl.load(x + o)
    b = tl.ravel(tl.trans(tl.reshape(a, (4, 4)))) + tl.ravel(tl.view(a, (4, 4)).T)
    c = tl.ravel(tl.permute(tl.reshape(a, (2, 8)), (1, 0)))
    d, _ = tl.broadcast(tl.expand_dims(tl.arange(0, 1), 0), tl.zeros((1, 16), tl.int32))
    tl.store(out + o, b + c + tl.ravel(tl.broadcast_to(d, (1, 16))))


@case("full zeros zeros_like cast umulhi", lambda x, p, i: 3.0 + x.half().float() + (i * 7 // 4).float())
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a, j = tl.load(x + o), tl.load(i + o)
    high = tl.umulhi((j * 7).to(tl.uint32), tl.full((n,), 1 << 30, tl.uint32))
    zero = tl.zeros((n,), tl.float32) + tl.zeros_like(a)
    tl.store(out + o, tl.full((n,), 3.0, tl.float32) + tl.cast(tl.cast(a, tl.float16), tl.float32) + high + zero)


@case("dot", lambda x, p, i: (M(x) @ M(p) + 1).reshape(-1))
def k(x, p, i, out, n: tl.constexpr):
    r, c = tl.arange(0, 4)[:, None], tl.arange(0, 4)[None, :]
    a, b = tl.load(x + 4 * r + c), tl.load(p + 4 * r + c)
    tl.store(out + 4 * r + c, tl.dot(a, b, acc=tl.full((4, 4), 1.0, tl.float32), input_precision="ieee"))


@case("make_block_ptr advance", lambda x, p, i: x * 2)
def k(x, p, i, out, n: tl.constexpr):
    a = tl.make_block_ptr(x, (n,), (1,), (0,), (8,), (0,))
    b = tl.make_block_ptr(out, (n,), (1,), (0,), (8,), (0,))
    for _ in range(0, 2):
        tl.store(b, tl.load(a, boundary_check=(0,), padding_option="zero") * 2, boundary_check=(0,))
        a, b = tl.advance(a, (8,)), tl.advance(b, (8,))


@case("make_tensor_descriptor load_tensor_descriptor store_tensor_descriptor tensor_descriptor", lambda x, p, i: x * 3)
def k(x, p, i, out, n: tl.constexpr):
    a = tl.make_tensor_descriptor(x, (4, 4), (4, 1), (4, 4))
    b = tl.make_tensor_descriptor(out, (4, 4), (4, 1), (4, 4))
    v = a.load([0, 0]) * 2 + tl.load_tensor_descriptor(a, [0, 0])
    tl.store_tensor_descriptor(b, [0, 0], v)


@case("atomic_add", lambda x, p, i: torch.stack([i.sum() + 1.0, x.sum(), i.sum() + 1.0, i.sum() + 0.0]).repeat(4))
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a = tl.load(x + o)
    tl.store(out + o, 0.0)
    j16 = tl.load(i + o) + (o == 0).to(tl.int32)
    for j in range(0, 4):
        tl.atomic_add(out + 4 * j + 1 + 0 * o, a)
        tl.atomic_add(out + 4 * j + 3 + 0 * o, tl.load(i + o).to(tl.float32))
    for j in range(0, 4):
        tl.atomic_add((out + 4 * j).to(tl.pointer_type(tl.float16)) + 0 * o, j16.to(tl.float16))
        tl.store(out + 4 * j, tl.load((out + 4 * j).to(tl.pointer_type(tl.float16))).to(tl.float32))
        tl.atomic_add((out + 4 * j + 2).to(tl.pointer_type(tl.bfloat16)) + 0 * o, j16.to(tl.bfloat16), mask=o < n)
        tl.store(out + 4 * j + 2, tl.load((out + 4 * j + 2).to(tl.pointer_type(tl.bfloat16))).to(tl.float32))


@case(
    "atomic_max atomic_min atomic_xchg atomic_cas",
    lambda x, p, i: torch.stack([x.max(), x.min(), x.new_tensor(5.0), x.new_tensor(9.0)]).repeat(4),
)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a = tl.load(x + o)
    tl.store(out + o, tl.where(o % 4 == 0, -100.0, 100.0))
    for j in range(0, 4):
        tl.atomic_max(out + 4 * j + 0 * o, a)
        tl.atomic_min(out + 4 * j + 1 + 0 * o, a)
        old = tl.atomic_xchg(out + 4 * j + 2, 5.0)
        tl.device_assert(old == 100.0)
        first = tl.load(i)
        seen = tl.atomic_cas(i, first, first + 1)
        seen += tl.atomic_cas(i, first, first + 7)
        tl.store(out + 4 * j + 3, (seen - 2 * first + 8).to(tl.float32))
        tl.store(i, first)


@case("atomic_and atomic_or atomic_xor", lambda x, p, i: x * 0 + 7)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    before = tl.load(i + o)
    tl.atomic_or(i + o, 16)
    tl.atomic_and(i + o, 15)
    tl.atomic_xor(i + o, 1)
    tl.atomic_xor(i + o, 1)
    tl.store(out + o, 7.0 + tl.load(i + o) - before)


@case(
    "cdiv num_programs swizzle2d multiple_of max_contiguous max_constancy assume debug_barrier",
    lambda x, p, i: x + 4 + 1 + 2,
)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.max_contiguous(tl.multiple_of(tl.arange(0, n), n), n)
    tl.assume(n > 0)
    tl.debug_barrier()
    a, b = tl.swizzle2d(1, 0, 4, 4, 2)
    tl.store(out + o, tl.load(x + tl.max_constancy(o, 1)) + tl.cdiv(n, 4) + tl.num_programs(0) + a * 4 + b)


@case("range static_range static_assert static_print device_assert device_print", lambda x, p, i: x + 6 + 6 + 3)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    total = tl.load(x + o)
    tl.static_assert(n == 16)
    tl.device_assert(o < n)
    for j in tl.range(0, 4, num_stages=2):
        total += j.to(tl.float32)
    for j in tl.static_range(4):
        total += j
    j = 0
    while j < 3:
        j += 1
    tl.store(out + o, total + j)


@case(
    "rand randn randint rand4x randn4x randint4x philox philox_impl uint_to_uniform_float pair_uniform_to_normal",
    lambda x, p, i: x * 0 + 1,
)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    u = tl.rand(7, o)
    a, b, c, d = tl.rand4x(7, o)
    e, f, g, h = tl.randint4x(7, o)
    good = (u >= 0) & (u < 1) & (a == u) & (tl.randint(7, o) == e) & (tl.abs(tl.randn(7, o)) < 10)
    r, s, t, v = tl.randn4x(7, o)
    tl.store(out + o, tl.where(good & (r == r) & (d >= 0) & (tl.uint_to_uniform_float(e) == a), 1.0, 0.0))


@case("softmax", lambda x, p, i: M(x).softmax(1).reshape(-1))
def k(x, p, i, out, n: tl.constexpr):
    r, c = tl.arange(0, 4)[:, None], tl.arange(0, 4)[None, :]
    tl.store(out + 4 * r + c, tl.softmax(tl.load(x + 4 * r + c), dim=1, keep_dims=True))


@case(
    "float16 bfloat16 float64 float8e4nv float8e5 int1 int8 int16 int64 uint8 uint16 uint32 uint64 dtype",
    lambda x, p, i: (
        (
            x.half().double()
            + x.bfloat16().double()
            + x.to(torch.float8_e4m3fn).double()
            + x.to(torch.float8_e5m2).double()
        ).float()
        + i.remainder(2)
    ),
)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a, j = tl.load(x + o), tl.load(i + o)
    total = a.to(tl.float16).to(tl.float64) + a.to(tl.bfloat16).to(tl.float64)
    total += a.to(tl.float8e4nv).to(tl.float64) + a.to(tl.float8e5).to(tl.float64)
    k = j.to(tl.int8).to(tl.int16).to(tl.int64).to(tl.uint8).to(tl.uint16).to(tl.uint32).to(tl.uint64)
    tl.store(out + o, total.to(tl.float32) + (k % 2).to(tl.int1).to(tl.float32))


@case("tensor tuple slice", lambda x, p, i: x * 2 + p)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    pair = (tl.load(x + o), tl.load(p + o))
    a, b = pair
    tl.store(out + o, a + pair[0] + b[None, :].reshape(n))


@case("condition", lambda x, p, i: x + 3)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    j = 0
    while tl.condition(j < 3):
        j += 1
    tl.store(out + o, tl.load(x + o) + j)


@case("target_info", lambda x, p, i: x)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    if tl.target_info.is_hip():
        tl.static_assert(False, "no GPU of AMD is here")
    tl.store(out + o, tl.load(x + o))


@case("inline_asm_elementwise", lambda x, p, i: x)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a = tl.load(x + o)
    tl.store(out + o, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [a], tl.float32, is_pure=True, pack=1))


@triton.jit
def twice(a):
    return a * 2


@case("map_elementwise", lambda x, p, i: x * 2)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    tl.store(out + o, tl.map_elementwise(twice, tl.load(x + o)))


@case("dot_scaled", lambda x, p, i: x)
def k(x, p, i, out, n: tl.constexpr):
    r, c = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    a = (tl.load(x + r) + c).to(tl.float8e4nv)
    ones = tl.full((16, 1), 127, tl.uint8)
    d = tl.dot_scaled(a, ones, "e4m3", a, ones, "e4m3")
    tl.store(out + tl.arange(0, n), tl.sum(d, 1))


@case("numbers given as arguments, libdevice", lambda x, p, i: x + 0.5 + 0.5 + 1 + 3 + p.rsqrt())
def k(x, p, i, out, n: tl.constexpr, eps, flag, count):
    o = tl.arange(0, n)
    tl.static_assert(eps.dtype == tl.float32 and len(eps.shape) == 0)
    total = tl.load(x + o) + eps.to(tl.bfloat16).to(tl.float32) + eps + flag.to(tl.float32) + count.to(tl.float32)
    tl.store(out + o, total + libdevice.rsqrt(tl.load(p + o)))


# What Python decides otherwise than the compiler -----------------------------------------------------------------


@case("and or not of blocks", lambda x, p, i: torch.where(((x > 0) & (p > 0.5)) | (i == 3), x, 0.0) + (x <= 0).float())
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    a, b, j = tl.load(x + o), tl.load(p + o), tl.load(i + o)
    chosen = (a > 0 and b > 0.5) or j == 3
    tl.store(out + o, tl.where(chosen, a, 0.0) + (not a > 0).to(tl.float32))


@case("min max of blocks, .value, a name imported", lambda x, p, i: x.clamp(-0.5, 0.5) + 16)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    tl.store(out + o, max(min(load_by_name(x + o), 0.5), -0.5) + n.value)


@case("a loop's variable is int32", lambda x, p, i: x + 32768 + 3)
def k(x, p, i, out, n: tl.constexpr):
    o = tl.arange(0, n)
    total = tl.load(x + o)
    for j in range(0, 3):
        tl.static_assert(j.dtype == tl.int32)
        total += j.to(tl.int64)
    # wraps as a compiled int32 does: 65536 * 65536 = 0
    for j in range(65536, 65537):
        total += j * j + 32768
    tl.store(out + o, total)


@triton.jit
def one_block(x):
    pass


def run() -> dict[str, str]:
    """What each of them gave."""
    torch.manual_seed(0)
    x, i = torch.randn(N), torch.randperm(N).int()
    p = x.abs() + 0.1
    found = {}
    for name, (kernel, expected) in KERNELS.items():
        out = torch.full((N,), float("nan"))
        try:
            numbers = {"eps": 0.5, "flag": True, "count": 3} if "eps" in kernel.arg_names else {}
            kernel[(1,)](x, p, i.clone(), out, n=N, **numbers)
            right = torch.allclose(out, expected(x, p, i), rtol=1e-5, atol=1e-5)
            found[name] = "right" if right else f"wrong: {(out - expected(x, p, i)).abs().max()}"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    try:
        one_block[(1, 65_536)](x)
    except EnvironmentLacks as error:
        found["grid"] = "right" if "65,536 blocks in its grid's second dimension" in str(error) else str(error)
    found["deprecated"] = (
        "right" if triton_syntax.notes == [triton_syntax.DEPRECATED] else "the compiler's note is missing"
    )
    return found


if __name__ == "__main__":
    print(json.dumps(run()))
