"""What holds a kernel back: the class follows the evidence, every class has two commands that exist, ncu's table."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opforge.cli.app import command_line
from opforge.core.definition.device import Ceiling, DeviceSpec
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Cost
from opforge.core.evidence import diagnosis as classes
from opforge.core.evidence.inspection import KernelUse, Residency
from opforge.core.evidence.optimization import LOGIC, Tried
from opforge.core.evidence.timing import Timing
from opforge.core.evidence.verdict import Broken, Pass, Timeout, Unsupported
from opforge.core.language.errors import UsageError
from opforge.diagnose import Subject, diagnose
from opforge.diagnose.bottleneck import HostFacts
from opforge.diagnose.refusals import refusal_of
from opforge.forge.loop.feedback import feedback
from opforge.inspect.counters import counters_at, counters_in, unreadable
from opforge.inspect.host_code import counted
from opforge.report.diagnosis_text import diagnosis_lines
from opforge.roofline import bound

COST = Cost(flops=1e6, bytes_read=8e8, bytes_written=2e8)


def device(kind="cpu"):
    rates = [("copy", 1e11, "B/s"), ("vector_float32", 1e12, "FLOP/s"), ("call", 1e-6, "s"), ("launch", 2e-6, "s")]
    ceilings = tuple(Ceiling(name=n, value=v, unit=u, measured_at="", how="") for n, v, u in rates)
    return DeviceSpec(
        name="made", kind=kind, target="host", units=2, warp_size=1, vector_bytes=64, registers_per_unit=0,
        shared_bytes_per_unit=0, shared_bytes_per_block=0, threads_per_unit=1, blocks_per_unit=1, cache_bytes=1 << 20,
        memory_bytes=1 << 34, nominal_bytes_per_s=0.0, nominal_flops_per_s={}, capabilities=(), source="a test",
        ceilings=ceilings,
    )  # fmt: skip


def timing(seconds):
    return Timing(
        samples_s=(seconds,) * 9, batch=1, timer="host", cache="warm", overhead_s=0.0, conditions=()
    )  # fmt: skip


def subject(seconds=0.05, cost=COST, kind="cpu", **more):
    implementation = Implementation(
        name="cpp_rows", operator="made", backend="cpp", source=Path("cpp_rows.cpp"), idea="", dtypes=None,
        supports={}, space={}, limits={}, default=Config(()),
    )  # fmt: skip
    spec = device(kind)
    given = {
        "implementation": implementation, "workload": "big", "dtype": "float32", "device": spec, "config": Config(()),
        "cost": cost, "verdict": Pass(checked=(), not_taken=(), isolation="none"),
        "timing": None if seconds is None else timing(seconds), "roof": bound(cost, spec, "float32"),
    }  # fmt: skip
    return Subject(**{**given, **more})


def use(spilled=0, fraction=1.0):
    return KernelUse(
        kernel="k", registers=255, stack_bytes=0, spill_store_bytes=spilled, spill_load_bytes=0, shared_bytes=0,
        threads=128, matrix_instructions={}, other_instructions={}, local_instructions=0, warnings=(),
        residency=Residency(
            blocks_per_unit=1, active_warps=int(64 * fraction), max_warps=64, limited_by=("registers",), at_most=False
        ),
    )  # fmt: skip


def tried(verdict):
    return Tried(change="", kind=LOGIC, diff="", verdict=verdict, ratio=None, reason="", tokens=0, source="")


CASES = {
    # the roof is 10 ms: 1 GB at 100 GB/s
    classes.ROOF: subject(0.0105),
    classes.MEMORY: subject(0.02),
    classes.SCALAR: subject(0.05, host=HostFacts(vector_share=0.1)),
    classes.INDEXING: subject(0.05, host=HostFacts(vector_share=0.9, divisions=60)),
    classes.OVERHEAD: subject(3e-6, cost=Cost(flops=10, bytes_read=100, bytes_written=100)),
    classes.SPILLS: subject(0.05, kind="cuda", kernels=(use(spilled=64),)),
    classes.OCCUPANCY: subject(0.05, kind="cuda", kernels=(use(fraction=0.1),)),
    classes.CACHE: subject(0.05, kind="cuda", counters={"l2_hit_percent": 40.0}),
    classes.ARITHMETIC: subject(0.2, cost=replace(COST, flops=1e11)),
    classes.WRONG: subject(None, verdict=None),
    classes.UNKNOWN: subject(0.05, roof=None),
}


@pytest.mark.parametrize("name", classes.CLASSES)
def test_the_class_follows_the_evidence_and_has_two_commands(name):
    """Every class is reached, and the words of each name the figure that decided."""
    given = CASES[name]
    if name == classes.WRONG:
        from opforge.core.definition.operator import Case

        case = Case(name="c", axes={"n": 1}, why="")
        given = replace(given, verdict=Broken(case=case, dtype="float32", reason="wrong", isolation="none"))
    found = diagnose(given)
    assert found.bottleneck == name
    assert len({item.command for item in found.directions}) >= 2
    assert all(item.command.startswith("opforge ") for item in found.directions)
    text = "\n".join(diagnosis_lines(found))
    assert found.because in text and f"bottleneck: {name}" in text


REFUSED = {
    "OutOfResources: out of resource: shared memory, Required: 262144": "more registers or shared memory",
    "ptxas error   : Entry function 'k' uses too much shared data": "more registers or shared memory",
    "CUDA error: misaligned address": "no multiple of its width",
    "CUDA error: invalid configuration argument": "grid or the block",
    "CUDA error: an illegal memory access was encountered": "outside the tensors",
    "ValueError: arange's range must be a power of 2": "no power of two",
    "k.cpp:3: error: 'x' was not declared in this scope": "the source itself",
    "the output has the wrong shape": "",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_a_compiler_or_a_launch_refused_has_a_cause_and_a_remedy(words):
    """The seeds' table (004, B2.3); what says none of it is asked as any wrong answer."""
    broken = Broken(case=None, dtype="float32", reason=words, isolation="none")
    found = diagnose(subject(None, verdict=broken))
    known = refusal_of(broken)
    assert (known.cause if known else "").find(REFUSED[words]) >= 0 and bool(known) == bool(REFUSED[words])
    assert found.bottleneck == classes.WRONG and REFUSED[words] in found.because
    assert (known is None) == (found.directions[0].what == "see the first wrong element and its likely cause")
    assert len({item.command for item in found.directions}) >= 2
    assert known is None or known.remedy in feedback(tried(broken), "made", "float32")


@pytest.mark.parametrize(
    ("compiling", "cause"), [(True, "the compiler did not end"), (False, "the kernel did not end")]
)
def test_what_did_not_end_is_the_compilers_or_the_kernels(compiling, cause):
    late = Timeout(case=None, dtype="float32", limit_s=30.0, isolation="none", compiling=compiling)
    assert cause in diagnose(subject(None, verdict=late)).because


def test_a_bandwidth_stands_beside_the_criterion_of_the_seeds():
    criteria = {item.name: (item.criterion, item.met) for item in diagnose(CASES[classes.MEMORY]).evidence}
    assert criteria["bandwidth"] == ("> 60%", False)
    assert criteria["L2 hits, DRAM throughput, SM efficiency, warps active"][1] is None


def test_what_was_never_timed_is_not_called_wrong():
    assert diagnose(subject(None, verdict=Unsupported(reason="no"))).fraction is None


def test_a_faster_rival_is_a_direction_and_a_slower_one_is_not():
    found = diagnose(subject(0.02, rivals={"torch_eager": 0.01, "torch_compile": 0.5}))
    commands = [item.command for item in found.directions]
    assert "opforge compare made:cpp_rows made:torch_eager --workload big --dtype float32" in commands


def test_instructions_are_counted():
    found = counted([
        "  10:\tvfmadd213ps %zmm1,%zmm2,%zmm3", "  16:\tidiv   %rcx", "  19:\tvaddss %xmm1,%xmm2,%xmm3",
        "  20:\tvmovntps %zmm1,(%rax)", "  2a:\tvmovaps %zmm1,0x40(%rsp)", "  30:\tcall   10 <GOMP_parallel@plt>",
    ])  # fmt: skip
    assert (found.packed, found.scalar, found.divisions, found.on_stack, found.streamed) == (1, 1, 1, 1, 1)
    assert found.parallel and math.isclose(found.vector_share, 0.5)


NCU = """==PROF== Connected
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","fill","gpu__time_duration.sum","ns","1,000"
"0","fill","lts__t_sector_hit_rate.pct","%","99.00"
"1","mine","gpu__time_duration.sum","ns","25,000"
"1","mine","lts__t_sector_hit_rate.pct","%","41.50"
"1","mine","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","88.10"
"""


def test_of_a_table_of_ncu_the_longest_kernel_counts():
    found = counters_in(NCU.splitlines())
    assert (found.kernel, found.l2_hit_percent, found.dram_percent, found.sm_percent) == ("mine", 41.5, 88.1, None)
    assert counters_in(["==ERROR== nothing"]) is None
    assert "NVIDIA" in unreadable("cpu")


def msprof(folder, hits="73.5"):
    """Tables of `msprof op` with the columns of its documentation (inspect/msprof.py names the pages)."""
    made = folder / "OPPROF_20260101_000000_ABC"
    made.mkdir(parents=True)
    (made / "PipeUtilization.csv").write_text(
        "block_id,sub_block_id,aic_time(us),aic_total_cycles,aiv_time(us),aiv_total_cycles,aiv_vec_time(us),"
        "aiv_vec_ratio,aic_cube_ratio,aiv_scalar_ratio,aiv_mte2_time(us),aiv_mte2_ratio,aiv_mte3_ratio\n"
        "0,vector0,NA,NA,12.1,22000,3.1,0.25,NA,0.05,9.0,0.70,0.3\n"
        "1,vector1,NA,NA,12.3,22100,3.2,0.27,NA,0.07,9.1,0.74,0.3\n"
    )
    (made / "Memory.csv").write_text(
        "block_id,sub_block_id,aiv_gm_to_ub_bw(GB/s),GM_to_UB_bw_usage_rate(%),UB_to_GM_bw_usage_rate(%)\n"
        "0,vector0,41.2,66.0,31.0\n1,vector1,40.8,64.5,30.2\n"
    )
    (made / "L2Cache.csv").write_text(
        f"block_id,sub_block_id,aic_total_hit_rate(%),aiv_total_hit_rate(%)\n0,vector0,NA,{hits}\n"
    )
    return folder


def test_of_msprofs_tables_the_units_and_the_criteria_of_the_seeds_are_read(tmp_path):
    found = counters_at(msprof(tmp_path / "prof"))
    assert found == pytest.approx(
        {"vector_percent": 26, "scalar_percent": 6, "mte2_percent": 72, "dram_percent": 66, "l2_hit_percent": 73.5}
    )
    told = diagnose(subject(0.05, kind="npu", counters=found))
    evidence = {item.name: (item.value, item.criterion, item.met, item.source) for item in told.evidence}
    assert evidence["DRAM throughput"] == ("66 %", "> 60 %", True, "msprof")
    assert evidence["L2 hits"] == ("74 %", "> 80 %", False, "msprof")
    assert evidence["loads under way (MTE2)"][0] == "72 %" and "cube unit busy" not in evidence
    assert told.bottleneck == classes.CACHE


def test_what_a_profiler_left_is_read_from_a_file_too_and_nonsense_is_refused(tmp_path):
    table = tmp_path / "ncu.csv"
    table.write_text(NCU)
    assert counters_at(table) == {"l2_hit_percent": 41.5, "dram_percent": 88.1}
    table.write_text("nothing")
    for place, why in ((table, "no table of ncu"), (tmp_path / "none.csv", "cannot be read"), (tmp_path, "none of")):
        with pytest.raises(UsageError, match=why):
            counters_at(place)
    assert "msprof" in unreadable("npu") and "CANN" in unreadable("npu")
    words = ["diagnose", "softmax", "cpp_twopass", "--device", "cpu", "--counters", str(tmp_path)]
    answer = CliRunner().invoke(command_line(["diagnose"]), words)
    assert isinstance(answer.exception, UsageError) and "--device npu" in str(answer.exception)


def test_the_verb_measures_what_is_not_on_record_and_then_takes_the_record(guest):
    home = guest(eager="def run(x, bias):\n    return x + bias\n")
    words = ["--home", str(home), "diagnose", "guest_add", "torch_eager", "--dtype", "float32", "--device", "cpu"]
    runs = [CliRunner().invoke(command_line(["diagnose"]), [*words, "--json"]) for _ in range(2)]
    assert [run.exit_code for run in runs] == [0, 0], (runs[0].output, runs[0].exc_info)
    # a warning of a busy machine may stand before it
    first, second = (json.loads(run.stdout[run.stdout.index("{") :]) for run in runs)
    assert first["record"] == second["record"]
    assert first["diagnosis"]["workload"] == "tiny" and len(first["diagnosis"]["directions"]) >= 2
