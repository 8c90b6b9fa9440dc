"""Who is searched, and what is searched beside what: scripts/tune_missing.py."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from opforge.registry import load

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import tune_missing
from tune_missing import Search

HERE, ELSEWHERE = "attention_bert_large", "vocabulary_llama3"


def on_record(*times):
    """A store of times of softmax: (implementation, workload, dtype, seconds) each."""
    entries = [
        SimpleNamespace(implementation=name, workload=workload, dtype=dtype, median_s=seconds, suspect=None)
        for name, workload, dtype, seconds in times
    ]
    return SimpleNamespace(series=lambda *of, **asked: entries)


@pytest.mark.parametrize(
    ("times", "searched"),
    [
        # twice as slow here: not searched, whatever it is elsewhere
        ([(HERE, "bfloat16", 2.0), (ELSEWHERE, "bfloat16", 1.0)], False),
        ([(HERE, "bfloat16", 1.1), (ELSEWHERE, "bfloat16", 9.0)], True),
        # no time in this dtype: that in another tells, and where there is none those of other workloads
        ([(HERE, "float32", 2.0)], False),
        ([(HERE, "float32", 1.1), (ELSEWHERE, "bfloat16", 9.0)], True),
        ([(ELSEWHERE, "bfloat16", 1.1)], True),
        ([(ELSEWHERE, "bfloat16", 9.0), (ELSEWHERE, "float32", 9.0)], False),
        # one slow point of a search says nothing of its best
        ([(HERE, "bfloat16", 2.0), (HERE, "bfloat16", 1.0)], True),
        # never timed: it may be the best
        ([], True),
    ],
)
def test_who_is_slow_on_record_is_left_out_and_who_is_not_on_record_is_not(times, searched):
    """An interrupted search leaves times of the few kernels that it began with."""
    fastest = [
        ("cuda_onchip", workload, dtype, 1.0) for workload in (HERE, ELSEWHERE) for dtype in ("bfloat16", "float32")
    ]
    store = on_record(*fastest, *(("triton_onepass", *time) for time in times))
    found = tune_missing.near(store, load([]), Search("softmax", "bfloat16", (HERE,)), "nvidia-h200", 1.2)
    assert "cuda_onchip" in found and ("triton_onepass" in found) == searched


def test_searches_beside_each_other_fit_the_device():
    """What moves little leaves room for others; attention takes what its scores do, and nobody more than there is."""
    registry, most = load([]), 80 * 10**9
    small = tune_missing.room(registry, Search("softmax", "bfloat16", (HERE,)), most)
    large = tune_missing.room(registry, Search("bias_add", "float32", ("seed_high_rank",)), most)
    attention = tune_missing.room(registry, Search("attention", "bfloat16", ("b1_h16_n16384_d128",)), most)
    assert small < large <= most == attention
