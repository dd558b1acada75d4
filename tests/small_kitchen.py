"""The small kitchen, run once for all processes of the tests by the command line itself; further runs start from it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.screen import Strike, run_in_terminal
from tests.warm import command

RECIPES = Path(__file__).parent / "recipes"


def linked_copy(root: Path, folder: Path) -> Path:
    """Copy a root as links. What is written in place, such as databases, is copied, so that the root stays as it is.

    So are locks: one that is held by a link is held in every copy.
    """

    def linked(source: str, target: str) -> None:
        (shutil.copyfile if source.endswith(".lock") else os.link)(source, target)

    shutil.copytree(root, folder, copy_function=linked)
    for pattern in ("*.db", "*.sqlite", "dagster/**/*", "tracking/**/*"):
        for path in folder.glob(pattern):
            if path.is_file():
                path.unlink()
                shutil.copyfile(root / path.relative_to(folder), path)
    return folder


@dataclass(frozen=True)
class Ran:
    """What a command said. `frames` are the screens of its terminal, if it had one; each is a list of lines."""

    code: int
    answer: dict[str, Any]
    errors: str
    frames: list[list[str]] = field(default_factory=list)


COMMAND = (sys.executable, "-c", "from assets.commands.cli import main; main()")


def pedigree(*arguments: str, root: Path | str, **environment: str) -> Ran:
    """Run the command line in a process of its own, with the tests' recipes."""
    given = [*arguments, "--root", str(root), "--json"]
    variables = {**os.environ, "PEDIGREE_RECIPES": str(RECIPES), **environment}
    if "PYTHONPATH" in environment:  # the interpreter reads it when it starts
        done = subprocess.run([*COMMAND, *given], capture_output=True, text=True, check=False, env=variables)
    else:
        done = command(given, variables)
    return Ran(done.returncode, _last_line(done.stdout), done.stderr)


def pedigree_in_terminal(*arguments: str, root: Path | str, strike: Strike | None = None) -> Ran:
    """Run the command line with its standard error in a pseudo-terminal of 80 columns, and strike it with a signal."""
    argv = [*COMMAND, *arguments, "--root", str(root), "--json"]
    shown = run_in_terminal(argv, {**os.environ, "PEDIGREE_RECIPES": str(RECIPES)}, strike=strike)
    return Ran(shown.code, _last_line(shown.output), "\n".join(shown.screen.lines), shown.frames)


def _last_line(output: str) -> dict[str, Any]:
    return json.loads(output.strip().splitlines()[-1]) if output.strip() else {}


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Path:
    """A folder of all processes of the tests."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def root(shared) -> Path:
    """One root for the session: what one test makes the next finds made, as users have it."""
    return shared / "kitchen-small"


@pytest.fixture(scope="session")
def untouched(shared) -> Path:
    """A copy of the root as the first run left it, which no test changes."""
    return shared / "kitchen-small-untouched"


@pytest.fixture(scope="session")
def first(shared, root, untouched) -> Ran:
    """The small kitchen from its crawl to the end. The first process that asks makes it, another one waits for it."""
    said = shared / "kitchen-small.json"
    with (shared / "kitchen-small.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            from resources.tracking.reports import FLUSH_SECONDS, Tracking

            ran = pedigree_in_terminal("run", "kitchen-small", root=root)
            Tracking("", root).flush(FLUSH_SECONDS)  # a copy of a store that is being written would be of no use
            shutil.copytree(root, untouched)
            said.write_text(json.dumps(asdict(ran)))
    return Ran(**json.loads(said.read_text()))


@pytest.fixture(scope="session")
def leaking_early(first, root) -> Ran:
    """The same with decontamination off, up to the verdict on its data, which refuses every training."""
    from assets.state.recipe_folders import SHIPPED, load_recipe
    from tests.assets.fabricate import point_to_shared

    point_to_shared(load_recipe("kitchen-small-leak-early", folders=(RECIPES, SHIPPED)), root)
    return pedigree("run", "kitchen-small-leak-early", root=root)


@pytest.fixture(scope="session")
def leaking(leaking_early, root) -> Ran:
    """Return the same run with the verdict after the training.

    The data are those that were made for the early verdict. The clean models stand in for those that would be trained
    on them, because neither the scan nor the gate looks into a model.
    """
    from assets.state.recipe_folders import SHIPPED, load_recipe
    from tests.assets.fabricate import point_to_shared, stand_in_models

    recipe, clean = (load_recipe(name, folders=(RECIPES, SHIPPED)) for name in ("kitchen-small-leak", "kitchen-small"))
    point_to_shared(recipe, root)
    stand_in_models(recipe, clean, root)
    return pedigree("run", "kitchen-small-leak", root=root)


def made(ran: Ran) -> set[str]:
    """The assets that a command made, not those that it reused."""
    return {asset for asset, cells in ran.answer["assets"].items() for entry in cells.values() if not entry["reused"]}
