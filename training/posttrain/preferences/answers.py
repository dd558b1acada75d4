"""Read preference data as single answers in tokens, each desired or not: both answers of a pair, and unpaired rows."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.job import Counts, DataError, InputArtifact
from training.generate.turns import Chat
from training.posttrain.preferences.pairs import TOO_LONG, Row, is_pair
from training.posttrain.rows.sorting import HELD_OUT_FILE, TRAIN_FILE, read_jsonl


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedAnswer:
    """An answer in tokens with its prompt, whether it is desired, and the row of preference data that it is of."""

    prompt_ids: list[int]
    answer_ids: list[int]
    is_desired: bool
    row: Row

    @property
    def length(self) -> int:
        """The number of tokens of prompt and answer."""
        return len(self.prompt_ids) + len(self.answer_ids)


def read_answers(item: InputArtifact, chat: Chat, *, max_length: int, where: str) -> tuple[list[EncodedAnswer], Counts]:
    """Return the answers to train on that fit in `max_length` tokens, and the counts of rows, held-out rows included.

    A pair is dropped if one of its answers is too long. Raise DataError if no row fits.
    """
    kept: dict[str, list[list[EncodedAnswer]]] = {}
    records_in = 0
    for name in (TRAIN_FILE, HELD_OUT_FILE):
        rows = read_jsonl(item.file(name))
        records_in += len(rows)
        encoded = _encoded(rows, chat)
        kept[name] = [answers for answers in encoded if all(one.length <= max_length for one in answers)]
    if not kept[TRAIN_FILE]:
        raise DataError(f"{where}.max_length={max_length}: no answer in {TRAIN_FILE} fits; make it larger")
    number = sum(map(len, kept.values()))
    dropped = {TOO_LONG: records_in - number} if number < records_in else {}
    counts = Counts(records_in=records_in, kept=number, dropped=dropped)
    return [answer for answers in kept[TRAIN_FILE] for answer in answers], counts


def _encoded(rows: list[Row], chat: Chat) -> list[list[EncodedAnswer]]:
    """Return the answers of each row: two of a pair, one of an unpaired row."""
    said = [
        [(row["chosen"], True), (row["rejected"], False)] if is_pair(row) else [(row["completion"], row["label"])]
        for row in rows
    ]
    prompts = chat.encode_prompts([row["prompt"] for row in rows])
    texts = iter(chat.encode_answers([messages[0] for answers in said for messages, _ in answers]))
    return [
        [
            EncodedAnswer(prompt_ids=prompt, answer_ids=next(texts), is_desired=desired, row=row)
            for _, desired in answers
        ]
        for row, prompt, answers in zip(rows, prompts, said, strict=True)
    ]
