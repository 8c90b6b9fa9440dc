"""A model's graph by torch.export, and of a training step by AOTAutograd's joint graph, as nodes and as a program that
can be run node by node.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opforge.core.language.errors import OpforgeError, UsageError, first_line
from opforge.model.nodes import BACKWARD, EXPORTED, FORWARD, JOINT, Graph, Node, Shape, Work
from opforge.model.source import Loaded
from opforge.model.work import tensors_in, work_of

VIEWS_SOMETIMES = ("to", "_to_copy", "type_as")
"""They return their input where nothing has to change."""


class NotExported(OpforgeError):
    """torch.export has no graph of this model; the message says why."""


class Step(torch.nn.Module):
    """What is analysed: a model's first tensor, or its loss."""

    def __init__(self, loaded: Loaded, training: bool) -> None:
        super().__init__()
        self.model = loaded.module
        self.fixed = dict(loaded.fixed)
        self.training_step = training

    def forward(self, *args: Any, **named: Any) -> Any:
        """The first tensor that the model returns; for a training step a loss: its own, or the mean of squares."""
        returned = self.model(*args, **self.fixed, **named)
        if not self.training_step:
            return first_tensor(returned)
        loss = getattr(returned, "loss", None)
        if isinstance(returned, torch.Tensor) and returned.dim() == 0:
            loss = returned
        return loss if loss is not None else first_tensor(returned).float().square().mean()


def first_tensor(value: Any) -> torch.Tensor:
    """The first floating-point tensor in what a model returned. Raises UsageError where there is none."""
    found = next(_tensors_of(value), None)
    if found is None:
        raise UsageError(
            "The model returns no floating-point tensor. Write a factory whose module returns one: "
            "package.module:factory"
        )
    return found


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Floating-point tensors in order, in lists, mappings and records."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
        return
    if isinstance(value, Mapping):
        parts: Any = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    else:
        parts = vars(value).values() if hasattr(value, "__dict__") else ()
    for part in parts:
        if isinstance(part, torch.Tensor | list | tuple | Mapping):
            yield from _tensors_of(part)


def step_of(loaded: Loaded, training: bool) -> Step:
    """A model as a Step, in training mode or not; a saved program has one mode, that which it was saved in."""
    step = Step(loaded, training)
    return step if loaded.saved else step.train(training)


def arguments_of(loaded: Loaded, training: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a Step is called with."""
    labels = {"labels": loaded.labels} if training and loaded.labels is not None else {}
    return loaded.args, {**loaded.named, **labels}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A graph that can be run: `module` on `inputs`, flat. `places` gives a node of the graph for each name in it."""

    graph: Graph
    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    places: Mapping[str, int]


@contextmanager
def quietly() -> Iterator[None]:
    """Without the warnings and logs of libraries that trace: what matters of them is an error."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class _OfOthers:
    """Standard error without what this thread writes: torch.export prints whole graphs where it refuses one."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.own = stream, get_ident()

    def write(self, text: str) -> int:
        """As a stream's."""
        return len(text) if get_ident() == self.own else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def exported(loaded: Loaded, *, training: bool) -> Program:
    """The model's graph by torch.export, of a training step with its backward pass. Raises NotExported."""
    args, named = arguments_of(loaded, training)
    step = step_of(loaded, training)
    try:
        with quietly(), redirect_stderr(_OfOthers(sys.stderr)):
            program = torch.export.export(step, args, named, strict=False)
            flat = tuple(torch.utils._pytree.tree_leaves((args, named)))
            module, inputs = _joint(program.module(), flat) if training else (program.graph_module, None)
    except OpforgeError:
        raise
    except Exception as error:  # tracing runs the user's model: it fails in as many ways as models do
        raise NotExported(f"{type(error).__name__}: {first_line(error)}") from error
    nodes, places = _nodes(module.graph)
    if training and not any(node.phase == BACKWARD for node in nodes):
        raise NotExported("AOTAutograd's graph has no backward pass")
    return Program(
        graph=Graph(nodes=nodes, route=JOINT if training else EXPORTED, why="", training=training),
        module=module,
        inputs=_flat(program, flat) if inputs is None else inputs,
        places=places,
    )


class _Interpreted(torch.nn.Module):
    """An exported module whose nodes keep their modules' paths when it is traced once more."""

    def __init__(self, inner: torch.fx.GraphModule) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> Any:
        """The loss, in a tuple."""
        with torch.fx.traceback.preserve_node_meta():
            returned = torch.fx.Interpreter(self.inner).run(*args)
        return (returned[0] if isinstance(returned, list | tuple) else returned,)


def _joint(step: torch.fx.GraphModule, flat: tuple[Any, ...]) -> tuple[torch.fx.GraphModule, tuple[Any, ...]]:
    """Forward and backward in one graph, of PyTorch's operators as they are called, and what it is run on."""
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    outer = _Interpreted(step)
    with ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, outer, flat, decompositions={})
        module = joint.graph_module
    tied = {"remove_duplicate": False}
    tensors = {**dict(outer.named_parameters(**tied)), **dict(outer.named_buffers(**tied))}
    inputs = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            told = node.meta["desc"]
            if hasattr(told, "target"):
                inputs.append(tensors[told.target].detach())
            elif hasattr(told, "idx"):
                inputs.append(flat[told.idx])
            else:  # the slope of the loss
                inputs.append(torch.ones((), dtype=node.meta["val"].dtype, device=node.meta["val"].device))
    return module, tuple(inputs)


def _flat(program: Any, flat: Sequence[Any]) -> tuple[Any, ...]:
    """The inputs of an exported graph in its order: parameters, buffers, constants, and the user's."""
    from torch.export.graph_signature import InputKind

    users = iter(flat)
    stored = {**program.state_dict, **program.constants}
    return tuple(
        next(users) if spec.kind is InputKind.USER_INPUT else stored[spec.target]
        for spec in program.graph_signature.input_specs
    )


def shape_of(value: Any) -> Any:
    """A tensor's Shape; lists part by part; what is neither as it is."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else (1,) * value.dim()
        return Shape(
            sizes=tuple(map(int, value.shape)),
            strides=tuple(map(int, strides)),
            dtype=str(value.dtype).removeprefix("torch."),
            itemsize=value.element_size(),
        )
    if isinstance(value, list | tuple):
        return [shape_of(one) for one in value]
    return value


def named_arguments(target: Any, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by the names of its schema."""
    schema = getattr(target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    given = {names[at] if at < len(names) else str(at): value for at, value in enumerate(args)}
    return {**given, **named}


def is_alias(target: Any, arguments: Mapping[str, Any], outputs: Sequence[Shape]) -> bool:
    """Whether a call returns a view of its input."""
    schema = getattr(target, "_schema", None)
    if schema is None or not outputs:
        return False
    name = schema.name.split("::")[1]
    first = next((shape for value in arguments.values() for shape in tensors_in(value)), None)
    if name in VIEWS_SOMETIMES:
        return first is not None and (first.dtype, first.strides) == (outputs[0].dtype, outputs[0].strides)
    told = [one.alias_info for one in schema.returns]
    if not any(info is not None and not info.is_write for info in told) or any(
        info is not None and info.is_write for info in told
    ):
        return False
    if name not in ("reshape", "contiguous", "flatten", "expand_as", "reshape_as", "unflatten", "conj", "resolve_conj"):
        return True
    try:
        given = {key: _empty(value) for key, value in arguments.items()}
        made = target(**given)
    except (RuntimeError, TypeError, ValueError):
        # not without contents: it is taken for a copy, whose bytes count
        return False
    source = next(one for one in given.values() if isinstance(one, torch.Tensor))
    return bool(made.untyped_storage()._cdata == source.untyped_storage()._cdata)


def _empty(value: Any) -> Any:
    if isinstance(value, Shape):
        kind = getattr(torch, value.dtype)
        return torch.empty_strided(value.sizes, value.strides, dtype=kind, device="meta")
    return [_empty(one) for one in value] if isinstance(value, list) else value


def _nodes(graph: torch.fx.Graph) -> tuple[tuple[Node, ...], dict[str, int]]:
    """The calls of a graph in order; parts of a result (getitem) belong to the call that made them."""
    found: list[Node] = []
    places: dict[str, int] = {}
    made_by: dict[torch.fx.Node, int] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        value = node.meta.get("val")
        if getattr(node.target, "__name__", "") == "getitem":
            if isinstance(node.args[0], torch.fx.Node) and node.args[0] in made_by:
                made_by[node] = made_by[node.args[0]]
            continue
        outputs = tuple(tensors_in([shape_of(value)] if isinstance(value, torch.Tensor) else shape_of(value)))
        if not outputs and not isinstance(node.target, torch._ops.OpOverload):
            continue
        given = named_arguments(node.target, _values(node.args), _values(node.kwargs))
        arguments = {key: shape_of(one) for key, one in given.items()}
        given_nodes = [
            one for one in torch.utils._pytree.tree_leaves((node.args, node.kwargs)) if isinstance(one, torch.fx.Node)
        ]
        sources = [made_by.get(one) for one in given_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
        index = len(found)
        made_by[node] = places[node.name] = index
        path, kind = _module(node)
        found.append(
            node_of(
                index=index,
                name=node.name,
                target=node.target,
                arguments=arguments,
                outputs=outputs,
                sources=sources,
                module=path,
                module_class=kind,
                phase=BACKWARD if node.meta.get("partitioner_tag") == "is_backward" else FORWARD,
            )
        )
    return tuple(found), places


def node_of(
    *,
    index: int,
    name: str,
    target: Any,
    arguments: Mapping[str, Any],
    outputs: Sequence[Shape],
    sources: Sequence[int | None],
    module: str,
    module_class: str,
    phase: str,
) -> Node:
    """A Node with its work."""
    operator = str(target)
    parts = operator.split(".")
    base = parts[1] if len(parts) > 1 else operator
    work, uncounted = work_of(base, arguments, outputs, alias=is_alias(target, arguments, outputs)), ""
    if work.cost.bytes and not work.cost.flops:
        work, uncounted = _with_parts(work, target, arguments)
    return Node(
        index=index,
        name=name,
        operator=operator,
        module=module,
        module_class=module_class,
        phase=phase,
        arguments=arguments,
        inputs=tuple(shape for value in arguments.values() for shape in tensors_in(value)),
        sources=tuple(sources),
        outputs=tuple(outputs),
        work=work,
        uncounted=uncounted,
    )


class _Parts(TorchDispatchMode):
    """The work of every operator that a composite one calls."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Work] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = function(*args, **(kwargs or {}))
        given = {key: shape_of(value) for key, value in named_arguments(function, args, kwargs or {}).items()}
        outputs = tensors_in([shape_of(one) for one in torch.utils._pytree.tree_leaves(returned)])
        name = function._schema.name.split("::")[1]
        self.works.append(work_of(name, given, outputs, alias=is_alias(function, given, outputs)))
        return returned


def _with_parts(work: Work, target: Any, arguments: Mapping[str, Any]) -> tuple[Work, str]:
    """The work of an operator that is made of others, as an LSTM is: their arithmetic, and its own bytes; and why it
    could not be counted, "" where it was.
    """
    name = getattr(getattr(target, "_schema", None), "name", "")
    composite = "CompositeImplicitAutograd"
    if not name.startswith("aten::") or not torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), composite):
        return work, ""
    try:
        with _Parts() as parts, torch.no_grad():
            target(**{key: _empty(value) for key, value in arguments.items()})
    except (RuntimeError, TypeError, ValueError) as error:
        return work, f"{type(error).__name__}: {first_line(error)}"
    flops = sum(one.cost.flops for one in parts.works)
    unit = "matrix" if any(one.unit == "matrix" for one in parts.works) else "vector"
    return Work(cost=replace(work.cost, flops=flops), unit=unit), ""


def _values(given: Any) -> Any:
    """Arguments with tensors in place of the nodes that make them."""
    return torch.fx.node.map_arg(given, lambda node: node.meta.get("val"))


def _module(node: torch.fx.Node) -> tuple[str, str]:
    """Path and class of the module that a node belongs to, in the backward pass that of its forward node."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    for path, kind in reversed(list(stack.values())):
        words = kind if isinstance(kind, str) else kind.__qualname__
        if path != "model" and not path.startswith("model."):
            continue
        return path.removeprefix("model").removeprefix("."), words.rsplit(".", 1)[-1]
    return "", ""
