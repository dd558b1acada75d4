"""Stage `tokenize`: documents become memory-mapped token shards with a sidecar that names each one's page.

The format is in docs/architecture.md, "Shards and plan". A document is its text's tokens and the end-of-text token,
which `tokens` in the sidecar counts too. A rank's shards are `shards/<rank>` and, when it needs more, `<rank>-001` and
so on; a shard never mixes sources and is closed before `max_shard_tokens` would be passed. `tokenizer_digest` in
`shards.json` is the tokenizer artifact's digest, `tokenizer_sha256` that of its `tokenizer.json`.

`tokenizers` is the reference. gigatoken encodes where it is installed and gives the same ids on the first documents, on
hard strings and on one document in fifty of the rest; at the first difference the reference encodes the rank anew.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from training.artifact import sha256_of, write_json, written
from training.data.documents import count_documents, document_files, read_documents
from training.data.tokenizer import (
    CONFIG_FILE,
    HARD_STRINGS,
    TOKENIZER_FILE,
    load_tokenizer,
    look_alikes,
    plain_text_json,
    read_config,
)
from training.job import Counts, Gate, InputArtifact, Job, Outcome, Work
from training.recipe import ShardsRecipe

log = logging.getLogger(__name__)

SHARDS_FILE: Final = "shards.json"
FOLDER: Final = "shards"
BATCH_BYTES: Final = 4_000_000
# The reference encodes 6 MB/s and gigatoken more than ten times that: proving must stay a small part of the text.
PROVED_FIRST: Final = 50
PROVED_EVERY: Final = 50
# A rank with no more tokens than this is decoded whole; of a larger one every twentieth document.
DECODED_WHOLE_TOKENS: Final = 500_000
DECODED_EVERY: Final = 20
DECODED_AT_ONCE: Final = 64

SIDECAR_SCHEMA: Final = pa.schema(
    [
        ("id", pa.string()),
        ("url", pa.string()),
        ("snapshot", pa.string()),
        ("warc_file", pa.string()),
        ("warc_offset", pa.int64()),
        ("source", pa.string()),
        ("tokens", pa.int64()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
    ]
)

Ids = npt.NDArray[np.uint32]
Encode = Callable[[Sequence[str]], list[Ids]]
Document = dict[str, Any]


class EncodersDiffer(Exception):
    """The fast encoder and the reference gave different ids for a text."""


# Encoding


def reference_encoder(tokenizer: Tokenizer) -> Encode:
    """Encodes by `tokenizers`."""

    def encode(texts: Sequence[str]) -> list[Ids]:
        found = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in found]

    return encode


def fast_encoder(path: Path) -> Encode | None:
    """Encodes by gigatoken; None where it is not installed or refuses this tokenizer."""
    try:
        import gigatoken

        backend = gigatoken.Tokenizer.from_json(plain_text_json(path))
    except (ImportError, ValueError, RuntimeError) as error:
        log.info("tokenizers encodes: gigatoken cannot: %s", error)
        return None

    def encode(texts: Sequence[str]) -> list[Ids]:
        ids = backend.encode_batch(list(texts)).layout
        flat, offsets = np.asarray(ids.content.data), np.asarray(ids.offsets.data)
        return [flat[start:end] for start, end in pairwise(offsets)]

    return encode


def proving_encoder(fast: Encode, reference: Encode, probes: Sequence[str]) -> Encode:
    """`fast`, compared with `reference` on the probes, the first PROVED_FIRST texts, then one in PROVED_EVERY.

    EncodersDiffer at the first difference.
    """
    seen = 0

    def encode(texts: Sequence[str]) -> list[Ids]:
        nonlocal seen
        found = fast(texts)
        if seen == 0:
            _check_equal(probes, fast(probes), reference(probes))
        chosen = [i for i in range(len(texts)) if seen + i < PROVED_FIRST or (seen + i) % PROVED_EVERY == 0]
        some = [texts[i] for i in chosen]
        _check_equal(some, [found[i] for i in chosen], reference(some))
        seen += len(texts)
        return found

    return encode


def _check_equal(texts: Sequence[str], fast: Sequence[Ids], reference: Sequence[Ids]) -> None:
    for text, left, right in zip(texts, fast, reference, strict=True):
        if not np.array_equal(left, right):
            raise EncodersDiffer(f"gigatoken and tokenizers differ on {text[:80]!r}")


# The stage


def num_ranks(job: Job) -> int:
    """One rank a document file."""
    return len(document_files(job.input_of("decontaminated_documents")))


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Encode one document file into shards, then decode them again."""
    item = job.input_of("tokenizer")
    source = document_files(job.input_of("decontaminated_documents"))[rank]
    tokenizer = load_tokenizer(item.file(TOKENIZER_FILE))
    reference, fast = reference_encoder(tokenizer), fast_encoder(item.file(TOKENIZER_FILE))
    shape = _Shape.of(job, tokenizer)
    encoder = "gigatoken" if fast else "tokenizers"
    try:
        encode = proving_encoder(fast, reference, _probes(item)) if fast else reference
        shards = write_shards(work.path, rank, _encoded(source, encode), shape)
    except EncodersDiffer as difference:
        log.warning("tokenizers encodes rank %d: %s", rank, difference)
        encoder = "tokenizers"
        shards = write_shards(work.path, rank, _encoded(source, reference), shape)
    decoded, wrong = check_decoding(work.path, shards, tokenizer, shape)
    return {
        "files": [f"{FOLDER}/{shard['name']}{suffix}" for shard in shards for suffix in SUFFIXES],
        "shards": shards,
        "encoder": encoder,
        "decoded": decoded,
        "wrong": wrong,
    }


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """List the shards and judge whether they decode."""
    item = job.input_of("tokenizer")
    shape = _Shape.of(job, load_tokenizer(item.file(TOKENIZER_FILE)))
    shards = [shard for rank in ranks for shard in rank["shards"]]
    listing = {
        "tokenizer_digest": item.digest,
        "tokenizer_sha256": sha256_of(item.file(TOKENIZER_FILE)),
        "vocab_size": shape.vocabulary,
        "dtype": shape.dtype.name,
        "eos_id": shape.end_id,
        "tokens": sum(shard["tokens"] for shard in shards),
        "documents": sum(shard["documents"] for shard in shards),
        "shards": shards,
    }
    write_json(work.path / SHARDS_FILE, listing)
    wrong = [one for rank in ranks for one in rank["wrong"]]
    decoded = sum(rank["decoded"] for rank in ranks)
    given = sum(count_documents(path) for path in document_files(job.input_of("decontaminated_documents")))
    return Outcome(
        files=(SHARDS_FILE, *(name for rank in ranks for name in rank["files"])),
        counts=Counts(records_in=given, kept=listing["documents"]),
        metrics={
            "tokens": listing["tokens"],
            "documents": listing["documents"],
            "shards": len(shards),
            "text_bytes": sum(shard["bytes"] for shard in shards),
            "bytes_per_token": sum(shard["bytes"] for shard in shards) / max(listing["tokens"], 1),
            "documents_decoded": decoded,
        },
        gates=(Gate(name="shards_decode", passed=not wrong, evidence={"documents": decoded, "wrong": wrong[:10]}),),
        notes={"encoders": dict(sorted(Counter(rank["encoder"] for rank in ranks).items()))},
    )


SUFFIXES: Final = (".bin", ".offsets.npy", ".documents.parquet")


class _Shape:
    """What every shard of the job shares: size limit, vocabulary, number format and the end-of-text token."""

    def __init__(self, *, max_tokens: int, vocabulary: int, end_id: int) -> None:
        self.max_tokens = max_tokens
        self.vocabulary = vocabulary
        self.end_id = end_id
        self.dtype = np.dtype("<u2" if vocabulary <= 65_536 else "<u4")

    @staticmethod
    def of(job: Job, tokenizer: Tokenizer) -> _Shape:
        end = read_config(job.input_of("tokenizer").file(CONFIG_FILE))["eos_token"]
        recipe = job.settings_as(ShardsRecipe, "shards")
        return _Shape(
            max_tokens=recipe.max_shard_tokens,
            vocabulary=tokenizer.get_vocab_size(),
            end_id=tokenizer.token_to_id(end),
        )


def _probes(item: InputArtifact) -> list[str]:
    config = read_config(item.file(CONFIG_FILE))
    return [*HARD_STRINGS, *look_alikes([config["eos_token"], config["pad_token"]])]


def _encoded(path: Path, encode: Encode) -> Iterator[tuple[Document, Ids]]:
    """Each document of a file with its ids, encoded some megabytes at a time."""
    columns = [name for name in SIDECAR_SCHEMA.names if name not in ("tokens", "bytes", "sha256")]
    for batch in _batches(read_documents(path, [*columns, "text"])):
        yield from zip(batch, encode([row["text"] for row in batch]), strict=True)


def _batches(rows: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row["text"])
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# Shards


def write_shards(
    folder: Path, rank: int, encoded: Iterable[tuple[Document, Ids]], shape: _Shape
) -> list[dict[str, Any]]:
    """Write documents into shards; returns the entry of each for `shards.json`, in order."""
    entries: list[dict[str, Any]] = []
    open_by_source: dict[str, _Shard] = {}
    with ExitStack() as stack:
        for document, ids in encoded:
            shard = open_by_source.get(document["source"])
            if shard is None or (shard.tokens and shard.tokens + len(ids) + 1 > shape.max_tokens):
                if shard is not None:
                    shard.finish()
                shard = _Shard(stack, folder / FOLDER, _name(rank, len(entries)), document["source"], shape)
                open_by_source[document["source"]] = shard
                entries.append(shard.entry)
            shard.add(document, ids)
        for shard in open_by_source.values():
            shard.finish()
    return entries


def _name(rank: int, number: int) -> str:
    return f"{rank:05d}" if number == 0 else f"{rank:05d}-{number:03d}"


class _Shard:
    """One token file being written, with its offsets and its sidecar. Everything appears when the stack closes."""

    def __init__(self, stack: ExitStack, folder: Path, name: str, source: str, shape: _Shape) -> None:
        self.entry: dict[str, Any] = {"name": name, "path": f"{FOLDER}/{name}.bin", "source": source}
        self._base = folder / name
        self._shape = shape
        self._stream: IO[bytes] = stack.enter_context(written(self._base.with_name(f"{name}.bin")))
        self._offsets = [0]
        self._bytes = 0
        self._sidecar: dict[str, list[Any]] = {column: [] for column in SIDECAR_SCHEMA.names}

    @property
    def tokens(self) -> int:
        return self._offsets[-1]

    def add(self, document: Document, ids: Ids) -> None:
        """Append a document and the end-of-text token."""
        tokens = np.empty(len(ids) + 1, self._shape.dtype)
        tokens[:-1] = ids
        tokens[-1] = self._shape.end_id
        self._stream.write(tokens.tobytes())
        text = document["text"].encode("utf-8")
        added = {"tokens": len(tokens), "bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        for column, values in self._sidecar.items():
            values.append(added[column] if column in added else document[column])
        self._offsets.append(self.tokens + len(tokens))
        self._bytes += len(text)

    def finish(self) -> None:
        """Write what stands beside the tokens."""
        name = self.entry["name"]
        self.entry |= {"tokens": self.tokens, "documents": len(self._offsets) - 1, "bytes": self._bytes}
        with written(self._base.with_name(f"{name}.offsets.npy")) as stream:
            np.save(stream, np.array(self._offsets, np.int64), allow_pickle=False)
        with written(self._base.with_name(f"{name}.documents.parquet")) as stream:
            pq.write_table(pa.Table.from_pydict(self._sidecar, schema=SIDECAR_SCHEMA), stream, compression="zstd")


def check_decoding(
    folder: Path, shards: Sequence[dict[str, Any]], tokenizer: Tokenizer, shape: _Shape
) -> tuple[int, list[str]]:
    """How many documents were decoded from the written files, and the ids of those that differ from their text."""
    every = 1 if sum(shard["tokens"] for shard in shards) <= DECODED_WHOLE_TOKENS else DECODED_EVERY
    decoded, wrong = 0, []
    for shard in shards:
        base = folder / FOLDER / shard["name"]
        tokens = np.memmap(base.with_name(f"{shard['name']}.bin"), shape.dtype, "r")
        offsets = np.load(base.with_name(f"{shard['name']}.offsets.npy"), allow_pickle=False)
        sidecar = pq.read_table(base.with_name(f"{shard['name']}.documents.parquet"), columns=["id", "sha256"])
        if offsets[-1] != len(tokens) or len(sidecar) != len(offsets) - 1:
            wrong.append(
                f"{shard['path']}: {len(tokens)} tokens, {len(offsets) - 1} offsets, {len(sidecar)} sidecar rows"
            )
            continue
        rows = range(0, len(sidecar), every)
        decoded += len(rows)
        for start in range(0, len(rows), DECODED_AT_ONCE):
            some = rows[start : start + DECODED_AT_ONCE]
            wrong += _wrongly_decoded(
                [tokens[offsets[row] : offsets[row + 1]] for row in some], sidecar.take(list(some)), tokenizer, shape
            )
    return decoded, wrong


def _wrongly_decoded(documents: Sequence[Ids], sidecar: pa.Table, tokenizer: Tokenizer, shape: _Shape) -> list[str]:
    """The ids of documents that do not decode to their text or lack the end-of-text token."""
    texts = tokenizer.decode_batch([ids[:-1].tolist() for ids in documents], skip_special_tokens=False)
    return [
        row["id"]
        for ids, text, row in zip(documents, texts, sidecar.to_pylist(), strict=True)
        if hashlib.sha256(text.encode("utf-8")).hexdigest() != row["sha256"] or int(ids[-1]) != shape.end_id
    ]
