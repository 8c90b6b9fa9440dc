"""A model by the words of a command line: a factory, a configuration of transformers, or a saved program, with inputs.

Nothing is downloaded: weights are random, and inputs are drawn by a fixed seed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from opforge.core.language.errors import EnvironmentLacks, UsageError, first_line, unknown

FORMS = (
    "Give package.module:factory, a configuration of transformers with its fields (LlamaConfig num_hidden_layers=2), a "
    "config.json, or a saved program (model.pt2)."
)
INSTALL = "pip install 'transformers>=5.24,<6'"
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model that can be called: `module(*args, **named, **fixed)`.

    name     what the user called it
    about    what was made, in words
    fixed    arguments that are no tensors, the same in every call
    labels   what a loss is asked with, of a model that computes its own; None where it has none
    meta     whether its tensors have shapes alone
    saved    whether it is a saved program, which stays in the mode, training or not, that it was saved in
    """

    name: str
    about: str
    module: torch.nn.Module
    args: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    labels: torch.Tensor | None = None
    meta: bool = False
    saved: bool = False


def load_model(
    name: str,
    fields: Sequence[str] = (),
    *,
    batch: int = 1,
    length: int = 128,
    dtype: str = "float32",
    device: str = "cpu",
    meta: bool = False,
) -> Loaded:
    """The model of a command line's words, with random weights. Raises UsageError, EnvironmentLacks.

    fields   `name=value` of a configuration; a value is JSON, or text
    batch, length   sequences or images at once, and tokens of a sequence, for inputs that are made here
    dtype    of floating-point weights and inputs
    meta     shapes alone: nothing is computed, and no memory is needed
    """
    kind = getattr(torch, dtype)
    torch.manual_seed(SEED)
    where = "meta" if meta else device
    if name.endswith(".pt2"):
        _no_fields(name, fields)
        return _saved(name, meta)
    if name.endswith(".json"):
        return _transformers_model(name, _config_of_file(Path(name), fields), batch, length, kind, where)
    if ":" in name:
        _no_fields(name, fields)
        return _of_factory(name, kind, where)
    if name.isidentifier() and name.endswith("Config"):
        return _transformers_model(name, _config_named(name, fields), batch, length, kind, where)
    raise UsageError(f"{name!r} names no model. {FORMS}")


def _no_fields(name: str, fields: Sequence[str]) -> None:
    if fields:
        raise UsageError(f"{name} takes no fields ({' '.join(fields)}): they are a configuration's. {FORMS}")


def _saved(name: str, meta: bool) -> Loaded:
    if not Path(name).is_file():
        raise UsageError(f"There is no file {name}. Save a program with: torch.export.save(program, {name!r})")
    if meta:
        raise UsageError(f"{name} has its weights: leave out --meta, or analyse the model that it was made from.")
    try:
        program = torch.export.load(name)
    except Exception as error:  # whatever a reader of archives raises: the file is not one
        raise UsageError(
            f"{name} is no saved program ({first_line(error)}). Save one with: torch.export.save(program, {name!r})"
        ) from error
    if program.example_inputs is None:
        raise UsageError(f"{name} was saved without its example inputs. Export it again with this torch, and save it.")
    args, named = program.example_inputs
    return Loaded(
        name=name, about=f"a saved program, {name}", module=program.module(), args=args, named=named, saved=True
    )


def _of_factory(name: str, dtype: torch.dtype, where: str) -> Loaded:
    module_name, _, attribute = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"{module_name} cannot be imported: {first_line(error)}. Name a module that Python finds from here, as "
            "package.module:factory."
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        near = [one for one in vars(module) if callable(getattr(module, one)) and not one.startswith("_")]
        raise unknown(f"function in {module_name}", attribute, near)
    try:
        with torch.device(where):
            made = factory()
    except Exception as error:  # a user's code may raise anything
        raise UsageError(
            f"{name} raised {type(error).__name__}: {first_line(error)}. Call it alone first: python -c "
            f'"from {module_name} import {attribute}; {attribute}()"'
        ) from error
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"{name} returned {type(model).__name__}, which is no torch.nn.Module. Return the module and its inputs: "
            "return module, (x,)"
        )
    if inputs is None:
        raise UsageError(f"{name} returned no inputs to call the module with. Return both: return module, (x,)")
    args, named = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    args = args if isinstance(args, tuple) else tuple(args) if isinstance(args, list) else (args,)
    model = model.to(dtype) if dtype != torch.float32 else model
    return Loaded(
        name=name,
        about=f"{type(model).__name__} of {name}",
        module=model,
        args=tuple(_converted(value, dtype, where) for value in args),
        named={key: _converted(value, dtype, where) for key, value in named.items()},
        meta=where == "meta",
    )


def _converted(value: Any, dtype: torch.dtype, where: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    floating = value.is_floating_point() and dtype != torch.float32
    return value.to(device=where, dtype=dtype if floating else value.dtype)


def transformers() -> Any:
    """The library, offline. Raises EnvironmentLacks where it is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise EnvironmentLacks(f"This model needs transformers, which is not installed. Install it with: {INSTALL}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    return importlib.import_module("transformers")


def _config_named(name: str, fields: Sequence[str]) -> Any:
    library = transformers()
    kind = getattr(library, name, None)
    if kind is None:
        known = [one for one in dir(library) if one.endswith("Config")]
        raise unknown("configuration of transformers", name, known)
    return _configured(kind, _fields(name, kind(), fields), name)


def _config_of_file(path: Path, fields: Sequence[str]) -> Any:
    library = transformers()
    if not path.is_file():
        raise UsageError(f"There is no file {path}. {FORMS}")
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}. Save one with: config.save_pretrained(folder)") from None
    kind = given.get("model_type") if isinstance(given, dict) else None
    if kind not in library.CONFIG_MAPPING:
        raise UsageError(
            f'{path} has no "model_type" that transformers {library.__version__} knows ({kind!r}). Save one with: '
            "config.save_pretrained(folder)"
        )
    made = library.CONFIG_MAPPING[kind]
    return _configured(made, {**given, **_fields(str(path), made(), fields)}, str(path))


def _configured(kind: Any, given: Mapping[str, Any], name: str) -> Any:
    try:
        return kind(**given)
    except Exception as error:  # each configuration has checks of its own
        raise UsageError(
            f"{name} does not take these fields: {first_line(error)}. See what it has: python -c "
            f'"from transformers import {kind.__name__}; print({kind.__name__}())"'
        ) from error


def _fields(name: str, default: Any, given: Sequence[str]) -> dict[str, Any]:
    """`name=value` texts as fields of a configuration. Raises UsageError for one that it has not."""
    known = {**default.to_dict(), **dict.fromkeys(default.attribute_map)}
    made: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{text!r} is no field. Write name=value, as in: num_hidden_layers=2")
        if key not in known:
            raise unknown(f"field of {name}", key, known)
        if key in made:
            raise UsageError(f"{key} is given twice. Give each field once.")
        made[key] = _value(value)
    return made


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _classes(library: Any, config: Any) -> Any:
    """The class that makes the whole model of a configuration, with its head where it has one."""
    named = [getattr(library, one, None) for one in config.architectures or ()]
    if named and named[0] is not None:
        return named[0]
    for auto in (
        library.AutoModelForSpeechSeq2Seq,
        library.AutoModelForSeq2SeqLM,
        library.AutoModelForMaskedLM,
        library.AutoModelForCausalLM,
        library.AutoModelForImageClassification,
        library.AutoModel,
    ):
        if type(config) in auto._model_mapping:
            return auto
    raise UsageError(
        f"transformers has no model for {type(config).__name__}. Take the configuration of its text or vision part, "
        "or write a factory: package.module:factory"
    )


def _transformers_model(name: str, config: Any, batch: int, length: int, dtype: torch.dtype, where: str) -> Loaded:
    kind = _classes(transformers(), config)
    make = getattr(kind, "from_config", None) or kind._from_config
    try:
        with torch.device(where):
            model = make(config, dtype=dtype)
    except Exception as error:  # a configuration whose fields do not fit together fails anywhere
        raise UsageError(
            f"No model can be made of {name} with these fields: {type(error).__name__}: {first_line(error)}. Change "
            "the fields that this names; sizes of heads and groups have to divide each other."
        ) from error
    inputs, labels = _inputs(model, batch, length, dtype, where)
    fixed = {"use_cache": False} if getattr(config.get_text_config(), "use_cache", None) is not None else {}
    size = sum(parameter.numel() for parameter in model.parameters())
    return Loaded(
        name=name,
        about=f"{type(model).__name__}, {_counted(size)} parameters in {str(dtype).removeprefix('torch.')}",
        module=model,
        named=inputs,
        fixed=fixed,
        labels=labels,
        meta=where == "meta",
    )


def _counted(size: int) -> str:
    """A number of parameters in words.

    >>> _counted(8_030_261_248), _counted(106_800)
    ('8.03 B', '0.1068 M')
    """
    return f"{size / 1e9:.4g} B" if size >= 1e9 else f"{size / 1e6:.4g} M"


def _inputs(
    model: Any, batch: int, length: int, dtype: torch.dtype, where: str
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    """What a model of transformers is called with, and labels for its loss, by the name of its main input."""
    config = model.config
    text = config.get_text_config()
    vocabulary = getattr(text, "vocab_size", 0)
    draw = torch.Generator().manual_seed(SEED)

    def ids() -> torch.Tensor:
        return torch.randint(0, max(1, vocabulary), (batch, length), generator=draw).to(where)

    if model.main_input_name == "pixel_values":
        size = getattr(config, "image_size", None) or 224
        sides = tuple(size) if isinstance(size, Sequence) else (size, size)
        pixels = torch.randn(batch, config.num_channels, *sides, generator=draw).to(where, dtype)
        return {"pixel_values": pixels}, torch.zeros(batch, dtype=torch.long, device=where)
    if model.main_input_name == "input_features":
        frames = 2 * config.max_source_positions
        features = torch.randn(batch, config.num_mel_bins, frames, generator=draw).to(where, dtype)
        words = ids()[:, : config.max_target_positions]
        return {"input_features": features, "decoder_input_ids": words}, words
    if model.main_input_name == "input_ids" and vocabulary:
        words = ids()
        more = {"decoder_input_ids": words} if config.is_encoder_decoder else {}
        return {"input_ids": words, **more}, words
    raise UsageError(
        f"{type(model).__name__} wants {model.main_input_name}, which cannot be made here. Write a factory that "
        "returns the module and its inputs: package.module:factory"
    )
