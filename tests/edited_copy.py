"""A copy of the packages of which one module has one more line of code, and its command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent
EDITED = "training.data.crawl.crawl"  # of the crawl, and of extraction, which opens what it wrote


def edited_copy(place: Path) -> Path:
    """Copy the packages into a folder, add a line to the module EDITED, and return the folder."""
    for package in ("assets", "resources", "training", "evaluation"):
        shutil.copytree(PROJECT / package, place / package)
    with open(place / f"{EDITED.replace('.', '/')}.py", "a") as module:
        module.write("\nUNUSED = 1\n")
    return place


def pedigree(copy: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the copy in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from assets.cli import main; main()", *arguments],
        env=os.environ | {"PYTHONPATH": str(copy)} | environment,
        check=False,
        capture_output=True,
        text=True,
        cwd=copy,
    )
