"""What tests share: a cache and a store of their own, and guest homes made on the spot."""

from __future__ import annotations

import contextlib
import textwrap
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def private_folders(tmp_path_factory):
    """No test reads or writes the user's own cache or records. Compiled kernels are shared by the session's workers,
    and are gone with it.
    """
    import os

    # each worker has a folder of its own in the session's; a session without workers has only that, and what lies
    # beside it is of other sessions
    own = tmp_path_factory.getbasetemp()
    root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    patch = pytest.MonkeyPatch()
    cache = Path(os.environ.get("OPFORGE_TEST_CACHE") or root / "cache")
    _forget_old(cache / "jit")
    patch.setenv("OPFORGE_CACHE", str(cache))
    patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
    patch.setenv("OPFORGE_STORE", str(tmp_path_factory.mktemp("store") / "records.sqlite"))
    patch.delenv("OPFORGE_HOME", raising=False)
    _ceilings_that_nobody_waits_for()
    from kept_servers import KEPT

    patch.setattr("opforge.runner.parent.host.ServerProcess", KEPT.lend)
    yield
    KEPT.close()
    patch.undo()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """A test of the servers themselves starts its own (tests/kept_servers.py)."""
    from kept_servers import KEPT

    KEPT.own = item.get_closest_marker("own_servers") is not None


@pytest.fixture(autouse=True)
def environment_as_found(private_folders):
    """A test that leaves opforge's variables changed would give the next one another store: it fails itself."""
    import os

    def own():
        return {name: value for name, value in os.environ.items() if name.startswith(("OPFORGE_", "XDG_", "OMP_"))}

    before = own()
    yield
    left = own()
    for name in left.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    assert left == before, "the test left opforge's environment changed"


def _forget_old(folder: Path, days: float = 1.0) -> None:
    """What compilers made for folders of earlier sessions, which are gone; kernels are kept by their text."""
    import shutil
    import time

    for entry in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            if entry.stat().st_mtime < time.time() - days * 86_400:
                shutil.rmtree(entry, ignore_errors=True)


def _ceilings_that_nobody_waits_for():
    """A first bench measures what the processor can do, which takes as long as many tests. These are beyond what it can
    do, so that no time is suspect.
    """
    from opforge.core.definition.device import Ceiling
    from opforge.machine import detect
    from opforge.machine.saved_ceilings import save_ceilings

    rates = {"copy": 5e11, "add": 5e11, "read": 5e11, "write": 5e11}
    products = {f"matrix_{kind}": 5e12 for kind in ("float32", "float16", "bfloat16")} | {"vector_float32": 5e12}
    found = {
        **{name: (rate, "B/s") for name, rate in rates.items()},
        **{name: (rate, "FLOP/s") for name, rate in products.items()},
    }
    found |= {"launch": (2e-8, "s"), "call": (5e-7, "s")}
    made = [
        Ceiling(name=name, value=value, unit=unit, measured_at="2026-01-01T00:00:00+00:00", how="made up for tests")
        for name, (value, unit) in found.items()
    ]
    save_ceilings(detect("cpu"), made)


EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "operators"


@pytest.fixture(scope="module")
def host():
    """Workers for the tests of one file."""
    from opforge.runner import Isolated

    with Isolated() as started:
        yield started


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """An operator of examples/operators by its name, as a function with a store of its own."""
    from opforge.dispatch import Chooser, Function
    from opforge.registry import load

    registry = load([EXAMPLES])
    chooser = Chooser(registry, f"sqlite:///{tmp_path_factory.mktemp('examples') / 'records.sqlite'}")
    return lambda name: Function(registry.operator(name), chooser)


@pytest.fixture
def front_door():
    """opforge.ops as a process finds it at first. Functions of another chooser, of whichever test came before, have
    taken the names of its custom operators.
    """
    from opforge import ops
    from opforge.dispatch import Chooser, Function

    for name in [name for name, value in vars(ops).items() if isinstance(value, Function | Chooser)]:
        del vars(ops)[name]
    return ops


CHECKED = Path(__file__).with_name("checked.txt").read_text(encoding="utf-8").split()
"""What `make check` asks, which a landing asks first: files and tests that find much for little."""


def pytest_addoption(parser):
    parser.addoption(
        "--campaigns",
        choices=["chosen", "all"],
        help="the everyday tests, then the campaigns that the change reaches and some of the others, or all of them",
    )


def pytest_configure(config):
    if config.getoption("campaigns"):
        config.pluginmanager.register(Landing(config), "landing")


def _is_campaign(item) -> bool:
    return any(item.get_closest_marker(name) for name in ("campaign", "offline"))


def _of_a_landing(config, items):
    """What one start asks, the cheap ones first: what `make check` asks, every day's tests, campaigns by length."""
    import campaign_choice

    asked = [item for item in items if not item.get_closest_marker("slow")]
    campaigns = [item for item in asked if _is_campaign(item)]
    takes = campaign_choice.recorded_seconds()
    chosen = {item.nodeid for item in campaigns}
    if config.getoption("campaigns") == "chosen":
        choice, change = campaign_choice.choice_for_landing([item.nodeid for item in campaigns])
        chosen = set(choice.chosen)
        told = [
            f"{len(choice.chosen)} of {len(campaigns)} campaigns, {choice.seconds:.0f} of {choice.all_seconds:.0f} s "
            f"as recorded; {choice.reached} of them the change reaches: {change}",
            *(["left for the next landing, the nearest first:", *choice.left] if choice.left else []),
        ]
        getattr(config, "workeroutput", config.stash.setdefault(TOLD, {}))["campaigns"] = "\n".join(told)

    def order(item):
        if _is_campaign(item):
            return (2, -takes.get(item.nodeid, campaign_choice.UNKNOWN_S))
        return (0 if item.nodeid.startswith(tuple(CHECKED)) else 1, 0.0)

    left = [item for item in items if item not in asked or (_is_campaign(item) and item.nodeid not in chosen)]
    config.hook.pytest_deselected(items=left)
    gone = set(map(id, left))
    return sorted((item for item in items if id(item) not in gone), key=order)


TOLD = pytest.StashKey[dict[str, str]]()


class Landing:
    """Says which campaigns were left, and keeps what each took for the next choice."""

    def __init__(self, config) -> None:
        self.told = config.stash.setdefault(TOLD, {})
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.told |= {name: text for name, text in getattr(node, "workeroutput", {}).items() if name == "campaigns"}

    def pytest_runtest_logreport(self, report):
        if {"campaign", "offline"} & set(report.keywords) and report.outcome != "skipped":
            test = report.nodeid.partition("@")[0]
            self.seconds[test] = round(self.seconds.get(test, 0.0) + report.duration, 1)

    def pytest_sessionfinish(self, session):
        import json

        import campaign_choice

        if self.seconds and not hasattr(session.config, "workerinput"):
            place = campaign_choice.kept_folder() / "campaign_seconds.json"
            before = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(before | self.seconds, indent=0, sort_keys=True), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter):
        if "campaigns" in self.told:
            terminalreporter.section("campaigns")
            terminalreporter.write_line(self.told["campaigns"])


def pytest_collection_modifyitems(config, items):
    """Tests that need a GPU are skipped, saying so, where there is none. Of those that are marked `first_only` all
    parameters but the first are campaigns.
    """
    asked = set()
    for item in items:
        if item.get_closest_marker("first_only"):
            if item.function in asked:
                item.add_marker("campaign")
            asked.add(item.function)
    if config.getoption("campaigns"):
        items[:] = _of_a_landing(config, items)
    if any(item.get_closest_marker("gpu") for item in items):
        import torch

        if not torch.cuda.is_available():
            for item in items:
                if item.get_closest_marker("gpu"):
                    item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none here"))


DEFINITION = """
from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload


def reference(x, bias):
    return x + bias


def magnitude(inputs, outputs, scalars):
    return {"y": inputs["x"].abs() + inputs["bias"].abs()}


operator = Operator(
    name="guest_add",
    about="a guest's bias add",
    inputs=(TensorSpec(name="x", shape="rows cols"), TensorSpec(name="bias", shape="cols")),
    outputs=(TensorSpec(name="y", shape="rows cols"),),
    reference=reference,
    flops="rows * cols",
    tolerance=Tolerance(magnitude=magnitude),
    cases=(
        Case(name="odd_tail", axes={"rows": 7, "cols": 129}, why="one past a block of 128"),
        Case(name="even", axes={"rows": 4, "cols": 128}, why="no tail"),
        Case(name="sliced", axes={"rows": 5, "cols": 33}, layout="sliced", why="rows in a wider matrix"),
    ),
    workloads=(Workload(name="tiny", axes={"rows": 64, "cols": 256}, source="made for tests", scale="laptop"),),
    implementations=(%s),
)
"""


@pytest.fixture
def guest(tmp_path):
    """guest(name=source, …) makes a home with the operator guest_add and these torch implementations; returns
    the home.
    """

    def make(**sources: str) -> Path:
        folder = tmp_path / "home" / "guest_add"
        folder.mkdir(parents=True)
        (folder / "op.py").write_text(DEFINITION % " ".join(f'"torch_{name}",' for name in sources))
        for name, source in sources.items():
            (folder / f"torch_{name}.py").write_text(textwrap.dedent(source))
        return folder.parent

    return make
