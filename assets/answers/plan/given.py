"""About how many tokens the documents of a recipe hold, and how many its pretraining asks for, before it is run.

Few documents are looked at, and filter and deduplication have dropped none of them yet: it is an upper estimate.
"""

from __future__ import annotations

from math import log2

from training.data.crawl.crawl import located
from training.data.crawl.settings import SnapshotRecipe
from training.data.look import text_bytes
from training.data.sources import is_remote
from training.order.stage import affordable_tokens
from training.recipe.recipe import Recipe

LOOKED_AT = ("warc", "parquet", "jsonl", "files", "shards")  # sources


def told_of_tokens(recipe: Recipe, *, only_problem: bool = False) -> str:
    """Return a sentence that compares the tokens in a recipe's documents with those that its pretraining asks for.

    It names the settings to change where they do not suffice; with `only_problem` it is empty otherwise. It is also
    empty if the documents are not on this machine.
    """
    given = held_tokens(recipe)
    if given is None:
        return ""
    mixture, asked, batch = recipe.mixture, recipe.pretrain.tokens, recipe.pretrain.global_batch_tokens
    most = given * max((mixture.max_epochs, *mixture.source_epochs.values()))
    held = f"the documents hold about {_about(given)} tokens before filter and deduplication"
    if any(snapshot.source == "warc" for snapshot in recipe.snapshots):
        held += ", which may leave a tenth of a crawl"
    epochs = f"mixture.max_epochs {mixture.max_epochs:g}"
    if most < batch:
        return f"{held}, less than one batch of {batch:,} with {epochs}; add documents or lower global_batch_tokens"
    if only_problem and (asked == "auto" or asked <= most):
        return ""
    if asked == "auto":
        paid = None if recipe.adopt.model else affordable_tokens(recipe)  # of a shape that is not the model's
        limit = epochs if paid is None or most <= paid else "pretrain.compute_budget"
        trained = min(most, paid or most)
        return f"{held}; pretrain.tokens auto trains on at most {_about(trained)}, repeated ones counted ({limit})"
    if asked <= most:
        return f"{held}; pretrain.tokens asks for {asked:,}"
    return (
        f"{held}, too few for pretrain.tokens {asked:,} with {epochs}: write auto or less than {_about(most)}, add"
        " documents, or raise mixture.max_epochs"
    )


def held_tokens(recipe: Recipe) -> float | None:
    """Return about how many tokens the recipe's documents hold; None without documents, or if some are elsewhere.

    It is an upper estimate, before filter and deduplication.
    """
    found = [_tokens(snapshot, recipe.tokenizer.vocabulary) for snapshot in recipe.snapshots]
    known = [one for one in found if one is not None]
    return sum(known) if found and len(known) == len(found) else None


def _tokens(snapshot: SnapshotRecipe, vocabulary: int) -> float | None:
    """Estimate the tokens of a snapshot's text; None if it is not on this machine.

    A byte-level vocabulary of 2,048 has about 3.2 bytes in a token, one of 32,768 about 4.
    """
    if snapshot.source not in LOOKED_AT:
        return None
    try:
        files = list(located(snapshot).values())
        if any(map(is_remote, files)):
            return None
        return text_bytes(files, snapshot.source, snapshot.text_field) / (1 + log2(vocabulary) / 5)
    except (ValueError, OSError):  # of a recipe, of data, or of the library that reads a file
        return None  # what stops a run is said by the run


def _about(tokens: float) -> str:
    """Return a number with two digits that count."""
    digits = max(0, len(str(int(tokens))) - 2)
    return f"{int(round(tokens, -digits)):,}"
