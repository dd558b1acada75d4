"""The stage `synthesize`: text that a model of the recipe wrote, every row with who wrote it, from what, and how.

`synthetic/<rank>.jsonl.zst` has one row a text: `id`, `url` (`synthetic://<generator's digest>/<id>`, so that a
document made of it leads back here), `text`, `prompt`, `generator` (`<asset>:<digest>`), `seed`, `temperature`, `top_p`
and `max_new_tokens`. A recipe names the folder or its files as a snapshot with `source: jsonl`.

A model with a chat template is asked through it and `text` is its answer; any other continues the prompt, and `text` is
prompt and continuation. What a row says depends on its prompt, its seed and the settings: ranks are stretches of the
prompts, fixed by their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from training import numerics
from training.data.documents import write_lines
from training.data.sources import checksum_of, read_rows
from training.generate.settings import SynthesisRecipe
from training.job import Counts, DataError, InputArtifact, Job, Outcome, Work

FOLDER = "synthetic"
MODEL_FOLDER = "model"
RANK_PROMPTS = 256


def num_ranks(job: Job) -> int:
    """One for every RANK_PROMPTS prompts."""
    return -(-sum(1 for _ in read_prompts(job)) // RANK_PROMPTS)


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """The texts of one stretch of prompts."""
    recipe = job.settings_as(SynthesisRecipe, "synthesis")
    first = rank * RANK_PROMPTS
    prompts = list(islice(read_prompts(job), first, first + RANK_PROMPTS))
    asked = [(first + i, copy, prompt) for i, prompt in enumerate(prompts) for copy in range(recipe.texts_per_prompt)]
    numerics.use_threads(job.run)
    numerics.note(job, work, rank=rank)
    rows = written_texts(asked, recipe, job.input_of(recipe.generator))
    kept = [row for row in rows if row["text"].strip()]
    name = f"{FOLDER}/{rank:05d}.jsonl.zst"
    write_lines(work.path / name, kept)
    empty = sum(not row["text"].strip() for row in rows)
    dropped = {"empty": empty} if empty else {}
    return {
        "files": [name],
        "counts": Counts(records_in=len(asked), kept=len(kept), dropped=dropped).as_json(),
        "characters": sum(len(row["text"]) for row in kept),
    }


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """Sum up. DataError when the model had nothing to say to any prompt."""
    recipe = job.settings_as(SynthesisRecipe, "synthesis")
    counts = Counts.total([rank["counts"] for rank in ranks])
    if not counts.kept:
        raise DataError(f"synthesis: {recipe.generator} wrote nothing to any of {counts.records_in} prompts")
    characters = sum(rank["characters"] for rank in ranks)
    return Outcome(
        files=tuple(name for rank in ranks for name in rank["files"]),
        counts=counts,
        metrics={"texts": counts.kept, "characters": characters},
        notes={"generator": generator_id(job.input_of(recipe.generator))},
    )


def generator_id(item: InputArtifact) -> str:
    """Who wrote a text: the asset and the digest of the very artifact."""
    return f"{item.asset}:{item.digest}"


def seed_of(seed: int, prompt: int, copy: int) -> int:
    """A row's own seed, from the recipe's, the prompt's number and the copy's."""
    return int.from_bytes(hashlib.sha256(f"synthesis/{seed}/{prompt}/{copy}".encode()).digest()[:7])


def written_texts(
    asked: Sequence[tuple[int, int, str]], recipe: SynthesisRecipe, item: InputArtifact
) -> list[dict[str, Any]]:
    """A row for each (prompt's number, copy, prompt)."""
    from training.generate.sampler import Sampler

    model = Sampler(item.file(MODEL_FOLDER), batch_size=recipe.batch_size)
    is_chat = bool(model.tokenizer.chat_template)
    shown = [model.in_template([{"role": "user", "content": p}]) if is_chat else p for _, _, p in asked]
    settings = {"temperature": recipe.temperature, "top_p": recipe.top_p, "max_new_tokens": recipe.max_new_tokens}
    seeds = [seed_of(recipe.seed, number, copy) for number, copy, _ in asked]
    answers = model.answers(shown, seeds=seeds, **settings)
    rows = []
    for (number, copy, prompt), seed, answer in zip(asked, seeds, answers, strict=True):
        name = f"{number:08d}-{copy}"
        rows.append(
            {
                "id": name,
                "url": f"synthetic://{item.digest}/{name}",
                "text": answer if is_chat else prompt + answer,
                "prompt": prompt,
                "generator": generator_id(item),
                "seed": seed,
                **settings,
            }
        )
    return rows


def read_prompts(job: Job) -> Iterator[str]:
    """The prompts that the recipe names, in order. DataError when there is none, a row has none, or the file changed
    since the job was written."""
    recipe = job.settings_as(SynthesisRecipe, "synthesis")
    expected = job.settings.get("data", {}).get(recipe.prompts)
    if expected and checksum_of(recipe.prompts) != expected:
        raise DataError(f"{recipe.prompts}: the file has changed since the job was written; run again")
    number = -1
    for number, row in enumerate(islice(read_rows(recipe.prompts, settings=job.settings), recipe.limit or None)):
        text = row.get(recipe.prompt_field)
        if not isinstance(text, str) or not text.strip():
            raise DataError(
                f"{recipe.prompts}: row {number}: no text in {recipe.prompt_field!r} (synthesis.prompt_field); it has"
                f" {', '.join(sorted(row))}"
            )
        words = text.split(" ")
        cut = " ".join(words[: recipe.prompt_words]) if recipe.prompt_words else text
        yield recipe.template.replace("{prompt}", cut)
    if number < 0:
        raise DataError(f"{recipe.prompts}: no rows; synthesis.prompts needs at least one")
