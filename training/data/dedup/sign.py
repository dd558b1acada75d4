"""Stage `sign`: writes the signatures that deduplication compares instead of texts, one row per document.

`signatures/00000.safetensors` belongs to `documents/00000.parquet`, row for row:

- `text` uint64 [documents, 2]: 128-bit hash of the exact text;
- `ngrams` uint64 [documents, 2]: hash of the set of word n-grams, independent of their order;
- `count` int32 [documents]: number of distinct n-grams;
- `bands` uint64 [buckets, documents]: MinHash keys; two documents of Jaccard similarity s share at least one with
  probability 1 - (1 - s^hashes_per_bucket)^buckets. A document without a word has zeros, which match nothing;
- `url` uint64 [documents, 2], only with `dedup.urls`: 128-bit hash of the URL's key; zeros without a URL.

Source: MinHash (Broder 1997) with banding; the recipe's defaults are FineWeb's (arXiv 2406.17557). The permutations are
h → a·h + b modulo 2^64 over well-mixed n-gram hashes. They take about a fifth of the signing time (docs/dedup.md), so
one-permutation hashing, which is less exact on short texts, would gain little.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from training.contract.artifact import written
from training.contract.job import Counts, Job, Outcome, Share, Work
from training.contract.running.marks import files_of, marks_in
from training.data.dedup.settings import DedupRecipe
from training.data.documents import count_documents, document_files, open_documents, shares_of, utf8_of
from training.data.urls import key_of, page_entry
from training.data.words.ngrams import Hashes, mixed, ngram_set

FOLDER = "signatures"
# Number of n-grams permuted at once: 112 × 1,024 × 8 bytes fit in the second-level cache.
BLOCK = 1024
# From this many bytes of text on, a process uses compiled loops: loading them takes 2 s, plain Python signs 3 MB per
# second.
COMPILED_FROM_BYTES = 5_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Signatures:
    """The deduplication signatures (hashes of texts and n-grams) of some documents, in the order of the documents."""

    text: Hashes  # [documents, 2]
    ngrams: Hashes  # [documents, 2]
    count: npt.NDArray[np.int32]  # [documents]
    bands: Hashes  # [buckets, documents]

    def __len__(self) -> int:
        return len(self.count)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the signature arrays by name, as a signature file stores them."""
        return {"text": self.text, "ngrams": self.ngrams, "count": self.count, "bands": self.bands}


def num_ranks(job: Job) -> int:
    """Number of ranks: one per document file."""
    return len(document_files(job.input_of("filtered_documents")))


def rank_shares(job: Job) -> list[Share]:
    """Return what each rank reads: its document file."""
    return shares_of(document_files(job.input_of("filtered_documents")))


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Compute and write the signatures of the documents in one file."""
    recipe = job.settings_as(DedupRecipe, "dedup")
    source = document_files(job.input_of("filtered_documents"))[rank]
    arrays = sign_file(source, recipe)
    name = f"{FOLDER}/{rank:05d}.safetensors"
    save(arrays, work.path / name)
    counts = Counts(records_in=count_documents(source), kept=num_documents(work.path / name))
    return {"files": [name], "counts": counts.as_json(), "ngrams": int(arrays["count"].sum())}


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """Combine the results of all ranks into the stage's outcome."""
    counts = Counts.total([rank["counts"] for rank in ranks])
    documents = counts.kept
    files = tuple(name for rank in ranks for name in rank["files"])
    entries = files_of(marks_in(work.path))
    return Outcome(
        files=files,
        counts=counts,
        metrics={
            "documents": documents,
            "distinct_ngrams_per_document": sum(rank["ngrams"] for rank in ranks) / max(documents, 1),
            "bytes_per_document": sum(entries[name]["bytes"] for name in files) / max(documents, 1),
        },
    )


def sign_file(path: Path, recipe: DedupRecipe) -> dict[str, npt.NDArray[Any]]:
    """Return the signature arrays of one document file, by name. The file is read one row group at a time."""
    parts = [sign(pa.array([], pa.string()), recipe, compiled=False).arrays()]
    urls = [np.empty((0, 2), np.uint64)]
    with open_documents(path) as parquet:
        compiled = is_worth_compiling(num_text_bytes(parquet))
        for group in range(parquet.num_row_groups):
            columns = parquet.read_row_group(group, columns=["text", "url"], use_threads=False)
            parts.append(sign(columns["text"].combine_chunks(), recipe, compiled=compiled).arrays())
            if recipe.urls:
                urls.append(url_digests(columns["url"].to_pylist()))
    joined = {
        name: np.concatenate([part[name] for part in parts], axis=-1 if name == "bands" else 0) for name in parts[0]
    }
    return joined | ({"url": np.concatenate(urls)} if recipe.urls else {})


_seen_bytes = 0  # of text whose n-grams this process has made


def is_worth_compiling(num_bytes: int) -> bool:
    """Whether this process has seen enough text, with these bytes, that loading the compiled loops saves time.

    Both ways give the same n-grams and keys.
    """
    global _seen_bytes
    _seen_bytes += num_bytes
    return _seen_bytes >= COMPILED_FROM_BYTES


def num_text_bytes(parquet: Any) -> int:
    """Uncompressed bytes of the column `text` of an open document file, read from its footer."""
    place = parquet.schema_arrow.names.index("text")
    groups = (parquet.metadata.row_group(group) for group in range(parquet.num_row_groups))
    return sum(group.column(place).total_uncompressed_size for group in groups)


def sign(texts: pa.StringArray, recipe: DedupRecipe, *, compiled: bool) -> Signatures:
    """Return the signatures of the texts, in order. The result does not depend on `compiled`."""
    data, offsets = utf8_of(texts)
    view = data.data
    bounds = offsets.tolist()
    exact = b"".join(xxhash.xxh3_128_digest(view[start:end]) for start, end in itertools.pairwise(bounds))
    ngrams, count, bands = _sign_compiled(data, offsets, recipe) if compiled else _sign_plainly(texts, recipe)
    return Signatures(
        text=np.frombuffer(exact, ">u8").astype(np.uint64).reshape(-1, 2), ngrams=ngrams, count=count, bands=bands
    )


Signed = tuple[Hashes, npt.NDArray[np.int32], Hashes]


def _sign_plainly(texts: pa.StringArray, recipe: DedupRecipe) -> Signed:
    sets = [ngram_set(text, recipe.ngram_words) for text in texts.to_pylist()]
    keys = [band_keys(each, buckets=recipe.buckets, hashes_per_bucket=recipe.hashes_per_bucket) for each in sets]
    return (
        np.array([set_digest(each) for each in sets], np.uint64).reshape(-1, 2),
        np.array([len(each) for each in sets], np.int32),
        np.ascontiguousarray(np.array(keys, np.uint64).reshape(len(sets), recipe.buckets).T),
    )


def _sign_compiled(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], recipe: DedupRecipe) -> Signed:
    from training.data.dedup import minhash

    sets, starts = minhash.ngram_sets(data, offsets, recipe.ngram_words)
    multipliers, addends = _permutations(recipe.buckets * recipe.hashes_per_bucket)
    digests = np.zeros((len(starts) - 1, 2), np.uint64)
    bands = np.zeros((recipe.buckets, len(starts) - 1), np.uint64)
    minhash.sign_sets(sets, starts, multipliers.ravel(), addends.ravel(), digests, bands)
    return digests, np.diff(starts).astype(np.int32), bands


def url_digests(urls: Iterable[str | None]) -> Hashes:
    """128-bit hash of each URL's key, uint64 [urls, 2]; zeros for None or an empty URL."""
    digests = b"".join(
        xxhash.xxh3_128_digest(page_entry(key_of(url)).encode("utf-8", "replace")) if url else bytes(16) for url in urls
    )
    return np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)


def set_digest(ngrams: Hashes) -> tuple[int, int]:
    """A hash of a set of n-grams that does not depend on their order; zeros for an empty set."""
    return int(ngrams.sum(dtype=np.uint64)), int(mixed(ngrams + _odd_multiplier()).sum(dtype=np.uint64))


def band_keys(ngrams: Hashes, *, buckets: int, hashes_per_bucket: int) -> Hashes:
    """Return the MinHash key of a set of n-grams in each bucket, uint64 [buckets]; zeros for an empty set."""
    if not len(ngrams):
        return np.zeros(buckets, np.uint64)
    minima = _minima(ngrams, buckets * hashes_per_bucket).reshape(buckets, hashes_per_bucket)
    keys = np.arange(1, buckets + 1, dtype=np.uint64)
    for column in minima.T:
        keys = mixed(keys * _odd_multiplier() + column)
    return keys


def _minima(ngrams: Hashes, permutations: int) -> Hashes:
    multipliers, addends = _permutations(permutations)
    smallest = np.full(permutations, np.iinfo(np.uint64).max, np.uint64)
    buffer = np.empty((permutations, min(BLOCK, len(ngrams))), np.uint64)
    for start in range(0, len(ngrams), BLOCK):
        block = ngrams[start : start + BLOCK]
        permuted = buffer[:, : len(block)]
        np.multiply(multipliers, block, out=permuted)
        permuted += addends
        np.minimum(smallest, permuted.min(axis=1), out=smallest)
    return smallest


@lru_cache(maxsize=8)
def _permutations(number: int) -> tuple[Hashes, Hashes]:
    """Return the multipliers (odd) and addends of the MinHash permutations, each [number, 1].

    They are made from counters, so they are equal on every machine and in every release.
    """
    values = mixed(np.arange(1, 2 * number + 1, dtype=np.uint64) * _odd_multiplier())
    return (values[:number] | np.uint64(1)).reshape(-1, 1), values[number:].reshape(-1, 1)


def _odd_multiplier() -> np.uint64:
    return np.uint64(0x9E3779B97F4A7C15)


def save(arrays: dict[str, npt.NDArray[Any]], path: Path) -> None:
    """Write signatures atomically: the complete file or none."""
    from safetensors.numpy import save as to_bytes

    with written(path) as stream:
        stream.write(to_bytes(arrays))


def load(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of a signature file, by name."""
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping


def num_documents(path: Path) -> int:
    """Number of documents in a signature file, read from its header."""
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        return file.get_slice("count").get_shape()[0]
