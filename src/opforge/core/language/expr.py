"""A small, safe expression language for shapes, costs, constraints and limits.

Expressions are written as text beside the kernel (`"cols <= 16384"`, `"2*m*n*k"`), so they can be listed, recorded
and evaluated without importing the kernel's toolchain. Python's syntax, a whitelist of nodes, no attribute access.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from opforge.core.language.errors import UsageError


def _prod(value: int | tuple[int, ...]) -> int:
    return math.prod(value) if isinstance(value, tuple) else value


def _sum(value: int | tuple[int, ...]) -> int:
    return sum(value) if isinstance(value, tuple) else value


def _last(value: int | tuple[int, ...]) -> int:
    """The last of several axes; 1 where there is none."""
    return (value[-1] if value else 1) if isinstance(value, tuple) else value


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _next_pow2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "prod": _prod,
        "sum": _sum,
        "last": _last,
        "cdiv": _cdiv,
        "next_pow2": _next_pow2,
        "min": min,
        "max": max,
        "abs": abs,
        "len": len,
        "sqrt": math.sqrt,
        "log2": math.log2,
    }
)

_OPERATIONS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise UsageError(
            f"Expression {text!r:.200} does not parse: {getattr(error, 'msg', error)}. Write it as Python, over axis "
            "names."
        ) from error


def worth(whose: str, text: str, names: Mapping[str, Any]) -> Any:
    """As `evaluate`; the UsageError begins with whose expression it is."""
    try:
        return evaluate(text, names)
    except UsageError as error:
        raise UsageError(f"{whose}: {error}") from error


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The value of `text` over `names` (axes, dtype, config parameters).

    >>> evaluate("2*prod(lead)*cols", {"lead": (4, 8), "cols": 10})
    640

    Raises UsageError for an unknown name, a construct outside the language, or no value (a division by zero).
    """

    def walk(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name in names:
                    return names[name]
                near = get_close_matches(name, names, n=1)
                raise UsageError(
                    f"Expression {text!r} uses {name!r}, which stands for nothing here."
                    f"{f' Did you mean {near[0]!r}?' if near else ''} Known here: {', '.join(sorted(names))}."
                    f"{'' if near else ' Write it with these.'}"
                )
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return tuple(walk(element) for element in elements)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
                return _OPERATIONS[type(op)](walk(left), walk(right))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATIONS:
                return _OPERATIONS[type(op)](walk(operand))
            case ast.BoolOp(op=op, values=values):
                result: Any = None
                for value in values:
                    result = walk(value)
                    if bool(result) == isinstance(op, ast.Or):
                        return result
                return result
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return walk(body) if walk(test) else walk(orelse)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                previous = walk(left)
                for comparison, comparator in zip(ops, comparators, strict=True):
                    if type(comparison) not in _OPERATIONS:
                        break
                    current = walk(comparator)
                    if not _OPERATIONS[type(comparison)](previous, current):
                        return False
                    previous = current
                else:
                    return True
            case ast.Subscript(value=value, slice=index):
                return walk(value)[walk(index)]
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                return FUNCTIONS[name](*(walk(argument) for argument in args))
            case _:
                pass
        strange = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ast.unparse(node)
        raise UsageError(
            f"Expression {text!r:.200} is not understood: its language has no {strange!r:.60}. Write it with names, "
            f"numbers, + - * / // %, comparisons, and, or, not, if else, and {', '.join(sorted(FUNCTIONS))}."
        )

    if not isinstance(text, str):
        raise UsageError(f"Expression {text!r:.200} is no text. Write it as Python in quotes, over axis names.")
    try:
        return walk(_parse(text))
    except (ArithmeticError, AttributeError, TypeError, ValueError, LookupError, MemoryError, RecursionError) as error:
        raise UsageError(
            f"Expression {text!r:.200} has no value here: {type(error).__name__}: {error}. Known: "
            f"{', '.join(sorted(names))}."
        ) from error
