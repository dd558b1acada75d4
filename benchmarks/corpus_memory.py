"""Measure the peak memory of each corpus stage's processes over 10⁷ generated documents.

    PEDIGREE_DATA=… python -m benchmarks.corpus_memory [--documents 10000000] [--folder DIR]
    PEDIGREE_DATA=… python -m benchmarks.corpus_memory --documents 640000 --per-file 10000 --group-bytes 2000000

A sixteenth, a quarter and all of `--documents` are generated, `--per-file` in a file: 20 words each from a vocabulary
of 5,000; one in ten is a copy of a document of a distant file, and every second copy differs in a word. Every stage
after extraction is made over them. The ranks of each phase run one after the other in a process of their own, and the
end of the stage in another one. Printed are the peak of these processes (VmHWM, with Python and libraries) and their
processor seconds. `score` and `filter` are made over the first --judged files only, because each of their ranks reads
one file. `--group-bytes` makes the groups of files and the ranges of keys of `dedup` smaller than 64 MB, so that a
small corpus has several of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.contamination import EXAMS
from tests.training.data import chain
from training import artifact
from training.data.dedup.settings import DedupRecipe
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.filter.settings import FilterRecipe
from training.data.quality.settings import QualityRecipe
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.job import Counts, InputArtifact, Job, write_job
from training.order.settings import MixtureRecipe
from training.pretrain.settings import PretrainRecipe
from training.run_settings import RunSettings
from training.stages import STAGES

WORDS, VOCABULARY = 20, 5_000
COPIED = 10  # one document in so many repeats another one
SAMPLE_BYTES = 5_000_000
STEP_TOKENS = 65_536
FILTER = FilterRecipe(rules=("url", "gopher_quality", "c4", "fineweb", "personal_data"))
TOLD = "peak.json"
GROUP_BYTES = "CORPUS_MEMORY_GROUP_BYTES"

# Runs a job as `python -m training` does, and leaves the peak of the process and what it cost.
JOB = f"""
import atexit, json, os, sys
def told():
    status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    spent = os.times()
    with open({TOLD!r}, "w") as stream:
        json.dump({{"peak_bytes": 1024 * int(status["VmHWM"].split()[0]), "seconds": spent[0] + spent[1]}}, stream)
atexit.register(told)
from training.data.dedup import corpus
from training.running.runner import main
from training.stages import STAGES
if group_bytes := int(os.environ.get({GROUP_BYTES!r}, "0")):
    corpus.GROUP_BYTES = corpus.RANGE_BYTES = group_bytes
sys.exit(main(sys.argv[1:], STAGES))
"""


def main() -> None:
    """Measure three sizes and print their peaks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10_000_000, help="of the largest size")
    parser.add_argument("--parts", type=int, nargs="+", default=[16, 4, 1], help="what part of them each size is")
    parser.add_argument("--per-file", type=int, default=156_250)
    parser.add_argument("--group-bytes", type=int, default=0, help="0: as large as in every run")
    parser.add_argument("--judged", type=int, default=4, help="files that are scored and filtered")
    parser.add_argument("--folder", type=Path, default=None, help="for the files; default the temporary folder")
    options = parser.parse_args()
    os.environ[GROUP_BYTES] = str(options.group_bytes)
    for part in options.parts:
        with tempfile.TemporaryDirectory(prefix="corpus-memory-", dir=options.folder) as place:
            documents = options.documents // part
            for stage, phase, ranks, told in measured(Path(place), documents, options):
                made = f"{ranks} ranks" if ranks else "end"
                said = f"{told['peak_bytes'] / 1e6:.0f} MB, {told['seconds']:.1f} s"
                print(f"{documents} documents, {stage} {phase or ''}: {made}, {said}", flush=True)


Told = tuple[str, str, int, dict[str, float]]


def measured(root: Path, documents: int, options: argparse.Namespace) -> Iterator[Told]:
    """Make a corpus; yield each phase of each stage with its number of ranks (0: the stage's end), peak and seconds."""
    filtered = generated(root, documents, options.per_file)
    extracted = renamed(filtered, "extracted_documents")
    few = renamed(filtered, "extracted_documents", files=options.judged)
    artifact.write_json(root / "none" / "quality.json", {"has_models": False})
    models = chain.committed(root / "none", "quality_models", "tiny", ["quality.json"])
    reference = root / "reference.jsonl"
    reference.write_text("".join(json.dumps({"text": f"{text} one"}) + "\n" for text in texts(1, 2_000)), "utf-8")

    def make(stage: str, asset: str, partition: str, settings: dict[str, Any], *inputs: InputArtifact) -> Job:
        return chain.job_of(root, stage, asset, partition, settings, inputs, run=RunSettings(workers=1))

    quality = QualityRecipe(reference=(str(reference),), snapshots=("one",), negatives=2_000, min_auc=0.0)
    yield from peaks(make("quality", "quality_models", "tiny", {"quality": quality}, extracted))
    dedup = {"dedup": DedupRecipe()}
    signed = make("sign", "document_signatures", "tiny@one", dedup, filtered)
    yield from peaks(signed)
    single = make("dedup", "deduplicated_documents", "tiny@one", dedup, filtered, chain.made_by(signed))
    yield from peaks(single)
    exams = {"decontaminate": DecontaminateRecipe(benchmarks=EXAMS)}
    index = chain.run(root, "benchmarks", "benchmark_index", "tiny", exams)
    clean = make("decontaminate", "decontaminated_documents", "tiny@one", exams, chain.made_by(single), index)
    yield from peaks(clean)
    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=2048, sample_bytes=SAMPLE_BYTES, min_bytes_per_token=1.0)
    vocabulary = make("tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, chain.made_by(clean))
    yield from peaks(vocabulary)
    tokenizer = chain.made_by(vocabulary)
    shards = make("tokenize", "token_shards", "tiny@one", {"shards": ShardsRecipe()}, chain.made_by(clean), tokenizer)
    yield from peaks(shards)
    batches = PretrainRecipe(tokens="auto", sequence_length=4096, global_batch_tokens=STEP_TOKENS).batches
    order = {"mixture": MixtureRecipe(max_epochs=1.0), "pretrain": batches}
    yield from peaks(make("plan", "training_plan", "tiny", order, chain.made_by(shards), tokenizer))
    made = (filtered, chain.made_by(single), chain.made_by(clean), chain.made_by(shards))
    yield from peaks(make("provenance", "provenance_index", "tiny@one", {}, extracted, *made))
    yield from peaks(make("summarize", "corpus_summary", "tiny", {}, chain.made_by(shards)))
    scored = make("score", "document_scores", "tiny@one", {"filter": FILTER.measured()}, few, models)
    yield from peaks(scored)
    yield from peaks(make("filter", "filtered_documents", "tiny@one", {"filter": FILTER}, few, chain.made_by(scored)))


def peaks(job: Job) -> Iterator[Told]:
    """Make a job, each phase in a process and its end in another; yield what they needed."""
    folder = Path(job.output)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.json"
    write_job(job, path)
    for phase, ranks in fan_outs(job):
        if ranks:
            chosen = ["--ranks", ",".join(map(str, range(ranks)))]
            yield job.stage, phase, ranks, in_a_process(path, *chosen, *(["--phase", phase] if phase else []))
    yield job.stage, "", 0, in_a_process(path, "--finish", "0")  # it makes no rank


def fan_outs(job: Job) -> list[tuple[str, int]]:
    """Return the phases of a job's stage with their numbers of ranks; none if the stage is one piece."""
    stage = STAGES[job.stage]
    if not stage.in_ranks:
        return []
    told = subprocess.run(
        [sys.executable, "-c", RANKS, job.output, os.environ.get(GROUP_BYTES, "0")],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    return [(name, number) for name, number in json.loads(told.splitlines()[-1])]


RANKS = """
import importlib, json, sys
from training.job import read_job
from training.running.phase import phases_of
from training.data.dedup import corpus
from training.stages import STAGES
if group_bytes := int(sys.argv[2]):
    corpus.GROUP_BYTES = corpus.RANGE_BYTES = group_bytes
job = read_job(sys.argv[1] + "/job.json")
module = importlib.import_module(STAGES[job.stage].module)
print(json.dumps([(phase.name, phase.num_ranks(job)) for phase in phases_of(module)]))
"""


def in_a_process(path: Path, *arguments: str) -> dict[str, float]:
    """Run a job file in a process of its own; return its peak memory and processor seconds."""
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        command = [sys.executable, "-c", JOB, str(path), *arguments]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{path}: exit code {done.returncode}\n{done.stderr[-3000:]}")
        return json.loads(Path(place, TOLD).read_text())


def generated(root: Path, documents: int, per_file: int) -> InputArtifact:
    """Write files of documents in a process of its own, so that this one stays small; return their artifact."""
    folder = root / "generated"
    command = [
        sys.executable,
        "-c",
        "import sys; from benchmarks import corpus_memory as made; made.write(*sys.argv[1:])",
    ]
    subprocess.run([*command, str(folder), str(documents), str(per_file)], check=True)
    names = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*"))
    return chain.committed(folder, "filtered_documents", "tiny@one", names, kept=documents)


def write(folder: str, documents: str, per_file: str) -> None:
    """Write the files of `generated`."""
    import pyarrow as pa

    from training.data.documents import SCHEMA, DocumentWriter

    number, size = int(documents), int(per_file)
    starts = range(0, number, size)
    for file, first in enumerate(starts):
        rows = min(size, number - first)
        ids = [f"one/file-{file:05d}/{row:012d}" for row in range(rows)]
        columns: dict[str, Any] = {
            "id": ids,
            "text": texts_of_file(file, len(starts), rows),
            "url": [f"https://host-{row % 5_000}.test/{file}/{row}" for row in range(rows)],
            "warc_offset": range(rows),
            "language_score": [1.0] * rows,
        }
        columns |= {"snapshot": ["one"] * rows, "warc_file": [f"file-{file:05d}"] * rows, "source": ["web"] * rows}
        columns |= {"date": ["2026-01-01T00:00:00Z"] * rows, "title": [""] * rows, "language": ["en"] * rows}
        arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
        with DocumentWriter(Path(folder, "documents", f"{file:05d}.parquet")) as writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
        with DocumentWriter(Path(folder, "dropped", f"{file:05d}.parquet"), extra=["reason"]):
            pass
        quarantine = Path(folder, "quarantine", f"{file:05d}.jsonl")
        quarantine.parent.mkdir(exist_ok=True)
        quarantine.touch()


def texts_of_file(file: int, files: int, rows: int) -> Any:
    """Return the texts of a file. Every COPIED-th repeats one of the file half of all files away."""
    import numpy as np

    own = np.random.default_rng([1, file]).integers(0, VOCABULARY, (rows, WORDS))
    shared = np.random.default_rng([2, file % max(1, files // 2)]).integers(0, VOCABULARY, (rows, WORDS))
    own[::COPIED] = shared[::COPIED]
    if file >= files // 2:
        own[:: 2 * COPIED, WORDS // 2] = 0  # a copy with another word
    return sentences(own)


def texts(seed: int, rows: int) -> list[str]:
    """Return texts of the vocabulary."""
    import numpy as np

    return sentences(np.random.default_rng([3, seed]).integers(0, VOCABULARY, (rows, WORDS))).to_pylist()


def sentences(chosen: Any) -> Any:
    """Return a column of texts for an array of places in the vocabulary, a row each."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    letters = np.random.default_rng(0).integers(0, 26, (VOCABULARY, 9))
    lengths = 2 + np.arange(VOCABULARY) % 8
    words = pa.array(
        ["".join(chr(97 + letter) for letter in row[:length]) for row, length in zip(letters, lengths, strict=True)]
    )
    offsets = np.arange(0, chosen.size + 1, chosen.shape[1], dtype=np.int32)
    lists = pa.ListArray.from_arrays(offsets, words.take(pa.array(chosen.reshape(-1))))
    return pc.binary_join(lists, " ")


def renamed(item: InputArtifact, asset: str, *, files: int = 0) -> InputArtifact:
    """Return another artifact with links to all of an artifact's files, or to so many of them."""
    source, folder = Path(item.path), Path(item.path).parent / f"{asset}-{files}"
    entries = [entry for entry in item.record()["files"] if not files or int(Path(entry["path"]).stem) < files]
    for entry in entries:
        (folder / entry["path"]).parent.mkdir(parents=True, exist_ok=True)
        os.link(source / entry["path"], folder / entry["path"])
    kept = sum(
        pq.read_metadata(folder / entry["path"]).num_rows for entry in entries if entry["path"].startswith("documents/")
    )
    return linked(folder, asset, entries, kept)


def linked(folder: Path, asset: str, files: Sequence[dict[str, Any]], kept: int) -> InputArtifact:
    """Write the record of an artifact with these files, which are not read."""
    digest = artifact.digest_of_files(list(files))
    fingerprint = artifact.digest_of([asset, digest])[:32]
    counts = Counts(records_in=kept, kept=kept).as_json()
    record = {"asset": asset, "partition": "tiny@one", "fingerprint": fingerprint, "digest": digest, "gates": []}
    artifact.write_json(folder / artifact.ARTIFACT_FILE, record | {"files": list(files), "counts": counts})
    return InputArtifact(asset=asset, partition="tiny@one", fingerprint=fingerprint, digest=digest, path=str(folder))


if __name__ == "__main__":
    main()
