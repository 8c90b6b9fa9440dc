"""Many calls of one kernel: memory that is never given back, and answers that change after a while."""

import pytest

from opforge.core.evidence.verdict import Broken, Mismatch, Pass
from opforge.registry import load
from opforge.runner import Isolated
from opforge.verify import EXACT, CaseCache, verify
from opforge.verify.extra.soak import STATEMENT, soaked

pytestmark = pytest.mark.own_servers

SOURCES = {
    "right": "def run(x, bias):\n    return x + bias\n",
    "leaks": "KEPT = []\n\n\ndef run(x, bias):\n    KEPT.append(bytearray(b'1' * 4096))\n    return x + bias\n",
    "drifts": "CALLS = []\n\n\ndef run(x, bias):\n    CALLS.append(1)\n    return x + bias * (1 + (len(CALLS) > 700))"
    "\n",
}


@pytest.mark.campaign
def test_a_leak_and_a_drift_are_found_and_the_right_kernel_is_not(guest):
    registry = load([guest(**SOURCES)])
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=registry.operator("guest_add"), host=host, device="cpu")
        found = {}
        for name in SOURCES:
            implementation = registry.implementation("guest_add", f"torch_{name}")
            proof = verify(bench, implementation, "float32", effort=EXACT)
            assert isinstance(proof, Pass), proof
            found[name] = soaked(bench, implementation, "float32", proof, calls=2000)
        bench.close()
    assert isinstance(found["right"], Pass) and found["right"].states(STATEMENT) is True, found["right"]
    assert isinstance(found["leaks"], Broken) and "memory leaks" in found["leaks"].reason, found["leaks"]
    assert isinstance(found["drifts"], Mismatch), found["drifts"]
