"""Read preference pairs as tokens: prompt, chosen and rejected answer, encoded so that no text can forge a turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.contract.job import Counts, DataError, InputArtifact
from training.generate.turns import Chat
from training.posttrain.rows.sorting import HELD_OUT_FILE, TRAIN_FILE, read_jsonl

Row = dict[str, Any]
TOO_LONG, UNPAIRED = "longer_than_max_length", "unpaired"  # reasons to drop a row


def is_pair(row: Row) -> bool:
    """Whether a row of preference data has two answers; otherwise it has one, with a label."""
    return "chosen" in row


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedPair:
    """A pair in tokens. The prompt ends with the token that begins the assistant's turn, each answer with its end."""

    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]

    @property
    def length(self) -> int:
        """The number of tokens of the prompt with the longer of the two answers."""
        return len(self.prompt_ids) + max(len(self.chosen_ids), len(self.rejected_ids))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """Training and held-out preference pairs that fit into the sequence length, as rows and as tokens.

    The rows read, kept and dropped are counted.
    """

    train_rows: list[Row]
    train: list[EncodedPair]
    held_out_rows: list[Row]
    held_out: list[EncodedPair]
    counts: Counts


def read_pairs(item: InputArtifact, chat: Chat, *, max_length: int, where: str) -> Pairs:
    """Return the pairs of a preference artifact that fit in `max_length` tokens. Rows with a single answer are dropped.

    Raise DataError if no training pair or no held-out pair fits. `where` is the recipe section in the message.
    """
    sides = {}
    records_in, too_long, unpaired = 0, 0, 0
    for name in (TRAIN_FILE, HELD_OUT_FILE):
        read = read_jsonl(item.file(name))
        rows = [row for row in read if is_pair(row)]
        records_in += len(read)
        unpaired += len(read) - len(rows)
        encoded = encode_pairs(rows, chat)
        too_long += sum(pair.length > max_length for pair in encoded)
        sides[name] = [(row, pair) for row, pair in zip(rows, encoded, strict=True) if pair.length <= max_length]
        if not sides[name]:
            raise DataError(
                f"{where}.max_length={max_length}: not one of {len(rows)} pairs in {name} fits; make it larger"
            )
    kept = sum(map(len, sides.values()))
    dropped = {reason: number for reason, number in ((TOO_LONG, too_long), (UNPAIRED, unpaired)) if number}
    return Pairs(
        train_rows=[row for row, _ in sides[TRAIN_FILE]],
        train=[pair for _, pair in sides[TRAIN_FILE]],
        held_out_rows=[row for row, _ in sides[HELD_OUT_FILE]],
        held_out=[pair for _, pair in sides[HELD_OUT_FILE]],
        counts=Counts(records_in=records_in, kept=kept, dropped=dropped),
    )


def encode_pairs(rows: Sequence[Row], chat: Chat) -> list[EncodedPair]:
    """Return the rows of preference data in tokens."""
    prompts = chat.encode_prompts([row["prompt"] for row in rows])
    chosen = chat.encode_answers([row["chosen"][0] for row in rows])
    rejected = chat.encode_answers([row["rejected"][0] for row in rows])
    return [
        EncodedPair(prompt_ids=prompt, chosen_ids=better, rejected_ids=worse)
        for prompt, better, worse in zip(prompts, chosen, rejected, strict=True)
    ]
