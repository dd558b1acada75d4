"""How likely a model finds answers to prompts, and how uncertain it is at their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from training.generate.passes.pass_rows import passes
from training.generate.turns import Chat
from training.posttrain.trainer.models import right_padded


class Likelihood(NamedTuple):
    """log p(answer | prompt) in nats, and the mean entropy of the next token at the answer's tokens, in nats."""

    nats: float
    entropy: float


@torch.no_grad()
def likelihoods(model: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], chat: Chat) -> list[Likelihood]:
    """Return the likelihood of each answer after its prompt, both given as tokens, computed in fp32."""
    rows = [[*prompt, *answer] for prompt, answer in pairs]
    found: list[Likelihood] = []
    with torch.autocast(model.device.type, enabled=False):
        for some in passes([len(row) for row in rows], vocabulary=model.config.vocab_size):
            batch = right_padded(rows[some], chat.pad_id, model.device)
            logits = model(**batch, use_cache=False).logits.float()
            for one, (prompt, answer) in zip(logits, pairs[some], strict=True):
                said = one[len(prompt) - 1 : len(prompt) + len(answer) - 1].log_softmax(-1)
                wanted = torch.tensor(answer, dtype=torch.long, device=said.device)
                nats, entropy = said.gather(-1, wanted[:, None]).sum(), -(said.exp() * said).sum(-1).mean()
                found.append(Likelihood(float(nats), float(entropy)))
            del logits, one  # else they would stay until the next pass has its own
    return found
