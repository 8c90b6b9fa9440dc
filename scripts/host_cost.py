"""What a call costs the host, through opforge.ops and in PyTorch, on tensors so small that the kernel itself is nothing: the table of docs/timing.md.

python scripts/host_cost.py                    C++ kernels on the CPU
python scripts/host_cost.py --device cuda      CUDA kernels; what the host gives to a GPU is not waited for
python scripts/host_cost.py --device cuda --backend triton --quick

The best of many short turns of each call, all of them in turns: another process lengthens some turns of every call.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

Call = Callable[[], object]
TURNS, CALLS = 400, 50
BACKENDS = {"cpu": ("cpp", "tilelang"), "cuda": ("cuda", "triton", "tilelang")}
"""Those whose calls cost what they cost anywhere, the first of each by default: no interpreter, no emulator."""


def costs(calls: Sequence[Call], device: str, turns: int) -> list[float]:
    """Seconds of each call, the least over all turns."""
    import torch

    best = [float("inf")] * len(calls)
    for call in calls:
        call()
    for _ in range(turns):
        for place, call in enumerate(calls):
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            best[place] = min(best[place], (time.perf_counter() - began) / CALLS)
            if device != "cpu":
                torch.accelerator.synchronize()
    return best


def functions(backend: str) -> Any:
    """`functions(backend)(name)`: an operator on the first implementation of a backend, whether or not it has a Pass here; without one, PyTorch's."""
    from opforge.dispatch import Choice, Chooser, function_of
    from opforge.registry import load

    class First(Chooser):
        def choose(self, operator: Any, axes: Any, dtype: str, scalars: Any, kind: str, layouts: Any) -> Choice:
            items = self.registry.implementations(operator.name)
            found = [item for item in items if item.backend == backend and not item.arch] or [item for item in items if item.backend == "torch"]
            return Choice(implementation=found[0], config=found[0].default, why="asked for", passed_over=())

    chooser = First(load())
    return lambda name: function_of(name, chooser)


def rows(device: str, backend: str) -> list[tuple[str, bool, Call, Call]]:
    """What is called, whether with gradients, PyTorch's way and opforge's."""
    import torch
    from torch.nn import functional as F

    op = functions(backend)
    add, softmax, rmsnorm = op("vector_add"), op("softmax"), op("rmsnorm")
    x, y, deep, w = (torch.randn(*shape, device=device) for shape in ((4, 4), (4, 4), (2, 2, 4), (4,)))
    leaf, weight, back = x.clone().requires_grad_(), torch.nn.Parameter(w.clone()), torch.randn_like(x)

    def there_and_back(call: Callable[[Any], Any]) -> Call:
        return lambda: torch.autograd.grad(call(leaf), leaf, back)

    return [
        ("addition", False, lambda: torch.add(x, y), lambda: add(x, y)),
        ("softmax", False, lambda: torch.softmax(x, -1), lambda: softmax(x)),
        ("softmax, three axes", False, lambda: torch.softmax(deep, -1), lambda: softmax(deep)),
        ("RMS norm, with eps", False, lambda: F.rms_norm(x, (4,), w, eps=1e-5), lambda: rmsnorm(x, w, eps=1e-5)),
        ("RMS norm, three axes", False, lambda: F.rms_norm(deep, (4,), w), lambda: rmsnorm(deep, w)),
        ("softmax, kept for autograd", True, lambda: torch.softmax(leaf, -1), lambda: softmax(leaf)),
        ("RMS norm, kept for autograd", True, lambda: F.rms_norm(leaf, (4,), weight), lambda: rmsnorm(leaf, weight)),
        ("softmax and its gradient", True, there_and_back(lambda t: torch.softmax(t, -1)), there_and_back(softmax)),
    ]


def main() -> int:
    """The table on standard output; 3 where the device is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(BACKENDS), default="cpu")
    parser.add_argument("--backend", help="which kernels; default: cpp on the CPU, cuda on a GPU")
    parser.add_argument("--quick", action="store_true", help="a tenth of the turns")
    asked = parser.parse_args()
    device, turns = asked.device, TURNS // 10 if asked.quick else TURNS
    backend = asked.backend or BACKENDS[device][0]
    if backend not in BACKENDS[device]:
        parser.error(f"no kernels of {backend!r} run natively on {device}; choose from: {', '.join(BACKENDS[device])}")
    import torch

    from opforge.core import units

    if device != "cpu" and not torch.cuda.is_available():
        print("host_cost: torch sees no CUDA device here; leave --device away for the CPU", file=sys.stderr)
        return 3
    torch.set_num_threads(1)
    found = rows(device, backend)
    print(f"torch {torch.__version__}, {backend} kernels, {turns} turns of {CALLS} calls\n")
    print("| call | PyTorch | opforge | ratio |\n| --- | ---: | ---: | ---: |")
    for graph in (False, True):
        with torch.set_grad_enabled(graph):
            chosen = [row for row in found if row[1] is graph]
            seconds = costs([call for row in chosen for call in row[2:]], device, turns)
        for row, theirs, mine in zip(chosen, seconds[::2], seconds[1::2], strict=True):
            print(f"| {row[0]} | {units.seconds(theirs)} | {units.seconds(mine)} | {mine / theirs:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
