"""What holds of attention beyond its cases: large calls in parts, how many pairs are seen, and PyTorch's own answer."""

import itertools

import pytest
import torch

from opforge.core.language.expr import evaluate
from opforge.definitions.attention import attention
from opforge.registry import load

NOTHING = (None,) * 5
"""What may be given beside queries, keys and values."""
OPERATOR = load([]).operator("attention")
GRADIENT = load([]).operator("attention_backward")


def given(queries=23, keys=31):
    make = torch.Generator().manual_seed(7)
    shapes = ((2, 6, queries, 8), (2, 3, keys, 8), (2, 3, keys, 5))
    return [torch.randn(shape, generator=make, dtype=torch.float64) for shape in shapes]


def reference(q, k, v, **scalars):
    return OPERATOR.reference(q, k, v, *NOTHING, **scalars)


MASKS = [
    {"causal": causal, "window_left": left, "window_right": right, "alignment": alignment}
    for causal, left, right, alignment in itertools.product(
        (False, True), (-1, 0, 4), (-1, 3), ("top_left", "bottom_right")
    )
]


@pytest.mark.parametrize("rows", [1, 5])
def test_parts_give_what_the_whole_gives(monkeypatch, rows):
    tensors = given()
    scalars = OPERATOR.scalar_values({"causal": True, "window_left": 6, "alignment": "bottom_right", "softcap": 3.0})
    whole = reference(*tensors, **scalars)
    named = dict(zip("qkv", tensors, strict=True))
    outputs = dict(zip(("out", "lse"), whole, strict=True))
    bounds = attention.attention_errors(named, outputs, scalars, "bfloat16")
    monkeypatch.setattr(attention, "TOGETHER", rows * 2 * 31)
    for one, other in zip(reference(*tensors, **scalars), whole, strict=True):
        assert torch.allclose(one, other, rtol=1e-13, atol=1e-15)
    parts = attention.attention_errors(named, outputs, scalars, "bfloat16")
    for name in outputs:
        assert torch.allclose(parts[name].largest, bounds[name].largest, rtol=1e-12)
        assert torch.allclose(parts[name].typical, bounds[name].typical, rtol=1e-12)


@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (9, 5), (6, 6), (1, 4)])
def test_pairs_are_counted_as_they_are_seen(queries, keys):
    for mask in MASKS:
        seen = 0
        for i in range(queries):
            place = i + (keys - queries if mask["alignment"] == "bottom_right" else 0)
            for j in range(keys):
                left = mask["window_left"] < 0 or j >= place - mask["window_left"]
                right = mask["window_right"] < 0 or j <= place + mask["window_right"]
                seen += left and right and (not mask["causal"] or j <= place)
        assert evaluate(attention.PAIRS, {**mask, "queries": queries, "keys": keys}) == seen, mask
        q = given(queries, keys)[0]
        assert int(attention.Sides.of(q, {}).visible(q, keys, mask).sum()) == seen, mask


def test_the_oracle_is_what_pytorch_computes():
    q, k, v = given()
    scalars = OPERATOR.scalar_values({"causal": True})
    out, lse = reference(q, k, v, **scalars)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    # sums of at most 31 weights and products of 8 terms in float64
    assert (out - wanted).abs().max() < 64 * 2.0**-52
    assert lse.shape == out.shape[:-1] and bool(lse.isfinite().all())


def arriving(out, lse):
    make = torch.Generator().manual_seed(8)
    return [torch.randn(tensor.shape, generator=make, dtype=torch.float64) for tensor in (out, lse)]


@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("mask", MASKS[::3])
def test_gradients_are_those_of_the_oracle_differentiated(mask, softcap):
    """The formula of the weights made again shares nothing with autograd, which goes back through the forward pass."""
    leaves = [tensor.requires_grad_() for tensor in given()]
    scalars = OPERATOR.scalar_values({**mask, "softcap": softcap})
    out, lse = reference(*leaves, **scalars)
    dout, dlse = arriving(out, lse)
    # what arrives for a row that sees nothing comes to nobody
    seen = lse.isfinite()
    wanted = torch.autograd.grad((out * dout).sum() + (lse[seen] * dlse[seen]).sum(), leaves)
    found = GRADIENT.reference(*leaves, out.detach(), lse.detach(), dout, dlse, *NOTHING, **scalars)
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() < 1e-12, mask


def test_gradients_of_one_head_after_another_are_those_of_all(monkeypatch):
    from opforge.definitions.attention import gradients as attention_gradients

    q, k, v = given()
    scalars = OPERATOR.scalar_values({"causal": True, "softcap": 3.0})
    out, lse = reference(q, k, v, **scalars)
    dout, dlse = arriving(out, lse)
    named = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "dout": dout, "dlse": dlse}
    whole = GRADIENT.reference(*named.values(), *NOTHING, **scalars)
    bounds = attention_gradients.gradient_errors(named, scalars, "bfloat16")
    monkeypatch.setattr(attention_gradients, "TOGETHER", 1)
    for one, other in zip(GRADIENT.reference(*named.values(), *NOTHING, **scalars), whole, strict=True):
        assert torch.allclose(one, other, rtol=1e-13, atol=1e-15)
    for name, parts in attention_gradients.gradient_errors(named, scalars, "bfloat16").items():
        assert torch.allclose(parts.largest, bounds[name].largest, rtol=1e-12)
        assert torch.allclose(parts.typical, bounds[name].typical, rtol=1e-12)


# causal is asked through torch.compile too
@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.campaign)])
def test_autograd_of_the_function_is_that_of_pytorchs(front_door, causal):
    """Grouped heads, lengths apart; also through torch.compile, in one graph."""
    from opforge import ops

    q, k, v = (tensor.float().requires_grad_() for tensor in given())
    v = torch.cat([v, v], dim=-1)[..., :8].detach().requires_grad_()
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    dout = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(9))
    gradients = torch.autograd.grad(wanted, (q, k, v), dout)
    calls = [lambda *given: ops.attention(*given, causal=causal)[0]]
    calls += [torch.compile(calls[0], fullgraph=True)] if causal else []
    for call in calls:
        out = call(q, k, v)
        assert torch.allclose(out, wanted, rtol=1e-5, atol=1e-6)
        for one, other in zip(torch.autograd.grad(out, (q, k, v), dout), gradients, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_what_follows_is_what_attention_returns():
    """Gradients are asked with a result and a log-sum-exp that belong to the inputs, as autograd would keep them."""
    from opforge.core.definition.operator import Case
    from opforge.definitions.attention.cases import ABSENT
    from opforge.runner import allocate, fill

    axes = {"batch": 1, "kv_heads": 2, "group": 2, "queries": 9, "keys": 7, "head_dim": 8, "value_dim": 8}
    case = Case(name="c", axes=axes, why="w", scalars={**ABSENT, "causal": True, "alignment": "bottom_right"})
    arena = allocate(GRADIENT, case, "float32")
    try:
        fill(arena, GRADIENT, case, 3)
        inputs = {name: tensor.double() for name, tensor in arena.tensors("input").items()}
    finally:
        arena.close()
    out, lse = reference(inputs["q"], inputs["k"], inputs["v"], **OPERATOR.scalar_values(case.scalars))
    assert torch.equal(inputs["out"], out.float().double()) and torch.equal(inputs["lse"], lse.float().double())
    assert bool((lse == -float("inf")).any())


@pytest.mark.offline
@pytest.mark.parametrize("dim", [64, 128])
def test_the_gluon_kernel_is_fed_by_tma_and_spills_nothing(dim):
    """384 threads: two consumers of 240 registers, and a warpgroup of which one warp feeds TMA."""
    pytest.importorskip("triton")
    from opforge.inspect import inspect_implementation

    axes = {"batch": 2, "kv_heads": 4, "group": 1, "queries": 1024, "keys": 1024, "head_dim": dim, "value_dim": dim}
    absent = {f"has_{name}": False for name in ("key_lengths", "bias", "mask", "alibi_slopes", "sinks")}
    found = inspect_implementation(
        load([]), "attention", "triton_gluon", target="sm_90a", dtype="bfloat16", axes=axes,
        scalars={"causal": True, **absent},
    )  # fmt: skip
    (kernel,) = found.kernels
    assert kernel.matrix_instructions["HGMMA"] > 0 and kernel.other_instructions["UTMALDG"] > 0
    assert not kernel.spills and kernel.threads == 384
