"""Measure the memory of the process that finds the candidates of a range of keys in deduplication.

    python -m benchmarks.dedup_memory [--documents 100000000] [--folder DIR]
    python -m benchmarks.dedup_memory --earlier 0 1 4 16 [--documents 6250000]

It is made for a sixteenth, a quarter and all of `--documents`. Printed are the peak of the process (VmHWM, with Python
and libraries) and its processor seconds.

Generated are the keys of one range, as all groups of 50,000 documents would write them. One document in ten has the
keys of another in a distant file. `--earlier` is for one size, after so many other snapshots of it, in as many ranges
as one snapshot needs: so a range grows with the snapshots, as it does where all together would need more than 4,096.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.dedup import processor_seconds
from training.contract import artifact
from training.contract.job import Counts, InputArtifact, Job
from training.contract.records import write_record
from training.contract.running.phase import Phase
from training.data.dedup import corpus, dedup, duplicates, index
from training.data.dedup import sign as signatures
from training.data.dedup.blocks import packed
from training.data.dedup.settings import DedupRecipe
from training.data.dedup.shuffle import writing_slices

PER_FILE = 50_000
DOCUMENT_BYTES = 1300  # of a document in its file, compressed: a file is a group
COPIED = 10  # one document in so many has another's keys
RECIPE = DedupRecipe()


def main() -> None:
    """Measure each size and print the peaks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=0, help="of the largest size")
    parser.add_argument("--folder", type=Path, default=None, help="for the files; default the temporary folder")
    parser.add_argument("--earlier", type=int, nargs="+", help="numbers of earlier snapshots")
    options = parser.parse_args()
    if options.earlier:
        sizes = [(options.documents or 6_250_000, earlier) for earlier in options.earlier]
    else:
        sizes = [((options.documents or 100_000_000) // part, 0) for part in (16, 4, 1)]
    for documents, earlier in sizes:
        with tempfile.TemporaryDirectory(prefix="dedup-memory-", dir=options.folder) as place:
            measure_one_range(Path(place), documents, earlier)


def measure_one_range(root: Path, documents: int, earlier: int = 0) -> None:
    """Generate the keys of one range of a snapshot and of as many earlier ones.

    Print the peak memory of the rank that finds its candidates.
    """
    most = corpus.MOST_RANGES
    corpus.MOST_RANGES = corpus.corpus_of(one_range_job(root / "alone", documents, 0)).num_ranges
    try:
        job = one_range(root, documents, earlier)
        print(f"{earlier} earlier snapshots", end=", ")
        show(documents, next(phase for phase in dedup.PHASES if phase.name == "candidates"), job, [0])
    finally:
        corpus.MOST_RANGES = most


def show(documents: int, phase: Phase, job: Job, ranks: Sequence[int]) -> None:
    """Make ranks of a phase; print the largest peak of their processes."""
    began = processor_seconds()
    peaks = [peak_of(phase, job, rank) for rank in ranks]
    seconds = processor_seconds() - began
    told = f"{documents} documents, {phase.name}: {len(peaks)} ranks, largest peak {max(peaks) / 1e6:.0f} MB"
    print(f"{told}, {seconds:.1f} s", flush=True)


def peak_of(phase: Phase, job: Job, rank: int) -> int:
    """Run one rank of a phase in a child process; return the peak memory of that process in bytes."""

    def run_rank() -> str:
        work: Any = SimpleNamespace(path=Path(job.output))
        phase.run_rank(job, work, rank)
        (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return peak.split()[1]

    return int(in_a_child(run_rank)) * 1024


def in_a_child(work: Callable[[], str]) -> str:
    """Call a function in a forked process; return what it returns."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, work().encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="ascii") as stream:
        told = stream.read()
    if os.waitpid(child, 0)[1] or not told:
        sys.exit("a child process failed")
    return told


def one_range(root: Path, documents: int, earlier: int) -> Job:
    """Return the job of a snapshot of which only the keys of the first range are there, as each group writes them.

    So are those of `earlier` other snapshots, which have no index.
    """
    job = one_range_job(root, documents, earlier)
    whole = corpus.corpus_of(job)
    work: Any = SimpleNamespace(path=Path(job.output))
    sizes = sizes_of_files(documents)
    for number, group in enumerate(whole.groups):
        rows = sum(sizes[group.first_file : group.first_file + len(group.documents)]) // whole.num_ranges
        arrays = keys_in_range(number, len(whole.groups), rows, whole.num_ranges)
        with writing_slices(job, work, "keys", number, index.what_of(group.index_key, group.name, "keys")) as slices:
            slices.add(*packed(arrays))
    print(f"{documents} documents: one of {whole.num_ranges} ranges", flush=True)
    return job


def one_range_job(root: Path, documents: int, earlier: int) -> Job:
    """Return the job of a snapshot after `earlier` others of its size. Of all files there are only the sizes."""
    sizes = sizes_of_files(documents)
    size = sum(array.nbytes for _, array in made(np.random.default_rng(0), 1))  # of a document's signatures
    signed = [
        {"path": f"{signatures.FOLDER}/{file:05d}.safetensors", "bytes": size * number, "sha256": "0" * 64}
        for file, number in enumerate(sizes)
    ]
    jobs = [job_of(root / str(number), sizes, signed, name=str(number)) for number in range(earlier + 1)]
    inputs = [[job.inputs[place] for job in jobs] for place in (0, 1)]
    return replace(jobs[-1], inputs=(*inputs[0], *inputs[1]))


def keys_in_range(file: int, files: int, rows: int, num_ranges: int) -> list[Any]:
    """Return the columns of a group's keys in the first range: tables of whole keys, and of each bucket.

    Order numbers are counted from the group's first document.
    """
    own, copied = np.random.default_rng([1, file]), copied_by(file, files)
    shift = np.uint64(num_ranges.bit_length() - 1)

    def keys() -> Any:
        found, others = (one.integers(1, 1 << 63, rows, np.uint64) << np.uint64(1) for one in (own, copied))
        found[::COPIED] = others[::COPIED]
        return found >> shift

    def hashes() -> Any:
        return own.integers(1, 1 << 63, rows, np.uint64)

    def orders() -> Any:
        return np.sort(own.choice(max(PER_FILE, rows), rows, replace=False))

    whole = [[hashes() >> shift, hashes(), orders()] for _ in duplicates.whole_keys(RECIPE)]
    bands = [[keys(), orders(), hashes(), hashes()] for _ in range(RECIPE.buckets)]
    return [column for table in (*whole, *bands) for column in table]


def sizes_of_files(documents: int) -> list[int]:
    """Return the number of documents in each file."""
    return [min(PER_FILE, documents - start) for start in range(0, documents, PER_FILE)]


def copied_by(file: int, files: int) -> np.random.Generator:
    """Return the generator of the keys that a file shares with the file half of all files away."""
    return np.random.default_rng([2, file % max(1, files // 2)])


def job_of(root: Path, sizes: Sequence[int], signed: list[dict[str, Any]], *, name: str = "one") -> Job:
    """Return the job of a snapshot with these signature files. Of its document files there are only the sizes."""
    filtered = [
        {"path": f"documents/{file:05d}.parquet", "bytes": number * DOCUMENT_BYTES, "sha256": "0" * 64}
        for file, number in enumerate(sizes)
    ]
    documents = sum(sizes)
    inputs = (
        committed(root / "filtered_documents", "filtered_documents", name, filtered, documents),
        committed(root / "document_signatures", "document_signatures", name, signed, documents),
    )
    return Job(
        stage="dedup",
        asset="deduplicated_documents",
        partition=f"made@{name}",
        recipe="made",
        fingerprint="f" * 32,
        stage_version="1",
        settings={"dedup": write_record(RECIPE)},
        inputs=inputs,
        output=str(root / "deduplicated"),
    )


def made(generator: np.random.Generator, number: int) -> list[tuple[str, Any]]:
    """Return random signature arrays of so many documents, by name."""

    def hashes(*shape: int) -> Any:
        return generator.integers(1, 1 << 63, shape, np.uint64) << np.uint64(1)

    return [
        ("text", hashes(number, 2)),
        ("ngrams", hashes(number, 2)),
        ("count", np.full(number, 500, np.int32)),
        ("bands", hashes(RECIPE.buckets, number)),
    ]


def committed(folder: Path, asset: str, name: str, files: list[dict[str, Any]], kept: int) -> InputArtifact:
    """Write the record of an artifact of a snapshot with these files."""
    digest = artifact.digest_of_files(files)
    counts = Counts(records_in=kept, kept=kept).as_json()
    record = {"asset": asset, "fingerprint": asset, "digest": digest, "files": files, "counts": counts, "gates": []}
    folder.mkdir(parents=True, exist_ok=True)
    artifact.commit_record(folder, record)
    partition = f"made@{name}"
    return InputArtifact(asset=asset, partition=partition, fingerprint=asset, digest=digest, path=str(folder))


if __name__ == "__main__":
    main()
