"""Timing: how long verified implementations take, every sample kept, sides to be compared taking turns."""

from opforge.timing.measure import Contestant as Contestant, MeasurementFailed as MeasurementFailed, Plan as Plan, measure as measure
