"""Measure the memory of the phases of deduplication that see all documents, with generated signatures.

    python -m benchmarks.dedup_memory [--documents 10000000] [--folder DIR]

For a sixteenth, a quarter and all of `--documents` there is a snapshot of signature files of 50,000 documents each. One
document in ten has the keys of others. The phases `keys` and `candidates` are made rank by rank, each rank in a process
of its own. Printed are the largest peak of a process (VmHWM, with Python and libraries) and processor seconds. `texts`
and `verify` need texts, and are not measured. The largest size takes about 700 bytes of disk a document.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.dedup import processor_seconds
from training import artifact
from training.data.dedup import dedup
from training.data.dedup import sign as signatures
from training.data.dedup.settings import DedupRecipe
from training.job import Counts, InputArtifact, Job
from training.phase import Phase
from training.records import write_record

PER_FILE = 50_000
DOCUMENT_BYTES = 1300  # of a document in its file, compressed: a file is a group
COPIED = 10  # one document in so many has another's keys
PHASES = ("keys", "candidates")
RECIPE = DedupRecipe()


def main() -> None:
    """Measure three sizes and print their peaks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="for the signatures; default the temporary folder")
    options = parser.parse_args()
    for part in (16, 4, 1):
        with tempfile.TemporaryDirectory(prefix="dedup-memory-", dir=options.folder) as place:
            measure(Path(place), options.documents // part)


def measure(root: Path, documents: int) -> None:
    """Generate a snapshot of `documents` signatures; print the peak memory and processor seconds of each phase."""
    job = snapshot(root, documents)
    work: Any = SimpleNamespace(path=Path(job.output))
    for phase in dedup.PHASES:
        if phase.name in PHASES:
            began = processor_seconds()
            peaks = [peak_of(phase, job, work, rank) for rank in range(phase.num_ranks(job))]
            seconds = processor_seconds() - began
            told = f"{documents} documents, {phase.name}: {len(peaks)} ranks, largest peak {max(peaks) / 1e6:.0f} MB"
            print(f"{told}, {seconds:.1f} s", flush=True)


def peak_of(phase: Phase, job: Job, work: Any, rank: int) -> int:
    """Run one rank of a phase in a child process; return the peak memory of that process in bytes."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        phase.run_rank(job, work, rank)
        (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        os.write(writing, peak.split()[1].encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="ascii") as stream:
        told = stream.read()
    if os.waitpid(child, 0)[1] or not told:
        sys.exit(f"rank {rank} of {phase.name} failed")
    return int(told) * 1024


def snapshot(root: Path, documents: int) -> Job:
    """Return the job of a snapshot with generated signatures. Of its document files there are only the sizes."""
    folder, generator = root / "document_signatures", np.random.default_rng(0)
    first = dict(made(generator, PER_FILE))["bands"]
    signed, filtered = [], []
    for file, start in enumerate(range(0, documents, PER_FILE)):
        number = min(PER_FILE, documents - start)
        arrays = dict(made(generator, number))
        arrays["bands"][:, ::COPIED] = first[:, :number:COPIED]
        name = f"{signatures.FOLDER}/{file:05d}.safetensors"
        signatures.save(arrays, folder / name)
        signed += artifact.manifest(folder, [name])
        filtered.append({"path": f"documents/{file:05d}.parquet", "bytes": number * DOCUMENT_BYTES, "sha256": "0" * 64})
    inputs = (
        committed(root / "filtered_documents", "filtered_documents", filtered, documents),
        committed(folder, "document_signatures", signed, documents),
    )
    return Job(
        stage="dedup",
        asset="deduplicated_documents",
        partition="made@one",
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


def committed(folder: Path, asset: str, files: list[dict[str, Any]], kept: int) -> InputArtifact:
    """Write the record of an artifact with these files."""
    digest = artifact.digest_of_files(files)
    counts = Counts(records_in=kept, kept=kept).as_json()
    record = {"asset": asset, "fingerprint": asset, "digest": digest, "files": files, "counts": counts, "gates": []}
    folder.mkdir(parents=True, exist_ok=True)
    artifact.write_json(folder / artifact.ARTIFACT_FILE, record)
    return InputArtifact(asset=asset, partition="made@one", fingerprint=asset, digest=digest, path=str(folder))


if __name__ == "__main__":
    main()
