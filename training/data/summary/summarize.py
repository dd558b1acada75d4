"""Stage `summarize`: documents, tokens and bytes of a corpus by site, source and snapshot.

Read from the tables beside the shards, so from what was tokenized, document by document. `hosts.parquet` has a row for
each host with `host`, `documents`, `tokens` and `bytes`, most tokens first; `summary.json` has the totals, the same by
source and snapshot, and the LARGEST hosts with their share of the tokens. A document without a readable address is
counted under the empty host. Memory grows with the number of hosts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from training.artifact import write_json, written
from training.data.tokens.shards import SHARDS_FILE, SIDECAR, TOKENS
from training.job import Counts, InputArtifact, Job, Outcome, Work

SUMMARY_FILE = "summary.json"
HOSTS_FILE = "hosts.parquet"
LARGEST = 1000
COUNTED = ("documents", "tokens", "bytes")
_SCHEMA = pa.schema([("host", pa.string()), *((name, pa.int64()) for name in COUNTED)])

Sums = dict[str, list[int]]  # of each name: documents, tokens, bytes


def run(job: Job, work: Work) -> Outcome:
    """Add up the tables of all shards."""
    by: dict[str, Sums] = {name: defaultdict(lambda: [0, 0, 0]) for name in ("host", "source", "snapshot")}
    listed = 0
    for item in job.inputs:
        for shard, table in _sidecars(item):
            listed += shard["documents"]
            for row in table.to_pylist():
                names = {"host": host_of(row["url"]), "source": row["source"], "snapshot": row["snapshot"]}
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
    """What `summary.json` says."""
    total = [sum(numbers[place] for numbers in by["source"].values()) for place in range(len(COUNTED))]
    return {
        **dict(zip(COUNTED, total, strict=True)),
        "hosts": len(by["host"]),
        "by_source": _entries(by["source"], total[1]),
        "by_snapshot": _entries(by["snapshot"], total[1]),
        "largest_hosts": _entries(dict(_by_tokens(by["host"])[:LARGEST]), total[1]),
    }


def host_of(url: str | None) -> str:
    """The host of an address, lower-case and without `www.`; empty where it has none or cannot be read."""
    try:
        return (urlsplit(url or "").hostname or "").removeprefix("www.").strip(".")
    except ValueError:  # "http://[broken"
        return ""


def _sidecars(item: InputArtifact) -> Iterator[tuple[Mapping[str, Any], pa.Table]]:
    """Each shard's entry in the listing, and the table beside it."""
    for shard in json.loads(item.file(SHARDS_FILE).read_text("utf-8"))["shards"]:
        path = item.file(shard["path"].removesuffix(TOKENS) + SIDECAR)
        yield shard, pq.read_table(path, columns=["url", "source", "snapshot", "tokens", "bytes"])


def _add(sums: list[int], row: Mapping[str, Any]) -> None:
    sums[0] += 1
    sums[1] += row["tokens"]
    sums[2] += row["bytes"]


def _by_tokens(sums: Sums) -> list[tuple[str, list[int]]]:
    """Most tokens first; of equal ones by name."""
    return sorted(sums.items(), key=lambda one: (-one[1][1], one[0]))


def _entries(sums: Sums, tokens: int) -> dict[str, dict[str, Any]]:
    """By name what is counted, and the share of all tokens."""
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
