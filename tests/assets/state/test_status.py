from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace

import pytest

from assets.state.cell import last_made
from assets.state.chain import CHAIN, descendants, trains
from assets.state.compare import compare
from assets.state.reasons import as_read, class_lines
from assets.state.recipe_folders import find_recipe, load_recipe
from assets.state.references import write_reference
from assets.state.repairs import held_digests
from evaluation.stages import _check_watched
from tests.assets.fabricate import make_all, make_one
from tests.examples import RECIPE_FILES, example
from training.contract.artifact import commit_record
from training.contract.identity.generated_sources import SOURCES
from training.contract.job import DataError
from training.contract.records import RecipeError, read_record, varied, write_record
from training.data.checksum_cache import forget
from training.data.crawl.settings import SnapshotRecipe
from training.data.exams.settings import BenchmarkRecipe
from training.data.sources import _checksum_of_local
from training.pretrain.watch.settings import WatchRecipe
from training.pretrain.watch.steps_settings import KeptEpochsRecipe
from training.quantize.settings import QuantizeRecipe
from training.recipe.recipe import SECTIONS
from training.recipe.settings.judged_chat import JudgedChatRecipe
from training.recipe.settings.safety import SafetyRecipe

LADDER = {"ladder_plan", "ladder_model", "scaling_fit"}  # only of recipes that have one
MIXTURE = {"reference_plan", "reference_model", "mixture_weights"}  # likewise
LONG = {"long_context_plan", "long_context_model"}
STEPS = {"kept_steps", "averaged_model", "step_scores", "learning_curves", "chosen_model"}
LATER_STEPS = {"kept_long_context_steps", "kept_sft_steps", "kept_align_steps"}
ASKED = {"judged_chat", "safety_answers", "checked_suites", "quantized_model", "quantized_scores"}
OPTIONAL = (
    LADDER
    | MIXTURE
    | LONG
    | STEPS
    | LATER_STEPS
    | ASKED
    | {"adopted_model", "prompt_data", "synthetic_text", "synthetic_row_index"}
)  # only of recipes that ask for it


def assets_to_do(recipe, root):
    return {cell.asset for cell in compare(recipe, root).to_do()}


def test_a_fresh_root_lacks_everything_and_a_made_one_nothing(kitchen, made, tmp_path):
    assert assets_to_do(kitchen, tmp_path) == set(CHAIN) - OPTIONAL
    assert assets_to_do(kitchen, made) == set()


def test_one_filter_threshold_makes_exactly_its_descendants_outdated(kitchen, made):
    changed = replace(kitchen, filter=replace(kitchen.filter, gopher_min_words=60))
    comparison = compare(changed, made)
    outdated = {"filtered_documents"} | descendants("filtered_documents") - OPTIONAL
    assert {cell.asset for cell in comparison.to_do()} == outdated
    reasons = comparison.cells["filtered_documents", "kitchen@kitchen-1"].reasons
    assert reasons == ("filter.gopher_min_words: 50 → 60",)
    assert all(cell.state == "outdated" for cell in comparison.to_do())


def test_another_version_of_a_stage_is_a_reason(kitchen, made, monkeypatch):
    card = CHAIN["model_card"]
    monkeypatch.setitem(CHAIN, "model_card", replace(card, stage=replace(card.stage, version="next")))
    comparison = compare(kitchen, made)
    version = f"stage_version: {card.stage.version} → next"
    assert comparison.cells["model_card", "kitchen"].reasons == (version,)
    said = rf"model_card \[kitchen\] is outdated \({version}\) under .*`pedigree run k.yaml --until model_card`"
    with pytest.raises(DataError, match=said):  # for `chat`, `serve` and `export`
        comparison.made("model_card", "kitchen", named="k.yaml")


def test_fields_that_a_record_lacks_at_their_defaults_are_no_reason(kitchen, tmp_path):
    key = ("training_plan", "kitchen")
    whole = write_record(kitchen.pretrain.batches)
    del whole["batch_warmup"]
    while to_do := (comparison := compare(kitchen, tmp_path)).to_do(key[0]):
        then = {"pretrain": whole} if to_do[0].key == key else {}
        make_one(comparison, replace(to_do[0], settings=to_do[0].settings | then))
    assert compare(kitchen, tmp_path).cells[key].state == "made"
    changed = replace(kitchen, pretrain=replace(kitchen.pretrain, seed=kitchen.pretrain.seed + 1))
    assert compare(changed, tmp_path).cells[key].reasons == (
        f"pretrain.seed: {kitchen.pretrain.seed} → {kitchen.pretrain.seed + 1}",
    )


def test_a_section_that_this_code_cannot_read_leaves_the_other_sections_as_read():
    unknown = ("adopt", "decontaminate", "extract", "filter", "kitchen", "quality")
    known = ("align", "dedup", "ladder", "mixture", "reward", "shards")
    old = {name: {"a field of other code": 1} if name in unknown else {} for name in (*unknown, *known)}
    new = {name: write_record(read_record(SECTIONS[name], {})) for name in old}
    assert as_read(old, new) == ({**old, **{name: new[name] for name in known}}, new)


def test_a_source_that_writes_something_else_marks_what_reads_it_and_nothing_more(kitchen, tmp_path, monkeypatch):
    """A recipe of a real crawl that reads nothing of the kitchen; the same with prompts of it; and the kitchen."""
    monkeypatch.setenv("PEDIGREE_DATA", str(tmp_path / "data"))
    crawl = load_recipe("webdocs")
    for name in names_of_files(write_record(crawl)):
        file = tmp_path / "data" / name.removeprefix("data://")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    monkeypatch.setitem(SOURCES, "kitchen", replace(SOURCES["kitchen"], version="1"))
    prompted = replace(crawl, evaluation=replace(crawl.evaluation, alignment_prompts="kitchen://alignment"))
    before = [compare(recipe, tmp_path).cells for recipe in (crawl, prompted, kitchen)]
    for recipe, cells, asset in ((prompted, before[1], "preference_data"), (kitchen, before[2], "instruction_data")):
        for name in ("benchmark_index", asset):
            make_one(compare(recipe, tmp_path), cells[name, recipe.name])
    monkeypatch.setitem(SOURCES, "kitchen", replace(SOURCES["kitchen"], version="2"))
    after = [compare(recipe, tmp_path).cells for recipe in (crawl, prompted, kitchen)]
    marked = [
        {asset for asset, partition in old if old[asset, partition].fingerprint != new[asset, partition].fingerprint}
        for old, new in zip(before, after, strict=True)
    ]
    judged = {"alignment_rewards", "model_card", "promoted_model"}
    assert marked == [set(), judged, {asset for asset, _ in before[2]}]
    assert after[1]["preference_data", "webdocs"].state == "made"
    reasons = ("sources.kitchen: '1' → '2'", "input benchmark_index is another one")
    assert after[2]["instruction_data", "kitchen"].reasons == reasons


def test_what_is_outdated_can_still_be_looked_at(kitchen, made, tmp_path):
    changed = replace(kitchen, filter=replace(kitchen.filter, gopher_min_words=60))
    cell = compare(changed, made).cells["filtered_documents", "kitchen@kitchen-1"]
    now = compare(kitchen, made).cells[cell.key].artifact
    assert cell.artifact is None and last_made(cell, made).record == now.record
    assert last_made(cell, tmp_path) is None


def test_an_added_suite_remakes_the_scan_the_scores_and_what_judges_them_only(kitchen, made):
    suite = BenchmarkRecipe(name="more", uri="kitchen://chat", kind="chat")
    changed = replace(kitchen, evaluation=replace(kitchen.evaluation, suites=(*kitchen.evaluation.suites, suite)))
    scored = {"model_scores", "alignment_rewards", "contamination_report", "model_card", "promoted_model"}
    assert assets_to_do(changed, made) == scored | {"data_contamination"}


def test_an_input_that_was_not_read_before_is_new_and_one_that_changed_is_another(kitchen, made):
    more = replace(kitchen, snapshots=(*kitchen.snapshots, replace(kitchen.snapshots[-1], name="kitchen-3")))
    changed = replace(more, filter=replace(more.filter, gopher_min_words=60))
    said = [compare(one, made).cells["corpus_summary", "kitchen"].reasons for one in (more, changed)]
    assert said[0] == ("input token_shards of kitchen-3 is new",)
    assert "input token_shards of kitchen-1 is another one" in said[1] and said[0][0] in said[1]


def test_another_reward_model_judges_again_and_trains_only_what_learns_from_it(kitchen, made, tmp_path):
    judged = {"reward_model", "alignment_rewards", "model_card", "promoted_model"}
    prompted = replace(kitchen, evaluation=replace(kitchen.evaluation, alignment_temperature=0.9))
    assert assets_to_do(prompted, made) == judged - {"reward_model"}
    for name in ("kitchen", "kitchen-rl"):
        recipe = load_recipe(name)
        changed = replace(recipe, reward=replace(recipe.reward, seed=recipe.reward.seed + 1))
        before, after = (compare(one, tmp_path).cells for one in (recipe, changed))
        marked = {asset for asset, key in before if before[asset, key].fingerprint != after[asset, key].fingerprint}
        trained = {"aligned_model", "model_scores", "contamination_report"} if name == "kitchen-rl" else set()
        assert marked == judged | trained


def test_a_comment_or_another_spelling_of_the_file_remakes_nothing(kitchen, made, tmp_path):
    text = "\n".join(line.partition("  #")[0] for line in find_recipe("kitchen").read_text("utf-8").splitlines())
    (tmp_path / "kitchen.yaml").write_text("# another comment\n" + text)
    assert assets_to_do(load_recipe(str(tmp_path / "kitchen.yaml")), made) == set()


def test_a_learning_rate_leaves_the_plan_alone(kitchen, made):
    changed = replace(kitchen, pretrain=replace(kitchen.pretrain, learning_rate=1e-3))
    assert "training_plan" not in assets_to_do(changed, made) and "base_model" in assets_to_do(changed, made)


def test_kitchen_rl_shares_every_artifact_up_to_the_reward_model(kitchen, made):
    comparison = compare(load_recipe("kitchen-rl"), made)
    differs = {cell.asset for cell in comparison.cells.values() if cell.artifact is None}
    # The card describes the whole recipe, its name included.
    own = {"prompt_data", "row_index", "data_contamination", "aligned_model"}
    assert differs == own | descendants("aligned_model") - OPTIONAL
    shared = comparison.cells["reward_model", "kitchen-rl"]
    assert shared.state == "made" and not shared.is_recorded


def test_kitchen_leak_shares_everything_up_to_decontamination(made):
    comparison = compare(load_recipe("kitchen-leak"), made)
    differs = {cell.asset for cell in comparison.cells.values() if cell.artifact is None}
    decontaminated = {"decontaminated_documents", "instruction_data", "preference_data"}
    assert differs == decontaminated.union(*map(descendants, decontaminated)) - OPTIONAL


def test_a_ladder_shares_the_corpus_and_each_rung_has_its_own_plan(made):
    recipe = replace(example("kitchen-ladder"), tokenizer=load_recipe("kitchen").tokenizer)
    comparison = compare(recipe, made)
    lacking = {cell.asset for cell in comparison.cells.values() if cell.artifact is None}
    assert lacking == {*LADDER, "model_card", "promoted_model"}  # the card describes the whole recipe
    rungs = {cell.part: cell.settings for cell in comparison.cells.values() if cell.asset == "ladder_model"}
    assert rungs["a-64"]["model"]["width"] == 64 and rungs["b-96"]["pretrain"]["tokens"] == 376_832
    inputs = comparison.cells["scaling_fit", "kitchen-ladder"].inputs
    assert inputs == tuple(("ladder_model", f"kitchen-ladder@{name}") for name in rungs)
    assert comparison.cells["ladder_model", "kitchen-ladder@b-96"].inputs[0] == ("ladder_plan", "kitchen-ladder@b-96")


def test_synthetic_text_is_made_of_the_model_that_the_recipe_names_and_of_no_other(made, tmp_path):
    recipe = example("kitchen-synthetic")
    comparison = compare(recipe, made)
    lacking = {cell.asset for cell in comparison.cells.values() if cell.artifact is None}
    assert lacking == {
        "synthetic_text",
        "synthetic_row_index",
        "model_card",
        "promoted_model",
    }  # the card: the whole recipe
    assert comparison.cells["synthetic_text", recipe.name].inputs == (("base_model", recipe.name),)
    until = {cell.asset for cell in compare(recipe, tmp_path).to_do("synthetic_text")}
    assert "base_model" in until and not until & {"sft_model", "aligned_model", "reward_model"}
    aligned = replace(recipe, synthesis=replace(recipe.synthesis, generator="aligned_model"))
    assert compare(aligned, made).cells["synthetic_text", recipe.name].inputs == (("aligned_model", recipe.name),)


def test_weights_by_doremi_come_before_the_plan_of_the_recipes_that_ask_for_them(made):
    plain = compare(load_recipe("kitchen"), made)
    assert not MIXTURE & {asset for asset, _ in plain.cells}
    comparison = compare(example("kitchen-mixture"), made)
    lacking = {cell.asset for cell in comparison.cells.values() if cell.artifact is None}
    later = descendants("token_shards") - {"watched_items"}  # which reads shards only for languages
    assert lacking == {"token_shards"} | later - (OPTIONAL - MIXTURE)
    plan = comparison.cells["training_plan", "kitchen-mixture"]
    assert plan.inputs[-1] == ("mixture_weights", "kitchen-mixture")
    reference = comparison.cells["reference_model", "kitchen-mixture"].settings
    assert reference["model"]["width"] == 96 and reference["pretrain"]["tokens"] == 307_200
    assert not comparison.cells["reference_plan", "kitchen-mixture"].settings["mixture"]["phases"]


def test_a_long_context_stage_stands_between_the_base_model_and_fine_tuning(made):
    recipe = example("kitchen-long-context")
    comparison = compare(recipe, made)
    lacking = {cell.asset for cell in comparison.cells.values() if cell.artifact is None}
    assert lacking == LONG | descendants("long_context_model") - OPTIONAL
    assert comparison.cells["base_model", recipe.name].state == "made"
    began = [asset for asset, _ in comparison.cells["sft_model", recipe.name].inputs]
    assert began == ["long_context_model", "instruction_data"]
    settings = comparison.cells["long_context_model", recipe.name].settings
    assert settings["model"]["rope_scaling"]["kind"] == "yarn" and settings["short"] == {"sequence_length": 256}
    assert settings["pretrain"]["sequence_length"] == 1024 and settings["pretrain"]["optimizer"] == "muon"
    kitchen = compare(load_recipe("kitchen"), made).cells["sft_model", "kitchen"]
    assert [asset for asset, _ in kitchen.inputs] == ["base_model", "instruction_data"]


def test_a_stricter_gate_on_needles_makes_the_plan_of_longer_rows_not_again(made):
    recipe = example("kitchen-long-context")
    stricter = replace(recipe, long_context=replace(recipe.long_context, min_needle_score=0.9))
    changed = {
        key[0]
        for key, cell in compare(stricter, made).cells.items()
        if cell.fingerprint != compare(recipe, made).cells[key].fingerprint
    }
    assert changed == {"long_context_model"} | descendants("long_context_model") - OPTIONAL


def test_a_teacher_is_what_it_is_and_not_where_it_lies(kitchen, tmp_path):
    fingerprints = {}
    for place, content in (("here", "{}"), ("there", "{}"), ("other", "{ }")):
        folder = tmp_path / place / "model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(content)
        distill = replace(kitchen.pretrain.distill, teacher=str(folder))
        taught = replace(kitchen, pretrain=replace(kitchen.pretrain, distill=distill))
        comparison = compare(taught, tmp_path)
        fingerprints[place] = comparison.cells["base_model", "kitchen"].fingerprint
        assert comparison.cells["base_model", "kitchen"].settings["teacher"]["path"] == str(folder)
    assert fingerprints["here"] == fingerprints["there"] != fingerprints["other"]
    lost = replace(kitchen.pretrain, distill=replace(distill, teacher=str(tmp_path / "lost")))
    with pytest.raises(DataError, match="no artifact"):
        compare(replace(kitchen, pretrain=lost), tmp_path)


def test_what_another_recipe_made_is_named_and_not_looked_for(kitchen, made, tmp_path):
    student = example("kitchen-distilled")
    cell = compare(student, made).cells["base_model", student.name]
    teacher = compare(kitchen, made).cells["base_model", "kitchen"].artifact
    assert cell.settings["teacher"] == {"digest": teacher.digest, "path": str(teacher.path)}
    with pytest.raises(DataError, match="made://base_model/kitchen: not made"):
        compare(student, tmp_path)
    waiting = compare(student, tmp_path, skip_unavailable=True).cells
    assert waiting["base_model", student.name].state == "unavailable"
    assert waiting["tokenizer", student.name].state == "missing"


def test_a_snapshot_of_what_another_recipe_wrote_is_its_files(kitchen, made):
    written = compare(kitchen, made).cells["instruction_data", "kitchen"].artifact
    (written.path / "rows.jsonl").write_text('{"text": "a"}\n')
    snapshot = SnapshotRecipe(name="written", source="jsonl", paths=("made://instruction_data/kitchen/rows.jsonl",))
    reading = replace(kitchen, name="reading", snapshots=(*kitchen.snapshots, snapshot))
    cell = compare(reading, made).cells["crawl_archives", "reading@written"]
    assert cell.settings["snapshot"]["paths"] == [str(written.path / "rows.jsonl")]
    assert [file["name"] for file in cell.settings["files"]] == ["rows.jsonl"]


def test_a_new_snapshot_remakes_no_older_one(kitchen, made):
    changed = replace(kitchen, snapshots=(*kitchen.snapshots, SnapshotRecipe(name="kitchen-3", source="kitchen")))
    comparison = compare(changed, made)
    snapshots = {cell.part for cell in comparison.to_do() if CHAIN[cell.asset].scope == "snapshot"}
    assert snapshots == {"kitchen-3"}
    assert comparison.cells["tokenizer", "kitchen"].state == "made"
    assert comparison.cells["training_plan", "kitchen"].state == "outdated"


def test_a_snapshot_that_is_no_longer_named_is_told_where_it_was_read(kitchen, made):
    comparison = compare(replace(kitchen, snapshots=kitchen.snapshots[:1]), made)
    assert comparison.cells["token_shards", "kitchen@kitchen-1"].state == "made"
    plan = comparison.cells["training_plan", "kitchen"]
    assert plan.state == "outdated" and "input token_shards of kitchen-2 is no longer read" in plan.reasons


def test_an_input_made_again_with_another_result_outdates_what_was_made_from_it(kitchen, tmp_path):
    make_all(kitchen, tmp_path)
    comparison = compare(kitchen, tmp_path)
    make_one(comparison, comparison.cells["instruction_data", "kitchen"], content="other rows")
    assert assets_to_do(kitchen, tmp_path) == descendants("instruction_data") - OPTIONAL


def test_what_stands_behind_a_refused_artifact_is_named(kitchen, tmp_path):
    comparison = make_all(kitchen, tmp_path, failing={"contamination_report": "contamination"})
    assert {cell.asset for cell in comparison.to_do()} == {"model_card", "promoted_model"}
    refusing = comparison.refused_by(comparison.cells["model_card", "kitchen"])
    assert refusing is not None and refusing.asset == "contamination_report"


def test_a_limit_of_safety_makes_card_and_decision_outdated_and_nothing_that_is_trained(kitchen, tmp_path):
    limited = replace(kitchen, safety=SafetyRecipe(max_answered_harmful=0.1))
    assert make_all(kitchen, tmp_path).to_do() == []  # without limits nothing is asked
    to_do = {cell.asset for cell in compare(limited, tmp_path).to_do()}
    assert to_do == {"safety_answers", "model_card", "promoted_model"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"filter": {"rules": ("gopher_quality",)}}, "filter.rules has no rule language, which tells them; add it"),
        ({"mixture": {"held_out_fraction": 0.0}}, "pretrain.watch.languages needs held-out text"),
        ({"pretrain": {"watch": {"every": None}}}, "pretrain.watch.languages: without effect, because every is null"),
    ],
)
def test_languages_that_cannot_be_watched_are_refused_when_the_recipe_is_read(kitchen, changes, said):
    with pytest.raises(RecipeError, match=re.escape(said)):
        _check_watched(varied(watching(kitchen, languages=True, suites=(), items="auto"), changes))


def test_every_training_waits_for_the_verdict_on_its_data_unless_the_recipe_wants_it_after(kitchen, tmp_path):
    trainings = {name for name, one in CHAIN.items() if one.stage.by_a_model and one.inputs and name.endswith("_model")}
    made_of_models = {"chosen_model", "quantized_model"}
    trainings = trainings - made_of_models | {"kept_steps", *LATER_STEPS}
    assert trainings == {name for name, declared in CHAIN.items() if trains(declared)} >= {"base_model", "ladder_model"}
    comparison = make_all(kitchen, tmp_path, failing={"data_contamination": "contamination"})
    left = {cell.asset for cell in comparison.to_do()}
    assert left == {"base_model", "contamination_report"} | descendants("base_model") - OPTIONAL
    base = comparison.cells["base_model", "kitchen"]
    refusing = comparison.refused_by(base)
    assert refusing is not None and refusing.asset == "data_contamination" and not comparison.refused_by(refusing)
    assert {cell.asset for cell in compare(kitchen, tmp_path / "new").to_do("base_model")} >= {"data_contamination"}
    after = compare(replace(kitchen, evaluation=replace(kitchen.evaluation, contamination="after")), tmp_path)
    cell = after.cells["base_model", "kitchen"]
    assert cell.guards == (("watched_items", "kitchen"),) and after.refused_by(cell) is None
    assert cell.fingerprint == base.fingerprint
    assert after.cells["data_contamination", "kitchen"].artifact is None  # it would have the gate


WATCH = WatchRecipe(every="log", suites=("cloze", "sums"), items=20)


def watching(recipe, **changes):
    return replace(recipe, pretrain=replace(recipe.pretrain, watch=replace(WATCH, **changes)))


@pytest.mark.parametrize("file", RECIPE_FILES, ids=lambda file: file.stem)
def test_watching_changes_no_fingerprint(file, tmp_path):
    loaded = load_recipe(str(file))
    plain = replace(loaded, pretrain=replace(loaded.pretrain, watch=WatchRecipe()))
    if not plain.snapshots:  # trains no base model
        with pytest.raises(RecipeError, match=r"pretrain\.watch\.suites: needs a corpus"):
            watching(plain)
        return
    suites = tuple(suite.name for suite in plain.evaluation.suites)
    watched = watching(plain, suites=suites, items=WATCH.items if suites else "auto")
    before, after = (compare(recipe, tmp_path, skip_unavailable=True).cells for recipe in (plain, watched))
    assert {key for key in before if before[key].fingerprint != after[key].fingerprint} == set()
    assert {asset for asset, _ in after.keys() - before.keys()} == (
        {"watched_items"} if plain.evaluation.suites else set()
    )


def test_a_training_that_is_made_stays_made_when_it_is_watched_later(kitchen, made):
    comparison = compare(watching(kitchen), made)
    assert {cell.asset for cell in comparison.to_do()} == {"watched_items"}
    base, items = (comparison.cells[name, "kitchen"] for name in ("base_model", "watched_items"))
    assert items.key in base.guards and base.settings["watch"] == write_record(WATCH)
    others = [compare(watching(kitchen, **one), made).cells[items.key] for one in ({"seed": 1}, {"items": 21})]
    assert len({items.fingerprint, *(one.fingerprint for one in others)}) == 3
    by_language = compare(watching(kitchen, suites=(), items="auto", languages=True), made)
    assert by_language.cells[base.key].fingerprint == base.fingerprint and by_language.cells[base.key].state == "made"
    read = {asset for asset, _ in by_language.cells[items.key].inputs}
    assert read == {"tokenizer", "training_plan", "token_shards", "decontaminated_documents"}
    assert {asset for asset, _ in items.inputs} == {"tokenizer"}
    assert compare(watching(kitchen, every=7), made).cells[items.key].fingerprint == items.fingerprint


@pytest.mark.parametrize(
    ("suites", "said"),
    [
        ("chat", "'chat' cannot be watched, because its answers are written, not scored by likelihood; take it out"),
        ("questions", "'questions' cannot be watched, because its answers are written, not scored by likelihood"),
        ("cluze", "[0]: 'cluze' is not one of 'cloze', 'sums', 'questions', 'chat'; did you mean `cloze`?"),
    ],
)
def test_a_suite_that_cannot_be_watched_is_refused_when_the_recipe_is_read(tmp_path, suites, said):
    file = tmp_path / "watching.yaml"
    file.write_text(f"extends: kitchen\nname: watching\npretrain: {{watch: {{every: log, suites: [{suites}]}}}}\n")
    with pytest.raises(RecipeError) as error:
        load_recipe(str(file))
    assert "pretrain.watch.suites" in str(error.value) and said in str(error.value)


TASK = {"doc_to_text": "question", "doc_to_target": "gold", "doc_to_choice": "choices"}


@pytest.mark.parametrize(
    ("suite", "unfit"),
    [
        ({"task": "arc_easy"}, ""),
        ({"task": "lambada_openai"}, "perplexity"),
        ({"task": "lambada_openai", "metric": "acc"}, ""),
        ({"lm_eval": TASK | {"output_type": "multiple_choice"}}, ""),
        ({"lm_eval": TASK | {"output_type": "loglikelihood"}}, "perplexity"),
        ({"lm_eval": TASK | {"output_type": "multiple_choice", "metric_list": [{"metric": "f1"}]}}, "f1"),
    ],
)
def test_a_suite_whose_score_no_likelihoods_give_is_refused_when_the_recipe_is_read(tmp_path, suite, unfit):
    named = {"name": "own", "uri": "kitchen://cloze", "kind": "multiple_choice", **suite}
    watch = {"every": "log", "suites": ["own"]}
    recipe = {"extends": "kitchen", "name": "own", "pretrain": {"watch": watch}, "evaluation": {"suites": [named]}}
    file = tmp_path / "own.yaml"
    file.write_text(json.dumps(recipe))
    if not unfit:
        load_recipe(str(file))
        return
    with pytest.raises(
        RecipeError, match=rf"'own' cannot be watched, because its score is {unfit}, and only acc, acc_"
    ):
        load_recipe(str(file))


def test_a_guard_that_was_changed_after_the_training_is_noticed(kitchen, tmp_path):
    comparison = make_all(kitchen, tmp_path)
    guard = comparison.cells["data_contamination", "kitchen"].artifact
    commit_record(guard.path, {**guard.record, "notes": {"verdict": "clean after all"}})
    for reference in (tmp_path / "refs" / "data_contamination").iterdir():
        reference.unlink()
    for asset in ("contamination_report", "model_card"):  # what reads it as an input
        shutil.rmtree(tmp_path / asset)
    cell = compare(kitchen, tmp_path).cells["data_contamination", "kitchen"]
    assert cell.state == "damaged" and any("_model [kitchen] was made from it" in line for line in cell.reasons)


UNKNOWN = "the same fingerprint with another result; the numerics class of one of them is not on record"


@pytest.mark.parametrize(
    ("asset", "why", "classes"),
    [("instruction_data", "the same fingerprint with another result", 0), ("base_model", UNKNOWN, 2)],
)
def test_what_was_made_again_with_another_result_is_told_of_its_reader(kitchen, tmp_path, asset, why, classes):
    comparison = make_all(kitchen, tmp_path)
    cell = comparison.cells[asset, "kitchen"]
    cell.artifact.path.rename(cell.artifact.path.with_name(f"{cell.fingerprint}.replaced-1"))
    again = make_one(comparison, cell, content="another")
    assert compare(kitchen, tmp_path).cells["sft_model", "kitchen"].reasons == (f"input {asset} was made again: {why}",)
    lines = ["numerics class: not on record", f"replaced {cell.artifact.digest[:12]} by {again.digest[:12]}: {why}"]
    assert class_lines(asset, again) == lines[:classes]
    commit_record(again.path, {**again.record, "replaces": [cell.artifact.record_digest]})
    write_reference(tmp_path, cell.artifact, "kitchen")  # as where a run of another recipe made it again
    there = compare(kitchen, tmp_path).cells[cell.key]
    assert (there.state, there.is_recorded) == ("made", False)
    shutil.rmtree(again.path)
    assert compare(kitchen, tmp_path).cells["sft_model", "kitchen"].reasons == (f"input {asset} is to be made again",)


def test_an_artifact_made_again_replaces_every_digest_that_points_to_the_lost_one(kitchen, tmp_path):
    cells = make_all(kitchen, tmp_path).cells
    cell = cells["data_contamination", "kitchen"]
    commit_record(cell.artifact.path, {**cell.artifact.record, "replaces": ["earlier", ""]})
    for asset, name in (("base_model", "guards"), ("contamination_report", "inputs")):
        made = cells[asset, "kitchen"].artifact
        items = [item | ({"record_digest": name} if item["asset"] == cell.asset else {}) for item in made.record[name]]
        commit_record(made.path, {**made.record, name: items})
    comparison, told = compare(kitchen, tmp_path), cell.artifact.record_digest  # by the guards of the other trainings
    asking = replace(cell, reference=replace(cell.reference, record_digest="reference"))
    digests = {"earlier", "guards", "inputs", "reference", told}
    assert held_digests(comparison, asking) == tuple(sorted(digests))
    shutil.rmtree(cell.artifact.path)
    outdated = replace(cell, reference=replace(asking.reference, fingerprint="of another artifact"))
    assert held_digests(comparison, outdated) == tuple(sorted(digests - {"earlier", "reference"}))


def test_a_snapshot_that_is_not_there_stops_a_run_and_lets_automation_go_on_with_the_rest(kitchen, tmp_path):
    absent = SnapshotRecipe(name="later", source="warc", paths=(str(tmp_path / "nothing" / "*.warc.gz"),))
    changed = replace(kitchen, snapshots=(*kitchen.snapshots, absent))
    with pytest.raises(DataError, match="nothing"):
        compare(changed, tmp_path)
    comparison = compare(changed, tmp_path, skip_unavailable=True)
    assert comparison.cells["crawl_archives", "kitchen@later"].state == "unavailable"
    assert comparison.cells["training_plan", "kitchen"].state == "unavailable"
    assert comparison.cells["tokenizer", "kitchen"].state == "missing"


def test_a_moved_folder_of_archives_is_the_same_snapshot(kitchen, tmp_path):
    fingerprints = set()
    for place in ("here", "there"):
        folder = tmp_path / place
        folder.mkdir()
        (folder / "a.warc").write_bytes(b"WARC/1.0\r\n\r\n")
        snapshot = SnapshotRecipe(name="moved", source="warc", paths=(str(folder),))
        changed = replace(kitchen, snapshots=(*kitchen.snapshots, snapshot))
        os.utime(folder / "a.warc", ns=(10**18, 10**18))
        fingerprints.add(compare(changed, tmp_path).cells["crawl_archives", "kitchen@moved"].fingerprint)
    assert len(fingerprints) == 1
    _checksum_of_local.cache_clear()  # as another process begins: it takes what the root's table keeps
    (folder / "a.warc").write_bytes(b"WARC/1.1\r\n\r\n")
    os.utime(folder / "a.warc", ns=(10**18, 10**18))
    assert compare(changed, tmp_path).cells["crawl_archives", "kitchen@moved"].fingerprint in fingerprints
    forget(tmp_path)
    _checksum_of_local.cache_clear()
    assert compare(changed, tmp_path).cells["crawl_archives", "kitchen@moved"].fingerprint not in fingerprints


def names_of_files(value, scheme="data://"):
    if isinstance(value, dict | list | tuple):
        return {
            name for item in (value.values() if isinstance(value, dict) else value) for name in names_of_files(item)
        }
    return {value} if isinstance(value, str) and value.startswith(scheme) else set()


def reading(kitchen, folder):
    """A recipe that reads what the kitchen made in every way there is, and files of its own in `folder`."""
    made = "made://instruction_data/kitchen/data.txt"
    (folder / "own").mkdir(parents=True)
    (folder / "own" / "rows.jsonl").write_text('{"text": "a"}\n')
    rows, pages = str(folder / "own" / "rows.jsonl"), folder / "withdrawn.txt"
    pages.write_text("a.example/page\n")
    asked = folder / "own" / "asked.jsonl"
    asked.write_text('{"question_id": 1, "turns": ["a?"], "request": "a?", "text": "a"}\n')
    judge = {"endpoint": "http://judge.example/v1", "endpoint_model": "judge"}
    snapshots = (
        SnapshotRecipe(name="written", source="jsonl", paths=(made,)),
        SnapshotRecipe(name="own", source="jsonl", paths=(str(folder / "own"),)),
    )
    source = kitchen.sft.data[0]
    distill = replace(kitchen.pretrain.distill, teacher="made://base_model/kitchen")
    kept = KeptEpochsRecipe(steps=(1,))
    return replace(
        kitchen,
        name="reading",
        snapshots=(*kitchen.snapshots, *snapshots),
        quality=replace(kitchen.quality, reference=(made, rows)),
        extract=replace(kitchen.extract, takedown=(str(pages),)),
        pretrain=replace(kitchen.pretrain, distill=distill),
        sft=replace(
            kitchen.sft, data=(*kitchen.sft.data, replace(source, uri=made), replace(source, uri=rows)), keep=kept
        ),
        align=replace(kitchen.align, keep=kept),
        synthesis=replace(kitchen.synthesis, prompts=made),
        evaluation=replace(kitchen.evaluation, alignment_prompts=made),
        judged_chat=JudgedChatRecipe(questions=str(asked), **judge),
        safety=SafetyRecipe(max_answered_harmful=0.1, harmful=str(asked)),
        quantize=QuantizeRecipe(method="int8"),
    )


def test_nothing_of_a_fingerprint_is_a_path(kitchen, tmp_path, monkeypatch):
    """Every cell of the shipped recipes and of one that reads files: the same in two places, and no path in sight."""
    # own-model begins with a folder of a real model, which is read at once
    shipped = [load_recipe(str(path)) for path in RECIPE_FILES if path.stem != "own-model"]
    found = []
    for place in ("here", "elsewhere/further"):
        root, data = tmp_path / place / "root", tmp_path / place / "data"
        monkeypatch.setenv("PEDIGREE_DATA", str(data))
        for name in set().union(*(names_of_files(write_record(recipe)) for recipe in shipped)):
            file = data / name.removeprefix("data://")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)
        recipes = [*shipped, reading(kitchen, tmp_path / place)]
        make_all(kitchen, root)
        cells = [cell for recipe in recipes for cell in compare(recipe, root).cells.values()]
        found.append({cell.key: cell.fingerprint for cell in cells})
        assert not any(cell.state == "unavailable" for cell in cells)
        cards = [cell.settings for cell in cells if cell.asset == "model_card"]
        assert len(cards) == len(recipes) and str(root) not in json.dumps(cards)  # a card names what was made
    assert found[0] == found[1]
    not_asked = {"adopted_model", "averaged_model", "chosen_model", "kept_long_context_steps"}
    assert {asset for asset, _ in found[0]} == set(CHAIN) - not_asked
