"""Where n-grams stand: the compiled loop and the plain path agree, and how texts are cut into batches does not show."""

from __future__ import annotations

import random

import numpy as np
import pytest

from training.data.exams.search.folding import folded_hashes
from training.data.exams.search.gram_loops import are_counters, looked_up, runs_around
from training.data.exams.search.grams import GramTable, around_counters, column_of, is_counter
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


WORDS = "0 007 7 42 9999 ４２ ٤٢ 10000 00042 4a x 1e3 5 a b c d e".split()
COUNTED = [True] * 7 + [False] * 5 + [True] + [False] * 5


def test_counters_are_numbers_of_up_to_four_digits():
    hashes = np.concatenate([folded_hashes(word) for word in WORDS])
    assert is_counter(hashes).tolist() == are_counters(hashes).tolist() == COUNTED
    others = np.random.default_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64)
    assert not are_counters(others).any() and not len(are_counters(hashes[:0]))


@pytest.mark.parametrize("num_words", [2, 4])
def test_runs_around_counters_stay_in_their_text_and_are_the_same_in_the_compiled_loop(num_words):
    generator = random.Random(num_words)
    some = [folded_hashes(" ".join(generator.choices(WORDS, k=number))) for number in (0, 1, 300, 3, 0, 40)]
    hashes, starts = np.concatenate(some), np.cumsum([0, *map(len, some)])
    runs, firsts = around_counters(hashes, starts, is_counter(hashes), num_words)
    others, places = runs_around(hashes, starts, is_counter(hashes), num_words)
    assert runs.tolist() == others.tolist() and firsts.tolist() == places.tolist() and len(runs) > 20
    assert not len(runs_around(hashes[:0], starts[:1], is_counter(hashes[:0]), num_words)[0])


def test_an_empty_table_has_nothing():
    assert compiled([word_hashes(text) for text in texts(20)], GramTable.of(3, np.empty(0, np.uint64))) == []


def test_more_places_than_the_loop_has_room_for_are_all_found():
    words = [word_hashes("again and " * 9000)]
    table = table_of(2, ["again and again"])
    assert compiled(words, table) == plainly(words, table) and len(compiled(words, table)) == 9000


def test_half_a_surrogate_pair_is_no_word():
    assert column_of(["a \ud800 b"]).to_pylist() == ["a ? b"]
