"""What times of a family's other operators say of a call: where they are believed, and where they are not."""

import math

import pytest

from opforge.core.definition.implementation import Config
from opforge.machine import descriptors
from opforge.registry import load
from opforge.roofline.family_model import FamilyModel, size_effects
from opforge.roofline.time_model import TimedCall, pick, place_of
from opforge.runner.worker.manner import manner_as

H200 = descriptors()["nvidia-h200"]
KERNELS = ("cuda_persistent", "triton_onchip")
WIDTHS = (64, 512, 4096, 32768, 262144)


def place_at(operator, axes, dtype="bfloat16"):
    scalars = operator.scalar_values({})
    return place_of(operator, axes, dtype, scalars, manner_as(operator, axes, dtype, scalars, "contiguous"), H200)


def times(operator, axes, shares, dtype="bfloat16"):
    """A time of each implementation in `shares` (times of the least) at one call."""
    place = place_at(operator, axes, dtype)
    return [
        TimedCall(name, Config(), place, place.least_s * share, f"{operator.name} {axes}")
        for name, share in shares.items()
    ]


def rows(cols):
    return {"lead": (2**24 // cols,), "cols": cols}


def quick_at(cols, other=False):
    """Kernels that take turns from width to width, so that no neighbour tells which one is the faster."""
    first = (WIDTHS.index(cols) % 2 == 0) != other
    return dict(zip(KERNELS, (1.1, 2.0) if first else (2.0, 1.1), strict=True))


@pytest.mark.parametrize("alike", [True, False])
def test_a_twin_is_asked_where_it_told_the_own_calls_and_only_there(alike):
    """rmsnorm was timed at the very call. Where it tells layernorm's other calls it tells this one too; where its
    kernels are the other way round at those, what it says here is not looked at.
    """
    registry = load()
    operator, twin = registry.operator("layernorm"), registry.operator("rmsnorm")
    *known, asked = WIDTHS
    seen = [item for cols in known for item in times(operator, rows(cols), quick_at(cols, other=not alike))]
    theirs = [item for cols in WIDTHS for item in times(twin, rows(cols), quick_at(cols))]
    model = FamilyModel(operator, registry.implementations("layernorm"), seen, family=lambda: {"rmsnorm": theirs})
    fit = [registry.implementation("layernorm", name) for name in KERNELS]
    picked = pick(model, fit, place_at(operator, rows(asked)))
    assert ("rmsnorm" in picked.words) is alike
    best = min(quick_at(asked), key=quick_at(asked).__getitem__)
    if alike:
        assert picked.implementation.name == best
        alone = FamilyModel(operator, registry.implementations("layernorm"), seen)
        assert pick(alone, fit, place_at(operator, rows(asked))).implementation.name != best
    # fewer own calls than a judgement needs: not asked, though the twin is right
    few = [item for item in seen if item.place.names["cols"] in known[-2:]]
    model = FamilyModel(operator, registry.implementations("layernorm"), few, family=lambda: {"rmsnorm": theirs})
    assert "rmsnorm" not in pick(model, fit, place_at(operator, rows(asked))).words


def test_a_sibling_that_was_timed_far_away_keeps_no_twin_away():
    """An H100's time of one far call says little here; its time of this very call says what a twin would."""
    registry = load()
    operator, twin = registry.operator("layernorm"), registry.operator("rmsnorm")
    *known, asked = WIDTHS
    seen = [item for cols in known for item in times(operator, rows(cols), quick_at(cols))]
    theirs = [item for cols in WIDTHS for item in times(twin, rows(cols), quick_at(cols))]
    fit = [registry.implementation("layernorm", name) for name in KERNELS]
    for cols, by_twin in ((known[0], True), (asked, False)):
        model = FamilyModel(
            operator,
            registry.implementations("layernorm"),
            seen,
            siblings=times(operator, rows(cols), quick_at(cols)),
            family=lambda: {"rmsnorm": theirs},
        )
        picked = pick(model, fit, place_at(operator, rows(asked)))
        assert ("rmsnorm" in picked.words) is by_twin
        assert picked.implementation.name == min(quick_at(asked), key=quick_at(asked).__getitem__)


def test_the_family_is_not_read_for_a_call_near_to_an_own_time():
    """Reading it takes time that a first call should not spend."""
    registry = load()
    operator = registry.operator("layernorm")

    def family():
        raise AssertionError("it was read")

    model = FamilyModel(
        operator, registry.implementations("layernorm"), times(operator, rows(4096), quick_at(4096)), family=family
    )
    assert model.guess("triton_onchip", place_at(operator, {"lead": (4000,), "cols": 4096})) is not None


def test_what_smaller_elements_cost_pytorch_is_told_by_other_operators():
    """gelu was timed in float32, where memory hides PyTorch's arithmetic. silu and relu tell of bfloat16."""
    registry = load()
    operator = registry.operator("gelu")
    seen = times(operator, {"shape": (2**24,)}, {"cuda_vectors": 1.02, "torch_eager": 1.0}, "float32")
    theirs = {
        name: [
            item
            for dtype, shares in (
                ("float32", {"cuda_vectors": 1.0, "torch_eager": 1.0}),
                ("bfloat16", {"cuda_vectors": 1.0, "torch_eager": 1.3}),
            )
            for item in times(registry.operator(name), {"shape": (2**23,)}, shares, dtype)
        ]
        for name in ("silu", "relu")
    }
    fit = [registry.implementation("gelu", name) for name in ("cuda_vectors", "torch_eager")]
    asked = place_at(operator, {"shape": (2**24,)})
    for family, expected in (({}, "torch_eager"), (theirs, "cuda_vectors")):
        model = FamilyModel(operator, registry.implementations("gelu"), seen, family=lambda family=family: family)
        assert pick(model, fit, asked).implementation.name == expected
    effect = size_effects([], theirs)
    # two operators, and one more that differs in nothing
    assert effect("torch_eager") == pytest.approx(math.log(1.3) * 2 / 3)
    assert effect("cuda_flat") == 0.0
