"""Decontamination: what is found, what is not, and what becomes of it."""

from __future__ import annotations

import dataclasses
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.training.data import chain
from training import artifact
from training.data.exams import grams
from training.data.exams.benchmarks import BenchmarkIndex, build_index, read_items
from training.data.exams.decontaminate import Hit, find_matches, scan
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.exams.grams import Scanner, column_of
from training.data.exams.settings import BenchmarkRecipe
from training.job import InputArtifact, read_job
from training.runner import run_job
from training.stages import STAGES

LONG = "Which of the rivers that cross the old town is the one with nine bridges?"
ITEMS = [
    {"id": "rivers", "question": LONG, "answer": "The Alder"},
    {"id": "kettle", "question": "Who invented the whistling kettle?", "answer": "Harry Bramson"},
]
PAGE = "The town has much to see. {} That is all there is to say about the place, the guide wrote."


def benchmark_of(folder: Path, rows: list[dict[str, Any]] = ITEMS, **fields: Any) -> BenchmarkRecipe:
    path = folder / "exam.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return BenchmarkRecipe(**{"name": "exam", "uri": str(path), "kind": "generate"} | fields)


def index_of(benchmark: BenchmarkRecipe) -> BenchmarkIndex:
    return build_index([benchmark], [read_items(benchmark)])


@pytest.fixture
def index(tmp_path) -> BenchmarkIndex:
    return index_of(benchmark_of(tmp_path))


def test_the_span_is_the_longest_stretch_that_text_and_item_share(index):
    text = PAGE.format(f"{LONG} The Alder, of course.")
    (hit,) = scan(text, index)
    assert text[hit.start : hit.end] == f"{LONG} The Alder"
    assert hit == Hit(
        benchmark="exam", item="rivers", part="question+answer", start=26, end=26 + len(LONG) + 10, words=17
    )


ASKED = "Which of these bridges was built by the guild of the millers"
ANSWERED = "the stone one that leads from the abbey to the old mint"
QUOTED = "Nine bridges cross the Alder, and each of them has a toll house and a legend of its own."


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (f"Tell me. {ASKED}, please?", "question"),
        (f"We took {ANSWERED} and went home.", "answer"),
        (f"{ASKED}? It was another. We took {ANSWERED}.", "question"),
        (f"{ASKED}? {ANSWERED}", "question+answer"),
        (f"as it says: a legend of its own. {ASKED}", "passage+question"),
        (f"{QUOTED} {ASKED} {ANSWERED}", "passage+question+answer"),
        (f"{QUOTED} That is all.", None),
    ],
)
def test_a_hit_says_whose_words_it_has(tmp_path, text, part):
    item = {"id": "toll", "question": ASKED, "answer": ANSWERED, "passage": QUOTED}
    index = index_of(benchmark_of(tmp_path, [item], passage_field="passage", ngram_words=8))
    assert [hit.part for hit in scan(PAGE.format(text), index)] == ([part] if part else [])


def test_words_that_question_and_answer_both_have_are_of_both(tmp_path):
    phrase = "to be or not to be that is"
    item = {"id": "twice", "question": f"Who said {phrase}?", "answer": f"Hamlet did say {phrase}"}
    index = index_of(benchmark_of(tmp_path, [item], ngram_words=8))
    assert [hit.part for hit in scan(f"Well, {phrase}", index)] == ["question+answer"]


@pytest.mark.parametrize("text", [LONG.upper(), LONG.replace(" ", "\n* "), LONG.replace("?", "…"), f"**{LONG}**"])
def test_case_layout_and_punctuation_do_not_hide_an_item(index, text):
    assert [hit.item for hit in scan(PAGE.format(text), index)] == ["rivers"]


def test_one_changed_word_does_not_hide_a_long_item(index):
    text = PAGE.format(LONG.replace("bridges", "brigdes"))
    (hit,) = scan(text, index)
    assert hit.words == 14 and text[hit.start : hit.end].endswith("with nine")


def test_a_changed_word_ends_a_stretch(tmp_path):
    question = " ".join(f"word{letter}" for letter in "abcdefghijklmnopqrst")
    index = index_of(benchmark_of(tmp_path, [{"question": question, "answer": "none"}]))
    (hit,) = scan(question.replace("wordi", "other"), index)
    assert (hit.words, hit.end - hit.start) == (11, 11 * 6 - 1)


def test_a_short_question_counts_only_with_its_answer_close_behind(index):
    question = ITEMS[1]["question"]
    assert scan(PAGE.format(question), index) == []
    assert scan(PAGE.format(f"{question} Nobody knows. " + "More words. " * 20 + "Harry Bramson"), index) == []
    (hit,) = scan(PAGE.format(f"{question} It was Harry Bramson."), index)
    assert (hit.item, hit.words) == ("kettle", 5)


def test_text_that_shares_only_words_is_clean(index):
    assert scan(PAGE.format("Nine bridges cross the rivers of the old town: which one is the Alder?"), index) == []


@pytest.mark.parametrize("text", ["1, 2, 3, 4, 5, 6, 7, 8, 9, 10", "1 a 2 a 3 a 4 a 5 a 6 b 7 b 8 b"])
def test_rows_of_numbers_are_nobodys_question(tmp_path, text):
    index = index_of(benchmark_of(tmp_path, [{"question": f"Which number is missing here: {text}?", "answer": "11"}]))
    assert scan(PAGE.format(text), index) == []
    assert scan(PAGE.format(f"Which number is missing here: {text}"), index) != []


def test_the_form_that_many_items_share_is_no_evidence_for_those_whose_subject_is_absent(tmp_path):
    form = "Anyone who is about to visit the {} should see that the last ferry leaves at"
    rows = [
        {"id": name, "question": form.format(name), "answer": "nine"} for name in ("abbey", "mill", "tower", "mint")
    ]
    index = index_of(benchmark_of(tmp_path, rows))
    assert scan(PAGE.format(form.format("harbour")), index) == []
    (hit,) = scan(PAGE.format(form.format("mill") + " nine"), index)
    assert (hit.item, hit.words) == ("mill", 17)


def test_a_phrase_inside_a_longer_match_proves_no_other_item(tmp_path):
    rows = [
        {
            "id": "baker",
            "question": "My notes about the old baker of the town say that he went to work at",
            "answer": "dawn",
        },
        {
            "id": "shop",
            "question": "My notes about the old baker of the town tell us where his shop was",
            "answer": "here",
        },
        {
            "id": "twin",
            "question": "My notes about the old baker of the town say that he went to work at",
            "answer": "dawn",
        },
    ]
    index = index_of(benchmark_of(tmp_path, rows))
    assert {hit.item for hit in scan(PAGE.format(f"{rows[0]['question']} dawn"), index)} == {"baker", "twin"}
    both = PAGE.format(f"{rows[0]['question']} dawn. {rows[1]['question']}?")
    assert {hit.item for hit in scan(both, index)} == {"baker", "shop", "twin"}


def test_a_passage_alone_is_no_leak_and_with_the_question_behind_it_is_one(tmp_path):
    row = {
        "question": "Where does it meet the sea?",
        "answer": "no",
        "passage": "The Alder runs past the mill and the abbey.",
    }
    index = index_of(benchmark_of(tmp_path, [row], passage_field="passage"))
    assert scan(PAGE.format(row["passage"]), index) == []
    assert scan(PAGE.format(f"{row['passage']} {row['question']}"), index) != []


def test_a_common_phrase_proves_nothing_alone_but_is_part_of_a_longer_match(tmp_path):
    index = index_of(benchmark_of(tmp_path))
    phrase, text = "Which of the rivers that cross the old", PAGE.format(LONG)
    (gram,) = find_matches(column_of([phrase]), Scanner(index.tables), index)["gram"].tolist()
    assert scan(phrase, index) and not scan(phrase, index, common=frozenset([gram]))
    (hit,) = scan(text, index, common=frozenset([gram]))
    assert text[hit.start : hit.end] == LONG.rstrip("?")


def decontaminated(
    root: Path, files: list[list[str]], recipe: DecontaminateRecipe, *, workers: int = 1
) -> InputArtifact:
    settings = {"decontaminate": recipe}
    source = chain.documents(root, "one", files, asset="deduplicated_documents")
    made = chain.run(root, "benchmarks", "benchmark_index", "tiny", settings)
    inputs = [source, made]
    return chain.run(root, "decontaminate", "decontaminated_documents", "tiny@one", settings, inputs, workers=workers)


FILES = [[PAGE.format("Nothing."), PAGE.format(LONG)], [PAGE.format("Nothing else."), "short"]]


def test_removed_documents_name_item_and_span(tmp_path):
    made = decontaminated(tmp_path, FILES, DecontaminateRecipe(benchmarks=(benchmark_of(tmp_path),)))
    (row,) = chain.rows(made, "dropped")
    start, end = map(int, row["span"].split(":"))
    assert (row["reason"], row["benchmark"], row["item"]) == ("contaminated", "exam", "rivers")
    assert row["part"] == "question" and made.record()["notes"]["hits_by_part"] == {"exam": {"question": 1}}
    assert row["text"][start:end] == LONG.rstrip("?")
    assert made.record()["counts"] == {"in": 4, "kept": 3, "dropped": {"contaminated": 1}, "quarantined": {}}
    (hit,) = pq.read_table(Path(made.path, "hits.parquet")).to_pylist()
    assert (hit["id"], hit["part"], hit["warc_offset"], hit["words"]) == (row["id"], "question", 100, 15)


def test_flagged_documents_stay_and_say_so(tmp_path):
    recipe = DecontaminateRecipe(action="flag", benchmarks=(benchmark_of(tmp_path),))
    made = decontaminated(tmp_path, FILES, recipe)
    kept = chain.rows(made)
    assert [row["flags"] for row in kept] == [None, ["contaminated"], None, None]
    assert [row["item"] for row in kept] == [None, "rivers", None, None]


def test_switched_off_everything_passes_and_hits_are_counted(tmp_path):
    recipe = DecontaminateRecipe(action="off", benchmarks=(benchmark_of(tmp_path),))
    record = decontaminated(tmp_path, FILES, recipe).record()
    assert record["counts"]["kept"] == 4 and record["metrics"]["contaminated_found"] == 1
    assert record["metrics"]["documents_marked_exam"] == 1
    assert "off" in record["notes"]["decontamination"]


PHRASE = "which of the rivers that cross the old"


@pytest.mark.parametrize("files", [[5], [2, 3], [1, 1, 1, 1, 1], [0, 4, 1]])
def test_a_phrase_in_too_many_documents_of_the_snapshot_is_no_leak_however_they_lie_in_files(tmp_path, files):
    texts = [f"Page {i}: {PHRASE} road {i} is best?" for i in range(5)]
    rows = [chain.document("one", "f", i, text) for i, text in enumerate(texts)]
    cuts = [sum(files[:i]) for i in range(len(files) + 1)]
    source = chain.documents_of(tmp_path, "one", [rows[a:b] for a, b in pairwise(cuts)], asset="deduplicated_documents")
    kept = {}
    for limit in (4, 5):
        settings = {
            "decontaminate": DecontaminateRecipe(benchmarks=(benchmark_of(tmp_path),), max_document_frequency=limit)
        }
        index = chain.run(tmp_path, "benchmarks", "benchmark_index", "tiny", settings)
        made = chain.run(tmp_path, "decontaminate", "decontaminated_documents", "tiny@one", settings, [source, index])
        kept[limit] = [row["text"] for row in chain.rows(made)]
        assert made.record()["counts"]["in"] == 5
    assert kept == {4: texts, 5: []}


def test_ranks_run_apart_and_out_of_order_give_the_same_artifact(tmp_path):
    """As an array of tasks does it: each rank in its own run, then one run that adds up and commits."""
    recipe = DecontaminateRecipe(benchmarks=(benchmark_of(tmp_path),), max_document_frequency=1)
    files = [[PAGE.format(PHRASE), PAGE.format("Nothing.")], [PAGE.format(f"{PHRASE} road")]]
    whole = decontaminated(tmp_path / "whole", files, recipe)
    assert whole.record()["counts"]["kept"] == 3  # only together do the files show that the phrase is common
    job = read_job(whole.file("job.json"))
    apart = dataclasses.replace(job, output=str(tmp_path / "apart"))
    for ranks in ("1", "0", ""):
        assert run_job(apart, STAGES, ranks=ranks) == 0
    assert artifact.find(tmp_path / "apart").digest == whole.digest


def test_planted_items_tell_what_a_length_finds(tmp_path):
    """The question of 15 words and its answer stand alone; with the middle word changed no 13 words in a row do."""
    rates = {}
    for length in (5, 13):
        benchmark = benchmark_of(tmp_path, [ITEMS[0], {"id": "short", "question": "Why?", "answer": "So."}])
        recipe = DecontaminateRecipe(benchmarks=(dataclasses.replace(benchmark, ngram_words=length),))
        made = chain.run(tmp_path, "benchmarks", "benchmark_index", "tiny", {"decontaminate": recipe})
        metrics = made.record()["metrics"]
        rates[length] = [metrics[f"plants_found_exam_{how}"] for how in ("verbatim", "edited")]
    assert rates == {5: [0.5, 0.5], 13: [0.5, 0.0]}


@pytest.mark.parametrize("action", ["remove", "flag", "off"])
def test_compiled_loops_write_the_same_bytes(tmp_path, monkeypatch, action):
    recipe = DecontaminateRecipe(benchmarks=(benchmark_of(tmp_path),), action=action, max_document_frequency=2)
    files = [[PAGE.format(LONG), "short", PAGE.format(PHRASE)], [PAGE.format(f"Café {LONG} The Alder")] * 2]
    plain = decontaminated(tmp_path / "plain", files, recipe)
    monkeypatch.setattr(grams, "COMPILED_FROM_BYTES", 0)
    assert decontaminated(tmp_path / "compiled", files, recipe).digest == plain.digest


def test_two_workers_write_the_same_bytes(tmp_path):
    recipe = DecontaminateRecipe(benchmarks=(benchmark_of(tmp_path),))
    assert len({decontaminated(tmp_path / str(n), FILES, recipe, workers=n).digest for n in (1, 2)}) == 1


@pytest.mark.data
@pytest.mark.parametrize("ngram_words", [5, 8, 13])
@pytest.mark.parametrize(
    ("reference", "fields"),
    [
        ("question_answer", {}),
        ("question", {"answer_field": ""}),
        ("passage_question_answer", {"passage_field": "passage"}),
    ],
)
def test_published_fixtures_are_all_found_and_clean_ones_are_clean(reference, fields, ngram_words):
    data = os.environ["PEDIGREE_DATA"]
    index = index_of(
        BenchmarkRecipe(
            name="decon",
            uri=f"data://contamination/decon/reference/{reference}_reference.jsonl",
            kind="generate",
            id_field="doc_id",
            ngram_words=ngram_words,
            **fields,
        )
    )
    found = {
        path.stem: [
            {hit.item for hit in scan(json.loads(line)["text"], index)} for line in path.read_text().splitlines()
        ]
        for path in Path(data, "contamination", "decon", "training").glob("*.jsonl")
    }
    assert not any(found.pop("clean")) and not any(found.pop("demo"))
    several = found.pop("contaminated_multiple_in_one")[0]
    # A question of ten words has no 13-gram without an answer; Eiffel, the crust and the equation are planted.
    assert several >= ({"101", "102", "103"} if reference != "question" else {"101", "102"})
    if (reference, ngram_words) == ("passage_question_answer", 13):
        # Without its passage the question has seven words; with one of them misspelt no 13-gram is left.
        assert found.pop("contaminated_single_edit") == [set()]
    assert all("101" in items for places in found.values() for items in places)
