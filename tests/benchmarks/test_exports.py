"""The matrix of programs: what counts as a failure, with a real program and a folder that holds no model."""

from __future__ import annotations

import sys

from benchmarks import exports

WANTED = ["At 200.", "The north.", "No."]


def told(answers, **more):
    return {"versions": {"other": "1.0"}, "answers": answers, **more}


def test_a_program_that_answers_otherwise_fails_with_the_question():
    assert not exports.alike("other", told([" At 200.", "The north. ", "No."]), WANTED).failed
    row = exports.alike("other", told(["user\nHow hot? At 200.", "The north.", "No."]), WANTED)
    assert row.failed and "How hot must the oven be?" in row.found and "'At 200.'" in row.found
    assert exports.lines_of([row])[-1].startswith("| other | other 1.0 | **failed**: 'How hot")


def test_training_fails_if_a_loss_is_no_number_or_an_answer_holds_a_marker():
    assert not exports.gone_on("other", told(WANTED, losses=[3.5, 3.4])).failed
    assert exports.gone_on("other", told(WANTED, losses=[3.5, float("nan")])).failed
    assert exports.gone_on("other", told(WANTED, losses=[])).failed
    assert exports.gone_on("other", told(["<|user|>", "", ""], losses=[3.5])).failed


def test_a_program_that_ends_with_an_error_is_a_failed_row_with_its_last_line(tmp_path):
    said = exports.asked(sys.executable, "raise SystemExit('no config.json')", tmp_path)
    assert said == "no config.json" and exports.alike("other", said, WANTED).failed
    right = exports.asked(sys.executable, 'print("noise"); told(["yes"], "pytest")', tmp_path)
    assert isinstance(right, dict) and right["answers"] == ["yes"] and list(right["versions"]) == ["pytest"]
