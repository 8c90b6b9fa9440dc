"""Axes, masks and workloads of attention: published models, and the shapes of published benchmarks."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from opforge.core.definition.operator import Case, ScalarValue, Workload
from opforge.core.definition.shapes import AxisValue
from opforge.definitions.attention.sides import NAMES


def axes(
    batch: int, kv_heads: int, group: int, queries: int, keys: int, head_dim: int, value_dim: int | None = None
) -> dict[str, AxisValue]:
    """Axes by name; value_dim is head_dim unless it is given."""
    return {
        "batch": batch,
        "kv_heads": kv_heads,
        "group": group,
        "queries": queries,
        "keys": keys,
        "head_dim": head_dim,
        "value_dim": head_dim if value_dim is None else value_dim,
    }


ABSENT: dict[str, ScalarValue] = {f"has_{name}": False for name in NAMES}
"""Nothing is given beside queries, keys and values."""

Item = TypeVar("Item", Case, Workload)


def plain(*items: Item) -> tuple[Item, ...]:
    """Cases or workloads that are given beside q, k and v only what they name."""
    return tuple(replace(item, scalars={**ABSENT, **item.scalars}) for item in items)


def given(*names: str, **scalars: ScalarValue) -> dict[str, ScalarValue]:
    """The parameters of a case that is given these tensors beside q, k and v."""
    return {**{f"has_{name}": True for name in names}, **scalars}


SIDE_CASES = (
    Case(
        name="padded",
        axes=axes(3, 1, 2, 70, 133, 32),
        scalars=given("key_lengths", causal=True),
        why="each entry of the batch has a length of its own; keys past it are seen by none",
    ),
    Case(
        name="padded_to_nothing",
        axes=axes(9, 1, 1, 5, 2, 16),
        scalars=given("key_lengths"),
        why="lengths of 0, 1 and 2: entries without a key give 0 and -inf",
    ),
    Case(
        name="padded_window",
        axes=axes(4, 1, 1, 70, 100, 32),
        scalars=given("key_lengths", window_left=9, window_right=4, alignment="bottom_right"),
        why="positions stay those of the padded keys, so windows may lie past all of an entry's own",
    ),
    Case(
        name="biased",
        axes=axes(2, 2, 2, 67, 99, 32),
        scalars=given("bias", causal=True),
        why="an additive mask of all heads, with tails in both lengths",
    ),
    Case(
        name="biased_and_capped",
        axes=axes(1, 2, 1, 33, 65, 32),
        scalars=given("bias", softcap=1.5),
        why="the cap bends the product alone, not what is added",
    ),
    Case(
        name="masked",
        axes=axes(2, 1, 2, 65, 130, 32),
        scalars=given("mask"),
        why="keys are seen here and there: no block is whole",
    ),
    Case(
        name="masked_half_block",
        axes=axes(1, 2, 1, 64, 192, 32),
        scalars=given("mask", causal=True, alignment="bottom_right"),
        why="lengths % 128 = 64 under a mask: gradients were NaN there elsewhere",
    ),
    Case(
        name="masked_to_nothing",
        axes=axes(2, 2, 2, 40, 2, 16),
        scalars=given("mask"),
        why="a quarter of the rows sees nothing: 0 and -inf, no NaN",
    ),
    Case(
        name="alibi",
        axes=axes(2, 1, 3, 65, 90, 32),
        scalars=given("alibi_slopes", alignment="bottom_right"),
        why="distances to both sides, from the last query at the last key; slopes of both signs",
    ),
    Case(
        name="sinks",
        axes=axes(2, 2, 2, 66, 70, 32),
        scalars=given("sinks", causal=True, window_left=20),
        why="gpt-oss: a score without a value joins each row's sum",
    ),
    Case(
        name="sinks_of_blind_rows",
        axes=axes(1, 1, 2, 90, 40, 16),
        scalars=given("sinks", causal=True, alignment="bottom_right"),
        why="a row that sees nothing has its sink: out is 0, lse the sink",
    ),
    Case(
        name="dropout",
        axes=axes(2, 2, 2, 67, 101, 32),
        scalars={"dropout": 0.25, "seed": 77, "offset": 3, "causal": True},
        why="keys that no block of four words divides; lse knows nothing of it",
    ),
    Case(
        name="dropout_of_most",
        axes=axes(1, 1, 1, 130, 66, 16),
        scalars={"dropout": 0.9, "seed": -1, "offset": 4294967295},
        why="the largest seed and offset; whole rows are dropped",
    ),
    Case(
        name="all_of_it",
        axes=axes(3, 2, 2, 35, 77, 32),
        scalars=given(*NAMES, causal=True, alignment="bottom_right", softcap=4.0, dropout=0.1, seed=2**40 + 5),
        why="everything at once",
    ),
    Case(
        name="all_of_it_transposed",
        axes=axes(2, 1, 2, 33, 50, 16),
        layout="transposed",
        scalars=given(*NAMES, window_left=30),
        why="a bias and a mask whose queries lie innermost",
    ),
)
"""What each optional input and dropout must meet, and all of them together."""

CAUSAL: dict[str, ScalarValue] = {"causal": True}
BOTTOM: dict[str, ScalarValue] = {"causal": True, "alignment": "bottom_right"}


def _published(batch: int, heads: int, length: int, head_dim: int) -> tuple[Workload, Workload]:
    sizes = axes(batch, heads, 1, length, length, head_dim)
    name = f"b{batch}_h{heads}_n{length}_d{head_dim}"
    source = f"FlashAttention's benchmark: batch {batch}, {heads} heads of {head_dim}, {length} tokens"
    return (
        Workload(name=name, axes=sizes, source=source),
        Workload(name=f"{name}_causal", axes=sizes, scalars=CAUSAL, source=f"{source}, causal"),
    )


_PLAIN = (
    Workload(
        name="gpt2_512",
        axes=axes(1, 12, 1, 512, 512, 64),
        scalars=CAUSAL,
        scale="laptop",
        source="GPT-2 small: 12 heads of 64, 512 tokens",
    ),
    Workload(
        name="bert_512",
        axes=axes(1, 12, 1, 512, 512, 64),
        scale="laptop",
        source="BERT base: 12 heads of 64, 512 tokens, no mask",
    ),
    Workload(
        name="llama3_gqa_512",
        axes=axes(1, 2, 4, 512, 512, 128),
        scalars=CAUSAL,
        scale="laptop",
        source="Llama 3 8B: a quarter of its 32 query heads over 8 key heads of 128, 512 tokens",
    ),
    Workload(
        name="one_head_2048",
        axes=axes(1, 1, 2, 2048, 2048, 64),
        scalars=CAUSAL,
        scale="laptop",
        source="GPT-2's heads at 2048 tokens, two of them",
    ),
    *(
        workload
        for shape in ((16, 16, 1024), (4, 16, 4096), (1, 16, 16384))
        for head_dim in (64, 128)
        for workload in _published(*shape, head_dim)
    ),
    Workload(
        name="mistral_window_16k",
        axes=axes(1, 8, 4, 16384, 16384, 128),
        scalars={"causal": True, "window_left": 4095},
        source="Mistral 7B: window of 4096, 16384 tokens",
    ),
    Workload(
        name="llama3_8b_8k",
        axes=axes(1, 8, 4, 8192, 8192, 128),
        scalars=CAUSAL,
        source="Llama 3 8B: 32 query heads over 8 key heads of 128, 8192 tokens",
    ),
)

WORKLOADS = plain(*_PLAIN)
