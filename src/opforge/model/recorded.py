"""A model's graph by watching one call of it: every operator that PyTorch dispatches, and the module it is called in.

It takes the place of torch.export where that has no graph of a model. What depends on values is in it as it went for
these inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from opforge.core.language.errors import OpforgeError, UsageError, first_line
from opforge.model.nodes import BACKWARD, FORWARD, RECORDED, Graph, Node
from opforge.model.source import Loaded
from opforge.model.trace import Step, arguments_of, named_arguments, node_of, quietly, shape_of, step_of
from opforge.model.work import tensors_in

ROOT = "Step.model"
"""How a tracker of modules calls the model in a Step."""


class _Watch(TorchDispatchMode):
    """Tells of each operator that is dispatched; `clock` is read before and after it where there is one."""

    def __init__(self, tell: Callable[..., None], clock: Callable[[], float] | None = None) -> None:
        super().__init__()
        self.tell, self.clock = tell, clock or (lambda: 0.0)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        begun = self.clock()
        returned = function(*args, **named)
        self.tell(function, args, named, returned, self.clock() - begun)
        return returned


@dataclass
class _Record:
    """The nodes of one call, by the storage that each wrote last."""

    tracker: ModuleTracker
    classes: dict[str, str]
    nodes: list[Node] = field(default_factory=list)
    wrote: dict[int, int] = field(default_factory=dict)

    def tell(self, function: Any, args: Any, named: Any, returned: Any, seconds: float) -> None:
        given = named_arguments(function, args, named)
        tensors = [one for one in torch.utils._pytree.tree_leaves((args, named)) if isinstance(one, torch.Tensor)]
        made = [one for one in torch.utils._pytree.tree_leaves(returned) if isinstance(one, torch.Tensor)]
        path = max(self.tracker.parents, key=len)
        index = len(self.nodes)
        node = node_of(
            index=index,
            name=f"{str(function).removeprefix('aten.').split('.')[0]}_{index}",
            target=function,
            arguments={key: shape_of(value) for key, value in given.items()},
            outputs=tensors_in([shape_of(one) for one in made]),
            sources=[self.wrote.get(one.untyped_storage()._cdata) for one in tensors],
            module=path.removeprefix(ROOT).removeprefix(".") if path.startswith(ROOT) else "",
            module_class=self.classes.get(path.removeprefix("Step").removeprefix("."), ""),
            phase=BACKWARD if self.tracker.is_bw else FORWARD,
        )
        self.nodes.append(node)
        if not node.is_view:
            self.wrote |= {one.untyped_storage()._cdata: index for one in made}


def recorded(loaded: Loaded, *, training: bool, why: str) -> Graph:
    """The graph of one call. Raises UsageError where the model cannot be called.

    why   what kept torch.export from giving one
    """
    step = step_of(loaded, training)
    classes = {path: type(module).__name__ for path, module in step.named_modules()}
    with quietly(), ModuleTracker() as tracker:
        record = _Record(tracker, classes)
        _call(step, loaded, training, _Watch(record.tell))
    return Graph(nodes=tuple(record.nodes), route=RECORDED, why=why, training=training)


def recorded_seconds(loaded: Loaded, training: bool, clock: Callable[[], float]) -> list[float]:
    """The time of each node of `recorded`, in its order."""
    seconds: list[float] = []
    step = step_of(loaded, training)
    with quietly():
        _call(step, loaded, training, _Watch(lambda *told: seconds.append(told[-1]), clock))
    return seconds


def _call(step: Step, loaded: Loaded, training: bool, watch: TorchDispatchMode) -> None:
    args, named = arguments_of(loaded, training)
    try:
        with watch, nullcontext() if training else torch.no_grad():
            returned = step(*args, **named)
            if training:
                reached = [one for one in step.parameters() if one.requires_grad]
                torch.autograd.grad(returned, reached, allow_unused=True)
    except OpforgeError:
        raise
    except Exception as error:  # the user's model runs here
        raise UsageError(
            f"{loaded.name} cannot be called with its inputs: {type(error).__name__}: {first_line(error)}. Call it "
            "once yourself, or give other inputs: a factory returns the module and its inputs."
        ) from error
