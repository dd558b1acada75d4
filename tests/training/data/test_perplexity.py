import math
import random

import numpy as np
import pytest

from training.data.perplexity import (
    END_ID,
    START_ID,
    UNKNOWN_ID,
    NgramModel,
    _encode,
    discounts,
    lines_of,
    train,
    words_of,
)
from training.job import DataError

TEXTS = [
    "the cat sat on the mat\nthe dog sat",
    "a cat ran to the dog",
    "the mat the cat",
    "b c d e f g the cat",
]


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "context", [[], ["the"], ["the", "cat"], ["zzz"], ["the", "zzz"], ["sat", "on"], ["cat", "the"]]
)
def test_probabilities_of_all_next_words_add_up_to_one(order, context):
    model = train(TEXTS, order=order)
    total = math.exp(model.log_probabilities([context])[len(context)])  # the line's end
    for word in model.vocabulary:
        if word not in ("<s>", "</s>"):
            asked = "unheard" if word == "<unk>" else word
            total += math.exp(model.log_probabilities([[*context, asked]])[len(context)])
    assert total == pytest.approx(1.0, abs=1e-6)


def test_kneser_ney_by_hand():
    # "a b" and "c b": order 2, all discounts the fallback 0.5, since no pair is seen twice.
    model = train(["a b", "c b"], order=2)
    # Unigrams count left neighbours: a 1, b 2 (a, c), c 1, </s> 1; discounts 0.5 and 1; uniform over 5 (with <unk>).
    left_over = (0.5 + 1.0 + 0.5 + 0.5) / 5
    b = (2 - 1.0) / 5 + left_over / 5
    after_a = (1 - 0.5) / 1 + 0.5 * b
    assert model.log_probabilities([["a", "b"]])[1] == pytest.approx(math.log(after_a), abs=1e-6)


def test_a_known_order_is_less_surprising_than_a_shuffled_one_and_that_than_unknown_words():
    model = train(TEXTS, order=3)
    known, shuffled, unknown = map(model.perplexity, ("the cat sat on the mat", "mat the on sat cat", "xx yy zz"))
    assert known < shuffled < unknown


def test_the_order_of_texts_does_not_matter():
    one, other = train(TEXTS, order=3), train(TEXTS[::-1], order=3)
    assert one.vocabulary == other.vocabulary
    for name in ("keys", "log_probability", "log_backoff"):
        for left, right in zip(getattr(one, name), getattr(other, name), strict=True):
            np.testing.assert_array_equal(left, right)


def test_a_saved_model_answers_the_same(tmp_path):
    model = train(TEXTS, order=3)
    model.save(tmp_path, "ngram")
    assert NgramModel.load(tmp_path, "ngram").perplexity("the dog sat on a mat") == model.perplexity(
        "the dog sat on a mat"
    )


def test_texts_without_words():
    assert train(TEXTS, order=2).perplexity(" \n ") == float("inf")
    with pytest.raises(DataError, match="no word"):
        train([" ", "\n"], order=2)


def test_words_are_lower_cased_and_digits_share_a_form():
    assert words_of("Don't bake at 180°C, O’Neil!") == ["don't", "bake", "at", "000", "°", "c", ",", "o’neil", "!"]


def test_discounts_follow_the_counts_of_counts():
    counts = np.repeat([1, 2, 3, 4], [8, 4, 2, 1])
    y = 8 / (8 + 2 * 4)
    expected = [0, 1 - 2 * y * 4 / 8, 2 - 3 * y * 2 / 4, 3 - 4 * y * 1 / 2]
    np.testing.assert_allclose(discounts(counts), expected)
    np.testing.assert_array_equal(discounts(np.array([1, 1, 2])), [0, 0.5, 1, 1.5])


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


@pytest.mark.parametrize("seed", range(5))
def test_a_text_has_the_words_of_its_lines(seed):
    texts = ["".join(random.Random(100 * seed + number).choices(PARTS, k=30)) for number in range(100)]
    for text in texts:
        assert lines_of(text) == [words for line in text.splitlines() if (words := words_of(line))]


def test_lines_are_encoded_word_by_word_with_their_ends():
    vocabulary = {"a": 7, "b": 8}
    assert _encode([["a", "c", "b"], [], ["b"]], vocabulary).tolist() == [
        *(START_ID, 7, UNKNOWN_ID, 8, END_ID),
        *(START_ID, END_ID),
        *(START_ID, 8, END_ID),
    ]
