"""The text index of real shards: it finds what a search through the decoded documents finds, and nothing else."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.training.data import chain
from training.contract import artifact
from training.contract.job import InputArtifact, RefusedInput
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.tokens.tokenizer import load_tokenizer
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.provenance.text import build, search
from training.provenance.text.suffixes import suffix_array
from training.provenance.text.texts import rarity_bits, spans_of_text

WORDS = "the oven bread flour water salt bake knead warm hour until golden brown crust".split()
RARE = "Grandmother kept the sourdough in a blue bowl beside the window."


def texts(number: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randrange(1, 60))) for _ in range(number)]


FILES = [[*texts(30, 1), f"First page. {RARE} Then it rose."], [*texts(20, 2), f"A copy: {RARE}"], texts(5, 3)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> InputArtifact:
    root = tmp_path_factory.mktemp("tokenizer")
    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=400, min_bytes_per_token=1.0)
    source = chain.documents(root, "one", FILES, asset="decontaminated_documents")
    return chain.run(root, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source])


def sharded(root: Path, files: list[list[str]], tokenizer: InputArtifact) -> InputArtifact:
    source = chain.documents(root, "one", files, asset="decontaminated_documents")
    settings = {"shards": ShardsRecipe(max_shard_tokens=1_000)}
    return chain.run(root, "tokenize", "token_shards", "tiny@one", settings, [source, tokenizer])


def indexed(root: Path, shards: InputArtifact) -> InputArtifact:
    return chain.run(root, "index_text", "text_index", "tiny@one", {}, [shards])


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokenizer) -> tuple[InputArtifact, InputArtifact]:
    """Shards of three document files, more than one a file, and their index."""
    root = tmp_path_factory.mktemp("made")
    shards = sharded(root, FILES, tokenizer)
    return shards, indexed(root, shards)


def opened(made: tuple[InputArtifact, InputArtifact]) -> list[search.IndexedShard]:
    shards, index = made
    return list(search.open_index(index, shards))


def test_spans_are_those_of_a_plain_search(made, tokenizer):
    vocabulary, shards = load_tokenizer(tokenizer.file("tokenizer.json")), opened(made)
    documents = [shard.tokens[a:b].tolist() for shard in shards for a, b in pairwise(shard.offsets)]
    asked = f"I read, {RARE} golden brown crust until the oven is warm"
    query = vocabulary.encode(asked, add_special_tokens=False).ids
    spans = search.maximal_spans(shards, query)

    def count(wanted: list[int]) -> int:
        return sum(one[at : at + len(wanted)] == wanted for one in documents for at in range(len(one)))

    ends = [max((stop for stop in range(start + 1, len(query) + 1) if count(query[start:stop])), default=0)
            for start in range(len(query))]  # fmt: skip
    wanted = [(start, stop) for start, stop in enumerate(ends) if stop > max([0, *ends[:start]])]
    assert [(span.start, span.stop) for span in spans] == wanted
    assert [span.count for span in spans] == [count(query[span.start : span.stop]) for span in spans]
    longest = max(spans, key=lambda span: span.stop - span.start)
    assert RARE in vocabulary.decode(query[longest.start : longest.stop]) and longest.count == 2


def test_every_occurrence_leads_to_the_document_that_holds_it(made, tokenizer):
    vocabulary, shards = load_tokenizer(tokenizer.file("tokenizer.json")), opened(made)
    query = vocabulary.encode(f" {RARE}", add_special_tokens=False).ids
    (span,) = search.maximal_spans(shards, query)
    found = []
    for place in span.occurrences:
        shard = shards[place.shard]
        start, stop = shard.offsets[place.document : place.document + 2]
        found.append(vocabulary.decode(shard.tokens[start : stop - 1].tolist()))
        begin = int(start) + place.token
        assert shard.tokens[begin : begin + len(query)].tolist() == query
    assert found == [FILES[0][-1], FILES[1][-1]] and (span.start, span.stop) == (0, len(query))
    (first,) = search.maximal_spans(shards, query, most_places=1)
    assert first.count == 2 and first.occurrences == span.occurrences[:1]
    assert search.maximal_spans(shards, query, least=len(query) + 1) == []


def test_no_span_reaches_over_the_end_of_a_document(made, tokenizer):
    vocabulary, shards = load_tokenizer(tokenizer.file("tokenizer.json")), opened(made)
    one, other = (vocabulary.encode(FILES[0][n], add_special_tokens=False).ids for n in (0, 1))
    assert max(span.stop for span in search.maximal_spans(shards, [*one, *other])) == len(one) + len(other)
    assert all(not span.start < len(one) < span.stop for span in search.maximal_spans(shards, [*one, 399, *other]))


def test_an_index_of_other_shards_is_refused(made, tokenizer, tmp_path):
    _, index = made
    other = sharded(tmp_path, FILES[1:], tokenizer)
    with pytest.raises(RefusedInput, match=r"\(.{12}\) .* token_shards .* text_index"):
        opened((other, index))


def test_an_array_that_is_not_sorted_fails_the_gate(made, tmp_path, monkeypatch):
    shards, _ = made

    def unsorted(tokens, num_symbols):
        found = suffix_array(tokens, num_symbols)
        found[[0, 1]] = found[[1, 0]]
        return found

    monkeypatch.setattr(build, "suffix_array", unsorted)
    (gate, *_) = artifact.find(Path(indexed(tmp_path, shards).path)).failed_gates
    assert gate["name"] == "suffixes_sorted" and "places 0 and 1" in str(gate["evidence"])
    monkeypatch.setattr(build, "suffix_array", lambda tokens, num_symbols: np.zeros(len(tokens), np.uint32))
    (gate, *_) = artifact.find(Path(indexed(tmp_path / "again", shards).path)).failed_gates
    assert "position 1 is missing" in str(gate["evidence"])


def test_a_shard_that_stayed_keeps_its_array(made, tokenizer, tmp_path):
    """A withdrawal changes the shards of one document file; the arrays of the others are reused."""
    before = sharded(tmp_path / "a", FILES, tokenizer)
    indexed(tmp_path, before)
    after = sharded(tmp_path / "b", [FILES[0], FILES[1][1:], FILES[2]], tokenizer)
    index = indexed(tmp_path, after)
    kept = {entry["sha256"] for entry in before.files().values() if entry["path"].endswith(".bin")}
    same = [entry["sha256"] in kept for path, entry in after.files().items() if path.endswith(".bin")]
    assert index.record()["reused_ranks"]["ranks"] == sum(same) > 0
    assert json.loads(index.file("text_index.json").read_text())["token_shards"] == after.digest


def test_a_text_is_found_with_its_pages_wherever_its_first_word_stands(made, tokenizer):
    vocabulary, shards = load_tokenizer(tokenizer.file("tokenizer.json")), opened(made)
    for asked, start in ((RARE, 0), (f"Why? {RARE}", 4), (f"{RARE}No", 0)):
        span = max(spans_of_text(asked, vocabulary, shards), key=lambda span: span.tokens)
        assert asked[span.start : span.stop].strip() == RARE and span.start == start
        assert span.count == 2 and [page.row["warc_offset"] for page in span.pages] == [3000, 2000]
    first, copy = span.pages
    assert first.around(vocabulary) == ("First page.", " Then it rose.") and copy.around(vocabulary)[1] == ""
    assert first.row["url"] == "https://example.test/file-0.warc.gz/3000" and first.row["warc_offset"] == 3000
    assert spans_of_text("xyz", vocabulary, shards, least=4) == []


def test_a_text_that_begins_a_document_counts_with_the_one_after_a_space(tokenizer, tmp_path):
    vocabulary = load_tokenizer(tokenizer.file("tokenizer.json"))
    shards = sharded(tmp_path, [[RARE, f"Again: {RARE}"]], tokenizer)
    (span,) = spans_of_text(RARE, vocabulary, opened((shards, indexed(tmp_path, shards))))
    assert (span.start, span.stop, span.count) == (0, len(RARE), 2)
    assert sorted(page.token for page in span.pages) == [0, len(vocabulary.encode("Again:").ids)]


def test_a_span_is_as_rare_as_its_tokens_are(made, tokenizer):
    vocabulary, shards = load_tokenizer(tokenizer.file("tokenizer.json")), opened(made)
    counts = sum(np.bincount(shard.tokens, minlength=400) for shard in shards)
    rare, common = (
        max(spans_of_text(text, vocabulary, shards), key=lambda span: span.tokens)
        for text in (f" {RARE}", f" {' '.join(FILES[0][0].split()[:5])}")
    )
    ids = vocabulary.encode(f" {RARE}", add_special_tokens=False).ids
    assert rare.bits == pytest.approx(-np.log2(counts[ids] / counts.sum()).sum(), abs=1e-3)
    assert rare.bits / rare.tokens > common.bits / common.tokens
    unread = int(np.flatnonzero(counts[: vocabulary.get_vocab_size()] == 0)[0])
    assert rarity_bits([unread], shards) == pytest.approx(np.log2(counts.sum()), abs=1e-3)
