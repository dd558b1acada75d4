"""Limits published for languages other than English, from `lists/fineweb2_limits.tsv`. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "lists" / "fineweb2_limits.tsv"

Limits = Mapping[str, float | tuple[float, ...]]


@cache
def published_limits() -> Mapping[str, Limits]:
    """Return FineWeb-2's limits by language code and name of the recipe's field; fields left empty are absent."""
    lines = [line.split("\t") for line in FILE.read_text("utf-8").splitlines() if not line.startswith("#")]
    names = lines[0][1:]
    return {
        code: {name: _value(name, cell) for name, cell in zip(names, cells, strict=True) if cell}
        for code, *cells in lines[1:]
    }


def _value(name: str, cell: str) -> float | tuple[float, ...]:
    """Return a cell of `lists/fineweb2_limits.tsv` as a number, or as one number for each n-gram size."""
    return tuple(map(float, cell.split())) if name.endswith("_ngrams") else float(cell)
