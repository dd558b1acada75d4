"""Steps of the small kitchen's base model that stay, kept by a run that was killed and used by the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from assets.state.recipe_folders import SHIPPED, load_recipe
from resources.profile import load_profile
from resources.tracking.registry import CANDIDATE, CHAMPION, PREVIOUS, Registry
from resources.tracking.reports import Tracking
from tests.assets.fabricate import point_to_shared
from tests.end_to_end.test_forgeries import noted, recommit
from tests.small_kitchen import COMMAND, RECIPES, linked_copy, pedigree
from training.contract.artifact import Artifact, find

SHORT = "seed: 2, tokens: 40960, min_loss_fall: 0.0"  # ten steps
NAME = "kept"


def ask(root: Path, keep: str, training: str = SHORT, more: str = "") -> None:
    """Write the recipe into the root, with these kept steps and `more`, and point it to what is made already."""
    own = ", ".join(filter(None, (training, f"keep: {keep}")))
    (root / "recipes").mkdir(exist_ok=True)
    text = f"extends: kitchen-small\nname: {NAME}\npretrain: {{{own}}}\npromote: {{model_name: {NAME}}}\n"
    text += more
    (root / "recipes" / f"{NAME}.yaml").write_text(text)
    point_to_shared(load_recipe(NAME, folders=(root / "recipes", RECIPES, SHIPPED)), root)


def steps_in(root: Path) -> dict[str, Artifact]:
    """Return the kept steps under a root by partition."""
    found = [find(path) for path in (root / "kept_steps").glob("[0-9a-f]*")]
    return {one.record["partition"]: one for one in found if one is not None}


@pytest.fixture(scope="module")
def kept(first, untouched, tmp_path_factory):
    """A root in which a run of the recipe was killed when its first step stayed, and run again."""
    root = linked_copy(untouched, tmp_path_factory.mktemp("kept") / "root")
    ask(root, "{steps: [2, 5]}")
    argv = [*COMMAND, "run", NAME, "--until", "kept_steps", "--root", str(root), "--json"]
    variables = {**os.environ, "PEDIGREE_RECIPES": str(RECIPES)}
    with subprocess.Popen(argv, env=variables, stdout=subprocess.DEVNULL, start_new_session=True) as run:
        while not steps_in(root) and run.poll() is None:
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGKILL)
    before = steps_in(root)
    assert pedigree("run", NAME, "--until", "kept_steps", root=root).code == 0
    assert before and all(steps_in(root)[name].record == one.record for name, one in before.items())
    return root


def test_a_killed_run_keeps_each_step_once_and_each_is_in_the_stores(kept):
    states = pedigree("status", NAME, root=kept).answer["assets"]["kept_steps"]
    assert {partition: one["state"] for partition, one in states.items()} == {
        f"{NAME}@step-2": "made",
        f"{NAME}@step-5": "made",
    }
    assert steps_in(kept).keys() == {f"{NAME}@step-2", f"{NAME}@step-5"}
    assert not list(kept.glob("kept_steps/*/scratch"))
    again = pedigree("run", NAME, "--until", "kept_steps", root=kept)
    assert again.code == 0 and "neither Dagster nor MLflow" not in again.errors


def test_a_step_is_compared_and_traced_by_its_name_and_does_not_chat(kept):
    told = pedigree("compare", f"{NAME}@step-2", f"{NAME}@step-5", root=kept)
    assert told.code == 0, told.errors
    assert f"{NAME}@step-2 was not scored" in told.answer["not_compared"]
    last = pedigree("trace", f"{NAME}@step-2", "--step", "1", root=kept).answer
    later = pedigree("trace", f"{NAME}@step-2", "--step", "2", root=kept).answer
    assert (last["training"], last["trained"], later["trained"]) == ("kept_steps", True, False)
    chat = pedigree("chat", f"{NAME}@step-5", "--prompt", "hello", root=kept)
    assert chat.code == 2 and "a base model completes text" in chat.errors, chat.errors
    unknown = pedigree("trace", f"{NAME}@step-3", "--step", "1", root=kept)
    assert unknown.code == 2 and f"{NAME} keeps no step-3 (pretrain.keep)" in unknown.errors


def test_steps_are_scored_and_compared_item_by_item_without_the_models_after_them(kept):
    scored = pedigree("run", NAME, "--until", "learning_curves", root=kept)
    assert scored.code == 0, scored.errors
    assert set(scored.answer["assets"]["step_scores"]) == {f"{NAME}@step-2", f"{NAME}@step-5"}
    assert "sft_model" not in scored.answer["assets"]
    told = pedigree("compare", f"{NAME}@step-2", f"{NAME}@step-5", root=kept).answer
    against = {row["suite"]: row["sides"][1]["against"] for row in told["scores"]}
    assert set(against) == {"cloze", "sums", "questions", "chat"} and told["not_compared"] == []
    scores = json.loads(next(kept.glob("step_scores/*/scores.json")).read_text())["base"]
    assert {suite: one["items"] for suite, one in against.items()} == {name: one["n"] for name, one in scores.items()}


def test_trace_and_takedown_name_the_steps_that_had_read_a_page_and_the_last_clean_one(kept):
    documents = pedigree("trace", NAME, "--step", "3", root=kept).answer["documents"]
    page = next(one["id"] for one in documents)
    told = pedigree("trace", NAME, "--document", page, root=kept).answer
    (seen,) = (one for one in told["pages"][0]["seen"] if one["training"] == "base_model")
    read = [one["step"] for one in seen["steps"]]
    expected = {f"{NAME}@step-{step}": any(one < step for one in read) for step in (2, 5)}
    assert expected[f"{NAME}@step-5"] and {one["partition"]: one["read"] for one in told["kept_steps"]} == expected
    clean = None if expected[f"{NAME}@step-2"] else f"{NAME}@step-2"
    assert told["last_clean"] == {NAME: clean}
    asked = pedigree("takedown", "--document", page, "--reason", "a test", "--dry-run", root=kept)
    assert asked.code == 0, asked.errors
    assert {one["partition"]: one["read"] for one in asked.answer["kept_steps"]} == expected
    assert asked.answer["last_clean"] == {NAME: clean}


def test_a_step_is_registered_without_an_alias_and_no_command_promotes_it(kept):
    told = pedigree("register", f"{NAME}@step-2", root=kept)
    assert (told.code, told.answer["model_name"], told.answer["moved"]) == (0, NAME, True), told.errors
    again = pedigree("register", f"{NAME}@step-2", root=kept).answer
    assert (again["version"], again["moved"]) == (told.answer["version"], False)
    registry = Registry(Tracking(load_profile("local").tracker, kept), NAME)
    version = registry.version_of(steps_in(kept)[f"{NAME}@step-2"].digest)
    assert version is not None and version.tags["kept"] == "after step 2"
    assert [registry.holder(alias) for alias in (CHAMPION, PREVIOUS, CANDIDATE)] == [None] * 3
    assert pedigree("promote", f"{NAME}@step-2", "--reason", "I like it", root=kept).code == 2
    assert pedigree("rollback", NAME, root=kept).code == 2
    assert pedigree("register", NAME, root=kept).code == 2
    traced = pedigree("trace", f"{NAME}/{version.version}", "--step", "1", root=kept).answer
    assert (traced["training"], traced["trained"]) == ("kept_steps", True)


@pytest.mark.parametrize("asset", ["kept_steps", "training_plan"])
def test_a_step_whose_record_or_plan_is_forged_is_not_registered(kept, tmp_path, asset):
    root = linked_copy(kept, tmp_path / "root")
    step = steps_in(root)[f"{NAME}@step-5"]
    names = {step.fingerprint, *(item["fingerprint"] for item in step.record["inputs"])}
    (old,) = [one for path in (root / asset).iterdir() if (one := find(path)) and one.fingerprint in names]
    record = json.loads((old.path / "artifact.json").read_text("utf-8"))
    noted(old.path, record)
    new = recommit(root, old, record)
    told = pedigree("register", f"{NAME}@step-5", root=root)
    assert told.code in (1, 2), told.errors
    error = told.answer["error"]  # what was made from the step knows its record too, where other tests have made it
    assert new.record_digest[:12] in error and ("was told" in error or "who points to it holds" in error), error
    registry = Registry(Tracking(load_profile("local").tracker, root), NAME)
    assert registry.version_of(step.digest) is None


def test_a_chain_begins_with_a_step_and_its_card_counts_what_was_read_up_to_it(kept):
    fewer = "preferences: {data: []}\nsft: {from_step: 5}\n"
    ask(kept, "{steps: [2, 5], average: {steps: all, kind: ema}}", more=fewer)
    ran = pedigree("run", NAME, "--until", "model_card", root=kept)
    assert ran.code == 0, ran.errors
    step = steps_in(kept)[f"{NAME}@step-5"]
    for asset in ("sft_model", "model_scores", "model_card"):
        (made,) = [one for path in kept.glob(f"{asset}/*") if (one := find(path)) and one.record["recipe"] == NAME]
        assert step.digest in {item["digest"] for item in made.record["inputs"]}
        assert "base_model" not in {item["asset"] for item in made.record["inputs"]}
    content = (made.path / "training_content.json").read_text("utf-8")
    assert "positions that kept_steps was trained on" in content and "20480" in content  # five steps of 4096
    traced = pedigree("trace", NAME, "--step", "5", root=kept).answer
    assert (traced["training"], traced["trained"]) == ("kept_steps", False)


def test_the_average_of_the_steps_is_a_model_by_its_name(kept):
    ask(kept, "{steps: [2, 5], average: {steps: all, kind: ema}}")
    assert pedigree("run", NAME, "--until", "averaged_model", root=kept).code == 0
    (mean,) = [one for path in kept.glob("averaged_model/*") if (one := find(path))]
    assert mean.record["notes"]["shares"] == {"2": 0.5, "5": 0.5}
    scored = pedigree("evaluate", f"{NAME}@average", "--suites", "kitchen-small", root=kept)
    assert scored.code == 0, scored.errors
    traced = pedigree("trace", f"{NAME}@average", "--step", "4", root=kept).answer
    page = traced["documents"][0]["id"]
    asked = pedigree("takedown", "--document", page, "--reason", "a test", "--dry-run", root=kept).answer
    assert asked["made_of_models"] == [f"{NAME}@average"]
    assert (traced["training"], traced["trained"]) == ("kept_steps", True)


ROWS = """
extends: kitchen-small
name: rows
sft: {epochs: 2.0, keep: {epochs: all}}
align: {keep: {steps: [1]}}
promote: {model_name: rows}
"""


@pytest.fixture(scope="module")
def rows(first, untouched, tmp_path_factory):
    """A root in which the last models of fine-tuning and alignment were made, and what they keep on their way."""
    root = linked_copy(untouched, tmp_path_factory.mktemp("rows") / "root")
    (root / "recipes").mkdir()
    (root / "recipes" / "rows.yaml").write_text(ROWS)
    point_to_shared(load_recipe("rows", folders=(root / "recipes", RECIPES, SHIPPED)), root)
    ran = pedigree("run", "rows", "--until", "aligned_model", root=root)
    assert ran.code == 0, ran.errors
    return root


def test_a_training_on_rows_keeps_its_steps_without_being_asked_again(rows):
    written = {path: path.stat().st_mtime_ns for path in rows.glob("kept_*_steps/*/artifact.json")}
    assert {path.parents[1].name for path in written} == {"kept_sft_steps", "kept_align_steps"}
    for asset in ("kept_sft_steps", "kept_align_steps"):
        ran = pedigree("run", "rows", "--until", asset, root=rows)
        assert ran.code == 0 and "neither Dagster nor MLflow" not in ran.errors, ran.errors
    assert {path: path.stat().st_mtime_ns for path in rows.glob("kept_*_steps/*/artifact.json")} == written
    states = pedigree("status", "rows", root=rows).answer["assets"]
    kept = states["kept_sft_steps"] | states["kept_align_steps"]
    assert {name: one["state"] for name, one in kept.items()} == {
        "rows@sft-epoch-1": "made",
        "rows@align-step-1": "made",
    }


def test_commands_take_a_step_of_a_training_on_rows_by_its_name(rows):
    chat = pedigree("chat", "rows@sft-epoch-1", "--prompt", "hello", root=rows)
    assert chat.code == 0, chat.errors
    told = pedigree("compare", "rows@sft-epoch-1", "rows@align-step-1", root=rows)
    assert told.code == 0, told.errors
    assert "rows@align-step-1 has only a part of its training's cost" in told.answer["compute"]["sentence"]
    traced = pedigree("trace", "rows@align-step-1", "--step", "1", root=rows).answer
    assert (traced["training"], traced["trained"]) == ("base_model", True)
    data = next(rows.glob("instruction_data/*/instructions.jsonl")).read_text("utf-8").splitlines()
    seen = pedigree("trace", "rows@sft-epoch-1", "--document", json.loads(data[0])["id"], root=rows).answer
    (model,) = seen["rows"][0]["models"]
    assert model.startswith("kept_sft_steps") and model.endswith("(kept after epoch 1, which may be before the row)")
    added = pedigree("register", "rows@sft-epoch-1", root=rows)
    assert added.code == 0, added.errors
    registry = Registry(Tracking(load_profile("local").tracker, rows), "rows")
    assert registry.version(added.answer["version"]).tags["kept"] == "after epoch 1"
    unknown = pedigree("chat", "rows@sft-step-3", root=rows)
    assert unknown.code == 2 and "rows keeps no sft-step-3 (sft.keep)" in unknown.errors
    planned = {one["partition"] for one in pedigree("plan", "rows", root=rows).answer["assets"]}
    assert {"rows@sft-epoch-1", "rows@align-step-1"} <= planned


def test_steps_of_trainings_on_rows_are_scored_compared_and_drawn(rows):
    ran = pedigree("run", "rows", "--until", "learning_curves", root=rows)
    assert ran.code == 0, ran.errors
    assert set(ran.answer["assets"]["step_scores"]) == {"rows@sft-epoch-1", "rows@align-step-1"}
    told = pedigree("compare", "rows@sft-epoch-1", "rows@align-step-1", root=rows).answer
    assert {row["suite"] for row in told["scores"]} == {"cloze", "sums", "questions", "chat"}
    assert all(row["sides"][1]["against"]["items"] for row in told["scores"])
    assert told["not_compared"] == told["remarks"] == []
    drawn = json.loads(next(rows.glob("learning_curves/*/learning_curves.json")).read_text("utf-8"))
    assert drawn["steps"] == [] and {name: len(of) for name, of in drawn["later"].items()} == {
        "sft_model": 1,
        "aligned_model": 1,
    }


def test_a_step_of_a_training_on_rows_had_read_what_its_base_model_had_and_withdrawn_rows(rows):
    steps = {"rows@sft-epoch-1": True, "rows@align-step-1": True}
    page = pedigree("trace", "rows", "--step", "3", root=rows).answer["documents"][0]["id"]
    row = json.loads(next(rows.glob("instruction_data/*/instructions.jsonl")).read_text("utf-8").splitlines()[0])["id"]
    told = pedigree("trace", "rows", "--document", page, root=rows).answer
    assert {one["partition"]: one["read"] for one in told["kept_steps"]} == steps and told["last_clean"] == {
        "rows": None
    }
    for asked in (page, row):
        told = pedigree("takedown", "--document", asked, "--reason", "a test", "--dry-run", root=rows)
        assert told.code == 0, told.errors
        assert {one["partition"]: one["read"] for one in told.answer["kept_steps"]} == steps, asked
        assert told.answer["last_clean"] == {"rows": None}


def test_a_step_of_pretraining_had_read_no_withdrawn_row(kept):
    data = next(kept.glob("instruction_data/*/instructions.jsonl")).read_text("utf-8").splitlines()
    told = pedigree("takedown", "--document", json.loads(data[0])["id"], "--reason", "a test", "--dry-run", root=kept)
    assert told.code == 0, told.errors
    assert {one["read"] for one in told.answer["kept_steps"] if one["partition"].startswith(f"{NAME}@")} == {False}


def test_a_step_of_a_training_on_rows_that_is_asked_for_later_is_made_by_training_again(rows):
    path = rows / "recipes" / "rows.yaml"
    path.write_text(ROWS.replace("epochs: all", "steps: [3]"))
    ran = pedigree("run", "rows", "--until", "kept_sft_steps", root=rows)
    assert ran.code == 0, ran.errors
    assert "sft_model was made without it: trained again from step 0 to 3" in ran.errors
    made = [one for path in rows.glob("kept_sft_steps/[0-9a-f]*") if (one := find(path)) is not None]
    steps = {one.record["partition"]: one.record["metrics"]["steps"] for one in made}
    assert steps.keys() == {"rows@sft-step-3", "rows@sft-epoch-1"} and steps["rows@sft-step-3"] == 3
