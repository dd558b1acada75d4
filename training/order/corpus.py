"""Read the sidecars of token shards, a part of a shard at a time, and write the position of each document.

The memory needed does not grow with the number of documents, only with that of the shards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from training.contract.artifact import written
from training.contract.job import DataError, InputArtifact, RefusedInput
from training.order.batches import COLUMNS, TOKENS, PlannedShard
from training.order.documents import HELD_OUT, POSITIONS_FILE, RUN_FIELDS, RUNS_FILE
from training.order.held_out import are_held_out, budgets, held_out_ranks, looked_at

AT_ONCE = 1 << 16  # documents that are read at once


class SourceSize(NamedTuple):
    """The size of a source: documents and tokens for training, held-out documents and tokens, and packed rows.

    Without packing `rows` is 0. `look_documents` and `look_tokens` count the held-out text of one evaluation during
    training.
    """

    documents: int
    tokens: int
    held_out_documents: int
    held_out_tokens: int
    rows: int = 0
    look_documents: int = 0
    look_tokens: int = 0

    def capacity(self, length: int) -> int:
        """Return the positions of one epoch in rows of `length`: the tokens, or all positions of packed rows."""
        return self.rows * length or self.tokens

    def fill(self, length: int) -> float:
        """Return the share of positions in the source's rows of `length` tokens that hold a token."""
        return self.tokens / (self.rows * length) if self.rows else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanCorpus:
    """The shards of a plan, and the artifacts that hold them by fingerprint."""

    shards: tuple[PlannedShard, ...]
    inputs: Mapping[str, InputArtifact]

    def beside(self, shard: int, suffix: str) -> Path:
        """Return the path of a file that belongs to a shard, such as its sidecar, given the suffix of its name."""
        path = self.shards[shard].path
        return self.inputs[self.shards[shard].artifact].file(path.removesuffix(".bin") + suffix)


class Run(NamedTuple):
    """Consecutive documents of a shard that belong to one source."""

    source: str
    shard: int
    first: int
    documents: int


def listing_of(item: InputArtifact, tokenizer_digest: str) -> dict[str, Any]:
    """Return the content of an input's `shards.json`. Raise RefusedInput if it was made with another tokenizer."""
    listing = json.loads(item.file("shards.json").read_text("utf-8"))
    if listing["tokenizer_digest"] != tokenizer_digest:
        raise RefusedInput(
            f"token_shards [{item.partition}] were made with tokenizer {listing['tokenizer_digest'][:12]}, the"
            f" recipe's is {tokenizer_digest[:12]}; materialize token_shards again"
        )
    return listing


def corpus_of(inputs: Sequence[InputArtifact]) -> PlanCorpus:
    """Return the shards of all inputs by partition and name, so that the order of the inputs does not matter."""
    shards = [shard for item in inputs for shard in _planned_shards(item)]
    shards.sort(key=lambda shard: (shard.partition, shard.path.removesuffix(".bin"), shard.artifact))
    return PlanCorpus(shards=tuple(shards), inputs={item.fingerprint: item for item in inputs})


def _planned_shards(item: InputArtifact) -> Iterator[PlannedShard]:
    for path, entry in item.files().items():
        if path.endswith(".bin"):
            offsets = item.file(path.removesuffix(".bin") + ".offsets.npy")
            yield PlannedShard(
                partition=item.partition,
                artifact=item.fingerprint,
                digest=item.digest,
                path=path,
                bytes=entry["bytes"],
                sha256=entry["sha256"],
                documents=len(np.load(offsets, mmap_mode="r", allow_pickle=False)) - 1,
            )


def runs_of(corpus: PlanCorpus) -> list[Run]:
    """Return the runs (consecutive documents of one source) of all shards, sorted by source and position.

    DataError is raised if a sidecar lacks a document of its shard.
    """
    runs = []
    for number, shard in enumerate(corpus.shards):
        path = corpus.beside(number, ".documents.parquet")
        with pq.ParquetFile(path, memory_map=True) as sidecar:
            rows = sidecar.metadata.num_rows
            if rows != shard.documents:
                raise DataError(
                    f"{corpus.beside(number, '.bin')}: {shard.documents} documents, its sidecar has {rows};"
                    " materialize token_shards again"
                )
            runs += _runs(number, sidecar)
    if not runs:
        raise DataError("token_shards: no documents; every snapshot of the recipe is empty")
    return sorted(runs)


def _runs(shard: int, sidecar: pq.ParquetFile) -> list[Run]:
    runs: list[Run] = []
    at = 0
    for batch in sidecar.iter_batches(AT_ONCE, columns=["source"]):
        names = batch.column(0).dictionary_encode()
        numbers = names.indices.to_numpy()
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, stop in pairwise(cuts):
            source = names.dictionary[int(numbers[start])].as_py()
            if runs and runs[-1].source == source:
                runs[-1] = runs[-1]._replace(documents=runs[-1].documents + stop - start)
            else:
                runs.append(Run(source, shard, at + start, stop - start))
        at += len(numbers)
    return runs


@dataclass(kw_only=True, slots=True)
class _Counted:
    """Counts of a source's documents and tokens, and the held-out documents for evaluations.

    `budget` is the number of tokens that one evaluation during training reads. `ranks` and `rows` are the held-out
    documents that it may read, with the columns of `batches.COLUMNS`.
    """

    budget: int
    documents: int = 0
    tokens: int = 0
    held_out_documents: int = 0
    held_out_tokens: int = 0
    ranks: list[np.ndarray] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)
    waiting: int = 0  # tokens of `rows`

    def add(self, tokens: np.ndarray, is_held_out: np.ndarray) -> None:
        held_out, held_tokens = int(is_held_out.sum()), int(tokens[is_held_out].sum())
        self.held_out_documents += held_out
        self.held_out_tokens += held_tokens
        self.documents += len(tokens) - held_out
        self.tokens += int(tokens.sum()) - held_tokens

    def offer(self, ranks: np.ndarray, rows: np.ndarray) -> None:
        """Add held-out documents, from which `look` chooses those that evaluations read."""
        self.ranks.append(ranks)
        self.rows.append(rows)
        self.waiting += int(rows[:, TOKENS].sum())
        if self.waiting > 2 * self.budget:
            chosen = self.look(self.budget)
            self.waiting = int(chosen[:, TOKENS].sum())

    def look(self, budget: int) -> np.ndarray:
        """Return the held-out documents for evaluation, chosen by rank up to `budget` tokens, and forget the others."""
        if not self.rows:
            return np.empty((0, len(COLUMNS)), dtype=np.int64)
        ranks, rows = np.concatenate(self.ranks), np.concatenate(self.rows)
        chosen = looked_at(ranks, rows[:, TOKENS], budget)
        self.ranks, self.rows = [ranks[chosen]], [rows[chosen]]
        return self.rows[0]


def write_documents(
    folder: Path, corpus: PlanCorpus, *, held_out_fraction: float, look_tokens: int
) -> tuple[dict[str, SourceSize], np.ndarray]:
    """Write the arrays of `training.order.documents`.

    Return the size of each source by name, and the held-out documents that each evaluation during training reads, at
    most `look_tokens` tokens, source by source, int64 with the columns of `batches.COLUMNS`.
    """
    runs, counted = runs_of(corpus), dict[str, _Counted]()
    table = np.empty((RUN_FIELDS, len(runs)), dtype=np.int64)
    documents = sum(run.documents for run in runs)
    before = written_documents = 0
    with streamed(folder / POSITIONS_FILE, np.dtype("<u8"), (documents + 1,)) as stream:
        for number, run in enumerate(runs):
            offsets = np.load(corpus.beside(run.shard, ".offsets.npy"), mmap_mode="r", allow_pickle=False)
            table[:, number] = written_documents, run.shard, run.first, offsets[run.first]
            of_source = counted.setdefault(run.source, _Counted(budget=look_tokens))
            for first, ids, sizes in _pieces(corpus, run, with_ids=held_out_fraction > 0):
                starts = np.asarray(offsets[first : first + len(sizes) + 1], dtype=np.int64)
                tokens = np.diff(starts)
                ranks = held_out_ranks(ids) if ids else np.zeros(len(sizes), dtype=np.uint64)
                is_held_out = are_held_out(ranks, held_out_fraction)
                stream.write(_positions(before, tokens, is_held_out))
                of_source.add(tokens, is_held_out)
                if is_held_out.any():
                    own = np.arange(first, first + len(sizes), dtype=np.int64)
                    columns = (np.full_like(own, run.shard), own, starts[:-1], tokens, sizes)
                    of_source.offer(ranks[is_held_out], np.stack(columns, axis=1)[is_held_out])
                before += int(tokens.sum())
                written_documents += len(tokens)
        stream.write(np.array([before], dtype="<u8").tobytes())
    with written(folder / RUNS_FILE) as stream:
        np.save(stream, table, allow_pickle=False)
    shares = budgets({name: one.held_out_tokens for name, one in counted.items()}, look_tokens)
    looks = {name: one.look(shares[name]) for name, one in counted.items()}
    sizes = {
        name: SourceSize(
            one.documents,
            one.tokens,
            one.held_out_documents,
            one.held_out_tokens,
            look_documents=len(looks[name]),
            look_tokens=int(looks[name][:, TOKENS].sum()),
        )
        for name, one in counted.items()
    }
    return sizes, np.concatenate(list(looks.values()))


def _pieces(corpus: PlanCorpus, run: Run, *, with_ids: bool) -> Iterator[tuple[int, list[bytes], np.ndarray]]:
    """Yield (number of the first document in the shard, ids, sizes of the texts in bytes) of parts of a run."""
    columns = ["id", "bytes"] if with_ids else ["bytes"]
    at, stop = 0, run.first + run.documents
    with pq.ParquetFile(corpus.beside(run.shard, ".documents.parquet"), memory_map=True) as sidecar:
        for batch in sidecar.iter_batches(AT_ONCE, columns=columns):
            first, last = max(at, run.first), min(at + len(batch), stop)
            if first < last:
                part = batch.slice(first - at, last - first)
                ids = part.column("id").cast("binary").to_pylist() if with_ids else []
                yield first, ids, part.column("bytes").to_numpy()
            at += len(batch)


def _positions(before: int, tokens: np.ndarray, is_held_out: np.ndarray) -> bytes:
    positions = (before + np.cumsum(tokens) - tokens).astype("<u8")
    positions[is_held_out] |= HELD_OUT
    return positions.tobytes()


@contextmanager
def streamed(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> Iterator[IO[bytes]]:
    """Open an array file (.npy) of this shape, to which the numbers are written as bytes in order."""
    with written(path) as stream:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        yield stream
