"""Attention's operators as PyTorch functions: schemas, one graph with dynamic lengths, finite differences, vmap."""

import pytest
import torch

from contract_clauses import clauses
from opforge.core.definition.gradient import wire
from opforge.registry import load
from opforge.verify.extra.contract_gradients import DRAWS, gradients
from opforge.verify.extra.contract_subject import ClauseBroken, Open, Subject

SECOND = {"opcheck", "torch.compile(fullgraph=True)"}
"""What does not hold of the gradients of packed sequences: differentiated once more they read offsets on the host."""
HERE = ("gradcheck", "opcheck", "torch.compile(fullgraph=True)", "vmap", "values and memory (float32)")


@pytest.mark.campaign
@pytest.mark.parametrize(
    "name",
    [
        "attention",
        "attention_backward",
        "attention_bias_backward",
        "attention_sinks_backward",
        "attention_decode",
        "attention_varlen",
        "attention_varlen_backward",
    ],
)
def test_contracts_hold(name):
    found = clauses(name, dtypes=["float32"])
    known = SECOND if name == "attention_varlen_backward" else set()
    broken = {clause.name: clause.detail for clause in found.values() if clause.standing == "broken"}
    assert set(broken) == known, broken
    # decoding has no gradient
    unasked = known | ({"gradcheck"} if name == "attention_decode" else set())
    wanted = [clause for clause in HERE if clause not in unasked]
    assert {clause: found[clause].standing for clause in wanted} == dict.fromkeys(wanted, "held")


def packed(lengths, kv_heads=1, group=2, dim=8):
    make = torch.Generator().manual_seed(sum(lengths))
    heads = (kv_heads * group, kv_heads, kv_heads)
    leaves = [torch.randn(sum(lengths), count, dim, generator=make, requires_grad=True) for count in heads]
    return leaves, torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int()


def test_one_graph_serves_packed_calls_of_any_lengths(front_door):
    """Other lengths, another number of tokens and of sequences: the same graph, right with its gradients."""
    from opforge import ops

    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, k, v, ends: ops.attention_varlen(q, k, v, ends, ends, causal=True)[0],
        fullgraph=True,
        dynamic=True,
        backend=counted,
    )
    for lengths in ([4, 0, 6], [9, 3, 5], [2, 7, 1, 20, 0]):
        leaves, ends = packed(lengths)
        out = compiled(*leaves, ends)
        dout = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
        found = torch.autograd.grad(out, leaves, dout)
        wanted = torch.zeros_like(out)
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            rows = [leaf[first:last].transpose(0, 1)[None] for leaf in leaves]
            if last > first:
                alone = torch.nn.functional.scaled_dot_product_attention(*rows, is_causal=True, enable_gqa=True)
                wanted = wanted.index_copy(0, torch.arange(first, last), alone[0].transpose(0, 1))
        assert torch.allclose(out, wanted, rtol=1e-5, atol=1e-6), lengths
        for one, other in zip(found, torch.autograd.grad(wanted, leaves, dout), strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5), lengths
    assert len(graphs) == 1


def test_gradients_of_packed_sequences_are_those_of_the_oracle_differentiated():
    """The formula of the weights made again shares nothing with autograd; empty sequences and blind rows included."""
    registry = load([])
    forward, gradient = (registry.operator(name) for name in ("attention_varlen", "attention_varlen_backward"))
    make = torch.Generator().manual_seed(3)
    queries, keys = [3, 0, 9, 1, 4], [5, 4, 6, 0, 2]
    q_ends, k_ends = (torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int() for lengths in (queries, keys))
    shapes = ((sum(queries), 4, 8), (sum(keys), 2, 8), (sum(keys), 2, 5))
    leaves = [torch.randn(shape, generator=make, dtype=torch.float64, requires_grad=True) for shape in shapes]
    for scalars in (
        {"causal": True, "alignment": "bottom_right"},
        {"window_left": 2, "window_right": 1, "softcap": 1.5, "scale": 0.7},
    ):
        values = forward.scalar_values(scalars)
        out, lse = forward.reference(*leaves, q_ends, k_ends, **values)
        seen = lse.isfinite()
        assert not bool(seen.all())
        dout, dlse = (torch.randn(t.shape, generator=make, dtype=torch.float64) for t in (out, lse))
        wanted = torch.autograd.grad((out * dout).sum() + (lse[seen] * dlse[seen]).sum(), leaves)
        found = gradient.reference(*leaves, out.detach(), lse.detach(), dout, dlse, q_ends, k_ends, **values)
        for one, other in zip(found, wanted, strict=True):
            assert (one - other).abs().max() < 1e-12, scalars


def gradients_hold(off, kind=Subject):
    """Whether the clause of gradients holds of the references themselves, in bfloat16, of outputs that a kernel's own
    16-bit factors moved by half a unit before they were rounded. off   by what share of themselves the outputs that are
    kept are larger than those that are returned; kind   whose inputs they are"""
    registry = load([])
    operator, scalars = registry.operator("attention_varlen"), {}
    gradient = registry.operator(operator.gradient)
    wiring = wire(operator, gradient)

    class Honest(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
            out, lse = operator.reference(*wide, **scalars)
            out = (out * (1 + (torch.rand_like(out) - 0.5) * 2.0**-8)).bfloat16()
            ctx.kept = wide, (out.double() * (1 + off), lse)
            return out, lse.float()

        @staticmethod
        def backward(ctx, *incoming):
            wide, outputs = ctx.kept
            sources = {"input": wide, "output": outputs, "incoming": [one.double() for one in incoming]}
            given = {name: scalars[name] for name in wiring.scalars}
            found = gradient.reference(*(sources[kind][place] for kind, place in wiring.takes), **given)
            return tuple(
                None if not wide[at].is_floating_point() else found[wiring.gives[at]].bfloat16()
                for at in range(len(wide))
            )

    subject = kind(
        operator=operator,
        function=lambda *tensors, **_: Honest.apply(*tensors),
        custom=None,
        dtype="bfloat16",
        device="cpu",
        compiler="",
        gradient_operators=(gradient,),
    )
    scalars.update(subject.scalars)
    return gradients(subject)


@pytest.mark.campaign
def test_gradients_of_outputs_that_were_rounded_otherwise_hold():
    """A gradient is of the outputs that the call returned, wherever in their bound they lie, and of no others: those
    that are two to four units larger give another one.
    """
    for _ in range(6):
        gradients_hold(0.0)
    with pytest.raises(ClauseBroken, match="gradient"):
        gradients_hold(2.0**-6)


class NothingMeets(Subject):
    """Its first draws are packed sequences that have queries or keys, none of them both: every gradient is zero."""

    blind = 2

    def inputs(self, case=None):
        *floating, q_ends, k_ends = super().inputs(case)
        if self.blind:
            self.blind -= 1
            queries, keys = q_ends[-1], k_ends[-1]
            q_ends, k_ends = torch.zeros_like(q_ends), torch.zeros_like(k_ends)
            q_ends[1:], k_ends[2:] = queries, keys
        return [*floating, q_ends, k_ends]


def test_a_draw_whose_outputs_depend_on_nothing_is_drawn_again():
    """One in two hundred is such: the reference has no gradient of it to give, and no error would be found by it."""
    assert "bounds" in gradients_hold(0.0, NothingMeets)
    with pytest.raises(ClauseBroken, match="gradient"):
        gradients_hold(2.0**-6, NothingMeets)
    never = type("Never", (NothingMeets,), {"blind": DRAWS})
    with pytest.raises(Open, match="no output depended"):
        gradients_hold(0.0, never)
