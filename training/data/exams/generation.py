"""What a task of lm-eval may ask of the generation of its answers: number, drawing, length and stop strings."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from training.contract.records import RecipeError

# lm-eval's names of the longest answer in tokens, the first before the others.
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
DRAWS = ("top_p", "top_k", "min_p", "seed")  # of sampled answers; without effect on greedy ones
NEUTRAL = {"top_k": (None, 0, -1), "min_p": (None, 0)}  # values by which no token is left out
CHOOSES = ("take_first", "take_first_k", "majority_vote", "custom")  # filters that make fewer answers of several
MAJORITY = re.compile(r"maj@(\d+)")  # the name of a filter that takes the commonest of so many answers
PASS_AT = re.compile(r"pass@(\d+)")  # the name of a metric: whether one of so many programs is right
WRITTEN = "generate_until"


def longest_answer(asked: Mapping[str, Any], default: int) -> int:
    """Return how many tokens an answer has at most by a task's `generation_kwargs`."""
    return int(next((asked[name] for name in LENGTHS if asked.get(name) is not None), default))


def check_generation(suite: str, config: Mapping[str, Any]) -> None:
    """Raise RecipeError if a task's settings of generation are not followed here, or would leave every answer empty.

    As in lm-eval, `do_sample: false` or a temperature of 0 asks for the likeliest tokens, and so does a task without
    both.
    """
    asked: Any = {} if config.get("generation_kwargs") is None else config["generation_kwargs"]
    if not isinstance(asked, Mapping):
        raise RecipeError(f"{suite}: generation_kwargs={asked!r}: expected a mapping")
    drawn, heat = asked.get("do_sample"), asked.get("temperature") or 0.0
    if not (drawn is None or isinstance(drawn, bool)) or type(heat) not in (int, float) or not 0 <= heat < math.inf:
        raise RecipeError(
            f"{suite}: generation_kwargs: do_sample={drawn!r}, temperature={heat!r}; true or false, and a number from 0"
            " on are right"
        )
    if heat and drawn is not False:
        _check_draw(suite, asked)
    known = {"until", "do_sample", "temperature", *LENGTHS, *DRAWS}
    for name, value in asked.items():
        if name not in known and (name, value) != ("num_beams", 1):
            raise RecipeError(f"{suite}: generation_kwargs.{name}={value!r} is not done here; leave it out")
    if wrong := [name for name in LENGTHS if not _is_length(asked.get(name))]:
        raise RecipeError(
            f"{suite}: generation_kwargs.{wrong[0]}={asked[wrong[0]]!r}; a number of tokens from 1 on is right"
        )
    if not _are_stops(asked.get("until")):
        raise RecipeError(
            f"{suite}: generation_kwargs.until={asked['until']!r}; texts of at least one character are right, at which"
            " answers end, or [] for none"
        )


def check_repeats(suite: str, config: Mapping[str, Any], *, metric: str | None = None) -> None:
    """Raise RecipeError if the answers that a whole task asks of an item are not all drawn, or not all scored.

    `metric` is the suite's, of which `pass@k` needs k answers.
    """
    number = 1 if config.get("repeats") is None else config["repeats"]
    if type(number) is not int or number < 1:
        raise RecipeError(f"{suite}: repeats={number!r}; a number of answers to each item from 1 on is right")
    for k in PASS_AT.findall((metric or "").partition(",")[0]):
        if not 1 <= int(k) <= number:
            raise RecipeError(f"{suite}: metric=pass@{k} needs {k} answers to each item, repeats={number}")
    if number > 1 and config.get("output_type", WRITTEN) != WRITTEN:
        raise RecipeError(f"{suite}: repeats={number} has an effect on written answers only; set lm_eval.repeats to 1")
    asked = config.get("generation_kwargs") or {}
    if number > 1 and (not asked.get("temperature") or asked.get("do_sample") is False):
        raise RecipeError(
            f"{suite}: repeats={number}: answers of the likeliest tokens would be equal; set do_sample and temperature"
            " in lm_eval.generation_kwargs, or lm_eval.repeats to 1"
        )
    _check_filters(suite, config, number)


def _check_filters(suite: str, config: Mapping[str, Any], number: int) -> None:
    """Raise RecipeError if a task's filters, where they have lm-eval's form, read other answers than there are."""
    listed = config.get("filter_list")
    filters = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    firsts = []
    for one in filters:
        functions = [each for each in one.get("filter") or () if isinstance(each, Mapping)]
        wanted: list[Any] = [each.get("k") for each in functions if each.get("function") == "take_first_k"]
        if more := [k for k in wanted if type(k) is not int or k > number]:
            raise RecipeError(f"{suite}: the filter {one.get('name')!r} reads {more[0]} answers; repeats={number}")
        named, reads = MAJORITY.fullmatch(str(one.get("name"))), min([number, *wanted])
        if named and int(named[1]) != reads:
            raise RecipeError(
                f"{suite}: the filter {one.get('name')!r} would vote among {reads} answers; set lm_eval.repeats, or"
                " lm_eval.filter_list without it"
            )
        names = [each.get("function") for each in functions]
        firsts = [*firsts, next((name for name in names if name in CHOOSES), "take_first")]
    if number > 1 and not config.get("unsafe_code") and set(firsts) <= {"take_first"}:
        raise RecipeError(
            f"{suite}: repeats={number}: the task's filters read the first answer alone; name one with majority_vote in"
            " lm_eval.filter_list, or set lm_eval.repeats to 1"
        )


def _check_draw(suite: str, asked: Mapping[str, Any]) -> None:
    top_p, base = asked.get("top_p"), asked.get("seed")
    if top_p is not None and (type(top_p) not in (int, float) or not 0 < top_p <= 1):
        raise RecipeError(f"{suite}: generation_kwargs.top_p={top_p!r}; a number above 0, of at most 1, is right")
    if base is not None and (type(base) is not int or base < 0):
        raise RecipeError(f"{suite}: generation_kwargs.seed={base!r}; a whole number from 0 on is right")
    for name, neutral in NEUTRAL.items():
        if asked.get(name) not in neutral:
            raise RecipeError(f"{suite}: generation_kwargs.{name}={asked[name]!r} is not done here; top_p is")


def _is_length(value: Any) -> bool:
    return value is None or (type(value) is int and value > 0)


def _are_stops(value: Any) -> bool:
    texts: Sequence[Any] = () if value is None else [value] if isinstance(value, str) else value
    return isinstance(texts, Sequence) and all(isinstance(text, str) and text for text in texts)
