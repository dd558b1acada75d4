"""Which texts hold an exam's item, and which only look like it."""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from training.data.documents import utf8_of
from training.data.exams.benchmarks import item_text, read_items, without_passage
from training.data.exams.search import item_rule
from training.data.exams.search.folding import folded_hashes
from training.data.exams.search.item_loops import candidates
from training.data.exams.search.item_rule import Finder, ItemIndex, ItemText, build_items
from training.data.exams.settings import BenchmarkRecipe
from training.data.words.ngrams import ngram_hashes

RIVERS = ItemText(
    benchmark="town",
    id="rivers",
    question="Which of the rivers that cross the old town of Bremholt is the one with nine bridges?",
    answers=("The Alder",),
)
GUILD = ItemText(
    benchmark="town",
    id="guild",
    question="In which year did the guild of the millers burn down the mint of Castavia?",
    answers=("1431",),
)
KETTLE = ItemText(
    benchmark="town", id="kettle", question="Who invented the whistling kettle?", answers=("Harry Bramson",)
)
SEA = ItemText(
    benchmark="b",
    id="sea",
    question="Where does it meet the sea?",
    answers=("no",),
    passage="The Alder runs past the mill and the abbey and through nine quiet villages.",
)
ITEMS = [RIVERS, GUILD, KETTLE, ItemText(benchmark="town", id="sum", question="2 + 2 =", answers=("4",))]
FILLER = "The kitchen was warm, and nobody spoke of anything in particular on that day. "
BEFORE, BEHIND = FILLER * 9, FILLER * 9


def held(text: str, items: list[ItemText] = ITEMS) -> list[tuple[str, str]]:
    """(item, class) of what a text holds, which plain, partly compiled and compiled loops must give alike."""
    index, never = build_items(items), 1 << 40
    finders = [
        Finder(index, compiled_from_bytes=never, compiled_from_cells=never),
        Finder(index, compiled_from_bytes=never, compiled_from_cells=0),
        Finder(index, compiled_from_bytes=0),
    ]
    plain, *others = ([found for _, some in finder.find(pa.array([text])) for found in some] for finder in finders)
    assert others == [plain, plain]
    return [(items[found.item].id, found.kind) for found in plain]


def planted(question: str, answer: str = "The Alder.") -> str:
    return f"{BEFORE}{question} {answer} {BEHIND}"


@pytest.mark.parametrize(
    "change",
    [
        str.upper,
        lambda text: text.replace(" ", " \u00a0\n* "),
        lambda text: re.sub(r"(?<=\w)(?=\w)", "\u00ad", text),
        lambda text: re.sub(r"(?<=\w)(?=\w)", "\u200b", text),
        lambda text: text.translate(str.maketrans("aceopxyBH", "асеорхуВН")),
        lambda text: text.translate({code: chr(code + 0xFEE0) for code in range(0x21, 0x7F)}),
        lambda text: text.replace("cross", "touch"),
        lambda text: text.replace("old town", "old and quiet town"),
        lambda text: text.replace("Bremholt ", ""),
        lambda text: text.replace("Which of", "qqq of").replace("of Bremholt", "qqq Bremholt"),
    ],
)
def test_a_changed_item_is_still_the_item(change):
    assert held(planted(change(RIVERS.question))) == [("rivers", "item")]


def listed(text: str, mark: str = "{}.") -> str:
    return "\n".join(f"{mark.format(number)} {word}" for number, word in enumerate(text.split(), 1))


@pytest.mark.parametrize(
    "text",
    [
        planted(RIVERS.question.replace("town of", f"{FILLER * 4} town of")),
        planted(RIVERS.question.replace("town of", f"{FILLER * 20} town of")),
        planted(
            RIVERS.question.replace("cross the", f"cross {FILLER * 4} the").replace("is the", f"{FILLER * 4} is the")
        ),
        planted(listed(f"{RIVERS.question} The Alder")),
        planted(listed(f"{RIVERS.question} The Alder", "00:{:02}")),
        planted(RIVERS.question.replace(" ", "&nbsp;")),
    ],
)
def test_the_pieces_of_an_item_add_up(text):
    assert [item for item, _ in held(text)] == ["rivers"]


@pytest.mark.parametrize(
    "text",
    [
        planted(f"is the one with nine bridges? {FILLER * 4} Which of the rivers that cross the old town of Bremholt"),
        planted(RIVERS.question.replace("town of", f"{FILLER * 60} town of")),
        planted(" and so ".join(RIVERS.question.split())),
        planted(f"Which of the rivers {FILLER * 3} cross the old town {FILLER * 3} is the one with the ferry?"),
    ],
)
def test_pieces_that_are_too_far_apart_in_another_order_or_too_small_do_not(text):
    assert held(text) == []


def test_the_form_of_other_questions_is_no_piece_of_an_item():
    frame = "At our inn on the hill everybody who asks for the {} gets it with"
    items = [
        ItemText(benchmark="inn", id=name, question=frame.format(f"{name} loaf"), answers=("dumplings",))
        for name in ("ondarel", "pelgrave")
    ]
    text = f"{frame.format('nestrine pudding')} couscous. {FILLER * 3} It was the ondarel loaf that gets dumplings."
    assert held(text, items) == []


def test_a_question_in_two_pieces_whose_words_many_questions_share_is_the_item():
    """No run of `How many vegetables do I have` starts a search, because too many questions have it."""
    ends = "ka nip dish lot nel ery rabi sley quin moss".split()
    names = [first + end for first in "lee tur ra fen shal kohl par cel but ro".split() for end in ends]
    chance = random.Random(6)
    lists = ["I have a {}, two {}, a {} and a {}.".format(*chance.sample(names, 4)) for _ in range(80)]
    asked = "How many vegetables do I have?"
    items = [ItemText(benchmark="b", id=one, question=f"{one} {asked}", answers=("8",)) for one in lists]
    for one in lists[:3]:
        assert (one, "item") in held(planted(f"{one} {FILLER * 4} {asked}", "8"), items)
        assert one not in dict(held(planted(f"{one} {FILLER * 4} {asked[:14]}", "8"), items))


@pytest.mark.parametrize(
    ("beginnings", "is_there"),
    [
        (["Which of the rivers that cross the old town of Bremholt"], False),
        (["Which of the rivers that cross the old", "Name those that cross the old town of Bremholt"], True),
    ],
    ids=["of-one-question", "of-two"],
)
def test_a_piece_tells_an_item_if_no_other_question_has_all_of_it(beginnings, is_there):
    """Of a list of common things every four words are in some question, and all of them in none."""
    begin, end = (
        "Which of the rivers that cross the old town of Bremholt",
        "is the one with the nine bridges of the millers?",
    )
    others = [f"{one} has most fish in a dry spring?" for one in beginnings]
    questions = (f"{begin} {end}", *others, f"Which of the roads of Ulmland {end}")
    items = [ItemText(benchmark="b", id=one, question=one, answers=("The Alder",)) for one in questions]
    assert held(planted(questions[0]), items) == [(questions[0], "item")]
    assert held(planted(f"{begin} {FILLER * 4} {end}"), items) == [(questions[0], "item")] * is_there


def test_a_question_that_a_benchmark_has_twice_shares_its_words_with_no_other():
    items = [replace(RIVERS, id=name) for name in ("first", "second")]
    text = planted(RIVERS.question.replace("town of", f"{FILLER * 4} town of"))
    assert held(text, items) == [("first", "item"), ("second", "item")]


def test_a_long_instruction_of_many_questions_is_left_out():
    frame = "Read the following short story with care, and then answer the question below in one single word only. "
    own = "Who painted the {} shutters of the granary in {}?"
    towns = ("Bremholt", "Tessara", "Norvane", "Ulmland", "Harrowdale", "Pelorra")
    items = [
        ItemText(benchmark="b", id=town, question=frame + own.format(color, town), answers=("Hedwig",))
        for town, color in zip(towns, ("blue", "green", "purple", "yellow", "orange", "crimson"), strict=True)
    ]
    assert held(planted(own.format("purple", "Norvane"), "Hedwig"), items) == [("Norvane", "item")]
    assert held(planted(frame + "Who wrote the letter?", "Hedwig"), items) == []


@pytest.mark.parametrize("own", ["To cook the {} bake", "Bake the {}"])
def test_a_name_and_an_answer_are_no_item_where_the_rest_of_the_question_is_a_template(own):
    frame = f"{own} as it should be, bring the heat in the oven to"
    names = ("Xarvine", "Nolbrique", "Drusmane", "Firnolde", "Hovarin", "Jorvanne")
    items = [ItemText(benchmark="b", id=name, question=frame.format(name), answers=("180 degrees",)) for name in names]
    page = f"{own.format('Hovarin')}. It is done after 40 minutes at 180 degrees."
    assert held(f"{FILLER} {page} {FILLER}", items) == []
    asked = frame.format("Hovarin")
    for text in (asked, asked.replace("should", "might")):
        assert held(planted(text, "180 degrees"), items) == [("Hovarin", "item")]
    for text in (asked.replace("Hovarin", "Quelmare"), asked.replace("should be, bring the heat", "is told in")):
        assert held(planted(text, "180 degrees"), items) == []
    assert held(f"{FILLER} {frame.format('Hovarin')} a good warmth. {FILLER}", items) == []


def test_a_question_of_the_form_of_others_is_another_with_another_number():
    frame = (
        "To cook the {} bake for 35 hungry guests of a village festival as it should be, bring the heat in the oven to"
    )
    names = ("Xarvine", "Nolbrique", "Drusmane", "Firnolde", "Hovarin", "Jorvanne")
    items = [ItemText(benchmark="b", id=name, question=frame.format(name), answers=("180 degrees",)) for name in names]
    asked = frame.format("Hovarin").replace("should", "might")
    assert held(planted(asked, "180 degrees"), items) == [("Hovarin", "item")]
    for text in (asked.replace("35", "36"), asked.replace("35 ", "")):
        assert held(planted(text, "180 degrees"), items) == []


def test_a_question_of_few_rare_words_is_found_only_word_for_word():
    items = [ItemText(benchmark="b", id="h", question="Is the Hovarin good or bad?", answers=("bad",))]
    assert held(planted("Is the Hovarin good or bad?", "bad"), items) == [("h", "item")]
    assert held(planted("Is the Hovarin good and bad?", "bad"), items) == []


def test_an_item_whose_punctuation_was_deleted_is_still_the_item_and_its_frame_is_not():
    """Then `half-timbered` is one word, and `1,250` another number than 1 and 250."""
    frame = "Of 1,250 half-timbered, tar-painted, straw-thatched mills by the {}-weir, how many were sold at $3.50?"
    weirs = ("alder", "birch", "cedar", "rowan", "hazel")
    items = [
        ItemText(benchmark="mills", id=weir, question=frame.format(weir), answers=(f"1,{number}04",))
        for number, weir in enumerate(weirs, 1)
    ]
    deleted = str.maketrans("", "", ",.-$?")
    assert held(planted(frame.format("cedar"), "1,304").translate(deleted), items) == [("cedar", "item")]
    assert held(planted(frame.format("willow"), "1,304").translate(deleted), items) == []


@pytest.mark.parametrize("words", [0, 1, 40, 110])
def test_the_answer_may_come_later(words):
    assert held(planted(RIVERS.question, "word " * words + "the alder")) == [("rivers", "item")]


def test_a_question_without_its_answer_is_a_class_of_its_own():
    assert held(planted(RIVERS.question, "It was another.")) == [("rivers", "question")]
    assert held(planted(RIVERS.question, "word " * 140 + "the alder")) == [("rivers", "question")]


def test_an_item_without_an_answer_is_found_by_its_question():
    item = ItemText(benchmark="town", id="open", question=RIVERS.question)
    assert held(planted(item.question, ""), [item]) == [("open", "item")]


@pytest.mark.parametrize(
    "text",
    [
        "Which of the rivers that cross the old city is the longest? The Alder.",
        "The Alder is one of the rivers with bridges. Nine of these are in Bremholt, which is old.",
        "Who invented the whistling kettle? Nobody knows.",
        "In which year did the guild of the bakers rebuild the hall of Ulm? In 1431.",
        FILLER * 30,
        "",
    ],
)
def test_what_only_shares_words_holds_nothing(text):
    assert held(text) == []


def test_a_question_with_other_numbers_is_another_question():
    trip = "A plane travels 1200 miles in 3 hours. At the same rate, how many hours would it take to travel {} miles?"
    item = ItemText(benchmark="sums", id="plane", question=trip.format(2000), answers=("5",))
    assert held(trip.format(2000).replace("plane", "jet"), [item]) == [("plane", "question")]
    assert held(trip.replace("1200", "270").format(180), [item]) == []


def test_a_question_of_numbers_is_found_only_word_for_word():
    item = ItemText(benchmark="sums", id="sum", question="((3 * -7 * -4 * 2) + (7 - -3 - -3 * 1)) =", answers=("181",))
    assert held(f"{BEFORE}{item.question} 181. {BEHIND}", [item]) == [("sum", "item")]
    for text in ("3 7 4 2 1 (or 8 7 4 2 6 5 3 1", f"{item.question} 17", item.question.replace("7 -", "8 -") + " 181"):
        assert held(f"{BEFORE}{text} {BEHIND}", [item]) == []
    assert build_items([item]).weak.tolist() == [0]


def test_the_frame_of_many_questions_tells_none_of_them():
    frame = "My notes from that long evening in the inn say about the famous {} that the heat of the oven was"
    dishes = ("bake", "pie", "stew", "tart", "roast", "broth")
    items = [
        ItemText(benchmark="dishes", id=dish, question=frame.format(f"{dish} of {dish}land"), answers=("180 degrees",))
        for dish in dishes
    ]
    assert held(frame.format("soup of Soupland") + " 180 degrees", items) == []
    assert held(frame.format("pie of Pieland") + " 180 degrees", items) == [("pie", "item")]


def test_a_short_question_is_found_only_with_its_answer_close_behind():
    question = KETTLE.question
    assert held(f"{BEFORE}{question} It was Harry Bramson.") == [("kettle", "item")]
    assert held(f"{BEFORE}{question.replace('whistling', 'electric')} It was Harry Bramson.") == []
    assert held(f"{BEFORE}{question} {FILLER * 2} Harry Bramson.") == []


def test_a_short_question_is_joined_to_its_answer_which_may_stand_behind_its_choices():
    item = replace(KETTLE, question="Who invented the kettle that whistles?", answers=("Harry Bramson",))
    with_choices = replace(item, choices=("Ada Quince", "Harry Bramson", "Otto Pellworm of the mill", "a smith of Ulm"))
    options = "a smith of Ulm, Otto Pellworm of the mill, Ada Quince, the twins of the bakery at the bridge in Ulm"
    for text in (f"{item.question} It was", item.question.replace("that", "which so loudly") + " It was"):
        assert held(f"{BEFORE}{text} Harry Bramson.", [item]) == [("kettle", "item")]
        assert held(f"{BEFORE}{text} Otto Pellworm.", [item]) == []
    asked = f"{BEFORE}{item.question} {options}, or Harry Bramson?"
    assert held(asked, [item]) == [] and held(asked, [with_choices]) == [("kettle", "item")]


def test_items_that_cannot_be_cleared_are_listed():
    joined = replace(KETTLE, id="joined", question="Who invented the kettle that whistles?")
    index = build_items([*ITEMS, joined])
    assert [some.tolist() for some in (index.joined, index.weak, index.unsearchable)] == [[4], [2], [3]]


def test_a_question_that_many_items_share_cannot_be_cleared():
    items = [
        ItemText(
            benchmark="b", id=str(n), question="Which of the following is the best explanation of this?", answers=(a,)
        )
        for n, a in enumerate(("wind", "rain", "snow", "hail"))
    ]
    twins = [
        ItemText(benchmark="b", id=f"{item.id}b", question=f"{item.question} Choose {item.id}.", answers=item.answers)
        for item in items
    ]
    assert set(build_items(items + twins).weak.tolist()) >= set(range(4))


def test_a_solution_with_a_reworded_question_is_the_item():
    solution = (
        "Maud bakes 16 loaves and sells 3 of them to the mill and 4 of them to the abbey, so 9 loaves are left over."
    )
    question = "Maud bakes loaves, of which the mill takes some. How many are left over?"
    item = ItemText(benchmark="sums", id="maud", question=question, answers=(solution,))
    assert held(f"{BEFORE}Maud bakes loaves and the mill takes some: how many? {solution}", [item]) == [
        ("maud", "item")
    ]
    assert held(f"{BEFORE}{solution.replace('Maud', 'Anna')}", [item]) == []


def test_a_long_solution_without_its_question_is_not_the_item():
    """However much of the whole the solution is: another question may have the same solution."""
    solution = (
        "The miller grinds 12 sacks of barley and 7 sacks of rye before noon, then lends 5 sacks to the brewer at the "
        "bridge and carries 3 sacks up to the castle, so 12 + 7 - 5 - 3 = 11 sacks stay in the barn until the market."
    )
    item = ItemText(
        benchmark="sums",
        id="sacks",
        question="How much grain is kept when evening falls on Bremholt?",
        answers=(solution,),
    )
    assert held(f"{BEFORE}{solution} {BEHIND}", [item]) == []
    assert held(f"{BEFORE}{item.question} {solution} {BEHIND}", [item]) == [("sacks", "item")]


def test_the_page_that_an_exam_quotes_is_no_leak_and_with_the_question_behind_it_is_one():
    assert held(f"{BEFORE}{SEA.passage} {BEHIND}", [SEA]) == []
    assert held(f"{BEFORE}{SEA.passage} {SEA.question}", [SEA]) == [("sea", "item")]


def test_passage_and_options_are_told_from_the_question():
    assert without_passage("Passage: A long text.\nQuestion: is it long") == ("A long text.", "is it long")
    assert without_passage("Question: Where?\nChoices:\nA. here\nB. there\nAnswer:") == ("", "Where?")
    assert without_passage("Where?") == ("", "Where?")


def test_the_span_is_where_the_item_stands_in_the_text_as_it_is_written():
    text = planted(RIVERS.question.replace("bridges", "brid\u00adges"))
    ((_, (found,)),) = Finder(build_items(ITEMS)).find(pa.array([text]))
    assert text[found.start : found.end] == RIVERS.question.replace("bridges", "brid\u00adges").rstrip("?")
    assert (found.share, found.words) == (1.0, 17)


@pytest.mark.parametrize("mark", [" ", "\u00a0", "\n", "、", "\u0301 ", " \u00ad", "ー"])
def test_the_span_is_the_same_in_a_long_text_of_any_script(mark):
    """Words are counted in pieces of the text, so signs beside a blank must belong to the same words as before."""
    words = "It's ＡＢ１ the l’été 日本語 ภาษา straße ΣΊΣΥΦΟΣ q\u00aduiet x2 नमस्ते ② 한국어 e\u0301a".split() * 60
    around = mark.join(words)
    text = f"{around} {GUILD.question} 1431 {around}"
    finders = [Finder(build_items(ITEMS), compiled_from_bytes=size) for size in (0, 1 << 40)]
    (found,), (plain,) = (some for finder in finders for _, some in finder.find(pa.array([text])))
    assert found == plain and text[found.start : found.end] == GUILD.question[:-1]


def test_a_long_item_of_common_words_is_found_word_for_word_and_after_an_edit():
    """Each Thai letter is a word, and all are common, so that no run of words is rare."""
    first = "เรากำลังเดินทางไปที่บ้านของคุณยายที่อยู่ริมแม่น้ำและจะกลับมาในวันที่เราพร้อมที่จะทำงานร่วมกันกับคนในบ้านทุกคน"
    question = f"{first}อีกครั้งหลังจากที่ได้พักผ่อนกับครอบครัวของเราเป็นเวลานาน"
    items = [ItemText(benchmark="thai", id="river", question=question, answers=("น้ำท่วม",))]
    middle = len(question) // 2
    for text in (question, f"{question[:middle]}ก{question[middle + 1 :]}"):
        assert held(f"นี่คือบทเรียน {text} น้ำท่วม", items) == [("river", "item")]
    assert held("เราจะกลับมาที่บ้านของคุณยายในวันที่คนในครอบครัวได้พักผ่อนร่วมกัน", items) == []


def test_greek_is_found_in_capitals():
    question = "Σε ποιον μήνα του χρόνου ανοίγει η αγορά του νησιού για τους ξένους επισκέπτες;"
    items = [ItemText(benchmark="greek", id="market", question=question, answers=("Ιούνιο",))]
    for text in (question, question.upper()):
        assert held(planted(text, "Ιούνιο"), items) == held(planted(text, "ΙΟΥΝΙΟ"), items) == [("market", "item")]


def test_copies_and_neighbours_change_nothing():
    texts = [FILLER, planted(RIVERS.question)] * 50
    for size in (0, 1 << 40):
        found = dict(Finder(build_items(ITEMS), compiled_from_bytes=size).find(pa.array(texts)))
        assert sorted(found) == list(range(1, 100, 2)) and len({repr(some) for some in found.values()}) == 1


def test_an_index_is_read_as_it_was_stored():
    index = build_items(ITEMS)
    again = ItemIndex(**index.arrays())
    assert all(
        np.array_equal(one, other) for one, other in zip(index.arrays().values(), again.arrays().values(), strict=True)
    )


def test_an_index_of_nothing_finds_nothing():
    assert held(planted(RIVERS.question), []) == []


@pytest.mark.data
@pytest.mark.parametrize("reference", ["question_answer", "question", "passage_question_answer"])
def test_the_plants_of_decon_are_found_and_its_clean_documents_are_not(reference):
    folder = Path(os.environ["PEDIGREE_DATA"], "contamination", "decon")
    rows = [
        json.loads(line) for line in (folder / "reference" / f"{reference}_reference.jsonl").read_text().splitlines()
    ]
    items = [
        ItemText(
            benchmark="decon",
            id=str(row["doc_id"]),
            question=row["question"],
            answers=tuple(filter(None, [row.get("answer")])),
            passage=row.get("passage") or "",
        )
        for row in rows
    ]
    found = {
        path.stem: {item for line in path.read_text().splitlines() for item, _ in held(json.loads(line)["text"], items)}
        for path in (folder / "training").glob("*.jsonl")
    }
    assert not found.pop("clean") and not found.pop("demo")
    assert found.pop("contaminated_multiple_in_one") >= {"101", "102"}
    assert all("101" in some for some in found.values()), found


def test_in_the_kitchen_what_was_planted_is_found_and_nothing_else(tmp_path):
    from training.contract.records import write_record
    from training.data.documents import read_lines
    from training.data.kitchen.archive import write_snapshot
    from training.data.kitchen.settings import KitchenWorld
    from training.data.sources import read_rows

    world = KitchenWorld(seed=5, dishes=16, tested_per_value=1, pages=300, files=1, dialogues=150, preferences=50)
    settings = {"kitchen": write_record(world)}
    suites = [
        BenchmarkRecipe(name="cloze", uri="kitchen://cloze", kind="multiple_choice", question_field="query"),
        BenchmarkRecipe(name="sums", uri="kitchen://sums", kind="multiple_choice", question_field="query"),
        BenchmarkRecipe(name="questions", uri="kitchen://questions", kind="generate"),
        BenchmarkRecipe(name="chat", uri="kitchen://chat", kind="chat"),
    ]
    items = [item for suite in suites for item in read_items(suite, settings)]
    finder = Finder(build_items([item_text(item) for item in items]))

    def items_in(text: str) -> set[str]:
        return {items[found.item].id for _, some in finder.find(pa.array([text])) for found in some}

    write_snapshot(world, "kitchen-1", tmp_path)
    pages = [row for row in read_lines(tmp_path / "kitchen-1.truth.jsonl") if row["text"]]
    assert sum(bool(row["items"]) for row in pages) >= 2
    for row in pages:
        assert items_in(row["text"]) == set(row["items"]), row["url"]
    for row in read_rows("kitchen://dialogues", settings=settings):
        assert not items_in("\n".join(message["content"] for message in row["messages"]))


def test_a_share_that_equals_its_limit_is_enough(monkeypatch):
    for limit in ("MIN_SHARE", "MIN_SHORT_SHARE", "WORD_FOR_WORD"):
        monkeypatch.setattr(item_rule, limit, 1.0)
    joined = replace(KETTLE, id="joined", question="Who invented the kettle that whistles?")
    for item in (RIVERS, KETTLE, joined):
        assert held(planted(item.question, item.answers[0]), [item]) == [(item.id, "item")]
    assert held(f"{BEFORE}{SEA.passage} {SEA.question}", [SEA]) == [("sea", "item")]


@pytest.mark.parametrize(
    ("question", "answer", "found"),
    [
        ("How old are you this year?", "I am ten", ([0], [])),
        ("Which is the best of all days?", "today", ([], [0])),
        ("Who invented the whistling kettle?", "Harry Bramson Senior", ([0], [])),  # of MIN_WORDS words
    ],
)
def test_a_short_question_is_joined_to_an_answer_from_a_weight_on_that_both_have_after_edits(question, answer, found):
    """Of the first, 0.7 of the question and the answer weigh exactly as much as is needed."""
    index = build_items([ItemText(benchmark="b", id="", question=question, answers=(answer,))])
    assert (index.joined.tolist(), index.weak.tolist()) == found


@pytest.mark.parametrize(("owners", "starts"), [(2, True), (1, False)])
def test_a_run_over_counters_starts_a_search_if_few_questions_have_it(monkeypatch, owners, starts):
    monkeypatch.setattr(item_rule, "MAX_OWNERS", owners)
    listed_trees = "1. alder 2. birch 3. cedar 4. rowan"
    items = [ItemText(benchmark="b", id=end, question=f"{listed_trees} 5. {end}") for end in ("hazel", "willow")]
    run = ngram_hashes(folded_hashes("alder birch cedar rowan"), 4)
    assert (run[0] in build_items(items).seeds) is starts


def test_words_that_a_text_has_over_a_counter_too_weigh_once_in_a_candidate():
    def num_candidates(found: list[list[int]], offsets: list[int]) -> int:
        entries, out = len(offsets), np.empty((1, 4), np.int64)
        index = np.array([0, entries]), np.zeros(entries, np.int64), np.array(offsets), np.ones((entries, 4))
        return candidates.py_func(np.array(found), *index, np.array([10]), np.array([5.0]), out)

    assert num_candidates([[0, 5, 0], [0, 5, 0]], [0]) == 0
    assert num_candidates([[0, 5, 0]], [0, 5]) == 1  # the part has the run twice


def test_words_of_a_template_are_in_runs_of_at_least_so_many():
    flags = np.array([1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1], np.bool_)
    assert item_rule._long_runs(flags, 3).astype(int).tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1]


def test_what_a_text_has_over_counters_stands_among_its_other_runs_in_the_order_of_words():
    texts = pa.array([f"{listed(RIVERS.question)} {RIVERS.question}", RIVERS.question])
    seeds = Finder(build_items(ITEMS))._scanned(texts, *utf8_of(texts), compiled=False).seeds.tolist()
    assert len(seeds) > 30 and seeds == sorted(seeds)


def test_more_candidates_than_there_is_room_for_are_all_tried():
    texts = pa.array([f"{RIVERS.question} The Alder."] * 5_000)
    assert len(list(Finder(build_items(ITEMS)).find(texts))) == 5_000
