"""How many rows one pass of post-training reads. Imports no torch, because profiles are checked before a job starts."""

from __future__ import annotations

PASS_TOKENS = 16_384  # of the rows that are read at once without a training, padding included
PASS_LOGITS = 2**28  # numbers in the logits of these rows


def rows_in_pass(share: int, *, micro_batch_tokens: int | None, row_tokens: int) -> int:
    """Return the rows of one pass, of the `share` of a batch that a process has: the most that divide it and fit."""
    fitting = share if micro_batch_tokens is None else max(1, micro_batch_tokens // row_tokens)
    return max(number for number in range(1, share + 1) if share % number == 0 and number <= fitting)
