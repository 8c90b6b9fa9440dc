"""Fields of nouns, checked by their annotations: what a user writes in an op.py is looked at when the noun is made.

`Case(axes=lambda: 0, …)` is refused with the field's name, what it got, and an example of what belongs there.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from opforge.core.language.errors import UsageError

EXAMPLES: Mapping[str, Mapping[str, str]] = {
    "Ties": {"rule": '"first"', "scores": '"x"', "near": "4.0"},
    "TensorSpec": {
        "name": '"x"',
        "shape": '"*lead cols"',
        "dtype": '"T"',
        "about": '"one row for each token"',
        "below": '"classes"',
        "least": '"1"',
        "distinct": "True",
        "sometimes": '("ignore_index",)',
        "domain": '"positive"',
        "ties": 'Ties(rule="first", scores="x")',
        "rounded_to": '"int4"',
        "overwrites": '"x"',
        "optional": "True",
        "offsets": '"tokens"',
        "many": '"sizes"',
    },
    "Scalar": {"name": '"eps"', "default": "1e-5", "choices": '("none", "tanh")', "about": '"added to the variance"'},
    "Constraint": {"name": '"even"', "expression": '"cols % 2 == 0"', "about": '"columns come in pairs"'},
    "Law": {"name": '"rows_sum_to_one"', "about": '"each row sums to 1"', "holds": "rows_sum_to_one"},
    "Tolerance": {
        "factor": "6.0",
        "length": '"cols"',
        "magnitude": "magnitude",
        "roundings": "1.0",
        "rounded": "rounded",
        "errors": "errors",
        "shared": '"cols"',
        "rounds_factors": "True",
        "whole_range": "True",
        "about": '"a tree of additions"',
    },
    "Case": {
        "name": '"odd_tail"',
        "axes": '{"lead": (7,), "cols": 129}',
        "why": '"one past a block of 128"',
        "distribution": '"normal"',
        "layout": '"contiguous"',
        "dtype": '"float16"',
        "scalars": '{"eps": 1e-5}',
        "seed": "7",
        "pattern": "0",
    },
    "Workload": {
        "name": '"mlp_llama3_8b"',
        "axes": '{"lead": (4096,), "cols": 14336}',
        "source": '"Llama 3 8B: MLP, 4096 tokens"',
        "scale": '"gpu"',
        "scalars": '{"eps": 1e-5}',
        "layout": '"contiguous"',
    },
    "Operator": {
        "name": '"softmax"',
        "about": '"softmax over the last axis"',
        "inputs": '(TensorSpec(name="x", shape="*lead cols"),)',
        "outputs": '(TensorSpec(name="y", shape="*lead cols"),)',
        "reference": "reference",
        "flops": '"5 * prod(lead) * cols"',
        "scalars": '(Scalar(name="eps", default=1e-5),)',
        "dtypes": '("float32", "float16")',
        "constraints": '(Constraint(name="even", expression="cols % 2 == 0", about="columns come in pairs"),)',
        "derived": '{"blocks": "cdiv(cols, 128)"}',
        "bytes_read": '"2 * prod(lead) * cols * itemsize"',
        "bytes_written": '"prod(lead) * cols * itemsize"',
        "bytes_saved": '"2 * prod(lead) * cols * itemsize"',
        "tolerance": 'Tolerance(length="cols")',
        "laws": '(Law(name="rows_sum_to_one", about="each row sums to 1", holds=rows_sum_to_one),)',
        "cases": '(Case(name="odd_tail", axes={"lead": (7,), "cols": 129}, why="one past a block of 128"),)',
        "workloads": '(Workload(name="mlp", axes={"lead": (4096,), "cols": 14336}, source="Llama 3 8B: MLP"),)',
        "implementations": '("triton_rows", "torch_eager")',
        "differentiable": '("x",)',
        "source": '"Ba, Kiros and Hinton, arXiv:1607.06450"',
        "folder": 'Path("my_ops/softmax")',
        "unit": '"vector"',
        "compute_dtype": '"tfloat32"',
        "gradient": '"softmax_backward"',
        "further_gradients": '("attention_sinks_backward",)',
        "carried": '("mask",)',
        "follows": "made_before",
        "like": '(Like(function="torch.nn.functional.softmax", lower=lower),)',
        "grid": '(Workload(name="odd", axes={"lead": (4095,), "cols": 1023}, source="shape class: odd"),)',
        "used": '("language models",)',
    },
    "Like": {
        "function": '"torch.nn.functional.softmax"',
        "lower": "lower",
        "autocast": "False",
        "only_kernels": "True",
        "name": '"swiglu"',
    },
    "Stage": {
        "name": '"wide"',
        "operator": '"linear"',
        "axes": '{"rows": ("rows",), "n": "hidden", "k": "width"}',
        "inputs": '{"x": "normed"}',
        "scalars": '{"approximate": "tanh"}',
    },
    "PipelineCase": {"name": '"odd"', "axes": '{"rows": 7, "width": 65}', "why": '"one past blocks at every stage"'},
    "Pipeline": {
        "name": '"mlp"',
        "about": '"linear, gelu, linear"',
        "stages": '(Stage(name="h", operator="silu", axes={"shape": ("n",)}), '
        'Stage(name="y", operator="relu", axes={"shape": ("n",)}, inputs={"x": "h"}))',
        "cases": '(PipelineCase(name="odd", axes={"n": 67}, why="one past a block"),)',
        "dtypes": '("float32", "float16")',
    },
}
"""For each field of each noun, what may stand there."""


def check_fields(noun: Any) -> None:
    """Raises UsageError for the first field whose value is not of the type that the noun declares. A list where a
    tuple is declared is kept as a tuple.
    """
    for name, fits, listed in _declared(_class(noun)):
        value = getattr(noun, name)
        if listed and type(value) is list:
            value = tuple(value)
            object.__setattr__(noun, name, value)  # frozen, and still being made
        if not fits(value):
            raise wrong_field(noun, name, f"must be {_wanted(_class(noun), name)}")


def wrong_field(noun: Any, name: str, must: str) -> UsageError:
    """The refusal of one field's value: whose field it is, what it got, an example."""
    kind, value = type(noun).__name__, getattr(noun, name)
    given = getattr(noun, "name", None)
    whose = f"{kind} {given!r:.60}" if name != "name" and isinstance(given, str) and given else f"a {kind}"
    example = EXAMPLES.get(kind, {}).get(name)
    says = f"; write for example {name}={example}" if example else ""
    return UsageError(f"{name} of {whose} {must}, not {shown(value)}{says}.")


def shown(value: Any) -> str:
    """A value and its type, in a few words. What a guest's own __repr__ raises is named and not let through."""
    kind = type(value).__name__
    try:
        text = " ".join(repr(value).split())[:60]
    except Exception as error:  # noqa: BLE001  # a guest's code
        text = f"a value whose repr raises {type(error).__name__}"
    return text if value is None else f"{text} ({kind})"


@functools.cache
def checker(hint: Any) -> Callable[[Any], bool]:
    """A function that says whether a value may stand where `hint` is declared. True is no number."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin in (typing.Union, types.UnionType):
        options = [checker(argument) for argument in arguments]
        return lambda value: any(option(value) for option in options)
    if origin is tuple:
        items = [checker(argument) for argument in arguments if argument is not Ellipsis]
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            each = items[0]
            if arguments[0] is float:
                # samples, by the thousand
                return lambda value: (
                    isinstance(value, tuple) and (set(map(type, value)) <= {float, int} or all(map(each, value)))
                )
            return lambda value: isinstance(value, tuple) and all(map(each, value))
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(items)
            and all(fits(item) for fits, item in zip(items, value, strict=True))
        )
    if origin is Mapping:
        key, item = checker(arguments[0]), checker(arguments[1])
        return lambda value: (
            isinstance(value, Mapping) and all(map(key, value)) and all(item(held) for held in value.values())
        )
    if origin is not None:
        return lambda value: isinstance(value, origin)
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    if hint is None or hint is type(None):
        return lambda value: value is None
    return lambda value: isinstance(value, hint)


@functools.cache
def hints(kind: Any) -> Mapping[str, Any]:
    """The annotations of a noun's fields, by name."""
    return typing.get_type_hints(kind)


@functools.cache
def _declared(kind: Any) -> tuple[tuple[str, Callable[[Any], bool], bool], ...]:
    """Each field: its name, what says whether a value fits, and whether a list may stand for a tuple there."""
    found = hints(kind)
    return tuple(
        (item.name, checker(found[item.name]), "tuple[" in str(item.type)) for item in dataclasses.fields(kind)
    )


@functools.cache
def _wanted(kind: Any, name: str) -> str:
    return in_words(hints(kind)[name])


def in_words(hint: Any, several: bool = False) -> str:
    """A type, or several things of it, as a reader says it.

    >>> in_words(tuple[str, ...])
    'a tuple of texts'
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = dict.fromkeys(in_words(argument, several) for argument in arguments)
        # whoever may give any number may give a whole one
        if ("numbers" if several else "a number") in options:
            options.pop("whole numbers" if several else "a whole number", None)
        return " or ".join(options)
    if origin is tuple:
        return f"{'tuples' if several else 'a tuple'} of {in_words(arguments[0], True)}"
    if origin is Mapping:
        return f"{'dicts' if several else 'a dict'} of names to {in_words(arguments[1], True)}"
    one, many = _WORDS.get(hint, _WORDS.get(origin, (f"a {_name(hint)}", f"{_name(hint)}s")))
    return many if several else one


_WORDS: Mapping[Any, tuple[str, str]] = {
    str: ("a text", "texts"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "True or False"),
    type(None): ("None", "None"),
    Path: ("a path", "paths"),
    typing.get_origin(Callable[..., Any]): ("a function", "functions"),
}


def _name(hint: Any) -> str:
    return str(getattr(hint, "__name__", hint))


def _class(noun: Any) -> Any:
    return type(noun)
