"""What becomes of a record of an archive, and what the documents of an archive file share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from training.data.crawl.reader import ReaderRecipe
from training.data.documents import document_id
from training.data.extract.settings import ExtractRecipe
from training.data.extract.terms import read_lists

CODE = pa.field("code", pa.list_(pa.int32()))  # where code begins and ends in the text, in turn; null if not known
TERMS = ("robots", "tdm_reservation", "licence", "usage")
TRUNCATED = "truncated"  # why the archive has only the page's beginning (WARC-Truncated); empty for a whole one
DESCRIBED = (*TERMS, "kind", TRUNCATED)  # texts, empty where a page says nothing
# Columns of documents beyond those of every document.
ADDED = (*(pa.field(name, pa.string()) for name in DESCRIBED), pa.field("formulas", pa.int32()), CODE)


def columns_of(listing: Mapping[str, Any]) -> tuple[str | pa.Field, ...]:
    """Return the columns of a snapshot's kept documents beyond those of every document."""
    return (*ADDED, *(("prompt",) if listing.get("prompt_field") else ()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A record that was extracted to a document row; the document is dropped if `reason` is not empty."""

    row: dict[str, Any]
    reason: str = ""
    num_replaced: int = 0
    is_doubtful: bool = False
    is_second: bool = False
    has_two_charsets: bool = False
    gives_tokens_back: bool | None = None  # of a decoded text: encoded again, it has the same tokens; None: not tried


@dataclass(frozen=True, kw_only=True, slots=True)
class Quarantined:
    """A record that could not be read or extracted, with the reason."""

    offset: int
    reason: str
    detail: str
    url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Other:
    """A record that is not a document, such as a request."""

    type: str


Fate = Kept | Quarantined | Other


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveFile:
    """One archive file, and the properties that its documents share."""

    path: Path
    name: str
    snapshot: str
    label: str
    text_field: str
    url_field: str
    prompt_field: str | None = None
    tokenizer: Path | None = None  # of a token shard
    reader: ReaderRecipe | None = None  # None: Pedigree reads the file
    said: Mapping[str, str] = field(default_factory=dict)  # of a file of a folder: title, url, licence

    def row(self, offset: int, **fields: Any) -> dict[str, Any]:
        return {
            "id": document_id(self.snapshot, self.name, offset),
            "text": "",
            "url": "",
            "snapshot": self.snapshot,
            "warc_file": self.name,
            "warc_offset": offset,
            "date": "",
            "title": "",
            "language": "",
            "source": self.label,
            **dict.fromkeys(DESCRIBED, ""),
            **fields,
        }


def withdrawn(row: dict[str, Any], settings: ExtractRecipe) -> str:
    """Return why a list excludes a document, judged by URL and id: `takedown` (with a reason), `blocked`, or ""."""
    if settings.takedown and (why := read_lists(settings.takedown).find(row["url"], row["id"])) is not None:
        return f"takedown:{why}" if why else "takedown"
    if settings.blocked and read_lists(settings.blocked).find(row["url"], row["id"]) is not None:
        return "blocked"
    return ""
