"""What a user of opforge.ops gets, beside every implementation called directly, PyTorch, torch.compile and (where it
can be imported) QuACK.

python scripts/as_called.py                    the six shapes that dispatch once chose badly for, on a GPU
python scripts/as_called.py --json FILE

`opforge.ops` is called as a user calls it, and what is there of evidence decides: the records of this machine's store
(OPFORGE_STORE) and those that the package brings. Exit code 1 where a call takes more than 3 % longer than the best of
opforge's own kernels, or than PyTorch's function.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

ROOM = 1.03
SHAPES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("softmax", {"lead": (4096,), "cols": 65536}, "contiguous"),
    ("rmsnorm", {"lead": (4096,), "cols": 65536}, "contiguous"),
    ("layernorm", {"lead": (8192,), "cols": 16384}, "contiguous"),
    ("layernorm", {"lead": (4096,), "cols": 65536}, "contiguous"),
    ("matmul", {"m": 3000, "n": 5000, "k": 7000}, "contiguous transposed"),
    ("matmul", {"m": 4097, "n": 4095, "k": 4093}, "contiguous"),
)
SLOW = ("cuda_naive", "triton_naive", "cuda_shared")


def others(operator: str) -> tuple[dict[str, Callable[[Sequence[Any]], Any]], dict[str, str]]:
    """What users call instead, by name, QuACK's where it can be imported; and who was left out, with the reason."""
    import direct
    import torch
    from torch.nn import functional as F

    left_out: dict[str, str] = {}

    eager: dict[str, Callable[..., Any]] = {
        "softmax": lambda x: torch.softmax(x, -1),
        "rmsnorm": lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-6),
        "layernorm": lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias, 1e-5),
        "matmul": torch.matmul,
    }
    call = eager[operator]
    compiled = torch.compile(call, dynamic=False)
    found: dict[str, Callable[[Sequence[Any]], Any]] = {
        "torch": lambda given: call(*given),
        "torch.compile": lambda given: compiled(*given),
    }
    try:
        import quack  # type: ignore[import-not-found]

        theirs: dict[str, Callable[..., Any]] = {
            "softmax": lambda x: quack.softmax(x),
            "rmsnorm": lambda x, weight: quack.rmsnorm(x, weight, eps=1e-6),
            "layernorm": lambda x, weight, bias: quack.layernorm(x, weight.float(), bias.float(), eps=1e-5),
        }
        if operator in theirs:
            found["QuACK"] = lambda given: theirs[operator](*given)
    except (ImportError, RuntimeError, OSError) as error:
        # it is not there, or not for this machine
        left_out["QuACK"] = direct.reason_of(error)
    return found, left_out


def row(name: str, axes: dict[str, Any], layout: str, device: str, dtype: str) -> dict[str, Any]:
    """One line of the table: seconds by who was called, and why dispatch took what it took."""
    import direct

    import opforge.ops as ops
    from opforge.core.definition.implementation import COMPARED_WITH
    from opforge.registry import load

    registry = load()
    operator = registry.operator(name)
    scalars = operator.scalar_values({})
    tensors = direct.tensors_for(operator, axes, dtype, scalars, device, layout)
    function = getattr(ops, name)
    why = function.why(*tensors)
    calls: dict[str, Callable[[Sequence[Any]], Any]] = {"ops": lambda given: function(*given)}
    theirs, left_out = others(name)
    expected = theirs["torch"](tensors)
    for item in registry.implementations(name):
        if item.backend in COMPARED_WITH or item.name in SLOW or item.backend == "tilelang":
            continue
        try:
            call = direct.prepared(operator, item, tensors, axes, dtype, scalars)
            if isinstance(call, str) or not direct.right(call(tensors), expected, dtype):
                left_out[item.name] = call if isinstance(call, str) else "far from PyTorch's answer"
            else:
                calls[item.name] = call
        except direct.kernel_errors() as error:
            left_out[item.name] = direct.reason_of(error)
    for who, call in theirs.items():
        try:
            call(tensors)
        except direct.kernel_errors() as error:
            left_out[who] = direct.reason_of(error)
        else:
            calls[who] = call
    # as a caller has it: no graph, the allocation of the result in it
    times = direct.interleaved(calls, direct.copies_of(tensors), device, graphs=False).seconds
    cost = operator.cost(axes, dtype, scalars)
    own = {
        who: value
        for who, value in times.items()
        if who in {item.name for item in registry.implementations(name)} and not who.startswith("torch")
    }
    best = min(own, key=lambda who: own[who])
    return {
        "operator": name, "axes": axes, "layout": layout, "dtype": dtype, "chosen": why.implementation.name,
        "why": str(why), "times": times,
        "best": best, "over": times["ops"] / own[best], "beside_torch": times["ops"] / times["torch"],
        "flops": cost.flops, "bytes": cost.bytes, "left_out": left_out,
    }  # fmt: skip


def shown(found: dict[str, Any]) -> str:
    """The row in words: rates, because that is what the shapes are compared by."""
    product = found["operator"] == "matmul"
    scale, unit = (found["flops"] / 1e12, "TFLOP/s") if product else (found["bytes"] / 1e12, "TB/s")
    rate = {who: f"{scale / value:.{0 if product else 2}f}" for who, value in found["times"].items()}
    sizes = "×".join(str(value[0] if isinstance(value, tuple) else value) for value in found["axes"].values())
    beside = ", ".join(f"{who} {rate[who]}" for who in ("torch", "torch.compile", "QuACK") if who in rate)
    longer = [
        f"{found[against] - 1:.1%} LONGER than {whom}"
        for against, whom in (("over", "the best of ours"), ("beside_torch", "PyTorch"))
        if not found[against] <= ROOM
    ]
    verdict = " and ".join(longer) or "ok"
    where = "" if found["layout"] == "contiguous" else f" {found['layout']}"
    return (
        f"{found['operator']} {sizes}{where}: ops → {found['chosen']} {rate['ops']} {unit}; best of ours "
        f"{found['best']} {rate[found['best']]}; {beside}: {verdict}"
    )


def table(device: str, dtype: str, divide: int, file: Path | None) -> list[dict[str, Any]]:
    """The rows, each printed and, where a file is named, written there as soon as it is known."""
    rows: list[dict[str, Any]] = []
    for name, axes, layout in SHAPES:
        smaller = {
            key: tuple(max(1, part // divide) for part in value)
            if isinstance(value, tuple)
            else max(1, value // divide)
            for key, value in axes.items()
        }
        found = row(name, smaller, layout, device, dtype)
        rows.append(found)
        print(shown(found), flush=True)
        print(f"    {found['why']}", flush=True)
        if file:
            file.write_text(json.dumps(rows, indent=1))
    return rows


def main() -> int:
    """What the words above say."""
    from opforge.registry import load
    from opforge.trial.compile_ahead import compiling_ahead

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--divide", type=int, default=1, help="divide every size by this: to try the script where there is no GPU"
    )
    given = parser.parse_args()
    named = dict.fromkeys(name for name, *_ in SHAPES)
    # the compilers of all of them work while the first are timed: calls are on the device, compilers are not
    with compiling_ahead([item for name in named for item in load().implementations(name)], given.device):
        rows = table(given.device, given.dtype, given.divide, given.json)
    worst, slowest = (max(found[against] for found in rows) for against in ("over", "beside_torch"))
    print(
        f"the worst of {len(rows)} is {worst - 1:+.1%} beside the best of opforge's own kernels, and "
        f"{slowest - 1:+.1%} beside PyTorch's function; {ROOM - 1:.0%} are allowed"
    )
    return int(not max(worst, slowest) <= ROOM)


if __name__ == "__main__":
    sys.exit(main())
