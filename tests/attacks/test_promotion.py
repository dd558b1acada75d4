"""Attacks on promotions: worse models, older ones, damaged ones, two at once, a process that dies on the way."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from typer.testing import CliRunner

from assets.answers.models.outside import model_folder
from assets.answers.status.verify import verified
from assets.commands import cli
from assets.graph import pipeline
from assets.graph.partitions import Partitions
from assets.graph.pipeline import Pipeline
from assets.materialize.assets import all_assets
from assets.materialize.causes import StageFailed
from assets.materialize.events import heard_by
from assets.registry.by_hand import promote_by_hand, roll_back
from assets.registry.decision import lineage_of
from assets.registry.exact import compare_exactly
from assets.registry.kept_digests import only_found, unheard
from assets.registry.standing import unfit
from assets.run.run import run_recipe
from assets.services.stores import opened_instance
from assets.state.compare import compare
from assets.state.references import write_reference
from resources.profile import SHIPPED
from resources.tracking.errors import TrackingError
from resources.tracking.registry import ChampionMoved, Move, now, somebody
from resources.tracking.reports import Tracking
from resources.tracking.store import default_uri, experiments, make_client
from tests.assets.fabricate import make_one
from tests.assets.promotable import ITEMS, Kitchen, WithoutWriter
from tests.edited_copy import copied_sources
from training.contract import artifact
from training.contract.artifact import commit_record, find, write_text
from training.contract.identity import closure, made_by
from training.contract.job import DataError
from training.provenance.lineage import lineage_of as model_lineage
from training.recipe.recipe import Recipe, recipe_as_data

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> tuple[str, str]:
    """One registry for all tests, each with a model of its own: URI, and the profile that names it."""
    folder = tmp_path_factory.mktemp("store")
    uri = default_uri(folder)
    make_client(uri, folder)
    profile = folder / "here.yaml"
    profile.write_text(
        (SHIPPED / "local.yaml").read_text("utf-8").replace("tracking_uri: null", f"tracking_uri: {uri}")
    )
    return uri, str(profile)


@pytest.fixture(scope="module")
def shared_by_all(store, tmp_path_factory) -> Path:
    """A root with what all models of these tests have in common: everything before alignment."""
    root = tmp_path_factory.mktemp("shared")
    Kitchen(root=root, uri=store[0], profile=store[1], model_name="shared").model("shared", right=1)
    for asset in ("aligned_model", "model_scores", "contamination_report", "model_card"):
        shutil.rmtree(root / asset)
    return root


@pytest.fixture
def kitchen(store, shared_by_all, tmp_path, request, monkeypatch) -> Kitchen:
    root = shutil.copytree(shared_by_all, tmp_path / "root")
    monkeypatch.setitem(pipeline._TRACKING, (root, store[0]), WithoutWriter(store[0], root, in_background=False))
    return Kitchen(root=root, uri=store[0], profile=store[1], model_name=f"m-{abs(hash(request.node.nodeid)):x}")


def test_a_model_that_fell_from_95_to_10_percent_does_not_become_champion(kitchen):
    good, bad = kitchen.model("good", right=19), kitchen.model("bad", right=2)
    assert kitchen.decide(good)["promoted"]
    ran = kitchen.run(bad)
    assert (ran.promoted, ran.exit_code) == (False, 3)
    drop = ran.refusals[0]["evidence"]["failed"]["drop_cloze"]
    assert (drop["champion"], drop["score"], drop["drop"], drop["lost"], drop["items"]) == (0.95, 0.1, 0.85, 340, 400)
    said = ran.promotion["sentence"]
    assert "registered as version 2, refused" in said and "on 400 items, a drop of 85.0 points" in said
    assert kitchen.aliases() == {"champion": "1", "candidate": "2"}
    record = compare(bad, kitchen.root).cells["promoted_model", "bad"].artifact.record
    champion = record["settings"]["champion"]  # which the record binds, and the record digest with it
    assert champion["version"] == "1" and champion["digest"] == kitchen.registry.holder("champion").digest
    assert kitchen.run(bad).exit_code == 3  # a refusal is no reason to try again
    assert len(list((kitchen.root / "promoted_model").iterdir())) == 2


def test_an_older_model_is_compared_again_and_does_not_come_back_by_itself(kitchen):
    first, second = kitchen.model("first", right=10), kitchen.model("second", right=12)
    assert kitchen.decide(first)["promoted"] and kitchen.decide(second)["promoted"]
    assert "stale" not in noted(kitchen, second)
    assert "stale: it was compared with no champion, and the champion is version 2 now" in noted(kitchen, first)
    again = kitchen.decide(first)
    assert "stale" not in noted(kitchen, first)
    assert again["promoted"] is False and "refused by" in again["why_not"]
    assert kitchen.decision(first)["champion"]["version"] == "2"  # decided again, against the present one
    ran = kitchen.run(first)
    assert (ran.promoted, ran.exit_code) == (False, 3) and ran.refusals[0]["gate"] == "promotion"
    lenient = kitchen.model("first", right=10, max_score_drop=1.0)
    ran = kitchen.run(lenient)
    assert (ran.promoted, ran.exit_code) == (False, 3) and ran.refusals[0]["gate"] == "champion"
    assert ran.promotion["version"] == "1" and ran.promotion["champion"] == "2"
    assert "was champion of" in ran.promotion["sentence"] and "pedigree rollback" in ran.promotion["sentence"]
    assert kitchen.aliases() == {"champion": "2", "previous": "1", "candidate": "2"}
    ran = kitchen.run(second)
    assert ran.promoted
    assert ran.promotion == {"model_name": kitchen.model_name, "version": "2", "champion": "2", "sentence": ""}


def test_a_row_of_small_drops_ends_at_the_best_of_the_line_and_a_person_begins_another(kitchen):
    """Each model is hardly worse than the champion before it; the last is more than 5 % below the first champion."""
    falling = {name: kitchen.model(name, right=right) for name, right in (("a", 19), ("b", 18.8), ("c", 18.4))}
    assert all(kitchen.decide(recipe)["promoted"] for recipe in falling.values())
    worse = kitchen.model("d", right=18.2)
    said = kitchen.decide(worse)
    failed = [check["name"] for check in kitchen.decision(worse)["checks"] if not check["passed"]]
    assert not said["promoted"] and failed == ["drop_cloze_from_version_1"]
    assert "against version 1: 95.0 % before and 91.0 % now on 400 items" in said["why_not"]
    assert "(95 % interval 1.9 to 6.0, p = 3.1e-05)" in said["why_not"]
    client = kitchen.registry._client
    true = client.get_model_version(kitchen.model_name, "1").tags["digest.model_scores"]
    client.set_model_version_tag(kitchen.model_name, "1", "digest.model_scores", "0" * 64)
    said = kitchen.decide(worse)  # decided again, and the best one cannot be read
    assert not said["promoted"] and "nothing can be compared with version 1: " in said["why_not"]
    client.set_model_version_tag(kitchen.model_name, "1", "digest.model_scores", true)
    assert "version 1" in kitchen.decide(worse)["why_not"]
    promote_by_hand(falling["b"], kitchen.tracking, "another exam counts now")
    assert "stale" in noted(kitchen, worse) and kitchen.decide(worse)["promoted"]
    assert kitchen.decision(worse)["champion"].keys() == {"version", "digest", "scores"}


def test_a_model_that_is_not_above_chance_is_registered_and_no_champion(kitchen):
    ran = kitchen.run(kitchen.model("guesses", right=5.4, above_chance="required"))
    assert (ran.promoted, ran.exit_code) == (False, 3) and kitchen.aliases() == {"candidate": "1"}
    said = "registered as version 1, refused by the gate promotion: not above chance: cloze 27.0 % of 400 items"
    assert said in ran.promotion["sentence"]
    assert kitchen.run(kitchen.model("knows", right=6.4, above_chance="required")).promoted


def test_two_roots_do_not_compare_with_nothing(kitchen, tmp_path_factory):
    assert kitchen.decide(kitchen.model("here", right=10))["promoted"]
    elsewhere = replace(kitchen, root=tmp_path_factory.mktemp("elsewhere"))
    other = elsewhere.model("there", right=20)
    assert "refused by" in elsewhere.decide(other)["why_not"]
    (check,) = [check for check in elsewhere.decision(other)["checks"] if not check["passed"]]
    assert check["name"] == "champion" and "are not under" in check["detail"]["reason"]
    for scores in (kitchen.root / "model_scores").iterdir():
        shutil.copytree(scores, elsewhere.root / "model_scores" / scores.name)
    assert elsewhere.decide(other)["promoted"]  # the way out: what could not be compared is decided again


def test_a_champion_whose_answers_are_damaged_is_compared_with_once_they_are_whole(kitchen):
    first, second = kitchen.model("first", right=10), kitchen.model("second", right=12)
    kitchen.decide(first)
    answers = record_of(kitchen, first, "model_scores").parent / "samples" / "aligned_cloze.jsonl.zst"
    whole = answers.read_bytes()
    answers.write_bytes(whole[:-1])
    for _ in range(2):  # the second time nothing has changed, and nothing is decided again
        assert not kitchen.decide(second)["promoted"]
    assert len(list((kitchen.root / "promoted_model").iterdir())) == 2
    answers.write_bytes(whole)
    assert kitchen.decide(second)["promoted"]
    assert (
        len(list((kitchen.root / "promoted_model").iterdir())) == 2
    )  # what was decided before, and moved nothing, goes


def noted(kitchen: Kitchen, recipe: Recipe) -> str:
    """What `pedigree status` remarks about the recipe's decision."""
    said = command(kitchen, recipe, "status")[1]
    return said["assets"]["promoted_model"][recipe.name]["remark"]


def record_of(kitchen: Kitchen, recipe: Recipe, asset: str) -> Path:
    return compare(recipe, kitchen.root).cells[asset, recipe.name].artifact.path / "artifact.json"


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(path.read_text("utf-8"))
    change(data)
    path.write_text(json.dumps(data))


def pass_gates(record: dict[str, Any]) -> None:
    for gate in record["gates"]:
        gate["passed"] = True


@pytest.mark.parametrize("seals", [False, True])
@pytest.mark.parametrize("asset", ["contamination_report", "promoted_model"])
def test_a_verdict_that_somebody_turned_promotes_nothing(kitchen, asset, seals):
    if asset == "promoted_model":
        recipe = kitchen.model("worse", right=5, min_scores={"cloze": 0.9})
        assert not kitchen.decide(recipe)["promoted"]
    else:
        recipe = kitchen.model("leaking", right=5, refused_by=asset)
    path = record_of(kitchen, recipe, asset)
    edit(path, pass_gates)
    if seals:  # whoever turned it made its own checksums fit, and those of its copy
        commit_record(path.parent, json.loads(path.read_text("utf-8")))
    kitchen.make(recipe, right=5)  # and has the card written too
    assert compare(recipe, kitchen.root).cells[asset, recipe.name].is_damaged
    if asset == "promoted_model":
        assert not kitchen.decide(recipe)["promoted"]  # put back, or decided again: refused as before
    else:
        with pytest.raises(StageFailed, match=r"refused by its gate|is not made"):
            kitchen.decide(recipe)
    assert "champion" not in kitchen.aliases()


def rewritten(kitchen: Kitchen, recipe: Recipe, asset: str, change: Callable[[dict[str, Any]], None]) -> None:
    """A record changed with all that fits under the root: its digests, its copy and the reference."""
    path = record_of(kitchen, recipe, asset)
    edit(path, change)
    commit_record(path.parent, json.loads(path.read_text("utf-8")))
    made = artifact.find(path.parent)
    assert made is not None
    write_reference(kitchen.root, made, recipe.name)


def verify(kitchen: Kitchen, recipe: Recipe, *options: str, profile: str = "") -> tuple[int, dict[str, Any]]:
    """Exit code and answer of `pedigree verify`."""
    return command(kitchen, recipe, "verify", *options, profile=profile)


def command(kitchen: Kitchen, recipe: Recipe, name: str, *options: str, profile: str = "") -> tuple[int, Any]:
    """Exit code and answer of a command."""
    path = kitchen.root / "recipes" / f"{recipe.name}.yaml"
    write_text(path, yaml.safe_dump(recipe_as_data(recipe)))
    given = [str(path), "--root", str(kitchen.root), "--profile", profile or kitchen.profile, "--json", *options]
    said = CliRunner().invoke(cli.app, [name, *given])
    return said.exit_code, json.loads(said.stdout.splitlines()[-1])


def test_a_decision_that_was_rewritten_with_all_that_points_to_it_is_not_what_mlflow_was_told(kitchen, tmp_path):
    recipe = kitchen.model("worse", right=5, min_scores={"cloze": 0.9})
    assert not kitchen.decide(recipe)["promoted"]
    kitchen.tracking.flush(180)
    tag = (kitchen.model_name, "1", "record_digest.base_model")
    true = kitchen.registry.version("1").tags[tag[2]]
    kitchen.registry._client.set_model_version_tag(*tag, "0" * 64)
    code, answer = verify(kitchen, recipe)
    assert code == 1 and [problem["asset"] for problem in answer["problems"]] == ["base_model"]
    assert "version 1 in MLflow was told 000000000000" in answer["problems"][0]["problem"]
    kitchen.registry._client.set_model_version_tag(*tag, true)
    assert verify(kitchen, recipe)[0] == 0
    true = artifact.find(record_of(kitchen, recipe, "promoted_model").parent).record_digest
    rewritten(kitchen, recipe, "promoted_model", pass_gates)
    code, answer = verify(kitchen, recipe)
    (run, version) = answer["problems"]
    assert code == 1 and run["asset"] == version["asset"] == "promoted_model"
    assert "MLflow was told" in run["problem"] and "version 1 in MLflow" in version["problem"]
    rewritten(kitchen, recipe, "promoted_model", lambda record: record.update(replaces=[true]))  # it says so itself
    assert verify(kitchen, recipe)[0] == 1
    with pytest.raises(StageFailed, match="MLflow was told"):
        kitchen.decide(recipe)
    with pytest.raises(TrackingError, match="MLflow was told"):
        promote_by_hand(recipe, kitchen.tracking, "a person insists")
    assert "champion" not in kitchen.aliases()
    away = tmp_path / "away.yaml"
    away.write_text((SHIPPED / "local.yaml").read_text("utf-8").replace('uri: ""', "uri: http://127.0.0.1:9"))
    code, answer = verify(kitchen, recipe, profile=str(away))  # no fault of the artifact, and not kept quiet
    assert code == 0 and any("MLflow" in line for line in answer["not_asked"])
    assert verify(kitchen, recipe, "--mend")[0] == 1
    assert not kitchen.decide(recipe)["promoted"] and verify(kitchen, recipe)[0] == 0


def test_a_model_of_which_a_report_was_refused_is_unfit(kitchen):
    recipe = kitchen.model("refused", right=5, refused_by="contamination_report")
    assert unfit(compare(recipe, kitchen.root)) == [
        "contamination_report [refused] was refused by contamination",
        "model_card [refused] is not made as the recipe asks for it",
    ]


def test_what_mlflow_was_not_told_yet_is_told_before_an_artifact_counts_as_found(kitchen):
    recipe = kitchen.model("whole", right=5)
    with opened_instance(kitchen.root):
        base = compare(recipe, kitchen.root).cells["base_model", "whole"]
    behind = model_lineage(kitchen.root, base.artifact)
    assert base.fingerprint in only_found(behind, kitchen.root, kitchen.tracking)
    made = {"asset": base.asset, "partition": base.partition, "fingerprint": base.fingerprint}
    kitchen.tracking.stage_run("launch", **made, tags={}).finish("FINISHED")
    assert kitchen.tracking.pending() and base.fingerprint not in only_found(behind, kitchen.root, kitchen.tracking)


def test_a_file_far_behind_the_model_stops_the_promotion(kitchen, monkeypatch):
    """The weights behind the model are read; of what may be terabytes the sizes are looked at."""
    recipe = kitchen.model("whole", right=5)
    cells = compare(recipe, kitchen.root).cells
    for asset in ("base_model", "token_shards"):
        file = next(cell for cell in cells.values() if cell.asset == asset).artifact.path / "data.txt"
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if asset == "base_model" else whole[:-1])
        assert any(f"{asset}/" in line for line in unfit(compare(recipe, kitchen.root)))
        with pytest.raises(TrackingError, match=rf"{asset}.*data\.txt"):
            promote_by_hand(recipe, kitchen.tracking, "a person insists")
        file.write_bytes(whole)
    assert kitchen.aliases() == {}
    with monkeypatch.context() as patch:  # MLflow is not asked about what Dagster was told of
        patch.setattr(Tracking, "told_of", lambda self, names: pytest.fail(f"asked about {len(names)}"))
        assert unheard([cell for cell in cells.values() if cell.artifact], kitchen.root, kitchen.tracking) == []
    assert promote_by_hand(recipe, kitchen.tracking, "it is whole")["champion"] == "1"


def test_what_dagster_was_told_is_not_said_anew_of_a_record_that_was_changed(kitchen):
    """A reuse is a materialization too: it would say the changed record's digest, and nobody would know better."""
    recipe = kitchen.model("whole", right=5)
    materialize = materializer(kitchen, recipe, "aligned_model")
    told = compare(recipe, kitchen.root).cells["aligned_model", "whole"].artifact.record_digest
    for _ in range(2):
        assert materialize().success  # reused, and Dagster is told
    assert verify(kitchen, recipe)[0] == 0
    for asset in ("model_scores", "contamination_report", "model_card"):  # what was made from it
        shutil.rmtree(kitchen.root / asset)
    # Also where the record says of itself that it was made in place of the true one.
    for change in (lambda record: record.update(seed=7), lambda record: record.update(replaces=[told])):
        rewritten(kitchen, recipe, "aligned_model", change)
        assert not compare(recipe, kitchen.root).cells["aligned_model", "whole"].is_damaged  # nothing here knows better
        for again in (materialize, materializer(kitchen, replace(recipe, name="other"), "aligned_model")):
            (failed,) = [event for event in again().all_events if event.is_step_failure]
            assert "Dagster was told" in failed.step_failure_data.user_failure_data.description
        assert verify(kitchen, recipe)[0] == 1


@pytest.mark.parametrize("way", ["card", "promotion", "by hand"])
def test_nothing_is_listed_or_promoted_of_a_record_that_only_says_itself_what_it_replaced(kitchen, way):
    """Neither Dagster nor MLflow was told of the plan; what was made from it knows its true record."""
    recipe = kitchen.model("whole", right=5)
    with opened_instance(kitchen.root) as instance:
        instance.wipe_assets([dg.AssetKey("training_plan")])
    true = artifact.find(record_of(kitchen, recipe, "training_plan").parent).record_digest
    rewritten(kitchen, recipe, "training_plan", lambda record: record.update(seed=7, replaces=[true]))
    if way == "card":
        shutil.rmtree(kitchen.root / "model_card")
        (failed,) = [one for one in materializer(kitchen, recipe, "model_card")().all_events if one.is_step_failure]
        said = failed.step_failure_data.user_failure_data.description
    else:
        promote = (
            kitchen.decide if way == "promotion" else lambda one: promote_by_hand(one, kitchen.tracking, "insists")
        )
        with pytest.raises((StageFailed, TrackingError)) as failure:
            promote(recipe)
        said = str(failure.value)
    assert "of which neither Dagster nor MLflow was told" in said and "training_plan" in said
    assert kitchen.aliases() == {}
    status = command(kitchen, recipe, "status")[1]["assets"]["training_plan"]["whole"]
    assert "says itself that it replaced" in status["remark"] and status["state"] == "made"
    told = CliRunner().invoke(
        cli.app, ["trace", f"base_model/{kitchen_model(kitchen, recipe)}", "--lineage", "--root", str(kitchen.root)]
    )
    assert "says itself that it replaced" in told.stdout


def kitchen_model(kitchen: Kitchen, recipe: Recipe) -> str:
    made = compare(recipe, kitchen.root).cells["base_model", recipe.name].artifact
    return made.fingerprint


def materializer(kitchen: Kitchen, recipe: Recipe, asset: str) -> Callable[[], dg.ExecuteInProcessResult]:
    """What the button of the UI does with one asset of the recipe."""
    found = next(one for one in all_assets(Partitions({recipe.name: recipe})) if one.key.path[-1] == asset)
    data = json.dumps(recipe_as_data(recipe))
    pipeline = Pipeline(root=str(kitchen.root), profile=kitchen.profile, resolved_recipe=data)

    def materialize() -> dg.ExecuteInProcessResult:
        with opened_instance(kitchen.root) as instance:
            given = {"partition_key": recipe.name, "resources": {"pipeline": pipeline}, "raise_on_error": False}
            return dg.materialize([found], instance=instance, **given)

    return materialize


@pytest.mark.parametrize("place", ["aligned_model/model/model.safetensors", "promoted_model/decision.json"])
def test_a_flipped_byte_ends_what_run_says_and_comes_back_with_it(kitchen, place):
    recipe = kitchen.model("whole", right=5)
    assert kitchen.decide(recipe)["promoted"]
    asset, name = place.split("/", 1)
    path = record_of(kitchen, recipe, asset).parent / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    ran = kitchen.run(recipe)
    assert (ran.promoted, ran.exit_code) == (False, 1) and name in ran.error
    with pytest.raises((StageFailed, TrackingError), match=name):
        kitchen.decide(recipe)
    path.write_bytes(whole)
    assert kitchen.run(recipe).promoted


@pytest.mark.parametrize("name", ["MLmodel", "model/model.safetensors"])
def test_what_mlflow_would_load_instead_of_the_model_is_found_and_mended(kitchen, name, monkeypatch):
    recipe = kitchen.model("loaded", right=5)
    kitchen.decide(recipe)
    loaded = kitchen.registry.folder_of(kitchen.registry.version("1"))
    weights = record_of(kitchen, recipe, "aligned_model").parent / "model" / "model.safetensors"
    assert (loaded / "model" / "model.safetensors").samefile(weights)  # by reference
    client = kitchen.tracking.client()
    assert "**loaded**" in client.get_model_version(kitchen.model_name, "1").description
    kitchen.tracking.replay()
    launch = next(  # every time it runs, this test launches once more
        run
        for run in client.search_runs(experiments(client), "tags.recipe = 'loaded'")
        if "eval/cloze" in run.data.metrics and "cost/wall_seconds" in run.data.metrics
    )
    assert launch.data.params["promote.model_name"] == kitchen.model_name and "digest" not in launch.data.tags
    assert {file.path for file in client.list_artifacts(launch.info.run_id)} >= {"recipe.yaml"}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", kitchen.tracking.uri)
    answers = client.load_table(launch.info.experiment_id, "answers/cloze.json", [launch.info.run_id])
    assert list(answers.iloc[0]) == ["Is it 0?", "It is 0.", 0, 1, "cloze/0"] and len(answers) == 200 < ITEMS
    assert verified(compare(recipe, kitchen.root), kitchen.tracking).problems == []
    changed = bytearray((loaded / name).read_bytes())
    changed[-3] ^= 1
    (loaded / name).unlink()  # the artifact's own file stays as it is
    (loaded / name).write_bytes(changed)
    said = verified(compare(recipe, kitchen.root), kitchen.tracking)
    assert [(cell.asset, name in line) for cell, line in said.problems] == [("aligned_model", True)]
    with pytest.raises(TrackingError, match=r"version 1 .* not whole: .*--mend"):
        kitchen.decide(recipe)
    verified(compare(recipe, kitchen.root), kitchen.tracking, mend=True)
    assert verified(compare(recipe, kitchen.root), kitchen.tracking).problems == []
    assert (loaded / "model" / "model.safetensors").samefile(weights) and kitchen.decide(recipe)["promoted"]


def test_tags_are_those_of_the_latest_decision_and_hold_every_ancestor(kitchen):
    recipe = kitchen.model("described", right=10)
    kitchen.decide(recipe)
    stricter = kitchen.model("described", right=10, min_scores={"cloze": 0.9})
    kitchen.registry._client.set_model_version_tag(kitchen.model_name, "1", "reviewed", "by a person")
    kitchen.decide(stricter)
    tags = kitchen.registry.version("1").tags
    decision = compare(stricter, kitchen.root).cells["promoted_model", "described"].artifact
    assert (tags["verdict"], tags["decision"], tags["decision_record"]) == (
        "refused",
        decision.digest,
        decision.record_digest,
    )
    assert tags["reviewed"] == "by a person" and tags["champion.how"] == "promotion"
    cells = lineage_of(compare(stricter, kitchen.root))
    assert {cell.asset for cell in cells} > {"crawl_archives", "tokenizer", "base_model", "model_card"}
    for cell in cells:
        place = f"{cell.asset}/{cell.part}" if cell.part else cell.asset
        assert tags[f"digest.{place}"] == cell.artifact.digest
        assert tags[f"record_digest.{place}"] == cell.artifact.record_digest


def test_a_person_moves_the_champion_and_what_they_said_stays(kitchen):
    good, bad = kitchen.model("good", right=19), kitchen.model("bad", right=2)
    kitchen.decide(good)
    assert not kitchen.decide(bad)["promoted"]
    with pytest.raises(DataError, match="--reason"):
        promote_by_hand(bad, kitchen.tracking, " ")
    with pytest.raises(DataError, match="previous"):
        roll_back(kitchen.model_name, kitchen.tracking, "")
    name = kitchen.model_name
    meant = f"no model of this name is registered; did you mean `{name}`? there are "
    with pytest.raises(DataError, match=re.escape(meant)):
        roll_back(f"{kitchen.model_name}x", kitchen.tracking, "")
    for asked, said in (
        (f"models:/{name}x@champion", meant),
        (f"{name}x@champion", meant),
        (f"{name}@nobody", f"registered; there is {name}/1 (champion), {name}/2 ("),
        (f"models:/{name}/7", "no such version is registered"),
    ):
        with pytest.raises(DataError, match=re.escape(said)):
            model_folder(asked, kitchen.tracking)
    said = promote_by_hand(bad, kitchen.tracking, "the exam is wrong")
    assert (said["champion"], said["previous"], said["moved"]) == ("2", "1", True)
    tags = kitchen.registry.version("2").tags
    assert (tags["champion.how"], tags["champion.why"]) == ("override", "the exam is wrong")
    assert tags["verdict"] == "refused" and tags["champion.by"] == somebody()
    ran = kitchen.run(bad)
    assert ran.promoted and ran.exit_code == 0  # the registry's word, by hand as it is
    assert not promote_by_hand(bad, kitchen.tracking, "again")["moved"]
    assert not kitchen.decide(good)["promoted"]  # it was champion, and nobody asked for it
    back = roll_back(kitchen.model_name, kitchen.tracking, "the exam was right")
    assert (back["champion"], back["previous"], back["checked"]) == ("1", "2", True)
    assert not kitchen.decide(bad)["promoted"] and kitchen.run(good).promoted
    moves = [(move.action, move.before, move.version, move.why) for move in kitchen.registry.history()[1:]]
    assert moves == [("override", "1", "2", "the exam is wrong"), ("rollback", "2", "1", "the exam was right")]


def test_a_damaged_version_is_not_gone_back_to(kitchen):
    first, second = kitchen.model("first", right=10), kitchen.model("second", right=12)
    kitchen.decide(first)
    kitchen.decide(second)
    weights = record_of(kitchen, first, "aligned_model").parent / "model" / "model.safetensors"
    weights.write_text("others")
    with pytest.raises(TrackingError, match="not whole"):
        roll_back(kitchen.model_name, kitchen.tracking, "")
    with pytest.raises(TrackingError, match=r"model\.safetensors"):
        promote_by_hand(first, kitchen.tracking, "a person insists")
    assert kitchen.aliases()["champion"] == "2"


# A process that dies, and two at once


def in_a_process_of_its_own(act: Callable[[], object]) -> int:
    """The exit code of a process that does this; negative: the signal that ended it."""
    process = multiprocessing.get_context("fork").Process(target=act)
    process.start()
    process.join(120)
    return process.exitcode


def dying_at(write: int, client: Any, act: Callable[[], object]) -> Callable[[], None]:
    """`act`, whose process is killed when it is about to send its `write`-th change to the registry."""

    def run() -> None:
        client_class, left = type(client), [write]
        for name in dir(client_class):
            if name.startswith(("set_registered", "set_model", "delete_")):
                setattr(client_class, name, _counted(getattr(client_class, name), left))
        act()

    return run


def _counted(method: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def counted(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments, **named)

    return counted


def test_a_move_that_a_kill_cuts_short_is_finished_by_who_comes_next(kitchen, times):
    first, second = kitchen.model("first", right=10), kitchen.model("second", right=12)
    kitchen.decide(first)
    promote_by_hand(second, kitchen.tracking, "try it")
    roll_back(kitchen.model_name, kitchen.tracking, "registered, and not champion")
    registry = kitchen.registry
    at, killed = 0, 0
    while True:
        at += times(short=3, long=1)
        before = len(registry.history())
        ended = in_a_process_of_its_own(
            dying_at(
                at,
                make_client(kitchen.uri, kitchen.root),
                lambda: roll_back(kitchen.model_name, Tracking(kitchen.uri, kitchen.root), "there and back"),
            )
        )
        with registry.locked():  # what every command begins with
            aliases = kitchen.aliases()
        assert registry.under_way() is None
        assert {aliases["champion"], aliases["previous"]} == {"1", "2"}
        moved = registry.history()[before:]
        assert [move.version for move in moved] in ([], [aliases["champion"]])
        champion, previous = (registry.version(aliases[name]).tags for name in ("champion", "previous"))
        assert "champion.until" not in champion and previous["champion.replaced_by"] == aliases["champion"]
        if ended != -signal.SIGKILL:
            break
        killed += 1
    assert ended == 0 and killed >= 3


def at_once(*acts: Callable[[], object]) -> None:
    """Do all of these, each in a process of its own that begins when all are ready."""
    context = multiprocessing.get_context("fork")
    together = context.Barrier(len(acts))

    def begin(act: Callable[[], object]) -> None:
        together.wait()
        act()

    processes = [context.Process(target=begin, args=(act,)) for act in acts]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * len(acts)


def test_of_two_dagster_jobs_at_once_the_second_is_decided_against_the_first_and_a_rollback_holds(kitchen):
    good, bad, best = kitchen.model("good", right=19), kitchen.model("bad", right=2), kitchen.model("best", right=20)
    recipes = [good, bad]
    at_once(*(materializer(kitchen, recipe, "promoted_model") for recipe in recipes))
    good_version, bad_version = (registry_version(kitchen, recipe) for recipe in recipes)
    assert kitchen.aliases()["champion"] == good_version  # whoever came first
    against = {recipe.name: kitchen.decision(recipe)["champion"]["version"] for recipe in recipes}
    assert against in ({"good": None, "bad": good_version}, {"good": bad_version, "bad": None})
    assert materializer(kitchen, best, "promoted_model")().success
    worse = materializer(kitchen, kitchen.model("worse", right=10), "promoted_model")
    at_once(lambda: roll_back(kitchen.model_name, kitchen.tracking, "it is slow"), worse)
    aliases, moves = kitchen.aliases(), kitchen.registry.history()
    assert (aliases["champion"], aliases["previous"]) == (good_version, registry_version(kitchen, best))
    assert [move.action for move in moves][-2:] == ["promotion", "rollback"] and kitchen.registry.under_way() is None
    assert [one.version for one in kitchen.registry.line()][-1:] == [good_version]


@pytest.mark.parametrize("right", [14, 2])
def test_a_champion_that_moves_meanwhile_is_compared_with_once_more(kitchen, right):
    first, second = kitchen.model("first", right=10), kitchen.model("second", right=12)
    kitchen.decide(first)
    promote_by_hand(second, kitchen.tracking, "it is registered")
    third, moved, heard = kitchen.model("third", right=right), [], []

    def listen(kind: str, cell: Any, values: dict[str, Any]) -> None:
        heard.append(values.get("for"))
        if values.get("for") == "MLflow, which registers the decision" and not moved:  # a machine without our lock
            moved.append(Move(action="rollback", version="1", before="2", why="", who="x", when=now()))
            kitchen.registry.move(moved[0])

    with heard_by(listen):
        assert kitchen.decide(third)["promoted"] == (right == 14)
    assert [move.version for move in kitchen.registry.history()] == ["1", "2", "1", "3"][: 4 if right == 14 else 3]
    assert heard.count("MLflow, which registers the decision") == 2
    assert kitchen.registry.version("3").tags["compared_with"] == "1"  # the one that was champion then
    assert kitchen.registry.version("1").tags["compared_with"] == "none"


def test_nobody_else_moves_a_champion_from_the_question_who_it_is_to_the_move(kitchen):
    first, seen = kitchen.model("first", right=10), {}

    def listen(kind: str, cell: Any, values: dict[str, Any]) -> None:
        if str(asked := values.get("for")).startswith("MLflow"):
            with open(kitchen.registry._lock_file(), encoding="utf-8") as stream:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    seen[asked] = "free"
                except BlockingIOError:
                    seen[asked] = "held"

    with kitchen.registry.locked():
        pass  # its file is there now
    with heard_by(listen):
        assert kitchen.decide(first)["promoted"]
    assert seen == {"MLflow, which knows the champion": "held", "MLflow, which registers the decision": "held"}


def test_a_refusal_in_dagster_says_why_in_a_sentence_with_its_exit_code(kitchen):
    recipe = kitchen.model("whole", right=5)
    weights = record_of(kitchen, recipe, "base_model").parent / "data.txt"
    weights.write_bytes(weights.read_bytes()[:-1])
    materialize = materializer(kitchen, recipe, "promoted_model")
    (failed,) = [event for event in materialize().all_events if event.is_step_failure]
    said = failed.step_failure_data.user_failure_data
    assert "is not promoted" in said.description and "data.txt" in said.description
    assert said.metadata["exit_code"].value == 1 and kitchen.aliases() == {}


def registry_version(kitchen: Kitchen, recipe: Recipe) -> str:
    model = compare(recipe, kitchen.root).cells["aligned_model", recipe.name].artifact
    return kitchen.registry.version_of(model.digest).version


def test_a_champion_that_another_machine_set_meanwhile_is_not_overrun(kitchen):
    first, second = kitchen.model("first", right=10), kitchen.model("second", right=12)
    kitchen.decide(first)
    promote_by_hand(second, kitchen.tracking, "from elsewhere, where no lock of ours holds")
    late = Move(action="promotion", version="1", before="1", why="decided before that", who="x", when=now())
    with pytest.raises(ChampionMoved, match="version 2 is champion now"):
        kitchen.registry.move(late)
    assert kitchen.aliases()["champion"] == "2"


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """A context in which the packages are a copy, of which two modules have one more line of code."""
    places = copied_sources(tmp_path)
    for module in ("data/crawl/crawl.py", "posttrain/align/align.py"):
        with open(places["training"] / module, "a") as stream:
            stream.write("\nUNUSED = 1\n")

    @contextmanager
    def context():
        with monkeypatch.context() as patched:
            patched.setattr(closure, "place_of", places.__getitem__)
            made_by._own_code.cache_clear()
            yield
        made_by._own_code.cache_clear()

    return context


def test_an_exact_run_makes_nothing_again_that_a_registered_version_was_made_from(kitchen, edited):
    good, unknown = kitchen.model("good", right=19), kitchen.model("unknown", right=18)
    assert kitchen.decide(good)["promoted"]
    with edited():
        cells = compare(unknown, kitchen.root).cells.values()
        assert {"crawl_archives", "aligned_model"} <= {cell.asset for cell in cells if cell.other_code}
        assert compare_exactly(good, kitchen.root, kitchen.tracking).to_do() == []
        asked = compare_exactly(unknown, kitchen.root, kitchen.tracking).to_do()
        assert {cell.asset: cell.state for cell in asked} == {"aligned_model": "outdated", "promoted_model": "missing"}


def test_an_exact_run_makes_again_what_other_code_made_and_keeps_its_bytes(kitchen, edited, tmp_path):
    shipped, root = kitchen.model("once", right=1), tmp_path / "other"
    # A crawl of its own, because this run really makes one and tells it to the registry of all these tests.
    recipe = replace(shipped, kitchen=replace(shipped.kitchen, seed=shipped.kitchen.seed + 1))
    key = ("crawl_archives", "once@kitchen-1")
    with edited():
        make_one(comparison := compare(recipe, root), comparison.cells[key], content="no version has these bytes")
    before = compare(recipe, root).cells[key]
    assert before.other_code == ("training.data.crawl.crawl",)
    options = {"until": "crawl_archives", "snapshots": ("kitchen-1",), "announce": lambda *_: None, "exact": True}
    ran = run_recipe(recipe, root, profile=kitchen.profile, **options)
    after = compare(recipe, root).cells[key]
    assert (ran.exit_code, after.state, after.other_code) == (0, "made", ())
    assert after.artifact.record["replaces"] == [before.artifact.record_digest]
    (aside,) = root.glob("crawl_archives/*.replaced-*")
    assert find(aside).record == before.artifact.record


def test_without_the_registry_an_exact_run_begins_nothing(kitchen, edited, tmp_path):
    good, nobody = kitchen.model("good", right=19), Tracking("http://127.0.0.1:9", kitchen.root, in_background=False)
    with edited(), pytest.raises(DataError, match="--exact makes nothing again"):
        compare_exactly(good, kitchen.root, nobody)
