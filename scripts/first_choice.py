"""What a first call of an operator waits for: the choice of an implementation, in a process that has made none.

python scripts/first_choice.py                        softmax, layernorm, matmul on a simulated NVIDIA H200, by the
evidence that comes with the package, with a store of 100,000 records of twenty operators and with none
python scripts/first_choice.py softmax --records 1000000

The exit code is 1 where what is read of records and made of them (beliefs, model, pick) takes longer than 50 ms. The
rest is the reading of the operator's kernel files, which has nothing to do with history.

Each figure is of processes of their own that have imported torch and opforge.ops and know the operator: the least of
`--turns`, in CPU time of the process (others on the machine lengthen a clock's time). No GPU is needed: the device is a
descriptor, and what is chosen is not run. Printed is what the choice is made of: which sources there are (their
hashes), what is believed (the package's facts and the store's), the model over these times, and the pick, for a call
that was timed and for one far from all times.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
MOST_S = 0.05
OPERATORS = ("softmax", "layernorm", "matmul")
CALLS: dict[str, dict[str, dict[str, Any]]] = {
    "softmax": {"timed": {"lead": (4096,), "cols": 16384}, "far": {"lead": (3,), "cols": 3001}},
    "layernorm": {"timed": {"lead": (4096,), "cols": 16384}, "far": {"lead": (3,), "cols": 3001}},
    "matmul": {"timed": {"m": 8192, "n": 8192, "k": 8192}, "far": {"m": 77, "n": 301, "k": 129}},
}
PARTS = ("sources", "beliefs", "model", "pick")
HISTORY = 20
"""Operators that the records are of."""


def filled(where: Path, records: int, device: str) -> None:
    """A store of so many records of twenty operators, a tenth of them of the sources as they are now. One record of
    each implementation is made; the others are copies of its row with another id, day, size, config and source.
    """
    from opforge.core.evidence.record import to_json
    from opforge.dispatch.installation import installation_of
    from opforge.registry import load
    from opforge.store import Store

    registry = load()
    names = [*OPERATORS, *(name for name in registry.names() if name not in OPERATORS)][:HISTORY]
    with Store.open(where):
        pass
    with closing(sqlite3.connect(where)) as database, database:
        for name in names:
            items, here = registry.implementations(name), installation_of(registry, name, device)
            axes = json.dumps(dict.fromkeys(registry.operator(name).axes, 2))
            each = records // len(names) // len(items) + 1
            for item in items:
                database.execute(
                    _COPIES,
                    {
                        "count": each,
                        "operator": name,
                        "implementation": item.name,
                        "backend": item.backend,
                        "device": device,
                        "axes": axes,
                        "config": json.dumps(to_json(item.default)),
                        "source": here.sources[item.name],
                        "code": here.code_of(item.name),
                    },
                )


_COPIES = """
WITH RECURSIVE copy(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM copy WHERE n + 1 < :count)
INSERT INTO records (id, created_at, operator, implementation, workload, dtype, device, fingerprint, run, verdict,
  median_s, low_s, high_s, suspect, backend, config, axes, scalars, source_sha256, code_sha256, versions, cache, steady,
  trial, layout, terms, sha256, body)
SELECT lower(hex(randomblob(16))), printf('2026-%02d-%02dT%02d:00:00.000000+00:00', 1 + n % 9, 1 + n % 28, n % 24),
  :operator, :implementation, 'w' || (n % 13),
  CASE n % 3 WHEN 0 THEN 'bfloat16' WHEN 1 THEN 'float16' ELSE 'float32' END,
  :device, 'fingerprint', 'run', 'Pass', 1e-5 * (1 + n % 7), 1e-5, 1e-4, 0, :backend,
  :config, replace(:axes, '2', 1 + n % 13), '{}',
  CASE WHEN n % 10 = 0 THEN :source ELSE printf('%064d', n % 40) END,
  CASE WHEN n % 10 = 0 THEN :code ELSE printf('%064x', n % 40) END,
  '{}', 'cold', 1, 0, 'contiguous', 'call', 'unread', '{}'
FROM copy
"""


def child(operator: str, axes: dict[str, Any], device: str) -> dict[str, float]:
    """CPU seconds of the parts of one choice, in this process."""
    import torch  # noqa: F401

    from opforge import ops
    from opforge.backends import Native, backend
    from opforge.dispatch import beliefs, choose
    from opforge.machine import descriptors
    from opforge.machine.versions import versions

    spec = descriptors()[device]
    choose.detect = lambda name: spec
    # toolchains, and what of them is installed, are no matter of an operator
    versions()
    backend("torch")
    found, chooser = getattr(ops, operator).operator, getattr(ops, operator).chooser
    modes = dict.fromkeys(("torch", "triton", "cuda", "tilelang", "cpp"), Native(how="simulated"))
    chooser._modes.update({(name, "cuda"): mode for name, mode in modes.items()})
    taken = dict.fromkeys(PARTS, 0.0)
    for part, (owner, name) in zip(
        PARTS,
        ((choose, "installation_of"), (choose, "look"), (beliefs.OperatorBeliefs, "model"), (choose, "pick")),
        strict=True,
    ):
        setattr(owner, name, clocked(getattr(owner, name), part, taken))
    began = time.process_time()
    chooser.choose(found, axes, "bfloat16", found.scalar_values({}), "cuda", ["contiguous"] * len(found.inputs))
    return {**taken, "choice": time.process_time() - began}


def clocked(function: Callable[..., Any], part: str, taken: dict[str, float]) -> Callable[..., Any]:
    """The same function, whose CPU seconds are added to a part's."""

    def called(*given: Any, **named: Any) -> Any:
        began = time.process_time()
        try:
            return function(*given, **named)
        finally:
            taken[part] += time.process_time() - began

    return called


def least(operator: str, call: str, store: Path, device: str, turns: int) -> dict[str, float]:
    """Of processes of their own the one that took least."""
    command = [sys.executable, __file__, "--child", json.dumps([operator, call, device])]
    runs = []
    for _ in range(turns):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env={**os.environ, "OPFORGE_STORE": str(store)}
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        runs.append(json.loads(done.stdout))
    return min(runs, key=lambda taken: taken["choice"])


def main() -> int:
    """What the words above say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", metavar="operator", help=f"of {', '.join(OPERATORS)}")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="nvidia-h200", help="the descriptor of the simulated device")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if strange := set(given.operators) - set(OPERATORS):
        parser.error(f"no call of {', '.join(sorted(strange))} is known; choose from {', '.join(OPERATORS)}")
    if given.child:
        operator, call, device = json.loads(given.child)
        axes = {name: tuple(size) if isinstance(size, list) else size for name, size in CALLS[operator][call].items()}
        print(json.dumps(child(operator, axes, device)))
        return 0
    longest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        full, empty = Path(folder) / "full.sqlite", Path(folder) / "empty.sqlite"
        filled(full, given.records, given.device)
        print(f"{'CPU time in ms':44}{'choice':>8}" + "".join(f"{part:>9}" for part in PARTS))
        for operator in given.operators or OPERATORS:
            for call in ("timed", "far"):
                for store, words in ((empty, "no records"), (full, f"{given.records:,} records")):
                    taken = least(operator, call, store, given.device, given.turns)
                    longest = max(longest, sum(taken[part] for part in PARTS[1:]))
                    parts = "".join(f"{taken[part] * 1e3:9.1f}" for part in PARTS)
                    print(f"{f'{operator}, a {call} call, {words}':44}{taken['choice'] * 1e3:8.1f}{parts}", flush=True)
    print(f"beliefs, model and pick: at most {longest * 1e3:.1f} ms; {MOST_S * 1e3:.0f} ms are allowed")
    return int(longest > MOST_S)


if __name__ == "__main__":
    sys.exit(main())
