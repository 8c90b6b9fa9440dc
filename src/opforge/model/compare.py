"""A model end to end, as it is and patched, eager and compiled: times in turns, peak memory, and errors.

Every variant is the same model with the same parameters: twins share them. What is compared is sampled in rounds in
which each variant is called once, in random order, so that what the machine does falls on all of them alike.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from opforge.core.evidence.comparison import Comparison
from opforge.core.language.errors import EnvironmentLacks, UsageError, unknown
from opforge.model.agreement import Inputs, forward, training_step
from opforge.model.fusing import backend
from opforge.model.patch import patch
from opforge.model.receipt import Receipt
from opforge.timing import Rule, compare as compare_pairs

VARIANTS = ("eager", "compile", "opforge", "opforge+compile", "max-autotune", "liger")
"""What may take part; the last two are asked for by name."""
USUAL = VARIANTS[:4]
FORWARD, TRAINING = "forward", "training step"
FEWEST, MOST = 5, 240
"""Rounds: so many even where one takes longer than the budget, and no more however short it is."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A model that takes part.

    model   what is called
    plain   the module beneath torch.compile, whose gradients are the parameters'
    """

    name: str
    model: Any
    plain: torch.nn.Module


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One variant in one phase.

    samples_s   seconds of each call, in the order of the rounds
    first_s     seconds of its first call: compilation, and choosing kernels
    peak_bytes  memory that a call has at most beside what lay there before it; None where it cannot be asked
    error       the largest difference from the same model in float64 (of one in 16 bits, in float32), as a share of
                that output's (or gradient's) largest element
    against     it against the first variant; None for that one
    """

    name: str
    phase: str
    samples_s: tuple[float, ...]
    first_s: float
    peak_bytes: int | None
    error: float
    against: Comparison | None

    @property
    def median_s(self) -> float:
        return median(self.samples_s)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """All variants, and what was patched.

    left_out   by variant: why it does not take part
    """

    measured: tuple[Measured, ...]
    receipt: Receipt
    left_out: Mapping[str, str]


def twin(model: torch.nn.Module) -> torch.nn.Module:
    """The same model again, on the same parameters and buffers."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    made: torch.nn.Module = copy.deepcopy(model, shared)  # type: ignore[arg-type]
    return made


def variants_of(
    model: torch.nn.Module, inputs: Inputs, names: Sequence[str] = USUAL, **options: Any
) -> tuple[list[Variant], Receipt, dict[str, str]]:
    """The variants by name, the receipt of the patched one, and why others are left out. Raises UsageError for a name
    that is not known; `options` are opforge.patch's.
    """
    for name in names:
        if name not in VARIANTS:
            raise unknown("variant", name, VARIANTS)
    patched = twin(model)
    patch(patched, example=inputs, **options)
    receipt: Receipt = patched.receipt()  # type: ignore[operator]
    made: list[Variant] = []
    left_out: dict[str, str] = {}
    for name in names:
        try:
            made.append(_variant(name, model, patched))
        except EnvironmentLacks as error:
            left_out[name] = str(error)
    return made, receipt, left_out


def _variant(name: str, model: torch.nn.Module, patched: torch.nn.Module) -> Variant:
    if name == "liger":
        return Variant(name=name, model=(plain := _liger(model)), plain=plain)
    plain = patched if name.startswith("opforge") else model
    if name in ("eager", "opforge"):
        return Variant(name=name, model=plain, plain=plain)
    mode = "max-autotune" if name == "max-autotune" else None
    # a twin of its own: torch.compile keeps what it compiled beside the code of forward
    plain = twin(plain)
    if name == "opforge+compile":
        return Variant(name=name, model=torch.compile(plain, backend=backend(), fullgraph=True), plain=plain)
    return Variant(name=name, model=torch.compile(plain, mode=mode, fullgraph=True), plain=plain)


def _liger(model: torch.nn.Module) -> torch.nn.Module:
    try:
        from liger_kernel.transformers import (  # type: ignore[import-not-found]
            _apply_liger_kernel_to_instance,
        )
    except ImportError:
        raise EnvironmentLacks("Liger is not installed. Install it with: pip install liger-kernel") from None
    if next(model.parameters()).device.type == "cpu":
        raise EnvironmentLacks("Liger's kernels are Triton's, and need a GPU. Compare on one: --device cuda")
    made = twin(model)
    _apply_liger_kernel_to_instance(model=made)
    return made


def compare_model(
    model: torch.nn.Module,
    example: Any,
    *,
    variants: Sequence[str] = USUAL,
    training: bool = True,
    budget_s: float = 10.0,
    band: float = 0.02,
    clock: Callable[[], float] = time.perf_counter,
    order: random.Random | None = None,
    tell: Callable[[str], None] = lambda words: None,
    **options: Any,
) -> Compared:
    """Time, memory and errors of the variants, the first of which is the baseline; by phases.

    budget_s   seconds of sampling for each phase
    band       ratios within 1/(1+band) .. 1+band are no difference
    options    as opforge.patch takes them
    """
    from opforge.model.agreement import inputs_of

    inputs = inputs_of(example)
    made, receipt, left_out = variants_of(model, inputs, variants, **options)
    if not made:
        raise UsageError(f"No variant can take part: {'; '.join(left_out.values())}")
    exact = _exact(model, inputs, training)
    found: list[Measured] = []
    for phase in (FORWARD, TRAINING) if training else (FORWARD,):
        calls = {one.name: call_of(one, inputs, phase) for one in made}
        first, errors, peaks = {}, {}, {}
        for one in made:
            tell(f"{phase}: {one.name}")
            begun = clock()
            calls[one.name]()
            first[one.name] = clock() - begun
            errors[one.name] = _error(one, inputs, phase, exact)
            peaks[one.name] = peak_bytes(calls[one.name], one.plain)
        samples = rounds(calls, budget_s, clock, order or random.Random())
        base = made[0].name
        for one in made:
            against = None
            if one.name != base:
                rule = Rule(band=band, looks=(len(samples[base]),))
                against = compare_pairs(one.name, base, samples[one.name], samples[base], rule=rule, workload=phase)
            found.append(
                Measured(
                    name=one.name,
                    phase=phase,
                    samples_s=tuple(samples[one.name]),
                    first_s=first[one.name],
                    peak_bytes=peaks[one.name],
                    error=errors[one.name],
                    against=against,
                )
            )
    return Compared(measured=tuple(found), receipt=receipt, left_out=left_out)


def call_of(variant: Variant, inputs: Inputs, phase: str) -> Callable[[], None]:
    """A call of a variant as a user makes it, until the device is done. Gradients go nowhere."""
    parameters = [one for one in variant.plain.parameters() if one.requires_grad]
    devices = {one.device.type for one in variant.plain.parameters()} - {"cpu"}

    def call() -> None:
        if phase == FORWARD:
            with torch.no_grad():
                variant.model(*inputs.given, **inputs.named)
        else:
            returned = variant.model(*inputs.given, **inputs.named)
            torch.autograd.grad(_scalar(returned), parameters, allow_unused=True)
        for device in devices:
            getattr(torch, device).synchronize()

    return call


def _scalar(returned: Any) -> Tensor:
    loss = getattr(returned, "loss", None)
    if isinstance(loss, Tensor):
        return loss.sum()
    from torch.utils import _pytree as pytree

    tensors = [one for one in pytree.tree_leaves(returned) if isinstance(one, Tensor) and one.requires_grad]
    if not tensors:
        raise UsageError("What the model returns wants no gradient, so that it has no training step: leave it out.")
    return torch.stack([one.float().sum() for one in tensors]).sum()


def rounds(
    calls: Mapping[str, Callable[[], None]], budget_s: float, clock: Callable[[], float], order: random.Random
) -> dict[str, list[float]]:
    """Seconds of each call; in each round each is called once, in an order of its own."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names, begun = list(calls), clock()
    for done in range(MOST):
        if done >= FEWEST and clock() - begun > budget_s:
            break
        order.shuffle(names)
        for name in names:
            start = clock()
            calls[name]()
            samples[name].append(clock() - start)
    return samples


def peak_bytes(call: Callable[[], None], model: torch.nn.Module) -> int | None:
    """The most memory that a call holds beside what lay there before; None on devices that cannot be asked."""
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        lay = torch.cuda.memory_allocated(device)
        call()
        return int(torch.cuda.max_memory_allocated(device) - lay)
    if device.type != "cpu":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def _exact(model: torch.nn.Module, inputs: Inputs, training: bool) -> Mapping[str, Mapping[str, Tensor]]:
    """Outputs and gradients of the model in float64, where its own code does not say otherwise; of a model in 16 bits
    in float32, which is as much wider.
    """
    narrow = any(one.element_size() < 4 for one in model.parameters() if one.is_floating_point())
    dtype = torch.float32 if narrow else torch.float64
    wide = copy.deepcopy(model).to(dtype)

    def widened(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    given = Inputs(given=tuple(map(widened, inputs.given)), named={k: widened(v) for k, v in inputs.named.items()})
    exact = {FORWARD: forward(wide, given)}
    if training:
        exact[TRAINING] = training_step(wide, given).gradients
    return exact


def _error(variant: Variant, inputs: Inputs, phase: str, exact: Mapping[str, Mapping[str, Tensor]]) -> float:
    if phase == FORWARD:
        found = forward(variant.model, inputs)
    else:
        step = training_step(variant.model, inputs)
        found = {name.removeprefix("_orig_mod."): one for name, one in step.gradients.items()}
    worst = 0.0
    for name, expected in exact[phase].items():
        if name not in found or not expected.numel():
            return float("inf")
        apart = (found[name].double() - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
        if not float(apart) <= worst:
            worst = float(apart)
    return worst
