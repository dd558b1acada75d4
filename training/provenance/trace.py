"""Answers of `pedigree trace` as plain data: the pages of a step, and what became of a page or a domain.

Every answer is computed from artifacts that were checked when they were opened: the plan and its ledger, the shards
with their sidecars, and the index of every snapshot.
"""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.contract.job import DataError, InputArtifact
from training.contract.records import no_such
from training.data.address_lists import target_of
from training.data.urls import SAID, exact_form, key_of, plain_host, reversed_host
from training.order.batches import Plan
from training.order.sidecars import SIDECAR_SUFFIX
from training.provenance.clusters import cluster_of
from training.provenance.file_verification import sound
from training.provenance.index import (
    FoundPage,
    Index,
    RowGroups,
    find_id,
    find_url,
    in_order,
    read_rows,
    rows_of,
)
from training.provenance.layout import KEPT, KEPT_KIND, KINDS, PART, RANK
from training.provenance.lineage import (
    CORPUS_BACKWARDS,
    SHARDS,
    Lineage,
    Training,
    indexes_of,
    trainings_of,
)
from training.provenance.steps import InBatch, Seen, Steps, batch_of

DOCUMENT = ("id", "url", "snapshot", "warc_file", "warc_offset", "source")
STAGES = tuple(reversed(CORPUS_BACKWARDS))
SIDECARS_BYTES = 1 << 28  # of sidecars that stay in memory between questions
DOCUMENTS_AT_ONCE = 1 << 18  # whose steps are in memory together
TOKENIZER_FILE = "tokenizer.json"


@dataclass
class Tracer:
    """Answers questions about one artifact, from its lineage.

    Files that it opens stay open.
    """

    lineage: Lineage
    _steps: dict[str, Steps] = field(default_factory=dict)
    _shard_numbers: dict[str, Mapping[tuple[str, str], int]] = field(default_factory=dict)
    _sidecars: RowGroups = field(default_factory=lambda: RowGroups(DOCUMENT, most_bytes=SIDECARS_BYTES))

    @cached_property
    def trainings(self) -> list[Training]:
        """The trainings that went into the artifact, except those without a plan."""
        return trainings_of(self.lineage)

    @cached_property
    def indexes(self) -> list[Index]:
        """The indexes of all snapshots."""
        return indexes_of(self.lineage)

    def steps_of(self, training: Training) -> Steps:
        """The inverse of a training's plan."""
        return self._steps.setdefault(training.plan_item.fingerprint, Steps(training.plan))

    def training(self, name: str = "") -> Training:
        """Return the training called `name`; without a name, `base_model` or else the last training.

        Raise DataError if there is no such training.
        """
        known = {one.name: one for one in reversed(self.trainings)}
        chosen = name or ("base_model" if "base_model" in known else next(iter(known), ""))
        if chosen not in known:
            told = f"{self.lineage.last.item.where}: no training {chosen or 'on pages'} went into it"
            raise DataError(no_such(told, chosen, known) if known else f"{told}; it was trained on no plan")
        return known[chosen]

    # A step

    def step(self, step: int, *, training: str = "", texts: bool = False) -> dict[str, Any]:
        """Return the documents of a step of a training, in the order of the batch.

        With `texts`, each piece has the text of its tokens. Raise DataError if the training has no such step.
        """
        chosen = self.training(training)
        record = chosen.plan.record
        if not 0 <= step < record.steps:
            raise DataError(f"{chosen.name} has steps 0 to {record.steps - 1:,}; there is no step {step:,}")
        skipped = sorted(chosen.ledger.reasons(step))
        with _uncollected():
            batch = batch_of(self.steps_of(chosen), step)
            documents = list(self._described(chosen, batch, texts=texts))
        phase = chosen.plan.phase_at(step)
        return {
            "training": chosen.name,
            "fingerprint": chosen.node.item.fingerprint,
            "plan": chosen.plan_item.fingerprint,
            "step": step,
            "steps": record.steps,
            "rows": phase.rows,
            "sequence_length": phase.sequence_length,
            "trained": not skipped,
            "skipped": skipped,
            "documents": documents,
        }

    def _described(self, training: Training, batch: Sequence[InBatch], *, texts: bool) -> Iterable[dict[str, Any]]:
        rows = self._sidecar_rows(training.plan, [(one.shard, one.document) for one in batch])
        decode, shards = self._decoder(training) if texts else None, training.plan.record.shards
        for one, row in zip(batch, rows, strict=True):
            shard = shards[one.shard]
            pieces: list[dict[str, Any]] = [dict(_piece(piece)) for piece in one.pieces]
            if decode is not None:
                for piece, own in zip(pieces, one.pieces, strict=True):
                    piece["text"] = decode(one, own)
            row["shard"] = {"partition": shard.partition, "path": shard.path, "document": one.document}
            row["tokens_in_batch"], row["pieces"] = one.tokens, pieces
            yield row

    def _sidecar_rows(self, plan: Plan, places: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return the sidecar's row of each (shard, document). Files that were not read before are read in threads."""
        by_shard: dict[int, list[int]] = {}
        for number, (shard, _) in enumerate(places):
            by_shard.setdefault(shard, []).append(number)

        def read(shard: int) -> pa.Table:
            file = sound(self._shards(plan, shard), _sidecar_of(plan, shard))
            return self._sidecars.table(file, [places[number][1] for number in by_shard[shard]])

        new = [
            one for one in by_shard if Path(self._shards(plan, one).path, _sidecar_of(plan, one)) not in self._sidecars
        ]
        with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as pool:
            told = dict(zip(new, pool.map(read, new), strict=True))  # no thread is started if there are none
        # All shards together: a table of its own for each of hundreds takes longer than the rows.
        alike: dict[tuple[str, ...], tuple[list[pa.Table], list[list[int]]]] = {}
        for shard, numbers in by_shard.items():
            table = told[shard] if shard in told else read(shard)
            tables, own = alike.setdefault(tuple(table.column_names), ([], []))
            tables.append(table)
            own.append(numbers)
        found: dict[int, dict[str, Any]] = {}
        for tables, own in alike.values():
            numbers = sorted(number for some in own for number in some)
            found |= zip(numbers, rows_of(in_order(tables, own)), strict=True)
        return [found[number] for number in range(len(places))]

    def _shards(self, plan: Plan, shard: int) -> InputArtifact:
        """Return the artifact that holds a shard of a plan.

        Raise DataError if the artifact is not the one that the plan was made from.
        """
        wanted = plan.record.shards[shard]
        node = self.lineage.nodes.get(wanted.artifact)
        if node is None or node.item.digest != wanted.digest:
            raise DataError(
                f"{SHARDS} [{wanted.partition}]: the plan was made from digest {wanted.digest[:12]}, which is not among"
                " what the model was made from"
            )
        return node.usable

    def _decoder(self, training: Training) -> Callable[[InBatch, Seen], str]:
        """Return a function that decodes the text of a document's piece from its shard."""
        from tokenizers import Tokenizer

        plan, steps = training.plan, self.steps_of(training)
        item = self.lineage.of("tokenizer")[0].usable
        tokenizer = Tokenizer.from_file(str(item.file(TOKENIZER_FILE)))
        width = np.dtype(plan.record.dtype).newbyteorder("<")

        def decode(one: InBatch, piece: Seen) -> str:
            shard = plan.record.shards[one.shard]
            tokens = np.memmap(sound(self._shards(plan, one.shard), shard.path), width, "r")
            whole = plan.documents.segments(np.array([steps.number(one.shard, one.document)]))[0]
            ids = tokens[whole.start + piece.start : whole.start + piece.start + piece.tokens].tolist()
            ends = ids[-1] == plan.record.eos_id and piece.start + piece.tokens == whole.length
            return tokenizer.decode(ids[:-1] if ends else ids, skip_special_tokens=False)

        return decode

    # Pages

    def url(self, url: str) -> dict[str, Any]:
        """Return what became of the pages with a URL, however the URL is spelled.

        Raise DataError if there is none.
        """
        key, exact = key_of(url), exact_form(url)
        found = find_url(self.indexes, url)
        if not found:
            raise DataError(
                f"{url}: no snapshot has a page of this address ({exact}; {SAID}). Searched: {self._searched()}"
            )
        pages = [{**self.page(one), "is_exact": exact_form(one.row["url"]) == exact} for one in found]
        return {"url": url, "exact_form": exact, "key": f"{key.host}){key.rest}", "same": SAID, "pages": pages}

    def document(self, id_: str) -> dict[str, Any]:
        """Return what became of the page with an id. Raise DataError if there is none."""
        found = find_id(self.indexes, id_)
        if not found:
            raise DataError(
                f"{id_}: no snapshot has a page with this id; ids are SNAPSHOT/WARC FILE/OFFSET with 12 digits."
                f" Searched: {self._searched()}"
            )
        return {"document": id_, "pages": [self.page(one) for one in found]}

    def _searched(self) -> str:
        named = [f"{index.item.partition.partition('@')[2]} ({len(index):,} pages)" for index in self.indexes]
        return ", ".join(named) or "no snapshot"

    def page(self, found: FoundPage) -> dict[str, Any]:
        """Return what each stage did with a page, its cluster of duplicates, and the steps that saw it."""
        kind = KINDS[found.place.kind]
        facts = {name: value for name, value in found.row.items() if value is not None and name not in _APART}
        redactions = self._redactions(found)
        snapshot = found.index.item.partition.partition("@")[2]
        page = {
            "id": found.row["id"],
            "url": found.row["url"],
            "snapshot": snapshot,
            "warc_file": found.row["warc_file"],
            "warc_offset": found.row["warc_offset"],
            "outcome": kind.outcome,
            "stage": kind.asset,
            "facts": facts,
            "stages": _stages(found),
            "redactions": redactions,
            "cluster": self.cluster(found),
        }
        if kind.outcome != KEPT:
            return page | {"shard": None, "seen": []}
        shard = {"path": _tokens_of(found), "document": found.place.row, "tokens": found.row["tokens"]}
        return page | {"shard": shard, "seen": [self._seen(one, found) for one in self.trainings]}

    def cluster(self, found: FoundPage) -> dict[str, Any]:
        """Return the other pages of the cluster of duplicates that a page is in, and how often trainings saw them.

        Only pages in shards can have been seen.
        """
        named = [np.array([found.page] if index is found.index else [], np.int64) for index in self.indexes]
        clusters = cluster_of(self.indexes, named)
        pages = [(index, np.fromiter(own, np.int64)) for index, own in zip(self.indexes, clusters, strict=True) if own]
        seen = [self.seen_of(one, pages) for one in self.trainings] if pages else []
        return {
            "pages": [one for own in clusters for one in own.values()],
            "seen": [{name: one[name] for name in ("training", "trained", "times", "tokens")} for one in seen],
        }

    def _redactions(self, found: FoundPage) -> dict[str, int]:
        """Return the number of redactions in a page by type.

        For a kept page they are read from the artifact `decontaminated_documents`.
        """
        told = found.row.get("redactions")
        if found.place.kind == KEPT_KIND:
            item = found.index.inputs["decontaminated_documents"]
            path = sound(item, f"documents/{found.place.rank:05d}.parquet")
            with pq.ParquetFile(path, memory_map=True) as parquet:
                if "redactions" not in parquet.schema_arrow.names:
                    return {}
                ids = parquet.read(["id"], use_threads=False)["id"]
            row = pc.index(ids, found.row["id"]).as_py()
            told = read_rows(path, [row], ["redactions"])[0]["redactions"] if row >= 0 else None
        return json.loads(told) if told else {}

    def _seen(self, training: Training, found: FoundPage) -> dict[str, Any]:
        (number,) = self._numbers(training, found.index, np.array([found.page])).tolist()
        return self._seen_number(training, number)

    def seen_in_shard(self, item: InputArtifact, path: str, document: int) -> list[dict[str, Any]]:
        """Return which steps of each training saw a document, by its number in a shard; the form is that of `page`.

        Raise DataError if a plan was made from other shards.
        """
        found = []
        for training in self.trainings:
            shard = self._plan_shards(training).get((item.fingerprint, path))
            if shard is None:
                raise self._other_shards(training, item, path)
            (number,) = self.steps_of(training).numbers(np.array([shard]), np.array([document])).tolist()
            found.append(self._seen_number(training, number))
        return found

    def _seen_number(self, training: Training, number: int) -> dict[str, Any]:
        steps = self.steps_of(training)
        pieces = steps.seen([number])[number]
        told = [
            {"step": one.step, "epoch": one.epoch, **_piece(one), "skipped": sorted(training.ledger.reasons(one.step))}
            for one in pieces
        ]
        trained = [one for one in pieces if one.step not in training.ledger]
        return {
            "training": training.name,
            "held_out": steps.is_held_out(number),
            "times": len({one.epoch for one in trained}),
            "tokens": sum(one.tokens for one in trained),
            "steps": told,
        }

    def _numbers(self, training: Training, index: Index, pages: np.ndarray) -> np.ndarray:
        """Return the numbers of kept pages in a plan, int64.

        Raise DataError if the plan was made from other shards.
        """
        item, known = index.inputs[SHARDS], self._plan_shards(training)
        places, rows = index.where(pages)
        used, of = np.unique(places, return_inverse=True)
        shards = []
        for rank, part in index.places[[RANK, PART]][:, used].T.tolist():
            path = _shard_path(rank, part)
            if (item.fingerprint, path) not in known:
                raise self._other_shards(training, item, path)
            shards.append(known[item.fingerprint, path])
        return self.steps_of(training).numbers(np.array(shards, np.int64)[of], rows)

    def _other_shards(self, training: Training, item: InputArtifact, path: str) -> DataError:
        return DataError(
            f"{training.plan_item.where}: the plan has no {path} of {item.where}; index and plan are of other shards"
        )

    def _plan_shards(self, training: Training) -> Mapping[tuple[str, str], int]:
        """Return the numbers of a plan's shards by (artifact, path)."""
        name = training.plan_item.fingerprint
        if name not in self._shard_numbers:
            shards = training.plan.record.shards
            self._shard_numbers[name] = {(one.artifact, one.path): number for number, one in enumerate(shards)}
        return self._shard_numbers[name]

    # A domain

    def domain(self, domain: str, *, shown: int = 10) -> dict[str, Any]:
        """Return what became of all pages of a domain and of the hosts below it.

        The `shown` largest hosts and as many pages are listed. Raise DataError if there is no page, or no such domain.
        """
        asked = target_of("domain", domain).value
        turned = reversed_host(asked)
        hosts, outcomes = Counter[str](), Counter[tuple[int, str]]()
        kept: list[tuple[Index, np.ndarray]] = []
        for index in self.indexes:
            for first, stop in index.hosts_of_domain(turned):
                pages = index.pages_of_hosts(first, stop)
                for name, count in index.named_hosts(first, stop):
                    hosts[plain_host(name)] += count
                outcomes.update(index.outcomes(pages))
                kept.append((index, pages))
        if not hosts:
            raise DataError(f"{domain}: no snapshot has a page of {asked}. Searched: {self._searched()}")
        return {
            "domain": asked,
            "hosts": [{"host": host, "pages": count} for host, count in _most(hosts, shown)],
            "num_hosts": len(hosts),
            "num_pages": sum(hosts.values()),
            "outcomes": [
                {"stage": KINDS[kind].asset, "outcome": KINDS[kind].outcome, "reason": reason, "pages": count}
                for (kind, reason), count in sorted(outcomes.items(), key=lambda one: (one[0][0] != 0, -one[1], one[0]))
            ],
            "seen": [self.seen_of(one, kept) for one in self.trainings],
            "pages": [self.page(one) for one in self._some(kept, shown)],
        }

    def _some(self, kept: Iterable[tuple[Index, np.ndarray]], number: int) -> list[FoundPage]:
        """Return at most `number` pages of a domain. Kept pages come first."""
        found: list[FoundPage] = []
        for wanted in (True, False):
            for index, pages in kept:
                kinds = index.kinds_of(pages)
                own = pages[(kinds == KEPT_KIND) == wanted][: number - len(found)]
                found += index.rows(own)
        return found

    def seen_of(self, training: Training, found: Sequence[tuple[Index, np.ndarray]]) -> dict[str, Any]:
        """Return how many kept documents among these pages a training saw, and how often it saw them."""
        kept = [(index, pages[index.kinds_of(pages) == KEPT_KIND]) for index, pages in found]
        numbers = [self._numbers(training, index, pages) for index, pages in kept if len(pages)]
        documents = np.unique(np.concatenate(numbers)) if numbers else np.empty(0, np.int64)
        steps, skipped = self.steps_of(training), training.ledger.steps
        seen_at = np.zeros(training.plan.record.steps, bool)
        trained = times = tokens = 0
        for at in range(0, len(documents), DOCUMENTS_AT_ONCE):
            pieces = steps.pieces(documents[at : at + DOCUMENTS_AT_ONCE])
            counts = np.flatnonzero(~np.isin(pieces.step, skipped))
            own, epochs = pieces.document[counts], pieces.epoch[counts]
            trained += len(np.unique(own))
            times += np.unique(np.stack([own, epochs]), axis=1).shape[1]
            tokens += int(pieces.tokens[counts].sum())
            seen_at[pieces.step[counts]] = True
        own = np.flatnonzero(seen_at)
        return {
            "training": training.name,
            "documents": len(documents),
            "held_out": int(steps.are_held_out(documents).sum()),
            "trained": trained,
            "times": times,
            "tokens": tokens,
            "num_steps": len(own),
            "first_step": int(own[0]) if len(own) else None,
            "last_step": int(own[-1]) if len(own) else None,
        }


@contextmanager
def _uncollected() -> Iterator[None]:
    """Make no search for cyclic garbage in the block: among the records of thousands of documents there is none.

    The collector goes through all of them again and again, which took a third of a step's time.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


_APART = ("id", "url", "warc_file", "warc_offset", "redactions", "sha256", "tokens")


def _sidecar_of(plan: Plan, shard: int) -> str:
    return plan.record.shards[shard].path.removesuffix(".bin") + SIDECAR_SUFFIX


def _piece(piece: Seen) -> dict[str, int]:
    _, row, _, at, start, tokens = piece
    return {"row": row, "at": at, "start": start, "tokens": tokens}


def _stages(found: FoundPage) -> list[dict[str, str]]:
    """Return what each stage did with a page, up to the one that dropped it."""
    kind = KINDS[found.place.kind]
    last = STAGES.index(kind.asset)
    told = [{"asset": asset, "outcome": KEPT, "reason": ""} for asset in STAGES[:last]]
    return [*told, {"asset": kind.asset, "outcome": kind.outcome, "reason": found.row.get("reason") or ""}]


def _shard_path(rank: int, part: int) -> str:
    return f"shards/{rank:05d}{f'-{part:03d}' if part else ''}.bin"


def _tokens_of(found: FoundPage) -> str:
    return _shard_path(found.place.rank, found.place.part)


def _most(counts: Mapping[str, int], number: int) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:number]
