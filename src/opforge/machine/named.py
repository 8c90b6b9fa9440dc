"""A device by its name, or by the file that describes it: for what needs no such device on the desk."""

from __future__ import annotations

from pathlib import Path

from opforge.core.definition.device import DeviceSpec
from opforge.core.language.errors import UsageError
from opforge.machine.catalogue import descriptor, descriptors

KINDS = ("cuda", "npu", "cpu", "xpu", "mps")
"""Device types that torch knows, or a vendor's package registers."""

NEVER_NEGATIVE = (
    "threads_per_block",
    "threads_per_unit",
    "units",
    "vector_bytes",
    "registers_per_unit",
    "shared_bytes_per_unit",
    "shared_bytes_per_block",
    "blocks_per_unit",
    "cache_bytes",
    "memory_bytes",
    "nominal_bytes_per_s",
)


def device_named(text: str) -> DeviceSpec:
    """The DeviceSpec of a file ("my_chip.json"), of a name ("nvidia-h200") or of the part of one that is enough to tell
    it ("h200"). Raises UsageError for none, or several.
    """
    if text.endswith(".json"):
        file = Path(text)
        if not file.is_file():
            raise UsageError(f"There is no file {text}. Start one from a known device: opforge device new {file.stem}")
        spec = descriptor(file)
        if wrong := problems(spec):
            raise UsageError(f"{text} describes no device: {'; '.join(wrong)}. See: opforge device check {text}")
        return spec
    known = descriptors()
    if text in known:
        return known[text]
    matching = [name for name in known if text and text.lower() in name]
    if len(matching) == 1:
        return known[matching[0]]
    which = f"Several are called so: {', '.join(matching)}" if matching else f"Known here: {', '.join(sorted(known))}"
    raise UsageError(f"No device {text!r} is described. {which}. Or give a file: opforge device new my-chip")


def described(text: str) -> bool:
    """Whether a word means a description, a file or a name of one, and no torch device type ("cuda")."""
    return text not in KINDS and (text.endswith(".json") or any(text.lower() in name for name in descriptors()))


def problems(spec: DeviceSpec) -> list[str]:
    """What a descriptor says that cannot be, each in words; 0 stands for unknown where a number may be."""
    wrong = ["warp_size is below 1"] if spec.warp_size < 1 else []
    wrong += [f"{name} is negative" for name in NEVER_NEGATIVE if getattr(spec, name) < 0]
    if spec.shared_bytes_per_unit < spec.shared_bytes_per_block:
        wrong.append("a block has more shared memory (shared_bytes_per_block) than the unit it runs on")
    if spec.kind not in KINDS:
        wrong.append(f"kind is {spec.kind!r}; one of {', '.join(KINDS)} expected")
    if not spec.name or spec.name != spec.name.lower() or " " in spec.name:
        wrong.append("name must be in lower case, without spaces: choices are kept in files of that name")
    wrong += [f"the rate of {name} is {rate}" for name, rate in spec.nominal_flops_per_s.items() if not rate > 0]
    if not spec.target:
        wrong.append("target is empty: what compilers call the device, as sm_90a")
    if not spec.source:
        wrong.append("source is empty: where the numbers come from")
    return wrong
