"""Rows of a table picked by indices, and the gradient of the table: its bound, cases and workloads."""

from __future__ import annotations

from typing import Any

from opforge.core.definition.operator import Case, Scalar, Workload
from opforge.core.definition.rounding_errors import Errors
from opforge.definitions.bounds.rows import column_sum_errors
from opforge.definitions.bounds.sums import EPSILON, FEW, LARGEST, TYPICAL, finite

PADDING = Scalar(
    name="padding_idx", default=-1, about="the row of this index gets no gradient; -1: there is no such row"
)


def counted(indices: Any, vocab: int, padding_idx: int) -> Any:
    """Which indices, as a vector, name a row that gets a gradient."""
    flat = indices.reshape(-1)
    return (flat >= 0) & (flat < vocab) & (flat != padding_idx)


def added(vocab: int, indices: Any, dy: Any, padding_idx: int) -> Any:
    """The sum of the rows of dy for each row of the table."""
    keep = counted(indices, vocab, padding_idx)
    rows = dy.reshape(len(keep), dy.shape[-1])
    return dy.new_zeros((vocab, dy.shape[-1])).index_add(0, indices.reshape(-1)[keep], rows[keep])


def gradient_errors(vocab: int, indices: Any, dy: Any, padding_idx: int) -> Errors:
    """Of `added`: terms of one row added up one after another in float32, or in any other order."""
    keep = counted(indices, vocab, padding_idx)
    picked, terms = indices.reshape(-1)[keep], finite(dy.reshape(len(keep), dy.shape[-1])[keep])
    counts = picked.bincount(minlength=vocab)
    sizes = terms.new_zeros((vocab, dy.shape[-1])).index_add(0, picked, terms.abs())
    # an only term is copied; of few terms the running sum is at most the sum of the absolute ones
    length = (counts.double() + 2).where(counts > 1, terms.new_zeros(())).unsqueeze(-1)
    largest, typical = (EPSILON * sizes * factor * length.sqrt() for factor in (LARGEST, TYPICAL))
    for row in (counts > FEW).nonzero().flatten().tolist():
        of_row = column_sum_errors(terms[picked == row])
        largest[row], typical[row] = of_row.largest, of_row.typical
    return Errors(largest, typical, sizes)


def embedding_axes(lead: tuple[int, ...], vocab: int, dim: int) -> dict[str, int | tuple[int, ...]]:
    """The axes of a call."""
    return {"lead": lead, "vocab": vocab, "dim": dim}


CASES = (
    Case(name="one", axes=embedding_axes((1,), 1, 1), why="a table of one number"),
    Case(name="few", axes=embedding_axes((3, 5), 31, 64), why="two leading axes, most rows never picked"),
    Case(name="odd_tail", axes=embedding_axes((7,), 11, 129), why="one past a block of 128"),
    Case(name="repeated", axes=embedding_axes((300,), 3, 40), why="each row is picked a hundred times"),
    Case(
        name="one_row", axes=embedding_axes((131,), 1, 16), why="all terms go to one row: past a block of 128 indices"
    ),
    Case(name="bert", axes=embedding_axes((2, 9), 57, 768), why="BERT's width"),
    Case(name="wide", axes=embedding_axes((5,), 6, 4099), why="a prime width, wider than a block"),
    Case(name="more_rows", axes=embedding_axes((2,), 257, 8), why="nearly all rows are zeros that must be written"),
    Case(name="scalar_rank", axes=embedding_axes((), 9, 24), why="one index without an axis"),
    Case(name="empty", axes=embedding_axes((0,), 9, 8), why="no index: a gradient of zeros"),
    Case(
        name="integers",
        axes=embedding_axes((513,), 17, 33),
        distribution="integers",
        why="sums of whole numbers leave no room",
    ),
    Case(
        name="special",
        axes=embedding_axes((40,), 30, 24),
        distribution="special",
        why="NaN and infinities stay in their row",
    ),
    Case(name="sliced", axes=embedding_axes((9,), 21, 32), layout="sliced", why="a part of a wider table"),
    Case(
        name="misaligned",
        axes=embedding_axes((9,), 21, 32),
        layout="misaligned",
        why="sizes invite vector loads, the address forbids them",
    ),
)

PADDED = Case(
    name="padded",
    axes=embedding_axes((4, 33), 12, 20),
    scalars={"padding_idx": 3},
    why="a row that is picked often and gets nothing",
)

WORKLOADS = (
    Workload(
        name="gpt2_prompt",
        axes=embedding_axes((1, 1024), 50257, 768),
        source="GPT-2: vocabulary 50257, a context of 1024",
        scale="laptop",
    ),
    Workload(
        name="llama2_narrow",
        axes=embedding_axes((2, 1024), 32000, 256),
        source="Llama 2's vocabulary of 32000, rows of 256 instead of 4096, 2 prompts of 1024",
        scale="laptop",
    ),
    Workload(
        name="llama3_narrow",
        axes=embedding_axes((1, 2048), 128256, 64),
        source="Llama 3's vocabulary of 128256, rows of 64 instead of 4096, a prompt of 2048",
        scale="laptop",
    ),
    Workload(
        name="llama2_7b",
        axes=embedding_axes((4, 4096), 32000, 4096),
        source="Llama 2 7B: vocabulary 32000, 4 contexts of 4096",
    ),
    Workload(
        name="llama3_8b",
        axes=embedding_axes((2, 8192), 128256, 4096),
        source="Llama 3 8B: vocabulary 128256, 2 contexts of 8192",
    ),
    Workload(
        name="bert_large",
        axes=embedding_axes((64, 512), 30522, 1024),
        source="BERT-large: vocabulary 30522, 64 sequences of 512",
    ),
)


def _classes(scale: str, *shapes: tuple[int, int, int]) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            name=f"{count}x{vocab}x{dim}",
            axes=embedding_axes((count,), vocab, dim),
            source="shape class: wide and narrow rows, few and many indices",
            scale=scale,
        )
        for count, vocab, dim in shapes
    )


GRID = (
    *_classes("gpu", (16384, 32000, 4096), (16384, 128256, 1024), (256, 128256, 4096), (30000, 10001, 333)),
    *_classes("laptop", (2048, 32000, 128), (512, 4001, 333)),
)
