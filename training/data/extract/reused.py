"""The files of a rank that an earlier job extracted, under the lists of this job: they are judged again, not extracted.

A list of withdrawn or blocked pages judges a record by its URL and id, which are in the rank's files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.contract.job import DataError, Job
from training.data.crawl.crawl import LIST_FILE, read_listing
from training.data.documents import DocumentWriter, LineWriter, document_id, read_documents, read_lines
from training.data.extract.record_outcomes import ADDED, DESCRIBED, columns_of, withdrawn
from training.data.extract.settings import ExtractRecipe
from training.data.sources import checksum_of


def listing_of(job: Job) -> dict[str, Any]:
    """Return the list of the snapshot's archives."""
    return read_listing(job.input_of("crawl_archives").file(LIST_FILE).parent)


def check_lists(job: Job, settings: ExtractRecipe) -> None:
    """Raise DataError if a list of excluded pages changed since the job was written.

    The lists' checksums are in the fingerprint.
    """
    for uri in (*settings.blocked, *settings.takedown, *settings.site_files):
        expected = job.settings.get("data", {}).get(uri)
        if expected and checksum_of(uri) != expected:
            raise DataError(f"{uri}: changed since the job was written; run again")


def still_holds(job: Job, folder: Path, files: Sequence[str]) -> bool:
    """Whether the job's lists of blocked and withdrawn pages exclude the same records as when a rank was finished.

    A list judges a record by its URL and id, which are in the rank's files. If the result is True, the rank is taken
    over.
    """
    settings = job.settings_as(ExtractRecipe, "extract")
    check_lists(job, settings)
    return all(withdrawn(row, settings) == _exclusion_in(row) for row in _records_in(job, folder, files))


def _exclusion_in(row: Mapping[str, Any]) -> str:
    reason = row.get("reason", "")
    return reason if reason.partition(":")[0] in ("takedown", "blocked") else ""


def _records_in(job: Job, folder: Path, files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield URL and id of every record in a rank's files, with the reason if it was dropped."""
    for name in files:
        if name.startswith("quarantine/"):
            for line in read_lines(folder / name):
                id_ = document_id(job.snapshot, line["warc_file"], line["warc_offset"])
                yield {"id": id_, "url": line["url"]}
        else:
            columns = ["id", "url", *(["reason"] if name.startswith("dropped/") else [])]
            yield from read_documents(folder / name, columns)


def adjusted(job: Job, folder: Path, result: dict[str, Any]) -> dict[str, Any] | None:
    """Take pages that the job's lists exclude out of a finished rank's files; return its new result.

    The text of all other pages is kept, so that nothing is extracted again, and the files have the same bytes as
    after a new extraction. Return None, and leave the files unchanged, if a record must be extracted: because it is
    no longer excluded, or because it is a row in the quarantine, which may have been put there before any list was
    applied. A WARC record is judged by the lists first.
    """
    settings = job.settings_as(ExtractRecipe, "extract")
    files = [result["files"][at : at + 3] for at in range(0, len(result["files"]), 3)]
    listing = listing_of(job)
    order = {entry["name"]: place for place, entry in enumerate(listing["files"])}
    found = [_changes(folder, names, order, settings, job, listing) for names in files]
    if any(one is None for one in found):
        return None
    taken = [one.make(folder, names, listing) for one, names in zip(found, files, strict=True) if one is not None]
    counts = result["counts"] | {
        "kept": result["counts"]["kept"] - sum(one.documents for one in taken),
        "dropped": dict(sorted(sum((one.dropped for one in taken), Counter()).items())),
        "quarantined": dict(sorted(sum((one.quarantined for one in taken), Counter()).items())),
    }
    characters = result["metrics"]["text_characters"] - sum(one.characters for one in taken)
    return result | {"counts": counts, "metrics": result["metrics"] | {"text_characters": characters}}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Taken:
    """What was taken out of a file of documents, and what its dropped and quarantined pages are now, by reason."""

    documents: int
    characters: int
    dropped: Counter[str]
    quarantined: Counter[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Changes:
    """What one file holds once the takedown and block lists are applied anew: kept, dropped, quarantined pages."""

    kept: pa.Table
    dropped: pa.Table
    quarantined: list[dict[str, Any]]
    gone: pa.Array  # which of the documents are excluded now

    def make(self, folder: Path, names: Sequence[str], listing: Mapping[str, Any]) -> _Taken:
        """Write the documents that stay, the dropped pages and the quarantined ones."""
        left, out = self.kept.filter(pc.invert(self.gone)), self.kept.filter(self.gone)
        with DocumentWriter(folder / names[0], extra=columns_of(listing)) as writer:
            writer.write_table(left)
        with DocumentWriter(folder / names[1], extra=(*ADDED, "reason")) as writer:
            writer.write_table(self.dropped)
        with LineWriter(folder / names[2]) as lines:
            for line in self.quarantined:
                lines.write(line)
        characters = sum(pc.utf8_length(out["text"]).to_pylist())
        quarantined = Counter(line["reason"] for line in self.quarantined)
        return _Taken(documents=len(out), characters=characters, dropped=writer.reasons, quarantined=quarantined)


def _changes(
    folder: Path,
    names: Sequence[str],
    order: Mapping[str, int],
    settings: ExtractRecipe,
    job: Job,
    listing: Mapping[str, Any],
) -> _Changes | None:
    """Return what the job's lists change in one file; None if a record of it must be extracted."""
    lines = list(read_lines(folder / names[2]))
    judged = [
        (line, withdrawn(row, settings)) for line, row in zip(lines, _records_in(job, folder, names[2:]), strict=True)
    ]
    unread = [(line, why) for line, why in judged if why]
    if unread and listing["form"] != "warc":
        return None
    kept, dropped = (_read(folder / name) for name in names[:2])
    if not (_is_in_order(kept, order) and _is_in_order(dropped, order)):
        return None
    gone = [withdrawn(row, settings) for row in kept.select(["id", "url"]).to_pylist()]
    told = [
        (_exclusion_in(row), withdrawn(row, settings)) for row in dropped.select(["id", "url", "reason"]).to_pylist()
    ]
    if any(before and not now for before, now in told):
        return None
    out, stays = pa.array([bool(why) for why in gone], pa.bool_()), pa.array([not now for _, now in told], pa.bool_())
    reasons = [why for why in gone if why] + [now for _, now in told if now] + [why for _, why in unread]
    moved = [
        _bare(row) | {"reason": reason}
        for row, reason in zip(
            (
                *kept.filter(out).select(_PLACED).to_pylist(),
                *dropped.filter(pc.invert(stays)).select(_PLACED).to_pylist(),
                *(_placed(line, listing, job) for line, _ in unread),
            ),
            reasons,
            strict=True,
        )
    ]
    rest = dropped.filter(stays)
    rows = pa.concat_tables([rest, pa.Table.from_pylist(moved, schema=rest.schema)])
    left = [line for line, why in judged if not why]
    return _Changes(kept=kept, dropped=_in_order(rows, order), quarantined=left, gone=out)


def _placed(line: Mapping[str, Any], listing: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """Return id, address and place of a quarantined record."""
    place = {name: line[name] for name in ("url", "warc_file", "warc_offset")}
    id_ = document_id(job.snapshot, line["warc_file"], line["warc_offset"])
    return place | {"id": id_, "snapshot": job.snapshot, "source": listing["label"]}


_PLACED = ["id", "url", "snapshot", "warc_file", "warc_offset", "source"]


def _read(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as parquet:
        return parquet.read(use_threads=False)


def _where(rows: pa.Table, order: Mapping[str, int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the place of each row: its archive's in the listing, and its offset in that."""
    archives = [order[name] for name in rows["warc_file"].to_pylist()]
    return np.array(archives, dtype=np.int64), rows["warc_offset"].to_numpy()


def _in_order(rows: pa.Table, order: Mapping[str, int]) -> pa.Table:
    archives, offsets = _where(rows, order)
    return rows.take(pa.array(np.lexsort((offsets, archives))))


def _is_in_order(rows: pa.Table, order: Mapping[str, int]) -> bool:
    """Whether the places of the rows ascend without repeats."""
    archives, offsets = _where(rows, order)
    is_next, is_same = archives[1:] > archives[:-1], archives[1:] == archives[:-1]
    return bool((is_next | (is_same & (offsets[1:] > offsets[:-1]))).all())


def _bare(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row that is kept of a withdrawn document: without text, but with its place and address."""
    return {"text": "", "date": "", "title": "", "language": "", **dict.fromkeys(DESCRIBED, ""), **row}
