"""Stage `tokenize`: writes documents as memory-mapped token shards, each with a sidecar that lists its documents.

The format is in docs/architecture.md, "Shards and plan". A document is the tokens of its text and the end-of-text
token, which is included in the sidecar's column `tokens`. A rank writes `shards/<rank>` and, if it needs more shards,
`<rank>-001` and so on. A shard has documents of one source only, and is closed before it would exceed
`max_shard_tokens`. In `shards.json`, `tokenizer_digest` is the digest of the tokenizer artifact and `tokenizer_sha256`
the checksum of its `tokenizer.json`.

The library `tokenizers` is the reference. The faster gigatoken encodes the texts as long as its ids equal the
reference's, which is checked on hard strings, on the first documents and on a sample of the rest. At the first
difference the rank is encoded again by the reference. The artifact's notes list the ranks to which this happened, with
the reason.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from training.contract.artifact import sha256_of, write_json, written
from training.contract.job import Counts, Gate, InputArtifact, Job, Outcome, Share, Work
from training.data.documents import bytes_of, count_documents, document_files, read_tables, utf8_of
from training.data.tokens.shards import OFFSETS, SHARDS_FILE, SIDECAR, TOKENS
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.tokens.tokenizer import (
    CONFIG_FILE,
    HARD_STRINGS,
    TOKENIZER_FILE,
    load_tokenizer,
    look_alikes,
    plain_text_json,
    read_config,
    token_bytes,
)

log = logging.getLogger(__name__)

FOLDER: Final = "shards"
BATCH_BYTES: Final = 4_000_000
BUCKETS: Final = ("head", "middle", "tail")
UNSCORED: Final = "unscored"
# Documents of a rank that are compared with the reference: the first PROVED_FIRST, then one in PROVED_EVERY, and after
# PROVED_OFTEN documents one in PROVED_LATER. The reference is 60 times slower, so comparing one in fifty throughout
# would double the time.
PROVED_FIRST: Final = 50
PROVED_EVERY: Final = 50
PROVED_OFTEN: Final = 2_500
PROVED_LATER: Final = 1_000
# A rank with at most this many tokens is decoded completely, a larger one at every twentieth document. The reference's
# own decoder is slow. It decodes only the first documents of each shard, and must agree with the tokens' bytes.
DECODED_WHOLE_TOKENS: Final = 500_000
DECODED_EVERY: Final = 20
DECODED_BY_REFERENCE: Final = 5
MEASURED_AT_ONCE: Final = 1000

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

_COUNTED: Final = ("tokens", "bytes", "sha256")

Ids = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """The ids of several texts end to end, and the start of each text's ids, [texts + 1]."""

    ids: Ids
    starts: npt.NDArray[np.int64]

    def of(self, text: int) -> Ids:
        """Return the token ids of one of the texts."""
        return self.ids[self.starts[text] : self.starts[text + 1]]


Encode = Callable[[pa.StringArray], EncodedTexts]


class NotTheFastEncoder(Exception):
    """Raised if the fast encoder is not installed, rejects this tokenizer, crashes, or differs from the reference."""


# Encoding


def reference_encoder(tokenizer: Tokenizer) -> Encode:
    """Return a function that encodes texts with the library `tokenizers`."""

    def encode(texts: pa.StringArray) -> EncodedTexts:
        found = tokenizer.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
        ids = [np.array(encoding.ids, np.uint32) for encoding in found]
        return EncodedTexts(np.concatenate([np.empty(0, np.uint32), *ids]), np.cumsum([0, *map(len, ids)]))

    return encode


def fast_encoder(path: Path) -> Encode:
    """Return a function that encodes UTF-8 texts with gigatoken.

    Raise NotTheFastEncoder if gigatoken is not installed or rejects this tokenizer.
    """
    try:
        import awkward

        backend = _backend(path)
    except (ImportError, ValueError, RuntimeError) as error:
        raise NotTheFastEncoder(f"gigatoken cannot: {error}") from None

    def encode(texts: pa.StringArray) -> EncodedTexts:
        try:
            layout = backend.encode_batch(awkward.Array(_as_strings(texts))).layout
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # pyo3's, which is no Exception
                raise
            raise NotTheFastEncoder(f"gigatoken broke: {error}") from None
        starts = np.asarray(layout.offsets.data).astype(np.int64)
        return EncodedTexts(np.asarray(layout.content.data)[starts[0] : starts[-1]], starts - starts[0])

    return encode


def _as_strings(texts: pa.StringArray) -> Any:
    """Wrap the texts, without copying, in the layout that gigatoken reads; a list of strings took a third longer."""
    from awkward.contents import ListOffsetArray, NumpyArray
    from awkward.index import Index64

    data, offsets = bytes_of(texts)
    characters = NumpyArray(data, parameters={"__array__": "char"})
    return ListOffsetArray(Index64(offsets), characters, parameters={"__array__": "string"})


@lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    """Load the reference tokenizer once for all ranks of a process.

    Each new instance is slower than the last.
    """
    return load_tokenizer(path)


@lru_cache(maxsize=1)
def _backend(path: Path) -> Any:
    """Load gigatoken's tokenizer once for all ranks of a process, because it caches the words that it has seen."""
    import gigatoken

    return gigatoken.Tokenizer.from_json(plain_text_json(path))


class Proving:
    """A fast encoder that is compared with the reference on probes and on a sample of the texts that it encodes.

    Calling it encodes texts; it raises NotTheFastEncoder at the first difference. `compared` is the number of sampled
    texts.
    """

    def __init__(self, fast: Encode, reference: Encode, probes: Sequence[str]) -> None:
        self._fast = fast
        self._reference = reference
        self._seen = 0
        self.compared = 0
        hard = pa.array(probes, pa.string())
        self._compare(hard, fast(hard), range(len(hard)))

    def __call__(self, texts: pa.StringArray) -> EncodedTexts:
        found = self._fast(texts)
        chosen = [place for place in range(len(texts)) if _is_proved(self._seen + place)]
        self._compare(texts, found, chosen)
        self.compared += len(chosen)
        self._seen += len(texts)
        return found

    def _compare(self, texts: pa.StringArray, found: EncodedTexts, chosen: Sequence[int]) -> None:
        some = texts.take(pa.array(chosen, pa.int64()))
        expected = self._reference(some)
        for number, place in enumerate(chosen):
            if not np.array_equal(found.of(place), expected.of(number)):
                raise NotTheFastEncoder(f"gigatoken and tokenizers differ on {some[number].as_py()[:80]!r}")


def _is_proved(number: int) -> bool:
    """Whether the document with this number in the rank is also encoded by the reference, to check the fast encoder."""
    return number < PROVED_FIRST or number % (PROVED_EVERY if number < PROVED_OFTEN else PROVED_LATER) == 0


# The stage


def num_ranks(job: Job) -> int:
    """Number of ranks: one per document file."""
    return len(document_files(job.input_of("decontaminated_documents")))


def rank_shares(job: Job) -> list[Share]:
    """Return what each rank reads: its document file and the tokenizer's two files.

    No other property of the tokenizer is read.
    """
    item, documents = job.input_of("tokenizer"), job.input_of("decontaminated_documents")
    vocabulary = ((item, TOKENIZER_FILE), (item, CONFIG_FILE))
    return [Share(files=((documents, name), *vocabulary)) for name in document_files(documents).names]


def renumbered(result: dict[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """Return a reused rank's result with its shards renamed, because the rank may now have another number."""
    shards = [one | {"name": rename(one["name"]), "path": rename(one["path"])} for one in result["shards"]]
    return result | {"shards": shards}


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Encode one document file into shards, then check that they decode to the texts."""
    item = job.input_of("tokenizer")
    source = document_files(job.input_of("decontaminated_documents"))[rank]
    tokenizer = _tokenizer(item.file(TOKENIZER_FILE))
    reference = reference_encoder(tokenizer)
    shape, recipe = _Shape.of(job, tokenizer), job.settings_as(ShardsRecipe, "shards")
    encoder, reason, compared = "gigatoken", "", 0
    try:
        proving = Proving(fast_encoder(item.file(TOKENIZER_FILE)), reference, _probes(item))
        shards = write_shards(work.path, rank, _encoded(source, proving, recipe), shape)
        compared = proving.compared
    except NotTheFastEncoder as refusal:
        log.warning("tokenizers encodes rank %d: %s", rank, refusal)
        encoder, reason = "tokenizers", str(refusal)
        shards = write_shards(work.path, rank, _encoded(source, reference, recipe), shape)
    decoded, wrong = check_decoding(work.path, shards, tokenizer, shape)
    return {
        "files": [f"{FOLDER}/{shard['name']}{suffix}" for shard in shards for suffix in SUFFIXES],
        "counts": Counts(records_in=count_documents(source), kept=sum(one["documents"] for one in shards)).as_json(),
        "shards": shards,
        "encoder": encoder,
        "reason": reason,
        "compared": compared,
        "decoded": decoded,
        "wrong": wrong,
    }


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """List the shards and judge whether they decode correctly."""
    item = job.input_of("tokenizer")
    shape = _Shape.of(job, _tokenizer(item.file(TOKENIZER_FILE)))
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
    return Outcome(
        files=(SHARDS_FILE, *(name for rank in ranks for name in rank["files"])),
        counts=Counts.total([rank["counts"] for rank in ranks]),
        metrics={
            "tokens": listing["tokens"],
            "documents": listing["documents"],
            "shards": len(shards),
            "text_bytes": sum(shard["bytes"] for shard in shards),
            "bytes_per_token": sum(shard["bytes"] for shard in shards) / max(listing["tokens"], 1),
            "documents_decoded": decoded,
            "documents_compared": sum(rank["compared"] for rank in ranks),
        },
        gates=(Gate(name="shards_decode", passed=not wrong, evidence={"documents": decoded, "wrong": wrong[:10]}),),
        notes={
            "encoders": dict(sorted(Counter(rank["encoder"] for rank in ranks).items())),
            "without_the_fast_encoder": dict(
                sorted(Counter(rank["reason"] for rank in ranks if rank["reason"]).items())
            ),
        },
    )


SUFFIXES: Final = (TOKENS, OFFSETS, SIDECAR)


class _Shape:
    """Properties that all shards of the job share: size limit, vocabulary, data type and the end-of-text token."""

    def __init__(self, *, max_tokens: int, vocabulary: int, end_id: int) -> None:
        self.max_tokens = max_tokens
        self.vocabulary = vocabulary
        self.end_id = end_id
        self.dtype = np.dtype("<u2" if vocabulary <= 65_536 else "<u4")

    @staticmethod
    def of(job: Job, tokenizer: Tokenizer) -> _Shape:
        end = read_config(job.input_of("tokenizer").file(CONFIG_FILE))["eos_token"]
        end_id = tokenizer.token_to_id(end)
        assert end_id is not None, "the tokenizer's round-trip gate finds its special tokens"
        recipe = job.settings_as(ShardsRecipe, "shards")
        return _Shape(
            max_tokens=recipe.max_shard_tokens,
            vocabulary=tokenizer.get_vocab_size(),
            end_id=end_id,
        )


def _probes(item: InputArtifact) -> list[str]:
    config = read_config(item.file(CONFIG_FILE))
    return [*HARD_STRINGS, *look_alikes([config["eos_token"], config["pad_token"]])]


def _encoded(path: Path, encode: Encode, recipe: ShardsRecipe) -> Iterator[tuple[pa.Table, EncodedTexts]]:
    """Yield the documents of a file, with their sources set by `buckets`, and their ids; some megabytes at a time."""
    columns = [name for name in SIDECAR_SCHEMA.names if name not in _COUNTED]
    scored = {"none": (), "perplexity": ("perplexity_bucket",), "quality": ("quality_score",)}[recipe.buckets]
    for table in read_tables(path, [*columns, "text", *scored]):
        table = in_buckets(table, recipe)
        for batch in _batches(table):
            yield batch, encode(batch["text"].combine_chunks())


def in_buckets(table: pa.Table, recipe: ShardsRecipe) -> pa.Table:
    """Append the quality bucket to each document's source, such as `web/head`, if the recipe asks for buckets."""
    if recipe.buckets == "none":
        return table
    if recipe.buckets == "perplexity":
        buckets = table["perplexity_bucket"].fill_null(UNSCORED)
    else:
        head, middle = recipe.quality_limits
        score = table["quality_score"].cast(pa.float64())
        lower = pc.if_else(pc.greater_equal(score, middle), BUCKETS[1], BUCKETS[2])
        buckets = pc.if_else(pc.greater_equal(score, head), BUCKETS[0], lower).fill_null(UNSCORED)
    sources = pc.binary_join_element_wise(table["source"], buckets, "/")
    return table.set_column(table.schema.names.index("source"), "source", sources)


def _batches(table: pa.Table) -> Iterator[pa.Table]:
    """Yield slices of a table with about BATCH_BYTES of text each. Raise DataError if a text is not UTF-8."""
    offsets = utf8_of(table["text"].combine_chunks())[1]
    numbers = (offsets - offsets[0])[1:] // BATCH_BYTES
    for start, end in pairwise([0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(table)]):
        yield table.slice(start, end - start)


# Shards


def write_shards(
    folder: Path, rank: int, encoded: Iterable[tuple[pa.Table, EncodedTexts]], shape: _Shape
) -> list[dict[str, Any]]:
    """Write documents into shards; return the entry of each shard for `shards.json`, in order."""
    entries: list[dict[str, Any]] = []
    open_by_source: dict[str, _Shard] = {}
    with ExitStack() as stack:
        for table, found in encoded:
            batch = _Batch.of(table, found, shape)
            for source, start, end in _runs(table["source"]):
                while start < end:
                    shard = open_by_source.get(source)
                    if shard is None or not batch.fitting(start, end, shape.max_tokens - shard.tokens):
                        if shard is not None:
                            shard.finish()
                        shard = _Shard(stack, folder / FOLDER, _name(rank, len(entries)), source, shape)
                        open_by_source[source] = shard
                        entries.append(shard.entry)
                    # A document that is longer than the limit gets its own shard.
                    stop = start + max(1, batch.fitting(start, end, shape.max_tokens - shard.tokens))
                    shard.add(batch, start, stop)
                    start = stop
        for shard in open_by_source.values():
            shard.finish()
    return entries


def _runs(sources: pa.ChunkedArray) -> Iterator[tuple[str, int, int]]:
    """Yield (source, start, end) for each run of consecutive rows with the same source."""
    for source, rows in groupby(enumerate(sources.to_pylist()), key=itemgetter(1)):
        first, *rest = (row for row, _ in rows)
        yield source, first, first + len(rest) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """Documents ready to be written: tokens, with the end-of-text token after each document, and sidecar rows."""

    tokens: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]  # [documents + 1]
    sidecar: pa.Table

    @staticmethod
    def of(table: pa.Table, found: EncodedTexts, shape: _Shape) -> _Batch:
        starts = found.starts + np.arange(len(found.starts))
        ends = starts[1:] - 1
        tokens = np.empty(starts[-1], shape.dtype)
        is_text = np.ones(len(tokens), np.bool_)
        is_text[ends] = False
        tokens[is_text] = found.ids
        tokens[ends] = shape.end_id
        data, offsets = bytes_of(table["text"].combine_chunks())
        view = data.data
        counted = {
            "tokens": np.diff(starts),
            "bytes": np.diff(offsets),
            "sha256": [hashlib.sha256(view[start:end]).hexdigest() for start, end in pairwise(offsets.tolist())],
        }
        columns = [counted[name] if name in counted else table[name] for name in SIDECAR_SCHEMA.names]
        return _Batch(tokens=tokens, starts=starts, sidecar=pa.table(columns, schema=SIDECAR_SCHEMA))

    def fitting(self, start: int, end: int, room: int) -> int:
        """Return how many documents, from `start` up to `end`, together have at most `room` tokens."""
        fitting = int(np.searchsorted(self.starts[start : end + 1], self.starts[start] + room, "right")) - 1
        return max(0, fitting)  # `room` is negative in the shard of a document that is longer than the limit


def _name(rank: int, number: int) -> str:
    return f"{rank:05d}" if number == 0 else f"{rank:05d}-{number:03d}"


class _Shard:
    """One token file being written, with its offsets and its sidecar. The token file appears when the stack closes."""

    def __init__(self, stack: ExitStack, folder: Path, name: str, source: str, shape: _Shape) -> None:
        self.entry: dict[str, Any] = {"name": name, "path": f"{FOLDER}/{name}.bin", "source": source}
        self._base = folder / name
        self._shape = shape
        self._stream: IO[bytes] = stack.enter_context(written(self._base.with_name(f"{name}.bin")))
        self.tokens = 0
        self._sidecar: list[pa.Table] = []

    def add(self, batch: _Batch, start: int, end: int) -> None:
        """Append the documents [start, end) of a batch."""
        tokens = batch.tokens[batch.starts[start] : batch.starts[end]]
        self._stream.write(tokens.data)
        self._sidecar.append(batch.sidecar.slice(start, end - start))
        self.tokens += len(tokens)

    def finish(self) -> None:
        """Write the offsets and the sidecar, and complete the entry for `shards.json`."""
        name = self.entry["name"]
        sidecar = pa.concat_tables(self._sidecar).combine_chunks()
        lengths, sizes = sidecar["tokens"].to_numpy(), sidecar["bytes"].to_numpy()
        self.entry |= {"tokens": self.tokens, "documents": len(sidecar), "bytes": int(sizes.sum())}
        with written(self._base.with_name(f"{name}.offsets.npy")) as stream:
            np.save(stream, np.append(np.int64(0), np.cumsum(lengths)), allow_pickle=False)
        with written(self._base.with_name(f"{name}{SIDECAR}")) as stream:
            pq.write_table(sidecar, stream, compression="zstd")


def check_decoding(
    folder: Path, shards: Sequence[dict[str, Any]], tokenizer: Tokenizer, shape: _Shape
) -> tuple[int, list[str]]:
    """Return the number of documents decoded from the written files, and the ids of those that differ from their text.

    For documents that are not decoded, only the length in bytes is compared.
    """
    every = 1 if sum(shard["tokens"] for shard in shards) <= DECODED_WHOLE_TOKENS else DECODED_EVERY
    spelled = pa.array(token_bytes(tokenizer), pa.binary())
    lengths = pc.binary_length(spelled)
    decoded, wrong = 0, []
    for shard in shards:
        base = folder / FOLDER / shard["name"]
        tokens = np.memmap(base.with_name(f"{shard['name']}.bin"), shape.dtype, "r")
        offsets = np.load(base.with_name(f"{shard['name']}.offsets.npy"), allow_pickle=False)
        columns = ["id", "bytes", "sha256"]
        sidecar = pq.read_table(base.with_name(f"{shard['name']}{SIDECAR}"), columns=columns)
        if offsets[-1] != len(tokens) or len(sidecar) != len(offsets) - 1:
            wrong.append(
                f"{shard['path']}: {len(tokens)} tokens, {len(offsets) - 1} offsets, {len(sidecar)} sidecar rows"
            )
            continue
        if tokens.max() >= shape.vocabulary:
            wrong.append(f"{shard['path']}: token {tokens.max()} of a vocabulary of {shape.vocabulary}")
            continue
        right = _right_lengths(tokens, offsets, lengths, sidecar["bytes"].to_numpy(), shape)
        for row in range(0, len(sidecar), every):
            decoded += 1
            ids = tokens[offsets[row] : offsets[row + 1] - 1]
            text = _spelled_out(ids, spelled)
            right[row] &= hashlib.sha256(text).hexdigest() == sidecar["sha256"][row].as_py()
            if row < DECODED_BY_REFERENCE:
                right[row] &= tokenizer.decode(ids.tolist(), skip_special_tokens=False).encode("utf-8") == text
        wrong += sidecar["id"].filter(pa.array(~right)).to_pylist()
    return decoded, wrong


def _spelled_out(ids: npt.NDArray[Any], spelled: pa.BinaryArray) -> bytes:
    """Return the bytes of all tokens `ids`, concatenated; `spelled` has the bytes of each token of the vocabulary."""
    return bytes_of(spelled.take(pa.array(ids)))[0].tobytes()


def _right_lengths(
    tokens: npt.NDArray[Any],
    offsets: npt.NDArray[np.int64],
    lengths: pa.Int32Array,
    sizes: npt.NDArray[np.int64],
    shape: _Shape,
) -> npt.NDArray[np.bool_]:
    """Whether each document's tokens have as many bytes as its text and are followed by the end-of-text token.

    All `tokens` must be in the vocabulary: `lengths` is indexed without a bounds check, which makes this fast.
    """
    right = np.empty(len(sizes), np.bool_)
    for first in range(0, len(sizes), MEASURED_AT_ONCE):
        starts = offsets[first : first + MEASURED_AT_ONCE + 1]
        some = tokens[starts[0] : starts[-1]]
        starts = starts - starts[0]
        ends = starts[1:] - 1
        counted = pc.take(lengths, pa.array(some), boundscheck=False).to_numpy()
        text_bytes = np.add.reduceat(counted, starts[:-1]) - counted[ends]
        right[first : first + len(ends)] = text_bytes == sizes[first : first + len(ends)]
        right[first : first + len(ends)] &= some[ends] == shape.end_id
    return right
