"""A model folder, asked the way lm-eval asks: log-likelihoods and answers. Nothing is fetched.

The answers are those of lm-eval's own HFLM (a test compares them). This class is here for three things that HFLM does
not do: logits are computed only where a continuation stands, generation stops at any token that contains a stop
string, and a sampled answer depends on its own seed and prompt alone, not on what else was in the batch.

Legend: B batch, T tokens, V vocabulary, K kept positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from training.job import DataError

Conversation = Sequence[dict[str, str]]


def device() -> torch.device:
    """The accelerator where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer. Nothing is fetched."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def template_digest(tokenizer: Any) -> str | None:
    """sha256 of the chat template; None where the model has none."""
    template = tokenizer.chat_template
    return hashlib.sha256(template.encode("utf-8")).hexdigest() if template else None


class LocalModel(TemplateLM):
    """One loaded model. Weights keep the precision they were saved in, so that the machine does not choose it."""

    def __init__(self, folder: Path, *, batch_size: int) -> None:
        super().__init__()
        _check_folder(folder)
        self.tokenizer = load_tokenizer(folder)
        self.model = (
            AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True).to(device()).eval()
        )
        self.batch_size = batch_size
        self.max_length = int(self.model.config.max_position_embeddings)
        self.truncated_prompts = 0
        self._ends = _end_ids(self.tokenizer, self.model)
        self._texts: list[str] | None = None

    @property
    def eot_token_id(self) -> int:
        """The token that ends a document; it also stands before a continuation without context."""
        return int(self.tokenizer.eos_token_id)

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval names a cache of requests by; none is kept."""
        return ""

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids; a text that already begins with the first-token mark does not get a second one."""
        bos = self.tokenizer.bos_token
        if add_special_tokens is None and not (bos and string.startswith(bos)):
            return self.tokenizer.encode(string)
        return self.tokenizer.encode(string, add_special_tokens=bool(add_special_tokens))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as the model was trained to read it."""
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """For each (_, context, continuation): its log-probability in nats, and whether it is the greedy one."""
        sequences = [(context + continuation)[-(self.max_length + 1) :] for _, context, continuation in requests]
        self.truncated_prompts += sum(len(c) + len(x) > self.max_length + 1 for _, c, x in requests)
        results: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for batch in _by_length(sequences, self.batch_size):
            scored = self._score([sequences[i] for i in batch], [len(requests[i][2]) for i in batch])
            for i, result in zip(batch, scored, strict=True):
                results[i] = result
        return results

    @torch.inference_mode()
    def _score(self, sequences: list[list[int]], num_scored: list[int]) -> list[tuple[float, bool]]:
        inputs_BT = _padded([tokens[:-1] for tokens in sequences], self.eot_token_id, left=False).to(self.model.device)
        # Position p predicts token p + 1; only the positions before some continuation are needed.
        first = min(len(tokens) - 1 - scored for tokens, scored in zip(sequences, num_scored, strict=True))
        keep_K = torch.arange(first, inputs_BT.shape[1], device=inputs_BT.device)
        logits_BKV = self.model(input_ids=inputs_BT, use_cache=False, logits_to_keep=keep_K).logits.float()
        results = []
        for logits_KV, tokens, scored in zip(logits_BKV, sequences, num_scored, strict=True):
            end = len(tokens) - 1 - first
            wanted = torch.tensor(tokens[-scored:], device=logits_KV.device)
            chosen_KV = logits_KV[end - scored : end].log_softmax(-1)
            total = chosen_KV.gather(1, wanted[:, None]).sum().item()
            results.append((total, bool((chosen_KV.argmax(-1) == wanted).all())))
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability in nats of whole texts after the end-of-text token; long ones in separate windows."""
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
        """Greedy answers, cut at the first stop string of each request."""
        del disable_tqdm
        answers = [""] * len(requests)
        groups: dict[tuple[tuple[str, ...], int], list[int]] = {}
        for i, request in enumerate(requests):
            wanted = request.args[1]
            groups.setdefault((tuple(wanted.get("until", ())), int(wanted["max_gen_toks"])), []).append(i)
        for (until, max_new_tokens), members in groups.items():
            prompts = [requests[i].args[0] for i in members]
            for i, text in zip(members, self.answers(prompts, until=until, max_new_tokens=max_new_tokens), strict=True):
                answers[i] = text
        return answers

    def answers(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int,
        until: Sequence[str] = (),
        temperature: float = 0.0,
        seeds: Sequence[int] = (),
    ) -> list[str]:
        """What the model says after each prompt. Temperature 0 is greedy; else prompt i is sampled with `seeds[i]`."""
        encoded = [self._fitted(self.tok_encode(prompt), max_new_tokens) for prompt in prompts]
        ends = torch.tensor(sorted(self._ends | self._containing(until)), device=self.model.device)
        results = [""] * len(prompts)
        for batch in _by_length(encoded, self.batch_size):
            draw = _sampler(temperature, [seeds[i] for i in batch]) if temperature > 0 else _greedy
            for i, tokens in zip(
                batch, self._continue([encoded[i] for i in batch], max_new_tokens, ends, draw), strict=True
            ):
                results[i] = _cut(self.tokenizer.decode(tokens, skip_special_tokens=True), until)
        return results

    def _fitted(self, tokens: list[int], max_new_tokens: int) -> list[int]:
        room = self.max_length - max_new_tokens
        if room < 1:
            raise DataError(
                f"max_new_tokens={max_new_tokens} leaves no room for a prompt in {self.max_length} positions"
            )
        self.truncated_prompts += len(tokens) > room
        return tokens[-room:] or [self.prefix_token_id]

    def _containing(self, until: Sequence[str]) -> set[int]:
        """Ids of tokens whose text holds a stop string: generating one ends the answer."""
        if not until:
            return set()
        if self._texts is None:
            self._texts = self.tokenizer.batch_decode([[i] for i in range(len(self.tokenizer))])
        return {i for i, text in enumerate(self._texts) if any(stop in text for stop in until)}

    @torch.inference_mode()
    def _continue(
        self,
        prompts: list[list[int]],
        max_new_tokens: int,
        ends: torch.Tensor,
        draw: Callable[[torch.Tensor], torch.Tensor],
    ) -> list[list[int]]:
        """New tokens of each prompt, up to and with the first in `ends`. Prompts are padded on the left."""
        tokens_BT = _padded(prompts, self.eot_token_id, left=True).to(self.model.device)
        lengths_B = torch.tensor([len(prompt) for prompt in prompts], device=tokens_BT.device)
        width = tokens_BT.shape[1]
        mask_BT = torch.arange(width, device=tokens_BT.device)[None] >= (width - lengths_B)[:, None]
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        finished_B = torch.zeros(len(prompts), dtype=torch.bool, device=tokens_BT.device)
        cache, new = None, []
        for _ in range(max_new_tokens):
            output = self.model(
                input_ids=tokens_BT,
                attention_mask=mask_BT.long(),
                position_ids=positions_BT,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = output.past_key_values
            next_B = torch.where(finished_B, ends[0], draw(output.logits[:, -1].float()))
            new.append(next_B)
            finished_B = finished_B | torch.isin(next_B, ends)
            if finished_B.all():
                break
            tokens_BT = next_B[:, None]
            mask_BT = torch.cat([mask_BT, torch.ones_like(mask_BT[:, :1])], dim=1)
            positions_BT = positions_BT[:, -1:] + 1
        return [_until_end(row, set(ends.tolist())) for row in torch.stack(new, dim=1).tolist()]


def rewards(folder: Path, conversations: Sequence[Conversation], *, batch_size: int) -> list[float]:
    """What the reward model in `folder` gives each conversation, whose last message is the answer."""
    _check_folder(folder)
    tokenizer = load_tokenizer(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype="auto", local_files_only=True)
    model = model.to(device()).eval()
    longest = int(model.config.max_position_embeddings)
    texts = [tokenizer.apply_chat_template(list(turns), tokenize=False) for turns in conversations]
    encoded = [tokenizer.encode(text, add_special_tokens=False)[-longest:] for text in texts]
    results = [0.0] * len(encoded)
    for batch in _by_length(encoded, batch_size):
        rows = [encoded[i] for i in batch]
        inputs_BT = _padded(rows, int(model.config.pad_token_id), left=False).to(model.device)
        lengths_B = torch.tensor([len(row) for row in rows], device=inputs_BT.device)
        mask_BT = torch.arange(inputs_BT.shape[1], device=inputs_BT.device)[None] < lengths_B[:, None]
        with torch.inference_mode():
            values = (
                model(input_ids=inputs_BT, attention_mask=mask_BT.long(), use_cache=False).logits[:, 0].float().tolist()
            )
        for i, value in zip(batch, values, strict=True):
            results[i] = value
    return results


def _check_folder(folder: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise DataError(f"{folder}: no {name}; a model folder in the transformers layout is needed")


def _end_ids(tokenizer: Any, model: Any) -> set[int]:
    """Tokens that end an answer: every special token, and what the model's own generation settings say."""
    named = model.generation_config.eos_token_id
    listed = [named] if isinstance(named, int) else list(named or [])
    special = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special]
    return {*listed, *special, int(tokenizer.eos_token_id)}


def _by_length(sequences: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Indices in batches of about equal length, the longest first, so that too little memory shows at once."""
    order = sorted(range(len(sequences)), key=lambda i: (-len(sequences[i]), i))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def _padded(rows: Sequence[Sequence[int]], fill: int, *, left: bool) -> torch.Tensor:
    width = max(len(row) for row in rows)
    filled = [
        [fill] * (width - len(row)) + list(row) if left else list(row) + [fill] * (width - len(row)) for row in rows
    ]
    return torch.tensor(filled, dtype=torch.long)


def _greedy(logits_BV: torch.Tensor) -> torch.Tensor:
    return logits_BV.argmax(-1)


def _sampler(temperature: float, seeds: Sequence[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Draws from softmax(logits / temperature) by the Gumbel maximum, each row from its own generator."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def draw(logits_BV: torch.Tensor) -> torch.Tensor:
        noise = [torch.empty(logits_BV.shape[1]).exponential_(generator=generator) for generator in generators]
        return (logits_BV / temperature - torch.stack(noise).to(logits_BV.device).log()).argmax(-1)

    return draw


def _until_end(tokens: list[int], ends: set[int]) -> list[int]:
    for position, token in enumerate(tokens):
        if token in ends:
            return tokens[: position + 1]
    return tokens


def _cut(text: str, until: Sequence[str]) -> str:
    """The text before its first stop string."""
    return text[: min((at for stop in until if (at := text.find(stop)) >= 0), default=len(text))]
