"""Which choices of an item are right, and by what the likelihood of each is divided, as the item's task judges them."""

from __future__ import annotations

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from evaluation.exams.harness import HEADLINE
from training.contract.records import RecipeError
from training.data.exams.settings import BenchmarkRecipe
from training.pretrain.watch.divisors import DIVISORS

UNLIKELY = -1e9  # nats
_Pair = tuple[Instance, tuple[list[int], list[int]]]


def judged(task: ConfigurableTask, benchmark: BenchmarkRecipe, pairs: list[_Pair]) -> dict[str, Any]:
    """Return the requests of one item, and by what its answer is right. `pairs` has each request with its tokens."""
    metric, first = _metric(task, benchmark), pairs[0][0]
    is_choice = task.OUTPUT_TYPE == "multiple_choice"
    choices = task.doc_to_choice(first.doc) if is_choice else [first.args[-1]]
    if metric not in DIVISORS or len(choices) != len(pairs):
        raise RecipeError(
            f"{benchmark.name}: scored by {metric}, which cannot be watched; take it out of pretrain.watch.suites, or"
            f" set the suite's metric to one of {', '.join(DIVISORS)}"
        )
    right = [n for n in range(len(pairs)) if _accepts(task, first.doc, metric, n, len(pairs))]
    if not right:
        raise RecipeError(f"{benchmark.name}: its task accepts no answer of the item in row {first.doc_id}")
    context, continuation = pairs[right[0]][0].args
    moved = context[len(context.rstrip()) :]  # blanks, which lm-eval scores as the beginning of the continuation
    return {
        "requests": [tokens for _, tokens in pairs],
        "lengths": [DIVISORS[metric](choice) for choice in choices],
        "right": right,
        "bytes": len((moved + continuation).encode("utf-8")),
        "is_greedy": not is_choice,
    }


def _accepts(task: ConfigurableTask, document: Any, metric: str, likely: int, choices: int) -> bool:
    """Whether the task says that an answer is right in which one choice is likely and greedy, and no other is."""
    results = [(0.0, True) if n == likely else (UNLIKELY, False) for n in range(choices)]
    return task.process_results(document, results)[metric] == 1


def _metric(task: ConfigurableTask, benchmark: BenchmarkRecipe) -> str:
    if not benchmark.is_task:
        return HEADLINE[benchmark.kind]
    return (benchmark.metric or next(iter(task._metric_fn_list), "")).partition(",")[0]
