"""Training objectives: packed rows are rewritten so that other tokens are given or predicted. Uses numpy only.

The rewriting of a row is drawn from (seed, step, its number in the global batch) alone, so neither the micro-batch nor
the number of processes changes it. Rows keep their length, and nothing moves between documents. Each target is stored
at the position that predicts it, so computing the loss needs no shift.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from training.contract.records import RecipeError
from training.order.loss_mask import IGNORED
from training.pretrain.objectives.rewriting import TokenIds, rewrite
from training.pretrain.objectives.rewritten import NO_DOCUMENT, Batch, Draws
from training.pretrain.objectives.settings import FILL_TOKENS, MASK_TOKEN, ObjectiveRecipe, sentinel_token


def one_text(batch: Batch) -> Batch:
    """Return the batch with all documents of a row treated as one, so that attention crosses document boundaries.

    The end of a document still has no target.
    """
    return batch._replace(documents=np.minimum(batch.documents, 0))


class Objective:
    """The recipe's objective with a tokenizer.

    Raise RecipeError if the tokenizer lacks a token that the objective needs.
    """

    def __init__(
        self, recipe: ObjectiveRecipe, *, seed: int, token_ids: Mapping[str, int], eos_id: int, vocab_size: int
    ) -> None:
        self.recipe, self.seed, self.eos_id, self.vocab_size = recipe, seed, eos_id, vocab_size
        missing = [name for name in recipe.special_tokens() if name not in token_ids]
        if missing:
            raise RecipeError(
                f"pretrain.objective.kind={recipe.kind!r} needs the token {missing[0]};"
                " add it to tokenizer.special_tokens"
            )
        self.vocabulary = TokenIds(ids=token_ids, eos_id=eos_id, size=vocab_size)
        self.outside = recipe.outside  # loaded once
        self.fill_ids = [token_ids.get(name, 0) for name in FILL_TOKENS]
        self.mask_id = token_ids.get(MASK_TOKEN, 0)
        self.sentinels = _sentinels(token_ids)

    def batch(self, rows: tuple[np.ndarray, np.ndarray, np.ndarray], *, step: int, numbers: Sequence[int]) -> Batch:
        """Return causal rows (tokens, next tokens, documents) rewritten for the objective.

        `numbers` are the rows' numbers in the global batch.
        """
        if self.recipe.kind == "causal":
            return one_text(Batch(*rows)) if self.recipe.across_documents else Batch(*rows)
        tokens, targets, documents = (array.copy() for array in rows)
        prefix = None if self.recipe.is_causal else np.zeros(tokens.shape, dtype=bool)
        made = Batch(tokens, targets, documents, prefix)
        for place, number in enumerate(numbers):
            draws = Draws(self.seed, step, number, "objective")
            row = made.at(place)
            for start, stop in runs(documents[place]):
                self._rewrite(row.at(slice(start, stop)), draws)
        return made

    def _rewrite(self, part: Batch, draws: Draws) -> None:
        """Rewrite the tokens of one document in a row, in place, for the objective."""
        if self.outside is not None:
            rewrite(self.recipe.kind, self.outside, part, draws, self.vocabulary)
        elif self.recipe.kind == "fill_in_the_middle":
            self._fill(part, draws)
        elif self.recipe.kind == "masked":
            self._mask(part, draws)
        elif self.recipe.kind == "prefix":
            self._prefix(part, draws)
        elif self.recipe.kind == "span_corruption":
            self._corrupt(part, draws)
        else:
            raise AssertionError(f"objective {self.recipe.kind} rewrites nothing")

    def _content(self, tokens: np.ndarray) -> int:
        """Return the number of tokens in one document's run of a row, without its end-of-text token."""
        return len(tokens) - int(tokens[-1] == self.eos_id)

    def _fill(self, part: Batch, draws: Draws) -> None:
        """Reorder to prefix, suffix, middle at two uniform cuts (arXiv 2207.14255).

        Three tokens of text are dropped to make room for the marks.
        """
        length, ends = len(part.tokens), len(part.tokens) - self._content(part.tokens)
        chosen, suffix_first = draws.uniform(2) < (self.recipe.fill_rate, self.recipe.suffix_first_rate)
        text = part.tokens[: max(0, length - ends - len(self.fill_ids))]
        if not chosen or not len(text):
            return
        first, second = sorted((draws.below(len(text) + 1), draws.below(len(text) + 1)))
        end = part.tokens[length - ends :].tolist()
        part.tokens[:] = rearranged(text.tolist(), first, second, self.fill_ids, suffix_first=bool(suffix_first)) + end
        part.targets[:-1] = part.tokens[1:]
        part.targets[-1] = IGNORED

    def _mask(self, part: Batch, draws: Draws) -> None:
        """Choose targets as BERT does (arXiv 1810.04805).

        Of the chosen positions, 80 % are masked, 10 % get another token, and 10 % are unchanged.
        """
        content, part.seen_by_all[:] = self._content(part.tokens), True
        chosen, fate, other = draws.uniform(content), draws.uniform(content), draws.uniform(content)
        is_chosen = np.zeros(len(part.tokens), dtype=bool)
        is_chosen[:content] = chosen < self.recipe.noise_fraction
        part.targets[:] = np.where(is_chosen, part.tokens, IGNORED)
        text = part.tokens[:content]
        text[is_chosen[:content] & (fate < 0.8)] = self.mask_id
        swapped = is_chosen[:content] & (fate >= 0.9)
        text[swapped] = (other[swapped] * self.vocab_size).astype(np.int64)

    def _prefix(self, part: Batch, draws: Draws) -> None:
        """Make the beginning of a document visible in both directions and not predicted.

        Its length is drawn uniformly (arXiv 1910.10683, section 3.2.1).
        """
        known = 1 + draws.below(max(1, len(part.tokens) - 1))
        part.seen_by_all[:known] = True
        part.targets[: known - 1] = IGNORED

    def _corrupt(self, part: Batch, draws: Draws) -> None:
        """Replace spans by sentinels, then append each sentinel with its span and a last sentinel (arXiv 1910.10683).

        The result is one sequence for a decoder, which sees the corrupted text in both directions (arXiv
        2205.05131). It is longer than the text, so only the part of the text that fits is used, and the
        positions after it stay empty.
        """
        ends = len(part.tokens) - self._content(part.tokens)
        size = self._corruptible(len(part.tokens) - ends)
        part.targets[:] = IGNORED
        if size:
            noise, spans = self._noise(size)
            mask = noise_mask(size, noise=noise, spans=spans, draws=draws)
            given, wanted = corrupted(part.tokens[:size].tolist(), mask, self.sentinels)
            whole = given + wanted + [self.eos_id] * ends
            part.tokens[: len(whole)] = whole
            part.seen_by_all[: len(given)] = True
            part.targets[len(given) - 1 : len(whole) - 1] = whole[len(given) :]
            part.documents[len(whole) :], part.tokens[len(whole) :] = NO_DOCUMENT, 0
        else:
            part.documents[:], part.tokens[:] = NO_DOCUMENT, 0

    def _noise(self, size: int) -> tuple[int, int]:
        """Return how many of `size` tokens the span corruption removes, and in how many spans."""
        noise = min(max(round(size * self.recipe.noise_fraction), 1), size - 1)
        spans = max(1, round(noise / self.recipe.mean_span))
        return noise, min(spans, noise, size - noise, len(self.sentinels) - 1)

    def _corruptible(self, room: int) -> int:
        """Return the length of the longest text whose corrupted form fits into `room` tokens; 0 if none fits.

        The corrupted form has the text, two sentinels for each span, and the last sentinel.
        """
        return next((size for size in range(room - 3, 1, -1) if size + 2 * self._noise(size)[1] + 1 <= room), 0)


def runs(documents: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each document in a row, without positions that belong to no document."""
    cuts = [0, *(np.flatnonzero(np.diff(documents)) + 1).tolist(), len(documents)]
    return ((start, stop) for start, stop in pairwise(cuts) if documents[start] != NO_DOCUMENT)


def rearranged(text: list[int], first: int, second: int, fill_ids: Sequence[int], *, suffix_first: bool) -> list[int]:
    """Return `text` cut at `first` and `second` into prefix, middle and suffix, with the middle last.

    The two orders are those of arXiv 2207.14255: PSM, and SPM in the form that shares its marks with PSM.
    """
    prefix, middle, suffix = text[:first], text[first:second], text[second:]
    mark_prefix, mark_suffix, mark_middle = fill_ids
    if suffix_first:
        return [mark_prefix, mark_suffix, *suffix, mark_middle, *prefix, *middle]
    return [mark_prefix, *prefix, mark_suffix, *suffix, mark_middle, *middle]


def noise_mask(size: int, *, noise: int, spans: int, draws: Draws) -> np.ndarray:
    """Choose which of `size` tokens to remove: `noise` tokens in `spans` runs separated by kept tokens.

    All such choices are equally likely. T5 always keeps the first token and removes the last, so a short text with one
    span would always lose its end.
    """
    kept = _lengths(size - noise + 2, spans + 1, draws)
    kept[[0, -1]] -= 1
    taken = np.append(_lengths(noise, spans, draws), 0)
    return np.repeat([False, True] * (spans + 1), np.stack((kept, taken), axis=1).ravel())


def _lengths(total: int, parts: int, draws: Draws) -> np.ndarray:
    """Draw `parts` lengths of at least 1 that add up to `total`; all such choices are equally likely."""
    cuts = draws.chosen(parts - 1, total - 1) + 1
    return np.diff(np.concatenate(([0], cuts, [total])))


def corrupted(text: list[int], mask: np.ndarray, sentinels: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the text with each run of `mask` replaced by the next sentinel, and the tokens to predict.

    These are each sentinel followed by its run, and one more sentinel that ends the last run.
    """
    given: list[int] = []
    wanted: list[int] = []
    span = 0
    for place, token in enumerate(text):
        if not mask[place]:
            given.append(token)
            continue
        if place == 0 or not mask[place - 1]:
            given.append(sentinels[span])
            wanted.append(sentinels[span])
            span += 1
        wanted.append(token)
    return given, [*wanted, sentinels[span]]


def _sentinels(token_ids: Mapping[str, int]) -> list[int]:
    """Return the ids of sentinels 0, 1, … up to the first that the tokenizer lacks."""
    ids: list[int] = []
    while sentinel_token(len(ids)) in token_ids:
        ids.append(token_ids[sentinel_token(len(ids))])
    return ids
