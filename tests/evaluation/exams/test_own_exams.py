"""An exam by a harness from the user's own environment: asked, scored, compared, identified, and told when it fails."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.contamination.search import _exams
from evaluation.exams import one_model
from evaluation.exams.items import read_exam
from evaluation.exams.one_model import MODEL, scores_of
from evaluation.exams.own_exam import Generator, ask_folder, ask_generator
from evaluation.stages import _contamination, _judge, _scores
from tests.examples import load_recipe
from training.contract.files.checksums import canonical_json
from training.contract.job import DataError
from training.contract.parts.code import PARTS
from training.contract.parts.outside import PartFailed
from training.contract.records import RecipeError, read_record, write_record
from training.data.documents import read_lines
from training.data.exams.settings import BenchmarkRecipe
from training.generate.sampler import Sampler
from training.recipe.recipe import Recipe
from training.recipe.settings.evaluation import EvaluationRecipe

pytestmark = pytest.mark.usefixtures("examples")

PLAIN = {"kind": "generate", "max_new_tokens": 4}


def suite(folder: Path, place: str = "second_try:harness", settings: dict | None = None, **more) -> BenchmarkRecipe:
    rows = [{"id": f"item-{n}", "question": f"Which colour has dish {n}?", "answer": "blue"} for n in range(4)]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts = {"mine": {"from": place, **(settings or {})}}
    given = {"name": "own", "uri": str(folder / "items.jsonl"), "harness": "mine", "parts": parts, **PLAIN, **more}
    return read_record(BenchmarkRecipe, given, where="suite")


HARNESS = """
from training.data.exams.own_harness import Harness, ItemScore
def ask(model, items, settings):
    scores = {{item.id: 0.25 * number for number, item in enumerate(items)}}
    {body}
    return [ItemScore(item=name, score=score, response="said") for name, score in scores.items()]
harness = Harness(ask=ask, model="{model}")
"""


def asked(write, folder: Path, tmp_path: Path, body: str, model: str = "folder"):
    benchmark = suite(tmp_path, f"{write(HARNESS.format(body=body, model=model))}:harness")
    return ask_folder(benchmark, read_exam(benchmark, {}).items, folder)


@pytest.mark.parametrize("folder", ["base_folder", "chat_folder"])
def test_a_suite_of_its_own_harness_stands_beside_those_of_lm_eval(tmp_path, folder, request):
    model, output = request.getfixturevalue(folder), tmp_path / "scores"
    plain = replace(suite(tmp_path), name="plain", harness=None, parts={})
    recipe = EvaluationRecipe(suites=(plain, suite(tmp_path, settings={"tries": 1})))
    scores = scores_of(model, recipe, {}, output)
    assert list(scores) == ["plain", "own"] and scores["own"]["metric"] == "mine" and scores["own"]["n"] == 4
    how = json.loads((output / "harness.json").read_text())[MODEL]["suites"]["own"]
    assert how["form"] == "harness" and how["harness"] == "second_try:harness" and len(how["code"]) == 64
    own, lm_eval = (list(read_lines(output / f"samples/{MODEL}_{name}.jsonl.zst")) for name in ("own", "plain"))
    for mine, theirs in zip(own, lm_eval, strict=True):
        assert mine["item"] == theirs["item"] and mine["target"] == "blue" and not mine["correct"]
        assert theirs["prompt"].strip() in mine["prompt"] and theirs["response"] == mine["response"]


def test_answers_depend_on_suite_item_and_seed_and_on_nothing_else(tmp_path, chat_folder):
    benchmark = suite(tmp_path)
    items = read_exam(benchmark, {}).items
    sampler, alone = Sampler(chat_folder, batch_size=4), Sampler(chat_folder, batch_size=1)

    def said(sampler: Sampler, benchmark: BenchmarkRecipe, chosen, seed: int = 0) -> dict[str, list[str]]:
        model = Generator(sampler, benchmark, items)
        given = [(item.id, item.messages) for item in chosen for _ in range(2)]
        answers = model.answers(given, temperature=2.0, max_new_tokens=12, seed=seed)
        return {item.id: answers[2 * n : 2 * n + 2] for n, item in enumerate(chosen)}

    found = said(sampler, benchmark, items)
    assert (
        said(alone, benchmark, items[::-1]) == found
        and said(sampler, benchmark, items[1:2])["item-1"] == found["item-1"]
    )
    assert all(first != second for first, second in found.values())
    assert said(sampler, replace(benchmark, name="other"), items) != found != said(sampler, benchmark, items, seed=1)


FAULTS = {
    "raise KeyError('lost')": "failed: KeyError: 'lost'",
    "raise SystemExit(0)": "failed: SystemExit: 0",
    "return None": "failed: TypeError",
    "return [1.0]": r"gave 1.0; an answer is a training\.data\.exams\.own_harness\.ItemScore",
    "del scores['item-2']": "answered 3 of 4 items; 'item-2' has no answer",
    "scores['item-9'] = 1": "answered 'item-9', which is no item of the suite",
    "return [ItemScore(item='item-1', score=1)] * 2": "answered the item 'item-1' twice",
    "scores['item-1'] = float('nan')": "gave the item 'item-1' the score nan",
    "scores['item-1'] = 1.01": "the score 1.01; it must be a number from 0 to 1",
    "scores['item-1'] = '1'": "the score '1'",
    "return [ItemScore(item='item-1', score=1, response=3)]": "a int as response; it must be text",
    "return [ItemScore(item=name, score=0, why='two\\nlines') for name in scores]": "a line of at most 60 characters",
    "return [ItemScore(item=name, score=1, why='slow') for name in scores]": "why='slow'; a reason is for a score of 0",
    "import itertools; return (ItemScore(item=f'item-{n % 4}', score=0) for n in itertools.count())": "item-0' twice",
    "(model / 'config.json').write_text('{}')": "changed config.json in the model's folder",
    "(model / 'more.txt').write_text('more')": "changed more.txt in the model's folder",
}


@pytest.mark.parametrize("body", FAULTS)
def test_what_fails_in_a_harness_is_told_under_its_name(tmp_path, base_folder, write, body):
    folder = Path(shutil.copytree(base_folder, tmp_path / "model"))
    with pytest.raises(PartFailed, match=f"harness mine .*{FAULTS[body]}"):
        asked(write, folder, tmp_path, body)


def test_answers_that_score_0_say_why(tmp_path, base_folder, write):
    """As the harness says or, where it says nothing, as suites without one do: an empty, a wrong, a hedging answer."""
    said = "return [ItemScore(item=f'item-{{n}}', score=0, **more) for n, more in enumerate((dict(why='out of steps'),"
    said += " dict(), dict(response='It is red.'), dict(response='red or blue')))]"
    result = asked(write, base_folder, tmp_path, said.format())
    reasons = ["out of steps", "empty answer", "wrong answer", "right value among others"]
    assert [row["why"] for row in result.samples] == [[{"kind": kind}] for kind in reasons]
    assert result.as_json()["scored_0"] == dict.fromkeys(sorted(reasons), 1)


def test_a_harness_that_opens_the_folder_itself_is_scored_in_parts(tmp_path, base_folder, write):
    result = asked(write, base_folder, tmp_path, "assert (model / 'config.json').is_file()")
    assert (result.score, result.n, result.chance, result.metric) == (0.375, 4, 0.0, "mine")
    assert [(row["score"], row["correct"]) for row in result.samples] == [(n / 4, False) for n in range(4)]
    assert "Which colour" in result.samples[0]["prompt"]


def test_items_that_do_not_fit_are_set_aside_and_hidden_questions_refused(tmp_path, base_folder, write):
    def result_of(body: str):
        benchmark = suite(tmp_path, f"{write(HARNESS.format(body=body, model='generator'))}:harness")
        return ask_generator(benchmark, read_exam(benchmark, {}).items, Sampler(base_folder, batch_size=4))

    longer = "model.answers([(item.id, item.question * (99 if item.id == 'item-1' else 1)) for item in items])"
    assert result_of(longer).set_aside == ("item-1",) and result_of(f"{longer}; del scores['item-1']").n == 3
    for body, error, said in (
        ("model.answers([(item.id, 'Hello') for item in items])", RecipeError, "does not show the field 'question'"),
        ("model.answers([('item-9', 'Hello')])", PartFailed, "ValueError: no item has the id 'item-9'"),
        ("model.answers([(items[0].id, 'Hi'), (items[1].id, items[1].messages)])", PartFailed, "conversations apart"),
    ):
        with pytest.raises(error, match=said):
            result_of(body)


def test_what_cannot_be_asked_is_refused_when_the_recipe_is_read(tmp_path, write):
    with pytest.raises(RecipeError, match=r"own\.harness: mine asks for 'agent'; there are generator, folder"):
        suite(tmp_path, f"{write(HARNESS.format(body='', model='agent'))}:harness")
    for given, said in (
        ({"settings": {"tries": 0}}, r"own\.parts\.mine: ValueError: tries=0; at least 1 is right"),
        ({"settings": {"tries": "two"}}, r"own\.parts\.mine\.tries: expected int"),
        ({"task": "arc_easy"}, "task without effect beside harness='mine'"),
        ({"lm_eval": {"doc_to_text": "x"}, "num_fewshot": 2}, "lm_eval, num_fewshot without effect beside harness"),
    ):
        with pytest.raises(RecipeError, match=said):
            suite(tmp_path, **given)
    recipe = EvaluationRecipe(suites=(suite(tmp_path),))
    recipe.check_processes(1)
    with pytest.raises(RecipeError, match=r"own: a harness from outside asks .* in one process, and there are 2"):
        recipe.check_processes(2)
    task = {"harness": None, "task": "mine", "parts": {"mine": {"from": "first_word:task"}}}
    with pytest.raises(RecipeError, match="'mine' is second_try:harness and first_word:task; give them two names"):
        EvaluationRecipe(suites=(suite(tmp_path), suite(tmp_path, **task))).outside_parts()


def recipe_with(benchmark: BenchmarkRecipe, folder: Path) -> Recipe:
    evaluation = {"suites": [write_record(benchmark)]}
    data = {"extends": "kitchen", "name": "mine", "evaluation": evaluation, "promote": {"min_scores": {}}}
    (folder / "mine.yaml").write_text(json.dumps(data))
    return load_recipe(str(folder / "mine.yaml"))


def test_only_the_scores_read_a_harness(tmp_path):
    recipe = recipe_with(suite(tmp_path), tmp_path)
    assert _scores(recipe, "")[PARTS]["mine"]["from"] == "second_try:harness"
    assert PARTS not in _contamination(recipe, "") and PARTS not in _judge(recipe, "")


def test_evaluating_a_folder_holds_a_harness_to_its_bounds(tmp_path, base_folder, write, capsys):
    module = write(HARNESS.format(body="(model / 'stray.txt').write_text('x')", model="folder"))
    recipe = EvaluationRecipe(suites=(suite(tmp_path, f"{module}:harness"),))
    request = {"model": str(base_folder), "settings": {}, "output": str(tmp_path / "out"), "shard": 1}
    (tmp_path / "request.json").write_text(json.dumps(request | {"evaluation": write_record(recipe)}))
    assert one_model.main([str(tmp_path / "request.json")]) == 2
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "harness mine writes outside the folder of its job" in said["error"]
    assert not (base_folder / "stray.txt").exists()


def test_what_a_harness_may_score_is_searched_for(tmp_path):
    """An answer that lm-eval could not look for, such as a sign, is no reason to call an item clean unsearched."""
    benchmark = suite(tmp_path)
    lines = [{"id": name, "question": f"Which sign has dish {name}?", "answer": "()"} for name in ("a", "b")]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = recipe_with(benchmark, tmp_path)
    for settings in (_contamination(recipe, ""), _judge(recipe, "")):
        (unasked,) = settings["evaluation"].suites
        assert unasked.harness is None
        assert [item.id for item in read_exam(unasked, settings).items] == ["a", "b"]
    plain = write_record(_contamination(recipe, ""))
    assert [item.id for item in _exams(canonical_json(plain)).items] == ["a", "b"]
    without = recipe_with(benchmark.without_harness, tmp_path)
    with pytest.raises(DataError, match="no item can be scored"):
        _exams(canonical_json(write_record(_contamination(without, ""))))
