"""Compare vocabulary sizes by their fertility, on the sample on which a tokenizer was trained.

    python -m training.data.tokens.vocabularies RUNS/tokenizer/FINGERPRINT 1024 4096 16384

This is the recipe's `tokenizer.study` for a finished tokenizer. It prints a table, including the reference if the
recipe names one, and writes nothing, so that no artifact becomes outdated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.contract.job import DataError, read_job
from training.contract.records import RecipeError
from training.contract.tables import table_lines
from training.data.tokens.sample import TokenizerSample
from training.data.tokens.tokenizer import (
    TOKENIZER_FILE,
    load_tokenizer,
    measure,
    reference_of,
    sample_files,
    study,
)
from training.data.tokens.tokenizer_settings import TokenizerRecipe


def study_of(folder: Path, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return the study of the tokenizer in `folder` as named rows; the recipe's reference, if any, is the last row.

    Raise DataError if the documents that the tokenizer was trained on no longer exist.
    """
    job = read_job(folder / "job.json")
    recipe = replace(job.settings_as(TokenizerRecipe, "tokenizer"), study=tuple(sizes))
    sample = TokenizerSample.choose(sample_files(job, recipe), recipe)
    rows = study(load_tokenizer(folder / TOKENIZER_FILE), sample, recipe, recipe.study)
    named: list[dict[str, Any]] = [{"name": str(row["vocabulary"]), **row} for row in rows]
    reference = reference_of(job, recipe)
    if reference is not None:
        held_out = [row["text"] for row in sample.held_out_rows()]
        named.append({"name": "reference", "pieces": reference.get_vocab_size(), **measure(reference, held_out)})
    return named


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows as text; the last column is the share of tokens that a size saves, compared to the row before."""
    shown, before = [], None
    for row in rows:
        found = row["bytes_per_token"]
        saved = "" if before is None or row["name"] == "reference" else f"{1 - before / found:.1%}"
        shown.append((row["name"], f"{row['pieces']:,}", f"{found:.3f}", f"{row['tokens_per_word']:.3f}", saved))
        before = found
    head = ("vocabulary", "pieces", "bytes/token", "tokens/word", "fewer tokens")
    return "\n".join(table_lines(shown, head=head, right=range(len(head))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the study of a tokenizer artifact; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.data.tokens.vocabularies", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("artifact", type=Path, help="folder of a tokenizer")
    parser.add_argument("sizes", type=int, nargs="+")
    options = parser.parse_args(arguments)
    try:
        print(table(study_of(options.artifact, options.sizes)))
    except (DataError, RecipeError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
