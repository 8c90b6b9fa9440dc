"""A conformance kit for any custom operator or function on tensors, wherever it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """What was found: name of the check → None if it holds, else one sentence."""

    found: Mapping[str, str | None]

    @property
    def conforms(self) -> bool:
        """Whether every check holds."""
        return all(failure is None for failure in self.found.values())

    def __str__(self) -> str:
        return "\n".join(
            f"{'held' if words is None else 'broken':<7} {name}{'' if words is None else f': {words}'}"
            for name, words in self.found.items()
        )

    def require(self) -> None:
        """Raises AssertionError that lists what is broken."""
        if not self.conforms:
            raise AssertionError(f"the operator does not conform:\n{self}")


def conformance(
    op: Any,
    *arguments: Any,
    reference: Callable[..., Any] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    compiler: str = "inductor",
) -> Conformance:
    """Check `op(*arguments)`: tensors and plain values, tensors small.

    op          a torch.library custom operator, an OpOverload, or any function of tensors
    reference   the same in plain torch; called in float64, its values (and, for tensors that require a gradient, its
                gradients) must agree within `rtol` and `atol`
    compiler    the backend for torch.compile(fullgraph=True)

    Checks: inputs unmodified, outputs not aliased, same bits on repeat, not contiguous inputs, opcheck (custom
    operators alone), torch.compile, and agreement with the reference.
    """
    checks: dict[str, Callable[[], str | None]] = {
        "inputs unmodified": lambda: _unmodified(op, arguments),
        "outputs not aliased": lambda: _not_aliased(op, arguments),
        "deterministic": lambda: _deterministic(op, arguments),
        "inputs not contiguous": lambda: _strided(op, arguments, rtol, atol),
        "compiles": lambda: _compiles(op, arguments, rtol, atol, compiler),
    }
    if _overload(op) is not None:
        checks["opcheck"] = lambda: _opcheck(op, arguments)
    if reference is not None:
        checks["values"] = lambda: _agrees(op, arguments, reference, rtol, atol)
        checks["gradients"] = lambda: _gradients(op, arguments, reference, rtol, atol)
    found: dict[str, str | None] = {}
    for name, check in checks.items():
        try:
            found[name] = check()
        # the operator under test may raise anything, and whatever it is, the check does not hold
        except Exception as error:  # noqa: BLE001
            found[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return Conformance(found=found)


def _outputs(returned: Any) -> tuple[Any, ...]:
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def _tensors(values: tuple[Any, ...]) -> list[Any]:
    import torch

    return [value for value in values if isinstance(value, torch.Tensor)]


def _detached(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    import torch

    return tuple(value.detach().clone() if isinstance(value, torch.Tensor) else value for value in arguments)


def _unmodified(op: Any, arguments: tuple[Any, ...]) -> str | None:
    import torch

    given = _detached(arguments)
    kept = _detached(given)
    op(*given)
    for place, (now, before) in enumerate(zip(given, kept, strict=True)):
        if isinstance(now, torch.Tensor) and not torch.equal(now.nan_to_num(), before.nan_to_num()):
            return f"argument {place} was modified"
    return None


def _not_aliased(op: Any, arguments: tuple[Any, ...]) -> str | None:
    given = _detached(arguments)
    own = {tensor.untyped_storage().data_ptr() for tensor in _tensors(given) if tensor.numel()}
    memory = [tensor.untyped_storage().data_ptr() for tensor in _tensors(_outputs(op(*given))) if tensor.numel()]
    if own & set(memory):
        return "an output lies in the memory of an input"
    return "two outputs share memory" if len(set(memory)) < len(memory) else None


def _deterministic(op: Any, arguments: tuple[Any, ...]) -> str | None:
    import torch

    first = [output.clone() for output in _tensors(_outputs(op(*_detached(arguments))))]
    for _ in range(3):
        again = _tensors(_outputs(op(*_detached(arguments))))
        if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, again, strict=True)):
            return "the same inputs gave other values"
    return None


def _strided(op: Any, arguments: tuple[Any, ...], rtol: float, atol: float) -> str | None:
    import torch

    given = _detached(arguments)
    strided = tuple(
        value.transpose(-1, -2).contiguous().transpose(-1, -2)
        if isinstance(value, torch.Tensor) and value.ndim >= 2
        else value.repeat_interleave(2)[::2]
        if isinstance(value, torch.Tensor) and value.ndim
        else value
        for value in given
    )
    return _differ(_outputs(op(*strided)), _outputs(op(*given)), rtol, atol, "on inputs that are not contiguous")


def _compiles(op: Any, arguments: tuple[Any, ...], rtol: float, atol: float, compiler: str) -> str | None:
    import torch

    torch.compiler.reset()
    given = _detached(arguments)
    compiled = torch.compile(lambda *values: op(*values), fullgraph=True, backend=compiler)
    return _differ(_outputs(compiled(*given)), _outputs(op(*given)), rtol, atol, "compiled")


def _overload(op: Any) -> Any:
    """The operator as torch.library knows it; None for an ordinary function."""
    from opforge.backends.torch_private import operator_types

    return op if isinstance(op, operator_types) else None


def _opcheck(op: Any, arguments: tuple[Any, ...]) -> str | None:
    import torch

    from opforge.backends.torch_private import packet_type

    chosen = op.default if isinstance(op, packet_type) else op
    results = torch.library.opcheck(chosen, arguments, raise_exception=False)
    failed = {name: outcome for name, outcome in results.items() if outcome != "SUCCESS"}
    return "; ".join(f"{name}: {' '.join(str(outcome).split())[:200]}" for name, outcome in failed.items()) or None


def _wide(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    import torch

    return tuple(
        value.detach().double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in arguments
    )


def _agrees(op: Any, arguments: tuple[Any, ...], reference: Callable[..., Any], rtol: float, atol: float) -> str | None:
    return _differ(
        _outputs(op(*_detached(arguments))), _outputs(reference(*_wide(arguments))), rtol, atol, "against the reference"
    )


def _gradients(
    op: Any, arguments: tuple[Any, ...], reference: Callable[..., Any], rtol: float, atol: float
) -> str | None:
    import torch

    places = [place for place, value in enumerate(arguments) if isinstance(value, torch.Tensor) and value.requires_grad]
    if not places:
        return None

    def of(function: Callable[..., Any], values: tuple[Any, ...]) -> tuple[Any, ...]:
        given = [
            value.clone().requires_grad_(place in places)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for place, value in enumerate(values)
        ]
        total = sum(
            (output * torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype).reshape(output.shape)).sum()
            for output in _outputs(function(*given))
        )
        gradients: tuple[Any, ...] = torch.autograd.grad(total, [given[place] for place in places])
        return gradients

    return _differ(
        of(op, _detached(arguments)), of(reference, _wide(arguments)), rtol, atol, "gradients against the reference"
    )


def _differ(actual: tuple[Any, ...], expected: tuple[Any, ...], rtol: float, atol: float, what: str) -> str | None:
    import torch

    if len(actual) != len(expected):
        return f"{what}: {len(actual)} outputs, expected {len(expected)}"
    for place, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(a, torch.Tensor):
            continue
        if a.shape != b.shape:
            return f"{what}: output {place} has shape {tuple(a.shape)}, expected {tuple(b.shape)}"
        close = torch.isclose(a.detach().double(), b.detach().double(), rtol=rtol, atol=atol, equal_nan=True)
        if not bool(close.all()):
            index = tuple(int(i) for i in (~close).nonzero()[0])
            return (
                f"{what}: output {place}{list(index)} is {float(a[index]):.6g}, expected {float(b[index]):.6g} "
                f"within {atol:g} + {rtol:g} of it"
            )
    return None
