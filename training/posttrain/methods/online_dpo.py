"""Online DPO (arXiv 2402.04792): DPO's logistic loss on pairs of answers that the policy itself has just written.

Each prompt is answered twice. The answer with the higher reward is the chosen one, and a prompt whose two answers have
the same reward teaches nothing. The reference is the SFT model.

Legend: N rows, the two answers to a prompt next to each other; T tokens; P pairs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from training.contract.records import RecipeError
from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.method import Method
from training.posttrain.align.sampling.sampled import train_on_samples
from training.posttrain.trainer.fit import rows_per_pass

METHOD = Method(
    config="GRPOConfig",
    learns_from="samples",
    compares_answers=True,
    decides={
        "loss_type": None,
        "epsilon": None,
        "epsilon_high": None,
        "delta": None,
        "scale_rewards": None,
        "importance_sampling_level": None,
        "top_entropy_quantile": None,
        "off_policy_mask_threshold": None,
        "use_bias_correction_kl": None,
        "mask_truncated_completions": None,
        "router_aux_loss_coef": None,
        "entropy_coef": None,
        "use_adaptive_entropy": None,
        "entropy_coef_min": None,
        "entropy_coef_max": None,
        "entropy_coef_delta": None,
        "entropy_target": None,
        "sapo_temperature_neg": None,
        "sapo_temperature_pos": None,
        "vespo_k_pos": None,
        "vespo_lambda_pos": None,
        "vespo_k_neg": None,
        "vespo_lambda_neg": None,
    },
    because="they are GRPO's, and the loss here is -log sigmoid of beta times the margin of two answers",
)


class OnlinePairsTrainer(GRPOTrainer):
    """TRL's GRPOTrainer, which draws answers and rewards them, with the loss of DPO on the two answers to a prompt."""

    args: Any  # GRPOConfig

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return the rows of a pass. TRL shuffles the rows of a drawing; here the answers to a prompt stay together."""
        each = self.args.steps_per_generation
        if self._step % (each * self.num_iterations) == 0 or self._buffered_inputs is None:
            drawn = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict(drawn, each)
        return self._buffered_inputs[self._step % each]

    def _compute_loss(self, model: Any, inputs: dict[str, Tensor]) -> Tensor:
        ids_NT, mask_NT = (
            torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], dim=1) for name in ("ids", "mask")
        )
        answer_NT = inputs["completion_mask"]
        own_NT, entropy_NT, _ = self._get_per_token_logps_and_entropies(
            model, ids_NT, mask_NT, answer_NT.shape[1], compute_entropy=True
        )
        ratio_NT = (own_NT - inputs["ref_per_token_logps"]) * answer_NT
        loss, right = pairs_loss(ratio_NT.sum(1), inputs["advantages"], self.beta)
        sums = torch.stack([ratio_NT.sum(), (entropy_NT * answer_NT).sum(), answer_NT.sum().float()]).detach()
        kl, entropy, tokens = self.accelerator.reduce(sums, reduction="sum").tolist()
        noted = self._metrics["train"]
        noted["kl"].append(kl / max(1.0, tokens))
        noted["entropy"].append(entropy / max(1.0, tokens))
        noted["rewards/accuracies"].append(self.accelerator.gather(right).nanmean().item())
        return loss / self.current_gradient_accumulation_steps


def pairs_loss(ratios_N: Tensor, rewards_N: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return the mean loss of all pairs, and the share in which the policy has moved to the better answer.

    `ratios_N` are the logarithms of how much likelier each answer is than in the reference; of the rewards only the
    order counts. The share is NaN if no pair has a better answer.
    """
    first_P, second_P = ratios_N.view(-1, 2).unbind(1)
    better_P = torch.sign(rewards_N[::2] - rewards_N[1::2])
    margin_P = better_P * (first_P - second_P)
    losses_P = torch.where(better_P == 0, 0.0, -logsigmoid(beta * margin_P))
    return losses_P.mean(), (margin_P > 0)[better_P != 0].float().mean().detach()


def train(given: Alignment) -> Trained:
    """Train the SFT model by online DPO on the prompts."""
    recipe = given.recipe
    rows, _ = rows_per_pass(given.job, batch_size=recipe.batch_size, row_tokens=recipe.max_length, where="align")
    if rows % 2:
        raise RecipeError(
            f"align.method: online_dpo compares the two answers to a prompt in one pass, and a pass of this job has"
            f" {rows} of a process's answers; let micro_batch_tokens of the profile hold"
            f" {2 * recipe.max_length} tokens, and align.batch_size be a multiple of 2 for each process"
        )
    return train_on_samples(given, GRPOConfig, OnlinePairsTrainer)
