"""Contents that change as a whole while samples are taken: who keeps answers, or leaves out work in a row of calls."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from opforge.core.definition.operator import Case
from opforge.core.evidence.timing_terms import CALL, OUT
from opforge.core.evidence.verdict import Broken, Mismatch, Pass
from opforge.registry import load
from opforge.runner import InProcess
from opforge.runner.wire.messages import AGAIN, NEW, PAUSE, UNTOUCHED, Samples
from opforge.runner.worker import sample_requests
from opforge.runner.worker.arena import Arena
from opforge.timing import Candidate
from opforge.trial import whole_content
from opforge.trial.content_spans import spans_of
from opforge.verify import CaseCache


@pytest.mark.parametrize("sampler", [sample_requests.sampler, lambda: sample_requests.in_python])
def test_contents_change_as_a_whole_between_samples(sampler):
    """Six rows of two bytes, turned by whole rows; an output is what it was at first where inputs are new."""
    memory = ctypes.create_string_buffer(b"aabbccddeeff" + b"--", 14)
    seen = []

    def run():
        seen.append(memory.raw[:14])
        memory[12:14] = b"yy"

    spans = ((0, 12, 2), (12, 2, 0))
    steps = ((NEW, 1), (UNTOUCHED, 0), (AGAIN, 0), (PAUSE, 0), (NEW, 8), (NEW, 0))
    request = sample_requests.SampleRequest(lead=2, count=5, collected=True, spans=spans, steps=steps)
    taken = sampler()(run, lambda: None, lambda: None, request.sent(), ctypes.addressof(memory))
    assert len(taken.samples) == 5 and taken.collected
    first, turned = b"ffaabbccddee", b"eeffaabbccdd"
    assert seen == [first + b"--", *[first + b"yy"] * 4, turned + b"--", b"aabbccddeeff--"]
    again = sample_requests.SampleRequest(count=1, spans=spans[:1], steps=((NEW, 3), (UNTOUCHED, 0)))
    seen.clear()
    sampler()(run, lambda: None, lambda: None, again.sent(), ctypes.addressof(memory))
    assert seen == [b"ddeeffaabbccyy"] and memory.raw[:12] == b"aabbccddeeff"


def test_rows_stay_together_and_what_is_counted_stays_where_it_is():
    """Rows of a gradient's inputs that sum to one still do, and offsets are in order; elsewhere no row is one that was
    there before. Outputs change where calls write into them."""
    wanted = [
        ("x", "input", "float32", (4, 6), "contiguous"),
        ("offsets", "input", "int64", (5,), "contiguous"),
        ("bias", "input", "bfloat16", (6,), "contiguous"),
        ("gaps", "input", "float32", (4, 6), "sliced"),
        ("y", "output", "float32", (4, 6), "contiguous"),
    ]
    arena, given = Arena.allocate(wanted), load().operator("softmax_backward")
    try:
        assert [span[1:] for span in spans_of(arena, CALL, given)] == [(96, 24), (12, 2)]
        assert [span[1:] for span in spans_of(arena, OUT, given)] == [(96, 24), (12, 2), (96, 0)]
        for name in ("softmax", "vector_add"):
            free = spans_of(arena, OUT, load().operator(name))
            assert [span[1:] for span in free] == [(96, 4), (12, 2), (96, 0)]
    finally:
        arena.close()


PROOF = Pass(checked=(), not_taken=(), isolation="none")
HONEST, KEEPS, SKIPS, KNOWS_THE_TIMED, STALE = "honest", "keeps", "skips", "knows the timed content", "stale"


@pytest.mark.parametrize(
    ("manner", "words"),
    [
        (HONEST, ""),
        (KEEPS, "the same are written once more: it keeps answers"),
        (SKIPS, "it leaves out work in a row of calls"),
        (KNOWS_THE_TIMED, "content of its own and 0.0001 s on that which was timed"),
        (STALE, "on inputs that change as a whole"),
    ],
)
def test_who_does_less_while_it_is_timed_is_found(monkeypatch, manner, words):
    """A time of 0.1 ms is claimed; who does the work takes 1 ms."""
    monkeypatch.setattr(whole_content, "time", SimpleNamespace(sleep=lambda seconds: None))
    registry = load([Path(__file__).parent / "redteam" / "home"])
    operator = registry.operator("rt_relu")
    cases = CaseCache(registry=registry, operator=operator, host=InProcess(), device="cpu")
    prepared = cases.prepare(Case(name="one", axes={"shape": (64, 64)}, why="plain"), "float32")
    unseen, arena = cases.twins(prepared), prepared.arena

    def took(kind, own):
        if manner == HONEST or (manner == KEEPS and kind != NEW) or (manner == SKIPS and kind == UNTOUCHED):
            return 1e-4
        return 1e-4 if manner == STALE or (manner == KNOWS_THE_TIMED and not own) else 1e-3

    def ask(question):
        kinds = [kind for kind, _ in question.steps[1:]] or [UNTOUCHED] * question.count
        arena.tensor("y").copy_(arena.tensor("x").relu() * (0.5 if manner == STALE else 1.0))
        samples = tuple(took(kind, bool(question.spans)) for kind in kinds)
        return Samples(samples=samples, batch=1, left=arena.checksum() if question.collected else None)

    candidate = Candidate(name="k", proof=PROOF, ask=ask, launch=1, terms=OUT, lead=3, stretch=2)
    try:
        found = whole_content.whole(candidate, SimpleNamespace(median_s=1e-4), unseen, operator, "none", timed=prepared)
        told = "" if found is None else found.reason if isinstance(found, Broken) else found.cause
        assert (found is None) == (manner == HONEST) and words in told
        assert isinstance(found, Mismatch) == (manner == STALE)
    finally:
        cases.close()
