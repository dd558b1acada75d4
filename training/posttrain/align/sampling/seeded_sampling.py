"""Answers that do not depend on the number of processes which draw them; shared by the methods that sample answers.

TRL draws the tokens of all answers of a process from the process's own random numbers. Here each answer has random
numbers of its own, which follow from the seed, the step and the answer's place in the step's batch.

Legend: B answers of a process, T tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from trl.models.utils import unwrap_model_for_generation

from training.generate.model_folder import padded
from training.generate.passes.attention import IN_FP32, attending
from training.generate.passes.compact import why_padded
from training.generate.passes.roomy_cache import roomy_cache
from training.generate.sampler import continued
from training.generate.spread import gathered, in_step
from training.generate.turns import Chat, Message
from training.posttrain.align.settings import GENERATES_OTHERWISE
from training.posttrain.trainer.fit import load_for_training
from training.posttrain.trainer.spread_state import saving_parts

NUMBERS = 1_000_003  # more than the steps of a training, and than the answers of a step


def drawing_alike(trainer_class: type, trl: Mapping[str, Any], chat: Chat, *, gathers: bool = False) -> Any:
    """Return TRL's class of trainers that sample answers, changed to give the same ones in any number of processes.

    `chat` makes tokens of the prompts. `trl` are the fields of TRL's settings that the recipe sets. With some of them
    the answers are TRL's own. `gathers`: whether the weights of a spread model are gathered once for all answers of a
    step, not for each of their tokens.
    """

    def prompts_only(_: Any, prompts: list[list[Message]]) -> Any:
        return chat.encode_prompts(prompts), None, {}

    if GENERATES_OTHERWISE & trl.keys():
        return type(trainer_class.__name__, (trainer_class,), {"_tokenize_prompts": prompts_only})
    # GRPO's trainer also wants the log-probabilities of the drawn tokens, if they are known.
    is_told_more = "num_generations" in inspect.signature(trainer_class._generate_single_turn).parameters

    in_shares: Any = saving_parts(trainer_class)

    class DrawsAlike(in_shares):
        def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Any, **__: Any) -> Any:
            first = self.accelerator.process_index * len(prompt_ids)
            # A step draws several times if its batch is divided for generation.
            part = self._step % self.args.gradient_accumulation_steps
            number = ((self.args.seed * NUMBERS + self.state.global_step) * NUMBERS + part) * NUMBERS + first
            seeds = [(number + row) % 2**63 for row in range(len(prompt_ids))]
            answers = self.drawn(self.model_wrapped, prompt_ids, seeds)
            return (answers, None) if is_told_more else answers

        def drawn(self, wrapped: Any, prompts: list[list[int]], seeds: list[int]) -> list[list[int]]:
            fill, device = int(self._tokenizer.pad_token_id), self.accelerator.device
            ends = torch.tensor(self.eos_token_ids, device=device)
            draw = Drawn(self.args, prompts, seeds, fill=fill, device=device)
            is_plain = not why_padded(self.accelerator.unwrap_model(wrapped))
            with (
                unwrap_model_for_generation(wrapped, self.accelerator) as model,
                torch.no_grad(),
                gathered(model, nullcontext(), bf16=self.args.bf16) if gathers else in_step(model, torch.no_grad()),
                self.accelerator.autocast(),  # around all steps, so that weights are cast once
                attending(model.config, IN_FP32) if is_plain else nullcontext(),
            ):
                cache = roomy_cache(model.config) if is_plain else None
                return continued(model, prompts, self.max_completion_length, ends, draw, fill=fill, cache=cache)

    return type(trainer_class.__name__, (DrawsAlike,), {"_tokenize_prompts": prompts_only})


class Drawn:
    """Draws the next token of each answer, each from its own random numbers, by the settings of TRL's trainer."""

    def __init__(
        self, args: Any, prompts: Sequence[Sequence[int]], seeds: Sequence[int], *, fill: int, device: torch.device
    ) -> None:
        length = args.max_completion_length
        drawn = [torch.rand(length, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        self._random_TB1 = torch.stack(drawn, dim=1)[..., None].double().to(device)
        self._tokens_BT = padded(prompts, fill, left=True).to(device)
        self._number = 0
        self._processors: Any = LogitsProcessorList()
        if args.repetition_penalty not in (None, 1.0):
            self._processors.append(RepetitionPenaltyLogitsProcessor(penalty=args.repetition_penalty))
        if args.temperature != 1.0:
            self._processors.append(TemperatureLogitsWarper(args.temperature))
        if args.top_k:
            self._processors.append(TopKLogitsWarper(top_k=args.top_k))
        if args.top_p < 1.0:
            self._processors.append(TopPLogitsWarper(top_p=args.top_p))
        if args.min_p is not None:
            self._processors.append(MinPLogitsWarper(min_p=args.min_p))

    def __call__(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return a token for each answer: the first one up to which the probabilities exceed the random number."""
        scores_BV = self._processors(self._tokens_BT, logits_BV)
        summed_BV = scores_BV.double().softmax(-1).cumsum(-1)
        wanted_B1 = self._random_TB1[self._number] * summed_BV[:, -1:]
        next_B1 = torch.searchsorted(summed_BV, wanted_B1, right=True).clamp(max=summed_BV.shape[1] - 1)
        self._tokens_BT = torch.cat([self._tokens_BT, next_B1], dim=1)
        self._number += 1
        return next_B1[:, 0]


def spread_reference(trainer_class: type, *, precision: str, shard: int) -> None:
    """Let TRL's trainer divide the reference policy's weights among `shard` processes, like those of the policy."""

    def opened(folder: str, **_: Any) -> Any:
        return load_for_training(Path(folder), precision=precision, shard=shard)

    module: Any = sys.modules[trainer_class.__module__]
    module.create_model_from_path = opened
