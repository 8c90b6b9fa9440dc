"""The red team's kernels that need a GPU: side streams, early returns, pinned caches, poisoned contexts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.redteam import campaign, gpu_lanes
from tests.redteam.cheats import cheats
from tests.redteam.on_gpu import HOME


@pytest.mark.gpu
def test_every_count_of_the_gpu_campaign_is_reached(monkeypatch):
    """A clock that can be told lies, or a poisoned context that fails its neighbour, makes every figure from a GPU
    worthless.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said: list[str] = []
    counts = campaign.run(campaign.QUICK, said.append, ["gpu"])
    assert all(count.holds for count in counts), "\n".join((*said, campaign.table(counts)))


def test_the_catalogue_for_gpus_names_guards_that_exist():
    """What cannot run here can still be read here: each file says its family, its guard and how it is shown."""
    from tests.redteam.lowered import lowered

    found = cheats(HOME)
    assert len(found) >= 40
    for cheat in found:
        assert cheat.family in "ABCDEM", cheat
        assert cheat.mode in ("verify", "time", "time-out", "time-cold", "cold"), cheat
        for guard in (cheat.guard, *cheat.also):
            with lowered(guard):
                pass


def test_each_cheat_is_asked_with_its_guard_up_and_down():
    """One that is in no lane would be counted as caught by nobody noticing."""
    chosen, verdicts, times, down = gpu_lanes.planned((), "cuda")
    assert {cheat.name for cheat in chosen} == {cheat.name for cheat in cheats(HOME)} and len(chosen) >= 60
    keys = [task.key() for task in (*verdicts, *times, *down)]
    assert len(keys) == len(set(keys)) == 2 * len(chosen) - 1 + len(gpu_lanes.HONEST)  # cold: up and down in one
    assert all(gpu_lanes.path_of(task).exists() for task in (*verdicts, *times, *down))


def test_what_was_not_asked_is_not_called_caught():
    """An empty table, and one where a cheat does not compile, are failures."""
    chosen = cheats(HOME)[:2]
    first, second = (f"{cheat.operator}/{cheat.name}" for cheat in chosen)
    told, whole = gpu_lanes.report({}, chosen, [], 0.0)
    assert not whole and f"not asked: {first}, {second}" in told and "caught 0" in told
    found = {
        f"{name} {question}": {"holds": True, "words": ""}
        for name in (first, second)
        for question in ("caught", "passes")
    }
    assert gpu_lanes.report(found, chosen, [], 0.0)[1]
    found[f"{first} passes"] = {"holds": False, "words": "without bound Mismatch in special: NaN is lost"}
    told, whole = gpu_lanes.report(found, chosen, [], 0.0)
    assert not whole and f"still caught: {first}: without bound Mismatch in special" in told
    found[f"{second} caught"] = {"holds": False, "words": "the cheat itself does not work here"}
    told, whole = gpu_lanes.report(found, chosen, [], 0.0)
    assert not whole and f"through: {second}: the cheat itself" in told
    (cold,) = [cheat for cheat in cheats(HOME) if cheat.mode == "cold"]
    entry = {f"{cold.operator}/{cold.name} cold": {"holds": False, "words": "9.9 us with the guard"}}
    told, whole = gpu_lanes.report(entry, [cold], [], 0.0)
    assert not whole and f"through: {cold.operator}/{cold.name}: 9.9 us with the guard" in told
    assert gpu_lanes.DEFECT.search("Broken: CompilationFailed: The compiler refused the source")


@pytest.mark.parametrize(
    ("server", "answer"),
    [("import sys\nfor line in sys.stdin: print('[true, \"\", 0.0]', flush=True)", (True, "", 0.0)), ("", None)],
    ids=["answers", "ends at once"],
)
def test_a_lane_that_has_ended_holds_no_file(tmp_path, monkeypatch, server, answer):
    """An open pipe is a warning whenever it is collected, which is in somebody else's test."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "redteam_gpu.py").write_text(server)
    monkeypatch.setattr(gpu_lanes, "ROOT", tmp_path)
    lane = gpu_lanes.Lane("cpu", tmp_path / "log")
    assert lane.ask(gpu_lanes.Task("rt_double", "torch_honest", "caught")) == answer
    lane.end()
    assert lane.process.returncode is not None
    assert lane.process.stdin.closed and lane.process.stdout.closed and lane.log.closed


def test_what_a_file_keeps_is_asked_again_for_other_sources(tmp_path):
    """A kernel that was changed since is another one."""
    task = gpu_lanes.planned((), "cuda")[1][0]
    kept = tmp_path / "kept"
    gpu_lanes.Campaign(kept, 1.0, tmp_path / "log", "cuda", lambda words: None).note(task, (True, "Mismatch", 0.1))
    assert gpu_lanes.Campaign(kept, 1.0, tmp_path / "log", "cuda").known(task)
    kept.write_text(kept.read_text().replace('"source": "', '"source": "0'))
    assert not gpu_lanes.Campaign(kept, 1.0, tmp_path / "log", "cuda").known(task)


def test_a_library_kernel_beside_a_files_own_is_named():
    """Python sees nothing of a product that cuBLAS was asked for by its name; the device's trace does."""
    from opforge.runner.worker.device_kernels import foreign

    own = ["double", "Memcpy DtoD (Device -> Device)"]
    assert foreign(own, {"double"}, moved=0) == []
    assert foreign([*own, "ampere_sgemm_64x64_nn"], {"double"}, moved=0) == ["the device ran ampere_sgemm_64x64_nn"]
    library = b"\0_ZN53_GLOBAL__N__00000000_9_cuda_x_cu5twiceEPKfPfi\0"
    assert foreign(["(anonymous namespace)::twice(float const*, float*, int)"], library, moved=0) == []
    assert foreign(["void cutlass::Kernel2<sgemm>(sgemm::Params)"], library, moved=0)
    # what only makes memory is PyTorch's to fill
    filled = ["double", "void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>(int)"]
    assert foreign(filled, {"double"}, moved=1) == []


def test_no_more_than_a_few_calls_are_traced():
    """Each trace takes longer than a call: the first is looked at, and then a few that nobody can tell before."""
    from types import SimpleNamespace

    from opforge.runner.worker.device_kernels import MOST_LOOKS, DeviceWatch

    watch = DeviceWatch(SimpleNamespace(backend="triton"), None, "cuda")
    looked = [watch.looks() for _ in range(1000)]
    assert looked[0] and sum(looked) == MOST_LOOKS
    assert not DeviceWatch(SimpleNamespace(backend="torch"), None, "cuda").looks()
