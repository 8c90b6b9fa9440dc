"""What verbs share: settings, choices that are checked, JSON on request, exit codes."""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opforge.core.definition.dtypes import DTYPES
from opforge.core.language import spans, units
from opforge.core.language.errors import EnvironmentLacks, UsageError, unknown
from opforge.registry import Registry, load
from opforge.registry.implementation_files import known_backends

if TYPE_CHECKING:
    from opforge.core.definition.implementation import Config
    from opforge.core.definition.operator import Operator, Workload
    from opforge.core.evidence.record import Record
    from opforge.runner import Host
    from opforge.store import Store

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Device = Annotated[str, typer.Option(help="Torch device type: cpu, cuda, … Default: the accelerator if there is one.")]
Dtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype", help="float32, float16, bfloat16, float8_e4m3fn, …; may be given several times. Default: all."
    ),
]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend",
        help="torch, compile, triton, cuda, tilelang, cpp or library; may be given several times. Default: all.",
    ),
]
Implementations = Annotated[
    list[str] | None,
    typer.Option(
        "--implementation", "-i", help="One implementation by name; may be given several times. Default: all."
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="AXIS=SIZE,…",
        help="A shape of your own: lead=2x3,cols=1000 (parameters too: eps=1e-6), or a .json or .csv file of shapes "
        "(as model analyse --workloads writes it); may be given several times.",
    ),
]
Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="NAME=VALUE,…",
        help="Tunables for the implementations that have them, the others keep their defaults: BLOCK=512,num_warps=8; "
        "may be given several times.",
    ),
]
InProcessOption = Annotated[
    bool,
    typer.Option(
        "--in-process",
        help="Run kernels in this process, for a debugger. A crash ends everything, and the record says so.",
    ),
]


def operator_names(incomplete: str) -> list[str]:
    """What a shell offers for an operator: a folder's name, so that nothing is imported while somebody waits."""
    return [name for name in load(()).names() if name.startswith(incomplete)]


Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="OPERATOR…", help="Operators by name.", autocompletion=operator_names),
]
OneOperator = Annotated[
    str, typer.Argument(metavar="OPERATOR", help="An operator by name.", autocompletion=operator_names)
]
All = Annotated[bool, typer.Option("--all", help="Every operator.")]


READS_OPERATORS = (
    *("list", "show", "verify", "bench", "qualify", "report", "build", "inspect", "accuracy", "diagnose", "optimize"),
    *("log", "compare", "sweep", "tune", "recommend", "history", "baseline", "check", "records"),
)
"""Verbs whose answer depends on the folders and the store."""


@dataclass(frozen=True)
class Settings:
    """What stands before the verb."""

    homes: tuple[Path, ...] = ()
    store: str = ""

    def registry(self) -> Registry:
        """The operators of the package, of every --home, and of plugins."""
        return load(self.homes)

    def registry_of(self, record: Record) -> Registry:
        """The same with the folder that a record names, where its operator is in none of them."""
        from opforge.core.evidence.record import FOLDER

        known = self.registry()
        folder = Path(record.environment.facts.get(FOLDER, "")).expanduser()
        found = record.operator in known.folders or folder.name != record.operator or not (folder / "op.py").is_file()
        return known if found else load((*self.homes, folder.parent))

    def again(self, words: str) -> str:
        """A message whose commands run as they stand: they name the folders and the store of this call."""
        # a folder that OPFORGE_HOME names is found again without being told
        given = [f"--home {shlex.quote(str(home))}" for home in self.homes]
        if self.store and self.store != os.environ.get("OPFORGE_STORE"):
            given.append(f"--store {shlex.quote(self.store)}")
        if not given:
            return words
        # opforge's own operators need no folder
        ours = "|".join(map(re.escape, load(()).names()))
        command = rf"\bopforge (?=(?:{'|'.join(READS_OPERATORS)})\b(?! (?:{ours})\b))"
        return re.sub(command, f"opforge {' '.join(given)} ", words)

    def open_store(self) -> Store:
        """The records."""
        from opforge.store import Store

        opened = Store.open(self.store or None)
        for notice in opened.notices:
            typer.echo(f"opforge: {notice}", err=True)
        opened.tell = lambda notice: typer.echo(f"opforge: {notice}", err=True)
        return opened


def settings(context: typer.Context) -> Settings:
    """The Settings of this call."""
    stored = context.obj
    assert isinstance(stored, Settings)
    return stored


def selected(registry: Registry, names: Sequence[str] | None, everything: bool) -> tuple[str, ...]:
    """The operators named, checked; every one with --all. Raises UsageError when neither was given."""
    if everything:
        return registry.names()
    if not names:
        raise UsageError("Name an operator, or say --all. See which there are with: opforge list")
    for name in names:
        if name not in registry.names():
            registry.unasked(name)  # it says what is known instead, and of a folder what it lacks
    return tuple(dict.fromkeys(names))


def checked(kind: str, given: Iterable[str] | None, known: Iterable[str]) -> tuple[str, ...]:
    """Values of a repeatable option, each known and each once. Raises UsageError with the nearest one."""
    known = tuple(known)
    values = tuple(dict.fromkeys(given or ()))
    for value in values:
        if value not in known:
            several = "," in value and all(part.strip() in known for part in value.split(","))
            raise unknown(kind, value, known, "Give the option once for each." if several else "")
    return values


def dtypes(given: Iterable[str] | None) -> tuple[str, ...]:
    """Checked --dtype values."""
    return checked("dtype", given, DTYPES)


def backend_names(given: Iterable[str] | None) -> tuple[str, ...]:
    """Checked --backend values."""
    return checked("backend", given, (*known_backends(), "compile"))


def own_shapes(
    registry: Registry, names: Sequence[str], given: Iterable[str] | None, kinds: Sequence[str], *, timed: bool = True
) -> tuple[str, ...]:
    """The names of the workloads that --shape values are, each taken by every one of the operators in one of the dtypes
    (kinds; empty: all). Raises UsageError, where it is timed also for a shape without elements.
    """
    from opforge.core.definition.own_shapes import ensure_taken, example, shapes_of
    from opforge.workbench.memory import ensure_fits

    shapes: dict[str, None] = {}
    for operator in [registry.operator(name) for name in names] if given else ():
        for workload in shapes_of(operator, given or ()):
            if timed and any(0 in (size if isinstance(size, tuple) else (size,)) for size in workload.axes.values()):
                raise UsageError(
                    f"{workload.name} has an axis of size 0, which leaves no work to time. Example: --shape "
                    f"{example(operator)}"
                )
            ensure_taken(operator, workload, kinds)
            ensure_fits(operator, workload, kinds)
            shapes[workload.name] = None
    return tuple(shapes)


def own_configs(given: Iterable[str] | None) -> tuple[Config, ...]:
    """The settings that --config values mean. Raises UsageError."""
    from opforge.workbench.configs import parse_config

    return tuple(dict.fromkeys(parse_config(text) for text in given or ()))


def workloads_to_time(
    operator: Operator, device: str, named: Iterable[str] | None, kinds: Sequence[str]
) -> tuple[Workload, ...]:
    """The workloads that are named, or those sized for the device. Raises UsageError where one is unknown, or none is
    there in any of these dtypes.
    """
    from opforge.workbench import BenchOptions, workloads_for

    known = [workload.name for workload in operator.workloads]
    declared = [name for name in named or () if "=" not in name]
    checked("workload", declared, known)
    chosen = workloads_for(operator, BenchOptions(device=device, workloads=tuple(dict.fromkeys(named or ()))))
    if not any(operator.takes(workload, kind) for workload in chosen for kind in kinds or operator.dtypes):
        what = (
            f"takes none of these workloads in {units.listed(list(kinds or operator.dtypes))}"
            if chosen
            else f"has no workload sized for {device}"
        )
        raise UsageError(f"{operator.name} {what}. It has: {', '.join(known) or 'none'}. Name one with: --workload")
    return chosen


def device_or_default(given: str) -> str:
    """The device asked for if torch has it, else the accelerator that is here, else the CPU.

    Raises EnvironmentLacks when the device asked for is not here.
    """
    from opforge.backends.module_loading import installed
    from opforge.backends.torch_eager import INSTALL, torch_runs_on
    from opforge.runner.parent.bytecode import keep_here

    if not installed("torch"):
        raise EnvironmentLacks(f"This needs PyTorch, which is not installed. Install it with: {INSTALL}")
    with spans.span("import", "torch"):
        first = "torch" not in sys.modules
        if first:
            # as in opforge.__main__: what an import makes stays
            gc.disable()
            keep_here()
        import torch

        if first:
            gc.freeze()
            gc.enable()
    if given:
        if not torch_runs_on(given):
            raise EnvironmentLacks(f"torch sees no {given!r} device here. See what is here with: opforge doctor")
        return given
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator.type if accelerator is not None else "cpu"


def device_to_time(given: str) -> str:
    """`device_or_default`, with a warning on standard error for everything that distorts times there now."""
    from opforge.machine import warnings

    where = device_or_default(given)
    for warning in warnings(where):
        typer.echo(f"warning: {warning}", err=True)
    return where


def make_host(in_process: bool) -> Host:
    """Worker processes, or this process when --in-process was given."""
    from opforge.runner import InProcess, Isolated

    return InProcess() if in_process else Isolated()


def print_json(value: Any) -> None:
    """Any noun or plain data, as JSON on standard output."""
    from opforge.core.evidence.record import to_json

    typer.echo(json.dumps(to_json(value), indent=1))


def exit_code(records: Sequence[Record]) -> int:
    """1 when any verdict is a failure or against the policy, else 0."""
    from opforge.core.evidence.verdict import REFUSED

    return int(any(isinstance(record.verdict, REFUSED) for record in records))
