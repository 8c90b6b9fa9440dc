"""What is run to find a device's ceilings: each probe is one operation of torch with the bytes or FLOPs it must move or
do.

Memory traffic is counted as a kernel's cost is: bytes read plus bytes written by the program. A processor's cache may
read a line before it overwrites it; that is part of what a copy costs there, and is not counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.device import DeviceSpec
from opforge.machine import host_hardware

MEBI = 2**20
LARGEST_BUFFER = 2**30
SMALLEST_BUFFER = 16 * MEBI
SMALLEST_CACHED = MEBI
SIZES = (1024, 512, 256)
LONGEST_PRODUCT_S = 0.25
"""Processors without instructions for 16-bit products take 3 s for one of 1024^3 (2 cores, EPYC): 25 s of a first bench
were those.
"""
LAUNCHES = 200
CHAIN = 256
LARGEST_BATCH = 1_000_000
CHAINS = 8
CHANNELS = 64


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One ceiling to find: `run()` moves or does `amount` bytes, FLOPs or launches; `unit` is "B/s", "FLOP/s" or "s".

    on_host   a host clock is right although the device is an accelerator: what is asked is the host's side of a call
    """

    name: str
    unit: str
    amount: float
    run: Callable[[], object]
    about: str
    on_host: bool = False

    def value(self, seconds: float) -> float:
        """The ceiling in `unit` when one run takes `seconds`: a rate, or seconds for each of `amount` launches."""
        return seconds / self.amount if self.unit == "s" else self.amount / seconds


def probes(device: str, spec: DeviceSpec) -> Iterator[Callable[[], Probe]]:
    """Makers of the probes for a device. Each may raise RuntimeError where the device lacks the operation."""
    yield from _memory(device, spec)
    yield from _matrices(device, spec)
    yield lambda: _vector(device)
    yield lambda: _launch(device)
    yield lambda: _call(device)


def _memory(device: str, spec: DeviceSpec) -> Iterator[Callable[[], Probe]]:
    import torch

    size = buffer_bytes(device, spec)
    make = torch.ones if device == "cpu" else torch.rand
    first, second, third = (make(size // 4, dtype=torch.float32, device=device) for _ in range(3))
    yield from _streams(first, second, third, "")
    yield lambda: Probe(
        name="write", unit="B/s", amount=size, run=lambda: third.fill_(1.0), about=f"fill of {size // MEBI} MiB"
    )
    if device != "cpu":
        return
    # a processor's caches are large beside real workloads, and several times faster than its memory: the roof has steps
    working_set = SMALLEST_CACHED
    while working_set <= spec.cache_bytes // 2:
        yield from _streams(first, second, third, f"_{working_set}", working_set)
        working_set *= 4


def _streams(
    first: Any, second: Any, third: Any, suffix: str, working_set: int | None = None
) -> Iterator[Callable[[], Probe]]:
    """copy, add and read over whole buffers, or over the starts of them that make up a working set of so many bytes."""
    import torch

    def part(buffer: Any, buffers: int) -> Any:
        return buffer if working_set is None else buffer[: working_set // buffers // 4]

    def probe(name: str, buffers: int, run: Callable[[], object], words: str) -> Probe:
        total = part(first, buffers).numel() * 4 * buffers
        return Probe(
            name=f"{name}{suffix}",
            unit="B/s",
            amount=total,
            run=run,
            about=f"{words}, float32, {total / MEBI:g} MiB in all",
        )

    a2, b2 = part(first, 2), part(second, 2)
    yield lambda: probe("copy", 2, lambda: b2.copy_(a2), "1 read : 1 write (copy_)")
    a3, b3, c3 = part(first, 3), part(second, 3), part(third, 3)
    yield lambda: probe("add", 3, lambda: torch.add(a3, b3, out=c3), "2 reads : 1 write (add)")
    a1 = part(first, 1)
    if first.device.type == "cpu":
        # on a processor torch.sum is held back by its own arithmetic; BLAS reads as fast as the memory gives
        yield lambda: probe("read", 1, lambda: torch.dot(a1, a1), "reads alone (dot of a vector with itself)")
    else:
        yield lambda: probe("read", 1, lambda: torch.sum(a1), "reads alone (sum)")


def buffer_bytes(device: str, spec: DeviceSpec) -> int:
    """Bytes of one of the three buffers: at least twice the last-level cache, at most 1 GiB and an eighth of the free
    memory.
    """
    import torch

    if device == "cpu":
        free = host_hardware.available_bytes()
    else:
        module = torch.get_device_module(device)
        free = int(module.mem_get_info()[0]) if hasattr(module, "mem_get_info") else spec.memory_bytes
    wanted = LARGEST_BUFFER if device != "cpu" else min(LARGEST_BUFFER, max(256 * MEBI, 2 * spec.cache_bytes))
    limit = free // 8 if free else 256 * MEBI
    # a multiple of a MiB keeps every part of a working set aligned
    return max(SMALLEST_BUFFER, min(wanted, limit) // MEBI * MEBI)


def _matrices(device: str, spec: DeviceSpec) -> Iterator[Callable[[], Probe]]:
    kinds = ["float32", "float16", "bfloat16"]
    if spec.target.startswith("sm_") or "tfloat32" in spec.nominal_flops_per_s:
        kinds.append("tfloat32")
    if "float8_e4m3fn" in spec.nominal_flops_per_s:
        kinds.append("float8_e4m3fn")
    for kind in kinds:
        yield lambda kind=kind: _matrix(device, kind)  # type: ignore[misc]


def _matrix(device: str, kind: str) -> Probe:
    import torch

    # large enough to fill the device, small enough for several samples a second
    size = _size_on_cpu(kind) if device == "cpu" else 4096 if kind in ("float32", "tfloat32") else 8192
    if kind == "float8_e4m3fn":
        return _scaled(device, size)
    dtype = torch.float32 if kind == "tfloat32" else getattr(torch, kind)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, dtype=dtype, device=device)

    def plain() -> None:
        torch.matmul(a, b, out=out)

    def with_tf32() -> None:
        torch.set_float32_matmul_precision("high")
        plain()
        torch.set_float32_matmul_precision("highest")

    run = with_tf32 if kind == "tfloat32" else plain
    how = "torch.matmul, TF32 allowed" if kind == "tfloat32" else f"torch.matmul, {kind}"
    return Probe(
        name=f"matrix_{kind}",
        unit="FLOP/s",
        amount=2.0 * size**3,
        run=run,
        about=f"{how}, {size}^3, normal random values",
    )


def _size_on_cpu(kind: str) -> int:
    """1024; less where a product of that size would take longer than LONGEST_PRODUCT_S."""
    import torch

    tiny = torch.randn(SIZES[-1], SIZES[-1]).to(getattr(torch, kind))
    torch.matmul(tiny, tiny)
    began = time.perf_counter()
    torch.matmul(tiny, tiny)
    spent_s = time.perf_counter() - began
    return next((size for size in SIZES if spent_s * (size / SIZES[-1]) ** 3 <= LONGEST_PRODUCT_S), SIZES[-1])


def _scaled(device: str, size: int) -> Probe:
    import torch

    a = torch.randn(size, size, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(size, size, device=device).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)
    return Probe(
        name="matrix_float8_e4m3fn",
        unit="FLOP/s",
        amount=2.0 * size**3,
        run=lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
        about=f"torch._scaled_mm, one scale a tensor, {size}^3, normal random values",
    )


def _vector(device: str) -> Probe:
    """float32 arithmetic on the vector units. Where no kernel can be made of a chain of multiply-adds, a float32
    product of
    matrices stands for it: on processors, and on GPUs without TF32, that runs on the same units. A processor is asked
    by a convolution: oneDNN compiles it for the very instructions that are there, while MKL's product takes 8 numbers
    at a time on an AMD EPYC that can 16, and reaches half of what an honest kernel does.
    """
    chain = _chain(device) if device == "cuda" else _convolution() if device == "cpu" else None
    if chain is not None:
        return chain
    matrix = _matrix(device, "float32")
    about = f"{matrix.about}; float32 products run on the vector units"
    return Probe(name="vector_float32", unit="FLOP/s", amount=matrix.amount, run=matrix.run, about=about)


def _convolution() -> Probe | None:
    """3 x 3, CHANNELS channels: its data stay in the second-level cache. None without oneDNN."""
    import torch

    if not torch.backends.mkldnn.is_available():
        return None
    image = torch.randn(1, CHANNELS, CHANNELS, CHANNELS)
    weight = torch.randn(CHANNELS, CHANNELS, 3, 3)
    return Probe(
        name="vector_float32",
        unit="FLOP/s",
        amount=2.0 * 9 * CHANNELS**4,
        run=lambda: torch.nn.functional.conv2d(image, weight, padding=1),
        about=f"a 3 x 3 convolution of {CHANNELS} x {CHANNELS} points, {CHANNELS} channels, float32",
    )


def _chain(device: str) -> Probe | None:
    import torch

    try:
        from torch.cuda.jiterator import _create_jit_fn
    except ImportError:
        return None
    names = [f"v{i}" for i in range(CHAINS)]
    body = "".join(f"{name} = {name} * x + x;" for name in names)
    source = (
        "template <typename T> T multiply_add_chain(T x) {"
        + "".join(f"T {name} = x + T({i});" for i, name in enumerate(names))
        + f"for (int i = 0; i < {CHAIN}; ++i) {{ {body} }}"
        + f"return {' + '.join(names)}; }}"
    )
    kernel = _create_jit_fn(source)
    x = torch.rand(2**24, device=device)
    amount = 2.0 * CHAINS * CHAIN * x.numel()
    return Probe(
        name="vector_float32",
        unit="FLOP/s",
        amount=amount,
        run=lambda: kernel(x),
        about=f"{CHAINS} chains of {CHAIN} multiply-adds for each of 2^24 values",
    )


def _launch(device: str) -> Probe:
    """The least time between two kernels; on a processor, of a Python call that does nothing."""
    import torch

    if device == "cpu":
        return Probe(name="launch", unit="s", amount=1, run=_nothing, about="an empty Python function")
    tiny = torch.zeros(1, device=device)
    module = torch.get_device_module(device)
    if not hasattr(module, "CUDAGraph") or not hasattr(module, "graph"):
        return Probe(
            name="launch",
            unit="s",
            amount=1,
            run=lambda: tiny.add_(1.0),
            about="add_ on one element, one call after the other",
        )
    tiny.add_(1.0)
    torch.accelerator.synchronize()
    graph = module.CUDAGraph()
    with module.graph(graph):
        for _ in range(LAUNCHES):
            tiny.add_(1.0)
    return Probe(
        name="launch",
        unit="s",
        amount=LAUNCHES,
        run=graph.replay,
        about=f"a graph of {LAUNCHES} dependent kernels on one element",
    )


def _call(device: str) -> Probe:
    import torch

    one, out = torch.ones(1, device=device), torch.empty(1, device=device)
    return Probe(
        name="call",
        unit="s",
        amount=1,
        run=lambda: torch.add(one, one, out=out),
        about="host side of torch.add with out=, one element",
        on_host=True,
    )


def _nothing() -> None:
    return None


def batch_for(seconds: float, sample_s: float) -> int:
    """How many runs of `seconds` each make a sample of at least `sample_s`."""
    return max(1, min(LARGEST_BATCH, math.ceil(sample_s / seconds))) if seconds > 0 else LARGEST_BATCH
