"""Measure what one more snapshot costs.

The time of its stages from WARC files to shards is divided by that of all snapshots.

    PEDIGREE_DATA=… python -m benchmarks.increment [--documents 10000] [--rounds 5]
    PEDIGREE_DATA=… python -m benchmarks.increment --equal 8 [--documents 4000] [--rounds 3]

There is a snapshot of `--documents` generated pages (`benchmarks.pages`), then a second with a tenth as many, in which
copies are of pages of either. Each round is a process of its own that has loaded its compiled loops; words cached from
the first snapshot are forgotten before the second. Printed are the processor seconds of the second snapshot divided by
those of both, in all and by stage. The extractor's own process starts once in each snapshot and is counted; the
tokenizer is made before. With `--equal` there are so many snapshots of `--documents` pages each, whose copies are of
pages of any snapshot so far, and each is divided by the first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.dedup import made_texts, processor_seconds, scratch
from benchmarks.pages import FILTER, crawl, trained
from benchmarks.rounds import spread
from tests.training.data import chain
from training.contract import artifact
from training.contract.job import InputArtifact
from training.data.dedup import sign as signatures
from training.data.dedup.settings import DedupRecipe
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.exams.search import grams
from training.data.exams.settings import BenchmarkRecipe
from training.data.extract.isolation import close_isolation
from training.data.extract.settings import ExtractRecipe
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.words import table as wordtable

PER_FILE = 2000
EXAMS = (
    BenchmarkRecipe(name="gsm8k", uri="data://benchmarks/gsm8k_test.jsonl.gz", kind="generate"),
    BenchmarkRecipe(
        name="arc_easy", uri="data://benchmarks/arc_easy.jsonl.gz", kind="multiple_choice", question_field="query"
    ),
    BenchmarkRecipe(
        name="mmlu", uri="data://benchmarks/mmlu_val.jsonl.gz", kind="multiple_choice", gold_field="answer"
    ),
)
FEW = 40  # documents that a process is warmed by


def main() -> None:
    """Run the rounds and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10_000, help="of the first snapshot")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--equal", type=int, default=0, help="number of snapshots of equal size; 0: a tenth follows")
    options = parser.parse_args()
    number = options.documents
    sizes = [number] * options.equal or [number, number // 10]
    if options.child:
        print(json.dumps(measured(sizes)))
        return
    command = [sys.executable, "-m", "benchmarks.increment", "--child", *sys.argv[1:]]
    ratios: dict[str, list[float]] = defaultdict(list)
    for _ in range(options.rounds):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        snapshots = json.loads(done.stdout.splitlines()[-1])
        print(snapshots, flush=True)
        first, *later = (one["seconds"] | {"all": sum(one["seconds"].values())} for one in snapshots)
        for place, one in enumerate(later, 2):
            for stage, took in one.items():
                if options.equal:
                    ratios[f"{place}, {stage}"].append(took / first[stage])
                else:
                    ratios[stage].append(took / (first[stage] + took))
    for stage, values in ratios.items():
        print(f"{stage}: {spread(values, 3)}, n = {len(values)}")


def measured(sizes: list[int]) -> list[dict[str, dict[str, float]]]:
    """Return, for each snapshot, the processor seconds by stage and the number of documents that each asset kept."""
    # The compiled loops for either, or the small one would run another program.
    signatures.COMPILED_FROM_BYTES = grams.COMPILED_FROM_BYTES = 0
    texts, _ = made_texts(sum(sizes))
    ends = np.cumsum(sizes).tolist()
    with scratch() as root:
        tokenizer = trained(root, texts[:FEW])
        warm = Chain(root / "warm", tokenizer)
        for name in ("1", "2"):
            warm.run(name, texts[:FEW])
        both = Chain(root / "all", tokenizer)
        return [both.run(str(end), texts[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


class Chain:
    """Runs the stages of one snapshot after the other in one folder."""

    def __init__(self, root: Path, tokenizer: InputArtifact) -> None:
        self._root, self._tokenizer = root, tokenizer
        self._earlier: list[InputArtifact] = []  # filtered documents and signatures
        artifact.write_json(root / "none" / "quality.json", {"has_models": False})
        self._models = chain.committed(root / "none", "quality_models", "tiny", ["quality.json"])
        self._exams = {"decontaminate": DecontaminateRecipe(benchmarks=EXAMS)}
        self._index = chain.run(root, "benchmarks", "benchmark_index", "tiny", self._exams)

    def run(self, snapshot: str, texts: list[str]) -> dict[str, dict[str, float]]:
        """All stages of a snapshot with these texts."""
        wordtable.forget()
        parts = [texts[start : start + PER_FILE] for start in range(0, len(texts), PER_FILE)]
        crawled = crawl(self._root, parts, snapshot)
        seconds, kept = {}, {}
        began = processor_seconds()
        for made in self._stages(snapshot, crawled):
            close_isolation()  # whose time counts when it has ended
            seconds[made.asset] = round(processor_seconds() - began, 4)
            kept[made.asset] = (made.record()["counts"] or {}).get("kept", 0)
            began = processor_seconds()
        return {"seconds": seconds, "kept": kept}

    def _stages(self, snapshot: str, crawled: InputArtifact) -> Iterator[InputArtifact]:
        def run(stage: str, asset: str, settings: dict[str, object], inputs: list[InputArtifact]) -> InputArtifact:
            return chain.run(self._root, stage, asset, f"tiny@{snapshot}", settings, inputs)

        dedup: dict[str, object] = {"dedup": DedupRecipe()}
        extracted = run("extract", "extracted_documents", {"extract": ExtractRecipe(extractor="blocks")}, [crawled])
        yield extracted
        scores = run("score", "document_scores", {"filter": FILTER.measured()}, [extracted, self._models])
        yield scores
        filtered = run("filter", "filtered_documents", {"filter": FILTER}, [extracted, scores])
        yield filtered
        signed = run("sign", "document_signatures", dedup, [filtered])
        yield signed
        alone = run("dedup", "deduplicated_documents", dedup, [*self._earlier, filtered, signed])
        yield alone
        self._earlier += [filtered, signed]
        clean = run("decontaminate", "decontaminated_documents", self._exams, [alone, self._index])
        yield clean
        yield run("tokenize", "token_shards", {"shards": ShardsRecipe()}, [clean, self._tokenizer])


if __name__ == "__main__":
    main()
