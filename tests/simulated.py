"""Stand-ins for tests: records made from what a test cares about, a machine that drifts, an operator that can be made
slow.
"""

import datetime
import math
import random
import uuid

from opforge.core.definition.implementation import Config
from opforge.core.definition.operator import Case, Cost
from opforge.core.evidence.record import Environment, Record
from opforge.core.evidence.timing import Timing
from opforge.core.evidence.verdict import Checked, Metrics, Pass

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def metrics(p99=1e-6, elements=4096, output="y", clip_ratio=0.0):
    """Metrics of an output whose 99th percentile of the absolute error is `p99`, and so many of whose elements are
    clipped.
    """
    values = dict.fromkeys(
        (
            "max_abs",
            "mean_abs",
            "max_rel",
            "mean_rel",
            "l2_rel",
            "max_ulp",
            "worst_expected",
            "worst_actual",
            "worst_bound",
            "kl",
        ),
        p99,
    )
    return Metrics(
        output=output,
        elements=elements,
        quantiles_abs=(p99 / 4, p99 / 2, p99),
        cosine=1.0,
        sqnr_db=100.0,
        worst_ratio=0.1,
        worst_index=(0,),
        histogram=(elements,),
        clip_ratio=clip_ratio,
        **values,
    )


def passed(p99=1e-6, workload="some", **fields):
    """A Pass that checked one workload."""
    case = Case(name=workload, axes={"n": 8}, why="a test")
    return Pass(
        checked=(Checked(case=case, dtype="float32", metrics=(metrics(p99, **fields),)),),
        not_taken=(),
        isolation="none",
    )


def record(
    median_s=1e-3,
    *,
    day=0,
    run="run",
    workload="some",
    implementation="torch_eager",
    operator="softmax",
    verdict=None,
    facts=None,
    spread=0.01,
    suspect=None,
    samples=30,
):
    """A timed Record; `day` orders records."""
    seconds = tuple(median_s * (1 + spread * (position / (samples - 1) - 0.5)) for position in range(samples))
    timing = Timing(
        samples_s=seconds, batch=1, timer="host", cache="warm", overhead_s=1e-8, conditions=(), suspect=suspect
    )
    return Record(
        id=uuid.uuid4().hex,
        created_at=(START + datetime.timedelta(days=day)).isoformat(timespec="milliseconds"),
        operator=operator,
        implementation=implementation,
        backend=implementation.partition("_")[0],
        source_sha256="0" * 64,
        workload=workload,
        axes={"n": 8},
        scalars={},
        dtype="float32",
        device="cpu",
        config=Config(),
        cost=Cost(flops=1, bytes_read=1, bytes_written=1),
        verdict=verdict or passed(workload=workload),
        timing=timing,
        roof_s=None,
        limiter=None,
        environment=Environment(device="cpu", host="here", facts=facts or {"python": "3.11"}),
        run=run,
    )


def noisy(seed, slower=0.0, spread=0.02, disturbed=0.05):
    """Two sides on a simulated machine that drifts, and at times is three times as slow for a while."""
    generator = random.Random(seed)
    drift = [1.0]

    def take(factor):
        def sample():
            drift[0] *= math.exp(generator.gauss(0, 0.01))
            spike = 3.0 if generator.random() < disturbed else 1.0
            return 1e-3 * factor * drift[0] * spike * math.exp(generator.gauss(0, spread))

        return sample

    return take(1 + slower), take(1.0)


def make_home(tmp_path):
    """An operator with an implementation that works twelve times over, and one that is wrong."""
    folder = tmp_path / "home" / "twice"
    folder.mkdir(parents=True)
    (folder / "op.py").write_text(
        "from opforge.core.operator import Case, Operator, TensorSpec, Workload\n"
        "def reference(x):\n    return x + x\n"
        "operator = Operator(name='twice', about='y = 2x', inputs=(TensorSpec(name='x', shape='rows cols'),), "
        "outputs=(TensorSpec(name='y', shape='rows cols'),),\n"
        "    reference=reference, flops='rows * cols', dtypes=('float32',), cases=(Case(name='small', "
        "axes={'rows': 3, 'cols': 5}, why='odd'),),\n"
        "    workloads=(Workload(name='some', axes={'rows': 64, 'cols': 256}, source='made up', scale='laptop'),),\n"
        "    implementations=('torch_eager', 'torch_slow', 'torch_wrong'))\n"
    )
    (folder / "torch_eager.py").write_text('"""Once."""\n\n\ndef run(x):\n    return x + x\n')
    (folder / "torch_slow.py").write_text(
        '"""Over and over."""\n\n\ndef run(x):\n    for _ in range(12):\n        y = x + x\n    return y\n'
    )
    (folder / "torch_wrong.py").write_text('"""Three times."""\n\n\ndef run(x):\n    return 3 * x\n')
    return tmp_path / "home"
