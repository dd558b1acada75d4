"""Reward functions as TRL calls them: the reward model's score, whether the answer is right, and the parts' scores."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from training.contract.job import DataError
from training.data.exams.grading import Values, can_be_given, is_right
from training.generate.turns import Message
from training.posttrain.preferences.pairs import Pairs
from training.posttrain.reward.reward import Judge, pair_scores, token_scores
from training.posttrain.rows.forms import Row
from training.posttrain.scoring import SCALE_PAIRS, Reward, Sampled


class LearnedReward:
    """The reward model's score, standardized by the mean and standard deviation of its scores on training answers."""

    def __init__(self, judge: Judge, pairs: Pairs) -> None:
        self._judge = judge
        known = [score for both in pair_scores(judge.model, pairs.train[:SCALE_PAIRS], judge.chat) for score in both]
        self.mean = statistics.fmean(known)
        self.deviation = statistics.pstdev(known)
        if self.deviation == 0:
            raise DataError("the reward model gives every answer the same score; there is nothing to learn from it")

    @property
    def rewards(self) -> Callable[..., list[float | None]]:
        """The reward function that TRL calls; TRL names the metric after it."""

        def learned_reward(
            prompts: list[list[Message]], completion_ids: list[list[int]], **_: Any
        ) -> list[float | None]:
            chat = self._judge.chat
            # A truncated answer is scored as if it ended there, because the reward model was trained on whole turns.
            answers = [
                [*(token for token in answer if token not in chat.control_ids), chat.end_id]
                for answer in completion_ids
            ]
            rows = [prompt + answer for prompt, answer in zip(chat.encode_prompts(prompts), answers, strict=True)]
            return [(score - self.mean) / self.deviation for score in token_scores(self._judge.model, rows, chat)]

        return learned_reward


class RightAnswer:
    """The verifiable reward: 1 for an answer that gives the row's right answer, 0 for any other.

    It is None for rows whose right answer nothing can equal, such as an empty one.
    """

    def __init__(self, prompts: Sequence[Row]) -> None:
        self._values = Values([row["answer"] for row in prompts if row["answer"]])

    @property
    def rewards(self) -> Callable[..., list[float | None]]:
        """The reward function that TRL calls; TRL names the metric after it."""

        def right_answer(
            prompts: list[list[Message]],
            completions: list[list[Message]],
            answer: list[str],
            rivals: list[list[str]],
            **_: Any,
        ) -> list[float | None]:
            rows = zip(prompts, completions, answer, rivals, strict=True)
            return [self._reward(prompt, said[-1]["content"], right, wrong) for prompt, said, right, wrong in rows]

        return right_answer

    def _reward(self, prompt: list[Message], said: str, answer: str, rivals: list[str]) -> float | None:
        if not can_be_given(answer):
            return None
        asked = [message["content"] for message in prompt]
        return float(is_right(said, [answer], rivals=rivals, asked=asked, values=self._values))


def part_rewards(name: str, reward: Reward, settings: Any) -> Callable[..., list[float | None]]:
    """Return a reward that is a part as the function that TRL calls; TRL names the metric after it."""

    def scored(
        prompts: list[list[Message]],
        completions: list[list[Message]],
        answer: list[str],
        rivals: list[list[str]],
        **_: Any,
    ) -> list[float | None]:
        return [
            reward.score(
                Sampled(text=said[-1]["content"], question=prompt[-1]["content"], right=right, rivals=tuple(wrong)),
                settings,
            )
            for prompt, said, right, wrong in zip(prompts, completions, answer, rivals, strict=True)
        ]

    scored.__name__ = name
    return scored
