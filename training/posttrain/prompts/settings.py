"""The fields of the recipe section `align` that name the prompts for reinforcement learning."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.contract.records import Uri
from training.posttrain.source_settings import PromptColumns, TextSourceRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptsRecipe:
    """The file of prompts of `align` and its columns, without the settings of the training."""

    prompts: Uri
    prompt_columns: PromptColumns = field(default_factory=PromptColumns)

    @property
    def source(self) -> TextSourceRecipe:
        """The file as a source of rows."""
        columns = self.prompt_columns
        return TextSourceRecipe(
            uri=self.prompts,
            prompt_field=columns.prompt_field,
            answer_field=columns.answer_field,
            ignore=columns.ignore,
        )
