"""What the archives of a snapshot say of their collection: when pages were fetched, by which crawler, from which seeds.

The dates are those of the WARC headers (WARC-Date), which are not the pages' own. The crawler is described by the
fields of `warcinfo` records. The seeds are addresses in the arguments with which a crawler was started; a name and
password in them are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from training.data.crawl.warc import DOCUMENT_TYPES, Damage, Record, parse_headers
from training.data.extract.pages.html import clean, day_of

FIELDS: Final = (
    "software",
    "robots",
    "operator",
    "publisher",
    "ispartof",
    "description",
    "http-header-user-agent",
    "http-header-from",
)
SEEDS: Final = "seeds"
MOST_VALUES: Final = 50  # of a field; further ones are counted
MOST_CHARACTERS: Final = 300
OTHERS: Final = ""  # the name under which further values are counted
_SEED = re.compile(r"(?<![^\s\"'])(https?://)(?:[^\s\"'/@]*@)?([^\s\"']+)")


@dataclass(slots=True)
class Collection:
    """The first and the last day of the pages in some archives, and how often each value of a field was stated."""

    first: str = ""
    last: str = ""
    said: dict[str, dict[str, int]] = field(default_factory=dict)

    def of(self, items: Iterable[Record | Damage]) -> Iterator[Record | Damage]:
        """Yield the records of an archive unchanged, and take note of them."""
        for item in items:
            if isinstance(item, Record):
                if item.type in DOCUMENT_TYPES:
                    self.add_days(day_of(item.headers.get("warc-date", "")))
                elif item.type == "warcinfo":
                    self._add_fields(parse_headers(b"\r\n" + bytes(item.content)))
            yield item

    def add_days(self, *days: str) -> None:
        """Take note of days on which pages were fetched; empty ones are not known."""
        known = [day for day in (self.first, self.last, *days) if day]
        self.first, self.last = min(known, default=""), max(known, default="")

    def add(self, name: str, value: str, number: int = 1) -> None:
        """Count a value of a field."""
        values = self.said.setdefault(name, {})
        if value not in values and sum(bool(one) for one in values) >= MOST_VALUES:
            value = OTHERS
        values[value] = values.get(value, 0) + number

    def _add_fields(self, fields: Mapping[str, str]) -> None:
        for name in FIELDS:
            if value := clean(fields.get(name, ""))[:MOST_CHARACTERS]:
                self.add(name, value)
        for name, value in fields.items():
            if name == SEEDS or name.endswith("-arguments"):
                for scheme, address in _SEED.findall(value):
                    self.add(SEEDS, clean(scheme + address)[:MOST_CHARACTERS])

    def as_json(self) -> dict[str, Any]:
        """Return the notes as plain data, in one order."""
        said = {name: dict(sorted(values.items())) for name, values in sorted(self.said.items())}
        return {"first_day": self.first, "last_day": self.last, "said": said}


def joined(notes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the notes about several archives as one; empty if none has a date or a field."""
    whole = Collection()
    for one in notes:
        whole.add_days(one["first_day"], one["last_day"])
        for name, values in one["said"].items():
            for value, number in values.items():
                whole.add(name, value, number)
    return {"collection": whole.as_json()} if whole.first or whole.said else {}
