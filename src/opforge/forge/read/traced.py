"""A PyTorch function or nn.Module as a definition: torch.export says what it computes, and the formula is written from
that, operation by operation.

The file is the user's own and is run, as importing it would. What was written is held against the function itself, in
float64 on the example, before it is a definition.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import Definition, definition_of
from opforge.forge.program.evaluate import evaluate
from opforge.forge.program.families import WAY_OUT
from opforge.forge.read.spelling import Spelled, Spelling

EXAMPLES = ("example_inputs", "get_inputs")
"""Functions of a file that give example tensors; `get_init_inputs` gives what a module's class is made with."""

UNARY = {
    name: name
    for name in (
        "exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "abs", "sin", "cos", "tan", "sinh",
        "cosh", "tanh", "sigmoid", "erf", "erfc", "floor", "ceil", "trunc", "frac", "silu", "relu", "relu6", "square",
        "reciprocal", "selu", "mish", "hardsigmoid", "hardswish",
    )
} | {"log_sigmoid": "logsigmoid"}  # fmt: skip
"""ATen's functions of one tensor by what formulas call them."""
OPTIONS = {
    "softplus": ("beta",),
    "elu": ("alpha",),
    "celu": ("alpha",),
    "leaky_relu": ("negative_slope",),
    "hardshrink": ("lambd",),
    "softshrink": ("lambd",),
    "threshold": ("threshold", "value"),
}
"""Functions with numbers beside the tensor, in the order in which formulas take them."""
BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
COMPARED = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
LOGIC = dict.fromkeys(("logical_and", "bitwise_and", "__and__"), "and") | dict.fromkeys(
    ("logical_or", "bitwise_or", "__or__"), "or"
)
SAME = ("contiguous", "clone", "alias", "detach", "detach_", "lift_fresh_copy", "_to_copy", "to", "dropout", "expand")
REDUCED = {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "logsumexp": "logsumexp"}
CLOSE = 1e-8
"""Relative; float64 on numbers of a normal distribution is off by less, a wrong axis by more."""


def traced(where: str, name: str, shapes: Sequence[tuple[int, ...]] = ()) -> Definition:
    """The Definition of `module.py:function` (or a class of nn.Module), for an operator called `name`.

    shapes   sizes of the example tensors; without them the file's `example_inputs()` or `get_inputs()` says
    Raises UsageError for what cannot be traced or has no formula, with the operation and the next step.
    """
    return definition_of(traced_fields(where, name, shapes), name, where)


def traced_fields(where: str, name: str, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The fields of the definition that `traced` gives, for forge.read.apart. Raises UsageError."""
    file, sign, attribute = where.rpartition(":")
    if not sign or not file.endswith(".py"):
        raise UsageError(f"{where!r} names no function. Write the file and the name: --like module.py:function")
    sizes = [tuple(shape) for shape in shapes]
    return fields_from(*_function_and_example(Path(file), attribute, sizes), name, where)[0]


def _function_and_example(
    path: Path, attribute: str, shapes: Sequence[tuple[int, ...]]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import torch

    module = _module(path)
    target: Any = getattr(module, attribute, None)
    if target is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{path} has no {attribute}. It has: {', '.join(known) or 'no function'}.")
    if inspect.isclass(target) and issubclass(target, torch.nn.Module):
        made_with: Any = getattr(module, "get_init_inputs", list)()
        target = target(*made_with)
    example = next((getattr(module, key) for key in EXAMPLES if hasattr(module, key)), None)
    if shapes:
        draw = torch.Generator().manual_seed(0)
        return target, tuple(torch.randn(shape, generator=draw) for shape in shapes)
    if example is None:
        raise UsageError(
            f"{path} says no example tensors. Add a function example_inputs() that returns a list of them, or give "
            "their sizes: --example 4x64 --example 64"
        )
    return target, tuple(example())


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"There is no file {path}. Write the file and the name: --like module.py:function")
    name = f"opforge_traced_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file. Write the file and the name: --like module.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # whatever the user's file raises is told with the file
        del sys.modules[name]
        line = next(
            (f":{step.lineno}" for step in reversed(extract_tb(error.__traceback__)) if step.filename == str(path)), ""
        )
        raise UsageError(
            f"{path}{line} cannot be loaded: {type(error).__name__}: {error}. Correct it, or install what it imports."
        ) from error
    return module


def fields_from(
    function: Callable[..., Any], example: tuple[Any, ...], name: str, where: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of the definition of a function or module on example tensors, and where its inputs come from: each
    one's name, and the argument, parameter or buffer that it is. Raises UsageError.
    """
    import torch

    class Held(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *tensors: Any) -> Any:
            return function(*tensors)

    module = (function if isinstance(function, torch.nn.Module) else Held()).double().eval()
    given = tuple(one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            program = torch.export.export(module, given, strict=False)
        except Exception as error:
            # whatever torch finds in the user's function: it is told, not swallowed
            raise UsageError(
                f"{where} cannot be traced: {type(error).__name__}: {str(error).strip()[:300]}. A function of tensors "
                f"without branches on their values is taken. {WAY_OUT}"
            ) from error
    called = function.forward if isinstance(function, torch.nn.Module) else function
    reader = _Reader(where, list(inspect.signature(called).parameters))
    fields, tensors = reader.read(program, given)
    definition = definition_of(fields, name, where)
    with torch.no_grad():
        expected = module(*given)
    wanted = expected if isinstance(expected, tuple | list) else (expected,)
    found = evaluate(definition.program(), tensors, {})
    for key, one in zip(fields["outputs"], wanted, strict=True):
        if found[key].numel() != one.numel() or not torch.allclose(
            found[key].reshape(one.shape), one, rtol=CLOSE, atol=CLOSE, equal_nan=True
        ):
            raise UsageError(f"{where}: the formula that was read gives {key} otherwise than the function. {WAY_OUT}")
    return fields, reader.sources


class _Reader:
    """One exported program, node by node."""

    def __init__(self, where: str, names: Sequence[str]) -> None:
        self.where, self.names = where, names
        self.spelling = Spelling()
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def read(self, program: Any, example: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields of a definition, and the example's tensors by the names of its inputs."""
        import torch

        signature = program.graph_signature
        held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        constants = signature.inputs_to_lifted_tensor_constants
        state = {**program.state_dict, **program.constants}
        tensors: dict[str, Any] = {}
        rest = iter(zip((*self.names, *("x",) * len(example)), example, strict=False))
        outputs: list[Spelled] = []
        for node in program.graph.nodes:
            if node.op == "placeholder":
                key = held.get(node.name) or constants.get(node.name)
                called, tensor = (key, state[key]) if key is not None else next(rest)
                if not isinstance(tensor, torch.Tensor):
                    self.values[node.name] = tensor
                elif tensor.ndim == 0 and key is not None:
                    self.values[node.name] = Spelled(text=repr(float(tensor)))
                elif not tensor.is_floating_point():
                    raise UsageError(f"{self.where}: {node.name} is of {tensor.dtype}; formulas take floats. {WAY_OUT}")
                else:
                    value = self.spelling.given(called, tuple(tensor.shape))
                    self.values[node.name] = value
                    tensors[value.text], self.sources[value.text] = tensor.detach(), called
            elif node.op == "call_function" and str(node.target).startswith("aten._assert"):
                # a conversion's check of the dtype that it met
                continue
            elif node.op == "call_function":
                self.values[node.name] = self.operation(node)
            elif node.op == "output":
                outputs = [self.stored(self.value(one)) for one in node.args[0]]
        fields = self.spelling.fields(outputs, self.where)
        return fields, {key: tensors[key] for key in fields["inputs"]}

    def stored(self, value: Spelled) -> Spelled:
        """An output: a statement of its own where it is an input as it came."""
        return self.spelling.let("out", value.text, value.axes) if value.text in self.spelling.inputs else value

    def value(self, argument: Any) -> Any:
        """What an argument of a node is: a value, a number, None."""
        if hasattr(argument, "name") and argument.name in self.values:
            return self.values[argument.name]
        if isinstance(argument, bool | int | float):
            return Spelled(text=_number(argument))
        return argument

    def refused(self, what: str) -> UsageError:
        return UsageError(f"{self.where} uses {what}, for which there is no formula. {WAY_OUT}")

    def elementwise(self, node: Any, expression: str, *values: Spelled) -> Spelled:
        return self.spelling.let(node.name, expression, self.spelling.together(values, f"{self.where}, {node.name}"))

    def operation(self, node: Any) -> Spelled:
        """The value of one operation of ATen."""
        name = str(node.target).removeprefix("aten.").removeprefix("special_").split(".")[0]
        # what torch.export leaves out has the default of the operation's schema
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            raise self.refused(str(node.target))
        given = {one.name: one.default_value for one in schema.arguments if one.has_default_value()}
        given.update(zip((one.name for one in schema.arguments), node.args, strict=False))
        given.update(node.kwargs)
        values = {key: self.value(one) for key, one in given.items()}
        x: Any = values.get("self", values.get("input"))
        if name in SAME:
            if name == "dropout" and given["train"]:
                raise self.refused("dropout in training")
            assert isinstance(x, Spelled)
            return x
        if name in UNARY:
            return self.elementwise(node, f"{UNARY[name]}({x.text})", x)
        if name in OPTIONS and all(given.get(key, 1) == 1 for key in ("scale", "input_scale")):
            numbers = [_number(given[key]) for key in OPTIONS[name]]
            return self.elementwise(node, f"{name}({', '.join((x.text, *numbers))})", x)
        if name in BINARY or name in COMPARED or name in LOGIC:
            other = values["other"]
            if given.get("rounding_mode") is not None:
                raise self.refused("division with rounding")
            sign = {**BINARY, **COMPARED, **LOGIC}[name]
            right = other.text if given.get("alpha", 1) == 1 else f"{float(given['alpha'])!r} * {other.text}"
            return self.elementwise(node, f"{x.text} {sign} {right}", x, other)
        if name in ("_softmax", "_log_softmax") and not given["half_to_float"]:
            name = name[1:]
        if name in REDUCED or name in ("softmax", "log_softmax", "var", "std"):
            return self.reduction(node, name, x, given)
        found = self.function(node, name, x, values, given)
        if found is None:
            raise self.refused(f"aten.{name}")
        return found

    def reduction(self, node: Any, name: str, x: Spelled, given: dict[str, Any]) -> Spelled:
        dims = given.get("dim")
        dims = [dims] if isinstance(dims, int) else list(dims or range(len(x.axes)))
        if len(dims) != 1:
            raise self.refused(f"{name} over {len(dims)} axes at once")
        if name in ("var", "std") and given.get("correction", 1) != 0:
            raise self.refused(f"{name} that divides by n - 1 (say correction=0)")
        at = dims[0] % len(x.axes)
        over = self.spelling.over(x.axes[at], f"{self.where}, {node.name}")
        axes = list(x.axes)
        if name not in ("softmax", "log_softmax"):
            axes[at : at + 1] = [None] if given.get("keepdim") else []
        return self.spelling.let(node.name, f"{REDUCED.get(name, name)}({x.text}, {over})", axes)

    def function(self, node: Any, name: str, x: Any, values: dict[str, Any], given: dict[str, Any]) -> Spelled | None:
        """Operations with arguments of their own; None for one that is not known."""
        match name:
            case "linalg_vector_norm" if given["ord"] == 2 and len(given["dim"] or ()) == 1:
                squares = self.elementwise(node, f"square({x.text})", x)
                total = self.reduction(node, "sum", squares, given)
                return self.elementwise(node, f"sqrt({total.text})", total)
            case "neg":
                return self.elementwise(node, f"-{x.text}", x)
            case "logical_not":
                return self.elementwise(node, f"not {x.text}", x)
            case "rsub":
                return self.elementwise(node, f"{values['other'].text} - {x.text}", x, values["other"])
            case "pow" if isinstance(given.get("exponent"), int | float):
                return self.elementwise(node, f"{x.text} ** {given['exponent']:g}", x)
            case "gelu":
                kind = "gelu_tanh" if given["approximate"] == "tanh" else "gelu"
                return self.elementwise(node, f"{kind}({x.text})", x)
            case "maximum" | "minimum":
                return self.elementwise(node, f"{name}({x.text}, {values['other'].text})", x, values["other"])
            case "clamp" | "hardtanh" | "clamp_min" | "clamp_max":
                low, high = (values.get(key, values.get(f"{key}_val")) for key in ("min", "max"))
                text = x.text if low is None else f"maximum({x.text}, {low.text})"
                return self.elementwise(node, text if high is None else f"minimum({text}, {high.text})", x)
            case "where":
                parts = (values["condition"], values["self"], values["other"])
                return self.elementwise(node, f"where({', '.join(one.text for one in parts)})", *parts)
            case "cumsum" | "cumprod":
                over = self.spelling.over(x.axes[given["dim"]], f"{self.where}, {node.name}")
                return self.spelling.let(node.name, f"{name}({x.text}, {over})", x.axes)
            case "unsqueeze":
                at = given["dim"] % (len(x.axes) + 1)
                return Spelled(text=x.text, axes=(*x.axes[:at], None, *x.axes[at:]))
            case "squeeze":
                dims = [given["dim"]] if isinstance(given.get("dim"), int) else given.get("dim") or range(len(x.axes))
                gone = {at % len(x.axes) for at in dims if x.axes[at] is None}
                return Spelled(text=x.text, axes=tuple(axis for at, axis in enumerate(x.axes) if at not in gone))
            case "permute":
                return Spelled(text=x.text, axes=tuple(x.axes[at] for at in given["dims"]))
            case "t" | "transpose" | "numpy_T":
                first, second = (given.get("dim0", 0), given.get("dim1", -1))
                axes = list(x.axes)
                axes[first], axes[second] = axes[second], axes[first]
                return Spelled(text=x.text, axes=tuple(axes))
            case "linear":
                return self.product(node, x, values["weight"], values.get("bias"), turned=True)
            case "matmul" | "mm" | "bmm":
                right = values["other"] if name == "matmul" else values["mat2"]
                return self.product(node, x, right, None, turned=False)
            case "addmm" if given["beta"] == given["alpha"] == 1:
                return self.product(node, values["mat1"], values["mat2"], x, turned=False)
            case "layer_norm" | "rms_norm" if len(given["normalized_shape"]) == 1:
                return self.norm(node, name, x, values, given)
        return None

    def product(self, node: Any, a: Spelled, b: Spelled, bias: Spelled | None, *, turned: bool) -> Spelled:
        if len(b.axes) < 2 or len(a.axes) < 2 or None in (*a.axes[-2:], *b.axes[-2:]):
            raise self.refused("a product of a vector, or of one row or column")
        column, terms = b.axes[-2:] if turned else reversed(b.axes[-2:])
        assert a.axes[-1] is not None and terms is not None
        self.spelling.same(a.axes[-1], terms, f"{self.where}, {node.name}")
        batch = list(a.axes[:-2])
        # matrices of a batch meet by position, from the right
        for at, axis in enumerate(reversed(b.axes[:-2]), 1):
            own = batch[-at] if at <= len(batch) else None
            if at > len(batch):
                batch.insert(0, axis)
            elif own is None:
                batch[-at] = axis
            elif axis is not None:
                self.spelling.same(own, axis, f"{self.where}, {node.name}")
        text, axes = f"{a.text} @ {b.text}", (*batch, a.axes[-2], column)
        if bias is None:
            return self.spelling.let(node.name, text, axes)
        found = Spelled(text="", axes=axes)
        both = self.spelling.together((found, bias), f"{self.where}, {node.name}")
        return self.spelling.let(node.name, f"{text} + {bias.text}", both)

    def norm(self, node: Any, name: str, x: Spelled, values: dict[str, Any], given: dict[str, Any]) -> Spelled:
        over = self.spelling.over(x.axes[-1], f"{self.where}, {node.name}")
        centred = x
        if name == "layer_norm":
            centred = self.spelling.let(f"{node.name}_centred", f"{x.text} - mean({x.text}, {over})", x.axes)
        eps = given["eps"]
        if eps is None:
            raise self.refused("rms_norm with the eps of a dtype (say eps=1e-6)")
        text = f"{centred.text} * rsqrt(mean(square({centred.text}), {over}) + {float(eps)!r})"
        weights = [values[key] for key in ("weight", "bias") if values.get(key) is not None]
        for sign, one in zip("*+", weights, strict=False):
            text += f" {sign} {one.text}"
        return self.elementwise(node, text, x, *weights)


def _number(value: float) -> str:
    """A number as an expression that holds together."""
    return repr(float(value)) if value >= 0 else f"({float(value)!r})"
