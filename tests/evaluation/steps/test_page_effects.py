"""A planted leak has an effect, the same items without the leak have none, and the intervals hold what they promise."""

from __future__ import annotations

import random

import pytest

from evaluation.steps.page_effects import (
    PageRead,
    answers_of,
    effects_of,
    gain_interval,
    pages_of,
    rows_of_items,
    times_by,
)

STEPS = (10, 20, 30, 40)
TOLD = {"found": {"pretraining": []}, "questions_seen": [], "not_cleared": []}


def world(seed, *, jump, items=40, leaked=12, likelihood=0.4):
    """Answers of a suite that all items learn slowly, and of which the leaked ones `jump` when they are read."""
    chance = random.Random(seed)
    readings = {f"i{n}": [PageRead(document=f"p{n}", step=chance.randrange(11, 30))] for n in range(leaked)}
    answers = {step: {} for step in STEPS}
    for n in range(items):
        level = chance.uniform(1, 4)
        for step in STEPS:
            read = times_by(readings.get(f"i{n}", ()), step)
            bits = level - 0.02 * step + chance.gauss(0, 0.2) - jump * bool(read)
            right = float(chance.random() < min(1.0, likelihood + jump / 2 * bool(read)))
            answers[step][f"i{n}", 0] = {"bits_per_byte": bits, "score": right}
    return answers, readings


def last(seed, **how):
    answers, readings = world(seed, **how)
    return effects_of(answers, readings, TOLD)["steps"][-1]


def test_a_leak_is_seen_after_it_was_read_and_not_before():
    answers, readings = world(1, jump=1.0)
    told = effects_of(answers, readings, TOLD)
    assert (told["leaked"], told["never_read"]) == (12, 28)
    first, *_, end = told["steps"]
    assert first["read"] == 0 and first["score"] is None and first["bits_per_byte"] is None
    assert end["read"] == 12 and end["without_before"] == 0
    low, high = end["bits_per_byte"]["interval"]
    assert low < end["bits_per_byte"]["difference"] < high < 0
    assert end["bits_per_byte"]["read"] < end["bits_per_byte"]["never_read"]
    assert end["score"]["interval"][0] > 0


@pytest.mark.parametrize(("measure", "true"), [("bits_per_byte", 0.0), ("score", 0.0)])
def test_without_an_effect_the_interval_holds_0_as_often_as_it_says(measure, true):
    ends = [last(seed, jump=0.0)[measure]["interval"] for seed in range(400)]
    held = sum(low <= true <= high for low, high in ends) / len(ends)
    assert 0.92 <= held <= 0.99


def test_a_few_items_that_all_change_alike_have_an_interval_with_a_width():
    low, high = gain_interval([0.0, 0.0, 0.0], [1.0, 1.0])
    assert low < 1.0 <= high and high - low > 0.5
    assert gain_interval([0.0] * 200, [1.0] * 200)[0] > 0.9
    answers = {step: {(f"i{n}", 0): {"score": float(n < 2 and step > 20)} for n in range(5)} for step in STEPS}
    readings = {f"i{n}": [PageRead(document="p", step=25)] for n in range(2)}
    assert effects_of(answers, readings, TOLD)["steps"][-1]["score"]["interval"] == gain_interval([0.0] * 3, [1.0] * 2)


def test_each_reader_is_compared_with_its_own_step_before_and_what_has_none_is_counted():
    readings = {"early": [PageRead(document="a", step=3)], "late": [PageRead(document="b", step=25)]}
    bits = {"early": (9, 9, 9, 9), "late": (5, 4, 1, 1), "other": (5, 4, 3, 2)}
    answers = {
        step: {(name, 0): {"bits_per_byte": float(own[n]), "score": 0.0} for name, own in bits.items()}
        for n, step in enumerate(STEPS)
    }
    told = effects_of(answers, readings, TOLD)["steps"]
    assert [(row["read"], row["without_before"]) for row in told] == [(1, 1), (1, 1), (2, 1), (2, 1)]
    assert [row["bits_per_byte"] and row["bits_per_byte"]["difference"] for row in told] == [None, None, -2.0, -1.0]
    assert told[2]["bits_per_byte"]["interval"] is None  # one item on each side


def test_what_the_scan_saw_half_of_or_could_not_have_found_is_no_item_that_was_never_read():
    answers, readings = world(2, jump=0.0)
    told = {
        "found": {"pretraining": ["i0"], "instructions": ["i20"]},
        "questions_seen": ["i21"],
        "not_cleared": ["i22"],
    }
    assert effects_of(answers, readings, told)["never_read"] == 25


def test_a_leaked_item_has_its_pages_its_first_step_and_how_often_it_was_read_by_each_kept_step():
    findings = [
        {"benchmark": "s", "item": "x", "document": name, "url": f"http://{name}", "how": "item"} for name in "aab"
    ]
    findings += [{"benchmark": "s", "item": "y", "row": "r1", "how": "item"}]
    pages = {item: list(some.values()) for item, some in pages_of(findings)["s"].items()}
    assert [page["url"] for page in pages["x"]] == ["http://a", "http://b"] and "y" not in pages
    readings = {
        "x": [PageRead(document="a", step=10), PageRead(document="b", step=19), PageRead(document="a", step=35)]
    }
    sample = {"item": "x", "correct": True, "right": {"log_likelihood": -2.0, "bytes": 4}}
    answers = {step: answers_of([sample]) for step in STEPS}
    (row,) = rows_of_items("s", answers, readings, pages)
    assert row["first_step"] == 10 and [at["times_read"] for at in row["at"]] == [0, 2, 2, 3]
    assert row["at"][0]["log_likelihood"] == -2.0 and row["at"][0]["score"] == 1.0
