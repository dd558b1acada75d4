"""Modules of a user's own: the examples of the documentation, and ones that a test writes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
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
