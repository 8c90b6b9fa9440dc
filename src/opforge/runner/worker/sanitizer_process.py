"""The process that compute-sanitizer watches: `python -m opforge.runner.worker.sanitizer_process JOB REPORT`.

JOB is JSON: homes, operator, implementation, dtype, device, config, and cases, each with its name, axes, distribution,
layout, scalars and seed; or a list of such jobs. A line of JSON for each step goes to REPORT; each case is announced on
stdout, between the tool's own lines, under the `label` of its job. Values are not judged here: what is asked is what
the kernel touches.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from opforge.core.definition.call_form import formed
from opforge.core.definition.implementation import Config, Rejected
from opforge.core.definition.operator import Case
from opforge.registry import Home, Registry
from opforge.runner.worker.arena import Slot, view
from opforge.runner.worker.inputs import allocate, fill
from opforge.runner.worker.launch import bind
from opforge.runner.worker.sanitizer import MARK

SETTLE_S = 0.05
"""The tool's lines come from another process: they get this long to be written before the next case is announced."""


def main(job: Mapping[str, Any], tell: Callable[..., None]) -> None:
    """Run every case of a job."""
    import torch

    registry = Registry(tuple(Home(Path(home), "parent") for home in job["homes"]))
    operator = registry.operator(job["operator"])
    implementation = registry.implementation(job["operator"], job["implementation"])
    config = None if job["config"] is None else Config(tuple((name, value) for name, value in job["config"]))
    device = torch.device(job["device"])
    for described in job["cases"]:
        case = Case(
            **{
                **described,
                "axes": {
                    name: tuple(value) if isinstance(value, list) else value
                    for name, value in described["axes"].items()
                },
                "why": "",
            }
        )
        assert case.seed is not None
        arena = allocate(operator, case, job["dtype"])
        fill(arena, operator, case, case.seed)
        tensors = {
            slot.name: _apart(slot, arena.bytes() if slot.role == "input" else None, device) for slot in arena.slots
        }
        arena.close()
        call = formed(operator, {**case.axes, **case.scalars})
        inputs, outputs = (
            {spec.name: tensors[spec.overwrites or spec.name] for spec in specs}
            for specs in (call.inputs, call.outputs)
        )
        name = job.get("label", "") + case.name
        print(f"{MARK} {name}", flush=True)
        launch = bind(
            operator,
            implementation,
            inputs,
            outputs,
            operator.scalar_values(case.scalars),
            case.axes,
            job["dtype"],
            config,
        )
        if isinstance(launch, Rejected):
            tell(case=name, status="rejected", reason=launch.reason)
            continue
        launch.run()
        launch.read()
        time.sleep(SETTLE_S)
        tell(case=name, status="done")


def _apart(slot: Slot, whole: Any, device: Any) -> Any:
    """A slot's tensor in an allocation of its own that ends where the tensor does; its bytes copied from `whole`, or
    left unwritten.
    """
    import torch

    # what lies before the first element keeps the tensor as misaligned as it was
    ahead = slot.offset % 256
    memory = torch.empty(ahead + slot.span_bytes, dtype=torch.uint8, device=device)
    if whole is not None and slot.span_bytes:
        memory.copy_(whole[slot.offset - ahead : slot.offset + slot.span_bytes])
    return view(memory, replace(slot, offset=ahead))


if __name__ == "__main__":
    with Path(sys.argv[2]).open("w", encoding="utf-8", buffering=1) as report:

        def write(**said: str) -> None:
            report.write(json.dumps(said) + "\n")

        try:
            asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
            for one in asked if isinstance(asked, list) else [asked]:
                main(one, write)
            write(case="", status="end")
        # the boundary to foreign code: whatever it raises is told to the parent, which judges
        except Exception as error:  # noqa: BLE001
            write(case="", status="failed", reason=f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")
