import random
from itertools import pairwise

import pytest

from tests.training.data.quality.lines import lines_of
from training.data.quality import forms
from training.data.quality.forms import FormColumn, Forms, is_line_end, shared_forms, words_of

PARTS = [
    "ΟΔΟΣ",
    "Σ",
    "ΑΣ\u0301",
    "İ",
    "I\u0307",
    "ǅ",
    "ß",
    "٣",
    "12",
    "a'b",
    "’",
    "_",
    " ",
    "\n",
    "\r\n",
    "\x0b",
    "\x1c",
    "\x85",
    "\u2028",
]
"""Characters that lower-casing, cutting and ends of lines may go wrong with."""


def test_words_are_lower_cased_and_digits_share_a_form():
    assert words_of("Don't bake at 180°C, O’Neil!") == ["don't", "bake", "at", "000", "°", "c", ",", "o’neil", "!"]


def words_by_line(known, text):
    formed = known.of(text)
    words = [known.words[number] for number in formed.numbers]
    starts = [0, *formed.line_ends.tolist()]
    assert not words or starts[-1] == len(words)
    return [words[start:end] for start, end in pairwise(starts)]


@pytest.mark.parametrize("seed", range(5))
def test_a_text_has_the_words_of_its_lines(seed):
    known = Forms()
    texts = ["".join(random.Random(100 * seed + number).choices(PARTS, k=30)) for number in range(100)]
    for text in [*texts, *texts]:
        assert words_by_line(known, text) == lines_of(text)


@pytest.mark.parametrize("text", ["", " \n", "\n\n a\n", "a " * 3000, "x" * 100_000 + "\ny", "\ud800 a"])
def test_odd_texts_too(text):
    assert words_by_line(Forms(), text) == lines_of(text)


def test_the_kernel_is_the_same_without_the_compiler():
    known = Forms()
    text = "Salt and\npepper.\n\nSalt\u2028 2nd"
    codes = forms.code_points(text)
    known.of(text)
    chunks, bounds = known._index.find(codes)
    plain = forms._spread.py_func(codes, chunks, bounds, known._cut, known._cut_ends)
    assert plain[0].tolist() == known.of(text).numbers.tolist() == [0, 1, 2, 3, 0, 4, 5]
    assert plain[1].tolist() == known.of(text).line_ends.tolist() == [2, 4, 5, 7]


def test_a_line_ends_where_python_says():
    ends = [bool(is_line_end(code)) for code in range(0x3100)]
    assert ends == [len(f"a{chr(code)}b".splitlines()) == 2 for code in range(0x3100)]


def test_full_forms_are_left_for_new_ones_and_a_column_follows(monkeypatch):
    monkeypatch.setattr(forms, "_SHARED", [Forms()])
    lengths = FormColumn(len, "int64")
    first = shared_forms()
    for text in ("one three", "three fifteen a"):
        numbers = shared_forms().of(text).numbers
        assert lengths.of(shared_forms())[numbers].tolist() == [len(word) for word in text.split()]
    monkeypatch.setattr(forms, "MAX_CHARACTERS", 10)
    second = shared_forms()
    assert second is not first and not second.words
    numbers = second.of("ab abc").numbers
    assert lengths.of(second)[numbers].tolist() == [2, 3]
