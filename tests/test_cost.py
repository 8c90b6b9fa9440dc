"""What a call must do at the least, and what a fused operator does not have to: from the definition, shown beside the
time.
"""

import dataclasses

import pytest

from opforge.core.evidence.record import from_json, to_json
from opforge.registry import load
from opforge.report.markdown_tables import markdown
from opforge.report.tabular import csv_text, rows
from simulated import record

ROWS = {"rows": (64, 2), "n": 96, "k": 32}
RESULT = 64 * 2 * 96 * 2
"""Bytes of the result in bfloat16."""


@pytest.mark.parametrize(
    ("operator", "scalars", "saved"),
    [
        ("linear", {"activation": "none"}, 0),
        ("linear", {"activation": "silu"}, 2 * RESULT),
        ("linear_add", {"activation": "none"}, 2 * RESULT),
        ("linear_add", {"activation": "relu"}, 4 * RESULT),
        ("linear_fp8", {"activation": "gelu"}, 4 * RESULT),
    ],
)
def test_a_fused_pass_saves_an_intermediate_written_and_read(operator, scalars, saved):
    """Without an activation a linear layer saves nothing over a library's: a figure that did not depend on it would be
    a boast.
    """
    assert load().operator(operator).cost(ROWS, "bfloat16", scalars).bytes_saved == saved


def test_what_is_not_read_is_no_traffic():
    """beta = 0 forgets c; counted as read, it would lift the roof's share."""
    operator, axes = load().operator("batched_matmul"), {"batch": (3,), "m": 5, "n": 7, "k": 11}
    forgotten, read = (operator.cost(axes, "float32", {"alpha": 1.0, "beta": beta}) for beta in (0.0, 1.0))
    assert read.bytes_read - forgotten.bytes_read == 3 * 5 * 7 * 4
    assert (forgotten.bytes_saved, read.bytes_saved) == (0, 2 * 3 * 5 * 7 * 4)


def test_saved_bytes_stand_beside_the_time():
    """In the terminal's table, in Markdown and as a column of the CSV; a table of operators that save none has no empty
    column.
    """
    plain = record()
    fused = dataclasses.replace(record(), cost=dataclasses.replace(plain.cost, bytes_saved=64 << 20))
    assert "bytes saved" not in rows([plain]).columns
    grid = rows([fused])
    assert grid.columns[-1] == "bytes saved" and grid.rows[0].cells[-1] == "64.0 MiB"
    assert "64.0 MiB less than pass by pass" in markdown([fused])
    assert "67108864" in csv_text([fused])


def test_records_from_before_are_read():
    """They know of no saved bytes: nothing was saved that anybody counted."""
    data = to_json(record())
    del data["cost"]["bytes_saved"]
    assert from_json(data).cost.bytes_saved == 0
