"""A model in a local folder behind lm-eval's interface: log-likelihoods and generated answers. Nothing is fetched.

The results equal those of lm-eval's own HFLM (a test compares them). This class does three things that HFLM does not:
it reads a question once for all its choices, it computes logits only for continuations, and it generates answers by
`training.generate.sampler`.

Legend: B batch, T tokens, V vocabulary, K kept positions, C contexts, R rows (continuations) after them.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from training.data.exams.generation import longest_answer
from training.generate.answer_draws import ITEM, AnswerDraw, answer_draw, answer_seed
from training.generate.encoder import Encoder
from training.generate.model_folder import open_model, padded
from training.generate.passes.compact import of_tails, why_padded
from training.generate.passes.pass_rows import passes
from training.generate.sampler import Sampler, by_length, in_passes
from training.generate.spread import shared_out
from training.generate.turns import Message
from training.recipe.settings.evaluation import TASK_NEW_TOKENS

MIN_SHARED = 4  # tokens of a context that is read once for all its continuations; shorter ones are not worth a pass

Scored = tuple[float, bool]  # log-probability of a continuation in nats, and whether it is the greedy one
Asked = tuple[tuple[str, str], list[int], list[int]]  # lm-eval's request: (_, context tokens, continuation tokens)


def template_digest(tokenizer: Any) -> str | None:
    """sha256 of the chat template; None where the model has none."""
    template = tokenizer.chat_template
    return hashlib.sha256(template.encode("utf-8")).hexdigest() if template else None


class Prompt(str):
    """A conversation as lm-eval shows it and keeps it as text, with the tokens that a model reads in its place.

    A text cannot tell the control tokens of a template from those that somebody typed. `before` are the tokens up to
    the answer, and `begun` is how lm-eval's task begins the answer.
    """

    before: list[int]
    begun: str


class TokenizedRequests(TemplateLM):
    """The part of a model behind lm-eval's interface that makes tokens of what is asked, for so many positions."""

    cannot_write = ""  # why the model is asked for no written answer

    def __init__(self, encoder: Encoder, max_length: int) -> None:
        super().__init__()
        self.encoder, self.tokenizer, self.max_length = encoder, encoder.tokenizer, max_length

    @property
    def eot_token_id(self) -> int:
        """Id of the token that ends a document; it also precedes a continuation without context."""
        return int(self.tokenizer.eos_token_id)

    @property
    def tokenizer_name(self) -> str:
        """The name under which lm-eval would cache requests; empty, because requests are not cached."""
        return ""

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the token ids of a text; none of its characters become a control token."""
        return self.encoder.text(string, add_special_tokens=add_special_tokens is not False)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> Prompt:
        """Return a conversation that the model is to answer; without the prompt, it is to go on with the last turn."""
        turns = [Message(role=turn["role"], content=turn["content"]) for turn in chat_history]
        begun = "" if add_generation_prompt else turns.pop()["content"]
        (before,) = self.encoder.conversations([turns], is_prompt=True)  # first: its refusal is a sentence
        text = self.tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True)
        prompt = Prompt(text + begun)
        prompt.before, prompt.begun = before, begun
        return prompt

    def prompt_ids(self, prompt: str) -> list[int]:
        """Return the tokens of what lm-eval asks: a text, or a conversation in the chat template."""
        if not isinstance(prompt, Prompt):
            return self.tok_encode(prompt)
        return prompt.before + self.tok_encode(prompt.begun, add_special_tokens=False)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a context and of its continuation. An answer is one text, however it was begun."""
        if not isinstance(context, Prompt):
            return super()._encode_pair(context, continuation)
        begun = len(self.tok_encode(context.begun, add_special_tokens=False))
        answer = self.tok_encode(context.begun + continuation, add_special_tokens=False)
        return context.before + answer[:begun], answer[begun:]

    def fits(self, request: Instance) -> bool:
        """Whether a request is read whole, and its longest answer written, within the model's positions."""
        if request.request_type == "loglikelihood_rolling":
            return True  # in windows
        if request.request_type == "generate_until":
            prompt, asked = request.args
            return len(self.prompt_ids(prompt)) + longest_answer(asked, TASK_NEW_TOKENS) <= self.max_length
        context, continuation = request.args
        before = [[self.eot_token_id], self.tok_encode(continuation, add_special_tokens=False)]
        parts = self._encode_pair(context, continuation) if context else before
        return sum(map(len, parts)) <= self.max_length + 1  # the last token is predicted, not read


class LocalModel(TokenizedRequests):
    """One loaded model behind lm-eval's interface.

    lm-eval knows of one process only: the processes of a job share out the batches here (training/generate/spread.py).
    """

    def __init__(self, folder: Path, *, batch_size: int, shard: int = 1, gathers: bool = False) -> None:
        self.sampler = Sampler(folder, batch_size=batch_size, shard=shard, gathers=gathers)
        super().__init__(self.sampler.encoder, self.sampler.max_length)
        self.model, self.batch_size = self.sampler.model, batch_size
        if "past_key_values" not in inspect.signature(self.model.forward).parameters:
            self.cannot_write = f"{self.model.config.model_type} keeps no cache by which answers are written"
        self.generated: dict[str, dict[str, Any]] = {}  # by task: how its answers were generated

    @property
    def truncated_prompts(self) -> int:
        """Number of prompts whose beginning was cut off because they were too long."""
        return self.sampler.truncated_prompts

    def _loglikelihood_tokens(self, requests: list[Asked], **_: Any) -> list[Scored]:
        """Return the log-probability in nats of each continuation, and whether it is the greedy one."""
        longest = self.max_length + 1  # the last token of a sequence is predicted, not read
        self.sampler.truncated_prompts += sum(len(c) + len(x) > longest for _, c, x in requests)
        if not why_padded(self.model):
            return self._in_compact_passes(requests, longest)
        shared, single = self._by_context(requests)
        results: list[Scored] = [(0.0, False)] * len(requests)

        def score(batch: list[int]) -> list[Scored]:
            sequences = [(requests[i][1] + requests[i][2])[-longest:] for i in batch]
            scored = [len(requests[i][2]) for i in batch]
            # Of a whole window the logits of all positions are needed.
            some = passes([len(tokens) for tokens in sequences], vocabulary=self.model.config.vocab_size)
            return [one for rows in some for one in self._score(sequences[rows], scored[rows])]

        def score_shared(batch: list[list[int]]) -> list[Scored]:
            return self._score_shared([(requests[g[0]][1], [requests[i][2] for i in g]) for g in batch])

        lengths = [range(min(len(requests[i][1]) + len(requests[i][2]), longest)) for i in single]
        batches = ([single[n] for n in batch] for batch in by_length(lengths, self.batch_size))
        for batch, scored in shared_out(batches, score, model=self.model):
            for i, result in zip(batch, scored, strict=True):
                results[i] = result
        for batch, scored in shared_out(self._whole_groups(shared, requests), score_shared, model=self.model):
            for i, result in zip(chain.from_iterable(batch), scored, strict=True):
                results[i] = result
        return results

    def _in_compact_passes(self, requests: list[Asked], longest: int) -> list[Scored]:
        """Return what `_loglikelihood_tokens` returns, by passes without padding that read a context once."""
        results: list[Scored] = [(0.0, False)] * len(requests)

        def score(batch: list[int]) -> list[Scored]:
            sequences = [(requests[i][1] + requests[i][2])[-longest:] for i in batch]
            with torch.inference_mode():
                return of_tails(self.model, sequences, [len(requests[i][2]) for i in batch])

        for batch, scored in shared_out(self._neighbours(requests), score, model=self.model):
            for i, result in zip(batch, scored, strict=True):
                results[i] = result
        return results

    def _neighbours(self, requests: list[Asked]) -> Iterator[list[int]]:
        """Yield batches of at most `batch_size` requests. Those of one context are together, if a batch holds them."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for i in sorted(range(len(requests)), key=lambda i: requests[i][1]):
            groups.setdefault(tuple(requests[i][1]), []).append(i)
        batch: list[int] = []
        for group in groups.values():
            if batch and len(batch) + len(group) > self.batch_size:
                yield batch
                batch = []
            batch += group
            while len(batch) > self.batch_size:
                yield batch[: self.batch_size]
                batch = batch[self.batch_size :]
        if batch:
            yield batch

    def _by_context(self, requests: list[Asked]) -> tuple[list[list[int]], list[int]]:
        """Divide requests into groups of one context, of at most a batch, and those whose context is not shared.

        A request that must be cut to the model's length has a context of its own, and so has each request of a model
        that keeps another state than keys and values, because such a state cannot be given to several continuations.
        """
        if keeps_a_state(self.model):
            return [], list(range(len(requests)))
        groups: dict[tuple[int, ...], list[int]] = {}
        single: list[int] = []
        for i, (_, context, continuation) in enumerate(requests):
            fits = len(context) + len(continuation) <= self.max_length + 1
            if fits and len(context) >= MIN_SHARED and continuation:
                groups.setdefault(tuple(context), []).append(i)
            else:
                single.append(i)
        pieces = [g[n : n + self.batch_size] for g in groups.values() for n in range(0, len(g), self.batch_size)]
        single += [i for piece in pieces if len(piece) == 1 for i in piece]
        return [piece for piece in pieces if len(piece) > 1], single

    def _whole_groups(self, groups: list[list[int]], requests: list[Asked]) -> Iterator[list[list[int]]]:
        """Yield batches of groups of requests with one context, those with the longest continuations first.

        Groups of similar lengths share a batch, which has at most `batch_size` requests. Continuations count before
        contexts, because there are more of them.
        """

        def lengths(group: list[int]) -> tuple[int, int]:
            return max(len(requests[i][2]) for i in group), len(requests[group[0]][1])

        batch: list[list[int]] = []
        for group in sorted(groups, key=lambda group: (*(-length for length in lengths(group)), group)):
            if batch and sum(map(len, batch)) + len(group) > self.batch_size:
                yield batch
                batch = []
            batch.append(group)
        if batch:
            yield batch

    @torch.inference_mode()
    def _score_shared(self, groups: list[tuple[list[int], list[list[int]]]]) -> list[Scored]:
        """Score the continuations of each context: a pass over the contexts, and one over all that comes after them.

        There are more passes of either kind if one would read too much, or keep the keys and values of too much.
        """
        some = passes([len(context) for context, _ in groups])
        return [one for several in some for one in self._score_contexts(groups[several])]

    def _score_contexts(self, groups: list[tuple[list[int], list[list[int]]]]) -> list[Scored]:
        """Score the continuations of contexts that one pass reads.

        Contexts are padded on the left, so that continuations follow them directly.
        """
        contexts = [context for context, _ in groups]
        owner_R = torch.tensor([n for n, (_, after) in enumerate(groups) for _ in after], device=self.model.device)
        rows = [tokens for _, after in groups for tokens in after]
        inputs_CT = padded(contexts, self.eot_token_id, left=True).to(self.model.device)
        lengths_C = torch.tensor([len(context) for context in contexts], device=inputs_CT.device)
        width = inputs_CT.shape[1]
        mask_CT = (torch.arange(width, device=inputs_CT.device)[None] >= (width - lengths_C)[:, None]).long()
        read = self.model(
            input_ids=inputs_CT,
            attention_mask=mask_CT,
            position_ids=(mask_CT.cumsum(-1) - 1).clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
        )
        first_CV, cache = read.logits[:, -1].float(), read.past_key_values
        del read
        results: list[Scored] = []
        for some in self._passes_after(width, rows):
            owner, tokens = owner_R[some], rows[some]
            later_RTV: Sequence[torch.Tensor] = [first_CV[:0] for _ in tokens]
            if max(map(len, tokens)) > 1:
                own = cache if some.stop == len(rows) else _copied(cache)
                own.batch_select_indices(owner)
                later_RT = padded([one[:-1] or [self.eot_token_id] for one in tokens], self.eot_token_id, left=False)
                later_RT = later_RT.to(inputs_CT.device)
                later_RTV = self.model(
                    input_ids=later_RT,
                    attention_mask=torch.cat([mask_CT[owner], torch.ones_like(later_RT)], dim=1),
                    position_ids=lengths_C[owner][:, None] + torch.arange(later_RT.shape[1], device=later_RT.device),
                    past_key_values=own,
                    use_cache=True,
                ).logits
            for number, later_TV, one in zip(owner.tolist(), later_RTV, tokens, strict=True):
                results.append(_scored(torch.cat([first_CV[number][None], later_TV[: len(one) - 1].float()]), one))
        return results

    def _passes_after(self, width: int, rows: list[list[int]]) -> Iterator[slice]:
        """Yield slices of continuations that one pass may read after contexts of `width` tokens.

        Their keys and values are kept, those of their contexts included, and the logits of all their tokens.
        """
        for kept in passes([width + len(tokens) for tokens in rows]):
            lengths = [len(tokens) for tokens in rows[kept]]
            for some in passes(lengths, vocabulary=self.model.config.vocab_size):
                yield slice(kept.start + some.start, kept.start + some.stop)

    @torch.inference_mode()
    def _score(self, sequences: list[list[int]], num_scored: list[int]) -> list[Scored]:
        inputs_BT = padded([tokens[:-1] for tokens in sequences], self.eot_token_id, left=False).to(self.model.device)
        # Position p predicts token p + 1; only positions from the earliest continuation on are needed.
        first = min(len(tokens) - 1 - scored for tokens, scored in zip(sequences, num_scored, strict=True))
        keep_K = torch.arange(first, inputs_BT.shape[1], device=inputs_BT.device)
        logits_BKV = self.model(input_ids=inputs_BT, use_cache=False, logits_to_keep=keep_K).logits.float()
        results = []
        for logits_KV, tokens, scored in zip(logits_BKV, sequences, num_scored, strict=True):
            end = len(tokens) - 1 - first
            results.append(_scored(logits_KV[end - scored : end], tokens[-scored:]))
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability in nats of each whole text; long texts are read in separate windows.

        Each text, and not each window, follows the end-of-text token.
        """
        del disable_tqdm
        windows: list[tuple[tuple[str, str], list[int], list[int]]] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            for start in range(0, len(tokens), self.max_length):
                before = tokens[start - 1] if start else self.prefix_token_id
                windows.append((("", ""), [before], tokens[start : start + self.max_length]))
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += value
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return answers to the requests, each cut at its first stop string; note by task how they were made.

        A request that comes several times is answered as often. Each sampled answer has a seed of its own, from suite,
        item and its number there, so it depends on no other item and on no batch.
        """
        del disable_tqdm
        answers, seeds = [""] * len(requests), [0] * len(requests)
        groups: dict[tuple[tuple[str, ...], int, AnswerDraw], list[int]] = {}
        times = Counter[int]()
        for i, request in enumerate(requests):
            _, wanted = request.args
            draw, task = answer_draw(wanted), str(request.task_name)
            seeds[i] = answer_seed(task, wanted.get(ITEM, ""), times[id(request)], draw.seed)
            times[id(request)] += 1
            until = wanted.get("until") or ()
            stops = (until,) if isinstance(until, str) else tuple(until)
            longest = longest_answer(wanted, TASK_NEW_TOKENS)
            groups.setdefault((stops, longest, draw), []).append(i)
            made = {"until": list(stops), "max_new_tokens": longest, **draw.as_json()}
            self.generated[task] = made | ({"repeats": times[id(request)]} if draw.temperature else {})
        for (until, max_new_tokens, draw), members in groups.items():
            given = self.sampler.answers(
                [self.prompt_ids(requests[i].args[0]) for i in members],
                until=until,
                max_new_tokens=max_new_tokens,
                temperature=draw.temperature,
                top_p=draw.top_p,
                seeds=[seeds[i] for i in members],
            )
            for i, text in zip(members, given, strict=True):
                answers[i] = text
        return answers


def keeps_a_state(model: Any) -> bool:
    """Whether a model keeps of what it has read more than keys and values, as Mamba, LFM2 and Qwen3-Next do."""
    layers = getattr(model.config, "layer_types", None) or ()
    return model._is_stateful or any("linear" in kind or "attention" not in kind for kind in layers)


def _copied(cache: Any) -> Any:
    """Return a cache with the same tensors, which is to be selected from, so that nothing is written into them."""
    copied = copy(cache)
    copied.layers = [copy(layer) for layer in cache.layers]
    return copied


def _scored(logits_KV: torch.Tensor, tokens: Sequence[int]) -> Scored:
    """Return what logits at the positions before `tokens` say of them."""
    wanted = torch.tensor(tokens, device=logits_KV.device)
    chosen_KV = logits_KV.log_softmax(-1)
    return chosen_KV.gather(1, wanted[:, None]).sum().item(), bool((chosen_KV.argmax(-1) == wanted).all())


def rewards(
    folder: Path, conversations: Sequence[Sequence[Message]], *, batch_size: int, shard: int = 1
) -> tuple[list[float], int]:
    """Return the reward that the model in `folder` gives to each conversation, whose last message is the answer.

    A conversation longer than the model's context loses its beginning; the second value is the number of those.

    Conversations are made of tokens by the folder's own template and tokenizer. The processes of a job share out the
    batches, and with `shard` the weights. A batch is one pass; it has fewer than `batch_size` conversations where these
    are long, and one alone if the model has no padding.
    """
    model = open_model(folder, dtype="auto", reward=True, shard=shard).eval()
    longest = int(model.config.max_position_embeddings)
    whole = Encoder(folder).conversations(conversations, is_prompt=False)
    encoded = [tokens[-longest:] for tokens in whole]
    results = [0.0] * len(encoded)
    fill = model.config.pad_token_id

    def scored(batch: list[int]) -> list[float]:
        rows = [encoded[i] for i in batch]
        inputs_BT = padded(rows, fill or 0, left=False).to(model.device)
        lengths_B = torch.tensor([len(row) for row in rows], device=inputs_BT.device)
        mask_BT = torch.arange(inputs_BT.shape[1], device=inputs_BT.device)[None] < lengths_B[:, None]
        with torch.inference_mode():
            return (
                model(input_ids=inputs_BT, attention_mask=mask_BT.long(), use_cache=False).logits[:, 0].float().tolist()
            )

    for batch, values in shared_out(in_passes(encoded, 1 if fill is None else batch_size), scored, model=model):
        for i, value in zip(batch, values, strict=True):
            results[i] = value
    return results, sum(len(tokens) > longest for tokens in whole)
