"""Bind, validate, isolate: an implementation tied to tensors, in a process of its own."""

from opforge.runner.parent.client import (
    ServerDied as ServerDied,
    Worker as Worker,
    WorkerDied as WorkerDied,
    WorkerLate as WorkerLate,
)
from opforge.runner.parent.forkserver_client import RELIEF as RELIEF
from opforge.runner.parent.host import Host as Host, InProcess as InProcess, Isolated as Isolated
from opforge.runner.worker.arena import Arena as Arena
from opforge.runner.worker.inputs import (
    allocate as allocate,
    distinct as distinct,
    fill as fill,
    fresh_seed as fresh_seed,
)
from opforge.runner.worker.launch import (
    ContractBroken as ContractBroken,
    Launch as Launch,
    bind as bind,
    check_returned as check_returned,
    refused as refused,
)
