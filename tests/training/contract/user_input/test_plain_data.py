"""A file that says one thing and could be read as another is refused, with its line and its key."""

from __future__ import annotations

from itertools import pairwise

import pytest
import yaml

from assets.run.run import keep_recipe
from assets.state.recipe_folders import recipe_files, recipe_folders
from training.contract.records import RecipeError, read_record
from training.contract.user_input import plain_data
from training.contract.user_input.bounded import check_bounds
from training.contract.user_input.plain_data import json_value, yaml_value
from training.recipe.settings.promote import PromoteRecipe
from training.recipe.values import BOUNDS


def bomb(step: str) -> str:
    """Nine anchors, each of which holds ten of the one before it."""
    names = "abcdefghi"
    more = [f"{name}: &{name} {step.format(','.join([f'*{last}'] * 10))}" for last, name in pairwise(names)]
    return "\n".join(["a: &a {x: 1}", *more])


YAML = {
    "key twice": ("a:\n  b: 1\n  c: 2\n  b: 3\n", "line 4: a.b is given twice, first in line 2"),
    "key twice in braces": ("a: {b: 1, b: 2}", "line 1: a.b is given twice"),
    "key twice, once in quotes": ("a: 1\n'a': 2\n", "line 2: a is given twice, first in line 1"),
    "key twice, as number and text": ("1: a\n'1': b\n", "line 2: 1 is given twice, first in line 1"),
    "merge twice": ("a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n", "line 4: b.<< is given twice, first in line 3"),
    "key twice behind a merge of nothing": ("<<: []\na: 1\na: 2\n", "line 3: a is given twice, first in line 2"),
    "bomb of lists": (bomb("[{}]"), "more than 200,000 values with all aliases written out"),
    "bomb of merges": (bomb("{{<<: [{}]}}"), "more than 200,000 values with all aliases written out"),
    "alias of itself": ("a: &a\n- *a\n", "line 2, a[0]: the alias *a holds itself"),
    "alias of nothing": ("a: 1\nb: *c\n", "line 2, b: the alias *c is not defined before it"),
    "60 lists": ("a: " + "[" * 60 + "]" * 60, "line 1, a[0]"),
    "lists without end": ("[" * 900_000, "nested more than 50 deep"),
    "mappings without end": ("{a: " * 200_000, "nested more than 50 deep"),
    "blocks without end": ("- " * 400_000, "nested more than 50 deep"),
    "keys without end": ("? " * 400_000, "line 1: a mapping or list as a key"),
    "infinite": ("a: [1, .inf]", "line 1, a[1]: .inf is no finite number"),
    "no number": ("a: .NaN", "line 1, a: .NaN is no finite number"),
    "above the largest": ("a: -1.0e+400", "line 1, a: -1.0e+400 is no finite number"),
    "5,000 digits": ("a: " + "9" * 5000, "line 1, a: 9999999999999999999999999999999999999999 … is a number of more"),
    "base 60": (
        "a: {b: 1:30}",
        "line 1, a.b: 1:30 may mean a number to base 60 or a text; write the number",
    ),
    "base 60 of a fraction": ("a: 1:30.5", "line 1, a: 1:30.5 may mean a number to base 60"),
    "octal": ("a: 010", "line 1, a: 010 may mean 8, 10 or a text; write the number, or '010' in quotes"),
    "Norway": ("languages: [en, no]", "line 1, languages[1]: no may mean false or the word; write false, or 'no'"),
    "on as a key": ("on: 1", "line 1: on may mean true or the word; write true, or 'on' in quotes"),
    "day": ("since: 2024-01-01", "line 1, since: 2024-01-01 may mean a date or a text; write '2024-01-01' in quotes"),
    "time": ("since: 2024-01-01 10:00:00", "line 1, since: 2024-01-01 10:00:00 may mean a date or a text"),
    "code": ("a: !!python/name:os.system x", "line 1, a: the tag tag:yaml.org,2002:python/name:os.system is not read"),
    "bytes": ("a: !!binary aGk=", "line 1, a: the tag tag:yaml.org,2002:binary is not read"),
    "set": ("a: !!set {b}", "line 1, a: the tag tag:yaml.org,2002:set is not read"),
    "list as a key": ("? [a]\n: 1", "line 1: a mapping or list as a key; a key is one word"),
    "nothing as a key": ("~: 1", "line 1: None as a key; a key is one word"),
    **{
        f"{text} for a number": (f"a: {text}", f"line 1, a: {text} may mean a number or a text; write the number in")
        for text in ("20_480", "0x1F", "-0b11", "1_0.5", "0x_")
    },
    "two documents": ("a: 1\n---\nb: 2\n", "line 2: a second document begins; a file holds one"),
    "NUL": ('a: "b\\0"', "line 1, a: U+0000 or half of a surrogate pair"),
    "half of a pair": ('a: "\\ud800"', "not readable as YAML: line 1, column 7: found invalid Unicode character"),
    "no character": ('a: "\\UFFFFFFFF"', "not readable as YAML: line 1, column 7: found invalid Unicode character"),
    "too large": ("#" * ((1 << 20) + 1), "more than 1 MiB"),
}
JSON = {
    "key twice": ('{"a": 1, "a": 2}', "'a' is given twice in one object"),
    "no number": ("[NaN]", "NaN is no finite number"),
    "infinite": ('{"a": -Infinity}', "-Infinity is no finite number"),
    "above the largest": ("1e999", "1e999 is no finite number"),
    "5,000 digits": ("9" * 5000, "is a number of more than 40 digits"),
    "60 lists": ("[" * 60 + "]" * 60, "nested more than 50 deep"),
    "lists without end": ("[" * 1_000_000, "nested more than 50 deep"),
    "half of a pair": ('["\\ud800"]', "half of a surrogate pair"),
    "broken": ('{"a":\n', "not JSON: line 2, column 1: Expecting value"),
}


@pytest.mark.parametrize(("text", "said"), YAML.values(), ids=YAML)
def test_yaml(text, said):
    with pytest.raises(RecipeError) as error:
        yaml_value(text.encode(), "f.yaml")
    told = str(error.value)
    assert told.startswith("f.yaml: ") and "\n" not in told
    assert said in told


@pytest.mark.parametrize(("text", "said"), JSON.values(), ids=JSON)
def test_json(text, said):
    with pytest.raises(RecipeError, match=r"^f\.json: ") as error:
        json_value(text.encode(), "f.json")
    assert said in str(error.value)


@pytest.mark.parametrize(("text", "said"), [('"\\ud800"', "half of a surrogate"), ('"\\UFFFFFFFF"', "does not exist")])
def test_yaml_where_libyaml_is_not_there(text, said, monkeypatch):
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert yaml_value(b"a: &a [1]\nb: *a", "f.yaml") == {"a": [1], "b": [1]}
    with pytest.raises(RecipeError, match=said):
        yaml_value(text.encode(), "f.yaml")


def test_what_has_one_meaning_is_read():
    text = "a: &a {x: 1, y: 31}\nb: {<<: *a, x: 2}\nc: [1000, 1.5e+3, 1e-4, -0, 'no', y, ~, true, !!str 010]\n"
    assert yaml_value(text.encode(), "f.yaml") == {
        "a": {"x": 1, "y": 31}, "b": {"x": 2, "y": 31}, "c": [1000, 1500.0, "1e-4", 0, "no", "y", None, True, "010"],
    }  # fmt: skip
    assert yaml_value(b"", "f.yaml") is None
    numbers = '\ufeff{"a": [1e-4, 1000000000000000019884624838656]}'
    assert json_value(numbers.encode(), "f") == {"a": [1e-4, int(1e30)]}


def test_the_size_of_an_alias_is_counted_where_it_stands():
    held = plain_data.MOST_VALUES // 2
    yaml_value(f"a: &a [{','.join('1' * (held - 10))}]\nb: *a\n".encode(), "f.yaml")
    with pytest.raises(RecipeError, match="line 3, c: more than 200,000 values"):
        yaml_value(f"a: &a [{','.join('1' * (held - 10))}]\nb: *a\nc: *a\n".encode(), "f.yaml")


@pytest.mark.parametrize("value", ["nan", "inf", "1e999", 10**400, float("inf")])
def test_a_number_of_a_record_is_finite(value):
    with pytest.raises(RecipeError, match=r"max_score_drop: .* is no finite number"):
        read_record(PromoteRecipe, {"model_name": "m", "max_score_drop": value})


def test_what_a_root_keeps_is_no_base(tmp_path):
    folders = recipe_folders(tmp_path / "root")
    kept = recipe_files(None).load("kitchen")
    keep_recipe(kept, tmp_path / "root")
    path = tmp_path / "root" / "recipes" / "kitchen.yaml"
    path.write_text(path.read_text().replace(f"description: {kept.description[:9]}", "description: edited", 1))
    (tmp_path / "mine.yaml").write_text("extends: kitchen\nname: mine\n")
    files = recipe_files(folders)
    assert files.load("kitchen").description.startswith("edited")
    assert files.load(str(tmp_path / "mine.yaml")).description == kept.description


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [("filter", "min_language_score", 1e30), ("pretrain", "learning_rate", 1e20), ("mixture", "weights", {"a": -1e20})],
)
def test_a_fraction_far_outside_its_bounds_is_refused_like_one_just_outside(section, field, value):
    with pytest.raises(RecipeError, match=rf"{section}\.{field}.* is right"):
        check_bounds({section: {field: value}}, BOUNDS)
