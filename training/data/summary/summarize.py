"""Stage `summarize`: documents, tokens and bytes of a corpus by site, source and snapshot.

The counts come from the sidecars of the shards, and thus from the documents that were tokenized. `hosts.parquet` has
one row per host with `host`, `documents`, `tokens` and `bytes`, the host with the most tokens first. `summary.json` has
the totals, the same counts by source and by snapshot, and the LARGEST hosts with their share of the tokens. A document
without a readable URL is counted under the empty host. Memory grows with the number of hosts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from training.contract.artifact import write_json, written
from training.contract.job import Counts, InputArtifact, Job, Outcome, Work
from training.data.tokens.shards import SHARDS_FILE, SIDECAR, TOKENS
from training.data.urls import site_of

SUMMARY_FILE = "summary.json"
HOSTS_FILE = "hosts.parquet"
LARGEST = 1000
AT_ONCE = 1 << 14  # documents
COUNTED = ("documents", "tokens", "bytes")
_SCHEMA = pa.schema([("host", pa.string()), *((name, pa.int64()) for name in COUNTED)])

Sums = dict[str, list[int]]  # name → [documents, tokens, bytes]


def run(job: Job, work: Work) -> Outcome:
    """Count documents, tokens and bytes by site, source and snapshot, from the sidecars of all shards."""
    by: dict[str, Sums] = {name: defaultdict(lambda: [0, 0, 0]) for name in ("host", "source", "snapshot")}
    listed = 0
    for item in job.inputs:
        for shard, sidecar in _sidecars(item):
            listed += shard["documents"]
            for row in _rows(sidecar):
                names = {"host": site_of(row["url"]), "source": row["source"], "snapshot": row["snapshot"]}
                for what, name in names.items():
                    _add(by[what][name], row)
    _write_hosts(work, by["host"])
    summary = summary_of(by)
    write_json(work.path / SUMMARY_FILE, summary)
    largest = next(iter(summary["largest_hosts"].values()), {"share": 0.0})
    return Outcome(
        files=(SUMMARY_FILE, HOSTS_FILE),
        counts=Counts(records_in=listed, kept=summary["documents"]),
        metrics={**{name: summary[name] for name in (*COUNTED, "hosts")}, "largest_host_share": largest["share"]},
    )


def summary_of(by: Mapping[str, Sums]) -> dict[str, Any]:
    """Return the content of `summary.json`, from the sums by host, source and snapshot."""
    total = [sum(numbers[place] for numbers in by["source"].values()) for place in range(len(COUNTED))]
    return {
        **dict(zip(COUNTED, total, strict=True)),
        "hosts": len(by["host"]),
        "by_source": _entries(by["source"], total[1]),
        "by_snapshot": _entries(by["snapshot"], total[1]),
        "largest_hosts": _entries(dict(_by_tokens(by["host"])[:LARGEST]), total[1]),
    }


def _sidecars(item: InputArtifact) -> Iterator[tuple[Mapping[str, Any], Path]]:
    """Yield each shard's entry in the listing with its sidecar."""
    for shard in json.loads(item.file(SHARDS_FILE).read_text("utf-8"))["shards"]:
        yield shard, item.file(shard["path"].removesuffix(TOKENS) + SIDECAR)


def _rows(sidecar: Path) -> Iterator[dict[str, Any]]:
    """Yield the documents of a shard. At most AT_ONCE are held, because a row takes some 600 bytes."""
    with pq.ParquetFile(sidecar) as parquet:
        for batch in parquet.iter_batches(AT_ONCE, columns=["url", "source", "snapshot", "tokens", "bytes"]):
            yield from batch.to_pylist()


def _add(sums: list[int], row: Mapping[str, Any]) -> None:
    sums[0] += 1
    sums[1] += row["tokens"]
    sums[2] += row["bytes"]


def _by_tokens(sums: Sums) -> list[tuple[str, list[int]]]:
    """Sort names by their number of tokens, most first; ties are sorted by name."""
    return sorted(sums.items(), key=lambda one: (-one[1][1], one[0]))


def _entries(sums: Sums, tokens: int) -> dict[str, dict[str, Any]]:
    """Return the counts of each name and its share of all tokens, most tokens first."""
    return {
        name: {**dict(zip(COUNTED, numbers, strict=True)), "share": round(numbers[1] / tokens, 6) if tokens else 0.0}
        for name, numbers in _by_tokens(sums)
    }


def _write_hosts(work: Work, hosts: Sums) -> None:
    rows = [(name, *numbers) for name, numbers in _by_tokens(hosts)]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)]
    table = pa.table(columns, schema=_SCHEMA) if rows else _SCHEMA.empty_table()
    with written(work.path / HOSTS_FILE) as stream:
        pq.write_table(table, stream, compression="zstd")
