"""What flashinfer-trace and SOL-ExecBench are made of, by one set of nouns: Definition, Workload, Solution, Trace.

Each noun reads either benchmark's document; `form` says which one it must be, where that matters. Nothing in them is
executed: a reference and a solution's sources are text here.
"""
# ruff: noqa: RUF009 - held is dataclasses.field with a kind

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from opforge.core.language.errors import UsageError
from opforge.core.language.expr import evaluate
from opforge.forge.suites.formats.documents import (
    AMOUNT,
    ERROR,
    NAME,
    NUMBER,
    OBJECT,
    SCALAR,
    SIZE,
    TEXT,
    TRUTH,
    At,
    ByType,
    ListOf,
    MapOf,
    Nested,
    Noun,
    Nullable,
    held,
    one_of,
)

FLASHINFER, SOL = "flashinfer-trace", "sol-execbench"
DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1", "float4_e2m1fn_x2",
    "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
LANGUAGES = {
    FLASHINFER: ("python", "triton", "cpp", "cuda", "tilelang"),
    SOL: ("pytorch", "triton", "cute_dsl", "cutile", "cudnn_frontend", "cuda_cpp", "cutlass", "cudnn", "cublas"),
}
PASSED, NUMERICAL = "PASSED", "INCORRECT_NUMERICAL"
STATUSES = (
    PASSED, "INVALID_REFERENCE", "INCORRECT_SHAPE", NUMERICAL, "INCORRECT_DTYPE", "RUNTIME_ERROR", "COMPILE_ERROR",
    "TIMEOUT", "REWARD_HACK",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ConstAxis(Noun):
    """An axis whose size the definition says."""

    type: str = held(one_of(("const",)))
    value: int = held(SIZE)
    description: str | None = held(Nullable(TEXT), default=None)


@dataclass(frozen=True, kw_only=True)
class VarAxis(Noun):
    """An axis whose size each workload says."""

    type: str = held(one_of(("var",)))
    description: str | None = held(Nullable(TEXT), default=None)


@dataclass(frozen=True, kw_only=True)
class ExprAxis(Noun):
    """An axis whose size follows from others (SOL-ExecBench)."""

    type: str = held(one_of(("expr",)))
    expression: str = held(NAME)
    description: str | None = held(Nullable(TEXT), default=None)


Axis = ConstAxis | VarAxis | ExprAxis


@dataclass(frozen=True, kw_only=True)
class Tensor(Noun):
    """An input or output: names of axes, or None for a number; in SOL-ExecBench an axis may be a size in digits."""

    shape: tuple[str, ...] | None = held(Nullable(ListOf(NAME)))
    dtype: str = held(one_of(DTYPES))
    description: str | None = held(Nullable(TEXT), default=None)


@dataclass(frozen=True, kw_only=True)
class Definition(Noun):
    """What is to be computed: axes, tensors, and a PyTorch function `run` as text. `op_type` is needed by
    flashinfer-trace.
    """

    name: str = held(NAME)
    op_type: str | None = held(Nullable(NAME), default=None)
    axes: Mapping[str, Axis] = held(MapOf(ByType({"const": ConstAxis, "var": VarAxis, "expr": ExprAxis})))
    inputs: Mapping[str, Tensor] = held(MapOf(Nested(Tensor)))
    outputs: Mapping[str, Tensor] = held(MapOf(Nested(Tensor)))
    reference: str = held(NAME)
    tags: tuple[str, ...] = held(ListOf(NAME), default=())
    description: str | None = held(Nullable(TEXT), default=None)
    constraints: tuple[str, ...] | None = held(Nullable(ListOf(NAME)), default=())
    custom_inputs_entrypoint: str | None = held(Nullable(NAME), default=None)
    hf_id: str | None = held(Nullable(NAME), default=None)

    def check(self, at: At) -> None:
        for name in self.inputs:
            if name in self.outputs:
                raise at.key("outputs").key(name).wrong("named otherwise than an input")
        for kind, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            for name, tensor in tensors.items():
                for index, axis in enumerate(tensor.shape or ()):
                    if axis not in self.axes and not axis.isdigit():
                        place = at.key(kind).key(name).key("shape").item(index)
                        raise place.wrong(f"an axis of the definition ({', '.join(self.axes) or 'it has none'})", axis)
        functions = functions_of(self.reference, at.key("reference"))
        if "run" not in functions:
            raise at.key("reference").wrong("Python with a function run(…) at its top level")
        for index, text in enumerate(self.constraints or ()):
            _parsed(text, at.key("constraints").item(index))
        for name, axis_of in self.axes.items():
            if isinstance(axis_of, ExprAxis):
                _parsed(axis_of.expression, at.key("axes").key(name).key("expression"))
        if self.custom_inputs_entrypoint is not None and self.custom_inputs_entrypoint not in functions:
            raise at.key("custom_inputs_entrypoint").wrong("a function of the reference", self.custom_inputs_entrypoint)

    def sizes(self, given: Mapping[str, int], where: str) -> dict[str, int]:
        """The size of every axis, from those of the `var` ones. Raises UsageError for one missing or too many."""
        found: dict[str, int] = {}
        for name, axis in self.axes.items():
            if isinstance(axis, ConstAxis):
                found[name] = axis.value
            elif isinstance(axis, VarAxis):
                if name not in given:
                    raise UsageError(f"{where}: the axis {name} of {self.name} has no size. Say it in axes.")
                found[name] = given[name]
        strange = [name for name in given if found.get(name) != given[name]]
        if strange:
            raise UsageError(f"{where}: {strange[0]!r} is no axis that a workload of {self.name} says. Leave it out.")
        for name, axis in self.axes.items():
            if isinstance(axis, ExprAxis):
                # a whole quotient is a size, so `/` is divided as whole numbers are
                value = evaluate(axis.expression, found)
                if not isinstance(value, int | float) or value != int(value) or value < 0:
                    raise UsageError(
                        f"{where}: the axis {name} = {axis.expression} is {value!r:.40}, no size. Mend it."
                    )
                found[name] = int(value)
        return found


@dataclass(frozen=True, kw_only=True)
class RandomInput(Noun):
    """Numbers drawn by the benchmark."""

    type: str = held(one_of(("random",)))


@dataclass(frozen=True, kw_only=True)
class ScalarInput(Noun):
    """A number that is given as it is."""

    type: str = held(one_of(("scalar",)))
    value: int | float | bool = held(SCALAR)


@dataclass(frozen=True, kw_only=True)
class StoredInput(Noun):
    """A tensor of a safetensors file, by its key."""

    type: str = held(one_of(("safetensors",)))
    path: str = held(NAME)
    tensor_key: str = held(NAME)


@dataclass(frozen=True, kw_only=True)
class CustomInput(Noun):
    """A tensor that the definition's own function makes (SOL-ExecBench)."""

    type: str = held(one_of(("custom",)))


InputSource = RandomInput | ScalarInput | StoredInput | CustomInput
SOURCES: Mapping[str, type[Noun]] = {
    "random": RandomInput, "scalar": ScalarInput, "safetensors": StoredInput, "custom": CustomInput,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Bounds(Noun):
    """How wrong an element may be (SOL-ExecBench). opforge has bounds of its own and keeps these for the way back."""

    max_atol: float = held(NUMBER, default=1e-2)
    max_rtol: float = held(NUMBER, default=1e-2)
    required_matched_ratio: float = held(NUMBER, default=0.99)
    max_error_cap: float | None = held(Nullable(NUMBER), default=None)
    allow_negative_inf: bool = held(TRUTH, default=False)


@dataclass(frozen=True, kw_only=True)
class Workload(Noun):
    """Sizes of a definition's `var` axes, and where its inputs come from."""

    uuid: str = held(NAME)
    axes: Mapping[str, int] = held(MapOf(SIZE))
    inputs: Mapping[str, InputSource] = held(MapOf(ByType(SOURCES)))
    tolerance: Bounds | None = held(Nested(Bounds), default=None)

    def check(self, at: At) -> None:
        custom = [isinstance(one, CustomInput) for one in self.inputs.values()]
        if any(custom) and not all(custom):
            raise at.key("inputs").wrong("all custom, or none of them custom")


@dataclass(frozen=True, kw_only=True)
class SourceFile(Noun):
    """A file of a solution."""

    path: str = held(NAME)
    content: str = held(NAME)

    def check(self, at: At) -> None:
        path = PurePosixPath(self.path)
        if path.is_absolute() or ".." in path.parts or "\\" in self.path or "\0" in self.path:
            raise at.key("path").wrong("a path inside the solution's own folder", self.path)


@dataclass(frozen=True, kw_only=True)
class CompileOptions(Noun):
    """Flags for a solution in C++ or CUDA (SOL-ExecBench)."""

    cflags: tuple[str, ...] = held(ListOf(TEXT), default=())
    cuda_cflags: tuple[str, ...] = held(ListOf(TEXT), default=("-O3", "--use_fast_math"))
    ld_flags: tuple[str, ...] = held(ListOf(TEXT), default=("-lcuda",))


@dataclass(frozen=True, kw_only=True)
class BuildSpec(Noun):
    """How a solution is built and called. flashinfer-trace says `language`, SOL-ExecBench a list of `languages`."""

    language: str | None = held(one_of(LANGUAGES[FLASHINFER]), default=None)
    languages: tuple[str, ...] | None = held(ListOf(one_of(LANGUAGES[SOL]), 1), default=None)
    target_hardware: tuple[str, ...] = held(ListOf(NAME, 1))
    entry_point: str = held(NAME)
    dependencies: tuple[str, ...] = held(ListOf(NAME), default=())
    destination_passing_style: bool = held(TRUTH, default=True)
    binding: str | None = held(Nullable(one_of(("tvm-ffi", "torch"))), default=None)
    compile_options: CompileOptions | None = held(Nullable(Nested(CompileOptions)), default=None)

    @property
    def form(self) -> str:
        """Whose document it is."""
        return FLASHINFER if self.languages is None else SOL

    def check(self, at: At) -> None:
        if (self.language is None) == (self.languages is None):
            raise at.wrong("an object with either language (flashinfer-trace) or languages (SOL-ExecBench)")
        file, sign, function = self.entry_point.partition("::")
        if not sign or not file or not function or "::" in function:
            raise at.key("entry_point").wrong("a file and a function: kernel.py::run", self.entry_point)


@dataclass(frozen=True, kw_only=True)
class Solution(Noun):
    """An implementation of a definition, with all of its sources as text."""

    name: str = held(NAME)
    definition: str = held(NAME)
    author: str = held(NAME)
    spec: BuildSpec = held(Nested(BuildSpec))
    sources: tuple[SourceFile, ...] = held(ListOf(Nested(SourceFile), 1))
    description: str | None = held(Nullable(TEXT), default=None)

    def check(self, at: At) -> None:
        paths = [one.path for one in self.sources]
        for index, path in enumerate(paths):
            if path in paths[:index]:
                raise at.key("sources").item(index).key("path").wrong("a path that no other source has", path)
        if self.spec.entry_point.partition("::")[0] not in paths:
            raise (
                at.key("spec")
                .key("entry_point")
                .wrong(f"in one of the sources ({', '.join(paths)})", self.spec.entry_point)
            )


@dataclass(frozen=True, kw_only=True)
class Correctness(Noun):
    """The largest errors over the elements; "NaN" and "Infinity" are text."""

    max_relative_error: float | str = held(ERROR, default=0.0)
    max_absolute_error: float | str = held(ERROR, default=0.0)
    has_nan: bool = held(TRUTH, default=False)
    has_inf: bool = held(TRUTH, default=False)
    extra: Mapping[str, Any] | None = held(Nullable(OBJECT), default=None)


@dataclass(frozen=True, kw_only=True)
class Performance(Noun):
    """Times in milliseconds; None where the document says none."""

    latency_ms: float | None = held(AMOUNT, default=None)
    reference_latency_ms: float | None = held(AMOUNT, default=None)
    speedup_factor: float | None = held(AMOUNT, default=None)


@dataclass(frozen=True, kw_only=True)
class RunEnvironment(Noun):
    """Where it ran."""

    hardware: str = held(NAME)
    libs: Mapping[str, str] = held(MapOf(TEXT), default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluation(Noun):
    """What came of a run. Errors stand beside PASSED and INCORRECT_NUMERICAL, times beside PASSED alone."""

    status: str = held(one_of(STATUSES))
    environment: RunEnvironment = held(Nested(RunEnvironment))
    timestamp: str = held(NAME)
    log: str = held(TEXT, default="")
    correctness: Correctness | None = held(Nullable(Nested(Correctness)), default=None)
    performance: Performance | None = held(Nullable(Nested(Performance)), default=None)

    def check(self, at: At) -> None:
        if (self.correctness is not None) != (self.status in (PASSED, NUMERICAL)):
            words = "there" if self.correctness is None else "null"
            raise at.key("correctness").wrong(f"{words} where the status is {self.status}")
        if (self.performance is not None) != (self.status == PASSED):
            words = "there" if self.performance is None else "null"
            raise at.key("performance").wrong(f"{words} where the status is {self.status}")


@dataclass(frozen=True, kw_only=True)
class Trace(Noun):
    """A solution run on a workload; a workload alone, where there is neither solution nor evaluation."""

    definition: str = held(NAME)
    solution: str | None = held(Nullable(TEXT), default=None)
    workload: Workload = held(Nested(Workload))
    evaluation: Evaluation | None = held(Nullable(Nested(Evaluation)), default=None)

    @property
    def workload_alone(self) -> bool:
        return self.solution is None and self.evaluation is None


@dataclass(frozen=True, kw_only=True)
class TaskSet:
    """All that is known of one definition: its workloads, solutions and traces, and whose form they have.

    workloads   a trace each, with neither solution nor evaluation; in SOL-ExecBench's files a workload alone
    where       the file of the definition
    """

    form: str
    definition: Definition
    workloads: tuple[Trace, ...] = ()
    solutions: tuple[Solution, ...] = ()
    traces: tuple[Trace, ...] = ()
    where: str = field(default="", compare=False)


def functions_of(text: str, at: At) -> dict[str, tuple[str, ...]]:
    """The functions at the top level of a Python text, and their arguments. Raises UsageError where it is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        place = f" (line {line} of it: {getattr(error, 'msg', error)})" if line else f" ({type(error).__name__})"
        raise at.wrong(f"Python{place}") from error
    return {
        node.name: tuple(one.arg for one in (*node.args.posonlyargs, *node.args.args))
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def _parsed(text: str, at: At) -> None:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise at.wrong("an expression over the axes", text) from error
