"""What an implementation says of itself, held against the operator: each slip is named where it stands, and not met as
a kernel that is never tried.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from opforge.core.definition.compiler_options import refused, refused_definition, refused_text
from opforge.core.definition.device import BOUNDS
from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import Operator
from opforge.core.language.errors import UsageError
from opforge.core.language.expr import FUNCTIONS, evaluate


def get_close_matches(word: str, known: Iterable[str], n: int = 1, cutoff: float = 0.6) -> list[str]:
    """difflib's, imported when a name is strange: `opforge list` answers at once."""
    import difflib

    return difflib.get_close_matches(word, list(known), n=n, cutoff=cutoff)


def line_of(source: Path, key: str, item: str = "") -> str:
    """`FILE:LINE` where a statement, or an item of it, is made; the file alone where it is taken from shared code."""
    lines = source.read_text(encoding="utf-8").splitlines()
    begins = next(
        (n for n, text in enumerate(lines) if re.match(rf"\s*(import .*|from .*)?\[?{key}\b", text, re.IGNORECASE)),
        None,
    )
    if begins is None:
        begins = next((n for n, text in enumerate(lines) if re.search(rf"\b{key}\b", text)), None)
    if begins is None:
        return str(source)
    place = next(
        (n for n in range(begins, len(lines)) if item and re.search(rf"\b{re.escape(item)}\b", lines[n])), begins
    )
    return f"{source}:{place + 1}"


def misspelt(name: str, known: Mapping[str, Any]) -> str | None:
    """The statement that a constant in capitals was probably meant to be: SPACES is SPACE. None for one that is far
    from all, or is one.
    """
    if name in known or not name.isupper():
        return None
    near = get_close_matches(name, known, n=1, cutoff=0.85)
    return near[0] if near else None


def check_conditions(source: Path, key: str, conditions: Mapping[Any, Any]) -> None:
    """Raises UsageError unless LIMITS or SUPPORTS are named conditions that parse."""
    for name, condition in conditions.items():
        if not isinstance(name, str) or not isinstance(condition, str):
            raise UsageError(
                f"{line_of(source, key, str(name))}: {key} {name!r} is {condition!r:.80}, no condition. Write a name "
                f'and an expression in quotes: {{"fits": "cols <= 1024"}}.'
            )
        try:
            ast.parse(condition, mode="eval")
        except (SyntaxError, ValueError) as error:
            raise UsageError(
                f"{line_of(source, key, name)}: {key} {name!r} = {condition!r:.120} does not parse: "
                f"{getattr(error, 'msg', error)}. Write it as Python, over axes."
            ) from error


def check_space(source: Path, space: Mapping[str, tuple[Any, ...]], default: Mapping[str, Any]) -> None:
    """Raises UsageError where SPACE and DEFAULT do not speak of the same parameters and values."""
    for name, values in space.items():
        if not values:
            raise UsageError(
                f"{line_of(source, 'SPACE', name)}: SPACE {name} has no value. List what it may be, or take it out."
            )
        if name not in default:
            raise UsageError(
                f"{line_of(source, 'DEFAULT')}: DEFAULT has no {name}, which SPACE lets vary. Add it: one of {values}."
            )
    for name, value in default.items():
        if name in space and value not in space[name]:
            raise UsageError(
                f"{line_of(source, 'DEFAULT', name)}: DEFAULT {name} = {value!r} is not in its SPACE {space[name]}. "
                "Add it there."
            )
        if space and name not in space:
            near = get_close_matches(name, space, n=1)
            hint = (
                f"Did you mean {near[0]!r}?"
                if near
                else f"Add it to SPACE, with {value!r} alone if nothing else is worth trying."
            )
            raise UsageError(f"{line_of(source, 'DEFAULT', name)}: DEFAULT has {name}, and SPACE has not. {hint}")


def check_options(source: Path, options: tuple[Any, ...]) -> None:
    """Raises UsageError for an option that a file may not give its compiler."""
    if why := refused(options):
        raise UsageError(f"{line_of(source, 'FLAGS')}: {why}.")


def check_native(source: Path, text: str, configs: Mapping[str, Iterable[Any]]) -> None:
    """Raises UsageError where a C++ or CUDA file reads what its hash cannot cover, or a config's value is more than a
    macro's.
    """
    line, why = refused_text(text)
    if why:
        raise UsageError(f"{source}:{line}: {why}.")
    for name, values in configs.items():
        for value in values:
            if why := refused_definition(name, value):
                raise UsageError(f"{line_of(source, 'SPACE', name)}: {why}.")


MOST_TRIED = 10_000
"""Points of a space at which a condition is asked whether it holds anywhere."""


def check_default(
    source: Path, default: Mapping[str, Any], space: Mapping[str, tuple[Any, ...]], limits: Mapping[str, str]
) -> None:
    """Raises UsageError where the DEFAULT is outside of LIMITS that other points keep, as far as these speak of nothing
    but tunables. Where no point keeps them, a search says so.
    """
    for name, condition in limits.items():
        used = {node.id for node in ast.walk(ast.parse(condition, mode="eval")) if isinstance(node, ast.Name)}
        if used - set(FUNCTIONS) <= set(default) and not evaluate(condition, default):
            names = sorted(used & set(default))
            tried = itertools.islice(itertools.product(*(space.get(key, (default[key],)) for key in names)), MOST_TRIED)
            if not any(evaluate(condition, dict(zip(names, point, strict=True))) for point in tried):
                continue
            values = ", ".join(f"{key}={default[key]!r}" for key in sorted(used & set(default)))
            raise UsageError(
                f"{line_of(source, 'LIMITS', name)}: LIMITS {name!r} ({condition}) leaves out the DEFAULT itself "
                f"({values}). Change one of them."
            )


def check_names(operator: Operator, implementation: Implementation) -> None:
    """Raises UsageError for a condition over an axis or a parameter that the operator does not have."""
    parameters = (*operator.scalars, *operator.presence)
    call = {*operator.axes, *(scalar.name for scalar in parameters), "dtype", "itemsize"}
    config = {*implementation.space, *implementation.default.as_dict(), *BOUNDS}
    for key, conditions, known in (
        ("SUPPORTS", implementation.supports, call),
        ("LIMITS", implementation.limits, call | config),
    ):
        for name, condition in conditions.items():
            used = {node.id for node in ast.walk(ast.parse(condition, mode="eval")) if isinstance(node, ast.Name)}
            for strange in sorted(used - known - set(FUNCTIONS)):
                near = get_close_matches(strange, known, n=1)
                hint = f"Did you mean {near[0]!r}? " if near else "Write it with what there is. "
                where = line_of(implementation.source, key, strange)
                raise UsageError(
                    f"{where}: {key} {name!r} speaks of {strange!r}, which {operator.name} has not. {hint}Known "
                    f"here: {', '.join(sorted(known))}."
                )
