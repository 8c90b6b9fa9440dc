"""What tests share: a cache and a store of their own, and guest homes made on the spot."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def private_folders(tmp_path_factory):
    """No test reads or writes the user's own cache or records. Compiled kernels are shared by the session's workers, and are gone with it."""
    import os

    # each worker has a folder of its own in the session's; a session without workers has only that, and what lies beside it is of other sessions
    own = tmp_path_factory.getbasetemp()
    root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    patch = pytest.MonkeyPatch()
    patch.setenv("OPFORGE_CACHE", os.environ.get("OPFORGE_TEST_CACHE", str(root / "cache")))
    patch.setenv("OPFORGE_STORE", str(tmp_path_factory.mktemp("store") / "records.sqlite"))
    patch.delenv("OPFORGE_HOME", raising=False)
    yield
    patch.undo()


@pytest.fixture
def front_door():
    """opforge.ops as a process finds it at first. Functions of another chooser, of whichever test came before, have taken the names of its custom operators."""
    from opforge import ops
    from opforge.dispatch import Chooser, Function

    for name in [name for name, value in vars(ops).items() if isinstance(value, Function | Chooser)]:
        del vars(ops)[name]
    return ops


def pytest_collection_modifyitems(items):
    """Tests that need a GPU are skipped, saying so, where there is none."""
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
    """guest(name=source, …) makes a home with the operator guest_add and these torch implementations; returns the home."""

    def make(**sources: str) -> Path:
        folder = tmp_path / "home" / "guest_add"
        folder.mkdir(parents=True)
        (folder / "op.py").write_text(DEFINITION % " ".join(f'"torch_{name}",' for name in sources))
        for name, source in sources.items():
            (folder / f"torch_{name}.py").write_text(textwrap.dedent(source))
        return folder.parent

    return make
