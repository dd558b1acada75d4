"""Numbers and lengths of examples, from files that other stages made."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from assets.amounts import Amount, Amounts, sampled_rows
from assets.first_run import FirstRun
from assets.recipe_folders import load_recipe
from resources.profile import load_profile
from tests.assets.test_first_run import put

RECIPE = dataclasses.replace(
    load_recipe("kitchen"), sft=dataclasses.replace(load_recipe("kitchen").sft, system_prompt=None)
)


def amounts(root, recipe=RECIPE):
    return Amounts(recipe, FirstRun(recipe, root, load_profile("local").size_for))


def put_rows(root, asset, file, rows, **metrics):
    put(root, asset, "kitchen", metrics=metrics)
    (root / asset / ("a" * 32) / file).write_text("".join(json.dumps(row) + "\n" for row in rows))


def put_words(root):
    """Put a tokenizer whose tokens are words."""
    put(root, "tokenizer", "kitchen")
    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(root / "tokenizer" / ("a" * 32) / "tokenizer.json"))


def said(role, content):
    return {"role": role, "content": content}


TALK = {"messages": [said("user", "one two three"), said("assistant", "four five")]}


def test_a_conversation_has_its_words_with_a_role_and_an_end_for_each_turn(tmp_path):
    assert amounts(tmp_path).conversations(100) is None
    put_rows(tmp_path, "instruction_data", "instructions.jsonl", [TALK] * 3, conversations=3.0)
    # As long as there is no tokenizer, a byte is a token.
    assert amounts(tmp_path).conversations(100) == Amount(number=3, length=13 + 9 + 4)
    put_words(tmp_path)
    assert amounts(tmp_path).conversations(100) == Amount(number=3, length=5 + 4)
    assert amounts(tmp_path).conversations(7) == Amount(number=3, length=7)  # cut
    prompted = dataclasses.replace(RECIPE, sft=dataclasses.replace(RECIPE.sft, system_prompt="be brief"))
    assert amounts(tmp_path, prompted).conversations(100) == Amount(number=3, length=9 + 4)


def test_a_pair_is_two_sequences_and_long_ones_are_dropped(tmp_path):
    put_words(tmp_path)
    prompt = [said("user", "one two")]
    pair = {"prompt": prompt, "chosen": [said("assistant", "a b c")], "rejected": [said("assistant", "a")]}
    long = pair | {"chosen": [said("assistant", "a " * 50)]}
    alone = {"prompt": prompt, "completion": [said("assistant", "a b c d")], "label": True}
    put_rows(tmp_path, "preference_data", "train.jsonl", [pair, pair, long, alone], train_pairs=4.0)
    # Two words, role and end, the answer's role; then its words and its end.
    assert amounts(tmp_path).pairs(20) == Amount(number=3, length=pytest.approx((2 * (5 + 3) + 5 + 5) / 3))
    assert amounts(tmp_path).prompts(20) == Amount(number=4, length=5)
    assert amounts(tmp_path).held_out_pairs(20) is None


def test_a_large_file_is_read_at_equal_distances(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"n": n, "text": "x" * (n % 70)}) + "\n" for n in range(5000)))
    found = [row["n"] for row in sampled_rows(path, rows=5000, most=100)]
    assert found[0] == 0 and len(found) == 100 == len(set(found)) and found == sorted(found)
    assert max(after - before for before, after in pairwise(found)) < 75
    path.write_text("".join(json.dumps({"n": n, "text": "x" * (9000 if n == 3 else 9)}) + "\n" for n in range(300)))
    found = [row["n"] for row in sampled_rows(path, rows=300, most=100)]
    assert len(found) == len(set(found)), "a row after a long one is met several times and read once"
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(100)))
    few = [row["n"] for row in sampled_rows(path, rows=100, most=100)]
    assert few == list(range(100))


def test_an_item_has_the_words_of_its_question_and_its_right_answer(tmp_path):
    put_words(tmp_path)
    suites = [suite.name for suite in RECIPE.evaluation.suites]
    put(tmp_path, "benchmark_index", "kitchen", metrics={f"items_{name}": 4.0 for name in suites})
    parts = [("question", "one two three"), ("answer", "four"), ("passage", "")]
    rows = [
        {"number": 0, "benchmark": name, "item": item, "part": part, "text": f" {text}"}
        for name in suites
        for item in ("a", "b")
        for part, text in parts
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "benchmark_index" / ("a" * 32) / "items.parquet")
    assert amounts(tmp_path).items(100) == {name: Amount(number=4, length=4) for name in suites}


def test_held_out_texts_are_as_long_as_the_corpus_is_on_average(tmp_path):
    assert amounts(tmp_path).held_out_texts is None
    for part in ("kitchen-1", "kitchen-2"):
        folder = f"kitchen@{part}"
        put_shards(tmp_path, folder, documents=500.0, tokens=100_000.0)
    share = RECIPE.mixture.held_out_fraction
    assert amounts(tmp_path).held_out_texts == Amount(number=min(200, round(1000 * share)), length=200)
    none = dataclasses.replace(RECIPE, evaluation=dataclasses.replace(RECIPE.evaluation, held_out_limit=0))
    assert amounts(tmp_path, none).held_out_texts == Amount(number=0, length=0)


def put_shards(root, partition, **metrics):
    from assets.found import reference_path
    from training.files.writing import write_sealed

    number = "a" * 31 + partition[-1]
    (root / "token_shards" / number).mkdir(parents=True)
    (root / "token_shards" / number / "artifact.json").write_text(json.dumps({"metrics": metrics}))
    reference_path(root, "token_shards", partition).parent.mkdir(parents=True, exist_ok=True)
    write_sealed(reference_path(root, "token_shards", partition), {"fingerprint": number, "digest": "b" * 64})
