"""The stage `index_rows`: an index of every row of instructions, preferences, prompts and synthetic text.

`rows/<part>.parquet` has a line for each row: `asset`, `file` and `line` (where it is), `id`, `source`, `generator`,
`outcome` (kept, dropped or quarantined), `reason`, and `addresses`, the keys of the URLs that stand in it.
`grams/<part>.npy` is uint32 [2, runs]: the hashes of the rows' runs of eight words, in order, and the row of each. Runs
do not go from one text of a row into the next. A part has at most ROWS_IN_PART rows, which bounds the memory.

The gate compares the rows with the counts in the records of the inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from training.contract.artifact import written
from training.contract.job import Gate, InputArtifact, Job, Outcome, Work
from training.data.documents import read_lines
from training.data.urls import key_of, page_entry
from training.data.words.ngrams import ngram_set

ROWS_FOLDER, GRAMS_FOLDER = "rows", "grams"
ROWS_IN_PART: Final = 100_000
GRAM_WORDS: Final = 8
KEPT, DROPPED, QUARANTINED = "kept", "dropped", "quarantined"
# The files of rows that post-training writes (training/posttrain/rows/sorting.py, which a test compares with these).
OUTCOMES: Final = {
    "instructions.jsonl": KEPT,
    "train.jsonl": KEPT,
    "held_out.jsonl": KEPT,
    "prompts.jsonl": KEPT,
    "dropped.jsonl": DROPPED,
    "quarantine.jsonl": QUARANTINED,
}
SYNTHETIC_FOLDER = "synthetic/"
NO_TEXT = frozenset(("id", "source", "generator", "reason", "role", "seed"))  # fields of a row that nobody learns
ADDRESS: Final = re.compile(r"https?://[^\s<>\"'\\)\]}]+")
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("asset", "file")),
        ("line", pa.int64()),
        *((name, pa.string()) for name in ("id", "source", "generator", "outcome", "reason")),
        ("addresses", pa.list_(pa.string())),
    ]
)

Row = dict[str, Any]


def run(job: Job, work: Work) -> Outcome:
    """Write the rows of all inputs in parts, each with its sorted runs of words."""
    rows = (row for item in job.inputs for row in rows_of(item))
    files: list[str] = []
    counts: dict[str, int] = {}
    runs = 0
    while part := list(islice(rows, ROWS_IN_PART)):
        grams = _grams([texts for _, texts in part])
        runs += grams.shape[1]
        files += _write(work, len(files) // 2, [row for row, _ in part], grams)
        for row, _ in part:
            counts[row["asset"]] = counts.get(row["asset"], 0) + 1
    expected = {item.asset: item.record()["counts"] for item in job.inputs}
    given = {asset: _of_input(asset, own) for asset, own in expected.items()}
    is_whole = all(counts.get(asset, 0) == number for asset, number in given.items())
    gate = Gate(name="every_row_is_in", passed=is_whole, evidence={"rows": counts, "inputs": given})
    return Outcome(files=tuple(files), gates=(gate,), metrics={"rows": sum(counts.values()), "runs": runs})


def _of_input(asset: str, counts: dict[str, Any]) -> int:
    """Return how many rows of an input are in its files: synthetic texts that were dropped are in none."""
    dropped = 0 if asset == "synthetic_text" else sum(counts[DROPPED].values()) + sum(counts[QUARANTINED].values())
    return counts["kept"] + dropped


def rows_of(item: InputArtifact) -> Iterator[tuple[Row, list[str]]]:
    """Yield each row of an artifact as it is in the index, with its texts, in the order of the files' names."""
    for name in sorted(item.files()):
        if name in OUTCOMES or name.startswith(SYNTHETIC_FOLDER):
            for line, row in enumerate(read_lines(item.file(name))):
                texts = list(texts_in(row))
                yield _described(item.asset, name, line, row, texts), texts


def _described(asset: str, file: str, line: int, row: Row, texts: Sequence[str]) -> Row:
    given = row.get("row") if isinstance(row.get("row"), dict) else {}
    address = row.get("url") or given.get("url") or ""
    found = [address, *(one.rstrip(".,;:!?") for text in texts for one in ADDRESS.findall(text))]
    keys = {page_entry(key) for one in found if isinstance(one, str) and (key := key_of(one)).host}
    source = row.get("source") or row["id"].partition("#")[0]
    return {
        "asset": asset,
        "file": file,
        "line": line,
        "id": row["id"],
        "source": source if asset != "synthetic_text" else "synthetic_text",
        "generator": _text(row.get("generator")) or _text(given.get("generator")),
        "outcome": OUTCOMES.get(file, KEPT),
        "reason": row.get("reason", ""),
        "addresses": sorted(keys),
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in a row, whatever its form, except names and roles."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            if name not in NO_TEXT:
                yield from texts_in(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from texts_in(one)


def runs_of(texts: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return the hashes of the runs of eight words of texts, each once, in order."""
    found = [ngram_set(text, GRAM_WORDS) for text in texts]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)


def short(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Return the lower half of each hash, which the index holds. Rows found by it are then compared in full."""
    return (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _grams(rows: Sequence[Sequence[str]]) -> npt.NDArray[np.uint32]:
    """Return the runs of the texts of each row in order, and the row of each, uint32 [2, runs]."""
    own = [short(runs_of(texts)) for texts in rows]
    hashes = np.concatenate(own) if own else np.empty(0, np.uint32)
    numbers = np.repeat(np.arange(len(own), dtype=np.uint32), [len(one) for one in own])
    order = np.lexsort((numbers, hashes))
    return np.stack([hashes[order], numbers[order]])


def _write(work: Work, part: int, rows: Sequence[Row], grams: npt.NDArray[np.uint32]) -> list[str]:
    names = [f"{ROWS_FOLDER}/{part:05d}.parquet", f"{GRAMS_FOLDER}/{part:05d}.npy"]
    with written(work.path / names[0]) as stream:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), stream, compression="zstd")
    with written(work.path / names[1]) as stream:
        np.save(stream, grams)
    return names
