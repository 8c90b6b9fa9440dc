"""What an op.py says, changed field by field: each slip is one sentence with the field's name, none is a trace, and
none is accepted in silence.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import mutated
from opforge.core.definition.operator import Case, Operator, Scalar, TensorSpec, Ties, Tolerance
from opforge.core.evidence.verdict import Mismatch
from opforge.core.language.errors import UsageError
from opforge.core.language.fields import EXAMPLES
from opforge.registry import load
from opforge.registry.call_checks import check_calls
from opforge.registry.definition_checks import check_definition, check_gradient
from opforge.registry.implementation_files import find_source
from opforge.registry.pipelines import load_pipeline
from opforge.runner import allocate, fill
from opforge.verify import consult
from opforge.verify.judging.run_case import _broken_law
from opforge.verify.oracle.aside import Aside

SHIPPED = ("layernorm_dropout", "cross_entropy", "matmul", "quantize_fp8")
MOST_CASES = 5


def routing() -> Operator:
    """The definition among the five that has indices with ties."""
    return Operator(
        name="route",
        about="the largest of each row, and where it is",
        inputs=(TensorSpec(name="x", shape="*rows experts", domain="nonzero"),),
        outputs=(
            TensorSpec(name="index", shape="*rows", dtype="int64", ties=Ties(rule="first", scores="x")),
            TensorSpec(name="largest", shape="*rows"),
        ),
        scalars=(Scalar(name="scale", default=1.0),),
        reference=lambda x, scale: (x.argmax(-1), x.amax(-1) * scale),
        flops="prod(rows) * experts",
        tolerance=Tolerance(magnitude=lambda inputs, outputs, scalars: {"largest": inputs["x"].abs().amax(-1)}),
        cases=(
            Case(name="plain", axes={"rows": (3, 4), "experts": 8}, why="a few rows"),
            Case(name="one", axes={"rows": (), "experts": 1}, why="no choice", dtype="float32"),
        ),
    )


@pytest.fixture(scope="module")
def definitions():
    registry = load()
    found = [registry.operator(name) for name in SHIPPED]
    # as many cases as make the campaign minutes long; each dtype keeps one
    return [
        *(dataclasses.replace(item, cases=tuple(mutated.small(item)[:MOST_CASES])) for item in found),
        routing(),
    ]


def judged(operator: Operator, folder, known) -> None:
    """All that opforge asks of a definition, on its way from the file to the first verdict. Raises UsageError."""
    check_definition(operator)
    check_calls(operator)
    check_gradient(operator, known)
    for name in operator.implementations:
        find_source(operator.name, folder, name)
    for case in mutated.small(operator):
        for dtype in operator.dtypes[:1]:
            if case.dtype not in (None, dtype) or not operator.takes(case, dtype):
                continue
            arena = allocate(operator, case, dtype)
            try:
                fill(arena, operator, case, case.seed or 7)
                truth = consult(operator, case, dtype, arena.tensors("input"))
                prepared = SimpleNamespace(case=case, dtype=dtype, truth=truth)
                outputs = {item.output: item.expected.to(getattr(torch, item.dtype)) for item in truth.expectations}
                if isinstance(found := _broken_law(prepared, operator, outputs, ""), Mismatch):
                    raise UsageError(f"{found.law}: {found.cause}.")
            finally:
                arena.close()


def campaign(pairs, registry):
    """How many were refused, accepted and right, and the sentences of what must not be."""
    counts, wrong = Counter(), []
    for original, mutation in pairs:
        folder = original.folder or (registry.operator("softmax").folder)
        where = f"{original.name} {mutation.noun}.{mutation.field} = {type(mutation.value).__name__}"
        try:
            operator = mutation.make()
            judged(operator, folder, registry.folders)
        except UsageError as error:
            counts["refused"] += 1
            if "\n" in str(error) or not str(error).endswith((".", "?")):
                wrong.append(f"no sentence: {where}: {error}")
        except Exception as error:
            wrong.append(f"trace: {where}: {type(error).__name__}: {error}")
        else:
            if objection := mutated.objection(mutation, operator, folder):
                wrong.append(f"silent: {where}: {mutated_value(mutation.value)}: {objection}")
            else:
                counts["right"] += 1
    return counts, wrong


def mutated_value(value) -> str:
    try:
        return repr(value)[:100]
    except RuntimeError:
        return "odd"


def test_some_mutated_definitions_are_refused_in_a_sentence_or_right(definitions):
    counts, wrong = campaign(mutated.drawn(300, 11, definitions), load())
    assert not wrong
    assert counts["right"] > 10 and counts["refused"] > 200


@pytest.mark.parametrize(
    "most", [pytest.param(7000, marks=pytest.mark.campaign), pytest.param(1 << 30, marks=pytest.mark.slow)]
)
def test_every_mutated_definition_is_refused_in_a_sentence_or_right(definitions, most):
    """No trace, nothing silent, among all values of all types in each field of each noun of five definitions."""
    counts, wrong = campaign(mutated.drawn(most, 1, definitions), load())
    print(f"{counts.total()} mutations, {dict(counts)}")
    assert not wrong, (len(wrong), wrong[:20])
    assert counts.total() >= 5000


def test_every_field_of_a_definition_is_mutated():
    """Six fields of tensors that came later were in no mutation."""
    from opforge.core.definition import operator, pipeline

    nouns = {**vars(operator), **vars(pipeline)}
    written = {**mutated.WRITTEN, **mutated.PIPELINE_FIELDS}
    for noun in EXAMPLES:
        fields = {item.name for item in dataclasses.fields(nouns[noun]) if item.init}
        # where an operator was found is not for its file to say
        assert fields - {"folder"} == set(written[noun]), noun


@pytest.mark.parametrize("most", [40, pytest.param(1500, marks=pytest.mark.campaign)])
def test_mutated_definitions_of_lists_offsets_and_what_is_overwritten_are_told_in_a_sentence(most):
    """The examples' own, whose references take None and lists; what is right among them is not asked here."""
    import random

    registry = load([Path(__file__).parent.parent / "examples" / "operators"])
    names = ("adamw_list", "adamw_step", "bag_sum", "concat_rows", "optional_affine", "top2_gating", "rotate_heads")
    every = [(name, mutation) for name in names for mutation in mutated.mutations(registry.operator(name))]
    wrong = []
    for name, mutation in random.Random(5).sample(every, most):
        try:
            operator = mutation.make()
            check_definition(operator)
            check_calls(operator)
            check_gradient(operator, registry.folders)
        except UsageError as error:
            if "\n" in str(error) or not str(error).endswith((".", "?")):
                wrong.append(f"{name} {mutation.noun}.{mutation.field}: {error}")
        except Exception as error:
            wrong.append(f"trace: {name} {mutation.noun}.{mutation.field}: {type(error).__name__}: {error}")
    assert not wrong, wrong[:20]


def test_every_mutated_pipeline_is_refused_in_a_sentence_or_made():
    registry = load()
    pipeline = load_pipeline(registry, "mlp")
    wrong, made = [], Counter()
    for where, make in mutated.pipeline_mutations(pipeline, registry.operator("softmax")):
        try:
            make()
            made["made"] += 1
        except UsageError as error:
            made["refused"] += 1
            if "\n" in str(error) or not str(error).endswith((".", "?")):
                wrong.append(f"{where}: {error}")
        except Exception as error:
            wrong.append(f"trace: {where}: {type(error).__name__}: {error}")
    assert not wrong, wrong[:20]
    assert made["made"] > 10 and made["refused"] > 1000


@pytest.mark.parametrize("noun", sorted(EXAMPLES))
def test_every_field_has_an_example_that_is_right(noun):
    """An example that would itself be refused sends a user in circles."""
    from pathlib import Path

    from opforge.core.definition import operator, pipeline

    nouns = {**vars(operator), **vars(pipeline)}
    kind = nouns[noun]
    assert [item.name for item in dataclasses.fields(kind) if item.init] == list(EXAMPLES[noun])
    names = {**nouns, "Path": Path}
    names |= dict.fromkeys(
        ("reference", "magnitude", "rounded", "errors", "rows_sum_to_one", "made_before", "lower"), lambda *given: None
    )
    values = {name: eval(text, names) for name, text in EXAMPLES[noun].items()}
    if noun != "Operator":
        assert kind(**values)
    else:
        base = routing()
        for name in ("about", "flops", "dtypes", "source", "folder", "unit", "implementations", "tolerance"):
            assert getattr(dataclasses.replace(base, **{name: values[name]}), name) == values[name]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Case(name="c", axes=lambda: 0, why="w"),
            r"axes of Case 'c' must be a dict of names to whole numbers or tuples of whole numbers, not <function.* "
            r'\(function\); write for example axes=\{"lead": \(7,\), "cols": 129\}\.',
        ),
        (lambda: Case(name=None, axes={}, why="w"), r"name of a Case must be a text, not None; .* name=\"odd_tail\"\."),
        (lambda: Case(name="c", axes={}, why=-1), r"why of Case 'c' must be a text, not -1 \(int\); .*why="),
        (
            lambda: dataclasses.replace(routing(), tolerance=None),
            r"tolerance of Operator 'route' must be a Tolerance, not None; .*tolerance=Tolerance\(",
        ),
        (lambda: Tolerance(factor=math.inf), r"factor of a Tolerance must be finite and not below 0, not inf"),
        (
            lambda: dataclasses.replace(routing(), inputs=routing().inputs[0]),
            r"inputs of Operator 'route' must be a tuple of TensorSpecs, not TensorSpec\(.*\(TensorSpec\(.*,\)\.",
        ),
        (lambda: Case(name="c", axes={"n": mutated.Odd()}, why="w"), "a value whose repr raises RuntimeError"),
    ],
)
def test_a_refusal_names_the_field_what_it_got_and_an_example(make, words):
    with pytest.raises(UsageError, match=words):
        make()


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (
            (),
            r"magnitude of route returns \(\) \(tuple\), no dict of outputs. Return for example \{'index': x.abs\(\)\}",
        ),
        ({"largest": "x"}, r"returns 'x' \(str\) for largest, not a tensor of its shape \(3, 4\)"),
        ((torch.ones(3), 1), "no dict of outputs"),
        ({"largest": torch.ones(5)}, r"a Tensor of shape \(5,\) for largest"),
        ({"y": torch.ones(1)}, r"speaks of 'y', which is no output \(index, largest\)"),
    ],
)
def test_what_a_tolerance_returns_is_held_against_the_outputs(returned, words):
    """Each of these was an AttributeError in opforge's own code."""
    operator = dataclasses.replace(routing(), tolerance=Tolerance(magnitude=lambda *given: returned))
    with pytest.raises(UsageError, match=words):
        consult(operator, operator.cases[0], "float32", {"x": torch.ones(3, 4, 8)})


def test_a_law_that_its_own_reference_breaks_is_no_kernels_fault():
    """Every kernel was called wrong, with the law's sentence."""
    from opforge.core.definition.operator import Law

    law = Law(name="never", about="never holds", holds=lambda inputs, outputs, scalars: "it does not hold")
    operator = dataclasses.replace(routing(), laws=(law,))
    truth = consult(operator, operator.cases[0], "float32", {"x": torch.rand(3, 4, 8)})
    prepared = SimpleNamespace(case=operator.cases[0], dtype="float32", truth=truth)
    outputs = {item.output: item.expected for item in truth.expectations}
    with pytest.raises(UsageError, match="law never of route does not hold for its own reference in case plain"):
        _broken_law(prepared, operator, outputs, "")


def test_large_inputs_wait_in_the_hosts_memory_and_come_back_as_they_were():
    """Three truths of one gradient, and inputs of 8.6 GB each, filled a GPU that its kernels were to be judged on."""
    given = {"x": torch.rand(3, 4, dtype=torch.float64), "at": torch.arange(5)}
    waiting = Aside(given)
    assert list(waiting) == ["x", "at"] and len(waiting) == 2
    assert all(
        torch.equal(waiting[name], value) and waiting[name].device == value.device for name, value in given.items()
    )
