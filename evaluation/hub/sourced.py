"""Numbers and names that say which artifact they come from, and tables of them that refuse any other number.

Every value of a table is read from an artifact's record or file by `Origin`, so it carries the artifact's digest. A
plain text in a table may hold no digit: a number that somebody typed has no source, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.report.truth_comparison import Record, of_asset
from training.contract.job import DataError
from training.contract.scopes import CHOSEN_MODEL

Value = int | float | str
SHOWN_ARTIFACTS = 6  # of an asset, below a table; the JSON names all
SHOWN_DIGITS = 12  # of a digest, where people read it
POST_TRAINED = ("sft_model", "reward_model", "aligned_model")
OPT_OUTS = ("takedown", "blocked", "robots", "usage", "tdm_reserved", "licence")  # a page is dropped for its terms


class Unsourced(DataError):
    """A number that comes from no artifact."""


@dataclass(frozen=True, slots=True, order=True)
class CitedPlace:
    """The source of a value: an artifact, named by its digest, and the place in it."""

    asset: str
    partition: str
    digest: str
    place: str

    def as_json(self) -> dict[str, str]:
        """Return the source as plain data."""
        return {"asset": self.asset, "partition": self.partition, "digest": self.digest, "place": self.place}


@dataclass(frozen=True, slots=True)
class Cited:
    """A value with the places where it comes from. Raise Unsourced if there are none."""

    value: Value
    sources: tuple[CitedPlace, ...]
    is_share: bool = False  # a fraction in [0, 1], which is shown in percent

    def __post_init__(self) -> None:
        if not self.sources:
            raise Unsourced(f"{self.value!r}: comes from no artifact; only what an artifact holds is shown on a card")

    @property
    def number(self) -> int | float:
        """The value as a number; it must not be a text."""
        assert not isinstance(self.value, str), self.value
        return self.value

    @property
    def shown(self) -> str:
        """The value as people read it."""
        if isinstance(self.value, str):
            return self.value
        if self.is_share:
            return f"{100 * self.value:.2f} %"
        return f"{self.value:,}" if isinstance(self.value, int) else f"{self.value:,.3f}"

    def as_json(self) -> dict[str, Any]:
        """Return value and sources as plain data."""
        return {"value": self.value, "sources": [one.as_json() for one in self.sources]}


def derived(value: Value, *given: Cited, is_share: bool = False) -> Cited:
    """Return a value that was computed from others, or read together with them, with the sources of all of them."""
    return Cited(value, tuple(dict.fromkeys(source for one in given for source in one.sources)), is_share)


def total(numbers: Sequence[Cited]) -> Cited:
    """Return the sum of numbers. Raise Unsourced for an empty list, because nothing says that the sum is zero."""
    return derived(sum(one.number for one in numbers), *numbers)


def share_of(part: Cited, whole: Cited) -> Cited:
    """Return a part as a fraction of a whole; 0 if the whole is 0."""
    return derived(round(part.number / whole.number, 6) if whole.number else 0.0, part, whole, is_share=True)


@dataclass(frozen=True, slots=True)
class Origin:
    """An artifact from which values are read: its folder and its record."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def snapshot(self) -> Cited:
        """The snapshot, or the recipe of an artifact that belongs to no snapshot."""
        return self.value_at("partition", of=_snapshot_in)

    def has(self, name: str) -> bool:
        """Whether the artifact has a file."""
        return any(entry["path"] == name for entry in self.record["files"])

    def value_at(self, *keys: str, of: Callable[[Any], Value] | None = None) -> Cited:
        """Return the value in the record under `keys`. Raise Unsourced if it has no such field."""
        try:
            found: Any = self.record
            for key in keys:
                found = found[key]
        except (KeyError, TypeError):
            raise Unsourced(f"{self.record['asset']}: its record has no {'.'.join(keys)}") from None
        return self._cited(of(found) if of else found, f"artifact.json: {'.'.join(keys)}")

    def computed(self, name: str, value: Value) -> Cited:
        """Return a value that was computed from the files of this name. Raise Unsourced if the artifact has none."""
        if not any(entry["path"] == name or entry["path"].startswith(f"{name}/") for entry in self.record["files"]):
            raise Unsourced(f"{self.record['asset']}: has no file {name}, from which {value!r} could come")
        return self._cited(value, name)

    def _cited(self, value: Value, place: str) -> Cited:
        record = self.record
        return Cited(value, (CitedPlace(record["asset"], record["partition"], record["digest"], place),))


def read_by(records: Sequence[Record], asset: str) -> list[Origin]:
    """Return the artifacts by whose notes a training on rows is counted: of a chosen step, only as far as this step."""
    chosen = {record["notes"]["choice"]["last"]: (folder, record) for folder, record in of_asset(records, CHOSEN_MODEL)}
    return [Origin(*chosen.get(record["fingerprint"], (folder, record))) for folder, record in of_asset(records, asset)]


def _snapshot_in(partition: str) -> str:
    return partition.partition("@")[2] or partition


Cell = Cited | str


@dataclass(frozen=True, slots=True)
class CardTable:
    """A table of a card. `title`, `sentence` and `columns` are texts for people, without digits."""

    title: str
    sentence: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        for text in (self.title, self.sentence, *self.columns, *(cell for row in self.rows for cell in row)):
            if isinstance(text, str) and any(character.isdigit() for character in text):
                raise Unsourced(
                    f"{text!r}: this number comes from no artifact; read it from one (evaluation/hub/sourced.py)"
                )

    @property
    def sources(self) -> list[CitedPlace]:
        """Every place that a value of the table comes from, once."""
        cells = [cell for row in self.rows for cell in row if isinstance(cell, Cited)]
        return sorted({source for cell in cells for source in cell.sources})

    def as_json(self) -> dict[str, Any]:
        """Return the table as plain data, each value with its sources."""
        rows = [[cell.as_json() if isinstance(cell, Cited) else cell for cell in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows}


def as_markdown(table: CardTable, line: Callable[[Any], str]) -> str:
    """Return a table as Markdown, with the artifacts that its numbers come from. `line` escapes a text."""
    head = f"| {' | '.join(table.columns)} |\n|{'---|' * len(table.columns)}"
    shown = [[cell.shown if isinstance(cell, Cited) else cell for cell in row] for row in table.rows]
    rows = "\n".join(f"| {' | '.join(line(cell) for cell in row)} |" for row in shown)
    sources = f"\n{_from(table.sources)}\n" if table.sources else ""
    return f"### {table.title}\n\n{table.sentence}\n\n{head}\n{rows}\n{sources}"


def _from(sources: Iterable[CitedPlace]) -> str:
    """Return the sentence below a table: each asset with the digests of its artifacts."""
    digests: dict[str, dict[str, None]] = {}
    for source in sources:
        digests.setdefault(source.asset, {})[f"`{source.digest[:SHOWN_DIGITS]}`"] = None
    return "From " + "; ".join(f"`{asset}` {_first(list(own))}" for asset, own in digests.items())


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_ARTIFACTS:,} more" if len(names) > SHOWN_ARTIFACTS else ""
    return ", ".join(names[:SHOWN_ARTIFACTS]) + more


def honoured(extracted: Origin) -> list[tuple[str, Cited]]:
    """Return the settings by which pages are left out for their terms, each with its value in words."""
    names = ("refused_robots", "refuse_reserved", "licences")
    return [(f"extract.{name}", extracted.value_at("settings", "extract", name, of=_in_words)) for name in names]


def _in_words(value: Any) -> str:
    return ", ".join(value) or "none" if isinstance(value, (list, tuple)) else "yes" if value else "no"
