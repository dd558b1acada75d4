"""The language of each held-out document that is read while a model trains, as the rule `language` wrote it.

Shards and plan hold no languages: they are those of the documents from which the shards were made, found by id.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.contract.job import Job
from training.data.documents import document_files, read_tables, rows_at
from training.order.batches import DOCUMENT, SHARD, read_plan
from training.order.sidecars import SIDECAR_SUFFIX

UNKNOWN = "unknown"  # the language of documents for which none was written


def held_out_languages(job: Job) -> list[str]:
    """Return the languages in the order of the plan's array `held_out`.

    The job reads the plan, its token shards, and the documents of which these were made.
    """
    ids = dict(_held_out_ids(job))
    wanted, language_of = pa.array(ids.values(), pa.string()), dict[str, str]()
    for item in job.inputs_of("decontaminated_documents"):
        for path in document_files(item):
            for table in read_tables(path, ["id", "language"]):
                found = table.filter(pc.is_in(table["id"], value_set=wanted)).to_pydict()
                language_of |= zip(found["id"], found["language"], strict=True)
    return [language_of.get(ids[number]) or UNKNOWN for number in range(len(ids))]


def _held_out_ids(job: Job) -> Iterator[tuple[int, str]]:
    """Yield the number and the id of each document in the plan's array `held_out`, shard by shard."""
    item, inputs = job.input_of("training_plan"), {one.fingerprint: one for one in job.inputs_of("token_shards")}
    plan = read_plan(item.folder, digest=item.digest)
    for shard in np.unique(plan.held_out[:, SHARD]).tolist():
        planned, own = plan.record.shards[shard], np.flatnonzero(plan.held_out[:, SHARD] == shard)
        own = own[np.argsort(plan.held_out[own, DOCUMENT])]
        path = inputs[planned.artifact].file(planned.path.removesuffix(".bin") + SIDECAR_SUFFIX)
        rows = rows_at(path, plan.held_out[own, DOCUMENT].tolist(), ["id"])
        yield from ((int(number), row["id"]) for number, row in zip(own, rows, strict=True))
