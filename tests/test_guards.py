"""Memory that no tensor owns: patterns that show who read and who wrote there, pages that end a tensor, tensors as
users have them.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
import torch

from opforge.core.evidence.verdict import Broken, Crash, Mismatch
from opforge.registry import load
from opforge.runner import Arena, Isolated
from opforge.runner.worker.arena import GUARD_BYTES, LAYOUTS, PLACES
from opforge.verify import DEFAULT, CaseCache, verify

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.redteam import masks

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int8", "bool")


def arena_of(dtype, layout="contiguous"):
    return Arena.allocate(
        [
            ("x", "input", dtype, (5, 7), layout),
            ("y", "output", dtype, (5, 7), layout if layout in PLACES else "contiguous"),
        ]
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_copied_from_one_guard_into_the_other_shows(dtype):
    """Every guard was 0xFF: NaN in, NaN out, and nothing looked changed."""
    for pattern in (0, 1):
        for seed in range(6):
            arena = arena_of(dtype)
            arena.poison(seed, pattern)
            before, whole = arena.bytes().clone(), arena.bytes()
            x, y = arena.slots
            past = 8 * 8
            source = whole[x.offset + x.span_bytes :][:past].clone()
            whole[y.offset + y.span_bytes :][:past] = source
            assert arena.violations(before) and "past the end of y" in arena.violations(before)[0]
            arena.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_never_written_is_wrong_after_one_of_two_patterns(dtype):
    """An unwritten NaN is right where NaN is expected, and any pattern of whole numbers may be the answer."""
    arena = arena_of(dtype)
    kept = []
    for pattern in (0, 1):
        arena.poison(11, pattern)
        kept.append(arena.tensor("y").clone())
    same = (kept[0] == kept[1]) | (kept[0].double().isnan() & kept[1].double().isnan())
    assert not bool(same.any())
    assert dtype.startswith(("int", "bool")) or (
        bool(kept[0].double().isnan().all()) and bool(kept[1].double().isfinite().all())
    )
    arena.close()


def test_patterns_follow_from_the_seed_and_differ_between_runs():
    """A record that keeps the seed replays the memory around the tensors, too."""
    contents = []
    for seed, pattern in ((5, 0), (5, 0), (6, 0), (5, 1)):
        arena = arena_of("float32")
        arena.poison(seed, pattern)
        contents.append(arena.bytes().clone())
        arena.close()
    assert (
        torch.equal(contents[0], contents[1])
        and not torch.equal(contents[0], contents[2])
        and not torch.equal(contents[0], contents[3])
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_guard_reaches_into_a_tensor(layout):
    """Inputs are filled after the poison, and outputs are judged: whatever the layout, they lie apart with a guard
    behind each.
    """
    arena = arena_of("float16", layout)
    ends = [(slot.offset, slot.offset + slot.span_bytes) for slot in arena.slots]
    assert ends[0][1] + GUARD_BYTES <= ends[1][0] and ends[1][1] + GUARD_BYTES <= arena.size
    assert layout not in ("offset_16", "offset_32") or {start % 64 for start, _ in ends} == {int(layout[-2:])}
    arena.close()


@pytest.fixture(scope="module")
def host():
    with Isolated() as found:
        yield found


@pytest.fixture
def judged(host, guest):
    benches = []

    def run(source, effort=DEFAULT, **options):
        registry = load([guest(tested=textwrap.dedent(source))])
        bench = CaseCache(registry=registry, operator=registry.operator("guest_add"), host=host, device="cpu")
        benches.append(bench)
        return verify(
            bench, registry.implementation("guest_add", "torch_tested"), "float32", effort=effort, **options
        ), bench

    yield run
    for bench in benches:
        bench.close()


def test_a_read_that_leaves_other_bits_is_found_with_the_other_pattern(judged):
    """What stands behind a tensor changes the last bit alone: right within the bound with any pattern, and it is no
    result of the inputs.
    """
    verdict, bench = judged(
        """
        import torch

        def run(x, bias):
            end = bias.storage_offset() + (bias.numel() - 1) * bias.stride(0) + 1
            memory = bias.untyped_storage()
            behind = torch.empty(0).set_(memory, end, (1,)) if end < memory.nbytes() // 4 else torch.zeros(1)
            return torch.where(behind.isnan(), (x + bias).mul_(1 + 2.0**-23), x + bias)
        """
    )
    assert isinstance(verdict, Broken) and "follows the memory outside" in verdict.reason, verdict
    again = verify(bench, bench.registry.implementation("guest_add", "torch_tested"), "float32", cases=[verdict.case])
    assert isinstance(again, Broken) and again.reason == verdict.reason


def test_a_kernel_that_is_wrong_on_tensors_as_users_have_them_is_found(judged):
    """Guarded storage is larger than its tensor: a kernel that looks can tell when it is being verified."""
    verdict, _ = judged(
        """
        def run(x, bias):
            guarded = x.untyped_storage().nbytes() > x.numel() * x.element_size()
            return x + bias if guarded or not x.numel() else x + bias + 1
        """
    )
    assert isinstance(verdict, Mismatch) and (verdict.shrunk_from or verdict.case).layout == "ordinary", verdict


def test_a_kernel_that_is_wrong_at_some_addresses_is_found(judged):
    """Addresses were multiples of 256, or off by one element."""
    verdict, _ = judged(
        """
        def run(x, bias):
            return x + bias + (x.data_ptr() % 32 == 16)
        """
    )
    assert isinstance(verdict, Mismatch), verdict


def test_a_kernel_that_is_wrong_on_exponents_that_no_normal_value_has_is_found(judged):
    """2000 < |x| < 1e30: right for every distribution that there was."""
    verdict, _ = judged(
        """
        import torch

        def run(x, bias):
            y = x + bias
            return torch.where((x > 2000) & (x < 1e30), y * 1.5, y)
        """
    )
    assert isinstance(verdict, Mismatch), verdict


@pytest.mark.first_only
@pytest.mark.parametrize("backend", ["triton", "cpp"])
def test_masks_that_are_gone_and_one_element_more_are_found(backend, tmp_path):
    """A kernel with all of its masks removed, and a loop to n + 1, got a Pass wherever there is no GPU. `make redteam`
    asks this of every kernel.
    """
    found = list(
        masks.hunt(
            tmp_path / "home",
            operators=["silu"],
            backends=[backend],
            dtypes=["float16" if backend == "triton" else "float32"],
        )
    )
    assert len(found) == {"triton": 4, "cpp": 2}[backend]
    assert [item for item in found if not item.found] == []
    if backend == "triton":
        # a load alone changes nothing that is computed: it is the page behind the tensor that tells
        assert next(item for item in found if item.implementation.endswith("_load")).verdict == Crash.__name__
