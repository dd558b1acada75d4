"""When a training reads a page: a pure function of its plan, and of the steps that it skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from evaluation.steps.page_effects import PageRead
from training.contract.job import InputArtifact
from training.order.batches import Plan
from training.order.ledger import Ledger
from training.order.sidecars import SIDECAR_SUFFIX
from training.provenance.steps import Steps


def numbers_of(plan: Plan, shards: Sequence[InputArtifact], documents: set[str]) -> dict[str, int]:
    """Return the numbers in the plan of the documents with these ids; those in no shard are left out.

    Of each sidecar only the column of ids is read.
    """
    held, steps = {one.fingerprint: one for one in shards}, Steps(plan)
    wanted, found = pa.array(sorted(documents), pa.string()), dict[str, int]()
    for number, shard in enumerate(plan.record.shards):
        path = held[shard.artifact].file(shard.path.removesuffix(".bin") + SIDECAR_SUFFIX)
        ids = _ids(path)
        rows = pc.indices_nonzero(pc.is_in(ids, value_set=wanted)).to_pylist()
        if rows:
            found |= zip(ids.take(rows).to_pylist(), steps.numbers([number] * len(rows), rows).tolist(), strict=True)
    return found


def _ids(path: Path) -> pa.ChunkedArray:
    return pq.read_table(path, columns=["id"], memory_map=True).column("id")


def readings_of(plan: Plan, numbers: Mapping[str, int], ledger: Ledger) -> dict[str, list[PageRead]]:
    """Return the readings of each document, in the order of the steps: one for each epoch that a step trained on.

    A document that no step reads, or that is held out, has none. Of a page in several rows the first step counts.
    """
    seen = Steps(plan).seen(list(numbers.values()))
    found = {}
    for document, number in numbers.items():
        first: dict[int, int] = {}
        for piece in seen[number]:
            if piece.step not in ledger:
                first.setdefault(piece.epoch, piece.step)
        found[document] = [PageRead(document=document, step=step) for step in sorted(first.values())]
    return found
