"""Workers that are kept between a verification and its workloads, and what makes one unfit to be kept."""

from types import SimpleNamespace
from typing import Any

import pytest

from opforge.runner import WorkerDied
from opforge.runner.wire.messages import Done, Release
from opforge.verify import WorkerPool

pytestmark = pytest.mark.own_servers


class Hand:
    """A worker that remembers what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[Release] = []
        self.closed = False
        self.dead = False

    def request(self, question: Release, fds: object = (), limit_s: float = 0.0) -> Done:
        if self.dead:
            raise WorkerDied(-9, "")
        self.asked.append(question)
        return Done()

    def printed(self) -> None:
        return None

    def compiled_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pool() -> WorkerPool:
    made: list[Hand] = []

    def worker(environment: object) -> Hand:
        made.append(Hand())
        return made[-1]

    return WorkerPool(host=SimpleNamespace(worker=worker, made=made), device="cpu")  # type: ignore[arg-type]


def implementation(name: str, backend: str = "cpp") -> Any:
    return SimpleNamespace(name=name, backend=backend, space={})


def test_one_process_serves_verification_and_workload(pool):
    """A new process costs an import and a device context; and what it was bound to is let go."""
    first = pool.take(implementation("cpp_a"))
    pool.leave(implementation("cpp_a"), first, whole=True, launches=(3, 4))
    assert [question.launch for question in first.asked] == [4, 3]
    assert pool.take(implementation("cpp_a")) is first
    assert pool.take(implementation("cpp_b")) is not first


def test_what_failed_is_not_used_again(pool):
    """After a wrong answer or a refused time the process is not to be trusted with the next."""
    first = pool.take(implementation("cpp_a"))
    pool.leave(implementation("cpp_a"), first, whole=False)
    assert first.closed
    assert pool.take(implementation("cpp_a")) is not first


def test_one_that_dies_while_it_lets_go_is_not_kept(pool):
    first = pool.take(implementation("cpp_a"))
    first.dead = True
    pool.leave(implementation("cpp_a"), first, whole=True, launches=(1,))
    assert first.closed
    assert not pool.idle


def test_torch_compile_makes_code_of_a_workloads_own_shape_in_a_process_that_has_seen_others(monkeypatch):
    """Dynamo makes what it has seen in two shapes dynamic: a slower baseline than its users have. Copies of the same
    call share the code.
    """
    import torch._dynamo

    from opforge.backends import Call, torch_eager
    from opforge.registry import load

    operator = load(()).operator("silu")
    resets: list[str] = []
    asked: list[bool | None] = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(str(len(asked))))
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: asked.append(dynamic) or function)
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", torch._dynamo.config.recompile_limit)
    monkeypatch.setattr(
        torch._dynamo.config, "fail_on_recompile_limit_hit", torch._dynamo.config.fail_on_recompile_limit_hit
    )
    compiled = next(item for item in load(()).implementations("silu") if item.backend == "compile")
    first, second = operator.workloads[:2]
    for axes in (operator.cases[0].axes, first.axes, first.axes, second.axes):
        torch_eager.TorchCompile().prepare(
            compiled,
            Call(operator=operator, axes=axes, dtype="float32", scalars={}, config=compiled.default, device="cpu"),
        )
    assert asked == [True, None, None, None]
    assert resets == ["1", "3"]


def test_no_worker_outlives_its_crew(pool):
    one, two = pool.take(implementation("cpp_a")), pool.take(implementation("cpp_b"))
    pool.leave(implementation("cpp_a"), one, whole=True)
    pool.close()
    pool.leave(implementation("cpp_b"), two, whole=True)
    assert one.closed
    assert two.closed
