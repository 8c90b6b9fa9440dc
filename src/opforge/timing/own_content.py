"""A turn on content of its own: the inputs that it finds are in an order that no turn before it had."""

from __future__ import annotations

import random
from dataclasses import replace

from opforge.runner.wire.messages import NEW, OTHER, UNTOUCHED, Sample

TURNED_BY = 1 << 48
"""Numbers of rows that contents are turned by are drawn below it, and taken modulo an input's rows."""


def on_its_own(question: Sample, spans: tuple[tuple[int, int, int], ...], draw: random.Random) -> Sample:
    """The same request with these tensors (SampleRequest.spans) turned before its first call; as it is without any."""
    if not spans:
        return question
    steps = ((NEW, draw.randrange(TURNED_BY)), *[(UNTOUCHED, 0)] * question.count)
    return replace(question, written=OTHER, spans=spans, steps=steps)
