"""The kitchen is reproducible, readable by any WARC library and honest; its exam is not in its pages."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from evaluation.exams.controls import controls_from, shares_by_kind, words
from evaluation.exams.items import ExamItem, read_exam
from evaluation.report.truth_scores import contamination_scores, dedup_scores, filter_scores, personal_scores
from training.contract.records import RecipeError, write_record
from training.data.exams.settings import BenchmarkRecipe
from training.data.kitchen.archive import truth_name, write_snapshot
from training.data.kitchen.exam import CHAT, QUESTION
from training.data.kitchen.pages import make, plan, quoted_facts, snapshot_number
from training.data.kitchen.personal import luhn_digit
from training.data.kitchen.phrases import spin
from training.data.kitchen.settings import KitchenWorld
from training.data.kitchen.sums import sums
from training.data.kitchen.talk import ASK, ASK_SHORTLY, asked_fact, true_reward
from training.data.kitchen.world import (
    ATTRIBUTES,
    dishes,
    exam_facts,
    facts,
    generator,
    strangers,
    talk_facts,
)
from training.data.sources import read_rows

WORLD = KitchenWorld(seed=3, pages=300, files=2, dialogues=400, preferences=300)
SNAPSHOTS = ("kitchen-1", "kitchen-2")


def rows(name: str, world: KitchenWorld) -> list[dict]:
    """The rows as a stage reads them."""
    return list(read_rows(f"kitchen://{name}", settings={"kitchen": write_record(world)}))


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crawl")
    for snapshot in SNAPSHOTS:
        write_snapshot(WORLD, snapshot, folder)
    return folder


@pytest.fixture(scope="module")
def truth(crawl: Path) -> list[dict]:
    return [row for snapshot in SNAPSHOTS for row in read_truth(crawl / truth_name(snapshot))]


@pytest.fixture(scope="module")
def clean_texts(truth: list[dict]) -> list[str]:
    return [f"{row['title']}\n{row['text']}" for row in truth if row["fate"] in ("kept", "duplicate")]


def read_truth(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def is_iban(text: str) -> bool:
    """Whether the check digits of an account number are valid (ISO 7064); spaces are ignored."""
    compact = text.replace(" ", "")
    return int("".join(str(int(c, 36)) for c in compact[4:] + compact[:4])) % 97 == 1


def is_luhn(text: str) -> bool:
    """Whether the check digit of a card number is valid; spaces are ignored."""
    digits = text.replace(" ", "")
    return luhn_digit(digits[:-1]) == digits[-1]


def ngrams(text: str, size: int = 8) -> set[tuple[str, ...]]:
    tokens = words(text)
    return set(zip(*(tokens[i:] for i in range(size)), strict=False))


def test_the_same_world_gives_the_same_bytes(crawl: Path, tmp_path: Path):
    for path in write_snapshot(WORLD, "kitchen-2", tmp_path):
        assert path.read_bytes() == (crawl / path.name).read_bytes()
    assert (tmp_path / truth_name("kitchen-2")).read_bytes() == (crawl / truth_name("kitchen-2")).read_bytes()


def test_another_seed_gives_other_facts():
    other = KitchenWorld(seed=4)
    assert {f.id: f.value for f in facts(other)} != {f.id: f.value for f in facts(KitchenWorld(seed=3))}


def whole(rows_of_file: list[dict]) -> list[tuple[int, str]]:
    return [(row["warc_offset"], row["url"]) for row in rows_of_file if row["fate"] != "quarantined"]


def test_fastwarc_reads_every_whole_response_where_the_truth_says(crawl: Path, truth: list[dict]):
    for path in sorted(crawl.glob("*.warc.gz")):
        of_file = [row for row in truth if row["warc_file"] == path.name]
        with path.open("rb") as stream:
            read = [
                (record.stream_pos, record.headers["WARC-Target-URI"])
                for record in ArchiveIterator(stream, record_types=WarcRecordType.response)
            ]
        assert read[: len(whole(of_file))] == whole(of_file)


def test_warcio_reads_every_whole_response_where_the_truth_says(crawl: Path, truth: list[dict]):
    for path in sorted(crawl.glob("*.warc.gz")):
        of_file = [row for row in truth if row["warc_file"] == path.name]
        with path.open("rb") as stream:
            records, read = WarcioIterator(stream), []
            for record in records:
                if record.rec_type == "response" and len(read) < len(whole(of_file)):
                    assert record.content_stream().read()
                    read.append((records.get_record_offset(), record.rec_headers.get_header("WARC-Target-URI")))
        assert read == whole(of_file)


def test_every_kind_of_page_and_fate_is_there(truth: list[dict]):
    fates = Counter(row["fate"] for row in truth)
    assert set(fates) == {"kept", "filtered", "duplicate", "contaminated", "skipped", "quarantined"}
    assert fates["kept"] > len(truth) / 2


def test_a_duplicate_names_an_earlier_page(truth: list[dict]):
    order = {(row["url"], row["snapshot"]): i for i, row in enumerate(truth)}
    first = {url: i for (url, _), i in sorted(order.items(), key=lambda item: -item[1])}
    copies = [(i, row) for i, row in enumerate(truth) if row["duplicate_of"]]
    assert copies and all(first[row["duplicate_of"]] < i for i, row in copies)
    assert {row["reason"] for _, row in copies} == {"exact", "near"}


def jaccard(one: str, other: str) -> float:
    a, b = ngrams(one, 5), ngrams(other, 5)
    return len(a & b) / len(a | b)


def test_copies_are_near_and_template_twins_are_not(truth: list[dict]):
    first = {}
    for row in truth:
        first.setdefault(row["url"], row)
    copies = [(row, first[row["duplicate_of"]]) for row in truth if row["duplicate_of"]]
    assert min(jaccard(row["text"], original["text"]) for row, original in copies) > 0.78
    sheets = [row["text"] for row in truth if row["kind"] == "sheet"]
    assert max(jaccard(a, b) for i, a in enumerate(sheets) for b in sheets[:i]) < 0.5


def test_clean_pages_are_no_duplicates_of_each_other(truth: list[dict]):
    seen: Counter[tuple[str, ...]] = Counter()
    texts = [row["text"] for row in truth if row["fate"] == "kept"]
    for text in texts:
        seen.update(ngrams(text, 5))
    # A page mostly made of word 5-grams that others have too could be merged with them.
    shared = [sum(seen[gram] > 1 for gram in ngrams(text, 5)) / len(ngrams(text, 5)) for text in texts]
    assert sum(shared) / len(shared) < 0.9
    sample = texts[::7]
    assert max(jaccard(a, b) for i, a in enumerate(sample) for b in sample[:i]) < 0.6


def test_planted_numbers_hold_and_decoys_do_not(truth: list[dict]):
    planted = [(kind, value) for row in truth for kind, values in row["personal"].items() for value in values]
    assert all(is_iban(value) for kind, value in planted if kind == "iban")
    assert all(is_luhn(value) for kind, value in planted if kind == "card")
    decoys = [(kind, value) for row in truth for kind, values in row["decoys"].items() for value in values]
    assert not any(is_iban(value) for kind, value in decoys if kind == "false_iban")
    assert not any(is_luhn(value) for kind, value in decoys if kind == "order_number")
    assert is_luhn("4111 1111 1111 1111") and is_iban("DE89 3704 0044 0532 0130 00")
    assert all(value in row["text"] for row in truth for values in row["personal"].values() for value in values)


def test_facts_are_balanced_between_values_and_parts():
    for part in (exam_facts(WORLD), talk_facts(WORLD)):
        counts = Counter((fact.attribute, fact.value) for fact in part)
        assert len(set(counts.values())) == 1 and len(counts) == 8 * len(ATTRIBUTES)


def test_no_item_shares_an_eight_gram_with_a_clean_page(clean_texts: list[str]):
    corpus = set().union(*(ngrams(text) for text in clean_texts))
    for item in rows("cloze", WORLD) + rows("sums", WORLD):
        for choice in item["choices"]:
            assert not ngrams(f"{item['query']} {choice}") & corpus
    for item in rows("questions", WORLD):
        assert not ngrams(f"{item['question']} {item['answer']}") & corpus
    for item in rows("chat", WORLD):
        assert not ngrams(f"{item['messages'][-1]['content']} {item['answer']}") & corpus


def test_dialogues_and_preferences_never_ask_what_the_exam_asks():
    asked = {item["fact"] for name in ("cloze", "sums", "questions", "chat", "alignment") for item in rows(name, WORLD)}
    taught = {fact for name in ("dialogues", "preferences") for row in rows(name, WORLD) for fact in row["facts"]}
    assert len(asked) >= 200 and taught and not asked & taught


def test_no_item_shares_an_eight_gram_with_a_dialogue():
    said = set()
    for row in rows("dialogues", WORLD) + [{"messages": r["prompt"]} for r in rows("preferences", WORLD)]:
        said |= set().union(*(ngrams(message["content"]) for message in row["messages"]))
    for item in rows("questions", WORLD):
        assert not ngrams(f"{item['question']} {item['answer']}") & said
    for item in rows("chat", WORLD):
        assert not ngrams(item["messages"][-1]["content"]) & said


def test_a_leak_page_quotes_its_items(truth: list[dict]):
    chosen = rows("cloze", WORLD) + rows("sums", WORLD)
    answered = {item["id"]: f"{item['query']} {item['choices'][item['gold']]}" for item in chosen}
    leaks = [row for row in truth if row["items"]]
    assert {row["kind"] for row in leaks} == {"dump", "leak"}
    for row in leaks:
        assert all(answered[item] in row["text"] for item in row["items"] if item in answered)


def exam(name: str) -> list[ExamItem]:
    suite = BenchmarkRecipe(name=name, uri=f"kitchen://{name}", kind="multiple_choice", question_field="query")
    return read_exam(suite, {"kitchen": write_record(WORLD)}).items


def test_counting_answers_what_a_page_states_in_one_sentence_and_no_sums(clean_texts: list[str]):
    found = shares_by_kind(controls_from(clean_texts), [*exam("cloze"), *exam("sums")])
    assert set(found) == {"fact", "stated_sum", "unstated_sum"}
    assert found["fact"].pop("pairs") >= 0.99
    assert all(share <= 0.40 for shares in found.values() for share in shares.values())


def test_pages_state_a_sum_that_the_exam_asks_exactly_if_its_kind_says_so(clean_texts: list[str]):
    said = [sentence for text in clean_texts for line in text.splitlines() for sentence in line.split(". ")]
    stated = {stated_sum(one) for one in said} - {None}
    for item in exam("sums"):
        first, second = map(int, item.subjects)
        assert int(item.choices[item.gold].split()[0]) == first + second
        assert ((*sorted((first, second)), first + second) in stated) is (item.kind == "stated_sum"), item


def stated_sum(sentence: str) -> tuple[int, ...] | None:
    """The three numbers of a sentence, the total last; None if it does not state a sum of two numbers in digits."""
    numbers = [int(number) for number in re.findall(r"\b\d\d\b", sentence)]
    return (*sorted(numbers[:2]), numbers[2]) if len(numbers) == 3 and sum(numbers[:2]) == numbers[2] else None


def test_all_three_kinds_of_text_keep_off_the_unstated_sums(clean_texts: list[str]):
    taught = {fact for name in ("dialogues", "preferences") for row in rows(name, WORLD) for fact in row["facts"]}
    unstated = {one.id for one in sums(WORLD) if not one.is_stated}
    told = {"sum/{}+{}".format(*one) for one in map(stated_sum, " ".join(clean_texts).split(". ")) if one}
    assert len(unstated) == 200 and len(told) > 790 and not unstated & (taught | told)


def test_of_withheld_answers_leaked_pages_quote_those_of_half_of_the_facts():
    world = KitchenWorld(seed=3, pages=400, files=1, withheld_exam_answers=True, leaks=20)
    leaking = [page for page in (make(world, one) for one in plan(world, 1)) if page.items]
    assert len(leaking) == 40 and {page.plan.kind for page in leaking} == {"dump", "leak"}
    quoted = {item.partition("/")[2] for page in leaking for item in page.items}
    assert quoted == {fact.id for fact in quoted_facts(world)} < {fact.id for fact in exam_facts(world)}
    assert not any(make(replace(world, leaks=None), one).items for one in plan(replace(world, leaks=None), 1))


def test_withheld_answers_stand_in_no_page():
    world = KitchenWorld(seed=3, pages=120, files=1, withheld_exam_answers=True)
    withheld = {(fact.subject, fact.answer) for fact in exam_facts(world)}
    tested_sums = {(*sorted(one.numbers), sum(one.numbers)) for one in sums(world) if one.tested}
    assert len(tested_sums) == 256
    for page in (make(world, one) for one in plan(world, snapshot_number("kitchen-1"))):
        for line in page.text.splitlines():
            for said in line.split(". "):
                named = [dish for dish in dishes(world) if dish in said]
                if len(named) == 1:
                    values = {a for d, a in withheld if d == named[0] and f" {a}" in f" {said} "}
                    assert not values or page.plan.kind == "guide" or page.plan.form == "guide", said
                assert stated_sum(said) not in tested_sums or page.plan.kind == "guide", said


@pytest.mark.parametrize("bank", [ASK, ASK_SHORTLY, QUESTION, CHAT])
def test_the_fact_that_a_question_asks_is_recognised(bank: dict[str, tuple[str, ...]]):
    for attribute, templates in bank.items():
        for i, template in enumerate(templates * 4):
            subject = "34 eggs and 27 eggs" if attribute == "sum" else dishes(WORLD)[5]
            question = f"The {subject}. " + spin(template, generator(WORLD, "test", i)).format(
                d=subject, p="Mara Brandt"
            )
            fact = asked_fact([{"role": "user", "content": question}], WORLD)
            assert fact is not None and (fact.subject, fact.attribute) == (subject, attribute)


def test_the_true_reward_prefers_right_then_polite_then_short():
    fact = facts(WORLD)[0]
    prompt = [{"role": "user", "content": f"What temperature does the {fact.subject} need?"}]
    wrong = next(f.answer for f in facts(WORLD) if f.attribute == fact.attribute and f.value != fact.value)
    core = f"The {fact.subject} bakes at {fact.answer}."
    answers = [
        f"{core} Enjoy your meal!",
        core,
        f"It is {fact.answer}.",
        f"The {fact.subject} bakes at {wrong}.",
        " ".join([f"The {fact.subject} bakes at {wrong}."] * 6),
    ]
    rewards = [true_reward(prompt, answer, WORLD) for answer in answers]
    assert rewards == sorted(rewards, reverse=True) and len(set(rewards)) == len(rewards)


def test_preferences_agree_with_the_true_reward_more_often_than_not():
    made = rows("preferences", WORLD)
    for row in made:
        answers = [row[name][0]["content"] for name in ("chosen", "rejected")]
        assert row["rewards"] == [true_reward(row["prompt"], answer, WORLD) for answer in answers]
    agreeing = sum(row["rewards"][0] > row["rewards"][1] for row in made) / len(made)
    assert 0.85 < agreeing < 1.0


def test_a_stranger_is_answered_with_not_knowing():
    unknown = [row for row in rows("dialogues", WORLD) if not row["facts"]]
    assert unknown and all(row["messages"][-1]["content"] == "I do not know that dish." for row in unknown)
    assert all(any(name in row["messages"][-2]["content"] for name in strangers(WORLD)) for row in unknown)


def test_reference_texts_name_no_dish_of_the_world():
    texts = [row["text"] for row in rows("reference", WORLD)]
    assert len(texts) >= 300 and len(set(texts)) == len(texts)
    assert not any(dish.split()[0] in text for text in texts for dish in dishes(WORLD))


def test_a_perfect_pipeline_scores_one_and_an_idle_one_does_not(truth: list[dict]):
    usable = [row for row in truth if row["fate"] not in ("skipped", "quarantined")]
    fate = lambda name: [row for row in usable if row["fate"] == name]  # noqa: E731
    rest = [row for row in usable if row["fate"] != "filtered"]
    perfect = filter_scores(truth, rest, fate("filtered"))
    assert (perfect["precision"], perfect["recall"]) == (1.0, 1.0)
    assert filter_scores(truth, usable, [])["recall"] == 0.0
    kept = fate("kept") + fate("contaminated")
    found = dedup_scores(truth, kept, fate("duplicate"))
    assert (found["precision"], found["recall"]) == (1.0, 1.0) and found["duplicates"] > 10
    assert dedup_scores(truth, kept + fate("duplicate"), [])["recall"] == 0.0
    assert contamination_scores(truth, fate("kept"), fate("contaminated"))["recall"] == 1.0
    assert personal_scores(truth, kept)["recall"] == 0.0


@pytest.mark.parametrize(
    "wrong", [{"dishes": 50}, {"dishes": 16, "tested_per_value": 2}, {"tested_sums": 3}, {"pages": 3}, {"files": 0}]
)
def test_a_world_that_cannot_be_made_says_why(wrong: dict[str, int]):
    with pytest.raises(RecipeError, match="kitchen: "):
        KitchenWorld(**wrong)
