"""Overwrite withdrawn rows of instructions, preferences and prompts: in the files of rows, and in indexes of them.

What stays of a row is its id, source, generator and the reason for which it was dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.posttrain.rows.decontamination import HITS_FILE
from training.provenance.rows.build import GRAMS_FOLDER, OUTCOMES, ROWS_FOLDER
from training.provenance.swap import Swap, overwrite_lines

STAYS = frozenset(("id", "source", "generator", "reason", "benchmark", "item", "part"))
FILES = (*OUTCOMES, HITS_FILE)

IsGone = Callable[[str], bool]


def erase_row_file(folder: Path, name: str, is_gone: IsGone, swap: Swap) -> int:
    """Empty the withdrawn rows of a file of rows; return how many had a text."""
    return overwrite_lines(folder, name, lambda row: _bare(row) if is_gone(row["id"]) else row, swap, is_input=False)


def _bare(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if name in STAYS or not isinstance(value, (str, list, dict)) else type(value)()
        for name, value in row.items()
    }


def erase_row_index(folder: Path, is_gone: IsGone, swap: Swap) -> int:
    """Take the addresses of withdrawn rows, and the hashes of their words, out of an index; return how many had any."""
    count = 0
    for path in sorted((folder / ROWS_FOLDER).glob("*.parquet")):
        rows, grams = pq.read_table(path), folder / GRAMS_FOLDER / f"{path.stem}.npy"
        gone = np.array([is_gone(id_) for id_ in rows["id"].to_pylist()], np.bool_)
        runs = np.load(grams, allow_pickle=False)
        addresses = rows["addresses"].to_pylist()
        had = np.isin(np.arange(len(gone)), runs[1]) | np.array([bool(one) for one in addresses], np.bool_)
        if not (gone & had).any():
            continue
        count += int((gone & had).sum())
        left = pa.array([[] if out else one for one, out in zip(addresses, gone, strict=True)], pa.list_(pa.string()))
        place = rows.column_names.index("addresses")
        with swap.overwriting(folder, f"{ROWS_FOLDER}/{path.name}", is_input=False) as out:
            pq.write_table(rows.set_column(place, rows.schema.field(place), left), out.stream, compression="zstd")
        with swap.overwriting(folder, f"{GRAMS_FOLDER}/{grams.name}", is_input=False) as out:
            np.save(out.stream, runs[:, ~gone[runs[1]]])
    return count
