"""The processor and memory of this machine, read from /proc and /sys. Absent files give empty or 0: unknown."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True, kw_only=True)
class HostHardware:
    """What the operating system says of the processor.

    cores         processors this process may use (affinity), hardware threads counted singly
    memory_bytes  memory of the machine, or of the control group if that is less
    cache_bytes   the largest cache, the last before memory
    flags         instruction set extensions
    """

    model: str
    cores: int
    memory_bytes: int
    cache_bytes: int
    flags: frozenset[str]

    @property
    def label(self) -> str:
        """`<model>, N cores`."""
        return f"{self.model}, {self.cores} {'core' if self.cores == 1 else 'cores'}"

    @property
    def vector_bytes(self) -> int:
        """Width of a vector register in bytes: 64 (AVX-512), 32 (AVX), 16 (SSE, NEON); 0 if unknown."""
        for flag, width in (("avx512f", 64), ("avx", 32), ("sse2", 16), ("asimd", 16)):
            if flag in self.flags:
                return width
        return 0


def text_of(path: Path) -> str:
    """The file's text, "" where it is absent or may not be read (containers hide much of /sys)."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def look(root: Path = ROOT) -> HostHardware:
    """The HostHardware this process runs on. `root` stands for / in tests."""
    info = text_of(root / "proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", info, re.MULTILINE)
    return HostHardware(
        model=_model(info),
        cores=_cores(),
        memory_bytes=_memory(root),
        cache_bytes=max(
            (_size(text_of(file)) for file in root.glob("sys/devices/system/cpu/cpu0/cache/index*/size")), default=0
        ),
        flags=frozenset(flags.group(1).split()) if flags else frozenset(),
    )


def available_bytes(root: Path = ROOT) -> int:
    """Memory that can be had now without swapping, on this machine and in its control group; 0 if unknown."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB", text_of(root / "proc/meminfo"), re.MULTILINE)
    free = int(match.group(1)) * 1024 if match else 0
    # what was read from files counts as used until somebody wants the memory
    kept = re.search(r"^inactive_file (\d+)$", text_of(root / "sys/fs/cgroup/memory.stat"), re.MULTILINE)
    limit, used = _group(root, "memory.max"), _group(root, "memory.current") - (int(kept[1]) if kept else 0)
    return min(free, max(0, limit - used)) if free and limit else free


def load_average(root: Path = ROOT) -> float | None:
    """Runnable processes, averaged over the last minute; None if unknown."""
    fields = text_of(root / "proc/loadavg").split()
    return float(fields[0]) if fields else None


def governor(root: Path = ROOT) -> str:
    """The frequency governor of processor 0 ("performance", "powersave", …); "" where there is none, as in most
    virtual machines.
    """
    return text_of(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def megahertz(root: Path = ROOT) -> str:
    """The clock of processor 0 in MHz as /proc/cpuinfo has it now; "" if unknown."""
    match = re.search(r"^cpu MHz\s*:\s*([\d.]+)", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    return f"{float(match.group(1)):.0f}" if match else ""


def quota(root: Path = ROOT) -> float | None:
    """Processors that the control group grants on average (a container's `--cpus`); None without a limit."""
    fields = text_of(root / "sys/fs/cgroup/cpu.max").split()
    if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]) > 0:
        return int(fields[0]) / int(fields[1])
    return None


def on_battery(root: Path = ROOT) -> bool:
    """Whether a battery is being drained."""
    supplies = root.glob("sys/class/power_supply/*")
    return any(
        text_of(supply / "type") == "Battery" and text_of(supply / "status") == "Discharging" for supply in supplies
    )


def system(root: Path = ROOT) -> str:
    """The operating system in words: "Debian GNU/Linux 12 (bookworm)"."""
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', text_of(root / "etc/os-release"), re.MULTILINE)
    return match.group(1) if match else f"{platform.system()} {platform.release()}"


def _model(info: str) -> str:
    match = re.search(r"^(?:model name|Hardware|cpu model)\s*:\s*(.+)$", info, re.MULTILINE)
    model = match.group(1) if match else platform.processor() or platform.machine() or "unknown processor"
    return " ".join(re.sub(r"\((?:R|TM|r|tm)\)", "", model).split())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory(root: Path) -> int:
    match = re.search(r"^MemTotal:\s*(\d+) kB", text_of(root / "proc/meminfo"), re.MULTILINE)
    total = int(match.group(1)) * 1024 if match else 0
    limit = _group(root, "memory.max")
    return min(total, limit) if total and limit else total


def _group(root: Path, name: str) -> int:
    text = text_of(root / "sys/fs/cgroup" / name)
    return int(text) if text.isdigit() else 0


def _size(words: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", words)
    return int(match.group(1)) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match.group(2)] if match else 0
