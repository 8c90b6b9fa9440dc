"""The evidence that comes with the package, made from records: src/opforge/store/shipped/<device>.json.

python scripts/ship.py                       from the records in results/, for every accelerator that they are of
python scripts/ship.py FILE.jsonl.gz …       from these
python scripts/ship.py --check               changes nothing; exit code 1 where a file is not of today's sources, with
what is stale

What goes in: Passes that are believed of the sources as they are now, by their text, their compiled code or an adoption
(opforge records adopt), of the implementations that dispatch may choose. Rows of other sources are dropped and listed.
CPUs are left out: see docs/dispatch.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))


def collected(files: Iterable[Path]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The text of the file for each device, and what was dropped: operator and implementation, with the reason."""
    from opforge.core.definition.implementation import COMPARED_WITH
    from opforge.dispatch.installation import installation_of
    from opforge.registry import load
    from opforge.store import Store, believed, fact_of, read_file
    from opforge.store.shipped import packed

    registry = load()
    dropped: dict[str, list[str]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "records.sqlite") as store:
        for file in files:
            store.import_lines(read_file(file))
        devices = sorted({point.device for point in store.series() if not point.device.startswith("cpu")})
        kept = defaultdict(list)
        for name in registry.names():
            items = [item for item in registry.implementations(name) if item.backend not in COMPARED_WITH]
            for device in devices:
                # whatever the toolchain is here: what each row was found with goes along
                here = replace(installation_of(registry, name, device), versions={})
                here = replace(here, sources={item.name: here.sources[item.name] for item in items})
                facts = {record.id: fact_of(record) for record in store.query(operator=name, device=device)}
                beliefs = believed(facts.values(), here, store.adoptions(name))
                for evidence in beliefs.evidence:
                    fact = facts[evidence.record]
                    unbelieved = (
                        {}
                        if evidence.median_s is not None
                        else {**dict.fromkeys(("median_s", "low_s", "high_s", "launch_s")), "cache": "", "terms": ""}
                    )
                    versions = {key: value for key, value in fact.versions.items() if key in RELEVANT}
                    now = {
                        "source_sha256": here.sources[fact.implementation],
                        "code_sha256": here.code_of(fact.implementation),
                    }
                    kept[device].append(fact._replace(**now, versions=versions, **unbelieved))
                for (implementation, dtype), why in sorted(beliefs.doubts.items()):
                    dropped[device].append(f"{name} {implementation} {dtype}: {why}")
    return {device: packed(facts, device) for device, facts in kept.items()}, dropped


RELEVANT = ("torch", "triton", "nvcc", "tilelang", "g++", "apache-tvm-ffi")


def stale() -> list[str]:
    """Operator and implementation of the rows that speak of neither today's source nor its code, in every file that
    comes with the package; and
    files that say nothing."""
    from opforge.dispatch.installation import installation_of
    from opforge.registry import load
    from opforge.store import holds
    from opforge.store.shipped import FOLDER, shipped

    registry = load()
    found: Counter[str] = Counter()
    empty: list[str] = []
    for file in sorted(FOLDER.glob("*.json")):
        told = 0
        for name in registry.names():
            here, rows = installation_of(registry, name, file.stem), shipped(name, file.stem)
            told += len(rows)
            for fact in rows:
                now, code = here.sources.get(fact.implementation), partial(here.code_of, fact.implementation)
                if now is None or not holds(fact.source_sha256, fact.code_sha256, now, code=code):
                    found[f"{file.stem}: {name} {fact.implementation}"] += 1
        empty += [] if told else [f"{file.stem}: it says nothing that this version reads"]
    return [*empty, *(f"{words} ({count} rows)" for words, count in sorted(found.items()))]


def main() -> int:
    """What the words above say."""
    from opforge.store.shipped import FOLDER, MOST_BYTES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="records (default: those of accelerators in results/)")
    parser.add_argument("--check", action="store_true", help="change nothing")
    given = parser.parse_args()
    if given.check:
        found = stale()
        print(
            "\n".join(
                [*found, "Renew them with: python scripts/ship.py (it drops what is of another source)"]
                if found
                else ["every row is of today's sources"]
            )
        )
        return int(bool(found))
    of_accelerators = (file for file in (ROOT / "results").glob("*.jsonl.*") if not file.name.startswith("cpu"))
    texts, dropped = collected(given.files or sorted(of_accelerators))
    FOLDER.mkdir(exist_ok=True)
    for device, text in texts.items():
        (FOLDER / f"{device}.json").write_text(text, encoding="utf-8")
        for words in dropped[device]:
            print(f"dropped: {words}")
        print(
            f"wrote {FOLDER / device}.json: {len(text.encode()):,} bytes; {len(dropped[device])} implementations × "
            "dtypes without evidence"
        )
    total = sum(file.stat().st_size for file in FOLDER.glob("*.json"))
    print(f"{total:,} bytes in all; {MOST_BYTES:,} are allowed")
    return int(total > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
