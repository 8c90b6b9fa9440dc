"""Honest kernels that look odd: none of their verdicts may be anything but Pass."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from opforge.core.evidence.verdict import Pass
from opforge.registry import Home, Registry
from opforge.registry.discovery import PACKAGE_HOME, find_operator
from opforge.runner import Isolated
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import QUICK

EFFORT = replace(
    QUICK, hidden=4, elements=1 << 11, emulated_elements=1 << 9, own=False, seconds=0.3, repeats=3, shrink_s=0.0
)
DTYPES = ("float32", "float16", "bfloat16")

KERNELS = {
    place.name: tuple(sorted(path.stem for path in place.glob("torch_*.py")))
    for place in sorted((Path(__file__).parent / "honest_kernels").iterdir())
}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One verdict on an honest kernel."""

    operator: str
    kernel: str
    dtype: str
    passed: bool
    words: str
    seconds: float


def write_home(folder: Path) -> Registry:
    """The package's own definitions, with these kernels as their implementations."""
    for operator, kernels in KERNELS.items():
        place = folder / operator
        place.mkdir(parents=True)
        text = (find_operator(PACKAGE_HOME, operator) / "op.py").read_text(encoding="utf-8")
        text, count = re.subn(r"implementations=\([^)]*\)", f"implementations={kernels!r}", text)
        assert count == 1, operator
        # the operator of its gradients is not in this home
        text = re.sub(r"^    gradient=.*\n", "", text, flags=re.MULTILINE)
        (place / "op.py").write_text(text, encoding="utf-8")
        for name in kernels:
            shutil.copy(Path(__file__).parent / "honest_kernels" / operator / f"{name}.py", place)
    return Registry((Home(folder, "red team"),))


def judge_all(folder: Path, count: int) -> Iterator[Judged]:
    """At least `count` verdicts, in rounds over all kernels and dtypes, with other inputs and other hidden cases in
    each.
    """
    registry = write_home(folder)
    done = 0
    with Isolated() as host:
        while done < count:
            for operator, kernels in KERNELS.items():
                bench = CaseCache(registry=registry, operator=registry.operator(operator), host=host, device="cpu")
                try:
                    for name in kernels:
                        for dtype in DTYPES:
                            began = time.perf_counter()
                            verdict = verify(bench, registry.implementation(operator, name), dtype, effort=EFFORT)
                            done += 1
                            words = (
                                getattr(verdict, "reason", "")
                                or f"{getattr(verdict, 'cause', '')} "
                                f"{getattr(getattr(verdict, 'case', None), 'name', '')}"
                            )
                            passed = isinstance(verdict, Pass)
                            yield Judged(
                                operator=operator,
                                kernel=name,
                                dtype=dtype,
                                passed=passed,
                                words=f"{type(verdict).__name__} {words}",
                                seconds=time.perf_counter() - began,
                            )
                finally:
                    bench.close()
