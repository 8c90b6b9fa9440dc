"""JSON documents as frozen nouns and back, without loss: what a field must be is said once, beside the field.

A noun remembers which keys its document had, in their order, and keeps those that it does not know. So what is read
and written again is the same document: an absent key stays absent, a null stays null.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from opforge.core.language.errors import UsageError

LARGEST_FILE = 64 << 20
"""Bytes of a document or of all lines of a file that are read."""
NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""How these documents write numbers that JSON has not: as text."""


@dataclass(frozen=True)
class At:
    """A place in a document: the file (and line), and the path in it."""

    file: str
    path: str = "$"

    def key(self, name: str) -> At:
        """The place of a key; one that is no plain name stands in brackets."""
        plain = name.isidentifier()
        return At(self.file, f"{self.path}.{name}" if plain else f"{self.path}[{json.dumps(name)}]")

    def item(self, index: int) -> At:
        return At(self.file, f"{self.path}[{index}]")

    def wrong(self, expected: str, found: object = None) -> UsageError:
        """The error that says what belongs here."""
        shown = "" if found is None else f", not {_short(found)}"
        return UsageError(f"{self.file}: {self.path} must be {expected}{shown}. Mend it there.")


class Kind(Protocol):
    """What may stand in a field."""

    def read(self, value: Any, at: At) -> Any:
        """The value as a noun keeps it. Raises UsageError with the place and what is expected."""

    def written(self, value: Any) -> Any:
        """What the document had."""


@dataclass(frozen=True)
class Plain:
    """A value that is kept as it is, where `fits` finds it right."""

    expected: str
    fits: Callable[[Any], bool]

    def read(self, value: Any, at: At) -> Any:
        if not self.fits(value):
            raise at.wrong(self.expected, "null" if value is None else value)
        return value

    def written(self, value: Any) -> Any:
        return value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


TEXT = Plain("text", lambda value: isinstance(value, str))
NAME = Plain("text that is not empty", lambda value: isinstance(value, str) and value != "")
SIZE = Plain("a whole number from 0 on", lambda value: _whole(value) and value >= 0)
TRUTH = Plain("true or false", lambda value: isinstance(value, bool))
NUMBER = Plain("a number", _number)
SCALAR = Plain("a number, true or false", lambda value: isinstance(value, int | float))
AMOUNT = Plain("a number from 0 on", lambda value: _number(value) and value >= 0)
ERROR = Plain(
    'a number from 0 on, "NaN" or "Infinity"', lambda value: (_number(value) and value >= 0) or value in NOT_FINITE[:2]
)
OBJECT = Plain("an object", lambda value: isinstance(value, dict))


def one_of(words: tuple[str, ...]) -> Plain:
    """One of these words."""
    return Plain(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


@dataclass(frozen=True)
class Nullable:
    """What `kind` is, or null, which is None."""

    kind: Kind

    def read(self, value: Any, at: At) -> Any:
        return None if value is None else self.kind.read(value, at)

    def written(self, value: Any) -> Any:
        return None if value is None else self.kind.written(value)


@dataclass(frozen=True)
class ListOf:
    """A list, kept as a tuple, of at least `least` items."""

    kind: Kind
    least: int = 0

    def read(self, value: Any, at: At) -> Any:
        if not isinstance(value, list) or len(value) < self.least:
            raise at.wrong("a list" + (f" of {self.least} or more" if self.least else ""), value)
        return tuple(self.kind.read(item, at.item(index)) for index, item in enumerate(value))

    def written(self, value: Any) -> Any:
        return [self.kind.written(item) for item in value]


@dataclass(frozen=True)
class MapOf:
    """An object with names of the document's own, in its order."""

    kind: Kind

    def read(self, value: Any, at: At) -> Any:
        if not isinstance(value, dict):
            raise at.wrong("an object", value)
        return {key: self.kind.read(item, at.key(key)) for key, item in value.items()}

    def written(self, value: Any) -> Any:
        return {key: self.kind.written(item) for key, item in value.items()}


@dataclass(frozen=True)
class Nested:
    """An object that is a noun of its own."""

    noun: type[Noun]

    def read(self, value: Any, at: At) -> Any:
        return self.noun.read(value, at)

    def written(self, value: Any) -> Any:
        return value.document()


@dataclass(frozen=True)
class ByType:
    """An object whose key "type" says which noun it is."""

    nouns: Mapping[str, type[Noun]]

    def read(self, value: Any, at: At) -> Any:
        if not isinstance(value, dict):
            raise at.wrong("an object with a type", value)
        word = value.get("type")
        if not isinstance(word, str) or word not in self.nouns:
            raise at.key("type").wrong(f"one of {', '.join(self.nouns)}", word)
        return self.nouns[word].read(value, at)

    def written(self, value: Any) -> Any:
        return value.document()


def held(kind: Kind, *, key: str = "", **more: Any) -> Any:
    """A field of a noun: what may stand there; `key`, where the document calls it otherwise; and its default."""
    return field(metadata={"kind": kind, "key": key}, **more)


@dataclass(frozen=True, kw_only=True)
class Noun:
    """An object of a document.

    keys   those that its document had, in their order; none for what was made here
    more   what this class does not know, kept as it was
    """

    keys: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, value: Any, at: At) -> Self:
        """The noun of an object. Raises UsageError with the place and what is expected there."""
        if not isinstance(value, dict):
            raise at.wrong("an object", "null" if value is None else value)
        known, found = _known(cls), dict[str, Any]()
        for key, item in known.items():
            if key in value:
                found[item.name] = item.metadata["kind"].read(value[key], at.key(key))
            elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
                raise at.key(key).wrong("there")
        more = {key: item for key, item in value.items() if key not in known}
        made = cls(keys=tuple(value), more=more, **found)
        made.check(at)
        return made

    def check(self, at: At) -> None:
        """What fields must be together. Raises UsageError."""

    def document(self) -> dict[str, Any]:
        """The object again: the keys it had, then what has been given since."""
        known, found = _known(type(self)), dict[str, Any]()
        for key in (*self.keys, *(key for key in (*known, *self.more) if key not in self.keys)):
            if key not in known:
                found[key] = self.more[key]
                continue
            item = known[key]
            value = getattr(self, item.name)
            if key in self.keys or value != _default(item):
                found[key] = item.metadata["kind"].written(value)
        return found


def _known(cls: type[Noun]) -> dict[str, dataclasses.Field[Any]]:
    return {item.metadata["key"] or item.name: item for item in dataclasses.fields(cls) if "kind" in item.metadata}


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


def loaded(text: str, file: str) -> Any:
    """What a JSON text holds. Raises UsageError: a key that stands twice would be lost, and NaN is no JSON."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            twice = next(key for key, _ in pairs if [name for name, _ in pairs].count(key) > 1)
            raise UsageError(f"{file}: the key {twice!r:.60} stands twice in one object. Leave one of them out.")
        return made

    def strange(word: str) -> Any:
        raise UsageError(f'{file}: {word} is no JSON. Write it as text: "{word}".')

    def finite(word: str) -> float:
        value = float(word)
        return value if math.isfinite(value) else strange(word)

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=strange, parse_float=finite)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{file}: no JSON at {place}: {error.msg}. Mend it there.") from error
    except (RecursionError, ValueError) as error:
        raise UsageError(f"{file}: no JSON that can be read: {type(error).__name__}. Is it the right file?") from error


def dumped(value: Any, *, indent: int | None = None) -> str:
    """JSON text, its letters as they are; half a surrogate pair as an escape."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    return text if text.isascii() or _encodes(text) else json.dumps(value, indent=indent, allow_nan=False)


def text_of(path: Path) -> str:
    """The text of a file. Raises UsageError."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"{path} is larger than {LARGEST_FILE >> 20} MiB. Split it.")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}. Name a text file.") from error


def read_json(path: Path) -> Any:
    """What a JSON file holds. Raises UsageError."""
    return loaded(text_of(path), str(path))


def read_lines(path: Path) -> list[tuple[Any, str]]:
    """What the lines of a JSONL file hold, each with its place; empty lines are none. Raises UsageError."""
    # not splitlines: JSON text may hold other line ends than this one
    lines = enumerate(text_of(path).split("\n"), start=1)
    return [(loaded(line, f"{path}:{number}"), f"{path}:{number}") for number, line in lines if line.strip()]


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(value: object) -> str:
    text = value if isinstance(value, str) and value in ("null",) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
