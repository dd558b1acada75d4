"""How many rows one pass of post-training or scoring reads.

Imports no torch, because profiles are checked before a job starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

PASS_ROWS = 64  # that are read at once without a training
PASS_TOKENS = 16_384  # of these rows, padding included
PASS_LOGITS = 2**28  # numbers in the logits of these rows
SAMPLE_ROWS = 64  # on which the loss of SFT is measured before and after it, in fp32
START_ROWS = 32  # on which the loss of a preference method is measured before its first step
MERGED_ROWS = 8  # of which one pass is compared before and after adapters are merged


def rows_in_pass(share: int, *, micro_batch_tokens: int | None, row_tokens: int) -> int:
    """Return the rows of one pass, of the `share` of a batch that a process has: the most that divide it and fit."""
    fitting = share if micro_batch_tokens is None else max(1, micro_batch_tokens // row_tokens)
    return max(number for number in range(1, share + 1) if share % number == 0 and number <= fitting)


def passes(lengths: Sequence[int], *, vocabulary: int = 1, most_rows: int = PASS_ROWS) -> Iterator[slice]:
    """Yield slices of rows of these lengths, in order, that one pass without a training may read.

    Each has one row, or at most `most_rows` that are padded to at most PASS_TOKENS, and whose logits over a
    `vocabulary` are at most PASS_LOGITS. They do not depend on the number of processes, and so no result does.
    """
    most = min(PASS_TOKENS, PASS_LOGITS // vocabulary)
    start = longest = 0
    for at, length in enumerate(lengths):
        longest = max(longest, length)
        rows = at + 1 - start
        if rows > 1 and (rows > most_rows or rows * longest > most):
            yield slice(start, at)
            start, longest = at, length
    if start < len(lengths):
        yield slice(start, len(lengths))
