"""How much post-training and scoring read, as far as the artifacts made so far tell: numbers of examples, and lengths.

Records hold no lengths. They are counted on SAMPLED rows of a file at equal distances, by the tokenizer that the recipe
makes or adopts. As long as there is none, a token is taken for a byte, which is the most that there can be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from assets.chain import partition_key
from training.posttrain.sorting import HELD_OUT_FILE, INSTRUCTIONS_FILE, PROMPTS_FILE, TRAIN_FILE
from training.recipe import Recipe
from training.scopes import has_assets

SAMPLED = 256  # rows of a file whose tokens are counted
CONTROL_TOKENS = 2  # of a message: its role, and its end
TOKENIZER_FILE = "tokenizer.json"

Row = Mapping[str, Any]


class Artifacts(Protocol):
    """What is made under a root."""

    def record(self, asset: str, partition: str) -> Mapping[str, Any]:
        """Return the record of an artifact; empty if it is not made."""
        ...

    def folder(self, asset: str, partition: str) -> Path | None:
        """Return the folder of an artifact; None if it is not made."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """A number of rows, and the mean of their tokens; of pairs, of prompt and answer."""

    number: int
    length: float


class Amounts:
    """The amounts that a recipe's made artifacts tell. Each is None as long as they are not made."""

    def __init__(self, recipe: Recipe, artifacts: Artifacts) -> None:
        self._recipe, self._artifacts = recipe, artifacts

    def conversations(self, longest: int) -> Amount | None:
        """Return how many conversations SFT trains on, and their mean tokens; longer ones are cut."""
        return self._rows(
            "instruction_data", INSTRUCTIONS_FILE, lambda row: min(longest, self._said(row["messages"])), longest
        )

    def pairs(self, longest: int) -> Amount | None:
        """Return the number of preference pairs to train on and their mean length in tokens.

        Where answers are rated one by one, without pairs, each counts as half a pair.
        """
        return self._rows("preference_data", TRAIN_FILE, self._of_a_pair, longest)

    def held_out_pairs(self, longest: int) -> Amount | None:
        """Return how many preference pairs are held out, and their mean tokens."""
        return self._rows("preference_data", HELD_OUT_FILE, self._of_a_pair, longest)

    def prompts(self, longest: int) -> Amount | None:
        """Return how many prompts GRPO and RLOO sample answers to, and their mean tokens.

        They are the recipe's, or those of its preference pairs.
        """
        own = bool(self._recipe.align.prompts)
        asset, file = ("prompt_data", PROMPTS_FILE) if own else ("preference_data", TRAIN_FILE)
        return self._rows(asset, file, lambda row: 1 + self._said(row["prompt"]), longest)

    def items(self, longest: int) -> dict[str, Amount] | None:
        """Return the exam items by suite: their questions with the right answers, behind as many examples."""
        folder = self._artifacts.folder("benchmark_index", self._recipe.name)
        metrics = self._artifacts.record("benchmark_index", self._recipe.name).get("metrics", {})
        suites = self._recipe.evaluation.suites
        numbers = {suite.name: metrics.get(f"items_{suite.name}") for suite in suites}
        if folder is None or None in numbers.values():
            return None
        texts = _texts_of_items(folder)
        found = {}
        for suite in suites:
            asked = list(texts.get(suite.name, {}).values())
            own = fmean(self._tokens(text) for text in _spaced(asked)) if asked else float(longest)
            length = min(float(longest), own * (1 + (suite.num_fewshot or 0)))
            found[suite.name] = Amount(number=int(numbers[suite.name] or 0), length=length)
        return found

    @property
    def held_out_texts(self) -> Amount | None:
        """The held-out documents on which models are measured."""
        recipe = self._recipe
        limit = recipe.evaluation.held_out_limit
        if limit == 0 or not has_assets(recipe, "corpus"):
            return Amount(number=0, length=0.0)
        names = [partition_key(recipe, one.name) for one in recipe.snapshots]
        metrics = [self._artifacts.record("token_shards", name).get("metrics") for name in names]
        if not metrics or None in metrics:
            return None
        documents, tokens = (sum(one.get(name, 0) for one in metrics if one) for name in ("documents", "tokens"))
        held_out = round(documents * recipe.mixture.held_out_fraction)
        number = held_out if limit is None else min(held_out, limit)
        return Amount(number=number, length=tokens / documents if documents else 0.0)

    def _rows(self, asset: str, file: str, count: Callable[[Row], float], longest: int) -> Amount | None:
        """Return how many rows of a file are not longer than `longest`, and their mean length, by a sample of them.

        `count` returns the tokens of a row.
        """
        folder = self._artifacts.folder(asset, self._recipe.name)
        number = int(self._artifacts.record(asset, self._recipe.name).get("metrics", {}).get(_COUNTED[file], 0))
        if folder is None or not number:
            return None
        try:
            found = [count(row) for row in sampled_rows(folder / file, rows=number, most=SAMPLED)]
        except (OSError, ValueError, KeyError):
            return None  # `compare` reports damage
        fitting = [length for length in found if length <= longest]
        if not fitting:
            return None
        return Amount(number=round(number * len(fitting) / len(found)), length=fmean(fitting))

    def _of_a_pair(self, row: Row) -> float:
        """Return the tokens of a pair's prompt with an answer, the mean of both; of a row of one answer, its own."""
        prompt = 1 + self._said(row["prompt"])
        answers = [row["chosen"], row["rejected"]] if "chosen" in row else [row["completion"]]
        return prompt + fmean(self._tokens(messages[0]["content"]) + 1 for messages in answers)

    def _said(self, messages: list[Row]) -> int:
        """Return the tokens of a conversation, with the system prompt of the recipe before it."""
        system = self._recipe.sft.system_prompt
        texts = [message["content"] for message in messages]
        if system and messages and messages[0]["role"] != "system":
            texts = [system, *texts]
        return sum(self._tokens(text) + CONTROL_TOKENS for text in texts)

    def _tokens(self, text: str) -> int:
        return (
            len(text.encode())
            if self._tokenizer is None
            else len(self._tokenizer.encode(text, add_special_tokens=False).ids)
        )

    @cached_property
    def _tokenizer(self) -> Any:
        places = (("tokenizer", ""), ("adopted_model", "model"))
        for asset, inside in places:
            folder = self._artifacts.folder(asset, self._recipe.name)
            if folder is not None and (folder / inside / TOKENIZER_FILE).is_file():
                from tokenizers import Tokenizer

                return Tokenizer.from_file(str(folder / inside / TOKENIZER_FILE))
        return None


# The numbers of rows in the records, by file.
_COUNTED = {
    INSTRUCTIONS_FILE: "conversations",
    TRAIN_FILE: "train_pairs",
    HELD_OUT_FILE: "held_out_pairs",
    PROMPTS_FILE: "prompts",
}


def sampled_rows(path: Path, *, rows: int, most: int) -> Iterator[Row]:
    """Yield the rows of a file of JSON lines, which has so many; of more than `most`, as many at equal distances."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        if rows <= most:
            yield from map(json.loads, stream)
            return
        last = -1
        for place in range(most):
            stream.seek(size * place // most)
            if place:
                stream.readline()  # the rest of a row
            if stream.tell() > last and (line := stream.readline()):
                last = stream.tell() - 1
                yield json.loads(line)


def _texts_of_items(folder: Path) -> dict[str, dict[str, str]]:
    """Return the texts of exam items, by the name of the suite and the id of the item."""
    import pyarrow.parquet as pq

    found: dict[str, dict[str, str]] = {}
    try:
        rows = pq.read_table(folder / "items.parquet", columns=["benchmark", "item", "text"]).to_pylist()
    except OSError:
        return {}  # `compare` reports damage
    for row in rows:
        of_suite = found.setdefault(row["benchmark"], {})
        of_suite[row["item"]] = of_suite.get(row["item"], "") + row["text"]
    return found


def _spaced(texts: list[str]) -> list[str]:
    """Return at most SAMPLED of the texts, at equal distances."""
    return texts[:: max(1, len(texts) // SAMPLED)]
