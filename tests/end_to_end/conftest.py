"""The small kitchen, run once a session by the command line itself; further runs start from its artifacts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RECIPES = Path(__file__).parent.parent / "recipes"


@dataclass(frozen=True)
class Ran:
    """What a command said."""

    code: int
    answer: dict[str, Any]
    errors: str


def pedigree(*arguments: str, root: Path, **environment: str) -> Ran:
    """Run the command line in a process of its own, with the tests' recipes."""
    done = subprocess.run(
        [sys.executable, "-c", "from assets.cli import main; main()", *arguments, "--root", str(root), "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PEDIGREE_RECIPES": str(RECIPES), **environment},
    )
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "{}"
    return Ran(done.returncode, json.loads(last), done.stderr)


@pytest.fixture(scope="session")
def root(tmp_path_factory) -> Path:
    """One root for the session: what one test makes the next finds made, as users have it."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def first(root) -> Ran:
    """The small kitchen from its crawl to the end."""
    return pedigree("run", "kitchen-small", root=root)


@pytest.fixture(scope="session")
def leaking(first, root) -> Ran:
    """The same with decontamination off."""
    return pedigree("run", "kitchen-small-leak", root=root)
