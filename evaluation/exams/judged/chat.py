"""Stage `judge_chat`: the SFT and the aligned model answer questions in turns, and a judge rates and compares.

The files of the artifact:

- `judged.json`: the judge, ratings by model, turn and category, the win rate of the aligned model over the SFT model
  with agreement and biases of the judge (evaluation/exams/judged/summary.py), and why verdicts are missing;
- `answers.jsonl.zst`: every answer, and `judgements.jsonl.zst`: every call with what the judge said.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from evaluation.decision.answers import MODEL_FOLDER, models_among
from evaluation.exams.judged import prompts, verdicts
from evaluation.exams.judged.judges import AnsweredCalls, Call, ModelJudge, Said, ServedJudge, weights_in
from evaluation.exams.judged.questions import Question, read_questions
from evaluation.exams.judged.summary import metrics_of, pairs, ratings
from training.contract.artifact import write_json
from training.contract.identity import numerics
from training.contract.job import DataError, Job, Outcome, Work
from training.contract.model_files import model_digest
from training.contract.secrets import masked
from training.data.documents import write_lines
from training.data.exams.grading import given
from training.recipe.settings.judged_chat import JUDGE_PATH, JudgedChatRecipe

CALLS_FILE = "judged_chat.jsonl"
MOST_SHOWN = 20  # texts without a verdict that `judged.json` shows; all are in `judgements.jsonl.zst`
SHOWN_CHARACTERS = 200

Answers = dict[str, list[str]]  # the answers of a model to the first turns of each question, by the question's id


def run(job: Job, work: Work) -> Outcome:
    """Ask the models, then the judge, and write the files that the module's docstring lists."""
    recipe = job.settings_as(JudgedChatRecipe, "judged_chat")
    numerics.use_threads(job.run)
    numerics.note(job, work)
    questions = read_questions(recipe, job.settings)
    ledger = AnsweredCalls(work.scratch / CALLS_FILE)
    said: dict[str, Answers] = {}
    for name, item in models_among(job).items():
        work.progress.phase(f"asking the {name} model")
        folder = item.file(MODEL_FOLDER)
        said[name] = _answers(_Candidate(folder, item.digest, recipe), questions, ledger, work)
    calls = [*_to_rate(questions, said), *_to_compare(questions, said)]
    if not calls:
        raise DataError(f"{recipe.questions}: no model answered a question; all are longer than its positions")
    judge, identity = _judge(recipe, job.settings)
    work.progress.phase(f"asking the judge for {len(calls)} verdicts")
    asked = [{"judge": identity, "prompt": call["prompt"]} for call in calls]
    heard = ledger.answers(
        asked,
        lambda some: judge([str(call["prompt"]) for call in some]),
        at_once=recipe.batch_size,
        done=_told(work, len(calls)),
    )
    if all(one.text is None for one in heard):
        raise DataError(f"judged_chat: the judge said nothing to any of {len(calls)} prompts: {heard[0].problem}")
    rows = [_judged(call, one) for call, one in zip(calls, heard, strict=True)]
    summary = summarized(rows, said) | {"judge": identity | {"served": sorted({one.served for one in heard} - {""})}}
    write_json(work.path / "judged.json", summary)
    write_lines(work.path / "answers.jsonl.zst", _answer_rows(questions, said))
    write_lines(work.path / "judgements.jsonl.zst", rows)
    return Outcome(
        files=("judged.json", "answers.jsonl.zst", "judgements.jsonl.zst"),
        metrics=metrics_of(summary),
        notes={"judge": summary["judge"], "questions": len(questions)},
    )


def _told(work: Work, calls: int) -> Callable[[int], None]:
    return lambda number: work.progress.log(step=number, steps=calls)


def summarized(rows: Sequence[Mapping[str, Any]], said: Mapping[str, Answers]) -> dict[str, Any]:
    """Return ratings, the comparison of the two models, and what the judge said where it gave no verdict."""
    none = [row for row in rows if row["verdict"] is None]
    both = [row for row in rows if row["kind"] == "pair"]
    return {
        "ratings": ratings([row for row in rows if row["kind"] == "rating"]),
        "pairs": pairs(both, "aligned", "sft") if {"sft", "aligned"} <= said.keys() else {},
        "verdicts": len(rows) - len(none),
        "without_verdict": len(none),
        "not_said": dict(Counter(row["problem"] for row in none if row["said"] is None)),
        "prose": [masked(row["said"][-SHOWN_CHARACTERS:]) for row in none if row["said"] is not None][:MOST_SHOWN],
    }


# The models' answers.


class _Candidate:
    """A model that answers. It is in memory only once it is asked something that was not answered before."""

    def __init__(self, folder: Path, digest: str, recipe: JudgedChatRecipe) -> None:
        self._folder, self.digest, self.recipe = folder, digest, recipe

    @cached_property
    def _sampler(self) -> Any:
        from training.generate.sampler import Sampler

        return Sampler(self._folder, batch_size=self.recipe.batch_size)

    def __call__(self, calls: Sequence[Call]) -> list[Said]:
        """Return the answer to each conversation; nothing to one that leaves no room for an answer."""
        most = self.recipe.max_new_tokens
        encoded = self._sampler.encoder.conversations([call["messages"] for call in calls], is_prompt=True)
        room = self._sampler.max_length - most
        said = [Said(text=None, problem=f"longer than the {room} positions that an answer leaves") for _ in calls]
        fit = [place for place, tokens in enumerate(encoded) if len(tokens) <= room]
        for temperature in sorted({calls[i]["temperature"] for i in fit}):
            places = [i for i in fit if calls[i]["temperature"] == temperature]
            texts = self._sampler.answers(
                [encoded[i] for i in places],
                max_new_tokens=most,
                temperature=temperature,
                seeds=[calls[i]["seed"] for i in places],
            )
            for i, text in zip(places, texts, strict=True):
                said[i] = Said(text=text)
        return said


def _answers(candidate: _Candidate, questions: Sequence[Question], ledger: AnsweredCalls, work: Work) -> Answers:
    """Return a model's answers; a conversation ends before a turn that leaves no room for an answer."""
    answers: Answers = {one.id: [] for one in questions}
    for turn in range(max(len(one.turns) for one in questions)):
        open_ones = [one for one in questions if len(one.turns) > turn and len(answers[one.id]) == turn]
        calls = [_call(candidate, one, answers[one.id]) for one in open_ones]
        said = ledger.answers(calls, candidate, at_once=candidate.recipe.batch_size, done=_told(work, len(calls)))
        for question, one in zip(open_ones, said, strict=True):
            answers[question.id] += [] if one.text is None else [one.text]
    return answers


def _call(candidate: _Candidate, question: Question, before: Sequence[str]) -> Call:
    messages = []
    for asked, said in zip(question.turns, before, strict=False):
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": given(said)}]
    turn = len(before)
    drawn = hashlib.sha256(f"judged_chat/{candidate.recipe.seed}/{question.id}/{turn}".encode()).digest()
    return {
        "model": candidate.digest,
        "messages": [*messages, {"role": "user", "content": question.turns[turn]}],
        "temperature": question.temperature,
        "seed": int.from_bytes(drawn[:7]),
        "max_new_tokens": candidate.recipe.max_new_tokens,
    }


def _answer_rows(questions: Sequence[Question], said: Mapping[str, Answers]) -> Iterator[dict[str, Any]]:
    for model, answers in said.items():
        for one in questions:
            yield {
                "model": model,
                "question": one.id,
                "category": one.category,
                "temperature": one.temperature,
                "turns": list(one.turns),
                "answers": answers[one.id],
            }


# The judge's verdicts.


def _judge(recipe: JudgedChatRecipe, settings: Mapping[str, Any]) -> tuple[ModelJudge | ServedJudge, dict[str, Any]]:
    """Return the judge, and what says who it is and how it is asked."""
    how = {"temperature": 0, "max_new_tokens": recipe.judge_max_new_tokens, "prompts_sha256": prompts.rules_digest()}
    if recipe.endpoint:
        return ServedJudge(recipe), {"endpoint": masked(recipe.endpoint), "model": recipe.endpoint_model, **how}
    folder = Path(settings[JUDGE_PATH])
    if (digest := model_digest(folder)) != recipe.model:
        raise DataError(f"judged_chat.model: {folder} has changed since the job was written; run again")
    return ModelJudge(weights_in(folder), recipe), {"digest": digest, **how}


def _to_rate(questions: Sequence[Question], said: Mapping[str, Answers]) -> Iterator[dict[str, Any]]:
    for model, answers in said.items():
        for question in questions:
            for turn, shown in _turns(answers[question.id]):
                yield {
                    **_about(question, turn, "rating"),
                    "model": model,
                    "words": len(shown[-1].split()),
                    "prompt": prompts.to_rate(question.turns, shown, question.reference),
                }


def _to_compare(questions: Sequence[Question], said: Mapping[str, Answers]) -> Iterator[dict[str, Any]]:
    if len(said) < 2:
        return
    for question in questions:
        both = zip(_turns(said["aligned"][question.id]), _turns(said["sft"][question.id]), strict=False)
        for (turn, aligned), (_, sft) in both:  # up to the last turn that both answered
            for (first, a), (second, b) in (
                (("aligned", aligned), ("sft", sft)),
                (("sft", sft), ("aligned", aligned)),
            ):
                yield {
                    **_about(question, turn, "pair"),
                    "first": first,
                    "second": second,
                    "words": [len(a[-1].split()), len(b[-1].split())],
                    "prompt": prompts.to_compare(question.turns, a, b, question.reference),
                }


def _turns(answers: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield each turn's number with the answers up to it, as the judge is shown them: without their thoughts."""
    shown = [given(answer) for answer in answers]
    for turn in range(1, len(shown) + 1):
        yield turn, shown[:turn]


def _about(question: Question, turn: int, kind: str) -> dict[str, Any]:
    return {"kind": kind, "question": question.id, "category": question.category, "turn": turn}


def _judged(call: Mapping[str, Any], said: Said) -> dict[str, Any]:
    read = verdicts.rating if call["kind"] == "rating" else verdicts.preference
    verdict = None if said.text is None else read(said.text)
    return {**call, "said": said.text, "problem": said.problem, "verdict": verdict}
