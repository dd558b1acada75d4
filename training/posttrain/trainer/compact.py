"""TRL's trainers with passes that compute no padding (training/generate/passes/compact.py).

They read log-probabilities by `model(..., labels=labels, fused_lm_head=True)`, and all their losses follow from these.
On a CPU TRL pads the rows, and projects every position to the vocabulary three times. Here this call makes a compact
pass, where one is possible. Log-probabilities and gradients are those of TRL up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from training.generate.passes.compact import UNWANTED, of_tokens, states_before, why_padded

KEPT_LOGITS = 2**28  # most probabilities that are kept for the backward pass; above that, TRL computes them twice
KNOWN = {"input_ids", "attention_mask", "labels", "use_cache", "fused_lm_head", "output_router_logits"}


def without_padding(trainer_module: Any) -> None:
    """Let the trainer in a module of TRL make compact passes, where they are possible."""
    adds_head = trainer_module.add_fused_lm_head

    def added(model: Any, *, outputs: tuple[str, ...] = ("log_probs",), **options: Any) -> None:
        adds_head(model, outputs=outputs, **options)
        padded = model.forward

        @wraps(type(model).forward)  # its signature is asked for
        def forward(self: Any, *given: Any, **named: Any) -> Any:
            if given or not named.get("fused_lm_head") or options.get("cast_lm_head_to_fp32"):
                return padded(*given, **named)
            if why_padded(self) or not _is_plain(named):
                return padded(**named)
            return _compact(self, named, outputs, options.get("temperature", 1.0))

        model.forward = MethodType(forward, model)
        model.has_compact_passes = True

    if adds_head.__module__ != __name__:
        trainer_module.add_fused_lm_head = added


def said_of(model: Any) -> dict[str, str]:
    """Return the artifact's note `padded_passes`: why a model's passes have padding; empty if they have none."""
    why = why_padded(model) if getattr(model, "has_compact_passes", False) else ""
    return {"padded_passes": why} if why else {}


def _is_plain(named: Mapping[str, Any]) -> bool:
    """Whether a pass has tokens alone, and asks for nothing beside the log-probabilities of some of them."""
    if not {"input_ids", "attention_mask", "labels"} <= named.keys() <= KNOWN or named.get("output_router_logits"):
        return False
    trained_BT = named["labels"][:, 1:] != UNWANTED
    return bool(trained_BT.any()) and not (trained_BT & (named["attention_mask"][:, :-1] == 0)).any()


def log_probs(model: Any, *, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probabilities of the tokens that have a label [B, T-1], 0 elsewhere, in a compact pass."""
    given = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # adapters are inside it too
    return _compact(inner, given, ("log_probs",), 1.0).log_probs


def _compact(model: Any, named: Mapping[str, Any], outputs: tuple[str, ...], temperature: float) -> Any:
    from trl.trainer.utils import FusedCausalLMOutput

    mask_BT, states_LD, tokens_L = states_before(model, named)
    head = model.get_output_embeddings()
    if torch.is_grad_enabled() and len(tokens_L) * len(head.weight) > KEPT_LOGITS:
        found = _computed_twice(head, states_LD, tokens_L, outputs, temperature)
    else:
        found = of_tokens(head, states_LD, tokens_L, outputs, temperature=temperature)
    told = [None if one is None else one.new_zeros(mask_BT.shape).masked_scatter(mask_BT, one) for one in found]
    names = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
    return FusedCausalLMOutput(**dict(zip(names, told, strict=True)), label_mask=mask_BT)


def _computed_twice(
    head: Any, states_LD: Tensor, tokens_L: Tensor, outputs: tuple[str, ...], temperature: float
) -> tuple[Tensor | None, ...]:
    """Return what `of_tokens` returns, by TRL's own function, which keeps no probabilities."""
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE, _ChunkedLogProbFunction

    return _ChunkedLogProbFunction.apply(
        states_LD, head.weight, head.bias, tokens_L, temperature, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, outputs
    )
