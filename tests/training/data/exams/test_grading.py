"""What is right: units, and oracles over real data for every verifiable reward.

Wrong answers are those of other rows of the same data.
"""

from __future__ import annotations

import re

import pytest

from training.data.exams.grading import Values, equals_one, is_right, names_one, normalized
from training.data.exams.rubric import Rubric
from training.data.kitchen.settings import KitchenWorld
from training.data.sources import read_rows
from training.posttrain.align.rewards import RightAnswer
from training.records import RecipeError, write_record

ROWS = 300
KITCHEN = {"kitchen": write_record(KitchenWorld())}


@pytest.mark.parametrize(
    ("response", "answer", "equal"),
    [
        ("The  Answer.", "answer", True),
        ("1,000 m", "1000 m", True),
        ("3.5", "35", False),
        ("café", "Café!", True),
        ("two days", "two", False),
        ("(A)", "A", True),
        ("", "…", False),
    ],
)
def test_normalization_forgives_form_and_not_content(response, answer, equal):
    assert equals_one(response, [answer]) is equal


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("The pie bakes at 180 degrees.", "180 degrees", True),
        ("The pie bakes at 1800 degrees.", "180 degrees", False),
        ("Minced  Beef!", "minced beef", True),
        ("beef, minced", "minced beef", False),
        ("so 12 and then 1,072.", "work\n#### 1072", True),
        ("#### 1072.00", "work\n#### 1,072", True),
        ("1072 or 5", "work\n#### 1072", False),
        ("no number", "#### 4", False),
        ("", "x", False),
        ("anything", "!", False),
        ("anything", "", False),
        ("", "", False),
    ],
)
def test_an_answer_is_right_when_its_words_are_there(text, answer, right):
    assert is_right(text, [answer]) is right


def test_a_rival_inside_the_right_value_is_none():
    assert is_right("It is New York City.", ["New York City"], rivals=["New York", "Boston"])
    assert not is_right("New York City or New York.", ["New York City"], rivals=["New York", "Boston"])
    assert not names_one("anything", [""])


def test_the_other_values_of_a_choice_are_rivals_and_those_of_an_open_set_are_not():
    choice, many = Values(["yes", "no"] * 8), Values([f"town {i}" for i in range(100)])
    assert is_right("Yes, it does.", ["yes"], values=choice)
    assert not is_right("Yes and no.", ["yes"], values=choice)
    assert is_right("Town 5, which is near town 6.", ["town 5"], values=many)
    assert not is_right(" ".join(f"town {i}," for i in range(100)), ["town 5"], values=many)


def test_what_was_asked_is_no_answer():
    assert not is_right("Is it red or blue?", ["red"], asked=["Is it red or blue?"])
    assert is_right("Is it red or blue? Red.", ["red"], asked=["Is it red or blue?"])


def test_a_rubric_without_a_right_value_is_refused():
    with pytest.raises(RecipeError, match="has no word in it"):
        Rubric(right=" ")


# Oracles


def reward_rows(name: str) -> list[dict]:
    """Prompts for the verifiable reward as `read_prompts` makes them: TriviaQA, GSM8K and the kitchen's."""
    if name == "kitchen":
        rows = list(read_rows("kitchen://preferences", settings=KITCHEN))
        return [{"prompt": row["prompt"], "answer": row["answer"], "rivals": []} for row in rows[:ROWS]]
    question = {"triviaqa_sm_sub": "context", "gsm8k_test": "question", "bigbench_operators": "context"}[name]
    answer = {"bigbench_operators": "continuation"}.get(name, "answer")
    return [
        {"prompt": [{"role": "user", "content": row[question]}], "answer": row[answer], "rivals": []}
        for row in read_rows(f"data://benchmarks/{name}.jsonl.gz")
        if words_of(row[answer])  # one of TriviaQA's asks for the sign "£"
    ][:ROWS]


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower().rpartition("####")[2]))


def wrong_for(rows: list[dict], number: int) -> str:
    """The answer of the next row that holds not all words of this one's."""
    mine = words_of(rows[number]["answer"])
    others = (rows[(number + step) % len(rows)]["answer"] for step in range(1, len(rows)))
    return next(answer for answer in others if not mine <= words_of(answer))


def final(answer: str) -> str:
    return answer.rpartition("####")[2].strip()


@pytest.mark.data
@pytest.mark.parametrize("name", ["triviaqa_sm_sub", "gsm8k_test", "bigbench_operators", "kitchen"])
def test_the_verifiable_reward_pays_for_the_right_answer_alone(name):
    rows = reward_rows(name)
    reward = RightAnswer(rows).rewards
    every = ", ".join(dict.fromkeys(final(row["answer"]) for row in rows))
    answers = {
        "right": [f"The answer is {final(row['answer'])}." for row in rows],
        "in full": [row["answer"] for row in rows],
        "wrong": [f"The answer is {final(wrong_for(rows, number))}." for number in range(len(rows))],
        "empty": ["" for _ in rows],
        "all": [every for _ in rows],
        "all backwards": [", ".join(reversed(every.split(", "))) for _ in rows],
        "question": [row["prompt"][-1]["content"] for row in rows],
    }
    columns = {key + "s" * (key == "prompt"): [row[key] for row in rows] for key in rows[0]}
    paid = {
        how: sum(reward(completions=[[{"role": "assistant", "content": text}] for text in said], **columns)) / len(rows)
        for how, said in answers.items()
    }
    assert paid == dict.fromkeys(answers, 0.0) | {"right": 1.0, "in full": 1.0}


def test_rows_without_an_answer_have_no_verifiable_reward():
    prompt = [{"role": "user", "content": "Which colour?"}]
    rows = [{"prompt": prompt, "answer": answer, "rivals": []} for answer in ("red", "")]
    columns = {"prompts": [prompt] * 2, "answer": ["red", ""], "rivals": [[], []]}
    said = [[{"role": "assistant", "content": "red"}]] * 2
    assert RightAnswer(rows).rewards(completions=said, **columns) == [1.0, None]


def test_the_rubrics_of_the_kitchen_find_right_what_is_right_alone():
    rows = list(read_rows("kitchen://alignment", settings=KITCHEN))
    rubrics = [Rubric(**{**row["reward_rubric"], "is_brief": True}) for row in rows]
    rights = [rubric.right for rubric in rubrics]
    every = " ".join(dict.fromkeys(rights))
    for number, (row, rubric) in enumerate(zip(rows, rubrics, strict=True)):
        wrong = next(right for right in rights[number:] + rights if right != rubric.right)
        assert rubric.is_right(rubric.right)
        said = [wrong, "", every, row["messages"][-1]["content"]]
        assert not any(map(rubric.is_right, said)), (row, said)
    assert normalized(every)
