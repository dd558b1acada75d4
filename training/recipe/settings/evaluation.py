"""The recipe section `evaluation`: which benchmarks the models answer, and with which settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from training.contract.parts.outside import OutsidePart, PartsOf
from training.contract.records import RecipeError, Uri, check_names
from training.data.exams.settings import BenchmarkRecipe
from training.recipe.settings.answer_judge import KIND, SECTION, Judge, outside_judge

CANNOT_BE_KNOWN: Final = ("teacher", "adopted_model", "exams")
SAMPLES_ANSWERS: Final = (
    "alignment_prompts",
    "alignment_temperature",
    "alignment_max_new_tokens",
    "judge",
    "parts",
    "seed",
)
MEASURES_TEXT: Final = ("outside_text", "outside_text_limit", "held_out_limit", "probe")
JUDGED_PROMPTS: Final = 64  # held-out prompts whose answers are sampled and judged at once
JUDGED_MODELS: Final = 3  # that are held at once for it: the SFT model, the aligned one and the reward model
TASK_NEW_TOKENS: Final = 256  # of an answer to a task of lm-eval that sets no limit, as in its HFLM
JUDGES_CONTAMINATION: Final = ("contamination", "max_contaminated_fraction", "question_seen", "tolerate_unknown")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRecipe:
    """The benchmarks that the models answer, the tolerated contamination, and the settings of sampled answers.

    `contamination` says when training data with items of the suites are refused: before anything is trained on
    them, or after, when the model is to be promoted. Data are refused if more than `max_contaminated_fraction` of a
    suite's items were found in them. `question_seen` says whether a question that was found without its answer
    counts as a found item, or is only reported.

    `preset` stands for the suites of training/recipe/exam_presets.py that can be scored here. They become part of
    `suites` when a recipe is read.

    `tolerate_unknown` names what may stay unknown: `teacher` and `adopted_model`, what these were trained on;
    `exams`, whether training data hold exam items if no suite has an item that can be searched for.
    """

    suites: tuple[BenchmarkRecipe, ...]
    preset: Literal["none", "base", "chat", "code", "full"] = "none"  # suites by name, those that are at hand
    batch_size: int = 32
    contamination: Literal["before", "after"] = "before"
    max_contaminated_fraction: float = 0.0
    question_seen: Literal["contaminated", "reported"] = "contaminated"
    tolerate_unknown: tuple[str, ...] = ()
    alignment_prompts: Uri | None = None  # held-out prompts; sampled answers are scored by the true reward
    alignment_temperature: float = 0.7
    alignment_max_new_tokens: int = 64
    judge: str | None = None  # a judge from outside, which scores answers beside the reward model; None: none
    parts: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)  # of the judge: `from`, settings
    outside_text: Uri | None = None  # texts from outside the corpus, on which bits per byte are measured
    outside_text_limit: int | None = None  # texts that are read; None: all
    held_out_limit: int | None = 200  # held-out documents on which they are measured too; None: all; 0: none
    probe: Uri | None = None  # rows with `text` and `label`, told by the states of a model that answers no exam
    seed: int = 0

    NAMES: ClassVar[Mapping[str, Iterable[str]]] = {"tolerate_unknown": CANNOT_BE_KNOWN}

    @property
    def has_tasks(self) -> bool:
        """Whether a task of lm-eval scores a suite; then all suites are tried before anything is trained."""
        return any(suite.is_task for suite in self.suites)

    def outside_parts(self) -> dict[str, OutsidePart]:
        """Return the tasks and harnesses of the suites, and the judge, that are from outside, by name.

        Raise RecipeError if one name stands for several.
        """
        named = [pair for suite in self.suites for pair in suite.outside_parts().items()]
        named += [] if self.judge is None else [(self.judge, self._parts.find(KIND, self.judge, (), "judge"))]
        found = dict[str, OutsidePart]()
        for name, part in named:
            if found.setdefault(name, part) != part:
                raise RecipeError(f"evaluation: {name!r} is {found[name].place} and {part.place}; give them two names")
        return found

    def check_processes(self, processes: int) -> None:
        """Raise RecipeError if suites have harnesses of their own, which ask in one process, and there are more."""
        own = [suite.name for suite in self.suites if suite.harness]
        if own and processes > 1:
            raise RecipeError(
                f"evaluation.suites: {', '.join(own)}: a harness from outside asks a whole model in one process, and"
                f" there are {processes}; set nodes, processes and shard to 1 for model_scores, under `stages` in the"
                " profile"
            )

    @property
    def _parts(self) -> PartsOf:
        return PartsOf(SECTION, self.parts)

    @property
    def outside_judge(self) -> Judge | None:
        """The judge from outside; None if only the reward model judges."""
        return None if self.judge is None else outside_judge(self.judge, self._parts)

    def __post_init__(self) -> None:
        check_names(self, "evaluation")
        self._parts.check_used([self.judge] if self.judge else [])
        _ = self.outside_judge  # checks itself
        if self.held_out_limit is not None and self.held_out_limit < 0:
            raise RecipeError(
                f"evaluation.held_out_limit: {self.held_out_limit} is below 0; null measures all documents"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedOn:
    """Everything that a recipe trains models on: assets with text (`data`), the system prompt and the teacher.

    None means that the recipe has no such prompt or model. `teacher_prompts` are the system prompts that the teacher
    was trained with, and `teacher_unknown` names what is behind the teacher and cannot be scanned.
    """

    data: tuple[str, ...] = ()
    system_prompt: str | None = None
    teacher: str | None = None
    teacher_prompts: tuple[str, ...] = ()
    teacher_unknown: tuple[str, ...] = ()
