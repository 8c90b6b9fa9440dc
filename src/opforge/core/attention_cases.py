"""Axes, masks and workloads of attention: published models, and the shapes of published benchmarks."""

from __future__ import annotations

from opforge.core.operator import ScalarValue, Workload
from opforge.core.shapes import AxisValue


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


WORKLOADS = (
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
