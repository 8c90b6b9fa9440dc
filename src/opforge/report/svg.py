"""SVG as text: elements, scales and ticks. Colours and fonts come from the page's style sheet, by class.

Every attribute and every text is escaped here; a coordinate that is not finite is refused, so that a picture is always
well-formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

Scale = Callable[[float], float]


def coordinate(value: float) -> str:
    """A coordinate with at most one decimal. Raises ValueError for NaN and infinities.

    >>> coordinate(3.0), coordinate(2.26)
    ('3', '2.3')
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} is no coordinate")
    return f"{value:.1f}".removesuffix(".0")


def element(tag: str, *children: str, **attributes: str | float) -> str:
    """One element. `children` are SVG already; attribute names lose a trailing underscore, and `_` inside becomes `-`.

    >>> element("rect", x=1.0, class_="bar", stroke_width=2.0)
    '<rect x="1" class="bar" stroke-width="2"/>'
    """
    parts = [tag]
    for name, value in attributes.items():
        text = value if isinstance(value, str) else coordinate(value)
        parts.append(f'{name.rstrip("_").replace("_", "-")}="{escape(clear(text))}"')
    inside = "".join(children)
    return f"<{' '.join(parts)}>{inside}</{tag}>" if inside else f"<{' '.join(parts)}/>"


def clear(text: str) -> str:
    """`text` without the control characters that no XML document may hold."""
    return "".join(char for char in text if char.isprintable())


def text(content: str, x: float, y: float, class_: str = "", **attributes: str | float) -> str:
    """A line of text, escaped, its baseline at y."""
    return element("text", escape(clear(content)), x=x, y=y, **({"class_": class_} if class_ else {}), **attributes)


def title(content: str) -> str:
    """What a reader sees when pointing at the element around it; lines are kept."""
    lines = [clear(part) for part in content.split("\n")]
    return "<title>" + escape("\n".join(lines)) + "</title>"


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def link(href: str, *children: str) -> str:
    """Children that lead to an anchor of the page."""
    return element("a", *children, href=href)


def picture(width: float, height: float, label: str, *children: str) -> str:
    """A whole picture that scales with its container; `label` is what a screen reader says."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
        role="img",
        aria_label=label,
        xmlns="http://www.w3.org/2000/svg",
    )


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """A linear scale from [low, high] to [start, end]."""
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """A logarithmic scale from [low, high], both positive, to [start, end]."""
    return lambda value: linear(math.log10(low), math.log10(high), start, end)(math.log10(value))


def ticks(high: float, count: int = 5) -> tuple[float, ...]:
    """About `count` round steps from 0 to at most `high`.

    >>> ticks(9.0)
    (0.0, 2.0, 4.0, 6.0, 8.0)
    """
    if not high > 0:
        return (0.0,)
    raw = high / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    return tuple(step * position for position in range(int(high / step * 1.000001) + 1))


def decades(low: float, high: float) -> tuple[float, ...]:
    """The powers of ten in [low, high]."""
    return tuple(
        10.0**power for power in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    )


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """The powers of ten in [low, high]; where they are few, their doubles and fivefolds too.

    >>> log_ticks(0.5, 2000.0), log_ticks(3.0, 300.0)
    ((1.0, 10.0, 100.0, 1000.0), (5.0, 10.0, 20.0, 50.0, 100.0, 200.0))
    """
    whole = decades(low, high)
    if len(whole) > 3:
        return whole
    steps = (factor * power for power in decades(low / 10, high) for factor in (1.0, 2.0, 5.0))
    return tuple(step for step in steps if low <= step <= high)


def dots(points: Sequence[tuple[float, float]], class_: str) -> str:
    """Many points as one path of zero-length strokes: round line caps make each a dot, in ten bytes instead of
    forty.
    """
    return element("path", d="".join(f"M{coordinate(x)} {coordinate(y)}h0" for x, y in points), class_=class_)


MARKERS: tuple[Callable[[float, float, float], str], ...] = (
    lambda x, y, r: _polygon(
        [(x + r * math.cos(a * math.pi / 6), y + r * math.sin(a * math.pi / 6)) for a in range(12)]
    ),
    lambda x, y, r: _polygon([(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]),
    lambda x, y, r: _polygon([(x, y - 1.35 * r), (x + 1.35 * r, y), (x, y + 1.35 * r), (x - 1.35 * r, y)]),
    lambda x, y, r: _polygon([(x, y - 1.25 * r), (x + 1.2 * r, y + r), (x - 1.2 * r, y + r)]),
    lambda x, y, r: _polygon([(x, y + 1.25 * r), (x + 1.2 * r, y - r), (x - 1.2 * r, y - r)]),
    lambda x, y, r: _polygon(
        [(x + 1.2 * r * math.cos(a * math.pi / 3), y + 1.2 * r * math.sin(a * math.pi / 3)) for a in range(6)]
    ),
)
"""Outlines of markers, so that backends differ without colour too: x, y, radius to the `d` of a path."""


def _polygon(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in points) + "Z"


def marker(kind: int, x: float, y: float, radius: float, class_: str, *children: str) -> str:
    """One marker of the `kind`-th outline."""
    return element("path", *children, d=MARKERS[kind % len(MARKERS)](x, y, radius), class_=class_)
