"""`make tutorial`: run every command of docs/tutorial/, page after page, in one empty folder.

The commands are the lines of the blocks marked `sh`; a comment `# exit code N` gives the expected exit code, otherwise
it is 0. By default each recipe is replaced by its small form in tests/recipes, which trains a model in minutes on any
machine. It stops, with exit code 1, at the first command with another exit code.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parent.parent
PAGES = sorted((PROJECT / "docs" / "tutorial").glob("*.md"))
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
EXIT_CODE = re.compile(r"\s+# exit code (\d+)$")
RECIPE = re.compile(r"(?<![\w./-])(?:examples/recipes/)?kitchen(-leak(?:-early)?|-planted)?(?:\.yaml)?(?![\w.-])")


class Command(NamedTuple):
    """One line of shell, and the exit code that the page promises."""

    line: str
    exit_code: int


def main() -> int:
    """Run the commands of all pages, or of the named ones; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help="numbers of pages; default: all. Pages 2, 3 and 5 need what 1 made")
    parser.add_argument("--folder", type=Path, help="where to run; default: a temporary folder, removed afterwards")
    parser.add_argument("--full", action="store_true", help="use the recipes that the pages name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        environment = prepared(folder)
        for page in PAGES:
            if options.pages and page.name.split("-")[0] not in options.pages:
                continue
            found = [one if options.full else in_small(one) for one in commands(page.read_text("utf-8"))]
            print(f"== {page.name}", flush=True)
            if subprocess.run(["bash", "-c", script(found)], cwd=folder, env=environment, check=False).returncode:
                return 1
    return 0


def commands(page: str) -> Iterator[Command]:
    """Yield the commands of a page's text, in order."""
    for block in BLOCK.findall(page):
        for line in filter(str.strip, block.splitlines()):
            code = EXIT_CODE.search(line)
            yield Command(EXIT_CODE.sub("", line), int(code[1]) if code else 0)


def in_small(command: Command) -> Command:
    """Return the command with its recipe replaced by the small form."""
    return command._replace(line=RECIPE.sub(lambda found: f"kitchen-small{found[1] or ''}", command.line))


def script(found: list[Command]) -> str:
    """Return a bash script that prints and runs each command, and stops if an exit code is not the expected one."""
    lines = []
    for line, code in found:
        lines += [f"echo {shlex.quote(f'$ {line}')}", line, "code=$?"]
        lines.append(f"[ $code -eq {code} ] || {{ echo exit code $code instead of {code} >&2; exit 1; }}")
    return "\n".join(lines)


def prepared(folder: Path) -> dict[str, str]:
    """Put the project's pages and the command `pedigree` of this interpreter into `folder`; return the environment."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    command = folder / "bin" / "pedigree"
    start = f"{shlex.quote(sys.executable)} -c 'from assets.commands.cli import main; main()'"
    command.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
    command.chmod(0o755)
    if not (folder / "docs").exists():
        (folder / "docs").symlink_to(PROJECT / "docs")
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT),
        "PEDIGREE_RECIPES": str(PROJECT / "tests" / "recipes"),
    }


if __name__ == "__main__":
    sys.exit(main())
