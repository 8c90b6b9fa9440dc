"""A sentence in English or Chinese as a definition, by a language model: asked, read strictly, repaired at most three
times with the error's own words. Nothing of an answer is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opforge.core.language.errors import OpforgeError, UsageError
from opforge.forge.loop.model import read_answer
from opforge.forge.loop.model_client import Answer
from opforge.forge.program.definition import Definition, definition_of, loaded
from opforge.forge.program.families import layout_of

FOLDER = Path(__file__).resolve().parent
REPAIRS = 3
LONGEST = 4000
"""Letters of a sentence: more is a document, which --from reads."""
ANSWER_TOKENS = 2048

Asked = Callable[[Sequence[Mapping[str, str]]], Answer]


class NoDefinition(OpforgeError):
    """A model answered, and no answer was a definition."""


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """What a model made of a sentence.

    text      the definition as YAML, as it was answered
    repairs   how many answers were mended before it
    tokens    of all questions and answers, where the server counted them
    """

    definition: Definition
    text: str
    repairs: int
    tokens: int


def definition_asked(sentence: str, name: str, asked: Asked) -> Sentence:
    """The definition that a model makes of a sentence, for an operator called `name`.

    asked   puts messages to a model (model_client.ask)
    Raises UsageError for no sentence or one too long, ModelError where there is no answer, and NoDefinition where the
    last repair is none either, with what was wrong.
    """
    plain = sentence.strip()
    if not plain:
        raise UsageError('--ask has no sentence. Write: --ask "silu of x times a scale for each column"')
    if len(plain) > LONGEST:
        raise UsageError(f"--ask has {len(plain)} letters, more than {LONGEST}. Write a task book, and read it: --from")
    question, repair = ((FOLDER / file).read_text(encoding="utf-8") for file in ("ask_definition.md", "ask_repair.md"))
    messages = [{"role": "user", "content": question.replace("{sentence}", plain)}]
    tokens, reason = 0, ""
    for repairs in range(REPAIRS + 1):
        answer = asked(messages)
        tokens += (answer.prompt_tokens or 0) + (answer.answer_tokens or 0)
        try:
            text = _yaml_of(answer)
            return Sentence(definition=_read(text, name), text=text, repairs=repairs, tokens=tokens)
        except UsageError as error:
            reason = str(error)
        messages += [
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": repair.replace("{reason}", reason)},
        ]
    raise NoDefinition(
        f"The model's answer is no definition after {REPAIRS} repairs: {reason} Say it more plainly, ask another model "
        "(OPFORGE_MODEL), or write it: --formula"
    )


def shown(text: str) -> str:
    """A model's text for a terminal: nothing in it but letters and line ends."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def _yaml_of(answer: Answer) -> str:
    if answer.finish == "length":
        raise UsageError(f"The answer was cut off after {ANSWER_TOKENS} tokens. Write a shorter definition.")
    text, _ = read_answer(answer.text, "yaml")
    # some answer without a fence
    return text or answer.text


def _read(text: str, name: str) -> Definition:
    """The Definition of a YAML text, of a program that a family generates. Raises UsageError."""
    where = "the answer"
    fields = {key: value for key, value in loaded(text, where).items() if key != "name"}
    definition = definition_of(fields, name, where)
    layout_of(definition.program())
    return definition
