"""A pipeline: operators one after another, the output of one an input of the next. Declared once, it is a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opforge.core.definition.operator import ScalarValue
from opforge.core.definition.shapes import Axes
from opforge.core.language.errors import UsageError
from opforge.core.language.fields import check_fields


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One operator of a pipeline.

    name      what its output is called further on; of an operator with several outputs, the first
    axes      the operator's axes, by those of the pipeline: a name, or a tuple of names for an axis like *rows
    inputs    which of its inputs are values of the pipeline: input -> name of an earlier stage, or of a tensor that
              the first stage to name it draws. All others are drawn for this stage
    """

    name: str
    operator: str
    axes: Mapping[str, str | tuple[str, ...]]
    inputs: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, ScalarValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    def sizes(self, given: Mapping[str, int]) -> Axes:
        """The operator's axes where the pipeline's have these sizes.

        >>> Stage(name="h", operator="linear", axes={"rows": ("r",), "k": "w"}).sizes({"r": 7, "w": 65})
        {'rows': (7,), 'k': 65}
        """
        return {
            axis: given[names] if isinstance(names, str) else tuple(given[name] for name in names)
            for axis, names in self.axes.items()
        }


@dataclass(frozen=True, kw_only=True)
class PipelineCase:
    """Sizes of a pipeline's axes, and why they are asked."""

    name: str
    axes: Mapping[str, int]
    why: str

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Stages in order. What the last one gives is the pipeline's result."""

    name: str
    about: str
    stages: tuple[Stage, ...]
    cases: tuple[PipelineCase, ...]
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")

    def __post_init__(self) -> None:
        check_fields(self)
        names = [stage.name for stage in self.stages]
        if len(names) < 2 or len(set(names)) < len(names):
            raise UsageError(f"Pipeline {self.name!r} needs two stages or more, each with a name of its own.")
        for before, stage in zip(names, self.stages[1:], strict=False):
            if before not in stage.inputs.values():
                raise UsageError(
                    f"Stage {stage.name!r} of pipeline {self.name!r} takes nothing from {before!r}, the one before it. "
                    f"Say which of its inputs that is: inputs={{'x': {before!r}}}."
                )
        for case in self.cases:
            for stage in self.stages:
                wanted = [n for named in stage.axes.values() for n in ((named,) if isinstance(named, str) else named)]
                missing = sorted({name for name in wanted if name not in case.axes})
                if missing:
                    raise UsageError(
                        f"Case {case.name!r} of pipeline {self.name!r} gives no size for {', '.join(missing)}, which "
                        f"stage {stage.name!r} names. Add it to the case's axes."
                    )
        if not self.cases:
            raise UsageError(f"Pipeline {self.name!r} has no case. Add PipelineCase(name=…, axes=…, why=…).")
