"""Compare two corpora by the base models trained on them, on texts that neither model has seen.

    PEDIGREE_DATA=… python -m benchmarks.corpora before=MODEL_FOLDER after=MODEL_FOLDER [--limit 120] [--resamples 2000]

Each model is a folder in the transformers layout. The held-out documents of two pipelines cannot be compared, because
each pipeline extracts and selects its own. So the texts come from elsewhere: the documentation of Node, which only the
second snapshot has (for models of the first snapshot), read by three extractors, because a model prefers text from the
extractor of its training data; articles whose main text was marked by hand; and articles of an encyclopedia. It prints
the bits per byte of each model, and each model's difference from the first with a 95 % interval over resampled texts.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

from lm_eval.api.instance import Instance
from warcio.archiveiterator import ArchiveIterator

from benchmarks import convergence
from evaluation.local_model import LocalModel
from training.data.extract.html import extract_html
from training.data.extract.settings import ExtractRecipe
from training.data.sources import read_rows, resolve

ARTICLES = "data://extraction/article_extraction_benchmark.jsonl.gz"
SECOND = "data://crawl/snapshot-2/web-05-00000.warc.gz"
HOST = "http://node-docs.test/"
EXTRACTORS = ("trafilatura", "blocks", "resiliparse")
MAX_CHARACTERS = 20_000  # of one text: no page outweighs the others


def main() -> int:
    """Score every text with every model, and compare each model with the first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--limit", type=int, default=120)
    parser.add_argument("--resamples", type=int, default=2000)
    options = parser.parse_args()
    folders = {name: Path(folder) for name, _, folder in (model.partition("=") for model in options.models)}
    print(f"| texts | bytes | {' | '.join(folders)} |")
    print("|---" * (len(folders) + 2) + "|")
    models = {name: LocalModel(folder, batch_size=8) for name, folder in folders.items()}
    for name, texts in text_sets().items():
        chosen = texts[: options.limit]
        sizes = [len(text.encode("utf-8")) for text in chosen]
        first, *others = (bits_of(model, chosen) for model in models.values())
        cells = [f"{sum(first) / sum(sizes):.3f}", *(_cell(first, one, sizes, options.resamples) for one in others)]
        print(f"| {name}, {len(chosen)} | {sum(sizes):,} | {' | '.join(cells)} |", flush=True)
    return 0


def _cell(first: list[float], other: list[float], sizes: list[int], resamples: int) -> str:
    low, middle, high = added(first, other, sizes, resamples)
    return f"{sum(other) / sum(sizes):.3f} ({middle:+.3f} [{low:+.3f}, {high:+.3f}])"


def text_sets() -> dict[str, list[str]]:
    """Return the sets of texts on which the models are measured, by name."""
    node = {f"Node's documentation by {extractor}": node_pages(extractor) for extractor in EXTRACTORS}
    encyclopedia = [text[:MAX_CHARACTERS] for text in convergence.articles()]
    return node | {"articles": articles(), "encyclopedia": encyclopedia}


def articles() -> list[str]:
    """Return articles of many sites whose main text was marked by hand."""
    return [row["article_body"][:MAX_CHARACTERS] for row in read_rows(ARTICLES) if row["article_body"].strip()]


def node_pages(extractor: str) -> list[str]:
    """Return the pages of a host that the first snapshot lacks, as the named extractor reads them.

    They are in the archive's order.
    """
    texts, settings = [], ExtractRecipe(extractor=extractor)
    with open(resolve(SECOND), "rb") as stream:
        for record in ArchiveIterator(stream):
            http = record.http_headers
            here = record.rec_type == "response" and record.rec_headers.get_header("WARC-Target-URI").startswith(HOST)
            if here and http.get_statuscode() == "200" and "html" in (http.get_header("content-type") or ""):
                headers = {"content-type": http.get_header("content-type")}
                page = extract_html(record.content_stream().read(), headers=headers, settings=settings)
                texts.append(page.text[:MAX_CHARACTERS])
    return [text for text in texts if text]


def bits_of(model: LocalModel, texts: list[str]) -> list[float]:
    """Return the bits that a model needs for each text, tokenized by the model's own tokenizer."""
    requests = [Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(texts)]
    return [-nats / math.log(2) for nats in model.loglikelihood_rolling(requests)]


def added(first: list[float], last: list[float], sizes: list[int], resamples: int) -> tuple[float, float, float]:
    """Return the last model's bits per byte minus the first's, with a 95 % interval.

    The order is lower end, difference over all texts, upper end. The interval is over `resamples` resampled sets of
    texts.
    """
    rows = list(zip(first, last, sizes, strict=True))
    draw = random.Random(0)
    means = sorted(_difference(draw.choices(rows, k=len(rows))) for _ in range(resamples))
    return means[int(0.025 * resamples)], _difference(rows), means[int(0.975 * resamples)]


def _difference(rows: list[tuple[float, float, int]]) -> float:
    return sum(last - first for first, last, _ in rows) / sum(size for _, _, size in rows)


if __name__ == "__main__":
    raise SystemExit(main())
