"""The stage `synthesize`: a model of the recipe writes text; every row holds its generator, prompt and settings.

`synthetic/<rank>.jsonl.zst` has one row for each text: `id`, `url` (`synthetic://<generator's digest>/<id>`, so that a
document made from the row can be traced to it), `text`, `prompt`, `generator` (`<asset>:<digest>`), `seed`,
`temperature`, `top_p` and `max_new_tokens`. Another recipe uses the folder or its files as a snapshot with
`source: jsonl`.

For a model with a chat template, the prompt is a user's message and `text` is the answer. Any other model continues the
prompt, and `text` is the prompt with its continuation. A text depends only on its prompt, its seed and the settings.
Each rank writes the texts of RANK_PROMPTS consecutive prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from training.contract.identity import numerics
from training.contract.job import Counts, DataError, InputArtifact, Job, Outcome, Work
from training.data.documents import write_lines
from training.data.sources import checksum_of, read_rows
from training.generate.settings import SynthesisRecipe

FOLDER = "synthetic"
MODEL_FOLDER = "model"
RANK_PROMPTS = 256


def num_ranks(job: Job) -> int:
    """Return the number of ranks: one for every RANK_PROMPTS prompts."""
    return -(-sum(1 for _ in read_prompts(job)) // RANK_PROMPTS)


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Write the texts of one rank's prompts; texts that are empty or only white space are dropped."""
    recipe = job.settings_as(SynthesisRecipe, "synthesis")
    first = rank * RANK_PROMPTS
    prompts = list(islice(read_prompts(job), first, first + RANK_PROMPTS))
    asked = [(first + i, copy, prompt) for i, prompt in enumerate(prompts) for copy in range(recipe.texts_per_prompt)]
    numerics.use_threads(job.run)
    numerics.note(job, work, rank=rank)
    rows, how = written_texts(asked, recipe, job.input_of(recipe.generator))
    kept = [row for row in rows if row["text"].strip()]
    name = f"{FOLDER}/{rank:05d}.jsonl.zst"
    write_lines(work.path / name, kept)
    empty = sum(not row["text"].strip() for row in rows)
    dropped = {"empty": empty} if empty else {}
    return {
        "files": [name],
        "counts": Counts(records_in=len(asked), kept=len(kept), dropped=dropped).as_json(),
        "characters": sum(len(row["text"]) for row in kept),
        "conversations": how,
    }


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """Return the outcome of all ranks together. Raise DataError if the model wrote no text to any prompt."""
    recipe = job.settings_as(SynthesisRecipe, "synthesis")
    counts = Counts.total([rank["counts"] for rank in ranks])
    if not counts.kept:
        raise DataError(f"synthesis: {recipe.generator} wrote nothing to any of {counts.records_in} prompts")
    characters = sum(rank["characters"] for rank in ranks)
    return Outcome(
        files=tuple(name for rank in ranks for name in rank["files"]),
        counts=counts,
        metrics={"texts": counts.kept, "characters": characters},
        notes={"generator": generator_id(job.input_of(recipe.generator)), "conversations": ranks[0]["conversations"]},
    )


def generator_id(item: InputArtifact) -> str:
    """Return the id of the model that wrote a text: `<asset>:<digest of its artifact>`."""
    return f"{item.asset}:{item.digest}"


def seed_of(seed: int, prompt: int, copy: int) -> int:
    """Return the seed of one text, from the recipe's seed, the prompt's number and the text's number for the prompt."""
    return int.from_bytes(hashlib.sha256(f"synthesis/{seed}/{prompt}/{copy}".encode()).digest()[:7])


def written_texts(
    asked: Sequence[tuple[int, int, str]], recipe: SynthesisRecipe, item: InputArtifact
) -> tuple[list[dict[str, Any]], str | None]:
    """Let the model write texts; return a row for each, and how prompts became conversations, None if they did not.

    Each entry of `asked` is (number of the prompt, number of the text among those for this prompt, prompt).
    """
    from training.generate.sampler import Sampler

    model = Sampler(item.file(MODEL_FOLDER), batch_size=recipe.batch_size)
    encoder = model.encoder
    is_chat = encoder.how is not None
    shown = (
        encoder.conversations([[{"role": "user", "content": prompt}] for _, _, prompt in asked], is_prompt=True)
        if is_chat
        else [encoder.text(prompt) for _, _, prompt in asked]
    )
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
    return rows, encoder.how


def read_prompts(job: Job) -> Iterator[str]:
    """Yield the prompts of the recipe's file, in order, in the recipe's template.

    Raise DataError if there is no row, a row has no prompt, or the file has changed since the job was written.
    """
    recipe = job.settings_as(SynthesisRecipe, "synthesis")
    uri = recipe.prompts
    assert uri is not None  # else there is no such job
    expected = job.settings.get("data", {}).get(uri)
    if expected and checksum_of(uri) != expected:
        raise DataError(f"{uri}: the file has changed since the job was written; run again")
    number = -1
    for number, row in enumerate(islice(read_rows(uri, settings=job.settings), recipe.limit or None)):
        text = row.get(recipe.prompt_field)
        if not isinstance(text, str) or not text.strip():
            raise DataError(
                f"{uri}: row {number}: no text in {recipe.prompt_field!r} (synthesis.prompt_field); it has"
                f" {', '.join(sorted(row))}"
            )
        words = text.split(" ")
        cut = " ".join(words[: recipe.prompt_words]) if recipe.prompt_words else text
        yield recipe.template.replace("{prompt}", cut)
    if number < 0:
        raise DataError(f"{uri}: no rows; synthesis.prompts needs at least one")
