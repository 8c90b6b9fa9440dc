"""Planted bugs: the ten classic mistakes of kernels, in each of ten operators. The verifier has to find them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opforge.core.evidence.verdict import FAILURES
from opforge.registry import Home, Registry
from opforge.registry.discovery import PACKAGE_HOME, find_operator
from opforge.runner import Isolated
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import QUICK

EFFORT = replace(
    QUICK, hidden=8, elements=1 << 11, emulated_elements=1 << 9, own=True, seconds=2.0, repeats=60, shrink_s=0.0
)

# parameters and right answer of each operator, for float32 and, by computing in it, for what is narrower
RIGHT = {
    "vector_add": ("x, y", "x + y"),
    "bias_add": ("x, bias", "x + bias"),
    "relu": ("x", "torch.where(x <= 0, torch.zeros(()), x)"),
    "gelu": ("x, approximate", "torch.nn.functional.gelu(x, approximate=approximate)"),
    "silu_mul": ("gate, up", "torch.nn.functional.silu(gate) * up"),
    "softmax": ("x", "torch.softmax(x, dim=-1)"),
    "layernorm": ("x, weight, bias, eps", "torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)"),
    "rmsnorm": ("x, weight, eps", "x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight"),
    "mean_var": ("x", "(x.mean(dim=-1), x.var(dim=-1, correction=0))"),
    "matmul": ("a, b, precision", "a @ b"),
}
# another constant where the operator has one: an eps, a slope, a scale
EPS = {
    "vector_add": "x + y + 1e-4",
    "bias_add": "x + bias + 1e-4",
    "relu": "torch.where(x <= 1e-3, torch.zeros(()), x)",
    "gelu": "torch.nn.functional.gelu(x, approximate='none' if approximate == 'tanh' else 'tanh')",
    "silu_mul": "torch.nn.functional.silu(gate * 1.001) * up",
    "softmax": "(x - x.amax(dim=-1, keepdim=True)).exp() / ((x - x.amax(dim=-1, keepdim=True)).exp().sum(dim=-1, "
    "keepdim=True) + 1e-3)",
    "layernorm": "torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-3)",
    "rmsnorm": "x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-3) * weight",
    "mean_var": "(x.mean(dim=-1), x.var(dim=-1, correction=1))",
    "matmul": "a @ b + 1e-3",
}
# one more or one less in an index, where the operator has one of its own; elsewhere the elements from 256 on are off by
# one
INDEX = {
    "bias_add": "x + bias.flatten().roll(1).reshape(bias.shape)",
    "layernorm": "torch.nn.functional.layer_norm(x, x.shape[-1:], weight.roll(1), bias, eps)",
    "rmsnorm": "x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.roll(1)",
    "mean_var": "(x.mean(dim=-1), x[..., : max(1, x.shape[-1] - 1)].var(dim=-1, correction=0))",
    "matmul": "a.roll(1, dims=1) @ b",
}
# what happens before and after the right answer; `first` is the first input, `out` the last output
KINDS = {
    "tail": ("", "flat = out.view(-1); flat[flat.numel() // 8 * 8 :] = 0"),
    "mask": ("", "wide = out if out.ndim > 1 else out.view(1, -1); wide[..., wide.shape[-1] // 16 * 16 :] += 1"),
    "stride": ("", ""),
    "eps": ("", ""),
    "accumulator": ("", ""),
    "nan": ("", "out.nan_to_num_(nan=0.0)"),
    "index": ("", "flat = out.view(-1); flat[256:] = flat[256:].roll(1)"),
    "init": (
        "",
        "kept = KEPT.setdefault(tuple(out.shape), torch.zeros(out.shape)); kept += out.nan_to_num(0.0, 0.0, "
        "0.0); out += kept - out.nan_to_num(0.0, 0.0, 0.0)",
    ),
    "race": ("", "CALLS[0] += 1; out.view(-1)[: out.numel() * (CALLS[0] % 9 == 8)].mul_(1.5).add_(0.5)"),
    "over": ("torch.empty(0).set_(first.untyped_storage(), first.storage_offset() + span, (1,)).zero_()", ""),
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """One planted bug: whether the verdict was a failure, which, and how long it took in seconds."""

    operator: str
    kind: str
    found: bool
    verdict: str
    seconds: float


def source(operator: str, kind: str) -> str:
    """The file of one planted bug."""
    parameters, right = RIGHT[operator]
    names = parameters.split(", ")
    tensors = [name for name in names if name not in ("eps", "approximate", "precision")]
    before, after = KINDS[kind]
    if kind == "eps":
        right = EPS[operator]
    if kind == "index" and operator in INDEX:
        right, after = INDEX[operator], ""
    lines = [f"first = {tensors[0]}"]
    if kind == "over":
        lines.append(
            "span = 1 + sum((extent - 1) * stride for extent, stride in zip(first.shape, first.stride())) if "
            "first.numel() else 0"
        )
    if kind == "stride":
        lines.append(
            f"{tensors[0]} = first.as_strided(first.shape, torch.empty(first.shape).stride()) if first.numel() else "
            "first"
        )
    lines.append(before)
    lines += [f"{name} = {name}.{'bfloat16().' if kind == 'accumulator' else ''}float()" for name in tensors]
    lines += [
        f"result = {right}",
        "result = result if isinstance(result, tuple) else (result,)",
        "result = tuple(item.clone(memory_format=torch.contiguous_format) for item in result)",
    ]
    lines += ["out = result[-1]", after]
    lines += [
        "result = tuple(item.to(first.dtype) for item in result)",
        "return result if len(result) > 1 else result[0]",
    ]
    body = "\n    ".join(line for line in lines if line)
    return (
        f'"""A planted bug: {kind} in {operator}."""\n\nimport torch\n\nKEPT = {{}}\nCALLS = [0]\n\n\ndef '
        f"run({parameters}):\n    {body}\n"
    )


def write_home(folder: Path) -> Registry:
    """The package's own definitions, with planted bugs as their implementations."""
    for operator in RIGHT:
        place = folder / operator
        place.mkdir(parents=True)
        names = [f"torch_{kind}" for kind in KINDS] + ["torch_right"]
        text = (find_operator(PACKAGE_HOME, operator) / "op.py").read_text(encoding="utf-8")
        text, count = re.subn(r"implementations=\([^)]*\)", f"implementations={tuple(names)!r}", text)
        assert count == 1, operator
        # the operator of its gradients is not in this home
        text = re.sub(r"^    gradient=.*\n", "", text, flags=re.MULTILINE)
        (place / "op.py").write_text(text, encoding="utf-8")
        for kind in KINDS:
            (place / f"torch_{kind}.py").write_text(source(operator, kind), encoding="utf-8")
        (place / "torch_right.py").write_text(source(operator, "race").replace("% 9 == 8", "< 0"), encoding="utf-8")
    return Registry((Home(folder, "red team"),))


def hunt(folder: Path, kinds: Sequence[str] = tuple(KINDS), operators: Sequence[str] = tuple(RIGHT)) -> Iterator[Found]:
    """Verify every planted bug. The right implementation of each operator, which all of them are made from, comes
    first.
    """
    registry = write_home(folder)
    with Isolated() as host:
        for operator in operators:
            bench = CaseCache(registry=registry, operator=registry.operator(operator), host=host, device="cpu")
            try:
                for kind in ("right", *kinds):
                    # where NaN and infinities are defined in float16 alone, that is where they are looked for
                    special = {case.dtype for case in bench.operator.cases if case.distribution == "special"}
                    dtype = "float16" if kind == "nan" and special == {"float16"} else "float32"
                    began = time.perf_counter()
                    verdict = verify(bench, registry.implementation(operator, f"torch_{kind}"), dtype, effort=EFFORT)
                    took = time.perf_counter() - began
                    yield Found(
                        operator=operator,
                        kind=kind,
                        found=isinstance(verdict, FAILURES) != (kind == "right"),
                        verdict=type(verdict).__name__,
                        seconds=took,
                    )
            finally:
                bench.close()
