"""One launch for each parameter: one block of consecutive elements per program.

moves     (2 * itemsize + 16 + itemsize) * n bytes: the least possible
"""

import triton
import triton.language as tl

SPACE = {"BLOCK": (256, 512, 1024, 2048)}
DEFAULT = {"BLOCK": 1024}


@triton.jit
def adamw_block(
    param_ptr,
    grad_ptr,
    m_ptr,
    v_ptr,
    n,
    lr,
    beta1,
    rest1,
    beta2,
    rest2,
    eps,
    keep,
    unbias1,
    unbias2,
    BLOCK: tl.constexpr,
):
    # int64: the offset leaves int32 beyond 2**31 elements
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    grad = tl.load(grad_ptr + i, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
    m = beta1 * tl.load(m_ptr + i, mask=inside, other=0.0) + rest1 * grad
    v = beta2 * tl.load(v_ptr + i, mask=inside, other=0.0) + rest2 * grad * grad
    root = tl.sqrt(v * unbias2) + eps
    param = keep * tl.load(param_ptr + i, mask=inside, other=0.0).to(tl.float32) - lr * unbias1 * m / root
    tl.store(m_ptr + i, m, mask=inside)
    tl.store(v_ptr + i, v, mask=inside)
    tl.store(param_ptr + i, param.to(param_ptr.dtype.element_ty), mask=inside)


def launch(params, grads, ms, vs, *, lr, beta1, beta2, eps, decay, step, BLOCK):
    # differences from 1 are taken in float64
    rest = (1 - beta1, 1 - beta2)
    unbias = (1 / (1 - beta1**step), 1 / (1 - beta2**step))
    for param, grad, m, v in zip(params, grads, ms, vs, strict=True):
        n = param.numel()
        if n:
            adamw_block[(triton.cdiv(n, BLOCK),)](
                param, grad, m, v, n, lr, beta1, rest[0], beta2, rest[1], eps, 1 - lr * decay, *unbias, BLOCK=BLOCK
            )
