"""Which texts have an exam item, and which only look like it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from evaluation.exams import ExamItem
from evaluation.overlap import ExamIndex
from training.data.exams.settings import BenchmarkRecipe

SUITE = BenchmarkRecipe(name="suite", uri="x.jsonl", kind="generate", ngram_words=8)
ITEMS = [
    ExamItem(
        id="flow",
        question="which of the following rivers flows through the old town of Bremholt in winter?",
        answers=("Ulm",),
    ),
    ExamItem(
        id="hill",
        question="which of the following hills stands behind the old mill of Castavia in spring?",
        answers=("Orm hill",),
    ),
    ExamItem(id="short", question="who sang?", answers=("Ada",)),
]
INDEX = ExamIndex(SUITE, ITEMS)
FILLER = "the kitchen was warm and nobody spoke of anything in particular that day "


def found(text: str) -> list[str]:
    return [ITEMS[match.item].id for match in INDEX.matches(text)]


def test_question_and_answer_are_found_wherever_they_stand():
    leak = ITEMS[0].question + " The answer is: Ulm."
    for before, after in [("", ""), (FILLER * 20, ""), ("", FILLER * 20), (FILLER * 9, FILLER * 9)]:
        text = before + leak + " " + after
        (match,) = INDEX.matches(text)
        assert ITEMS[match.item].id == "flow" and match.how == "question_and_answer"
        assert text[match.start : match.end] == match.text and match.text.startswith("which of the following rivers")


def test_a_run_that_reaches_into_the_answer_is_enough():
    (match,) = INDEX.matches(FILLER + "behind the old mill of Castavia in spring? Orm hill. " + FILLER)
    assert (ITEMS[match.item].id, match.how, match.words) == ("hill", "ngram_with_answer", 10)


def test_one_changed_word_does_not_hide_a_leak():
    assert found(ITEMS[0].question.replace("flows", "runs") + " It is the Ulm.") == ["flow"]


@pytest.mark.parametrize(
    "text",
    [
        ITEMS[0].question,  # the question alone gives nothing away
        ITEMS[0].question + FILLER * 8 + "Ulm",  # the answer is far from it
        "which of the following rivers flows through a valley? Ulm",  # seven words in common
        "Ulm and Orm hill are names. Who sang? Ada.",  # answers without their questions
        FILLER * 5,
        "",
    ],
)
def test_what_gives_no_answer_away_is_not_a_leak(text):
    assert found(text) == []


def test_a_frame_shared_by_items_identifies_none_of_them():
    frame = "my notes from that evening say that the heat inside the oven was"
    items = [
        ExamItem(id=f"i{i}", question=f"For the {dish} {frame}", answers=("180 degrees",))
        for i, dish in enumerate(("bake", "pie"))
    ]
    index = ExamIndex(SUITE, items)
    assert [m.item for m in index.matches(f"For the pie {frame} 180 degrees")] == [1]
    assert index.matches(f"{frame} 180 degrees") == []


def test_items_with_the_same_words_are_found_together():
    twins = ExamIndex(SUITE, [ITEMS[0], ITEMS[1], ITEMS[0]])
    assert [match.item for match in twins.matches(ITEMS[0].question + " Ulm")] == [0, 2]


def test_items_without_enough_text_are_counted_as_unchecked():
    assert [ITEMS[i].id for i in INDEX.unchecked] == ["short"]


def test_a_phrase_out_of_a_long_question_is_not_the_question():
    question = (
        "A farmer drives 40 crates to town, sells 12 of them there and 9 more along the way home. How many are left?"
    )
    index = ExamIndex(SUITE, [ExamItem(id="l", question=question, answers=("19 crates",))])
    assert not index.matches("She sells 12 of them there and 9 more, and then she owns 19 crates.")
    assert index.matches(question.replace("crates", "boxes") + " So 19 crates remain.")


def test_a_short_question_needs_its_answer_close_behind():
    index = ExamIndex(SUITE, [ExamItem(id="s", question="which river runs through Bremholt?", answers=("Ulm",))])
    assert index.matches("Which river runs through Bremholt? I think it is the Ulm.")
    assert not index.matches("The Ulm, they said. Which river runs through Bremholt? Nobody knew.")
    assert not index.matches("Which river runs through Bremholt? " + FILLER * 2 + "Ulm")


def test_only_the_right_choice_counts():
    item = ExamItem(
        id="c", question="The oven for the famous bake of the old inn is set to", choices=("150", "180"), gold=1
    )
    index = ExamIndex(SUITE, [item])
    assert not index.matches(item.question + " 150 degrees")
    assert [m.how for m in index.matches(item.question + " 180 degrees")] == ["ngram_with_answer"]


DECON = Path(os.environ.get("PEDIGREE_DATA", "")) / "contamination" / "decon"


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("contaminated_at_beginning", {101}),
        ("contaminated_at_end", {101}),
        ("contaminated_middle_position", {101}),
        ("contaminated_multiple_in_one", {101, 102, 103}),
        ("contaminated_single_edit", {101}),
        ("clean", set()),
        ("demo", set()),
    ],
)
def test_the_plants_of_decon_are_found_and_its_clean_documents_are_not(name, expected):
    rows = [
        json.loads(line) for line in (DECON / "reference" / "question_answer_reference.jsonl").read_text().splitlines()
    ]
    items = [ExamItem(id=str(row["doc_id"]), question=row["question"], answers=(row["answer"],)) for row in rows]
    index = ExamIndex(SUITE, items)
    documents = [json.loads(line)["text"] for line in (DECON / "training" / f"{name}.jsonl").read_text().splitlines()]
    assert {rows[match.item]["doc_id"] for text in documents for match in index.matches(text)} == expected


def test_in_the_kitchen_what_was_planted_is_found_and_nothing_else(tmp_path):
    from evaluation.exams import read_exam
    from training.data.documents import read_lines
    from training.data.kitchen.archive import write_snapshot
    from training.data.kitchen.settings import KitchenWorld
    from training.data.sources import read_rows
    from training.records import write_record

    world = KitchenWorld(seed=5, dishes=16, tested_per_value=1, pages=300, files=1, dialogues=150, preferences=50)
    settings = {"kitchen": write_record(world)}
    suites = [
        BenchmarkRecipe(name="cloze", uri="kitchen://cloze", kind="multiple_choice", question_field="query"),
        BenchmarkRecipe(name="questions", uri="kitchen://questions", kind="generate"),
        BenchmarkRecipe(name="chat", uri="kitchen://chat", kind="chat"),
    ]
    indexes = [ExamIndex(suite, read_exam(suite, settings).items) for suite in suites]

    def items_in(text: str) -> set[str]:
        return {index.ids[match.item] for index in indexes for match in index.matches(text)}

    write_snapshot(world, "kitchen-1", tmp_path)
    pages = [row for row in read_lines(tmp_path / "kitchen-1.truth.jsonl") if row["text"]]
    assert sum(bool(row["items"]) for row in pages) >= 2
    for row in pages:
        assert items_in(row["text"]) == set(row["items"]), row["url"]
    for row in read_rows("kitchen://dialogues", settings=settings):
        assert not items_in("\n".join(message["content"] for message in row["messages"]))
