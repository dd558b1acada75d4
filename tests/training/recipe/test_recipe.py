from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from assets.state.chain import CHAIN, input_partitions
from assets.state.recipe_folders import load_recipe
from tests.examples import EXAMPLES, RECIPE_FILES
from training.contract.records import RecipeError, uris_in, varied
from training.contract.scopes import last_model
from training.pretrain.watch.keep_settings import KeepRecipe
from training.recipe.recipe import recipe_as_data


def variant(tmp_path: Path, text: str) -> str:
    path = tmp_path / "variant.yaml"
    path.write_text(f"extends: kitchen\nname: variant\n{text}\n", "utf-8")
    return str(path)


def test_a_rung_warms_its_batch_up_over_the_same_share_of_its_budget(tmp_path):
    path = tmp_path / "warm.yaml"
    phases = [
        {"tokens": 122_880, "sequence_length": 128, "global_batch_tokens": 1024},
        {"tokens": 4_096, "sequence_length": 128, "global_batch_tokens": 2048},
    ]
    ladder = yaml.safe_load((EXAMPLES / "kitchen-ladder.yaml").read_text())["ladder"]
    variant = {"extends": "kitchen", "name": "warm", "ladder": ladder, "pretrain": {"batch_warmup": phases}}
    path.write_text(yaml.safe_dump(variant))
    recipe = load_recipe(str(path))
    (phase,) = recipe.on_rung("a-64").pretrain.batch_warmup
    assert phase.tokens == 122_880 * recipe.on_rung("a-64").pretrain.tokens // recipe.pretrain.tokens
    assert phase.global_batch_tokens == 1024


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: [", "not readable as YAML"),
        ("- a\n", "expected a mapping"),
        ("extends: kitchen\nname: Bad Name\n", "must be 1 to 64 characters"),
        ("extends: kitchen\nname: x\nmodel: {heads: 5}\n", "must be a multiple of heads=5"),
        ("extends: kitchen\nname: x\npretrain: {global_batch_tokens: 1000}\n", "not a multiple of sequence_length"),
        ("extends: kitchen\nname: x\ntokenizer: {snapshots: [other]}\n", "is not a snapshot of this recipe"),
        ("extends: kitchen\nname: x\nsnapshots: [{name: a, source: warc}]\n", "needs at least one path"),
        (
            "extends: kitchen\nname: x\nsft: {from_step: 5}\npretrain: {keep: {steps: [3, 7]}}\n",
            "sft.from_step=5: pretrain.keep keeps no such step; it keeps 3, 7",
        ),
        (
            "extends: kitchen\nname: x\nsft: {from_step: sft-step-3, keep: {steps: [3]}}\n",
            "sft.from_step: 'sft-step-3'; the number of a step that pretrain.keep keeps is right. To begin with a kept"
            " step of another training, export it, and name its folder in adopt.model of another recipe",
        ),
        (
            "extends: kitchen\nname: x\nsft: {from_step: 3, data: []}\npreferences: {data: []}\n"
            "promote: {min_scores: {}}\npretrain: {keep: {steps: [3, 7]}}\n",
            "sft.from_step=3: without effect, because sft.data names no conversations; null is right",
        ),
        (
            "extends: kitchen\nname: x\nshards: {buckets: perplexity}\nfilter: {rules: []}\n",
            "needs 'perplexity' in filter.rules",
        ),
        (
            "extends: kitchen\nname: x\nshards: {buckets: none}\nfilter: {rules: []}\ndedup: {survivor: best_score}\n",
            "best_score needs 'classifier' in filter",
        ),
        ("extends: kitchen\nname: x\nshards: {quality_limits: [0.1, 0.2]}\n", "the higher one first"),
        (
            "extends: kitchen\nname: x\npromote: {best_by: clozze}\n",
            "promote.best_by: 'clozze' is not among evaluation.suites (cloze, sums, questions, chat); did you mean",
        ),
        (
            "extends: kitchen\nname: x\nlong_context: {sequence_length: 512, needles: 9, keep: {steps: [3]}}\n",
            "long_context.sequence_length, long_context.needles, long_context.keep: without effect",
        ),
        ("extends: kitchen\nname: x\nfilter: {min_word: 5}\n", "filter.min_word: unknown field"),
    ],
)
def test_a_bad_recipe_is_refused_with_file_field_and_what_is_right(tmp_path, text, said):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(RecipeError) as error:
        load_recipe(str(tmp_path / "bad.yaml"))
    assert said in str(error.value) and "bad.yaml" in str(error.value)


def test_the_best_of_the_last_training_takes_the_place_of_its_last_model(tmp_path):
    align = "promote: {best_by: cloze}\nalign: {keep: {steps: [3]}}\n"
    base = "promote: {best_by: cloze, min_scores: {}}\nsft: {data: []}\npreferences: {data: []}\n"
    base += "pretrain: {keep: {steps: [3, 7], average: {steps: all}}}\n"
    scored = {align: {"base_model", "sft_model", "chosen_model"}, base: {"chosen_model"}}
    for fields, chosen in (
        (align, {"aligned_model", "kept_align_steps"}),
        (base, {"base_model", "kept_steps", "averaged_model"}),
    ):
        recipe = load_recipe(variant(tmp_path, fields))
        inputs = {
            asset: {item.asset for item in CHAIN[asset].inputs if input_partitions(item, recipe, "")}
            for asset in ("chosen_model", "model_scores", "promoted_model", "model_card")
        }
        assert (
            inputs["chosen_model"] == chosen and inputs["model_scores"] - {"decontaminated_documents"} == scored[fields]
        )
        assert inputs["promoted_model"] >= {"chosen_model"} and not inputs["promoted_model"] & chosen
        assert inputs["model_card"] >= {"chosen_model", "base_model"} and last_model(recipe) == "chosen_model"
        for check in CHAIN["chosen_model"].checks:
            check(recipe)
        with pytest.raises(
            RecipeError, match=r"no model to choose but the last one; name kept steps in (align|pretrain)"
        ):
            for check in CHAIN["chosen_model"].checks:
                check(varied(recipe, {"align": {"keep": {"steps": ()}}, "pretrain": {"keep": KeepRecipe()}}))


def test_a_recipe_that_continues_another_one_has_its_budget_and_differs_in_length_alone(tmp_path):
    first = load_recipe("kitchen").pretrain

    def read(text):
        return load_recipe(variant(tmp_path, text))

    more = "continues: {recipe: kitchen}, tokens: 4505600"
    longer = read(f"pretrain: {{{more}, keep: {{every: 800}}, watch: {{every: null, suites: []}}}}").pretrain
    assert (longer.continues.tokens, longer.continued_at, longer.kept_steps) == ((first.tokens,), (770,), (800, 1600))
    (tmp_path / "third.yaml").write_text(
        f"extends: {tmp_path}/variant.yaml\nname: third\n"
        f"pretrain: {{continues: {{recipe: {tmp_path}/variant.yaml, tokens: []}}, tokens: 9011200}}\n"
    )
    third = load_recipe(str(tmp_path / "third.yaml")).pretrain
    assert third.continues.tokens == (first.tokens, 4505600) and third.continued_at == (770, 1540)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learning_rate: 1.0e-3}", "pretrain.learning_rate: 0.003 → 0.001: pretrain.continues names kitchen"),
        ("}\nmodel: {max_length: 300}", "model.max_length: "),
        ("}\nmixture: {max_epochs: 9}", "mixture.max_epochs: "),
        ("}\ntokenizer: {vocabulary: 900}", "tokenizer.vocabulary: "),
        ("continues: {recipe: kitchen, tokens: [5]}}", "tokens: [5], and kitchen has [2252800]; leave the field out"),
        ("continues: {recipe: kitche}}", "no recipe is called 'kitche'"),
        ("continues: {recipe: HERE/variant.yaml}}", "goes on with this training; name one before it"),
    ],
)
def test_a_recipe_that_does_not_continue_what_it_names_is_refused_by_field(tmp_path, text, said):
    own = "" if text.startswith("continues") else "continues: {recipe: kitchen}, "
    with pytest.raises(RecipeError) as error:
        load_recipe(variant(tmp_path, f"pretrain: {{tokens: 4505600, {own}{text}".replace("HERE", str(tmp_path))))
    assert said in str(error.value)


@pytest.mark.parametrize(
    "fields",
    [
        "evaluation: {suites: [{name: q, uri: 'kitchen://questions', kind: generate, max_new_tokens: 999}]}",
        "evaluation: {alignment_max_new_tokens: 999}",
        "align: {method: rloo, max_new_tokens: 999}",
        "synthesis: {prompts: 'kitchen://questions', generator: base_model, max_new_tokens: 999}",
    ],
)
def test_what_a_model_writes_leaves_room_for_a_prompt(tmp_path, fields):
    cleared = "promote: {min_scores: {}}\n"
    positions = load_recipe("kitchen").model.max_length
    load_recipe(variant(tmp_path, cleared + fields.replace("999", str(positions - 1))))
    with pytest.raises(RecipeError, match=f"max_new_tokens.*={positions} leaves no room for a prompt in {positions} "):
        load_recipe(variant(tmp_path, cleared + fields.replace("999", str(positions))))


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "it's", "a b", ".hidden", "x" * 129, 'a"b', "a\\nb", "a%b"])
def test_a_model_name_that_the_registry_refuses_is_refused_when_the_recipe_is_read(tmp_path, name):
    with pytest.raises(RecipeError, match=r"promote\.model_name: "):
        load_recipe(variant(tmp_path, f"promote: {{model_name: {json.dumps(name)}}}"))


@pytest.mark.parametrize(
    "fields",
    [
        "filter: {max_perplexity: 0}",
        "filter: {c4_min_words_per_line: -1}",
        "dedup: {max_line_copies: 0}",
        "pretrain: {spikes: {deviations: 0}}",
        "align: {max_steps: 0}",
        "synthesis: {limit: 0}",
        "doremi: {tokens: 40960, learning_rate: 0}",
        "long_context: {tokens: 40960, sequence_length: 512, global_batch_tokens: 4096, rope_theta: 0}",
        "model: {window: 0}",
        "sft: {data: [{uri: a.jsonl, limit: 0}]}",
    ],
)
def test_a_zero_where_null_means_absent_is_refused(tmp_path, fields):
    with pytest.raises(RecipeError, match=r"=(0|0\.0|-1); above 0"):
        load_recipe(variant(tmp_path, fields))


def texts_of(data: object) -> set[str]:
    """Every text in plain data."""
    if isinstance(data, dict | list):
        return set().union(*map(texts_of, data.values() if isinstance(data, dict) else data))
    return {data} if isinstance(data, str) else set()


@pytest.mark.parametrize("path", RECIPE_FILES, ids=lambda path: path.stem)
def test_every_address_in_a_shipped_recipe_is_of_the_type_that_says_so(path):
    recipe = load_recipe(str(path))
    addresses = {text for text in texts_of(recipe_as_data(recipe)) if "://" in text}
    of_a_crawl = {place for one in recipe.snapshots for place in (*one.paths, one.base_url)}
    of_models = filter(None, [recipe.pretrain.distill.teacher, recipe.adopt.model])
    assert addresses == {*uris_in(recipe), *of_a_crawl, *of_models}
