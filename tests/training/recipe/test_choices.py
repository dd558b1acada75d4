"""A name that no code knows is refused where it is used; nothing else is done in its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from training.contract.records import RecipeError
from training.data.extract.pages import html
from training.data.extract.settings import ExtractRecipe
from training.data.tokens import tokenizer
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.pretrain.models.rotary import rotary_frequencies
from training.pretrain.models.shape import RotaryScaling
from training.pretrain.objectives.objective import Objective
from training.pretrain.objectives.settings import ObjectiveRecipe
from training.pretrain.optim.average_settings import AverageRecipe
from training.pretrain.optim.averages import average_share
from training.pretrain.optim.schedule import learning_rate_factor

UNKNOWN = "of_next_year"


def as_if_allowed(record: Any, field: str) -> Any:
    """A record with a name that reading a recipe would refuse."""
    copied = replace(record)
    object.__setattr__(copied, field, UNKNOWN)
    return copied


def test_an_extractor():
    settings = as_if_allowed(ExtractRecipe(), "extractor")
    with pytest.raises(RecipeError, match=UNKNOWN):
        html.extract_html(b"<p>Some words that make a page of text.</p>", content_type="text/html", settings=settings)


def test_a_kind_of_vocabulary():
    recipe = as_if_allowed(TokenizerRecipe(snapshots=("one",), vocabulary=300), "model")
    with pytest.raises(KeyError, match=UNKNOWN):
        tokenizer.train(["some words"], recipe)


def test_an_objective():
    recipe = as_if_allowed(ObjectiveRecipe(kind="prefix"), "kind")
    with pytest.raises(RecipeError, match=UNKNOWN):
        Objective(recipe, seed=0, token_ids={}, eos_id=0, vocab_size=300)


def test_a_scaling_of_rotations():
    with pytest.raises(AssertionError, match=UNKNOWN):
        rotary_frequencies(head_width=8, theta=10_000.0, scaling=as_if_allowed(RotaryScaling(), "kind"))


def test_a_schedule():
    with pytest.raises(AssertionError, match=UNKNOWN):
        learning_rate_factor(9, steps=10, schedule=UNKNOWN, warmup_fraction=0.0, decay_fraction=0.1, final_fraction=0.1)


def test_a_mean_of_the_weights():
    with pytest.raises(AssertionError, match=UNKNOWN):
        average_share(0, steps=10, recipe=as_if_allowed(AverageRecipe(), "kind"))
