"""Finds pipelines: HOME/pipelines/NAME.py, each with `pipeline = Pipeline(...)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opforge.core.definition.pipeline import Pipeline
from opforge.core.language.errors import UsageError, unknown
from opforge.registry.discovery import PACKAGE_HOME, Registry
from opforge.registry.guest_modules import load_module

FOLDER = "pipelines"


def pipeline_files(registry: Registry) -> Mapping[str, Path]:
    """Pipeline name -> file, over all homes. Raises UsageError where two have one name."""
    found: dict[str, Path] = {}
    for home in registry.homes:
        for path in sorted((home.path / FOLDER).glob("*.py")):
            if path.stem.startswith("_"):
                continue
            if path.stem in found:
                raise UsageError(f"Pipeline {path.stem!r} is defined twice: {found[path.stem]} and {path}. Rename one.")
            found[path.stem] = path
    return found


def load_pipeline(registry: Registry, name: str) -> Pipeline:
    """The pipeline of that name, its operators looked up. Raises UsageError with what is wrong, and where."""
    files = pipeline_files(registry)
    if name not in files:
        raise unknown("pipeline", name, files)
    path = files[name]
    module = load_module("pipeline", name, path, guest=not path.is_relative_to(PACKAGE_HOME))
    pipeline = getattr(module, "pipeline", None)
    if not isinstance(pipeline, Pipeline) or pipeline.name != name:
        raise UsageError(f"{path} defines no `pipeline = Pipeline(name={name!r}, …)`. See: docs/verification.md")
    for stage in pipeline.stages:
        operator = registry.operator(stage.operator)
        named = {spec.name for spec in operator.inputs}
        for given in stage.inputs:
            if given not in named:
                raise UsageError(
                    f"{path}: stage {stage.name!r} gives {stage.operator} an input {given!r}. It has: "
                    f"{', '.join(sorted(named))}."
                )
    return pipeline
