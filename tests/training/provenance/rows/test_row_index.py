"""The index of rows: every row is in it by source, row and generator, and what a text repeats is found in the rows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from tests.training.data import chain
from training.contract.artifact import commit_record
from training.contract.job import InputArtifact, RefusedInput
from training.data.documents import write_lines
from training.data.urls import key_of, page_entry
from training.data.words.ngrams import ngram_set
from training.posttrain.rows import sorting
from training.provenance.rows import build, rows
from training.provenance.rows.rows import RowIndex, rows_holding
from training.provenance.rows.spans import spans_in_rows

PAGE = "Grandmother kept the sourdough in a blue bowl beside the window, and never once did she weigh the flour."
WORDS = "the oven bread flour water salt bake knead warm hour until golden brown crust".split()


def said(number: int, text: str, **more) -> dict:
    messages = [{"role": "user", "content": f"Question {number}?"}, {"role": "assistant", "content": text}]
    return {"id": f"mine#{number:07d}", "source": "mine", "generator": "a writer", "messages": messages, **more}


def pair(number: int, chosen: str) -> dict:
    prompt = [{"role": "user", "content": "Which?"}]
    answers = {
        name: [{"role": "assistant", "content": text}] for name, text in (("chosen", chosen), ("rejected", "No"))
    }
    return {"id": f"pairs#{number:07d}", "source": "pairs", "generator": "", "prompt": prompt, **answers}


def random_texts(number: int) -> list[str]:
    chance = random.Random(number)
    return [" ".join(chance.choices(WORDS, k=chance.randrange(4, 40))) for _ in range(number)]


FILES = {
    "instruction_data": {
        "instructions.jsonl": [
            said(0, "Nothing of it."),
            said(1, f"She said: {PAGE}"),
            said(2, "As https://www.a.example/b/?x=1. says."),
            *(said(10 + number, text) for number, text in enumerate(random_texts(50))),
        ],
        "dropped.jsonl": [
            {"id": "mine#0000003", "reason": "empty_answer", "row": {"text": PAGE, "generator": "another", "url": "http://b.example/"}}
        ],
        "quarantine.jsonl": [],
    },
    "preference_data": {
        "train.jsonl": [pair(0, PAGE.upper())],
        "held_out.jsonl": [pair(1, PAGE[:60])],
        "dropped.jsonl": [],
        "quarantine.jsonl": [{"id": "pairs#0000002", "reason": "unknown_role", "row": {"messages": [7, None, PAGE]}}],
    },
    "synthetic_text": {
        "synthetic/00000.jsonl.zst": [
            {"id": "00000000-0", "url": "synthetic://ab/00000000-0", "text": PAGE, "generator": "m:ab", "seed": 1}
        ]
    },
}  # fmt: skip
COUNTS = {
    "instruction_data": {"in": 54, "kept": 53, "dropped": {"empty_answer": 1}, "quarantined": {}},
    "preference_data": {"in": 3, "kept": 2, "dropped": {}, "quarantined": {"unknown_role": 1}},
    "synthetic_text": {"in": 2, "kept": 1, "dropped": {"empty": 1}, "quarantined": {}},
}


@pytest.fixture
def inputs(tmp_path) -> list[InputArtifact]:
    found = []
    for asset, files in FILES.items():
        folder = tmp_path / asset / "own"
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(".zst"):
                write_lines(folder / name, content)
            else:
                (folder / name).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content))
        item = chain.committed(folder, asset, "tiny", list(files), kept=0)
        record = json.loads((folder / "artifact.json").read_text())
        commit_record(folder, record | {"counts": COUNTS[asset]})
        found.append(item)
    return found


def indexed(root: Path, inputs: list[InputArtifact]) -> RowIndex:
    item = chain.run(root, "index_rows", "row_index", "tiny", {}, inputs)
    return RowIndex(item, {one.asset: one for one in inputs})


def named(found: list[dict]) -> set[tuple[str, str]]:
    return {(row["asset"], row["id"]) for row in found}


HOLDING = {
    ("instruction_data", "mine#0000001"),
    ("instruction_data", "mine#0000003"),
    ("preference_data", "pairs#0000000"),
    ("preference_data", "pairs#0000001"),
    ("preference_data", "pairs#0000002"),
    ("synthetic_text", "00000000-0"),
}


def test_every_row_is_in_the_index_by_source_row_and_generator(tmp_path, inputs):
    index = indexed(tmp_path, inputs)
    told = {(one["asset"], one["source"], one["generator"], one["outcome"]): one["rows"] for one in index.counts()}
    assert told == {
        ("instruction_data", "mine", "a writer", "kept"): 53,
        ("instruction_data", "mine", "another", "dropped"): 1,
        ("preference_data", "pairs", "", "kept"): 2,
        ("preference_data", "pairs", "", "quarantined"): 1,
        ("synthetic_text", "synthetic_text", "m:ab", "kept"): 1,
    }
    (row,) = index.with_id("mine#0000003")
    assert (row["file"], row["line"], row["reason"]) == ("dropped.jsonl", 0, "empty_answer")
    assert index.with_id("mine#0000009") == []


@pytest.mark.parametrize("in_part", [1, 7, 100_000])
def test_the_rows_that_repeat_a_text_are_found_whatever_the_parts(tmp_path, inputs, monkeypatch, in_part):
    monkeypatch.setattr(build, "ROWS_IN_PART", in_part)
    found = indexed(tmp_path, inputs).repeating([f"Something before. {PAGE} Something after."])
    assert named(found) == HOLDING
    assert found[0]["shared"] >= found[-1]["shared"] > 0


def test_the_index_finds_what_a_comparison_of_every_row_finds(tmp_path, inputs):
    index = indexed(tmp_path, inputs)
    for asked in random_texts(30):
        expected = {
            row["id"]
            for row in FILES["instruction_data"]["instructions.jsonl"]
            if any(set(ngram_set(one["content"], 8)) & set(ngram_set(asked, 8)) for one in row["messages"])
        }
        assert {id_ for _, id_ in named(index.repeating([asked]))} == expected


def test_what_two_runs_have_in_common_by_their_short_hashes_is_no_match(tmp_path, inputs, monkeypatch):
    for module in (build, rows):
        monkeypatch.setattr(module, "short", lambda hashes: (hashes & np.uint64(3)).astype(np.uint32))
    assert named(indexed(tmp_path, inputs).repeating([PAGE])) == HOLDING


def test_a_run_does_not_go_from_one_text_of_a_row_into_the_next(tmp_path, inputs):
    assert indexed(tmp_path, inputs).repeating(["Question 1? She said: Grandmother kept the sourdough"]) == []


def test_the_rows_that_name_an_address_or_a_host_are_found(tmp_path, inputs):
    index = indexed(tmp_path, inputs)
    assert named(index.with_address([page_entry(key_of("http://a.example/b?x=1"))])) == {
        ("instruction_data", "mine#0000002")
    }
    assert named(index.with_address(["=example,a,"])) == {("instruction_data", "mine#0000002")}
    assert index.with_address(["=exampl,"]) == []  # a domain is whole labels, not the beginning of one
    both = rows_holding([index, index], [PAGE], ["=example,b)"])
    assert named(both) == HOLDING and len(both) == len(HOLDING)  # each once
    assert {row["id"] for row in both if row["names_it"]} == {"mine#0000003"}
    assert all(row["fingerprint"] for row in both)


def test_the_files_of_rows_are_those_that_post_training_writes():
    kept = {sorting.INSTRUCTIONS_FILE, sorting.TRAIN_FILE, sorting.HELD_OUT_FILE, sorting.PROMPTS_FILE}
    assert set(build.OUTCOMES) == kept | {sorting.DROPPED_FILE, sorting.QUARANTINE_FILE}
    assert {name for name, outcome in build.OUTCOMES.items() if outcome == build.KEPT} == kept


def test_a_row_that_is_not_in_the_index_fails_its_gate(tmp_path, inputs, monkeypatch):
    def lose_one(item):
        return [one for one in whole(item) if one[0]["id"] != "mine#0000001"]

    whole = build.rows_of
    monkeypatch.setattr(build, "rows_of", lose_one)
    item = indexed(tmp_path, inputs).item
    (gate,) = (gate for gate in item.record()["gates"] if gate["name"] == "every_row_is_in")
    assert not gate["passed"] and gate["evidence"]["rows"]["instruction_data"] == 53


def test_a_changed_byte_of_the_index_or_of_the_rows_is_noticed(tmp_path, inputs):
    index = indexed(tmp_path, inputs)
    path = Path(index.inputs["instruction_data"].path, "instructions.jsonl")
    path.write_text(path.read_text().replace("blue bowl", "red  bowl"))
    with pytest.raises(RefusedInput, match=r"instructions.jsonl: content differs"):
        index.repeating([PAGE])
    grams = Path(index.item.path, f"{rows.GRAMS_FOLDER}/00000.npy")
    grams.write_bytes(grams.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(RefusedInput, match=r"grams/00000.npy: content differs"):
        index.repeating(["nothing at all"])


def test_the_parts_of_a_text_that_rows_have_are_told_with_all_their_rows(inputs, tmp_path):
    index = indexed(tmp_path, inputs)
    answers = [row["messages"][1]["content"] for row in FILES["instruction_data"]["instructions.jsonl"][3:]]
    number = next(number for number, answer in enumerate(answers) if len(answer.split()) > 12)
    text = f"I read: {PAGE.lower()} And then, in other words: {answers[number]}"
    whole, other = spans_in_rows([index], text)
    assert text[whole.start : whole.stop] == PAGE.lower().rstrip(".") and whole.words == len(PAGE.split())
    assert named(whole.rows) == HOLDING - {("preference_data", "pairs#0000001")}  # which has half of it
    assert named(other.rows) == {("instruction_data", f"mine#{10 + number:07d}")}
    (kept, _) = spans_in_rows(
        [index], text, lambda row: row["asset"] == "instruction_data" and row["outcome"] == "kept"
    )
    assert named(kept.rows) == {("instruction_data", "mine#0000001")}
    assert spans_in_rows([index], "Nothing of it.") == spans_in_rows([index], "") == []
