import random

import fasttext
import numpy as np
import pytest

from training.contract.job import DataError
from training.data.words import lid
from training.data.words.language import model_path

TEXTS = [
    "The dough rises for an hour in a warm place before it goes into the oven.",
    "Der Teig geht eine Stunde an einem warmen Ort, bevor er in den Ofen kommt.",
    "生地は温かい場所で一時間寝かせてからオーブンに入れます。",
    "Тесто поднимается час в тёплом месте. 𝒳 ü̈ \x00 e\u0301",
    "x", "</s> hello world", "hello </s> bonjour tout le monde", "__label__en hallo Welt wie geht es",
    "a" * 5000, "if (x == 0) { return foo[bar]; }",
]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return lid.read_model(model_path())


@pytest.fixture(scope="module")
def reference():
    loaded = fasttext.load_model(str(model_path()))

    def predict(line):
        labels, scores = loaded.predict(line, k=1)
        return str(labels[0]).removeprefix("__label__"), float(scores[0])

    return predict


def made_lines(number):
    rng = random.Random(1)
    words = [word for text in TEXTS for word in text.split()]
    signs = "aeinrst äéñøčžαλκадлнйあ的한שא٣ -'0123"
    words += ["".join(rng.choice(signs) for _ in range(rng.randint(1, 12))).strip() or "o" for _ in range(2000)]
    return [" ".join(rng.choice(words) for _ in range(rng.randint(1, 40))) for _ in range(number)]


def test_answers_are_those_of_fasttext(model, reference):
    for line in [*TEXTS, *made_lines(500)]:
        (label, score), (expected, expected_score) = model.predict(line), reference(line)
        assert label == expected and score == pytest.approx(expected_score, abs=2e-5), line


def test_the_plain_path_gives_the_same(model, monkeypatch):
    lines = [*TEXTS[:4], *made_lines(5)]
    compiled = [model.predict(line) for line in lines]
    for name in (
        "sum_of_words",
        "best_leaf",
        "token_hash",
        "_is",
        "_is_label",
        "_row_of",
        "_add_word",
        "_byte",
        "_mixed",
    ):
        monkeypatch.setattr(lid, name, getattr(lid, name).py_func)
    with np.errstate(over="ignore"):
        assert [lid.read_model(model_path()).predict(line) for line in lines] == compiled


def test_words_that_are_kept_change_nothing(model, monkeypatch):
    lines = made_lines(300)
    monkeypatch.setattr(lid, "_KEPT_WORDS", 64)  # starts anew several times a line
    small = lid.read_model(model_path())
    backwards = [small.predict(line) for line in reversed(lines)]
    assert backwards[::-1] == [model.predict(line) for line in lines]


def test_another_file_is_refused_with_its_name(tmp_path):
    whole = model_path().read_bytes()
    for name, data in {
        "cut": whole[:100_000],
        "other": b"\x00" * 200,
        "unsupervised": whole[:40] + b"\x01" + whole[41:],
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(DataError, match=name):
            lid.read_model(path)
