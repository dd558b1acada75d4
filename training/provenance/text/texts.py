"""Find the longest spans of a text that occur word for word in the training data, and the pages that hold them.

The same sentence has other tokens after a space than at the beginning of a document, so each text is looked up twice:
as it is, and after a space. Characters are cut into tokens at the ends of words, so a span may begin and end within a
word only where the vocabulary does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from training.data.tokens.shards import SIDECAR, TOKENS
from training.provenance.file_verification import sound
from training.provenance.index import read_rows
from training.provenance.text.search import IndexedShard, Occurrence, Span, maximal_spans

BEGINNINGS = ("", " ")  # what is put before the text, so that its first word has the tokens of either place
COLUMNS = ("id", "url", "snapshot", "warc_file", "warc_offset")  # of the sidecar
CONTEXT_TOKENS = 24  # on each side of a span in what is shown of a page


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedPage:
    """A document that holds a span: its place in a shard, its row of the sidecar, and the text around the span."""

    shard: str
    document: int  # in the shard
    token: int  # of the document, where the span begins
    tokens: int  # of the span as it stands in this document
    row: dict[str, Any]
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSpan:
    """The characters `start` to `stop` - 1 of a text, how often they occur in the training data, and some of the pages.

    `tokens` is the span's length in tokens.
    """

    start: int
    stop: int
    tokens: int
    count: int
    pages: tuple[IndexedPage, ...]


def spans_of_text(
    text: str, tokenizer: Tokenizer, shards: Sequence[IndexedShard], *, least: int = 1, most_pages: int = 10
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
    places = list(_longest(sorted(place for place, same in found.items() if same)))
    return [_text_span(place, found[place], tokenizer, shards, most_pages) for place in places]


def _longest(places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges that do not lie within another one.

    `places` are sorted.
    """
    for start, stop in places:
        if not any((other, end) != (start, stop) and other <= start and stop <= end for other, end in places):
            yield start, stop


def _text_span(
    place: tuple[int, int],
    same: Sequence[tuple[Span, Sequence[int]]],
    tokenizer: Tokenizer,
    shards: Sequence[IndexedShard],
    most: int,
) -> TextSpan:
    pages = [
        _page(shards[one.shard], one, span.stop - span.start, tokenizer) for span, _ in same for one in span.occurrences
    ]
    return TextSpan(
        start=place[0],
        stop=place[1],
        tokens=max(len(tokens) for _, tokens in same),
        count=sum(span.count for span, _ in same),
        pages=tuple(pages[:most]),
    )


def _page(shard: IndexedShard, occurrence: Occurrence, length: int, tokenizer: Tokenizer) -> IndexedPage:
    first, stop = (int(at) for at in shard.offsets[occurrence.document : occurrence.document + 2])
    begin = first + occurrence.token
    before = shard.tokens[max(begin - CONTEXT_TOKENS, first) : begin]
    after = shard.tokens[begin + length : min(begin + length + CONTEXT_TOKENS, stop - 1)]  # no end-of-text token
    sidecar = sound(shard.item, shard.path.removesuffix(TOKENS) + SIDECAR)
    return IndexedPage(
        shard=shard.path.removesuffix(TOKENS),
        document=occurrence.document,
        token=occurrence.token,
        tokens=length,
        row=read_rows(sidecar, [occurrence.document], COLUMNS)[0],
        before=tokenizer.decode(before.tolist(), skip_special_tokens=False),
        after=tokenizer.decode(after.tolist(), skip_special_tokens=False),
    )
