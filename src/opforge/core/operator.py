"""The public path of what an op.py is made of: `from opforge.core.operator import Case, Operator, TensorSpec`."""

from opforge.core.definition.operator import (
    DOMAINS as DOMAINS,
    Case as Case,
    Constraint as Constraint,
    Cost as Cost,
    Law as Law,
    Like as Like,
    Lowered as Lowered,
    Operator as Operator,
    Scalar as Scalar,
    ScalarValue as ScalarValue,
    TensorSpec as TensorSpec,
    Ties as Ties,
    Tolerance as Tolerance,
    Workload as Workload,
)
