"""The engine of a language model: candidates that it writes, each repaired until it passes or its budget is spent; then
a beam from the fastest of them.

The prompts are files beside this one (prompts/*.md): read them, change them. What the model is told of the operator,
the best kernel, its bottleneck and its failures is filled in; answers are texts to be tried, never instructions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opforge.core.evidence.optimization import LOGIC, Tried
from opforge.core.evidence.verdict import Pass
from opforge.core.language import units
from opforge.core.language.errors import UsageError
from opforge.forge.loop.beam import CHILDREN, ROUNDS, STRATEGY as BEAM, Parent, parents, rounds_done
from opforge.forge.loop.engine import Proposal, Situation, Variant, Variants
from opforge.forge.loop.feedback import feedback
from opforge.forge.loop.model_client import Answer, Endpoint, ModelError, ask
from opforge.forge.loop.patterns import patterns

PROMPTS = Path(__file__).resolve().parent / "prompts"
STRATEGY = "candidates of a model"
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[ \t]*\n(.*?)^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
LANGUAGES = {".cpp": "cpp", ".cu": "cuda", ".py": "python"}

Asked = Callable[[Sequence[Mapping[str, str]]], Answer]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a model may cost: candidates of a round, repairs of each, tokens and seconds of the whole run.

    device_seconds   of trials: candidates compiled, verified and timed, since the command was given
    answer_tokens    of one answer at most
    """

    candidates: int = 4
    repairs: int = 10
    tokens: int = 200_000
    seconds: float = float("inf")
    device_seconds: float = float("inf")
    answer_tokens: int = 8192


class Model:
    """Candidates by a language model behind an OpenAI-compatible endpoint."""

    name = "model"

    def __init__(
        self,
        endpoint: Endpoint,
        budget: Budget,
        *,
        spent: int = 0,
        prompts: Path = PROMPTS,
        asked: Asked | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """spent: tokens that an interrupted run took already. Raises UsageError where a prompt is missing."""
        self.budget = budget
        self.tokens = spent
        self.clock = clock
        self.began = clock()
        self.device_s = 0.0
        self.task, self.repair = (_prompt(prompts / name) for name in ("task.md", "repair.md"))
        self.asked = asked or (
            lambda messages: ask(endpoint, messages, temperature=0.7, max_tokens=budget.answer_tokens)
        )

    def propose(self, situation: Situation) -> Proposal | None:
        """The next round's candidates; None where the budget is spent, or the beam has had its rounds.

        Until a candidate of this run has passed: `candidates` of the best kernel, and the round ends with the first
        that passes. Then a beam: two of the best kernel, and two of the fastest other that passed.
        """
        self.tokens = max(self.tokens, sum(one.tokens for one in situation.rounds))
        if self._spent():
            return None
        beam = parents(situation.text, situation.rounds)
        if beam:
            if rounds_done(situation.rounds) >= ROUNDS:
                return None
            return Proposal(
                strategy=BEAM,
                hypothesis=f"{CHILDREN} candidates of each of {len(beam)} kernels, each repaired up to "
                f"{self.budget.repairs} times; the bottleneck is {situation.diagnosis.bottleneck}",
                expected=None,
                variants=self._variants(situation, [parent for parent in beam for _ in range(CHILDREN)], every=True),
            )
        best_s = next((one.best_s for one in reversed(situation.rounds) if one.best_s is not None), None)
        return Proposal(
            strategy=STRATEGY,
            hypothesis=f"{self.budget.candidates} candidates, each repaired up to {self.budget.repairs} times, until "
            f"one passes; the bottleneck is {situation.diagnosis.bottleneck}",
            expected=None,
            variants=self._variants(situation, [Parent(situation.text, best_s)] * self.budget.candidates, every=False),
        )

    def _spent(self) -> bool:
        budget = self.budget
        return (
            self.tokens >= budget.tokens
            or self.clock() - self.began >= budget.seconds
            or self.device_s >= budget.device_seconds
        )

    def _variants(self, situation: Situation, asked: Sequence[Parent], *, every: bool) -> Variants:
        """A candidate for each Parent in `asked`; `every`: of all of them, else until one passes."""
        now: list[Tried] = []
        for number, parent in enumerate(asked, 1):
            messages = [{"role": "user", "content": self._question(situation, parent, number, len(asked), now)}]
            for repair in range(self.budget.repairs + 1):
                if self._spent():
                    return
                variant, said = self._answered(messages, number, repair, situation.implementation.source.suffix)
                began = self.clock()
                tried = yield variant
                self.device_s += self.clock() - began
                now.append(tried)
                if said is None:
                    # no answer: asking the same server again would not help this round
                    return
                if isinstance(tried.verdict, Pass) and not every:
                    return
                if isinstance(tried.verdict, Pass) or tried.ratio is not None:
                    break
                messages += [
                    {"role": "assistant", "content": said},
                    {"role": "user", "content": self._feedback(tried, situation)},
                ]

    def _answered(
        self, messages: Sequence[Mapping[str, str]], number: int, repair: int, suffix: str
    ) -> tuple[Variant, str | None]:
        what = f"candidate {number}" + (f", repair {repair}" if repair else "")
        try:
            answer = self.asked(messages)
        except ModelError as error:
            broken = Variant(text="", change=what, claims=LOGIC, repair=repair, broken=f"no answer: {error}")
            return broken, None
        tokens = (answer.prompt_tokens or 0) + (answer.answer_tokens or 0)
        # a server that counts nothing is counted by letters: about four a token
        tokens = tokens or (sum(len(one["content"]) for one in messages) + len(answer.text)) // 4
        self.tokens += tokens
        text, told = read_answer(answer.text, LANGUAGES[suffix])
        reason = ""
        if answer.finish == "length":
            text, reason = "", f"the answer was cut off after {self.budget.answer_tokens} tokens: write a shorter file"
        elif not text:
            reason = "the answer holds no fenced block with a file"
        change = f"{what}: {told}" if told else what
        return Variant(text=text, change=change, claims=LOGIC, tokens=tokens, repair=repair, broken=reason), answer.text

    def _question(
        self, situation: Situation, parent: Parent, number: int, candidates: int, now: Sequence[Tried]
    ) -> str:
        diagnosis = situation.diagnosis
        helped = [
            f"{one.strategy} (kept {one.kept} of {one.tried}, {one.gain:.2f}x)"
            for one in patterns(situation.past)
            if one.gain is not None and one.bottleneck == diagnosis.bottleneck
        ]
        earlier = [*(tried for one in situation.rounds for tried in one.tried), *now]
        suffix = situation.implementation.source.suffix
        return self.task.format_map(
            _Filled(
                described=situation.described,
                file=situation.implementation.source.name,
                time=units.seconds(parent.seconds) if parent.seconds is not None else "not timed",
                standing="is the best until now"
                if parent.text == situation.text
                else "is the fastest but for the best",
                language=LANGUAGES[suffix],
                text=parent.text,
                bottleneck=diagnosis.bottleneck,
                because=diagnosis.because,
                evidence="\n".join(f"- {item.name}: {item.value}" for item in diagnosis.evidence),
                patterns="; ".join(helped[:5]) or "nothing yet",
                tried="\n".join(_line(item) for item in earlier[-12:]) or "- nothing yet",
                number=str(number),
                candidates=str(candidates),
            )
        )

    def _feedback(self, tried: Tried, situation: Situation) -> str:
        diagnosis = situation.diagnosis
        details = feedback(tried, diagnosis.operator, diagnosis.dtype)
        return self.repair.format_map(_Filled(reason=tried.reason, details=details))


class _Filled(dict[str, str]):
    """A field that a prompt names and nobody fills stays as it is written."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


def read_answer(answer: str, language: str) -> tuple[str, str]:
    """The file in an answer, and the sentence before it; ("", …) where there is none. Of several blocks the longest in
    the language, else the longest.

    >>> read_answer("Wider.\\n```cpp\\nint x;\\n```\\n", "cpp")
    ('int x;\\n', 'Wider.')
    """
    blocks = [(match[2].lower(), match[3], match.start()) for match in _FENCE.finditer(answer)]
    if not blocks:
        return "", ""
    known = {
        "cpp": ("cpp", "c++", "cc"),
        "cuda": ("cuda", "cu", "cpp", "c++"),
        "python": ("python", "py"),
        "yaml": ("yaml", "yml"),
    }[language]
    mine = [block for block in blocks if block[0] in known] or blocks
    _, text, start = max(mine, key=lambda block: len(block[1]))
    before = [line.strip() for line in answer[:start].splitlines() if line.strip()]
    told = "".join(letter for letter in (before[-1] if before else "") if letter.isprintable())
    return text, told[:160]


def _line(item: Tried) -> str:
    came = f"{item.ratio:.2f}" if item.ratio is not None else " ".join(item.reason.split())[:120] or "no time"
    return f"- {item.change}: {came}"


def _prompt(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"The prompt {path} cannot be read: {error}. It is a file of opforge: restore it.") from error
