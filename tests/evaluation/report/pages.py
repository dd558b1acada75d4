"""Rows of documents that were kept or dropped, as a report reads them."""

from __future__ import annotations

from pathlib import Path

from training.data.documents import DocumentWriter

HOSTILE_URL = "javascript:alert('y')//<b>"


def document(number: int, text: str, **more: object) -> dict[str, object]:
    place = {
        "id": f"s1/a.warc.gz/{number:012d}",
        "snapshot": "s1",
        "warc_file": "a.warc.gz",
        "warc_offset": number,
        "source": "web",
    }
    return {**place, "text": text, "url": HOSTILE_URL, **more}


def documents(folder: Path, kept: list[dict], dropped: list[dict], extra: tuple[str, ...] = ()) -> None:
    with DocumentWriter(folder / "documents" / "00000.parquet") as writer:
        for row in kept:
            writer.write(row)
    with DocumentWriter(folder / "dropped" / "00000.parquet", ("reason", *extra)) as writer:
        for row in dropped:
            writer.write(row)


def counts(records_in: int, kept: int, **dropped: int) -> dict[str, object]:
    return {"in": records_in, "kept": kept, "dropped": dropped, "quarantined": {}}
