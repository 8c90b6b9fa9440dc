"""The roofline of a device with every timed kernel on it (Williams, Waterman and Patterson, CACM 52(4), 2009)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opforge.core.definition.device import ONE_THREAD, DeviceSpec
from opforge.core.definition.dtypes import DTYPES
from opforge.core.evidence.record import Record
from opforge.core.language import units
from opforge.report import svg
from opforge.report.record_text import axes, clean, short
from opforge.report.versions import Move
from opforge.report.view import of_roof, timing_of

WIDTH, HEIGHT = 1080.0, 540.0
LEFT, RIGHT, TOP, BOTTOM = 112.0, 846.0, 16.0, 482.0
FAR_RIGHT = 1064.0
"""Where the picture ends when no roof has its name beside it."""
LABEL_GAP = 15.0
VECTOR = "vector_float32"
"""The arithmetic of all that is no product of matrices, whatever the dtype of its tensors."""


@dataclass(frozen=True, kw_only=True)
class Roof:
    """One limit: bytes/s (a slope) or FLOP/s (a level). `nominal` is a vendor's figure, not a measured one; `cached` is
    a
    bandwidth of data small enough for a cache."""

    name: str
    value: float
    memory: bool
    nominal: bool
    cached: bool = False

    @property
    def words(self) -> str:
        """Its name and value."""
        value = (units.bytes_per_s if self.memory else units.flops_per_s)(self.value)
        return f"{short(clean(self.name), 24)} {value}"


def roofs(device: DeviceSpec, dtypes: Sequence[str]) -> tuple[Roof, ...]:
    """The measured ceilings that matter for these dtypes; the vendor's figures where nothing was measured.

    Bandwidths measured at several sizes ("copy_4194304": bytes) are those of caches: the fastest stands for all of
    them.
    """
    lines = []
    cached = []
    for ceiling in (one for one in device.ceilings if not one.name.endswith(ONE_THREAD)):
        unit = ceiling.unit.lower()
        memory = unit.startswith(("b/", "byte"))
        named = [name for name in DTYPES if ceiling.name.endswith(name)]
        wanted = memory or (
            unit.startswith("flop") and (not named or ceiling.name == VECTOR or any(name in dtypes for name in named))
        )
        if wanted and math.isfinite(ceiling.value) and ceiling.value > 0:
            kind, _, size = ceiling.name.rpartition("_")
            if memory and kind and size.isdigit():
                cached.append(
                    Roof(name=f"{kind} in cache", value=ceiling.value, memory=True, nominal=False, cached=True)
                )
            else:
                lines.append(Roof(name=ceiling.name, value=ceiling.value, memory=memory, nominal=False))
    if not any(roof.memory for roof in lines) and device.nominal_bytes_per_s > 0:
        lines.append(Roof(name="memory (vendor)", value=device.nominal_bytes_per_s, memory=True, nominal=True))
    measured = {roof.name for roof in lines if not roof.memory}
    levels = {
        name: value
        for name, value in device.nominal_flops_per_s.items()
        if value > 0 and (name not in measured if name == VECTOR else name in dtypes and not measured)
    }
    lines += [Roof(name=f"{name} (vendor)", value=value, memory=False, nominal=True) for name, value in levels.items()]
    if cached:
        lines.append(max(cached, key=lambda roof: roof.value))
    return tuple(lines)


def roofline(
    records: Sequence[Record],
    device: DeviceSpec | None,
    colours: Mapping[str, int],
    anchors: Mapping[str, str],
    moves: Sequence[Move] = (),
) -> str:
    """The picture as SVG; "" when no record has a time and arithmetic to show. `anchors` maps a record's id to a place
    on the page; `moves` are drawn as arrows from version to version.
    """
    points = [
        (record, record.cost.intensity, record.cost.flops / timing.median_s)
        for record in records
        if (timing := timing_of(record)) and record.cost.intensity > 0
    ]
    if not points:
        return ""
    limits = roofs(device, sorted({record.dtype for record, _, _ in points})) if device is not None else ()

    def drawn(x: svg.Scale, y: svg.Scale) -> list[str]:
        marks = [
            _marker(record, x(intensity), y(rate), rate, colours[record.backend], anchors)
            for record, intensity, rate in points
        ]
        return [_names(points, x), *marks, *(_way(move, x, y) for move in moves)]

    return roof_picture(
        [(intensity, rate) for _, intensity, rate in points],
        limits,
        drawn,
        f"Roofline with {units.plural(len(points), 'timed kernel')}: arithmetic intensity against achieved FLOP/s",
        rates=[rate for move in moves for rate in move.rates],
    )


def roof_picture(
    points: Sequence[tuple[float, float]],
    limits: Sequence[Roof],
    drawn: Callable[[svg.Scale, svg.Scale], Sequence[str]],
    label: str,
    *,
    rates: Sequence[float] = (),
) -> str:
    """A roofline as SVG with what `drawn` makes of its scales on it.

    points   (FLOP per byte, FLOP per second) of what is shown; `rates` are others that must fit
    """
    slopes = [roof for roof in limits if roof.memory]
    levels = [roof for roof in limits if not roof.memory]
    peak = max((roof.value for roof in levels), default=0.0)
    steepest = max((roof.value for roof in slopes), default=0.0)
    memory = max((roof.value for roof in slopes if not roof.cached), default=steepest)
    ridge = [peak / steepest] if peak and steepest else []
    xs = [*(x for x, _ in points), *ridge]
    x_low, x_high = min(xs) / 2, max(xs) * 2
    ys = [
        *(y for _, y in points),
        *rates,
        *(roof.value for roof in levels),
    ] + ([] if levels else [steepest * x_high] if slopes else [])
    # room below for the names of the operators
    y_low, y_high = min(ys) / 8, max(ys) * 2
    right = RIGHT if levels else FAR_RIGHT
    x, y = svg.logarithmic(x_low, x_high, LEFT, right), svg.logarithmic(y_low, y_high, BOTTOM, TOP)
    parts = [_frame(x, y, (x_low, x_high), (y_low, y_high), right)]
    if slopes:
        parts.append(_shade(x, y, memory, peak, (x_low, x_high), (y_low, y_high), right))
    taken = [(x(intensity), y(rate)) for intensity, rate in points]
    parts += _slopes(slopes, memory, x, y, peak, (x_low, x_high), (y_low, y_high), taken)
    parts += _levels(levels, x, y, steepest, x_low)
    return svg.picture(WIDTH, HEIGHT, label, *parts, *drawn(x, y))


def _frame(x: svg.Scale, y: svg.Scale, x_range: tuple[float, float], y_range: tuple[float, float], right: float) -> str:
    parts = []
    for value in svg.log_ticks(*x_range):
        parts += [
            svg.line(x(value), TOP, x(value), BOTTOM, "grid"),
            svg.text(f"{value:g}", x(value), BOTTOM + 18, "tick", text_anchor="middle"),
        ]
    for value in svg.log_ticks(*y_range):
        parts += [
            svg.line(LEFT, y(value), right, y(value), "grid"),
            svg.text(units.trimmed(units.flops_per_s(value)), LEFT - 8, y(value) + 4, "tick", text_anchor="end"),
        ]
    parts.append(svg.element("rect", x=LEFT, y=TOP, width=right - LEFT, height=BOTTOM - TOP, class_="frame"))
    parts.append(
        svg.text(
            "arithmetic intensity: FLOP per byte moved", (LEFT + right) / 2, HEIGHT - 18, "head", text_anchor="middle"
        )
    )
    middle = (TOP + BOTTOM) / 2
    parts.append(
        svg.text(
            "achieved: FLOP per second",
            14.0,
            middle,
            "head",
            text_anchor="middle",
            transform=f"rotate(-90 14 {svg.coordinate(middle)})",
        )
    )
    return "".join(parts)


def _shade(
    x: svg.Scale,
    y: svg.Scale,
    slope: float,
    peak: float,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    right: float,
) -> str:
    """What the device can reach, tinted: everything under the highest roofs."""
    top = min(peak or math.inf, y_range[1])
    start, corner = max(x_range[0], y_range[0] / slope), min(x_range[1], top / slope)
    outline = [
        (x(start), y(max(y_range[0], slope * start))),
        (x(corner), y(slope * corner)),
        (right, y(slope * corner)),
        (right, BOTTOM),
        (x(start), BOTTOM),
    ]
    return svg.element(
        "path",
        d="M" + "L".join(f"{svg.coordinate(px)} {svg.coordinate(py)}" for px, py in outline) + "Z",
        class_="shade",
    )


def _slopes(
    slopes: Sequence[Roof],
    memory: float,
    x: svg.Scale,
    y: svg.Scale,
    peak: float,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    taken: Sequence[tuple[float, float]],
) -> list[str]:
    """The memory roofs. Those below the highest lie close together: one label under the lowest names all of them."""
    main = [roof for roof in slopes if roof.value == memory or roof.cached]
    minor = sorted((roof for roof in slopes if roof not in main), key=lambda roof: roof.value)
    names = ", ".join(roof.words for roof in reversed(minor))
    named = [(roof, roof.words, True) for roof in main]
    named += [(roof, names if place == 0 else "", False) for place, roof in enumerate(minor)]
    return [_slope(roof, x, y, peak, x_range, y_range, taken, words, above=above) for roof, words, above in named]


def _slope(
    roof: Roof,
    x: svg.Scale,
    y: svg.Scale,
    peak: float,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    taken: Sequence[tuple[float, float]],
    words: str,
    *,
    above: bool,
) -> str:
    """A memory roof up to where arithmetic takes over. Its name is written along it, above or below, where the markers
    (their places: `taken`) leave room.
    """
    start = max(x_range[0], y_range[0] / roof.value)
    stop = min(x_range[1], (peak or y_range[1]) / roof.value)
    if not start < stop:
        return ""
    x1, y1, x2, y2 = x(start), y(roof.value * start), x(stop), y(roof.value * stop)
    class_ = "roof-line" + (" nominal" if roof.nominal else "") + ("" if above and not roof.cached else " minor")
    drawn = svg.line(x1, y1, x2, y2, class_)
    places = [
        (x1 + share * (x2 - x1), y1 + share * (y2 - y1))
        for share in ((0.5, 0.3, 0.7, 0.2, 0.8) if above else (0.65, 0.35, 0.85))
    ]
    px, py = max(places, key=lambda place: min(math.hypot(place[0] - mx, place[1] - my) for mx, my in taken))
    angle = math.degrees(math.atan2(y2 - y1, x2 - x1))
    label = svg.text(
        words,
        px,
        py - 9 if above else py + 18,
        "roof-label",
        text_anchor="middle",
        transform=f"rotate({angle:.1f} {svg.coordinate(px)} {svg.coordinate(py)})",
    )
    return svg.element("g", drawn, label)


def _levels(levels: Sequence[Roof], x: svg.Scale, y: svg.Scale, slope: float, x_low: float) -> list[str]:
    """Level roofs from where memory stops limiting; their labels stand to the right, pushed apart so that none hides
    another.
    """
    parts = []
    previous = -math.inf
    for roof in sorted(levels, key=lambda level: -level.value):
        start = max(x_low, roof.value / slope) if slope else x_low
        height = y(roof.value)
        label_y = max(height + 4, previous + LABEL_GAP)
        previous = label_y
        class_ = "roof-line nominal" if roof.nominal else "roof-line"
        parts += [
            svg.line(min(x(start), RIGHT), height, RIGHT, height, class_),
            svg.text(roof.words, RIGHT + 8, label_y, "roof-label"),
        ]
    return parts


def _names(points: Sequence[tuple[Record, float, float]], x: svg.Scale) -> str:
    """The operators, written upwards at their intensities, as far as there is room."""
    columns: dict[str, float] = {}
    for record, intensity, _ in points:
        columns.setdefault(record.operator, x(intensity))
    parts = []
    taken: list[float] = []
    for operator, place in columns.items():
        if all(abs(place - other) >= 13 for other in taken):
            taken.append(place)
            px = place + 4
            parts.append(
                svg.text(
                    short(clean(operator), 24),
                    px,
                    BOTTOM - 8,
                    "column",
                    transform=f"rotate(-90 {svg.coordinate(px)} {svg.coordinate(BOTTOM - 8)})",
                )
            )
    return "".join(parts)


def _way(move: Move, x: svg.Scale, y: svg.Scale) -> str:
    """Arrows from version to version, beside the markers of the same intensity so that these stay to be seen."""
    px = x(move.intensity) - 9
    parts = []
    for number, (before, after) in enumerate(zip(move.rates, move.rates[1:], strict=False), 1):
        start, end = y(before), y(after)
        tip = 5.0 if end > start else -5.0
        words = f"{move.operator}, {move.words[number - 1]} to {move.words[number]}: {after / before:.2f} times as fast"
        head = (
            f"M{svg.coordinate(px - 3.5)} {svg.coordinate(end - tip)}L{svg.coordinate(px)} {svg.coordinate(end)}"
            f"L{svg.coordinate(px + 3.5)} {svg.coordinate(end - tip)}"
        )
        parts.append(
            svg.element(
                "g",
                svg.line(px, start, px, end, "way"),
                svg.element("path", d=head, class_="way"),
                svg.title(clean(words)),
            )
        )
        parts.append(svg.text(str(number), px - 7, (start + end) / 2 + 4, "column", text_anchor="end"))
    return "".join(parts)


def _marker(record: Record, px: float, py: float, rate: float, colour: int, anchors: Mapping[str, str]) -> str:
    timing, fraction = timing_of(record), of_roof(record)
    assert timing is not None
    lines = [
        f"{record.operator} / {record.implementation} ({record.backend})",
        f"{record.workload}, {record.dtype}: {axes(record)}",
        f"{units.seconds(timing.median_s)}, {units.flops_per_s(rate)}, "
        f"{units.bytes_per_s(record.cost.bytes / timing.median_s)}",
        f"{units.number(record.cost.intensity)} FLOP/byte"
        + (f", {units.percent(fraction)} of peak" if fraction is not None else ""),
    ]
    drawn = svg.marker(colour, px, py, 4.6, f"mark b{colour}", svg.title("\n".join(clean(words) for words in lines)))
    anchor = anchors.get(record.id)
    return svg.link(f"#{anchor}", drawn) if anchor else drawn
