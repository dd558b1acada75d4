"""The two stages that sort rows: every row in one bucket, lineage on every row, the same bytes every time."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.posttrain import tiny
from training.contract.artifact import sha256_of
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.data.sources import read_rows, row_json
from training.posttrain.rows.forms import CONVERSATION_READERS
from training.posttrain.rows.short_numbers import with_short_numbers
from training.posttrain.rows.sorting import Sorter, read_jsonl
from training.posttrain.rows.source import read_source
from training.posttrain.source_settings import TextSourceRecipe

ROWS = [
    {"question": "q1", "answer": "a1", "generator": "someone"},
    {"question": "q2"},
    {"question": "q3", "answer": ["not text"]},
    {"question": "q4 <|end|><|assistant|>", "answer": "a4"},
]


def instructions(tmp_path, name="instruction_data", **more):
    path = tiny.write_rows(tmp_path / "rows.jsonl", ROWS)
    data = [{"uri": path, "format": "question_answer", "generator": "the file's author"}]
    return tiny.run("instructions", tmp_path / name, {"sft": {"data": data}, **more})


def test_every_row_is_kept_dropped_or_quarantined(tmp_path):
    record = instructions(tmp_path)
    assert record["counts"] == {
        "in": 4,
        "kept": 2,
        "dropped": {"missing_answer": 1},
        "quarantined": {"answer_is_not_text": 1},
    }
    assert tiny.gate(record, "counts_balance")["passed"]
    dropped = read_jsonl(tmp_path / "instruction_data" / "dropped.jsonl")
    assert [(row["id"], row["reason"]) for row in dropped] == [("rows.jsonl#0000001", "missing_answer")]
    assert read_jsonl(tmp_path / "instruction_data" / "quarantine.jsonl")[0]["row"] == ROWS[2]


def test_numbers_of_rows_that_are_not_kept_stay_as_they_are_written(tmp_path):
    deep = f'{{"question": "q", "x": {"[" * 600}1{"]" * 600}}}'  # deeper than a function of Python goes
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "q", "answer": "a"}\n{"price": 1.10, "question": {"of": [6.02e23]}}\n' + deep)
    data = [{"uri": str(path), "format": "question_answer"}]
    assert tiny.run("instructions", tmp_path / "out", {"sft": {"data": data}})["counts"]["in"] == 3
    quarantined, dropped = ((tmp_path / "out" / f"{name}.jsonl").read_text() for name in ("quarantine", "dropped"))
    assert quarantined.endswith('"row": {"price": 1.10, "question": {"of": [6.02e23]}}}\n') and deep in dropped


def test_a_line_that_is_no_row_is_quarantined_as_such(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "q", "answer": "a"}\n{"question": "q", "ans')
    data = [{"uri": str(path), "format": "question_answer"}]
    record = tiny.run("instructions", tmp_path / "out", {"sft": {"data": data}})
    assert (record["counts"]["kept"], record["counts"]["quarantined"]) == (1, {"unread_line": 1})


def test_a_row_that_is_lost_on_the_way_is_missed(tmp_path, monkeypatch):
    monkeypatch.setattr(Sorter, "refuse", lambda *_: None)
    gate = tiny.gate(instructions(tmp_path), "counts_balance")
    assert gate["evidence"]["faults"] == ["instructions: 4 in, 2 kept, dropped or quarantined: 2 lost"]
    assert not gate["passed"]


def test_rows_carry_source_and_generator_and_no_machine_path(tmp_path):
    instructions(tmp_path)
    text = (tmp_path / "instruction_data" / "instructions.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["generator"] for row in rows] == ["someone", "the file's author"]
    assert {row["source"] for row in rows} == {"rows.jsonl"}
    assert str(tmp_path) not in text


def test_a_look_alike_of_a_control_token_stays_in_its_message(tmp_path):
    instructions(tmp_path)
    row = read_jsonl(tmp_path / "instruction_data" / "instructions.jsonl")[1]
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    assert row["messages"][0]["content"] == ROWS[3]["question"]


def test_the_same_rows_give_the_same_bytes(tmp_path):
    first, second = instructions(tmp_path, "one"), instructions(tmp_path, "two")
    assert first["digest"] == second["digest"]


def test_limit_takes_the_first_rows(tmp_path):
    path = tiny.write_rows(tmp_path / "rows.jsonl", ROWS)
    data = [{"uri": path, "format": "question_answer", "limit": 1}]
    assert tiny.run("instructions", tmp_path / "out", {"sft": {"data": data}})["counts"]["in"] == 1


def test_a_source_named_twice_is_refused(tmp_path):
    path = tiny.write_rows(tmp_path / "rows.jsonl", ROWS)
    source = {"uri": path, "format": "question_answer"}
    with pytest.raises(RecipeError, match=r"sft\.data\[1\]\.uri.*twice"):
        tiny.run("instructions", tmp_path / "out", {"sft": {"data": [source, source]}})


def test_a_file_that_changed_since_the_job_was_written_is_refused(tmp_path):
    path = tiny.write_rows(tmp_path / "rows.jsonl", ROWS)
    settings = {
        "sft": {"data": [{"uri": path, "format": "question_answer"}]},
        "data": {path: sha256_of(tmp_path / "rows.jsonl")},
    }
    tiny.run("instructions", tmp_path / "out", settings)
    tiny.write_rows(tmp_path / "rows.jsonl", ROWS[:1] * 2)
    with pytest.raises(DataError, match="written for"):
        tiny.run("instructions", tmp_path / "again", settings)


def test_a_format_that_cannot_give_pairs_is_refused(tmp_path):
    path = tiny.write_rows(tmp_path / "rows.jsonl", ROWS)
    data = [{"uri": path, "format": "question_answer"}]
    with pytest.raises(RecipeError, match=r"preferences\.data\[0\]\.format.*chosen_rejected"):
        tiny.run("preferences", tmp_path / "out", {"preferences": {"data": data}})


UNREAD = [{"instruction": "Sum up.", "output": f"Text {i}", "hint": "short"} for i in range(64)]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"question": "q"}], "none of 1 rows is used, 1 of them because of missing_answer; no format reads its rows"),
        (UNREAD, r"64 of them because of missing_question; with format: alpaca, ignore: \[hint\] its rows would be"),
        ([{"asked": "q", "said": "a"}], "with format: prompt_answer, prompt_field: asked, answer_field: said its rows"),
        (
            [{"question": "q", "answer": "a", "hint": 0}],
            r"unread_field:hint; with ignore: \[hint\] its rows would be read",
        ),
    ],
)
def test_a_source_that_gives_nothing_is_refused_with_the_reason_and_the_settings_that_fit(tmp_path, rows, told):
    source = {"uri": tiny.write_rows(tmp_path / "rows.jsonl", rows), "format": "question_answer"}
    with pytest.raises(DataError, match=told):
        tiny.run("instructions", tmp_path / "alone", {"sft": {"data": [source]}})
    other = {"uri": tiny.write_rows(tmp_path / "more.jsonl", ROWS[:1]), "format": "question_answer"}
    record = tiny.run("instructions", tmp_path / "beside", {"sft": {"data": [source, other]}})
    gate = tiny.gate(record, "every_source_gives")
    assert not gate["passed"] and re.search(told, gate["evidence"]["refused"][0])
    counts = record["notes"]["sources"]["rows.jsonl"]
    assert (counts["in"], counts["kept"], sum(counts["dropped"].values())) == (len(rows), 0, len(rows))


def test_how_answers_end_is_told_where_a_marker_is_on_some_of_them_or_is_not_named(tmp_path):
    rows = [{"question": "q", "answer": f"a{end}"} for end in ("</s>", "</s>", "")]
    source = {"uri": tiny.write_rows(tmp_path / "r.jsonl", rows), "format": "question_answer"}
    for marker, told in ((None, "which is trained as text"), ("</s>", "others do not")):
        data = [{**source, "end_marker": marker}]
        record = tiny.run("instructions", tmp_path / told[:6], {"sft": {"data": data}})
        note = record["notes"]["sources"]["r.jsonl"]
        assert note["answers_ending"] == {"": 1, "</s>": 2}
        assert note["told"][0].startswith("r.jsonl: 2 of 3 answers end in") and told in note["told"][0]


def test_halves_of_characters_are_quarantined_and_end_nothing(tmp_path):
    rows = [{"question": "q", "answer": "\ud83d"}, {"question": "q", "answer": "a"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = [{"uri": str(path), "format": "question_answer"}]
    record = tiny.run("instructions", tmp_path / "out", {"sft": {"data": data}})
    assert record["counts"]["kept"] == 1 and record["counts"]["quarantined"] == {"answer_is_not_unicode": 1}


def split(tmp_path, rows, name):
    path = tiny.write_rows(tmp_path / name / "pairs.jsonl", rows)
    settings = {"preferences": {"data": [{"uri": path, "format": "chosen_rejected"}], "held_out_fraction": 0.3}}
    tiny.run("preferences", tmp_path / name / "out", settings)
    return [
        {row["prompt"][0]["content"] for row in read_jsonl(tmp_path / name / "out" / file)}
        for file in ("train.jsonl", "held_out.jsonl")
    ]


def test_held_out_prompts_are_never_trained_and_stay_held_out(tmp_path):
    rows = tiny.preference_rows(40)
    again = [{**row, "chosen": row["chosen"] + "!"} for row in rows]  # a second pair for every prompt
    train, held_out = split(tmp_path, rows + again, "both")
    assert not train & held_out
    assert 4 <= len(held_out) <= 20
    assert split(tmp_path, rows[::-1], "reversed") == [train, held_out]


def test_a_split_with_an_empty_side_is_an_error(tmp_path):
    path = tiny.write_rows(tmp_path / "pairs.jsonl", tiny.preference_rows(2))
    settings = {"preferences": {"data": [{"uri": path, "format": "chosen_rejected"}], "held_out_fraction": 0.0}}
    with pytest.raises(DataError, match=r"held_out_fraction=0\.0"):
        tiny.run("preferences", tmp_path / "out", settings)


EXAM = {"question": "In which month does the market of Bremholt sell the first pears of the year?", "answer": "July"}
LEAK = f"{EXAM['question']} It is {EXAM['answer']}."


def leaky(tmp_path, stage, source, rows, **decontaminate):
    """Run a stage that reads rows, with an exam of one item; the record, and the files that the stage wrote."""
    exam = tiny.write_rows(tmp_path / "exam.jsonl", [{"id": "pears", **EXAM}])
    index = tiny.benchmark_index(tmp_path, {"name": "market", "uri": exam, "kind": "generate"})
    section, field = source
    data = tiny.write_rows(tmp_path / stage / "rows.jsonl", rows)
    asked = data if field == "prompts" else [{"uri": data, "format": field}]
    settings = {section: {"prompts" if field == "prompts" else "data": asked}, "decontaminate": decontaminate}
    action = decontaminate.get("action", "remove") + decontaminate.get("question_seen", "")
    record = tiny.run(stage, tmp_path / stage / action, settings, (index,))
    names = [entry["path"] for entry in record["files"]]
    return record, {name.partition(".")[0]: read_jsonl(tmp_path / stage / action / name) for name in names}


def test_rows_that_hold_an_exam_item_are_dropped_flagged_or_kept_as_the_recipe_says(tmp_path):
    pairs = tiny.preference_rows(20)
    asked = {"role": "user", "content": EXAM["question"]}
    stages = {
        "instructions": (("sft", "messages"), [{"messages": [asked, {"role": "assistant", "content": "July"}]}], 4),
        "preferences": (("preferences", "chosen_rejected"), [{"prompt": "So?", "chosen": "No.", "rejected": LEAK}], 20),
        "prompts": (("align", "prompts"), [{"prompt": EXAM["question"], "answer": "July"}], 20),
    }
    for stage, (source, leak, number) in stages.items():
        clean = tiny.conversations()[:4] if stage == "instructions" else pairs
        record, files = leaky(tmp_path, stage, source, [*clean, *leak])
        assert record["counts"] == {"in": number + 1, "kept": number, "dropped": {"contaminated": 1}, "quarantined": {}}
        assert tiny.gate(record, "counts_balance")["passed"] and record["metrics"]["items_found_market"] == 1
        (row,), (hit,) = files["dropped"], files["hits"]
        assert (row["id"], row["benchmark"], row["item"]) == (hit["id"], "market", "pears")
        assert row["matched"] == hit["matched"] and "first pears" in hit["matched"] and row["row"] == leak[0]
        for action, flags in (("flag", ["contaminated"]), ("off", None)):
            record, files = leaky(tmp_path, stage, source, [*clean, *leak], action=action)
            rows = {row["id"]: row for name, some in files.items() if name not in ("dropped", "hits") for row in some}
            assert record["counts"]["kept"] == number + 1 and record["metrics"]["contaminated_found"] == 1
            assert rows[hit["id"]].get("flags") == flags and files["hits"] == [hit]


def test_a_question_in_a_row_without_its_answer_is_what_the_recipe_says(tmp_path):
    rows = [*tiny.preference_rows(4), {"prompt": EXAM["question"]}]
    dropped = {
        meaning: leaky(tmp_path, "prompts", ("align", "prompts"), rows, question_seen=meaning)[0]["counts"]["dropped"]
        for meaning in ("contaminated", "reported")
    }
    assert dropped == {"contaminated": {"contaminated": 1}, "reported": {}}


def test_prompts_keep_their_answers_and_lose_the_ones_that_were_given(tmp_path):
    rows = [
        {"prompt": "Which?", "answer": "this", "rivals": ["that"]},
        {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}], "answer": " "},
        {"messages": [{"role": "assistant", "content": "Alone."}]},
        {"prompt": "Who?", "rivals": "one text"},
        {"prompt": "Which one?", "chosen": "this"},
    ]
    path = tiny.write_rows(tmp_path / "prompts.jsonl", rows)
    record = tiny.run("prompts", tmp_path / "out", {"align": {"prompts": path}})
    assert record["counts"]["dropped"] == {"no_question": 1, "unread_field:chosen": 1}
    assert record["counts"]["quarantined"] == {"rivals_are_not_a_list_of_texts": 1}
    user = {"role": "user"}
    assert read_jsonl(tmp_path / "out" / "prompts.jsonl") == [
        {
            "id": "prompts.jsonl#0000000",
            "prompt": [user | {"content": "Which?"}],
            "answer": "this",
            "rivals": ["that"],
            "source": "prompts.jsonl",
        },
        {
            "id": "prompts.jsonl#0000001",
            "prompt": [user | {"content": "Why?"}],
            "answer": "",
            "rivals": [],
            "source": "prompts.jsonl",
        },
    ]


def test_kitchen_rows_are_read(tmp_path):
    world = {"dialogues": 30, "preferences": 40}
    settings = {"sft": {"data": [{"uri": "kitchen://dialogues", "ignore": ["facts"]}]}, "kitchen": world}
    assert tiny.run("instructions", tmp_path / "out", settings)["counts"]["kept"] == 30
    data = {"data": [{"uri": "kitchen://preferences", "format": "chosen_rejected", "ignore": ["facts"]}]}
    data["held_out_fraction"] = 0.3
    assert tiny.run("preferences", tmp_path / "pairs", {"preferences": data, "kitchen": world})["counts"]["kept"] == 40


def test_short_numbers_of_a_parquet_file_are_those_that_people_wrote(tmp_path: Path):
    """Expected: the shortest text of 16 or 32 bits, wherever the number stands; the value itself is as Arrow has it."""
    short = pa.array([1.1, 3.0, math.nan, 1e-7], pa.float32())
    part = pa.struct([("a", pa.float32()), ("b", pa.string())])
    table = pa.table(
        {
            "question": ["How much?"] * 4,
            "answer": short,
            "half": short.cast(pa.float16()),
            "long": short.cast(pa.float64()),
            "list": pa.array([[1.1, None], None, [], [2.5]], pa.list_(pa.float32())),
            "part": pa.array([{"a": 0.3, "b": "x"}, None, None, None], part),
            "map": pa.array([[("k", 0.7)], None, None, None], pa.map_(pa.string(), pa.float32())),
        }
    )
    uri = str(tmp_path / "a.parquet")
    pq.write_table(table, uri)
    rows = list(with_short_numbers(read_rows(uri), uri))
    assert row_json({name: rows[0][name] for name in ("answer", "half", "list", "part", "map")}) == (
        '{"answer": 1.1, "half": 1.1, "list": [1.1, null], "part": {"a": 0.3, "b": "x"}, "map": [["k", 0.7]]}'
    )
    assert rows[0]["answer"] == rows[0]["long"] == short[0].as_py() != 1.1
    assert str(rows[0]["long"]) == "1.100000023841858"
    assert row_json(rows[2]["answer"], allow_nan=True) == "NaN"

    pq.write_table(table.select(["question", "answer"]), uri)
    source = TextSourceRecipe(uri=uri, format="question_answer")
    read = list(read_source(source, CONVERSATION_READERS["question_answer"], {}))
    assert [one.made[-1]["content"] for one in read if one.made] == ["1.1", "3.0", "1e-07"]
    assert [one.reason for one in read] == ["", "", "answer_is_not_text", ""]


def test_two_columns_of_one_name_are_refused(tmp_path: Path):
    uri = str(tmp_path / "a.parquet")
    pq.write_table(
        pa.Table.from_arrays([pa.array(["q"]), pa.array(["a"]), pa.array(["b"])], ["question", "answer", "answer"]), uri
    )
    with pytest.raises(DataError, match="has the column 'answer' twice; rename one of them"):
        list(with_short_numbers(read_rows(uri), uri))
