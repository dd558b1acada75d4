"""Look up the documents of a batch in the sidecars, the tables beside the shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.contract.files.stored_root import is_here
from training.contract.job import InputArtifact, RefusedInput
from training.order.batches import Plan, documents_at
from training.order.ledger import Ledger

SIDECAR_SUFFIX = ".documents.parquet"


class Sidecars:
    """The sidecars of a plan's shards.

    Raise RefusedInput if one is missing, because its tokens could not be traced to their pages.
    """

    def __init__(self, plan: Plan, inputs: Mapping[str, InputArtifact]) -> None:
        self.plan = plan
        self._places: list[tuple[InputArtifact, str]] = []
        for shard in plan.record.shards:
            item, name = inputs[shard.artifact], shard.path.removesuffix(".bin") + SIDECAR_SUFFIX
            path, entry = Path(item.path, name), item.files().get(name, {"sha256": ""})
            if not is_here(path, entry["sha256"]):
                raise RefusedInput(
                    f"{path}: the sidecar of {shard.path} is missing, so its tokens cannot be traced to their pages;"
                    " materialize token_shards again"
                )
            self._places.append((item, name))

    def describe(self, documents: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return where each (shard, document number in the shard) comes from, such as its URL and id.

        The result has its partition, its shard, and its row of the sidecar. On a node without the package
        pyarrow, where models are only trained, the row is left out.
        """
        shards = self.plan.record.shards
        rows = [
            {"partition": shards[shard].partition, "shard": shards[shard].path, "document": document}
            for shard, document in documents
        ]
        try:
            import pyarrow.parquet as pq
        except ImportError:
            return rows
        for shard in sorted({shard for shard, _ in documents}):
            item, name = self._places[shard]
            table = pq.read_table(item.file(name), memory_map=True)
            for row, (own, document) in zip(rows, documents, strict=True):
                if own == shard:
                    row |= table.slice(document, 1).to_pylist()[0]
        return rows

    def skipped(self, ledger: Ledger) -> Iterator[dict[str, Any]]:
        """Yield every document with a token in a step that the ledger skipped, with these steps."""
        steps: dict[tuple[int, int], list[int]] = {}
        for step in ledger.steps:
            for document in documents_at(self.plan, step):
                steps.setdefault(document, []).append(step)
        documents = sorted(steps)
        for document, known in zip(documents, self.describe(documents), strict=True):
            yield {"steps": steps[document], **known}
