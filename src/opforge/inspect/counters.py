"""A GPU's own counters for one kernel, by Nsight Compute (ncu), where it is installed and may read them; else why not.

The reader of ncu's table is tested on a written-out table. That ncu itself is called as it wants was never tried on a
GPU.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opforge.core.language.errors import UsageError
from opforge.inspect.msprof import counters_from, how_to

LIMIT_S = 120.0
PERMISSION = Path("/proc/driver/nvidia/params")
METRICS = {
    "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "l1_hit_percent": "l1tex__t_sector_hit_rate.pct",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "elapsed_ns": "gpu__time_duration.sum",
}
"""What is asked for, by our name."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Figures of the longest kernel of a call, in percent of the most that there can be; None: not in the table."""

    kernel: str
    sm_percent: float | None
    dram_percent: float | None
    l2_hit_percent: float | None
    l1_hit_percent: float | None
    occupancy_percent: float | None


def unreadable(device: str) -> str:
    """Why no counters can be read on a torch device type; "" where they may be."""
    if device == "npu":
        return how_to()
    if device != "cuda":
        return f"hardware counters are read by ncu on NVIDIA GPUs and by msprof on NPUs; the device is {device}"
    if shutil.which("ncu") is None:
        return "ncu (Nsight Compute) is not on PATH; it comes with the CUDA toolkit: put its bin folder there"
    if PERMISSION.is_file() and "RmProfilingAdminOnly: 1" in PERMISSION.read_text() and os.geteuid() != 0:
        return "the driver lets only root read counters (NVreg_RestrictProfilingToAdminUsers=1)"
    return ""


def read_counters(job: Mapping[str, Any], environment: Mapping[str, str]) -> Counters | str:
    """The Counters of one call, or why there are none.

    job   as runner.worker.sanitizer_process takes it, with one case
    """
    with tempfile.TemporaryDirectory(prefix="opforge-ncu-") as folder:
        path, report = Path(folder, "job.json"), Path(folder, "report.jsonl")
        path.write_text(json.dumps(job), encoding="utf-8")
        command = ["ncu", "--csv", "--target-processes", "application-only", "--metrics", ",".join(METRICS.values())]
        command += [sys.executable, "-P", "-m", "opforge.runner.worker.sanitizer_process", str(path), str(report)]
        package = str(Path(__file__).resolve().parents[2])
        variables = {**os.environ, **environment}
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (package, variables.get("PYTHONPATH", ""))))
        try:
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=folder
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"ncu did not end well: {error}"
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        return "the driver refuses counters to this user (ERR_NVGPUCTRPERM)"
    found = counters_in(done.stdout.splitlines())
    last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
    return found if found is not None else f"ncu gave no table: {last[0][:200]}"


def counters_at(path: Path) -> dict[str, float]:
    """Percentages by name from what a profiler left: ncu's CSV in a file, or the folder of `msprof op`.

    Raises UsageError where there is no such table.
    """
    if path.is_dir():
        return counters_from(path)
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}. Name ncu's CSV file, or msprof's folder."
        ) from error
    found = counters_in(lines)
    if found is None:
        metrics = ",".join(METRICS.values())
        raise UsageError(
            f"{path} holds no table of ncu. Make one: ncu --csv --metrics {metrics} python … > {path.name}"
        )
    return {name: value for name, value in asdict(found).items() if isinstance(value, float)}


def counters_in(lines: Sequence[str]) -> Counters | None:
    """The Counters in ncu's CSV; None where it holds none."""
    start = next((place for place, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return None
    kernels: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        name, value = row.get("Metric Name"), (row.get("Metric Value") or "").replace(",", "")
        ours = next((key for key, theirs in METRICS.items() if theirs == name), None)
        if ours is not None and value.replace(".", "", 1).isdigit():
            kernels.setdefault(row["ID"], {"kernel": row.get("Kernel Name", "")})[ours] = float(value)
    if not kernels:
        return None
    longest = max(kernels.values(), key=lambda item: item.get("elapsed_ns", 0.0))
    return Counters(kernel=longest["kernel"], **{key: longest.get(key) for key in METRICS if key != "elapsed_ns"})
