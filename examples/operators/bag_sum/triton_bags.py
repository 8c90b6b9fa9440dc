"""A block of columns of one bag per program: a loop over the rows from one offset to the next.

moves     n * (d * itemsize + 8) + bags * d * itemsize bytes: the least possible where no row is picked twice
limits    programs of long bags run alone at the end
"""

import triton
import triton.language as tl

SPACE = {"BLOCK": (32, 64, 128, 256)}
DEFAULT = {"BLOCK": 64}


@triton.jit
def bag_block(table_ptr, indices_ptr, offsets_ptr, y_ptr, d, BLOCK: tl.constexpr):
    # int64: row * d leaves int32 beyond 2**31 elements
    bag = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < d
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for i in range(tl.load(offsets_ptr + bag), tl.load(offsets_ptr + bag + 1)):
        row = tl.load(indices_ptr + i)
        total += tl.load(table_ptr + row * d + col, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
    tl.store(y_ptr + bag * d + col, total.to(y_ptr.dtype.element_ty), mask=inside)


def launch(table, indices, offsets, y, *, BLOCK):
    bags, d = y.shape
    if bags and d:
        bag_block[(bags, triton.cdiv(d, BLOCK))](table, indices, offsets, y, d, BLOCK=BLOCK)
