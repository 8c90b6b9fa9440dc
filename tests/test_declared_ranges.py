"""What implementations declare as their own good ranges (`BEST`), and what the time model makes of it."""

from opforge.core.definition.implementation import Config
from opforge.machine import descriptors
from opforge.registry import load
from opforge.roofline.time_model import Model, TimedCall, pick, place_of
from opforge.runner.worker.manner import manner_as

H200 = descriptors()["nvidia-h200"]


def test_beyond_a_declared_range_a_kernel_takes_longer_and_inside_it_less():
    """softmax's slices wait in registers up to 512 KiB a row. Times from one side of that are no times of the other."""
    registry = load()
    operator, names = registry.operator("softmax"), ("cuda_slices", "cuda_wide")
    items = [registry.implementation("softmax", name) for name in names]

    def at(cols, dtype="float32"):
        axes = {"lead": (2**27 // cols,), "cols": cols}
        return place_of(operator, axes, dtype, {}, manner_as(operator, axes, dtype, {}, "contiguous"), H200)

    def seen(cols, shares):
        return [
            TimedCall(item.name, Config(), place, place.least_s * share, "")
            for place in [at(cols)]
            for item, share in zip(items, shares, strict=True)
        ]

    inside, outside = 131072, 262144
    assert (items[0].best and not items[1].best) and Model(operator, items, []).made_for("cuda_slices", at(inside))
    assert not Model(operator, items, []).made_for("cuda_slices", at(outside))
    for known, asked_at, shares, expected in (
        (inside, outside, (1.05, 1.2), "cuda_wide"),
        (inside, inside, (1.05, 1.2), "cuda_slices"),
        (outside, inside, (1.3, 1.2), "cuda_slices"),
        (outside, outside, (1.3, 1.2), "cuda_wide"),
    ):
        model = Model(operator, items, seen(known, shares))
        assert pick(model, items, at(asked_at)).implementation.name == expected, (known, asked_at)


def test_far_from_every_time_what_is_made_for_the_call_goes_first():
    """64 rows, where all times are of thousands: cuda_stream has no time, and says that few rows are what it is for.
    Nearer to a time it does not go before what was timed.
    """
    registry = load()
    operator = registry.operator("matmul_fp8")
    items = [registry.implementation("matmul_fp8", name) for name in ("cuda_wgmma", "cuda_stream", "torch_eager")]
    scalars = operator.scalar_values({})

    def at(m, n, k):
        axes = {"m": m, "n": n, "k": k, "a_rows": m, "a_blocks": 1, "b_rows": n, "b_blocks": 1}
        manner = manner_as(operator, axes, "float8_e4m3fn", scalars, "contiguous")
        return place_of(operator, axes, "float8_e4m3fn", scalars, manner, H200)

    known = at(4096, 4096, 4096)
    seen = [TimedCall(name, Config(), known, known.least_s, "") for name in ("cuda_wgmma", "torch_eager")]
    model = Model(operator, items, seen)
    picked = pick(model, items, at(64, 8192, 8192))
    assert picked.implementation.name == "cuda_stream" and picked.guess is None and "made for" in picked.words
    assert pick(model, items, at(4096, 8192, 8192)).implementation.name != "cuda_stream"
    near = at(128, 4096, 4096)
    known_near = [TimedCall(name, Config(), near, near.least_s, "") for name in ("cuda_wgmma", "torch_eager")]
    assert pick(Model(operator, items, known_near), items, at(64, 4096, 4096)).implementation.name != "cuda_stream"
