"""The one way to try a candidate: bind it, check it, time it, audit its time, record what is believed of it."""

from opforge.trial.adequacy_gate import ensure_adequate as ensure_adequate
from opforge.trial.audit import (
    BRIEFLY as BRIEFLY,
    believed as believed,
    outrun as outrun,
    still_right as still_right,
    unseen_contents as unseen_contents,
)
from opforge.trial.baselines import on_the_workload as on_the_workload
from opforge.trial.binding import (
    NotReady as NotReady,
    Point as Point,
    Ready as Ready,
    bind as bind,
    get_ready as get_ready,
    leave as leave,
    start_ahead as start_ahead,
)
from opforge.trial.case_check import check as check
from opforge.trial.compile_ahead import (
    compile_seconds as compile_seconds,
    compiled_now as compiled_now,
    compiling_ahead as compiling_ahead,
    compiling_without_torch as compiling_without_torch,
)
from opforge.trial.far_values import far_values as far_values
from opforge.trial.recording import recorded as recorded
from opforge.trial.setting import Clock as Clock, Setting as Setting
