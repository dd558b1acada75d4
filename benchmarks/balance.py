"""Count the attention that each process of `context` has to compute, with its positions at one place and at two.

`python -m benchmarks.balance` makes packed rows and counts the (query, key) pairs that each process's queries see, and
the blocks of 128 x 128 that flex_attention computes for them. It prints the most of a process over the mean, for
positions in one run (`consecutive`) and as the trainer gives them out (`both ends`). Nothing is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from training.pretrain.lanes import both_ends
from training.pretrain.models.attention import document_mask

MASKS = {"one document": (0.0, 0), "documents of 1,000": (1e-3, 0), "one document, window 1,024": (0.0, 1024)}
Division = Callable[[int, int, int], Sequence[int]]  # positions, given length, processes and the process's place


def consecutive(length: int, parts: int, place: int) -> Sequence[int]:
    """Return the positions of a process in one run."""
    size = length // parts
    return range(place * size, (place + 1) * size)


def ends(length: int, parts: int, place: int) -> Sequence[int]:
    """Return the positions of a process as the trainer divides a row."""
    return [one for run in both_ends(length, parts, place) for one in run]


DIVISIONS: dict[str, Division] = {"consecutive": consecutive, "both ends": ends}


def rows_of(share: float, *, rows: int, length: int) -> Tensor:
    """Return the documents of packed rows; `share` of the positions start one."""
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(rows, length, generator=generator) < share).cumsum(1)


def pairs(documents: Tensor, *, window: int, own: Tensor) -> int:
    """Return how many keys the queries at the positions `own` see together."""
    index = torch.arange(documents.shape[1])
    starts = torch.zeros_like(documents)
    starts[:, 1:] = (documents[:, 1:] != documents[:, :-1]) * index[1:]
    first = starts.cummax(dim=1).values
    first = first.clamp(min=index - window + 1) if window else first
    return int((index - first + 1)[:, own].sum())


def blocks(documents: Tensor, *, window: int, own: Tensor) -> int:
    """Return how many blocks flex_attention computes for the queries at the positions `own`."""
    mask = document_mask(documents, dtype=torch.bfloat16, window=window, own=own, kind="flex")
    found = mask.visibility(windowed=bool(window)).flex
    assert found is not None and found.full_kv_num_blocks is not None, "flex was asked for"
    return int(found.kv_num_blocks.sum() + found.full_kv_num_blocks.sum())


def most_over_mean(
    count: Callable[..., int], division: Division, documents: Tensor, *, window: int, parts: int
) -> float:
    """Return the count of the process with the most, over the mean of all."""
    shares = [torch.tensor(division(documents.shape[1], parts, place)) for place in range(parts)]
    counts = [count(documents, window=window, own=own) for own in shares]
    return max(counts) * parts / sum(counts)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=32_768, help="positions in a row")
    parser.add_argument("--rows", type=int, default=4)
    options = parser.parse_args()
    print("| rows | context | positions | pairs, most over mean | blocks, most over mean |\n|---|---|---|---|---|")
    for name, (share, window) in MASKS.items():
        documents = rows_of(share, rows=options.rows, length=options.length)
        for parts in (2, 4, 8, 16):
            for kind, division in DIVISIONS.items():
                given = (division, documents)
                found = [most_over_mean(count, *given, window=window, parts=parts) for count in (pairs, blocks)]
                print(f"| {name} | {parts} | {kind} | {found[0]:.2f} | {found[1]:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
