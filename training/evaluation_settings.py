"""The recipe section `evaluation`: which benchmarks the models answer, and with which settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from training.data.exams.settings import BenchmarkRecipe
from training.records import RecipeError, Uri

CANNOT_BE_SCANNED: Final = ("teacher",)
SAMPLES_ANSWERS: Final = (
    "alignment_prompts",
    "alignment_temperature",
    "alignment_max_new_tokens",
    "seed",
)
MEASURES_TEXT: Final = ("outside_text", "outside_text_limit")
JUDGES_CONTAMINATION: Final = ("contamination", "max_contaminated_fraction", "question_seen", "tolerate_unknown")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRecipe:
    """The benchmarks that the models answer, what is allowed of contamination, and the settings of sampled answers.

    `contamination` says when training data that hold items of the suites are refused: before anything is trained on
    them, or after, when the model is to be promoted. They are refused when more than `max_contaminated_fraction` of a
    suite's items were found in them. `question_seen` says whether a question without its answer counts as found, or is
    reported. `tolerate_unknown` names what the model learned from that nobody can scan: `teacher`.
    """

    suites: tuple[BenchmarkRecipe, ...]
    batch_size: int = 32
    contamination: Literal["before", "after"] = "before"
    max_contaminated_fraction: float = 0.0
    question_seen: Literal["contaminated", "reported"] = "contaminated"
    tolerate_unknown: tuple[str, ...] = ()
    alignment_prompts: Uri = ""  # held-out prompts; sampled answers to them are scored by the true reward
    alignment_temperature: float = 0.7
    alignment_max_new_tokens: int = 64
    outside_text: Uri = ""  # texts from outside the corpus, on which bits per byte of every model are measured
    outside_text_limit: int | None = None  # texts that are read; None: all
    seed: int = 0

    def __post_init__(self) -> None:
        if unfit := [name for name in self.tolerate_unknown if name not in CANNOT_BE_SCANNED]:
            raise RecipeError(
                f"evaluation.tolerate_unknown: {unfit[0]!r} is scanned, or not a part of any model; what cannot be"
                f" scanned is {', '.join(CANNOT_BE_SCANNED)}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedOn:
    """What a recipe trains models on: assets with text, the system prompt and the teacher. Empty: not used.

    `data` names the assets. A teacher was trained on data of its own, which nobody can scan here.
    """

    data: tuple[str, ...] = ()
    system_prompt: str = ""
    teacher: str = ""
