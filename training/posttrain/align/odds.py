"""Train on preference pairs by the odds ratio of their answers, with TRL's DPOTrainer and another loss.

TRL's own trainer for this loss is among its experiments, which may change in any release, and tokenizes by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from training.posttrain.align.initial_loss import first_rows
from training.posttrain.align.paired import TokenizedDPOTrainer


class OddsRatioTrainer(TokenizedDPOTrainer):
    """TRL's DPOTrainer with the loss of ORPO, which needs no reference.

    The reference's log-probabilities, which TRL computes once, only say which loss must come out before the first step.
    """

    def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> Any:
        mask = inputs["completion_mask"]
        labels = inputs["input_ids"].masked_fill(mask == 0, -100)
        given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        outputs = model(**given, use_cache=False, labels=labels, fused_lm_head=True)
        means = outputs.log_probs.sum(dim=1) / mask[:, 1:].sum(dim=1)
        chosen, rejected = means.float().chunk(2, dim=0)
        loss = odds_ratio_loss(chosen, rejected, self.beta)
        measured = self._metrics["train" if model.training else "eval"]
        rewards = {"chosen": self.beta * chosen.detach(), "rejected": self.beta * rejected.detach()}
        margins = self.accelerator.gather_for_metrics(rewards["chosen"] - rewards["rejected"])
        for side, values in rewards.items():
            measured[f"rewards/{side}"].append(self.accelerator.gather_for_metrics(values).mean().item())
        measured["rewards/accuracies"].append((margins > 0).float().mean().item())
        measured["rewards/margins"].append(margins.mean().item())
        return (loss, outputs) if return_outputs else loss


def odds_ratio_loss(chosen: Tensor, rejected: Tensor, weight: float) -> Tensor:
    """Return the loss of pairs, given the mean log-probability of a token in each answer (arXiv 2403.07691).

    It is the negative one of the chosen answer, plus `weight` times -log σ(log of the ratio of the answers' odds).
    """
    log_odds = (chosen - rejected) - (_log_rest(chosen) - _log_rest(rejected))
    return (-chosen - weight * functional.logsigmoid(log_odds)).mean()


def _log_rest(log_probability: Tensor) -> Tensor:
    """Return log(1 - p) for log p below 0."""
    return torch.log(-torch.expm1(log_probability.clamp(max=-1e-6)))


def expected_start(trainer: OddsRatioTrainer) -> float:
    """Return the loss of the first rows before the first step, from the reference's log-probabilities of them."""
    rows = first_rows(trainer)
    chosen, rejected = (
        torch.tensor([row[f"ref_{side}_logps"] / len(row[f"{side}_ids"]) for row in rows])
        for side in ("chosen", "rejected")
    )
    return float(odds_ratio_loss(chosen, rejected, trainer.beta))
