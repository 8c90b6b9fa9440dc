"""What attention may be given beside queries, keys and values: lengths of the keys, a bias, a mask, slopes of ALiBi,
sinks and dropout; for references and bounds, on whatever has the methods of a tensor, so no library is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from opforge.core.definition.operator import Constraint, Scalar
from opforge.definitions.attention.dropout import kept_of

ABOUT = {
    "key_lengths": "how many keys each entry of the batch has: none sees those past them",
    "bias": "is added to the scores after scale and softcap; a view expanded over batch or heads is taken as it is",
    "mask": "False: the key is not seen; a view expanded over batch or heads is taken as it is",
    "alibi_slopes": "slope * |distance of the key from the query's position| is taken from the scores of a head",
    "sinks": "a score of each head that joins the denominator, and so lse, and has no value",
}
"""What the optional inputs do, in the order of the definitions."""

NAMES = tuple(ABOUT)

DROPOUT = (
    Scalar(name="dropout", default=0.0, about="the probability that a weight is dropped; others grow by 1 / (1 - it)"),
    Scalar(name="seed", default=0, about="64 bits; with `offset` it says which weights are dropped, on every backend"),
    Scalar(name="offset", default=0, about="32 bits; another one for each call with one seed"),
)

LIMITS_OF_DROPOUT = (
    Constraint(name="drops_a_share", expression="dropout >= 0 and dropout <= 1", about="with 1 all weights are 0"),
    Constraint(name="offset_is_a_word", expression="offset >= 0 and offset < 4294967296", about="a counter of 32 bits"),
    Constraint(
        name="heads_fit_a_counter",
        expression="dropout == 0 or batch <= 65536 and kv_heads * group <= 65536",
        about="the place of a dropped weight has 16 bits for its entry of the batch, and for its head",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Sides:
    """What is given beside q, k and v, of a part of the batch, the heads and the queries.

    entry, head, first   the numbers of the part's first entry of the batch, head and query among all
    queries              how many queries there are in all
    """

    queries: int
    key_lengths: Any = None
    bias: Any = None
    mask: Any = None
    alibi_slopes: Any = None
    sinks: Any = None
    entry: int = 0
    head: int = 0
    first: int = 0

    @classmethod
    def of(cls, q: Any, given: Mapping[str, Any]) -> Sides:
        """Of a whole call. `given` may have other tensors too; what is missing or None is not there."""
        tensors: dict[str, Any] = {name: given.get(name) for name in NAMES}
        return cls(queries=q.shape[2], **tensors)

    def part(self, batch: slice, heads: slice, rows: slice) -> Sides:
        """Of these entries, heads and queries."""

        def cut(tensor: Any, *places: slice) -> Any:
            return None if tensor is None else tensor[places]

        return replace(
            self,
            key_lengths=cut(self.key_lengths, batch),
            bias=cut(self.bias, batch, heads, rows),
            mask=cut(self.mask, batch, heads, rows),
            alibi_slopes=cut(self.alibi_slopes, heads),
            sinks=cut(self.sinks, heads),
            entry=self.entry + (batch.start or 0),
            head=self.head + (heads.start or 0),
            first=self.first + (rows.start or 0),
        )

    def distances(self, q: Any, keys: int, scalars: Mapping[str, Any]) -> Any:
        """How far each key lies after the position of each query, [queries, keys] of int64."""
        rows = q.new_ones(q.shape[-2]).long().cumsum(0) - 1 + self.first
        columns = q.new_ones(keys).long().cumsum(0) - 1
        shift = keys - self.queries if scalars["alignment"] == "bottom_right" else 0
        return columns - (rows + shift).unsqueeze(-1)

    def visible(self, q: Any, keys: int, scalars: Mapping[str, Any]) -> Any:
        """Which keys the queries of q see, bool of [queries, keys] or with batch and heads before them: by the window,
        then by `causal`, then by lengths and mask.
        """
        distance = self.distances(q, keys, scalars)
        seen = distance == distance
        if scalars["window_left"] >= 0:
            seen = seen & (distance >= -scalars["window_left"])
        if scalars["window_right"] >= 0:
            seen = seen & (distance <= scalars["window_right"])
        if scalars["causal"]:
            seen = seen & (distance <= 0)
        if self.key_lengths is not None:
            columns = q.new_ones(keys).long().cumsum(0) - 1
            seen = seen & (columns < self.key_lengths.long().reshape(-1, 1, 1, 1))
        return seen if self.mask is None else seen & (self.mask != 0)

    def added(self, q: Any, keys: int, scalars: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """What is added to the scores, and the size of its terms; None where nothing is."""
        terms = []
        if self.bias is not None:
            terms.append(self.bias)
        if self.alibi_slopes is not None:
            terms.append(-self.alibi_slopes.reshape(-1, 1, 1) * self.distances(q, keys, scalars).abs().to(q))
        if not terms:
            return None
        return sum(terms), sum(term.detach().abs().nan_to_num(posinf=0.0) for term in terms)

    def kept(self, q: Any, keys: int, scalars: Mapping[str, Any]) -> Any:
        """What dropout makes of a weight, [batch, heads, queries, keys]: a factor of 0 or of 1 / (1 - dropout); None
        without dropout.
        """
        if not scalars["dropout"]:
            return None
        batch, heads, queries = q.shape[:3]

        def places(count: int, first: int) -> Any:
            return q.new_ones(count).long().cumsum(0) - 1 + first

        kept = kept_of(
            places(batch, self.entry).reshape(-1, 1, 1, 1),
            places(heads, self.head).reshape(-1, 1, 1),
            places(queries, self.first).reshape(-1, 1),
            places(keys, 0),
            scalars["dropout"],
            scalars["seed"],
            scalars["offset"],
        )
        return kept.to(q) * (1 / (1 - scalars["dropout"] or 1.0))

    def sunk(self) -> Any:
        """The sinks, [heads, 1, 1] beside scores; None without."""
        return None if self.sinks is None else self.sinks.reshape(-1, 1, 1)
