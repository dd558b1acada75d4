"""What is right: units, and oracles over real data for every verifiable reward.

Wrong answers are those of other rows of the same data.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from training.contract.records import RecipeError, write_record
from training.data.exams.final_number import final_number
from training.data.exams.grading import (
    Values,
    before_stop,
    equals_one,
    is_right,
    names_one,
    normalized,
    opened_thought,
)
from training.data.exams.rubric import Rubric
from training.data.kitchen.settings import KitchenWorld
from training.data.sources import read_rows
from training.posttrain.align.sampling.rewards import RightAnswer, part_rewards
from training.posttrain.rewards import REWARDS
from training.posttrain.scoring import Sampled

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
    ("text", "stops", "kept"),
    [
        ("72\nQuestion: 5", ["\n"], "72"),
        ("<think>\n48 + 24\n</think>\n\n72\nQuestion: 5", ["\n"], "<think>\n48 + 24\n</think>\n\n72"),
        ("<think>a\n</think><think>\nb</think>72\n", ["\n", "|"], "<think>a\n</think><think>\nb</think>72"),
        ("72\n<think>a</think>71", ["\n"], "72"),
        ("<think>a\nb", ["\n"], "<think>a\nb"),
        ("72", ["\n"], "72"),
        ("72\n", [], "72\n"),
    ],
)
def test_a_stop_string_ends_the_answer_and_not_the_thought_before_it(text, stops, kept):
    assert before_stop(text, stops) == kept


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [("a<think>\n", "<think>\n"), ("<think>b", ""), ("<think>a</think><think>", "<think>"), ("a", ""), ("", "")],
)
def test_the_end_of_a_prompt_may_open_a_thought(prompt, opened):
    assert opened_thought(prompt) == opened


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("The pie bakes at 180 degrees.", "180 degrees", True),
        ("The pie bakes at 1800 degrees.", "180 degrees", False),
        ("Minced  Beef!", "minced beef", True),
        ("beef, minced", "minced beef", False),
        ("so 12 and then 1,072.", "work\n#### 1072", False),
        ("10 + 2 = 12, so 12 + 1,060 = 1,072.", "work\n#### 1072", True),
        ("48 / 2 = 24 clips in May.\n- 24 + 48 = 72 clips", "work\n#### 72", True),
        ("1. The 16 eggs: 16 - 3 - 4 = 9\n2. 9 eggs x 2 = $18", "work\n#### 18", True),
        ("Of 5 and 9, the answer is **72**. Check: 8 * 9 = 72.", "work\n#### 72", True),
        ("5, 9 \\boxed{\\$72}", "work\n#### 72", True),
        ("48 + 24 = 72 #### 71", "work\n#### 72", False),
        ("#### 71 #### 72", "work\n#### 72", False),
        ("The answer is 72, or 73.", "work\n#### 72", False),
        ("1 = 2 = 72", "work\n#### 72", False),
        ("-72", "work\n#### 72", False),
        ("#### 1072.00", "work\n#### 1,072", True),
        ("1072 or 5", "work\n#### 1072", False),
        ("no number", "#### 4", False),
        ("#### 72 (6 dozens, 5 left)", "#### 72", True),
        ("#### 72\n\nThat took 3 steps.", "#### 72", True),
        ("\\boxed{72} apples, as 6 * 12 = 72 and 5 are left", "#### 72", True),
        ("<answer>72</answer> I am 95 % sure.", "#### 72", True),
        ("It may be 5. \\boxed{72}", "So \\boxed{72}.", True),
        ("\\boxed{\\frac{3}{4}}", "It is $\\boxed{\\frac{3}{4}}$.", True),
        ("#### 48 + 24 = 72", "#### 72", True),
        ("#### 72, 73", "#### 72", False),
        ("#### 72 or 73", "#### 72", False),
        ("#### 72 apples or 73 apples", "#### 72", False),
        ("#### 72\n73\n74", "#### 72", False),
        ("\\boxed{72, 73}", "#### 72", False),
        ("\\boxed{71} \\boxed{72}", "#### 72", False),
        ("<answer>71</answer><answer>72</answer>", "#### 72", False),
        ("<think>71 or 72</think> 72", "#### 72", True),
        ("71, 73 </think> 72", "#### 72", True),
        ("<think>72 is it, so 72", "#### 72", False),
        ("<think>72</think> 71", "#### 72", False),
        ("<|begin_of_thought|>Rome?<|end_of_thought|><|begin_of_solution|>Paris<|end_of_solution|>", "Paris", True),
        ("It may be Rome. <answer>Paris</answer>", "Paris", True),
        ("<think>Paris</think> Rome", "Paris", False),
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


def test_an_answer_to_a_set_of_numbers_is_the_number_that_it_commits_to():
    numbers = Values([str(i) for i in range(100)])
    assert is_right("It takes 5 + 2 = 7 days.", ["7"], values=numbers)
    assert not is_right("It takes 5 + 2 = 7 days.", ["5"], values=numbers)
    assert not is_right("-7", ["7"], values=numbers)
    assert not Values(["7", "seven"]).are_numbers


def test_a_list_of_whole_values_is_a_guess_and_a_place_with_its_country_is_none():
    many = Values([f"town {i}" for i in range(100)])
    assert is_right("Town 5, town 6, town 7", ["town 5"], values=many)
    assert not is_right("Town 4; town 5\nTown 6 or the town 7.", ["town 5"], values=many)


def test_what_is_graded_is_the_answer_after_its_thought_wherever_it_is_graded():
    said = "<think>Not 71, so 72.</think> <answer>72</answer>"
    assert equals_one(said, ["72"]) and names_one(said, ["72"]) and not names_one(said, ["71"])
    rubric = Rubric(right="72", wrong=("71",), is_brief=True)
    assert rubric.is_right(said) and not rubric.is_right("<think>72</think> 71")
    assert Rubric(right="72", is_whole=True).is_right("<think>why</think>\n72")
    brief = "<think>" + "a long thought " * 20 + "</think>72"
    assert rubric.parts(brief) == rubric.parts("72")
    for name in ("exact", "numeric"):
        assert REWARDS[name].score(Sampled(text=said, right="72"), REWARDS[name].settings()) == 1.0
        assert REWARDS[name].score(Sampled(text="<think>72</think>71", right="72"), REWARDS[name].settings()) == 0.0


def test_what_was_asked_is_no_answer():
    assert not is_right("Is it red or blue?", ["red"], asked=["Is it red or blue?"])
    assert is_right("Is it red or blue? Red.", ["red"], asked=["Is it red or blue?"])


def test_a_rubric_without_a_right_value_is_refused():
    with pytest.raises(RecipeError, match="no word"):
        Rubric(right=" ")


# Oracles


@cache  # 1.2 s for the kitchen, asked for eleven times
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


def listed(rows: list[dict], number: int, place: int, form: str) -> str:
    """Five values in a list, the right one at a place and four that are wrong here around it."""
    right, rest = final(rows[number]["answer"]), [*rows[number + 1 :], *rows[:number]]
    wrong = dict.fromkeys(final(row["answer"]) for row in rest if not words_of(right) & words_of(row["answer"]))
    values = list(wrong)[:4]
    return form.format(*values[:place], right, *values[place:])


LISTS = (
    "{}, {}, {}, {}, {}",
    "{} or {} or {} or {} or {}.",
    "{}\n{}\n{}\n{}\n{}",
    "- {}\n- {}\n- {}\n- {}\n- {}",
    "1. {}\n2. {}\n3. {}\n4. {}\n5. {}",
    "{}/{}/{}/{}/{}",
    "{} = {} = {} = {} = {}",
    "{}; {}; {}; {} and {}",
)
SENTENCES = (
    "It may be {}. It may be {}. It may be {}. It may be {}. It may be {}.",
    "The answer is {}. The answer is {}. The answer is {}. The answer is {}. The answer is {}.",
    "#### {}\n#### {}\n#### {}\n#### {}\n#### {}",
    "The answer is {}, or {}, or perhaps {}, {} or {}.",
)


@pytest.mark.data
@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("name", ["triviaqa_sm_sub", "gsm8k_test", "bigbench_operators", "kitchen"])
def test_no_reward_is_paid_for_a_list_with_the_right_value_at_any_place(name, place):
    rows = reward_rows(name)[:40]
    asks_for_numbers = name in ("gsm8k_test", "bigbench_operators")
    rewards = {"right_answer": RightAnswer(reward_rows(name)).rewards, "exact": reward_of("exact")}
    if asks_for_numbers:
        rewards["numeric"] = reward_of("numeric")
    for form in (*LISTS, *SENTENCES) if asks_for_numbers else (LISTS[:4] + LISTS[5:6] + LISTS[7:]):
        said = [listed(rows, number, place, form) for number in range(len(rows))]
        for how, reward in rewards.items():
            assert paid(rows, reward, said) == 0, (how, form)


def reward_of(name: str):
    part = REWARDS[name]
    return part_rewards(name, part, part.settings())


def paid(rows: list[dict], reward, said: list[str]) -> float:
    columns = {key + "s" * (key == "prompt"): [row[key] for row in rows] for key in rows[0]}
    return sum(reward(completions=[[{"role": "assistant", "content": text}] for text in said], **columns)) / len(rows)


@pytest.mark.data
def test_the_worked_answers_of_gsm8k_commit_to_their_numbers():
    answers = [row["answer"] for row in read_rows("data://sft/gsm8k_train.jsonl.gz")][:ROWS]
    assert all(is_right(answer, [answer]) for answer in answers)
    bare = [re.sub(r"<<.*?>>", "", answer.partition("####")[0]) for answer in answers]
    said = list(map(final_number, bare))
    right = [one is not None and is_right(str(one), [answer]) for one, answer in zip(said, answers, strict=True)]
    assert sum(right) > 0.75 * ROWS and sum(right) > 0.98 * sum(one is not None for one in said)


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
    assert {how: paid(rows, reward, said) for how, said in answers.items()} == dict.fromkeys(answers, 0.0) | {
        "right": 1.0,
        "in full": 1.0,
    }


def test_rows_without_an_answer_have_no_verifiable_reward():
    prompt = [{"role": "user", "content": "Which colour?"}]
    rows = [{"prompt": prompt, "answer": answer, "rivals": []} for answer in ("red", "", " …", "#### 1 or 2")]
    columns = {"prompts": [prompt] * 4, "answer": [row["answer"] for row in rows], "rivals": [[]] * 4}
    said = [[{"role": "assistant", "content": "red"}]] * 4
    assert RightAnswer(rows).rewards(completions=said, **columns) == [1.0, None, None, None]


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
