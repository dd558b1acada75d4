"""The comparison with transformers agrees, notices when the two do not agree, and can be resumed.

A stopped run goes on along the same curve.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random

import pytest

from benchmarks import convergence
from benchmarks.rows import BYTES_VOCABULARY, plan_over_texts
from training.pretrain.models.shape import ModelConfig
from training.pretrain.settings import PretrainRecipe

CONFIG = ModelConfig(vocab_size=BYTES_VOCABULARY, width=32, layers=2, heads=4, kv_heads=2, mlp_width=48, max_length=64)
STEPS, ROWS, LENGTH = 12, 4, 32
RECIPE = PretrainRecipe(
    tokens=STEPS * ROWS * LENGTH,
    sequence_length=LENGTH,
    global_batch_tokens=ROWS * LENGTH,
    learning_rate=1e-2,
    precision="fp32",
    zero_init_outputs=False,
)


@pytest.fixture(scope="module")
def rows():
    chance = random.Random(0)
    texts = ["".join(chance.choice("abcdefgh ") for _ in range(chance.randrange(10, 60))) for _ in range(80)]
    return plan_over_texts(texts, steps=STEPS, rows=ROWS, length=LENGTH)


@pytest.fixture(scope="module")
def runs(rows):
    return convergence.both(CONFIG, RECIPE, *rows)


def test_packed_rows_train_to_the_losses_of_transformers(runs):
    own, theirs, _ = runs
    found = convergence.compared(own, theirs)
    assert len(own.losses) == len(theirs.losses) == STEPS and own.losses[-1] < own.losses[0] - 0.5
    assert found.is_equal and max(found.first, found.largest, found.held_out) < 1e-4


def test_another_learning_rate_is_noticed(rows, runs):
    own, _, rates = runs
    other = convergence.hugging_face_run(CONFIG, RECIPE, *rows, rates=[0.7 * rate for rate in rates])
    found = convergence.compared(own, other)
    assert found.first < 1e-4 and not found.is_equal


def test_a_text_run_that_was_stopped_goes_on_along_the_same_curve(tmp_path, monkeypatch, capsys):
    (tmp_path / "text").mkdir()
    chance = random.Random(1)
    text = "".join(chance.choice("to be or not") for _ in range(4000))
    (tmp_path / "text" / "tinyshakespeare.txt.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setenv("PEDIGREE_DATA", str(tmp_path))
    setting = convergence.Setting(
        width=16, layers=1, heads=2, mlp_width=32, length=16, rows=4, steps=6, reference=9.0, warmup_steps=2
    )
    monkeypatch.setitem(convergence.SETTINGS, "tiny", setting)

    def run(name: str, minutes: float) -> list[float]:
        options = argparse.Namespace(
            setting="tiny", folder=tmp_path / name, precision="fp32", every=2, minutes=minutes, seed=0
        )
        assert convergence.shakespeare(options) == 0
        lines = (tmp_path / name / "curve.jsonl").read_text().splitlines()
        return [json.loads(line)["validation_loss"] for line in lines]

    whole = run("whole", 1e9)
    assert run("stopped", 0.0) == whole[:1]  # it looks at the validation text once
    assert run("stopped", 1e9) == whole and len(whole) == 3
    assert "reference 9.0 (met)" in capsys.readouterr().out


@pytest.mark.data
def test_the_articles_begin_with_their_titles():
    articles = convergence.articles()
    assert len(articles) == 60 and all(article.startswith("=") for article in articles)
