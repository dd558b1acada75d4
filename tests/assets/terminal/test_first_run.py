"""What a recipe's first run is estimated to take, from amounts of work and the measured rates."""

from __future__ import annotations

import json

import pytest

from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from assets.state.references import reference_path
from assets.terminal.first_run import UNITS, FirstRun, rates
from resources.profile import load_profile
from training.contract.files.writing import write_sealed


@pytest.fixture
def estimated(tmp_path):
    """A comparison of the kitchen under an empty root, and the estimates for it."""
    recipe = load_recipe("kitchen")
    return compare(recipe, tmp_path), FirstRun(recipe, tmp_path, load_profile("local").size_for)


def put(root, asset, partition, **record):
    """Write a partition's reference, and the part of its artifact's record that is read here."""
    folder = root / asset / ("a" * 32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "artifact.json").write_text(json.dumps(record))
    reference_path(root, asset, partition).parent.mkdir(parents=True, exist_ok=True)
    digests = {"digest": "b" * 64, "record_digest": "c" * 64}
    write_sealed(reference_path(root, asset, partition), {"fingerprint": "a" * 32, **digests})


def test_rates_are_of_assets_and_of_units_that_exist():
    assert rates().keys() <= CHAIN.keys()
    assert all(rate.start > 0 and rate.each >= 0 and (not rate.unit or rate.unit in UNITS) for rate in rates().values())


def test_pages_are_those_of_the_snapshot_or_of_all(estimated, tmp_path):
    comparison, first_run = estimated
    filtered, tokenizer = (
        comparison.cells["filtered_documents", "kitchen@kitchen-1"],
        comparison.cells["tokenizer", "kitchen"],
    )
    assert (first_run.work("pages", filtered), first_run.work("pages", tokenizer)) == (1800, 3600)
    put(tmp_path, "extracted_documents", "kitchen@kitchen-1", counts={"in": 10})
    assert (first_run.work("pages", filtered), first_run.work("pages", tokenizer)) == (10, 1810)


def test_what_other_assets_decide_is_unknown_until_they_are_made(estimated, tmp_path):
    comparison, first_run = estimated
    sft, scores = comparison.cells["sft_model", "kitchen"], comparison.cells["model_scores", "kitchen"]
    assert first_run.seconds(sft) is None and first_run.seconds(scores) is None
    put(tmp_path, "instruction_data", "kitchen", counts={"kept": 100})
    assert first_run.work("weights_times_examples", sft) == 100 * comparison.recipe.sft.epochs * 771_136
    suites = [suite.name for suite in comparison.recipe.evaluation.suites]
    put(tmp_path, "benchmark_index", "kitchen", metrics={f"items_{name}": 5.0 for name in suites})
    assert first_run.work("weights_times_items", scores) == 5 * len(suites) * 3 * 771_136
    assert first_run.seconds(sft) and first_run.seconds(scores)
    # Two models answer at most 64 held-out prompts, and each answer has at most so many tokens.
    rewards = comparison.cells["alignment_rewards", "kitchen"]
    assert first_run.work("weights_times_answers", rewards) is None
    for held_out, judged in ((5, 5), (500, 64)):
        put(tmp_path, "preference_data", "kitchen", metrics={"held_out_pairs": held_out})
        work = FirstRun(comparison.recipe, tmp_path, first_run._size_for).work("weights_times_answers", rewards)
        assert work == 2 * judged * comparison.recipe.align.max_new_tokens * 771_136


def test_other_machines_and_gpus_have_no_rates(estimated, tmp_path):
    comparison, first_run = estimated
    model = comparison.cells["base_model", "kitchen"]
    assert first_run.seconds(model)
    for profile in ("slurm", "h100-1"):
        sizes = load_profile(profile).size_for
        assert FirstRun(comparison.recipe, tmp_path, sizes).seconds(model) is None
