"""Where n-grams stand: the compiled loop and the plain path agree, and how texts are cut into batches does not show."""

from __future__ import annotations

import random

import numpy as np
import pytest

from training.data.exams.search.gram_loops import looked_up
from training.data.exams.search.grams import GramTable, column_of
from training.data.words.ngrams import Hashes, ngram_hashes, word_hashes

ODD = "ab é\u0301 ß 日本 ½ don't ＡＢ हिन्दी x_y ’ ﬁ 7".split()


def texts(number: int, seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(ODD, k=generator.randrange(30))) for _ in range(number)]


def table_of(num_words: int, some: list[str], *, more: int = 0) -> GramTable:
    """A table of every second n-gram of the texts, and of `more` that are in none."""
    hashes = np.concatenate([ngram_hashes(word_hashes(text), num_words)[::2] for text in some])
    others = np.random.default_rng(num_words).integers(0, 2**64, more, dtype=np.uint64)
    return GramTable.of(num_words, np.unique(np.concatenate([hashes, others])))


def plainly(words: list[Hashes], table: GramTable) -> list[list[int]]:
    found = []
    for text, hashes in enumerate(words):
        places, rows = table.first_rows(ngram_hashes(hashes, table.num_words))
        found += [[text, place, row] for place, row in zip(places.tolist(), rows.tolist(), strict=True)]
    return found


def compiled(words: list[Hashes], table: GramTable) -> list[list[int]]:
    starts = np.cumsum([0, *map(len, words)])
    return looked_up(np.concatenate([np.empty(0, np.uint64), *words]), starts, table).tolist()


@pytest.mark.parametrize("more", [0, 5000])
@pytest.mark.parametrize("num_words", [1, 2, 5, 13])
def test_the_compiled_loop_finds_what_the_plain_path_finds(num_words, more):
    some = texts(400)
    table = table_of(num_words, some[:60], more=more)
    words = [word_hashes(text) for text in some]
    for part in (words, words[50:150], words[399:], []):
        assert compiled(part, table) == plainly(part, table)
    assert compiled(words, table)
    for text, place, row in compiled(words, table):
        assert table.hashes[row] == ngram_hashes(words[text], num_words)[place]


def test_an_empty_table_has_nothing():
    assert compiled([word_hashes(text) for text in texts(20)], GramTable.of(3, np.empty(0, np.uint64))) == []


def test_more_places_than_the_loop_has_room_for_are_all_found():
    words = [word_hashes("again and " * 9000)]
    table = table_of(2, ["again and again"])
    assert compiled(words, table) == plainly(words, table) and len(compiled(words, table)) == 9000


def test_half_a_surrogate_pair_is_no_word():
    assert column_of(["a \ud800 b"]).to_pylist() == ["a ? b"]
