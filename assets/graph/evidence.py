"""Plain data as Dagster's metadata: numbers as numbers, everything else as a table that fits a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

MOST_ROWS = 40  # of a table in the UI; the record holds all of them
MOST_CHARACTERS = 90  # of a cell: wider tables are cut off in a window of 1,280 pixels

Cell = str | int | float | bool


def evidence_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a check: numbers and short texts by name, and lists and mappings as tables."""
    return {name: _shown(value) for name, value in values.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, (Mapping, list, tuple)):
        return str(value)
    if not value:
        return "none"
    if isinstance(value, Mapping):
        return table([{"name": name, "value": item} for name, item in _flat(value)])
    if all(isinstance(item, Mapping) for item in value):
        return table([dict(_flat(item)) for item in value])
    return table([{"value": _cell(item)} for item in value])


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Cell]]:
    """Yield the fields of nested mappings, with names joined by dots."""
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{before}{name}.")
        else:
            yield f"{before}{name}", _cell(item)


def _cell(value: Any) -> Cell:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, (bool, int)):
        return value
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def table(rows: list[dict[str, Cell]]) -> dg.TableMetadataValue:
    """Return the rows as a Dagster table of at most MOST_ROWS rows; a last row says how many more there are."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    is_cut = len(rows) > MOST_ROWS
    kinds = {name: "string" if is_cut else _kind([row[name] for row in rows if name in row]) for name in names}
    shown = [{name: _as(kinds[name], row.get(name, "")) for name in names} for row in rows[:MOST_ROWS]]
    if is_cut:
        rest: dict[str, Cell] = dict.fromkeys(names, "")
        shown.append(rest | {names[0]: f"… {len(rows) - MOST_ROWS} more"})
    columns = [dg.TableColumn(name, kinds[name]) for name in names]
    return dg.MetadataValue.table([dg.TableRecord(row) for row in shown], dg.TableSchema(columns))


def _kind(values: list[Cell]) -> str:
    types = {type(value) for value in values}
    kinds: dict[type, str] = {int: "int", float: "float", bool: "bool"}
    return kinds.get(types.pop(), "string") if len(types) == 1 else "string"


def _as(kind: str, value: Cell) -> Cell:
    return str(value) if kind == "string" else value
