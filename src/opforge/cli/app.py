"""`opforge VERB …`: the table of verbs, and what every verb shares."""

from __future__ import annotations

import errno
import functools
import importlib
import inspect
import math
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from click.exceptions import BadOptionUsage
from typer.core import TyperCommand, TyperOption

from opforge.cli.shared import Settings
from opforge.core.language.errors import EnvironmentLacks, OpforgeError, UsageError
from opforge.core.language.version import __version__

VERBS = {
    "doctor": "doctor:doctor",
    "list": "listing:list_operators",
    "show": "show:show",
    "verify": "verify:verify",
    "bench": "bench:bench",
    "qualify": "qualify:qualify",
    "report": "report:report",
    "build": "build:build",
    "inspect": "inspect:inspect",
    "accuracy": "accuracy:accuracy",
    "diagnose": "diagnose:diagnose",
    "optimize": "optimize:optimize",
    "log": "log:log",
    "patterns": "log:patterns",
    "new": "new:new",
    "suite": "suite:suite",
    "check-interface": "check_interface:check_interface",
    "compare": "compare:compare",
    "sweep": "sweep:sweep",
    "tune": "tune:tune",
    "recommend": "recommend:recommend",
    "history": "history:history",
    "baseline": "baseline:baseline",
    "check": "check:check",
    "machine": "machine:machine",
    "device": "device:device",
    "records": "records:records",
    "model": "model:ACTIONS",
}
"""Each verb's module in this room, and its function; of a verb with actions, the table of their functions."""

SHOWS_BARS = ("verify", "bench", "qualify", "sweep", "tune", "compare", "diagnose")
"""Verbs that show their own progress on a terminal."""


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"opforge {__version__}")
        raise typer.Exit


def everything(
    context: typer.Context,
    home: Annotated[
        list[Path] | None,
        typer.Option(help="A folder of operator folders, beside the package's own. May be given several times."),
    ] = None,
    store: Annotated[
        str, typer.Option(help="Where records are kept: a file, or any SQLAlchemy URL.", envvar="OPFORGE_STORE")
    ] = "",
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write what the seconds went into to this file, for https://ui.perfetto.dev.")
    ] = None,
) -> None:
    """Options that stand before the verb."""
    if trace is not None:
        from opforge.cli.progress import tracing

        context.with_resource(tracing(trace))
    context.obj = Settings(homes=tuple(home or ()), store=store)


def _anywhere() -> list[TyperOption]:
    """The options that stand before the verb or behind it."""

    def homes(context: Any, option: Any, given: Sequence[str]) -> None:
        if given:
            context.obj = replace(context.obj, homes=(*context.obj.homes, *map(Path, given)))

    def store(context: Any, option: Any, given: str | None) -> None:
        if given:
            context.obj = replace(context.obj, store=given)

    panel = "Before the verb or behind it"
    return [
        TyperOption(
            param_decls=["--home"],
            type=click.Path(),
            multiple=True,
            expose_value=False,
            callback=homes,
            help="A folder of operator folders, beside the package's own.",
            rich_help_panel=panel,
        ),
        TyperOption(
            param_decls=["--store"],
            expose_value=False,
            callback=store,
            help="Where records are kept: a file, or any SQLAlchemy URL.",
            rich_help_panel=panel,
        ),
    ]


class Verb(TyperCommand):
    """A verb's command line. It takes --home and --store too, as if they stood before the verb. An option at its end
    without a value says what to do, and which verb it was.
    """

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        taken = {name for param in self.params for name in param.opts}
        self.params += [option for option in _anywhere() if not taken & set(option.opts)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """click's own, its errors with the context that its parser has not."""
        try:
            return super().parse_args(ctx, args)
        except BadOptionUsage as error:
            if error.ctx is not None:
                raise
            further = f"{error.message} Write one behind it; see: {ctx.command_path} -h"
            raise BadOptionUsage(error.option_name, further, ctx=ctx) from error


def command_line(words: Sequence[str] = ()) -> typer.Typer:
    """The command line with the verbs that stand among `words`; with all of them when none does.

    Reading the options of every verb takes longer than `opforge list` itself, so a call makes only the verb it names.
    """
    made = typer.Typer(
        name="opforge",
        help="A workbench for GPU operators: define once, implement on several backends, verify, time, compare.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(everything)
    for verb in [verb for verb in VERBS if verb in words] or VERBS:
        body = _named(VERBS[verb])
        if isinstance(body, dict):
            actions = typer.Typer(no_args_is_help=True, help=_module_of(VERBS[verb]).ABOUT)
            for action in [action for action in body if action in words] or body:
                _add(actions, action, _named(body[action]), bars=verb in SHOWS_BARS)
            # a callback keeps the action's name on the line where only one is made
            actions.callback()(lambda: None)
            made.add_typer(actions, name=verb)
        else:
            _add(made, verb, body, bars=verb in SHOWS_BARS)
    return made


def actions_of(verb: str) -> tuple[str, ...]:
    """The actions of a verb that has any, as `analyse` of `opforge model`."""
    body = _named(VERBS[verb])
    return tuple(body) if isinstance(body, dict) else ()


def _module_of(place: str) -> Any:
    return importlib.import_module(f"opforge.cli.{place.split(':')[0]}")


def _named(place: str) -> Any:
    """What "module:name" of this room is."""
    return getattr(_module_of(place), place.split(":")[1])


def _add(to: typer.Typer, name: str, body: Callable[..., None], *, bars: bool) -> None:
    shown = _with_reason(_with_progress(body, bars=bars))
    to.command(name, cls=Verb, help=flowing(body.__doc__ or ""))(shown)


def flowing(docstring: str) -> str:
    r"""A docstring with each paragraph on one line, so that a terminal breaks it where its own width needs it.

    >>> flowing("One sentence over\n    two lines.\n\n    Another.")
    'One sentence over two lines.\n\nAnother.'
    """
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(docstring).split("\n\n"))


def _with_progress(verb: Callable[..., None], bars: bool) -> Callable[..., None]:
    """The verb with a line about what is under way whenever nothing was said for some seconds (cli.progress).

    bars   it shows its own on a terminal
    """

    @functools.wraps(verb)
    def shown(*args: Any, **options: Any) -> None:
        from opforge.cli.progress import unbroken

        with unbroken(quiet=bool(options.get("json")) or (bars and sys.stderr.isatty())):
            verb(*args, **options)

    return shown


def _with_reason(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with numbers that are numbers, and an end that is always explained.

    click ends silently on an interrupt, and with the code of a failed verdict on any broken pipe or end of file, which
    may be that of a compiler or of a worker.
    """

    @functools.wraps(verb)
    def explained(*args: Any, **options: Any) -> None:
        for name, value in options.items():
            # no minimum refuses NaN, and no loop reaches it
            if isinstance(value, float) and math.isnan(value):
                raise UsageError(f"--{name.replace('_', '-')} is nan, which is no number. Give one, or leave it out.")
        try:
            verb(*args, **options)
        except OpforgeError as error:
            said = click.get_current_context().obj
            if isinstance(said, Settings) and error.args:
                error.args = (said.again(str(error)), *error.args[1:])
            raise
        except KeyboardInterrupt as error:
            raise typer.Exit(_interrupted(error)) from None
        except (EOFError, BrokenPipeError) as error:
            if isinstance(error, BrokenPipeError) and _nobody_listens():
                raise
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return explained


class Terminated(KeyboardInterrupt):
    """SIGTERM, as batch systems and `timeout` send it: an interrupt, so that everything is put away."""


def _terminate(number: int, frame: object) -> None:
    raise Terminated


def _interrupted(error: KeyboardInterrupt) -> int:
    """Says so; the exit code."""
    print(
        f"opforge: {'terminated' if isinstance(error, Terminated) else 'interrupted'}; what was recorded until "
        "now is kept",
        file=sys.stderr,
    )
    return 143 if isinstance(error, Terminated) else 130


def _nobody_listens() -> bool:
    """Whether who reads standard output or standard error has gone, as `head` does."""
    waiting = select.poll()
    for number in (1, 2):
        waiting.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in waiting.poll(0))


def _wants_memory(error: Exception) -> bool:
    """Whether memory ran out: a library that could not be mapped, a thread or tensor that found no room."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, ImportError | RuntimeError)
        and any(sign in words for sign in ("failed to map segment", "cannot allocate memory", "start new thread"))
    )


def main() -> None:
    """Entry point: an OpforgeError becomes one line and its exit code (1 a verdict failed, 2 usage, 3 the environment
    lacks something).
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        command_line(sys.argv[1:] or os.environ.get("COMP_WORDS", "").split())(prog_name="opforge")
    except OpforgeError as error:
        print(f"opforge: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from opforge.backends.torch_eager import INSTALL

        print(f"opforge: This needs PyTorch, which is not installed. Install it with: {INSTALL}", file=sys.stderr)
        sys.exit(EnvironmentLacks.exit_code)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            print(f"opforge: {error.strerror}. Raise the limit (ulimit -v), or free some memory.", file=sys.stderr)
            sys.exit(EnvironmentLacks.exit_code)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            print(
                f"opforge: {error.filename or 'the output'}: {error.strerror}. Free some space, or write somewhere "
                "else.",
                file=sys.stderr,
            )
            sys.exit(3)
        # a path that was given and can't be read or written; without a path it is a defect, and its trace is wanted
        if error.filename is None or isinstance(error, BrokenPipeError):
            raise
        print(
            f"opforge: {error.filename}: {error.strerror}. Name a place that exists and that you may read or write.",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt as error:
        sys.exit(_interrupted(error))
    except Exception as error:
        if not _wants_memory(error):
            raise
        first = (str(error) or type(error).__name__).splitlines()[0]
        print(
            f"opforge: This process got no more memory ({first}). Raise its limit (ulimit -v), or free some.",
            file=sys.stderr,
        )
        sys.exit(EnvironmentLacks.exit_code)
    finally:
        signal.signal(signal.SIGTERM, before)
