"""Find the pages that a withdrawal names in the indexes of all snapshots, and everything under a root that holds them.

Standard questions are answered by arrays, without an object for each page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.contract.artifact import Artifact, folder_of
from training.contract.job import DataError, InputArtifact
from training.data.address_lists import Target, entries_of, is_folder_entry
from training.data.urls import KEY_SIGN, Key, key_of
from training.provenance.index import Index
from training.provenance.layout import FIRST, KEPT_KIND, KIND, KINDS, RANK
from training.provenance.lineage import CORPUS_BACKWARDS, INDEX, SHARDS, artifacts_under, item_of, opened
from training.provenance.trace import Tracer

STAGES = tuple(reversed(CORPUS_BACKWARDS))
CRAWL, EXTRACTED = "crawl_archives", "extracted_documents"
MOST_SHARDS = 1_000  # shards that are named; all are counted


# Indexes


def indexes_under(root: Path, wanted: Mapping[str, str]) -> list[Index]:
    """Return the index of each of these shards, by fingerprint. Partitions point to the shards.

    `wanted` has the partition of each. Raise DataError if one has no index, and RefusedInput if an index is damaged.
    """
    made = {
        (entry["fingerprint"], entry["digest"]): one
        for one in artifacts_under(root, lambda name: name == INDEX)
        for entry in one.record["inputs"]
        if entry["asset"] == SHARDS
    }
    shards = {one.fingerprint: one for one in artifacts_under(root, lambda name: name == SHARDS)}
    found = []
    for fingerprint, partition in sorted(wanted.items(), key=lambda one: one[1]):
        recipe = partition.partition("@")[0]
        if fingerprint not in shards:
            raise DataError(
                f"{SHARDS} [{partition}]: the artifact {fingerprint[:12]} is not under {root} any more;"
                f" `pedigree run {recipe}` makes it again"
            )
        one = made.get((fingerprint, shards[fingerprint].digest))
        if one is None:
            others = sum(index.record["partition"] == partition for index in set_of(made.values()))
            of_others = f", and the {others} there are of other shards" if others else ""
            raise DataError(
                f"{INDEX} [{partition}] of the shards {fingerprint[:12]} is not made{of_others};"
                f" `pedigree run {recipe} --until {INDEX}` makes it"
            )
        found.append(_opened(root, one))
    return found


def set_of(made: Iterable[Artifact]) -> list[Artifact]:
    """Return artifacts without repeats."""
    return list({one.path: one for one in made}.values())


def _opened(root: Path, made: Artifact) -> Index:
    items = {}
    for entry in made.record["inputs"]:
        item = InputArtifact(
            asset=entry["asset"],
            partition=entry["partition"],
            fingerprint=entry["fingerprint"],
            digest=entry["digest"],
            path=str(folder_of(root, entry["asset"], entry["fingerprint"])),
            record_digest=entry["record_digest"],
        )
        if not Path(item.path).exists():
            raise DataError(f"{item.where}: the artifact {item.fingerprint[:12]} is not under {root} any more")
        items[entry["asset"]] = item
    return opened(item_of(made), items)


def crawl_of(index: Index) -> str:
    """Return the fingerprint of the crawl whose pages an index holds."""
    entries = index.inputs[EXTRACTED].record()["inputs"]
    return next(entry["fingerprint"] for entry in entries if entry["asset"] == CRAWL)


# Pages


def pages_of_entry(index: Index, entry: str) -> np.ndarray:
    """Return the numbers of the pages of a snapshot that one entry of a takedown list matches, sorted, int64."""
    if not entry.startswith(KEY_SIGN):
        rows = index.rows(index.pages_of_id(entry), lambda row: row["id"] == entry)
        return np.unique(np.array([one.page for one in rows], np.int64))
    host, is_address, rest = entry.removeprefix(KEY_SIGN).partition(")")
    if not is_address:
        ranges = index.hosts_of_domain(host.removesuffix(","))
        found = [index.pages_of_hosts(first, stop) for first, stop in ranges]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    near = index.pages_of_host(host) if is_folder_entry(entry) else index.pages_of_key(Key(host, rest))
    rows = index.rows(near, lambda row: entry in entries_of(key_of(row["url"])), columns=("id", "url"))
    return np.unique(np.array([one.page for one in rows], np.int64))


# What holds them


def told_of(index: Index, pages: np.ndarray) -> dict[str, Any]:
    """Return what became of a snapshot's pages, and how many of them are in each artifact and in how many files."""
    places = np.searchsorted(index.places[FIRST], pages, side="right") - 1
    kinds, ranks = index.places[KIND][places], index.places[RANK][places]
    reached = np.array([STAGES.index(kind.asset) for kind in KINDS])[kinds] if len(pages) else kinds
    artifacts = []
    has_text = ~index.are_withdrawn(pages)
    for number, asset in enumerate(STAGES):
        own = ranks[(reached >= number) & has_text]
        item = index.inputs[asset]
        of = sum(name.startswith(("documents/", "shards/")) and name.endswith(".parquet") for name in item.files())
        artifacts.append(
            {
                "asset": asset,
                "partition": item.partition,
                "fingerprint": item.fingerprint,
                "pages": len(own),
                "files": len(np.unique(own)),
                "of": of,
            }
        )
    return {
        "partition": index.item.partition,
        "index": index.item.fingerprint,
        "crawl": crawl_of(index),
        "pages": len(pages),
        "withdrawn": int(len(pages) - has_text.sum()),
        "outcomes": [
            {"stage": KINDS[kind].asset, "outcome": KINDS[kind].outcome, "reason": reason, "pages": count}
            for (kind, reason), count in sorted(
                index.outcomes(pages).items(), key=lambda one: (one[0][0] != 0, -one[1])
            )
        ],
        "ranks": len(np.unique(ranks)),
        "artifacts": artifacts,
        "shards": list(_shards(index, pages[kinds == KEPT_KIND])),
    }


def _shards(index: Index, pages: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield the shards that hold kept pages, with the number of documents in each."""
    places, counts = np.unique(np.searchsorted(index.places[FIRST], pages, side="right") - 1, return_counts=True)
    for place, count in zip(places.tolist()[:MOST_SHARDS], counts.tolist(), strict=False):
        _, _, rank, part = index.places[:, place].tolist()
        yield {"path": f"shards/{rank:05d}{f'-{part:03d}' if part else ''}.bin", "documents": count}


def seen_by(
    tracer: Tracer, targets: Sequence[Target], also: Sequence[str] = (), known: Mapping[str, np.ndarray] | None = None
) -> list[dict[str, Any]]:
    """Return, for each training behind a model, how many of the pages it saw, how often, and in which steps.

    `also` are the ids of further pages. `known` has all these pages for indexes in which they were found before, by
    fingerprint.
    """
    found, wanted = [], set(also)

    def is_wanted(row: Mapping[str, Any]) -> bool:
        return row["id"] in wanted

    for index in tracer.indexes:
        pages = (known or {}).get(index.item.fingerprint)
        if pages is None:
            own = [pages_of_entry(index, one.entry) for one in targets]
            rows = index.rows(index.pages_of_ids(wanted), is_wanted, columns=("id",))
            own.append(np.array([one.page for one in rows], np.int64))
            pages = np.unique(np.concatenate(own))
        found.append((index, pages))
    return [tracer.seen_of(training, found) for training in tracer.trainings]


def ids_of(index: Index, pages: np.ndarray) -> list[str]:
    """Return the ids of these pages, in the same order."""
    return [one.row["id"] for one in index.rows(pages, columns=("id",))]
