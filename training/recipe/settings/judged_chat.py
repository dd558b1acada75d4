"""The recipe section `judged_chat`: questions whose answers a judge rates, as in MT-Bench, and compares in pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from training.contract.records import RecipeError, Uri, check_above_zero

# Beside the section in a job's settings: where the judge's folder is. `model` of the section is then its digest.
JUDGE_PATH: Final = "judge_path"


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedChatRecipe:
    """Conversations that the SFT and the aligned model lead, and the judge of their answers (arXiv 2306.05685).

    Without `questions`, nothing is judged. The judge is a model's folder (`model`), or the model `endpoint_model` of a
    server with OpenAI's chat interface (`endpoint`, such as http://127.0.0.1:8000/v1).
    """

    questions: Uri | None = None  # rows with question_id, category, turns and, where there is one, reference
    limit: int | None = None  # questions; None: all
    model: str | None = None  # the judge: made://ASSET/RECIPE, or a model's folder
    endpoint: str | None = None
    endpoint_model: str | None = None
    max_new_tokens: int = 512  # of an answer
    judge_max_new_tokens: int = 1024  # of what the judge says
    batch_size: int = 16  # answers that are written, or judged, at once
    seed: int = 0

    def __post_init__(self) -> None:
        check_above_zero(self, "judged_chat", "limit", "max_new_tokens", "judge_max_new_tokens", "batch_size")
        judge = [name for name in ("model", "endpoint", "endpoint_model") if getattr(self, name)]
        if judge and not self.questions:
            raise RecipeError(f"judged_chat.{judge[0]}: without effect, because judged_chat.questions names none")
        if self.questions and judge not in (["model"], ["endpoint", "endpoint_model"]):
            raise RecipeError(
                f"judged_chat: the judge is named by {', '.join(judge) or 'nothing'}; give either model, or endpoint"
                " and endpoint_model"
            )
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise RecipeError(f"judged_chat.endpoint: {self.endpoint!r} must begin with http:// or https://")
