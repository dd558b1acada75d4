"""The kept step from whose optimizer state a step is made that is asked for later, and what that takes."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from assets.answers.plan.plan import steps_again
from assets.materialize.before_start import check_continued
from assets.materialize.jobs import job_of, on_the_way_of
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from assets.state.tombstones import Entry, Tombstone, append
from resources.profile import load_profile
from tests.assets.fabricate import make_all, make_each, make_one
from tests.end_to_end.test_forgeries import recommit
from training.contract.artifact import manifest, write_text
from training.contract.job import DataError
from training.contract.records import varied
from training.contract.scopes import KEPT_STEPS, OPTIMIZER_FOLDER
from training.order.batch_settings import ContinueRecipe


def keeping(*steps):
    """The kitchen, with these steps kept."""
    return varied(load_recipe("kitchen"), {"pretrain": {"keep": {"steps": steps}}})


def continued():
    """A recipe with twice the kitchen's tokens that continues it."""
    recipe = load_recipe("kitchen")
    continues = ContinueRecipe(recipe="kitchen", tokens=(recipe.pretrain.tokens,))
    more = {"tokens": 2 * recipe.pretrain.tokens, "continues": continues}
    return varied(recipe, {"name": "longer", "pretrain": more})


STATE = f"{OPTIMIZER_FOLDER}/state"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A root with the base model and its steps 5, 60 and 100, two of them with a state."""
    root = tmp_path_factory.mktemp("root")

    def make(comparison, cell):
        made = make_one(comparison, cell)
        if cell.asset != "kept_steps" or cell.kept_at == 60:
            return made
        write_text(made.path / STATE, cell.partition)
        return recommit(root, made, {**made.record, "beside": manifest(made.path, [STATE])})

    make_each(keeping(5, 60, 100), root, make)
    return root


def test_a_later_step_is_made_from_the_last_state_before_it_and_others_on_its_way(root):
    comparison, size = compare(keeping(3, 7, 60, 100, 120, 150), root), load_profile("local").size_for("kept_steps")
    found = {}
    for step in (3, 7, 120, 150):
        cell = comparison.cells["kept_steps", f"kitchen@step-{step}"]
        begin = job_of(cell, comparison, size).goes_on_from
        found[step] = (begin and begin.partition, [one.kept_at for one in on_the_way_of(cell, comparison)])
    # Of step 5 the recipe says nothing any more, so its state is not looked for.
    assert found == {
        3: (None, []),
        7: (None, [3]),
        120: ("kitchen@step-100", []),
        150: ("kitchen@step-100", [120]),
    }


def test_a_longer_training_goes_on_from_the_last_state_before_the_decay_and_its_plan_says_so(root):
    recipe, size = load_recipe("kitchen"), load_profile("local").size_for("base_model")
    continues = ContinueRecipe(recipe="kitchen", tokens=(recipe.pretrain.tokens,))
    asked = {"tokens": 2 * recipe.pretrain.tokens, "continues": continues}
    found = []
    for changes in ({}, {"learning_rate": 1e-3}, {"continues": ContinueRecipe()}):
        longer = varied(recipe, {"name": "longer", "pretrain": asked | changes})
        comparison = make_each(longer, root, make_one, leave=lambda cell: cell.asset == "base_model")
        cell = comparison.cells["base_model", "longer"]
        begin = job_of(cell, comparison, size).goes_on_from
        found.append((begin and begin.partition, comparison.step_before(cell)))
    assert found == [("kitchen@step-100", 100), (None, 0), (None, 0)]


def test_a_training_that_continues_one_without_a_state_is_not_begun_at_step_0_unasked(root):
    comparison = make_each(continued(), root, make_one, leave=lambda cell: cell.asset == "base_model")
    cell = comparison.cells["base_model", "longer"]
    check_continued(cell, comparison)  # step 100 has a whole state
    gone = replace(comparison, continued=None)
    with pytest.raises(DataError) as error:
        check_continued(cell, gone)
    said = str(error.value)
    assert "continues kitchen, of which no kept step up to 770, where its decay begins, has its optimizer state" in said
    assert "keep: {steps: [770], optimizer: true}" in said and "all 2200 steps trained with --start-anew" in said
    for state in ("outdated", "made"):  # as after a withdrawal
        check_continued(replace(cell, state=state), gone)


def test_a_training_is_not_begun_at_step_0_unasked_where_the_state_of_the_one_that_it_continues_is_damaged(
    root, tmp_path
):
    root = shutil.copytree(root, tmp_path / "root")
    comparison = make_each(continued(), root, make_one, leave=lambda cell: cell.asset == "base_model")
    cell, state = comparison.cells["base_model", "longer"], comparison.continued.artifact.path / STATE
    for damage in (lambda: state.write_text("kitchen@step-1OO"), state.unlink):
        damage()
        with pytest.raises(DataError) as error:
            check_continued(cell, comparison)
        said = str(error.value)
        assert "continues kitchen from the optimizer state of kitchen@step-100, which is damaged" in said
        assert str(state) in said and "put it back from a backup, remove its folder optimizer" in said
        assert "or have all 2200 steps trained with --start-anew" in said
    shutil.rmtree(state.parent)
    assert compare(continued(), root).continued.partition == "kitchen@step-5"  # the earlier one, which is whole


def test_a_withdrawal_reaches_a_training_and_the_one_that_continues_it_and_no_state_is_left(root, tmp_path):
    root, longer = shutil.copytree(root, tmp_path / "root"), continued()
    assert make_all(longer, root).continued is not None
    entry = Entry(entry="=org,example,", touches=(0,))
    append(root, Tombstone(number=1, time="2026-11-23T00:00:00+00:00", reason="asked by its owner", entries=(entry,)))
    for recipe in (keeping(5, 60, 100), longer):
        comparison = compare(recipe, root)
        states = {cell.state for cell in comparison.cells.values() if cell.asset in ("base_model", KEPT_STEPS)}
        assert states == {"outdated"}
    cell = comparison.cells["base_model", "longer"]
    assert comparison.continued is None and comparison.step_before(cell) == 0
    check_continued(cell, comparison)


def test_the_plan_counts_each_way_once_and_from_its_state(root):
    recipe = keeping(3, 5, 7, 100, 120, 150)
    steps = recipe.pretrain.batches.steps
    told = steps_again(compare(recipe, root), KEPT_STEPS, 1.0 * steps)
    assert {partition: seconds for (_, partition), seconds in told.items()} == {
        "kitchen@step-150": 50.0,
        "kitchen@step-120": 0.0,
        "kitchen@step-7": 2.0,
        "kitchen@step-3": 3.0,
    }
