"""The command line `pedigree`. Scripts rely on it; the contract is in docs/command-line.md.

Exit codes: 0 success (a `run` to the end: the model is promoted); 2 bad input, and nothing was started; 3 a gate
refused an artifact, and its evidence is printed; 130 and 143 ended by Ctrl-C and SIGTERM; 1 any other failure.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import signal
import sys
import traceback
from typing import Annotated

import typer

from assets.commands.champion import promote, register, rollback
from assets.commands.look import inspect, report, status, verify, why
from assets.commands.make import demo, run
from assets.commands.models import attest, chat, compare_, contamination, evaluate, export, serve
from assets.commands.pages import takedown, trace
from assets.commands.planning import plan
from assets.commands.recipes import init, list_, show
from assets.commands.upkeep import dev, doctor, gc
from assets.services.signals import exit_code_of
from assets.terminal.errors import interrupted, sentence_of
from assets.terminal.standard_error import say
from training.contract.job import DataError, RefusedInput
from training.contract.process.exit_codes import BAD_INPUT, FAILED, OK
from training.contract.records import RecipeError
from training.contract.secrets import masked_output

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="From raw crawl to an evaluated model, every weight traceable.",
)


def main() -> None:
    """Entry point. A mistake in the input gives one sentence and exit code 2 instead of a traceback."""
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from resources.profile import ProfileError

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file may have a name that is no UTF-8
    code: str | int | None = OK
    with masked_output():
        try:
            app()
        except SystemExit as ended:
            uncaught = isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt)
            code = _say(interrupted(_command()), exit_code_of(signal.SIGINT), prefix="") if uncaught else ended.code
        except (RecipeError, DataError, RefusedInput, ProfileError) as error:
            code = _say(str(error), BAD_INPUT)
        except Exception as error:
            sentence = sentence_of(error)
            if not sentence:
                traceback.print_exc()
            code = _say(sentence or f"{type(error).__name__}: {error}", FAILED)
    sys.exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"pedigree {importlib.metadata.version('pedigree')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _command() -> str:
    """Return the subcommand of `pedigree` among the arguments, such as `run`; options before it take no values."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _say(sentence: str, code: int, prefix: str = "error: ") -> int:
    say(f"{prefix}{sentence}".split("\n"))
    if "--json" in sys.argv:
        print(json.dumps({"ok": False, "error": sentence}))
    return code


def paragraphs(text: str) -> str:
    """Return a docstring with each paragraph on one line, so that a terminal of any width breaks it where it ends."""
    return "\n\n".join(" ".join(one.split()) for one in text.split("\n\n"))


COMMANDS = (  # in the order in which `pedigree --help` shows them
    *(run, demo, init, show, list_, plan, status, why, verify, report),
    *(register, promote, rollback, inspect, trace, takedown),
    *(chat, export, attest, evaluate, contamination, serve, compare_, gc, dev, doctor),
)
for command in COMMANDS:
    app.command(command.__name__.rstrip("_"), help=paragraphs(command.__doc__ or ""))(command)
