"""Trainings that end before their budget is used, because held-out text is predicted no better."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from assets.state.chain import CHAIN
from assets.state.recipe_folders import load_recipe
from tests.training.pretrain import tiny
from tests.training.pretrain.watch.looking import SUITES, items_artifact
from training.contract.artifact import find
from training.contract.records import RecipeError, read_record, varied, write_record
from training.contract.running.runner import run_job
from training.contract.scopes import reads
from training.order.ledger import read_ledger
from training.pretrain.optim.average_settings import AverageRecipe
from training.pretrain.state import Position
from training.pretrain.watch.keep_settings import KeepRecipe
from training.pretrain.watch.settings import WatchRecipe
from training.pretrain.watch.stop_settings import Stopping, StopRecipe
from training.stages import STAGES

PLAIN = dataclasses.replace(tiny.PRETRAIN, precision="fp32", optimizer="adamw")
NEVER_LOWER = StopRecipe(patience_tokens=4 * 256, every=2, min_fall=100.0)  # of bits per byte: the first look is best
BITS = "watched_bits_per_byte_cloze"


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"), pretrain=PLAIN)


def made(chain, name, stop, watched=(), **run):
    """The model of a training with this rule; `watched` are the items by which it judges."""
    job = chain.job(name, threads=1, **run)
    settings = job.settings | {"pretrain": write_record(dataclasses.replace(PLAIN, stop=stop))}
    if watched:
        settings["watch"] = write_record(WatchRecipe(every=5, suites=SUITES, items=9))
    job = dataclasses.replace(job, settings=settings, inputs=(*job.inputs, *watched))
    assert run_job(job, STAGES) == 0
    return find(Path(job.output))


def test_a_training_ends_after_its_patience_and_says_why(chain):
    one = made(chain, "ends", NEVER_LOWER, checkpoint_seconds=0.0)
    assert (one.record["metrics"]["steps"], one.record["metrics"]["tokens"]) == (6, 6 * 256)
    said = one.record["notes"]["stopped"]
    assert (said["best_step"], said["step"], said["steps"]) == (2, 6, 12) and said["best_bits"] > said["bits"] > 0
    assert read_ledger(one.path).steps == list(range(6, 12)) and read_ledger(one.path).reasons(6) == {"later"}
    assert "training ends; in 1,024 tokens the loss on held-out text" in (one.path / "messages.jsonl").read_text()
    looks = [json.loads(line) for line in (one.path / "metrics.jsonl").read_text().splitlines()]
    assert {2, 4, 6} <= {row["step"] for row in looks if any(name.startswith("held_out_bits") for name in row)}
    again = made(chain, "ends-again", NEVER_LOWER, read_steps=4)
    assert again.digest == one.digest


def test_a_training_ends_by_the_right_answers_of_a_watched_suite_and_names_it(chain):
    items = items_artifact(chain.root / "watched_items" / "w")
    rule = dataclasses.replace(NEVER_LOWER, suite="cloze")
    one = made(chain, "by-items", rule, (items,), checkpoint_seconds=0.0)
    said, rows = one.record["notes"]["stopped"], (one.path / "metrics.jsonl").read_text().splitlines()
    seen = {row["step"]: row["watched_bits_per_byte_cloze"] for row in map(json.loads, rows) if BITS in row}
    assert (said["suite"], said["best_step"], said["step"], said["steps"]) == ("cloze", 2, 6, 12)
    assert (said["best_bits"], said["bits"]) == (seen[2], seen[6]) and seen[2] > seen[6]
    assert "the loss on the right answers of cloze" in (one.path / "messages.jsonl").read_text()
    assert "watched_items" in {item["asset"] for item in one.record["inputs"]}
    assert one.digest == made(chain, "by-text", NEVER_LOWER).digest  # as it ends after the same step


def test_a_suite_that_decides_is_among_the_inputs_and_one_that_is_watched_is_not():
    kitchen = load_recipe("kitchen")
    watch = {"suites": ("cloze",), "items": 20}
    by_items = varied(kitchen, {"pretrain": {"stop": StopRecipe(patience_tokens=9, suite="cloze"), "watch": watch}})
    asset = CHAIN["base_model"]
    for recipe, inputs, guards in ((kitchen, False, True), (by_items, True, False)):
        read, waited = ({one.asset for one in some if reads(recipe, one)} for some in (asset.inputs, asset.guards))
        assert ("watched_items" in read, "watched_items" in waited) == (inputs, guards)
    for changes, said in (
        ({"suites": ("sums",)}, "pretrain.stop.suite: 'cloze' is not among pretrain.watch.suites (sums)"),
        ({"items": "auto"}, "pretrain.watch.items: auto follows from the profile, and pretrain.stop.suite: cloze lets"),
    ):
        with pytest.raises(RecipeError) as error:
            for check in asset.checks:
                check(varied(by_items, {"pretrain": {"watch": changes}}))
        assert said in str(error.value)


def test_a_rule_that_is_not_met_changes_nothing(chain):
    patient = made(chain, "patient", StopRecipe(patience_tokens=256, every=2))
    plain = made(chain, "plain", StopRecipe())
    assert (patient.digest, patient.record["metrics"]["steps"]) == (plain.digest, 12)
    assert "stopped" not in patient.record["notes"]


def test_a_look_is_the_best_only_if_it_falls_by_enough():
    rule, found = StopRecipe(patience_tokens=100, min_fall=0.1), Stopping()
    for step, bits, waited, best, is_over in [(1, 2.0, 0, 1, False), (2, 1.95, 50, 1, False), (3, 1.8, 90, 3, False)]:
        found.look(step, bits, waited_tokens=waited, recipe=rule)
        assert (found.best_step, found.is_over) == (best, is_over)
    found.look(4, 1.75, waited_tokens=100, recipe=rule)
    assert read_record(Position, write_record(Position(stopping=found))).stopping == found  # as in a checkpoint
    assert found.is_over and (found.best_bits, found.bits) == (1.8, 1.75)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"stop": {"every": 10}},
            "pretrain.stop: every, min_fall and suite are without effect, because patience_",
        ),
        ({"stop": {"suite": "cloze"}}, "pretrain.stop: every, min_fall and suite are without effect"),
        ({"stop": {"patience_tokens": 0}}, "pretrain.stop.patience_tokens=0; at least 1, or null, is right"),
        ({"stop": {"patience_tokens": 1}, "keep": KeepRecipe(steps=(3,))}, "pretrain.stop: not with pretrain.keep"),
        (
            {"stop": {"patience_tokens": 1}, "average": AverageRecipe(kind="uniform")},
            "pretrain.stop: not with pretrain.average.kind: uniform",
        ),
    ],
)
def test_a_rule_without_effect_or_beside_what_needs_all_steps_is_refused(fields, said):
    with pytest.raises(RecipeError) as error:
        dataclasses.replace(PLAIN, **fields | {"stop": StopRecipe(**fields["stop"])})
    assert said in str(error.value)
