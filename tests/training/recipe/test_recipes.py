from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from assets.state.recipe_folders import SHIPPED, find_recipe, load_recipe
from tests.examples import RECIPE_FILES
from training.contract.records import RecipeError, read_record, uris_in, varied
from training.contract.secrets import yaml_problem
from training.contract.user_input.plain_data import read_yaml
from training.data.filter.settings import FilterRecipe
from training.pretrain.watch.settings import WatchRecipe
from training.recipe.recipe import Recipe, recipe_as_data
from training.recipe.recipes import RecipeFiles, merged, reads_of_the_kitchen, recipe_of


def test_a_variant_lists_only_its_differences(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: kitchen\nname: mine\nfilter: {gopher_min_words: 60}\n")
    mine, kitchen = load_recipe(str(tmp_path / "mine.yaml")), load_recipe("kitchen")
    assert mine.filter.gopher_min_words == 60 and mine.filter.rules == kitchen.filter.rules
    assert mine.pretrain == kitchen.pretrain


def test_lists_are_replaced_mappings_merge_and_an_empty_mapping_clears():
    base = {"a": {"x": 1, "y": 2}, "b": [1, 2], "c": {"z": 1}}
    assert merged(base, {"a": {"x": 3}, "b": [4], "c": {}}) == {"a": {"x": 3, "y": 2}, "b": [4], "c": {}}


def written(folder, **recipes):
    for name, lines in recipes.items():
        (folder / f"{name}.yaml").write_text(f"name: {name}\n{lines}\n")


def test_a_variant_of_a_variant_lists_only_its_differences(tmp_path):
    written(
        tmp_path,
        one="extends: kitchen\nfilter: {gopher_min_words: 60}\nsft: {epochs: 3.0}",
        two="extends: one\nsft: {epochs: 4.0}",
        three="extends: two\ndescription: the third",
    )
    three = load_recipe("three", folders=(tmp_path, SHIPPED))
    assert (three.filter.gopher_min_words, three.sft.epochs, three.description) == (60, 4.0, "the third")
    assert three.pretrain == load_recipe("kitchen").pretrain


@pytest.mark.parametrize(
    ("recipes", "said"),
    [
        ({"a": "extends: a"}, "a extends a"),
        ({"a": "extends: b", "b": "extends: c", "c": "extends: b"}, "b extends c extends b"),
    ],
)
def test_a_recipe_is_not_its_own_base(tmp_path, recipes, said):
    written(tmp_path, **recipes)
    with pytest.raises(RecipeError, match=f"^a.yaml: {said}; .* base$"):
        load_recipe("a", folders=(tmp_path,))


def test_a_variant_registers_its_model_by_its_own_name_unless_another_is_written(tmp_path):
    written(
        tmp_path,
        one="extends: kitchen",
        two="extends: one\npromote: {model_name: shared, max_score_drop: 0.2}",
        three="extends: two",
    )
    recipes = {name: load_recipe(name, folders=(tmp_path, SHIPPED)) for name in ("kitchen", "one", "two", "three")}
    names = {name: recipe.promote.model_name for name, recipe in recipes.items()}
    assert names == {"kitchen": "kitchen", "one": "one", "two": "shared", "three": "three"}
    assert recipes["three"].promote.max_score_drop == 0.2  # what is asked of a model is handed on
    again = read_record(Recipe, recipe_as_data(recipes["three"]))
    assert again == recipes["three"]  # a recipe that is kept resolved stays what it is


def test_a_variant_does_not_take_the_name_of_its_base(tmp_path):
    written(tmp_path, one="extends: kitchen")
    (tmp_path / "two.yaml").write_text("extends: one\nsft: {epochs: 3.0}\n")
    with pytest.raises(RecipeError, match=r"^two.yaml: name: missing"):
        load_recipe("two", folders=(tmp_path, SHIPPED))
    (tmp_path / "three.yaml").write_text("extends: two\nname: three\n")  # a base may be without one
    assert load_recipe("three", folders=(tmp_path, SHIPPED)).promote.model_name == "three"


def test_no_shipped_variant_takes_the_champion_of_its_base():
    models = {path.stem: load_recipe(str(path)).promote.model_name for path in RECIPE_FILES}
    assert models == {name: name for name in models}


def test_a_gate_on_an_exam_that_a_variant_does_not_sit_is_not_handed_on_nor_is_the_exam_watched(tmp_path):
    suite = "{name: mine, uri: 'kitchen://cloze', kind: multiple_choice}"
    written(
        tmp_path,
        one=f"extends: kitchen\nevaluation: {{suites: [{suite}]}}\npromote: {{min_scores: {{mine: 0.2}}}}",
        two="extends: one",
        three="extends: kitchen",
    )
    loaded = {name: load_recipe(name, folders=(tmp_path, SHIPPED)) for name in ("one", "two", "three")}
    scores = {name: recipe.promote.min_scores for name, recipe in loaded.items()}
    assert scores["one"] == scores["two"] == {"mine": 0.2}
    assert scores["three"] == {"cloze": 0.5, "sums": 0.5}
    watched = {name: recipe.pretrain.watch for name, recipe in loaded.items()}
    assert watched["one"] == watched["two"] == WatchRecipe() and watched["three"].suites == ("cloze", "sums")
    written(tmp_path, four="extends: two\npromote: {min_scores: {other: 0.1}}")  # refused before anything is made
    with pytest.raises(RecipeError, match=r"four.yaml: promote.min_scores: 'other' .*\(mine\)"):
        load_recipe("four", folders=(tmp_path, SHIPPED))


def test_all_wrong_names_of_a_section_are_told_at_once_with_near_ones():
    data = recipe_as_data(load_recipe("kitchen"))
    data["filter"] |= {"rules": ["langage", "url", "c5"], "personal_data": ["phne"], "languages": ["english", "dee"]}
    data["pretrain"] |= {"schedule": "wds"}
    data["model"] |= {"preset": "5m"}
    data["evaluation"] |= {"tolerate_unknown": ["teachr", "exms"]}
    data["evaluation"]["suites"] = [
        {"name": "a", "uri": "x", "kind": "generat"},
        {"name": "b", "uri": "x", "kind": "chat", "task": "piqqa", "lm_eval": {"task": "x", "dataset_path": "y"}},
    ]
    with pytest.raises(RecipeError) as refused:
        recipe_of(data)
    told = [(said.partition(":")[0], said.partition("did you mean ")[2]) for said in refused.value.problems]
    suite = "evaluation.suites[1]"
    assert told == [
        ("model.preset", ""),
        ("filter.personal_data[0]", "`phone`?"),
        ("filter.rules[0]", "`language`?"),
        ("filter.rules[2]", ""),
        ("filter.languages", ""),
        ("filter.languages", ""),
        ("pretrain.schedule", "`wsd`?"),
        ("evaluation.suites[0].kind", "`generate`?"),
        *[(suite, "")] * 3,  # the task, which has near names of its own, and two fields
        ("evaluation.tolerate_unknown[0]", "`teacher`?"),
        ("evaluation.tolerate_unknown[1]", "`exams`?"),
    ]


OWN = "extends: base\nsnapshots:\n- {name: a, source: warc, paths: [/a]}\n- {name: b, source: warc, paths: [/b]}\n"


def test_a_recipe_on_the_neutral_base_has_nothing_of_the_kitchen_and_reads_all_its_snapshots(tmp_path):
    written(tmp_path, mine=OWN)
    mine = load_recipe("mine", folders=(tmp_path, SHIPPED))
    assert mine.tokenizer.snapshots == mine.quality.snapshots == ("a", "b")
    assert list(uris_in(mine)) == [] and mine.filter == varied(
        FilterRecipe(), {"rules": mine.filter.rules, "c4_min_words_per_line": 3, "personal_data": ("email", "ip")}
    )
    assert mine.pretrain.tokens == "auto" and read_record(Recipe, recipe_as_data(mine)) == mine
    with pytest.raises(RecipeError, match=r"^base .*`extends: base`"):
        load_recipe("base")
    assert SHIPPED / "bases" / "base.yaml" not in RecipeFiles((SHIPPED,)).paths()


def test_a_recipe_that_reads_the_kitchen_without_being_one_is_warned(tmp_path):
    written(
        tmp_path,
        mine=OWN + "sft: {data: [{uri: 'kitchen://dialogues'}]}",
        cook="extends: kitchen",
        other="extends: kitchen\nsnapshots: [{name: kitchen-1, source: warc, paths: [/a]}]",
    )
    said = {one: reads_of_the_kitchen(load_recipe(one, (tmp_path, SHIPPED))) for one in ("mine", "cook", "other")}
    assert said["cook"] == "" and said["mine"].startswith("mine: sft reads kitchen://dialogues; the kitchen is ")
    assert "quality reads kitchen://reference" in said["other"] and "evaluation reads kitchen://cloze" in said["other"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("pretrain: {tokens: 5k}", "pretrain.tokens: expected int or 'auto', got '5k'"),
        ("pretrain: {tokens: 81920}", r"pretrain.compute_budget=1e\+14 limits tokens: auto.*compute_budget: null is"),
        ("pretrain: {compute_budget: 0}", "pretrain.compute_budget=0 limits tokens: auto, by FLOPs above 0"),
        ("pretrain: {batch_warmup: [{tokens: 8192, sequence_length: 512, global_batch_tokens: 512}]}", "batch_warmup"),
        ("preferences: {data: [{uri: a.jsonl}]}", "sft.data: empty, and the chain ends before it; preferences.data"),
        (
            "align: {method: grpo, prompts: a.jsonl}",
            "preferences.data: empty, and the chain ends before it; align.prompts needs it",
        ),
        ("mixture: {phases: [{start: 0.5, weights: {web: 1.0}}]}", "pretrain.tokens: auto; mixture.phases needs a"),
    ],
)
def test_what_needs_a_number_of_tokens_or_an_earlier_model_is_refused_without(tmp_path, lines, said):
    written(tmp_path, mine=OWN + lines)
    with pytest.raises(RecipeError, match=said):
        load_recipe("mine", folders=(tmp_path, SHIPPED))


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(RecipeError, match=r"kitchen, kitchen-leak, kitchen-nightly, kitchen-rl"):
        find_recipe("kichen")


def variant(tmp_path: Path, text: str) -> str:
    path = tmp_path / "variant.yaml"
    path.write_text(f"extends: kitchen\nname: variant\n{text}\n", "utf-8")
    return str(path)


@pytest.mark.parametrize(
    "text",
    [
        "snapshots: [{name: a, source: warc, paths: ['https://me:geheim@host/a.warc.gz']}]",
        "snapshots: [{name: a, source: warc, paths: ['https://bucket/a.warc.gz?X-Amz-Signature=geheim']}]",
        "snapshots: [{name: a, source: commoncrawl, crawl: x, base_url: 'https://geheim@host/'}]",
        "quality: {reference: ['simplecache::https://me:geheim@host/a.jsonl']}",
        "filter: {c4_bad_words: 'https://host/words?sig=geheim'}",
        "description: read https://me:geheim@host/",
        "sft: {trl: {run_name: 'https://host/?access_token=geheim'}}",
        "mixture: {weights: {'https://me:geheim@host': 1.0}}",
    ],
)
def test_a_secret_in_a_recipe_is_refused_and_not_repeated(tmp_path, text):
    with pytest.raises(RecipeError, match=r"holds a (user|secret)") as refused:
        load_recipe(variant(tmp_path, text))
    assert "geheim" not in str(refused.value)


def test_a_line_that_is_no_yaml_is_not_repeated(tmp_path):
    with pytest.raises(RecipeError, match="YAML: line 4") as refused:
        load_recipe(variant(tmp_path, "tracking: [https://me:geheim@host/"))
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "sft: {trl: {weigth_decay: 0.1}}",
            r"sft\.trl\.weigth_decay: SFTConfig has no such field; did you .* there are .*wei",
        ),
        ("align: {trl: {max_grad_norm: fast}}", r"align\.trl\.max_grad_norm: expected float, got 'fast'"),
        ("align: {trl: {weight_decay: 1e-8}}", r"got '1e-8'; YAML reads"),
        ("sft: {trl: {logging_steps: true}}", r"sft\.trl\.logging_steps: expected"),
        ("sft: {trl: {max_length: 5}}", r"sft\.trl\.max_length: set sft\.max_length instead"),
        ("sft: {trl: {chat_template_path: someone/model}}", "not passed through"),
        ("sft: {trl: {eval_strategy: steps}}", r"sft\.trl\.eval_strategy: not passed through"),
        ("sft: {trl: {deepspeed: a.json}}", r"sft\.trl\.deepspeed: not passed through"),
        ("sft: {trl: {optim: zebra}}", r"sft\.trl\.optim: expected 'adamw_torch' or .* got 'zebra'"),
        ("sft: {trl: {loss_type: zebra}}", r"sft\.trl\.loss_type: expected 'nll' or 'dft', got 'zebra'"),
        ("sft: {trl: {logging_strategy: zebra}}", r"trl\.logging_strategy: expected 'no' or 'steps' or 'epoch', got"),
        ("sft: {trl: {adam_beta1: 1.0}}", r"sft\.trl\.adam_beta1=1\.0; 0 to 0\.999999 is right"),
        ("align: {trl: {max_grad_norm: -1.0}}", r"align\.trl\.max_grad_norm=-1\.0; 0 to"),
        ("sft: {peft: {target_modules: [q_proj, c_attn]}}", r"sft\.peft\.target_modules: the model has no module"),
        ("align: {peft: {layers_to_transform: 99, target_modules: [q_proj]}}", "the model has no layer 99; they count"),
        ("align: {method: ipo, trl: {loss_type: hinge}}", "only the squared loss"),
        ("align: {method: grpo, trl: {label_smoothing: 0.1}}", "GRPOConfig has no such field"),
    ],
)
def test_fields_passed_through_are_checked_when_the_recipe_is_read(tmp_path, text, said):
    with pytest.raises(RecipeError, match=said):
        load_recipe(variant(tmp_path, text))


def test_fields_that_the_library_has_are_passed_through(tmp_path):
    recipe = load_recipe(variant(tmp_path, "sft: {trl: {weight_decay: 0, optim: sgd, optim_target_modules: a}}"))
    assert recipe.sft.trl["optim"] == "sgd"


def test_reading_a_recipe_imports_no_library():
    code = (
        "import sys; from assets.state.recipe_folders import load_recipe; load_recipe('kitchen-rl');"
        "from training.posttrain.passed_through import fields_of; assert len(fields_of('DPOConfig')) > 100;"
        "sys.exit(bool({'torch', 'trl', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_recipes_that_are_read_together_read_their_base_once(tmp_path):
    written(tmp_path, one="extends: base", two="extends: base", base="extends: kitchen\ndescription: as it was")
    files = RecipeFiles((tmp_path, SHIPPED))
    assert files.load("one").description == "as it was"
    written(tmp_path, base="extends: kitchen\ndescription: edited meanwhile")
    assert files.load("two").description == "as it was"  # and so the two agree about their base
    assert RecipeFiles((tmp_path, SHIPPED)).load("two").description == "edited meanwhile"


def test_a_variant_changes_nothing_of_the_base_that_it_shares(tmp_path):
    written(
        tmp_path,
        one="extends: base\nsft: {trl: {weight_decay: 0}}\nmodel: {preset: 10m}",
        two="extends: base",
        base="extends: kitchen",
    )
    files = RecipeFiles((tmp_path, SHIPPED))
    assert files.load("one").sft.trl == {"weight_decay": 0}
    assert files.load("two").sft.trl == {} and files.load("two").model == files.load("kitchen").model
    assert files.load("kitchen") == load_recipe("kitchen")


@pytest.mark.parametrize("path", RECIPE_FILES, ids=lambda path: path.stem)
def test_both_parsers_of_yaml_read_a_shipped_recipe_alike(path):
    assert read_yaml(path) == yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("text", ["name: [", "a: b: c", "a:\n\t- b", "a: \x00", "a: 1\n b: 2", "%"])
def test_an_error_in_yaml_is_that_of_the_parser_that_every_machine_has(tmp_path, text):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(yaml.YAMLError) as plain:
        yaml.safe_load(text)
    with pytest.raises(RecipeError) as error:
        read_yaml(tmp_path / "bad.yaml")
    assert str(error.value) == f"bad.yaml: not readable as YAML: {yaml_problem(plain.value)}"


def test_a_section_that_variants_inherit_is_one_record_unless_it_means_all_snapshots(tmp_path):
    base = "extends: base\nname: {name}\nsnapshots: [{{name: {name}-1, source: files, paths: [x.txt]}}]\n"
    (tmp_path / "one.yaml").write_text(base.format(name="one"))
    (tmp_path / "two.yaml").write_text(base.format(name="two") + "dedup: {buckets: 9}\n")
    files = RecipeFiles((tmp_path, SHIPPED))
    one, two = files.load("one"), files.load("two")
    assert one.filter is two.filter and one.dedup != two.dedup
    assert (one.tokenizer.snapshots, two.tokenizer.snapshots) == (("one-1",), ("two-1",))
    assert [RecipeFiles((tmp_path, SHIPPED)).load(name) for name in ("one", "two")] == [one, two]
