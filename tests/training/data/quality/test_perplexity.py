import math

import numpy as np
import pytest

from tests.training.data.quality.lines import lines_of
from training.contract.job import DataError
from training.data.quality import perplexity
from training.data.quality.perplexity import (
    END_ID,
    MAX_WORDS,
    START_ID,
    UNKNOWN_ID,
    WORD_BITS,
    NgramModel,
    discounts,
    train,
)

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


def test_discounts_follow_the_counts_of_counts():
    counts = np.repeat([1, 2, 3, 4], [8, 4, 2, 1])
    y = 8 / (8 + 2 * 4)
    expected = [0, 1 - 2 * y * 4 / 8, 2 - 3 * y * 2 / 4, 3 - 4 * y * 1 / 2]
    np.testing.assert_allclose(discounts(counts), expected)
    np.testing.assert_array_equal(discounts(np.array([1, 1, 2])), [0, 0.5, 1, 1.5])


@pytest.mark.parametrize("order", [1, 3, 5])
def test_a_text_is_as_likely_as_the_words_of_its_lines(order):
    model = train(TEXTS, order=order)
    for text in [*TEXTS, "the zzz cat\n\n the the dog 1990\r\nsat\u2028on", "zzz"]:
        expected = math.exp(-model.log_probabilities(lines_of(text)).mean())
        assert model.perplexity(text) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_the_kernel_is_the_same_without_the_compiler_and_looks_up_what_the_keys_say(order):
    model = train(TEXTS, order=order)
    lines = [line for text in [*TEXTS, "zzz the cat", "mat mat mat the"] for line in lines_of(text)]
    numbers = np.array([model.vocabulary.get(word, UNKNOWN_ID) for line in lines for word in line], np.int32)
    ends = np.cumsum([len(line) for line in lines])
    plain = np.empty(len(numbers) + len(ends))
    perplexity._descend.py_func(numbers, ends, *model._trie, np.empty((2, order), np.int64), plain)
    np.testing.assert_array_equal(plain, model.log_probabilities(lines))
    assert plain.tolist() == [value for line in lines for value in looked_up(model, line)]


def looked_up(model, line):
    """By the definition: the longest n-gram that the model has, and the backoffs of the contexts before it."""
    rows = [{(): 0}, {(number,): number for number in range(len(model.vocabulary))}]
    for keys in model.keys[1:]:
        known = {row: words for words, row in rows[-1].items()}
        pairs = [(int(key) >> WORD_BITS, int(key) & MAX_WORDS - 1) for key in keys]
        rows.append({(*known[prefix], word): row for row, (prefix, word) in enumerate(pairs)})
    ids = [START_ID, *(model.vocabulary.get(word, UNKNOWN_ID) for word in line), END_ID]
    for place in range(1, len(ids)):
        value = float(model.log_probability[0][ids[place]])
        for k in range(1, model.order):
            context, whole = tuple(ids[max(0, place - k) : place]), tuple(ids[max(0, place - k) : place + 1])
            if place < k:
                break
            if whole in rows[k + 1]:
                value = float(model.log_probability[k][rows[k + 1][whole]])
            elif context in rows[k]:
                value += float(model.log_backoff[k - 1][rows[k][context]])
        yield value
