"""Stage `sign`: what deduplication compares instead of texts, one row a document.

`signatures/00000.safetensors` belongs to `documents/00000.parquet`, row for row:

- `text` uint64 [documents, 2]: 128-bit hash of the exact text;
- `ngrams` uint64 [documents, 2]: 128-bit hash of the set of word n-grams;
- `count` int32 [documents]: distinct n-grams;
- `bands` uint64 [buckets, documents]: MinHash keys; two documents of Jaccard similarity s share at least one with
  probability 1 - (1 - s^hashes_per_bucket)^buckets. A document without a word has zeros, which match nothing.

Source: MinHash (Broder 1997) with banding; the recipe's defaults are FineWeb's (arXiv 2406.17557). The permutations are
h → a·h + b modulo 2^64 over well-mixed n-gram hashes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training.artifact import written
from training.data.documents import document_files, read_documents
from training.data.ngrams import Hashes, digest, mixed, ngram_set
from training.job import Job, Outcome, Work
from training.recipe import DedupRecipe

log = logging.getLogger(__name__)

FOLDER = "signatures"
# n-grams permuted at once: 112 × 1,024 × 8 bytes stay in the second-level cache.
BLOCK = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Signatures:
    """The signatures of one document file (or of several, joined)."""

    text: Hashes  # [documents, 2]
    ngrams: Hashes  # [documents, 2]
    count: npt.NDArray[np.int32]  # [documents]
    bands: Hashes  # [buckets, documents]

    def __len__(self) -> int:
        return len(self.count)


def num_ranks(job: Job) -> int:
    """One rank a document file."""
    return len(document_files(job.input_of("filtered_documents")))


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Sign the documents of one file."""
    recipe = job.settings_as(DedupRecipe, "dedup")
    texts = (row["text"] for row in read_documents(document_files(job.input_of("filtered_documents"))[rank], ["text"]))
    signatures = sign(texts, recipe)
    name = f"{FOLDER}/{rank:05d}.safetensors"
    save(signatures, work.path / name)
    return {"files": [name], "documents": len(signatures), "ngrams": int(signatures.count.sum())}


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """Add up what the ranks did."""
    documents = sum(rank["documents"] for rank in ranks)
    files = tuple(name for rank in ranks for name in rank["files"])
    return Outcome(
        files=files,
        metrics={
            "documents": documents,
            "distinct_ngrams_per_document": sum(rank["ngrams"] for rank in ranks) / max(documents, 1),
            "bytes_per_document": sum((work.path / name).stat().st_size for name in files) / max(documents, 1),
        },
    )


def sign(texts: Any, recipe: DedupRecipe) -> Signatures:
    """The signatures of texts, in their order."""
    rows = [_sign_one(text, recipe) for text in texts]
    bands = np.array([row[3] for row in rows], np.uint64).reshape(len(rows), recipe.buckets)
    return Signatures(
        text=np.array([row[0] for row in rows], np.uint64).reshape(-1, 2),
        ngrams=np.array([row[1] for row in rows], np.uint64).reshape(-1, 2),
        count=np.array([row[2] for row in rows], np.int32),
        bands=np.ascontiguousarray(bands.T),
    )


def _sign_one(text: str, recipe: DedupRecipe) -> tuple[tuple[int, int], tuple[int, int], int, Hashes]:
    ngrams = ngram_set(text, recipe.ngram_words)
    keys = band_keys(ngrams, buckets=recipe.buckets, hashes_per_bucket=recipe.hashes_per_bucket)
    return digest([text.encode("utf-8")]), digest([ngrams.tobytes()]), len(ngrams), keys


def band_keys(ngrams: Hashes, *, buckets: int, hashes_per_bucket: int) -> Hashes:
    """The MinHash key of each bucket, uint64 [buckets]; zeros for an empty set."""
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
    """Odd multipliers and addends, each [number, 1], from counters: the same on every machine and in every release."""
    values = mixed(np.arange(1, 2 * number + 1, dtype=np.uint64) * _odd_multiplier())
    return (values[:number] | np.uint64(1)).reshape(-1, 1), values[number:].reshape(-1, 1)


def _odd_multiplier() -> np.uint64:
    return np.uint64(0x9E3779B97F4A7C15)


def save(signatures: Signatures, path: Path) -> None:
    """Write signatures, whole or not at all."""
    from safetensors.numpy import save as to_bytes

    arrays = {name: getattr(signatures, name) for name in ("text", "ngrams", "count", "bands")}
    with written(path) as stream:
        stream.write(to_bytes(arrays))


def load(paths: list[Path]) -> Signatures:
    """The signatures in several files, joined in their order, without the bands' keys (see `band_of`)."""
    from safetensors import safe_open

    parts: dict[str, list[npt.NDArray[Any]]] = {"text": [], "ngrams": [], "count": []}
    for path in paths:
        with safe_open(path, "numpy") as file:
            for name, arrays in parts.items():
                arrays.append(file.get_tensor(name))
    empty = {"text": np.empty((0, 2), np.uint64), "ngrams": np.empty((0, 2), np.uint64), "count": np.empty(0, np.int32)}
    joined = {name: np.concatenate([empty[name], *arrays]) for name, arrays in parts.items()}
    return Signatures(**joined, bands=np.empty((0, len(joined["count"])), np.uint64))


def num_documents(path: Path) -> int:
    """Number of documents of a signature file, from its header."""
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        return file.get_slice("count").get_shape()[0]


def band_of(paths: list[Path], bucket: int) -> Hashes:
    """The keys of one bucket for all documents of the files: only that band is read."""
    from safetensors import safe_open

    parts = [np.empty(0, np.uint64)]
    for path in paths:
        with safe_open(path, "numpy") as file:
            parts.append(file.get_slice("bands")[bucket])
    return np.concatenate(parts)
