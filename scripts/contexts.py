"""Whether rivals that are alive change a GPU's times: `scripts/contexts.py --limit 300`.

Every implementation is in a process of its own, with a context of its own on the device. For each of them there are the
medians of: `alone`, while no other process has a context; `beside idle rivals`, which are alive and called by nobody;
`among`, measured turn about with them; and of scripts/plain_loop.py, which shares no code with the timing, in a process
alone, and beside all of them. Printed is each over the plain loop's alone. Exit code 1 where one is off by more than
5 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plain_loops import Loop, Loops
from trust_times import WITHIN, bound

from opforge.backends import backend
from opforge.core.definition.operator import Case
from opforge.core.evidence.timing import Untimed
from opforge.core.evidence.verdict import Pass
from opforge.registry import load
from opforge.runner import Isolated
from opforge.runner.wire.messages import Failed, Run
from opforge.timing import Candidate, Plan, measure
from opforge.verify import CaseCache

ASKED = {
    "softmax": "rows_4k",
    "rmsnorm": "llama3_8b",
    "layernorm": "bert_large",
    "gelu": "mlp_bert_large",
    "silu_mul": "mlp_llama3_8b_decode",
    "vector_add": "residual_llama3_8b_decode",
    "cross_entropy": "vocabulary_llama3",
    "matmul": "attention_out_llama3_8b",
}
"""Six calls of 100 to 270 MB, which miss a GPU's cache, and two of 2 and 6 MB, which it holds."""
BACKENDS = {"cuda": ("torch", "compile", "triton", "cuda"), "cpu": ("torch", "compile", "cpp", "tilelang")}
WAYS = ("alone", "beside idle rivals", "among", "plain beside all")
BUDGET_S = 0.4
PROOF: Any = Pass(checked=(), not_taken=(), isolation="")


class Bench:
    """Workers of one operator's implementations on one workload, and plain loops beside them."""

    def __init__(self, operator: str, workload: str, dtype: str, device: str, host: Isolated, loops: Loops) -> None:
        self.registry = load([])
        self.operator = self.registry.operator(operator)
        fitting = [item for item in self.operator.workloads if item.scale == ("laptop" if device == "cpu" else "gpu")]
        self.workload = next((item for item in fitting if item.name == workload), fitting[0])
        self.timers: set[str] = set()
        self.dtype, self.device, self.host, self.loops = dtype, device, host, loops
        by_backend = {item.backend: item for item in reversed(self.registry.implementations(operator))}
        self.sides = [
            by_backend[word].name
            for word in BACKENDS[device]
            if word in by_backend and dtype in (by_backend[word].dtypes or self.operator.dtypes)
        ]

    @contextlib.contextmanager
    def workers(self, names: Sequence[str]) -> Iterator[Mapping[str, Candidate]]:
        """A worker for each of these, bound to the call that a caller makes."""
        one = self.workload
        case = Case(name=one.name, axes=one.axes, why=one.source, scalars=one.scalars)
        with contextlib.ExitStack() as stack:
            cases = CaseCache(registry=self.registry, operator=self.operator, host=self.host, device=self.device)
            stack.callback(cases.close)
            prepared = cases.prepare(case, self.dtype)
            found = {}
            for name in names:
                item = self.registry.implementation(self.operator.name, name)
                ask, launch = bound(stack, cases, prepared, item, backend(item.backend).environment(self.device))
                found[name] = Candidate(name=name, proof=PROOF, ask=ask, launch=launch)
            prepared.reset()
            for one in found.values():
                # what a caller has behind them: compilers that run at the first call, and the content
                for _ in range(2):
                    ran = one.ask(Run(launch=one.launch))
                    if isinstance(ran, Failed):
                        raise RuntimeError(f"{one.name}: {ran.reason}")
            yield found

    @contextlib.contextmanager
    def loop(self, name: str) -> Iterator[Loop]:
        """A plain loop of an implementation, warm."""
        device = () if self.device == "cpu" else (self.device,)
        loop = self.loops.loop(self.operator.name, name, self.workload.name, self.dtype, *device)
        try:
            loop.take()
            yield loop
        finally:
            loop.close()

    def times(self) -> dict[str, dict[str, float]]:
        """Seconds per call, by implementation and by how they were taken."""
        seen: dict[str, dict[str, float]] = {name: {} for name in self.sides}
        for name in self.sides:
            with self.loop(name) as loop:
                seen[name]["plain"] = loop.take()
            with self.workers([name]) as found:
                seen[name]["alone"] = self.timed(found)[name]
        with self.workers(self.sides) as found:
            for name in self.sides:
                seen[name]["beside idle rivals"] = self.timed({name: found[name]})[name]
            for name, taken in self.timed(found).items():
                seen[name]["among"] = taken
            for name in self.sides:
                with self.loop(name) as loop:
                    seen[name]["plain beside all"] = loop.take()
        return seen

    def timed(self, candidates: Mapping[str, Candidate]) -> dict[str, float]:
        """Medians by our timing, seconds per call."""
        fresh = [
            Candidate(name=one.name, proof=one.proof, ask=one.ask, launch=one.launch) for one in candidates.values()
        ]
        found = {}
        for name, value in measure(fresh, Plan(budget_s=BUDGET_S), overhead_s=0.0, device=self.device).items():
            if isinstance(value, Untimed):
                raise RuntimeError(value.reason)
            found[name] = value.median_s
            self.timers.add(value.timer)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--operator", action="append", help="default: " + ", ".join(ASKED))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds; no operator is begun after them")
    parser.add_argument("--json", type=Path, help="where the times go")
    given = parser.parse_args()
    started, found, off = time.monotonic(), {}, 0
    print(f"| operator, workload | implementation | plain loop, alone | {' | '.join(WAYS)} |")
    print("| --- | --- |" + " ---: |" * (1 + len(WAYS)))
    with Isolated() as host, contextlib.closing(Loops({})) as loops:
        for name in given.operator or ASKED:
            if time.monotonic() - started > given.limit:
                print(f"{name} and what follows was not asked: {given.limit:.0f} s are over")
                break
            bench = Bench(name, ASKED.get(name, ""), given.dtype, given.device, host, loops)
            for side, times in bench.times().items():
                ratios = {way: times[way] / times["plain"] for way in WAYS}
                off += sum(abs(ratio - 1) > WITHIN for ratio in ratios.values())
                found[f"{name} {bench.workload.name} {side}"] = times
                print(
                    f"| {name} {bench.workload.name} | {side} | {times['plain'] * 1e6:.2f} us | "
                    + " | ".join(f"{ratio:.3f}" for ratio in ratios.values())
                    + " |",
                    flush=True,
                )
            print(f"  by {', '.join(sorted(bench.timers))}", file=sys.stderr)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    print(f"{off} ratios are off by more than {WITHIN:.0%}; {time.monotonic() - started:.0f} s")
    return 1 if off or not found else 0


if __name__ == "__main__":
    sys.exit(main())
