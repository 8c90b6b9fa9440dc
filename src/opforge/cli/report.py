"""`opforge report`: pages and tables from records."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import Dtypes, Json, checked, dtypes, print_json, settings
from opforge.core.evidence.record import Adoption, Record
from opforge.core.language import units
from opforge.core.language.errors import UsageError
from opforge.registry.implementation_files import known_backends

if TYPE_CHECKING:
    from opforge.core.evidence.optimization import OptimizationRound
    from opforge.registry import Registry
    from opforge.report import Past
    from opforge.report.versions import Move
    from opforge.store import Store


def report(
    context: typer.Context,
    operators: Annotated[
        list[str] | None, typer.Argument(metavar="[OPERATOR…]", help="Only these operators. Default: all in the run.")
    ] = None,
    run: Annotated[str, typer.Option(help="A run by its id. Default: the newest one with timings.")] = "",
    source: Annotated[
        Path | None, typer.Option("--from", help="Read records from a JSON-lines file instead of the store.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder to write to. Default: reports/<run>.")] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Print the README's benchmark table (Markdown) and write nothing.")
    ] = False,
    each: Annotated[
        bool, typer.Option("--each", help="As --table, with a row per implementation, as in the operators' own pages.")
    ] = False,
    ratios: Annotated[
        str,
        typer.Option(
            help="As --table, with ratios of this backend to the fastest of torch eager, torch.compile and other "
            "libraries, e.g. cpp; own: of the fastest of all the rest."
        ),
    ] = "",
    verdicts: Annotated[
        bool,
        typer.Option("--verdicts", help="As --table, with what each implementation was found to be, dtype by dtype."),
    ] = False,
    dtype: Dtypes = None,
    json: Json = False,
) -> None:
    """Write report.html, report.md, report.json and report.csv for one run, without measuring anything again."""
    from opforge.cli.report_files import ways_of, write_reports
    from opforge.machine import descriptors, detect
    from opforge.report.ratios import OWN
    from opforge.store import adopted_sources, read_file, read_nouns

    kinds = dtypes(dtype)
    pasts: dict[str, Past] = {}
    rounds: list[OptimizationRound] = []
    moves: tuple[Move, ...] = ()
    if source is not None:
        nouns = list(read_nouns(read_file(source)))
        adoptions = [noun for noun in nouns if isinstance(noun, Adoption)]
        every = [noun for noun in nouns if isinstance(noun, Record)]
        records = [
            record
            for record in every
            if (not operators or record.operator in operators) and (not run or record.run == run)
        ]
    else:
        with settings(context).open_store() as store:
            records, pasts = of_newest_run(store, operators, run)
            adoptions = store.adoptions()
            rounds, moves = ways_of(store, settings(context).registry(), records)
    records = [record for record in records if not kinds or record.dtype in kinds]
    if not records:
        asked = [units.listed(names) for names in (operators, kinds) if names] + ([f"run {run}"] if run else [])
        if asked:
            raise UsageError(
                f"No records of {', '.join(asked)} to report. See what there is with: opforge records. Make some "
                "with: opforge bench --all"
            )
        raise UsageError("No records to report. Make some with: opforge bench --all")
    if ratios:
        checked("backend", [ratios], {OWN, "compile", *known_backends(), *(record.backend for record in records)})
    if table or each or ratios or verdicts:
        changed = of_other_sources(records, settings(context).registry(), adoptions)
        typer.echo(
            table_of(
                records,
                each=each,
                ratios=ratios,
                verdicts=verdicts,
                changed=changed,
                adopted=adopted_sources(adoptions),
            )
        )
        return
    if json:
        print_json(records)
        return
    spec = next((spec for spec in descriptors().values() if spec.name == records[0].device), None)
    here = detect("cpu")
    for path in write_reports(
        records,
        output or Path("reports") / records[0].run,
        here if here.name == records[0].device else spec,
        pasts=pasts,
        rounds=rounds,
        moves=moves,
    ):
        typer.echo(f"wrote {path}")


def table_of(
    records: Sequence[Record],
    *,
    each: bool = False,
    ratios: str = "",
    verdicts: bool = False,
    changed: Container[str] = (),
    adopted: Mapping[str, Collection[str]] | None = None,
) -> str:
    """The Markdown table that `--table` prints, by the options beside it; records whose ids are in `changed` are
    marked. `adopted` says for which other sources a record was adopted, by its id. Points of a search are in none: they
    were judged on their workload alone, and are nobody's config yet."""
    from opforge.report import benchmark_table, implementation_table, ratio_table, verdict_table

    records = [record for record in records if not record.trial]
    if verdicts:
        return verdict_table(records, changed, adopted)
    if ratios:
        return ratio_table(records, ratios, changed)
    return implementation_table(records, changed) if each else benchmark_table(records, changed)


def of_other_sources(
    records: Sequence[Record], registry: Registry, adoptions: Iterable[Adoption] = ()
) -> frozenset[str]:
    """The ids of records that do not speak of what an implementation is now, by its source, its code or an adoption
    (store.holds), and of records of one
    that is gone. Of an operator that is not known here nothing is said."""
    from opforge.backends.program_hash import program_sha256
    from opforge.backends.shared_code import source_sha256
    from opforge.store import adopted_sources, codes_said, holds

    known = set(registry.names())
    operators = {record.operator for record in records} & known
    items = {(operator, item.name): item for operator in operators for item in registry.implementations(operator)}
    hashes = {key: source_sha256(item.source) for key, item in items.items()}
    adopted, codes = adopted_sources(adoptions), codes_said(records)

    def speaks_of_now(record: Record) -> bool:
        key = (record.operator, record.implementation)
        if key not in items:
            return False
        return bool(
            holds(
                record.source_sha256,
                record.code_sha256,
                hashes[key],
                code=partial(program_sha256, items[key]),
                adopted=adopted.get(record.id, ()),
                codes=codes,
            )
        )

    return frozenset(record.id for record in records if record.operator in known and not speaks_of_now(record))


def of_newest_run(
    store: Store, operators: Sequence[str] | None = None, run: str = ""
) -> tuple[list[Record], dict[str, Past]]:
    """The records of a run (of the newest one with timings), of these operators alone where some are named, with their
    histories.
    """
    from opforge.cli.report_files import pasts_of

    wanted = run or store.newest_run()
    records = (
        [record for name in operators or (None,) for record in store.query(operator=name, run=wanted)] if wanted else []
    )
    return records, pasts_of(store, records)
