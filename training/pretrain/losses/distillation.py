"""Distillation: a student learns a teacher's probabilities for the next token in addition to the token itself.

Hinton et al., arXiv 1503.02531. With student logits s, teacher logits t, temperature T and weight w, a trained position
costs (1 - w) · CE(s, target) + w · T² · KL(softmax(t / T) || softmax(s / T)) nats; T² keeps the size of the KL term's
gradient the same for every T. The logged loss is the unweighted cross-entropy alone, so that it can be compared with
the loss of a run without a teacher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from training.contract.artifact import check_input, find
from training.contract.job import DataError, InputArtifact, Job, RefusedInput
from training.contract.model_files import CONFIG_FILE, model_digest
from training.contract.records import RecipeError
from training.order.loss_mask import IGNORED
from training.pretrain.losses.cross_entropy import CHUNK
from training.pretrain.losses.settings import DistillRecipe
from training.pretrain.models import export
from training.pretrain.models.attention import DocumentMask, document_mask
from training.pretrain.models.decoder import Decoder
from training.pretrain.models.layers import softcapped

if TYPE_CHECKING:
    from training.pretrain.parallel.world import World
    from training.pretrain.settings import PretrainRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Teacher:
    """A frozen model, and the settings for how much its probabilities count."""

    model: Decoder
    recipe: DistillRecipe

    def loss(
        self,
        tokens_BL: Tensor,
        mask: DocumentMask,
        hidden_ND: Tensor,
        head_VD: Tensor,
        targets_N: Tensor,
        *,
        scale: float,
        softcap: float,
        compiled: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the distillation objective to minimize, and its likelihood part.

        They are two fp32 scalars, as from `next_token_loss`. If `compiled`, torch compiles what is between products.
        """
        dtype, window = hidden_ND.dtype, self.model.config.window
        own = document_mask(mask.documents, dtype=dtype, window=window) if window else mask
        with torch.no_grad():
            taught = self.model(tokens_BL, own, dtype=dtype).states.flatten(0, 1)
        caps = Caps(student=softcap, teacher=self.model.config.logit_softcap)
        head = self.model.head_weight.detach().to(dtype)
        return distillation_loss(
            hidden_ND, head_VD, targets_N, taught, head, scale=scale, recipe=self.recipe, caps=caps, compiled=compiled
        )


class Caps(NamedTuple):
    """Soft-caps that limit the logits of the student and of the teacher (cap · tanh(logit / cap)); 0 means none."""

    student: float = 0.0
    teacher: float = 0.0


def distillation_loss(
    hidden_ND: Tensor,
    head_VD: Tensor,
    targets_N: Tensor,
    taught_ND: Tensor,
    taught_head_VD: Tensor,
    *,
    scale: float,
    recipe: DistillRecipe,
    caps: Caps = Caps(),  # noqa: B008 - immutable
    compiled: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the objective and the negative log-likelihood, each summed over positions with a target, times `scale`.

    Both are fp32 scalars; only the objective has a gradient, and the teacher gets none. `taught_ND` and
    `taught_head_VD` are the teacher's hidden states and head: its width may differ from the student's, its vocabulary
    may not.
    """
    objective, likelihood = _ChunkedDistillation.apply(
        hidden_ND, head_VD, targets_N, taught_ND, taught_head_VD, scale, recipe, caps, compiled
    )
    return objective, likelihood


class _ChunkedDistillation(torch.autograd.Function):
    """Computes the gradients while a chunk's logits exist, as in `cross_entropy.py`: all never exist at once."""

    @staticmethod
    def forward(ctx, hidden_ND, head_VD, targets_N, taught_ND, taught_head_VD, scale, recipe, caps, compiled):
        to_gradients = compiled_to_gradients() if compiled else _to_gradients
        sums = torch.zeros(2, dtype=torch.float32, device=hidden_ND.device)
        grad_hidden = torch.empty_like(hidden_ND)
        grad_head = torch.zeros_like(head_VD, dtype=torch.float32)
        weight, temperature = recipe.weight, recipe.temperature
        for start in range(0, len(hidden_ND), CHUNK):
            own = slice(start, start + CHUNK)
            logits, taught = hidden_ND[own] @ head_VD.t(), taught_ND[own] @ taught_head_VD.t()
            given = (logits, taught, targets_N[own])
            sums += to_gradients(*given, scale=scale, weight=weight, temperature=temperature, caps=caps)
            torch.mm(logits, head_VD, out=grad_hidden[own])
            grad_head += logits.t() @ hidden_ND[own]
        ctx.save_for_backward(grad_hidden, grad_head.to(head_VD.dtype))
        likelihood, divergence = sums[0] * scale, sums[1]
        ctx.mark_non_differentiable(likelihood)
        return (1 - weight) * likelihood + weight * temperature**2 * scale * divergence, likelihood

    @staticmethod
    def backward(ctx, grad, _):
        grad_hidden, grad_head = ctx.saved_tensors
        return grad_hidden * grad, grad_head * grad, None, None, None, None, None, None, None


@cache
def compiled_to_gradients() -> Callable[..., Tensor]:
    """Return the arithmetic from both models' logits to gradients, which torch compiles when it first runs."""
    return torch.compile(_fused_to_gradients)


def _fused_to_gradients(
    logits: Tensor, taught: Tensor, targets: Tensor, *, scale: float, weight: float, temperature: float, caps: Caps
) -> Tensor:
    """Do as `_to_gradients`, by operations on whole rows that a compiler can join into few passes."""
    trained = (targets != IGNORED)[:, None]
    is_target = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    capped = softcapped(logits.float(), caps.student)
    log_p = torch.log_softmax(capped, dim=-1)
    log_soft = torch.log_softmax(capped / temperature, dim=-1)
    log_taught = torch.log_softmax(softcapped(taught.float(), caps.teacher) / temperature, dim=-1)
    soft_taught = log_taught.exp()
    surprise = -(log_p * is_target).sum()  # nothing is IGNORED's column
    divergence = (soft_taught * (log_taught - log_soft) * trained).sum()
    gradients = (1 - weight) * (log_p.exp() - is_target.float())
    gradients = (gradients + weight * temperature * (log_soft.exp() - soft_taught)) * (trained * scale)
    if caps.student:
        gradients = gradients * (1 - (capped / caps.student).square())
    logits.copy_(gradients)
    return torch.stack((surprise, divergence))


def _to_gradients(
    logits: Tensor, taught: Tensor, targets: Tensor, *, scale: float, weight: float, temperature: float, caps: Caps
) -> Tensor:
    """Overwrite `logits` with d objective / d logits; return the unscaled likelihood and divergence, fp32 `[2]`.

    They are d CE / d s = p - one_hot(target) and d T² KL / d s = T (softened p - softened teacher's).
    """
    trained = (targets != IGNORED)[:, None]
    picked = targets.clamp(min=0)[:, None]
    capped = softcapped(logits.float(), caps.student)
    log_p = torch.log_softmax(capped, dim=-1)
    log_soft = torch.log_softmax(capped / temperature, dim=-1)
    log_taught = torch.log_softmax(softcapped(taught.float(), caps.teacher) / temperature, dim=-1)
    soft_taught = log_taught.exp()
    surprise = -(log_p.gather(1, picked) * trained).sum()
    divergence = (soft_taught * (log_taught - log_soft) * trained).sum()
    gradients = log_p.exp_().scatter_add_(1, picked, torch.full_like(picked, -1.0, dtype=torch.float32))
    gradients = (1 - weight) * gradients + weight * temperature * (log_soft.exp_() - soft_taught)
    gradients = gradients.mul_(trained * scale)
    if caps.student:
        gradients.mul_(1 - (capped / caps.student).square())
    logits.copy_(gradients)
    return torch.stack((surprise, divergence))


def read_teacher(folder: Path, recipe: PretrainRecipe, world: World) -> Teacher:
    """Load the teacher from the folder that `teacher_folder` returned, onto this process's device."""
    model = export.read_model(folder).to(world.device).requires_grad_(False)
    return Teacher(model=model, recipe=recipe.distill)


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
