"""Further chains beside the small kitchen: a late leak, reinforcement learning, own archives, somebody else's model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assets.state.recipe_folders import SHIPPED, load_recipe
from resources.tracking.registry import Registry
from resources.tracking.reports import Tracking
from tests.assets.fabricate import point_to_shared
from tests.end_to_end.test_chain import is_named_down_to_its_record
from tests.own_model import write_model, write_rows
from tests.own_pages import write_exam, write_warc
from tests.small_kitchen import RECIPES, Ran, made, pedigree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_leak_is_refused_with_item_url_file_and_offset(leaking, root):
    assert leaking.code == 3 and not leaking.answer["promoted"]
    refusal = leaking.answer["refusals"][0]
    assert (refusal["asset"], refusal["gate"]) == ("contamination_report", "contamination")
    evidence = json.dumps(refusal["evidence"])
    for named in ("item", "url", "warc_file", "warc_offset"):
        assert named in evidence, named


def test_a_late_leak_is_named_down_to_its_record_and_the_steps_that_saw_it(leaking, root):
    is_named_down_to_its_record(leaking, "base_model", root)


def test_the_champion_is_still_the_clean_model(leaking, first, root):
    champion = Registry(Tracking("", root), "kitchen-small").holder("champion")
    assert champion is not None
    assert champion.digest == first.answer["assets"]["aligned_model"]["kitchen-small"]["digest"]
    assert champion.tags["contamination"].startswith("clean (")


def test_without_the_gate_the_leaking_model_would_be_promoted(leaking, root, tmp_path):
    text = (
        (RECIPES / "kitchen-small-leak.yaml").read_text("utf-8").replace("kitchen-small-leak", "kitchen-small-ungated")
    )
    text = text.replace("evaluation: {", "evaluation: {max_contaminated_fraction: 1.0, ")
    text = text.replace("promote: {", "promote: {above_chance: not_required, ")
    (tmp_path / "kitchen-small-ungated.yaml").write_text(text)
    point_to_shared(load_recipe(str(tmp_path / "kitchen-small-ungated.yaml"), (RECIPES, SHIPPED)), root)
    ungated = pedigree("run", str(tmp_path / "kitchen-small-ungated.yaml"), root=root)
    assert ungated.code == 0 and ungated.answer["promoted"], ungated.errors
    assert made(ungated) == {"data_contamination", "contamination_report", "model_card", "promoted_model"}
    champion = Registry(Tracking("", root), ungated.answer["promotion"]["model_name"]).holder("champion")
    assert champion is not None and champion.tags["contamination"].startswith("tolerated")


def test_what_a_recipe_without_decontamination_changes(leaking, root):
    told = pedigree("compare", "kitchen-small", "kitchen-small-leak", root=root).answer
    assert "decontaminate.action: 'remove' → 'off'" in told["recipes"][0]["differences"]
    agree = {(row["asset"], row["part"]): row["agree"] for row in told["artifacts"]}
    assert agree["filtered_documents", "kitchen-1"] == "same" != agree["base_model", ""] and len(told["scores"]) == 4


GRPO = 'method: grpo, prompts: "kitchen://preferences", prompt_columns: {ignore: [facts]}, max_steps: 2, batch_size: 8'


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("reward: {max_length: 4}", "reward.max_length=4: not one pair in train.jsonl fits"),
        ("align: {method: kto, max_length: 4}", "align.max_length=4: not one pair in train.jsonl fits"),
        (
            f"align: {{{GRPO}, num_generations: 4, max_length: 256, max_new_tokens: 255}}",
            "align.prompts: not one prompt can be used",
        ),
    ],
)
def test_rows_that_are_made_in_the_run_and_do_not_fit_end_it_before_the_base_model(
    first, root, tmp_path, settings, sentence
):
    recipe = tmp_path / "short.yaml"
    recipe.write_text(
        "extends: kitchen-small\nname: short-rows\npretrain: {seed: 5}\npreferences: {held_out_fraction: 0.3}\n"
        + settings
    )
    ran = pedigree("run", str(recipe), root=root)
    assert ran.code == 2 and sentence in ran.answer["error"]
    assert "base_model" not in ran.answer.get("assets", {})


def test_alignment_by_rl_reuses_everything_before_it(first, root):
    ran = pedigree("run", "kitchen-small-rl", "--until", "aligned_model", root=root)
    assert ran.code == 0, ran.errors
    # The run above, whose prompts do not fit, has made the same prompts.
    assert made(ran) - {"prompt_data"} == {"data_contamination", "aligned_model"}


def test_a_folder_of_archives_becomes_a_registered_model_without_the_kitchen(first, root, tmp_path):
    (tmp_path / "own" / "crawl").mkdir(parents=True)
    write_warc(tmp_path / "own" / "crawl" / "harbours.warc.gz")
    write_exam(tmp_path / "own" / "exam.jsonl")
    ran = pedigree("run", "own-folder", root=root, PEDIGREE_DATA=str(tmp_path))
    assert only_at_chance(ran), ran.errors
    assert ran.answer["promotion"]["model_name"] == "own-folder" and "warning" not in ran.errors
    assets = ran.answer["assets"]
    assert {"instruction_data", "sft_model", "aligned_model"} & set(assets) == set() and "base_model" in made(ran)
    assert assets["extracted_documents"]["own-folder@own-1"]["counts"] == {
        "in": 60, "kept": 60, "dropped": {}, "quarantined": {}
    }  # fmt: skip
    plan = assets["training_plan"]["own-folder"]
    assert plan["metrics"]["tokens"] <= 2 * plan["metrics"]["available_tokens"] < plan["metrics"]["tokens"] + 2 * 2048
    decision = json.loads(Path(assets["promoted_model"]["own-folder"]["uri"], "decision.json").read_text())
    assert decision["model"]["asset"] == "base_model" and set(decision["scores"]) == {"own"}
    status = pedigree("status", "own-folder", root=root, PEDIGREE_DATA=str(tmp_path))
    assert status.answer["assets"]["training_plan"]["own-folder"]["remark"].startswith("pretrain.tokens: auto is ")


def only_at_chance(ran: Ran) -> bool:
    """Whether a model was registered, and is no champion for no other reason than that it is not above chance."""
    (refused,) = ran.answer["refusals"]
    said = ran.answer["promotion"]["sentence"]
    assert said.startswith("registered as version 1, refused by the gate promotion: not above chance: own "), said
    return ran.code == 3 and refused["evidence"]["failed"].keys() == {"above_chance"}


def test_a_model_of_somebody_else_is_fine_tuned_scored_and_registered_without_a_corpus(first, root, tmp_path):
    (tmp_path / "own").mkdir()
    write_model(tmp_path / "own" / "model")
    write_rows(tmp_path / "own")
    write_exam(tmp_path / "own" / "exam.jsonl")
    (tmp_path / "own-tuned.yaml").write_text("extends: own-model\nname: own-tuned\npreferences: {data: []}\n")
    ran = pedigree("run", str(tmp_path / "own-tuned.yaml"), root=root, PEDIGREE_DATA=str(tmp_path))
    assert only_at_chance(ran), ran.errors
    assert made(ran) == {
        "adopted_model", "instruction_data", "row_index", "data_contamination", "sft_model", "model_scores",
        "contamination_report", "model_card", "promoted_model",
    }  # fmt: skip
    folders = {asset: Path(cells["own-tuned"]["uri"]) for asset, cells in ran.answer["assets"].items()}
    scores = json.loads((folders["model_scores"] / "scores.json").read_text())
    assert set(scores) == {"base", "sft"} and set(scores["sft"]) == {"own"}
    report = json.loads((folders["contamination_report"] / "contamination.json").read_text())
    assert report["verdict"] == "tolerated" and set(report["unknown"]) == {"adopted_model"}
    assert "What it was trained on is not known" in (folders["model_card"] / "README.md").read_text()
    decision = json.loads((folders["promoted_model"] / "decision.json").read_text())
    assert decision["model"]["asset"] == "sft_model" and not decision["promoted"]
