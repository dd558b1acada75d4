"""The probe: its regression against scikit-learn's, its split, and the kitchen's texts by their source."""

from __future__ import annotations

import json
from collections import Counter

import pytest

pytest.importorskip("torch")

import torch

from evaluation.exams.objectives.decoder import OwnModel
from evaluation.exams.objectives.probe import mean_states, predicted, probed, read_labelled, split
from training.contract.job import DataError
from training.data.sources import read_rows

KITCHEN = {"seed": 3, "dishes": 16, "tested_per_value": 1, "tested_sums": 64, "pages": 100, "files": 1}


@pytest.fixture(scope="module")
def model(own_folder) -> OwnModel:
    return OwnModel(own_folder / "model")


def test_the_regression_predicts_what_that_of_scikit_learn_does():
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    draw = torch.Generator().manual_seed(0)
    features, labels = torch.randn(160, 12, generator=draw, dtype=torch.float64), torch.arange(160) % 3
    features[:, 0] += labels
    features[:, 3] = 4.0  # without a deviation
    scaler = StandardScaler().fit(features[:80])
    reference = LogisticRegression(C=1.0, max_iter=2000, tol=1e-8).fit(scaler.transform(features[:80]), labels[:80])
    own = predicted(features[:80], labels[:80], features[80:])
    assert own.tolist() == reference.predict(scaler.transform(features[80:])).tolist()
    assert 0.4 < (own == labels[80:]).double().mean() < 1


def test_half_of_each_label_is_learned_from_and_a_small_or_single_label_is_refused():
    labels = ["a"] * 20 + ["b"] * 9
    learned, asked = split(labels)
    assert sorted(learned + asked) == list(range(29)) and split(labels) == (learned, asked)
    assert Counter(labels[n] for n in learned) == {"a": 10, "b": 4}
    with pytest.raises(DataError, match="'b' has 7 texts, and each label needs 8"):
        split(["a"] * 20 + ["b"] * 7)
    with pytest.raises(DataError, match="1 label, and two are needed"):
        split(["a"] * 20)


def test_the_states_tell_the_source_of_the_kitchens_texts_and_not_a_shuffled_one(model):
    rows = [
        (row["query"], name)
        for name in ("cloze", "sums")
        for row in read_rows(f"kitchen://{name}", settings={"kitchen": KITCHEN})
    ]
    texts, labels = map(list, zip(*rows, strict=True))
    told = probed(model, texts, labels, is_causal=False)
    assert told["accuracy"]["interval"][0] > told["chance"] and told["labels"] == 2
    shuffled = [labels[(37 * number) % len(labels)] for number in range(len(labels))]
    told = probed(model, texts, shuffled, is_causal=False)
    assert told["accuracy"]["interval"][0] < told["chance"]


def test_the_mean_of_a_long_text_is_over_all_of_its_tokens(model):
    short, long = "a bee sees", "a bee sees the sea " * 20
    assert len(model.windows([long])) > 1
    alone, both = mean_states(model, [long], is_causal=False), mean_states(model, [short, long], is_causal=False)
    assert torch.allclose(alone[0], both[1], atol=1e-5)
    assert not torch.allclose(mean_states(model, [short], is_causal=True)[0], both[0], atol=1e-3)


def test_a_row_without_a_label_is_named(tmp_path):
    path = tmp_path / "labelled.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ({"text": "one", "label": 0}, {"text": "two"})))
    with pytest.raises(DataError, match=r"row 1 needs `text` and `label`; it has text"):
        read_labelled(str(path), {})
