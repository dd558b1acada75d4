"""Copies of the packages: of their sources, and one that runs, of which one module has one more line of code.

Other tests keep caches in the packages meanwhile, so a file that is being written there can be gone before it is
copied.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from training.contract.identity.closure import Code

PROJECT = Path(__file__).parent.parent
EDITED = "training.data.crawl.crawl"  # of the crawl, and of extraction, which opens what it wrote
UNFINISHED = shutil.ignore_patterns(".*.tmp", "*.tmp.*", "*.pyc.*")  # files of the caches of words, numba and Python


def copied_sources(place: Path) -> dict[str, Path]:
    """Copy the packages without their caches into a folder, and return where each is."""
    ignored = shutil.ignore_patterns("__pycache__")
    return {name: Path(shutil.copytree(folder, place / name, ignore=ignored)) for name, folder in Code().places.items()}


def edited_copy(place: Path) -> Path:
    """Copy the packages into a folder, add a line to the module EDITED, and return the folder."""
    for package in ("assets", "resources", "training", "evaluation"):
        shutil.copytree(PROJECT / package, place / package, ignore=UNFINISHED)
    with open(place / f"{EDITED.replace('.', '/')}.py", "a") as module:
        module.write("\nUNUSED = 1\n")
    return place


def pedigree(copy: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the copy in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from assets.commands.cli import main; main()", *arguments],
        env=os.environ | {"PYTHONPATH": str(copy)} | environment,
        check=False,
        capture_output=True,
        text=True,
        cwd=copy,
    )
