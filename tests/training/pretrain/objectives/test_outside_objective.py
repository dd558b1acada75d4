"""A pretraining objective from the user's own environment."""

from __future__ import annotations

import numpy as np
import pytest

from tests.examples import load_recipe
from tests.training.pretrain import tiny
from tests.training.pretrain.objectives.test_objectives import EOS, IDS, ROW, VOCABULARY, X, assert_trains_alike
from training.contract.parts.outside import OutsidePart, PartFailed
from training.contract.records import RecipeError, read_record
from training.pretrain.objectives.objective import Objective
from training.pretrain.objectives.settings import ObjectiveRecipe

pytestmark = pytest.mark.usefixtures("examples")

HIDDEN = 37


def recipe_of(place: str, **given) -> ObjectiveRecipe:
    data = {"kind": "mine", "parts": {"mine": {"from": place, **given}}}
    return read_record(ObjectiveRecipe, data, where="pretrain.objective")


def objective_of(recipe: ObjectiveRecipe) -> Objective:
    return Objective(recipe, seed=0, token_ids=IDS | {"<|hidden|>": HIDDEN}, eos_id=EOS, vocab_size=VOCABULARY)


def test_each_document_of_a_row_is_rewritten_by_itself():
    made = objective_of(recipe_of("later_half:objective", hidden=1.0)).batch(tuple(ROW)[:3], step=0, numbers=[0])
    assert made.tokens.tolist() == [[HIDDEN] * 3 + [14, 15, 16, EOS] + [HIDDEN] * 2 + [23, 24]]
    assert made.targets.tolist() == [[X, X, 14, 15, 16, EOS, X, X, 23, 24, 25]]
    assert made.prefix is None and (made.documents == ROW.documents).all()
    assert ROW.tokens[0, 0] == 11  # the rows that were given stay as they were


def test_its_draws_depend_on_the_row_alone():
    tokens = np.arange(4 * 60).reshape(4, 60) % 20 + 1
    rows = (tokens, np.roll(tokens, -1, axis=1), np.zeros_like(tokens))
    objective = objective_of(recipe_of("later_half:objective"))
    together = objective.batch(rows, step=3, numbers=range(8, 12))
    alone = objective.batch(tuple(array[2:3] for array in rows), step=3, numbers=[10])
    assert (together.tokens[2] == alone.tokens[0]).all() and (together.tokens == HIDDEN).any()


REWRITES = """
from training.pretrain.objectives.rewriting import Rewriting
def rewrite(part, draws, vocabulary, settings):
    {does}
objective = Rewriting(rewrite=rewrite)
"""


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("1 / 0", "failed: ZeroDivisionError"),
        ("part.tokens[0] = vocabulary.size", "wrote the token 40; there are 40 tokens"),
        ("part.targets[0] = -1", "wrote the target -1; there are 40 tokens"),
        ("part.documents[0] += 1", "moved a position to another document"),
    ],
)
def test_what_fails_in_an_objective_is_told_under_its_name(write, does, problem):
    module = write(REWRITES.format(does=does))
    objective = objective_of(recipe_of(f"{module}:objective"))
    with pytest.raises(PartFailed, match=f"objective mine {problem}"):
        objective.batch(tuple(ROW)[:3], step=0, numbers=[0])


def test_its_tokens_are_checked_when_the_recipe_is_read(tmp_path):
    path = tmp_path / "mine.yaml"
    own = 'pretrain: {objective: {kind: mine, parts: {mine: {from: "later_half:objective"}}}}\n'
    path.write_text(f"extends: kitchen\nname: mine\n{own}")
    with pytest.raises(RecipeError, match=r"objective mine .*<\|hidden\|>"):
        load_recipe(str(path))
    tokens = [*load_recipe("kitchen").tokenizer.special_tokens, "<|hidden|>"]
    path.write_text(f"extends: kitchen\nname: mine\n{own}tokenizer: {{special_tokens: {tokens}}}\n")
    assert load_recipe(str(path)).pretrain.outside_parts() == {"mine": OutsidePart("later_half:objective")}


def test_a_model_trains_the_same_in_one_pass_and_in_several(tmp_path):
    chain = tiny.TinyChain(tmp_path, special_tokens=("<|hidden|>",))
    assert_trains_alike(chain, recipe_of("later_half:objective"), falls_by=0.3)
