"""Benchmark files read into items, and what of an item is indexed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.training.data import chain
from training.contract.job import DataError
from training.data.documents import read_lines
from training.data.exams.benchmarks import NOT_CLEARED_FILE, bare_question, item_text, load_index, read_items
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.exams.search.item_rule import build_items
from training.data.exams.settings import BenchmarkRecipe


def file_of(folder: Path, rows: list[dict[str, Any]]) -> str:
    path = folder / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def choice(uri: str, **fields: Any) -> BenchmarkRecipe:
    return BenchmarkRecipe(**{"name": "exam", "uri": uri, "kind": "multiple_choice"} | fields)


def asked(uri: str, **fields: Any) -> BenchmarkRecipe:
    return BenchmarkRecipe(**{"name": "exam", "uri": uri, "kind": "generate"} | fields)


@pytest.mark.parametrize(("gold", "index"), [(1, 1), ("B", 1), ("b", 1), ("Oslo", 1)])
def test_the_right_choice_may_be_an_index_a_letter_or_the_choice_itself(tmp_path, gold, index):
    row = {"question": "Which is a capital?", "choices": ["Bergen", "Oslo"], "gold": gold}
    (item,) = read_items(choice(file_of(tmp_path, [row])))
    assert (item.id, item.gold, item.answer) == ("0", index, "Oslo")


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (
            {"query": "Which?", "choices": ["a", "b"], "gold": 0},
            "'question'; the fields there are query, choices, gold",
        ),
        ({"question": "Which?", "gold": 0}, "no field 'choices'"),
        ({"question": "Which?", "choices": ["a"], "gold": 0}, "'choices' is ['a']; expected a list of at least two"),
        ({"question": "Which?", "choices": ["a", "b"], "gold": 2}, "'gold' is 2; expected an index below 2"),
        ({"question": "Which?", "choices": ["a", "b"], "gold": True}, "'gold' is True"),
        ({"question": " ", "choices": ["a", "b"], "gold": 0}, "'question' is ' '"),
    ],
)
def test_an_unusable_item_is_named_with_its_field_and_what_would_be_right(tmp_path, row, named):
    good = {"question": "Which?", "choices": ["a", "b"], "gold": 0}
    with pytest.raises(DataError) as error:
        read_items(choice(file_of(tmp_path, [good, row])))
    assert "items.jsonl: benchmark exam, item 1: " in str(error.value) and named in str(error.value)


def test_an_empty_file_and_repeated_ids_are_refused(tmp_path):
    with pytest.raises(DataError, match="has no item"):
        read_items(asked(file_of(tmp_path, [])))
    with pytest.raises(DataError, match="'same'"):
        read_items(asked(file_of(tmp_path, [{"id": "same", "question": "Why?", "answer": "so"}] * 2)))


def test_a_passage_may_be_absent_from_an_item_but_not_from_all(tmp_path):
    rows = [{"question": "Why?", "answer": "so", "passage": "Long ago."}, {"question": "How?", "answer": 7}]
    uri = file_of(tmp_path, rows)
    assert [item.passage for item in read_items(asked(uri, passage_field="passage"))] == ["Long ago.", ""]
    with pytest.raises(DataError, match="passage_field 'context'"):
        read_items(asked(uri, passage_field="context"))


def test_numbers_and_lists_are_answers_and_a_limit_cuts(tmp_path):
    rows = [{"question": "How many?", "answer": 7}, {"question": "Who?", "answer": ["Ann", "Anne"]}, {"question": "?"}]
    items = read_items(asked(file_of(tmp_path, rows), limit=2))
    assert [item.answers for item in items] == [("7",), ("Ann", "Anne")]


def test_a_conversation_ends_with_the_user(tmp_path):
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    row = {"messages": [*turns, {"role": "assistant", "content": "So."}], "answer": "So."}
    (item,) = read_items(asked(file_of(tmp_path, [row]), kind="chat"))
    assert item.messages == (("system", "Be brief."), ("user", "Why?")) and item.question == "Why?"
    with pytest.raises(DataError, match=r"field 'messages' is .* expected a conversation with a user's message"):
        read_items(asked(file_of(tmp_path, [{"messages": turns[:1], "answer": "So."}]), kind="chat"))


@pytest.mark.parametrize(
    ("name", "kind", "field"),
    [("cloze", "multiple_choice", "query"), ("questions", "generate", "question"), ("chat", "chat", "")],
)
def test_the_kitchens_exams_are_read(name, kind, field):
    benchmark = BenchmarkRecipe(name=name, uri=f"kitchen://{name}", kind=kind, question_field=field, limit=3)
    items = read_items(benchmark, {"kitchen": {}})
    assert len(items) == 3 and all(item.question and item.answer for item in items)


def test_labels_of_the_files_form_are_not_part_of_a_question():
    assert bare_question("Question: Why is it so?\nAnswer:") == "Why is it so?"
    assert bare_question("Q: Why?\nA:") == "Why?"
    assert bare_question("A question: why answer it?") == "A question: why answer it?"


def test_items_that_cannot_be_cleared_are_listed_with_how_they_are_looked_for(tmp_path):
    rows = [
        {"question": "2 + 2 =", "answer": "4"},
        {"question": "one two three four", "answer": "five"},
        {"question": "In which year did the guild of the millers burn down the mint?", "answer": "1431"},
    ]
    uri = file_of(tmp_path, rows)
    settings = {"decontaminate": DecontaminateRecipe(benchmarks=(asked(uri),)), "data": {uri: "0" * 64}}
    made = chain.run(tmp_path, "benchmarks", "benchmark_index", "tiny", settings)
    metrics = made.record()["metrics"]
    assert (metrics["items_that_cannot_be_found"], metrics["items_found_word_for_word_only"]) == (1, 1)
    listed = list(read_lines(Path(made.path, "not_cleared.jsonl")))
    assert [(row["item"], row["looked_for"]) for row in listed] == [
        ("0", "not at all"),
        ("1", "word for word, with the answer close behind"),
    ]


def test_an_index_is_read_as_it_was_built(tmp_path):
    rows = [
        {"id": "long", "question": " ".join(f"w{i}" for i in range(12)), "answer": "the end"},
        {
            "id": "short",
            "question": "what is the oldest bridge",
            "answer": "the stone bridge",
            "passage": "A b c d e f g h",
        },
    ]
    uri = file_of(tmp_path, rows)
    benchmark = asked(uri, passage_field="passage")
    made = chain.run(
        tmp_path,
        "benchmarks",
        "benchmark_index",
        "tiny",
        {"decontaminate": DecontaminateRecipe(benchmarks=(benchmark,))},
    )
    index, names = load_index(Path(made.path))
    built = build_items([item_text(item) for item in read_items(benchmark)])
    assert names == [("exam", "long"), ("exam", "short")]
    for name, values in built.arrays().items():
        assert index.arrays()[name].tolist() == values.tolist(), name
    listed = pq.read_table(Path(made.path, "items.parquet")).to_pylist()
    assert [(row["item"], row["part"]) for row in listed] == [
        ("long", "question"),
        ("long", "answer"),
        ("short", "question"),
        ("short", "answer"),
        ("short", "passage"),
    ]


def test_a_recipe_without_benchmarks_has_an_empty_index(tmp_path):
    made = chain.run(tmp_path, "benchmarks", "benchmark_index", "tiny", {"decontaminate": DecontaminateRecipe()})
    assert load_index(Path(made.path))[1] == []


def test_a_conversation_without_words_is_an_item_that_cannot_be_found(tmp_path):
    rows = [{"messages": [{"role": "user", "content": said}]} for said in ("", "Who wrote the letter to the miller?")]
    benchmark = BenchmarkRecipe(name="exam", uri=file_of(tmp_path, rows), kind="chat", answer_field="")
    recipe = DecontaminateRecipe(benchmarks=(benchmark,))
    made = chain.run(tmp_path, "benchmarks", "benchmark_index", "tiny", {"decontaminate": recipe})
    first = next(iter(read_lines(Path(made.path, NOT_CLEARED_FILE))))
    assert (first["item"], first["looked_for"]) == ("0", "not at all")
