import numpy as np
import pytest

from training.contract.job import DataError
from training.data.quality import classifier
from training.data.quality.classifier import LinearClassifier, area_under_curve, features, train
from training.data.quality.forms import words_of

GOOD = [f"The dough rests for {n} minutes and then bakes slowly in the oven." for n in range(20, 40)]
BAD = [f"Buy cheap pans now best deal {n} click here free shipping sale" for n in range(20, 40)]


def test_it_tells_unseen_texts_apart():
    model = train(GOOD[:15], BAD[:15], buckets=4096)
    assert min(map(model.score, GOOD[15:])) > 0.8
    assert max(map(model.score, BAD[15:])) < 0.2
    assert 0.2 < model.score("zebra quux") < 0.8  # nothing known: near one half


def test_training_twice_gives_the_same_weights():
    one, other = train(GOOD, BAD, buckets=1024), train(GOOD, BAD, buckets=1024)
    np.testing.assert_array_equal(one.weights, other.weights)
    assert one.bias == other.bias


def test_the_sides_weigh_the_same_whatever_their_size():
    model = train(GOOD, BAD[:3], buckets=4096)
    assert model.score(BAD[10]) < 0.5 < model.score(GOOD[10])


def test_a_saved_classifier_scores_the_same(tmp_path):
    model = train(GOOD, BAD, buckets=1024)
    model.save(tmp_path, "classifier")
    assert LinearClassifier.load(tmp_path, "classifier").score(GOOD[0]) == model.score(GOOD[0])


def test_features_have_length_one_and_know_word_order():
    numbers, values = features("salt and pepper and salt", buckets=1 << 20)
    assert len(set(numbers.tolist())) == len(numbers) == 3 + 4  # words, pairs
    assert np.sum(values**2) == pytest.approx(1.0)
    assert set(features("a b", buckets=1 << 20)[0]) != set(features("b a", buckets=1 << 20)[0])
    assert len(features(" ", buckets=16)[0]) == 0


def test_area_under_curve_counts_pairs_and_half_of_ties():
    assert area_under_curve([0.9, 0.8], [0.1, 0.2]) == 1.0
    assert area_under_curve([0.5], [0.5]) == 0.5
    assert area_under_curve([0.9, 0.3], [0.1, 0.5]) == 0.75


def test_one_side_alone_is_refused():
    with pytest.raises(DataError, match="0 negatives"):
        train(GOOD, [], buckets=16)


@pytest.mark.parametrize(
    "text",
    [
        "ab " * 900 + " " * 30000 + "Σας İx " * 4000,
        "a" * 50000 + " b",
        "x\n" * 3000,
        "wörd\u00a0" * 5000,
        "one two",
        "",
    ],
    ids=["gap", "long word", "lines", "other space", "short", "empty"],
)
def test_the_first_words_of_a_long_text_decide(text):
    first = " ".join(words_of(text)[: classifier.MAX_WORDS])
    for whole, part in zip(features(text, buckets=1 << 16), features(first, buckets=1 << 16), strict=True):
        np.testing.assert_array_equal(whole, part)


def test_the_kernels_are_the_same_without_the_compiler():
    columns, values, ends = np.array([0, 2, 1, 2], np.int32), np.array([0.5, 0.25, 1.0, 2.0]), np.array([2, 2, 4])
    weights, errors = np.array([1.0, 10.0, 100.0]), np.array([1.0, 7.0, -1.0])
    products = classifier._products.py_func(weights, columns, values, ends)
    assert products.tolist() == classifier._products(weights, columns, values, ends).tolist() == [25.5, 0.0, 210.0]
    sums = classifier._sums.py_func(errors, columns, values, ends, 3)
    assert sums.tolist() == classifier._sums(errors, columns, values, ends, 3).tolist() == [0.5, -1.0, -1.75]


def test_training_is_gradient_descent_on_both_sides():
    # the gradient at the end, by hand over every bucket: none is left to speak of
    model = train(GOOD, BAD, buckets=256)
    weights = model.weights.astype(np.float64)
    gradient = classifier.PENALTY * weights
    for texts, label in ((GOOD, 1.0), (BAD, 0.0)):
        for text in texts:
            numbers, values = features(text, buckets=256)
            gradient[numbers] += (model.score(text) - label) * values * 0.5 / len(texts)
    start = np.abs(gradient_at_zero()).max()
    assert np.abs(gradient).max() < 0.02 * start


def gradient_at_zero():
    gradient = np.zeros(256)
    for texts, label in ((GOOD, 1.0), (BAD, 0.0)):
        for text in texts:
            numbers, values = features(text, buckets=256)
            gradient[numbers] += (0.5 - label) * values * 0.5 / len(texts)
    return gradient
