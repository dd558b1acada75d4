"""Texts that a model writes while it is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from training.order.batches import held_out_samples
from training.pretrain.parallel.mesh import reshard
from training.pretrain.step import Trainer

PROMPT_TOKENS = 16
SAMPLE_TOKENS = 48


def sampler(tokenizer: Path, trainer: Trainer) -> Callable[[], str] | None:
    """Return a function that continues the beginning of a held-out document with the likeliest tokens.

    All processes must call this, and the function that it returns, because the model stays spread over them. Return
    None if the objective does not continue text, the package tokenizers is missing, or nothing is held out.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        Tokenizer = None
    plan, shards = trainer.plan, trainer.shards
    samples = [sample for number in range(len(plan.record.sources)) for sample in held_out_samples(plan, number)[:1]]
    can = trainer.recipe.objective.continues_text and samples and Tokenizer is not None
    if trainer.world.first_said("" if can else "no texts") or Tokenizer is None:
        return None
    encoding = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    tokens, _, _ = shards.rows(samples[:1], length=plan.record.sequence_length)
    prompt = tokens[0, : min(PROMPT_TOKENS, samples[0][0].length - 1)].tolist()

    def sample() -> str:
        text = continued(trainer, prompt, new_tokens=SAMPLE_TOKENS)
        return f"{encoding.decode(prompt)} ⟶ {encoding.decode(text[len(prompt) :])}"

    return sample


def continued(trainer: Trainer, prompt: list[int], *, new_tokens: int) -> list[int]:
    """Return `prompt` followed by the model's most likely tokens, up to `new_tokens` or the end of the text."""
    text, length = list(prompt), min(len(prompt) + new_tokens, trainer.model.config.max_length)
    while len(text) < length:
        padded = text + [0] * (length - len(text))  # one length of all passes; later positions change no earlier one
        (logits,) = trainer.logits(padded, at=[len(text) - 1])
        # The first process's choice is everybody's, so that all end at the same token.
        chosen = logits.argmax() * trainer.world.is_first
        text.append(int(trainer.world.sum(chosen)))
        if text[-1] == trainer.plan.record.eos_id:
            break
    reshard(trainer.model)
    return text
