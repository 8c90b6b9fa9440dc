"""`opforge verify --pipeline NAME`: operators one after another, each stage and the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from opforge.cli.shared import make_host, print_json
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opforge.registry import Registry
    from opforge.verify.extra.pipeline import PipelineOutcome


def pipelines_verified(
    registry: Registry,
    name: str,
    device: str,
    dtypes: Sequence[str],
    backends: Sequence[str],
    *,
    quick: bool,
    in_process: bool,
    json: bool,
) -> int:
    """Verify one pipeline, or `all`, and print what was found; the exit code."""
    from opforge.registry.pipelines import load_pipeline, pipeline_files
    from opforge.verify.extra.pipeline import verify_pipeline

    names = tuple(pipeline_files(registry)) if name == "all" else (name,)
    pipelines = [load_pipeline(registry, each) for each in names]
    outcomes: list[PipelineOutcome] = []
    host = make_host(in_process)
    try:
        for pipeline in pipelines:
            for outcome in verify_pipeline(registry, pipeline, host, device, dtypes, backends, quick=quick):
                outcomes.append(outcome)
                if not json:
                    typer.echo(told(outcome))
    finally:
        host.close()
    if not outcomes:
        raise UsageError(
            f"Nothing of {', '.join(names)} runs here with {', '.join(backends) or 'any backend'}. See: opforge doctor"
        )
    failed = sum(bool(outcome.failure) for outcome in outcomes)
    if json:
        print_json(outcomes)
    else:
        typer.echo(f"{len(outcomes) - failed} of {len(outcomes)} runs of {', '.join(names)} hold")
    return int(failed > 0)


def told(outcome: PipelineOutcome) -> str:
    """An outcome in a line."""
    where = f"{outcome.pipeline} {outcome.case} {outcome.dtype} {outcome.backend}"
    special = f", NaN and infinities into {outcome.special}" if outcome.special else ""
    if outcome.failure:
        return f"FAILS  {where}{special}: {outcome.failure}"
    but = f"; not accurate, as known: {', '.join(outcome.excused)}" if outcome.excused else ""
    used = ", ".join(outcome.implementations)
    return f"holds  {where}{special}: {outcome.worst:.2f} of what is allowed ({used}{but})"
