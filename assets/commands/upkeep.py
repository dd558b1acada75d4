"""Commands about a root: `gc` removes what nothing needs, `dev` serves the UI, `doctor` looks for what goes wrong."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from assets.commands.options import DEFAULT_ROOT, JsonOption, ProfileOption, RootOption
from training.contract.files.stored_root import stored_root
from training.contract.job import DataError
from training.contract.process.exit_codes import FAILED, OK


def gc(
    yes: Annotated[bool, typer.Option("--yes", help="remove what is listed")] = False,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """List with sizes what no reference, recipe, registered version or running job needs; --yes removes it.

    Of a root in an object store, list what is on this machine, in the store as well, and used by nobody here.
    """
    from assets.answers.gc.here import collect_here
    from assets.answers.gc.removal import collect
    from assets.answers.gc.unneeded import Look, lines_of
    from resources.profile import load_profile

    root = root.resolve()
    if not root.is_dir():
        raise DataError(f"{root}: there is no such folder, so nothing can be removed")
    if (stored := stored_root(root)) is not None:
        told = collect_here(stored, load_profile(profile), removes=yes)
    else:
        told = collect(Look(root, load_profile(profile)), removes=yes)
    print(json.dumps(told, ensure_ascii=False) if json_ else "\n".join(lines_of(told)))


def dev(
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    port: int = typer.Option(3000, "--port", help="port of the Dagster UI on this machine"),
    mlflow_port: int = typer.Option(5000, "--mlflow-port", help="port of MLflow on this machine"),
) -> None:
    """Start the Dagster UI, the Dagster daemon and MLflow on loopback, over the stores of one root."""
    from assets.services.dev import serve

    raise typer.Exit(serve(root.resolve(), profile, port, mlflow_port))


def doctor(
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Look for what commonly goes wrong on this machine, at a root and with a profile; exit code 1 for a problem."""
    from assets.answers.doctor.doctor import as_json, lines_of, look, problems_of
    from resources.profile import load_profile

    findings = list(look(load_profile(profile), root.resolve()))
    print(json.dumps(as_json(findings), ensure_ascii=False) if json_ else "\n".join(lines_of(findings)))
    raise typer.Exit(FAILED if problems_of(findings) else OK)
