"""The recipe section `tokenizer`: how the vocabulary is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.contract.records import RecipeError, Uri

OF_CALLS = ("padding", "truncation")  # fields of a tokenizer.json that belong to a call, not to the vocabulary
SPECIAL_TOKENS = ("<|endoftext|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerRecipe:
    """Settings of the byte-level vocabulary and its special tokens. The chat template is a setting of post-training.

    `model` is the method that splits a word into pieces: `bpe` by merges in order, `wordpiece` by the longest piece
    from the left, `unigram` into the most probable pieces.
    """

    snapshots: tuple[str, ...]
    vocabulary: int
    model: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    reference: Uri | None = None  # a tokenizer.json whose fertility is reported for comparison; None: none
    study: tuple[int, ...] = ()  # other vocabulary sizes, trained and measured only for the report
    sample_bytes: int = 50_000_000
    min_frequency: int = 2
    # The first one ends a document, the second one is for padding; post-training uses the others.
    special_tokens: tuple[str, ...] = SPECIAL_TOKENS
    min_bytes_per_token: float = 2.0  # gate on fertility

    def __post_init__(self) -> None:
        if len(self.special_tokens) < 2 or len(set(self.special_tokens)) < len(self.special_tokens):
            raise RecipeError(
                f"tokenizer.special_tokens={list(self.special_tokens)}: at least two different ones are needed; the "
                "first"
                " ends a document, the second pads"
            )
        smallest = 256 + len(self.special_tokens)
        for name, size in (("vocabulary", self.vocabulary), *(("study", size) for size in self.study)):
            if size < smallest:
                raise RecipeError(f"tokenizer.{name}={size}; 256 bytes and the special tokens need at least {smallest}")
