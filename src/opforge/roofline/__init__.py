"""Work against a device's ceilings: how fast at best, how near, and what is too good to be true."""

from opforge.roofline.layouts import Conversion as Conversion, estimate_conversion as estimate_conversion
from opforge.roofline.limits import (
    Achieved as Achieved,
    Bound as Bound,
    achieved as achieved,
    bound as bound,
    suspect as suspect,
)
from opforge.roofline.rates import compute_rate as compute_rate, memory_rate as memory_rate
