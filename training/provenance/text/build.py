"""Stage `index_text`: one rank sorts the suffixes of one token shard.

A rank writes two arrays. `suffixes/<rank>.npy` is the suffix array, uint32 [tokens], and `suffixes/<rank>.first.npy`
tells where the suffixes that begin with each token are, int64 [vocabulary + 1]. The tokens themselves stay in the
shard. `text_index.json` says which arrays belong to which shard: the shard's name, its file, and the file's sha256.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from training.contract.artifact import write_json, written
from training.contract.job import Gate, Job, Outcome, Share, Work
from training.data.tokens.shards import SHARDS_FILE
from training.provenance.text.suffixes import Suffixes, Tokens, first_places, first_unsorted, suffix_array

FOLDER: Final = "suffixes"
INDEX_FILE: Final = "text_index.json"
COMPARED_EVERY: Final = 1_000  # of how many neighbours in a suffix array one pair is compared after the array was made
COMPARED_TOKENS: Final = 10_000  # that two neighbours are compared by; copies of pages have long beginnings in common


def num_ranks(job: Job) -> int:
    """Number of ranks: one for each shard."""
    return len(_listing(job)["shards"])


def rank_shares(job: Job) -> list[Share]:
    """Return what each rank reads: the tokens of its shard, and their data type."""
    shards, listing = job.input_of("token_shards"), _listing(job)
    facts = {name: listing[name] for name in ("dtype", "vocab_size")}
    listings = ((shards, SHARDS_FILE),)
    return [Share(files=((shards, one["path"]),), facts=facts, listings=listings) for one in listing["shards"]]


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Sort the suffixes of one shard, and check the suffix array."""
    listing = _listing(job)
    path = job.input_of("token_shards").file(listing["shards"][rank]["path"])
    tokens = np.fromfile(path, listing["dtype"])
    suffixes = suffix_array(tokens, listing["vocab_size"])
    files = [f"{FOLDER}/{rank:05d}.npy", f"{FOLDER}/{rank:05d}.first.npy"]
    for name, array in zip(files, (suffixes, first_places(tokens, listing["vocab_size"])), strict=True):
        with written(work.path / name) as stream:
            np.save(stream, array, allow_pickle=False)
    return {"files": files, "tokens": len(tokens), "wrong": _wrong(tokens, suffixes)}


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """List the suffix arrays with their shards, and add the gate that says whether all are right."""
    shards, listing = job.input_of("token_shards"), _listing(job)
    manifest = shards.files()
    entries = [
        {
            "shard": shard["name"],
            "tokens": shard["path"],
            "tokens_sha256": manifest[shard["path"]]["sha256"],
            "suffixes": made["files"][0],
            "first": made["files"][1],
        }
        for shard, made in zip(listing["shards"], ranks, strict=True)
    ]
    write_json(work.path / INDEX_FILE, {"token_shards": shards.digest, "dtype": listing["dtype"], "shards": entries})
    wrong = {
        shard["name"]: made["wrong"] for shard, made in zip(listing["shards"], ranks, strict=True) if made["wrong"]
    }
    return Outcome(
        files=(INDEX_FILE, *(name for made in ranks for name in made["files"])),
        metrics={"tokens": sum(made["tokens"] for made in ranks), "shards": len(ranks)},
        gates=(Gate(name="suffixes_sorted", passed=not wrong, evidence={"shards": len(ranks), "wrong": wrong}),),
    )


def _wrong(tokens: Tokens, suffixes: Suffixes) -> str:
    """Return what is wrong with a suffix array, or "" if nothing is.

    A suffix array is wrong if a position is missing, or if two positions of a sample are not in order.
    """
    seen = np.zeros(len(tokens), np.bool_)
    seen[suffixes] = True
    if not seen.all():
        return f"position {int(seen.argmin())} is missing"
    place = first_unsorted(tokens, suffixes, COMPARED_EVERY, COMPARED_TOKENS)
    return "" if place < 0 else f"places {place} and {place + 1} are not in order"


def _listing(job: Job) -> dict[str, Any]:
    return json.loads(Path(job.input_of("token_shards").file(SHARDS_FILE)).read_text("utf-8"))
