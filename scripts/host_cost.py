"""What a call costs the host, through opforge.ops and in PyTorch, on tensors so small that the kernel itself is
nothing: a row for every operator, for each order of strides, and where the call is kept for autograd.

python scripts/host_cost.py                    C++ kernels on the CPU
python scripts/host_cost.py --backend torch    PyTorch's own implementations through opforge.ops: dispatch alone
python scripts/host_cost.py --device cuda      CUDA kernels; what the host gives to a GPU is not waited for
python scripts/host_cost.py softmax matmul --quick

PyTorch's call is its own function, or the operator's `torch_eager` file where no single function is the operator.
Medians of many short turns, all calls of a row interleaved; the ratio is the median of the turns' ratios. An operator
that this backend has no kernel for is called as PyTorch implements it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

Call = Callable[[], object]
TURNS, CALLS = 200, 50
BACKENDS = {"cpu": ("cpp", "tilelang", "torch"), "cuda": ("cuda", "triton", "tilelang", "torch")}
"""Those whose calls cost what they cost anywhere, the first of each by default: no interpreter, no emulator."""
MOST, MOST_KEPT = 1.3, 2.0
"""What a call may cost, and one that is kept for autograd, in PyTorch's own."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison: what is called, how its inputs lie, whether a gradient is wanted."""

    operator: str
    layout: str
    kept: bool
    implementation: str
    theirs: Call
    mine: Call


def timed(row: Row, device: str, turns: int) -> tuple[float, float, float]:
    """Median seconds of PyTorch's call and of opforge's, and the median of the turns' ratios."""
    import torch

    calls = (row.theirs, row.mine)
    for call in (*calls, *calls):
        call()
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns):
        for call, seconds in zip(calls, taken, strict=True):
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            seconds.append((time.perf_counter() - began) / CALLS)
            if device != "cpu":
                torch.accelerator.synchronize()
    ratios = [mine / theirs for theirs, mine in zip(*taken, strict=True)]
    return statistics.median(taken[0]), statistics.median(taken[1]), statistics.median(ratios)


def functions(backend: str) -> Any:
    """`functions(backend)(name)`: an operator on the first implementation of a backend that takes the call, whether or
    not it has a Pass here; without one, PyTorch's.
    """
    from opforge.core.definition.implementation import Rejected
    from opforge.dispatch import Choice, Chooser, function_of
    from opforge.registry import load

    class First(Chooser):
        def choose(
            self, operator: Any, axes: Any, dtype: str, scalars: Any, kind: str, layouts: Any, manner: Any = None
        ) -> Choice:
            items = self.registry.implementations(operator.name)
            found = [
                item
                for item in items
                if item.backend == backend
                and not item.arch
                and not isinstance(item.accepts(axes, dtype, scalars), Rejected)
                and all(layout in ("contiguous", *item.layouts) for layout in layouts)
            ] or [item for item in items if item.backend == "torch"]
            return Choice(implementation=found[0], config=found[0].default, why="asked for", passed_over=())

    chooser = First(load())
    return lambda name: function_of(name, chooser)


def direct() -> dict[str, Callable[..., object]]:
    """PyTorch's own functions, where an operator is one of them: as `direct` of a row."""
    import torch
    from torch.nn import functional as F

    return {
        "vector_add": torch.add,
        "bias_add": torch.add,
        "broadcast_add": torch.add,
        "add_scalar": lambda x, value: torch.add(x, value),
        "softmax": lambda x: torch.softmax(x, -1),
        "log_softmax": lambda x: torch.log_softmax(x, -1),
        "relu": torch.relu,
        "silu": F.silu,
        "gelu": lambda x, approximate: F.gelu(x, approximate=approximate),
        "layernorm": lambda x, w, b, eps: F.layer_norm(x, w.shape, w, b, eps),
        "rmsnorm": lambda x, w, eps: F.rms_norm(x, w.shape, w, eps),
        "matmul": lambda a, b, precision: torch.matmul(a, b),
        "linear": lambda x, w, bias, activation: F.linear(x, w, bias),
    }


def small(operator: Any, device: str) -> tuple[list[Any], dict[str, Any]]:
    """What a call is given: tensors whose axes are 4 each, or those of the operator's smallest plain case where that is
    not allowed (None for an optional input that the case does without, a list where the operator takes one); and the
    parameters.
    """
    import math

    from opforge.core.definition.call_form import arguments, declared, formed
    from opforge.core.definition.operator import Case
    from opforge.core.definition.shapes import full_shape, tokens
    from opforge.runner import allocate, fill

    def elements(case: Any) -> int:
        form = formed(operator, {**case.axes, **case.scalars})
        return sum(math.prod(full_shape(spec.shape, case.axes)) for spec in form.inputs)

    # as most call it: without what is optional
    scalars = operator.scalar_values({scalar.name: False for scalar in operator.presence})
    variadic = {token[1:] for spec in operator.inputs for token in tokens(spec.shape) if token.startswith("*")}
    axes = {name: (4,) if name in variadic or name in operator.list_axes else 4 for name in operator.free_axes}
    case = Case(
        name="small", axes=operator.completed(axes, scalars), scalars=scalars, why="the kernel itself is nothing"
    )
    if operator.violated(case.axes, operator.dtypes[0], scalars) is not None:
        plain = [item for item in operator.cases if item.distribution == "normal" and item.layout == "contiguous"]
        case = min((item for item in plain if elements(item)), key=elements)
    form = formed(operator, {**case.axes, **case.scalars})
    arena = allocate(form, case, case.dtype or operator.dtypes[0])
    fill(arena, form, case, 7)
    inputs = [arena.tensors("input")[spec.name].clone().to(device) for spec in form.inputs]
    arena.close()
    return arguments(form, inputs), declared(operator, operator.scalar_values(case.scalars))


def _both(kernel: Any, *tensors: Any, **scalars: Any) -> object:
    """A gradient of PyTorch's: what its forward pass leaves, then the backward pass."""
    return kernel.run(tensors, (), scalars)


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    """An argument with its tensors changed: one, the tensors of a list, or None."""
    if isinstance(value, list):
        return [change(one) for one in value]
    return None if value is None else change(value)


def _turned(value: Any) -> Any:
    """A tensor with its last two axes stored the other way round; what has none of these as it is."""
    if isinstance(value, list) or value.ndim < 2:
        return value
    return value.transpose(-1, -2).contiguous().transpose(-1, -2)


def rows(names: Sequence[str], device: str, backend: str) -> Iterator[Row]:
    """Each operator: as its inputs lie, with the last two axes of the first stored the other way round, and kept."""
    import torch

    from opforge.backends import backend as backend_of
    from opforge.registry import load

    registry, function, theirs_of = load(), functions(backend), direct()
    for name in names or registry.names():
        operator = registry.operator(name)
        eager = next(item for item in registry.implementations(name) if item.backend == "torch")
        # of a torch file the call itself says nothing
        kernel = backend_of("torch").prepare(eager, None)  # type: ignore[arg-type]
        own: Any = theirs_of.get(name) or kernel.function or partial(_both, kernel)
        mine = function(name)
        tensors, scalars = small(operator, device)
        turned = [_turned(tensors[0]), *tensors[1:]]
        leaves = [_each(lambda one: one.clone().requires_grad_(one.is_floating_point()), value) for value in tensors]
        kinds = [("contiguous", tensors, False), ("transposed", turned, False), ("contiguous", leaves, True)]
        for layout, given, kept in kinds:
            if (kept and operator.gradient is None) or (layout == "transposed" and turned[0] is tensors[0]):
                continue
            with torch.set_grad_enabled(kept):
                try:
                    own(*given, **scalars)
                except RuntimeError:
                    continue  # PyTorch does not take this layout
                chosen = mine.why(*given, **scalars).implementation.name
            yield Row(
                operator=name,
                layout=layout,
                kept=kept,
                implementation=chosen,
                theirs=lambda given=given, scalars=scalars, own=own: own(*given, **scalars),
                mine=lambda given=given, scalars=scalars, mine=mine: mine(*given, **scalars),
            )


def main() -> int:
    """The table on standard output; 1 where a call costs more than it may, 3 where the device is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", help="which operators; default: all")
    parser.add_argument("--device", choices=sorted(BACKENDS), default="cpu")
    parser.add_argument("--backend", help="which kernels; default: cpp on the CPU, cuda on a GPU")
    parser.add_argument("--quick", action="store_true", help="a tenth of the turns")
    asked = parser.parse_args()
    device, turns = asked.device, TURNS // 10 if asked.quick else TURNS
    backend = asked.backend or BACKENDS[device][0]
    if backend not in BACKENDS[device]:
        parser.error(f"no kernels of {backend!r} run natively on {device}; choose from: {', '.join(BACKENDS[device])}")
    import torch

    from opforge.core.language import units

    if device != "cpu" and not torch.cuda.is_available():
        print("host_cost: torch sees no CUDA device here; leave --device away for the CPU", file=sys.stderr)
        return 3
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {backend} kernels, medians of {turns} turns of {CALLS} calls\n")
    print("| operator | inputs | kept for autograd | implementation | PyTorch | opforge | ratio |")
    print("| --- | --- | --- | --- | ---: | ---: | ---: |")
    above = 0
    for row in rows(asked.operators, device, backend):
        with torch.set_grad_enabled(row.kept):
            theirs, mine, ratio = timed(row, device, turns)
        # asked this way round, NaN counts as above
        above += not ratio <= (MOST_KEPT if row.kept else MOST)
        cells = (row.operator, row.layout, "yes" if row.kept else "", row.implementation)
        print(f"| {' | '.join(cells)} | {units.seconds(theirs)} | {units.seconds(mine)} | {ratio:.2f} |", flush=True)
    print(f"\n{above} above {MOST} ({MOST_KEPT} where kept)")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
