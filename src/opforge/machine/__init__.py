"""What machine this is, in what state, and what it can do at best."""

from opforge.machine.catalogue import descriptors as descriptors, detect as detect
from opforge.machine.ceilings import measure_ceilings as measure_ceilings
from opforge.machine.distortions import warnings as warnings
from opforge.machine.facts import environment as environment
from opforge.machine.kept import hardware as hardware, load_ceilings as load_ceilings
