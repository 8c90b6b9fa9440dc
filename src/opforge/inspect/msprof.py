"""An NPU's own counters for one kernel, from the tables that `msprof op` leaves: PipeUtilization, Memory, L2Cache.

Columns: Huawei, "msProf Performance Data Files", CANN commercial edition 8.5.0, pages atlasopdev_16_0094 (L2Cache),
_0095 (Memory) and _0099 (PipeUtilization). The reader is tested on tables that were written by those pages; msprof was
not run, for no NPU was there.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path

from opforge.core.language.errors import UsageError

RATIOS = {"vector_percent": "vec", "cube_percent": "cube", "scalar_percent": "scalar", "mte2_percent": "mte2"}
"""Ours, and the middle of ai*_…_ratio in PipeUtilization.csv: shares of a core's cycles from 0 to 1."""
TABLES = ("PipeUtilization.csv", "Memory.csv", "L2Cache.csv")
HOW_TO = "msprof op --output=prof python NAME_performance.py, then opforge diagnose … --counters prof"


def how_to() -> str:
    """What a user does to have an NPU's counters in a diagnosis."""
    if shutil.which("msprof") is None:
        return f"msprof is not on PATH; it comes with CANN (source its set_env.sh). Then: {HOW_TO}"
    return f"not read yet. Do: {HOW_TO}"


def counters_from(folder: Path) -> dict[str, float]:
    """Percentages by our names, of the newest run below a folder that `msprof op --output` named.

    vector, cube, scalar and MTE2 (loads from global memory) percent of a core's cycles: means over cores. Bandwidth: of
    the busiest path to or from global memory. L2 hits: reads and writes. What a table lacks, or calls N/A, is left out.
    Raises UsageError where no table is.
    """
    places = sorted({path.parent for path in folder.rglob("*.csv") if path.name in TABLES}, key=_made)
    if not places:
        raise UsageError(f"{folder} holds none of {', '.join(TABLES)}. Make them: {HOW_TO.split(',')[0]}")
    newest = places[-1]
    found: dict[str, float] = {}
    pipes = list(_rows(newest / "PipeUtilization.csv"))
    for name, unit in RATIOS.items():
        shares = [value for row in pipes for value in _numbers(row, f"_{unit}_ratio", "ai")]
        if shares:
            found[name] = 100 * sum(shares) / len(shares)
    usage = [value for row in _rows(newest / "Memory.csv") for value in _numbers(row, "_bw_usage_rate(%)", "", "GM")]
    if usage:
        found["dram_percent"] = max(usage)
    hits = [value for row in _rows(newest / "L2Cache.csv") for value in _numbers(row, "_total_hit_rate(%)", "ai")]
    if hits:
        found["l2_hit_percent"] = sum(hits) / len(hits)
    if not found:
        raise UsageError(f"The tables in {newest} have none of the columns that are read. Were they made by msprof op?")
    return found


def _made(folder: Path) -> float:
    return max(path.stat().st_mtime for path in folder.glob("*.csv"))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if path.is_file():
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
            yield from csv.DictReader(lines)


def _numbers(row: dict[str, str], ends: str, begins: str, holds: str = "") -> Iterator[float]:
    """The numbers in columns of such a name; N/A and NA are none."""
    for name, value in row.items():
        column = (name or "").strip()
        if column.startswith(begins) and column.endswith(ends) and holds in column:
            try:
                yield float(value)
            except (TypeError, ValueError):
                continue
