import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.words.repetition import _count, repeated, repeated_native, repeated_words

# Words that are each other's parts, so that equal characters often come from different words.
WORDS = st.lists(st.sampled_from(["a", "aa", "b", "ab", "ba", "é", "\U0001f35e"]), max_size=80)


def test_the_commonest_ngram_counts_with_its_blanks_and_every_time():
    words = "salt and pepper and salt and pepper too".split()
    assert repeated(words)[0] == 2 * len("salt and")  # before `and pepper`, as frequent and longer, as it came first


def test_a_duplicate_ngram_is_jumped_over():
    words = [*"abcde", *"abcde", *"abcde"]
    assert repeated(words)[3] == 10


def test_a_duplicate_is_one_of_characters_not_of_words():
    assert repeated(["ab", "c", "d", "e", "f", "a", "bc", "d", "e", "f"])[3] == 6


@settings(max_examples=150, deadline=None)
@given(WORDS)
def test_the_native_form_gives_the_plain_answers(words):
    assert repeated_words(words) == repeated(words)


def test_the_native_form_gives_the_plain_answers_on_a_long_text():
    pick = random.Random(3)
    phrases = [[pick.choice("salt pepper oil bread the a of and to".split()) for _ in range(12)] for _ in range(60)]
    words = [word for _ in range(150) for word in pick.choice(phrases)]
    assert repeated_words(words) == repeated(words)


def test_a_word_with_a_blank_takes_the_plain_form():
    words = ["EE. UU.", "y", "EE.", "UU. y"] * 5
    assert repeated_words(words) == repeated(words)


@pytest.mark.parametrize("text", ["", "a", "a b", "a b c a b c a b c a b c a b c"])
def test_the_kernel_is_the_same_without_the_compiler(text):
    words = text.split()
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    arguments = (
        np.array([numbers[word] for word in words], np.int32),
        np.array([len(word) for word in numbers], np.int32),
        np.frombuffer("".join(words).encode("utf-32-le"), np.uint32),
    )
    result = np.zeros(9, np.int64)
    with np.errstate(over="ignore"):  # the compiler's numbers wrap around silently
        _count.py_func(*arguments, result)
    assert result.tolist() == repeated_native(*arguments) == repeated(words)
