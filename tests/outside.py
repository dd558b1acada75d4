"""Modules of a user's own: the examples of the documentation, and ones that a test writes."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples" / "extend"
_NUMBERS = itertools.count()  # Python keeps a module that it has imported, so no two have one name


def writer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that writes a module into a folder outside every package and returns the module's name."""
    monkeypatch.syspath_prepend(folder)

    def written(body: str) -> str:
        name = f"own_parts_{next(_NUMBERS)}"
        (folder / f"{name}.py").write_text(body)
        return name

    return written


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples' folder is outside every package, as a user's would be."""
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    return writer(tmp_path, monkeypatch)


@contextmanager
def importable(folder: Path, name: str, body: str) -> Iterator[None]:
    """A module in a folder where this process and those that it starts find it."""
    folder.mkdir()
    (folder / f"{name}.py").write_text(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        yield
    sys.modules.pop(name, None)
