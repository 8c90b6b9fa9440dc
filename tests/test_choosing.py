"""What dispatch chooses for calls that nobody timed, and by whose evidence."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from opforge.backends import Native
from opforge.backends.shared_code import source_sha256
from opforge.core.definition.implementation import Config
from opforge.core.definition.shape_classes import PREFIX, shape_grid
from opforge.dispatch import Chooser, beliefs as knowing, choose as choosing, installation as holding
from opforge.machine import descriptors
from opforge.registry import load
from opforge.roofline.manners import layout_word, manner_of
from opforge.roofline.time_model import Model, TimedCall, Weights, pick, place_of
from opforge.runner.worker.manner import manner_as
from opforge.store import Fact, shipped as shipping
from opforge.store.shipped import day_of, packed, shipped

ROOT = Path(__file__).resolve().parent.parent
H200, H100 = descriptors()["nvidia-h200"], descriptors()["nvidia-h100"]
VERSIONS = {"torch": "2.11.0", "triton": "3.6.0", "nvcc": "13.0.88"}


def fact(
    implementation,
    cols,
    median_s,
    *,
    rows=4096,
    operator="softmax",
    dtype="bfloat16",
    versions=VERSIONS,
    layout="contiguous",
    **changed,
):
    """A believed Pass with a time on an H200, of the source as it is now."""
    registry = load()
    item = registry.implementation(operator, implementation)
    fields = {
        "id": f"{abs(hash((implementation, rows, cols, median_s))):032x}"[:32],
        "created_at": "2026-11-22T08:00:00.000000+00:00",
        "workload": f"rows_{cols}",
        "axes": {"lead": (rows,), "cols": cols},
        "scalars": registry.operator(operator).scalar_values({}),
        **dict.fromkeys(("median_s", "low_s", "high_s"), median_s),
        "operator": operator,
        "implementation": implementation,
        "backend": item.backend,
        "dtype": dtype,
        "device": H200.name,
        "config": item.default,
        "source_sha256": source_sha256(item.source),
        "code_sha256": "",
        "versions": versions,
        "verdict": "Pass",
        "cache": "cold",
        "suspect": False,
        "steady": True,
        "trial": False,
        "layout": layout,
    }
    return Fact(**{**fields, **changed})


TIMES = (
    *(fact("triton_onepass", cols, seconds) for cols, seconds in ((4096, 17e-6), (16384, 73e-6), (65536, 480e-6))),
    *(fact("cuda_slices", cols, seconds) for cols, seconds in ((4096, 60e-6), (16384, 68e-6), (65536, 270e-6))),
    *(fact("torch_eager", cols, seconds) for cols, seconds in ((4096, 50e-6), (16384, 126e-6), (65536, 530e-6))),
)


@pytest.fixture
def on_h200(tmp_path, monkeypatch):
    """`on_h200(facts, versions, of_sibling)`: a chooser in a fresh environment that takes itself for an H200, with this
    evidence in the package, and that of an H100.
    """

    def made(facts=TIMES, versions=VERSIONS, of_sibling=()):
        folder = tmp_path / "shipped"
        folder.mkdir(exist_ok=True)
        (folder / f"{H200.name}.json").write_text(packed(facts, H200.name))
        (folder / f"{H100.name}.json").write_text(packed(of_sibling, H100.name))
        shipping._file.cache_clear()
        monkeypatch.setattr(knowing, "shipped", lambda operator, device: shipped(operator, device, folder))
        monkeypatch.setattr(choosing, "detect", lambda device: H200)
        monkeypatch.setattr(holding, "versions", lambda: versions)
        chooser = Chooser(load(), str(tmp_path / "store.sqlite"))
        chooser._modes.update(
            {(backend, "cuda"): Native(how="simulated") for backend in ("torch", "triton", "cuda", "tilelang")}
        )
        return chooser

    monkeypatch.delenv("OPFORGE_EVIDENCE", raising=False)
    yield made
    shipping._file.cache_clear()


def asked(chooser, cols, rows=4096, operator="softmax"):
    found = chooser.registry.operator(operator)
    return chooser.choose(
        found,
        {"lead": (rows,), "cols": cols},
        "bfloat16",
        found.scalar_values({}),
        "cuda",
        ["contiguous"] * len(found.inputs),
    )


def test_a_fresh_machine_chooses_by_the_evidence_that_came_with_the_package(on_h200):
    """The six shapes' fault: 65536 columns went to a kernel that is good at 4096."""
    chooser = on_h200()
    wide, short = asked(chooser, 65536), asked(chooser, 4096)
    assert (wide.implementation.name, short.implementation.name) == ("cuda_slices", "triton_onepass")
    assert "verified and timed on an NVIDIA H200 on 2026-11-22; not on this machine" in wide.why
    # between two times, and beside them: no record is of these
    assert [asked(chooser, cols).implementation.name for cols in (50256, 40000, 3000, 5000)] == [
        "cuda_slices",
        "cuda_slices",
        "triton_onepass",
        "triton_onepass",
    ]


def test_ones_own_evidence_can_be_asked_for(on_h200, monkeypatch):
    """OPFORGE_EVIDENCE=here: nothing was verified here, so PyTorch computes."""
    monkeypatch.setenv("OPFORGE_EVIDENCE", "here")
    found = asked(on_h200(), 65536)
    assert found.implementation.backend == "torch"
    assert "opforge qualify softmax" in found.why


def test_a_toolchain_that_is_not_compatible_says_so(on_h200):
    """What Triton 3.5 would make of the source is not what was verified."""
    found = asked(on_h200(versions={**VERSIONS, "triton": "3.5.1"}), 4096)
    assert found.implementation.name == "torch_eager"
    assert any(
        "with triton 3.6.0, and here is 3.5.1" in reason
        for name, reason in found.passed_over
        if name == "triton_onepass"
    )


def test_times_on_other_terms_are_not_ranked_beside_one_another(on_h200):
    """A kernel's time with `out=` given says nothing beside one in which another makes its result."""
    into = {
        name: fact(name, 4096, seconds, terms="out")
        for name, seconds in (("triton_onepass", 40e-6), ("cuda_slices", 50e-6), ("tilelang_onepass", 60e-6))
    }
    called = {
        name: fact(name, 4096, seconds, terms="call")
        for name, seconds in (("triton_onepass", 57e-6), ("cuda_slices", 55e-6), ("torch_eager", 58e-6))
    }

    def chosen(*facts):
        return asked(on_h200(facts), 4096).implementation.name

    assert chosen(*into.values()) == "triton_onepass"
    assert chosen(*called.values()) == "cuda_slices"
    assert chosen(*into.values(), *called.values()) == "cuda_slices", "as a caller gets them, where they were timed so"
    assert chosen(*into.values(), called["cuda_slices"]._replace(median_s=10e-6)) == "triton_onepass", (
        "one that was timed anew alone"
    )
    # what PyTorch takes as a caller gets it is no less than what it would take with `out=` given
    assert chosen(*into.values(), called["torch_eager"]._replace(median_s=39e-6)) == "torch_eager"
    assert chosen(*into.values(), called["torch_eager"]._replace(median_s=41e-6)) == "triton_onepass"
    # records from before terms were stated: PyTorch made its result, our kernels did not
    unstated = [item._replace(terms="") for item in (*into.values(), called["torch_eager"])]
    assert chosen(*unstated) == "triton_onepass"


def test_other_sources_are_not_what_was_timed(on_h200):
    """Planted: the evidence is of another text of the kernel."""
    found = asked(
        on_h200(
            [item._replace(source_sha256="0" * 64) if item.implementation == "cuda_slices" else item for item in TIMES]
        ),
        65536,
    )
    assert found.implementation.name == "triton_onepass"
    assert any("another version of its source" in reason for name, reason in found.passed_over if name == "cuda_slices")


def test_what_was_found_here_goes_before_what_came_along(on_h200):
    """An own failure, older by its date than the package's Pass, takes the kernel out; an own time replaces the
    package's.
    """
    from opforge.core.evidence.verdict import Crash
    from opforge.store import Store
    from simulated import record

    chooser = on_h200()
    item = chooser.registry.implementation("softmax", "cuda_slices")
    crash = Crash(case=None, dtype="bfloat16", status="signal 11", stderr="", isolation="none")
    own = dataclasses.replace(
        record(implementation="cuda_slices", verdict=crash), timing=None, workload="", axes={}, dtype="bfloat16",
        device=H200.name, config=item.default,
        source_sha256=source_sha256(item.source),
    )  # fmt: skip
    assert own.created_at < TIMES[0].created_at
    with Store.open(chooser.store_url) as store:
        store.add([own])
    found = asked(chooser, 65536)
    assert found.implementation.name == "triton_onepass", found
    assert any("is a Crash" in reason for name, reason in found.passed_over if name == "cuda_slices")


def test_how_inputs_lie_decides_beside_how_large_they_are():
    """A kernel that is fast on whole vectors is not chosen where none fits, once a time says so."""
    registry = load()
    operator = registry.operator("softmax")
    items = [registry.implementation("softmax", name) for name in ("triton_onepass", "cuda_onchip")]

    def seen(name, cols, seconds):
        axes = {"lead": (8192,), "cols": cols}
        return TimedCall(
            name,
            Config(),
            place_of(operator, axes, "bfloat16", {}, manner_as(operator, axes, "bfloat16", {}, "contiguous"), H200),
            seconds,
            "",
        )

    model = Model(
        operator,
        items,
        [
            seen("triton_onepass", 2048, 20e-6),
            seen("cuda_onchip", 2048, 16e-6),
            seen("triton_onepass", 1023, 10e-6),
            seen("cuda_onchip", 1023, 20e-6),
        ],
    )
    for cols, expected in (
        (2040, "cuda_onchip"),
        (2041, "triton_onepass"),
        (1024, "cuda_onchip"),
        (1021, "triton_onepass"),
    ):
        axes = {"lead": (8000,), "cols": cols}
        place = place_of(operator, axes, "bfloat16", {}, manner_as(operator, axes, "bfloat16", {}, "contiguous"), H200)
        assert pick(model, items, place).implementation.name == expected, cols


def on_h100(*facts):
    """The same facts, found on an H100."""
    return [item._replace(device=H100.name) for item in facts]


def test_times_of_a_sibling_tell_what_no_time_here_tells(on_h200):
    """cuda_slices' short rows alone were timed here: that it is good at long ones is known from the device that runs
    the same code.
    """
    here = [item for item in TIMES if item.axes["cols"] == 4096]
    sibling = on_h100(*(item._replace(median_s=1.4 * item.median_s) for item in TIMES))
    assert asked(on_h200(here), 65536).implementation.name == "triton_onepass"
    found = asked(on_h200(here, of_sibling=sibling), 65536)
    assert found.implementation.name == "cuda_slices"
    assert "timed on an NVIDIA H100 on 2026-11-22, which runs the same code" in found.why
    assert "verified and timed on an NVIDIA H200" in found.why


def test_a_siblings_pass_is_no_pass_here(on_h200, monkeypatch):
    """Times of it are looked at, verdicts are not; and with OPFORGE_EVIDENCE=here neither."""
    passed_there = on_h100(*(item for item in TIMES if item.implementation == "cuda_slices"))
    others = [item for item in TIMES if item.implementation != "cuda_slices"]
    found = asked(on_h200(others, of_sibling=passed_there), 65536)
    assert found.implementation.name == "triton_onepass"
    assert any("no Pass in the records" in reason for name, reason in found.passed_over if name == "cuda_slices")
    monkeypatch.setenv("OPFORGE_EVIDENCE", "here")
    assert asked(on_h200(others, of_sibling=passed_there), 65536).implementation.backend == "torch"


def test_a_config_that_passed_on_a_sibling_alone_is_not_taken(on_h200):
    """It passed here with its default, untimed: what was tuned there was not verified here."""
    tuned = Config((("block", 512),))
    item = load().implementation("softmax", "cuda_slices")
    untimed = fact("cuda_slices", 65536, None, cache="")
    here = [item for item in TIMES if item.implementation != "cuda_slices"]
    sibling = on_h100(
        *here, fact("cuda_slices", 65536, 100e-6, config=tuned), fact("cuda_slices", 16384, 30e-6, config=tuned)
    )
    found = asked(on_h200([*here, untimed], of_sibling=sibling), 65536)
    assert (found.implementation.name, found.config) == ("cuda_slices", item.default)
    assert "verified on an NVIDIA H200 on 2026-11-22; not on this machine" in found.why


def test_a_launch_that_takes_the_host_longer_than_the_device_counts(on_h200):
    """As called one after the other, a kernel of 34 us whose launch takes 118 us takes 118: where another takes 35 and
    is launched at once, that is what a caller wants. Where the device is busy for longer, nothing changes.
    """
    short, long = 4096, 65536
    facts = [
        *(fact("triton_onepass", cols, seconds, launch_s=118e-6) for cols, seconds in ((short, 34e-6), (long, 480e-6))),
        *(fact("cuda_slices", cols, seconds, launch_s=9e-6) for cols, seconds in ((short, 35e-6), (long, 500e-6))),
        *(fact("torch_eager", cols, seconds, launch_s=20e-6) for cols, seconds in ((short, 60e-6), (long, 530e-6))),
    ]
    chooser = on_h200(facts)
    assert asked(chooser, short).implementation.name == "cuda_slices"
    assert asked(chooser, long).implementation.name == "triton_onepass"
    # what is short differs from host to host more than from kernel to kernel
    quick = [item._replace(launch_s=25e-6) if item.backend == "triton" else item for item in facts]
    assert asked(on_h200(quick), short).implementation.name == "triton_onepass"


def test_where_nothing_was_timed_the_family_tells(on_h200):
    """log_softmax has Passes and no time: which of its kernels is good at long rows is known from softmax's of the same
    names. A time of its own, of whatever shape, and PyTorch's times of other functions are not mixed with that.
    """
    names = ("torch_eager", "triton_onepass", "cuda_slices")
    untimed = [fact(name, 4096, None, operator="log_softmax", cache="") for name in names]
    quick = [fact("torch_eager", 65536, 1e-6)]
    for cols, expected in ((4096, "triton_onepass"), (65536, "cuda_slices")):
        found = asked(on_h200([*untimed, *TIMES, *quick]), cols, operator="log_softmax")
        assert found.implementation.name == expected
        assert f"softmax rows_{cols}" in found.why
        assert "verified on an NVIDIA H200 on 2026-11-22; not on this machine" in found.why
    own = fact("triton_onepass", 4096, 17e-6, operator="log_softmax")
    found = asked(on_h200([*untimed, own, *TIMES]), 65536, operator="log_softmax")
    assert found.implementation.name == "triton_onepass" and " softmax" not in found.why


def seen(name, cols, share, device):
    """A time of softmax in bfloat16 over 8192 rows: `share` of the least that the device's memory allows."""
    operator = load().operator("softmax")
    axes = {"lead": (8192,), "cols": cols}
    place = place_of(operator, axes, "bfloat16", {}, manner_as(operator, axes, "bfloat16", {}, "contiguous"), device)
    return TimedCall(name, Config(), place, share * place.least_s, f"{device.name} at {cols}")


def test_ones_own_time_of_the_very_call_counts_beside_a_siblings():
    """A sibling on which a kernel is twice as slow, beside its roof, as here: own times say so, at other calls too."""
    registry = load()
    operator = registry.operator("softmax")
    items = [registry.implementation("softmax", name) for name in ("cuda_onchip", "triton_onepass")]

    widths = (2048, 4096, 8192)
    own = [*(seen("triton_onepass", cols, 1.5, H200) for cols in widths), seen("cuda_onchip", 4096, 1.2, H200)]
    siblings = [
        seen(name, cols, share, H100)
        for name, share in (("triton_onepass", 1.5), ("cuda_onchip", 2.4))
        for cols in widths
    ]
    model = Model(operator, items, own, siblings=siblings)
    for cols in widths:
        place = seen("cuda_onchip", cols, 1.0, H200).place
        guess = model.guess("cuda_onchip", place)
        assert guess.seconds == pytest.approx(1.2 * place.least_s, rel=0.1 if cols == 4096 else 0.25)
        assert pick(model, items, place).implementation.name == "cuda_onchip"
    assert pick(Model(operator, items, own[:3], siblings=siblings), items, place).implementation.name == (
        "triton_onepass"
    ), "no time here says otherwise"


def test_a_sibling_that_was_timed_farther_away_is_not_looked_at():
    """Own times are an octave away, the sibling's seven and more: neither the guess nor its words have any of them."""
    registry = load()
    items = [registry.implementation("softmax", name) for name in ("cuda_onchip", "triton_onepass")]
    own = [seen("triton_onepass", 2048, 1.5, H200), seen("cuda_onchip", 2048, 1.1, H200)]
    far = [seen("triton_onepass", 2**19, 1.0, H100), seen("cuda_onchip", 2**19, 3.0, H100)]
    place = seen("cuda_onchip", 4096, 1.0, H200).place
    alone, beside = (Model(registry.operator("softmax"), items, own, siblings=others) for others in ((), far))
    for item in items:
        assert beside.guess(item.name, place) == alone.guess(item.name, place)
    assert pick(beside, items, place).implementation.name == "cuda_onchip"
    near = [seen("cuda_onchip", 4096, 3.0, H100)]
    told = Model(registry.operator("softmax"), items, own, siblings=near).guess("cuda_onchip", place)
    assert H100.name in told.words and H100.name not in beside.guess("cuda_onchip", place).words


def test_siblings_are_devices_that_run_the_same_code():
    """By their descriptors: not another target, not a part of a chip, no processor, not itself."""
    assert H100.is_sibling_of(H200) and H200.is_sibling_of(H100) and not H200.is_sibling_of(H200)
    assert not descriptors()["nvidia-a100-80g"].is_sibling_of(H100)
    assert not H100.is_sibling_of(dataclasses.replace(H200, units=66))
    cpu = descriptors()["cpu"]
    assert not cpu.is_sibling_of(dataclasses.replace(cpu, name="cpu-another"))


def test_far_from_any_time_a_kernel_of_ours_must_promise_more_than_pytorch():
    """2 % faster at 4096 columns says enough there, and not at 65536: a call must not get slower than it was."""
    registry = load()
    operator = registry.operator("softmax")
    items = [registry.implementation("softmax", name) for name in ("cuda_onchip", "torch_eager")]

    def place(cols):
        axes = {"lead": (8192,), "cols": cols}
        return place_of(operator, axes, "bfloat16", {}, manner_as(operator, axes, "bfloat16", {}, "contiguous"), H200)

    seen = [
        TimedCall("cuda_onchip", Config(), place(4096), 49e-6, ""),
        TimedCall("torch_eager", Config(), place(4096), 50e-6, ""),
    ]
    for model, expected in ((Model(operator, items, seen), "torch_eager"),
                            (Model(operator, items, seen, Weights(caution=0.0)), "cuda_onchip")):  # fmt: skip
        assert pick(model, items, place(4096)).implementation.name == "cuda_onchip"
        assert pick(model, items, place(65536)).implementation.name == expected


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((4, 8), (8, 1), "contiguous"),
        ((4, 8), (11, 1), "rows"),
        ((4, 8), (1, 4), "transposed"),
        ((4, 8), (16, 2), "strided"),
        ((4, 1), (1, 7), "contiguous"),
        ((), (), "contiguous"),
    ],
)
def test_layouts_have_their_words(shape, strides, expected):
    """As torch says it of the same strides."""
    torch = pytest.importorskip("torch")
    assert layout_word(shape, strides) == expected
    assert (expected == "contiguous") == torch.empty(200).as_strided(shape, strides).is_contiguous()
    assert manner_of([(shape, strides, 2, True)])[0][0] == expected


def test_grids_are_few_shapes_that_differ_from_the_named_workloads():
    """Every grid shape is taken by its operator, none repeats a workload, and all of them are few enough for a
    machine's minutes: 220 of the first 45 operators, so many for each.
    """
    registry = load()
    total = 0
    for name in registry.names():
        operator = registry.operator(name)
        for cpu in (True, False):
            grid = shape_grid(operator, cpu=cpu)
            assert all(
                workload.name.startswith(PREFIX) and set(workload.axes) == set(operator.axes) for workload in grid
            )
            assert len({workload.name for workload in grid}) == len(grid) <= 13
            total += 0 if cpu else len(grid)
    assert total <= 220 / 45 * len(registry.names())
    assert any("transposed" in workload.layout for workload in shape_grid(registry.operator("matmul"), cpu=False))


def test_what_comes_with_the_package_is_of_todays_sources():
    """Stale rows are dropped by the command that makes the files, and never shipped."""
    done = subprocess.run(
        [sys.executable, "scripts/ship.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(file.stat().st_size for file in shipping.FOLDER.glob("*.json")) <= shipping.MOST_BYTES


def test_facts_come_out_of_a_file_as_they_went_in(tmp_path):
    """But for their ids and moments, which say that they came along; times keep four digits."""
    (tmp_path / f"{H200.name}.json").write_text(packed(TIMES, H200.name))
    back = shipped("softmax", H200.name, tmp_path)
    assert json.loads((tmp_path / f"{H200.name}.json").read_text())["device"] == H200.name
    assert {
        (item.implementation, item.axes["cols"], item.median_s, item.source_sha256, item.config) for item in back
    } == {(item.implementation, item.axes["cols"], item.median_s, item.source_sha256, item.config) for item in TIMES}
    assert {day_of(item.created_at) for item in back} == {"2026-11-22"}
    assert max(item.created_at for item in back) < "1"
