"""A kernel's Python, read by Triton's interpreter as Triton's compiler reads it (3.6.0).

The interpreter runs a kernel's source as Python, and Python decides where the compiler would: a block has one truth
value, `a and b` is one of its operands, the variable of a loop is a plain int. Here each such place of the source is
replaced by a call that does what the compiler does.

    a and b, a or b, not a      elementwise, both operands computed; the compiler's deprecation is kept as a note
    if block:, while block:     refused, as the compiler refuses them
    a < b < c                   refused, as the compiler refuses it
    for i in range(n):          i is a scalar tensor, with .to and .dtype
    min(a, b), max(a, b)        of tensors: elementwise
    print(a), assert a          for all elements
    CONSTANT.value              the constant: arguments declared constexpr are plain values here
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import FunctionRewriter, TensorHandle

from opforge.backends import compile_phase

PREFIX = "_opforge_"
"""Names of the functions below, in a kernel's module."""
DEPRECATED = "`and` and `or` of tensors with more than one element are deprecated in Triton; write `&` and `|`"

notes: list[str] = []
"""What a compiler would have said of the kernels that ran, each once; whoever reads it empties it."""


class Ambiguous(TypeError):
    """A block stands where one truth value is needed: Triton's compiler refuses the kernel."""


def _is_block(value: Any) -> bool:
    return isinstance(value, tl.tensor) and value.type.is_block()


def _joined(method: str, decides: bool, operands: tuple[Callable[[], Any], ...]) -> Any:
    tensors: list[Any] = []
    value: Any = None
    for operand in operands:
        value = operand()
        if not isinstance(value, tl.tensor):
            if bool(value) is decides:
                return value
            continue
        if value.type.is_block() and DEPRECATED not in notes:
            notes.append(DEPRECATED)
        tensors.append(value)
    if not tensors:
        return value
    while len(tensors) > 1:
        right, left = tensors.pop(), tensors.pop()
        tensors.append(getattr(left, method)(right))
    return tensors[0]


def both(*operands: Callable[[], Any]) -> Any:
    """`a and b`: constants may decide early, tensors never do."""
    return _joined("logical_and", False, operands)


def either(*operands: Callable[[], Any]) -> Any:
    """`a or b`."""
    return _joined("logical_or", True, operands)


def negated(value: Any) -> Any:
    """`not a`."""
    return value.__not__() if isinstance(value, tl.tensor) else not value


def condition(value: Any) -> Any:
    """What an `if` or `while` asks."""
    value = value.condition if isinstance(value, tl.condition) else value
    if _is_block(value) and value.numel != 1:
        raise Ambiguous("Boolean value of Tensor with more than one value is ambiguous; use tl.where")
    return value


def chained() -> Any:
    """`a < b < c`."""
    raise TypeError("simultaneous multiple comparison is not supported by Triton; write (a < b) & (b < c)")


def constant(value: Any) -> Any:
    """`X.value`."""
    return value.value if hasattr(value, "value") else value


def smallest(*values: Any) -> Any:
    """`min(a, b)`."""
    return _folded("minimum", min, values)


def largest(*values: Any) -> Any:
    """`max(a, b)`."""
    return _folded("maximum", max, values)


def _folded(name: str, plain: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    if not any(isinstance(value, tl.tensor) for value in values):
        return plain(*values)
    result = values[0]
    for value in values[1:]:
        result = getattr(tl, name)(result, value)
    return result


def asserted(value: Any) -> bool:
    """`assert a`: of all elements."""
    return bool(np.all(value.handle.data)) if isinstance(value, tl.tensor) else bool(value)


def scalar(value: int | float | bool) -> Any:
    """A number as the scalar tensor that a compiled kernel has: int1, int32, int64 or float32."""
    if isinstance(value, bool):
        dtype, data = tl.int1, np.array([value], np.bool_)
    elif isinstance(value, float):
        dtype, data = tl.float32, np.array([value], np.float32)
    elif -(2**31) <= value < 2**31:
        dtype, data = tl.int32, np.array([value], np.int32)
    else:
        dtype, data = tl.int64, np.array([value], np.int64)
    return tl.tensor(TensorHandle(data, dtype), dtype)


def looped(made: Callable[..., Any], *bounds: Any, **options: Any) -> Iterator[Any]:
    """`for i in range(...)`: each i as a scalar tensor of the bounds' integer type."""
    wide = any(isinstance(bound, tl.tensor) and bound.dtype.primitive_bitwidth == 64 for bound in bounds)
    for step in made(*bounds, **options):
        compile_phase.got_on()
        if not isinstance(step, int):
            yield step
        elif wide:
            yield tl.tensor(TensorHandle(np.array([step], np.int64), tl.int64), tl.int64)
        else:
            yield scalar(step)


_CALLS = {
    PREFIX + function.__name__: function
    for function in (both, either, negated, condition, chained, constant, smallest, largest, asserted, looped)
}
_BUILTINS = {"min": smallest, "max": largest}


def _call(function: Callable[..., Any], arguments: list[ast.expr]) -> ast.Call:
    return ast.Call(func=ast.Name(id=PREFIX + function.__name__, ctx=ast.Load()), args=arguments, keywords=[])


class _AsCompiled(ast.NodeTransformer):
    """The source with those places replaced. `known` are names that the kernel's module defines itself."""

    def __init__(self, known: frozenset[str]) -> None:
        self.known = known

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        # the interpreter's own change: what is assigned becomes a tensor
        if len(node.targets) > 1:
            raise ValueError("Multiple assignments are not supported")
        self.generic_visit(node)
        to_tensor = ast.Attribute(
            value=ast.Name(id="interpreter_semantic", ctx=ast.Load()), attr="to_tensor", ctx=ast.Load()
        )
        node.value = ast.Call(func=to_tensor, args=[node.value, ast.Constant(value=False)], keywords=[])
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        function = both if isinstance(node.op, ast.And) else either
        return _call(function, [ast.Lambda(args=empty, body=value) for value in node.values])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return _call(negated, [node.operand]) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        return _call(chained, []) if len(node.ops) > 1 else node

    def _visit_test(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        node.test = _call(condition, [node.test])
        return node  # type: ignore[no-any-return]

    visit_If = visit_While = visit_IfExp = _visit_test

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self.generic_visit(node)
        node.test = _call(asserted, [node.test])
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return _call(constant, [node.value]) if node.attr == "value" and isinstance(node.ctx, ast.Load) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _BUILTINS and name not in self.known and not node.keywords:
            return _call(_BUILTINS[name], node.args)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.iter, ast.Call):
            name = getattr(node.iter.func, "id", getattr(node.iter.func, "attr", ""))
            if name == "range":
                node.iter = ast.Call(
                    func=ast.Name(id=PREFIX + looped.__name__, ctx=ast.Load()),
                    args=[node.iter.func, *node.iter.args],
                    keywords=node.iter.keywords,
                )
        return node


def _definition(self: Any, lines: list[str]) -> int:
    """The line of `def`, from 1: the first one, since a docstring may have lines that look like it."""
    return next((number for number, line in enumerate(lines, 1) if line.strip().startswith("def ")), 0)


def _transformed(self: Any, source: str) -> ast.AST:
    known = frozenset(self.fn.__globals__)
    tree = _AsCompiled(known).visit(ast.parse(source))
    ast.fix_missing_locations(tree)
    ast.increment_lineno(tree, self.def_file_lineno - 1)
    return tree  # type: ignore[no-any-return]


def _executed(self: Any, tree: Any) -> Any:
    """The function that the changed source defines, beside the names of its module and those of its closure."""
    names = self.fn.__globals__
    closed = inspect.getclosurevars(self.fn).nonlocals
    if closed:
        names = {**names, **closed}
    names.update({**_CALLS, "interpreter_semantic": interpreter.interpreter_semantic})
    if not str(names.get("__name__", "")).startswith("triton."):
        # imported by their names: the interpreter patches only those that are reached through their module
        for name in [name for name, value in names.items() if tl.core.is_builtin(value)]:
            names[name] = _with_semantic(names[name])
    local = {**self.kwargs}
    exec(compile(tree, filename=self.filename, mode="exec"), names, local)
    return local[self.fn.__name__]


def _with_semantic(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        options.pop("_semantic", None)
        return function(*arguments, **options, _semantic=interpreter.interpreter_semantic)

    # said to be what it was, to whoever asks which code a kernel calls
    call.__module__, call.__name__ = "triton.language", function.__name__
    return call


def install() -> None:
    """From now on kernels are read so."""
    plain, patch = interpreter._implicit_cvt, interpreter._patch_lang

    def argument(value: Any) -> Any:
        return scalar(value) if isinstance(value, (bool, float)) else plain(value)

    def patch_lang(function: Any) -> Any:
        if any(value is tl or value is tl.core for value in function.__globals__.values()):
            return patch(function)
        # a module that has the language's functions alone
        return patch(types.SimpleNamespace(__globals__={"tl": tl}))

    interpreter._implicit_cvt = argument
    interpreter._patch_lang = patch_lang
    FunctionRewriter._find_def = _definition
    FunctionRewriter._transform_ast = _transformed
    FunctionRewriter._compile_and_exec = _executed
