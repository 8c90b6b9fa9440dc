"""Attention of few queries against a paged cache, for references and bounds: the keys of each sequence, gathered; which
entries of a block table are read at all; axes and workloads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from opforge.core.definition.operator import Constraint, Scalar, ScalarValue, Workload
from opforge.core.definition.rounding_errors import Errors
from opforge.core.definition.shapes import AxisValue
from opforge.definitions.attention.attention import CONSTRAINTS, PARAMETERS, attended, attention_errors, in_parts
from opforge.definitions.bounds.sums import few_ulps

_SHARED = {scalar.name: scalar for scalar in PARAMETERS}

DECODE_PARAMETERS = (
    _SHARED["scale"],
    _SHARED["window_left"],
    _SHARED["softcap"],
    Scalar(
        name="batch_invariant",
        default=False,
        choices=(False, True),
        about="a sequence's keys are split by its own length alone: its bits are the same alone and in any batch",
    ),
)

DECODE_CONSTRAINTS = (
    Constraint(
        name="something_to_read",
        expression="pages >= 1 and page >= 1 and max_pages >= 1 and head_dim >= 1 and value_dim >= 1",
        about="there is a page, and rows have elements",
    ),
    Constraint(name="few_queries", expression="queries <= 16", about="a sequence has 16 queries at the most"),
    Constraint(
        name="lengths_fit_32_bits",
        expression="max_pages * page < 2147483616",
        about="lengths and positions are numbers of 32 bits",
    ),
    Constraint(
        name="window_reaches_out",
        expression="window_left >= -1",
        about="a window reaches 0 or more keys back, or is -1",
    ),
    *(constraint for constraint in CONSTRAINTS if constraint.name == "softcap_caps"),
)

CAPACITY = "max_pages * page"
"""The keys that a row of the block table has room for."""

FULL_FROM = 4096
"""Capacities from here on are drawn full, so that a workload's bytes and FLOPs are those of its sizes; smaller ones,
those of cases, have sequences of every length from 0 on.
"""

LEAST_LENGTH = f"{CAPACITY} if {CAPACITY} >= {FULL_FROM} else 0"

KEYS_READ = f"({CAPACITY} if window_left < 0 else min({CAPACITY}, window_left + queries))"
"""Of a sequence that fills its pages: the keys that any of its queries sees."""

FLOPS = f"2 * batch * kv_heads * group * queries * (head_dim + value_dim) * {KEYS_READ}"
BYTES_READ = (
    "batch * kv_heads * group * queries * head_dim * itemsize"
    f" + min(pages * page, batch * {KEYS_READ}) * kv_heads * (head_dim + value_dim) * itemsize"
    f" + 4 * batch * (cdiv({KEYS_READ}, page) + 1)"
)

POISON = (-1, 2**31 - 1)
"""What stands in the table where nothing is read: a caller may leave anything there."""


def decode_axes(
    batch: int,
    kv_heads: int,
    group: int,
    queries: int,
    head_dim: int,
    page: int,
    max_pages: int,
    *,
    pages: int | None = None,
    value_dim: int | None = None,
) -> dict[str, AxisValue]:
    """Axes by name. Without `pages` as many as the table has entries: each sequence has its own."""
    return {
        "batch": batch,
        "kv_heads": kv_heads,
        "group": group,
        "queries": queries,
        "head_dim": head_dim,
        "value_dim": head_dim if value_dim is None else value_dim,
        "page": page,
        "max_pages": max_pages,
        "pages": batch * max_pages if pages is None else pages,
    }


def span_of(length: int, queries: int, window_left: int) -> tuple[int, int]:
    """The keys, from the first up to and not including the last, that any query of a sequence of `length` keys sees."""
    return (0 if window_left < 0 else min(max(0, length - queries - window_left), length)), length


def poisoned(table: Any, lengths: Any, page: int, queries: int, window_left: int) -> Any:
    """The block table [batch, max_pages] with -1 and 2^31 - 1 wherever none of a sequence's queries sees the page."""
    columns = table.new_ones(table.shape[-1]).cumsum(0) - 1
    length = lengths.to(columns.dtype).unsqueeze(-1)
    first = length * 0 if window_left < 0 else (length - queries - window_left).clamp(min=0).minimum(length)
    read = (columns >= first // page) & (columns * page < length)
    wrong = columns % 2 * (POISON[1] - POISON[0]) + POISON[0]
    return table.where(read, wrong.to(table.dtype).expand_as(table))


def _as_attention(scalars: dict[str, Any]) -> dict[str, Any]:
    """The parameters of plain attention: the last query stands at the last key and sees none after it."""
    own = {name: scalars[name] for name in ("scale", "window_left", "softcap")}
    plain = {scalar.name: scalar.default for scalar in PARAMETERS}
    return {**plain, **own, "causal": True, "alignment": "bottom_right"}


ELEMENTS = 1 << 22
"""Of keys gathered at a time, for sequences of the same length."""


def alike(lengths: Any, row: int) -> Iterator[tuple[int, list[int]]]:
    """(length, numbers) of the sequences that have a key, those of the same length together, at most so many that
    their keys of `row` elements are ELEMENTS: 70,000 sequences of a key each take no 70,000 steps.
    """
    numbers: dict[int, list[int]] = {}
    for number, length in enumerate(lengths.tolist()):
        numbers.setdefault(length, []).append(number)
    numbers.pop(0, None)
    for length, same in numbers.items():
        count = max(1, ELEMENTS // max(1, length * row))
        yield from ((length, same[first : first + count]) for first in range(0, len(same), count))


def gathered(
    k_pages: Any, v_pages: Any, block_table: Any, length: int, numbers: list[int], queries: int, window_left: int
) -> tuple[Any, Any]:
    """Keys and values [sequences, kv_heads, keys, dim] that the queries of the sequences `numbers` see, of `length`
    keys each, out of their pages.
    """
    page = k_pages.shape[1]
    first, last = span_of(length, queries, window_left)
    entries = block_table[numbers, first // page : -(-last // page)].long()
    skipped = first // page * page
    return tuple(  # type: ignore[return-value]
        pages[entries].flatten(1, 2)[:, first - skipped : last - skipped].transpose(1, 2)
        for pages in (k_pages, v_pages)
    )


def decoded(q: Any, k_pages: Any, v_pages: Any, block_table: Any, lengths: Any, scalars: dict[str, Any]) -> Any:
    """(out, lse), sequences of one length after those of another; one without keys gives 0 and -inf."""
    out = q.new_zeros((*q.shape[:3], v_pages.shape[-1]))
    lse = q.new_full(q.shape[:3], -math.inf)
    plain = _as_attention(scalars)
    if not (q.shape[1] and q.shape[2]):
        return out, lse
    for length, same in alike(lengths, k_pages[0, 0].numel() + v_pages[0, 0].numel()):
        k, v = gathered(k_pages, v_pages, block_table, length, same, q.shape[2], scalars["window_left"])
        out[same], lse[same] = in_parts(attended, q[same], k, v, scalars=plain)
    return out, lse


def decode_errors(inputs: Any, outputs: Any, scalars: dict[str, Any], dtype: str) -> dict[str, Errors]:
    """Those of attention over a sequence's keys. Splits are blocks of an order of summation, which that bound covers;
    to bring their sums together each is multiplied by a factor that carries three roundings. Pages that a sequence has
    several times give the same terms, whose errors add up (`_repeats`).
    """
    q, k_pages, v_pages, table = (inputs[name] for name in ("q", "k_pages", "v_pages", "block_table"))
    plain = _as_attention(scalars)
    whole = {name: Errors(*(tensor.new_zeros(tensor.shape) for _ in range(3))) for name, tensor in outputs.items()}
    if not (q.shape[1] and q.shape[2]):
        return whole
    for length, same in alike(inputs["lengths"], k_pages[0, 0].numel() + v_pages[0, 0].numel()):
        k, v = gathered(k_pages, v_pages, table, length, same, q.shape[2], plain["window_left"])
        given = {"q": q[same], "k": k, "v": v}
        found = attention_errors(given, {name: tensor[same] for name, tensor in outputs.items()}, plain, dtype)
        sizes = in_parts(attended, q[same], k, v.abs(), scalars=plain)[0]
        found["out"] = found["out"] + few_ulps(sizes, 3.0, 1.0)
        again = _repeats(table[same], length, k_pages.shape[1], q.shape[2], plain["window_left"])
        for name, errors in found.items():
            wide = again.to(errors.largest).view(-1, *(1,) * (errors.largest.ndim - 1))
            whole[name].largest[same], whole[name].typical[same] = errors.largest * wide, errors.typical * wide
            whole[name].reached[same] = errors.reached
    return whole


def _repeats(entries: Any, length: int, page: int, queries: int, window_left: int) -> Any:
    """The root of how often a key that is seen occurs in its sequence, on average, of each row of `entries`
    [sequences, max_pages]: 1.0 where pages differ.

    Terms that return in the same order are rounded to the same side while the running sum stays within a power of two:
    of n terms that occur c times each, c errors of one round of n / c add up, and c * sqrt(n / c) = sqrt(c) * sqrt(n).
    In these units the worst was off by 1.8, the worst root mean square was 0.12 (rounding.py's LARGEST and TYPICAL
    are 3 and 0.4; scripts/bounds.py returning).
    """
    first, last = span_of(length, queries, window_left)
    seen = entries[:, first // page : -(-last // page)].sort(dim=-1).values
    # of n pages that occur c times each, the sum of squares is that of c over all pages that are seen
    new = seen.new_ones(seen.shape).bool()
    new[:, 1:] = seen[:, 1:] != seen[:, :-1]
    of_page = new.long().cumsum(-1) - 1
    counts = seen.new_zeros(seen.shape).double().scatter_add_(-1, of_page, seen.new_ones(seen.shape).double())
    return (counts.square().sum(-1) / counts.sum(-1)).sqrt()


def _llama(batch: int, length: int, page: int, *, scale: str = "gpu", queries: int = 1) -> Workload:
    """Llama 3 8B's attention: 32 query heads over 8 key heads of 128."""
    contiguous = page == length
    name = f"llama3_b{batch}_n{length}" + ("_contiguous" if contiguous else f"_p{page}")
    return Workload(
        name=name + (f"_q{queries}" if queries > 1 else ""),
        axes=decode_axes(batch, 8, 4, queries, 128, page, length // page),
        scale=scale,
        source=f"Llama 3 8B, decoding: batch {batch}, {length} keys each, "
        + ("a contiguous cache" if contiguous else f"pages of {page}")
        + (f", {queries} queries at once" if queries > 1 else ""),
    )


INVARIANT: dict[str, ScalarValue] = {"batch_invariant": True}


def _invariant(workload: Workload) -> Workload:
    return Workload(
        name=f"{workload.name}_invariant",
        axes=workload.axes,
        scalars=INVARIANT,
        source=f"{workload.source}, batch-invariant",
    )


DECODE_WORKLOADS = (
    _llama(2, 4096, 16, scale="laptop"),
    Workload(
        name="gpt2_b4_n4096",
        axes=decode_axes(4, 12, 1, 1, 64, 64, 64),
        scale="laptop",
        source="GPT-2 small's heads, decoding: 12 heads of 64, batch 4, 4096 keys",
    ),
    _llama(1, 8192, 16),
    _llama(1, 131072, 16),
    _llama(1, 131072, 131072),
    _llama(8, 8192, 16),
    _llama(8, 8192, 64),
    _llama(8, 8192, 8192),
    _llama(32, 4096, 128),
    _llama(128, 4096, 16),
    _llama(4, 32768, 64, queries=4),
    _invariant(_llama(1, 131072, 16)),
    _invariant(_llama(32, 4096, 128)),
    Workload(
        name="mqa_b32_n8192",
        axes=decode_axes(32, 1, 16, 1, 192, 64, 128, value_dim=128),
        source="DeepSeek's dimensions, 192 and 128, as multi-query attention: 16 heads share keys; batch 32, 8192 keys",
    ),
    Workload(
        name="mistral_b16_n16384_window",
        axes=decode_axes(16, 8, 4, 1, 128, 16, 1024),
        scalars={"window_left": 4095},
        source="Mistral 7B: window of 4096, 16384 tokens, batch 16",
    ),
)
