"""The roof: which ceiling speaks for which work, what a cache changes, and which results are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opforge.core.definition.device import Ceiling, DeviceSpec
from opforge.core.definition.operator import Cost
from opforge.core.evidence.timing import Timing
from opforge.machine import descriptors
from opforge.report.roof_chart import roofs
from opforge.roofline import achieved, bound, compute_rate, suspect

GB = 10**9


def ceiling(name: str, value: float, unit: str = "B/s") -> Ceiling:
    return Ceiling(name=name, value=value, unit=unit, measured_at="2026-11-21", how="for a test")


def device(*ceilings: Ceiling, **changes: object) -> DeviceSpec:
    """A GPU of round numbers: 1000 GB/s and 100 TFLOP/s on the sheet, a cache of 50 MB."""
    plain = replace(
        descriptors()["nvidia-h200"],
        name="round",
        cache_bytes=50 * 10**6,
        nominal_bytes_per_s=1e12,
        nominal_flops_per_s={"float32": 10e12, "bfloat16": 100e12, "vector_float32": 10e12},
        ceilings=tuple(ceilings),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def timing(seconds: float, cache: str = "warm") -> Timing:
    return Timing(samples_s=(seconds,) * 5, batch=1, timer="host", cache=cache, overhead_s=0.0, conditions=())


def cost(read: int, written: int, flops: int = 0) -> Cost:
    return Cost(flops=flops, bytes_read=read, bytes_written=written)


MEMORY = (ceiling("copy", 800 * GB), ceiling("add", 850 * GB), ceiling("read", 900 * GB), ceiling("write", 700 * GB))


@pytest.mark.parametrize(
    ("read", "written", "name"),
    [(GB, GB, "copy"), (2 * GB, GB, "add"), (GB, 1000, "read"), (1000, GB, "write"), (GB + 4096, GB, "copy")],
    ids=["one to one", "two to one", "reduction", "fill", "one to one and a small weight"],
)
def test_the_memory_ceiling_fits_the_mix_of_reads_and_writes(read, written, name):
    """Writes cost more than reads: a reduction under the copy's roof would pass for better than it is."""
    spec = device(*MEMORY)
    limit = bound(cost(read, written), spec, "float32")
    assert limit.memory_ceiling == name
    assert limit.time_s == pytest.approx((read + written) / spec.ceiling(name).value)
    assert (limit.limiter, limit.memory_source) == ("memory", "measured")


def test_without_measured_ceilings_the_vendor_speaks_and_the_bound_says_so():
    """A reader must see that nobody measured this roof."""
    limit = bound(cost(GB, GB), device(), "float32")
    assert limit.memory_source == "vendor"
    assert limit.time_s == pytest.approx(2e-3)


def test_without_any_rate_there_is_no_bound():
    """0 bytes/s is unknown, not slow; a made-up roof would be shown as a fact."""
    spec = device(nominal_bytes_per_s=0.0, nominal_flops_per_s={})
    assert bound(cost(GB, GB, GB), spec, "float32") is None


def test_the_ridge_decides_between_memory_and_compute():
    """Intensity on either side of the ridge (10 TFLOP/s / 1 TB/s = 10 FLOP/byte) has its own limiter."""
    below, above = (bound(cost(GB, GB, intensity * 2 * GB), device(), "float32") for intensity in (9, 11))
    assert (below.limiter, above.limiter) == ("memory", "compute")
    assert above.time_s == pytest.approx(22 * GB / 10e12)


def test_products_of_matrices_get_the_matrix_rate_and_everything_else_the_vector_rate():
    """softmax in bfloat16 computes in float32; a tensor core's rate would be a roof nothing can reach."""
    work = cost(1000, 1000, 10**12)
    assert bound(work, device(), "bfloat16", "matrix").flops_per_s == 100e12
    assert bound(work, device(), "bfloat16", "vector").flops_per_s == 10e12
    assert bound(work, device(), "bfloat16").compute_ceiling == "vector_float32"


def test_a_slow_library_for_a_narrow_format_is_no_roof():
    """Processors without float16 arithmetic run torch's float16 product at a tenth; a kernel that converts to float32
    is not a cheat.
    """
    spec = device(ceiling("matrix_float16", 1e12, "FLOP/s"), ceiling("matrix_float32", 9e12, "FLOP/s"))
    rate = compute_rate(spec, "float16", "matrix")
    assert (rate.name, rate.value, rate.source) == ("matrix_float32", 9e12, "measured")


def test_a_product_is_not_doubted_for_being_faster_than_the_librarys():
    """MKL takes 8 numbers at a time on a processor that can 16: C++ kernels at 400 GFLOP/s were called suspect beside
    its 220, where the vector units do 420.
    """
    spec = device(ceiling("matrix_float32", 220e9, "FLOP/s"), ceiling("vector_float32", 420e9, "FLOP/s"))
    for dtype in ("float32", "float16"):
        assert compute_rate(spec, dtype, "matrix").name == "vector_float32"


def test_float32_may_be_made_of_three_tf32_products():
    """The roof of a float32 product on tensor cores is a third of TF32's rate where that is above the plain rate."""
    spec = device(ceiling("matrix_float32", 50e12, "FLOP/s"), ceiling("matrix_tfloat32", 381e12, "FLOP/s"))
    assert compute_rate(spec, "float32", "matrix").value == pytest.approx(127e12)


def test_a_working_set_that_fits_the_cache_says_so_and_uses_the_caches_rate():
    """A processor's cache is several times faster than its memory: the memory's roof would show 300 %."""
    steps = (ceiling("copy_1000000", 90 * GB), ceiling("copy_4000000", 100 * GB), ceiling("copy_16000000", 40 * GB))
    spec = device(*MEMORY, *steps, kind="cpu")
    small = bound(cost(10**6, 10**6), spec, "float32")
    assert (small.cached, small.memory_ceiling, small.bytes_per_s) == (True, "copy_4000000", 100 * GB)
    larger = bound(cost(10**7, 10**7), spec, "float32")
    assert (larger.cached, larger.memory_ceiling) == (True, "copy_16000000")
    outside = bound(cost(10**8, 10**8), spec, "float32")
    assert (outside.cached, outside.memory_ceiling) == (False, "copy")


def test_a_cold_cache_makes_small_work_pay_for_memory():
    """The same bytes, flushed before every sample, come from memory."""
    assert bound(cost(10**6, 10**6), device(*MEMORY), "float32").cached
    assert not bound(cost(10**6, 10**6), device(*MEMORY), "float32", cache="cold").cached


def test_achieved_is_cost_over_the_median():
    """The figures that reports show."""
    work = cost(GB, GB, 4 * GB)
    limit = bound(work, device(*MEMORY), "float32")
    found = achieved(work, timing(5e-3), limit)
    assert found.bytes_per_s == pytest.approx(400e9)
    assert found.flops_per_s == pytest.approx(800e9)
    assert found.fraction == pytest.approx(0.5)
    assert achieved(work, timing(5e-3)).fraction is None


def test_more_than_the_memory_gives_is_suspect():
    """A kernel that kept its answer, or skipped its work, shows as bandwidth that does not exist."""
    work, spec = cost(10 * GB, 10 * GB), device(*MEMORY)
    honest = (work.bytes - spec.cache_bytes) / (900 * GB)
    assert suspect(work, timing(honest), spec, "float32") is None
    words = suspect(work, timing(honest / 1.06), spec, "float32")
    assert "from memory is more than" in words
    assert words.endswith("opforge machine --again")


def test_what_a_cache_can_hold_is_never_suspect():
    """Warm inputs legitimately exceed memory bandwidth; so do the writes of a cold run, which may stay in the cache."""
    spec = device(*MEMORY)
    assert suspect(cost(20 * 10**6, 20 * 10**6), timing(1e-6), spec, "float32") is None
    assert suspect(cost(1000, 40 * 10**6), timing(1e-6, "cold"), spec, "float32") is None
    assert suspect(cost(40 * 10**6, 1000), timing(1e-6, "cold"), spec, "float32") is not None


def test_a_vendors_sheet_accuses_nobody():
    """Sheets are rounded, and wrong for other models of the same name."""
    assert suspect(cost(10 * GB, 10 * GB, 10**15), timing(1e-6), device(), "float32", "matrix") is None


def test_a_better_product_of_matrices_than_the_librarys_is_not_suspect_below_the_peak():
    """The measured matrix ceiling is a library's rate; beating it by 10 % is what this project is for."""
    spec = device(ceiling("matrix_bfloat16", 80e12, "FLOP/s"))
    work = cost(1000, 1000, 10**12)
    assert suspect(work, timing(10**12 / 90e12), spec, "bfloat16", "matrix") is None
    assert "TFLOP/s in bfloat16 is more" in suspect(work, timing(10**12 / 101e12), spec, "bfloat16", "matrix")


def test_a_processor_is_granted_what_its_threads_reach_alone():
    """Beside four busy processes two threads together were measured at what one does, 152 GFLOP/s, and a product that
    had both processors for a moment, 274, was called suspect (2 cores, Xeon, 2026-11-27). Twice of one is a limit all
    the same, and one thread's figure is no roof.
    """
    busy = ceiling("matrix_float32", 152e9, "FLOP/s")
    spec = device(busy, kind="cpu", units=2, nominal_flops_per_s={})
    work = cost(1000, 1000, 10**9)
    assert suspect(work, timing(1e9 / 274e9), spec, "float32", "matrix") is not None
    told = replace(spec, ceilings=(busy, ceiling("matrix_float32_one_thread", 152e9, "FLOP/s")))
    assert suspect(work, timing(1e9 / 274e9), told, "float32", "matrix") is None
    assert "GFLOP/s in float32 is more" in suspect(work, timing(1e9 / 390e9), told, "float32", "matrix")
    assert compute_rate(told, "float32", "matrix").value == 152e9
    assert [roof.name for roof in roofs(told, ("float32",)) if not roof.memory] == ["matrix_float32"]


def test_less_than_an_empty_launch_is_suspect():
    """A stream that was not waited for gives times of almost nothing."""
    spec = device(ceiling("launch", 1e-6, "s"))
    assert suspect(cost(4, 4), timing(1e-6), spec, "float32") is None
    assert "empty kernel" in suspect(cost(4, 4), timing(0.9e-6), spec, "float32")
