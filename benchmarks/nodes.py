"""Compare what the tasks of an array cost with what one process costs, and the ranks of each phase with each other.

    PEDIGREE_DATA=… python -m benchmarks.nodes [--documents 16000] [--files 32] [--tasks 4] [--stages score sign …]

Generated pages (`benchmarks.dedup`, 3.3 kB each) are scored, signed, deduplicated, decontaminated and tokenized twice:
by the tasks of an array, which run at the same time and claim ranks, and by one process. Another process has made them
before, so that the loops are compiled. Printed are for each stage the processor seconds of all processes on both sides
and those of the array's ranks, and for each phase the largest rank's share of its processor seconds, times the number
of ranks. Groups and ranges of `dedup` are as small as the files, so that there are as many of them. Exit code 1 if both
sides make different bytes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.contamination import EXAMS
from benchmarks.dedup import made_texts, processor_seconds
from benchmarks.growth import FILTER, trained
from tests.training.data import chain
from training import artifact
from training.data.dedup.settings import DedupRecipe
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.files.writing import read_sealed
from training.job import InputArtifact, Job, write_job
from training.run_settings import RunSettings
from training.running.phase import RANKS_FOLDER
from training.stages import STAGES

CHAIN = ("score", "sign", "dedup", "decontaminate", "tokenize")
GROUP_BYTES, RANGE_BYTES = 1_000_000, 1_000_000

JOB = f"""
import sys
from training.data.dedup import corpus
from training.running.runner import main
from training.stages import STAGES
corpus.GROUP_BYTES, corpus.RANGE_BYTES = {GROUP_BYTES}, {RANGE_BYTES}
sys.exit(main(sys.argv[1:], STAGES))
"""


def main() -> int:
    """Run every stage in both ways and print their costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=16_000)
    parser.add_argument("--files", type=int, default=32)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--stages", nargs="+", choices=CHAIN, default=list(CHAIN))
    options = parser.parse_args()
    is_equal = True
    with tempfile.TemporaryDirectory() as place:
        last = max(options.stages, key=CHAIN.index)
        for job in jobs(Path(place), options):
            # Under other roots, so that no rank is taken over.
            before, alone = (
                replace(job, output=str(artifact.folder_of(Path(place, root), job.asset, job.fingerprint)))
                for root in ("before", "alone")
            )
            wait_for([start(before)])
            spent, ranks = by_an_array(job, options.tasks)
            one = processor_seconds()
            wait_for([start(alone)])
            one = processor_seconds() - one
            is_equal = is_equal and chain.made_by(job).digest == chain.made_by(alone).digest
            if job.stage in options.stages:
                show(job.stage, spent, one, ranks)
            if job.stage == last:
                break
    return 0 if is_equal else 1


def show(stage: str, several: float, one: float, phases: dict[str, list[float]]) -> None:
    """Print what a stage cost in both ways, and how its ranks differ."""
    ranks = sum(map(sum, phases.values()))
    said = f"array and end {several:.1f} s, one process {one:.1f} s, ratio {several / one:.3f}; the array's ranks"
    print(f"{stage}: {said} {ranks:.1f} s", flush=True)
    for phase, spent in phases.items():
        largest = max(spent) / sum(spent) * len(spent)
        print(f"  {phase or 'ranks'}: {len(spent)}, {sum(spent):.2f} s, the largest {largest:.2f} / n", flush=True)


def jobs(root: Path, options: argparse.Namespace) -> Iterator[Job]:
    """Yield the job of each stage; the one before has been made when the next is asked for."""
    texts, _ = made_texts(options.documents)
    in_file = -(-len(texts) // options.files)
    files = [texts[start : start + in_file] for start in range(0, len(texts), in_file)]
    source = chain.documents(root, "one", files)
    extracted = chain.documents(root, "one", files, asset="extracted_documents")
    artifact.write_json(root / "none" / "quality.json", {"has_models": False})
    models = chain.committed(root / "none", "quality_models", "tiny", ["quality.json"])

    def job(stage: str, asset: str, settings: dict[str, Any], *inputs: InputArtifact) -> Job:
        return chain.job_of(root, stage, asset, "tiny@one", settings, inputs, run=RunSettings(workers=1))

    if "score" in options.stages:  # no later stage reads it here
        yield job("score", "document_scores", {"filter": FILTER.measured()}, extracted, models)
    signed = job("sign", "document_signatures", {"dedup": DedupRecipe()}, source)
    yield signed
    single = job("dedup", "deduplicated_documents", {"dedup": DedupRecipe()}, source, chain.made_by(signed))
    yield single
    exams = {"decontaminate": DecontaminateRecipe(benchmarks=EXAMS)}
    index = chain.run(root, "benchmarks", "benchmark_index", "tiny", exams)
    clean = job("decontaminate", "decontaminated_documents", exams, chain.made_by(single), index)
    yield clean
    tokenizer = trained(root, texts[:100])
    yield job("tokenize", "token_shards", {"shards": ShardsRecipe()}, chain.made_by(clean), tokenizer)


def by_an_array(job: Job, tasks: int) -> tuple[float, dict[str, list[float]]]:
    """Make a job by the tasks of an array and a finishing process.

    Return the processor seconds of all processes, and those of each rank by phase.
    """
    began, ranks = processor_seconds(), {}
    for phase in STAGES[job.stage].phases or ("",):
        arguments = ["--claims", "array", *(["--phase", phase] if phase else [])]
        wait_for([start(job, "--ranks", f"{task}/{tasks}", *arguments) for task in range(tasks)])
        marks = [read_sealed(path) for path in Path(job.output, RANKS_FOLDER, phase).glob("[0-9]*.json")]
        if marks:
            ranks[phase] = [mark["spent"]["cpu_seconds"] for mark in marks]
    wait_for([start(job, "--finish", "0")])  # it makes no rank
    return processor_seconds() - began, ranks


def start(job: Job, *arguments: str) -> subprocess.Popen[str]:
    """Start a process that works on a job."""
    path = Path(job.output, "job.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_job(job, path)
    argv = [sys.executable, "-c", JOB, str(path), *arguments]
    return subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def wait_for(processes: list[subprocess.Popen[str]]) -> None:
    """Wait for processes; end this one if one of them failed."""
    for process in processes:
        said = process.communicate()[1]
        if process.returncode:
            sys.exit(f"exit code {process.returncode}\n{said[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
