"""Models side by side: differences of recipes, scores on the same items and over seeds, compute and losses."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from evaluation.decision.answers import sample_file
from evaluation.decision.compare import (
    Side,
    compared,
    compute,
    losses,
    not_compared,
    over_seeds,
    remarks,
    scores,
    seed_groups,
)
from evaluation.decision.intervals import mean_difference_interval, mean_interval, paired_interval
from evaluation.decision.paired import Answers
from evaluation.report.compare_page import lines_of, page_of
from tests.examples import example, load_recipe
from training.data.documents import write_lines
from training.recipe.recipe import recipe_as_data

ABLATIONS = [f"kitchen-{name}" for name in ("ablation", "without-filters", "without-dedup", "weighted", "more-epochs")]


def items(*correct, first=0, metric="acc"):
    return Answers(metric=metric, correct={(str(first + n), "t", (), 0): one for n, one in enumerate(correct)})


def side(title="a", recipe=None, made=None, folders=None, scored=None):
    return Side(
        title=title,
        recipe=recipe or {"name": title},
        model="base_model",
        made=made or {},
        folders=folders or {},
        scores=scored,
    )


def base(tokens=100.0, seconds=50.0, **fields):
    metrics = {"parameters": 10.0, "tokens": tokens}
    return {
        ("base_model", ""): {
            "fingerprint": "f",
            "digest": "d",
            "counts": None,
            "metrics": metrics,
            "cost": {"cpu_seconds": seconds},
            **fields,
        }
    }


def test_scores_are_compared_on_common_items_with_the_intervals_of_promotion():
    (row,) = scores([{"e": items(True, True, False, False)}, {"e": items(True, False, True, True)}])
    first, other = row["sides"]
    assert (first["score"], other["score"], first["against"]) == (0.5, 0.75, None)
    low, high = paired_interval([0, 1, -1, -1])
    assert other["against"] | {"p_value": 0} == {
        "items": 4,
        "difference": 0.25,
        "interval": [-high, -low],
        "won": 2,
        "lost": 1,
        "p_value": 0,
    }


def test_what_cannot_be_compared_is_a_sentence(tmp_path):
    sides = [side("a", scored=tmp_path), side("b", scored=tmp_path), side("c")]
    answers = [
        {"x": items(True), "y": items(True), "z": items(True, True), "v": items(True)},
        {"x": items(True, first=5), "y": items(True, metric="f1"), "z": items(True, True, first=1), "w": items(True)},
        {},
    ]
    said = not_compared(sides, answers)
    assert said == [
        "c was not scored",
        "x: a and b answered other items; no item is common",
        "y: a is judged by acc, b by f1",
        "v: b did not take this exam",
        "w: a did not take this exam",
    ]
    assert remarks(sides, answers) == ["z: 1 items are common to a (2) and b (2); the difference is that on these"]
    assert [one and one["against"] for row in scores(answers)[:2] for one in row["sides"]] == [None] * 6


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (("sft_model", "aligned_model"), ["b is scored by its aligned_model, a by its sft_model"]),
        (("kept_sft_steps", "kept_align_steps"), []),  # their names say it
    ],
)
def test_models_of_two_trainings_are_compared_and_that_is_said_of_whole_ones(tmp_path, models, said):
    sides = [replace(side(name, scored=tmp_path), model=model) for name, model in zip("ab", models, strict=True)]
    answers = [{"x": items(True, False)}, {"x": items(True, True)}]
    assert not_compared(sides, answers) == [] and remarks(sides, answers) == said
    assert scores(answers)[0]["sides"][1]["against"]["won"] == 1


def test_a_chosen_model_is_compared_by_the_answers_that_it_gave_in_place_of_the_last_one(tmp_path):
    (tmp_path / "scores.json").write_text(json.dumps({"base": {}, "aligned": {"x": {"metric": "acc"}}}))
    path = tmp_path / sample_file("aligned", "x")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, [{"item": "0", "target": "t", "correct": True}])
    made = {("chosen_model", ""): {"notes": {"choice": {"instead_of": "aligned_model"}}}}
    one = replace(side("a", made=made, scored=tmp_path), model="chosen_model")
    assert one.answers()["x"].correct == {("0", "t", (), 0): 1.0}
    assert not_compared([one, one], [one.answers()] * 2) == []


def seeded(name: str, seed: int) -> Side:
    """One side of a comparison: an example with another seed, as a variant of it would have."""
    recipe, own = example(name), f"{name}-seed-{seed}"
    data = recipe_as_data(replace(recipe, name=own, promote=replace(recipe.promote, model_name=own)))
    data["pretrain"]["seed"] = seed
    return side(own, recipe=data)


def test_recipes_that_differ_in_seeds_alone_are_one_group():
    """The ablations of the examples: five recipes with three seeds each."""
    sides = [seeded(base, seed) for base in ABLATIONS for seed in (1, 2, 3)]
    assert seed_groups(sides) == [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(5)]
    told = compared([sides[0], sides[1], *sides[3::3]])
    fields = [[line.split(":")[0] for line in one["differences"]] for one in told["recipes"]]
    assert fields == [
        ["pretrain.seed", "promote.model_name"],
        ["filter.rules", "promote.model_name"],
        ["dedup.enabled", "promote.model_name"],
        [
            *(f"mixture.weights.web/{name}" for name in ("head", "middle", "tail")),
            "promote.model_name",
            "shards.buckets",
        ],
        ["pretrain.tokens", "promote.model_name"],
    ]
    other_world = recipe_as_data(load_recipe("kitchen"))
    other_world["kitchen"]["seed"] += 1
    assert seed_groups([sides[0], side("w", recipe=other_world)]) == [[0], [1]]


def test_over_seeds_the_interval_is_students_and_of_a_difference_welchs():
    assert mean_interval([0.5]) is None and mean_difference_interval([0.5], [0.6]) is None
    assert mean_interval([0.5, 0.6, 0.7]) == pytest.approx([0.6 - 4.303 * 0.1 / 3**0.5, 0.6 + 4.303 * 0.1 / 3**0.5])
    # by scipy.stats.ttest_ind(after, before, equal_var=False): 4 degrees of freedom
    low, high = mean_difference_interval([0.5, 0.6, 0.7], [0.6, 0.7, 0.8])
    assert (low, high) == pytest.approx((0.1 - 2.776 * 0.1 * (2 / 3) ** 0.5, 0.1 + 2.776 * 0.1 * (2 / 3) ** 0.5))
    assert mean_difference_interval([0.5, 0.5], [0.7, 0.7]) == pytest.approx([0.2, 0.2])
    low, high = mean_difference_interval([0.0, 0.5], [0.5, 1.0])  # both vary alike, to the last bit
    assert low < 0.5 < high
    sides = [side("a"), side("b"), side("c")]
    answers = [{"e": items(True, False)}, {"e": items(True, True)}, {"e": items(False, False)}]
    (row,) = over_seeds(sides, answers, [[0, 1], [2]])
    assert [one["mean"] for one in row["groups"]] == [0.75, 0.0] and row["groups"][1]["interval"] is None
    assert row["groups"][1]["against"]["difference"] == -0.75 and row["groups"][1]["against"]["interval"] is not None
    assert over_seeds(sides, answers, [[0], [1], [2]]) == []


@pytest.mark.parametrize("way", [{"attempts": None}, {"wall_seconds": 0.5}])
def test_of_a_step_that_was_written_on_the_way_or_made_from_a_state_no_cost_is_told(way):
    spent = {"cpu_seconds": 3.0, "node_hours": 0.1, "wall_seconds": 2.0, "attempts": []}
    own = {"cost": spent, "metrics": {"parameters": 10.0, "tokens": 100.0, "training_seconds": 1.0}}
    part = {name: told for name, told in (spent | way).items() if told is not None}
    told = compute(
        [
            side("a", made={("kept_steps", "step-2"): own}),
            side("b", made={("kept_steps", "step-5"): own | {"cost": part}}),
        ]
    )
    assert [one["cpu_seconds"] for one in told["sides"]] == [3.0, None] and told["sides"][1]["flops"] == 6000.0
    assert told["sentence"].endswith("; b has only a part of its training's cost on its record, so none is given")


def test_an_average_has_the_tokens_of_its_last_step_and_the_held_out_loss_of_none():
    spent = {"cost": {"attempts": [], "wall_seconds": 2.0}}
    first = spent | {"metrics": {"parameters": 10.0, "tokens": 100.0, "held_out_bits_per_byte": 3.5}}
    mean = spent | {"metrics": {"parameters": 10.0, "tokens": 250.0}}
    made = {("kept_steps", "step-2"): first, ("averaged_model", ""): mean}
    (own, _) = compute([side("a", made=made), side("b", made=base())])["sides"]
    assert (own["tokens"], own["held_out_bits_per_byte"]) == (250.0, None)


def test_compute_is_matched_or_by_how_much_it_is_not():
    same = compute([side("a", made=base()), side("b", made=base(tokens=100.5))])
    assert same["is_matched"] and same["sides"][0]["flops"] == 6000.0
    assert same["sides"][0]["cpu_seconds"] == 50.0 and same["sides"][0]["price"] is None  # which no record has
    other = compute([side("a", made=base()), side("b", made=base(tokens=200.0))])
    assert not other["is_matched"]
    assert other["sentence"] == "b has 2.00 times the tokens of a; b has 2.00 times the training FLOPs of a"
    assert compute([side("a", made=base()), side("b")])["sentence"] == "compute is not on record"


def test_losses_at_equal_tokens_and_at_equal_cost(tmp_path):
    """The second training is half as long and costs as much; a step that was done twice counts once."""
    sides = []
    for name, last in (("a", 100), ("b", 50)):
        (tmp_path / name).mkdir()
        rows = [{"tokens": n, "loss": float(n)} for n in (1, 2, 2, *range(3, last + 1))]
        rows += [{"tokens": last + 1}, {"tokens": last + 2, "loss": math.nan}]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        sides.append(side(name, made=base(seconds=200.0), folders={("base_model", ""): tmp_path / name}))
    told = losses(sides)
    assert len(told["curves"][0]["tokens"]) == 100
    assert told["at_tokens"][-1] == {"at": 50, "losses": [47.5, 47.5]}
    assert told["at_seconds"][-1]["losses"] == [95.0, 47.5]


def scored(folder, correct):
    """The files of scores, as the stage writes them."""
    rows = [{"item": str(n), "target": "t", "choices": ["t", "u"], "correct": one} for n, one in enumerate(correct)]
    (folder / "samples").mkdir(parents=True)
    write_lines(folder / "samples" / "base_e.jsonl.zst", rows)
    (folder / "scores.json").write_text(json.dumps({"base": {"e": {"metric": "acc"}}}))
    return folder


def test_lines_fit_a_terminal_and_the_page_runs_nothing(tmp_path):
    long = "a-recipe-with-a-name-that-no-table-of-a-terminal-has-room-for-<b>"
    sides = [
        side(
            long,
            recipe={"name": "a", "s": {"x": list(range(60))}},
            made=base(),
            scored=scored(tmp_path / "a", [True] * 3),
        ),
        side("b", recipe={"name": "b", "s": {"x": 1}}, made=base(digest="e", fingerprint="g")),
        side("c", recipe={"name": "c", "s": {"x": 1}}, scored=scored(tmp_path / "c", [True, False, True])),
    ]
    told = json.loads(json.dumps(compared(sides)))
    found = [(row["asset"], row["agree"], row["digests"]) for row in told["artifacts"]]
    assert found == [("base_model", "differ", ["d", "e", None])]
    lines = lines_of(told)
    assert max(map(len, lines)) <= 80 and "not scored" in "\n".join(lines)
    page = page_of(told)
    assert "<script" not in page and "for-<b>" not in page and "for-&lt;b&gt;" in page and "http:" not in page
