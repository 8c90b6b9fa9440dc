"""An operator's implementations and dtypes as pytest parameters, each verified as `opforge verify` would."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opforge.core.evidence.verdict import REFUSED, Unsupported, Verdict
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from opforge.registry import Registry
    from opforge.runner import Host
    from opforge.verify import CaseCache


@dataclass(frozen=True, kw_only=True)
class Situation:
    """One implementation in one dtype on one device, to be verified."""

    operator: str
    implementation: str
    dtype: str
    device: str
    home: str | None
    quick: bool

    def __str__(self) -> str:
        return f"{self.operator}-{self.implementation}-{self.dtype}"

    def verify(self) -> Verdict:
        """The verdict, hidden cases included."""
        from opforge.verify import DEFAULT, QUICK, verify

        bench = _bench(self.operator, self.device, self.home)
        return verify(
            bench,
            bench.registry.implementation(self.operator, self.implementation),
            self.dtype,
            effort=QUICK if self.quick else DEFAULT,
        )

    def check(self) -> Verdict:
        """The verdict, if it is a Pass. A failure fails the test with its evidence; what cannot run here skips it with
        the reason.
        """
        import pytest

        verdict = self.verify()
        if isinstance(verdict, Unsupported):
            pytest.skip(verdict.reason)
        if isinstance(verdict, REFUSED):
            from opforge.report import describe

            pytest.fail(f"{self}: {describe(verdict)}", pytrace=False)
        return verdict


def situations(
    operator: str,
    *,
    home: str | Path | None = None,
    backends: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    device: str = "cpu",
    quick: bool = True,
) -> tuple[Situation, ...]:
    """Every implementation × dtype of an operator, read without importing a toolchain.

    home       the folder of operator folders that holds it, beside the package's own
    backends   only these; default all, torch.compile left out because it compiles for every shape
    dtypes     only these of the operator's dtypes
    quick      a selection of the cases, as `opforge verify --quick`; False runs all

    Raises UsageError when nothing is left.
    """
    registry = _registry(None if home is None else str(home))
    chosen = tuple(
        Situation(
            operator=operator,
            implementation=item.name,
            dtype=dtype,
            device=device,
            home=None if home is None else str(home),
            quick=quick,
        )
        for item in registry.implementations(operator)
        if (item.backend in backends if backends else item.backend != "compile")
        for dtype in registry.operator(operator).dtypes
        if not dtypes or dtype in dtypes
    )
    if not chosen:
        raise UsageError(
            f"{operator} has no implementation for backends {list(backends)} and dtypes {list(dtypes)}. See: opforge "
            f"show {operator}"
        )
    return chosen


def parametrize(operator: str, **options: Any) -> Any:
    """A pytest decorator that gives the test a `situation` for every implementation × dtype; options as
    `situations`.
    """
    import pytest

    return pytest.mark.parametrize("situation", situations(operator, **options), ids=str)


@cache
def _registry(home: str | None) -> Registry:
    from opforge.registry import load

    return load([Path(home)] if home is not None else [])


@cache
def _host() -> Host:
    from opforge.runner import Isolated

    host = Isolated()
    atexit.register(host.close)
    return host


@cache
def _bench(operator: str, device: str, home: str | None) -> CaseCache:
    """Cases prepared once for all implementations, and the operator's own bound checked before it judges anything."""
    from opforge.trial.adequacy_gate import ensure_adequate
    from opforge.verify import CaseCache

    registry = _registry(home)
    ensure_adequate(registry.operator(operator))
    bench = CaseCache(registry=registry, operator=registry.operator(operator), host=_host(), device=device)
    atexit.register(bench.close)
    return bench
