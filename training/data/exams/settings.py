"""The settings of a benchmark, in the recipe sections `decontaminate` and `evaluation`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from training.contract.parts.outside import OutsidePart, PartsOf, registered
from training.contract.records import RecipeError, Uri, all_of, check_above_zero
from training.contract.user_input.names import check_name
from training.data.exams.generation import check_generation
from training.data.exams.own_harness import KIND as HARNESSES
from training.data.exams.own_harness import ReadyHarness, outside_harness
from training.data.exams.task import KIND, outside_fields
from training.data.exams.task_names import check_task

# Beside the sections in a job's settings: the names of the suites that a harness from outside asks.
ASKED_BY_HARNESS = "asked_by_harness"
# Fields of lm-eval's TaskConfig that recipes cannot set: the suite decides its name, rows and examples, and code is
# not allowed.
DECIDED_HERE = frozenset(
    "task custom_dataset dataset_path dataset_name dataset_kwargs training_split validation_split test_split"
    " fewshot_split num_fewshot unsafe_code class".split()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkRecipe:
    """A set of exam items. `kind` decides how an item is read and, if no task of lm-eval is named, how it is scored.

    Items of multiple_choice have `question`, `choices` and `gold` (an index). Items of generate and chat have
    `question` and `answer` (exact match after normalization). The `*_field` settings name the columns of the file that
    hold them.
    """

    name: str
    uri: Uri
    kind: Literal["multiple_choice", "generate", "chat"]
    question_field: str = "question"
    choices_field: str = "choices"
    gold_field: str = "gold"
    choices_first: bool = False  # a choice and the question are one sentence, as WinoGrande's: it is looked for whole
    answer_field: str = "answer"
    passage_field: str | None = None  # None: the items have no passage
    id_field: str = "id"
    limit: int | None = None  # number of items to read; None: all
    max_new_tokens: int = 16  # of an answer that is scored as `kind` says, or by a harness that says no other number
    # lm-eval's name of a task that asks and scores the items, or a task from outside; None: `kind` decides
    task: str | None = None
    task_file: Uri | None = None  # or such a task as YAML, in lm-eval's form
    lm_eval: dict[str, Any] = field(default_factory=dict)  # fields of lm-eval's TaskConfig that replace the task's own
    num_fewshot: int | None = None  # examples in the prompt; None: as many as the task has
    fewshot_uri: Uri | None = None  # rows from which examples are drawn
    metric: str | None = None  # `metric` or `metric,filter` of lm-eval that scores; None: the task's first
    harness: str | None = None  # from outside, which asks and scores the items in place of lm-eval; None: lm-eval
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)  # of task or harness from outside: `from`, settings

    def __post_init__(self) -> None:
        all_of(
            lambda: check_name(self.name, "benchmark name"),
            lambda: check_above_zero(self, self.name, "limit"),
            self._check_choices,
            self._check_task,
            self._check_lm_eval,
        )

    def _check_choices(self) -> None:
        if self.choices_first and self.kind != "multiple_choice":
            raise RecipeError(f"{self.name}: choices_first has an effect for multiple_choice only, not for {self.kind}")

    def _check_task(self) -> None:
        if self.task and self.task_file:
            raise RecipeError(f"{self.name}: task={self.task!r} and task_file={self.task_file!r}; name one of them")
        self._parts.check_used([name for name in (self.task, self.harness) if name])
        _ = self.own_harness  # checks itself
        if self.outside_task() is not None:
            _ = outside_fields(self.task or "", self._parts)  # checks itself
        elif self.task:
            check_task(self.task, self.name)

    def _check_lm_eval(self) -> None:
        """Raise RecipeError for fields that have no effect, or that the suite decides."""
        of_tasks = ("task", "task_file", "lm_eval", "num_fewshot", "fewshot_uri", "metric")
        if self.harness and (idle := [name for name in of_tasks if getattr(self, name)]):
            raise RecipeError(f"{self.name}: {', '.join(idle)} without effect beside harness={self.harness!r}")
        idle = [name for name in ("num_fewshot", "fewshot_uri", "metric") if getattr(self, name)]
        if idle and not self.is_task:
            raise RecipeError(f"{self.name}: {', '.join(idle)} need a task, task_file or lm_eval to have an effect")
        if decided := sorted(DECIDED_HERE & self.lm_eval.keys()):
            raise RecipeError(
                *(f"{self.name}: lm_eval.{name} is decided by the suite; leave it out" for name in decided)
            )
        check_generation(self.name, self.outside_fields() | self.lm_eval)

    @property
    def _parts(self) -> PartsOf:
        return PartsOf(self.name, self.parts)

    def outside_task(self) -> OutsidePart | None:
        """Return the task if it is from outside; None if it is lm-eval's own, or if there is none."""
        if not self.task or (self.task not in self.parts and self.task not in registered(KIND)):
            return None
        return self._parts.find(KIND, self.task, (), "task")

    def outside_fields(self) -> dict[str, Any]:
        """Return the fields of lm-eval's TaskConfig that the task from outside gives; empty without such a task."""
        return {} if self.outside_task() is None else outside_fields(self.task or "", self._parts)

    @property
    def own_harness(self) -> ReadyHarness | None:
        """The harness from outside; None if lm-eval asks the items."""
        return None if self.harness is None else outside_harness(self.harness, self._parts)

    @property
    def without_harness(self) -> BenchmarkRecipe:
        """The suite without its harness, for jobs that only read its items; ASKED_BY_HARNESS names it to them."""
        return self if self.harness is None else replace(self, harness=None, parts={})

    def outside_parts(self) -> dict[str, OutsidePart]:
        """Return the task or harness from outside by name."""
        if self.harness is not None:
            return {self.harness: self._parts.find(HARNESSES, self.harness, (), "harness")}
        part = self.outside_task()
        return {} if part is None else {self.task or "": part}

    @property
    def is_task(self) -> bool:
        """Whether a task of lm-eval asks and scores the items."""
        return bool(self.task or self.task_file or self.lm_eval)
