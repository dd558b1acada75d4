"""Measure what writing the text once more costs beside the stages that do it: bytes and processor seconds.

    PEDIGREE_DATA=… python -m benchmarks.text_copies [--documents 4000] [--rounds 5]

The text of a page is written by `extract`, `filter`, `dedup` and `decontaminate`. Were the verdicts and edits of
`filter` and `dedup` written instead, two of these copies would not be made, and each later stage would read the first
one. Printed are the processor seconds of the stages over generated pages (`benchmarks.growth`), then seconds and bytes
of writing and reading all columns of the pages, their ids and texts alone, and a verdict for each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.dedup import made_texts, scratch
from benchmarks.growth import FEW, timed, trained
from tests.training.data import chain
from training.data.documents import SCHEMA, DocumentWriter, document_files
from training.data.words import table as wordtable

STAGES = ("filter", "dedup", "decontaminate")  # and those before each of them


def main() -> None:
    """Measure, and print a line for each stage and each way of writing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    texts, _ = made_texts(options.documents)
    with scratch() as root:
        tokenizer = trained(root, texts[:FEW])
        for _ in timed(root / "few", [texts[:FEW]], tokenizer, STAGES):
            pass
        wordtable.forget()
        for stage, seconds in timed(root / "all", [texts], tokenizer, STAGES):
            print(f"{stage}: {seconds:.3f} s, {1e6 * seconds / len(texts):.0f} µs a document", flush=True)
        (source,) = document_files(chain.documents(root / "copies", "one", [texts]))
        for name, seconds, size in copies(source, root, options.rounds):
            told = f", {size / len(texts):.0f} bytes" if size else ""
            print(f"{name}: {1e6 * seconds / len(texts):.1f} µs{told} a document", flush=True)


def copies(source: Path, root: Path, rounds: int) -> list[tuple[str, float, int]]:
    """Time each way of writing and reading a file's documents: seconds of each, and bytes where it writes."""
    whole = pq.read_table(source)
    verdict = pa.table({"id": whole["id"], "reason": pa.array([""] * len(whole))})

    def write(table: pa.Table, *extra: str) -> Callable[[], None]:
        def work() -> None:
            with DocumentWriter(root / "copy.parquet", extra=list(extra)) as writer:
                writer.write_table(table)

        return work

    def write_verdicts() -> None:
        pq.write_table(verdict, root / "copy.parquet", compression="zstd", compression_level=3, row_group_size=1000)

    ways: dict[str, Callable[[], object]] = {
        "write all columns": write(whole.select(SCHEMA.names)),
        "write ids and verdicts": write_verdicts,
        "read all columns": lambda: pq.read_table(source, use_threads=False),
        "read ids and texts": lambda: pq.read_table(source, columns=["id", "text"], use_threads=False),
    }
    told = []
    for name, work in ways.items():
        seconds = []
        for _ in range(rounds):
            began = time.process_time()
            work()
            seconds.append(time.process_time() - began)
        size = (root / "copy.parquet").stat().st_size if name.startswith("write") else 0
        told.append((name, statistics.median(seconds), size))
    return told


if __name__ == "__main__":
    main()
