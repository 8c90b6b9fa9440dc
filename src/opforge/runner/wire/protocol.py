"""Messages on the way between parent and worker, and the one place where what arrives is checked.

Both are JSON objects: a question is named by "do", an answer by "status". What a worker sends is hostile: `decoded`
takes it apart, and whatever it lets through any code of the parent may use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from opforge.core.definition.implementation import Config
from opforge.runner.walls.guards import Guards, Limits
from opforge.runner.wire.messages import (
    FAILURES,
    QUESTIONS,
    SERVER,
    A,
    Answer,
    Bind,
    Failure,
    Phase,
    Question,
    Refused,
    Sample,
)

WORDS_KEPT = 1 << 14
"""Characters of a reason: an exception of megabytes went into the record, the page and the terminal. A compiler's
longest honest ones have thousands.
"""
LARGEST = 1 << 62
"""Counts, bytes and seconds stay below: any arithmetic of the parent, and a signed integer of 64 bits, can take
them.
"""


class Malformed(Exception):
    """What arrived is no message that its sender can have sent honestly."""


def asked(question: Question[Any]) -> dict[str, Any]:
    """A question as it is sent. What is as by default is not said."""
    message = {"do": question.do, **_said(question)}
    if isinstance(question, Bind):
        message["config"] = None if question.config is None else [list(pair) for pair in question.config.values]
    if isinstance(question, Sample) and question.places:
        message["places"] = [[offset, one.hex(), other.hex()] for offset, one, other in question.places]
        message["contents"] = question.contents.hex()
    return message


def answered(answer: Answer) -> dict[str, Any]:
    """An answer as it is sent."""
    return {
        "status": answer.status,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in _said(answer).items()},
    }


def _said(message: Any) -> dict[str, Any]:
    values = {item.name: (getattr(message, item.name), item.default) for item in dataclasses.fields(message)}
    return {
        name: value
        for name, (value, default) in values.items()
        if value is not default and not (type(value) is type(default) and value == default)
    }


def question_of(message: Mapping[str, Any]) -> Question[Any]:
    """The question that the parent sent, in the worker. Raises KeyError or TypeError where it is none."""
    kind = QUESTIONS[message["do"]]
    given = {item.name: message[item.name] for item in dataclasses.fields(kind) if item.name in message}
    if kind is Bind and {"axes", "config"} <= given.keys():
        given["axes"] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in given["axes"].items()
        }
        given["config"] = (
            None if given["config"] is None else Config(tuple((name, value) for name, value in given["config"]))
        )
    if kind is Sample and "places" in given:
        given["places"] = tuple(
            (offset, bytes.fromhex(one), bytes.fromhex(other)) for offset, one, other in given["places"]
        )
        given["contents"] = bytes.fromhex(given.get("contents", ""))
    if kind is Sample and "spans" in given:
        given["spans"], given["steps"] = (tuple(map(tuple, given.get(name, ()))) for name in ("spans", "steps"))
    return kind(**given)


def decoded(question: Question[A], message: Mapping[str, Any], nonce: int | None = None) -> A | Failure:
    """A worker's answer to a question: its values have the types and sizes that its class declares. Raises Malformed.

    nonce   the number that the answer has to repeat; None in the red-team harness alone
    """
    if nonce is not None and message.get("nonce") != nonce:
        raise Malformed("it answered a question that was not asked")
    status = message.get("status")
    kind: type[Answer] | None = question.answer if status == question.answer.status else None
    if kind is None and isinstance(status, str) and (status != Refused.status or isinstance(question, Bind)):
        kind = FAILURES.get(status)
    if kind is None:
        raise Malformed("its answer is not one that a worker gives")
    answer: A | Failure = _checked(kind, message, "its answer is not one that a worker gives")
    return answer


def phase_of(message: Mapping[str, Any], nonce: int | None = None) -> Phase | None:
    """A worker's word about itself that comes before its answer; None where the message is something else. Raises
    Malformed.
    """
    if message.get("status") != Phase.status:
        return None
    if nonce is not None and message.get("nonce") != nonce:
        raise Malformed("it told of a question that was not asked")
    phase: Phase = _checked(Phase, message, "its message is not one that a worker sends")
    return phase


def told(message: Mapping[str, Any]) -> Answer:
    """What a server, or a newborn worker, says unasked. Raises Malformed."""
    status = message.get("status")
    kind = SERVER.get(status) if isinstance(status, str) else None
    if kind is None:
        raise Malformed("it is no message of a server")
    answer: Answer = _checked(kind, message, "it is no message of a server")
    return answer


def spawning(limits: Limits, guards: Guards) -> dict[str, Any]:
    """The request for a worker as it is sent to a server; `spawn_of` takes it apart over there."""
    return {"do": "spawn", "limits": vars(limits), "lowered": guards.lowered()}


def spawn_of(message: Mapping[str, Any]) -> tuple[Limits, Guards]:
    """What a worker may use, and the guards that are up around it."""
    return Limits(**message["limits"]), Guards.from_lowered(message["lowered"])


def _number(value: Any) -> bool:
    """A count, or a number of seconds or bytes, that any arithmetic can take: no NaN, nothing infinite, nothing
    negative.
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LARGEST


def _listed(value: Any, fine: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fine, value))


FORMS: Mapping[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int and _number(value),
    "ExitCode": lambda value: type(value) is int and -LARGEST < value < LARGEST,
    "float": lambda value: type(value) is float and _number(value),
    "Number": _number,
    "bool": lambda value: type(value) is bool,
    "str": lambda value: type(value) is str,
    "tuple[str, ...]": lambda value: _listed(value, lambda item: isinstance(item, str)),
    "tuple[int, ...]": lambda value: _listed(value, lambda item: type(item) is int),
    "tuple[float, ...]": lambda value: bool(value) and _listed(value, _number),
    "Mapping[str, int]": lambda value: isinstance(value, dict) and all(map(_number, value.values())),
    "Mapping[str, Any]": lambda value: isinstance(value, dict),
}
"""What a value on the way must be, by the annotation of its field."""


@lru_cache(maxsize=1)
def forms_of_names() -> Mapping[str, Callable[[Any], bool]]:
    """The form of each field of a worker's answers, by its name: one name means one thing in all of them."""
    kinds = [*(kind.answer for kind in QUESTIONS.values()), *FAILURES.values()]
    return {
        item.name: FORMS[form] for kind in kinds for item in dataclasses.fields(kind) if (form := _form(item)) in FORMS
    }


def _form(item: dataclasses.Field[Any]) -> str:
    return str(item.type).removesuffix(" | None")


def _checked(kind: type[Any], message: Mapping[str, Any], wrong: str) -> Any:
    """A message as an instance of its class. Every value of a known name is looked at, whether or not this class has
    it.
    """
    mine = {item.name: FORMS[form] for item in dataclasses.fields(kind) if (form := _form(item)) in FORMS}
    needed = {
        item.name
        for item in dataclasses.fields(kind)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    }
    if not needed <= message.keys() or not all(
        fine(message[name]) for name, fine in {**forms_of_names(), **mine}.items() if name in message
    ):
        raise Malformed(wrong)
    return kind(**{name: _kept(message[name]) for name in mine if name in message})


def _kept(value: Any) -> Any:
    """A checked value as the parent keeps it: lists are tuples, and a flood of words is cut."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str) and len(value) > WORDS_KEPT:
        return f"{value[: WORDS_KEPT // 2]} … {value[-WORDS_KEPT // 2 :]}"
    return value
