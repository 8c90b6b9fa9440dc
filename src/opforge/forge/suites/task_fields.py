"""What a foreign task's PyTorch computes, traced on small sizes: of a reference's `run`, of an operator of ATen.

Called in a process of its own (forge.read.apart).
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from opforge.core.language.errors import UsageError
from opforge.forge.program.families import WAY_OUT
from opforge.forge.read.traced import fields_from
from opforge.forge.suites.formats.call_lines import TensorArgument, arguments_in

MOST = 1 << 24
"""Elements of all inputs together that are allocated where a reference holds for its own sizes alone."""
FLOATS = {"float32", "float16", "bfloat16", "half", "float", "double", "float64"}


def reference_fields(
    where: str, name: str, reference: str, arguments: Sequence[Mapping[str, Any]], attempts: Sequence[Any]
) -> dict[str, Any]:
    """ "fields" and "sources" (traced.fields_from) of a reference's `run`, for forge.read.apart.

    attempts   pairs of sizes by axis: what both give alike holds for any size; the first pair that does is taken
    Raises UsageError with the reason of the last.
    """
    import torch

    run = _run_of(reference, where)
    parameters = [one for one in inspect.signature(run).parameters.values() if one.kind is not one.VAR_KEYWORD]
    if len(parameters) != len(arguments):
        raise UsageError(
            f"{where}: run takes {len(parameters)} arguments and the definition has {len(arguments)} inputs. Let them "
            "agree."
        )
    reason: UsageError | None = None
    # references say no_grad, which a trace would show where gradients are on
    torch.set_grad_enabled(False)
    for pair in attempts:
        draw = torch.Generator().manual_seed(0)
        found = []
        try:
            for sizes in pair:
                example = tuple(
                    one["value"]
                    if one["axes"] is None
                    else torch.randn(
                        [sizes[axis] if axis in sizes else int(axis) for axis in one["axes"]], generator=draw
                    )
                    for one in arguments
                )
                fields, sources = fields_from(run, example, name, where)
                by_name = {parameter.name: one["name"] for parameter, one in zip(parameters, arguments, strict=True)}
                found.append((fields, {item: by_name[source] for item, source in sources.items()}))
        except UsageError as error:
            reason = error
            continue
        if found[0][0]["formula"] == found[1][0]["formula"]:
            return {"fields": _plain(found[0][0]), "sources": found[0][1]}
        reason = UsageError(f"{where}: a number in its formula changes with a size that workloads say. {WAY_OUT}")
    assert reason is not None
    raise reason


def operator_fields(where: str, name: str, operator: str, text: str) -> dict[str, Any]:
    """The same of an operator of ATen on arguments as text; "tensors" are the names of its tensors, and "fixed" says
    whether it holds for these sizes alone.
    """
    import torch

    path = operator.removeprefix("torch.ops.").removeprefix("aten.").split(".")
    packet = getattr(torch.ops.aten, path[0], None)
    overload = getattr(packet, path[1] if len(path) > 1 else "default", None) if packet is not None else None
    if overload is None or len(path) > 2:
        raise UsageError(f"{where}: torch {torch.__version__} has no operator {operator}. Write it as aten.add.Tensor")
    args, kwargs = arguments_in(text, where)
    schema = [one.name for one in overload._schema.arguments]
    names: list[str] = []
    for key, value in [*zip(schema, args, strict=False), *kwargs.items()]:
        held = list(tensors_of((value,)))
        names += [
            key if key == "self" and len(held) == 1 else f"{key}_{n}" if len(held) > 1 else key
            for n in range(len(held))
        ]
    names = ["x" if key == "self" else key for key in names]
    shapes = [one.shape for one in tensors_of((*args, *kwargs.values()))]
    reason: UsageError | None = None
    for smalls in (((9, 2), (10, 3)), ()):
        found = []
        try:
            for first, step in smalls or ((0, 0),):
                small = _smaller(shapes, first, step) if smalls else {}
                if not smalls and sum(math.prod(shape) for shape in shapes) > MOST:
                    raise reason or UsageError(f"{where}: too large to be traced at its own sizes. {WAY_OUT}")
                draw = torch.Generator().manual_seed(0)
                example = [torch.randn([small.get(size, size) for size in shape], generator=draw) for shape in shapes]
                found.append(fields_from(_calling(overload, args, kwargs, names), tuple(example), name, where))
        except UsageError as error:
            reason = error
            continue
        if found[0][0]["formula"] == found[-1][0]["formula"]:
            fields, sources = found[0]
            return {"fields": _plain(fields), "sources": sources, "tensors": names, "fixed": not smalls}
        reason = UsageError(f"{where}: a number in its formula changes with its sizes. {WAY_OUT}")
    assert reason is not None
    raise reason


def _run_of(reference: str, where: str) -> Callable[..., Any]:
    """The reference's `run`, computing in float64 whatever float it asks for, its asserts left out: they say sizes."""

    class Widened(ast.NodeTransformer):
        def visit_Assert(self, node: ast.Assert) -> ast.AST:
            return ast.copy_location(ast.Pass(), node)

        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr in FLOATS:
                node.attr = "float64"
            return node

        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            if (
                isinstance(node.func, ast.Attribute)
                and node.func.attr in ("float", "half", "bfloat16")
                and not node.args
            ):
                node.func.attr = "double"
            return node

    tree = ast.fix_missing_locations(Widened().visit(ast.parse(reference)))
    space: dict[str, Any] = {"__name__": "opforge_reference"}
    try:
        exec(compile(tree, f"{where} (reference)", "exec"), space)
        run: Callable[..., Any] = space["run"]
    except Exception as error:
        # whatever the user's own code raises: it is told, not swallowed
        words = " ".join(str(error).split())[:200]
        raise UsageError(f"{where}: the reference cannot be run: {type(error).__name__}: {words}. {WAY_OUT}") from error
    return run


def _calling(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]) -> Callable[..., Any]:
    """A function of the tensors alone, with their names, that calls the operator with everything else as it was."""
    import torch

    def filled(value: Any, tensors: list[Any]) -> Any:
        match value:
            case TensorArgument():
                return tensors.pop(0)
            case list() | tuple():
                return type(value)(filled(one, tensors) for one in value)
        text = getattr(value, "text", None)
        if text is None:
            return value
        if text.removeprefix("torch.").removeprefix("th.") in FLOATS:
            return torch.float64
        return None

    def run(*tensors: Any) -> Any:
        rest = list(tensors)
        return overload(*[filled(one, rest) for one in args], **{key: filled(one, rest) for key, one in kwargs.items()})

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    unique = [key if names.count(key) == 1 else f"{key}_{at}" for at, key in enumerate(names)]
    signature = inspect.Signature([inspect.Parameter(key, kind) for key in unique])
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def _smaller(shapes: Sequence[Sequence[int]], first: int, step: int) -> dict[int, int]:
    """Small sizes for those from 9 on; what was equal stays equal, what differed differs."""
    found: dict[int, int] = {}
    for size in (size for shape in shapes for size in shape if size > 8):
        found.setdefault(size, first + step * len(found))
    return found


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != "workloads"}


def tensors_of(values: Sequence[Any]) -> Iterator[TensorArgument]:
    """The tensors of arguments, those in lists too, in their order."""
    for one in values:
        if isinstance(one, TensorArgument):
            yield one
        elif isinstance(one, list | tuple):
            yield from tensors_of(one)
