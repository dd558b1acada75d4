"""Token shards: they decode to their documents, and how they were made does not show."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.data import chain
from training.contract.job import DataError, InputArtifact
from training.data.tokens import tokenize
from training.data.tokens.shards import OFFSETS, SIDECAR
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.tokens.tokenizer import HARD_STRINGS, load_tokenizer
from training.data.tokens.tokenizer_settings import TokenizerRecipe

WORDS = "the oven bread flour water salt bake knead warm hour until golden brown crust 180 25 minutes".split()


def texts(number: int, seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randrange(1, 60))) for _ in range(number)]


HARD = [text for text in HARD_STRINGS if text] + ["a <|endoftext|> b <|pad|>", "<|user|>"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> InputArtifact:
    root = tmp_path_factory.mktemp("tokenizer")
    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=400, min_bytes_per_token=1.0)
    source = chain.documents(root, "one", [texts(60)], asset="decontaminated_documents")
    return chain.run(root, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source])


def sharded(
    root: Path, source: InputArtifact, tokenizer: InputArtifact, *, max_tokens: int = 10**8, workers: int = 1
) -> InputArtifact:
    settings = {"shards": ShardsRecipe(max_shard_tokens=max_tokens)}
    inputs = [source, tokenizer]
    return chain.run(root, "tokenize", "token_shards", "tiny@one", settings, inputs, workers=workers)


def listing(item: InputArtifact) -> dict:
    return json.loads(item.file("shards.json").read_text())


def checked(item: InputArtifact, tokenizer: InputArtifact) -> tuple[int, list[str]]:
    """What the gate on decoding finds in the shards as they lie on disk."""
    plain = load_tokenizer(tokenizer.file("tokenizer.json"))
    shape = tokenize._Shape(max_tokens=10**8, vocabulary=400, end_id=0)
    return tokenize.check_decoding(Path(item.path), listing(item)["shards"], plain, shape)


def decoded(item: InputArtifact, tokenizer: InputArtifact) -> list[str]:
    """The texts of all shards, in the listing's order."""
    plain = load_tokenizer(tokenizer.file("tokenizer.json"))
    found = []
    for shard in listing(item)["shards"]:
        tokens = np.fromfile(item.file(shard["path"]), "<u2")
        offsets = np.load(item.file(f"shards/{shard['name']}.offsets.npy"))
        assert offsets[0] == 0 and offsets[-1] == len(tokens) == shard["tokens"]
        for start, end in pairwise(offsets):
            assert tokens[end - 1] == 0 and not (tokens[start : end - 1] < 6).any()
            found.append(plain.decode(tokens[start : end - 1].tolist(), skip_special_tokens=False))
    return found


def test_shards_decode_to_the_documents_special_look_alikes_included(tmp_path, tokenizer):
    files = [texts(10), HARD]
    source = chain.documents(tmp_path, "one", files, asset="decontaminated_documents")
    made = sharded(tmp_path, source, tokenizer)
    assert decoded(made, tokenizer) == files[0] + files[1]
    record, listed = made.record(), listing(made)
    assert record["metrics"]["documents_decoded"] == listed["documents"] == 10 + len(HARD)
    assert listed["tokenizer_digest"] == tokenizer.digest
    vocabulary = load_tokenizer(tokenizer.file("tokenizer.json")).get_vocab_size()
    assert (listed["dtype"], listed["eos_id"], listed["vocab_size"]) == ("uint16", 0, vocabulary)
    assert sum(record["notes"]["encoders"].values()) == 2


def test_the_sidecar_names_each_documents_page(tmp_path, tokenizer):
    source = chain.documents(tmp_path, "one", [texts(3)], asset="decontaminated_documents")
    made = sharded(tmp_path, source, tokenizer)
    sidecar = pq.read_table(made.file("shards/00000.documents.parquet")).to_pylist()
    offsets = np.load(made.file("shards/00000.offsets.npy"))
    for row, document, tokens in zip(sidecar, chain.rows(source), np.diff(offsets), strict=True):
        names = ("id", "url", "snapshot", "warc_file", "warc_offset", "source")
        assert [row[name] for name in names] == [document[name] for name in names]
        assert row["tokens"] == tokens and row["bytes"] == len(document["text"].encode())


def test_a_full_shard_is_followed_by_another_and_no_document_is_cut(tmp_path, tokenizer):
    source = chain.documents(tmp_path, "one", [texts(40)], asset="decontaminated_documents")
    made = sharded(tmp_path, source, tokenizer, max_tokens=200)
    shards = listing(made)["shards"]
    assert [shard["name"] for shard in shards[:2]] == ["00000", "00000-001"] and len(shards) > 4
    assert all(shard["tokens"] <= 200 or shard["documents"] == 1 for shard in shards)
    assert decoded(made, tokenizer) == texts(40)


def test_a_shard_holds_one_source(tmp_path, tokenizer):
    rows = [chain.document("one", "f", i, text, source="ab"[i % 2]) for i, text in enumerate(texts(6))]
    source = chain.documents_of(tmp_path, "one", [rows], asset="decontaminated_documents")
    made = sharded(tmp_path, source, tokenizer)
    for shard in listing(made)["shards"]:
        sidecar = pq.read_table(made.file(f"shards/{shard['name']}.documents.parquet"))
        assert set(sidecar["source"].to_pylist()) == {shard["source"]} and len(sidecar) == 3


BUCKETS = [
    (
        "perplexity",
        pa.field("perplexity_bucket", pa.string()),
        ["tail", None, "head", "tail"],
        ["tail", "unscored", "head", "tail"],
    ),
    ("quality", pa.field("quality_score", pa.float32()), [0.9, 0.1, None, 0.5], ["head", "tail", "unscored", "middle"]),
]


@pytest.mark.parametrize(("buckets", "column", "values", "expected"), BUCKETS)
def test_a_label_is_parted_by_the_quality_of_its_documents(tmp_path, tokenizer, buckets, column, values, expected):
    rows = [
        chain.document("one", "f", i, text) | {column.name: value}
        for i, (text, value) in enumerate(zip(texts(4), values, strict=True))
    ]
    source = chain.documents_of(tmp_path, "one", [rows], asset="decontaminated_documents", extra=(column,))
    settings = {"shards": ShardsRecipe(buckets=buckets)}
    made = chain.run(tmp_path, "tokenize", "token_shards", "tiny@one", settings, [source, tokenizer])
    found = {}
    for shard in listing(made)["shards"]:
        sidecar = pq.read_table(made.file(f"shards/{shard['name']}.documents.parquet"))
        assert set(sidecar["source"].to_pylist()) == {shard["source"]}
        found |= dict.fromkeys(sidecar["id"].to_pylist(), shard["source"])
    assert [found[row["id"]] for row in rows] == [f"web/{bucket}" for bucket in expected]


def test_a_file_without_documents_gives_no_shard(tmp_path, tokenizer):
    source = chain.documents(tmp_path, "one", [[], ["text"]], asset="decontaminated_documents")
    assert [shard["name"] for shard in listing(sharded(tmp_path, source, tokenizer))["shards"]] == ["00001"]


def test_workers_and_encoder_leave_no_trace(tmp_path, tokenizer, monkeypatch):
    files = [texts(50, seed) + HARD for seed in range(3)]
    digests = set()
    for number, workers in enumerate((1, 2)):
        source = chain.documents(tmp_path / str(number), "one", files, asset="decontaminated_documents")
        digests.add(sharded(tmp_path / str(number), source, tokenizer, workers=workers).digest)

    def refused(_path):
        raise tokenize.NotTheFastEncoder("not here")

    monkeypatch.setattr(tokenize, "fast_encoder", refused)
    source = chain.documents(tmp_path / "plain", "one", files, asset="decontaminated_documents")
    made = sharded(tmp_path / "plain", source, tokenizer)
    record = made.record()
    assert record["notes"] == {"encoders": {"tokenizers": 3}, "without_the_fast_encoder": {"not here": 3}}
    assert record["metrics"]["documents_compared"] == 0
    assert digests == {made.digest}


@pytest.mark.parametrize("wrong_from", [0, 250])
def test_an_encoder_that_differs_is_not_used(tmp_path, tokenizer, monkeypatch, wrong_from):
    """In the first batch every text is compared; later a difference that stays is met within fifty texts."""
    reference = tokenize.reference_encoder(load_tokenizer(tokenizer.file("tokenizer.json")))
    seen = 0

    def wrong(batch):
        nonlocal seen
        seen += len(batch)
        found = reference(batch)
        return tokenize.EncodedTexts(found.ids + np.uint32(seen > wrong_from), found.starts)

    monkeypatch.setattr(tokenize, "fast_encoder", lambda _path: wrong)
    monkeypatch.setattr(tokenize, "BATCH_BYTES", 1000)
    source = chain.documents(tmp_path, "one", [texts(400)], asset="decontaminated_documents")
    made = sharded(tmp_path, source, tokenizer)
    notes = made.record()["notes"]
    assert notes["encoders"] == {"tokenizers": 1}
    ((reason, _),) = notes["without_the_fast_encoder"].items()
    assert "differ on" in reason
    assert decoded(made, tokenizer) == texts(400)


def test_documents_are_compared_ever_more_rarely(tmp_path, tokenizer):
    compared = [number for number in range(20_000) if tokenize._is_proved(number)]
    assert compared == [*range(50), *range(50, 2_500, 50), *range(3_000, 20_000, 1_000)]
    source = chain.documents(tmp_path, "one", [texts(120)], asset="decontaminated_documents")
    assert sharded(tmp_path, source, tokenizer).record()["metrics"]["documents_compared"] == 52


def test_an_encoder_that_panics_is_replaced(tmp_path, tokenizer, monkeypatch):
    """gigatoken's panics reach Python as a BaseException of this name."""
    gigatoken = pytest.importorskip("gigatoken")
    panic = type("PanicException", (BaseException,), {})

    def encode_batch(_self, _texts):
        raise panic("index out of bounds")

    monkeypatch.setattr(gigatoken.Tokenizer, "encode_batch", encode_batch)
    source = chain.documents(tmp_path, "one", [texts(5)], asset="decontaminated_documents")
    made = sharded(tmp_path, source, tokenizer)
    assert list(made.record()["notes"]["without_the_fast_encoder"]) == ["gigatoken broke: index out of bounds"]
    assert decoded(made, tokenizer) == texts(5)


def test_any_token_leads_to_its_page_and_its_range_back_to_the_text(tmp_path, tokenizer):
    rows = [
        [chain.document("one", f"f{file}", i, text, source="abba"[i % 4]) for i, text in enumerate(texts(60, file))]
        for file in range(2)
    ]
    pages = {row["url"]: row for some in rows for row in some}
    source = chain.documents_of(tmp_path, "one", rows, asset="decontaminated_documents")
    made = sharded(tmp_path, source, tokenizer, max_tokens=600)
    plain = load_tokenizer(tokenizer.file("tokenizer.json"))
    shards = listing(made)["shards"]
    assert len(shards) > 6 and sum(shard["documents"] for shard in shards) == len(pages)
    for shard in shards:
        base = made.file(shard["path"])
        tokens, offsets = np.fromfile(base, "<u2"), np.load(base.with_name(base.stem + OFFSETS)).tolist()
        rows = pq.read_table(base.with_name(base.stem + SIDECAR)).to_pylist()
        for found, start, end in zip(rows, offsets, offsets[1:], strict=False):
            page = pages.pop(found["url"])
            assert (found["warc_file"], found["warc_offset"]) == (page["warc_file"], page["warc_offset"])
            assert plain.decode(tokens[start : end - 1].tolist(), skip_special_tokens=False) == page["text"]
        assert (offsets[0], offsets[-1], len(rows)) == (0, shard["tokens"], shard["documents"])
    assert not pages


@pytest.mark.parametrize("model", ["wordpiece", "unigram"])
def test_what_gigatoken_refuses_the_reference_encodes_and_the_notes_say_so(tmp_path, model):
    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=400, min_bytes_per_token=1.0, model=model)
    source = chain.documents(tmp_path, "one", [texts(60)], asset="decontaminated_documents")
    tokenizer = chain.run(tmp_path, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source])
    made = sharded(tmp_path, source, tokenizer)
    notes = made.record()["notes"]
    assert notes["encoders"] == {"tokenizers": 1}
    ((reason, files),) = notes["without_the_fast_encoder"].items()
    assert reason.startswith("gigatoken cannot") and files == 1
    assert decoded(made, tokenizer) == texts(60)


def test_gigatoken_is_the_encoder_where_it_is_installed(tmp_path, tokenizer):
    pytest.importorskip("gigatoken")
    source = chain.documents(tmp_path, "one", [texts(5) + HARD], asset="decontaminated_documents")
    assert sharded(tmp_path, source, tokenizer).record()["notes"]["encoders"] == {"gigatoken": 1}


@pytest.mark.parametrize(
    ("token", "found"),
    [
        (7, (5, ["one/file-0.warc.gz/000000000000"])),
        (60_000, (0, ["shards/00000.bin: token 60000 of a vocabulary of 400"])),
    ],
)
def test_a_shard_with_another_token_or_one_beyond_the_vocabulary_fails_the_gate(tmp_path, tokenizer, token, found):
    source = chain.documents(tmp_path, "one", [texts(5)], asset="decontaminated_documents")
    made = sharded(tmp_path, source, tokenizer)
    path = made.file("shards/00000.bin")
    tokens = np.fromfile(path, "<u2")
    assert tokens[1] != token
    tokens[1] = token
    tokens.tofile(path)
    assert checked(made, tokenizer) == found


def test_a_shard_that_was_cut_fails_the_gate(tmp_path, tokenizer):
    source = chain.documents(tmp_path, "one", [texts(5)], asset="decontaminated_documents")
    made = sharded(tmp_path, source, tokenizer)
    path, tokens = made.file("shards/00000.bin"), listing(made)["tokens"]
    path.write_bytes(path.read_bytes()[:-2])
    assert checked(made, tokenizer) == (0, [f"shards/00000.bin: {tokens - 1} tokens, 5 offsets, 5 sidecar rows"])


def test_every_written_shard_with_a_token_beyond_the_vocabulary_fails_the_gate(tmp_path, tokenizer):
    source = chain.documents(tmp_path, "one", [texts(5)] * 3, asset="decontaminated_documents")
    made = sharded(tmp_path, source, tokenizer)
    names = [f"shards/0000{number}.bin" for number in (0, 2)]
    for name in names:
        tokens = np.fromfile(made.file(name), "<u2")
        tokens[1] = 60_000
        tokens.tofile(made.file(name))
    assert checked(made, tokenizer) == (5, [f"{name}: token 60000 of a vocabulary of 400" for name in names])


@pytest.mark.parametrize(("more", "documents"), [(0, 41), (-1, 3)])
def test_beyond_a_number_of_tokens_every_twentieth_document_is_decoded(
    tmp_path, tokenizer, monkeypatch, more, documents
):
    source = chain.documents(tmp_path, "one", [texts(41)], asset="decontaminated_documents")
    made = sharded(tmp_path, source, tokenizer)
    monkeypatch.setattr(tokenize, "DECODED_WHOLE_TOKENS", listing(made)["tokens"] + more)
    assert checked(made, tokenizer) == (documents, [])


def test_gigatoken_reads_slices_of_a_column_in_place(tokenizer):
    """Batches are slices of a row group: they begin in the midst of its bytes, and some are empty."""
    pytest.importorskip("gigatoken")
    path = tokenizer.file("tokenizer.json")
    fast, reference = tokenize.fast_encoder(path), tokenize.reference_encoder(load_tokenizer(path))
    column = pa.array(["", *HARD, "", "日本語", ""])
    for start, end in ((0, len(column)), (3, 7), (len(column) - 1, len(column)), (2, 2)):
        found, expected = fast(column[start:end]), reference(column[start:end])
        assert np.array_equal(found.ids, expected.ids) and np.array_equal(found.starts, expected.starts)


def test_a_text_that_is_not_utf8_is_bad_input():
    broken = pa.StringArray.from_buffers(2, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff"))
    table = pa.table({"text": broken})
    with pytest.raises(DataError, match="not UTF-8"):
        list(tokenize._batches(table))


def test_a_large_vocabulary_takes_four_bytes_a_token():
    assert tokenize._Shape(max_tokens=1, vocabulary=65_536, end_id=0).dtype == np.uint16
    assert tokenize._Shape(max_tokens=1, vocabulary=65_537, end_id=0).dtype == np.uint32
