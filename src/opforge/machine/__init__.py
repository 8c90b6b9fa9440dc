"""What machine this is, in what state, and what it can do at best."""

from opforge.machine.catalogue import descriptors as descriptors, detect as detect
from opforge.machine.ceilings import (
    ensure_ceilings as ensure_ceilings,
    measure_ceilings as measure_ceilings,
    renewed_ceilings as renewed_ceilings,
)
from opforge.machine.distortions import warnings as warnings
from opforge.machine.environments import environment as environment, tracked_root as tracked_root
from opforge.machine.named import described as described, device_named as device_named, problems as problems
from opforge.machine.saved_ceilings import hardware as hardware, load_ceilings as load_ceilings
