"""Sources that make their data instead of bringing it: the one place that resolves them.

A generated source writes files: the archives of a snapshot with the truth of each page, and files of JSON lines that a
recipe names as `<source>://<file>`. A stage reads those files as it reads any others, so no stage imports a source. The
source's module is imported by its name, in the process of a job whose recipe asks for it, and nowhere else.

That module has two functions. `write_archives(section, snapshot, folder)` writes a snapshot's archives, and whatever
else belongs to them, into `folder` and returns how many archives it wrote. `write_rows(section, name, stream)` writes
the file called `name` as JSON lines. `section` is the source's section of the recipe, as plain data.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from training.generated_sources import FIRST_VERSION, SOURCES, Source
from training.records import RecipeError


def source_of(uri: str) -> Source | None:
    """The source that writes the file behind a URI; None for whatever lies somewhere."""
    scheme, separator, _ = uri.partition("://")
    return SOURCES.get(scheme) if separator else None


def is_generated(uri: str) -> bool:
    """Whether a source writes the file behind a URI."""
    return source_of(uri) is not None


def versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of some sources, of those that are no longer at their first."""
    return {name: SOURCES[name].version for name in sorted(names) if SOURCES[name].version != FIRST_VERSION}


def write_archives(name: str, settings: Mapping[str, Any], snapshot: str, folder: Path) -> int:
    """Have the source `name` write a snapshot's files into `folder`; returns how many archives are among them.

    `settings` are the job's, in which the source's section lies.
    """
    return _module(name).write_archives(_section(name, settings, f"snapshots.{snapshot}"), snapshot, folder)


@contextmanager
def opened(uri: str, settings: Mapping[str, Any]) -> Iterator[BinaryIO]:
    """The file of JSON lines that a source writes for `uri`. It has no name, and goes when it is closed."""
    name, _, file = uri.partition("://")
    section = _section(name, settings, uri)
    with tempfile.TemporaryFile() as stream:
        _module(name).write_rows(section, file, stream)
        stream.seek(0)
        yield stream


def _module(name: str) -> Any:
    return importlib.import_module(SOURCES[name].module)


def _section(name: str, settings: Mapping[str, Any], where: str) -> Any:
    if name not in settings:
        raise RecipeError(f"{where}: the job has no section {name}, which says what the {name} writes")
    return settings[name]
