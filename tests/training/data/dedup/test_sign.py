"""Signatures: words, n-grams, MinHash keys."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from tests.training.data import chain
from training.data.dedup import sign as signatures
from training.data.dedup.settings import DedupRecipe
from training.data.documents import document_files, open_documents
from training.data.words.ngrams import jaccard, ngram_set, word_hashes, words, words_with_spans


def test_words_are_equal_whatever_their_case_punctuation_and_unicode_form():
    assert words("Don't stop, Café!") == words("DON’T… stop cafe\u0301") == ["dont", "stop", "café"]


def test_scripts_without_spaces_give_one_word_a_character():
    assert words("日本語 and ไทย") == ["日", "本", "語", "and", "ไ", "ท", "ย"]


def test_vowel_signs_stay_in_their_word():
    assert words("हिन्दी भाषा") == ["हिन्दी", "भाषा"]


@pytest.mark.parametrize("text", ["plain ASCII, snake_case text", "naïve ½ İstanbul ﬁne 日本 हिन्दी"])
def test_a_word_has_one_hash_whether_or_not_its_place_is_asked_for(text):
    hashes, spans = words_with_spans(text)
    assert np.array_equal(hashes, word_hashes(text))
    assert [words(text[start:end])[0] for start, end in spans] == words(text)


def test_ascii_and_other_text_give_the_same_words():
    assert np.array_equal(word_hashes("one two_three 4"), word_hashes("one two_three 4 é")[:-1])


def test_similarity_is_that_of_the_sets_of_ngrams():
    # Of seven 5-grams each six are shared: similarity 6/8, not above 0.8.
    left = ngram_set("The cook's oven must be hot before the bread goes in", 5)
    right = ngram_set("The cook's oven must be hot before the bread goes out", 5)
    both = set(left.tolist()) & set(right.tolist())
    assert (len(left), len(right), len(both)) == (7, 7, 6)
    assert jaccard(left, right) == 0.75


def test_a_text_shorter_than_an_ngram_is_one_ngram_and_an_empty_one_has_none():
    assert len(ngram_set("three short words", 5)) == 1
    assert len(ngram_set("… !", 5)) == 0
    assert jaccard(ngram_set("", 5), ngram_set("", 5)) == 0


def test_keys_collide_as_often_as_the_theory_says():
    """P(at least one shared key) = 1 - (1 - s^8)^14 for sets of similarity s."""
    generator = np.random.default_rng(0)
    for shared, expected in ((500, 0.11), (750, 0.93)):  # of 1,000 in the union of two sets
        hits = 0
        for _ in range(200):
            union = generator.integers(1, 2**63, 1000, dtype=np.uint64)
            rest = (1000 - shared) // 2
            left, right = (
                np.unique(union[: shared + rest]),
                np.unique(np.concatenate([union[:shared], union[shared + rest :]])),
            )
            keys = [signatures.band_keys(ngrams, buckets=14, hashes_per_bucket=8) for ngrams in (left, right)]
            hits += bool((keys[0] == keys[1]).any())
        similarity = shared / 1000
        theory = 1 - (1 - similarity**8) ** 14
        assert abs(theory - expected) < 0.16  # the figure in the test is the right one
        assert abs(hits / 200 - theory) < 0.1


def test_signing_does_not_depend_on_block_size(monkeypatch):
    ngrams = np.unique(np.random.default_rng(1).integers(1, 2**63, 3000, dtype=np.uint64))
    whole = signatures.band_keys(ngrams, buckets=4, hashes_per_bucket=3)
    monkeypatch.setattr(signatures, "BLOCK", 7)
    assert np.array_equal(whole, signatures.band_keys(ngrams, buckets=4, hashes_per_bucket=3))


def test_signatures_stand_row_for_row_beside_the_documents(tmp_path):
    texts = [" ".join(random.Random(i).choices("abcdefgh", k=40)) for i in range(5)] + ["", "same words", "same words"]
    source = chain.documents(tmp_path, "one", [texts[:3], texts[3:]])
    made = chain.run(tmp_path, "sign", "document_signatures", "tiny@one", {"dedup": DedupRecipe()}, [source])
    files = [made.file(f"signatures/{rank:05d}.safetensors") for rank in range(2)]
    expected = signatures.sign(pa.array(texts), DedupRecipe(), compiled=False)
    for name in ("text", "ngrams", "count"):
        read = np.concatenate([signatures.load(path)[name] for path in files])
        assert np.array_equal(read, getattr(expected, name))
    for bucket in range(14):
        read = np.concatenate([signatures.load(path)["bands"][bucket] for path in files])
        assert np.array_equal(read, expected.bands[bucket])
    assert expected.count[5] == 0 and expected.text[6].tolist() == expected.text[7].tolist()


def test_pages_have_one_digest_if_their_urls_have_one_key():
    same = [
        "http://www.Example.test:80/a/?q=1&p=2#top",
        "https://example.test/a?p=2&q=1",
        "https://EXAMPLE.test:443/%61?q=1&p=2",
    ]
    others = ["https://example.test/A?p=2&q=1", "https://example.test:8080/a?p=2&q=1", "no url", "http://[broken"]
    digests = signatures.url_digests([*same, *others, None])
    assert len({tuple(row) for row in digests.tolist()}) == 1 + len(others) + 1 and not digests[-1].any()
    assert len({tuple(row) for row in digests[: len(same)].tolist()}) == 1


def test_two_workers_sign_the_same_bytes(tmp_path):
    texts = [[f"document {i} of file {j} has its own words" for i in range(4)] for j in range(3)]
    source = chain.documents(tmp_path, "one", texts)
    digests = {
        chain.run(
            tmp_path / str(n), "sign", "document_signatures", "tiny@one", {"dedup": DedupRecipe()}, [source], workers=n
        ).digest
        for n in (1, 2)
    }
    assert len(digests) == 1


def test_a_process_of_many_small_files_uses_the_compiled_loops_once_it_has_seen_enough_text(tmp_path, monkeypatch):
    texts = [[f"file {file} has so many words that are not those of another file"] for file in range(3)]
    source = chain.documents(tmp_path, "one", texts)
    paths = list(document_files(source))
    with open_documents(paths[0]) as parquet:
        monkeypatch.setattr(signatures, "COMPILED_FROM_BYTES", 2 * signatures.num_text_bytes(parquet))
    monkeypatch.setattr(signatures, "_seen_bytes", 0)
    ways = []
    monkeypatch.setattr(signatures, "sign", noting(signatures.sign, ways))
    for path in paths:
        signatures.sign_file(path, DedupRecipe())
    assert ways == [False, True, True]


def noting(sign, ways):
    def noted(texts, recipe, *, compiled):
        ways.extend([compiled] * len(texts))
        return sign(texts, recipe, compiled=False)

    return noted
