"""What a patched model is asked before it is deployed: each item can fail, and says by what."""

from __future__ import annotations

import itertools

import pytest
import torch

from opforge.model.checklist import CALLS, LEAK_PER_CALL, Limits, Outcome, checklist, long_run, page, summary

pytestmark = pytest.mark.usefixtures("front_door")


class Layer(torch.nn.Module):
    """`fault`: what is planted in it."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.norm, self.linear, self.fault, self.inside = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), fault, 0

    def forward(self, x):
        y = torch.nn.functional.gelu(self.linear(self.norm(x)))
        if self.fault == "nan":
            return (y - y.detach().amax()).log() if y.dtype == torch.float32 else y
        if self.fault == "threads":
            self.inside += 1
            for _ in range(200):
                y = y + 0.0
            crowded = self.inside > 1
            self.inside -= 1
            return y * 2 if crowded else y
        return y


def asked(fault: str = "", **limits):
    torch.manual_seed(0)
    return {item.number: item for item in checklist(Layer(fault), torch.randn(4, 8), Limits(**limits), budget_s=0.0)}


def test_every_item_has_its_number_its_outcome_and_its_evidence():
    """Too few calls show nothing, and what is not shown has not passed."""
    items = asked(calls=20, latency_s=1e-9, memory_bytes=1 << 20)
    for number in ("7.2.1.2.1", "7.2.1.2.3", "7.2.1.2.4", "7.2.1.3.3", "7.2.1.3.4", "7.2.1.4.1", "7.2.1.4.4"):
        assert items[number].outcome is Outcome.PASS, items[number]
    assert items["7.2.1.1.3"].outcome is Outcome.PASS
    assert items["7.2.1.1.2"].outcome is Outcome.FAIL
    assert items["7.2.1.3.1"].outcome is items["7.2.1.3.2"].outcome is Outcome.FAIL
    assert f"--calls {CALLS}" in items["7.2.1.3.2"].evidence
    assert {item.outcome for number, item in items.items() if number.startswith("5.2A")} == {Outcome.NOT_APPLICABLE}
    whole = tuple(items.values())
    assert all(item.number in page("Layer", whole) for item in whole)
    assert "fail" in summary(whole)


@pytest.mark.campaign
@pytest.mark.parametrize(("fault", "number"), [("nan", "7.2.1.2.4"), ("threads", "7.2.1.3.4")])
def test_a_planted_fault_fails_its_item(fault, number):
    assert asked(fault, calls=20)[number].outcome is Outcome.FAIL


def test_a_long_run_sees_what_is_kept_and_what_becomes_slower():
    """Eight kilobytes a call, and calls that take twice as long at the end."""
    kept: list[bytearray] = []
    ticks = itertools.count()
    taken = itertools.chain([1.0] * 3000, itertools.repeat(2.0))
    now = [0.0]

    def clock() -> float:
        # each second reading ends a call
        if next(ticks) % 2:
            now[0] += next(taken)
        return now[0]

    first, last, grown = long_run(lambda: kept.append(bytearray(8192)), 5000, clock)
    assert (first, last) == (1.0, 2.0)
    assert grown > LEAK_PER_CALL * 5000
    assert grown > 4 << 20
    *_, still = long_run(lambda: None, 5000, clock)
    assert still < 4 << 20
