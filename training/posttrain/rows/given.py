"""What each source gave: how many of its rows were kept, why others were not, and which format would have read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, permutations
from typing import Any

from training.contract.job import DataError, Gate, Work
from training.contract.records import varied
from training.posttrain.rows.forms import Reader, Row
from training.posttrain.rows.source import SourceRow, read_row
from training.posttrain.source_settings import TextSourceRecipe, label

GATE = "every_source_gives"
SEEN_ROWS = 16  # rows of a source that are not used and serve to find a format
COLUMNS = 6  # most columns whose pairs are tried as question and answer
WITHDRAWN = "takedown"  # begins the reason of a row that was withdrawn


@dataclass(kw_only=True, slots=True)
class Given:
    """What a source gave: its rows that were kept or not, by reason, and how its answers ended."""

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    unused: list[Row] = field(default_factory=list)

    def add(self, record: SourceRow) -> None:
        """Count a row."""
        if not record.reason:
            self.kept += 1
            self.endings.update(record.endings)
            return
        (self.quarantined if record.is_damaged else self.dropped)[record.reason] += 1
        if len(self.unused) < SEEN_ROWS and record.row:
            self.unused.append(record.row)

    @property
    def reasons(self) -> Counter[str]:
        """The numbers of rows that were not kept, by reason."""
        return self.dropped + self.quarantined

    @property
    def number(self) -> int:
        """The number of rows."""
        return self.kept + self.reasons.total()

    @property
    def gives(self) -> bool:
        """Whether rows were kept, or all were withdrawn."""
        return self.kept > 0 or all(reason.startswith(WITHDRAWN) for reason in self.reasons)

    def as_json(self) -> dict[str, Any]:
        """Return the counts, with the endings of the answers if some have a marker."""
        counts = {"in": self.number, "kept": self.kept}
        counts |= {"dropped": dict(sorted(self.dropped.items())), "quarantined": dict(sorted(self.quarantined.items()))}
        return counts | ({"answers_ending": dict(sorted(self.endings.items()))} if any(self.endings) else {})


def judged(
    given: Mapping[str, Given], sources: Sequence[TextSourceRecipe], readers: Mapping[str, Reader], work: Work
) -> tuple[Gate, dict[str, Any]]:
    """Return the gate `every_source_gives` and the artifact's note with the counts of each source.

    Say how answers end if a source has a marker on some of them. Raise DataError if no source gives anything.
    """
    named = [(source, given.get(label(source.uri), Given())) for source in sources]
    refused = [nothing_given(source, one, readers) for source, one in named if not one.gives]
    if not any(one.kept for _, one in named):
        raise DataError("; ".join(refused) or "every row was withdrawn")
    gate = Gate(name=GATE, passed=not refused, evidence={"sources": len(named), "refused": refused})
    told = {label(source.uri): list(endings_told(source, one)) for source, one in named}
    for sentence in chain.from_iterable(told.values()):
        work.progress.message(sentence)
    note = {label(source.uri): one.as_json() for source, one in named}
    return gate, {"sources": {name: one | {"told": told[name]} if told[name] else one for name, one in note.items()}}


def endings_told(source: TextSourceRecipe, given: Given) -> Iterator[str]:
    """Yield a sentence for each end marker that some answers have and others have not, or that is trained as text."""
    total = given.endings.total()
    for marker, number in sorted(given.endings.items()):
        if marker and marker != source.end_marker:
            yield (
                f"{label(source.uri)}: {number} of {total} answers end in {marker!r}, which is trained as text; name it"
                " as the source's end_marker if it is none of their text"
            )
        elif marker and number < total:
            yield f"{label(source.uri)}: {number} of {total} answers end in the end_marker {marker!r}, others do not"


def nothing_given(source: TextSourceRecipe, given: Given, readers: Mapping[str, Reader]) -> str:
    """Return why a source gives no row: the commonest reason, and the settings with which rows would be read."""
    ((reason, number),) = given.reasons.most_common(1) or [("no rows", 0)]
    found = fitting(given.unused, source, readers)
    fits = f"with {found} its rows would be read" if found else f"no format reads its rows ({', '.join(readers)})"
    return f"{source.uri}: none of {given.number} rows is used, {number} of them because of {reason}; {fits}"


def fitting(rows: Sequence[Row], source: TextSourceRecipe, readers: Mapping[str, Reader]) -> str:
    """Return the settings of a source with which most of the rows would be read; empty if none reads any."""
    best, settings = 0, ""
    for candidate in _candidates(rows, source, readers):
        made = [read_row("", row, candidate, readers[candidate.format]) for row in rows]
        unread = {name for one in made for name in _unread(one.reason)}
        if unread:
            candidate = replace(candidate, ignore=(*source.ignore, *sorted(unread)))
            made = [read_row("", row, candidate, readers[candidate.format]) for row in rows]
        if (number := sum(not one.reason for one in made)) > best:
            best, settings = number, _differing(candidate, source)
    return settings


def _candidates(
    rows: Sequence[Row], source: TextSourceRecipe, readers: Mapping[str, Reader]
) -> Iterator[TextSourceRecipe]:
    """Yield the source with each format and, for formats that name columns, with each pair of the rows' columns."""
    yield source
    plain = {one.name: one.default for one in fields(source) if one.name in ("prompt_field", "answer_field")}
    for name in readers:
        yield varied(source, {"format": name, **plain})
    columns = list(dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, (str, list))))
    for name in readers.keys() & {"prompt_answer"}:
        for question, answer in permutations(columns[:COLUMNS], 2):
            yield varied(source, {"format": name, "prompt_field": question, "answer_field": answer})


def _unread(reason: str) -> list[str]:
    kind, _, names = reason.partition(":")
    return names.split(",") if kind == "unread_field" else []


def _differing(candidate: TextSourceRecipe, source: TextSourceRecipe) -> str:
    """Return the settings in which two sources differ, as they are written in a recipe."""
    names = ("format", "prompt_field", "answer_field", "ignore")
    changed = {name: getattr(candidate, name) for name in names if getattr(candidate, name) != getattr(source, name)}
    lists = {name: f"[{', '.join(value)}]" for name, value in changed.items() if name == "ignore"}
    return ", ".join(f"{name}: {value}" for name, value in (changed | lists).items())
