"""One token per program: all its logits in registers, the largest twice, the sum of exponentials once.

moves     tokens * (experts * itemsize + 2 * (itemsize + 8)) bytes: the least possible
limits    experts <= 16384 (registers); few experts are short programs
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
SUPPORTS = {"a_row_fits": "experts <= 16384"}


@triton.jit
def choose(logits_ptr, weights_ptr, chosen_ptr, stride, experts, RENORMALIZE: tl.constexpr, BLOCK: tl.constexpr):
    # int64: the offset leaves int32 beyond 2**31 elements
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    inside = expert < experts
    logits = tl.load(logits_ptr + token * stride + expert, mask=inside, other=-float("inf")).to(tl.float32)  # [BLOCK]
    top = tl.max(logits, 0)
    # the first of equal ones, by its number: no tie is left to the reduction
    first = tl.min(tl.where(inside & (logits == top), expert, BLOCK), 0)
    others = inside & (expert != first)
    next_top = tl.max(tl.where(others, logits, -float("inf")), 0)
    second = tl.min(tl.where(others & (logits == next_top), expert, BLOCK), 0)
    behind = tl.exp(next_top - top)
    total = 1 + behind if RENORMALIZE else tl.sum(tl.exp(logits - top), 0)
    kind = weights_ptr.dtype.element_ty
    tl.store(weights_ptr + token * 2, (1 / total).to(kind))
    tl.store(weights_ptr + token * 2 + 1, (behind / total).to(kind))
    tl.store(chosen_ptr + token * 2, first.to(tl.int64))
    tl.store(chosen_ptr + token * 2 + 1, second.to(tl.int64))


def launch(logits, weights, chosen, *, renormalize):
    tokens, experts = logits.shape
    if tokens:
        choose[(tokens,)](
            logits,
            weights,
            chosen,
            logits.stride(0),
            experts,
            RENORMALIZE=renormalize,
            BLOCK=triton.next_power_of_2(experts),
        )
