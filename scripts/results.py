"""Results of a run are artefacts: packed, addressed by their sha256, kept outside git. results/manifest.json is
committed: it says what belongs to the tree, what lies elsewhere, and how each is renewed.

python scripts/results.py check                              the tree against the manifest; 1 where they differ
python scripts/results.py pack FILE… --into FOLDER --renew "COMMAND"
                                                             to FOLDER/SHA256, and into the manifest
python scripts/results.py pack FILE --keep tables            a file of results/ that the tree keeps, renewed
python scripts/results.py fetch [NAME…] --from FOLDER_OR_URL to results/artefacts/NAME, its sum checked

FOLDER_OR_URL is $OPFORGE_RESULTS where --from is not given: a shared folder, or the address of one. git ignores
results/artefacts. The tree keeps what ships (src/opforge/store/shipped) and the inputs of the tables and pages of the
latest renewal, no more.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MANIFEST, ARTEFACTS = Path("results/manifest.json"), Path("results/artefacts")
PLACE = "OPFORGE_RESULTS"
PAGES = ("README*.md", "docs/*.md", "src/opforge/ops/**/*.md")


def digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest(root: Path) -> dict[str, dict[str, Any]]:
    """`kept` (path in the tree: sum, size, use) and `artefacts` (name: sum, size, day, command that renews it)."""
    known: dict[str, dict[str, Any]] = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    return known


def write(root: Path, known: dict[str, dict[str, Any]]) -> None:
    """The manifest, sorted, so that a renewal changes its own lines."""
    (root / MANIFEST).write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def table_inputs(root: Path) -> set[str]:
    """The files that pages' tables are made from."""
    pages = [page for pattern in PAGES for page in root.glob(pattern)]
    return {found for page in pages for found in re.findall(r"<!-- table: (\S+)", page.read_text(encoding="utf-8"))}


def tracked(root: Path) -> set[str]:
    """What git keeps in results/, the manifest apart."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "results"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return set(listed) - {MANIFEST.as_posix()}


def check(root: Path, listed: set[str]) -> list[str]:
    """What is wrong, each with what to do. `listed`: what git keeps in results/."""
    known = manifest(root)
    wrong = []
    for name, entry in known["kept"].items():
        if not (root / name).is_file():
            wrong.append(f"{name} is not there. Bring it back: git checkout -- {name}")
        elif digest(root / name) != entry["sha256"]:
            wrong.append(f"{name} has changed. Renewed: python scripts/results.py pack {name} --keep '{entry['use']}'")
    for name in sorted(listed - set(known["kept"])):
        wrong.append(f"{name} is in git and not in the manifest. Move it out: python scripts/results.py pack {name}")
    for name in sorted(table_inputs(root) - set(known["kept"])):
        wrong.append(f"{name} is a table's input and not in the manifest: pack {name} --keep tables")
    for name, entry in known["artefacts"].items():
        here = root / ARTEFACTS / name
        if here.is_file() and digest(here) != entry["sha256"]:
            wrong.append(f"{here.relative_to(root)} is not what the manifest says. Remove it and fetch it again")
    return wrong


def pack(root: Path, file: Path, into: Path | None, *, keep: str, renew: str) -> str:
    """Put a file's sum into the manifest, and an artefact's bytes to `into`/SHA256; what was done, in words."""
    known, value = manifest(root), digest(file)
    if keep:
        name = file.resolve().relative_to(root.resolve()).as_posix()
        known["kept"][name] = {"sha256": value, "bytes": file.stat().st_size, "use": keep}
        write(root, known)
        return f"{name}: kept in the tree for {keep}, sha256 {value}"
    if into is None or not renew:
        raise SystemExit("An artefact needs --into FOLDER and --renew COMMAND; a file of the tree --keep USE.")
    into.mkdir(parents=True, exist_ok=True)
    place = into / value
    if not place.exists():
        scratch = into / f".{value}.part"
        shutil.copyfile(file, scratch)
        scratch.replace(place)
    known["artefacts"][file.name] = {
        "sha256": value,
        "bytes": file.stat().st_size,
        "packed": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "renew": renew,
    }
    write(root, known)
    return f"{file.name}: {place}"


def fetch(root: Path, name: str, source: str) -> str:
    """An artefact's bytes to results/artefacts, its sum checked before the name is given; what was done, in words.
    Raises SystemExit where it is not there, or is another file.
    """
    entry = manifest(root)["artefacts"].get(name)
    if entry is None:
        raise SystemExit(f"No artefact named {name}. Known: {', '.join(manifest(root)['artefacts']) or 'none'}")
    target = root / ARTEFACTS / name
    if target.is_file() and digest(target) == entry["sha256"]:
        return f"{name}: there already"
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{name}.part")
    try:
        if "://" in source:
            with urllib.request.urlopen(f"{source.rstrip('/')}/{entry['sha256']}") as answer, scratch.open("wb") as out:
                shutil.copyfileobj(answer, out)
        else:
            shutil.copyfile(Path(source) / entry["sha256"], scratch)
        if digest(scratch) != entry["sha256"]:
            raise SystemExit(f"{name}: {source} has another file under its sum. Renew it: {entry['renew']}")
        scratch.replace(target)
    except (OSError, urllib.error.URLError) as error:
        raise SystemExit(f"{name}: {source} does not have it ({error}). Renew it: {entry['renew']}") from error
    finally:
        scratch.unlink(missing_ok=True)
    return f"{name}: {target}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("check", "pack", "fetch"))
    parser.add_argument("names", nargs="*", help="files to pack, or artefacts to fetch (default: all)")
    parser.add_argument("--into", type=Path, help="pack: the folder of artefacts")
    parser.add_argument("--keep", default="", metavar="USE", help="pack: the tree keeps it, for this")
    parser.add_argument("--renew", default="", metavar="COMMAND", help="pack: what makes it again")
    parser.add_argument("--from", dest="source", default=os.environ.get(PLACE, ""), help=f"fetch (default: ${PLACE})")
    given = parser.parse_args()
    if given.action == "check":
        wrong = check(ROOT, tracked(ROOT))
        print("\n".join(wrong) or "results are as the manifest says")
        return int(bool(wrong))
    if given.action == "pack":
        for name in given.names:
            print(pack(ROOT, Path(name), given.into, keep=given.keep, renew=given.renew))
        return 0
    if not given.source:
        parser.error(f"say where artefacts lie: --from FOLDER_OR_URL, or {PLACE}")
    for name in given.names or manifest(ROOT)["artefacts"]:
        print(fetch(ROOT, name, given.source))
    return 0


if __name__ == "__main__":
    sys.exit(main())
