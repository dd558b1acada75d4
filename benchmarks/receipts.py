"""What the receipt of an answer of 200 tokens takes, in processor seconds: on a root, and the search in larger shards.

    python -m benchmarks.receipts --root RUNS --model kitchen      # whole receipts
    python -m benchmarks.receipts [--tokens 1000000 10000000]      # the search in one generated shard of each size

An answer is made of pieces of 10 to 40 tokens of documents, with three drawn tokens between them. On a root the time of
the search is told apart from that of pages, steps and rows. Generated tokens are drawn as words are in a text (Zipf),
and every fifth document is a copy of the one before. Shards are searched one by one, so time grows with their number.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.contract.job import InputArtifact
from training.provenance.text.asked import LEAST_TOKENS
from training.provenance.text.search import IndexedShard, maximal_spans
from training.provenance.text.suffixes import first_places, suffix_array
from training.provenance.text.texts import BEGINNINGS, spans_of_text

VOCABULARY = 32_000
DOCUMENT_TOKENS = 500
ANSWER_TOKENS = 200
ANSWERS = 50


def main() -> int:
    """Measure on a root, or in generated shards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--model", default="kitchen")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000_000, 10_000_000])
    options = parser.parse_args()
    if options.root:
        return on_root(options.root.resolve(), options.model)
    for number in options.tokens:
        shard = generated(number, np.random.default_rng(0))
        print(f"{number:,} tokens in one shard: the search {shown(seconds_of(searching([shard]), answers([shard])))}")
    return 0


def on_root(root: Path, model: str) -> int:
    """Print what receipts of a model take, and the search in them."""
    from assets.answers.models.receipts import opened
    from resources.tracking.reports import Tracking

    receipts = opened(model, root, Tracking("", root, in_background=False))
    asked = [receipts.tokenizer.decode(one) for one in answers(receipts.shards)]
    told = [receipts.receipt(one) for one in asked]
    tokens = sum(len(shard.tokens) for shard in receipts.shards)
    places = statistics.mean(sum(len(span["pages"]) for span in one["spans"]) for one in told)

    def search(answer: str) -> object:
        return spans_of_text(answer, receipts.tokenizer, receipts.shards, least=LEAST_TOKENS, most_pages=20)

    print(f"{tokens:,} tokens in {len(receipts.shards)} shards, {places:.1f} pages named for an answer")
    print(f"receipts {shown(seconds_of(receipts.receipt, asked))}")
    print(f"the search in them {shown(seconds_of(search, asked))}")
    return 0


def generated(number: int, chance: np.random.Generator) -> IndexedShard:
    """Return a shard of so many drawn tokens with its suffix array, in memory."""
    tokens = np.minimum(chance.zipf(1.2, number), VOCABULARY - 1).astype(np.uint16)
    for start in range(4 * DOCUMENT_TOKENS, number - DOCUMENT_TOKENS, 5 * DOCUMENT_TOKENS):
        tokens[start : start + DOCUMENT_TOKENS] = tokens[start - DOCUMENT_TOKENS : start]
    tokens[DOCUMENT_TOKENS - 1 :: DOCUMENT_TOKENS] = 0
    offsets = np.unique([*range(0, number, DOCUMENT_TOKENS), number])
    suffixes, first = suffix_array(tokens, VOCABULARY), first_places(tokens, VOCABULARY)
    item = InputArtifact(asset="token_shards", partition="", fingerprint="", digest="", path="")
    return IndexedShard(item=item, path="", tokens=tokens, offsets=offsets, suffixes=suffixes, first=first)


def answers(shards: Sequence[IndexedShard], number: int = ANSWERS) -> list[list[int]]:
    """Return answers of 200 tokens: pieces of documents, with drawn tokens between them."""
    chance, made = np.random.default_rng(1), []
    for _ in range(number):
        answer: list[int] = []
        while len(answer) < ANSWER_TOKENS:
            shard = shards[int(chance.integers(len(shards)))]
            at, size = int(chance.integers(0, len(shard.tokens) - 40)), int(chance.integers(10, 41))
            answer += [token for token in shard.tokens[at : at + size].tolist() if token]
            answer += chance.integers(1, len(shard.first) - 1, 3).tolist()
        made.append(answer[:ANSWER_TOKENS])
    return made


def searching(shards: Sequence[IndexedShard]) -> Callable[[list[int]], object]:
    """Return a function that searches an answer as often as a receipt does: once for each of its beginnings."""
    return lambda answer: [maximal_spans(shards, answer, least=LEAST_TOKENS, most_places=20) for _ in BEGINNINGS]


def seconds_of(ask: Callable[[Any], object], asked: Sequence[Any]) -> list[float]:
    """Return the processor seconds of each question, asked a second time: the first compiles and reads."""
    seconds = []
    for one in asked:
        ask(one)
        begun = time.process_time()
        ask(one)
        seconds.append(time.process_time() - begun)
    return seconds


def shown(seconds: Sequence[float]) -> str:
    """Return the median and the range, in processor milliseconds."""
    low, middle, high = (1e3 * one(seconds) for one in (min, statistics.median, max))
    return f"{middle:.1f} ms of a processor [{low:.1f}-{high:.1f}], {len(seconds)} answers of {ANSWER_TOKENS} tokens"


if __name__ == "__main__":
    sys.exit(main())
