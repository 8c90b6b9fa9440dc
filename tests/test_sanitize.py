"""Kernels under compute-sanitizer: what it writes becomes findings, a statement or a verdict. A script stands in for
the program here.
"""

from __future__ import annotations

import sys
import textwrap

import pytest

from opforge.cli.app import main
from opforge.core.evidence.verdict import Broken, Pass
from opforge.core.language.errors import EnvironmentLacks
from opforge.registry import load
from opforge.runner import Isolated
from opforge.runner.worker import sanitizer
from opforge.runner.worker.sanitizer import Sanitized, SanitizerFinding
from opforge.verify import CaseCache
from opforge.verify.extra.sanitize import cases_for, hand_over_lines, outcome, ready, without_hand_overs

MEMCHECK = """\
========= COMPUTE-SANITIZER
opforge-case: odd_tail
========= Invalid __global__ write of size 4 bytes
=========     at twice(const float *, float *, int)+0x1a0 in cuda_twice.cu:12
=========     by thread (7,0,0) in block (3,0,0)
=========     Access to 0x7f00c0010190 is out of bounds
=========     and is 65,424 bytes after the nearest allocation at 0x7f00c0000000 of size 400 bytes
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" \
on CUDA API call to cudaDeviceSynchronize.
=========
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """\
opforge-case: even
========= Error: Race reported between Write access at twice(const float *, float *, int)+0x90 in cuda_races.cu:11
=========     and Read access at twice(const float *, float *, int)+0xd0 in cuda_races.cu:13 [896 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
SYNCCHECK = """\
opforge-case: even
========= Barrier error detected. Divergent thread(s) in block
=========     at twice(float *)+0x50 in cuda_sync.cu:9
=========     by thread (32,0,0) in block (0,0,0)
=========
"""
INITCHECK = """\
opforge-case: even
========= Uninitialized __global__ memory read of size 4 bytes
=========     at 0x60 in _softmax_kernel
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f3d2bc00200
=========
"""


def test_a_memcheck_finding_names_kernel_place_thread_and_address():
    """What an author needs is the line and the thread, not the log."""
    (found,) = sanitizer.findings(MEMCHECK)
    assert found.case == "odd_tail" and found.what == "Invalid __global__ write of size 4 bytes"
    assert (found.kernel, found.place) == ("twice(const float *, float *, int)", "cuda_twice.cu:12")
    assert (found.thread, found.block, found.address) == ("(7,0,0)", "(3,0,0)", "0x7f00c0010190")
    assert "65,424 bytes after the nearest allocation" in str(found)


@pytest.mark.parametrize(
    ("said", "what", "place"),
    [
        (RACECHECK, "Race reported", "cuda_races.cu:11"),
        (SYNCCHECK, "Barrier error", "cuda_sync.cu:9"),
        (INITCHECK, "Uninitialized", ""),
    ],
    ids=["racecheck", "synccheck", "initcheck"],
)
def test_the_other_tools_are_read_too(said, what, place):
    """Each of the four tools has a way of its own to say it."""
    (found,) = sanitizer.findings(said)
    assert what in found.what and found.place == place and found.case == "even"


def test_a_race_names_both_of_its_accesses():
    """Which two accesses meet decides whether it is a race or a false alarm: one of them says little."""
    (found,) = sanitizer.findings(RACECHECK)
    assert (
        found.what.startswith("Error: Race reported between Write access")
        and found.against == "and Read access cuda_races.cu:13"
    )
    assert "cuda_races.cu:11, and Read access cuda_races.cu:13" in str(found)


def test_a_clean_log_has_no_finding():
    """Headers and summaries are no findings."""
    assert sanitizer.findings("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == ()


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """stand_in(code) puts a compute-sanitizer on PATH that runs the program it was given and then `code`."""

    def make(code: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / "compute-sanitizer"
        program.write_text(
            f"#!{sys.executable}\nimport subprocess, sys, time\nrest = sys.argv[sys.argv.index('--print-limit') + 2:]\n"
            f"said = sys.argv\nstatus = subprocess.run(rest).returncode\n{textwrap.dedent(code)}\nsys.exit(status)\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    return make


PLAIN = "def run(x, bias):\n    return x + bias\n"


def watched(home, name, tool="memcheck", limit_s=60.0):
    """A run of one of the guest's implementations under the stand-in, and the cases that were asked for."""
    registry = load([home])
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=registry.operator("guest_add"), host=host, device="cpu")
        cases = cases_for(bench, "float32")
    described = [
        {
            "name": c.name,
            "axes": dict(c.axes),
            "distribution": c.distribution,
            "layout": c.layout,
            "scalars": {},
            "seed": c.seed,
        }
        for c in cases
    ]
    job = {
        "homes": [str(h.path) for h in registry.homes],
        "operator": "guest_add",
        "implementation": f"torch_{name}",
        "dtype": "float32",
        "device": "cpu",
        "config": None,
    }
    return sanitizer.sanitize(tool, {**job, "cases": described}, {}, limit_s), cases


PROOF = Pass(checked=(), not_taken=(), isolation="")


def test_a_clean_run_adds_a_statement_to_the_pass(guest, stand_in):
    """Every case ran in the watched process, and the tool that was asked for is the one that was started."""
    stand_in("assert said[1:3] == ['--tool', 'synccheck'], said")
    seen, cases = watched(guest(plain=PLAIN), "plain", "synccheck")
    assert seen.done == tuple(case.name for case in cases) and not seen.findings and not seen.stopped
    verdict = outcome(seen, cases, "float32", PROOF)
    assert (
        isinstance(verdict, Pass) and verdict.states("synccheck") is True and "3 cases" in verdict.statements[-1].detail
    )


def test_a_finding_makes_the_verdict_broken(guest, stand_in):
    """Right values do not excuse a write into nobody's memory. The finding stands under the case that was running."""
    stand_in(
        "print('========= Invalid __global__ write of size 4 bytes\\n=========     at k(float *)+0xa0 in "
        "k.cu:7\\n=========     by thread (1,0,0) in block (0,0,0)')"
    )
    seen, cases = watched(guest(plain=PLAIN), "plain")
    verdict = outcome(seen, cases, "float32", PROOF)
    assert isinstance(verdict, Broken) and verdict.case is not None and verdict.case.name == cases[-1].name
    assert "memcheck" in verdict.reason and "k.cu:7" in verdict.reason and "thread (1,0,0)" in verdict.reason


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def run(x, bias):\n    raise RuntimeError('launch failed')\n", "launch failed"),
        pytest.param(
            "import os\n\n\ndef run(x, bias):\n    os._exit(3)\n", "ended with status 3", marks=pytest.mark.campaign
        ),
    ],
    ids=["raises", "exits"],
)
def test_a_run_that_ends_early_is_no_clean_run(guest, stand_in, source, words):
    """Silence is no statement: a process that died has not been looked at."""
    stand_in("")
    seen, cases = watched(guest(bad=source), "bad")
    verdict = outcome(seen, cases, "float32", PROOF)
    assert isinstance(verdict, Broken) and words in verdict.reason and verdict.case == cases[0]


@pytest.mark.campaign
def test_a_run_that_never_ends_is_ended(guest, stand_in):
    """Instrumented kernels may be a hundred times slower, not endless."""
    stand_in("time.sleep(600)")
    seen, _ = watched(guest(plain=PLAIN), "plain", limit_s=12.0)
    assert "12 s" in seen.stopped


def test_without_the_program_the_next_step_is_said(monkeypatch, tmp_path):
    """Nobody should have to look for the package's name."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sanitizer, "PLACES", ())
    with pytest.raises(EnvironmentLacks, match="apt-get install"):
        ready("cuda")
    with pytest.raises(EnvironmentLacks, match="NVIDIA GPU"):
        ready("cpu")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "cpu", "--sanitize", "memcheck"], "NVIDIA GPU"),
        (["--sanitize", "memchek"], "Did you mean 'memcheck'"),
    ],
)
def test_the_verb_refuses_before_anything_is_verified(words, said, capsys, monkeypatch):
    """A machine without a GPU, and a tool that does not exist."""
    monkeypatch.setattr(sys, "argv", ["opforge", "verify", "relu", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code and said in capsys.readouterr().err


@pytest.mark.parametrize(("name", "shared"), [("softmax", True), ("transpose", False)])
def test_the_case_of_shared_rows_is_for_operators_with_its_axes_alone(name, shared):
    """Transposes have rows beside lead and cols: the case gave them no size, and no kernel of theirs was asked."""
    registry = load()
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=registry.operator(name), host=host, device="cpu")
        assert ("shared_rows" in [case.name for case in cases_for(bench, "float32")]) is shared


def test_the_hand_over_of_warp_specialisation_alone_is_set_aside():
    """Triton's own, whose accesses it puts on the lines of the function and of the call; never an access of the
    kernel's, also when the other one lies on such a line.
    """
    source = load().implementation("matmul", "triton_gluon").source
    (own,) = (line for line in hand_over_lines(source) if int(line.split(":")[1]) < 215)
    lines = sorted(hand_over_lines(source), key=lambda line: int(line.split(":")[1]))
    assert len(lines) == 2 and own == lines[0] and own.startswith("roles.py:")

    def race(place, *others, tool="racecheck"):
        found = SanitizerFinding(
            case="a",
            what="Error: Race reported between Read access",
            kernel="product_roles",
            place=place,
            thread="",
            block="",
            address="",
            more="",
            against=", ".join(f"and Write access {other}" for other in others),
        )
        seen = Sanitized(tool=tool, findings=(found,), done=("a",), refused=(), stopped="")
        return len(without_hand_overs(seen, source).findings)

    assert race(lines[0], lines[1]) == race(lines[0], *lines) == 0
    assert race(lines[0], "roles.py:137") == race("roles.py:137", lines[1]) == race(lines[0]) == 1
    assert race(lines[0], lines[1], "roles.py:137") == race(lines[0], lines[1], tool="memcheck") == 1


@pytest.fixture
def script(monkeypatch):
    """scripts/sanitizers.py as a module."""
    import importlib.util
    from pathlib import Path

    path = Path(__file__).resolve().parents[1] / "scripts" / "sanitizers.py"
    spec = importlib.util.spec_from_file_location("sanitizers_script", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sanitizers_script", module)
    spec.loader.exec_module(module)
    return module


def test_the_committed_page_says_what_is_known_of_every_kernel(script):
    """A kernel that has no row looks clean, and an answer for another source is none."""
    registry = load()
    wanted = script.questions(registry)
    text = script.page(script.read(script.KNOWN), wanted, script.sources_of(registry, wanted))
    assert script.PAGE.read_text(encoding="utf-8") == text, "renew it: python scripts/sanitizers.py --page-only"
    kernels = {
        f"{operator.name}/{stem}"
        for operator in registry.operators()
        for stem in operator.implementations
        if stem.split("_")[0] in ("cuda", "triton")
    }
    assert len(kernels) > 110 and all(f"| {kernel} |" in text for kernel in kernels)
    assert {asked.kernel for asked in wanted} == kernels
    assert {asked.tool for asked in wanted[:50]} == {"racecheck"}


def test_a_cell_is_never_clean_that_nobody_asked(script):
    """Not asked, asked of another source, ended early and findings are all told from clean."""
    seen = script.Seen(cases=5, refused=0, source="now")
    assert script.cell([None, None], "now") == "not asked"
    assert script.cell([seen], "later") == "changed since"
    assert script.cell([seen, None], "now") == "5"
    assert script.cell([script.Seen(0, 3, source="now"), None], "now") == "not asked"
    assert script.cell([script.Seen(0, 3, source="now")], "now") == "takes none"
    assert script.cell([seen, script.Seen(2, 0, ("a race",), source="now")], "now") == "**1**"
    assert script.cell([script.Seen(2, 0, stopped="SIGSEGV", source="now")], "now") == "**ended early**"


def test_a_run_that_was_cut_off_goes_on_where_it_was(script, monkeypatch, tmp_path, capsys):
    """What is known of the same source is not asked again, unless something was found."""
    from concurrent.futures import ThreadPoolExecutor

    asked_now = []

    def run(together, jobs, files, caches, limit_s):
        assert all(files[asked].is_file() for asked in together)
        assert {asked.tool for asked in together} == {together[0].tool} and all(
            jobs[asked]["cases"] for asked in together
        )
        asked_now.extend(together)
        return {
            asked: script.Seen(4, 0, ("a race",) if asked.label == "relu/cuda_vectors float16 " else ())
            for asked in together
        }

    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script, "ready", lambda device: None)
    monkeypatch.setattr(script, "where_now", lambda: "here")
    monkeypatch.setattr(script, "build", lambda name: "")
    monkeypatch.setattr(script, "ProcessPoolExecutor", ThreadPoolExecutor)
    known, page = tmp_path / "known", tmp_path / "page"
    words = ["sanitizers.py", "relu", "--known", str(known), "--page", str(page), "--workers", "2"]
    monkeypatch.setattr(sys, "argv", [*words, "--limit", "5"])
    assert script.main() == 0 and not asked_now and "| relu/cuda_vectors | not asked |" in page.read_text()
    monkeypatch.setattr(sys, "argv", words)
    assert script.main() == 1
    assert len(asked_now) == 2 * (3 + 3) and "a race" in capsys.readouterr().out
    assert "| relu/cuda_vectors | 4 | **1** | 4 |  | 4 | 4 | 4 |" in page.read_text()
    asked_now.clear()
    assert script.main() == 1
    assert [asked.label for asked in asked_now] == ["relu/cuda_vectors float16 "]
    # of another source nothing is known
    known.write_text(known.read_text().replace('"source": "', '"source": "0'))
    monkeypatch.setattr(sys, "argv", [*words, "--page-only"])
    assert script.main() == 0 and "| relu/cuda_vectors | changed since |" in page.read_text()
