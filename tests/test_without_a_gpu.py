"""What needs a GPU says so where there is none, and what to do instead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from typer.testing import CliRunner

from opforge.cli.app import command_line
from opforge.inspect import offline
from opforge.registry import load
from opforge.tuning.space import TuneOptions, eligible, none_eligible


def test_tune_says_why_an_interpreted_kernel_is_no_choice() -> None:
    """ "No implementation takes this workload" was said beside a Pass."""
    registry = load([])
    operator = registry.operator("softmax")
    options = TuneOptions(device="cpu", backends=("triton",))
    given = registry, operator, operator.workloads[0], "float32", options
    assert eligible(*given) == []
    why = none_eligible(*given)
    assert (
        "triton_online (interpreter)" in why and "can be verified here and not timed" in why and "--device cuda" in why
    )
    taken = none_eligible(*given[:4], TuneOptions(device="cpu", implementations=("torch_eager",)))
    assert taken == "no implementation that was asked for takes this workload here"


def test_diagnose_says_that_it_needs_a_gpu() -> None:
    """Its subject is a time; what an interpreter takes is none."""
    done = CliRunner().invoke(command_line(["diagnose"]), ["diagnose", "softmax", "triton_online"])
    assert done.exit_code != 0
    said = str(done.exception) + done.output
    assert "diagnose needs a time" in said and "interpreter" in said and "opforge inspect softmax triton_online" in said


def test_each_configuration_of_an_autotuned_kernel_is_named() -> None:
    """A block for each was printed, and which was which was left to guess."""
    use: Any = offline.KernelUse(**dict.fromkeys(offline.KernelUse.__dataclass_fields__, 0) | {"kernel": "add"})
    artefact: Any = SimpleNamespace(facts={"config": "BLOCK=64, num_warps=1"})
    assert offline._of_its_config(use, artefact).kernel == "add [BLOCK=64, num_warps=1]"
    assert offline._of_its_config(use, SimpleNamespace(facts=None)) is use  # type: ignore[arg-type]
