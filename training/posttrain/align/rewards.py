"""Rewards of sampled answers: the reward model's score, and whether an answer contains the right one."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from typing import Any

from training.job import DataError
from training.posttrain.chat import Message
from training.posttrain.preferences.pairs import Pairs
from training.posttrain.reward.reward import Judge, pair_scores, token_scores

SCALE_PAIRS = 256  # pairs whose scores give the learned reward its unit


class LearnedReward:
    """The reward model's score in deviations from its mean, both taken from the training pairs' answers."""

    def __init__(self, judge: Judge, pairs: Pairs) -> None:
        self._judge = judge
        known = [score for both in pair_scores(judge.model, pairs.train[:SCALE_PAIRS], judge.chat) for score in both]
        self.mean = statistics.fmean(known)
        self.deviation = statistics.pstdev(known)
        if self.deviation == 0:
            raise DataError("the reward model gives every answer the same score; there is nothing to learn from it")

    @property
    def rewards(self) -> Callable[..., list[float | None]]:
        """The function that TRL calls; its name becomes the metric's."""

        def learned_reward(
            prompts: list[list[Message]], completion_ids: list[list[int]], **_: Any
        ) -> list[float | None]:
            chat = self._judge.chat
            # An answer that was cut off is judged as if it ended there: the model never scored an open end.
            answers = [
                [*(token for token in answer if token not in chat.control_ids), chat.end_id]
                for answer in completion_ids
            ]
            rows = [prompt + answer for prompt, answer in zip(chat.encode_prompts(prompts), answers, strict=True)]
            return [(score - self.mean) / self.deviation for score in token_scores(self._judge.model, rows, chat)]

        return learned_reward


def right_answer(completions: list[list[Message]], answer: list[str], **_: Any) -> list[float | None]:
    """1 where the completion contains the row's answer, 0 where not, None where the row has none."""
    return [
        None if not wanted else float(contains_answer(completion[-1]["content"], wanted))
        for completion, wanted in zip(completions, answer, strict=True)
    ]


def contains_answer(text: str, answer: str) -> bool:
    """Whether the answer's words stand in the text, in order and side by side; case and punctuation do not count.

    A worked answer that ends in `#### 72`, as GSM8K's do, asks for the number alone, as the text's last number.
    """
    if "####" in answer:
        numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
        return bool(numbers) and numbers[-1] == answer.rpartition("####")[2].strip().replace(",", "")
    said, wanted = (re.findall(r"\w+", part.lower()) for part in (text, answer))
    return bool(wanted) and any(said[i : i + len(wanted)] == wanted for i in range(len(said) - len(wanted) + 1))
