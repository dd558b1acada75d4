"""The table of what the rule for items finds, at toy size, and that it notices a rule that finds less."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import contamination_recall
from training.data.exams.search import item_rule
from training.data.exams.search.item_rule import Finder

EXAM = {"arc_easy": contamination_recall.REPORTED_ON["arc_easy"]}


@pytest.fixture
def options(monkeypatch) -> argparse.Namespace:
    monkeypatch.setattr(contamination_recall, "REPORTED_ON", EXAM)
    return argparse.Namespace(half="reported", only="", items=20, copies=(1, 40), variants=())


@pytest.mark.data
def test_every_cell_of_the_table_reaches_its_aim(options, capsys):
    assert contamination_recall.recall(options)
    assert "| every 9th replaced | 100.0 [83.2-100.0]" in capsys.readouterr().out


@pytest.mark.data
def test_a_rule_that_wants_every_word_falls_below_the_aims(options, capsys, monkeypatch):
    monkeypatch.setattr(item_rule, "MIN_SHARE", 1.0)
    assert not contamination_recall.recall(options)
    assert "**below**" in capsys.readouterr().out


@pytest.mark.data
def test_a_rule_that_forgets_frequent_items_is_noticed(options, capsys, monkeypatch):
    options.items = 3
    assert contamination_recall.copies(options)
    assert "| 40 | 100.0 [29.2-100.0] |" in capsys.readouterr().out
    find = Finder.find

    def forgetful(self, texts):
        held = list(find(self, texts))
        return held if len(held) < 20 else held[:-1]

    monkeypatch.setattr(Finder, "find", forgetful)
    assert not contamination_recall.copies(options)
    assert "| 40 | 0.0 [0.0-70.8] |" in capsys.readouterr().out


@pytest.mark.data
def test_a_mark_is_wrong_until_it_is_listed_and_both_bounds_are_shown(capsys, monkeypatch):
    item = contamination_recall.exam("arc_easy", EXAM["arc_easy"])[1]
    texts = [("page 0", f"{item.question} {item.answers[0]}"), *((f"page {n}", f"text {n}") for n in range(1, 4000))]
    assert not contamination_recall._marks("pages", [item], texts)
    assert "1 of 4000 marked, 0 listed as near-copies, 1 wrong\nupper bound of the rate: 0.00139 wrong, 0.00139" in (
        told := capsys.readouterr().out
    )
    assert "- page 0: arc_easy/1, item, share 1.0\n  text: " in told
    monkeypatch.setattr(contamination_recall, "NEAR_COPIES", {("0", "arc_easy/1")})
    assert contamination_recall._marks("pages", [item], texts)
    assert (
        "1 listed as near-copies, 0 wrong\nupper bound of the rate: 0.00092 wrong, 0.00139" in capsys.readouterr().out
    )


@pytest.mark.parametrize(("hits", "tried", "low", "high"), [(0, 3737, 0, 0.00099), (300, 300, 0.98778, 1)])
def test_intervals_are_exact(hits, tried, low, high):
    assert contamination_recall.interval(hits, tried) == (pytest.approx(low, abs=1e-5), pytest.approx(high, abs=1e-5))
