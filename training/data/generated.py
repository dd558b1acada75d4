"""The only place that finds and calls generated sources, which write their data instead of reading it.

A generated source writes files: the archives of a snapshot with the truth of each page, and files of JSON lines that a
recipe names as `<source>://<file>`. Stages read these files like any others, so no stage imports a source. A source's
module is imported by name, and only in the process of a job whose recipe uses the source.

The module has two functions. `write_archives(section, snapshot, folder)` writes the archives and further files of a
snapshot into `folder` and returns the number of archives. `write_rows(section, name, stream)` writes the file `name` as
JSON lines. `section` is the source's section of the recipe, as plain data.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from training.contract.identity.generated_sources import SOURCES, Source
from training.contract.records import RecipeError


def source_of(uri: str) -> Source | None:
    """Return the source that generates the file behind a URI; None if the file is not generated."""
    scheme, separator, _ = uri.partition("://")
    return SOURCES.get(scheme) if separator else None


def is_generated(uri: str) -> bool:
    """Whether a source generates the file behind a URI."""
    return source_of(uri) is not None


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the named sources."""
    return {name: SOURCES[name].version for name in sorted(names)}


def write_archives(name: str, settings: Mapping[str, Any], snapshot: str, folder: Path) -> int:
    """Make the source `name` write a snapshot's files into `folder`, and return the number of archives among them.

    `settings` are the job's settings, which contain the source's section.
    """
    return _module(name).write_archives(_section(name, settings, f"snapshots.{snapshot}"), snapshot, folder)


@contextmanager
def opened(uri: str, settings: Mapping[str, Any]) -> Iterator[BinaryIO]:
    """Open the JSON lines that a source generates for `uri`, in a temporary file that is removed when closed."""
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
