"""Leave out the rows of instructions, preferences and prompts that were withdrawn, by lists of them.

A line of a list is the id of a row, or a source with `#` for all its rows; a reason may follow after a tab. A row that
is left out is dropped with this reason, before it is read: nothing of it is kept but its id.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

from training.contract.job import Job
from training.data.documents import decompressed_text
from training.data.sources import check_unchanged, open_uri
from training.posttrain.rows.source import SourceRow
from training.posttrain.source_settings import WITHDRAWALS, WithdrawnRows

S = TypeVar("S")


def without_withdrawn(records: Iterable[tuple[S, SourceRow]], job: Job) -> Iterator[tuple[S, SourceRow]]:
    """Yield the records in order, those that a list of the job names without their content, to be dropped."""
    reasons = _reasons(job)
    for source, record in records:
        reason = reasons.get(record.id) or reasons.get(source_of(record.id))
        yield source, SourceRow(id=record.id, row={}, reason=reason) if reason else record


def source_of(id_: str) -> str:
    """Return the entry of a list that names all rows of the source of a row."""
    return f"{id_.rpartition('#')[0]}#"


def _reasons(job: Job) -> dict[str, str]:
    found: dict[str, str] = {}
    if WITHDRAWALS in job.settings:
        for uri in job.settings_as(WithdrawnRows, WITHDRAWALS).rows:
            check_unchanged(uri, job)
            with open_uri(uri) as stream, decompressed_text(io.BytesIO(stream.read()), uri) as lines:
                for line in lines:
                    entry, _, reason = line.partition("\t")
                    plain = re.sub(r"[^a-z0-9]+", "_", reason.lower()).strip("_")
                    if entry.strip():
                        found.setdefault(entry.strip(), f"takedown:{plain}" if plain else "takedown")
    return found
