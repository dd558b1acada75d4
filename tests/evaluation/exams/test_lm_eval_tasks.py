"""The shipped suites against lm-eval's own tasks: the same rows to both, compared item by item on a tiny model.

The rows are brought into the form of the data set that lm-eval's task reads, and lm-eval's own model class answers.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.examples import example

pytest.importorskip("torch")

from datasets import Dataset
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM

from evaluation.exams.harness import run_suites
from evaluation.exams.items import ExamItem, read_exam
from evaluation.exams.local_model import LocalModel
from evaluation.exams.suites.canned_answers import try_suite
from evaluation.exams.tasks import FEWSHOT_SEED, LmEvalTask, named_config, task_config
from tests.evaluation.conftest import SPECIAL
from training.contract.records import RecipeError
from training.data.exams.benchmarks import read_items
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_checks import check_suite
from training.data.exams.task_files import check_own_task
from training.data.sources import read_rows

pytestmark = pytest.mark.data
ITEMS = 6
SHORT = {"until": ["Question:", "</s>", "<|im_end|>"], "do_sample": False, "temperature": 0.0, "max_gen_toks": 8}


def suites() -> dict[str, BenchmarkRecipe]:
    return {suite.name: replace(suite, limit=ITEMS) for suite in example("webdocs-exams").evaluation.suites}


def arc(row):
    labels = [chr(ord("A") + number) for number in range(len(row["choices"]))]
    return {
        "question": row["query"].removeprefix("Question: "),
        "choices": {"text": row["choices"], "label": labels},
        "answerKey": labels[row["gold"]],
    }


def hellaswag(row):
    label, _, context = row["query"].partition(": ")
    return {"activity_label": label, "ctx_a": context, "ctx_b": "", "endings": row["choices"], "label": row["gold"]}


def piqa(row):
    goal = row["query"].removeprefix("Question: ").removesuffix("\n")
    return {"goal": goal, "sol1": row["choices"][0], "sol2": row["choices"][1], "label": row["gold"]}


def boolq(row):
    passage, _, question = row["query"].removeprefix("Passage: ").rpartition("\nQuestion: ")
    return {"passage": passage, "question": question.removesuffix("?"), "label": row["gold"]}


def winogrande(row):
    first, second = row["context_options"]
    same = next(i for i in range(len(first)) if first[i:] != second[i:] and first[: i + 1] != second[: i + 1])
    sentence = f"{first[:same]}_ {row['continuation']}"
    return {"sentence": sentence, "option1": first[same:], "option2": second[same:], "answer": str(row["gold"] + 1)}


def mmlu(row):
    return {**row, "answer": "ABCD".index(row["answer"])}


def truthfulqa(row):
    choices = [row["Best Answer"], *row["Incorrect Answers"].split("; ")]
    return {"question": row["Question"], "mc1_targets": {"choices": choices, "labels": [1] + [0] * (len(choices) - 1)}}


def lambada(row):
    return {"text": f"{row['context']} {row['continuation']}"}


def triviaqa(row):
    question = row["context"].removeprefix("Question: ").removesuffix("\nAnswer:")
    return {"question": question, "answer": {"aliases": row["aliases"]}}


def strategyqa(row):
    answers = {"multiple_choice_targets": row["choices"], "targets": [row["choices"][row["gold"]]]}
    return {"inputs": row["query"], "multiple_choice_scores": [int(n == row["gold"]) for n in range(2)], **answers}


def bigbench(row):
    return {"inputs": row["context"], "targets": [row["continuation"]]}


FORMS = {
    "arc_easy": arc,
    "arc_challenge": arc,
    "hellaswag": hellaswag,
    "piqa": piqa,
    "boolq": boolq,
    "winogrande": winogrande,
    "mmlu": mmlu,
    "truthfulqa_mc1": truthfulqa,
    "lambada_openai": lambada,
    "triviaqa": triviaqa,
    "bigbench_strategyqa": strategyqa,
    "bigbench_operators": bigbench,
    "bigbench_qa_wikidata": bigbench,
    "gsm8k": dict,
}


@pytest.fixture(scope="module")
def folder(base_folder, tmp_path_factory) -> Path:
    """Return the folder of the tiny model, for prompts of up to 2,048 tokens.

    It writes no special token: each ends an answer here, and of them lm-eval's model class knows one.
    """
    copy = tmp_path_factory.mktemp("long") / "model"
    shutil.copytree(base_folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    model = AutoModelForCausalLM.from_pretrained(copy, local_files_only=True)
    model.lm_head.weight.data[: len(SPECIAL)] = 0
    model.save_pretrained(copy)
    return copy


def stock_records(suite: BenchmarkRecipe, rows: list[dict], folder: Path, **changes: object) -> list[dict]:
    """What lm-eval itself makes of the rows: its task, its data set's form, its model."""
    splits = {"test": [FORMS[suite.name](row) for row in rows]}
    config = named_config(suite.task) | {"test_split": "test", "validation_split": None, "training_split": None}
    config["fewshot_split"] = "fewshot" if suite.fewshot_uri else None
    if suite.fewshot_uri:
        splits["fewshot"] = list(read_rows(suite.fewshot_uri))
    task = LmEvalTask(config | changes, splits)
    task.set_fewshot_seed(FEWSHOT_SEED)
    tokenizer = LocalModel(folder, batch_size=1).tokenizer
    model = HFLM(
        pretrained=AutoModelForCausalLM.from_pretrained(folder, local_files_only=True),
        tokenizer=tokenizer,
        batch_size=1,
        max_length=2048,
    )
    outcome = evaluate(lm=model, task_dict={"tasks": {"own": task}, "groups": {}}, bootstrap_iters=0)
    return outcome["samples"]["own"]


def test_every_suite_with_a_task_is_compared():
    assert set(FORMS) == {suite.name for suite in example("webdocs-exams").evaluation.suites if suite.task}


@pytest.mark.parametrize("name", FORMS)
def test_a_shipped_suite_is_lm_evals_own_task(name, folder):
    suite, changes = suites()[name], {}
    if name == "gsm8k":
        suite = replace(suite, num_fewshot=2, lm_eval={"generation_kwargs": SHORT})
        changes = {"num_fewshot": 2, "generation_kwargs": SHORT}
    if name in ("bigbench_operators", "bigbench_qa_wikidata"):  # for the time that 128 tokens take
        suite = replace(suite, lm_eval={**suite.lm_eval, "generation_kwargs": SHORT})
        changes = {"generation_kwargs": SHORT}
    if name == "mmlu":  # the rows are of this subject
        assert named_config(suite.task)["dataset_name"] == "abstract_algebra"
    exam = read_exam(suite, {})
    (result,) = run_suites(LocalModel(folder, batch_size=4), [(suite, exam.items)], has_template=False)
    theirs = stock_records(suite, [item.row for item in exam.items], folder, **changes)
    metric, _, filter_name = result.metric.partition(",")
    theirs = [record for record in theirs if record["filter"] == (filter_name or "none") or not filter_name]
    theirs = theirs[: len(exam.items)]
    assert len(theirs) == len(result.samples) == ITEMS
    for mine, stock in zip(result.samples, theirs, strict=True):
        assert mine["prompt"] == stock["arguments"][0][0]
        assert mine["correct"] == bool(stock[metric])
        if "log_likelihoods" in mine:
            likelihoods = [response[0] for response in stock["filtered_resps"]]
            assert mine["log_likelihoods"] == pytest.approx(likelihoods, abs=2e-3)
        else:
            assert mine["response"] == stock["resps"][0][0]
    assert str(result.how["task_version"]) == str(named_config(suite.task)["metadata"]["version"])


ROWS = [
    {"id": f"q{i}", "Asked Thing": f"the {thing}", "colour": colour}
    for i, (thing, colour) in enumerate([("sky", "blue"), ("bread", "brown"), ("fox", "red"), ("dog", "brown")])
]
OWN = {"output_type": "generate_until", "doc_to_text": "{{asked_thing}} is", "doc_to_target": "colour"}
OWN |= {"metric_list": [{"metric": "exact_match"}], "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4}}


def own_suite(tmp_path: Path, **more: object) -> BenchmarkRecipe:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    fields = {"question_field": "Asked Thing", "answer_field": "colour", "lm_eval": OWN, **more}
    return BenchmarkRecipe(name="own", uri=str(path), kind="generate", **fields)


def prompts_of(suite: BenchmarkRecipe, folder: Path) -> list[str]:
    items = read_exam(suite, {}).items
    (result,) = run_suites(LocalModel(folder, batch_size=4), [(suite, items)], has_template=False)
    return [sample["prompt"] for sample in result.samples]


def test_a_task_of_its_own_is_asked_with_examples(tmp_path, folder):
    plain = prompts_of(own_suite(tmp_path), folder)
    assert plain == [f"{row['Asked Thing']} is" for row in ROWS]
    more = tmp_path / "examples.jsonl"
    more.write_text("".join(json.dumps({"Asked Thing": f"thing {i}", "colour": "grey"}) + "\n" for i in range(5)))
    shown = prompts_of(own_suite(tmp_path, num_fewshot=2, fewshot_uri=str(more)), folder)
    for prompt, question in zip(shown, plain, strict=True):
        assert prompt.endswith(f"\n\n{question}") and prompt.count(" is grey") == 2


def test_a_task_may_be_a_file_of_plain_yaml(tmp_path, folder):
    file = tmp_path / "task.yaml"
    file.write_text(json.dumps({**OWN, "task": "another_name", "dataset_path": "some/where"}))
    suite = own_suite(tmp_path, lm_eval={}, task_file=str(file))
    assert prompts_of(suite, folder) == [f"{row['Asked Thing']} is" for row in ROWS]
    file.write_text("doc_to_text: !function os.getcwd\n")
    with pytest.raises(RecipeError, match="the tag !function is not read"):
        prompts_of(suite, folder)


def test_a_task_without_its_examples_or_its_columns_is_refused(tmp_path, folder):
    for more, match in [
        ({"task": "gsm8k", "lm_eval": {}}, "'question' is undefined"),
        (
            {"lm_eval": {**OWN, "doc_to_text": "{{ asked_thing.__class__.__mro__ }}"}},
            "SecurityError: access to attribute",
        ),
        ({"lm_eval": {**OWN, "metrics": []}}, "lm-eval cannot make the task: TypeError"),
        ({"metric": "acc"}, r"metric='acc'; the task has exact_match,none"),
    ]:
        with pytest.raises(RecipeError, match=match):
            prompts_of(own_suite(tmp_path, **more), folder)


def test_a_task_that_lm_eval_lacks_is_refused_when_the_recipe_is_read():
    for task, match in [
        ("arc_esay", "a: task='arc_esay': lm-eval has no task of that name .*; near it are arc_easy"),
        ("mmlu_stem_tasks", "a tag is none"),
    ]:
        with pytest.raises(RecipeError, match=match):
            BenchmarkRecipe(name="a", uri="x.jsonl", kind="generate", task=task)
    assert BenchmarkRecipe(
        name="a", uri="x.jsonl", kind="generate", task="boolq"
    ).is_task  # named otherwise than its file


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"task": "gsm8k"}, "the task has 5 examples in its prompt; name rows in fewshot_uri"),
        ({"task": "wikitext"}, "output_type='loglikelihood_rolling'"),
        ({"task": "arc_easy", "metric": "exact_match"}, "metric='exact_match'; the task has acc, acc_norm"),
        ({"lm_eval": OWN, "metric": "acc,none"}, "metric='acc,none'; the task has exact_match"),
    ],
)
def test_a_named_task_that_cannot_score_the_items_is_refused_when_the_recipe_is_read(fields, sentence):
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        check_own_task(BenchmarkRecipe(name="a", uri="x.jsonl", kind="generate", **fields))


@pytest.mark.parametrize(
    ("task", "own", "said"),
    [
        ("arc_easy", {}, "'question' is undefined"),
        ("arc_easy", {"doc_to_text": "{{prompt", "doc_to_choice": "prompt"}, "TemplateSyntaxError"),
        ("boolq", {}, "'passage' is undefined"),
        (None, {**OWN, "doc_to_text": "{{ Best_Anser }}"}, "'Best_Anser' is undefined"),
    ],
)
def test_a_task_whose_columns_a_file_lacks_is_refused_where_the_file_is_first_read(tmp_path, task, own, said):
    rows = [{"id": "1", "prompt": "Why?", "answer": "so"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    suite = BenchmarkRecipe(
        name="a",
        uri=str(tmp_path / "rows.jsonl"),
        kind="generate",
        question_field="prompt",
        task=task,
        lm_eval=own,
    )
    with pytest.raises(RecipeError, match=f"a: doc_to.*{re.escape(said)}.*the columns of .*rows.jsonl are id, prompt"):
        read_items(suite)


@pytest.mark.parametrize("name", ["fda", "swde", "squad_completion"])
def test_a_task_in_python_is_lm_evals_own(tmp_path, folder, name):
    rows = [{"text": f"The sky is blue, case {n}. The case is ", "value": f"case {n}"} for n in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {"question_field": "text", "answer_field": "value", "task": name}
    suite = BenchmarkRecipe(name="a", uri=str(tmp_path / "rows.jsonl"), kind="generate", **fields)
    check_suite(suite)
    items = read_exam(suite, {}).items
    tried = try_suite(suite, items, {})
    assert tried["right"] == 1 and {tried[kind] for kind in ("wrong", "empty", "overlong")} == {0}
    (result,) = run_suites(LocalModel(folder, batch_size=4), [(suite, items)], has_template=False)
    cls = named_config(name)["class"]
    data = {"validation": Dataset.from_list(rows)}
    given = {"download": lambda self, *_, **__: setattr(self, "dataset", data)}
    stock = type(cls.__name__, (cls,), given)
    model = HFLM(pretrained=str(folder), device="cpu", batch_size=1, max_length=2048)
    outcome = evaluate(lm=model, task_dict={"tasks": {"own": stock()}, "groups": {}}, bootstrap_iters=0)
    for mine, theirs in zip(result.samples, outcome["samples"]["own"], strict=True):
        assert (mine["prompt"], mine["response"]) == (theirs["arguments"][0][0], theirs["resps"][0][0])
        assert mine["correct"] == bool(theirs["contains"])


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"task": "squadv2"}, r"is code of lm-eval's that fetches its metric or data \(evaluate.load\)"),
        ({"task": "scrolls_quality"}, r"fetches its metric or data \(hf_hub_download\)"),
        ({"task": "fda", "num_fewshot": 2}, "num_fewshot, fewshot_uri have no effect on task='fda'"),
    ],
)
def test_a_task_in_python_that_fetches_or_does_not_follow_is_refused(more, problem):
    with pytest.raises(RecipeError, match=problem):
        check_suite(BenchmarkRecipe(name="a", uri="x.jsonl", kind="generate", **more))


def test_fields_of_a_task_need_a_task():
    with pytest.raises(RecipeError, match="num_fewshot "):
        BenchmarkRecipe(name="a", uri="x.jsonl", kind="chat", num_fewshot=3)
    with pytest.raises(RecipeError, match=r"lm_eval\.dataset_path "):
        BenchmarkRecipe(name="a", uri="x.jsonl", kind="chat", lm_eval={"dataset_path": "x"})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"generation_kwargs": {"do_sample": "no"}}, "do_sample='no', temperature=0.0; true or false"),
        ({"generation_kwargs": {"do_sample": False, "temperature": "hot"}}, "and a number from 0 on are right"),
        ({"generation_kwargs": {"num_beams": 4}}, r"generation_kwargs\.num_beams=4 is not done here"),
        ({"generation_kwargs": {"repetition_penalty": 1.1}}, r"repetition_penalty=1.1 is not done"),
        (
            {"generation_kwargs": {"until": ""}},
            r"generation_kwargs\.until=''; texts of at least one character are right",
        ),
        ({"generation_kwargs": {"until": ["\n", ""]}}, r"until=\['\\n', ''\]; texts of at least one"),
        ({"generation_kwargs": {"until": [7]}}, r"until=\[7\]; texts of at least one"),
        (
            {"generation_kwargs": {"max_gen_toks": 0}},
            r"generation_kwargs\.max_gen_toks=0; a number of tokens from 1 on",
        ),
        ({"generation_kwargs": "greedy"}, "generation_kwargs='greedy': expected a mapping"),
    ],
    ids=str,
)
def test_answers_that_would_not_be_made_as_the_task_asks_are_refused(tmp_path, asked, said):
    with pytest.raises(RecipeError, match=f"own: .*{said}"):
        own_suite(tmp_path, lm_eval={**OWN, **asked})  # when the recipe is read
    file = tmp_path / "task.yaml"
    file.write_text(json.dumps({**OWN, **asked}))
    with pytest.raises(RecipeError, match=f"own: .*{said}"):
        task_config(own_suite(tmp_path, lm_eval={}, task_file=str(file)))


def test_a_task_of_lm_eval_that_samples_may_be_asked_for_one_likeliest_answer(tmp_path):
    suite = own_suite(tmp_path, task="gsm8k_cot_self_consistency", lm_eval={})
    assert task_config(suite)["repeats"] == 64
    asked = {
        "repeats": 1,
        "generation_kwargs": {"until": [], "do_sample": False},  # as 56 tasks of lm-eval ask
        "filter_list": [{"name": "first", "filter": [{"function": "take_first"}]}],
    }
    assert task_config(replace(suite, lm_eval=asked))["repeats"] == 1


def test_the_record_says_how_answers_were_generated(tmp_path, folder):
    asked = {"until": ["\n"], "max_new_tokens": 4, "do_sample": False, "temperature": 0.9}
    suite = own_suite(tmp_path, lm_eval={**OWN, "generation_kwargs": asked})
    (result,) = run_suites(LocalModel(folder, batch_size=4), [(suite, read_exam(suite, {}).items)], has_template=False)
    assert result.how["generation"] == {"until": ["\n"], "max_new_tokens": 4, "do_sample": False}


@pytest.mark.parametrize(
    ("said", "score"),
    [("<think>7</think>8", 1.0), ("<think>8</think>7", 0.0), ("<think>8", 0.0), ("8", 1.0), (" 8 <think>7", 1.0)],
)
def test_a_task_grades_the_answer_after_its_thought_and_keeps_all(folder, monkeypatch, said, score):
    fields = {"output_type": "generate_until", "doc_to_text": "{{q}}", "doc_to_target": "8"}
    fields |= {"generation_kwargs": {"max_gen_toks": 4, "do_sample": False, "until": ["|"]}}
    steps = [{"function": "regex", "regex_pattern": "([0-9])"}, {"function": "take_first"}]
    fields |= {"filter_list": [{"name": "s", "filter": steps}]}
    suite = BenchmarkRecipe(name="s", uri="x.jsonl", kind="generate", question_field="q", lm_eval=fields)
    monkeypatch.setattr(LocalModel, "generate_until", lambda self, requests, **_: [said] * len(requests))
    items = [ExamItem(id="1", question="q", answers=("8",), row={"q": "q"})]
    (result,) = run_suites(LocalModel(folder, batch_size=1), [(suite, items)], has_template=False)
    assert result.score == score and result.samples[0]["response"] == said
