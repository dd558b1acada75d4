import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.training.data.quality.lines import lines_of
from training.contract.job import DataError
from training.data.quality.arpa import read_arpa, write_arpa
from training.data.quality.perplexity import train

FOLDER = Path(__file__).parent / "arpa"
TEXTS = [
    "the cat sat on the mat\nthe dog sat",
    "a cat ran to the dog, and the dog ran",
    "the mat the cat",
    "b c d e f g the cat",
    "Die Straße führt über 3.50 Hügel\nl’été d'hiver",
]


def arpa_of(model):
    stream = io.StringIO()
    write_arpa(model, stream)
    return stream.getvalue()


def test_kenlms_query_of_the_file_gives_the_models_probabilities():
    # `queried.json` holds what KenLM's own query said of the file beside it: `python -m benchmarks.filters kenlm`
    model = train(TEXTS, order=3)
    assert arpa_of(model) == (FOLDER / "tiny.arpa").read_text("utf-8")
    queried = json.loads((FOLDER / "queried.json").read_text("utf-8"))
    assert len(queried) >= 300
    for text, theirs in queried.items():
        ours = model.log_probabilities(lines_of(text)) / math.log(10)
        np.testing.assert_allclose(ours, theirs, atol=2e-6, rtol=0, err_msg=text)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_a_model_that_is_written_and_read_is_the_same_model(order):
    model = train(TEXTS, order=order)
    text = arpa_of(model)
    entries = text.replace("\t", "  ").splitlines(keepends=True)  # other programs put blanks between the columns
    for lines in (io.StringIO(text), entries):
        read = read_arpa(lines, "a.arpa")
        assert read.vocabulary == model.vocabulary
        for name in ("keys", "log_probability", "log_backoff"):
            for one, other in zip(getattr(read, name), getattr(model, name), strict=True):
                np.testing.assert_array_equal(one, other)


PRUNED = """
\\data\\
ngram 1=5
ngram 2=2

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.5
-0.6\t</s>
-0.5\tcat\t-0.25
-0.4\tthe\t-0.125

\\2-grams:
-0.1\tthe cat
-0.2\t<s> the
\\end\\
"""


def test_a_file_of_another_program_is_read_in_any_order_and_without_every_backoff():
    model = read_arpa(PRUNED.splitlines(keepends=True), "a.arpa")
    asked = [["the", "cat"], ["cat", "xyz"]]
    by_hand = [-0.2, -0.1, -0.25 - 0.6, -0.5 - 0.5, -0.25 - 1.0, -0.6]
    np.testing.assert_allclose(model.log_probabilities(asked) / math.log(10), by_hand, atol=1e-6)
    without = read_arpa(PRUNED.replace("-1.0\t<unk>\n", "").splitlines(), "a.arpa")
    assert without.log_probabilities([["xyz"]])[0] / math.log(10) == pytest.approx(-100.5)


def test_what_is_no_arpa_file_is_refused_with_its_place():
    with pytest.raises(DataError, match=r"a\.arpa: line 7 .*'x"):
        read_arpa(PRUNED.replace("-1.0\t<unk>", "x\t<unk>").splitlines(), "a.arpa")
    with pytest.raises(DataError, match=r"'dog' .* 1-gram"):
        read_arpa(PRUNED.replace("the cat", "the dog").splitlines(), "a.arpa")
    with pytest.raises(DataError, match=r"a 3-gram .* no 2-gram"):
        read_arpa(PRUNED.replace("\\end\\", "\\3-grams:\n-1\tcat cat the\n\\end\\").splitlines(), "a.arpa")
    for text in ("", PRUNED.replace("\\end\\", "")):
        with pytest.raises(DataError, match=r"ends before \\end"):
            read_arpa(text.splitlines(), "a.arpa")


@pytest.mark.parametrize("word", ["\0", "\ud800"])
def test_a_word_that_no_such_file_can_hold_is_refused(word):
    with pytest.raises(DataError, match="ARPA: the word"):
        arpa_of(train([f"a {word} b"], order=2))
