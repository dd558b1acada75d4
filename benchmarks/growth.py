"""Measure how the time of each corpus stage grows with the number n of documents: the exponent c of a + b·n^c.

    PEDIGREE_DATA=… python -m benchmarks.growth [--documents 16000] [--repeats 3] [--stages extract dedup]
    PEDIGREE_DATA=… python -m benchmarks.growth --stages tokenize --documents-per-file 500 --few 500
    PEDIGREE_DATA=… python -m benchmarks.growth --stages tokenize --documents-per-file 16000
    PEDIGREE_DATA=… python -m benchmarks.growth --stages plan --documents 320000 --few 4000 --words 6

The sizes cover four doublings. Each runs in a process of its own, which first runs every stage over a few documents, so
that one-time loading is not counted. The smallest of the repeats counts, because other work on the machine only adds
time. Documents are real paragraphs with 35 % of the words replaced, as HTML for the stages that read HTML. Times are
processor seconds of the process and of its extractor process.

Five sizes determine three unknowns badly if the constant part is large. So the curve is fixed at its start, the time
for --few documents, and only b and c are fitted. `tokenize` has a fixed cost for every file, because it checks the
first documents of each: it is measured over several whole files of one size or over one file that grows, never over a
part of a file and then several. The plan needs little of a document and nothing of its words, so it is measured over
many short ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from benchmarks.contamination import EXAMS
from benchmarks.dedup import made_texts, processor_seconds, scratch
from tests.training.data import chain
from training import artifact
from training.data.crawl.crawl import source_files
from training.data.crawl.settings import SnapshotRecipe
from training.data.dedup import sign as signatures
from training.data.dedup.settings import DedupRecipe
from training.data.exams import grams
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.extract.isolation import close_isolation
from training.data.extract.settings import ExtractRecipe
from training.data.filter.settings import FilterRecipe
from training.data.quality.settings import QualityRecipe
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.data.words import table as wordtable
from training.job import InputArtifact
from training.order.settings import MixtureRecipe
from training.pretrain.settings import PretrainRecipe

FILTER = FilterRecipe(
    rules=("url", "language", "gopher_repetition", "gopher_quality", "c4", "fineweb", "toxicity", "personal_data"),
    gopher_min_alphabetic_fraction=0.5,  # the texts' commas and full stops stand alone: words to the rule
)
FEW = 40  # what a process is warmed by, and the start of the curve
STEP_TOKENS = 8192

Parts = Sequence[list[str]]


def main() -> None:
    """Measure every size, and print times and exponent of every stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=16_000, help="of the largest size")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--few", type=int, default=FEW, help="documents of the size that the curve goes through")
    parser.add_argument("--documents-per-file", type=int, default=2000)
    parser.add_argument("--words", type=int, default=0, help="of each document; 0: as many as the paragraphs have")
    parser.add_argument("--child", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=STAGES)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(options)))
        return
    sizes = [options.few, *(options.documents >> shift for shift in (4, 3, 2, 1, 0))]
    runs: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for _ in range(options.repeats):
        for size in sizes:
            command = [sys.executable, "-m", "benchmarks.growth", "--child", str(size), "--stages", *options.stages]
            command += ["--documents-per-file", str(options.documents_per_file), "--words", str(options.words)]
            command += ["--few", str(options.few)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs[size].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{size} documents: {runs[size][-1]}", flush=True)
    print(f"\n| stage | {' | '.join(map(str, sizes))} | exponent | of each round |")
    print("|---|" + "---|" * (len(sizes) + 2))
    for stage in runs[options.few][0]:
        seconds = [min(run[stage] for run in runs[size]) for size in sizes]
        rounds = [exponent(sizes, [run[stage] for run in some]) for some in zip(*runs.values(), strict=True)]
        shown = " | ".join(f"{one:.3f}" for one in seconds)
        spread = f"{statistics.median(rounds):.3f} [{min(rounds):.3f}-{max(rounds):.3f}]"
        print(f"| {stage} | {shown} | {exponent(sizes, seconds):.3f} | {spread} |")


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the exponent c of the least-squares fit of a + b·n^c, with relative errors.

    The fit goes through the first size's seconds.
    """
    few, first, weights = sizes[0], seconds[0], 1 / np.array(seconds[1:])
    more = (np.array(seconds[1:]) - first) * weights
    best = (float("inf"), 0.0)
    for tried in np.arange(0.3, 1.8, 0.001):
        powers = (np.array(sizes[1:], float) ** tried - float(few) ** tried) * weights
        factor = powers @ more / (powers @ powers)
        best = min(best, (float(np.sum((factor * powers - more) ** 2)), float(tried)))
    return best[1]


def measured(options: argparse.Namespace) -> dict[str, float]:
    """Return the processor seconds of each stage over a number of documents."""
    # The compiled loops at every size, or the fit would see two programs.
    signatures.COMPILED_FROM_BYTES = grams.COMPILED_FROM_BYTES = 0
    few = options.few if options.words else FEW
    texts = short_texts(options.child, options.words) if options.words else made_texts(options.child)[0]
    with scratch() as root:
        tokenizer = trained(root, made_texts(FEW)[0])
        for _ in timed(root / "few", [texts[:few]], tokenizer, options.stages):
            pass
        wordtable.forget()
        in_file = options.documents_per_file
        parts = [texts[start : start + in_file] for start in range(0, len(texts), in_file)]
        return dict(timed(root / "all", parts, tokenizer, options.stages))


def short_texts(number: int, words: int) -> list[str]:
    """Return `number` texts of `words` words each, cut out of a few long ones."""
    long = [text.split() for text in made_texts(FEW)[0]]
    starts = (number // FEW * words % (len(long[number % FEW]) - words) for number in range(number))
    return [" ".join(long[number % FEW][start : start + words]) for number, start in enumerate(starts)]


def timed(root: Path, parts: Parts, tokenizer: InputArtifact, stages: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield each requested stage, and the stages before it in its chain, with their processor seconds."""
    for names, steps in CHAINS.items():
        wanted = max((names.index(stage) + 1 for stage in stages if stage in names), default=0)
        run = steps(root, parts, tokenizer)
        for stage in names[:wanted]:
            next(run)  # makes ready
            began = processor_seconds()
            next(run)
            close_isolation()  # whose time counts when it has ended
            yield stage, round(processor_seconds() - began, 4)


def trained(root: Path, texts: list[str]) -> InputArtifact:
    """Train a tokenizer with a small vocabulary on these texts; return its artifact."""
    source = chain.documents(root / "sample", "one", [texts], asset="decontaminated_documents")
    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=2048, min_bytes_per_token=1.0)
    return chain.run(root, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source])


# Chains of stages. Each stops before and after each of its stages.


def judged(root: Path, parts: Parts, _: InputArtifact) -> Iterator[None]:
    """Train quality models: every second text is a reference text, the others are the crawled pages."""
    source = chain.documents(root / "texts", "one", [part[1::2] for part in parts], asset="extracted_documents")
    reference = root / "reference.jsonl"
    reference.write_text("".join(json.dumps({"text": text}) + "\n" for part in parts for text in part[::2]), "utf-8")
    half = sum(len(part[1::2]) for part in parts)
    recipe = QualityRecipe(reference=(str(reference),), snapshots=("one",), negatives=half, min_auc=0.0)
    yield
    chain.run(root, "quality", "quality_models", "tiny", {"quality": recipe}, [source])
    yield


def vocabulary(root: Path, parts: Parts, _: InputArtifact) -> Iterator[None]:
    """Train a tokenizer on the texts, and measure it on some of them."""
    source = chain.documents(root / "texts", "one", parts, asset="decontaminated_documents")
    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=2048, sample_bytes=10**9, min_bytes_per_token=1.0)
    yield
    chain.run(root, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source])
    yield


def from_pages(root: Path, parts: Parts, _: InputArtifact) -> Iterator[None]:
    """Write the texts as pages in archives, then extract, score and filter them."""
    crawled = crawl(root, parts)
    yield
    extracted = run(root, "extract", "extracted_documents", {"extract": ExtractRecipe(extractor="blocks")}, [crawled])
    yield
    artifact.write_json(root / "none" / "quality.json", {"has_models": False})
    models = chain.committed(root / "none", "quality_models", "tiny", ["quality.json"])
    yield
    scores = run(root, "score", "document_scores", {"filter": FILTER.measured()}, [extracted, models])
    yield
    yield
    run(root, "filter", "filtered_documents", {"filter": FILTER}, [extracted, scores])
    yield


def deduplicated(root: Path, parts: Parts, _: InputArtifact) -> Iterator[None]:
    """Sign and deduplicate the texts."""
    source = chain.documents(root / "texts", "one", parts)
    yield
    signed = run(root, "sign", "document_signatures", {"dedup": DedupRecipe()}, [source])
    yield
    yield
    run(root, "dedup", "deduplicated_documents", {"dedup": DedupRecipe()}, [source, signed])
    yield


def decontaminated(root: Path, parts: Parts, _: InputArtifact) -> Iterator[None]:
    """Search the texts for benchmark items."""
    source = chain.documents(root / "texts", "one", parts, asset="deduplicated_documents")
    settings = {"decontaminate": DecontaminateRecipe(benchmarks=EXAMS)}
    index = chain.run(root, "benchmarks", "benchmark_index", "tiny", settings)
    yield
    run(root, "decontaminate", "decontaminated_documents", settings, [source, index])
    yield


def tokenized(root: Path, parts: Parts, tokenizer: InputArtifact) -> Iterator[None]:
    """Write the texts as token shards."""
    source = chain.documents(root / "texts", "one", parts, asset="decontaminated_documents")
    yield
    shards = run(root, "tokenize", "token_shards", {"shards": ShardsRecipe()}, [source, tokenizer])
    yield
    tokens = sum(len(text.split()) for part in parts for text in part) // STEP_TOKENS * STEP_TOKENS
    pretrain = PretrainRecipe(tokens=tokens, sequence_length=512, global_batch_tokens=STEP_TOKENS)
    settings = {"mixture": MixtureRecipe(), "pretrain": pretrain.batches}
    yield
    chain.run(root, "plan", "training_plan", "tiny", settings, [shards, tokenizer])
    yield


CHAINS: dict[tuple[str, ...], Callable[[Path, Parts, InputArtifact], Iterator[None]]] = {
    ("quality",): judged,
    ("extract", "score", "filter"): from_pages,
    ("sign", "dedup"): deduplicated,
    ("decontaminate",): decontaminated,
    ("tokenizer",): vocabulary,
    ("tokenize", "plan"): tokenized,
}
STAGES = tuple(stage for names in CHAINS for stage in names)


def run(root: Path, stage: str, asset: str, settings: dict[str, object], inputs: list[InputArtifact]) -> InputArtifact:
    """Run one stage over the snapshot; return its artifact."""
    return chain.run(root, stage, asset, "tiny@one", settings, inputs)


def crawl(root: Path, parts: Parts, snapshot: str = "one") -> InputArtifact:
    """Write the texts as pages in WARC files; return the artifact with these archives."""
    folder = root / "warc" / snapshot
    folder.mkdir(parents=True)
    for number, texts in enumerate(parts):
        pages = (record(f"http://a.test/{number}/{place}", page(text)) for place, text in enumerate(texts))
        (folder / f"{number:05d}.warc.gz").write_bytes(b"".join(pages))
    source = SnapshotRecipe(name=snapshot, source="warc", paths=(str(folder),))
    settings = {"snapshot": source, "files": source_files(source)}
    return chain.run(root, "crawl", "crawl_archives", f"tiny@{snapshot}", settings)


def page(text: str) -> bytes:
    """Return an HTML page with a menu that shows a text in paragraphs of 60 words."""
    words = escape(text).split(" ")
    written = "".join(f"<p>{' '.join(words[start : start + 60])}.</p>\n" for start in range(0, len(words), 60))
    menu = "".join(f"<li><a href=/{number}>Part {number}</a>" for number in range(20))
    return (
        f"<html lang=en><head><title>{words[0]}</title><body><nav><ul>{menu}</ul></nav><main>{written}</main>".encode()
    )


def record(uri: str, html: bytes) -> bytes:
    """Return a WARC record with an HTML page, as one gzip member."""
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + html
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {uri}\r\nContent-Length: {len(block)}\r\n\r\n"
    return gzip.compress(head.encode() + block + b"\r\n\r\n", compresslevel=1, mtime=0)


if __name__ == "__main__":
    main()
