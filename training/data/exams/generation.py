"""What a task of lm-eval may ask of the generation of its answers: the likeliest tokens, a length and stop strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from training.contract.records import RecipeError

# lm-eval's names of the longest answer in tokens, the first before the others.
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
DRAWS = ("top_p", "top_k", "min_p", "seed")  # of sampled answers; without effect on greedy ones


def longest_answer(asked: Mapping[str, Any], default: int) -> int:
    """Return how many tokens an answer has at most by a task's `generation_kwargs`."""
    return int(next((asked[name] for name in LENGTHS if asked.get(name) is not None), default))


def check_generation(suite: str, config: Mapping[str, Any]) -> None:
    """Raise RecipeError if a task's settings of generation are not followed here, or would leave every answer empty.

    Every item gets one answer, of the likeliest tokens. As in lm-eval, `do_sample: false` or a temperature of 0 asks
    for it, and without both it is asked for too.
    """
    if config.get("repeats") not in (None, 1):
        raise RecipeError(
            f"{suite}: repeats={config['repeats']}: each item is answered once, by the likeliest tokens; set"
            " lm_eval.repeats to 1"
        )
    asked: Any = {} if config.get("generation_kwargs") is None else config["generation_kwargs"]
    if not isinstance(asked, Mapping):
        raise RecipeError(f"{suite}: generation_kwargs={asked!r}: expected a mapping")
    drawn, heat = asked.get("do_sample"), asked.get("temperature") or 0.0
    if not (drawn is None or isinstance(drawn, bool)) or isinstance(heat, bool) or not isinstance(heat, (int, float)):
        raise RecipeError(
            f"{suite}: generation_kwargs: do_sample={drawn!r}, temperature={heat!r}; true or false, and a number are"
            " right"
        )
    if heat and drawn is not False:
        raise RecipeError(
            f"{suite}: generation_kwargs ask for answers that are sampled (do_sample={drawn}, temperature={heat});"
            " answers are of the likeliest tokens: set do_sample to false in lm_eval.generation_kwargs"
        )
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


def _is_length(value: Any) -> bool:
    return value is None or (type(value) is int and value > 0)


def _are_stops(value: Any) -> bool:
    texts: Sequence[Any] = () if value is None else [value] if isinstance(value, str) else value
    return isinstance(texts, Sequence) and all(isinstance(text, str) and text for text in texts)
