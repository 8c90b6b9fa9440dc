"""BackendBench's suites: operators of ATen with the arguments of each call as text, and kernels in folders by name.

    Operator: aten.add.Tensor
    cnt: 156, ((T([1, 512, 768], f16), T([1, 512, 768], f16)), {})

Arguments are parsed, never evaluated. A call keeps the text that it was read from: BackendBench's ids are hashes of it.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opforge.core.language.errors import UsageError
from opforge.forge.suites.formats.documents import text_of

DTYPES = {
    "bf16": "bfloat16", "f64": "float64", "f32": "float32", "f16": "float16", "c32": "complex32", "c64": "complex64",
    "c128": "complex128", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "b8": "bool", "u8": "uint8",
}  # fmt: skip
_OPERATOR = re.compile(r"Operator: ([A-Za-z_][\w.]*)")
_CALL = re.compile(r"cnt: (0|[1-9]\d*), (.*)", re.DOTALL)
_QUOTED_DEVICE = re.compile(r"""["']torch\.device\((.*?)\)["']""")
_NAMES = re.compile(r"(torch|th)(\.\w+)+|torch\.device\('[\w:]+'\)")


@dataclass(frozen=True, kw_only=True)
class TensorArgument:
    """T([2, 3], f16) or, with strides in elements, T([2, 3], f16, [1, 2])."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Symbol:
    """A name of torch: torch.float16, torch.strided, torch.device('cuda')."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call as models make it, `count` times; 0: a made-up one. `text` is its arguments as they were written."""

    count: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    text: str = ""

    def written(self) -> str:
        """Its arguments as text."""
        return self.text or arguments_text(self.args, self.kwargs)

    def uuid(self, operator: str) -> str:
        """BackendBench's id of the call."""
        return hashlib.sha256(self.written().encode() + operator.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class OperatorCalls:
    """An operator and its calls; a line that is neither is kept as text."""

    name: str
    entries: tuple[Call | str, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(one for one in self.entries if isinstance(one, Call))


@dataclass(frozen=True, kw_only=True)
class CallFile:
    """A suite's file: operators in its order, and the lines before the first of them."""

    operators: tuple[OperatorCalls, ...]
    before: tuple[str, ...] = ()
    ended: bool = True

    def written(self) -> str:
        lines = list(self.before)
        for one in self.operators:
            lines.append(f"Operator: {one.name}")
            for entry in one.entries:
                lines.append(entry if isinstance(entry, str) else f"cnt: {entry.count}, {entry.written()}")
        return "\n".join(lines) + ("\n" if self.ended and lines else "")


def read_calls(path: Path) -> CallFile:
    """A suite's file. Raises UsageError with the line, the column and what belongs there."""
    if path.suffix == ".parquet":
        raise UsageError(
            f"{path} is a table. Turn it into text with BackendBench: python -m "
            "BackendBench.scripts.parquet_trace_converter --mode parquet-to-trace"
        )
    text_of(path)
    # line ends as they are
    with path.open(encoding="utf-8", newline="") as file:
        return calls_in(file.read(), str(path))


def calls_in(text: str, where: str) -> CallFile:
    """A suite's text. Raises UsageError with the line, the column and what belongs there."""
    lines = text.split("\n")
    ended = lines[-1] == ""
    before: list[str] = []
    found: list[tuple[str, list[Call | str]]] = []
    for number, line in enumerate(lines[:-1] if ended else lines, start=1):
        place = f"{where}:{number}"
        if line.startswith("Operator"):
            match = _OPERATOR.fullmatch(line)
            if match is None:
                raise UsageError(f"{place}: {line!r:.60} names no operator. Write: Operator: aten.add.Tensor")
            found.append((match[1], []))
        elif line.startswith("cnt"):
            match = _CALL.fullmatch(line)
            if match is None:
                raise UsageError(f"{place}: {line!r:.60} is no call. Write: cnt: 3, ((T([2, 3], f16),), {{}})")
            if not found:
                raise UsageError(f"{place}: a call before any operator. Write above it: Operator: aten.add.Tensor")
            args, kwargs = arguments_in(match[2], place, len(line) - len(match[2]))
            found[-1][1].append(Call(count=int(match[1]), args=args, kwargs=kwargs, text=match[2]))
        else:
            (found[-1][1] if found else before).append(line)
    operators = tuple(OperatorCalls(name=name, entries=tuple(entries)) for name, entries in found)
    return CallFile(operators=operators, before=tuple(before), ended=ended)


def arguments_in(text: str, where: str, column: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position and by name. Raises UsageError; `column` is where the text begins in its line."""
    plain = text.strip()
    if len(plain) > 1 and plain[0] == plain[-1] and plain[0] in "\"'":
        plain = plain[1:-1]
    plain = _QUOTED_DEVICE.sub(r"torch.device(\1)", plain)
    try:
        tree = ast.parse(plain, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        at = column + (getattr(error, "offset", None) or 1)
        raise UsageError(
            f"{where}, column {at}: no arguments: {getattr(error, 'msg', type(error).__name__)}. Write: "
            "((T([2, 3], f16), 1.0), {'alpha': 2})"
        ) from error

    def wrong(node: ast.expr, expected: str) -> UsageError:
        return UsageError(
            f"{where}, column {column + node.col_offset + 1}: {ast.unparse(node)!r:.60} is not {expected}. Mend it."
        )

    def sizes(node: ast.expr) -> tuple[int, ...]:
        found = value(node)
        if not isinstance(found, list | tuple) or not all(type(one) is int for one in found):
            raise wrong(node, "a list of whole numbers")
        return tuple(found)

    def tensor(node: ast.Call) -> TensorArgument:
        if not 2 <= len(node.args) <= 3 or node.keywords:
            raise wrong(node, "a tensor: T([2, 3], f16) or T([2, 3], f16, [1, 2])")
        shape = sizes(node.args[0])
        kind = node.args[1]
        name = kind.id if isinstance(kind, ast.Name) else kind.value if isinstance(kind, ast.Constant) else None
        if not isinstance(name, str) or name not in DTYPES:
            raise wrong(kind, f"a dtype: {', '.join(DTYPES)}")
        if any(size < 0 for size in shape):
            raise wrong(node.args[0], "a shape of sizes from 0 on")
        stride = sizes(node.args[2]) if len(node.args) == 3 else None
        if stride is not None and len(stride) != len(shape):
            raise wrong(node.args[2], "a stride for each dimension")
        return TensorArgument(shape=shape, dtype=DTYPES[name], stride=stride)

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=held) if held is not Ellipsis and not isinstance(held, bytes):
                return held
            case ast.Tuple(elts=parts):
                return tuple(map(value, parts))
            case ast.List(elts=parts):
                return list(map(value, parts))
            case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
                names = [key.value for key in keys if isinstance(key, ast.Constant)]
                return {key: value(one) for key, one in zip(names, values, strict=True)}
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                held = value(operand)
                if isinstance(held, int | float) and not isinstance(held, bool):
                    return -held
            case ast.Name(id="inf"):
                return math.inf
            case ast.Name(id=name) if name in DTYPES:
                return Symbol(text=f"torch.{DTYPES[name]}")
            case ast.Call(func=ast.Name(id="T")):
                return tensor(node)
            case ast.Attribute() | ast.Call() if _NAMES.fullmatch(ast.unparse(node)):
                return Symbol(text=ast.unparse(node))
        raise wrong(node, "a tensor T(…), a number, text, a name of torch, or a list of those")

    if not (isinstance(tree, ast.Tuple) and len(tree.elts) == 2):
        raise wrong(tree, "a pair of arguments by position and by name: ((T([2, 3], f16),), {})")
    args, kwargs = value(tree.elts[0]), value(tree.elts[1])
    if not isinstance(args, tuple):
        raise wrong(tree.elts[0], "a tuple of arguments: (T([2, 3], f16),)")
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise wrong(tree.elts[1], "arguments by name: {'alpha': 2}")
    return args, kwargs


def arguments_text(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Arguments as BackendBench writes them.

    >>> arguments_text((TensorArgument(shape=(2, 3), dtype="float16"), 1.0), {"alpha": 2})
    "((T([2, 3], f16), 1.0,), {'alpha': 2})"
    """
    parts = ", ".join(map(_value_text, args))
    named = ", ".join(f"'{key}': {_value_text(one)}" for key, one in kwargs.items())
    return f"({f'({parts},)' if args else '()'}, {{{named}}})"


def _value_text(value: Any) -> str:
    match value:
        case TensorArgument():
            short = next(key for key, name in DTYPES.items() if name == value.dtype)
            stride = f", {list(value.stride)}" if value.stride is not None else ""
            return f"T({list(value.shape)}, {short}{stride})"
        case Symbol():
            return value.text
        case list():
            return f"[{', '.join(map(_value_text, value))}]"
        case tuple():
            return f"({', '.join(map(_value_text, value))}{',' if len(value) == 1 else ''})"
        case dict():
            return f"{{{', '.join(f'{key!r}: {_value_text(one)}' for key, one in value.items())}}}"
    return repr(value)


def folder_of(operator: str) -> str:
    """The folder of an operator's kernels.

    >>> folder_of("add.Tensor")
    'add__Tensor'
    """
    return operator.removeprefix("aten.").replace(".", "__")


def operator_of(folder: str) -> str:
    """The operator of a folder; underscores of the name itself stay: from the right, each two are a dot.

    >>> operator_of("add___Tensor")
    'add_.Tensor'
    """
    return ".".join(part[::-1] for part in reversed(folder[::-1].split("__")))


def kernel_files(root: Path) -> dict[str, Path]:
    """The file that BackendBench takes for each operator of a folder of kernels: the first implementation by name."""
    found: dict[str, Path] = {}
    for folder in sorted(one for one in root.iterdir() if one.is_dir()):
        files = sorted(folder.glob(f"{folder.name}_implementation*.py"))
        if files:
            found[operator_of(folder.name)] = files[0]
    return found


def kernel_function(operator: str) -> str:
    """The function that such a file must define."""
    return f"{folder_of(operator)}_kernel_impl"
