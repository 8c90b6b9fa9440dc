"""Operators in other processes and under other conditions: started with spawn and fork, a read-only home directory, no
compiler, streams and CUDA graphs.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap

import pytest
import torch

from opforge import ops

pytestmark = pytest.mark.own_servers


def answers(rows: list[list[float]]) -> tuple[list[list[float]], list[list[float]]]:
    """A result and a gradient, as a worker of a server computes them. Lists, since tensors that are sent between
    processes need a thread that a forked one does not have.
    """
    leaf = torch.tensor(rows, requires_grad=True)
    result = ops.softmax(leaf)
    return result.tolist(), torch.autograd.grad(result.square().sum(), leaf)[0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_of_either_kind_compute_the_same(method, front_door):
    """Forked ones have what was prepared already, spawned ones find their own. One thread each, as the workers of
    torch's DataLoader have: after a fork PyTorch itself waits for threads of OpenMP that are not there.
    """
    rows = torch.linspace(-1, 1, 12).reshape(3, 4).tolist()
    wanted = answers(rows)
    with multiprocessing.get_context(method).Pool(2, torch.set_num_threads, (1,)) as pool:
        for found in pool.map_async(answers, [rows, rows, rows]).get(timeout=200):
            assert found == wanted


def under(code: str, **environment: str | None) -> str:
    """What a new process prints and warns, under an environment in which None leaves a name out."""
    everything = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={name: value for name, value in everything.items() if value is not None},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


CALLS = """
    import torch
    from opforge import ops
    x = torch.randn(3, 5, requires_grad=True)
    y = ops.softmax(x)
    torch.testing.assert_close(y, x.softmax(-1))
    torch.autograd.grad(y.square().sum(), x)
    print(ops.softmax.why(x))
"""


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_no_obstacle():
    """/proc takes files of nobody, not even of root. Calls run, and one warning says where records could go."""
    said = under(CALLS, HOME="/proc", XDG_CACHE_HOME=None, XDG_DATA_HOME=None, OPFORGE_CACHE=None, OPFORGE_STORE=None)
    assert "softmax → torch_eager" in said
    assert "looks at no records of yours" in said and "Point OPFORGE_STORE at a file" in said


@pytest.mark.slow
def test_without_a_compiler_calls_run_and_kernels_say_what_to_install(tmp_path):
    said = under(
        CALLS
        + """
    import opforge
    from opforge.core.language.errors import EnvironmentLacks
    try:
        opforge.get_kernel("cpp", "softmax")(x.detach())
    except EnvironmentLacks as error:
        print(error)
""",
        PATH="/nonexistent",
        OPFORGE_CACHE=str(tmp_path / "cache"),
        OPFORGE_STORE=str(tmp_path / "records.sqlite"),
    )
    assert "softmax → torch_eager" in said and "install one with: apt-get install g++" in said


@pytest.mark.gpu
def test_calls_follow_the_current_stream(front_door):
    """A kernel on another stream would read what is not there yet."""
    side = torch.cuda.Stream()
    x = torch.randn(64, 4096, device="cuda")
    ops.softmax(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late = x * 2
        found = ops.softmax(late)
    side.synchronize()
    torch.testing.assert_close(found, (x * 2).softmax(-1))


@pytest.mark.gpu
@pytest.mark.parametrize("kept", [False, True])
def test_a_cuda_graph_replays_calls_on_new_contents(kept, front_door):
    """Captured after one call outside of it, as torch.cuda.graph asks; with the gradient too."""
    x = torch.randn(64, 4096, device="cuda", requires_grad=kept)

    def call():
        y = ops.softmax(x)
        return (y.detach(), *torch.autograd.grad(y.square().sum(), x)) if kept else (y,)

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(captured, call())


@pytest.mark.gpu
def test_replicas_of_data_parallel_compute_the_same(front_door):
    """Each GPU has a thread of its own."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    from opforge import nn

    model = torch.nn.Sequential(nn.RMSNorm(64, eps=1e-5), nn.Softmax(dim=-1)).cuda()
    x = torch.randn(8, 64, device="cuda")
    torch.testing.assert_close(torch.nn.DataParallel(model)(x), model(x))
