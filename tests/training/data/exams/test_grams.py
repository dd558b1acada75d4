"""Where n-grams occur: compiled loops and plain path agree, and how texts are cut into batches does not show."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from training.data.exams.grams import GramTable, Scanner, column_of, occurrences
from training.data.words.ngrams import ngram_hashes, word_hashes

ODD = "ab é\u0301 ß 日本 ½ don't ＡＢ हिन्दी x_y ’ ﬁ 7".split()


def table_of(num_words: int, texts: list[str], *, more: int = 0) -> GramTable:
    """A table of every second n-gram of the texts, some twice, and of `more` that are in none."""
    hashes = np.concatenate([ngram_hashes(word_hashes(text), num_words)[::2] for text in texts])
    others = np.random.default_rng(num_words).integers(0, 2**64, more, dtype=np.uint64)
    return GramTable.of(num_words, np.sort(np.concatenate([hashes, hashes[::3], others])))


def texts(number: int, seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(ODD, k=generator.randrange(30))) for _ in range(number)]


def scanned(scanner: Scanner, column: pa.StringArray) -> list[tuple[int, list[int], list[list[int]]]]:
    return [(place, hashes.tolist(), found.tolist()) for place, hashes, found in scanner.scan(column)]


@pytest.mark.parametrize("more", [0, 5000])
def test_compiled_loops_find_what_the_plain_path_finds(more):
    some = texts(400)
    tables = [table_of(n, some[:60], more=more) for n in (1, 2, 5, 13)] + [GramTable.of(3, np.empty(0, np.uint64))]
    column = pa.array(some)
    for part in (column, column.slice(50, 100), column.slice(399), column.slice(0, 0)):
        plain = scanned(Scanner(tables, compiled_from_bytes=10**9), part)
        assert scanned(Scanner(tables, compiled_from_bytes=0), part) == plain
    found = scanned(Scanner(tables, compiled_from_bytes=0), column)
    assert {number for _, _, places in found for number, _, _ in places} == {0, 1, 2, 3}


def test_an_occurrence_is_an_ngram_of_the_table_at_its_first_row():
    some = texts(50)
    table = table_of(2, some)
    for text in some:
        runs = ngram_hashes(word_hashes(text), 2)
        found = occurrences(word_hashes(text), [table])
        expected = [place for place, run in enumerate(runs.tolist()) if run in set(table.hashes.tolist())]
        assert found[:, 1].tolist() == expected
        for _, place, row in found.tolist():
            assert table.hashes[row] == runs[place] and (row == 0 or table.hashes[row - 1] != runs[place])


def test_more_occurrences_than_the_loop_has_room_for_are_all_found():
    text = "again and " * 9000
    tables = [table_of(2, ["again and again"]), table_of(1, ["and"])]
    ((_, _, plain),) = scanned(Scanner(tables, compiled_from_bytes=10**9), pa.array([text]))
    ((_, _, compiled),) = scanned(Scanner(tables, compiled_from_bytes=0), pa.array([text]))
    assert compiled == plain and len(plain) > 16_000


def test_batches_and_the_moment_of_the_change_to_compiled_loops_do_not_show():
    some = texts(200)
    tables = [table_of(3, some[:40])]
    whole = scanned(Scanner(tables, compiled_from_bytes=10**9), pa.array(some))
    scanner = Scanner(tables, compiled_from_bytes=2000)
    parts = []
    for start in range(0, 200, 7):
        batch = scanned(scanner, pa.array(some[start : start + 7]))
        parts += [(start + place, hashes, found) for place, hashes, found in batch]
    assert parts == whole


def test_half_a_surrogate_pair_parts_words():
    (text,) = column_of(["one\ud800two three"]).to_pylist()
    assert np.array_equal(word_hashes(text), word_hashes("one\ud800two three"))
