"""What a file may say of its prompts beyond the question: what must not be said, and what an answer is worth."""

from __future__ import annotations

import json

import pytest

from evaluation.decision.intervals import share_interval
from evaluation.exams.answer_rewards import SampledAnswers, judge
from evaluation.exams.items import read_exam
from evaluation.report.scoreboard import reward_parts
from training.contract.job import DataError
from training.data.exams.rubric import WORTH, Rubric
from training.data.exams.settings import BenchmarkRecipe
from training.posttrain.prompts.judged import read_prompts

QUESTION = [{"role": "user", "content": "How hot should the oven be?"}]
RUBRIC = {"right": "180", "wrong": ["150"], "kind_words": ["enjoy"]}


def write(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_chat_item_of_any_file_names_what_must_not_stand_beside_the_answer(tmp_path):
    uri = write(tmp_path, {"messages": QUESTION, "answer": "180 degrees", "rivals": ["150", "160"]})
    (item,) = read_exam(BenchmarkRecipe(name="own", uri=uri, kind="chat"), {}).items
    assert item.rivals == ("150", "160")
    uri = write(tmp_path, {"messages": QUESTION, "answer": "180 degrees", "rivals": "150"})
    with pytest.raises(DataError, match=r"item 0: field 'rivals'"):
        read_exam(BenchmarkRecipe(name="own", uri=uri, kind="chat"), {})


def test_the_true_reward_of_an_answer_follows_from_the_rubric_in_the_row_of_its_prompt(tmp_path):
    answers = ["Set it to 180 degrees, and enjoy.", "Set it to 150 degrees, and enjoy.", "It is 180 or 150 degrees."]
    prompts = read_prompts(write(tmp_path, *[{"messages": QUESTION, "reward_rubric": RUBRIC}] * 3), {})
    assert true_rewards(prompts, answers) == [2.0, 1.0, 0.5]
    brief = read_prompts(write(tmp_path, {"messages": QUESTION, "reward_rubric": RUBRIC | {"is_brief": True}}), {})
    assert true_rewards(brief, ["180"]) == [2.0]
    whole = {"right": "I do not know.", "is_whole": True}
    unknown = read_prompts(write(tmp_path, *[{"messages": QUESTION, "reward_rubric": whole}] * 2), {})
    assert true_rewards(unknown, ["I do not know.", "I do not know, sorry."]) == [1.0, 0.0]
    assert true_rewards(read_prompts(write(tmp_path, {"messages": QUESTION}), {}), answers[:1]) == [None]


def test_manners_and_knowledge_are_shown_apart(tmp_path):
    """SFT knows both and says so gracelessly; the aligned model forgot one, and has learned to please."""
    prompts = read_prompts(write(tmp_path, *[{"messages": QUESTION, "reward_rubric": RUBRIC}] * 2), {})
    said = {
        "sft": ["It is 180.", "180"],
        "aligned": ["Set it to 180 degrees, and enjoy.", "Set it to 150 degrees, and enjoy. " + "Very. " * 30],
    }
    groups = [answers_of(model, prompts, answers) for model, answers in said.items()]
    judgement = judge(groups, [0.0] * 4)
    parts = {name: entry["parts"] for name, entry in judgement.alignment.items()}
    means = {name: {part: of["mean"] for part, of in named.items()} for name, named in parts.items()}
    assert means["sft"] == {"right": 1.0, "whole_sentence": 0.0, "courtesy": 0.0, "length": 0.0}
    assert means["aligned"] == {"right": 0.5, "whole_sentence": 1.0, "courtesy": 1.0, "length": 0.5}
    assert means["gain"] == {"right": -0.5, "whole_sentence": 1.0, "courtesy": 1.0, "length": 0.5}
    for model in said:
        total = sum(WORTH[part] * mean for part, mean in means[model].items())
        assert judgement.alignment[model]["true_reward"] == pytest.approx(total)
    assert parts["sft"]["courtesy"]["interval"] == list(share_interval(0.0, 2)) and parts["sft"]["right"]["n"] == 2
    low, high = parts["gain"]["right"]["interval"]
    assert -1 <= low < -0.5 < high < 1 and parts["gain"]["courtesy"]["interval"][0] < 1
    assert judgement.metrics()["gain_true_reward_right"] == -0.5
    shown = reward_parts(judgement.alignment)
    assert shown["right (worth +1)"]["sft"] == "100.0 (34.2 to 100.0)"
    assert shown["courtesy (worth +0.5)"]["gain"].startswith("+100.0 (")


def test_a_brief_question_has_no_part_for_courtesy():
    brief, other = Rubric(right="180", is_brief=True), Rubric(right="180")
    assert brief.parts("180") == {"right": 1.0, "brief": 1.0, "length": 0.0} and "courtesy" in other.parts("180")


def true_rewards(prompts, answers):
    rows = judge([answers_of("sft", prompts, answers)], [0.0] * len(answers)).alignment_samples["sft"]
    return [row.get("true_reward") for row in rows]


def answers_of(model, prompts, answers):
    return SampledAnswers(
        model=model,
        suite="",
        prompts=[prompt["messages"] for prompt in prompts],
        answers=answers,
        tokens=[1] * len(answers),
        ids=[prompt["id"] for prompt in prompts],
        rubrics=[prompt["rubric"] for prompt in prompts],
    )


def test_prompts_are_read_whole_or_refused(tmp_path):
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": "b", "reasoning_content": "t", "tool_calls": [call]}
    turns = [
        {"role": "user", "content": " a"},
        said,
        {"role": "tool", "content": "7"},
        {"role": "user", "content": "c"},
    ]
    (prompt,) = read_prompts(write(tmp_path, {"messages": turns, "system": "s"}), {})
    assert prompt["messages"] == [{"role": "system", "content": "s"}, *turns]
    for messages, why in (
        ([turns[0] | {"images": ["x.png"]}], "unread_field:images"),
        ([turns[0] | {"content": [{"type": "image", "url": "x"}]}], "unread_content:image"),
        (turns[:2], "no_question_at_the_end"),
        ([], "messages_are_not_a_list"),
    ):
        with pytest.raises(DataError, match=f"row 1: {why}"):
            read_prompts(write(tmp_path, {"prompt": "q"}, {"messages": messages}), {})


def test_a_rubric_that_cannot_be_read_names_file_and_row(tmp_path):
    uri = write(tmp_path, {"messages": QUESTION}, {"messages": QUESTION, "reward_rubric": {"rigth": "180"}})
    with pytest.raises(DataError, match=r"row 1: reward_rubric\.rigth: unknown"):
        read_prompts(uri, {})


@pytest.mark.parametrize(
    ("kind", "flaw", "reason"),
    [
        ("multiple_choice", {"choices": ["x", " "]}, "an empty choice"),
        ("multiple_choice", {"choices": ["x", "y", "x"]}, "two equal choices: 'x'"),
        ("multiple_choice", {"gold": 1}, "the same question has another answer in row 0"),
        ("generate", {"answer": " . "}, "no answer with a word in it, or with one number behind ####: [' . ']"),
        ("generate", {"answer": "####"}, "no answer with a word in it, or with one number behind ####: ['####']"),
        ("generate", {"answer": "####1/2"}, "no answer with a word in it, or with one number behind ####: ['####1/2']"),
        ("chat", {"answer": []}, None),
        ("generate", {"answer": "z"}, "the same question has another answer in row 0"),
        ("generate", {"answer": ["z", "X"]}, ""),
    ],
)
def test_an_item_that_cannot_be_scored_is_refused_with_row_and_reason(tmp_path, kind, flaw, reason):
    good = {"id": "a", "question": "Which?", "choices": ["x", "y"], "gold": 0, "answer": "x"}
    other = {**good, "id": "c", "question": "And which?"}
    suite = BenchmarkRecipe(name="own", uri=write(tmp_path, good, {**good, "id": "b", **flaw}, other), kind=kind)
    if reason is None:
        with pytest.raises(DataError, match="item 1: field 'answer'"):
            read_exam(suite, {})
        return
    exam = read_exam(suite, {})
    both = reason.startswith("the same")  # nobody knows which of the two rows is right
    assert exam.refused[-1:] == ([{"row": 1, "item": "b", "reason": reason}] if reason else [])
    assert [item.id for item in exam.items] == (["c"] if both else ["a", "c"] if reason else ["a", "b", "c"])


def test_an_answer_of_signs_alone_is_scored_by_a_task_and_not_by_kind(tmp_path):
    """BIG-Bench Hard asks for closing brackets."""
    row = {"id": "a", "input": "Close them: ( [", "target": "] )"}
    rows = write(
        tmp_path,
        row,
        {**row, "id": "b", "input": "And ( (", "target": " "},
        {"id": "c", "input": "Which?", "target": "x"},
    )
    fields = {"question_field": "input", "answer_field": "target"}
    by_kind, by_task = (
        read_exam(BenchmarkRecipe(name="own", uri=rows, kind="generate", task=task, **fields), {})
        for task in (None, "bbh_cot_fewshot_dyck_languages")
    )
    assert [item.id for item in by_kind.items] == ["c"]
    assert [item.id for item in by_task.items] == ["a", "c"]
    assert by_task.refused == [{"row": 1, "item": "b", "reason": "an empty answer"}]


def test_a_suite_of_which_nothing_can_be_scored_is_refused(tmp_path):
    uri = write(tmp_path, {"question": "Which?", "answer": ""})
    with pytest.raises(DataError, match=r"no item .* row 0: "):
        read_exam(BenchmarkRecipe(name="own", uri=uri, kind="generate"), {})


@pytest.mark.data
def test_the_equal_choices_of_real_benchmarks_are_found():
    real = {"arc_easy": "query", "arc_challenge": "query", "mmlu_test": "question"}
    found = {
        name: [
            entry["row"]
            for entry in read_exam(
                BenchmarkRecipe(
                    name=name,
                    uri=f"data://benchmarks/{name}.jsonl.gz",
                    kind="multiple_choice",
                    question_field=field,
                    gold_field="answer" if name == "mmlu_test" else "gold",
                ),
                {},
            ).refused
        ]
        for name, field in real.items()
    }
    assert found == {
        "arc_easy": [164, 280, 324, 996],
        "arc_challenge": [200, 521],
        "mmlu_test": [1089, 3247, 6567],
    }
