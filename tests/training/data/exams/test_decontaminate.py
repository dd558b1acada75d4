"""Decontamination: what is found, what is not, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.data import chain
from training.contract.job import InputArtifact
from training.data.exams import decontaminate as stage
from training.data.exams.benchmarks import PLANTED_CHANGE, BenchmarkItem, _planted
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.exams.search.item_rule import Finder
from training.data.exams.settings import BenchmarkRecipe

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


def decontaminated(root: Path, files: list[list[str]], recipe: DecontaminateRecipe) -> InputArtifact:
    settings = {"decontaminate": recipe}
    source = chain.documents(root, "one", files, asset="deduplicated_documents")
    made = chain.run(root, "benchmarks", "benchmark_index", "tiny", settings)
    return chain.run(root, "decontaminate", "decontaminated_documents", "tiny@one", settings, [source, made])


FILES = [[PAGE.format("Nothing."), PAGE.format(LONG)], [PAGE.format("Nothing else."), "short"]]


def test_removed_documents_name_item_and_span(tmp_path):
    made = decontaminated(tmp_path, FILES, DecontaminateRecipe(benchmarks=(benchmark_of(tmp_path),)))
    (row,) = chain.rows(made, "dropped")
    start, end = map(int, row["span"].split(":"))
    assert (row["reason"], row["benchmark"], row["item"]) == ("contaminated", "exam", "rivers")
    assert row["part"] == "question" and made.record()["notes"]["hits_by_part"] == {"exam": {"question": 1}}
    assert made.record()["notes"]["most_copied_items"] == [["exam", "rivers", 1]]
    assert row["text"][start:end] == LONG.rstrip("?")
    assert made.record()["counts"] == {"in": 4, "kept": 3, "dropped": {"contaminated": 1}, "quarantined": {}}
    (hit,) = pq.read_table(Path(made.path, "hits.parquet")).to_pylist()
    assert (hit["id"], hit["part"], hit["warc_offset"], hit["words"]) == (row["id"], "question", 100, 15)


def test_an_answer_goes_with_the_exam_question_that_a_model_was_asked(tmp_path):
    asked = [(LONG, "It is the Alder."), ("Name a river.", "The Alder."), (f"Rewrite: {LONG}", f"{LONG} Yes.")]
    rows = [
        chain.document("one", "written.jsonl", place, text, prompt=prompt)
        for place, (prompt, text) in enumerate([*asked, (LONG, f"{LONG} The Alder."), ("", "The Alder.")])
    ]
    source = chain.documents_of(tmp_path, "one", [rows], asset="deduplicated_documents", extra=("prompt",))
    settings = {"decontaminate": DecontaminateRecipe(benchmarks=(benchmark_of(tmp_path),))}
    index = chain.run(tmp_path, "benchmarks", "benchmark_index", "tiny", settings)
    inputs = [source, index]
    made = chain.run(tmp_path, "decontaminate", "decontaminated_documents", "tiny@one", settings, inputs)
    assert [row["warc_offset"] for row in chain.rows(made)] == [1, 4]
    gone = [(row["warc_offset"], row["part"], row["span"]) for row in chain.rows(made, "dropped")]
    whole = f"0:{len(LONG) - 1}"
    assert gone == [(0, "question+answer", "0:0"), (2, "question", "0:0"), (3, "question+answer", whole)]
    hits = pq.read_table(Path(made.path, "hits.parquet")).to_pylist()
    assert {hit["text"] for hit in hits} == {LONG.rstrip("?")}


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


@pytest.mark.parametrize("copies", [1, 20, 21, 500])
@pytest.mark.parametrize("per_file", [7, 1000])
def test_an_item_is_removed_however_many_documents_hold_it(tmp_path, copies, per_file):
    texts = [PAGE.format(f"Page {i}. {LONG} The Alder.") for i in range(copies)] + [PAGE.format("Nothing.")]
    files = [texts[i : i + per_file] for i in range(0, len(texts), per_file)]
    made = decontaminated(tmp_path, files, DecontaminateRecipe(benchmarks=(benchmark_of(tmp_path),)))
    assert [row["text"] for row in chain.rows(made)] == [PAGE.format("Nothing.")]
    assert made.record()["counts"]["dropped"] == {"contaminated": copies}
    assert made.record()["notes"]["most_copied_items"] == [["exam", "rivers", copies]]


def test_the_hits_of_all_ranks_are_written_and_counted_a_few_at_a_time(tmp_path, monkeypatch):
    recipe = DecontaminateRecipe(benchmarks=(benchmark_of(tmp_path),))
    files = [[PAGE.format(f"Page {i}. {LONG} The Alder.") for i in range(n)] for n in (3, 0, 5, 2)]
    whole = decontaminated(tmp_path / "whole", files, recipe)
    listed = pq.read_table(whole.file("hits.parquet"))
    pq.write_table(pa.Table.from_pylist(listed.to_pylist(), listed.schema), tmp_path / "one", compression="zstd")
    assert whole.file("hits.parquet").read_bytes() == (tmp_path / "one").read_bytes()  # as if written at once
    monkeypatch.setattr(stage, "HITS_AT_ONCE", 4)
    divided = decontaminated(tmp_path / "divided", files, recipe)
    assert pq.read_table(divided.file("hits.parquet")).equals(listed)
    assert pq.ParquetFile(divided.file("hits.parquet")).num_row_groups == 3
    for field in ("metrics", "notes", "counts"):
        assert divided.record()[field] == whole.record()[field]


def test_a_phrase_that_many_documents_share_with_an_item_is_no_leak(tmp_path):
    texts = [f"Page {i}: which of the rivers that cross the old road {i} is best?" for i in range(30)]
    made = decontaminated(tmp_path, [texts], DecontaminateRecipe(benchmarks=(benchmark_of(tmp_path),)))
    assert made.record()["counts"]["kept"] == 30


def test_the_recipe_says_what_a_question_without_its_answer_means(tmp_path):
    kept = {}
    for meaning in ("contaminated", "reported"):
        recipe = DecontaminateRecipe(benchmarks=(benchmark_of(tmp_path),), question_seen=meaning)
        made = decontaminated(tmp_path / meaning, [[PAGE.format(LONG), PAGE.format(f"{LONG} The Alder.")]], recipe)
        kept[meaning] = made.record()["counts"]["kept"]
        assert made.record()["notes"]["hits_by_part"] == {"exam": {"question": 1, "question+answer": 1}}
    assert kept == {"contaminated": 0, "reported": 1}


def test_planted_items_tell_what_the_rule_finds(tmp_path):
    benchmark = benchmark_of(tmp_path, [ITEMS[0], ITEMS[1], {"id": "short", "question": "Why?", "answer": "So."}])
    recipe = DecontaminateRecipe(benchmarks=(benchmark,))
    made = chain.run(tmp_path, "benchmarks", "benchmark_index", "tiny", {"decontaminate": recipe})
    metrics = made.record()["metrics"]
    # A question of five words is found word for word alone.
    assert metrics["plants_found_exam_verbatim"] == pytest.approx(2 / 3)
    assert metrics["plants_found_exam_edited"] == pytest.approx(1 / 3)


def test_the_word_that_is_changed_to_try_an_item_is_no_name_and_no_number():
    """With another name or number it is another item, which the rule must not find."""
    for question, kept in (("Bake the Hovarin for 35 minutes", ("Hovarin", "35")), ("Hovarin 35", ("Hovarin",))):
        item = BenchmarkItem(benchmark="b", id="1", question=question, answers=("180 degrees",))
        verbatim, changed = _planted(item)
        assert f"{question} 180 degrees" in verbatim and PLANTED_CHANGE not in verbatim
        assert changed.count(PLANTED_CHANGE) == 1 and all(word in changed for word in (*kept, "180"))


@pytest.mark.parametrize("action", ["remove", "flag", "off"])
def test_compiled_loops_write_the_same_bytes(tmp_path, monkeypatch, action):
    recipe = DecontaminateRecipe(benchmarks=(benchmark_of(tmp_path),), action=action)
    files = [[PAGE.format(LONG), "short", PAGE.format("Nothing.")], [PAGE.format(f"Café {LONG} The Alder")] * 2]
    plain = decontaminated(tmp_path / "plain", files, recipe)
    monkeypatch.setattr(Finder, "COMPILED_FROM_BYTES", 0)
    assert decontaminated(tmp_path / "compiled", files, recipe).digest == plain.digest
