"""Whether two C++ or CUDA sources are one program but for names that they gave themselves: then nothing has to be
compiled to know that their code is one.

Each name of one source stands where one name of the other does, everywhere. A name that differs must be the file's own:
no keyword, no config, and no word of any header from outside, because there it might mean something else (`fminf` for
`fmaxf` everywhere is no renaming). The messages of failed checks may name an expression: such texts change with it.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from opforge.backends import native
from opforge.backends.cpp import Cpp
from opforge.backends.cuda import DEVICE_FLAGS, Cuda
from opforge.backends.program_hash import joined_tokens
from opforge.backends.shared_code import include_of, package_of
from opforge.core.definition.implementation import Config, Implementation
from opforge.walls import tool

_WORD = re.compile(r"[A-Za-z_]\w*")
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)

_RESERVED = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl const "
    "const_cast constexpr continue decltype default defined delete do double dynamic_cast else endif enum error "
    "explicit export extern false final float for friend goto if inline int line long mutable namespace new noexcept "
    "not not_eq nullptr operator or or_eq override pragma private protected public register reinterpret_cast return "
    "run short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try "
    "typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq"
)
KEYWORDS = frozenset(_RESERVED.split())
"""Of C++ and its preprocessor; and `run`, by which opforge finds what a file exports."""


def renamed_program(old: Implementation, now: Implementation) -> bool:
    """Whether `now` is `old` with other names, and equal in what it says of its config, flags and architecture. False
    too where the compiler that names the headers from outside is missing.
    """
    said = [(item.default.values, item.flags, item.arch, item.source.suffix) for item in (old, now)]
    if said[0] != said[1] or now.source.suffix == ".py":
        return False
    given = joined_tokens(now.source)
    changed = new_names(joined_tokens(old.source), given)
    if not changed:
        return changed == {}
    names = {*changed, *changed.values()}
    settings = {name for item in (old, now) for name, _ in item.default.values}
    if names & (KEYWORDS | settings) or any(name.startswith("__") for name in names):
        return False
    # what is included from outside is one, because tokens that are no names do not differ
    lines = [given[place : place + 24] for place, token in enumerate(given) if token == "include"]
    included = (now.source.suffix, now.arch, *sorted({"".join(line[: line.index("<end>")]) for line in lines}))
    if included not in _OUTSIDE:
        _OUTSIDE[included] = outside_words(now)
    outside = _OUTSIDE[included]
    return outside is not None and not names & outside


_OUTSIDE: dict[tuple[str, ...], frozenset[str] | None] = {}
"""The words of headers from outside, by the lines that include them: compilers are asked once for many files."""


def new_names(old: Sequence[str], now: Sequence[str]) -> dict[str, str] | None:
    """Old name → new name of those that differ; None where the tokens differ in more than names.

    >>> new_names("float a = b + 1 ;".split(), "float sum = b + 1 ;".split())
    {'a': 'sum'}
    >>> new_names("a = b".split(), "a = a".split()) is None
    True
    """
    old, now = _without_messages(old), _without_messages(now)
    if len(old) != len(now):
        return None
    forth: dict[str, str] = {}
    back: dict[str, str] = {}
    for one, other in zip(old, now, strict=True):
        if not (_WORD.fullmatch(one) and _WORD.fullmatch(other)):
            if one != other:
                return None
        elif forth.setdefault(one, other) != other or back.setdefault(other, one) != one:
            return None
    changed = {one: other for one, other in forth.items() if one != other}
    fixed, pasted = _fixed(old)
    return None if any(one in fixed or one.startswith(pasted) for one in changed) else changed


def _without_messages(given: Sequence[str]) -> list[str]:
    """Without what a `static_assert` says where it fails: what compiles has none of it."""
    kept: list[str] = []
    asserting = False
    for token in given:
        asserting = token == "static_assert" or (asserting and token != ";")
        if not (asserting and token.startswith('"')):
            kept.append(token)
    return kept


def _fixed(given: Sequence[str]) -> tuple[set[str], tuple[str, ...]]:
    """The names that a preprocessor's line gives a meaning from outside, or pastes together: those of a pragma are the
    compiler's, those of an `#if` may come from its command line. And how names begin that are pasted.
    """
    fixed: set[str] = set()
    pasted: set[str] = set()
    directive: list[str] = []
    for token in given:
        if directive or token == "#":
            directive.append(token)
        if token != "<end>" or not directive:
            continue
        if directive[1] != "define":
            fixed.update(directive[2:])
        for place in range(2, len(directive) - 2):
            if directive[place : place + 2] == ["#", "#"]:
                fixed.update((directive[place - 1], directive[place + 2]))
                pasted.add(directive[place - 1])
        directive = []
    return fixed, tuple(pasted)


def outside_words(implementation: Implementation) -> frozenset[str] | None:
    """Every word of the code that the compilers read for a file beside opforge's own headers, the emulator's among
    these; None where a compiler is missing.
    """
    source = implementation.source
    own = include_of(package_of(source))
    commands = [_listing(implementation)]
    if source.suffix == ".cu":
        if shutil.which("nvcc") is None:
            return None
        target = implementation.arch or "sm_90a"
        commands.append(["nvcc", *DEVICE_FLAGS, f"-arch={target}", "-M", *native.includes_of(source), str(source)])
        if implementation.arch:
            commands.pop(0)
    files: set[str] = set()
    for command in commands:
        try:
            listed = tool.run(command, readable=list(native.read_by(command)), check=True).stdout
        except (OSError, subprocess.CalledProcessError, tool.TookTooLong):
            return None
        files |= set(listed.partition(":")[2].replace("\\\n", " ").split())
    emulator = own / "opforge" / "emulator"
    paths = {Path(file).resolve() for file in files}
    strangers = {
        path
        for path in paths
        if path != source.resolve()
        and (path.is_relative_to(emulator.resolve()) or not path.is_relative_to(own.resolve()))
    }
    return _words_of(tuple(sorted(strangers)))


def _listing(implementation: Implementation) -> list[str]:
    """The host compiler's command that lists what it reads for a file."""
    chain = Cpp().toolchain() if implementation.backend == "cpp" else Cuda().toolchain("cpu")
    source = implementation.source
    own = native.own_options(implementation, Config())
    return [chain.compiler, *chain.flags, *own, *native.includes_of(source), "-M", str(source)]


@functools.lru_cache(maxsize=64)
def _words_of(paths: tuple[Path, ...]) -> frozenset[str]:
    words: set[str] = set()
    for path in paths:
        words |= _words_in(path)
    return frozenset(words)


@functools.lru_cache(maxsize=4096)
def _words_in(path: Path) -> frozenset[str]:
    return frozenset(_WORD.findall(_NO_CODE.sub(" ", path.read_text(encoding="utf-8", errors="replace"))))
