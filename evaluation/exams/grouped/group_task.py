"""A group of lm-eval as one task: each item is asked and scored by the task of the group that its row names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.instance import Instance

from evaluation.exams.items import ExamItem
from evaluation.exams.tasks import LmEvalTask, make_task
from training.contract.records import RecipeError
from training.data.exams.grouped.task_groups import check_group, members, owners
from training.data.exams.settings import BenchmarkRecipe

OWNER = "task_of_the_group"  # a field of each document


def task_of(benchmark: BenchmarkRecipe, items: Sequence[ExamItem], settings: Mapping[str, Any]) -> LmEvalTask:
    """Return the suite as a task of lm-eval, or as a group of tasks that is asked like one.

    Raise RecipeError as `make_task` does, if rows name no task, and if a task asks of other rows than are its own.
    """
    if benchmark.outside_task() is not None or not members(benchmark.task):
        return make_task(benchmark, items, settings)
    check_group(benchmark)
    named = owners(benchmark, [item.row for item in items])
    pairs = list(zip(items, named, strict=True))
    of = {name: [item for item, owner in pairs if owner == name] for name in sorted(set(named))}
    group = benchmark.task
    tasks = {
        name: make_task(replace(benchmark, task=name), some, settings, of_group=group) for name, some in of.items()
    }
    documents: dict[str, Any] = {name: iter(list(task.test_docs())) for name, task in tasks.items()}
    if wrong := [name for name, task in tasks.items() if len(task.test_docs()) != len(of[name])]:
        raise RecipeError(f"{benchmark.name}: the task {wrong[0]} makes no question of some of its rows")
    return GroupTask(tasks, [{**next(documents[name]), OWNER: name} for name in named], [item.id for item in items])


class GroupTask(LmEvalTask):
    """Tasks of lm-eval that are asked as one. Kind of request, metrics and names of filters are the same in all."""

    def __init__(
        self, tasks: Mapping[str, LmEvalTask], documents: Sequence[dict[str, Any]], items: Sequence[str]
    ) -> None:
        self.__dict__ |= vars(next(iter(tasks.values())))
        self._tasks, self._documents, self._items = tasks, documents, items
        self._instances = None

    def has_test_docs(self) -> bool:
        """Whether there are documents to ask."""
        return True

    def test_docs(self) -> Any:
        """Return the documents of all tasks, in the order of the items."""
        return self._documents

    def fewshot_context(self, doc: dict[str, Any], *given: Any, **named: Any) -> Any:
        """Return the prompt of one item, by its own task."""
        return self._of(doc).fewshot_context(doc, *given, **named)

    def doc_to_text(self, doc: Any, doc_to_text: Any = None) -> Any:
        """Return the question of one item, by its own task."""
        return self._of(doc).doc_to_text(doc, doc_to_text)

    def doc_to_target(self, doc: Any, doc_to_target: Any = None) -> Any:
        """Return the right answer to one item, by its own task."""
        return self._of(doc).doc_to_target(doc, doc_to_target)

    def doc_to_choice(self, doc: Any, doc_to_choice: Any = None) -> Any:
        """Return the choices of one item, by its own task."""
        return self._of(doc).doc_to_choice(doc, doc_to_choice)

    def doc_to_prefix(self, doc: Any) -> Any:
        """Return how the answer to one item begins, by its own task."""
        return self._of(doc).doc_to_prefix(doc)

    def construct_requests(self, doc: dict[str, Any], ctx: Any, **named: Any) -> Any:
        """Return what is asked about one item, by its own task. Its number is that in the group."""
        task = self._of(doc)
        task._items = self._items
        return task.construct_requests(doc, ctx, **named)

    def process_results(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
        """Return the metrics of one item, by its own task."""
        return self._of(doc).process_results(doc, results)

    def apply_filters(self) -> list[Instance] | None:
        """Filter the answers to each task's items as this task does."""
        for name, task in self._tasks.items():
            task._instances = [one for one in self._instances or [] if one.doc[OWNER] == name]
            task.apply_filters()
        return self._instances

    def fallbacks(self, name: str) -> list[Any]:
        """Return what the filters of that name give where they find nothing in an answer."""
        return [one for task in self._tasks.values() for one in task.fallbacks(name)]

    def _of(self, doc: Mapping[str, Any]) -> LmEvalTask:
        return self._tasks[doc[OWNER]]
