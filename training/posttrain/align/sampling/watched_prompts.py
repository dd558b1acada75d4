"""The held-out prompts that a training on rewards is watched by, and the reward of their answers that is believed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.contract.job import DataError
from training.generate.turns import Chat, Message
from training.posttrain.align.prompts import as_text, needing_right, reasons_of
from training.posttrain.align.sampling.rewards import RightAnswer, part_rewards
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.align.watch_settings import LEAST_PROMPTS, RUBRIC
from training.posttrain.preferences.pairs import Pairs
from training.posttrain.prompts.judged import read_prompts
from training.posttrain.rewards import REWARDS
from training.posttrain.rows.forms import Row, prompt_of
from training.posttrain.scoring import RIGHT_ANSWER

RIGHT = "a right `answer`"
NEEDED = {RUBRIC: "a `reward_rubric`", "format": "nothing", "length": "nothing"}


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedPrompts:
    """Prompts as rows, each with its `rubric` or right `answer`, and the name of the true reward of their answers."""

    rows: tuple[Row, ...]
    truth: str

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The columns that rewards read beside the answers."""
        named = {"prompts": "prompt", "answer": "answer", "rivals": "rivals"}
        return {column: [row[name] for row in self.rows] for column, name in named.items()}

    def true_rewards(self, answers: Sequence[str]) -> list[float | None]:
        """Return the true reward of an answer to each prompt; None where nobody knows it."""
        if self.truth == RUBRIC:
            given = zip(self.rows, answers, strict=True)
            return [None if row["rubric"] is None else row["rubric"].reward(said) for row, said in given]
        parts = {} if self.truth == RIGHT_ANSWER else {self.truth: REWARDS[self.truth]}
        functions = [part_rewards(name, part, part.settings()) for name, part in parts.items()]
        (function,) = functions or [RightAnswer(self.rows).rewards]
        return function(completions=as_completions(answers), **self.columns)


def as_completions(answers: Sequence[str]) -> list[list[Message]]:
    """Return answers in the form in which rewards read them."""
    return [[{"role": "assistant", "content": answer}] for answer in answers]


def watched_prompts(
    recipe: AlignRecipe, chat: Chat, pairs: Pairs, data: Mapping[str, Any], trained: Sequence[Row]
) -> WatchedPrompts:
    """Return the sample of prompts that the recipe watches. `trained` are the prompts that answers are trained on.

    Left out are prompts that are trained on, that are too long, or whose rewards nobody knows. Raise DataError if
    fewer than LEAST_PROMPTS remain. `data` are the settings with which a file of prompts is read.
    """
    watch, known = recipe.watch, {as_text(row["prompt"]) for row in trained}
    asked = [
        {"prompt": row["messages"], "answer": row["answer"], "rivals": [], "rubric": row["rubric"]}
        for row in read_prompts(watch.prompts, data)
    ] or [{**prompt_of(row), "rubric": None} for row in pairs.held_out_rows]
    different = tuple({as_text(row["prompt"]): row for row in asked}.values())
    worth = WatchedPrompts(rows=different, truth=watch.truth).true_rewards([""] * len(different))
    trained_on_right = needing_right(recipe)
    judged = [
        row
        for row, one in zip(different, worth, strict=True)
        if one is not None and (row["answer"] or not trained_on_right)
    ]
    reasons = reasons_of(judged, recipe, chat, known)
    usable = [row for row, why in zip(judged, reasons, strict=True) if not why]
    if len(usable) < LEAST_PROMPTS:
        needed = [NEEDED.get(watch.truth, RIGHT), *([RIGHT] if trained_on_right else [])]
        raise DataError(
            f"align.watch: {len(usable)} prompts can be watched, and at least {LEAST_PROMPTS} are needed:"
            f" {watch.prompts or 'the held-out preferences'} has {len(different)} different ones, of which"
            f" {len(judged)} have what the true and the trained reward need ({' and '.join(dict.fromkeys(needed))});"
            f" {len(judged) - len(usable)} of these are trained on, or too long; name others in align.watch.prompts"
        )
    chosen = random.Random(watch.seed).sample(usable, min(watch.items, len(usable)))
    return WatchedPrompts(rows=tuple(chosen), truth=watch.truth)
