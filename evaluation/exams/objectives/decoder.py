"""A base model that no class of transformers can run, and the rows of text that it reads. In one process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.generate.model_folder import device
from training.order.loss_mask import IGNORED
from training.pretrain.losses.chunked import target_scores
from training.pretrain.models.attention import document_mask
from training.pretrain.models.export import read_model, token_ids
from training.pretrain.objectives.objective import Objective
from training.pretrain.objectives.rewritten import NO_DOCUMENT, Batch
from training.pretrain.objectives.settings import ObjectiveRecipe

SEED = 0  # of the objective's draws, so that models of one tokenizer are asked for the same tokens
ROWS = 8  # that are read at once


class TextWindow(NamedTuple):
    """Successive tokens of a text that fit into the model's positions, and the token after them, if there is one.

    bytes: of the text that each of these tokens adds, and of the one after them; 0 for the end of a text.
    """

    text: int
    tokens: list[int]
    after: int
    bytes: list[int]


class OwnModel:
    """A model folder in either layout, read by this package, with its tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.model = read_model(folder).to(device()).eval()
        self.tokenizer, self.ids = Tokenizer.from_file(str(folder / "tokenizer.json")), token_ids(folder)
        self.tokenizer.encode_special_tokens = True  # a text that looks like a special token is ordinary text
        self.eos_id = eos_of(folder)

    def objective(self, recipe: ObjectiveRecipe) -> Objective:
        """Return the objective with this tokenizer and fixed draws."""
        size = max(self.ids.values()) + 1
        return Objective(recipe, seed=SEED, token_ids=self.ids, eos_id=self.eos_id, vocab_size=size)

    def windows(self, texts: Sequence[str]) -> list[TextWindow]:
        """Return the texts with their end-of-text tokens, cut where the model has no more positions."""
        length, found = self.model.config.max_length, list[TextWindow]()
        for number, encoding in enumerate(self.tokenizer.encode_batch(list(texts), add_special_tokens=False)):
            tokens, sizes = [*encoding.ids, self.eos_id], [*added_bytes(texts[number], encoding.offsets), 0, 0]
            for start in range(0, len(tokens), length):
                after = tokens[start + length] if len(tokens) > start + length else IGNORED
                own = slice(start, start + length)
                found.append(TextWindow(number, tokens[own], after, sizes[start : start + length + 1]))
        return found

    @torch.no_grad()
    def states(self, batch: Batch) -> Tensor:
        """Return the states `[R, L, D]` after the last norm. Documents of a row do not see each other."""
        place = self.model.embedding.device
        prefix = None if batch.prefix is None else torch.from_numpy(batch.prefix).to(place)
        mask = document_mask(
            torch.from_numpy(batch.documents).to(place),
            dtype=torch.float32,
            window=self.model.config.window,
            prefix=prefix,
        )
        return self.model(torch.from_numpy(batch.tokens).to(place), mask).states

    @torch.no_grad()
    def scored(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return the nats of each target and whether it is the likeliest token, each `[R, L]`; 0 without a target."""
        states, targets = self.states(batch), torch.from_numpy(batch.targets)
        flat = targets.flatten().to(states.device)
        cap = self.model.config.logit_softcap
        nats, wrong = target_scores(states.flatten(0, 1), self.model.head_weight, flat, softcap=cap).cpu()
        right = (wrong == 0).numpy() & (flat.cpu() != IGNORED).numpy()
        return nats.double().numpy().reshape(targets.shape), right.reshape(targets.shape)


def added_bytes(text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Return the UTF-8 bytes of a text up to the end of each token, less those up to the token before it.

    The first of several tokens of one character has all of its bytes.
    """
    found, before = list[int](), 0
    for _, end in offsets:
        found.append(len(text[before:end].encode("utf-8")))
        before = max(before, end)
    return found


def eos_of(folder: Path) -> int:
    """Return the id of the end-of-text token that a model folder names."""
    return int(json.loads((folder / "generation_config.json").read_text("utf-8"))["eos_token_id"])


def rows_of(windows: Sequence[TextWindow]) -> Iterator[tuple[list[int], Batch]]:
    """Yield the numbers of some windows of similar length, and causal rows with one window each, padded."""
    order = sorted(range(len(windows)), key=lambda number: len(windows[number].tokens))
    for start in range(0, len(order), ROWS):
        numbers = order[start : start + ROWS]
        length = max(len(windows[number].tokens) for number in numbers)
        tokens = np.zeros((len(numbers), length), np.int64)
        targets, documents = np.full_like(tokens, IGNORED), np.full_like(tokens, NO_DOCUMENT)
        for row, window in enumerate(windows[number] for number in numbers):
            size = len(window.tokens)
            tokens[row, :size], documents[row, :size] = window.tokens, 0
            targets[row, :size] = [*window.tokens[1:], window.after]
        yield numbers, Batch(tokens, targets, documents)
