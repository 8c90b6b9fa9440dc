"""Decoding against a paged cache: what its cases have, what is read, the split of a sequence, and a user's calls."""

import random

import pytest
import torch
from tests.named_kernels import named, renamed

from opforge.core.definition.operator import Case, TensorSpec
from opforge.core.evidence.verdict import Mismatch
from opforge.core.language.errors import UsageError
from opforge.definitions.attention.decode import ELEMENTS, POISON, alike, poisoned
from opforge.registry import load
from opforge.registry.call_checks import check_calls
from opforge.registry.definition_checks import check_definition
from opforge.runner import allocate, fill
from opforge.verify import CaseCache, verify

REGISTRY = load([])
OPERATOR = REGISTRY.operator("attention_decode")
PLAIN = REGISTRY.operator("attention")
PAGE = 8


def given(
    lengths, *, page=PAGE, queries=1, window=-1, dtype=torch.float64, seed=3, room=1, kv_heads=2, group=3, dim=16
):
    """Tensors of a call whose pages lie in any order; what is not read of the table is out of range, and what lies
    behind a sequence's last key is NaN."""
    make = torch.Generator().manual_seed(seed)
    max_pages = max(1, -(-max(lengths, default=1) // page)) + room
    pages = max(1, len(lengths) * max_pages)
    q = torch.randn(len(lengths), kv_heads * group, queries, dim, generator=make).to(dtype)
    k, v = (torch.randn(pages, page, kv_heads, dim, generator=make).to(dtype) for _ in range(2))
    table = torch.randperm(pages, generator=make)[: len(lengths) * max_pages].reshape(len(lengths), max_pages).int()
    counts = torch.tensor(lengths, dtype=torch.int32)
    read = poisoned(table, counts, page, queries, window)
    for number, length in enumerate(lengths):
        if length % page:
            entry = int(table[number, length // page])
            k[entry, length % page :] = v[entry, length % page :] = float("nan")
    return q, k, v, read, counts


def cache_of(pages, table, length):
    """The keys of one sequence, [1, kv_heads, length, dim], one after another."""
    page = pages.shape[1]
    rows = [pages[int(table[j // page]), j % page] for j in range(length)]
    return torch.stack(rows).transpose(0, 1)[None] if rows else None


LENGTHS = [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1, 3 * PAGE - 1]


def test_the_oracle_takes_sequences_of_one_length_together():
    """70,000 sequences of at most a key each, as a long hidden case has them, are few steps."""
    counts = torch.tensor([0, 1] * 35_000, dtype=torch.int32)
    steps = list(alike(counts, 2))
    assert len(steps) == 1 and steps[0][0] == 1 and steps[0][1] == list(range(1, 70_000, 2))
    few = list(alike(torch.tensor([3, 0, 2, 3, 3]), ELEMENTS // 6))
    assert few == [(3, [0, 3]), (3, [4]), (2, [2])]


@pytest.mark.parametrize(("queries", "window"), [(1, -1), (4, -1), (3, 5)])
def test_the_oracle_is_attention_of_the_keys_gathered(queries, window):
    """Key by key in Python, and plain attention's own oracle: every remainder of a length by the page, and none."""
    q, k, v, table, counts = given(LENGTHS, queries=queries)
    read = poisoned(table, counts, PAGE, queries, window)
    out, lse = OPERATOR.reference(q, k, v, read, counts, **OPERATOR.scalar_values({"window_left": window}))
    assert bool((out[0] == 0).all()) and bool((lse[0] == -float("inf")).all())
    scalars = PLAIN.scalar_values({"causal": True, "alignment": "bottom_right", "window_left": window})
    for number, length in enumerate(LENGTHS[1:], start=1):
        keys, values = (cache_of(pages, table[number], length) for pages in (k, v))
        wanted = PLAIN.reference(q[number : number + 1], keys, values, *[None] * 5, **scalars)
        assert torch.allclose(out[number], wanted[0][0], rtol=1e-12, atol=1e-14)
        assert torch.allclose(lse[number], wanted[1][0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("window", [-1, 0, 11])
def test_the_table_is_poisoned_where_no_query_sees(window):
    page, queries, lengths = 4, 2, [0, 1, 4, 5, 19, 20]
    table = torch.arange(30, dtype=torch.int32).reshape(6, 5)
    found = poisoned(table, torch.tensor(lengths, dtype=torch.int32), page, queries, window)
    for number, length in enumerate(lengths):
        seen = set()
        for query in range(queries):
            place = length - queries + query
            seen |= {j // page for j in range(max(0, place - window if window >= 0 else 0), place + 1)}
        for column in range(5):
            kept = int(found[number, column]) == int(table[number, column])
            assert kept == (column in seen), (length, column)
            assert kept or int(found[number, column]) in POISON


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The operator under another name, whose kernels can be called by theirs."""
    return renamed(OPERATOR, tmp_path_factory.mktemp("home") / "attention_decode_copy")


KERNELS = ["triton_splitkv", "cpp_blocked", "cuda_splitkv", "torch_definition"]


@pytest.mark.parametrize("kernel", [pytest.param(KERNELS[0], marks=pytest.mark.campaign), *KERNELS[1:]], ids=KERNELS)
def test_a_sequence_has_the_same_bits_alone_and_in_a_batch(kernel, folder):
    """Several parts, other neighbours, and a table with room for more."""
    lengths = [530, 3, 0, 300]
    q, k, v, table, counts = given(lengths, dtype=torch.float16, room=60, queries=2, kv_heads=1, group=2)
    out, lse = named(folder, kernel, q, k, v, table, counts, batch_invariant=True)
    assert not bool(out.isnan().any())
    for number, length in enumerate(lengths):
        part, narrow = slice(number, number + 1), max(1, -(-length // PAGE))
        alone = named(
            folder, kernel, q[part], k, v, table[part, :narrow].contiguous(), counts[part], batch_invariant=True
        )
        assert torch.equal(alone[0], out[part]) and torch.equal(alone[1], lse[part]), length


@pytest.mark.parametrize("kernel", KERNELS[:3])
def test_few_keys_of_a_large_table_are_found_in_their_pages(kernel, folder):
    """Every remainder of a length by the page, NaN behind the last key, a table that is out of range where not read."""
    tensors = given(LENGTHS, dtype=torch.float16, queries=2)
    wanted = OPERATOR.reference(
        *(t.double() if t.is_floating_point() else t for t in tensors), **OPERATOR.scalar_values({})
    )
    found = named(folder, kernel, *tensors)
    for one, other in zip(found, wanted, strict=True):
        # weights and results rounded to float16, each by half a step: 2^-11 of values up to 4
        assert torch.allclose(one.double(), other, rtol=2e-3, atol=4e-3)


WRONG = {
    "one key too many": ("enumerate(lengths.tolist())", "enumerate((lengths + 1).tolist())"),
    "pages in their order": (".long()", ".long() * 0 + torch.arange(first // page, -(-length // page)) % len(k_pages)"),
    "the last key is left out": ("length - skipped]", "length - 1 - skipped]"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_kernel_that_reads_other_keys_is_refused(wrong, tmp_path, host):
    folder = renamed(OPERATOR, tmp_path / "attention_decode_wrong")
    source = (folder / "torch_definition.py").read_text()
    assert WRONG[wrong][0] in source
    (folder / "torch_definition.py").write_text(source.replace(*WRONG[wrong]))
    registry = load([tmp_path])
    operator = registry.operator("attention_decode_wrong")
    bench = CaseCache(registry=registry, operator=operator, host=host, device="cpu")
    cases = [case for case in operator.cases if case.name in ("pages_of_16", "every_remainder")]
    try:
        verdict = verify(bench, registry.implementation(operator.name, "torch_definition"), "float32", cases=cases)
    finally:
        bench.close()
    # a table read where it is poisoned is out of range, and raises
    assert isinstance(verdict, Mismatch) or type(verdict).__name__ == "Broken", verdict


def test_a_contiguous_cache_is_a_page_for_each_sequence(front_door):
    """A view and arange for a table: no copy, and the result of attention; also through torch.compile, in one graph."""
    from opforge import ops

    make = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(shape, generator=make) for shape in ((3, 4, 1, 16), (3, 21, 2, 16), (3, 21, 2, 16)))
    lengths = torch.tensor([21, 7, 1], dtype=torch.int32)
    table = torch.arange(3, dtype=torch.int32)[:, None]

    def call(*tensors):
        return ops.attention_decode(*tensors)[0]

    out = call(q, k, v, table, lengths)
    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v, table, lengths), out)
    for number, length in enumerate(lengths.tolist()):
        keys, values = (cache[number : number + 1, :length].transpose(1, 2) for cache in (k, v))
        wanted = torch.nn.functional.scaled_dot_product_attention(q[number : number + 1], keys, values, enable_gqa=True)
        assert torch.allclose(out[number : number + 1], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"q": torch.randn(2, 4, 17, 8)}, "few_queries"),
        ({"block_table": torch.zeros(3, 2, dtype=torch.int32)}, "batch"),
        ({"lengths": torch.zeros(2, dtype=torch.int64)}, "int32"),
    ],
)
def test_calls_that_fit_no_cache_are_refused(changed, words, front_door):
    from opforge import ops

    tensors = {
        "q": torch.randn(2, 4, 1, 8),
        "k_pages": torch.randn(5, 4, 2, 8),
        "v_pages": torch.randn(5, 4, 2, 8),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "lengths": torch.ones(2, dtype=torch.int32),
    }
    with pytest.raises(Exception, match=words):
        ops.attention_decode(*{**tensors, **changed}.values())


def drawn(case, name, seed):
    arena = allocate(OPERATOR, case, "float32")
    try:
        fill(arena, OPERATOR, case, seed)
        return arena.tensor(name).clone()
    finally:
        arena.close()


def small(**changed):
    axes = {"batch": 5, "kv_heads": 1, "group": 1, "queries": 1, "head_dim": 2, "value_dim": 2}
    return Case(name="drawn", axes={**axes, "page": 1, "max_pages": 6, "pages": 30, **changed}, why="drawn")


def test_distinct_indices_are_a_permutation_while_there_are_others():
    """Each once of 40, and of 12 for 30 places each twice or three times; other ones for each seed."""
    full = {"max_pages": 4096, "page": 1, "batch": 1, "pages": 5000}
    table = drawn(small(**full), "block_table", 3)
    assert len(table.unique()) == 4096 and int(table.min()) >= 0 and int(table.max()) < 5000
    assert not torch.equal(table, drawn(small(**full), "block_table", 4))
    spec = TensorSpec(name="i", shape="n", dtype="int64", below="12", least="2", distinct=True)
    from opforge.runner.worker.inputs import _whole

    values = _whole((25,), spec, {}, torch.Generator().manual_seed(1))
    counts = values.bincount(minlength=12)
    assert counts[:2].tolist() == [0, 0] and sorted(set(counts[2:].tolist())) == [2, 3]


def test_lengths_of_a_large_cache_are_full_and_of_a_small_one_any():
    """A workload's bytes are those of its sizes; cases have lengths from 0 on."""
    assert drawn(small(max_pages=4096, batch=3), "lengths", 1).tolist() == [4096] * 3
    lengths = [length for seed in range(8) for length in drawn(small(), "lengths", seed).tolist()]
    assert set(lengths) == set(range(7))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"least": "1"}, "write below="),
        ({"distinct": True}, "write below="),
        ({"below": "pages", "least": "pages"}, "no whole number less than below"),
        ({"below": "pages", "least": "0.5"}, "no whole number less than below"),
    ],
)
def test_ranges_that_are_none_are_refused(spec, words):
    import dataclasses

    *others, table, lengths = OPERATOR.inputs
    plain = TensorSpec(name="block_table", shape=table.shape, dtype="int32", **spec)
    wrong = dataclasses.replace(OPERATOR, inputs=(*others, plain, lengths), follows=None)
    with pytest.raises(UsageError, match=words):
        check_definition(wrong)
        check_calls(wrong)


def test_parts_fill_rounds_of_programs_and_keep_their_keys():
    """A program more than a device runs at once is a round of its own: b8_n8192 had 576 of 528."""
    from opforge.device.triton.attention_decode import LEAST, LONG, MOST, programs_at_once, splits_for

    draw = random.Random(1)
    for _ in range(200):
        keys, programs, at_once = draw.randrange(1, 200000), draw.randrange(1, 2000), draw.choice((132, 264, 528))
        splits = splits_for(keys, programs, at_once)
        assert 1 <= splits <= MOST and (splits == 1 or (splits - 1) * LEAST < keys)
        # no second round of short parts
        assert splits == 1 or programs * splits <= at_once or keys >= splits * LONG
        if keys >= MOST * LEAST and programs * MOST >= at_once:
            assert programs * splits / at_once / -(-programs * splits // at_once) >= 0.9
    assert splits_for(8192, 64, 132 * programs_at_once(16, 128, 128, 4)) == 8
    assert splits_for(8192, 32, 132 * programs_at_once(16, 256, 128, 4)) == 8


def bounds_of(q, k, v, table, counts):
    scalars = OPERATOR.scalar_values({})
    named_inputs = dict(zip((spec.name for spec in OPERATOR.inputs), (q, k, v, table, counts), strict=True))
    out, lse = OPERATOR.reference(q, k, v, table, counts, **scalars)
    return OPERATOR.tolerance.errors(named_inputs, {"out": out, "lse": lse}, scalars, "float32")


def test_where_a_score_leaves_float32_anything_that_is_not_finite_is_right_and_nowhere_else():
    """An honest kernel makes inf - inf of it; the other sequence has no such excuse, nor has a key that nobody sees."""
    most = torch.finfo(torch.float32).max
    q, k, v, table, counts = given([5, 5])
    quiet = bounds_of(q, k, v, table, counts)
    assert all(bool((quiet[name].reached < most).all()) for name in ("out", "lse"))
    q[0], k[table[0, 0], 2] = 1e25, 1e25
    k[table[1, 0], 6] = 1e30  # behind the second sequence's last key
    loud = bounds_of(q, k, v, table, counts)
    for name in ("out", "lse"):
        assert bool((loud[name].reached[0] > most).all()), name
        assert bool((loud[name].reached[1] < most).all()), name


def test_pages_that_return_let_errors_add_up_and_others_do_not():
    """A sequence of one page 64 times: float32 sums of its returning terms are rounded to one side, 8 times as far."""
    q, k, v, table, counts = given([64 * PAGE], room=0)
    alone = torch.full_like(table, int(table[0, 0]))
    # bringing the sums of splits together has roundings of its own, a tenth of the whole
    assert 1.0 <= _beyond_plain(q, k, v, table, counts) < 1.25
    assert 8.0 <= _beyond_plain(q, k, v, alone, counts) < 10.0


def _beyond_plain(q, k, v, table, counts):
    """How far the bound of a sequence is above that of plain attention over its keys, gathered: the median."""
    gathered = [cache_of(pages, table[0], int(counts[0])) for pages in (k, v)]
    scalars = PLAIN.scalar_values({"causal": True, "alignment": "bottom_right"})
    out, lse = PLAIN.reference(q, *gathered, *(None,) * 5, **scalars)
    inputs = dict(zip(("q", "k", "v"), (q, *gathered), strict=True))
    plain = PLAIN.tolerance.errors(inputs, {"out": out, "lse": lse}, scalars, "float32")["out"]
    return float((bounds_of(q, k, v, table, counts)["out"].largest / plain.largest).median())
