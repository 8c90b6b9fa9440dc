"""What every operator is asked of itself and of PyTorch: a new folder under ops/ is asked all of it, and no line
changes here.

Its tolerance is asked in tests/test_adequacy.py, its gradient's operator in tests/test_dispatch.py, its page in
tests/test_docs.py.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
from contextlib import closing

import pytest

from opforge.core.definition.implementation import fallback
from opforge.core.evidence.verdict import Mismatch, Pass
from opforge.registry import load
from opforge.verify import CaseCache, verify
from opforge.verify.cases.case_cache import NOT_BORNE, PreparedCase
from opforge.verify.cases.hidden import MOST_OF_LONG, elements, long_case

SMALL = 1 << 14
"""Elements of the largest tensor of the cases that the campaign asks. What is larger is there for kernels, not for
PyTorch.
"""

# one worker starts the server of them all
pytestmark = pytest.mark.xdist_group("every operator")
NAMES = load([]).names()
WITHOUT_LONG = ("attention_decode", "attention_varlen", "attention_varlen_backward", "quantize_fp8")
"""Every axis of theirs has so many elements beside it, or is bound to another one, that none may be so long."""


@pytest.fixture(scope="module")
def registry():
    return load([])


def few(operator, dtype):
    """The smallest plain case, the smallest of another layout, and one of other values: special ones if it has them,
    a second plain one if it has none.

    Three, because a case costs 0.1 s of CPU in a process of its own, and there are dozens of operators.
    """
    asked = sorted(
        (case for case in operator.cases if case.dtype in (None, dtype) and elements(operator, case)),
        key=lambda case: (elements(operator, case) < 64, elements(operator, case)),
    )
    plain = [case for case in asked if case.layout == "contiguous" and case.distribution == "normal"]
    laid_out = [case for case in asked if case.layout != "contiguous"]
    values = sorted(
        (case for case in asked if case.distribution != "normal"), key=lambda c: c.distribution != "special"
    )
    return (*plain[:1], *laid_out[:1], *(values[:1] or plain[1:2]))


def small(operator):
    return tuple(case for case in operator.cases if elements(operator, case) <= SMALL)


def verdict_of(registry, implementation, dtype, cases, host):
    """Of the float64 oracle, the guards and the laws, on these cases and no others."""
    operator = registry.operator(implementation.operator)
    prepared = CaseCache(registry=registry, operator=operator, host=host, device="cpu")
    try:
        return verify(prepared, implementation, dtype, cases=cases)
    finally:
        prepared.close()


def meets_its_definition(registry, name, host):
    """What is called where nothing is verified passes a few cases in the operator's first dtype."""
    operator = registry.operator(name)
    dtype = operator.dtypes[0]
    cases = few(operator, dtype)
    verdict = verdict_of(registry, fallback(registry.implementations(name)), dtype, cases, host)
    assert isinstance(verdict, Pass), verdict
    assert [checked.case.name for checked in verdict.checked] == [case.name for case in cases], verdict.not_taken


@pytest.mark.parametrize("name", NAMES)
def test_pytorch_meets_its_definition(name, registry, host):
    """An operator whose reference, bound or laws no PyTorch program meets has a wrong definition."""
    meets_its_definition(registry, name, host)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_asked_is_three_cases_of_two_layouts(name, registry):
    """A definition with one plain case would be met by nearly anything."""
    operator = registry.operator(name)
    cases = few(operator, operator.dtypes[0])
    assert len(cases) == 3
    assert len({case.layout for case in cases}) > 1
    assert all(case.why for case in cases)


@pytest.mark.parametrize(
    ("wrong", "case"),
    [
        ("return torch.softmax(x, dim=-1) * (1 + 2.0**-10)", "one_row"),
        ("return torch.softmax(x.nan_to_num(nan=0.0), dim=-1)", "special"),
        ("return torch.softmax(x.as_strided(x.shape, (x.shape[-1], 1)), dim=-1)", "sliced_rows"),
    ],
    ids=["a thousandth too large", "NaN lost", "strides taken for row-major"],
)
def test_a_new_operator_that_is_wrong_is_refused(wrong, case, tmp_path, host):
    """The same is asked of a folder that was not here when this file was written, and it can fail."""
    planted = tmp_path / "planted"
    shutil.copytree(load([]).operator("softmax").folder, planted)
    (planted / "torch_eager.py").write_text(f'"""Wrong."""\n\nimport torch\n\n\ndef run(x):\n    {wrong}\n')
    definition = (planted / "op.py").read_text()
    (planted / "op.py").write_text(definition.replace('name="softmax"', 'name="planted"'))
    registry = load([tmp_path])
    with pytest.raises(AssertionError, match="Mismatch") as refused:
        meets_its_definition(registry, "planted", host)
    assert f"name='{case}'" in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_pytorch_passes_in_every_dtype_or_says_why_not(name, registry, host):
    """Of a baseline that says that it is inaccurate nothing but a Mismatch is excused; some are so on a GPU alone."""
    operator = registry.operator(name)
    for implementation in registry.implementations(name):
        if implementation.backend != "torch":
            continue
        dtypes = [dtype for dtype in operator.dtypes if dtype in (implementation.dtypes or operator.dtypes)]
        verdicts = [verdict_of(registry, implementation, dtype, small(operator), host) for dtype in dtypes]
        if implementation.inaccurate:
            assert all(isinstance(verdict, Pass | Mismatch) for verdict in verdicts), verdicts
        else:
            assert all(isinstance(verdict, Pass) for verdict in verdicts), verdicts


@pytest.mark.parametrize("name", NAMES)
def test_hidden_cases_of_other_values_are_asked_or_cannot_be_borne(registry, name):
    """Nothing in a definition may keep a distribution from being asked in any of its dtypes: an error there reads as
    "outside what is defined", and a kernel is asked less than its Pass says.
    """
    operator = registry.operator(name)
    with closing(CaseCache(registry=registry, operator=operator, host=None, device="cpu")) as cases:
        for dtype in operator.dtypes:
            for case in few(operator, dtype)[:1]:
                for values in ("ones", "exponents"):
                    asked = dataclasses.replace(case, name=values, distribution=values)
                    found = cases.prepare_if_defined(asked, dtype)
                    assert isinstance(found, PreparedCase) or found.reason == NOT_BORNE, (dtype, found)


@pytest.mark.parametrize("name", NAMES)
def test_an_axis_is_longer_than_a_grid_may_be(registry, name):
    """Beyond 65,535 blocks in y and z a launch fails, and rows beyond those that anybody looks at may be anything: the
    first axis that all outputs have is asked so long, wherever a definition has room for it.
    """
    operator = registry.operator(name)
    for dtype in operator.dtypes:
        own = [case for case in operator.cases if case.dtype in (None, dtype)]
        case = long_case(operator, dtype, own, random.Random(1))
        if case is None:
            assert name in WITHOUT_LONG
            continue
        axis = case.name.removeprefix("hidden_long_")
        assert all(axis in spec.shape.replace("*", " ").split() for spec in operator.outputs)
        value = case.axes[axis]
        assert (value[0] if isinstance(value, tuple) else value) >= 65_537
        assert elements(operator, case) <= MOST_OF_LONG
