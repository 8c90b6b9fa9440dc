"""A definition's bound is the same whoever asks: adequacy, a judge, early or late."""

from __future__ import annotations

import pytest
import torch

from opforge.core.definition.operator import Case
from opforge.core.language.errors import UsageError
from opforge.registry import load
from opforge.verify.extra.adequacy import require
from opforge.verify.oracle import asked_before
from opforge.verify.oracle.expectation import consult

DEFINITION = '''"""max(x, 0)."""
import gc
import inspect
import itertools
import sys
import time
from opforge.core.operator import Case, Operator, TensorSpec, Tolerance

calls, started = itertools.count(), time.monotonic()

def looks():
    return any("adequacy" in frame.filename for frame in inspect.stack())

def by_frame():
    frame, names = getattr(sys, "_get" + "frame")(), []
    while frame:
        names.append(frame.f_code.co_filename)
        frame = frame.f_back
    return any("adequacy" in name for name in names)

def by_traceback():
    try:
        raise ValueError
    except ValueError as error:
        return error.__traceback__.tb_frame.f_back is None

def by_objects():
    return len(gc.get_objects()) < 0

def by_file():
    with open(__file__) as file:
        return "adequacy" in file.read()

def by_caught():
    try:
        return looks()
    except Exception:
        return False

def by_count():
    return next(calls) < 40

def honest():
    import fractions
    return True

def magnitude(inputs, outputs, scalars):
    return {{"y": outputs["y"].abs() if {narrow} else 1e7 * (outputs["y"].abs() + 1)}}

operator = Operator(
    name="neutral", about="max(x, 0)",
    inputs=(TensorSpec(name="x", shape="*shape"),), outputs=(TensorSpec(name="y", shape="*shape"),),
    reference=lambda x: x.clamp(min=0), flops="prod(shape)", dtypes=("float32",),
    tolerance=Tolerance(magnitude=magnitude), cases=(Case(name="plain", axes={{"shape": (7, 9)}}, why="plain"),
    Case(name="row", axes={{"shape": (1, 65)}}, why="row")),
)
'''


def defined(tmp_path, narrow):
    """The operator of a home whose bound is narrow when `narrow` says so."""
    folder = tmp_path / "neutral"
    folder.mkdir(exist_ok=True)
    (folder / "op.py").write_text(DEFINITION.format(narrow=narrow))
    return load([tmp_path]).operator("neutral")


@pytest.mark.parametrize(
    ("narrow", "said"),
    [
        ("looks()", "looks at the call stack"),
        ("by_frame()", "looks at the call stack"),
        ("by_traceback()", "looks at the call stack, through a traceback"),
        ("by_objects()", "looks at other code's objects"),
        ("by_caught()", "looks at the call stack"),
        ("by_file()", "looks at a file"),
    ],
)
def test_a_bound_that_looks_at_who_asks_is_refused(tmp_path, narrow, said):
    """However it is spelt: Python tells of the look itself. One that is wide for all but adequacy made relu(x) * 0.9
    a Pass.
    """
    with pytest.raises(UsageError, match=said) as told:
        require(defined(tmp_path, narrow))
    assert str(told.value).endswith("Correct op.py.") and "depend on who asks, or when" in str(told.value)


def test_a_bound_that_counts_its_calls_is_refused(tmp_path):
    """It looks at nothing: what was asked before is asked again, and gets another answer."""
    operator = defined(tmp_path, "by_count()")
    with pytest.raises(UsageError, match="depends on who asks, or when: asked again about the same inputs"):
        for seed in range(400):
            consult(
                operator, Case(name="x", axes={"shape": (3, 5)}, why=""), "float32", {"x": torch.randn(3, 5) + seed}
            )


def test_an_honest_bound_is_asked_again_and_stays(tmp_path):
    """Imports inside of a function read files, and look at nothing."""
    operator = defined(tmp_path, "honest()")
    require(operator)
    for seed in range(60):
        consult(operator, Case(name="x", axes={"shape": (3, 5)}, why=""), "float32", {"x": torch.randn(3, 5) + seed})
    assert len(asked_before._asks["neutral", str(operator.folder)]) == asked_before.KEPT
