"""FP8 attention: what its bound has room for, and the one form of its scales."""

import pytest
import torch

from opforge.registry import load


@pytest.fixture(scope="module")
def operator():
    return load([]).operator("attention_fp8")


def cut_off(values, digits=14):
    share, exponent = torch.frexp(values)
    return torch.ldexp((share * 2.0**digits).trunc() * 2.0**-digits, exponent)


def summed(weights, v, promoted):
    """weights @ v as tensor cores add up FP8 products, 32 at a time; with `promoted` each 512 of them begin anew."""
    total = part = torch.zeros(weights.shape[0], v.shape[1], dtype=torch.float64)
    for first in range(0, v.shape[0], 32):
        part = cut_off(part + weights[:, first : first + 32] @ v[first : first + 32])
        if promoted and first % 512 == 480:
            total, part = total + part, part * 0
    return total + part


@pytest.mark.parametrize(("promoted", "right"), [(True, True), (False, False)], ids=["two levels", "14 bits alone"])
@pytest.mark.parametrize("keys", [16384, 131072])
def test_sums_over_all_keys_that_stay_in_14_bits_are_refused(operator, keys, promoted, right):
    """They lose 2^-14 with each 32 keys: a fifth at 128k, where accuracy collapses elsewhere (vllm#23813)."""
    generator = torch.Generator().manual_seed(keys)
    q, k = (torch.randn(1, 1, rows, 16, generator=generator) for rows in (2, keys))
    v = torch.randn(1, 1, keys, 8, generator=generator).abs()
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    names = ("q", "k", "v")
    inputs = {name: t.to(torch.float8_e4m3fn).double() for name, t in zip(names, (q, k, v), strict=True)}
    inputs |= {f"{name}_scale": one for name in names}
    scalars = operator.scalar_values({})
    out, lse = operator.reference(*inputs.values(), None, **scalars)
    bound = operator.tolerance.errors(inputs, {"out": out, "lse": lse}, scalars, "float8_e4m3fn")["out"]
    scores = (inputs["q"] @ inputs["k"].transpose(-1, -2))[0, 0] / 4
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp() * 256
    rounded = weights.float().to(torch.float8_e4m3fn).double()
    made = summed(rounded, inputs["v"][0, 0], promoted) / weights.sum(dim=-1, keepdim=True)
    error = (made - out[0, 0]).abs()
    within = bool((error <= bound.largest[0, 0]).all())
    typical = float((error / bound.typical[0, 0]).square().mean().sqrt())
    assert (within and typical < 1) == right, (within, typical)
    # far from the line on either side
    assert typical < 0.8 if right else typical > 4


def test_one_scale_of_a_tensor_is_a_view_of_those_of_blocks(operator):
    """Three ways to say the same."""
    from opforge import ops

    q, k, v = (torch.randn(2, heads, 40, 16).to(torch.float8_e4m3fn) for heads in (4, 2, 2))
    scale = torch.tensor([0.5]).view(1, 1, 1)
    wanted = ops.attention(q.float() / 2, k.float() / 2, v.float() / 2, causal=True)
    tensor = ops.attention_fp8(q, k, v, scale.expand(2, 4, 1), *(scale.expand(2, 2, 1),) * 2, causal=True)
    by_columns = scale.expand(2, 2, 16)
    blocks = ops.attention_fp8(
        q, k, v, scale.expand(2, 4, 3), scale.expand(2, 2, 4), by_columns, causal=True, q_block=16, k_block=13,
        v_channels=True, out_dtype="float16",
    )  # fmt: skip
    # half a step of the output's format, and float32 before it
    for (out, lse), half in ((tensor, 2.0**-8), (blocks, 2.0**-11)):
        torch.testing.assert_close(lse, wanted[1], atol=2e-6, rtol=2e-6)
        torch.testing.assert_close(out.float(), wanted[0], atol=2e-6, rtol=1.01 * half)
    assert tensor[0].dtype == torch.bfloat16 and blocks[0].dtype == torch.float16
