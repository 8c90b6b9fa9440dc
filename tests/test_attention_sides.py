"""Attention beside queries, keys and values: padding, biases, masks, ALiBi, sinks, dropout; by oracle and kernels."""

import itertools
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.named_kernels import Named

from opforge import ops
from opforge.backends import Call, backend
from opforge.core.language.errors import UsageError
from opforge.definitions.attention.dropout import four_words, kept_of
from opforge.definitions.attention.sides import NAMES, Sides
from opforge.dispatch import Chooser, Function
from opforge.ops.seeds import draw_seed
from opforge.registry import load

OPERATOR = load([]).operator("attention")
GRADIENT = load([]).operator("attention_backward")
BATCH, HEADS, SHARED, QUERIES, KEYS = 2, 4, 2, 7, 9


@pytest.fixture
def computed_by(front_door):
    """A function of a name: attention as that implementation computes it."""
    yield lambda name: Function(OPERATOR, Named(load(), name)).compute
    for name in [name for name, value in vars(ops).items() if isinstance(value, Function | Chooser)]:
        del vars(ops)[name]


def given(dtype=torch.float64, keys=KEYS):
    make = torch.Generator().manual_seed(11)
    shapes = ((BATCH, HEADS, QUERIES, 8), (BATCH, SHARED, keys, 8), (BATCH, SHARED, keys, 8))
    return [torch.randn(shape, generator=make, dtype=dtype) for shape in shapes]


def beside(dtype=torch.float64):
    make = torch.Generator().manual_seed(12)
    scores = (BATCH, HEADS, QUERIES, KEYS)
    return {
        "key_lengths": torch.tensor([5, KEYS], dtype=torch.int32),
        "bias": torch.randn(scores, generator=make, dtype=dtype),
        "mask": torch.rand(scores, generator=make) > 0.3,
        "alibi_slopes": torch.randn(HEADS, generator=make, dtype=torch.float32).to(dtype),
        "sinks": torch.randn(HEADS, generator=make, dtype=torch.float32).to(dtype),
    }


def values(**scalars):
    chosen = {scalar.name: scalar.default for scalar in OPERATOR.scalars}
    return {**chosen, **scalars}


def reference(tensors, sides, **scalars):
    return OPERATOR.reference(*tensors, *(sides.get(name) for name in NAMES), **values(**scalars))


def test_the_oracle_is_the_formula_written_out():
    """Key by key in Python's floats: the order of cap, bias and ALiBi, what the sink joins, where dropout stands."""
    (q, k, v), sides = given(), beside()
    scalars = {"causal": True, "alignment": "bottom_right", "softcap": 2.0, "dropout": 0.3, "seed": 5, "offset": 2}
    out, lse = reference((q, k, v), sides, **scalars)
    for b, h, i in itertools.product(range(BATCH), range(HEADS), range(QUERIES)):
        position, scores = i + KEYS - QUERIES, {}
        for j in range(KEYS):
            if j > position or j >= sides["key_lengths"][b] or not sides["mask"][b, h, i, j]:
                continue
            product = float(q[b, h, i] @ k[b, h // 2, j]) / math.sqrt(8)
            capped = 2.0 * math.tanh(product / 2.0)
            bent = float(sides["bias"][b, h, i, j]) - float(sides["alibi_slopes"][h]) * abs(j - position)
            scores[j] = capped + bent
        total = math.exp(sides["sinks"][h]) + sum(math.exp(score) for score in scores.values())
        assert math.isclose(float(lse[b, h, i]), math.log(total), rel_tol=1e-12)
        wanted = torch.zeros(8, dtype=torch.float64)
        for j, score in scores.items():
            word = four_words(j // 4, i, b * 65536 + h, 2, 5)[j % 4]
            if word >= int(0.3 * 2**32):
                wanted += math.exp(score) / total / 0.7 * v[b, h // 2, j]
        assert torch.allclose(out[b, h, i], wanted, rtol=1e-12, atol=1e-14)


def test_rows_that_see_nothing():
    """No key of an entry, none that the mask leaves, a bias of -inf: out 0 and -inf, or the sink; no NaN."""
    tensors = given()
    nothing = [
        {"key_lengths": torch.zeros(BATCH, dtype=torch.int32)},
        {"mask": torch.zeros(BATCH, HEADS, QUERIES, KEYS, dtype=torch.bool)},
        {"bias": torch.full((BATCH, HEADS, QUERIES, KEYS), -math.inf, dtype=torch.float64)},
    ]
    for sides in nothing:
        out, lse = reference(tensors, sides)
        assert not out.any() and bool((lse == -math.inf).all())
        sinks = beside()["sinks"]
        out, lse = reference(tensors, {**sides, "sinks": sinks})
        assert not out.any() and torch.allclose(lse, sinks[:, None].expand_as(lse))


@pytest.mark.parametrize("left", [["key_lengths", "mask"], ["bias", "alibi_slopes"], ["sinks"], []])
def test_gradients_are_those_of_the_oracle_differentiated(left):
    """Also of the log-sum-exp. What is left away shows an error that the others hide."""
    leaves = [tensor.requires_grad_() for tensor in given()]
    sides = {name: tensor for name, tensor in beside().items() if name not in left}
    scalars = {"softcap": 2.0, "dropout": 0.3, "seed": 9, "causal": True, "alignment": "bottom_right"}
    out, lse = reference(leaves, sides, **scalars)
    make = torch.Generator().manual_seed(13)
    dout, dlse = (torch.randn(made.shape, generator=make, dtype=torch.float64) for made in (out, lse))
    seen = lse.isfinite()
    wanted = torch.autograd.grad((out * dout).sum() + (lse[seen] * dlse[seen]).sum(), leaves)
    made = (*(leaf.detach() for leaf in leaves), out.detach(), lse.detach(), dout, dlse)
    found = GRADIENT.reference(*made, *(sides.get(name) for name in NAMES), **values(**scalars))
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() < 1e-12


def test_gradients_of_bias_and_sinks_are_those_of_the_oracle_differentiated(monkeypatch):
    """All at once, in float64; what is expanded, and heads one after another, too."""
    from opforge.definitions.attention import gradients as attention_gradients

    registry = load([])
    of_bias, of_sinks = (registry.operator(name) for name in OPERATOR.further_gradients)
    tensors, sides = given(), beside()
    leaves = [sides["bias"].requires_grad_(), sides["sinks"].requires_grad_()]
    scalars = {"softcap": 2.0, "dropout": 0.3, "seed": 9, "causal": True, "alignment": "bottom_right"}
    out, lse = reference(tensors, sides, **scalars)
    make = torch.Generator().manual_seed(13)
    dout, dlse = (torch.randn(made.shape, generator=make, dtype=torch.float64) for made in (out, lse))
    wanted = torch.autograd.grad((out * dout).sum() + (lse * dlse).sum(), leaves)
    made = [tensor.detach() for tensor in (*tensors, out, lse, dout, dlse)]
    named = [sides[name].detach() for name in ("bias", "key_lengths", "mask", "alibi_slopes")]
    for together in (attention_gradients.TOGETHER, 1):
        monkeypatch.setattr(attention_gradients, "TOGETHER", together)
        dbias = of_bias.reference(*made, *named, **values(**scalars))
        assert (dbias - wanted[0]).abs().max() < 1e-12 and bool(dbias.any())
    dsinks = of_sinks.reference(*made[3:], leaves[1].detach())
    assert (dsinks - wanted[1]).abs().max() < 1e-12 and bool(dsinks.any())


def test_a_sink_of_minus_infinity_is_none(front_door):
    """Its gradient is 0, also where a row sees nothing and has no sum at all."""
    q, k, v = given(torch.float32)
    sinks = torch.tensor([0.5, -math.inf, 1.0, -math.inf], requires_grad=True)
    out, lse = front_door.attention(q, k, v, torch.tensor([0, KEYS], dtype=torch.int32), sinks=sinks)
    assert bool((lse[0, 1] == -math.inf).all())
    (found,) = torch.autograd.grad(out.square().sum() + lse[1].sum(), sinks)
    assert bool(found[::2].all()) and not found[1::2].any()


def test_parts_give_what_the_whole_gives(monkeypatch):
    """Large calls are looked at in parts, of which each has its own piece of what stands beside."""
    from opforge.definitions.attention import attention, gradients as attention_gradients

    tensors, sides = given(), beside()
    scalars = {"dropout": 0.3, "causal": True, "alignment": "bottom_right"}
    whole = reference(tensors, sides, **scalars)
    dout, dlse = whole[0] + 1, whole[1] * 0 + 1
    given_back = (*tensors, *whole, dout, dlse, *(sides[name] for name in NAMES))
    gradients = GRADIENT.reference(*given_back, **values(**scalars))
    for module, size in ((attention, 2 * 2 * KEYS), (attention_gradients, 1)):
        monkeypatch.setattr(module, "TOGETHER", size)
    for one, other in zip(reference(tensors, sides, **scalars), whole, strict=True):
        assert torch.allclose(one, other, rtol=1e-13)
    for one, other in zip(GRADIENT.reference(*given_back, **values(**scalars)), gradients, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)


def test_philox_has_the_words_of_its_authors():
    """Known answers of Random123, 4x32-10."""
    words = four_words(0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0x299F31D0_A4093822)
    assert words == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


PLACES = ((2**40 + 3, 0), (-1, 2**32 - 1))
"""Seeds and offsets."""
COUNTED = 101
"""Keys that no block of four words divides."""


def equal_rows():
    """Equal scores, and values that are rows of the identity: out is 1 / keys where a weight is kept."""
    v = torch.eye(COUNTED).expand(2, 1, COUNTED, COUNTED).contiguous()
    return torch.zeros(2, 3, 70, 16), torch.zeros(2, 1, COUNTED, 16), v


INTERPRETED = """
import sys
from pathlib import Path
import torch
import opforge.backends.triton_interpreter
from opforge.device.triton.attention import launch_forward
from tests.test_attention_sides import PLACES, equal_rows, given
plain = {"scale": 0.0, "causal": False, "window_left": -1, "window_right": -1, "alignment": "top_left", "softcap": 0.0}
plain |= {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
def run(tensors, lengths, split, **scalars):
    q, _, v = tensors
    out, lse = torch.empty(*q.shape[:3], v.shape[3]), torch.empty(q.shape[:3])
    launch_forward(*tensors, lengths, None, None, None, None, out, lse, SPLIT=split, **plain, **scalars)
    return out, lse
made = [run(equal_rows(), None, True, dropout=0.25, seed=seed, offset=offset) for seed, offset in PLACES]
lengths = torch.tensor([109, -3], dtype=torch.int32)
made += [run(given(torch.float32), lengths, split, dropout=0.0, seed=0, offset=0) for split in (True, False)]
torch.save(made, sys.argv[1])
"""


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """What Triton's kernels make in the interpreter, which is a process's own: dropout at each of PLACES, then calls
    with lengths beyond the keys and below 0, of both kernels.
    """
    file = tmp_path_factory.mktemp("triton") / "made.pt"
    above = Path(__file__).resolve().parent.parent
    process = subprocess.run(
        [sys.executable, "-c", INTERPRETED, str(file)], cwd=above, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    return torch.load(file)


@pytest.mark.parametrize("place", [0, 1])
def test_three_backends_drop_the_same_weights(computed_by, interpreted, place):
    """The mask itself is read off: out is 1 / keys where a weight is kept."""
    seed, offset = PLACES[place]
    scalars = {f"has_{name}": False for name in NAMES} | {"dropout": 0.25, "seed": seed, "offset": offset}
    entry, head, query, key = (
        torch.arange(size).reshape(-1, *(1,) * (3 - axis)) for axis, size in enumerate((2, 3, 70, COUNTED))
    )
    wanted = kept_of(entry, head, query, key, 0.25, seed, offset)
    made = {name: computed_by(name)(equal_rows(), scalars) for name in ("torch_definition", "cpp_blocked")}
    for name, (out, lse) in {**made, "triton": interpreted[place]}.items():
        assert torch.equal(out != 0, wanted), name
        # the others grow, and the sum knows nothing of it
        assert torch.allclose(out[wanted], torch.tensor(1 / (0.75 * COUNTED))), name
        assert torch.allclose(lse, torch.tensor(math.log(COUNTED)), atol=1e-5), name
    # six standard deviations of a binomial distribution
    assert abs(wanted.double().mean() - 0.75) < 6 * math.sqrt(0.25 * 0.75 / wanted.numel())
    # a pure function of the place: fewer queries, keys and heads change nothing
    part = kept_of(entry, head[:2], query[:40], key[..., :50], 0.25, seed, offset)
    assert torch.equal(part, wanted[:, :2, :40, :50])
    other = kept_of(entry, head, query, key, 0.25, seed, (offset + 1) % 2**32)
    assert abs((other == wanted).double().mean() - (0.75**2 + 0.25**2)) < 0.02


def test_a_call_replays_bit_for_bit(computed_by):
    tensors = given(torch.float32)
    scalars = {f"has_{name}": False for name in NAMES} | {"dropout": 0.5, "seed": 3}
    for name in ("torch_definition", "cpp_blocked"):
        first, again = (computed_by(name)(tensors, scalars)[0] for _ in range(2))
        assert torch.equal(first, again)
        assert not torch.equal(first, computed_by(name)(tensors, {**scalars, "offset": 1})[0])


def test_the_function_differentiates_all_it_is_given(front_door):
    """A bias that is expanded over batch and heads gets the sum of its gradients; so do sinks and slopes."""
    tensors, sides = given(torch.float32), beside(torch.float32)
    narrow = sides["bias"][:1, :1].clone()
    leaves = [*tensors, narrow, sides["sinks"], sides["alibi_slopes"]]
    scalars = {"dropout": 0.2, "seed": 4, "causal": True, "alignment": "bottom_right"}

    def loss(call, q, k, v, bias, sinks, slopes):
        wide = bias.expand(BATCH, HEADS, QUERIES, KEYS)
        named = {**sides, "bias": wide, "sinks": sinks, "alibi_slopes": slopes}
        out, lse = call((q, k, v), named)
        return (out * torch.arange(8.0)).sum() + lse.sum()

    mine = [leaf.clone().requires_grad_() for leaf in leaves]
    found = loss(lambda three, named: front_door.attention(*three, **named, **scalars), *mine)
    exact = [leaf.double().requires_grad_() for leaf in leaves]
    wanted = loss(lambda three, named: reference(three, named, **scalars), *exact)
    assert torch.allclose(found.double(), wanted, rtol=1e-5)
    gradients = torch.autograd.grad(wanted, exact)
    for one, other in zip(torch.autograd.grad(found, mine), gradients, strict=True):
        assert torch.allclose(one.double(), other, rtol=1e-4, atol=1e-4)
        assert bool(one.any())
    asked = front_door.attention.chooser.functions
    assert all(asked[name]._prepared for name in OPERATOR.further_gradients)


def test_compiled_and_batched_calls_are_given_what_stands_beside(front_door):
    q, k, v = given(torch.float32)
    sides = beside(torch.float32)

    def call(q, mask, sinks):
        return front_door.attention(q, k, v, mask=mask, sinks=sinks, causal=True)[0]

    wanted = call(q, sides["mask"], sides["sinks"])
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, sides["mask"], sides["sinks"]), wanted)
    rows = torch.vmap(call, in_dims=(0, None, None))(torch.stack([q, 2 * q]), sides["mask"], sides["sinks"])
    assert torch.allclose(rows[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"key_lengths": torch.ones(BATCH, dtype=torch.int64)}, "key_lengths as int32"),
        ({"mask": torch.ones(BATCH, 1, QUERIES, KEYS, dtype=torch.bool)}, "mask has 1 where"),
        ({"sinks": torch.ones(HEADS + 1)}, "sinks"),
        ({"dropout": 1.5}, "drops_a_share"),
        ({"dropout": -0.5}, "drops_a_share"),
        ({"offset": 2**32}, "offset_is_a_word"),
    ],
)
def test_what_does_not_fit_is_refused(front_door, wrong, words):
    with pytest.raises(UsageError, match=words):
        front_door.attention(*given(torch.float32), **wrong)


@pytest.mark.campaign
def test_lengths_beyond_the_keys_are_all_of_them_and_below_zero_none(computed_by, interpreted):
    """A call does not look at values: kernels must not read past the keys either."""
    tensors = given(torch.float32)
    lengths = torch.tensor([KEYS + 100, -3], dtype=torch.int32)
    scalars = {f"has_{name}": False for name in NAMES if name != "key_lengths"}
    whole = reference(tensors, {})
    made = {name: computed_by(name)((*tensors, lengths), scalars) for name in ("torch_definition", "cpp_blocked")}
    for name, (out, lse) in {**made, "twoloops": interpreted[2], "online": interpreted[3]}.items():
        assert torch.allclose(out[0], whole[0][0].float(), atol=1e-5) and not out[1].any(), name
        assert bool((lse[1] == -math.inf).all()), name


@pytest.mark.parametrize(
    ("operator", "name"), [(OPERATOR, "cuda_wgmma"), (GRADIENT, "cuda_wgmma"), (GRADIENT, "cuda_wgmma_ordered")]
)
def test_hopper_s_kernels_say_what_they_do_not_take(operator, name):
    """What is not supported is refused with a reason, never computed without it."""
    (kernel,) = (item for item in load([]).implementations(operator.name) if item.name == name)
    (case,) = (case for case in operator.cases if case.name == "one_block")
    plain = operator.scalar_values(case.scalars)
    for change in ({}, {"has_key_lengths": True}, {"has_alibi_slopes": True}, {"has_sinks": True}, {"softcap": 2.0}):
        assert type(kernel.accepts(case.axes, "bfloat16", {**plain, **change})).__name__ == "Accepted", change
    for change in ({"dropout": 0.1}, {"has_bias": True}, {"has_mask": True}):
        assert type(kernel.accepts(case.axes, "bfloat16", {**plain, **change})).__name__ == "Rejected", change


def test_tilelang_says_what_it_does_not_take():
    """Its places have 32 bits, and its programs no room for what may stand beside queries, keys and values."""
    (kernel,) = (item for item in load([]).implementations("attention") if item.name == "tilelang_edges")
    (case,) = (case for case in OPERATOR.cases if case.name == "one_block")
    plain = OPERATOR.scalar_values(case.scalars)
    for change in ({}, {"causal": True, "window_left": 3}, {"softcap": 2.0}, {"scale": -1.0}):
        assert type(kernel.accepts(case.axes, "float32", {**plain, **change})).__name__ == "Accepted", change
    for change in ({"dropout": 0.1}, *({f"has_{name}": True} for name in NAMES)):
        assert type(kernel.accepts(case.axes, "float32", {**plain, **change})).__name__ == "Rejected", change
    for change in ({"head_dim": 257}, {"value_dim": 257}, {"keys": 2**24}, {"queries": 2**21, "batch": 0}):
        assert type(kernel.accepts({**case.axes, **change}, "float32", plain)).__name__ == "Rejected", change


@pytest.mark.offline
@pytest.mark.parametrize(("dtype", "dims"), [("float16", (32, 32)), ("float32", (33, 17))])
def test_tilelang_touches_rows_at_other_addresses_element_by_element(dtype, dims):
    """Two bytes off, 16 at once are a misaligned address; sums of 32 by 17 had no layout. Both ended calls on
    an H200.
    """
    tilelang = pytest.importorskip("tilelang")
    import tvm

    (kernel,) = (item for item in load([]).implementations("attention") if item.name == "tilelang_edges")
    axes = {**OPERATOR.cases[0].axes, "head_dim": dims[0], "value_dim": dims[1]}
    scalars = OPERATOR.scalar_values(dict.fromkeys((f"has_{name}" for name in NAMES), False))
    call = Call(operator=OPERATOR, axes=axes, dtype=dtype, scalars=scalars, config=kernel.default, device="cuda")
    build, _ = backend("tilelang").program(kernel, call, "cuda", aligned=False)
    chosen = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with chosen:
        text = tilelang.lower(build(), target=chosen).kernel_source
    assert re.search(r"\bq\[", text) and re.search(r"\bout\[", text)
    assert re.findall(r"\*\(\w+\*\)\(?&?\(?(?:q|k|v|out)\b", text) == []


def test_a_part_of_the_sides_knows_where_it_stands():
    q, sides = given()[0], beside()
    whole = Sides.of(q, sides)
    part = whole.part(slice(1, 2), slice(2, 4), slice(3, 6))
    scalars = values(dropout=0.4, causal=True)
    mine = part.kept(q[1:2, 2:4, 3:6], KEYS, scalars)
    assert torch.equal(mine, whole.kept(q, KEYS, scalars)[1:2, 2:4, 3:6])
    seen = whole.visible(q, KEYS, scalars)[1:2, 2:4, 3:6]
    assert torch.equal(part.visible(q[1:2, 2:4, 3:6], KEYS, scalars), seen)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_graph_drops_what_the_eager_call_drops_at_every_seed(front_door, backend):
    """Two graphs for all seeds, forward and backward: a new one for each would end at PyTorch's limit."""
    torch.compiler.reset()  # graphs of the other backend count
    leaves = [tensor.requires_grad_() for tensor in given(torch.float32)]

    def call(q, k, v, seed):
        return front_door.attention(q, k, v, dropout=0.25, seed=seed)[0]

    compiled = torch.compile(call, fullgraph=True, backend=backend)
    masks = set()
    for seed in (5, -7, 2**63 - 1, 0, 1):
        wanted = call(*leaves, seed)
        with torch._dynamo.config.patch(recompile_limit=2):
            found = compiled(*leaves, seed)
        assert torch.equal(found, wanted)
        for one, other in zip(*(torch.autograd.grad(out.sum(), leaves) for out in (wanted, found)), strict=True):
            assert torch.equal(one, other)
        masks.add(found.detach().sum().item())
    assert len(masks) == 5


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_seeds_drawn_in_a_graph_are_those_of_the_eager_call(front_door, backend):
    """Two draws are two seeds, in their order, of torch.manual_seed; the generator stands alike afterwards."""
    leaves = [tensor.requires_grad_() for tensor in given(torch.float32, keys=QUERIES)]

    def call(q, k, v):
        first = front_door.attention(q, k, v, dropout=0.25, seed=draw_seed())[0]
        return first, front_door.attention(q, k, v, dropout=0.25, seed=draw_seed())[0]

    def replayed(run, seed):
        torch.manual_seed(seed)
        outs = run(*leaves)
        return (*outs, *torch.autograd.grad(sum((out * out).sum() for out in outs), leaves), torch.rand(1))

    compiled = torch.compile(call, fullgraph=True, backend=backend)
    made = {seed: replayed(call, seed) for seed in (5, 6)}
    for seed in (5, 6, 5):
        for one, other in zip(replayed(compiled, seed), made[seed], strict=True):
            assert torch.equal(one, other)
    assert not torch.equal(made[5][0], made[5][1])
    assert not torch.equal(made[5][0], made[6][0])
