"""Writes the pages that are generated from the code, so that nothing is written twice.

docs/verbs/*.md    one page per verb, from its --help
docs/images/rows.svg  the picture of the READMEs, from the records of PICTURED (scripts/first_screen.py)
signatures         in the operators' README.md, between `<!-- signature -->` and `<!-- end -->`, from the operator's
                   definition
src/opforge/ops/__init__.pyi  every operator with its signature, for editors (scripts/stub.py)
tables             in README*.md, docs/results*.md and the operators' README.md and NOTES.md, between `<!-- table: FILE
                   WORD… -->` and `<!-- end -->`, from the records in FILE; the words are operators and options of
                   `opforge report --table`

`--check` writes nothing and exits 1 when a page is not what the code says.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "opforge"
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]
PICTURED = "results/nvidia-h200.jsonl.gz"

if TYPE_CHECKING:
    from opforge.core.definition.operator import TensorSpec
    from opforge.core.evidence.record import Adoption, Record


def verb_pages() -> dict[str, str]:
    """One page per verb, from its help text."""
    environment = {
        **os.environ,
        "COLUMNS": "100",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PYTHONPATH": str(ROOT / "src"),
        "_TYPER_FORCE_DISABLE_TERMINAL": "1",
    }

    def help_of(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "opforge", *words, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        return "\n".join(
            line.rstrip() for line in done.stdout.replace("python -m opforge", "opforge").strip().splitlines()
        )

    front = help_of()
    from opforge.cli.app import VERBS, actions_of

    pages = {
        "README.md": "# Verbs\n\nGenerated from `--help` by `make docs`. `opforge --install-completion` teaches bash, "
        "zsh, fish or PowerShell to complete verbs, options and operators; open a new shell afterwards. `--home` and "
        f"`--store` may stand before the verb or behind it.\n\n```\n{front}\n```\n"
    }
    for verb in VERBS:
        page = f"# opforge {verb}\n\n```\n{help_of(verb)}\n```\n"
        for action in actions_of(verb):
            page += f"\n## opforge {verb} {action}\n\n```\n{help_of(verb, action)}\n```\n"
        pages[f"{verb}.md"] = page
    return pages


def pages_with_tables() -> list[Path]:
    """The pages that may hold tables made from records."""
    patterns = ("README*.md", "docs/results*.md", "src/opforge/ops/**/README.md", "src/opforge/ops/**/NOTES.md")
    return [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]


@cache
def nouns_of(file: str) -> tuple[Record | Adoption, ...]:
    """The records and adoptions of a file, read once for all tables made from it."""
    from opforge.store import read_file, read_nouns

    return tuple(read_nouns(read_file(ROOT / file)))


@cache
def records_of(file: str) -> tuple[Record, ...]:
    """The records of a file."""
    from opforge.core.evidence.record import Record

    # shape classes tell dispatch where an implementation is good; a reader is served by workloads
    return tuple(noun for noun in nouns_of(file) if isinstance(noun, Record) and not noun.workload.startswith("grid_"))


@cache
def adoptions_of(file: str) -> tuple[Adoption, ...]:
    """What was adopted of a file's records."""
    from opforge.core.evidence.record import Adoption

    return tuple(noun for noun in nouns_of(file) if isinstance(noun, Adoption))


@cache
def workloads() -> dict[tuple[str, str], tuple[int, tuple[str, ...]]]:
    """Each operator's workloads: their place in its definition, and the names of their axes in the order in which they
    stand there, without those that follow from others.
    """
    from opforge.registry import load

    registry = load([])
    return {
        (operator.name, workload.name): (place, tuple(axis for axis in workload.axes if axis not in operator.derived))
        for operator in map(registry.operator, registry.names())
        for place, workload in enumerate(operator.workloads)
    }


def in_order(records: Sequence[Record]) -> list[Record]:
    """Records in the order of the definitions: operators by name, their workloads, dtypes; axes too, which a file keeps
    by name, without those that follow from others.
    """
    from opforge.core.definition.dtypes import DTYPES

    def place(record: Record) -> tuple[str, int, int]:
        return (
            record.operator,
            workloads().get((record.operator, record.workload), (-1,))[0],
            list(DTYPES).index(record.dtype),
        )

    def with_axes(record: Record) -> Record:
        names = workloads().get((record.operator, record.workload), (0, ()))[1]
        return replace(record, axes={name: record.axes[name] for name in names if name in record.axes} or record.axes)

    return [with_axes(record) for record in sorted(records, key=place)]


def first_workloads(records: Sequence[Record]) -> list[Record]:
    """Of each operator and dtype the records of one workload alone: the first by the operator's definition that was
    timed.
    """
    order = {key: place for key, (place, _) in workloads().items()}
    timed = [record for record in records if record.timing is not None and (record.operator, record.workload) in order]
    least: dict[tuple[str, str], int] = {}
    for record in timed:
        key, place = (record.operator, record.dtype), order[record.operator, record.workload]
        least[key] = min(place, least.get(key, place))
    return [
        record for record in timed if order[record.operator, record.workload] == least[record.operator, record.dtype]
    ]


@cache
def changed_in(file: str) -> frozenset[str]:
    """The ids of the file's records that speak of an earlier source than the one that is there."""
    from opforge.cli.report import of_other_sources
    from opforge.registry import load

    return of_other_sources(records_of(file), load([]), adoptions_of(file))


@cache
def superseded_in(file: str) -> frozenset[str]:
    """The ids of those times of an earlier source whose call was timed again since: the same implementation, workload
    and dtype, by today's source, as a caller gets it. No table shows them.
    """
    from opforge.core.evidence.timing_terms import CALL

    def call_of(record: Record) -> tuple[str, ...]:
        return record.operator, record.implementation, record.workload, record.dtype, record.device

    timed = [record for record in records_of(file) if record.timing is not None and not record.trial]
    changed = changed_in(file)
    again: dict[tuple[str, ...], str] = {}
    for record in timed:
        if record.id not in changed and record.timing is not None and record.timing.terms == CALL:
            again[call_of(record)] = max(record.created_at, again.get(call_of(record), ""))
    return frozenset(
        record.id for record in timed if record.id in changed and record.created_at < again.get(call_of(record), "")
    )


def table_from(file: str, words: list[str]) -> str:
    """What `opforge report --table --from FILE WORD…` prints, in the order of the definitions; with --first, of each
    operator's first workload;
    with --lead, these workloads alone, as the READMEs open."""
    from opforge.cli.report import table_of
    from opforge.store import adopted_sources

    options = argparse.ArgumentParser()
    options.add_argument("operators", nargs="*")
    options.add_argument("--dtype", action="append")
    options.add_argument("--each", action="store_true")
    options.add_argument("--first", action="store_true")
    options.add_argument("--verdicts", action="store_true")
    options.add_argument("--ratios", default="")
    options.add_argument("--lead", nargs="+", metavar="OPERATOR/WORKLOAD")
    given = options.parse_args(words)
    if given.lead:
        from first_screen import lead_table

        return lead_table(records_of(file), given.lead, changed_in(file)).strip()
    wanted = [
        record
        for record in in_order(records_of(file))
        if (not given.operators or record.operator in given.operators)
        and (not given.dtype or record.dtype in given.dtype)
        and record.id not in superseded_in(file)
    ]
    if given.first:
        wanted = first_workloads(wanted)
    adopted = adopted_sources(adoptions_of(file))
    return table_of(
        wanted, each=given.each, ratios=given.ratios, verdicts=given.verdicts, changed=changed_in(file), adopted=adopted
    ).strip()


def signature(name: str) -> str:
    """An operator's inputs, parameters, outputs and dtypes in one line, from its definition."""
    from opforge.registry import load

    operator = load([]).operator(name)

    def tensor(spec: TensorSpec) -> str:
        words = f"{spec.name}[{', '.join(spec.shape.split())}]" + ("" if spec.dtype == "T" else f" {spec.dtype}")
        return f"{words}=None" if spec.optional else words

    given = [*map(tensor, operator.inputs), *(f"{scalar.name}={scalar.default!r}" for scalar in operator.scalars)]
    wide = sum(workload.scale != "laptop" for workload in operator.workloads)
    counts = f"{len(operator.cases)} cases, {len(operator.workloads)} workloads ({wide} for a GPU)"
    return (
        f"`ops.{name}({', '.join(given)}) → {', '.join(map(tensor, operator.outputs))}` in "
        f"{', '.join(operator.dtypes)}; {counts}: `opforge show {name}`."
    )


def with_signature(page: Path, text: str) -> str:
    """An operator's page with its signature made anew; other pages as they are."""
    return re.sub(
        r"<!-- signature -->.*?<!-- end -->",
        lambda _: f"<!-- signature -->\n{signature(page.parent.name)}\n<!-- end -->",
        text,
        flags=re.DOTALL,
    )


def with_tables(text: str) -> str:
    """A README with its tables made anew from the records they name."""

    def table(match: re.Match[str]) -> str:
        file, *words = match[1].split()
        if not (ROOT / file).is_file():
            raise SystemExit(
                f"{file} is named by a page and is not there. Make it with: opforge records export {file} --run RUN"
            )
        return f"<!-- table: {match[1]} -->\n{table_from(file, words)}\n<!-- end -->"

    return re.sub(r"<!-- table: ([^>]+?) -->.*?<!-- end -->", table, text, flags=re.DOTALL)


def stub() -> str:
    """The stub of opforge.ops."""
    from stub import stub

    return stub()


def picture() -> str:
    """docs/images/rows.svg; "" where the records no longer speak of the sources."""
    from first_screen import rows_picture

    return rows_picture(records_of(PICTURED), changed_in(PICTURED))


def main() -> int:
    """Write the pages, or with --check compare them."""
    check = "--check" in sys.argv[1:]
    pages = {ROOT / "docs" / "verbs" / name: text for name, text in verb_pages().items()}
    pages |= {path: with_tables(with_signature(path, path.read_text(encoding="utf-8"))) for path in pages_with_tables()}
    pages[SOURCE / "ops" / "__init__.pyi"] = stub()
    if drawn := picture():
        pages[ROOT / "docs" / "images" / "rows.svg"] = drawn
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what the code says; renew it with: make docs")
        return int(bool(stale))
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
