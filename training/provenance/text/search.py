"""Find the longest spans of a text that occur in the shards of a corpus, with their number and places.

The text is given as tokens, because the index is one over tokens. A span never reaches over the end of a document: each
document ends with the end-of-text token, which no text contains.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.contract.job import InputArtifact, RefusedInput
from training.data.tokens.shards import OFFSETS, SIDECAR, TOKENS
from training.provenance.file_verification import sound
from training.provenance.text.build import INDEX_FILE
from training.provenance.text.suffixes import longest_matches

SORTED_AT_MOST = 100_000  # occurrences of a span of which the first in the shard are chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Occurrence:
    """Where a span occurs: the number of the shard in the index, the document in it, and the document's token."""

    shard: int
    document: int
    token: int  # counted from the document's first token


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """The tokens `start` to `stop` - 1 of a text, how often they occur in the corpus, and some of the places."""

    start: int
    stop: int
    count: int
    occurrences: tuple[Occurrence, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedShard:
    """One shard with its suffix array, memory-mapped; `path` is its token file in the artifact `item`."""

    item: InputArtifact
    path: str
    tokens: np.ndarray
    offsets: np.ndarray  # int64 [documents + 1]: where each document begins
    suffixes: np.ndarray
    first: np.ndarray

    def matches(self, query: np.ndarray) -> np.ndarray:
        """Return the longest match from each token of the query on, int64 [query, 3].

        A match is its length and its range in the suffix array.
        """
        found = np.zeros((len(query), 3), np.int64)
        longest_matches(self.tokens, self.suffixes, self.first, query, found)
        return found

    def places(self, low: int, high: int, most: int) -> list[tuple[int, int]]:
        """Return (document, token in it) for at most `most` suffixes of a range, those that come first in the shard."""
        some = self.suffixes[low : min(high, low + SORTED_AT_MOST)].astype(np.int64)
        if len(some) > most:
            some = np.partition(some, most - 1)[:most]
        some.sort()
        documents = np.searchsorted(self.offsets, some, side="right") - 1
        return list(zip(documents.tolist(), (some - self.offsets[documents]).tolist(), strict=True))

    @property
    def sidecar(self) -> Path:
        """The file with a row for each document, after checking it."""
        return sound(self.item, self.path.removesuffix(TOKENS) + SIDECAR)


def open_index(index: InputArtifact, shards: InputArtifact) -> Iterator[IndexedShard]:
    """Yield the indexed shards of a text index that was made from these shards.

    `index` is an artifact of `text_index`, and `shards` of `token_shards`. Every file is checked before it is used
    (`training.provenance.lineage.sound`). Raise RefusedInput if the index was made from other shards, or if a file is
    damaged.
    """
    listing = json.loads(sound(index, INDEX_FILE).read_text("utf-8"))
    if listing["token_shards"] != shards.digest:
        raise RefusedInput(
            f"{index.where}: was made from other shards ({listing['token_shards'][:12]}) than {shards.where}"
            f" ({shards.digest[:12]}); materialize text_index again"
        )
    for entry in listing["shards"]:
        path = entry["tokens"]
        yield IndexedShard(
            item=shards,
            path=path,
            tokens=np.memmap(sound(shards, path), listing["dtype"], mode="r").view(np.ndarray),
            offsets=_mapped(shards, path.removesuffix(TOKENS) + OFFSETS),
            suffixes=_mapped(index, entry["suffixes"]),
            first=_mapped(index, entry["first"]),
        )


def maximal_spans(
    shards: Sequence[IndexedShard], query: Sequence[int], *, least: int = 1, most_places: int = 10
) -> list[Span]:
    """Return the longest spans of `query` that occur in the shards, from left to right; no span lies inside another.

    Spans of fewer than `least` tokens are left out too. Each has the places of its first `most_places` occurrences, in
    the order of the shards.
    """
    tokens = np.asarray(query, np.int64)
    if not len(tokens) or not shards:
        return []
    matches = np.stack([shard.matches(tokens) for shard in shards])
    lengths = matches[:, :, 0].max(axis=0)
    spans, end = [], 0
    for start in range(len(tokens)):
        stop = start + int(lengths[start])
        if stop > end and stop - start >= least:
            spans.append(_span(shards, matches[:, start], start, stop, most_places))
        end = max(end, stop)
    return spans


def _span(shards: Sequence[IndexedShard], found: np.ndarray, start: int, stop: int, most: int) -> Span:
    count, places = 0, list[Occurrence]()
    for number, (length, low, high) in enumerate(found.tolist()):
        if length == stop - start:
            count += high - low
            some = shards[number].places(low, high, most - len(places)) if len(places) < most else ()
            places += [Occurrence(shard=number, document=document, token=token) for document, token in some]
    return Span(start=start, stop=stop, count=count, occurrences=tuple(places))


def _mapped(item: InputArtifact, name: str) -> np.ndarray:
    return np.load(sound(item, name), mmap_mode="r", allow_pickle=False).view(np.ndarray)
