from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from assets.recipe_folders import find_recipe, load_recipe
from training.records import RecipeError


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
    ladder = yaml.safe_load(find_recipe("kitchen-ladder").read_text())["ladder"]
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
            "extends: kitchen\nname: x\nshards: {buckets: perplexity}\nfilter: {rules: []}\n",
            "needs 'perplexity' in filter.rules",
        ),
        ("extends: kitchen\nname: x\nshards: {quality_limits: [0.1, 0.2]}\n", "the higher one first"),
        ("extends: kitchen\nname: x\nfilter: {min_word: 5}\n", "filter.min_word: unknown field"),
    ],
)
def test_a_bad_recipe_is_refused_with_file_field_and_what_is_right(tmp_path, text, said):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(RecipeError) as error:
        load_recipe(str(tmp_path / "bad.yaml"))
    assert said in str(error.value) and "bad.yaml" in str(error.value)


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "it's", "a b", ".hidden", "x" * 129, 'a"b', "a\\nb", "a%b"])
def test_a_model_name_that_the_registry_refuses_is_refused_when_the_recipe_is_read(tmp_path, name):
    with pytest.raises(RecipeError, match=r"promote\.model_name: .* must be 1 to 128 letters"):
        load_recipe(variant(tmp_path, f"promote: {{model_name: {json.dumps(name)}}}"))
