"""Find the longest spans of a text that occur word for word in the training data, and the pages that hold them.

The same sentence has other tokens after a space than at the beginning of a document, so each text is looked up twice:
as it is, and after a space. Characters are cut into tokens at the ends of words, so a span may begin and end within a
word only where the vocabulary does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from training.provenance.grams import longest
from training.provenance.index import read_rows
from training.provenance.text.search import IndexedShard, Span, maximal_spans

BEGINNINGS = ("", " ")  # what is put before the text, so that its first word has the tokens of either place
COLUMNS = ("id", "url", "snapshot", "warc_file", "warc_offset")  # of the sidecar
CONTEXT_TOKENS = 24  # on each side of a span in what is shown of a page


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedPage:
    """A document that holds a span: its number in a shard, and the span's place and length in it, in tokens."""

    shard: IndexedShard
    document: int
    token: int
    tokens: int

    @property
    def row(self) -> dict[str, Any]:
        """The document's row of the sidecar."""
        return read_rows(self.shard.sidecar, [self.document], COLUMNS)[0]

    def around(self, tokenizer: Tokenizer) -> tuple[str, str]:
        """Return the text before and after the span."""
        first, stop = (int(at) for at in self.shard.offsets[self.document : self.document + 2])
        begin, end = first + self.token, first + self.token + self.tokens
        before = self.shard.tokens[max(begin - CONTEXT_TOKENS, first) : begin]
        after = self.shard.tokens[end : min(end + CONTEXT_TOKENS, stop - 1)]  # no end-of-text token
        decode = partial(tokenizer.decode, skip_special_tokens=False)
        return decode(before.tolist()), decode(after.tolist())


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSpan:
    """The characters `start` to `stop` - 1 of a text, how often they occur in the training data, and some of the pages.

    `tokens` is the span's length in tokens. `bits` is the sum of -log2 of the share that each of them has in the
    training data, so a long span of rare words has most.
    """

    start: int
    stop: int
    tokens: int
    bits: float
    count: int
    pages: tuple[IndexedPage, ...]


def spans_of_text(
    text: str,
    tokenizer: Tokenizer,
    shards: Sequence[IndexedShard],
    *,
    least: int = 1,
    most_pages: int = 10,
) -> list[TextSpan]:
    """Return the longest spans of `text` that occur in the shards, from left to right; no span lies inside another.

    Spans of fewer than `least` tokens are left out too. `tokenizer` is the one that the shards were made with, without
    special tokens of its own (`training.data.tokens.tokenizer.load_tokenizer`).
    """
    found: dict[tuple[int, int], list[tuple[Span, Sequence[int]]]] = {}
    for beginning in BEGINNINGS:
        encoding = tokenizer.encode(beginning + text, add_special_tokens=False)
        for span in maximal_spans(shards, encoding.ids, least=least, most_places=most_pages):
            start = max(encoding.offsets[span.start][0] - len(beginning), 0)
            stop = encoding.offsets[span.stop - 1][1] - len(beginning)
            tokens = encoding.ids[span.start : span.stop]
            same = found.setdefault((start, stop), [])
            if stop > start and all(tokens != others for _, others in same):
                same.append((span, tokens))
    places = longest(place for place, same in found.items() if same)
    return [_text_span(place, found[place], shards, most_pages) for place in places]


def _text_span(
    place: tuple[int, int],
    same: Sequence[tuple[Span, Sequence[int]]],
    shards: Sequence[IndexedShard],
    most: int,
) -> TextSpan:
    pages = [
        IndexedPage(shard=shards[one.shard], document=one.document, token=one.token, tokens=span.stop - span.start)
        for span, _ in same
        for one in span.occurrences
    ]
    return TextSpan(
        start=place[0],
        stop=place[1],
        tokens=max(len(tokens) for _, tokens in same),
        bits=_bits(same, shards),
        count=sum(span.count for span, _ in same),
        pages=tuple(pages[:most]),
    )


def _bits(same: Sequence[tuple[Span, Sequence[int]]], shards: Sequence[IndexedShard]) -> float:
    return max(rarity_bits(tokens, shards) for _, tokens in same)


def rarity_bits(tokens: Sequence[int], shards: Sequence[IndexedShard]) -> float:
    """Return the sum of -log2 of the share that each of these tokens has of all tokens of the shards.

    It is the unigram probability by which OLMoTrace (arXiv 2504.07096) ranks spans. A token that no shard has counts as
    one that stands there once.
    """
    ids = np.asarray(tokens, np.int64)
    counts = np.sum([shard.first[ids + 1] - shard.first[ids] for shard in shards], axis=0)
    total = sum(len(shard.tokens) for shard in shards)
    return round(float(np.sum(np.log2(total) - np.log2(np.maximum(counts, 1)))), 3)
