"""Measure the memory of what one process does for all documents: samples for tokenizer and quality models, and hits.

    python -m benchmarks.samples [--documents 320000] [--code FOLDER]

A sixteenth, a quarter and all of `--documents` are generated, 10,000 in a file, each with a text of 200 bytes and one
hit of an exam. Each piece of work runs in a process of its own: the choice of the tokenizer's sample (1 MB), that of
the candidates for the quality models' negatives (500), and the end of `decontaminate`, with row groups of 20,000 hits.
Printed are the peak of the process (VmHWM, with Python and libraries) and its processor seconds. `--code` measures the
edition of the project in that folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PER_FILE = 10_000
TEXT_BYTES = 200
HITS_AT_ONCE = 20_000
ITEMS = 500  # of the exam
WORK = ("tokenizer", "quality", "hits")
HERE = Path(__file__).parents[1]


def main() -> None:
    """Measure three sizes and print their peaks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=320_000, help="of the largest size")
    parser.add_argument("--code", type=Path, default=HERE, help="folder of another edition of the project")
    parser.add_argument("--child", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(options.child[0], Path(options.child[1]))))
        return
    for part in (16, 4, 1):
        documents = options.documents // part
        with tempfile.TemporaryDirectory(prefix="samples-") as place:
            generate(Path(place), documents)
            for work in WORK:
                told = in_a_child(work, Path(place), options.code)
                print(f"{documents} documents, {work}: {told['peak_bytes'] / 1e6:.0f} MB, {told['seconds']:.2f} s")


def in_a_child(work: str, root: Path, code: Path) -> dict[str, float]:
    """Do one piece of work in a process with the code in a folder; return its peak memory and processor seconds."""
    argv = [sys.executable, str(Path(__file__).resolve()), "--child", work, str(root)]
    environment = {**os.environ, "PYTHONPATH": str(code.resolve())}
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, cwd=root, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def generate(root: Path, documents: int) -> None:
    """Write files of documents, and the hits that ranks of `decontaminate` would have left."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from training.data.documents import SCHEMA, DocumentWriter
    from training.data.exams.decontaminate import _HIT_SCHEMA

    (root / "scratch").mkdir()
    for file, first in enumerate(range(0, documents, PER_FILE)):
        numbers = range(first, min(first + PER_FILE, documents))
        ids = [f"one/file-{file:05d}/{number:012d}" for number in numbers]
        text = {"id": ids, "text": [f"{number} ".ljust(TEXT_BYTES, "x") for number in numbers]}
        columns: dict[str, list[Any]] = text | {
            name: ["web"] * len(ids) for name in ("snapshot", "warc_file", "source", "language")
        }
        columns["warc_offset"] = list(numbers)
        arrays = [pa.array(columns.get(field.name, [None] * len(ids)), field.type) for field in SCHEMA]
        with DocumentWriter(root / "documents" / f"{file:05d}.parquet") as writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
        hits = text | {
            "benchmark": ["exam"] * len(ids),
            "item": [f"item {number % ITEMS}" for number in numbers],
            "words": [number % 50 for number in numbers],
        }
        arrays = [pa.array(hits.get(field.name, [None] * len(ids)), field.type) for field in _HIT_SCHEMA]
        pq.write_table(pa.Table.from_arrays(arrays, schema=_HIT_SCHEMA), root / "scratch" / f"hits-{file:05d}.parquet")


def measured(work: str, root: Path) -> dict[str, float]:
    """Do one piece of work; return its peak memory and processor seconds."""
    files = sorted((root / "documents").iterdir())
    began = time.process_time()
    {"tokenizer": choose_for_tokenizer, "quality": choose_for_quality, "hits": end_decontamination}[work](root, files)
    seconds = time.process_time() - began
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"peak_bytes": int(peak.split()[1]) * 1024, "seconds": seconds}


def choose_for_tokenizer(root: Path, files: list[Path]) -> Any:
    """Return the sample of the stage `tokenizer`, after choosing in each file."""
    from training.data.tokens.sample import Choice, TokenizerSample
    from training.data.tokens.tokenizer_settings import TokenizerRecipe

    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=400, sample_bytes=1_000_000)
    found = []
    for number, path in enumerate(files):
        choice = Choice.of(path, recipe)
        choice.save(root / "scratch" / f"tokenizer-{number}")
        found.append(choice.documents)
    place = root / "scratch"
    return TokenizerSample.among(files, lambda rank: Choice.load(place / f"tokenizer-{rank}", found[rank]), recipe)


def choose_for_quality(root: Path, files: list[Path]) -> Any:
    """Return the candidates of the stage `quality`, after choosing in each file."""
    from training.data.quality import quality
    from training.data.quality.settings import QualityRecipe

    quality.document_files = lambda item: item
    recipe = QualityRecipe(negatives=500)
    job: Any = SimpleNamespace(inputs_of=lambda asset: [files], settings_as=lambda *_: recipe)
    work: Any = SimpleNamespace(path=root, scratch=root / "scratch")
    sampled = [quality.choose_in_file(job, work, rank) for rank in range(len(files))]
    return quality._candidates(job, recipe, work, sampled)


def end_decontamination(root: Path, files: list[Path]) -> Any:
    """Return the outcome of the stage `decontaminate`, given the hits of its ranks."""
    from training.data.exams import decontaminate
    from training.data.exams.decontaminate_settings import DecontaminateRecipe

    decontaminate._finder = lambda item: (None, [("exam", "")])
    if hasattr(decontaminate, "HITS_AT_ONCE"):
        decontaminate.HITS_AT_ONCE = HITS_AT_ONCE
    counts = {"in": PER_FILE, "kept": PER_FILE, "dropped": {}, "quarantined": {}}
    ranks: list[dict[str, Any]] = [{"files": [], "counts": counts, "marked": 0}] * len(files)
    settings = DecontaminateRecipe()
    job: Any = SimpleNamespace(settings_as=lambda *_: settings, input_of=lambda asset: None)
    work: Any = SimpleNamespace(path=root, scratch=root / "scratch")
    return decontaminate.finish(job, work, ranks)


if __name__ == "__main__":
    main()
