"""Forward alone and forward with backward, as a user writes them: PyTorch under autograd, torch.compile'd, and
opforge.ops, in one process on a GPU.

python scripts/gradients.py                  a table; --json FILE keeps the numbers
python scripts/gradients.py --beside 6       the same while so many other processes hold an idle context on the device

All calls of a row are interleaved, between two events, inputs in turn from copies that fit no cache together; what
autograd saves is allocated in the time. The last column is the gradient's definition in tensor operations, which was
once published as PyTorch's time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

ROWS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("rmsnorm", {"lead": (8192,), "cols": 4096}),
    ("layernorm", {"lead": (8192,), "cols": 4096}),
    ("softmax", {"lead": (8192,), "cols": 4096}),
    ("log_softmax", {"lead": (8192,), "cols": 4096}),
    ("cross_entropy", {"lead": (4096,), "classes": 32000}),
    ("gelu", {"shape": (8192, 4096)}),
    ("silu_mul", {"shape": (8192, 4096)}),
)
IDLE = "import torch; torch.ones(1, device='cuda').sum().item(); print(flush=True); input()"


def users_calls() -> dict[str, Callable[..., Any]]:
    """What a user writes in PyTorch, by operator."""
    import torch
    from torch.nn import functional as F

    return {
        "rmsnorm": lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-6),
        "layernorm": lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias, 1e-5),
        "softmax": lambda x: torch.softmax(x, -1),
        "log_softmax": lambda x: torch.log_softmax(x, -1),
        "cross_entropy": lambda x, target: F.cross_entropy(x, target.long(), reduction="none"),
        "gelu": lambda x: F.gelu(x),
        "silu_mul": lambda gate, up: F.silu(gate) * up,
    }


@contextlib.contextmanager
def idle_contexts(count: int, device: str) -> Iterator[None]:
    """So many other processes with a context on the device, which do nothing."""
    others: list[subprocess.Popen[str]] = []
    try:
        for _ in range(count if device != "cpu" else 0):
            others.append(
                subprocess.Popen([sys.executable, "-c", IDLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()
        yield
    finally:
        for other in others:
            other.kill()
            other.communicate()


def both(call: Callable[..., Any], slopes: list[Any]) -> Callable[[Sequence[Any]], Any]:
    """Forward and backward of a call, with a gradient of its result made once."""
    import torch

    def run(given: Sequence[Any]) -> Any:
        y = call(*given)
        if not slopes:
            slopes.append(torch.randn_like(y))
        return torch.autograd.grad(y, [tensor for tensor in given if tensor.requires_grad], slopes[0])

    return run


def row(name: str, axes: dict[str, Any], dtype: str, device: str, turns: int) -> dict[str, Any]:
    """Seconds of a row by what was called."""
    import direct
    import torch

    import opforge.ops as ops
    from opforge.registry import load

    registry = load()
    operator = registry.operator(name)
    scalars = operator.scalar_values({})
    tensors = direct.tensors_for(operator, axes, dtype, scalars, device, "contiguous")
    plain = direct.copies_of(tensors)
    leaves = [[one.detach().requires_grad_(one.is_floating_point()) for one in given] for given in plain]
    torch_call, ours = users_calls()[name], getattr(ops, name)
    compiled = torch.compile(torch_call, dynamic=False)
    slopes: list[Any] = []
    forward = {
        "torch forward": lambda given: torch_call(*given),
        "compile forward": lambda given: compiled(*given),
        "ops forward": lambda given: ours(*given),
    }
    found = direct.interleaved(forward, plain, device, graphs=False, turns=turns).seconds
    whole = {
        "torch both": both(torch_call, slopes),
        "compile both": both(compiled, slopes),
        "ops both": both(ours, slopes),
    }
    found |= direct.interleaved(whole, leaves, device, graphs=False, turns=turns).seconds
    gradient = registry.operator(operator.gradient)
    definition = next(
        (item for item in registry.implementations(gradient.name) if item.name == "torch_definition"), None
    )
    if definition is not None:
        values = gradient.scalar_values({})
        shapes = direct.tensors_for(gradient, axes, dtype, values, device, "contiguous")
        call = direct.prepared(gradient, definition, shapes, axes, dtype, values)
        if not isinstance(call, str):
            alone = direct.interleaved(
                {"definition of the gradient": call}, direct.copies_of(shapes), device, turns=turns
            )
            found |= alone.seconds
    return {"operator": name, "axes": axes, "dtype": dtype, "seconds": found}


def shown(found: dict[str, Any]) -> str:
    """The row in words: microseconds, and PyTorch's time in ours."""
    told = found["seconds"]
    us = {who: f"{value * 1e6:.1f}" for who, value in told.items()}
    parts = [
        f"{kind}: torch {us[f'torch {kind}']} us, compile {us[f'compile {kind}']}, ops {us[f'ops {kind}']} "
        f"({told[f'torch {kind}'] / told[f'ops {kind}']:.2f}×, {told[f'compile {kind}'] / told[f'ops {kind}']:.2f}×)"
        for kind in ("forward", "both")
    ]
    last = us.get("definition of the gradient")
    sizes = "×".join(
        str(part) for value in found["axes"].values() for part in (value if isinstance(value, tuple) else (value,))
    )
    return f"{found['operator']} {sizes} {found['dtype']}: {'; '.join(parts)}" + (
        f"; definition {last}" if last else ""
    )


def main() -> int:
    """What the words above say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", help="default: all that have a gradient of their own")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--beside", type=int, default=0, help="other processes that hold an idle context")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--divide", type=int, default=1, help="divide every size: to try the script without a GPU")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    with idle_contexts(given.beside, given.device):
        for name, axes in ROWS:
            if given.operators and name not in given.operators:
                continue
            smaller = {
                key: tuple(max(1, part // given.divide) for part in value)
                if isinstance(value, tuple)
                else max(1, value // given.divide)
                for key, value in axes.items()
            }
            rows.append(row(name, smaller, given.dtype, given.device, given.turns))
            print(shown(rows[-1]), flush=True)
            if given.json:
                given.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
