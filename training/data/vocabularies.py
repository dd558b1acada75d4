"""What other sizes of a vocabulary would give: fertility against size, on the sample that a tokenizer was trained on.

    python -m training.data.vocabularies RUNS/tokenizer/FINGERPRINT 1024 4096 16384

Trains each size on the same documents, measures it on the same held-out ones and prints a table, with the reference's
row where the recipe names one. Writes nothing, so that to look at it makes nothing outdated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from training.data.tokenizer import Sample, measure, reference_of, sample_files, train
from training.job import DataError, Job, read_job
from training.recipe import TokenizerRecipe
from training.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Fertility:
    """One vocabulary on the held-out documents. `size` may be smaller than asked: a sample has only so many pieces."""

    name: str
    size: int
    bytes_per_token: float
    tokens_per_word: float


def study(job: Job, sizes: Iterable[int]) -> list[Fertility]:
    """The fertility of each size, the recipe's own among them, in order; last that of the reference, if there is one.

    `job` is the one that made a tokenizer. DataError when its documents are gone.
    """
    recipe = job.settings_as(TokenizerRecipe, "tokenizer")
    sample = Sample.choose(sample_files(job, recipe), recipe)
    held_out = [row["text"] for row in sample.held_out_rows()]
    made = [
        (str(size), _plain(train(sample.training_texts(), replace(recipe, vocabulary=size))))
        for size in sorted({*sizes, recipe.vocabulary})
    ]
    reference = reference_of(job, recipe)
    if reference is not None:
        made.append(("reference", reference))
    return [
        Fertility(name=name, size=tokenizer.get_vocab_size(), **measure(tokenizer, held_out))
        for name, tokenizer in made
    ]


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """As `load_tokenizer` reads it: what looks like a special token is spelled with ordinary ones."""
    return Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), "added_tokens": []}))


def table(rows: Sequence[Fertility]) -> str:
    """The rows as text; the last column says how many tokens a size saves beside the one before it."""
    lines = [f"{'vocabulary':>12} {'pieces':>9} {'bytes/token':>12} {'tokens/word':>12} {'fewer tokens':>13}"]
    before = None
    for row in rows:
        saved = "" if before is None or row.name == "reference" else f"{1 - before / row.bytes_per_token:.1%}"
        lines.append(
            f"{row.name:>12} {row.size:>9,} {row.bytes_per_token:>12.3f} {row.tokens_per_word:>12.3f} {saved:>13}"
        )
        before = row.bytes_per_token
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the study of a tokenizer's artifact; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.data.vocabularies", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("artifact", type=Path, help="folder of a tokenizer")
    parser.add_argument("sizes", type=int, nargs="+")
    options = parser.parse_args(arguments)
    try:
        print(table(study(read_job(options.artifact / "job.json"), options.sizes)))
    except (DataError, RecipeError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
