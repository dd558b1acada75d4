"""Generate text with a model folder in the transformers layout. Nothing is downloaded.

Generation stops at a token outside of thoughts that contains a stop string. A sampled text depends only on its own seed
and prompt, not on the other prompts of the batch.

Legend: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from training.contract.job import DataError
from training.data.exams.grading import before_stop, opened_thought
from training.generate.encoder import Encoder
from training.generate.model_folder import open_model, padded
from training.generate.passes.compact import why_padded
from training.generate.passes.pass_rows import passes
from training.generate.passes.roomy_cache import roomy_cache
from training.generate.spread import shared_out

Draw = Callable[[torch.Tensor], torch.Tensor]
Stopped = Callable[[int, list[int]], bool]  # whether the answer of a row, given its tokens, has ended
LEAVING = 4  # rows leave a batch when a fourth of them has ended
SLICE_TOKENS = 256  # of a pass, fewer of which take a processor hardly less time
OPENING_TOKENS = 16  # at a prompt's end, among which the sign that begins a thought is looked for


class Sampler:
    """A loaded model that continues texts.

    Its weights keep the precision in which they were saved, so that the precision does not depend on the machine. With
    `shard`, each weight is divided among so many processes; `gathers`: whether the weights are gathered once for all
    answers that are asked for together, not for each of their tokens. If the job has several processes, they share out
    the batches, and each gets all results.
    """

    def __init__(self, folder: Path, *, batch_size: int, shard: int = 1, gathers: bool = False) -> None:
        self.model = open_model(folder, dtype="auto", shard=shard).eval()
        self.encoder = Encoder(folder)
        self.tokenizer = self.encoder.tokenizer
        self.batch_size, self.gathers = batch_size, gathers
        self.max_length = int(self.model.config.max_position_embeddings)
        self.truncated_prompts = 0
        self._ends = _end_ids(self.tokenizer, self.model)
        self._texts: list[str] | None = None

    @property
    def end_id(self) -> int:
        """The id of the token that ends a document; it also serves as the prompt where the prompt is empty."""
        return int(self.tokenizer.eos_token_id)

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        until: Sequence[str] = (),
        temperature: float = 0.0,
        top_p: float = 1.0,
        seeds: Sequence[int] = (),
    ) -> list[str]:
        """Return the model's continuation of each prompt's tokens as text, cut before the first stop string in `until`.

        A stop string counts outside of thoughts alone; the sign at the end of a prompt that begins one is part of the
        answer. Temperature 0 is greedy; otherwise prompt i is sampled with `seeds[i]`. `top_p` below 1 draws only from
        the likeliest tokens that together have this probability (arXiv 1904.09751).
        """
        given = self.answer_tokens(
            prompts,
            max_new_tokens=max_new_tokens,
            until=until,
            temperature=temperature,
            top_p=top_p,
            seeds=seeds,
        )
        return [before_stop(self._said(*one), until) for one in zip(prompts, given, strict=True)]

    def answer_tokens(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        until: Sequence[str] = (),
        temperature: float = 0.0,
        top_p: float = 1.0,
        seeds: Sequence[int] = (),
    ) -> list[list[int]]:
        """Return the token ids with which the model continues each prompt, drawn as `answers` draws them.

        An answer includes the token that ended it.
        """
        fitted = [self._fitted(prompt, max_new_tokens) for prompt in prompts]
        ends = torch.tensor(sorted(self._ends), device=self.model.device)
        stops = torch.tensor(sorted(self._containing(until) - self._ends), device=self.model.device)
        results: list[list[int]] = [[] for _ in prompts]

        @torch.inference_mode()
        def answered(batch: list[int]) -> list[list[int]]:
            draw = _drawn(temperature, top_p, [seeds[i] for i in batch]) if temperature > 0 else _greedy
            some = [fitted[i] for i in batch]

            def stopped(row: int, tokens: list[int]) -> bool:
                text = self._said(some[row], tokens)
                return before_stop(text, until) != text

            # As in training, for models whose layers treat each position by itself, except in attention.
            is_plain = not why_padded(self.model)
            cache = roomy_cache(self.model.config) if is_plain else None
            how = {"fill": self.end_id, "cache": cache, "stops": stops, "stopped": stopped, "leave": is_plain}
            return continued(self.model, some, max_new_tokens, ends, draw, **how)

        batches = in_passes(fitted, self.batch_size, more_tokens=max_new_tokens)
        for batch, answers in shared_out(batches, answered, model=self.model, gathers=self.gathers):
            for i, tokens in zip(batch, answers, strict=True):
                results[i] = tokens
        return results

    def _fitted(self, tokens: Sequence[int], max_new_tokens: int) -> list[int]:
        room = self.max_length - max_new_tokens
        if room < 1:
            raise DataError(
                f"max_new_tokens={max_new_tokens} leaves no room for a prompt in {self.max_length} positions"
            )
        self.truncated_prompts += len(tokens) > room
        return list(tokens[-room:]) or [self.end_id]

    def _said(self, prompt: Sequence[int], tokens: Sequence[int]) -> str:
        """Return an answer's text, with the sign that begins its thought where the prompt ends in one."""
        opened = opened_thought(self.tokenizer.decode(list(prompt[-OPENING_TOKENS:])))
        return opened + self.tokenizer.decode(tokens, skip_special_tokens=True)

    def _containing(self, until: Sequence[str]) -> set[int]:
        """Return the ids of tokens whose text contains a stop string."""
        if not until:
            return set()
        if self._texts is None:
            self._texts = self.tokenizer.batch_decode([[i] for i in range(len(self.tokenizer))])
        return {i for i, text in enumerate(self._texts) if any(stop in text for stop in until)}


def continued(
    model: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    ends: torch.Tensor,
    draw: Draw,
    *,
    fill: int,
    cache: Any = None,
    stops: torch.Tensor | None = None,
    stopped: Stopped = lambda row, tokens: True,
    leave: bool = False,
) -> list[list[int]]:
    """Return the model's new tokens after each prompt, up to and including the first token in `ends`.

    At a token in `stops`, `stopped` says whether it ends the answer too. Prompts are padded on the left with `fill`.
    `draw` chooses a token for each row from the logits of the next one. With an empty `cache`, which takes the place of
    transformers' own, prompts that are equal are read once. With `leave`, which needs one, prompts of similar lengths
    are read together, and answers that have ended leave the batch, so that fewer positions are computed.
    """
    distinct = list(prompts) if cache is None else [list(one) for one in dict.fromkeys(map(tuple, prompts))]
    rows = _ReadRows(model, distinct, fill, cache, in_slices=leave)
    if len(distinct) < len(prompts):
        rows.choose(torch.tensor([distinct.index(list(one)) for one in prompts], device=model.device))
    finished_B = torch.zeros(len(prompts), dtype=torch.bool, device=model.device)
    lengths_N = torch.zeros(len(prompts), dtype=torch.int64, device=model.device)
    left_R = torch.arange(len(prompts), device=model.device)  # the rows that are still computed
    new: list[torch.Tensor] = []
    while True:
        next_B = torch.where(finished_B, ends[0], draw(_in_place(rows.logits_BV, left_R, len(prompts))))
        new.append(next_B)
        lengths_N += ~finished_B
        finished_B = finished_B | torch.isin(next_B, ends)
        if stops is not None and len(stops):
            for row in (torch.isin(next_B, stops) & ~finished_B).nonzero()[:, 0].tolist():
                finished_B[row] = stopped(row, [int(one[row]) for one in new])
        if finished_B.all() or len(new) == max_new_tokens:
            break
        ended_R = finished_B[left_R]
        if leave and LEAVING * int(ended_R.sum()) >= len(left_R):
            rows.choose((~ended_R).nonzero()[:, 0])
            left_R = left_R[~ended_R]
        rows.go_on(next_B[left_R])
    answers = torch.stack(new, dim=1).tolist()
    return [tokens[:length] for tokens, length in zip(answers, lengths_N.tolist(), strict=True)]


class _ReadRows:
    """What a model has read of rows that it continues, and the logits of the next token of each."""

    logits_BV: torch.Tensor

    def __init__(
        self, model: Any, prompts: Sequence[Sequence[int]], fill: int, cache: Any, in_slices: bool = False
    ) -> None:
        lengths_B = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
        width = int(lengths_B.max())
        self._model, self._cache = model, cache
        self._mask_BT = torch.arange(width, device=model.device)[None] >= (width - lengths_B)[:, None]
        self._positions_BT = (self._mask_BT.cumsum(-1) - 1).clamp(min=0)
        order = sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))
        places = [order[some] for some in similar([len(prompts[row]) for row in order])] if in_slices else []
        if len(places) > 1:
            self._read_in_slices(prompts, fill, places)
        else:
            self._read(padded(prompts, fill, left=True).to(model.device))
        self._positions_BT = self._positions_BT[:, -1:]

    def _read(self, tokens_BT: torch.Tensor) -> None:
        output = self._model(
            input_ids=tokens_BT,
            attention_mask=self._mask_BT.long(),
            position_ids=self._positions_BT,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache, self.logits_BV = output.past_key_values, output.logits[:, -1].float()

    def _read_in_slices(self, prompts: Sequence[Sequence[int]], fill: int, places: Sequence[Sequence[int]]) -> None:
        """Read the prompts at some places together, then those at others, and put what was read into one cache."""
        read = [_ReadRows(self._model, [prompts[row] for row in some], fill, None) for some in places]
        width = self._mask_BT.shape[1]
        for number in range(len(read[0]._cache.layers)):
            whole = []
            for name in ("keys", "values"):
                parts = [getattr(one._cache.layers[number], name) for one in read]
                whole.append(parts[0].new_zeros((len(prompts), parts[0].shape[1], width, parts[0].shape[3])))
                for rows, part in zip(places, parts, strict=True):
                    whole[-1][rows, :, width - part.shape[2] :] = part
            for one in read:  # held twice is one layer alone
                one._cache.layers[number].keys = one._cache.layers[number].values = None
            self._cache.update(*whole, number)
        self.logits_BV = read[0].logits_BV.new_empty((len(prompts), read[0].logits_BV.shape[1]))
        for rows, one in zip(places, read, strict=True):
            self.logits_BV[rows] = one.logits_BV

    def choose(self, rows_B: torch.Tensor) -> None:
        """Go on with these rows alone; one may come several times."""
        self._cache.batch_select_indices(rows_B)
        self.logits_BV, self._mask_BT = self.logits_BV[rows_B], self._mask_BT[rows_B]
        self._positions_BT = self._positions_BT[rows_B]

    def go_on(self, next_B: torch.Tensor) -> None:
        """Read one token more of each row."""
        self._mask_BT = torch.cat([self._mask_BT, torch.ones_like(self._mask_BT[:, :1])], dim=1)
        self._positions_BT = self._positions_BT + 1
        self._read(next_B[:, None])


def _in_place(logits_RV: torch.Tensor, rows_R: torch.Tensor, number: int) -> torch.Tensor:
    """Return the logits of so many rows of which some are no more computed; theirs are zeros."""
    if len(rows_R) == number:
        return logits_RV
    logits_BV = logits_RV.new_zeros((number, logits_RV.shape[1]))
    logits_BV[rows_R] = logits_RV
    return logits_BV


def similar(lengths: Sequence[int]) -> Iterator[slice]:
    """Yield slices of rows, the longest first, that one pass reads with little padding.

    A slice that has enough tokens for a pass ends before a row that would be padded by more than a fifth.
    """
    start = 0
    for at, length in enumerate(lengths):
        if (at - start) * lengths[start] >= SLICE_TOKENS and 5 * length < 4 * lengths[start]:
            yield slice(start, at)
            start = at
    yield slice(start, len(lengths))


def seeds_of(seed: int, count: int) -> list[int]:
    """Return a different seed for each of `count` prompts, derived from `seed`."""
    return [seed * 1_000_003 + number for number in range(count)]


def by_length(sequences: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Yield batches of indices of sequences with similar lengths.

    The longest come first, so that a lack of memory shows in the first batch.
    """
    order = sorted(range(len(sequences)), key=lambda i: (-len(sequences[i]), i))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def in_passes(sequences: Sequence[Sequence[int]], batch_size: int, *, more_tokens: int = 0) -> Iterator[list[int]]:
    """Yield batches of indices of sequences with similar lengths, the longest first, each small enough for one pass.

    A batch has at most `batch_size` sequences and, with padding, PASS_TOKENS tokens; or it is one longer sequence.
    `more_tokens` come after each sequence. Keys, values and states of so many positions are held at once. Which
    sequences are together depends on the lengths of all alone, not on a machine.
    """
    order = list(chain.from_iterable(by_length(sequences, batch_size)))
    for some in passes([len(sequences[i]) + more_tokens for i in order], most_rows=batch_size):
        yield order[some]


def _end_ids(tokenizer: Any, model: Any) -> set[int]:
    """Return the ids of tokens that end an answer: all special tokens and those of the model's generation settings."""
    named = model.generation_config.eos_token_id
    listed = [named] if isinstance(named, int) else list(named or [])
    special = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special]
    return {*listed, *special, int(tokenizer.eos_token_id)}


def _greedy(logits_BV: torch.Tensor) -> torch.Tensor:
    return logits_BV.argmax(-1)


def _drawn(temperature: float, top_p: float, seeds: Sequence[int]) -> Draw:
    """Return a function that draws tokens from softmax(logits / temperature) by the Gumbel-max trick.

    Each row has its own random generator.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def draw(logits_BV: torch.Tensor) -> torch.Tensor:
        noise = [torch.empty(logits_BV.shape[1]).exponential_(generator=generator) for generator in generators]
        scaled_BV = nucleus(logits_BV / temperature, top_p)
        return (scaled_BV - torch.stack(noise).to(logits_BV.device).log()).argmax(-1)

    return draw


def nucleus(logits_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return the logits with all tokens outside the nucleus set to minus infinity.

    The nucleus is the smallest set of likeliest tokens whose probabilities add up to at least `top_p`.
    """
    if top_p >= 1:
        return logits_BV
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    before_BV = sorted_BV.softmax(-1).cumsum(-1) - sorted_BV.softmax(-1)
    kept_BV = torch.zeros_like(before_BV, dtype=torch.bool).scatter(-1, order_BV, before_BV < top_p)
    return logits_BV.masked_fill(~kept_BV, float("-inf"))
