"""Compiled loops give what the plain paths give."""

from __future__ import annotations

import itertools
import random
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from training.data.dedup import duplicates, minhash
from training.data.dedup import sign as signatures
from training.data.dedup.settings import DedupRecipe
from training.data.documents import utf8_of
from training.data.words import hashes as words
from training.data.words.ngrams import ngram_set, word_hashes

# Letters that fold to several, that join what stands before them, marks that change places, scripts without spaces.
ODD = "abXY'’_- é\u0301\u0323\u0327ßΣςσİıﬁ½Kकि्न日ไิท가각ᄀ\u1161\u11a8\u0300\u093c\u094d😀Жж"


def hashed(texts: list[str]) -> list[list[int]]:
    values, starts = words.hash_words(*utf8_of(pa.array(texts)))
    return [values[start:end].tolist() for start, end in itertools.pairwise(starts)]


def test_words_of_every_length_have_the_hash_of_the_library():
    texts = ["".join(chr(97 + 7 * i % 26) for i in range(length)) for length in range(1, 200)]
    assert hashed(texts) == [[xxhash.xxh3_64_intdigest(text)] for text in texts]


def test_every_character_is_read_as_the_plain_path_reads_it():
    letters = [chr(code) for code in range(0x3200) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]
    letters += random.Random(0).sample(
        [chr(code) for code in range(0xA000, 0x2FA20) if not 0xD800 <= code < 0xE000], 3000
    )
    texts = ["".join(f"a{c}b {c}'{c}" for c in letters[i : i + 40]) for i in range(0, len(letters), 40)]
    texts += ["".join(letters[i : i + 40]) for i in range(0, len(letters), 40)]
    assert hashed(texts) == [word_hashes(text).tolist() for text in texts]


def random_texts(number: int) -> list[str]:
    generator = random.Random(number)
    texts = ["".join(generator.choices(ODD, k=generator.randrange(40))) for _ in range(number)]
    return [*texts, "", "?!", "one", "one two", "w " * 50, " ".join(f"w{i % 7}" for i in range(300))]


def test_odd_texts_are_read_as_the_plain_path_reads_them():
    texts = random_texts(5000)
    assert hashed(texts) == [word_hashes(text).tolist() for text in texts]


@pytest.mark.parametrize("recipe", [DedupRecipe(), DedupRecipe(ngram_words=1, buckets=3, hashes_per_bucket=2)])
def test_signatures_are_those_of_the_plain_path(recipe):
    column = pa.array(random_texts(300))
    for texts in (column, column.slice(7, 100), column.slice(0, 0)):
        plain, compiled = (signatures.sign(texts, recipe, compiled=way).arrays() for way in (False, True))
        for name, expected in plain.items():
            assert np.array_equal(compiled[name], expected) and compiled[name].dtype == expected.dtype


def test_first_similar_rows_are_those_of_the_plain_path():
    generator = random.Random(1)
    bases = [[f"w{generator.randrange(50)}" for _ in range(60)] for _ in range(5)]
    sets = []
    for _ in range(60):
        spelled = list(generator.choice(bases))[: generator.randrange(30, 60)]
        spelled[generator.randrange(len(spelled))] = "x"
        sets.append(ngram_set(" ".join(spelled), 3))
    starts = np.cumsum([0, *map(len, sets)])
    members = np.concatenate([np.sort(np.array(generator.sample(range(60), k=20))) for _ in range(6)])
    begins = np.arange(len(members)) % 20 == 0
    found = []
    for compare in (duplicates.first_similar, minhash.first_similar):
        best, similarity = np.arange(60), np.zeros(60)
        tried = compare(members, begins, members >= 25, np.concatenate(sets), starts, 0.5, best, similarity)
        found.append((tried, best.tolist(), similarity.tolist()))
    assert found[0] == found[1] and sum(row != other for row, other in enumerate(found[0][1])) > 10
