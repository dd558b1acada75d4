"""Files of strangers are looked through for items of exams, and what is not read is said."""

from __future__ import annotations

import json

import fsspec
import pytest

from assets.answers.models.outside import verdict_lines
from evaluation.contamination.scan import contamination, files_of
from training.contract.job import DataError
from training.contract.records import read_record
from training.recipe.settings.evaluation import EvaluationRecipe

ITEM = {
    "question": "In which of the twelve months does the market on the old bridge of Ulmenau open its forty stalls?",
    "answer": "It opens its forty stalls in the month of May.",
}
LEAK = f"{ITEM['question']} {ITEM['answer']}"
FILLER = "Nothing about any market is said here, and nothing about bridges, stalls or months of the year either."


@pytest.fixture
def exam(tmp_path):
    (tmp_path / "exam.jsonl").write_text(json.dumps(ITEM))
    suite = {"name": "market", "uri": str(tmp_path / "exam.jsonl"), "kind": "generate"}
    return read_record(EvaluationRecipe, {"suites": [suite]})


FORMS = {
    "notes.md": f"# Notes\n\n{LEAK}\n",
    "page.html": f"<html><body><article><p>{FILLER}</p><p>{LEAK}</p></article></body></html>",
    "program.py": f'"""{LEAK}"""\n',
    "inside/rows.json": json.dumps([{"messages": [{"role": "user", "content": LEAK}]}]),
    "rows.jsonl": json.dumps({"text": LEAK}),
    "text.txt": LEAK,
}


@pytest.mark.parametrize("name", FORMS)
def test_an_item_is_found_in_whatever_a_folder_holds(name, exam, tmp_path):
    place = tmp_path / "folder"
    (place / name).parent.mkdir(parents=True)
    (place / "other.md").write_text(FILLER)
    (place / name).write_text(FORMS[name])
    for asked in (place, place / name):
        report, findings, gate = contamination(files_of([str(asked)]), exam, {})
        assert report["verdict"] == "contaminated" and not gate["passed"]
        assert {finding["file"] for finding in findings} == {name.rpartition("/")[2]}


def test_what_is_not_read_is_said_beside_the_verdict(exam, tmp_path):
    place = tmp_path / "folder"
    place.mkdir()
    (place / "good.md").write_text(FILLER)
    (place / "package.json").write_text("{}")
    (place / "picture.png").write_bytes(b"\x89PNG")
    (place / "empty.md").write_text("\n")
    (place / ".hidden.md").write_text(LEAK)
    (place / "gone.json").symlink_to(place / "nowhere.json")
    report, _, gate = contamination(files_of([str(place)]), exam, {})
    assert verdict_lines(report, gate)[:5] == [
        "clean (1 of 1 items cleared): 1 text of 2 files was read",
        "  not read: 1 file .json (no file)",
        "  not read: 1 file .json (no list of rows)",
        "  not read: 1 file .png (no text is read from this format)",
        "  not read: 1 record (empty)",
    ]


@pytest.mark.parametrize("name", ["package.json", "picture.png", "nothing.md"])
def test_a_place_without_a_text_is_refused_and_not_clean(name, exam, tmp_path):
    for place in (tmp_path / "folder" / name, tmp_path / "folder"):
        place.parent.mkdir(exist_ok=True)
        (tmp_path / "folder" / name).write_text("{}" if name.endswith("json") else "\n")
        with pytest.raises(DataError, match=r"no file that can be read \(|no text was read"):
            contamination(files_of([str(place)]), exam, {})


@pytest.mark.parametrize("name", ["text.txt", "rows.jsonl", "rows.json"])
def test_texts_and_rows_are_read_from_elsewhere_too(name, exam, tmp_path):
    place = f"memory://{tmp_path.name}/{name}"
    forms = FORMS | {"rows.json": FORMS["inside/rows.json"]}
    with fsspec.open(place, "w") as stream:
        stream.write(forms[name])
    report, _, _ = contamination(files_of([place]), exam, {})
    assert report["verdict"] == "contaminated"


def test_other_files_are_not_read_from_elsewhere(tmp_path):
    with fsspec.open(f"memory://{tmp_path.name}/notes.md", "w") as stream:
        stream.write(LEAK)
    with pytest.raises(DataError, match=r"from elsewhere only .* are read; download it first"):
        files_of([f"memory://{tmp_path.name}/notes.md"])
