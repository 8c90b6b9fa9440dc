"""The machine: what is recorded of it, what is warned of, and ceilings that were really measured."""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from opforge.core.definition.device import ONE_THREAD, Ceiling
from opforge.core.evidence.record import to_json
from opforge.core.language.errors import EnvironmentLacks, UsageError
from opforge.machine import (
    accelerator,
    catalogue,
    descriptors,
    detect,
    environment,
    hardware,
    host_hardware,
    measure_ceilings,
    warnings,
)
from opforge.machine.probes import Probe, batch_for
from opforge.machine.saved_ceilings import ceilings_file, load_ceilings, save_ceilings

CPUINFO = (
    "processor\t: 0\nmodel name\t: Example(R) Xeon(R) CPU @ 2GHz\ncpu MHz\t\t: 2100.4\nflags\t\t: sse2 avx "
    "avx2 fma avx512f amx_bf16\n"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A / of our own: an idle machine of one known processor."""
    files = {
        "proc/cpuinfo": CPUINFO,
        "proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:   8388608 kB\n",
        "proc/loadavg": "0.05 0.10 0.10 1/100 123\n",
        "sys/devices/system/cpu/cpu0/cache/index0/size": "48K\n",
        "sys/devices/system/cpu/cpu0/cache/index3/size": "30M\n",
        "etc/os-release": 'PRETTY_NAME="Example Linux 12"\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPFORGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_the_processor_is_read_from_the_system(root):
    """Every figure of the descriptor comes from a file, none from a guess."""
    spec = detect("cpu", root=root)
    assert (spec.name, spec.target, spec.kind) == ("cpu-example-xeon-cpu-2ghz", "host", "cpu")
    assert (spec.cache_bytes, spec.memory_bytes, spec.vector_bytes) == (30 * 2**20, 16 * 2**30, 64)
    assert spec.units == len(os.sched_getaffinity(0))
    assert "amx_bf16" in spec.capabilities
    assert (spec.nominal_bytes_per_s, dict(spec.nominal_flops_per_s)) == (0.0, {})


def test_a_control_group_limits_memory(root):
    """A container may have less than the machine."""
    put(root, "sys/fs/cgroup/memory.max", str(4 * 2**30))
    put(root, "sys/fs/cgroup/memory.current", str(3 * 2**30))
    assert host_hardware.look(root).memory_bytes == 4 * 2**30
    assert host_hardware.available_bytes(root) == 2**30
    put(root, "sys/fs/cgroup/memory.stat", f"anon {2**30}\nfile {2 * 2**30}\ninactive_file {2 * 2**30}\n")
    assert host_hardware.available_bytes(root) == 3 * 2**30, "a cache of files is given up for who needs the memory"


def test_an_environment_says_where_without_saying_whose(root, monkeypatch):
    """Records are shown to others: the machine's name is only a hash, and no fact holds it."""
    monkeypatch.setattr(platform, "node", lambda: "annas-laptop")
    found = environment("cpu", None, environ={"OMP_NUM_THREADS": "2", "HOME": "/home/somebody"}, root=root)
    assert found.device == "Example Xeon CPU @ 2GHz"
    assert found.host == f"Example Xeon CPU @ 2GHz, {len(os.sched_getaffinity(0))} cores"
    facts = dict(found.facts)
    expected = {
        "memory.gib": "16",
        "os.name": "Example Linux 12",
        "threads.OMP_NUM_THREADS": "2",
        "clock.cpu_mhz": "2100",
        "load.average_1m": "0.05",
    }
    assert expected.items() <= facts.items()
    assert facts["version.numpy"]
    text = json.dumps([found.host, found.device, facts])
    assert "annas-laptop" not in text
    assert "somebody" not in text
    assert len(facts["host.id"]) == 8


def test_the_fingerprint_follows_what_changes_results_and_nothing_else(root):
    """Load, clocks and the container's name change from run to run; threads and variables change times."""
    first = environment("cpu", None, environ={}, root=root)
    put(root, "proc/loadavg", "7.00 1 1 1/1 1")
    put(root, "proc/cpuinfo", CPUINFO.replace("2100.4", "3500.0"))
    assert environment("cpu", None, environ={}, root=root).fingerprint == first.fingerprint
    renamed = replace(first, facts={**first.facts, "host.id": "ffffffff"})
    assert renamed.fingerprint == first.fingerprint
    for variables in ({"OMP_NUM_THREADS": "1"}, {"CUDA_LAUNCH_BLOCKING": "1"}):
        assert environment("cpu", None, environ=variables, root=root).fingerprint != first.fingerprint


def test_the_commit_of_the_operators_home_is_recorded(root, tmp_path):
    """A number belongs to a source; a change that was not committed is said."""
    home = tmp_path / "home" / "softmax"
    home.mkdir(parents=True)
    (home / "op.py").write_text("1")

    def git(*words: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(home), *identity, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    assert "git.commit" not in environment("cpu", home, root=root).facts
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    facts = environment("cpu", home, root=root).facts
    assert (facts["git.commit"], facts["git.dirty"]) == (git("rev-parse", "HEAD"), "no")
    (home / "op.py").write_text("2")
    assert environment("cpu", home, root=root).facts["git.dirty"] == "yes"


def test_asking_loads_no_toolchain():
    """A record of a C++ kernel must not pay for torch."""
    asked = "from opforge.machine import *; environment('cpu', None); detect('cpu'); warnings('cpu')"
    code = (
        f"import sys; {asked}; print(*(name for name in ('torch', 'triton', 'tilelang', 'numpy') if name in "
        "sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


def test_an_idle_machine_has_no_warnings_of_its_own(root):
    """A warning that always stands is not read. (A debugger or coverage tool around the tests is warned of,
    rightly.)
    """
    assert [words for words in warnings("cpu", environ={}, root=root) if "traces every call" not in words] == []


@pytest.mark.parametrize(
    ("device", "variables", "files", "sign", "advice"),
    [
        ("fake", {"CUDA_LAUNCH_BLOCKING": "1"}, {}, "waits for its kernel", "unset CUDA_LAUNCH_BLOCKING"),
        ("cpu", {"TRITON_INTERPRET": "1"}, {}, "interpreter", "unset TRITON_INTERPRET"),
        ("cpu", {"MALLOC_PERTURB_": "7"}, {}, "overwritten", "unset MALLOC_PERTURB_"),
        ("cpu", {"OMP_NUM_THREADS": "4096"}, {}, "more threads than", "Set it to"),
        ("cpu", {}, {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave"}, "powersave", "cpupower"),
        ("cpu", {}, {"proc/loadavg": "64.0 1 1 1/1 1"}, "load 64.0", "Wait"),
        (
            "cpu",
            {},
            {"sys/class/power_supply/BAT0/type": "Battery", "sys/class/power_supply/BAT0/status": "Discharging"},
            "battery",
            "Plug it in",
        ),
        ("cpu", {}, {"sys/fs/cgroup/cpu.max": "50000 100000"}, "grants 0.5", "OMP_NUM_THREADS=1"),
    ],
)
def test_what_distorts_is_said_with_what_to_do(root, device, variables, files, sign, advice):
    """Each of these changed somebody's published number."""
    for name, text in files.items():
        put(root, name, text)
    found = [words for words in warnings(device, environ=variables, root=root) if sign in words]
    assert len(found) == 1
    assert advice in found[0].split(". ", 1)[1] if ". " in found[0] else advice in found[0]


def test_builds_that_check_themselves_are_said(root, monkeypatch):
    """A debug build is several times slower, and nobody remembers having installed it."""
    from opforge.machine import distortions

    monkeypatch.setattr(distortions, "built_for_debugging", lambda: True)
    monkeypatch.setattr(sys, "gettotalrefcount", lambda: 0, raising=False)
    monkeypatch.setattr(sys, "gettrace", lambda: print)
    said = " ".join(warnings("cpu", environ={}, root=root))
    for words in (
        "torch is a debug build. Install a release build",
        "This Python is a debug build",
        "traces every call. Run without it",
    ):
        assert words in said


def test_development_mode_is_said():
    """Python's own checks on every allocation."""
    code = "from opforge.machine import warnings; print(' '.join(warnings('cpu')))"
    output = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "without -X dev" in output.stdout


def test_a_torch_with_assertions_is_recognised(tmp_path, monkeypatch):
    """By what its own version file says."""
    from opforge.machine import versions

    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    monkeypatch.setattr(
        versions.importlib.util,
        "find_spec",
        lambda name: type("Spec", (), {"origin": str(tmp_path / "torch" / "__init__.py")}),
    )
    for text, debug in (("debug = False\n", False), ("__version__ = '2'\ndebug = True\n", True)):
        (tmp_path / "torch" / "version.py").write_text(text)
        assert versions.built_for_debugging() is debug


def test_another_process_on_the_device_is_said_and_our_own_workers_are_not(root, monkeypatch):
    """A worker has a session of its own and still is ours; what is in another container cannot be seen."""
    me = os.getpid()
    for process, parent in ((4_000_001, me), (4_000_002, 4_000_001), (4_000_003, 1)):
        put(root, f"proc/{process}/stat", f"{process} (a) name) S {parent} 1 1")
    monkeypatch.setattr(accelerator, "processes", lambda: (me, 4_000_001, 4_000_002, 4_000_003, 4_000_004))
    found = [words for words in warnings("fake", environ={}, root=root) if "Another process" in words]
    assert len(found) == 1
    assert "(pid 4000003)" in found[0]
    assert "CUDA_VISIBLE_DEVICES" in found[0]


def test_warnings_stand_in_the_record_and_before_a_bench(monkeypatch, capsys):
    """Said where the time is read, and before time is spent."""
    pytest.importorskip("torch")
    from opforge.cli.shared import device_to_time
    from opforge.runner import InProcess
    from opforge.timing.worker_requests import look_at_clocks

    monkeypatch.setenv("MALLOC_PERTURB_", "7")
    assert device_to_time("cpu") == "cpu"
    assert "warning: MALLOC_PERTURB_ is set" in capsys.readouterr().err
    conditions = look_at_clocks(InProcess().worker({}), "cpu").conditions
    assert any("MALLOC_PERTURB_" in words for words in conditions)
    assert not any("Other work is running" in words for words in conditions)


def test_launch_blocking_does_not_matter_on_a_processor(root):
    """A warning about a GPU in a CPU's run would be noise."""
    assert not [words for words in warnings("cpu", environ={"CUDA_LAUNCH_BLOCKING": "1"}, root=root) if "CUDA" in words]


def test_shipped_descriptors_are_complete_and_say_where_they_come_from():
    """A chip that is on nobody's desk is judged by these figures alone."""
    known = descriptors()
    assert set(known) == {
        "nvidia-h200",
        "nvidia-h100",
        "nvidia-a100-80g",
        "nvidia-b200",
        "nvidia-rtx4090",
        "low-bw",
        "amd-mi300x",
        "ascend-910b",
        "cpu",
    }
    for name, spec in known.items():
        assert spec.name == name
        assert len(spec.source) > 20
        unknown = spec.nominal_bytes_per_s == 0 or not spec.nominal_flops_per_s
        assert not unknown or "0 stands for unknown" in spec.source, name
        for ceiling in spec.ceilings:
            assert ceiling.value > 0
            assert ceiling.unit in ("B/s", "FLOP/s", "s")
            assert len(ceiling.measured_at) >= 10
    h200 = known["nvidia-h200"]
    assert h200.ceiling("copy").value == 4.24e12
    # what was measured is below what the vendor prints, or one of them is wrong
    for ceiling in h200.ceilings:
        sheet = (
            h200.nominal_bytes_per_s
            if ceiling.unit == "B/s"
            else h200.nominal_flops_per_s.get(ceiling.name.removeprefix("matrix_"), float("inf"))
        )
        assert ceiling.value <= sheet, ceiling.name


def test_a_users_descriptor_is_read_and_a_bad_one_is_named(tmp_path):
    """A chip team brings a chip as a file."""
    mine = replace(descriptors()["nvidia-h200"], name="my-chip")
    (tmp_path / "mine.json").write_text(json.dumps(to_json(mine)))
    assert descriptors([tmp_path])["my-chip"] == mine
    for content in ("{", "[1]", '{"type": "DeviceSpec", "name": "x"}', '{"type": "Config"}'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(UsageError, match=r"bad\.json.*opforge machine --json"):
            descriptors([tmp_path])


def chip(**changes: object) -> accelerator.Accelerator:
    """What torch says on an H200."""
    plain = accelerator.Accelerator(
        kind="cuda",
        name="NVIDIA H200",
        target="sm_90a",
        units=132,
        warp_size=32,
        memory_bytes=150 * 10**9,
        cache_bytes=60 * 2**20,
        registers_per_unit=65536,
        shared_bytes_per_unit=233472,
        shared_bytes_per_block=232448,
        threads_per_unit=2048,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_an_accelerator_is_found_by_its_name(cache, monkeypatch):
    """What the driver reports wins over the sheet; another model's rates are never borrowed."""
    monkeypatch.setattr(accelerator, "look", lambda device: chip())
    spec = detect("cuda")
    assert (spec.name, spec.cache_bytes, spec.memory_bytes, spec.ceiling("copy").value) == (
        "nvidia-h200",
        60 * 2**20,
        150 * 10**9,
        4.24e12,
    )
    monkeypatch.setattr(
        accelerator, "look", lambda device: chip(name="NVIDIA H200 MIG 1g.18gb", units=16, cache_bytes=10 * 2**20)
    )
    part = detect("cuda")
    assert (part.nominal_bytes_per_s, part.ceilings, part.cache_bytes) == (0.0, (), 10 * 2**20)
    monkeypatch.setattr(accelerator, "look", lambda device: chip(name="NVIDIA H100 PCIe", units=114))
    other = detect("cuda")
    assert (other.name, other.units, other.nominal_bytes_per_s) == ("nvidia-h100-pcie", 114, 0.0)
    assert "0 stands for unknown" in other.source


def test_a_device_that_is_not_here_is_said():
    """The next step is in the message."""
    import torch

    absent = "xpu" if not torch.xpu.is_available() else "mtia"
    for device in (absent, "nonsense"):
        with pytest.raises(EnvironmentLacks, match="opforge doctor"):
            detect(device)


def test_ceilings_are_kept_for_the_hardware_they_were_measured_on(cache, root):
    """They replace those that ship by name, and another machine's are not taken."""
    spec = detect("cpu", root=root)
    ceiling = Ceiling(name="copy", value=3e10, unit="B/s", measured_at="2026-11-21", how="for a test")
    file = save_ceilings(spec, [ceiling])
    assert file == cache / "machine" / f"{hardware(spec)}.json"
    assert detect("cpu", root=root).ceilings == (ceiling,)
    put(root, "proc/cpuinfo", CPUINFO.replace("Xeon", "Epyc"))
    assert detect("cpu", root=root).ceilings == ()
    assert list(file.parent.iterdir()) == [file]


def test_measured_ceilings_come_before_shipped_ones(cache, monkeypatch):
    """This very device was measured; the shipped figure is of another of its kind."""
    monkeypatch.setattr(accelerator, "look", lambda device: chip())
    save_ceilings(detect("cuda"), [Ceiling(name="copy", value=4e12, unit="B/s", measured_at="2026-11-22", how="here")])
    spec = detect("cuda")
    assert (spec.ceiling("copy").how, spec.ceiling("add").value) == ("here", 4.37e12)
    assert [ceiling.name for ceiling in spec.ceilings].count("copy") == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b'{"ceilings": [1]}', b'{"ceilings": [{"type": "Ceiling"}]}', b"[]", b"[" * 100_000],
)
def test_a_damaged_file_of_ceilings_is_set_aside(cache, root, content):
    """It counts as not measured; the next measuring writes a sound one."""
    spec = detect("cpu", root=root)
    file = ceilings_file(spec)
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    assert load_ceilings(spec) == ()
    assert [path.name for path in file.parent.iterdir()] == [f"{file.stem}.json.damaged"]


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch, root):
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPFORGE_CACHE", str(tmp_path / "file"))
    with pytest.raises(EnvironmentLacks, match="OPFORGE_CACHE"):
        save_ceilings(detect("cpu", root=root), [])


def test_measuring_really_measures(cache, monkeypatch):
    """Small buffers and a short budget: the figures are rough (the machine may be busy with other tests), and
    physically possible.
    """
    from opforge.machine import probes

    monkeypatch.setattr(probes, "LARGEST_BUFFER", 32 * 2**20)
    said: list[tuple[str, float]] = []
    spec = measure_ceilings("cpu", budget_s=0.1, progress=lambda words, fraction: said.append((words, fraction)))
    assert spec == detect("cpu")
    names = {ceiling.name for ceiling in spec.ceilings}
    assert {
        "copy",
        "add",
        "read",
        "write",
        "matrix_float32",
        "matrix_float16",
        "matrix_bfloat16",
        "vector_float32",
        "launch",
        "call",
    } <= names
    for ceiling in spec.ceilings:
        low, high = {"B/s": (1e6, 1e13), "FLOP/s": (1e6, 1e15), "s": (1e-9, 1e-2)}[ceiling.unit]
        assert low < ceiling.value < high, ceiling
        assert f"fastest of {1 if ceiling.name.endswith(ONE_THREAD) else 3} samples" in ceiling.how
    assert spec.ceiling("launch").value < spec.ceiling("call").value
    assert said[-1] == ("keeping the result", 1.0)
    assert all(before <= after for (_, before), (_, after) in itertools.pairwise(said))


def test_a_probe_that_the_device_refuses_is_left_out_and_said(cache, monkeypatch):
    """A dtype that a device lacks must not cost the other ceilings, nor be forgotten."""
    from opforge.machine import ceilings

    def refuse() -> None:
        raise RuntimeError('"addmm" not implemented for Half\nstack')

    ticks = iter(range(10**6))
    good = Probe(name="copy", unit="B/s", amount=1e9, run=lambda: None, about="a copy")
    monkeypatch.setattr(
        ceilings,
        "probes",
        lambda device, spec: [lambda: replace(good, name="matrix_float16", run=refuse), lambda: good],
    )
    said: list[str] = []
    spec = measure_ceilings(
        "cpu", budget_s=0.0, progress=lambda words, _: said.append(words), clock=lambda: float(next(ticks))
    )
    assert [(ceiling.name, ceiling.value) for ceiling in spec.ceilings] == [("copy", 1e9)]
    assert 'one probe is left out: "addmm" not implemented for Half' in said


def made_up(**values: float) -> list[Ceiling]:
    return [
        Ceiling(
            name=name,
            value=value,
            unit="s" if name in ("launch", "call") else "B/s",
            measured_at="2026-01-01",
            how="on a busy machine",
        )
        for name, value in values.items()
    ]


def test_a_processors_ceilings_are_asked_of_one_thread_too(cache, monkeypatch):
    """On a busy machine threads that wait for each other did a hundredth of what one does: honest times were beyond."""
    import torch

    from opforge.machine import ceilings

    now = [0.0]

    def run() -> None:
        now[0] += 1.0 if torch.get_num_threads() == 1 else 100.0

    probe = Probe(name="vector_float32", unit="FLOP/s", amount=1e9, run=run, about="a product")
    monkeypatch.setattr(ceilings, "probes", lambda device, spec: [lambda: probe])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        spec = measure_ceilings("cpu", budget_s=0.0, clock=lambda: now[0])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert spec.ceiling("vector_float32").value == 1e9
    # what all threads may reach is told by one's own figure
    assert spec.ceiling("vector_float32_one_thread").value == 1e9


def test_of_two_measurements_the_better_one_is_kept(cache, monkeypatch):
    """What others take from a machine makes a ceiling too low, and never too high."""
    from opforge.machine import ceilings

    known = made_up(copy=5e8, add=9e9, launch=1e-3)
    found = made_up(copy=1e9, add=2e9, launch=1e-6, call=2e-6)
    kept = {ceiling.name: ceiling.value for ceiling in ceilings._better(known, found)}
    assert kept == {"copy": 1e9, "add": 9e9, "launch": 1e-6, "call": 2e-6}


def test_a_time_is_suspect_only_after_ceilings_of_a_busy_machine_were_measured_again(cache, monkeypatch):
    """An honest kernel was accused by a ceiling that others had held down; and a lie stays one, without a measurement
    for each.
    """
    from opforge.core.evidence.timing import Timing
    from opforge.core.evidence.verdict import Pass
    from opforge.machine import ceilings
    from opforge.registry import load
    from opforge.trial.recording import recorded

    taken: list[str] = []

    def probes(device, spec):
        taken.append(device)
        return [lambda: Probe(name="launch", unit="s", amount=1.0, run=lambda: None, about="nothing")]

    monkeypatch.setattr(ceilings, "probes", probes)
    monkeypatch.setattr(ceilings, "_RENEWED", {})
    save_ceilings(detect("cpu"), made_up(launch=1e-2))
    registry = load([])
    operator = registry.operator("softmax")
    here = environment("cpu", None)

    def timed(seconds: float):
        timing = Timing(samples_s=(seconds,) * 5, batch=1, timer="host", cache="warm", overhead_s=0.0, conditions=())
        verdict = Pass(checked=(), not_taken=(), isolation="")
        item = registry.implementation("softmax", "torch_eager")
        workload = operator.workloads[0]
        record = recorded(
            operator, item, workload, "float32", verdict, timing, device="cpu", environment=here, run="one"
        )
        assert record.timing is not None
        return record.timing.suspect

    assert timed(1e-3) is None and taken == ["cpu"]
    (kept,) = load_ceilings(detect("cpu"))
    assert kept.value < 1e-3
    for _ in range(3):
        assert "is less than the launch of an empty kernel" in timed(1e-15)
    assert taken == ["cpu"], "it was measured less than a minute ago"
    monkeypatch.setattr(ceilings, "AGAIN_AFTER_S", 0.0)
    assert timed(1e-15) is not None and taken == ["cpu", "cpu"]


def test_a_ceiling_is_the_fastest_sample_and_a_floor_the_shortest():
    """Bytes go up when time goes down; seconds go down."""
    rate = Probe(name="copy", unit="B/s", amount=100.0, run=lambda: None, about="")
    floor = Probe(name="launch", unit="s", amount=200.0, run=lambda: None, about="")
    assert (rate.value(2.0), floor.value(2.0)) == (50.0, 0.01)
    assert (batch_for(0.001, 0.01), batch_for(1.0, 0.01), batch_for(0.0, 0.01)) == (10, 1, 1_000_000)


def test_names_become_file_names():
    """A descriptor's name is the name of a file of tuned configs."""
    assert catalogue._slug("AMD EPYC 7763 64-Core Processor") == "amd-epyc-7763-64-core-processor"


@pytest.mark.gpu
def test_a_gpu_is_measured_in_seconds(cache):
    """Copy, matrix products and the launch floor of the real device, below the vendor's sheet."""
    spec = measure_ceilings("cuda", budget_s=5.0)
    for name in ("copy", "add", "read", "matrix_bfloat16", "matrix_float32", "vector_float32", "launch", "call"):
        assert spec.ceiling(name) is not None, name
    if spec.nominal_bytes_per_s:
        assert 0.5 * spec.nominal_bytes_per_s < spec.ceiling("copy").value < spec.nominal_bytes_per_s
    assert 1e-7 < spec.ceiling("launch").value < 2e-5


def test_the_verb_measures_what_a_descriptor_only_knows_of_another_machine(cache, monkeypatch, capsys):
    """A roof that somebody else measured stands in, and is called so; asked for, it is measured here, once."""
    from opforge import machine
    from opforge.cli.machine import machine as verb

    shipped = Ceiling(name="copy", value=4e12, unit="B/s", measured_at="2026-01-01", how="elsewhere")
    spec = replace(descriptors()["nvidia-h200"], ceilings=(shipped, replace(shipped, name="read")))
    asked = []

    def measure(where):
        asked.append(where)
        save_ceilings(spec, [replace(shipped, value=3e12, how="here")])
        return replace(spec, ceilings=(replace(shipped, value=3e12, how="here"), spec.ceilings[1]))

    monkeypatch.setattr("opforge.cli.machine.device_or_default", lambda given: "cuda")
    monkeypatch.setattr(machine, "detect", lambda where: spec)
    monkeypatch.setattr(machine, "measure_ceilings", measure)
    verb(device="cuda", again=False, json=False)
    said = capsys.readouterr().out
    assert "measured   copy" in said and "known      read" in said
    verb(device="cuda", again=False, json=False)
    assert asked == ["cuda"]


def test_ceilings_are_measured_where_none_are_known_and_it_is_said_before(monkeypatch):
    """`scripts/renew.py` took a thousand records of a machine it did not know: none had a roof, no time was doubted."""
    from opforge.machine import ceilings

    told = []
    known = replace(descriptors()["nvidia-h200"], ceilings=())
    monkeypatch.setattr(ceilings, "detect", lambda device: known)
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda device: told.append(("measured", device)))
    ceilings.ensure_ceilings("cuda", told.append)
    assert "this cuda" in told[0] and told[1:] == [("measured", "cuda")]
    known = replace(known, ceilings=(Ceiling(name="copy", value=4e12, unit="B/s", measured_at="2026", how="here"),))
    ceilings.ensure_ceilings("cuda", told.append)
    assert len(told) == 2
