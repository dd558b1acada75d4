"""The groups of tests that `make test` leaves out, and which of them recent commits ask for.

`python -m tests.groups` prints the names of the groups that are due, and tells why on standard error;
`python -m tests.groups NAME...` prints the tests of these groups.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parent.parent
FILE = Path(__file__).with_name("groups.toml")
RECENT = "6 hours ago"
NAMES = ("--name-only", "--no-renames", "--format=")  # of git log


@dataclass(frozen=True, kw_only=True)
class Group:
    """Tests that run together, and what must have changed for that."""

    name: str
    tests: tuple[str, ...]  # files, folders or tests
    changed: tuple[str, ...]  # files and folders

    def cause_in(self, files: list[str]) -> str:
        """The first of these files that asks for the group; empty if none does."""
        return next((file for file in files if any(is_within(file, place) for place in self.changed)), "")


def is_within(path: str, place: str) -> bool:
    """Whether a path is this file or folder or lies in it; a test lies in its file, and with parameters in itself."""
    return path == place or path.startswith((f"{place}/", f"{place}::", f"{place}["))


def read_groups(file: Path = FILE) -> dict[str, Group]:
    """The groups by name; `ValueError` if two of them have the same tests."""
    table = tomllib.loads(file.read_text("utf-8"))
    always = table.pop("always", [])
    groups = {
        name: Group(name=name, tests=tuple(one["tests"]), changed=(*one["changed"], *always))
        for name, one in table.items()
    }
    tests = [(test, group.name) for group in groups.values() for test in group.tests]
    for place, (test, name) in enumerate(tests):
        for other, other_name in tests[place + 1 :]:
            if is_within(test, other) or is_within(other, test):
                raise ValueError(f"{file.name}: {test} ({name}) and {other} ({other_name}) overlap; keep one of them")
    return groups


def left_out(groups: dict[str, Group], arguments: list[str]) -> dict[str, str]:
    """The tests of groups that lie within pytest's arguments but in no file or folder that one names, and their group.

    Paths are relative to the project. `tests` leaves all groups out, `tests/benchmarks/test_gpu.py` leaves none out.
    """
    named = [argument.partition("::")[0].rstrip("/") for argument in arguments]

    def is_meant(test: str) -> bool:
        file = test.partition("::")[0]
        above = [one for one in named if one == "." or is_within(file, one)]
        return bool(above) and file not in above and not any(is_within(one, file) for one in named)

    return {test: group.name for group in groups.values() for test in group.tests if is_meant(test)}


def changed_files(project: Path, *, since: str = RECENT) -> list[str]:
    """The files of the commits since then; `LookupError` says why there is no history to ask."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=project, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LookupError(done.stderr.strip().splitlines()[0])
        return done.stdout

    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        raise LookupError("the clone is shallow")
    return sorted({line for line in git("log", f"--since={since}", *NAMES).splitlines() if line})


def due(groups: dict[str, Group], project: Path) -> dict[str, str]:
    """Why each group runs; empty for a group that is left out."""
    try:
        files = changed_files(project)
    except LookupError as error:
        return dict.fromkeys(groups, f"there is no history ({error})")
    causes = {name: group.cause_in(files) for name, group in groups.items()}
    return {name: cause and f"{cause} changed" for name, cause in causes.items()}


def main() -> None:
    """Print the groups that are due, or the tests of named ones."""
    groups = read_groups()
    parser = argparse.ArgumentParser(prog="python -m tests.groups")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"a group: {', '.join(groups)}")
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in groups]:
        parser.error(f"no group is called {unknown[0]}; there are {', '.join(groups)}")
    if names:
        print(*(test for name in names for test in groups[name].tests))
        return
    reasons = due(groups, PROJECT)
    for name, reason in reasons.items():
        said = f"runs, because {reason}" if reason else f"is left out: none of its files changed since {RECENT}"
        print(f"group {name} {said}", file=sys.stderr)
    print(*(name for name, reason in reasons.items() if reason))


if __name__ == "__main__":
    main()
