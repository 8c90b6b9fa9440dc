"""`opforge new NAME`: an operator's folder that runs, from a formula or a definition where one is given."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import Json, checked, print_json, settings
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from opforge.forge import Definition
    from opforge.forge.generate import More


def new(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The operator's name: lower-case letters, digits, underscores.")],
    home: Annotated[
        Path | None,
        typer.Option(
            help="The folder of operator folders to put it into. Default: the one given before the verb, else "
            "operators."
        ),
    ] = None,
    formula: Annotated[
        str | None,
        typer.Option(help='Generate it from a formula: "out = silu(x[*lead, cols] * scale[cols])". See docs/forge.md.'),
    ] = None,
    definition: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Generate it from a definition in YAML, a definition document or task book in Markdown, linalg text "
            "(FILE.mlir, or FILE.mlir:function for one of several), or a task of flashinfer-trace or SOL-ExecBench "
            "(.json, or a problem's folder), BackendBench (suite.txt:aten.relu.default) or KernelBench (.py).",
        ),
    ] = None,
    like: Annotated[
        str,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Generate what a PyTorch function or nn.Module computes. The file is run. Its example_inputs() or "
            "get_inputs() gives example tensors.",
        ),
    ] = "",
    example: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZES", help="The sizes of an example tensor for --like: 4x64; one for each input."),
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="A parameter of the formula with its default.")
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A result of the formula that is returned. Default: the last one."),
    ] = None,
    ask: Annotated[
        str | None,
        typer.Option(
            metavar="SENTENCE",
            help="Let a language model (OPFORGE_MODEL_URL, OPFORGE_MODEL, OPFORGE_MODEL_KEY) make a definition of a "
            "sentence, in English or Chinese. It is shown, and nothing is written before you say yes.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --ask: write without being asked, as scripts do.")] = False,
    lang: Annotated[
        str,
        typer.Option(help="The definition document's language: en or zh. Default: that of the document that is read."),
    ] = "",
    backend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Write this backend's kernel too, beside PyTorch, Triton and C++: cuda, tilelang; ascend for a "
            "wrapper of the Triton kernel on an NPU, ascendc for AscendC by TileLang. May be given several times.",
        ),
    ] = None,
    show_ir: Annotated[
        bool, typer.Option("--show-ir", help="Print what the formula computes and costs, and write nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Make an operator's folder that runs as it stands: a square on five backends, or what a formula or a definition
    says in PyTorch, Triton and C++.
    """
    from opforge.forge import create, generate
    from opforge.forge.write.backends import ON_REQUEST

    given = settings(context)
    folder = home or (*given.homes, Path("operators"))[0]
    more: More | None = None
    left_out: tuple[str, ...] = ()
    if example and not like:
        raise UsageError("--example belongs to --like. A formula says its axes, not their sizes.")
    if output and (formula is None or definition is not None):
        raise UsageError("--output belongs to --formula. A definition file has its own field: outputs.")
    if yes and ask is None:
        raise UsageError("--yes belongs to --ask. Without a model nothing is asked.")
    if ask is not None:
        if formula is not None or definition is not None or parameter or like:
            raise UsageError("--ask says all of the definition. Leave out --formula, --from, --like and --parameter.")
        from opforge.forge.write.new import checked_folder

        checked_folder(given.registry(), name, folder)
        asked: Definition | None = _asked(name, ask, quiet=json)
        if not show_ir:
            _confirmed(name, yes=yes)
        lang = lang or _language_of(ask)
    elif like:
        if formula is not None or definition is not None or parameter:
            raise UsageError("--like says all of the definition. Leave out --formula, --from and --parameter.")
        from opforge.forge.program.definition import definition_of
        from opforge.forge.read.apart import apart
        from opforge.forge.read.traced import traced_fields

        fields = apart(traced_fields, like, name, [_example(one) for one in example or []])
        asked = definition_of(fields, name, like)
    elif definition is not None and _is_task(definition):
        if formula is not None or parameter:
            raise UsageError("A task says all of the definition. Leave out --formula and --parameter.")
        from opforge.forge.suites.tasks import one_task

        prepared = one_task(definition).prepare(name)
        asked, more = prepared.definition, prepared.more
        left_out = prepared.left_out
        definition = None
    else:
        asked = _definition(name, formula, definition, parameter or [], output or [])
    backends = tuple(checked("backend", backend or [], ON_REQUEST))
    if show_ir:
        if asked is None:
            raise UsageError('--show-ir shows a formula. Add --formula "out = silu(x)" or --from FILE.')
        from opforge.forge import explained

        text = explained(asked)
        if json:
            print_json({"ir": text.splitlines()})
        else:
            typer.echo(text)
        return
    if asked is None:
        if backend:
            raise UsageError("--backend adds a kernel to a definition. Say what to define: --formula or --from.")
        if lang:
            raise UsageError("--lang is the definition document's language. Say what to define: --formula or --from.")
        written = create(given.registry(), name, folder)
    else:
        written = generate(given.registry(), asked, folder, lang or _language(definition), more, backends)
    if json:
        print_json([str(path) for path in written])
        return
    for path in written:
        typer.echo(f"wrote {path}")
    for reason in left_out:
        typer.echo(f"left out: {reason}")
    typer.echo(f"next: opforge --home {shlex.quote(str(folder))} bench {name}")


def _definition(
    name: str, formula: str | None, file: Path | None, parameters: list[str], outputs: list[str]
) -> Definition | None:
    """What is asked for; None for the plain folder."""
    from opforge.forge import from_formula, number_of, read_definition, read_linalg
    from opforge.forge.read.documents import read_document

    markdown = file is not None and file.suffix.lower() in (".md", ".markdown")
    if formula is not None and file is not None and not markdown:
        raise UsageError("--formula and --from both say what to make. Give one of them.")
    if parameters and (formula is None or file is not None):
        raise UsageError("--parameter belongs to --formula. A definition file has its own field: parameters.")
    if file is not None:
        path, function = _function_of(file)
        if path.suffix.lower() == ".mlir":
            return read_linalg(path, name, function)
        return read_document(file, name, formula) if markdown else read_definition(file, name)
    if formula is None:
        return None
    values: dict[str, float] = {}
    for one in parameters:
        key, sign, value = one.partition("=")
        if not sign or not key.strip():
            raise UsageError(f"--parameter {one!r} has no name and number. Write: --parameter eps=1e-5")
        values[key.strip()] = number_of(key.strip(), value.strip())
    return from_formula(name, formula, values, outputs)


def _asked(name: str, sentence: str, *, quiet: bool) -> Definition:
    """What a model makes of a sentence, shown."""
    from opforge.cli.progress import telling
    from opforge.forge.loop.model_client import ask as ask_model, endpoint_from
    from opforge.forge.read.ask import ANSWER_TOKENS, definition_asked, shown

    endpoint = endpoint_from()
    with telling(quiet=quiet) as say:
        say(f"asking {endpoint.model}")
        found = definition_asked(
            sentence, name, lambda messages: ask_model(endpoint, messages, max_tokens=ANSWER_TOKENS)
        )
    if not quiet:
        typer.echo(shown(found.text).rstrip())
        repairs = f", {found.repairs} repaired" if found.repairs else ""
        typer.echo(f"# by {shown(endpoint.model)}{repairs}, {found.tokens} tokens. Read it: a model may be wrong.")
    return found.definition


def _confirmed(name: str, *, yes: bool) -> None:
    """Ends the command, with nothing written, unless somebody says yes. Raises UsageError where nobody can."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "Nothing was written: there is no terminal to say yes on. Add --yes, or keep the definition in a file and "
            f"read it: opforge new {name} --from FILE.yaml"
        )
    if not typer.confirm(f"Make {name} of it?"):
        typer.echo("Nothing was written.")
        raise typer.Exit(1)


def _is_task(file: Path) -> bool:
    """Whether --from names a task of a benchmark, by the file's name."""
    suffixes = (".json", ".txt", ".parquet", ".py")
    return file.is_dir() or file.suffix.lower() in suffixes or any(f"{one}:" in file.name for one in suffixes)


def _example(text: str) -> tuple[int, ...]:
    if not all(part.isdigit() and int(part) for part in text.split("x")):
        raise UsageError(f"--example {text!r} is no sizes. Write: --example 4x64")
    return tuple(int(part) for part in text.split("x"))


def _function_of(file: Path) -> tuple[Path, str]:
    """The file and the function of FILE.mlir:function."""
    path, sign, function = str(file).rpartition(".mlir:")
    return (Path(f"{path}.mlir"), function) if sign else (file, "")


def _language(file: Path | None) -> str:
    """That of a document: Chinese where it has a Chinese character."""
    return _language_of(_function_of(file)[0].read_text(encoding="utf-8") if file is not None else "")


def _language_of(text: str) -> str:
    return "zh" if any("\u4e00" <= letter <= "\u9fff" for letter in text) else "en"
