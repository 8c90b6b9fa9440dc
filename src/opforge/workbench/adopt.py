"""Which records of other sources speak of today's: those whose source compiles to the same code.

The recorded source is found in git by its hash, the commit that the record names first. Where its program is today's,
nothing has to be compiled (backends.program). Elsewhere both are compiled for the record's target, without a GPU, and
compared to the first instruction (inspect.compiled).
"""

from __future__ import annotations

import ast
import datetime
import io
import os
import subprocess
import tarfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

from opforge.backends.program_hash import one_program
from opforge.backends.renamed import renamed_program
from opforge.backends.shared_code import SHARED, package_of, source_sha256
from opforge.core.definition.implementation import Implementation
from opforge.core.evidence.record import Adoption, Record
from opforge.core.language.errors import OpforgeError, UsageError
from opforge.inspect.compiled import COMPARED, CompiledCall, compiled, first_difference, point_key
from opforge.machine.versions import versions
from opforge.registry import Registry, find_operator
from opforge.store import adopted_sources, compatible, fact_of

SEARCHED = 400
"""Commits that are looked through for a source, those nearest to the record's first, or the newest."""

FLAGS = {
    "cuda": ("cuda.py", ("DEVICE_FLAGS", "EMULATOR_FLAGS")),
    "cpp": ("cpp.py", ("FLAGS",)),
    "tilelang": ("tilelang_lang.py", ("C_FLAGS",)),
}
"""Where a backend says how it calls its compiler: part of the code of each of its kernels."""


@dataclass(frozen=True, kw_only=True)
class AdoptionResult:
    """What was found of a record: an adoption, or why there is none. `groups` that were compared once have one
    `reason`.
    """

    record: Record
    adoption: Adoption | None
    reason: str


@dataclass(frozen=True)
class Lost:
    """A record's source that is not to be had, and why."""

    reason: str


Say = Callable[[str], None]


def stale(registry: Registry, records: Iterable[Record], adoptions: Iterable[Adoption]) -> list[Record]:
    """The records of implementations that are here, of other sources than today's, that are not adopted."""
    known = {(adoption.record, adoption.source_sha256) for adoption in adoptions}
    now = {
        (operator, implementation.name): source_sha256(implementation.source)
        for operator in {record.operator for record in records} & set(registry.names())
        for implementation in registry.implementations(operator)
    }
    found = []
    for record in records:
        today = now.get((record.operator, record.implementation))
        if today is not None and today != record.source_sha256 and (record.id, today) not in known:
            found.append(record)
    return found


def adopt(
    registry: Registry,
    records: Sequence[Record],
    scratch: Path,
    *,
    adoptions: Iterable[Adoption] = (),
    jobs: int = 0,
    compiling: bool = True,
    say: Say = lambda words: None,
) -> Iterator[AdoptionResult]:
    """An AdoptionResult for each of these stale records, as they are found.

    scratch    an empty folder, for the sources of other revisions
    adoptions  earlier ones: a source that a record was adopted for may stand for its own, and is found sooner
    jobs       compilers at once; 0: as many as there are processors
    compiling  whether sources whose programs differ are compiled and compared
    say        gets a line for each step that takes time
    """
    revisions = _Revisions(registry, scratch, say)
    earlier = adopted_sources(adoptions)
    same: dict[tuple[str, str, Path], str] = {}
    compare: dict[tuple[str, ...], list[tuple[Record, Implementation]]] = {}
    for record in records:
        now = registry.implementation(record.operator, record.implementation)
        old = revisions.source_of(record, now, earlier.get(record.id, ()))
        if isinstance(old, Lost):
            yield AdoptionResult(record=record, adoption=None, reason=old.reason)
            continue
        reason = _hindrance(record, old, now)
        pair = (record.operator, record.implementation, old.source)
        if pair not in same:
            same[pair] = _same_program(old, now)
        if reason:
            yield AdoptionResult(record=record, adoption=None, reason=reason)
        elif same[pair]:
            yield _carried(record, now, "", same[pair])
        elif not compiling:
            yield AdoptionResult(
                record=record, adoption=None, reason="its program has changed; its code was not compiled"
            )
        elif now.backend not in COMPARED or (now.backend == "triton" and _target(record) == "host"):
            yield AdoptionResult(
                record=record,
                adoption=None,
                reason="its program has changed, and of this backend nothing else is compared",
            )
        elif difference := compatible(record.backend, fact_of(record).versions, versions()):
            yield AdoptionResult(
                record=record,
                adoption=None,
                reason=f"its program has changed, and it was made {difference}: what its compiler made cannot be "
                "told here",
            )
        else:
            key = (record.operator, record.implementation, str(old.source), point_key(now, _point(record)))
            compare.setdefault(key, []).append((record, old))
    yield from _compared(registry, list(compare.values()), jobs, say)


def _same_program(old: Implementation, now: Implementation) -> str:
    """How it is known, without a compiler, that two sources are one program; "" where it is not known."""
    if one_program(old, now):
        return "the program is one: only comments, names, layout or what it does not use differ"
    if renamed_program(old, now):
        return "the program is one but for names of its own"
    return ""


def _compared(
    registry: Registry, groups: Sequence[Sequence[tuple[Record, Implementation]]], jobs: int, say: Say
) -> Iterator[AdoptionResult]:
    def one(group: Sequence[tuple[Record, Implementation]]) -> tuple[str, str]:
        record, old = group[0]
        now = registry.implementation(record.operator, record.implementation)
        try:
            before, after = (compiled(registry, item, _point(record)) for item in (old, now))
        except OpforgeError as error:
            return "", f"it was not compiled: {str(error).strip().splitlines()[-1][:200]}"
        return after.sha256, first_difference(before, after)

    with ThreadPoolExecutor(max_workers=jobs or len(os.sched_getaffinity(0))) as pool:
        waiting = {pool.submit(one, group): group for group in groups}
        for done, future in enumerate(as_completed(waiting), start=1):
            group = waiting[future]
            record = group[0][0]
            code_sha256, difference = future.result()
            say(
                f"{done} of {len(groups)} compared: {record.operator}/{record.implementation} [{record.config}] "
                f"{'differs' if difference else 'is the same code'}"
            )
            for item, _ in group:
                if difference:
                    yield AdoptionResult(record=item, adoption=None, reason=f"its code has changed {difference}")
                else:
                    yield _carried(
                        item,
                        registry.implementation(item.operator, item.implementation),
                        code_sha256,
                        f"compiled for {_target(item)}, both sources make one code",
                    )


def _carried(record: Record, now: Implementation, code_sha256: str, how: str) -> AdoptionResult:
    adoption = Adoption(
        id=uuid.uuid4().hex,
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        record=record.id,
        operator=record.operator,
        source_sha256=source_sha256(now.source),
        code_sha256=code_sha256,
        how=how,
    )
    return AdoptionResult(record=record, adoption=adoption, reason=how)


def _hindrance(record: Record, old: Implementation, now: Implementation) -> str:
    """Why a record cannot be carried over whatever the code is; "" where nothing hinders."""
    if record.config == old.default != now.default:
        return f"its default config was [{old.default}] and is [{now.default}]"
    return _flags_differ(old, now)


def _flags_differ(old: Implementation, now: Implementation) -> str:
    if now.backend not in FLAGS:
        return ""
    file, names = FLAGS[now.backend]
    then, today = (_assignments(package_of(item.source) / "backends" / file, names) for item in (old, now))
    return (
        ""
        if not then or then == today
        else f"the flags that its compiler gets have changed ({', '.join(names)} of backends/{file})"
    )


def _assignments(path: Path, names: Sequence[str]) -> dict[str, str]:
    if not path.is_file():
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    targets = ((node.targets[0], node.value) for node in tree.body if isinstance(node, ast.Assign))
    return {
        target.id: ast.dump(value) for target, value in targets if isinstance(target, ast.Name) and target.id in names
    }


def _target(record: Record) -> str:
    return record.environment.facts.get("device.target", "host")


def _point(record: Record) -> CompiledCall:
    return CompiledCall(
        operator=record.operator,
        dtype=record.dtype,
        axes=record.axes,
        scalars=record.scalars,
        config=record.config,
        target=_target(record),
    )


@dataclass(kw_only=True)
class _Tree:
    """A revision that was put aside."""

    package: Path
    hashes: dict[Path, str] = field(default_factory=dict)

    def source_of(self, operator: str, file: str) -> Path | None:
        """The operator's file of that name, in whatever family the revision has the operator's folder; None where it
        has none.
        """
        folder = find_operator(self.package / "ops", operator)
        return None if folder is None or not (folder / file).is_file() else folder / file


class _Revisions:
    """Sources by their hashes, out of the history of the repository that an operator's folder lies in."""

    def __init__(self, registry: Registry, scratch: Path, say: Say) -> None:
        self.registry, self.scratch, self.say = registry, scratch, say
        self.trees: dict[str, _Tree | None] = {}
        self.known: dict[tuple[str, str, str], Implementation] = {}
        self.lost: dict[tuple[str, str, frozenset[str]], Lost] = {}
        self.histories: dict[Path, list[str]] = {}

    def source_of(self, record: Record, now: Implementation, adopted: Iterable[str] = ()) -> Implementation | Lost:
        """The implementation with the source that the record is of, or with one that it was `adopted` for; Lost where
        there is none.
        """
        wanted = frozenset((record.source_sha256, *adopted))
        lost = (record.operator, record.implementation, wanted)
        keys = [(record.operator, record.implementation, digest) for digest in sorted(wanted)]
        known = next((self.known[key] for key in keys if key in self.known), None)
        if known is not None:
            return known
        if lost not in self.lost:
            found = self._found(record, now, wanted)
            if not isinstance(found, Lost):
                return self.known.setdefault((*keys[0][:2], source_sha256(found.source)), found)
            self.lost[lost] = found
        return self.lost[lost]

    def _found(self, record: Record, now: Implementation, wanted: Set[str]) -> Implementation | Lost:
        from opforge.registry.implementation_files import read_implementation

        package = package_of(now.source)
        if not now.source.resolve().is_relative_to(package):
            return Lost("its folder is not of opforge's own package: its history is not looked through")
        commit = record.environment.facts.get("git.commit", "")
        # what was adopted was so lately; what was not lies near the commit that the record names
        commits = self._commits(package, commit if len(wanted) == 1 else "")
        for number, candidate in enumerate(commits):
            if number == 1:
                self.say(
                    f"looking for the source of {record.operator}/{record.implementation} {record.source_sha256[:8]} "
                    f"in {len(commits)} commits"
                )
            tree = self._tree(package, candidate)
            source = None if tree is None else tree.source_of(record.operator, now.source.name)
            if tree is None or source is None:
                continue
            if source not in tree.hashes:
                tree.hashes[source] = source_sha256(source)
            if tree.hashes[source] in wanted:
                old = read_implementation(record.operator, source.parent, now.source.stem)
                return replace(old, name=now.name, backend=now.backend)
        return Lost(
            f"no revision in git has its source ({record.source_sha256[:8]}…): it was of a changed working tree"
        )

    def _commits(self, package: Path, first: str) -> list[str]:
        if package not in self.histories:
            self.histories[package] = (
                _git(package, "log", f"-{SEARCHED}", "--format=%H", "--", *("ops", *SHARED)).decode().split()
            )
        history = self.histories[package]
        nearest = history.index(first) if first in history else 0
        ordered = sorted(range(len(history)), key=lambda place: abs(place - nearest))
        return list(dict.fromkeys(([first] if first else []) + [history[place] for place in ordered]))

    def _tree(self, package: Path, commit: str) -> _Tree | None:
        if commit not in self.trees:
            self.trees[commit] = None
            try:
                top = Path(_git(package, "rev-parse", "--show-toplevel").decode().strip()).resolve()
                inside = package.resolve().relative_to(top)
                wanted = (str(inside / name) for name in ("ops", "backends", *SHARED))
                # of a revision's folders those that it has: git archives none where one is missing
                there = _git(top, "ls-tree", "-d", "--name-only", commit, "--", *wanted).decode().splitlines()
                archive = _git(top, "archive", "--format=tar", commit, "--", *there)
            except UsageError:
                return None
            target = self.scratch / commit[:12]
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(target, filter="data")
            self.trees[commit] = _Tree(package=target / inside)
        return self.trees[commit]


def _git(folder: Path, *words: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or str(error).encode()
        raise UsageError(
            f"git does not answer in {folder}: {said.decode(errors='replace').strip()[:200]}. Records are adopted in "
            "a clone of the repository."
        ) from error


def counted(outcomes: Iterable[AdoptionResult]) -> Mapping[str, int]:
    """How many records each reason is of, the most first."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.reason] = counts.get(outcome.reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
