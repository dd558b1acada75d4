"""Texts that a model writes while it is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from training.order.batches import held_out_samples
from training.pretrain.models.attention import one_document
from training.pretrain.models.decoder import Decoder
from training.pretrain.step import Trainer

PROMPT_TOKENS = 16
SAMPLE_TOKENS = 48


def sampler(tokenizer: Path, trainer: Trainer) -> Callable[[Decoder], str] | None:
    """Return a function that continues the beginning of a held-out document with the likeliest tokens.

    Return None if the objective does not continue text, the package tokenizers is missing, or nothing is held out.
    """
    plan, shards = trainer.plan, trainer.shards
    if not trainer.recipe.objective.continues_text:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    samples = [sample for number in range(len(plan.record.sources)) for sample in held_out_samples(plan, number)[:1]]
    if not samples:
        return None
    encoding = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    tokens, _, _ = shards.rows(samples[:1], length=plan.record.sequence_length)
    prompt = tokens[0, : min(PROMPT_TOKENS, samples[0][0].length - 1)].tolist()

    def sample(model: Decoder) -> str:
        text = continued(model, prompt, new_tokens=SAMPLE_TOKENS, eos_id=plan.record.eos_id, dtype=trainer.dtype)
        return f"{encoding.decode(prompt)} ⟶ {encoding.decode(text[len(prompt) :])}"

    return sample


@torch.no_grad()
def continued(model: Decoder, prompt: list[int], *, new_tokens: int, eos_id: int, dtype: torch.dtype) -> list[int]:
    """Return `prompt` followed by the model's most likely tokens, up to `new_tokens` or the end of the text."""
    tokens = torch.tensor([prompt], device=model.embedding.device)
    room = min(new_tokens, model.config.max_length - len(prompt))
    for _ in range(room):
        mask = one_document(tokens, dtype=dtype, window=model.config.window)
        states = model(tokens, mask, dtype=dtype).states[:, -1]
        following = (states @ model.head_weight.to(dtype).t()).argmax(dim=-1)
        tokens = torch.cat((tokens, following[:, None]), dim=1)
        if following.item() == eos_id:
            break
    return tokens[0].tolist()
