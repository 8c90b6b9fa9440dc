"""What `opforge verify` does besides verifying: replays, adequacy, contracts, and what a Pass states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import typer

from opforge.cli.shared import make_host, print_json, settings
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import REFUSED, Broken, Crash, Mismatch
from opforge.core.language.errors import OpforgeError, UsageError, all_of

if TYPE_CHECKING:
    from opforge.registry import Registry


def print_replays(context: typer.Context, records: Sequence[Record]) -> None:
    """How to run each failure again, on the same values."""
    # the record knows its folder; the store it is kept in must be told
    here = replace(settings(context), homes=())
    for record in records:
        if isinstance(record.verdict, REFUSED):
            command = here.again(f"opforge verify --replay {record.id[:12]}")
            typer.echo(
                f"  {record.operator}/{record.implementation} {record.dtype}: the same values again with: {command}"
            )


def replayed(context: typer.Context, identity: str, *, in_process: bool, json: bool) -> int:
    """Run a record's cases again. 0: found the same as recorded; 1: found something else."""
    from opforge.backends.program_hash import program_sha256
    from opforge.backends.shared_code import source_sha256
    from opforge.report import describe
    from opforge.store import adopted_sources, holds
    from opforge.verify import CaseCache
    from opforge.verify.explain.replay import replay, replayed_cases, same_finding

    with settings(context).open_store() as store:
        record = store.get(identity)
        adopted = adopted_sources(store.adoptions(record.operator)).get(record.id, set())
    registry = settings(context).registry_of(record)
    cases = replayed_cases(record.verdict)
    if not cases:
        raise UsageError(
            f"Record {record.id[:12]} holds {type(record.verdict).__name__}, which names no case to replay. Verify "
            f"afresh with: opforge verify {record.operator}"
        )
    implementation = registry.implementation(record.operator, record.implementation)
    now_sha256 = source_sha256(implementation.source)
    changed = not holds(
        record.source_sha256,
        record.code_sha256,
        now_sha256,
        code=partial(program_sha256, implementation),
        adopted=adopted,
    )
    host = make_host(in_process)
    bench = CaseCache(
        registry=registry, operator=registry.operator(record.operator), host=host, device=_device_type(record)
    )
    try:
        now = replay(bench, implementation, record)
    finally:
        bench.close()
        host.close()
    same = same_finding(record.verdict, now)
    if json:
        print_json(
            {"record": record.id, "recorded": record.verdict, "now": now, "same": same, "source_changed": changed}
        )
        return int(not same)
    for label, verdict in (("recorded", record.verdict), ("now", now)):
        typer.echo(f"{label:<9} {type(verdict).__name__}: {describe(verdict)}")
    if isinstance(record.verdict, (Mismatch, Broken, Crash)) and record.verdict.shrunk_from is not None:
        from opforge.report.record_text import case_words

        typer.echo(f"          shrunk from {case_words(record.verdict.shrunk_from)}")
    typer.echo(
        ("the same" if same else "not the same")
        + (": the source has changed since" if changed else ", with the recorded source")
    )
    return int(not same)


def registered(name: str) -> object:
    """The custom operator that a dispatch.Function registers."""
    import torch

    return getattr(torch.ops.opforge, name).default


def _device_type(record: Record) -> str:
    """The torch device type a record was made on: this machine's, where its name is the same."""
    import torch

    from opforge.machine import detect

    kinds = [
        "cpu",
        *(
            [accelerator.type]
            if torch.accelerator.is_available() and (accelerator := torch.accelerator.current_accelerator())
            else []
        ),
    ]
    kind_here: str | None = next((kind for kind in kinds if detect(kind).name == record.device), None)
    if kind_here is None:
        raise UsageError(
            f"Record {record.id[:12]} was made on {record.device}, which is not here. Replay it on that machine."
        )
    return kind_here


def check_adequacy(registry: Registry, names: Sequence[str], dtypes: Sequence[str], *, json: bool) -> int:
    """Offer every impostor to every operator's bound. 1 when one gets through."""
    from opforge.verify.extra.adequacy import adequacy

    results = []
    unusable: list[OpforgeError] = []
    for name in names:
        operator = registry.operator(name)
        wanted = [dtype for dtype in operator.dtypes if not dtypes or dtype in dtypes]
        try:
            results.append(adequacy(operator, dtypes=wanted))
        except UsageError as error:
            # its definition is wrong: the others' are not
            unusable.append(error)
    if unusable and not results:
        raise all_of(unusable, others=False)
    if json:
        print_json(
            [
                {
                    "operator": f.operator,
                    "score": f.score,
                    **{key: f.count(key) for key in ("rejected", "excused", "accepted")},
                }
                for f in results
            ]
        )
        if unusable:
            raise all_of(unusable, others=True)
        return int(any(f.accepted for f in results))
    width = max(len("operator"), *(len(f.operator) for f in results))
    typer.echo(f"{'operator':<{width}}  offered  rejected  excused  accepted   score")
    for f in results:
        typer.echo(
            f"{f.operator:<{width}}  {len(f.impostors):7}  {f.count('rejected'):8}  {f.count('excused'):7}  "
            f"{f.count('accepted'):8}  {f.score:6.1%}"
        )
        for impostor in f.accepted:
            typer.echo(f"  accepted as a right answer: {impostor.name}, in {impostor.situation}, {impostor.dtype}")
    typer.echo(
        "excused: outputs that happen to be right to the last digit, such as shuffled rows where there is one row"
    )
    if unusable:
        raise all_of(unusable, others=True)
    return int(any(f.accepted for f in results))


def check_contracts(registry: Registry, names: Sequence[str], dtypes: Sequence[str], device: str, *, json: bool) -> int:
    """Check each operator as a PyTorch function. 1 when a contract is broken."""
    from opforge.dispatch import Chooser, function_of
    from opforge.verify.extra.contracts import check_function

    chooser = Chooser(registry)
    by_operator = {}
    for name in names:
        operator = registry.operator(name)
        function = function_of(name, chooser)
        wanted = [dtype for dtype in operator.dtypes if not dtypes or dtype in dtypes]
        by_operator[name] = check_function(
            operator,
            function,
            registered(name),
            dtypes=wanted,
            device=device,
            gradient_operators=registry.gradient_operators(name),
        )
    if json:
        print_json({name: [vars(clause) for clause in clauses] for name, clauses in by_operator.items()})
    else:
        for name, clauses in by_operator.items():
            typer.echo(name)
            for clause in clauses:
                typer.echo(f"  {clause.standing:<9} {clause.name:<34} {clause.detail}")
    return int(any(clause.standing == "broken" for clauses in by_operator.values() for clause in clauses))
