"""The Environment of a record: which machine, which versions, in what state."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from opforge.core.evidence.record import FOLDER, Environment
from opforge.machine import accelerator, host_hardware
from opforge.machine.accelerator import command_output
from opforge.machine.versions import versions
from opforge.walls.environment import SETTINGS

PACKAGE = Path(__file__).resolve().parent.parent
THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "OMP_DYNAMIC",
    "KMP_AFFINITY",
    "GOMP_CPU_AFFINITY",
    "TVM_NUM_THREADS",
)
"""Variables that decide how many threads work, and where."""

INFLUENCES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TRITON_INTERPRET",
    "TRITON_DEBUG",
    "MALLOC_CHECK_",
    "MALLOC_PERTURB_",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "ASCEND_LAUNCH_BLOCKING",
    "HIP_LAUNCH_BLOCKING",
    "AMD_SERIALIZE_KERNEL",
)
"""Variables that change a time or a result; recorded where they are set, as are all settings that a worker sees."""

_CLOCKS = {
    "clock.sm_mhz": "clocks.sm",
    "clock.memory_mhz": "clocks.mem",
    "clock.temperature_c": "temperature.gpu",
    "clock.power_w": "power.draw",
    "clock.pstate": "pstate",
}


def environment(
    device: str, home: Path | None = None, *, environ: Mapping[str, str] | None = None, root: Path = host_hardware.ROOT
) -> Environment:
    """Where a result is found: `device` is a torch device type, `home` the operator's folder (its git commit is
    recorded).

    Facts by prefix, values as text: device. cpu. memory. os. python version. threads. env. make the fingerprint;
    load. clock. git. host. are the state of the moment and don't. `host.id` is a hash: a record that is shown to others
    names no machine. `host.folder` is where an operator lies that does not come with opforge, so that its record can be
    replayed. Raises EnvironmentLacks for a device that torch does not see.
    """
    variables = os.environ if environ is None else environ
    recorded = sorted({*INFLUENCES, *SETTINGS} - {*THREADS})
    here = host_hardware.look(root)
    facts = {
        "cpu.model": here.model,
        "cpu.cores": str(here.cores),
        "memory.gib": f"{here.memory_bytes / 2**30:.0f}",
        "os.name": host_hardware.system(root),
        "os.kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{f"version.{name}": version for name, version in versions().items()},
        **{f"threads.{name}": variables[name] for name in THREADS if name in variables},
        **{f"env.{name}": variables[name] for name in recorded if name in variables},
        "host.id": hashlib.sha256(platform.node().encode()).hexdigest()[:8],
        "clock.cpu_mhz": host_hardware.megahertz(root),
        "load.governor": host_hardware.governor(root),
        **_load(root),
        **(_commit(home) | _place(home) if home is not None else {}),
    }
    name = here.model
    if device != "cpu":
        chip = accelerator.look(device)
        name = chip.name
        facts |= {
            "device.name": chip.name,
            "device.target": chip.target,
            "device.units": str(chip.units),
            "device.driver": accelerator.driver(device, root),
        }
        facts |= _device_state(device)
    quota = host_hardware.quota(root)
    if quota is not None:
        facts["cpu.quota"] = f"{quota:g}"
    return Environment(
        device=name, host=here.label, facts={key: value for key, value in sorted(facts.items()) if value}
    )


def _place(home: Path) -> dict[str, str]:
    """The operator's folder, its beginning "~" in a user's home; nothing for one of opforge's own."""
    folder = home.resolve()
    if PACKAGE in folder.parents:
        return {}
    own = Path.home()
    return {FOLDER: f"~/{folder.relative_to(own).as_posix()}" if own in folder.parents else folder.as_posix()}


def _load(root: Path) -> dict[str, str]:
    average = host_hardware.load_average(root)
    return {} if average is None else {"load.average_1m": f"{average:.2f}"}


def _device_state(device: str) -> dict[str, str]:
    """Clocks and power of an NVIDIA device; its power limit and memory protection, which change results, go with the
    device.
    """
    values = accelerator.smi(*_CLOCKS.values(), "power.limit", "ecc.mode.current") if device == "cuda" else None
    if values is None:
        return {}
    return {**dict(zip(_CLOCKS, values, strict=False)), "device.power_limit_w": values[-2], "device.ecc": values[-1]}


def _commit(home: Path) -> dict[str, str]:
    """Commit of the repository that holds `home`, and whether `home` itself differs from it; nothing outside a
    repository. The same of opforge's own source (`git.opforge`) where that is kept in another repository.
    """
    facts = _state_of(home, "git.commit", "git.dirty")
    if facts and tracked_root(PACKAGE) not in ("", tracked_root(home)):
        facts |= _state_of(PACKAGE, "git.opforge", "git.opforge_dirty")
    return facts


def _state_of(folder: Path, commit_key: str, dirty_key: str) -> dict[str, str]:
    commit = command_output(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if not commit:
        return {}
    # what Python keeps of a definition that it has read is no change to it
    kept = ":(exclude,glob)**/__pycache__/**"
    changed = command_output(["git", "-C", str(folder), "status", "--porcelain", "--", ".", kept])
    return {commit_key: commit, dirty_key: "yes" if changed else "no"}


def tracked_root(folder: Path) -> str:
    """The top folder of the repository that keeps files of `folder`; "" where none does: an installed package may lie
    in somebody's repository, which ignores it.
    """
    if not command_output(["git", "-C", str(folder), "ls-files", "--", "."]):
        return ""
    return command_output(["git", "-C", str(folder), "rev-parse", "--show-toplevel"])
