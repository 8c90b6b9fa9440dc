"""Packed sequences: what their cases have, which block belongs to which, and what no other sequence may change."""

import random

import pytest
import torch
from tests.named_kernels import named, renamed

from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Mismatch
from opforge.registry import load
from opforge.runner import allocate, fill
from opforge.verify import CaseCache, verify

REGISTRY = load([])
OPERATOR = REGISTRY.operator("attention_varlen")
PLAIN = REGISTRY.operator("attention")


def given(queries, keys, dtype=torch.float64, kv_heads=2, group=2, dim=16):
    """Tensors of a call of sequences with so many queries and keys each."""
    make = torch.Generator().manual_seed(11)
    shapes = ((sum(queries), kv_heads * group), (sum(keys), kv_heads), (sum(keys), kv_heads))
    tensors = [torch.randn(*shape, dim, generator=make).to(dtype) for shape in shapes]
    ends = [torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int() for lengths in (queries, keys)]
    return [*tensors, *ends]


def alone(tensors, place):
    """The tensors of one sequence as attention takes them: heads first."""
    q, k, v, q_ends, k_ends = tensors
    rows, columns = (slice(int(ends[place]), int(ends[place + 1])) for ends in (q_ends, k_ends))
    return rows, [tensor.transpose(0, 1)[None] for tensor in (q[rows], k[columns], v[columns])]


QUERIES, KEYS = [3, 0, 70, 1, 5, 9], [8, 4, 70, 0, 2, 9]


@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
def test_each_sequence_has_what_attention_gives_it_alone(alignment):
    tensors = given(QUERIES, KEYS)
    scalars = {"causal": True, "window_left": 6, "alignment": alignment}
    out, lse = OPERATOR.reference(*tensors, **OPERATOR.scalar_values(scalars))
    for place, (queries, keys) in enumerate(zip(QUERIES, KEYS, strict=True)):
        rows, packed = alone(tensors, place)
        if not keys:
            assert bool((out[rows] == 0).all()) and bool((lse[:, rows] == -float("inf")).all())
        elif queries:
            wanted = PLAIN.reference(*packed, *[None] * 5, **PLAIN.scalar_values(scalars))
            assert torch.allclose(out[rows], wanted[0][0].transpose(0, 1), rtol=1e-12, atol=1e-14)
            assert torch.allclose(lse[:, rows], wanted[1][0], rtol=1e-12, atol=1e-14)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The operator under another name, whose kernels can be called by theirs."""
    return renamed(OPERATOR, tmp_path_factory.mktemp("home") / "attention_varlen_copy")


@pytest.mark.parametrize(
    "kernel", ["triton_varlen", pytest.param("cpp_blocked", marks=pytest.mark.campaign), "torch_eager"]
)
def test_a_sequence_does_not_change_with_its_neighbours(kernel, folder):
    """Other numbers, NaN among them, in every other sequence: the same bits in this one."""
    tensors = given(QUERIES, KEYS, torch.float32)
    scalars = {"causal": True, "alignment": "bottom_right"}
    before = named(folder, kernel, *tensors, **scalars)
    rows, columns = (slice(int(ends[2]), int(ends[3])) for ends in tensors[3:])
    others = []
    for tensor, kept in zip(tensors[:3], (rows, columns, columns), strict=True):
        other = torch.full_like(tensor, float("nan"))
        other[kept] = tensor[kept]
        others.append(other)
    after = named(folder, kernel, *others, *tensors[3:], **scalars)
    assert torch.equal(before[0][rows], after[0][rows]) and torch.equal(before[1][:, rows], after[1][:, rows])
    assert not bool(before[0].isnan().any())


WRONG = {
    # where the last sequence has no key there is none behind it either: one of no keys would raise
    "another sequence's key is seen": ("k_ends[place + 1])", "min(k_ends[place + 1] + 1, k_ends[-1]))"),
    "who sees nothing has a log-sum-exp": ("-math.inf", "0.0"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_kernel_that_mixes_sequences_up_is_refused(wrong, tmp_path, host):
    folder = renamed(OPERATOR, tmp_path / "attention_varlen_wrong")
    source = (folder / "torch_definition.py").read_text()
    assert WRONG[wrong][0] in source
    (folder / "torch_definition.py").write_text(source.replace(*WRONG[wrong]))
    registry = load([tmp_path])
    operator = registry.operator("attention_varlen_wrong")
    bench = CaseCache(registry=registry, operator=operator, host=host, device="cpu")
    cases = [case for case in operator.cases if case.name in ("lengths_apart", "one_token_each")]
    try:
        verdict = verify(bench, registry.implementation(operator.name, "torch_definition"), "float32", cases=cases)
    finally:
        bench.close()
    assert isinstance(verdict, Mismatch), getattr(verdict, "reason", verdict)


@pytest.mark.campaign
def test_every_block_of_queries_is_found_whatever_the_lengths(folder):
    """Empty sequences between, before and after; lengths at the edges of blocks of 64; more sequences than are scanned
    together."""
    draw = random.Random(3)
    for count in (1, 5, 9, 1100):
        choice = (0, 0, 1, 63, 64, 65, 130) if count < 10 else (0,) * 200 + (1, 65)
        lengths = [draw.choice(choice) for _ in range(count)]
        tensors = given(lengths, lengths, torch.float32, kv_heads=1, group=1)
        out, lse = named(folder, "triton_varlen", *tensors)
        wanted = OPERATOR.reference(
            *(t.double() if t.is_floating_point() else t for t in tensors), **OPERATOR.scalar_values({})
        )
        assert torch.allclose(out.double(), wanted[0], rtol=1e-4, atol=1e-5), count
        assert torch.allclose(lse.double(), wanted[1], rtol=1e-5, atol=1e-5), count


def test_gradients_of_packed_sequences_are_those_of_each(front_door):
    from opforge import ops

    tensors = given([4, 0, 6], [4, 0, 6], torch.float32)
    leaves = [tensor.requires_grad_() for tensor in tensors[:3]]
    out = ops.attention_varlen(*leaves, *tensors[3:], causal=True)[0]
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(4))
    found = torch.autograd.grad(out, leaves, dout)
    for place in (0, 2):
        rows, packed = alone([*leaves, *tensors[3:]], place)
        wanted = torch.nn.functional.scaled_dot_product_attention(*packed, is_causal=True, enable_gqa=True)
        assert torch.allclose(out[rows], wanted[0].transpose(0, 1), rtol=1e-5, atol=1e-6)
        gradients = torch.autograd.grad(wanted, leaves, dout[rows].transpose(0, 1)[None])
        for one, other in zip(found, gradients, strict=True):
            # the rows of a packed tensor are those of queries and of keys here
            assert torch.allclose(one[rows], other[rows], rtol=1e-4, atol=1e-5)


def drawn(axes, seed=5):
    case = Case(name="drawn", axes=OPERATOR.completed(axes, OPERATOR.scalar_values({})), why="drawn")
    arena = allocate(OPERATOR, case, "float32")
    try:
        fill(arena, OPERATOR, case, seed)
        return [arena.tensor(name).clone() for name in ("cu_seqlens_q", "cu_seqlens_k")]
    finally:
        arena.close()


def test_lengths_are_alike_for_self_attention_and_grow_in_large_calls():
    axes = {"bounds": 7, "total_q": 60, "total_k": 60, "kv_heads": 1, "group": 1, "head_dim": 1, "value_dim": 1}
    assert torch.equal(*drawn(axes))
    assert not torch.equal(*drawn({**axes, "total_k": 61}))
    q_ends, k_ends = drawn({**axes, "bounds": 5, "total_q": 1000, "total_k": 10000})
    assert q_ends.tolist() == [0, 100, 300, 600, 1000] and k_ends.tolist() == [0, 1000, 3000, 6000, 10000]
    pairs = sum((b - a) * (d - c) for a, b, c, d in zip(q_ends, q_ends[1:], k_ends, k_ends[1:], strict=False))
    sizes = {**axes, "bounds": 5, "total_q": 1000, "total_k": 10000}
    assert OPERATOR.cost(sizes, "float32").flops == 2 * 2 * int(pairs)
