"""The labelled set of documentation: what a label pins, and when the gate refuses."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from benchmarks import documentation
from benchmarks.documentation import judge, label_of, labelled_pages, read_labels

CODE = "".join(f"<pre>step_{number} = run({number})</pre>" for number in range(9))
PROSE = "<p>This page describes one step, and says in a sentence what becomes of its result.</p>" * 4
PAGE = f"<html><body><article><h1>Steps</h1>{PROSE}{CODE}</article></body></html>"


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """A set of one page, in the half that is asked for."""
    (tmp_path / "manual").mkdir()
    (tmp_path / "manual" / "steps.html").write_text(PAGE)
    label = label_of("manual", "steps.html", PAGE.encode(), kind="documentation", language="en")
    (tmp_path / "labels.jsonl").write_text(json.dumps(asdict(label)) + "\n")
    monkeypatch.setattr(documentation, "LABELS", tmp_path / "labels.jsonl")
    return tmp_path, label


def test_the_gate_refuses_when_a_kind_of_page_is_below_its_limit(pages, capsys, monkeypatch):
    folder, label = pages
    assert (label.lines, label.cells) == (9, 0)
    assert judge(folder, ["blocks"], label.part, 0)
    assert "documentation lines: 1.0000 [1.0000, 1.0000], 1 pages; at least" in capsys.readouterr().out
    monkeypatch.setitem(documentation.LIMITS, "documentation lines", 1.01)
    assert not judge(folder, ["blocks"], label.part, 0)
    assert "NOT REACHED" in capsys.readouterr().out


def test_another_page_in_place_of_the_labelled_one_and_no_page_are_errors(pages):
    folder, label = pages
    with pytest.raises(ValueError, match=r"manual none\.html: absent"):
        list(labelled_pages(folder, [replace(label, path="none.html")]))
    (folder / "manual" / "steps.html").write_text(PAGE.replace("step_8", "step_9"))
    with pytest.raises(ValueError, match="not the page that was labelled"):
        list(labelled_pages(folder, [label]))


def test_the_set_has_both_halves_six_languages_and_no_text():
    labels = read_labels()
    assert {label.part for label in labels} == {"tuning", "held-out"}
    assert len({label.language for label in labels}) >= 6
    assert len({label.page for label in labels}) == len(labels)
    assert {label.kind for label in labels} == {"documentation", "table", "code", "forum", "article"}
