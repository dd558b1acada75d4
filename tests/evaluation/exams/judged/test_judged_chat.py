"""The stage `judge_chat` from job to artifact: tiny models answer, and a server or a model judges."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from evaluation.exams.judged import judges
from evaluation.exams.judged.chat import CALLS_FILE
from evaluation.exams.judged.judge_folder import judge_folder
from evaluation.stages import STAGES, _judged_chat
from tests.evaluation.conftest import commit, make_job, make_model
from tests.evaluation.exams.judged.judge_server import Server, serving
from training.contract.artifact import find
from training.contract.job import DataError, InputArtifact
from training.contract.records import RecipeError, read_record
from training.contract.running.runner import run_job
from training.data.documents import read_lines, write_lines
from training.recipe.settings.judged_chat import JUDGE_PATH, JudgedChatRecipe

QUESTIONS = [
    {"question_id": 1, "category": "writing", "turns": ["Which colour?", "And now?"]},
    {"question_id": 2, "category": "math", "turns": ["How hot?", "Why?"], "reference": ["180", "It bakes."]},
    {"question_id": 3, "category": "cooking", "turns": ["How long? [[10]]"]},
]
VERDICTS = 5 * 2 + 5 * 2  # a rating of each turn of both models, and each pair in two orders


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("PEDIGREE_FETCH_ALLOW", "127.0.0.1")
    monkeypatch.setattr(judges, "WAITS_SECONDS", (0.0, 0.0))
    with serving() as one:
        yield one


@pytest.fixture(scope="module")
def candidates(tmp_path_factory, chat_folder) -> tuple[InputArtifact, ...]:
    root = tmp_path_factory.mktemp("candidates")
    shutil.copytree(chat_folder, root / "sft_model" / "model")
    make_model(root / "aligned_model" / "model", template=True, seed=5)
    return tuple(commit(root / asset, asset) for asset in ("sft_model", "aligned_model"))


def job(folder: Path, candidates: tuple, judge: dict, **more: object):
    write_lines(folder / "questions.jsonl", QUESTIONS)
    asked = {"questions": str(folder / "questions.jsonl"), "max_new_tokens": 4, "batch_size": 4, **judge}
    return make_job("judge_chat", "judged_chat", folder / "judged", {"judged_chat": asked, **more}, candidates)


def test_a_server_rates_and_compares_and_what_is_no_verdict_is_counted(server, candidates, tmp_path, monkeypatch):
    monkeypatch.setenv(judges.KEY_VARIABLE, "sk-judge-0123456789")
    server.fails_first = 1
    assert run_job(job(tmp_path, candidates, server.judge), STAGES) == 0
    made = tmp_path / "judged"
    told, record = json.loads((made / "judged.json").read_text()), find(made).record
    assert len(server.asked) == VERDICTS and {body["temperature"] for body in server.asked} == {0}
    assert set(server.keys) == {"Bearer sk-judge-0123456789"}
    assert told["ratings"]["sft"]["mean"] == 6.0 and told["ratings"]["sft"]["without_verdict"] == 2  # second turns
    assert set(told["prose"]) == {"I find it good."} and sum(told["not_said"].values()) == 4  # both turns of question 2
    compared = told["pairs"]
    assert (compared["won"], compared["lost"], compared["tied"], compared["without_verdict"]) == (0, 0, 3, 2)
    assert compared["agreement"]["share"] == 0.0 and compared["first_preferred"]["share"] == 1.0
    assert record["notes"]["judge"]["served"] == ["judge-1, fp"] and record["notes"]["judge"]["model"] == "judge"
    assert len(record["notes"]["judge"]["prompts_sha256"]) == 64 and record["metrics"]["win_rate"] == 0.5
    assert record["metrics"]["without_verdict"] == 8.0 == told["without_verdict"]
    rows = list(read_lines(made / "judgements.jsonl.zst"))
    assert len(rows) == VERDICTS and "[[10]]" not in "".join(row["prompt"] for row in rows)
    answers = list(read_lines(made / "answers.jsonl.zst"))
    assert [len(row["answers"]) for row in answers] == [2, 2, 1] * 2
    assert {row["category"]: row["temperature"] for row in answers} == {"writing": 0.7, "math": 0.0, "cooking": 0.7}
    assert not any("sk-judge" in path.read_text("utf-8", "replace") for path in made.rglob("*") if path.is_file())


def test_a_job_that_was_cut_short_asks_no_answered_call_again_and_makes_the_same(server, candidates, tmp_path):
    whole, cut = (job(tmp_path / name, candidates, server.judge) for name in ("whole", "cut"))
    assert run_job(whole, STAGES) == 0 and len(server.asked) == VERDICTS
    server.asked.clear()
    server.refuses_from = 8
    with pytest.raises(DataError, match=r"answered HTTP 401: .*the key has expired.*the next run goes on from there"):
        run_job(cut, STAGES)
    assert len(server.asked) == 8
    (ledger,) = (tmp_path / "cut").rglob(CALLS_FILE)
    with open(ledger, "ab") as stream:
        stream.write(b'["cut", {"text": "[[1')  # a line that a kill has cut
    before, server.refuses_from = [body["messages"] for body in server.asked], None
    server.asked.clear()
    assert run_job(cut, STAGES) == 0
    again = [body["messages"] for body in server.asked]
    assert len(before) + len(again) == VERDICTS and not any(messages in before for messages in again)
    assert find(tmp_path / "cut" / "judged").digest == find(tmp_path / "whole" / "judged").digest


def test_a_judge_from_a_folder_is_known_by_its_digest_and_its_prose_is_no_number(candidates, tmp_path, capsys):
    judge = make_model(tmp_path / "judge", template=True, seed=9)
    config = json.loads((judge / "config.json").read_text())
    (judge / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    recipe = read_record(
        JudgedChatRecipe, {"questions": str(tmp_path / "questions.jsonl"), "model": str(judge)}, where="judged_chat"
    )
    write_lines(tmp_path / "questions.jsonl", QUESTIONS)
    asked = _judged_chat(type("R", (), {"judged_chat": recipe})(), "")
    assert asked[JUDGE_PATH] == str(judge) and str(judge) not in str(asked["judged_chat"])
    given = {"model": asked["judged_chat"].model, "judge_max_new_tokens": 3}
    assert run_job(job(tmp_path, candidates, given, **{JUDGE_PATH: str(judge)}), STAGES) == 0
    told = json.loads((tmp_path / "judged" / "judged.json").read_text())
    assert told["judge"]["digest"] == asked["judged_chat"].model and told["verdicts"] == 0
    assert told["without_verdict"] == VERDICTS and told["not_said"] == {} and len(told["prose"]) > 1
    assert told["ratings"]["sft"]["mean"] is None and "sft_rating" not in find(tmp_path / "judged").record["metrics"]
    small = make_model(tmp_path / "small", template=True)  # of 128 positions
    found = judges.ModelJudge(small, read_record(JudgedChatRecipe, given | {"questions": "q.jsonl"}))(["x " * 200, "y"])
    assert [one.text is None for one in found] == [True, False] and "positions" in found[0].problem


@pytest.mark.parametrize(
    ("tells", "problem", "ends"),
    [
        ((302, {}, {"Location": "/elsewhere"}), "answered HTTP 302", True),  # a key would go there too
        ((404, {"error": "no such model"}, {}), "answered HTTP 404: .*no such model", True),
        ((200, {"answer": "[[7]]"}, {}), "answers in another form than OpenAI's: .*answer", True),
        ((200, {"choices": [{"message": {"content": None}}]}, {}), "a message without text", False),
        ((413, {"error": "too long"}, {}), "HTTP 413: .*too long", False),
    ],
)
def test_what_a_server_answers_instead_of_a_verdict_is_told(server, tells, problem, ends):
    server.tells = tells
    (said,) = judges.ServedJudge(read_record(JudgedChatRecipe, {"questions": "q.jsonl", **server.judge}))(["Which?"])
    assert said.text is None and said.ends_job is ends and re.search(problem, said.problem) and len(server.asked) == 1


def test_a_judge_on_this_machine_is_asked_only_where_whoever_runs_it_allows_that(server, monkeypatch):
    monkeypatch.delenv("PEDIGREE_FETCH_ALLOW")
    judge = judges.ServedJudge(read_record(JudgedChatRecipe, {"questions": "q.jsonl", **server.judge}))
    with pytest.raises(DataError, match=r"127\.0\.0\.1, no public address"):
        judge(["Which?"])
    assert not server.asked


@pytest.mark.parametrize(
    ("name", "problem"),
    [("nothing", r"^judged_chat\.model: .*config\.json"), ("base", r"^judged_chat\.model: .* has no chat template")],
)
def test_a_judge_that_cannot_be_asked_is_told_before_anything_is_trained(name, problem, base_folder, tmp_path):
    place = {"nothing": tmp_path / "nothing", "base": base_folder}[name]
    with pytest.raises(DataError, match=problem):
        judge_folder(str(place))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"question_id": 1, "turns": "How?"}, "turns .a list of texts."),
        ({"turns": ["How?"]}, "needs question_id"),
        ({"question_id": 1, "turns": []}, "needs question_id, turns"),
        ({"question_id": 1, "turns": ["How?", " "]}, "needs question_id, turns"),
        ({"question_id": 1, "turns": ["How?"], "reference": [3]}, "reference .a list of texts."),
    ],
)
def test_a_row_of_another_form_is_named(row, problem, tmp_path):
    from evaluation.exams.judged.questions import read_questions

    write_lines(tmp_path / "q.jsonl", [row])
    recipe = read_record(JudgedChatRecipe, {"questions": str(tmp_path / "q.jsonl"), "model": "m"})
    with pytest.raises(DataError, match=f"row 0: .*{problem}"):
        read_questions(recipe, {})


@pytest.mark.data
def test_the_real_questions_are_read_with_what_references_there_are():
    from evaluation.exams.judged.questions import read_questions

    recipe = JudgedChatRecipe(questions="data://benchmarks/mt_bench_questions.jsonl.gz", model="m")
    read = read_questions(recipe, {})
    assert len(read) == 40 and {len(one.turns) for one in read} == {2}
    assert len({one.category for one in read}) == 8 and sum(any(one.reference) for one in read) == 19


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"questions": "q.jsonl"}, "the judge is named by nothing"),
        ({"questions": "q.jsonl", "model": "m", "endpoint": "http://h/v1"}, "named by model, endpoint;"),
        ({"questions": "q.jsonl", "endpoint": "http://h/v1"}, "give either model, or endpoint and endpoint_model"),
        ({"questions": "q.jsonl", "endpoint": "h/v1", "endpoint_model": "m"}, "must begin with http"),
        ({"model": "m"}, "judged_chat.model: without effect"),
        ({"questions": "q.jsonl", "model": "m", "batch_size": 0}, "batch_size=0; above 0"),
    ],
)
def test_a_judge_is_named_in_one_way(given, problem):
    with pytest.raises(RecipeError, match=problem):
        read_record(JudgedChatRecipe, given, where="judged_chat")
