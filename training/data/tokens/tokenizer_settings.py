"""The section `tokenizer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.records import RecipeError, Uri


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerRecipe:
    """A byte-level vocabulary with its special tokens, fixed here; the chat template belongs to post-training.

    `model` says how a word is cut: bpe by merges in order, wordpiece by the longest piece from the left, unigram into
    the most probable pieces.
    """

    snapshots: tuple[str, ...]
    vocabulary: int
    model: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    reference: Uri = ""  # a tokenizer.json whose fertility is reported beside; none when empty
    study: tuple[int, ...] = ()  # other sizes, trained and measured for the report alone
    sample_bytes: int = 50_000_000
    min_frequency: int = 2
    # the first ends a document, the second pads; post-training uses the others
    special_tokens: tuple[str, ...] = ("<|endoftext|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
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
