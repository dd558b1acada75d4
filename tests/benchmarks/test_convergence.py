"""The comparison with transformers agrees, and notices when the two do not agree."""

from __future__ import annotations

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


@pytest.mark.data
def test_the_articles_begin_with_their_titles():
    articles = convergence.articles()
    assert len(articles) == 60 and all(article.startswith("=") for article in articles)
