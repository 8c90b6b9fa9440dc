"""Configs of one's own: `BLOCK=512,num_warps=8` sets tunables of the implementations that have them, and leaves the
others at their defaults."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.language.errors import UsageError


def parse_config(text: str) -> Config:
    """The settings that `BLOCK=512,num_warps=8` means. Raises UsageError.

    >>> parse_config("BLOCK=512, EARLY=True").as_dict()
    {'BLOCK': 512, 'EARLY': True}
    """
    settings: dict[str, int | str | bool] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name or not value:
            raise UsageError(f"{part.strip()!r} in --config {text} is not NAME=VALUE. Example: --config BLOCK=512")
        if name in settings:
            raise UsageError(f"--config {text} gives {name} twice. For two configs say --config twice.")
        settings[name] = setting_value(value)
    return Config(tuple(settings.items()))


def setting_value(value: str) -> int | str | bool:
    """A tunable's value as a space holds it: True, False, a whole number, or text."""
    if value in ("True", "False"):
        return value == "True"
    return int(value) if re.fullmatch(r"-?\d{1,18}", value) else value


def with_settings(implementation: Implementation, settings: Config) -> Config:
    """The default with these settings in place of its own. Raises UsageError for a name or value outside the space."""
    for name, value in settings.values:
        if name not in implementation.space:
            close = get_close_matches(name, implementation.space, n=1)
            raise UsageError(
                f"{implementation.name} has no tunable {name!r}.{f' Did you mean {close[0]!r}?' if close else ''} "
                f"It has: {', '.join(implementation.space) or 'none'}."
            )
        if value not in implementation.space[name]:
            raise UsageError(f"{implementation.name}: {name}={value} is not in its space {implementation.space[name]}.")
    return Config(tuple({**implementation.default.as_dict(), **settings.as_dict()}.items()))


def takes(implementation: Implementation, settings: Config) -> bool:
    """Whether all of the settings are in its space."""
    return all(value in implementation.space.get(name, ()) for name, value in settings.values)


def configs_of(implementation: Implementation, asked: Sequence[Config]) -> tuple[Config | None, ...]:
    """The configs in which an implementation is tried: each that is asked for and in its space, once; its default
    (None) where none is, so that it can be compared with.
    """
    fitting = [with_settings(implementation, settings) for settings in asked if takes(implementation, settings)]
    return tuple(dict.fromkeys(fitting)) or (None,)


def ensure_taken(implementations: Sequence[Implementation], asked: Sequence[Config]) -> None:
    """Raises UsageError for settings that are in the space of none of the implementations: it names the tunables that
    there are, and their values.
    """
    for settings in asked:
        if any(takes(item, settings) for item in implementations):
            continue
        names = [name for name, _ in settings.values]
        near = max(implementations, key=lambda item: sum(name in item.space for name in names), default=None)
        if near is not None and (len(implementations) == 1 or any(name in near.space for name in names)):
            try:
                with_settings(near, settings)
            except UsageError as error:
                raise UsageError(f"{error} {_tunables([near])}") from None
        raise UsageError(
            f"None of the implementations that are asked for has the tunables {settings}. {_tunables(implementations)}"
        )


def _tunables(implementations: Sequence[Implementation]) -> str:
    spaces = [
        f"{item.name}: " + ", ".join(f"{name}={'|'.join(map(str, values))}" for name, values in item.space.items())
        for item in implementations
        if item.space
    ]
    first = next((item for item in implementations if item.space), None)
    if first is None:
        return "None of them is tunable; leave --config away."
    name, values = next(iter(first.space.items()))
    return f"Tunables: {'; '.join(spaces)}. Example: --config {name}={values[-1]}"
