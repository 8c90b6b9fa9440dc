"""Attention on a GPU in five minutes: cuda_wgmma verified, then every published shape timed beside its rivals.

OUT=folder python scripts/attention_times.py               everything, into at most six files of $OUT
python scripts/attention_times.py --device cpu --small     does it run? Tiny sizes, and what works on a CPU

1. `opforge verify` of cuda_wgmma in bfloat16 and float16, its instances with and without lengths, ALiBi and sinks; the
   records go to records.jsonl, what was said to verify.txt.
2. Forward: cuda_wgmma (a call without anything beside it, and one with full key_lengths, which takes the other
   instance), triton_gluon, triton_twoloops, with --more others of ours, and PyTorch's cuDNN, FlashAttention-2 and
   FlexAttention, FlashAttention-4 where it can be imported; all interleaved, as CUDA graphs where that works, over
   copies that fit no cache together.
3. Backward: cuda_wgmma, cuda_wgmma_ordered, triton_twokernels, and autograd of cuDNN's and FlashAttention-2's, called.
4. scripts/decode_times.py and scripts/varlen_times.py, into decode.json and varlen.json.

Nothing is begun that would pass --limit; what was left out is said. A rival whose result is not near PyTorch's is not
timed. times.json has every number, table.md the tables.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

SHARES = {"verify": 0.30, "forward": 0.62, "backward": 0.78, "decode": 0.9, "varlen": 1.0}
"""At which part of the limit each step ends; what it leaves is the next one's."""
WITH_LENGTHS = " with lengths"
FORWARD = ("cuda_wgmma", "triton_gluon", "triton_twoloops")
LIBRARIES = ("library_flex",)
"""Rivals that are called through their own files; FlashAttention-4 is called by itself, for its gradients."""
BACKWARD = ("cuda_wgmma", "cuda_wgmma_ordered", "triton_twokernels")


def config_of(name: str, axes: Mapping[str, int]) -> Mapping[str, int]:
    """What a kernel is called with beside its defaults: as fast as it was found, wrong at odd dimensions. At 64
    dimensions two blocks fit a multiprocessor if each thread has 128 registers.
    """
    if name != "triton_twoloops":
        return {}
    most = 128 if axes["head_dim"] <= 64 else 0
    return {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3, "MAXREG": most}


class Watch:
    """Seconds since the start, and those at which each step has to end."""

    def __init__(self, limit: float) -> None:
        self.limit, self.began = limit, time.perf_counter()

    def passed(self) -> float:
        return time.perf_counter() - self.began

    def left(self, step: str) -> float:
        return SHARES[step] * self.limit - self.passed()


def verified(options: Any, watch: Watch, out: Path) -> str:
    """What `opforge verify` says of cuda_wgmma; its records are exported."""
    # before what the caller has there, which may be where torch is
    paths = os.pathsep.join(path for path in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if path)
    environment = {**os.environ, "PYTHONPATH": paths, "OPFORGE_STORE": str(out / "attention.sqlite")}
    wanted = "cuda_wgmma" if options.device == "cuda" else "torch_definition"
    command = [sys.executable, "-m", "opforge", "verify", "attention", "-i", wanted, "--device", options.device]
    command += [word for dtype in ("bfloat16", "float16") for word in ("--dtype", dtype)]
    command += ["--quick"] if options.small else []
    with (out / "verify.txt").open("w") as log:
        try:
            code = subprocess.run(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=max(5.0, watch.left("verify"))
            ).returncode
            said = f"exit code {code}"
        except subprocess.TimeoutExpired:
            said = "ended at its limit: verify.txt has how far it came"
    subprocess.run(
        [sys.executable, "-m", "opforge", "records", "export", str(out / "records.jsonl")],
        env=environment, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    for path in out.glob("attention.sqlite*"):
        path.unlink()
    lines = [
        line for line in (out / "verify.txt").read_text().splitlines() if wanted in line and " record " not in line
    ]
    return "\n".join([f"{wanted}: {said}", *lines[-4:]])


def rivals(causal: bool, window: int, device: str) -> dict[str, Callable[[Sequence[Any]], Any]]:
    """What users call instead, by name; one that a call does not fit raises when it is tried."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def sdpa(given: Sequence[Any], backend: Any) -> Any:
        q, k, v = given[:3]
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    found: dict[str, Callable[[Sequence[Any]], Any]] = {}
    if window < 0:
        found["FA2"] = functools.partial(sdpa, backend=SDPBackend.FLASH_ATTENTION)
        if device == "cuda":
            found["cuDNN"] = functools.partial(sdpa, backend=SDPBackend.CUDNN_ATTENTION)
    try:
        theirs = importlib.import_module("flash_attn.cute.interface").flash_attn_func
    except (ImportError, RuntimeError, OSError):
        return found

    def fa4(given: Sequence[Any]) -> Any:
        q, k, v = (tensor.transpose(1, 2) for tensor in given[:3])
        made = theirs(q, k, v, causal=causal, window_size=(window if window >= 0 else None, None))
        return (made[0] if isinstance(made, tuple) else made).transpose(1, 2)

    del torch
    return {**found, "FA4": fa4}


def inputs_of(axes: Mapping[str, int], dtype: str, device: str) -> list[Any]:
    """q, k, v and nothing beside them."""
    import torch

    heads = axes["kv_heads"] * axes["group"]
    shapes = [(axes["batch"], heads, axes["queries"], axes["head_dim"])]
    shapes += [(axes["batch"], axes["kv_heads"], axes["keys"], axes[dim]) for dim in ("head_dim", "value_dim")]
    return [*(torch.randn(shape, device=device).to(getattr(torch, dtype)) for shape in shapes), *[None] * 5]


def forward_row(registry: Any, workload: Any, axes: Any, options: Any) -> dict[str, Any]:
    """Seconds of one workload by who computes it; who was left out, and why."""
    import torch
    from direct import copies_of, interleaved, kernel_errors, prepared, reason_of, right

    from opforge.core.definition.implementation import Config

    operator, dtype = registry.operator("attention"), options.dtype
    scalars = operator.scalar_values(workload.scalars)
    tensors = inputs_of(axes, dtype, options.device)
    lengths = torch.full((axes["batch"],), axes["keys"], dtype=torch.int32, device=options.device)
    calls: dict[str, Callable[[Sequence[Any]], Any]] = dict(
        rivals(bool(scalars["causal"]), int(scalars["window_left"]), options.device)
    )
    notes: dict[str, str] = {}
    names = (*FORWARD, *options.more, *LIBRARIES) if options.device == "cuda" else ("cpp_blocked",)
    for name in names:
        asked = {} if options.small else config_of(name, axes)
        config = Config(values=tuple(asked.items())) if asked else None
        item = registry.implementation("attention", name)
        try:
            call = prepared(operator, item, tensors, axes, dtype, scalars, config)
            if isinstance(call, str):
                notes[name] = call
                continue
            calls[name] = call
            if name == names[0]:
                padded = prepared(operator, item, [*tensors[:3], lengths, *tensors[4:]], axes, dtype, scalars)
                if isinstance(padded, str):
                    notes[f"{name}{WITH_LENGTHS}"] = padded
                else:
                    calls[f"{name}{WITH_LENGTHS}"] = lambda given, padded=padded: padded(
                        [*given[:3], lengths, *given[4:]]
                    )
        except kernel_errors() as error:
            notes[name] = reason_of(error)
    wanted: Any = None
    for name in list(calls):
        try:
            made = calls[name](tensors)
            out = made[0] if isinstance(made, tuple) else made
            wanted = out.clone() if wanted is None else wanted
            if not right(out, wanted, dtype):
                notes[name] = "is not near the first of these results: not timed"
                del calls[name]
        except kernel_errors() as error:
            notes[name] = reason_of(error)
            del calls[name]
    times = interleaved(calls, copies_of(tensors), options.device, turns=options.turns)
    notes |= {name: f"called, no graph: {reason}" for name, reason in times.called.items()}
    flops = operator.cost(axes, dtype, scalars).flops
    return {"workload": workload.name, "flops": flops, "seconds": times.seconds, "notes": notes}


def backward_row(registry: Any, workload: Any, axes: Any, options: Any) -> dict[str, Any]:
    """Seconds of the gradients: opforge's kernels by their names, rivals by autograd; all called."""
    import torch
    from direct import interleaved, kernel_errors, prepared, reason_of, right

    operator, dtype = registry.operator("attention_backward"), options.dtype
    scalars = operator.scalar_values(workload.scalars)
    tensors = inputs_of(axes, dtype, options.device)
    dout = torch.randn_like(tensors[0][..., : axes["value_dim"]])
    calls: dict[str, Callable[[Sequence[Any]], Any]] = {}
    notes: dict[str, str] = {}
    for name, rival in rivals(bool(scalars["causal"]), int(scalars["window_left"]), options.device).items():
        try:
            leaves = [tensor.detach().requires_grad_() for tensor in tensors[:3]]
            made = rival(leaves)
            calls[name] = lambda _, made=made, leaves=leaves: torch.autograd.grad(made, leaves, dout, retain_graph=True)
            calls[name](())
        except kernel_errors() as error:
            notes[name] = reason_of(error)
            calls.pop(name, None)
    wanted = calls[next(iter(calls))](()) if calls else None
    try:
        plain = registry.operator("attention")
        maker = registry.implementation("attention", "cuda_wgmma" if options.device == "cuda" else "cpp_blocked")
        forward = prepared(plain, maker, tensors, axes, dtype, plain.scalar_values(workload.scalars))
        if isinstance(forward, str):
            raise RuntimeError(forward)
        out, lse = (result.clone() for result in forward(tensors))
    except kernel_errors() as error:
        notes["attention"] = reason_of(error)
        return {"workload": workload.name, "flops": 0.0, "seconds": {}, "notes": notes}
    given = [*tensors[:3], out, lse, dout, torch.zeros_like(lse), *[None] * 5]
    for name in BACKWARD if options.device == "cuda" else ("torch_definition",):
        try:
            item = registry.implementation("attention_backward", name)
            call = prepared(operator, item, given, axes, dtype, scalars)
            if isinstance(call, str):
                notes[name] = call
                continue
            made = [gradient.clone() for gradient in call(given)]
            wanted = wanted or made
            if not all(right(ours, theirs, dtype) for ours, theirs in zip(made, wanted, strict=True)):
                notes[name] = "is not near the first of these results: not timed"
                continue
            calls[name] = lambda _, call=call: call(given)
        except kernel_errors() as error:
            notes[name] = reason_of(error)
    times = interleaved(calls, [(), ()], options.device, graphs=False, turns=options.turns)
    flops = operator.cost(axes, dtype, scalars).flops
    return {"workload": workload.name, "flops": flops, "seconds": times.seconds, "notes": notes}


def table(title: str, rows: Sequence[dict[str, Any]]) -> str:
    """TFLOP/s of each workload by who computes it, ours over the best of the others, and the geometric mean of that."""
    names = list(dict.fromkeys(name for row in rows for name in row["seconds"]))
    own = [name for name in names if name.startswith(("cuda_", "triton_", "tilelang_", "cpp_", "torch_"))]
    # lengths are asked for in every tile: another call than the rivals'
    ours = [name for name in own if not name.endswith(WITH_LENGTHS)]
    lines = [
        f"## {title}",
        "",
        f"| TFLOP/s | {' | '.join(names)} | ours / best rival |",
        "|---" * (len(names) + 2) + "|",
    ]
    ratios = []
    for row in rows:
        cells = [
            f"{row['flops'] / row['seconds'][name] / 1e12:.3g}" if name in row["seconds"] else "" for name in names
        ]
        mine = [row["seconds"][name] for name in ours if name in row["seconds"]]
        theirs = [seconds for name, seconds in row["seconds"].items() if name not in own]
        ratio = min(theirs) / min(mine) if mine and theirs else None
        ratios += [] if ratio is None else [ratio]
        lines.append(f"| {row['workload']} | {' | '.join(cells)} | {'' if ratio is None else f'{ratio:.2f}'} |")
    if ratios:
        lines += ["", f"Geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.2f}."]
    notes = [f"- {row['workload']}, {name}: {note}" for row in rows for name, note in row["notes"].items()]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--small", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--limit", type=float, default=290.0, help="seconds for everything")
    parser.add_argument("--workloads", nargs="+", default=[], help="these alone, by name")
    parser.add_argument("--more", nargs="+", default=[], help="implementations to time forward besides")
    parser.add_argument("--skip", nargs="+", default=[], choices=list(SHARES), help="steps to leave out")
    options = parser.parse_args()
    out = Path(os.environ.get("OUT", "attention-times"))
    out.mkdir(parents=True, exist_ok=True)

    import torch

    from opforge.registry import load

    watch, registry = Watch(options.limit), load([])
    where = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    parts = [f"# Attention on {where}, {options.dtype}, PyTorch {torch.__version__}"]
    kept: dict[str, Any] = {"device": where, "torch": torch.__version__, "dtype": options.dtype}

    def told(part: str) -> None:
        parts.append(part)
        print(part, flush=True)
        # after each step: what was measured is kept if the machine goes away
        (out / "table.md").write_text("\n\n".join(parts) + "\n")
        (out / "times.json").write_text(json.dumps(kept, indent=1))

    if "verify" not in options.skip:
        told(f"## Verified\n\n{verified(options, watch, out)}")
    for step, measure in (("forward", forward_row), ("backward", backward_row)):
        if step in options.skip:
            continue
        rows, late = [], []
        for workload in registry.operator("attention").workloads:
            if workload.scale != "gpu" or (options.workloads and workload.name not in options.workloads):
                continue
            if watch.left(step) <= 0:
                late.append(workload.name)
                continue
            axes = dict(workload.axes)
            if options.small:
                axes |= {"batch": 1, "queries": min(axes["queries"], 96), "keys": min(axes["keys"], 96), "kv_heads": 1}
            rows.append(measure(registry, workload, axes, options))
            if options.device == "cuda":
                torch.cuda.empty_cache()
        kept[step] = rows
        told(table(step, rows) + (f"\n\nNot begun, their time was over: {', '.join(late)}" if late else ""))
    for step in ("decode", "varlen"):
        if step in options.skip:
            continue
        room = watch.left(step)
        if room < 8:
            told(f"## {step}\n\nNot begun: its time was over.")
            continue
        command = [sys.executable, str(ROOT / "scripts" / f"{step}_times.py"), "--device", options.device]
        command += ["--limit", f"{room * 0.7:.0f}", "--json", str(out / f"{step}.json"), "--turns", str(options.turns)]
        command += ["--small"] if options.small else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=room + 15, check=False)
            said = done.stdout if done.returncode == 0 else done.stdout + done.stderr[-800:]
        except subprocess.TimeoutExpired as error:
            said = f"ended at its limit\n{(error.stdout or b'').decode() if isinstance(error.stdout, bytes) else ''}"
        told(f"## {step}\n\n```\n{said.strip()}\n```")
    print(f"{watch.passed():.0f} s; {', '.join(sorted(path.name for path in out.iterdir()))} in {out}")


if __name__ == "__main__":
    main()
