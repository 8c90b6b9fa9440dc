"""Each index is told how many before it are the same: its place among the terms of its row. Then every row is added up
in that order, without atomic additions of floats: the same bits each run.

moves     dy once, dweight once; indices are compared with each other from the cache
limits    comparisons grow with the square of the indices: 65536 of them at the most. A row that very many indices name
          is one program's
"""

import torch
import triton
import triton.language as tl

SUPPORTS = {"few_indices": "prod(lead) <= 65536"}
SPACE = {"BLOCK": (256, 512, 1024, 2048), "num_warps": (1, 2, 4, 8)}
LIMITS = {"fits_registers": "BLOCK <= 32 * 32 * num_warps"}
DEFAULT = {"BLOCK": 1024, "num_warps": 4}

SIDE = 128
"""Indices that are compared with as many others at a time."""
STEP = 4096
"""Rows whose counts are summed up at a time."""
BESIDE = 4
"""Terms of a row that are loaded at a time."""


@triton.jit
def load_counted(indices_ptr, place, count, vocab, padding_idx):
    """Indices, -1 where they name no row that gets anything."""
    index = tl.load(indices_ptr + place, mask=place < count, other=-1)
    return tl.where((index >= 0) & (index < vocab) & (index != padding_idx), index, -1)


@triton.jit
def rank_indices(indices_ptr, ranks_ptr, ends_ptr, count, vocab, padding_idx, SIDE: tl.constexpr):
    """How many indices before each are the same. The last of them knows how many terms its row has."""
    place = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    mine = load_counted(indices_ptr, place, count, vocab, padding_idx)[:, None]  # [SIDE, 1]
    rank = tl.zeros([SIDE], tl.int32)
    for start in range(0, (tl.program_id(0) + 1) * SIDE, SIDE):
        other = start + tl.arange(0, SIDE)
        same = load_counted(indices_ptr, other, count, vocab, padding_idx)[None, :] == mine  # [SIDE, SIDE]
        rank += tl.sum((same & (other[None, :] < place[:, None])).to(tl.int32), axis=1)
    tl.store(ranks_ptr + place, rank, mask=place < count)
    index = load_counted(indices_ptr, place, count, vocab, padding_idx)
    # the largest of whole numbers is the same in any order
    tl.atomic_max(ends_ptr + 1 + index, rank + 1, mask=(place < count) & (index >= 0))


@triton.jit
def sum_counts(ends_ptr, vocab, STEP: tl.constexpr):
    """Where the terms of each row end, from how many it has, in place."""
    before = 0
    for start in range(0, vocab, STEP):
        row = start + tl.arange(0, STEP)
        own = tl.load(ends_ptr + 1 + row, mask=row < vocab, other=0)
        tl.store(ends_ptr + 1 + row, before + tl.cumsum(own, axis=0), mask=row < vocab)
        before += tl.sum(own, axis=0)


@triton.jit
def place_terms(indices_ptr, ranks_ptr, ends_ptr, terms_ptr, count, vocab, padding_idx, SIDE: tl.constexpr):
    """The places of dy's rows, in the order of the table's rows."""
    place = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    index = load_counted(indices_ptr, place, count, vocab, padding_idx)
    there = (place < count) & (index >= 0)
    first = tl.load(ends_ptr + index, mask=there, other=0)
    tl.store(terms_ptr + first + tl.load(ranks_ptr + place, mask=there, other=0), place, mask=there)


@triton.jit
def add_terms(dy_ptr, terms_ptr, ends_ptr, dweight_ptr, dim, BLOCK: tl.constexpr, BESIDE: tl.constexpr):
    # int64: a place leaves int32 beyond 2^31 elements
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, end = tl.load(ends_ptr + row), tl.load(ends_ptr + row + 1)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(first, end, BESIDE):
        term = start + tl.arange(0, BESIDE)
        place = tl.load(terms_ptr + term, mask=term < end, other=0).to(tl.int64)[:, None]
        inside = (term < end)[:, None] & (col < dim)[None, :]
        total += tl.sum(tl.load(dy_ptr + place * dim + col[None, :], mask=inside, other=0.0).to(tl.float32), axis=0)
    tl.store(dweight_ptr + row * dim + col, total.to(dweight_ptr.dtype.element_ty), mask=col < dim)


def launch(weight, indices, dy, dweight, *, padding_idx, BLOCK, num_warps):
    (vocab, dim), count = dweight.shape, indices.numel()
    if not vocab * dim:
        return
    # offsets of the rows' terms: row r has terms ends[r] up to ends[r + 1]
    ends = torch.zeros(vocab + 1, dtype=torch.int32, device=dy.device)
    ranks = torch.empty((2, max(1, count)), dtype=torch.int32, device=dy.device)
    if count:
        given = (triton.cdiv(count, SIDE),)
        rank_indices[given](indices, ranks[0], ends, count, vocab, padding_idx, SIDE=SIDE)
        sum_counts[(1,)](ends, vocab, STEP=STEP)
        place_terms[given](indices, ranks[0], ends, ranks[1], count, vocab, padding_idx, SIDE=SIDE)
    block = min(BLOCK, triton.next_power_of_2(dim))
    add_terms[(vocab, triton.cdiv(dim, block))](
        dy, ranks[1], ends, dweight, dim, BLOCK=block, BESIDE=BESIDE, num_warps=num_warps
    )
