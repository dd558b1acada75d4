"""The declaration of a reader of archives or files of rows from the user's own environment. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.contract.parts.outside import NoSettings, OutsidePart, PartFailed, PartsOf, named
from training.contract.records import RecipeError

KIND = "readers"
SOURCES = ("kitchen", "warc", "parquet", "jsonl", "files", "shards", "commoncrawl")
"""The sources that Pedigree reads itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """A reader of one format: `rows` yields the records of a file, from its path and the settings, always in one order.

    A record is a mapping. It has `text`, or `html` (text or bytes; extracted as any page), or `damaged`, a short reason
    for the quarantine; and where they are known `url`, `title`, `date`, `language`, and `content_type` of the HTML.
    Folders are searched for files with these `suffixes`. The fields of the record `settings` have defaults.
    """

    rows: Callable[[Path, Any], Iterable[Mapping[str, Any]]]
    suffixes: tuple[str, ...]
    settings: type = NoSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderRecipe:
    """The reader from outside of a snapshot: the name that the snapshot's `source` gives it, its place and settings."""

    source: str
    parts: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)
    where: str = "snapshots"

    def __post_init__(self) -> None:
        found = self.reader
        if not found.suffixes:
            raise RecipeError(f"{self.where}.source: the reader {self.source} names no suffix of its files")
        _ = self._parts.settings(self.source, found.settings)  # checks itself

    @property
    def _parts(self) -> PartsOf:
        return PartsOf(self.where, self.parts)

    @property
    def reader(self) -> Reader:
        """The reader itself. Raise RecipeError if there is none of this name."""
        return self._parts.load(KIND, self.source, SOURCES, field="source", cls=Reader)

    def outside_parts(self) -> dict[str, OutsidePart]:
        """Return the reader by name."""
        return {self.source: self._parts.find(KIND, self.source, SOURCES, "source")}

    def rows(self, path: Path) -> Iterator[Mapping[str, Any]]:
        """Yield the records of a file. Raise PartFailed, with the reader's name, for what is none."""
        reader, who = self.reader, f"reader {self.source}"
        settings = self._parts.settings(self.source, reader.settings)
        with named(who, f"failed at the start of {path.name}"):
            left, end = iter(reader.rows(path, settings)), object()
        number = 0
        while True:
            with named(who, f"failed in {path.name} at record {number}"):
                row: Any = next(left, end)
            if row is end:
                return
            if not isinstance(row, Mapping) or not row.keys() & {"text", "html", "damaged"}:
                raise PartFailed(
                    f"{who} gave {row!r:.80} as record {number} of {path.name}; it must be a mapping with text, html or"
                    " damaged"
                )
            yield row
            number += 1
