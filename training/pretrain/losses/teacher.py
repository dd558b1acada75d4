"""The teacher of a distillation: a frozen model, which is refused if it cannot teach the student."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from training.contract.artifact import check_input, find
from training.contract.job import DataError, InputArtifact, Job, RefusedInput
from training.contract.model_files import CONFIG_FILE, model_digest
from training.contract.records import RecipeError
from training.pretrain.losses.chunked import Taught
from training.pretrain.models import export
from training.pretrain.models.attention import DocumentMask, document_mask
from training.pretrain.models.decoder import Decoder

if TYPE_CHECKING:
    from training.pretrain.parallel.world import World
    from training.pretrain.settings import PretrainRecipe


@torch.no_grad()
def taught(teacher: Decoder, tokens_BL: Tensor, mask: DocumentMask, *, dtype: torch.dtype) -> Taught:
    """Return what a teacher says of the rows whose documents `mask` has, seen through the teacher's own windows."""
    window = teacher.config.window
    own = document_mask(mask.documents, dtype=dtype, window=window) if window else mask
    states = teacher(tokens_BL, own, dtype=dtype).states.flatten(0, 1)
    return Taught(states, teacher.head_weight.detach().to(dtype))


def read_teacher(folder: Path, world: World) -> Decoder:
    """Load the teacher from the folder that `teacher_folder` returned, onto this process's device."""
    return export.read_model(folder).to(world.device).requires_grad_(False)


def teacher_folder(job: Job, recipe: PretrainRecipe, tokenizer: Path, world: World) -> Path | None:
    """Return the verified folder of the job's teacher; None if the job has no teacher.

    Raise RefusedInput if a gate refused the teacher, if it changed since the job was written, if its vocabulary is not
    the tokenizer's, or if it reads shorter rows. Raise RecipeError if the student is spread over processes, because a
    teacher reads whole rows.
    """
    if "teacher" not in job.settings:
        return None
    if world.is_split:
        raise RecipeError(
            f"pretrain.distill: with a teacher every process has the whole model, the profile spreads it as"
            f" {world.degrees.sizes(world.size)}; set shard, tensor, context, expert and pipeline to 1"
        )
    folder, digest = Path(job.settings["teacher"]["path"]), job.settings["teacher"]["digest"]
    made = None if (folder / CONFIG_FILE).is_file() else find(folder)
    if made is not None:
        named = {name: made.record[name] for name in ("asset", "partition", "fingerprint")}
        check_input(InputArtifact(**named, digest=digest, path=str(folder)))
    elif model_digest(folder) != digest:
        raise RefusedInput(f"{folder}: the teacher has changed since the job was written; run again")
    model_folder = folder / "model" if made is not None else folder
    if not (model_folder / "tokenizer.json").is_file():
        raise DataError(f"{model_folder}: no tokenizer.json; a teacher must say what its tokens are")
    if export.token_ids(model_folder) != export.token_ids(tokenizer):
        raise RefusedInput(
            f"{model_folder}: the teacher has another vocabulary than the recipe's tokenizer; its probabilities are of"
            " other tokens"
        )
    positions = export.read_shape(model_folder).max_length
    if recipe.sequence_length > positions:
        raise RefusedInput(
            f"{model_folder}: the teacher reads up to {positions} positions, the recipe's rows have"
            f" {recipe.sequence_length}"
        )
    return model_folder
